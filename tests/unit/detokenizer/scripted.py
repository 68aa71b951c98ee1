"""A scheduler and gateways played by hand around a detokenizer: what is said to it, and what each client hears."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from services.detokenizer.service import DetokenizerService
from services.detokenizer.streams import Streams
from services.wire import columns
from services.wire.memory import memory_link
from services.wire.messages import (
    Close,
    Credit,
    Deltas,
    FinishReason,
    Logprobs,
    Open,
    Output,
    SequenceKey,
    StopHit,
    Stopping,
    TextBatch,
    TextEnd,
    TokenBatch,
)
from services.wire.topology import FEEDBACK, TEXT, TOKENS

KEY = SequenceKey("gateway-0", "request", 1, 0)


def opened(
    key: SequenceKey = KEY,
    stops: Sequence[str] = (),
    *,
    min_tokens: int = 0,
    include_stop: bool = False,
    skip_special_tokens: bool = True,
    num_prompt_tokens: int = 5,
) -> Open:
    stopping = Stopping(min_tokens=min_tokens, stop_strings=tuple(stops), include_stop=include_stop)
    return Open(key, num_prompt_tokens, stopping, Output(skip_special_tokens=skip_special_tokens))


def deltas(tokens: Mapping[SequenceKey, Sequence[int]], logprobs: Logprobs | None = None) -> Deltas | None:
    if not tokens:
        return None
    counts = columns.pack([len(ids) for ids in tokens.values()])
    flat = columns.pack([token_id for ids in tokens.values() for token_id in ids])
    return Deltas(tuple(tokens), counts, flat, logprobs)


@dataclass
class Heard:
    """One sequence as its client hears it: each delta's text and tokens, and its ends, of which there is one."""

    deltas: list[tuple[str, list[int]]] = field(default_factory=list)
    ends: list[TextEnd] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.deltas)

    @property
    def token_ids(self) -> list[int]:
        return [token_id for _, token_ids in self.deltas for token_id in token_ids]

    @property
    def end(self) -> TextEnd:
        (end,) = self.ends
        return end


class Listener:
    """Gathers TextBatches and insists on their order: deltas before ends, nothing after an end, numbers rising."""

    def __init__(self, gateway: str) -> None:
        self.heard: dict[SequenceKey, Heard] = {}
        self.numbers: list[int] = []
        self._gateway = gateway

    def hear(self, batches: Iterable[TextBatch]) -> None:
        for batch in batches:
            assert not self.numbers or batch.number > self.numbers[-1]
            assert batch.deltas or batch.ends, "a batch of nothing"
            self.numbers.append(batch.number)
            for delta in batch.deltas:
                heard = self._of(delta.request, delta.incarnation, delta.index)
                assert not heard.ends, "text after the end"
                heard.deltas.append((delta.text, list(columns.unpack(delta.tokens))))
            for end in batch.ends:
                self._of(end.request, end.incarnation, end.index).ends.append(end)

    def _of(self, request: str, incarnation: int, index: int) -> Heard:
        return self.heard.setdefault(SequenceKey(self._gateway, request, incarnation, index), Heard())


class Stage:
    """A service over memory links. `step` is one TokenBatch; `credits` the last credit told for each gateway."""

    def __init__(
        self, streams: Streams, gateways: Sequence[str] = ("gateway-0",), *, bound: int = 4096, max_pending: int = 256
    ) -> None:
        self._tokens, tokens = memory_link(TOKENS, 4096)
        feedback, self._feedback = memory_link(FEEDBACK, bound)
        links = {gateway: memory_link(TEXT, bound) for gateway in gateways}
        self._texts = {gateway: inlet for gateway, (_, inlet) in links.items()}
        self.listeners = {gateway: Listener(gateway) for gateway in gateways}
        self.service = DetokenizerService(
            streams, tokens, {gateway: outlet for gateway, (outlet, _) in links.items()}, feedback, max_pending
        )
        self.number = 0
        self.credits: dict[str, int] = {}
        self.stop_hits: list[StopHit] = []

    def say(
        self,
        opens: Sequence[Open] = (),
        tokens: Mapping[SequenceKey, Sequence[int]] | None = None,
        closes: Sequence[Close] = (),
        logprobs: Logprobs | None = None,
    ) -> None:
        """The scheduler sends one TokenBatch; nobody acts on it yet."""
        self.number += 1
        self._tokens.send(TokenBatch(self.number, tuple(opens), deltas(tokens or {}, logprobs), tuple(closes)))

    def step(
        self,
        opens: Sequence[Open] = (),
        tokens: Mapping[SequenceKey, Sequence[int]] | None = None,
        closes: Sequence[Close] = (),
        logprobs: Logprobs | None = None,
    ) -> None:
        """The scheduler sends one TokenBatch, the detokenizer acts, everybody listens."""
        self.say(opens, tokens, closes, logprobs)
        self.service.turn()
        self.listen()

    def listen(self, gateways: Sequence[str] | None = None) -> None:
        """These gateways (all of them) and the scheduler take what was sent to them."""
        for gateway in self.listeners if gateways is None else gateways:
            self.listeners[gateway].hear(self._texts[gateway].receive())
        for message in self._feedback.receive():
            match message:
                case Credit(gateway, seq):
                    assert seq > self.credits.get(gateway, -1), "credit that tells nothing new"
                    self.credits[gateway] = seq
                case StopHit():
                    self.stop_hits.append(message)

    def heard(self, key: SequenceKey = KEY) -> Heard:
        return self.listeners[key.gateway].heard[key]


def play(stage: Stage, opening: Open, token_ids: Sequence[int], reason: FinishReason = FinishReason.LENGTH) -> Heard:
    """One sequence from open to close, a token a step; the close comes with the last token, as from the scheduler."""
    key = opening.sequence
    stage.step([opening])
    for position, token_id in enumerate(token_ids, 1):
        is_last = position == len(token_ids)
        closes = [Close(key, reason, num_output_tokens=len(token_ids))] if is_last else []
        stage.step(tokens={key: [token_id]}, closes=closes)
    return stage.heard(key)
