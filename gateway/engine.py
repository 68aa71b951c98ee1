"""What the gateway knows of the engine behind it: its phase, its model card and its load.

A state machine fed with Status messages and a few facts of this process; it says whether a call may be taken. Knows no
link, no gRPC and no clock. Phases only move forward: STARTING, READY, DRAINING, DEAD.
"""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import IntEnum

from gateway.admission import Admission
from gateway.errors import CallError
from gateway.load import LoadHistory
from gateway.prompts import Prompts
from services.runtime.settings import GatewaySettings
from services.tokenizer import Tokenizer
from services.wire.messages import EngineReady, Load
from tandem.v1 import errors_pb2 as reasons


class VocabularyMismatch(Exception):
    """The executor's model and the tokenizer do not belong together."""


class Phase(IntEnum):
    """How far the engine has come."""

    STARTING = 0
    READY = 1
    DRAINING = 2
    DEAD = 3


@dataclass(frozen=True)
class Served:
    """One model that can be asked for, and the rules its requests are held to."""

    ready: EngineReady
    admission: Admission
    prompts: Prompts
    tokenizer: Tokenizer
    has_chat_template: bool


class Engine:
    """The engine as one gateway sees it. threads: for long texts. on_phase is called after every change of phase."""

    def __init__(self, settings: GatewaySettings, threads: Executor, on_phase: Callable[[Phase], None]) -> None:
        self._settings = settings
        self._threads = threads
        self._on_phase = on_phase
        self._tokenizer: Tokenizer | None = None
        self._ready: EngineReady | None = None
        self._hears_text = False
        self._served: Served | None = None
        self._death = ""
        self.phase = Phase.STARTING
        self.loads = LoadHistory()

    @property
    def load(self) -> Load | None:
        """The last that was heard of it."""
        return self.loads.last

    @property
    def offer(self) -> Served | None:
        """The model that is or was served, whatever the phase; None before the first."""
        return self._served

    def served(self) -> Served:
        """The model that is served; raises CallError while there is none, or none any more."""
        if self.phase is Phase.READY:
            assert self._served is not None
            return self._served
        raise self.refusal()

    def refusal(self) -> CallError:
        """Why no call is taken in this phase."""
        if self.phase is Phase.DEAD:
            return CallError(reasons.ERROR_REASON_ENGINE_DEAD, self._death)
        if self.phase is Phase.DRAINING:
            return CallError(reasons.ERROR_REASON_DRAINING, "the server is shutting down")
        return CallError(reasons.ERROR_REASON_NOT_READY, "the server is starting")

    def tokenizer_loaded(self, tokenizer: Tokenizer) -> None:
        """This process can tokenize."""
        self._tokenizer = tokenizer
        self._become_ready()

    def text_heard(self) -> None:
        """The detokenizer is there."""
        if not self._hears_text:
            self._hears_text = True
            self._become_ready()

    def executor_ready(self, ready: EngineReady) -> None:
        """The executor is there, with this model and this memory; said again when it comes back with others."""
        self._ready = ready
        self._served = None
        self._become_ready()

    def drain(self) -> None:
        """Take no new call."""
        self._move(Phase.DRAINING)

    def die(self, detail: str) -> None:
        """The engine is gone; the first cause counts."""
        self._death = self._death or detail or "the engine is gone"
        self._move(Phase.DEAD)

    def _become_ready(self) -> None:
        if self._ready is None or self._tokenizer is None or not self._hears_text:
            return
        if self._served is None:
            self._served = self._serve(self._ready, self._tokenizer)
        self._move(Phase.READY)

    def _serve(self, ready: EngineReady, tokenizer: Tokenizer) -> Served:
        card = ready.card
        if card.vocab_size < tokenizer.vocab_size:
            raise VocabularyMismatch(
                f"the executor knows {card.vocab_size} token ids, the tokenizer makes {tokenizer.vocab_size}"
            )
        return Served(
            ready=ready,
            admission=Admission(card, tokenizer, self._settings),
            prompts=Prompts(tokenizer, card, self._settings, self._threads),
            tokenizer=tokenizer,
            has_chat_template=tokenizer.chat_template is not None,
        )

    def _move(self, phase: Phase) -> None:
        if phase > self.phase:
            self.phase = phase
            self._on_phase(phase)
