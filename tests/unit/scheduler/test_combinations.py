"""No combination of depth, policy, preemption mode, chunk size and prefix cache changes a token of any request."""

import itertools
import random

import pytest

from services.scheduler.core.policy import FAIR, FCFS, STATIC, priority
from tests.unit.scheduler.rig import Rig, expected_output, limits, submit_message

POLICIES = {"fcfs": FCFS, "priority": priority(3), "fair": FAIR, "static": STATIC}
COMBINATIONS = list(itertools.product((1, 2, 3), POLICIES, ("recompute", "swap", "auto"), (2, 5, 64), (False, True)))
STEM = [7, 8, 9, 10, 11, 12, 13, 14, 15, 16]


@pytest.mark.parametrize("policy", POLICIES)
def test_no_combination_changes_a_token(policy: str) -> None:
    num_preemptions = num_copies = num_cached = 0
    for depth, name, preemption, chunk_size, prefix_cache in COMBINATIONS:
        if name != policy:
            continue
        bounds = limits(
            depth=depth,
            token_budget=16,
            chunk_size=chunk_size,
            max_num_seqs=4,
            preemption=preemption,
            prefix_cache=prefix_cache,
            forecast=False,
        )
        rig = Rig(bounds, num_blocks=12, block_size=4, num_host_blocks=16, policy=POLICIES[policy])
        rng = random.Random(0)
        submits = [
            submit_message(
                f"r{number}",
                STEM[: rng.choice([0, 4, 10])] + [rng.randint(2, 49) for _ in range(rng.randint(1, 6))],
                max_tokens=rng.randint(4, 18),
                seed=number,
                priority=number % 3,
                tenant=f"t{number % 2}",
            )
            for number in range(8)
        ]
        for submit in submits:
            rig.submit(submit)
            rig.turn()
        rig.run()
        for submit in submits:
            tokens, reason = expected_output(submit, submit.seed)
            name = submit.identity.request
            assert (rig.output(name), rig.close_of(name).reason) == (tokens, reason), (depth, preemption, chunk_size)
        state = rig.scheduler.state
        num_preemptions += state.counters.num_preemptions
        num_copies += state.num_copies
        num_cached += state.counters.num_cached_tokens
    assert num_preemptions > 0 and num_copies > 0 and num_cached > 0, "the combinations met nothing"
