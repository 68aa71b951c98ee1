"""Columns: how many small integers travel in one field.

A column is a run of little-endian int32 (or float32) values packed into bytes. It encodes as one msgpack blob,
whatever its length, where a list would cost one element each. Knows nothing of what the numbers mean.
"""

import sys
from array import array
from collections.abc import Iterable

assert sys.byteorder == "little" and array("i").itemsize == 4, "columns are little-endian int32 on the wire"

EMPTY = b""


def pack(values: Iterable[int]) -> bytes:
    """Pack integers (each in -2**31 .. 2**31 - 1) into an int32 column; raises OverflowError outside that range."""
    return array("i", values).tobytes()


def unpack(column: bytes) -> "array[int]":
    """The integers of an int32 column; raises ValueError when its length is no multiple of four."""
    values = array("i")
    values.frombytes(column)
    return values


def pack_floats(values: Iterable[float]) -> bytes:
    """Pack numbers into a float32 column."""
    return array("f", values).tobytes()


def unpack_floats(column: bytes) -> "array[float]":
    """The numbers of a float32 column; raises ValueError when its length is no multiple of four."""
    values = array("f")
    values.frombytes(column)
    return values


def length(column: bytes) -> int:
    """How many values a column holds."""
    return len(column) // 4
