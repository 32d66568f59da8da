"""Messages between trainers and servers: a header, a small JSON part, and arrays as they lie in memory.

All numbers are little-endian. Sizes are checked before anything is believed or allocated: a message that is none costs
its sender an error, and nobody else anything.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

VERSION = 2
MAGIC = b"HYBR"
HEADER = struct.Struct("<4sHHQIHH")  # magic, version, kind, number, bytes of JSON, buffers, nothing
MOST_JSON = 1 << 20
MOST_BUFFERS = 64
MOST_BYTES = 1 << 30  # of all buffers of a message
STRANGER_BYTES = 4096  # of a message from someone who has not said hello


class Kind(IntEnum):
    """What a message wants; answers have the number of their request."""

    ANSWER = 0
    ERROR = 1
    HELLO = 2
    ATTACH = 3
    LOOKUP = 4
    PUSH = 5
    RULE = 6  # the optimizer state beside the rows of a table
    FIND = 7  # vectors of tables by name, read-only, of anybody
    PREPARE = 8  # one table outside of steps: let ids in
    UPDATE = 9  # one table outside of steps: one update
    CLOCK = 10
    ROWS = 11
    LOAD = 12
    IDS = 13
    ERASE = 14
    CLEAR = 15
    TABLE = 16
    CAPTURE = 17
    CHUNK = 18
    CLOSE = 19
    REFILL = 20
    APPEND = 21
    STATS = 22
    STOP = 23
    FILLED = 24  # a table that was refilled has all its rows
    PING = 25  # which of these requests wait for other trainers
    LIVE = 26  # which ids have a row


class Refusal(Exception):
    """A request that is answered with an error: `code` is for programs, the message for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def failed(who: str, error: Exception) -> Refusal:
    """What is said of a fault that is not the sender's."""
    return Refusal("failed", f"{who} failed: {type(error).__name__}: {error}")


def malformed(what: str) -> Refusal:
    """What a message is answered with that is none."""
    return Refusal("malformed", what)


@dataclass(eq=False)
class Message:
    """One message. Buffers of a message that was received are bytes, uint8 [n]; `array` gives them their type."""

    kind: Kind
    fields: Mapping[str, Any] = field(default_factory=dict)
    buffers: Sequence[np.ndarray] = ()
    number: int = 0

    def answer(self, fields: Mapping[str, Any] | None = None, buffers: Sequence[np.ndarray] = ()) -> Message:
        """The answer to this request."""
        return Message(Kind.ANSWER, fields or {}, buffers, self.number)

    def error(self, refusal: Refusal) -> Message:
        """The answer that it is refused."""
        return Message(Kind.ERROR, {"code": refusal.code, "message": str(refusal)}, (), self.number)

    def take(self, **types: type | tuple[type, ...]) -> dict[str, Any]:
        """The fields, which must be these, of these types.

        >>> Message(Kind.CLEAR, {"session": 1, "table": "user"}).take(session=int, table=str)
        {'session': 1, 'table': 'user'}
        """
        if self.fields.keys() != types.keys():
            given, wanted = sorted(map(str, self.fields)), sorted(types)
            raise malformed(f"a message {self.kind.name} has the fields {given}; it must have {wanted}")
        for name, kind in types.items():
            value = self.fields[name]
            if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
                raise malformed(f"{name} of a message {self.kind.name} is {value!r}, of another type than it must be")
        return dict(self.fields)

    def array(self, place: int, dtype: str, *shape: int) -> np.ndarray:
        """A buffer as numbers of a type and shape; -1 stands for any length, at most once."""
        if place >= len(self.buffers):
            raise malformed(f"a message {self.kind.name} has {len(self.buffers)} buffers; it must have more")
        data, size = self.buffers[place], np.dtype(dtype).itemsize
        line = size * int(np.prod([n for n in shape if n >= 0], dtype=np.int64))
        whole = data.nbytes == line if -1 not in shape else line > 0 and data.nbytes % line == 0
        if not whole:
            raise malformed(
                f"buffer {place} of a message {self.kind.name} has {data.nbytes} bytes, not {shape} {dtype}"
            )
        return data.reshape(-1).view(np.uint8).view(dtype).reshape(shape)

    def only(self, buffers: int) -> None:
        """Refuse more or fewer buffers."""
        if len(self.buffers) != buffers:
            raise malformed(f"a message {self.kind.name} has {len(self.buffers)} buffers; it must have {buffers}")


def head_of(message: Message) -> bytes:
    """All of a message but its buffers, which follow it on the wire.

    >>> len(head_of(Message(Kind.STATS)))
    26
    """
    text = json.dumps(message.fields, separators=(",", ":")).encode()
    sizes = [buffer.nbytes for buffer in message.buffers]
    if len(text) > MOST_JSON or len(sizes) > MOST_BUFFERS or sum(sizes) > MOST_BYTES:
        raise ValueError(
            f"a message {message.kind.name} of {len(text)} bytes of JSON and {sum(sizes)} in {len(sizes)} buffers is "
            f"too large; at most {MOST_JSON}, {MOST_BYTES} and {MOST_BUFFERS} can be sent at once"
        )
    head = HEADER.pack(MAGIC, VERSION, message.kind, message.number, len(text), len(sizes), 0)
    return head + struct.pack(f"<{len(sizes)}Q", *sizes) + text


@dataclass(frozen=True)
class Head:
    """What the first bytes of a message say."""

    kind: Kind
    number: int
    text: int
    buffers: int


def read_head(data: bytes | bytearray, most: int = MOST_BYTES) -> Head:
    """The header, or a refusal."""
    magic, version, kind, number, text, buffers, nothing = HEADER.unpack(data)
    if magic != MAGIC:
        raise malformed(f"a message begins with {bytes(magic)!r}, not {MAGIC!r}: this is no client of these servers")
    if version != VERSION:
        raise malformed(
            f"a message has version {version} of the protocol, this side has {VERSION}; run the same hybridrec"
        )
    if kind not in Kind.__members__.values() or nothing:
        raise malformed(f"a message has the kind {kind}, which there is none of")
    if text > min(MOST_JSON, most) or buffers > MOST_BUFFERS:
        raise malformed(f"a message of {text} bytes of JSON and {buffers} buffers is too large")
    return Head(Kind(kind), number, text, buffers)


def read_sizes(data: bytes | bytearray, most: int = MOST_BYTES) -> list[int]:
    """How many bytes each buffer has, or a refusal."""
    sizes = list(struct.unpack(f"<{len(data) // 8}Q", data))
    if sum(sizes) > most:
        raise malformed(f"a message has {sum(sizes)} bytes in its buffers; at most {most} are taken")
    return sizes


def read_fields(data: bytes | bytearray) -> dict[str, Any]:
    """The JSON part, or a refusal."""
    try:
        fields = json.loads(bytes(data).decode(), parse_constant=_no_number) if data else {}
    except (ValueError, RecursionError) as error:
        raise malformed(f"the JSON of a message cannot be read: {error}") from None
    if not isinstance(fields, dict):
        raise malformed(f"the JSON of a message is {type(fields).__name__}; it must be an object")
    return fields


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")
