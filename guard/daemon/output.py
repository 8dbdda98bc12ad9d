"""What a command writes: passed on as it comes, and its last lines kept."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from guard.daemon import relay
from guard.process import started
from guard.supervised import MARK

_KEPT = 64 << 10  # [bytes] of each stream
_LINE = 400  # characters of a line
_CHUNK = 64 << 10
_EOF = 2.0  # [s] for what is still on its way when the process is gone


@dataclass(frozen=True, slots=True)
class Relay:
    """The process that a command's output goes through.

    Args:
        pid, started: of it.
        out, err: its file descriptors in which stdout and stderr can be read.
    """

    pid: int
    started: str | None
    out: int
    err: int


class Tail:
    """The end of a stream."""

    def __init__(self) -> None:
        self._data = b""

    def add(self, data: bytes) -> None:
        self._data = (self._data + data)[-_KEPT:]

    def lines(self, count: int) -> list[str]:
        """The last `count`, cut. Of a progress bar, which rewrites its line, what it showed last."""
        found = (line.rstrip("\r").rpartition("\r")[2] for line in self._data.decode("utf-8", "replace").split("\n"))
        return [line[:_LINE] for line in found if line.strip()][-count:]


class Output:
    """Of one command.

    Args:
        relay: through which it comes.
        sources: its stdout and stderr, file descriptors that are read here and closed at their end; None: ended.
        streams: file descriptors that they are passed on to.
        process: the relay, if it is a child of this process.
    """

    def __init__(
        self,
        relay: Relay | None,
        sources: Sequence[int | None],
        streams: tuple[int, int],
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.relay, self._process = relay, process
        self._tails = (Tail(), Tail())
        self._readers = [
            threading.Thread(target=_pass_on, args=(source, tail, to), name="guard-output", daemon=True)
            for source, tail, to in zip(sources, self._tails, streams, strict=True)
            if source is not None
        ]
        for reader in self._readers:
            reader.start()

    @classmethod
    def taken_over(cls, relay: Relay | None, streams: tuple[int, int]) -> Output:
        """Of a command whose supervisor has died. Nothing comes if its relay has, too."""
        sources: list[int | None] = [None, None]
        if relay is not None and started(relay.pid) == relay.started is not None:
            for n, fd in enumerate((relay.out, relay.err)):
                with contextlib.suppress(OSError):  # that stream has ended
                    sources[n] = os.open(f"/proc/{relay.pid}/fd/{fd}", os.O_RDONLY)
        return cls(relay, sources, streams)

    def last(self, lines: int) -> tuple[list[str], list[str]]:
        out, err = (tail.lines(lines) for tail in self._tails)
        return out, err

    def close(self) -> None:
        """Waits for what is on its way; not for ever: what the command has left behind may hold the stream."""
        until = time.monotonic() + _EOF
        for reader in self._readers:
            reader.join(max(0.0, until - time.monotonic()))
        if self._process is not None and not any(reader.is_alive() for reader in self._readers):
            self._process.wait()


class Pipes:
    """From a command that is about to be started, through a relay.

    Args:
        environment: of the supervisor: who supervises that one finds the relay by it, too.

    Attributes:
        out, err: what the command writes to.
        relay, process: through which it comes.

    Raises:
        OSError: they cannot be made.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        (from_out, self.out), (from_err, self.err) = os.pipe(), os.pipe()
        (self._read_out, to_out), (self._read_err, to_err) = os.pipe(), os.pipe()
        fds = (from_out, to_out, from_err, to_err)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", relay.__file__, *map(str, fds)],
                env={MARK: environment[MARK]} if MARK in environment else {},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                pass_fds=fds,
                start_new_session=True,
            )
        except OSError:
            self.abandon()
            raise
        finally:
            for fd in fds:
                os.close(fd)
        self.relay = Relay(self.process.pid, started(self.process.pid), to_out, to_err)

    def begin(self, streams: tuple[int, int]) -> Output:
        """The command is started, and has what it writes to."""
        os.close(self.out)
        os.close(self.err)
        return Output(self.relay, (self._read_out, self._read_err), streams, self.process)

    def abandon(self) -> None:
        """There is no command."""
        for fd in (self.out, self.err, self._read_out, self._read_err):
            os.close(fd)


def _pass_on(source: int, tail: Tail, to: int) -> None:
    """A reader on our side that has gone must not block the command."""
    with os.fdopen(source, "rb", buffering=0) as pipe:
        while data := pipe.read(_CHUNK):
            tail.add(data)
            with contextlib.suppress(OSError):
                while data:
                    data = data[os.write(to, data) :]
