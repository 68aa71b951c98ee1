"""Work that recurses as deep as its input is long, on a stack that is deep enough for it.

A thread's usual stack ends such work with the whole process. One of its own costs about 0.1 ms; what it touches is
given back when the work is done. Knows nothing of the work.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

R = TypeVar("R")

_LEAST_BYTES = 8 << 20
# The dearest that was found took 500 bytes of stack for a byte of input.
_BYTES_PER_BYTE = 2048
_GRAIN = 1 << 20

_lock = threading.Lock()


def deeply(work: Callable[[], R], num_bytes: int) -> R:
    """What the work returns or raises. num_bytes: the size of its input."""
    size = _LEAST_BYTES + num_bytes * _BYTES_PER_BYTE // _GRAIN * _GRAIN
    with _lock:  # the size is one for all threads that are about to begin
        before = threading.stack_size(size)
        try:
            thread = ThreadPoolExecutor(1, thread_name_prefix="deep")
            outcome = thread.submit(work)
        finally:
            threading.stack_size(before)
    with thread:
        return outcome.result()
