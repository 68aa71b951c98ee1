"""The prefix cache: which block holds the KV of which tokens after which prefix.

A full block of known tokens has a key, chained from its parent's key, the salt and its tokens (hash-chained blocks as
in vLLM's automatic prefix caching; BLAKE2b with 16 bytes). Tokens and parent are compared on a hit all the same, so a
collision costs a miss. A block is published when its positions are acknowledged, never before; until then its key is
*expected*, and a request that needs it waits instead of computing it twice. Knows no order of service and no budget.
"""

from hashlib import blake2b
from typing import NamedTuple

from services.scheduler.core.blocks import BlockPool
from services.scheduler.core.sequence import Run, Sequence

KEY_BYTES = 16


def root_of(salt: str) -> bytes:
    """The parent of every first block under a salt: requests of different salts share nothing."""
    return blake2b(salt.encode(), digest_size=KEY_BYTES).digest()


class Content(NamedTuple):
    """What a published block holds."""

    key: bytes
    parent: bytes
    tokens: bytes


class PrefixCache:
    """Invariant: a block has a Content exactly while it is published, and its key leads to it."""

    def __init__(self, num_blocks: int, block_size: int, is_on: bool) -> None:
        self._is_on = is_on
        self.pool = BlockPool(num_blocks, block_size, self._forget)
        self._block_size = block_size
        self._block_of: dict[bytes, int] = {}
        self._content_of: dict[int, Content] = {}
        self._expected: dict[bytes, Run] = {}
        self.is_awaited = False  # somebody was told that a block is expected

    def match(self, sequence: Sequence) -> list[int]:
        """Blocks holding the longest published prefix of the known tokens; at least one token is left to compute."""
        blocks: list[int] = []
        if not self._is_on or sequence.sampling.prompt_logprobs is not None:
            return blocks  # logprobs of the prompt need every position computed
        num_full = (len(sequence.tokens) - 1) // self._block_size
        keys = self._keys(sequence, num_full)
        for index in range(num_full):
            block = self._block_of.get(keys[index])
            if block is None or self._content_of[block] != self._content(sequence, index):
                break
            blocks.append(block)
        return blocks

    def is_expected(self, sequence: Sequence, num_hits: int) -> bool:
        """Whether the block after the hits is being computed for somebody else."""
        if not self._expected or num_hits >= (len(sequence.tokens) - 1) // self._block_size:
            return False
        is_expected = self._keys(sequence, num_hits + 1)[num_hits] in self._expected
        self.is_awaited |= is_expected
        return is_expected

    def hash_known(self, sequence: Sequence) -> None:
        """Compute the keys of a sequence ahead of need."""
        if self._is_on:
            self._keys(sequence, len(sequence.tokens) // self._block_size)

    def expect(self, run: Run, num_planned: int) -> None:
        """Known tokens are planned up to here: nobody else need compute the full blocks of the run."""
        num_full = num_planned // self._block_size if self._is_on else 0
        if num_full > run.num_expected:
            keys = self._keys(run.sequence, num_full)
            for index in range(run.num_expected, num_full):
                key = keys[index]
                if key not in self._block_of:
                    self._expected.setdefault(key, run)
            run.num_expected = num_full

    def publish(self, run: Run) -> None:
        """The run's confirmed full blocks may be found; one whose key is there already stays the run's own."""
        num_full = run.confirmed // self._block_size if self._is_on and not run.is_tainted else 0
        if num_full <= run.num_published:
            return
        keys = self._keys(run.sequence, num_full)
        for index in range(run.num_published, num_full):
            key = keys[index]
            if self._expected and self._expected.get(key) is run:
                del self._expected[key]
            if key not in self._block_of:
                block = run.blocks[index]
                self._block_of[key] = block
                self._content_of[block] = self._content(run.sequence, index)
                self.pool.publish(block)
        run.num_published = num_full

    def leave(self, run: Run) -> None:
        """The run ends: what it has confirmed is published, what it was expected to compute is not any more."""
        self.publish(run)
        for key in run.sequence.chain[run.num_published : run.num_expected]:
            if self._expected.get(key) is run:
                del self._expected[key]

    def taint(self, sequence: Sequence) -> None:
        """The sequence's KV is worth nothing: its run publishes no more, and what is published is withdrawn, whoever
        computed it and whoever holds it. What was found may be what is bad, and would fail whoever finds it next."""
        if sequence.run is not None:
            sequence.run.is_tainted = True
        num_full = len(sequence.tokens) // self._block_size if self._is_on else 0
        self._keys(sequence, num_full)
        for index in range(num_full):
            content = self._content(sequence, index)
            block = self._block_of.get(content.key)
            if block is not None and self._content_of[block] == content:
                self._forget(block)
                self.pool.retract(block)

    def flush(self) -> int:
        """Give up every block that nobody holds; the number of them."""
        idle = self.pool.idle()
        for block in idle:
            self._forget(block)
            self.pool.retract(block)
        return len(idle)

    def expected(self) -> dict[bytes, Run]:
        """Each key that is being computed, and by whom."""
        return dict(self._expected)

    def contents(self) -> dict[int, Content]:
        """What each published block holds."""
        return dict(self._content_of)

    def _forget(self, block: int) -> None:
        del self._block_of[self._content_of.pop(block).key]

    def _content(self, sequence: Sequence, index: int) -> Content:
        """What a block with these known tokens holds; its key is there."""
        chain = sequence.chain
        parent = chain[index - 1] if index else sequence.cache_root
        return Content(chain[index], parent, self._tokens(sequence, index))

    def _keys(self, sequence: Sequence, num_blocks: int) -> list[bytes]:
        """The keys of at least so many full blocks of known tokens; those that are new are computed and kept."""
        chain = sequence.chain
        while len(chain) < num_blocks:
            parent = chain[-1] if chain else sequence.cache_root
            chain.append(blake2b(parent + self._tokens(sequence, len(chain)), digest_size=KEY_BYTES).digest())
        return chain

    def _tokens(self, sequence: Sequence, index: int) -> bytes:
        start = index * self._block_size
        return sequence.tokens[start : start + self._block_size].tobytes()
