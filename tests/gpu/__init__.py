"""`make gpu-check`: what the torch backend does on a GPU, correctness first, then time (docs/gpu.md).

Needs torch, numpy, triton, msgspec, structlog and llguidance, no model file and no network. The same code runs on a CPU
with --dry-run, at small shapes.
"""
