"""Bytes <-> messages: one encoder for all links, one decoder a union, each built once.

A decoder refuses what its union does not hold (msgspec.ValidationError): a peer that speaks another schema is a bug
that must be loud. An older reader accepts a newer writer's appended fields.
"""

from typing import Any, TypeVar

import msgspec

M = TypeVar("M")

_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """The msgpack bytes of a message."""
    return _encoder.encode(message)


def decoder(union: Any) -> "msgspec.msgpack.Decoder[Any]":
    """A decoder that accepts the messages of one link's union and nothing else."""
    return msgspec.msgpack.Decoder(union)
