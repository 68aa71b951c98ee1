"""Whether this machine may have a GPU, found out without torch: nothing reaches one of CUDA but through its driver."""

import ctypes

_LIBRARY = "libcuda.so.1"


def is_there() -> bool:
    """False where torch need not be asked."""
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return False
    return True
