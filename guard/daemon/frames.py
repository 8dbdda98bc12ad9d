"""WebSocket frames of a server (RFC 6455), read from bytes as they come; memory stays bounded whatever comes."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "oversized", "binary", "ping", "pong", "close"]
_KINDS: dict[int, Kind] = {0x1: "text", 0x2: "binary", 0x8: "close", 0x9: "ping", 0xA: "pong"}
_CONTINUATION = 0x0
_ABSURD = 100  # times the limit


class ProtocolError(Exception):
    """What came is no WebSocket; nothing after it can be trusted."""


@dataclass(frozen=True, slots=True)
class Message:
    """A whole message; one that is too long has lost its data."""

    kind: Kind
    data: bytes = b""


class Frames:
    """Bytes in, messages out.

    Args:
        limit: of one message [bytes]; a longer one is passed over without being kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._parts = bytearray()
        self._kind: Kind | None = None  # of the message whose parts come
        self._oversized = False
        self._skip = 0  # bytes still to come of a frame that is passed over
        self._last = False  # that frame is its message's last

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are whole by now.

        Raises:
            ProtocolError: close the connection.
        """
        self._buffer += data
        found: list[Message] = []
        while self._step(found):
            pass
        return found

    def _step(self, found: list[Message]) -> bool:
        """Takes one frame, or as much as is there of one that is passed over; False if there is not enough."""
        if self._skip:
            gone = min(self._skip, len(self._buffer))
            del self._buffer[:gone]
            self._skip -= gone
            if not self._skip and self._last:
                self._end(found)
            return gone > 0 and not self._skip
        head = self._head()
        if head is None:
            return False
        opcode, last, start, length = head
        if opcode >= 0x8:
            if len(self._buffer) < start + length:
                return False
            found.append(Message(_KINDS[opcode], bytes(self._buffer[start : start + length])))
            del self._buffer[: start + length]
            return True
        if self._oversized or len(self._parts) + length > self._limit:
            self._begin(opcode)
            self._oversized, self._last, self._skip = True, last, length
            self._parts.clear()
            del self._buffer[:start]
            if not length and last:
                self._end(found)
            return True
        if len(self._buffer) < start + length:
            return False
        self._begin(opcode)
        self._parts += self._buffer[start : start + length]
        del self._buffer[: start + length]
        if last:
            self._end(found)
        return True

    def _head(self) -> tuple[int, bool, int, int] | None:
        """``(opcode, last of its message, where its data begin, how many bytes they are)``, or None: not there yet."""
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        opcode, last, length, start = buffer[0] & 0x0F, bool(buffer[0] & 0x80), buffer[1] & 0x7F, 2
        if buffer[0] & 0x70 or buffer[1] & 0x80 or opcode not in (_CONTINUATION, *_KINDS):
            raise ProtocolError("a frame is not as a server sends it")
        if opcode >= 0x8 and (length > 125 or not last):
            raise ProtocolError("a control frame is too long")
        for size, code, form in ((2, 126, "!H"), (8, 127, "!Q")):
            if length == code:
                start = 2 + size
                if len(buffer) < start:
                    return None
                (length,) = struct.unpack_from(form, buffer, 2)
                break
        if length > _ABSURD * self._limit:
            raise ProtocolError("a frame would never end")
        return opcode, last, start, length

    def _begin(self, opcode: int) -> None:
        if (self._kind is None) == (opcode == _CONTINUATION):
            raise ProtocolError("a message begins within another, or goes on without having begun")
        self._kind = self._kind or _KINDS[opcode]

    def _end(self, found: list[Message]) -> None:
        assert self._kind is not None
        found.append(Message("oversized") if self._oversized else Message(self._kind, bytes(self._parts)))
        self._parts.clear()
        self._kind, self._oversized, self._last = None, False, False
