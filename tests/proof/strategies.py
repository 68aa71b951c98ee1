"""What the machine draws: small pools, tight bounds, and requests that share prefixes, stop tokens and ids."""

from dataclasses import dataclass

from hypothesis import strategies as st
from msgspec.structs import replace

from services.scheduler.core.policy import FAIR, FCFS, STATIC, priority
from services.wire import columns
from services.wire.messages import Sampling, Submit
from tests.proof.rules import Rule
from tests.proof.simulated_executor import alone
from tests.unit.scheduler.rig import Shape, limits, submit_message

GATEWAYS = ("g", "h")
AGING_NS = 7
POLICIES = {"fcfs": FCFS, "priority": priority(AGING_NS), "fair": FAIR, "static": STATIC}


@dataclass(frozen=True)
class Asks:
    """A request in small numbers. shared: tokens of a stem that others begin with too. stop_at: the output token that
    is a stop token, if any."""

    stem: int
    shared: int
    tail: tuple[int, ...]
    max_tokens: int
    seed: int
    n: int
    priority: int
    tenant: str
    gateway: str
    salt: str
    stop_at: int | None
    min_tokens: int
    prompt_logprobs: int | None
    remaining_ms: int | None
    rule: Rule | None

    @property
    def sampling(self) -> Sampling:
        """Those with one of the stems ask for what depends on the tokens before, those with a rule follow it; the
        others draw from hashes alone."""
        if self.rule is not None:
            return Sampling(constraint=self.rule.constraint())
        return SAMPLINGS[self.seed] if self.stem == 2 else Sampling()

    def submit(self, name: str, incarnation: int, num_positions: int) -> Submit:
        """The message; cut to what a pool of so many positions can hold."""
        begins = [2 + (self.stem * 7 + index * index) % 5 for index in range(self.shared)]
        prompt = [*begins, *self.tail][: num_positions - 1]
        max_tokens = min(self.max_tokens, num_positions - len(prompt))
        stops: tuple[int, ...] = ()
        if self.stop_at is not None and self.stop_at < max_tokens:
            stops = tuple(alone(tuple(prompt), self.seed, max_tokens, self.sampling)[self.stop_at :][:1])
        submit = submit_message(
            name,
            prompt,
            max_tokens=max_tokens,
            stop_ids=stops,
            min_tokens=min(self.min_tokens, max_tokens),
            seed=self.seed,
            n=self.n,
            incarnation=incarnation,
            gateway=self.gateway,
            remaining_ms=self.remaining_ms,
            priority=self.priority,
            tenant=self.tenant,
            salt=self.salt,
            prompt_logprobs=self.prompt_logprobs,
        )
        asked = submit.sampling
        sampling = replace(
            self.sampling,
            min_tokens=0 if self.rule is not None else asked.min_tokens,  # a rule masks no stop tokens
            stop_token_ids=asked.stop_token_ids,
            prompt_logprobs=asked.prompt_logprobs,
        )
        return replace(submit, sampling=sampling)


PAIRS = tuple(columns.pack([first, second]) for first in range(32, 64) for second in range(first % 3, 64, 3))
SAMPLINGS = (
    Sampling(temperature=0.0, presence_penalty=5.0),
    Sampling(repetition_penalty=1.5, frequency_penalty=1.0, top_k=4),
    Sampling(temperature=0.0, bad_words=PAIRS),
)


# Few, so that equal ones come together, and are compiled once.
RULES = (Rule(1), Rule(1), Rule(2, complete=3), Rule(3, complete=0), Rule(4, dead=4), Rule(5, compiles=False))

asks = st.builds(
    Asks,
    stem=st.integers(0, 2),
    shared=st.integers(0, 16),
    tail=st.lists(st.integers(2, 4), min_size=1, max_size=6).map(tuple),
    max_tokens=st.integers(1, 30),
    seed=st.integers(0, 2),
    n=st.sampled_from([1, 1, 1, 2, 3, 4]),
    priority=st.integers(-1, 2),
    tenant=st.sampled_from(["x", "y", "z"]),
    gateway=st.sampled_from(GATEWAYS),
    salt=st.sampled_from(["", "", "", "salt"]),
    stop_at=st.one_of(st.none(), st.integers(0, 10)),
    min_tokens=st.sampled_from([0, 0, 3]),
    prompt_logprobs=st.sampled_from([None, None, None, 0]),
    remaining_ms=st.sampled_from([None, None, None, 1]),
    rule=st.one_of(st.none(), st.none(), st.sampled_from(RULES)),
)

budgets = st.sampled_from([1, 2, 3, 5, 8, 16, 64])

bounds = st.builds(
    limits,
    depth=st.integers(1, 3),
    token_budget=budgets,
    chunk_size=budgets,
    max_num_seqs=st.sampled_from([1, 2, 4, 8, 8]),
    max_waiting=st.just(1000),
    max_unread=st.sampled_from([1, 4, 1000]),
    prefix_cache=st.sampled_from([True, True, False]),
    preemption=st.sampled_from(["recompute", "swap", "swap", "auto"]),
    victim=st.sampled_from(["lifo", "lru", "cost"]),
    forecast=st.booleans(),
    prefill_quantum=st.sampled_from([0, 0, 2]),
    inter_token_us=st.sampled_from([0, 1]),
)

shapes = st.builds(
    Shape,
    num_blocks=st.one_of(st.integers(5, 12), st.integers(5, 33)),
    block_size=st.sampled_from([1, 2, 3, 4, 8]),
    max_rows=st.sampled_from([1, 2, 8, 8]),
    context_length=st.just(512),
    num_host_blocks=st.sampled_from([0, 3, 30, 30]),
    copy_lag=st.sampled_from([0, 1, 3]),
)
