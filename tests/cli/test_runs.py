"""guard runs: what has announced itself, wherever it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.conftest import Guard
from cli.run_builder import RunBuilder

from guard.clock import FakeClock
from guard.home import Home


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("GUARD_HOME", str(tmp_path / "home"))
    return Home(tmp_path / "home", FakeClock(1000.0))


def test_none(guard: Guard, at: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = guard("runs")
    assert (answer.code, answer.out) == (0, f"No run has announced itself in {at.path}.\n")
    monkeypatch.setenv("GUARD_HOME", "")
    answer = guard("runs")
    assert answer.code == 3
    assert "GUARD_HOME is empty" in answer.err


def test_all_of_them(guard: Guard, at: Home, night: RunBuilder, tmp_path: Path) -> None:
    at.announce_run(night.path.absolute(), "exp1\x1b[31m")
    at.announce_run(tmp_path / "elsewhere", "exp0")
    answer = guard("runs")
    assert answer.code == 0
    assert "exp1  " in answer.out
    assert "not reachable" in answer.out
    assert "Daemons: none; to start one: guard daemon" in answer.out
    lines = {line["run"]: line for line in json.loads(guard("runs", "--json").out)}
    assert lines["exp0"]["step"] is None
    assert lines["exp1\x1b[31m"]["incidents"] > 0
