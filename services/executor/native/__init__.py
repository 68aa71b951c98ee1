"""The executor's own CPU kernels: C++ behind a C interface (src/abi.h), and a model that runs a whole step in them.

Weights stay in the 4 or 8 bits they were stored in; activations are quantized to 8 bits on the way into each product.
docs/kernels.md explains the design.
"""
