"""A GPU of CUDA behind the interface of device.py. Nothing of it runs where there is none."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from services.executor.cuda.device import Event, Graph

R = TypeVar("R")

# Its types differ between versions of torch, and some have none.
_cuda: Any = torch.cuda


class CudaEvent:
    """An event of CUDA whose waiting thread sleeps."""

    def __init__(self, stream: Any, is_timed: bool) -> None:
        # torch.Event(blocking=True) would ignore the flag and spin.
        self._event = _cuda.Event(enable_timing=is_timed, blocking=True)
        self._stream = stream

    def record(self) -> None:
        """After all work so far on the stream."""
        self._event.record(self._stream)

    def is_done(self) -> bool:
        """Asks the driver."""
        return bool(self._event.query())

    def wait(self) -> None:
        """Sleeps, without the interpreter's lock."""
        self._event.synchronize()

    def ms_since(self, earlier: Event) -> float:
        """By the device's clock."""
        assert isinstance(earlier, CudaEvent)
        return float(earlier._event.elapsed_time(self._event))


class CudaGraph:
    """A graph of CUDA."""

    def __init__(self, graph: Any, stream: Any) -> None:
        self._graph = graph
        self._stream = stream

    def replay(self) -> None:
        """One launch."""
        with _cuda.stream(self._stream):
            self._graph.replay()


class CudaDevice:
    """One GPU and one stream, which is not the default one. All graphs share one pool: one of them runs at a time."""

    def __init__(self, index: int = 0) -> None:
        self.target = torch.device("cuda", index)
        _cuda.set_device(self.target)
        self.num_processors = int(_cuda.get_device_properties(self.target).multi_processor_count)
        self._stream = _cuda.Stream(self.target)
        self._pool: Any = None

    def working(self) -> AbstractContextManager[object]:
        """The stream is the thread's current one within it."""
        on_stream: AbstractContextManager[object] = _cuda.stream(self._stream)
        return on_stream

    def event(self, is_timed: bool = False) -> Event:
        """On the stream."""
        return CudaEvent(self._stream, is_timed)

    def pinned(self, num_bytes: int) -> Tensor:
        """Page-locked memory."""
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def upload(self, array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> Tensor:
        """By way of page-locked memory that torch keeps until the copy is over."""
        return torch.from_numpy(array).pin_memory().to(self.target, non_blocking=True)

    def capture(self, act: Callable[[], R]) -> tuple[Graph, R]:
        """Whatever is done at first use (kernels loaded or compiled, workspaces) is done in the time before."""
        with self.working():
            act()
        self.synchronize()
        graph = _cuda.CUDAGraph()
        with _cuda.graph(graph, pool=self._pool, stream=self._stream):
            result = act()
        self._pool = graph.pool()
        return CudaGraph(graph, self._stream), result

    def synchronize(self) -> None:
        """Of this stream; there is no other."""
        self._stream.synchronize()

    def free_bytes(self) -> int:
        """Of the GPU, as its driver says."""
        return int(_cuda.mem_get_info(self.target)[0])
