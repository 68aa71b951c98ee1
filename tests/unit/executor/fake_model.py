"""A model whose logits are given: what follows a token at a position is told by a function."""

from collections.abc import Callable

import torch
from torch import Tensor

from services.executor.attention import ReferencePlan
from services.executor.batch import I32
from services.executor.inputs import StepInputs
from services.executor.kv_cache import KvCache
from services.executor.operations import ReferenceOperations
from services.executor.torch_arrays import open_kv, plain_blocks
from services.executor.torch_backend import TorchBackend
from tests.unit.executor.rig import small_capacity


class FakeModel:
    """Its hidden state is (token, position); `logits_of` turns one of them into logits [vocab]."""

    def __init__(self, logits_of: Callable[[int, int], Tensor]) -> None:
        self._logits_of = logits_of

    def prepare(self, cu_seqlens_q: I32, kv_lens: I32, block_table: I32, block_size: int) -> ReferencePlan:
        return ReferenceOperations().prepare(cu_seqlens_q, kv_lens, block_table, block_size)

    def forward(self, inputs: StepInputs[Tensor, ReferencePlan], kv: KvCache[Tensor]) -> Tensor:
        return torch.stack((inputs.token_ids, inputs.position_ids), dim=1).float()

    def logits(self, hidden: Tensor) -> Tensor:
        return torch.stack([self._logits_of(int(token), int(position)) for token, position in hidden.tolist()])


def fake_backend(
    logits_of: Callable[[int, int], Tensor], vocab_size: int, num_blocks: int = 64
) -> TorchBackend[ReferencePlan]:
    """A torch backend around a FakeModel, in debug mode."""
    capacity = small_capacity(vocab_size, num_blocks)
    kv = open_kv(capacity, num_layers=1, shape=plain_blocks(capacity.block_size, 1, 2))
    return TorchBackend(FakeModel(logits_of), capacity, kv, is_debug=True)
