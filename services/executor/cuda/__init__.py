"""The torch backend on a GPU: steps launched ahead on one stream, and the kernels that a step is made of.

device.py is the one interface to streams, events, pinned memory and graphs; everything above it runs on a CPU as well,
where the tests drive it. docs/gpu.md explains the design and says what has run where.
"""
