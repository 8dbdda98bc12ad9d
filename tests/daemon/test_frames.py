"""WebSocket frames: whatever the pieces in which they come, the same messages; and never more memory than allowed."""

from __future__ import annotations

import contextlib
import struct

import pytest
from daemon.fake_socket_mode import frame
from hypothesis import given
from hypothesis import strategies as st

from guard.daemon.frames import Frames, Message, ProtocolError

LIMIT = 1000


@given(
    messages=st.lists(
        st.tuples(st.sampled_from([(1, "text"), (2, "binary"), (9, "ping"), (10, "pong")]), st.binary(max_size=300)),
        max_size=8,
    ),
    cuts=st.lists(st.integers(1, 50), min_size=1),
)
def test_it_does_not_matter_how_the_bytes_are_cut(
    messages: list[tuple[tuple[int, str], bytes]], cuts: list[int]
) -> None:
    messages = [(kind, data[:125] if kind[0] > 8 else data) for kind, data in messages]
    data = b"".join(frame(data, opcode) for (opcode, _), data in messages)
    frames, found, at = Frames(LIMIT), [], 0
    for i in range(len(data)):
        if at >= len(data):
            break
        step = cuts[i % len(cuts)]
        found += frames.feed(data[at : at + step])
        at += step
    assert found == [Message(kind, data) for (_, kind), data in messages]  # type: ignore[arg-type]


def test_a_message_in_parts_with_a_ping_between() -> None:
    frames = Frames(LIMIT)
    data = frame(b"he", last=False) + frame(b"?", 9) + frame(b"", 0, last=False) + frame(b"llo", 0)
    assert frames.feed(data) == [Message("ping", b"?"), Message("text", b"hello")]


def test_one_that_is_too_long_is_passed_over_without_being_kept() -> None:
    frames = Frames(LIMIT)
    data = frame(b"x" * 90_000)
    for at in range(0, len(data), 100):
        found = frames.feed(data[at : at + 100])
        assert len(frames._buffer) <= LIMIT
    assert found == [Message("oversized")]
    parts = b"".join(frame(b"y" * 600, 1 if i == 0 else 0, last=i == 4) for i in range(5))
    assert frames.feed(parts + frame(b"next")) == [Message("oversized"), Message("text", b"next")]


@pytest.mark.parametrize(
    "data",
    [
        b"\x81\x85abcdhello",  # masked, as only a client's are
        b"\xc1\x00",  # a reserved bit
        b"\x83\x00",  # no such frame
        b"\x89\x7e\x00\x80" + b"x" * 128,  # a ping that is too long
        b"\x09\x00",  # a ping in parts
        frame(b"a", 0),  # goes on without having begun
        frame(b"a", last=False) + frame(b"b"),  # begins within another
        b"\x81\x7f" + struct.pack("!Q", 1 << 40),  # would never end
        b"HTTP/1.1 400 Bad Request",
    ],
)
def test_what_is_no_websocket_ends_it(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Frames(LIMIT).feed(data)


@given(data=st.binary(max_size=200))
def test_nothing_else_is_raised(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        Frames(50).feed(data)
