"""An uncaught `TrainingStopped` ends the process with 76, and nothing else changes."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEGIN = """
import atexit, sys
from guard import exiting
from guard.errors import TrainingStopped
from guard.types import Incident
atexit.register(lambda: print("atexit ran"))
stopped = TrainingStopped(Incident("i0001", "no-nan", "non_finite", "critical", "stopped", 3, 3, cause="loss is nan"))
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BEGIN + code], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("exiting.install(); raise stopped", 76),
        ("exiting.install(); exiting.install(); raise stopped", 76),
        ("raise stopped", 1),
        ("exiting.install(); raise ValueError('other')", 1),
        ("exiting.install(); sys.exit(4)", 4),
        ("exiting.install()", 0),
    ],
)
def test_the_exit_code(code, expected):
    done = run(code)
    assert done.returncode == expected
    assert done.stdout == "atexit ran\n"
    assert done.stderr.count("Traceback") == ("raise" in code)


def test_it_is_told_as_ever_by_whoever_told_before():
    done = run("sys.excepthook = lambda kind, error, trace: print('mine:', error)\nexiting.install()\nraise stopped")
    assert done.returncode == 76
    assert done.stdout.startswith("mine: training stopped by policy 'no-nan': loss is nan (incident i0001)\n")
    assert done.stderr == ""
