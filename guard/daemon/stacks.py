"""What the processes of a hung run were doing: evidence for the person who reads about it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_PATIENCE = 10.0  # [s] for one process
_PROCESSES = 8
_NONE = "no stacks"
_LENGTH = 6000  # characters of one process's stacks


def look(pids: Sequence[int], *, ask: bool = True) -> dict[str, str]:
    """Per process, ``rank 1, pid 4711``: what the kernel calls its state, and the stacks of all threads if py-spy is
    installed and may look. Else a process that listens to SIGQUIT is asked to write them to its stderr, as every one
    with a guard inside does; one that does not would die of it, and is left alone.

    Args:
        ask: that last thing may be done; it is a signal, and not everybody may send one.
    """
    spy = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    found = {}
    for pid in sorted(pids)[:_PROCESSES]:
        stacks = _stacks(spy, pid) if spy is not None else f"{_NONE}: py-spy is not installed"
        if ask and stacks.startswith(_NONE) and _listens(pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGQUIT)
                stacks += "; the process was asked to write them to its stderr"
        found[_name(pid)] = f"{_state(pid)}\n{stacks}".strip()[:_LENGTH]
    return found


def ranks_beside(pid: int) -> list[int]:
    """The process and the other ranks of its job on this host: those that meet at the same address and port."""
    mine = _environment(pid)
    meeting = {v for v in mine if v.startswith((b"MASTER_ADDR=", b"MASTER_PORT="))}
    others = (int(entry.name) for entry in Path("/proc").glob("[0-9]*")) if len(meeting) == 2 else iter(())
    return [pid, *(p for p in others if p != pid and meeting <= (e := _environment(p)) and _has_rank(e))]


def _has_rank(environment: set[bytes]) -> bool:
    return any(v.startswith(b"RANK=") for v in environment)


def _environment(pid: int) -> set[bytes]:
    try:
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def _stacks(spy: str, pid: int) -> str:
    """One that is stopped cannot be stopped for the look, and need not be."""
    more = ["--nonblocking"] if "T (stopped)" in _state(pid) else []
    try:
        done = subprocess.run(
            [spy, "dump", "--pid", str(pid), *more], capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{_NONE}: {type(error).__name__}"
    return done.stdout if done.returncode == 0 else f"{_NONE}: {done.stderr.strip()[-300:]}"


def _listens(pid: int) -> bool:
    """It has a handler for SIGQUIT."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
        caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return False
    return bool(caught >> (signal.SIGQUIT - 1) & 1)


def _name(pid: int) -> str:
    rank = next((v[5:].decode("ascii", "replace")[:8] for v in _environment(pid) if v.startswith(b"RANK=")), "")
    return f"rank {rank}, pid {pid}" if rank else f"pid {pid}"


def _state(pid: int) -> str:
    """``State: T (stopped)``, and where in the kernel it waits, if that is said."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
    except OSError:
        return "gone"
    state = next((" ".join(line.split()) for line in lines if line.startswith("State:")), "")
    try:
        waits = Path(f"/proc/{pid}/wchan").read_text("ascii", "replace").strip("0")
    except OSError:
        waits = ""
    return f"{state}{f', waits in {waits}' if waits else ''}{os.linesep}{_command(pid)}"


def _command(pid: int) -> str:
    """The program alone: arguments may hold secrets."""
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    except OSError:
        return ""
