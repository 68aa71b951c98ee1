"""The pool of KV blocks: who shares which block, and which idle ones still hold something worth finding.

Knows ids, counts and the order of use; knows nothing of tokens, tensors or policy. Block 0 is a dummy and never handed
out. Every other block is in exactly one place: free (worth nothing), idle (held by nobody, but published), or held by
one table or more. Invariant: free + idle + held = total, and a count is the number of tables that name the block.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence


class BlockPool:
    """num_blocks counts the dummy block 0; block_size is in positions. A freed block may be allocated again at once:
    every access to KV is an operation in the executor's first-in first-out list, so older steps run before newer.

    on_evict is told of an idle block whose content is given up.
    """

    def __init__(self, num_blocks: int, block_size: int, on_evict: Callable[[int], None]) -> None:
        assert num_blocks >= 2 and block_size >= 1, "a pool needs a usable block besides the dummy"
        self.block_size = block_size
        self.num_total = num_blocks - 1
        self._on_evict = on_evict
        self._free = list(range(num_blocks - 1, 0, -1))  # a stack: the lowest id comes first
        self._idle: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._num_holders = [0] * num_blocks
        self._is_published = bytearray(num_blocks)

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now, idle ones included."""
        return len(self._free) + len(self._idle)

    @property
    def num_positions(self) -> int:
        """Positions of the whole pool."""
        return self.num_total * self.block_size

    @property
    def num_held_positions(self) -> int:
        """Positions of the blocks that cannot be allocated now."""
        return (self.num_total - self.num_free) * self.block_size

    def blocks_for(self, num_positions: int) -> int:
        """Blocks that hold so many positions."""
        return -(-num_positions // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks for one table, evicting the least recently used idle ones when the free ones run out.

        Asking for none, or for more than num_free, is a bug.
        """
        assert 1 <= count <= self.num_free, f"{count} blocks asked of {self.num_free} free"
        free, holders = self._free, self._num_holders
        if count > len(free):
            self._evict(count - len(free))
        blocks = free[: -count - 1 : -1]
        del free[-count:]
        for block in blocks:
            holders[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """One more table names these blocks, each published or held by a table."""
        for block in blocks:
            assert self._is_published[block] or self._num_holders[block], (
                f"block {block} is shared, neither held nor published"
            )
            if self._num_holders[block] == 0:
                del self._idle[block]
            self._num_holders[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """One table fewer names these blocks, given in its order; the last of a table is used again first."""
        holders, is_published, idle, free = self._num_holders, self._is_published, self._idle, self._free
        for block in reversed(blocks):
            num_left = holders[block] - 1
            assert num_left >= 0, f"block {block} freed twice"
            holders[block] = num_left
            if num_left == 0:
                if is_published[block]:
                    idle[block] = None
                else:
                    free.append(block)

    def publish(self, block: int) -> None:
        """From now on the block is never written, and rests as idle when nobody holds it."""
        assert self._num_holders[block] > 0, f"block {block} is published and not held"
        self._is_published[block] = 1

    def retract(self, block: int) -> None:
        """The block is worth nothing any more."""
        self._is_published[block] = 0
        if block in self._idle:
            del self._idle[block]
            self._free.append(block)

    def num_idle_of(self, blocks: Iterable[int]) -> int:
        """How many of these blocks would leave num_free by being shared."""
        return sum(self._num_holders[block] == 0 for block in blocks)

    def num_reclaimable(self, blocks: Iterable[int]) -> int:
        """How many of a table's blocks would join num_free if the table were freed."""
        return sum(self._num_holders[block] == 1 for block in blocks)

    def holders(self) -> dict[int, int]:
        """Each held block and how many tables name it."""
        return {block: count for block, count in enumerate(self._num_holders) if count}

    def idle(self) -> list[int]:
        """Blocks held by nobody and still published, least recently used first."""
        return list(self._idle)

    def _evict(self, count: int) -> None:
        for _ in range(count):
            block, _ = self._idle.popitem(last=False)
            self._is_published[block] = 0
            self._on_evict(block)
            self._free.append(block)
