"""`guard run`: options, exit codes, and what is passed on. The supervision itself: tests/daemon."""

from __future__ import annotations

import os
import sys

import pytest

from guard.cli import main, run
from guard.daemon import supervise

PYTHON = sys.executable


@pytest.fixture
def planned(monkeypatch):
    """What the command line asks for, in place of running it."""
    found = []

    def fake(program, plan):
        found.append((list(program), plan))
        return 0

    monkeypatch.setattr(run, "_supervise", fake)
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    return found


def test_defaults(guard, planned, tmp_path):
    assert guard("run", "--", "python", "train.py", "--lr", "3e-4", "--", "x").code == 0
    ((program, plan),) = planned
    assert program == ["python", "train.py", "--lr", "3e-4", "--", "x"]
    assert plan == supervise.Plan(plan.run_dir, 3)
    assert plan.run_dir.parent == tmp_path / "runs"
    assert plan.run_dir.name.startswith("train-")
    assert plan.run_dir.name.endswith(f"-{os.getpid()}")


def test_options(guard, planned, tmp_path):
    assert guard("run", "--restarts", 5, "--hang-timeout", 90, "--run-dir", "here", "--", "torchrun", "x").code == 0
    assert planned[0][1] == supervise.Plan(tmp_path / "here", 5, 90.0)
    assert guard("run", "--hang-timeout", "off", "--", "x").code == 0
    assert planned[1][1].hang_timeout == float("inf")


@pytest.mark.parametrize("text", ["never", "0", "-3", "nan", "inf"])
def test_a_timeout_that_is_none(guard, planned, text):
    answer = guard("run", "--hang-timeout", text, "--", "x")
    assert answer.code == 2
    assert "must be auto, off, or seconds above 0" in answer.err
    assert planned == []


def test_where_another_restarts_the_default_is_not_to(guard, planned, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    answer = guard("run", "--", "python", "train.py")
    assert planned[0][1].restarts == 0
    assert planned[0][1].restarter == "Slurm"
    assert planned[0][1].run_dir.name == "train-77"
    assert "Slurm is what starts this again" in answer.err
    guard("run", "--restarts", 2, "--", "python", "train.py")
    assert planned[1][1].restarts == 2


def test_no_command(guard):
    assert guard("run").code == 2


@pytest.mark.parametrize(
    ("code", "expected"),
    [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137), ("", 0), ("raise SystemExit(76)", 76)],
)
def test_exit_codes(guard, code, expected):
    assert guard("run", "--restarts", 0, "--", PYTHON, "-c", code).code == expected


def test_a_command_that_cannot_be_run(guard, tmp_path):
    answer = guard("run", "--", "no-such-command")
    assert (answer.code, answer.err) == (127, "guard: no-such-command cannot be run: No such file or directory\n")
    (tmp_path / "text").write_text("no program")
    assert guard("run", "--", "./text").code == 126


def test_output_goes_where_it_belongs_and_the_run_directory_is_handed_on(capfd, tmp_path):
    code = "import os, sys; print(os.environ['GUARD_RUN_DIR']); print('beside', file=sys.stderr)"
    with pytest.raises(SystemExit) as end:
        main(["run", "--run-dir", "here", "--", PYTHON, "-c", code])
    assert end.value.code == 0
    assert capfd.readouterr() == (f"{tmp_path / 'here'}\n", "beside\n")


def test_who_cannot_tell_any_more_is_spoken_for(guard, night, monkeypatch):
    """The night's run crashes for good: its receivers are told by `guard run`."""
    told = []
    monkeypatch.setattr("guard.cli._courier.deliver", lambda post, wait: told.append(post))
    monkeypatch.setattr("guard.cli._courier.untold", lambda path: [])
    answer = guard("run", "--restarts", 0, "--run-dir", night.path, "--", PYTHON, "-c", "raise SystemExit(3)")
    assert answer.code == 3
    assert len(told) == 1
    assert "exited with code 3" in answer.err
    shown = guard("incidents", night.path)
    assert "crash" in shown.out
