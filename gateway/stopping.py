"""When a sequence ends, from the public Stopping to the wire's: bounds, stop texts, the model's own ends.

Defaults are those of proto/tandem/v1/common.proto. Pure: knows the model card, the special tokens and the gateway's
bounds. Invariant: a violation is noted for whatever is out of range.
"""

from collections.abc import Callable, Mapping, Sequence

from gateway.errors import Violation
from gateway.fields import ANY_COUNT, AT_LEAST_ONE, Fields, between
from services.runtime.settings import GatewaySettings
from services.wire import columns
from services.wire.messages import ModelCard, Stopping
from tandem.v1 import common_pb2


class StoppingRules:
    """Reads the Stopping of requests for one model."""

    def __init__(self, card: ModelCard, special_id: Callable[[str], int | None], settings: GatewaySettings) -> None:
        self._card = card
        self._special_id = special_id
        self._settings = settings

    def read(self, message: common_pb2.Stopping, violations: list[Violation]) -> tuple[Stopping, Mapping[int, str]]:
        """The rules, and the stop texts that are special tokens by the id they became."""
        fields = Fields(message, "stopping", violations)
        max_tokens = fields.integer("max_tokens", AT_LEAST_ONE)
        min_tokens = fields.integer("min_tokens", ANY_COUNT) or 0
        if max_tokens is not None and min_tokens > max_tokens:
            fields.wrong("min_tokens", f"must be <= max_tokens, is {min_tokens} > {max_tokens}")
        stop_ids: list[int] = []
        if fields.count("stop_token_ids", self._settings.max_stop_token_ids):
            stop_ids = fields.token_ids("stop_token_ids", self._card.vocab_size)
        strings, stop_texts = self._stop_strings(message.stop, fields)
        end_ids = () if fields.flag("ignore_eos", False) else self._card.eos_token_ids
        stopping = Stopping(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop_token_ids=columns.pack(sorted({*stop_ids, *stop_texts, *end_ids})),
            stop_strings=strings,
            include_stop=fields.flag("include_stop", False),
        )
        return stopping, stop_texts

    def _stop_strings(self, stops: Sequence[str], fields: Fields) -> tuple[tuple[str, ...], Mapping[int, str]]:
        """Stop texts, and which of them are special tokens, by id. A special one is matched both ways: by its id, since
        its text may be skipped, and as text, so that it is cut from a text that shows it."""
        if not fields.count("stop", self._settings.max_stop_strings):
            return (), {}
        strings: dict[str, None] = {}
        special: dict[int, str] = {}
        for index, stop in enumerate(stops):
            if not 0 < len(stop) <= self._settings.max_stop_string_chars:
                bound = between(1, self._settings.max_stop_string_chars).text
                fields.wrong(f"stop[{index}]", f"must have {bound} characters, has {len(stop)}")
                return (), {}
            strings[stop] = None
            token_id = self._special_id(stop)
            if token_id is not None:
                special[token_id] = stop
        return tuple(strings), special
