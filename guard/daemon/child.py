"""A command in a session of its own: its output passed on, its last lines kept, all that it started found again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from guard.process import started
from guard.supervised import MARK, WHO

_KEPT = 64 << 10  # [bytes] of each stream
_LINE = 400  # characters of a line
_CHUNK = 64 << 10
_EOF = 2.0  # [s] for what is still in the pipes when the process is gone
_PASSES = 5  # a process may fork while the others are killed


class Child(Protocol):
    """A command that runs."""

    pid: int

    def poll(self) -> int | None:
        """Exit code, or minus the signal that ended it; None while it runs."""

    def send(self, number: int, *, group: bool) -> None:
        """A signal to the command alone, or to all of its process group."""

    def family(self) -> list[int]:
        """The processes that the command is, has started, and has left behind."""

    def kill(self) -> None:
        """KILL, to the whole family."""

    def last(self, lines: int) -> tuple[list[str], list[str]]:
        """The last lines of stdout and of stderr."""

    def close(self) -> None:
        """It has ended; what it has written is passed on."""


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


class ChildProcess:
    """The real one.

    Args:
        command: program and arguments.
        environment: of the command, in place of this process's own.
        streams: file descriptors that its stdout and stderr are passed on to.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], streams: tuple[int, int] = (1, 2)
    ) -> None:
        self._token = uuid.uuid4().hex
        marks = [mark for mark in (environment.get(MARK), self._token) if mark]  # supervisors may be nested
        self._process = subprocess.Popen(
            list(command),
            env={
                "PYTHONUNBUFFERED": "1",
                **environment,
                MARK: ":".join(marks),
                WHO: f"{os.getpid()}:{started(os.getpid())}",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._tails = (Tail(), Tail())
        self._readers = []
        for pipe, tail, to in zip((self._process.stdout, self._process.stderr), self._tails, streams, strict=True):
            assert pipe is not None, "it was asked for"
            reader = threading.Thread(target=_pass_on, args=(pipe, tail, to), name="guard-output", daemon=True)
            reader.start()
            self._readers.append(reader)

    def poll(self) -> int | None:
        return self._process.poll()

    def send(self, number: int, *, group: bool) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.poll() is None and not group:
                self._process.send_signal(number)
            elif self.poll() is None:
                os.killpg(self.pid, number)
            else:
                for pid in self.family():
                    os.kill(pid, number)

    def family(self) -> list[int]:
        return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if self._is_kin(entry)]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.poll() is None:
                os.killpg(self.pid, signal.SIGKILL)
        for _ in range(_PASSES):
            found = self.family()
            for pid in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if not found:
                return

    def last(self, lines: int) -> tuple[list[str], list[str]]:
        out, err = (tail.lines(lines) for tail in self._tails)
        return out, err

    def close(self) -> None:
        self._process.wait()
        until = time.monotonic() + _EOF
        for reader in self._readers:  # not for ever: what the command has left behind may hold the pipe
            reader.join(max(0.0, until - time.monotonic()))

    def _is_kin(self, entry: Path) -> bool:
        """By session and group, and by a mark in the environment, because torchrun gives its workers own sessions."""
        try:
            state, _, group, session = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[:4]
            if state in "ZX":
                return False
            return self.pid in (int(group), int(session)) or self._token.encode() in (entry / "environ").read_bytes()
        except (OSError, ValueError):
            return False


def _pass_on(pipe: IO[bytes], tail: Tail, to: int) -> None:
    """Until the last writer has closed it. A reader on our side that has gone must not block the command."""
    with pipe:
        while data := os.read(pipe.fileno(), _CHUNK):
            tail.add(data)
            with contextlib.suppress(OSError):
                while data:
                    data = data[os.write(to, data) :]
