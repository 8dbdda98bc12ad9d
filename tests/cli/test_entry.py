"""The console entry itself: help, imports, pipes, streams."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from guard import __version__
from guard.cli import _main

COMMANDS = [module.__name__.rpartition(".")[2] for module in _main._COMMANDS]
WITHOUT_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("torch", "matplotlib"):
            raise AssertionError(f"{name} was imported")

sys.meta_path.insert(0, NoTorch())
from guard.cli import main

for line in ("--help", "incidents runs/exp1", "show runs/exp1 i0001", "status runs/exp1", "check default", "plugins",
             "schema", "init", "undo runs/exp1 i0001", "notify runs/exp1 --wait 0"):
    try:
        main(line.split())
    except SystemExit as end:
        print(line, end.code, file=sys.stderr)
print("torch" in sys.modules, file=sys.stderr)
"""


def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, timeout=60, check=False, **{"text": True, **options})


def shell(line: str) -> subprocess.CompletedProcess[str]:
    command = line.replace("guard", f"{sys.executable} -m guard", 1)
    return run(["bash", "-c", f"set -o pipefail; {command}"])


def test_no_command_needs_torch(night):
    done = run([sys.executable, "-c", WITHOUT_TORCH])
    said = done.stderr.splitlines()
    assert said[-1] == "False", done.stderr
    for line in (
        "--help 0",
        "incidents runs/exp1 0",
        "show runs/exp1 i0001 0",
        "status runs/exp1 0",
        "check default 0",
        "plugins 0",
        "schema 0",
        "init 0",
        "undo runs/exp1 i0001 3",
        "notify runs/exp1 --wait 0 0",
    ):
        assert line in said, done.stderr


def test_help_explains_the_exit_codes_and_names_every_command(guard):
    answer = guard("--help")
    assert answer.code == 0
    assert all(f"\n    {code} " in answer.out for code in (0, 1, 2, 3, 76, 130))
    for command in COMMANDS:
        (line,) = [line for line in answer.out.splitlines() if line.split()[:1] == [command]]
        assert not line.endswith("...")
    assert max(map(len, answer.out.splitlines())) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_an_example(guard, command):
    answer = guard(command, "--help")
    assert answer.code == 0
    assert f"\n    guard {command}" in answer.out
    assert "Example" in answer.out


def test_version(guard):
    assert guard("--version") == (0, f"training guard {__version__}\n", "")


def test_python_dash_m_guard(night):
    done = shell("guard incidents runs/exp1")
    assert done.returncode == 0
    assert done.stdout.startswith("ID ")
    assert done.stderr == ""


@pytest.mark.parametrize(
    "line",
    [
        "guard schema | head -1",
        "guard schema | true",
        "guard schema > /dev/full",
        "guard schema >&-",
        "guard incidents nowhere 2>&-",
    ],
)
def test_a_reader_that_goes_away_is_no_traceback(line):
    done = shell(line)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    assert "Broken" not in done.stderr


def test_a_terminal_that_lacks_a_character(night):
    night.opened("i0005", message="loss → nan")
    done = run(
        [sys.executable, "-m", "guard", "show", "runs/exp1", "i0005"], text=False, env={"PYTHONIOENCODING": "latin-1"}
    )
    assert done.returncode == 0
    assert b"Loss ? nan" in done.stdout
    assert "Critical · NaN".encode("latin-1") in done.stdout


def test_an_interrupt_is_quiet(guard, night, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("guard.cli._runs.find_run", interrupt)
    assert guard("incidents", "runs/exp1") == (130, "", "")


def test_a_disk_error_nobody_thought_of_is_a_sentence(guard, night, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error", "runs/exp1")

    monkeypatch.setattr("guard.cli._runs.find_run", fail)
    answer = guard("incidents", "runs/exp1")
    assert answer.code == 1
    assert answer.err == "guard: [Errno 5] Input/output error: 'runs/exp1'\n"


def test_demo_is_handed_on(guard, monkeypatch):
    got = {}
    fake = types.ModuleType("guard.demo")
    fake.run = lambda **options: got.update(options) or 4
    monkeypatch.setitem(sys.modules, "guard.demo", fake)
    assert guard("demo", "--out", "here", "--seed", "3").code == 4
    assert got == {"out": Path("here"), "seed": 3}


def test_demo_that_is_not_installed(guard, monkeypatch):
    monkeypatch.setitem(sys.modules, "guard.demo", None)
    answer = guard("demo")
    assert answer.code == 1
    assert "the demo needs what is not installed" in answer.err
