"""Messages: they arrive as they were sent, and what is none is refused."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.server.protocol import HEADER, MAGIC, MOST_BYTES, VERSION, Kind, Message, Refusal, head_of
from hybridrec.server.shard import Shard
from hybridrec.server.stream import Stream, as_bytes, receive_message
from tests.server.counting import lookup_message, push_message
from tests.server.test_shard import session_of


class Bytes(Stream):
    """A stream that has been received already."""

    def __init__(self, data: bytes) -> None:
        self._left = memoryview(data)

    def receive(self, into: memoryview) -> None:
        if len(into) > len(self._left):
            raise EOFError
        into[:] = self._left[: len(into)]
        self._left = self._left[len(into) :]


def sent(message: Message) -> bytes:
    return head_of(message) + b"".join(map(as_bytes, message.buffers))


@given(
    st.sampled_from(list(Kind)),
    st.dictionaries(st.text(max_size=5), st.integers() | st.text() | st.booleans() | st.none(), max_size=4),
    st.lists(st.binary(max_size=50), max_size=5),
    st.integers(0, 2**64 - 1),
)
def test_a_message_arrives_as_it_was_sent(kind, fields, buffers, number):
    arrays = [np.frombuffer(data, np.uint8) for data in buffers]
    found = receive_message(Bytes(sent(Message(kind, fields, arrays, number))))
    assert (found.kind, found.fields, found.number) == (kind, fields, number)
    assert [bytes(data) for data in found.buffers] == buffers


HEADS = {
    "another magic": HEADER.pack(b"HTTP", VERSION, 2, 0, 0, 0, 0),
    "another version": HEADER.pack(MAGIC, VERSION + 1, 2, 0, 0, 0, 0),
    "no kind": HEADER.pack(MAGIC, VERSION, 999, 0, 0, 0, 0),
    "too much JSON": HEADER.pack(MAGIC, VERSION, 2, 0, 2**32 - 1, 0, 0),
    "too many buffers": HEADER.pack(MAGIC, VERSION, 2, 0, 0, 65535, 0),
    "too large buffers": HEADER.pack(MAGIC, VERSION, 2, 0, 0, 2, 0) + struct.pack("<QQ", MOST_BYTES, 1),
    "a size that overflows": HEADER.pack(MAGIC, VERSION, 2, 0, 0, 2, 0) + struct.pack("<QQ", 2**64 - 1, 2**64 - 1),
    "no JSON": HEADER.pack(MAGIC, VERSION, 2, 0, 3, 0, 0) + b"{{{",
    "no object": HEADER.pack(MAGIC, VERSION, 2, 0, 2, 0, 0) + b"[]",
    "no text": HEADER.pack(MAGIC, VERSION, 2, 0, 2, 0, 0) + b"\xff\xfe",
    "no number": HEADER.pack(MAGIC, VERSION, 2, 0, 9, 0, 0) + b'{"a":NaN}',
    "a deep nest": HEADER.pack(MAGIC, VERSION, 2, 0, 200_000, 0, 0) + b"[" * 200_000,
}


@pytest.mark.parametrize("what", HEADS)
def test_what_is_no_message_is_refused_before_its_sizes_are_believed(what):
    with pytest.raises(Refusal) as caught:
        receive_message(Bytes(HEADS[what]))
    assert caught.value.code == "malformed"


def test_another_version_of_the_protocol_is_named():
    with pytest.raises(Refusal, match=f"version {VERSION + 1} of the protocol, this side has {VERSION}"):
        receive_message(Bytes(HEADS["another version"]))


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_end(data):
    with pytest.raises((Refusal, EOFError)):
        receive_message(Bytes(data))


@given(st.sampled_from([lookup_message, push_message]), st.data())
def test_a_message_with_wrong_bytes_costs_an_error_and_nothing_else(make, data):
    """Bytes behind the header are changed, dropped or added; a message that is still one may be done."""
    shard = Shard()
    session_of(shard, 1, 3)
    good = bytearray(sent(make(0, 0, [3, 4, 5])))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(HEADER.size, len(good) - 1))
        good[place] = data.draw(st.integers(0, 255))
    answers: list[Message] = []
    try:
        shard.handle(receive_message(Bytes(bytes(good) + b"\0" * 100)), answers.append)
    except (Refusal, EOFError):
        return
    group = shard.groups[0]
    assert len(answers) + len(group.lookups) + len(group.pushes) == 1
    assert all(answer.kind != Kind.ERROR or answer.fields["code"] != "failed" for answer in answers)


KINDS = [kind for kind in Kind if kind not in (Kind.ANSWER, Kind.ERROR)]
VALUES = st.integers(-1, 3) | st.sampled_from(["count", "", 2**70, None, True, 0.5, [], ["count"], {}])
NAMES = (
    "session",
    "group",
    "trainer",
    "step",
    "part",
    "train",
    "table",
    "tables",
    "by",
    "once",
    "rule",
    "clock",
    "most",
)
NAMES += ("state", "touched", "counts", "capture", "first", "size", "sketch", "token", "client")


@given(
    st.sampled_from(KINDS),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=8),
    st.lists(st.binary(max_size=40), max_size=5),
)
def test_messages_with_wrong_fields_and_buffers_cost_an_error_and_nothing_else(kind, fields, buffers):
    shard = Shard()
    session_of(shard, 1, 3)
    answers: list[Message] = []
    arrays = [np.frombuffer(data, np.uint8) for data in buffers]
    shard.handle(Message(kind, fields, arrays), answers.append)
    assert len(answers) == 1
    assert json.dumps(dict(answers[0].fields))
    assert answers[0].fields.get("code") in (None, "malformed", "value", "fenced", "mismatch", "busy")
    assert len(shard.tables["count"]) <= 5


def test_a_message_that_is_too_large_to_be_sent_is_refused_by_its_sender():
    huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (MOST_BYTES + 1,), (0,))
    with pytest.raises(ValueError, match="is too large; at most"):
        head_of(Message(Kind.LOAD, {}, [huge]))
