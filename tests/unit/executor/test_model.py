"""The Llama forward pass: equal to one written plainly, and a packed row sees what it would see alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import quants
from gguf.constants import GGMLQuantizationType

from services.executor import linear
from services.executor.checkpoint import open_checkpoint
from services.executor.opening import open_on_cpu
from services.executor.operations import ReferenceOperations
from services.executor.runner import CpuBackend
from services.executor.torch_arrays import open_kv, plain_blocks
from services.executor.torch_backend import TorchBackend
from services.executor.weights import load_llama
from services.runtime.settings import ExecutorSettings
from services.wire import columns
from services.wire.messages import CopyBlocks, CopyDirection, Sampling, StepResult
from tests.unit.executor import tiny_llama
from tests.unit.executor.fake_model import fake_backend
from tests.unit.executor.rig import (
    GREEDY,
    Driver,
    Request,
    Row,
    append,
    generate,
    init,
    lone_row,
    small_capacity,
    tokens_of,
)
from tests.unit.executor.tiny_llama import Recipe, plain_greedy, plain_logits, random_weights

SETTINGS = ExecutorSettings(precision="exact", block_size=4, num_blocks=200, max_rows=12)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> CpuBackend[Any, Any]:
    path = tiny_llama.write(tmp_path_factory.mktemp("model") / "tiny.gguf", random_weights())
    return open_on_cpu(SETTINGS, path)


def random_prompts(seed: int, count: int, longest: int = 40) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, tiny_llama.VOCAB, rng.integers(1, longest)).tolist() for _ in range(count)]


def test_the_card_tells_what_was_loaded(tiny: CpuBackend[Any, Any]) -> None:
    card = tiny.capacity.card
    assert (card.vocab_size, card.context_length, card.eos_token_ids) == (96, 128, (2,))
    assert card.kv_bytes_per_token == 2 * 3 * 2 * 16 * 4
    assert card.num_parameters == sum(value.size for value in random_weights().values())
    assert (card.backend, card.dtype) == ("torch", "float32")


def test_greedy_tokens_and_logprobs_equal_the_plain_forward_pass(tiny: CpuBackend[Any, Any]) -> None:
    weights = random_weights()
    for prompt in random_prompts(1, 4):
        request = Request(prompt, 12, Sampling(temperature=0.0, logprobs=0), chunk=7)
        generate(tiny, [request])
        assert request.outputs == plain_greedy(weights, prompt, 12)
        logprobs = plain_logits(weights, prompt + request.outputs).log_softmax(-1)
        expected = [float(logprobs[len(prompt) - 1 + i, token]) for i, token in enumerate(request.outputs)]
        assert request.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_a_packed_row_sees_what_it_would_see_alone(tiny: CpuBackend[Any, Any], seed: int) -> None:
    rng = np.random.default_rng(seed)

    def requests(is_packed: bool) -> list[Request]:
        return [
            Request(
                prompt,
                20,
                Sampling(temperature=0.0, logprobs=0) if index % 2 else Sampling(temperature=0.9, logprobs=0),
                seed=index,
                chunk=int(rng.integers(1, 20)) if is_packed else 1000,
                starts_at=int(rng.integers(0, 8)) if is_packed else 0,
            )
            for index, prompt in enumerate(random_prompts(seed, 10))
        ]

    packed, alone = requests(is_packed=True), requests(is_packed=False)
    generate(tiny, packed, seed)
    for request in alone:
        generate(tiny, [request])
    assert [request.outputs for request in packed] == [request.outputs for request in alone]
    for one, other in zip(packed, alone, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_not_a_number_in_blocks_of_others_reaches_nobody(tiny: CpuBackend[Any, Any]) -> None:
    clean = generate(tiny, [Request(prompt, 8) for prompt in random_prompts(3, 5)])
    for pool in (pool for pools in tiny._kv.layers for pool in pools):
        pool.fill_(torch.nan)
    assert generate(tiny, [Request(prompt, 8) for prompt in random_prompts(3, 5)]) == clean
    for pool in (pool for pools in tiny._kv.layers for pool in pools):
        pool.zero_()


def test_a_prefix_in_shared_blocks_gives_the_same_tokens(tiny: CpuBackend[Any, Any]) -> None:
    prompt = random_prompts(5, 1, longest=30)[0] + [1] * 12
    driver = Driver(tiny)
    whole = tokens_of(driver.run([init(1, len(prompt)), append(1, list(range(1, 20)))], [Row(1, 0, prompt)]))
    num_shared = (len(prompt) - 1) // 4
    blocks = [*range(1, num_shared + 1), *range(60, 80 - num_shared)]
    rest = Row(2, num_shared * 4, prompt[num_shared * 4 :])
    assert tokens_of(driver.run([init(2, len(prompt)), append(2, blocks)], [rest])) == whole


def test_blocks_survive_every_kind_of_copy(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_llama.write(tmp_path / "tiny.gguf", random_weights()))
    config = checkpoint.config
    capacity = small_capacity(tiny_llama.VOCAB, num_blocks=40, num_host_blocks=8)
    kv = open_kv(capacity, config.num_layers, plain_blocks(capacity.block_size, config.num_kv_heads, config.head_dim))
    driver = Driver(TorchBackend(load_llama(checkpoint, ReferenceOperations()), capacity, kv, is_debug=True))
    prompt = [5, 17, 40, 8, 61, 3]
    expected = plain_greedy(random_weights(), prompt, 1)
    driver.run([init(1, 6), append(1, [9, 3])], [Row(1, 0, prompt[:5], samples=False)])

    def finish(slot: int, blocks: list[int], *copies: CopyBlocks) -> StepResult:
        return driver.run([*copies, init(slot, 6), append(slot, blocks)], [Row(slot, 5, prompt[5:])])

    def copy(number: int, direction: CopyDirection, sources: list[int], destinations: list[int]) -> CopyBlocks:
        return CopyBlocks(number, direction, columns.pack(sources), columns.pack(destinations))

    forked = finish(2, [9, 30], copy(6, CopyDirection.WITHIN, [3], [30]))
    assert tokens_of(forked) == expected and not forked.copies_done
    out = driver.run([copy(7, CopyDirection.OUT, [9, 3], [4, 0])])
    assert columns.unpack(out.copies_done).tolist() == [7]
    back = driver.run([copy(8, CopyDirection.IN, [4, 0], [21, 22])])
    assert columns.unpack(back.copies_done).tolist() == [8]
    assert tokens_of(finish(3, [21, 22])) == expected
    assert tokens_of(finish(4, [21, 25])) != expected


def test_a_consumed_future_is_poisoned_in_debug_mode() -> None:
    backend = fake_backend(lambda token, position: torch.zeros(4), vocab_size=4)
    backend.init_slot(init(1))
    with pytest.raises(RuntimeError, match="a future token was read twice, or before it was there"):
        backend.run(lone_row(1, is_future=True, samples=False))
    backend.run(lone_row(1, is_future=False, samples=True))
    backend.run(lone_row(1, is_future=True, samples=False))
    with pytest.raises(RuntimeError, match="a future token was read twice"):
        backend.run(lone_row(1, is_future=True, samples=False))


def test_a_head_of_its_own_is_used(tmp_path: Path) -> None:
    weights = random_weights(7, has_head=True)
    backend = open_on_cpu(SETTINGS, tiny_llama.write(tmp_path / "headed.gguf", weights), "headed")
    assert backend.capacity.card.name == "headed"
    prompt = random_prompts(2, 1)[0]
    assert generate(backend, [Request(prompt, 6)]) == [plain_greedy(weights, prompt, 6)]


def test_quantized_weights_are_computed_in_float32(tmp_path: Path) -> None:
    quantization = GGMLQuantizationType.Q8_0
    weights = random_weights(9)
    backend = open_on_cpu(SETTINGS, tiny_llama.write(tmp_path / "q8.gguf", weights, Recipe(quantization)))
    # Blocks lie within rows, so the order of the rows of Q and K does not matter.
    rounded = {
        name: quants.dequantize(quants.quantize(value, quantization), quantization) if value.ndim > 1 else value
        for name, value in weights.items()
    }
    prompt = random_prompts(4, 1)[0]
    assert generate(backend, [Request(prompt, 8)]) == [plain_greedy(rounded, prompt, 8)]


def test_packed_weights_multiply_like_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, bias, x = torch.randn(24, 16), torch.randn(24), torch.randn(5, 16)
    packed = [linear.pack(weight)(x), linear.pack(weight, bias)(x)]
    monkeypatch.setattr(linear, "has_packing", lambda dtype: False)
    torch.testing.assert_close(packed, [linear.pack(weight)(x), linear.pack(weight, bias)(x)])
    torch.testing.assert_close(packed[1], x @ weight.T + bias)


def test_a_step_without_rows_runs_and_reports_nothing(tiny: CpuBackend[Any, Any]) -> None:
    result = Driver(tiny).run([init(1, 3, GREEDY)])
    assert tokens_of(result) == [] and result.n_out == b"" and not result.failed_rows
