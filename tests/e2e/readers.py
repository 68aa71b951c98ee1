"""Many streams read at once, each to its end, while a test does things to the server."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tandem import Client, Finish, Stream, TandemError, TokenLogprobs
from tandem.results import Chunk

LOOK_EVERY_S = 0.005


@dataclass
class Reader:
    """One stream, read by a thread of its own. Exactly one of finish and error is there once it is over: not with the
    last chunk, but with the status that follows it. Whoever closes a stream between the two cancels it."""

    stream: Stream[Chunk]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    finish: Finish | None = None
    error: TandemError | None = None
    is_over: bool = False

    def read(self) -> None:
        """Read to the end."""
        try:
            for chunk in self.stream:
                self.logprobs += chunk.logprobs
                self.token_ids += chunk.token_ids
                self.finish = chunk.finish or self.finish
        except TandemError as error:
            self.error = error
        finally:
            self.is_over = True


@dataclass
class Readers:
    """All of them, in the order of their prompts."""

    readers: list[Reader]
    within_s: float

    def wait_for(self, count: int) -> None:
        """Until each has `count` more tokens than now, or has ended."""
        wanted = [len(reader.token_ids) + count for reader in self.readers]
        self._wait(lambda: all(r.is_over or len(r.token_ids) >= n for r, n in zip(self.readers, wanted, strict=True)))

    def wait_over(self) -> None:
        """Until all have ended."""
        self._wait(lambda: all(reader.is_over for reader in self.readers))

    def outputs(self) -> list[list[int]]:
        """What each has read to its end; none has failed."""
        self.wait_over()
        assert [reader.error for reader in self.readers] == [None] * len(self.readers)
        return [reader.token_ids for reader in self.readers]

    def _wait(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self.within_s
        while not is_so():
            assert time.monotonic() < deadline, [(len(r.token_ids), r.finish, r.error) for r in self.readers]
            time.sleep(LOOK_EVERY_S)


@contextmanager
def reading(
    client: Client, prompts: Sequence[str | Sequence[int]], within_s: float, **options: Any
) -> Iterator[Readers]:
    """One stream a prompt; those still open are closed when the block is left."""
    streams = [client.stream_generate(p, timeout_s=within_s, return_token_ids=True, **options) for p in prompts]
    readers = Readers([Reader(stream) for stream in streams], within_s)
    threads = [threading.Thread(target=reader.read) for reader in readers.readers]
    try:
        for thread in threads:
            thread.start()
        yield readers
    finally:
        for stream in streams:
            stream.close()
        for thread in threads:
            thread.join()
