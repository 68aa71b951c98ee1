"""The default server, as a user has it: the same prompt has the same answer whatever is answered beside it."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tandem import Client
from tests.e2e.processes import Settings
from tests.e2e.serving import serving
from tests.e2e.test_golden import SHORT

SETTINGS: Settings = {"gateway": {"listen": "127.0.0.1:0"}, "links": {"death_s": 60.0}}
MAX_TOKENS = 24


def test_answers_of_the_default_precision_are_the_same_alone_and_in_a_crowd() -> None:
    prompts = [case["prompt_token_ids"] for case in SHORT]

    with serving(SETTINGS) as server, Client(server.address) as client:

        def ask(prompt: list[int]) -> tuple[Sequence[int], list[float]]:
            reply = client.generate(
                prompt, max_tokens=MAX_TOKENS, temperature=0, logprobs=0, return_token_ids=True, timeout_s=120
            )
            [completion] = reply.completions
            return completion.token_ids, [of.chosen.logprob for of in completion.logprobs if of]

        alone = [ask(prompt) for prompt in prompts]
        with ThreadPoolExecutor(len(prompts)) as pool:
            together = list(pool.map(ask, [*prompts, *prompts]))

    assert all(token_ids for token_ids, _ in alone)
    assert together == [*alone, *alone]
