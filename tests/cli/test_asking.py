"""observe, enforce, undo, rollback, checkpoint, stop: a request is left, and its receipt is told."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from cli.run_builder import RunBuilder

from guard.cli import _asking, _runs
from guard.clock import FakeClock
from guard.incidents import control

ASKED = [
    (["observe"], {"verb": "observe", "policy": None}),
    (["observe", "--policy", "clip-on-explosion"], {"verb": "observe", "policy": "clip-on-explosion"}),
    (["enforce"], {"verb": "enforce", "policy": None}),
    (["undo", "i0001"], {"verb": "undo", "incident": "i0001"}),
    (["rollback"], {"verb": "rollback", "to": "last_good"}),
    (["rollback", "--to", "best"], {"verb": "rollback", "to": "best"}),
    (["checkpoint"], {"verb": "checkpoint"}),
    (["resume"], {"verb": "resume"}),
    (["stop"], {"verb": "stop"}),
]


class Run(FakeClock):
    """A run that looks at its control folder while others wait, and the clock they wait by."""

    def __init__(self, builder: RunBuilder) -> None:
        super().__init__()
        self.builder, self.accepted, self.message, self.takes_after = builder, True, "as you wish", 3
        self.took: list[control.Request | str] = []
        self.dies = self.interrupted = False

    def wait(self, event: object, timeout: float) -> bool:
        self.now += timeout
        self.takes_after -= 1
        if self.interrupted:
            raise KeyboardInterrupt
        if self.dies:
            (self.builder.path / "owner.json").unlink(missing_ok=True)
        elif self.takes_after == 0:
            self.builder.write("notice", severity="info", message="something else")
            for request in control.take(self.builder.path, 0.0):
                self.took.append(request)
                self.builder.write(
                    "request",
                    request=asdict(request),
                    author=request.author,
                    accepted=self.accepted,
                    message=self.message,
                )
        return False


@pytest.fixture
def run(night: RunBuilder, monkeypatch: pytest.MonkeyPatch) -> Run:
    night.alive()
    run = Run(night)
    monkeypatch.setattr(_runs, "CLOCK", run)
    monkeypatch.setenv("LOGNAME", "ada")
    return run


@pytest.mark.parametrize(("arguments", "asked"), ASKED)
def test_each_verb_is_asked_and_its_receipt_told(guard, run, arguments, asked):
    verb, *others = arguments
    answer = guard(verb, "runs/exp1", *others)
    assert answer == (0, "Done at step 1,715: as you wish\n", "")
    (request,) = run.took
    assert asked.items() <= asdict(request).items()
    assert request.author == "ada"


def test_a_refusal_is_a_problem(guard, run):
    run.accepted, run.message = False, "there is no checkpoint yet"
    assert guard("rollback", "runs/exp1") == (1, "", "guard: refused: there is no checkpoint yet\n")


def test_no_answer_in_time_leaves_the_request(guard, run):
    run.takes_after = -1
    answer = guard("stop", "runs/exp1", "--wait", "2.5")
    assert answer.code == 1
    assert "no answer within 2.5 s; the request stays" in answer.err
    assert len(control.take(Path("runs/exp1"), 0.0)) == 1


def test_not_waiting(guard, run):
    answer = guard("checkpoint", "runs/exp1", "--wait", "0")
    assert answer.code == 0
    assert "it is taken at the next step" in answer.out
    assert not run.took


def test_a_run_that_ends_meanwhile_leaves_no_request_behind(guard, run):
    run.dies = True
    answer = guard("stop", "runs/exp1")
    assert answer.code == 3
    assert "the run ended before it took the request" in answer.err
    assert control.take(Path("runs/exp1"), 0.0) == []


def test_ctrl_c_while_waiting(guard, run):
    run.interrupted = True
    answer = guard("stop", "runs/exp1")
    assert answer.code == 130
    assert "not waiting any longer" in answer.err
    assert answer.out == ""


@pytest.mark.parametrize("arguments", [arguments for arguments, _ in ASKED])
def test_a_run_that_is_not_running(guard, night, arguments):
    verb, *others = arguments
    answer = guard(verb, "runs/exp1", *others)
    assert answer.code == 3
    assert "no guard is running in runs/exp1" in answer.err
    assert not (night.path / "control").exists()


def test_undo_of_an_unknown_incident_asks_nobody(guard, run):
    answer = guard("undo", "runs/exp1", "i0011")
    assert answer.code == 2
    assert "did you mean 'i0001'?" in answer.err
    assert not (run.builder.path / "control").exists()


def test_a_control_folder_that_cannot_be_written(guard, run):
    (run.builder.path / "control").write_text("")
    answer = guard("stop", "runs/exp1")
    assert answer.code == 1
    assert "cannot leave a request in runs/exp1/control" in answer.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["rollback", "runs/exp1", "--to", "bset"],
        ["stop"],
        ["undo", "runs/exp1"],
        ["stop", "runs/exp1", "--wait", "-1"],
        ["stpo"],
        ["observe", "runs/exp1", "clip"],
        [],
        ["incidents", "--wait", "3"],
    ],
)
def test_wrong_usage(guard, night, arguments):
    assert guard(*arguments).code == 2


def test_the_author_is_the_user(monkeypatch):
    monkeypatch.setenv("LOGNAME", "ada")
    assert _asking.author() == "ada"

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert _asking.author().startswith("uid ")


def test_request_files_hold_what_the_guard_reads(guard, run):
    guard("observe", "runs/exp1", "--wait", "0")
    (file,) = Path("runs/exp1/control").glob("*.json")
    assert json.loads(file.read_text())["author"] == "ada"
