"""Several samples of one prompt through gRPC: what they share, what each gets, how each ends, what a cancel frees."""

from collections import defaultdict
from collections.abc import Iterator

import pytest

from services.executor.hash_cells import simulated_token
from services.scheduler.core.admission import seed_of_sample
from tandem import Client
from tests.e2e.processes import Settings
from tests.e2e.serving import Serving, serving

NUM_SAMPLES = 4
MAX_TOKENS = 100
VOCAB = 49152
PROMPT = [3 + index * index % 1000 for index in range(1000)]
SEED = 2**64 - 5

# Blocks of 16: alone the prompt holds 63. There are so many more that 1.2 times as much fits, and the outputs.
NUM_BLOCKS = int(1.2 * 63) + NUM_SAMPLES * -(-MAX_TOKENS // 16)
COMMON: Settings = {"gateway": {"listen": "127.0.0.1:0"}, "links": {"death_s": 60.0}}
SIMULATED = {
    "backend": "simulated",
    "vocab_size": VOCAB,
    "context_length": 2048,
    "block_size": 16,
    "num_blocks": NUM_BLOCKS + 1,
    "step_fixed_us": 1000.0,
}


@pytest.fixture(scope="module")
def simulated() -> Iterator[Serving]:
    """Without a prefix cache, so that nothing is shared but what the samples share."""
    with serving({**COMMON, "executor": SIMULATED, "scheduler": {"prefix_cache": False}}) as server:
        yield server


def alone(seed: int) -> tuple[int, ...]:
    """What the simulated backend puts out for PROMPT and this seed, whatever runs beside it."""
    tokens = list(PROMPT)
    for _ in range(MAX_TOKENS):
        tokens.append(simulated_token(tokens, seed, VOCAB))
    return tuple(tokens[len(PROMPT) :])


ALONE = [alone(seed_of_sample(SEED, index)) for index in range(NUM_SAMPLES)]


def test_four_samples_of_a_long_prompt_run_together_in_little_more_memory_than_one(simulated: Serving) -> None:
    """The pool holds the prompt once: were it not shared, some would wait until others have ended."""
    outputs: defaultdict[int, list[int]] = defaultdict(list)
    ends: list[int] = []
    with Client(simulated.address) as client:
        stream = client.stream_generate(
            PROMPT, n=NUM_SAMPLES, max_tokens=MAX_TOKENS, seed=SEED, ignore_eos=True, return_token_ids=True
        )
        for chunk in stream:
            assert chunk.index not in ends, "something follows the end of a sample"
            if not ends:
                num_begun = len(outputs | {chunk.index: []})
            outputs[chunk.index] += chunk.token_ids
            if chunk.finish is not None:
                ends.append(chunk.index)
                assert chunk.finish.reason == "length"
            assert (chunk.usage is not None) == (len(ends) == NUM_SAMPLES), "usage comes once, and last"
    assert num_begun == NUM_SAMPLES, "one waited for the end of another"
    assert sorted(ends) == list(range(NUM_SAMPLES))
    assert [tuple(outputs[index]) for index in range(NUM_SAMPLES)] == ALONE
    usage = chunk.usage
    assert usage is not None and (usage.prompt_tokens, usage.completion_tokens) == (1000, NUM_SAMPLES * MAX_TOKENS)
    assert usage.total_tokens == 1000 + NUM_SAMPLES * MAX_TOKENS


def test_one_answer_tells_of_all_samples_in_their_order(simulated: Serving) -> None:
    with Client(simulated.address) as client:
        reply = client.generate(
            PROMPT, n=NUM_SAMPLES, max_tokens=MAX_TOKENS, seed=SEED, ignore_eos=True, return_token_ids=True
        )
    assert [completion.index for completion in reply.completions] == list(range(NUM_SAMPLES))
    assert [completion.token_ids for completion in reply.completions] == ALONE
    assert reply.usage.completion_tokens == NUM_SAMPLES * MAX_TOKENS


@pytest.mark.parametrize("num_chunks", [0, 1, 40])
def test_a_cancel_frees_the_blocks_of_all_samples(simulated: Serving, num_chunks: int) -> None:
    """Before anything is there, when the others are about to fork, and when all run."""
    with Client(simulated.address) as client:
        stream = client.stream_generate(PROMPT, n=NUM_SAMPLES, max_tokens=MAX_TOKENS, ignore_eos=True)
        for _ in range(num_chunks):
            next(stream)
        stream.close()
    state = simulated.idle(simulated.position())
    assert state["num_free_blocks"] == state["num_blocks"] == NUM_BLOCKS


def test_samples_of_the_real_model_are_what_each_seed_draws_alone() -> None:
    """float32: neighbours in the batch change no token, nor does the block that was copied."""
    prompt = "The lighthouse keeper's log for the winter of 1911 begins with a list of things that the sea had taken:"
    settings: Settings = {**COMMON, "executor": {"num_blocks": 256, "num_threads": 1}}
    with serving(settings) as server, Client(server.address) as client:

        def sampled(n: int, seed: int) -> list[tuple[int, ...]]:
            reply = client.generate(
                prompt, n=n, seed=seed, temperature=0.9, max_tokens=24, ignore_eos=True, return_token_ids=True
            )
            assert reply.usage.prompt_tokens % 16 != 1, "there is a tail to copy"
            return [completion.token_ids for completion in reply.completions]

        together = sampled(NUM_SAMPLES, SEED)
        assert len(set(together)) == NUM_SAMPLES
        assert together == [sampled(1, seed_of_sample(SEED, index))[0] for index in range(NUM_SAMPLES)]
