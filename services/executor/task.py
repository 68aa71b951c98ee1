"""What is to be opened, and what every way of opening it does: count blocks, and try a step before anybody waits."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import structlog

from services.executor.backend import Backend
from services.executor.batch import Rows, StepBatch, pack
from services.executor.capacity import Capacity, count_blocks, count_host_blocks
from services.executor.checkpoint import Checkpoint
from services.executor.grammars import Grammars
from services.executor.kv_cache import BlockShape
from services.executor.matchers import Matchers
from services.runtime.settings import ExecutorSettings
from services.wire.messages import ModelCard, RowFlag

log = structlog.get_logger()


class Following(Backend, Protocol):
    """A backend whose slots may have constraints."""

    def follow(self, matchers: Matchers) -> None:
        """Of these, from now on."""


@dataclass(frozen=True, slots=True)
class Task:
    """name: what the model is served as, if not as it calls itself; grammars: what slots may follow."""

    settings: ExecutorSettings
    checkpoint: Checkpoint
    name: str = ""
    grammars: Grammars | None = None

    def capacity(self, blocks: BlockShape, computes_in: str, free_bytes: int) -> Capacity:
        """What fits beside the weights, which are loaded; raises SettingsError when that is nothing."""
        settings, card = self.settings, self._card(blocks, computes_in)
        num_blocks = count_blocks(settings, card.kv_bytes_per_token, card.context_length, free_bytes)
        num_host_blocks = count_host_blocks(settings, card.kv_bytes_per_token)
        return Capacity(num_blocks, settings.block_size, settings.max_rows, card, num_host_blocks)

    def make_ready(self, backend: Following, computes_in: str) -> None:
        """Give it its grammars, and touch every weight and kernel once, which takes its time."""
        if self.grammars is not None:
            backend.follow(Matchers(self.grammars, backend.capacity.card, self.settings.mask_threads))
        for num_tokens in (1, 2):
            backend.run(_dummy_step(backend.capacity.block_size, num_tokens))
        num_blocks = backend.capacity.num_blocks
        log.info("model.loaded", path=str(self.checkpoint.path), computes_in=computes_in, num_blocks=num_blocks)

    def _card(self, blocks: BlockShape, computes_in: str) -> ModelCard:
        config = self.checkpoint.config
        return ModelCard(
            name=self.name or config.name,
            vocab_size=config.vocab_size,
            context_length=config.context_length,
            eos_token_ids=config.eos_token_ids,
            backend="torch",
            dtype=computes_in.split()[0],
            num_parameters=self.checkpoint.num_parameters,
            kv_bytes_per_token=config.num_layers * blocks.num_bytes // self.settings.block_size,
        )


def _dummy_step(block_size: int, num_tokens: int) -> StepBatch:
    """Tokens on slot 0 and block 0, which belong to nobody: one is decoded, several are a prompt."""
    num_tokens = min(num_tokens, block_size)
    zero, one = np.zeros(1, np.int32), np.ones(1, np.int32)
    flags, tokens = one * np.int32(RowFlag.SAMPLE), np.zeros(num_tokens, np.int32)
    rows = Rows(zero, zero, zero, one * np.int32(num_tokens), flags, tokens)
    return pack(rows, np.zeros((1, 1), np.int32), block_size, step=0, received_ns=0)
