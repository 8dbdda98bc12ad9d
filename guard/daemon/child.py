"""A command in a session of its own, and all that it started: found again, also by a supervisor of a later time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from guard.daemon.output import Output, Pipes, Relay
from guard.process import started
from guard.supervised import MARK, WHO

UNKNOWN = 256  # no exit code is: it ended, and the kernel told its code to somebody else
_PASSES = 5  # a process may fork while the others are killed


class Child(Protocol):
    """A command that runs."""

    pid: int

    def poll(self) -> int | None:
        """Exit code, minus the signal that ended it, or `UNKNOWN`; None while it runs."""

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

    def handle(self) -> dict[str, Any]:
        """What finds it again, for the custody's record."""


class _Process(ABC):
    """A real one, with what it wrote and what it started.

    Args:
        token: in its environment, and so in that of all that it starts.
    """

    def __init__(self, pid: int, token: str, output: Output) -> None:
        self.pid, self._token, self._output = pid, token, output
        self._started = started(pid)

    @abstractmethod
    def poll(self) -> int | None: ...

    def send(self, number: int, *, group: bool) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.poll() is None and not group:
                os.kill(self.pid, number)
            elif self.poll() is None:
                os.killpg(self.pid, number)
            else:
                for pid in self.family():
                    os.kill(pid, number)

    def family(self) -> list[int]:
        return marked(self._token, self.pid)

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
        return self._output.last(lines)

    def close(self) -> None:
        self._output.close()

    def handle(self) -> dict[str, Any]:
        return {"child": (self.pid, self._started), "relay": self._output.relay}


class ChildProcess(_Process):
    """Started here.

    Args:
        command: program and arguments.
        environment: of the command, in place of this process's own.
        streams: file descriptors that its stdout and stderr are passed on to.
        token: its mark; nobody else's.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        streams: tuple[int, int] = (1, 2),
        token: str | None = None,
    ) -> None:
        token = token or uuid.uuid4().hex
        marks = [mark for mark in (environment.get(MARK), token) if mark]  # supervisors may be nested
        pipes = Pipes(environment)
        try:
            self._process = subprocess.Popen(
                list(command),
                env={
                    "PYTHONUNBUFFERED": "1",
                    **environment,
                    MARK: ":".join(marks),
                    WHO: f"{os.getpid()}:{started(os.getpid())}",
                },
                stdout=pipes.out,
                stderr=pipes.err,
                start_new_session=True,
            )
        except BaseException:
            pipes.abandon()
            raise
        super().__init__(self._process.pid, token, pipes.begin(streams))

    def poll(self) -> int | None:
        return self._process.poll()

    def close(self) -> None:
        self._process.wait()
        super().close()


class AdoptedProcess(_Process):
    """Started by a supervisor that has died. It may have ended by now.

    Args:
        child: its pid and start time.
        token: its mark.
        relay: that its output goes through, if that is known.
        streams: file descriptors that its stdout and stderr are passed on to.
    """

    def __init__(
        self, child: tuple[int, str | None], token: str, relay: Relay | None, streams: tuple[int, int] = (1, 2)
    ) -> None:
        super().__init__(child[0], token, Output.taken_over(relay, streams))
        self._started = child[1]

    def poll(self) -> int | None:
        return None if started(self.pid) == self._started else UNKNOWN

    def family(self) -> list[int]:
        """When it has ended its pid may be another's, whose group is none of ours."""
        return marked(self._token, self.pid) if self.poll() is None else marked(self._token)


def marked(token: str, leader: int = -1) -> list[int]:
    """The processes that bear a mark in their environment, because torchrun gives its workers own sessions; and those
    of the leader's session and group."""
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _is_kin(entry, token, leader)]


def _is_kin(entry: Path, token: str, leader: int) -> bool:
    try:
        state, _, group, session = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[:4]
        if state in "ZX":
            return False
        return leader in (int(group), int(session)) or token.encode() in (entry / "environ").read_bytes()
    except (OSError, ValueError):
        return False
