"""Tool calls as a client reads them, and how their answers go back."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that the model wants called. arguments: JSON text, as the model wrote it.

    Give the answer back in a next request, behind the message that asked for it:
    `[*messages, completion.message, call.answered(text)]`.
    """

    id: str
    name: str
    arguments: str

    @staticmethod
    def joined(pieces: Iterable[ToolCallDelta]) -> tuple[ToolCall, ...]:
        """The calls of one answer out of the pieces that a stream brought."""
        calls: list[ToolCall] = []
        for piece in pieces:
            if piece.index == len(calls):
                calls.append(ToolCall(piece.id, piece.name, piece.arguments))
            else:
                call = calls[piece.index]
                calls[piece.index] = replace(call, arguments=call.arguments + piece.arguments)
        return tuple(calls)

    def parsed(self) -> dict[str, Any]:
        """The arguments as a mapping; raises ValueError when the model wrote something else."""
        value: object = json.loads(self.arguments)
        if not isinstance(value, dict):
            raise ValueError(f"the arguments of {self.name} are no JSON object")
        return value

    def answered(self, content: str) -> dict[str, Any]:
        """The message that tells the model what the tool answered."""
        return {"role": "tool", "tool_call_id": self.id, "content": content}


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a call in a stream: id and name in its first one, "" afterwards; arguments are to be joined."""

    index: int
    id: str
    name: str
    arguments: str
