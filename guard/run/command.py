"""Runs a person's command: no shell, few variables, bounded in time and output."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from guard.clock import Clock

_TAIL = 4096  # bytes of output kept
_LOOK = 0.05  # [s] between looks at the clock
_PASSED_ON = ("PATH", "HOME", "LANG")


def run(
    command: Sequence[str], text: bytes, run_dir: Path, *, timeout: float, clock: Clock, enough: threading.Event
) -> dict[str, Any]:
    """Runs it to its end, or for `timeout` [s].

    Args:
        text: what it reads on stdin.
        enough: set: kill it now.

    Returns:
        `exit` (or `failed`: why it did not start or end), `output` (the tail of stdout and stderr), `seconds`.
    """
    start = clock.monotonic()
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    environment["GUARD_RUN_DIR"] = str(run_dir)
    try:
        with tempfile.TemporaryFile() as given:  # a file: whoever does not read a pipe blocks it
            given.write(text)
            given.seek(0)
            process = subprocess.Popen(
                list(command),
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                bufsize=0,
            )
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        return {"failed": f"it did not start: {why}", "output": "", "seconds": 0.0}
    with process:
        tail, in_time = _watch(process, start + timeout, clock, enough)
    output = {"output": tail.decode("utf-8", "replace"), "seconds": round(clock.monotonic() - start, 3)}
    if in_time:
        return {"exit": process.returncode, **output}
    why = "the run ended" if enough.is_set() else f"it took longer than {timeout:g} s"
    return {"failed": f"{why}, so it was killed", **output}


def _watch(
    process: subprocess.Popen[bytes], deadline: float, clock: Clock, enough: threading.Event
) -> tuple[bytes, bool]:
    """The end of what it prints; False if it had to be killed."""
    tail, in_time = b"", True
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if selector.get_map() and selector.select(_LOOK):
                chunk = os.read(process.stdout.fileno(), 1 << 16)
                tail = (tail + chunk)[-_TAIL:]
                if not chunk:
                    selector.unregister(process.stdout)
                ended = False
            else:  # silent; one that it left behind may hold the pipe open
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0 if selector.get_map() else _LOOK)
                ended = process.returncode is not None
            if ended:
                break
            if clock.monotonic() >= deadline or enough.is_set():
                in_time = False
                break
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)  # with whatever it started
    return tail, in_time
