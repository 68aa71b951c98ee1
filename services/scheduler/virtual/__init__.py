"""A virtual server: the real scheduler core over a device that only counts, in virtual time. Deterministic."""
