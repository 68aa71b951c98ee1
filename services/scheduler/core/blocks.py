"""The pool of KV blocks: who holds which block.

Knows ids and counts; knows nothing of tokens, tensors or policy. Block 0 is a dummy and never handed out.
Invariant: free + held = total, and a block is free exactly when its mark says so.
"""


class BlockPool:
    """num_blocks counts the dummy block 0; block_size is in positions. A freed block may be allocated again at once:
    every access to KV is an operation in the executor's first-in first-out list, so older steps run before newer."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        assert num_blocks >= 2 and block_size >= 1, "a pool needs a usable block besides the dummy"
        self.block_size = block_size
        self.num_total = num_blocks - 1
        self._free = list(range(num_blocks - 1, 0, -1))  # a stack: the lowest id comes first
        self._is_held = bytearray(num_blocks)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_positions(self) -> int:
        """Positions of the whole pool."""
        return self.num_total * self.block_size

    def blocks_for(self, num_positions: int) -> int:
        """Blocks that hold so many positions."""
        return -(-num_positions // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks; asking for none, or for more than num_free, is a bug."""
        assert 1 <= count <= len(self._free), f"{count} blocks asked of {len(self._free)} free"
        blocks = self._free[: -count - 1 : -1]
        del self._free[-count:]
        for block in blocks:
            self._is_held[block] = 1
        return blocks

    def free(self, blocks: list[int]) -> None:
        """Give blocks back; the last of a table is handed out first. Freeing a free block is a bug."""
        for block in blocks:
            assert self._is_held[block], f"block {block} freed twice"
            self._is_held[block] = 0
        self._free.extend(blocks)

    def held(self) -> list[int]:
        """Ids of the blocks in use, rising."""
        return [block for block, mark in enumerate(self._is_held) if mark]
