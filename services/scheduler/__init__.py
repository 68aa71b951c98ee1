"""The scheduler: plans step N+1 while the executor runs step N. The core is pure; this shell moves messages."""
