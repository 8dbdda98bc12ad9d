"""incidents, show, status: what a run directory tells."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from cli.run_builder import RunBuilder, a_night, bf16, halved

from guard.cli import _runs
from guard.clock import FakeClock
from guard.incidents import Follower

INCIDENTS = """\
ID      Step  Severity  Detector        Seen  Outcome
i0001  1,181  critical  non_finite         3  No action needed: repaired, 40 steps lost
i0002  1,183  warning   grad_explosion     1  Repaired with i0001
i0003  1,711  warning   oscillation        1  Watching only: oscillating loss, nothing was done
i0004  1,712  warning   loss_spike         1  Working on it: scaled the learning rate by 0.5, now checking that it helps

One in full: guard show runs/exp1 i0004
"""


def test_incidents_in_a_pipe_are_one_line_each_and_uncoloured(guard, night):
    assert guard("incidents", "runs/exp1") == (0, INCIDENTS, "")


def test_incidents_as_json(guard, night):
    answer = json.loads(guard("incidents", "runs/exp1", "--json").out)
    assert [i["id"] for i in answer["incidents"]] == ["i0001", "i0002", "i0003", "i0004"]
    assert answer["incidents"][0]["evidence"]["detection"]["value"] == "nan"
    assert answer["damaged_lines"] == 0


def test_no_incidents(guard, alone):
    RunBuilder(Path("quiet"))
    assert guard("incidents", "quiet").out == "No incidents in quiet (journal up to step 1,180).\n"
    assert guard("show", "quiet").code == 3
    assert "none" in guard("status", "quiet").out


def test_show_tells_everything(guard, night):
    evidence = night.path / "evidence" / "i0001"
    evidence.mkdir(parents=True)
    (evidence / "layers.csv").write_text("")
    answer = guard("show", "runs/exp1", "i0001")
    assert answer.code == 0
    assert answer.err == ""
    assert max(map(len, answer.out.splitlines())) <= 80
    for line in (
        "No action needed: repaired, 40 steps lost",
        "Critical · NaN or Inf in loss or gradients · run exp1",
        "  Incident       i0001, resolved",
        "                 runs/exp1/policy.yaml:7",
        "  Value          NaN",
        "  Limit          none",
        "  Usual          2.312",
        "  Began          tick 1,199, 2 ticks before it was seen",
        "  Seen           3 times",
        "    1,200  1,180  2.31       0.81         0.001",
        "  1. Step 1,182, tick 1,202, rung 1",
        "     - rollback: rolled back 40 steps to step 1,160 and replays the same batches",
        "         from_step: 1,200",
        "     - left out clip: there is no usual norm yet",
        "  Yes, 40 steps lost. Loss before 2.31, after 2.29, expected 2.3.",
        "  - switched to BF16",
        "  - i0002, exploding gradients, step 1,183",
        "  runs/exp1/evidence/i0001/layers.csv",
        "To take it back: guard undo runs/exp1 i0001",
    ):
        assert line in answer.out.splitlines(), line


def test_show_as_json(guard, night):
    answer = json.loads(guard("show", "runs/exp1", "i0001", "--json").out)
    assert (answer["policy_line"], answer["in_force"], answer["status"]) == (7, ["switched to BF16"], "resolved")
    assert answer["attempts"][0]["results"][0]["changes"]["to_step"] == 1160


def test_what_was_undone_is_not_in_force(guard, night):
    night.undone("i0001", precision=None)
    answer = guard("show", "runs/exp1", "i0001").out
    assert "Still in force" not in answer
    assert "To take it back" not in answer
    night.write("notice", severity="info", message="the learning rate is back at the schedule's")
    assert "Still in force" not in guard("show", "runs/exp1", "i0004").out


def test_an_observed_incident_says_would(guard, night):
    clip = {"type": "clip", "summary": "would clip the gradient", "changes": {}, "standing": False}
    night.attempt("i0003", clip, would=True)
    assert "\nWhat the guard would have done\n  1. Step" in guard("show", "runs/exp1", "i0003").out


def test_show_takes_the_latest_or_a_name_alone(guard, night):
    latest = guard("show", "runs/exp1")
    assert "i0004, verifying" in latest.out
    assert "showing i0004, the latest of 4" in latest.err
    alone = guard("show", "i0002")
    assert "i0002, ended; repaired together with i0001" in alone.out
    assert "the only one in ./runs" in alone.err


def test_show_draws_the_picture_if_asked(guard, night, monkeypatch):
    asked = []
    monkeypatch.setattr("guard.notify.evidence.make_in_subprocess", lambda *a: asked.append(a))
    assert "could not be drawn" in guard("show", "runs/exp1", "i0001", "--plot").err
    assert asked == [(Path("runs/exp1"), "i0001")]


def test_unknown_incident_lists_the_known_ones(guard, night):
    answer = guard("show", "runs/exp1", "i001")
    assert answer.code == 2
    assert answer.out == ""
    assert "no incident 'i001' in runs/exp1; did you mean 'i0001'? there are: i0001, i0002, i0003, i0004" in answer.err


def test_status_of_a_live_run(guard, night, monkeypatch):
    clock = FakeClock(night.time + 3 * 3600)
    monkeypatch.setattr(_runs, "CLOCK", clock)
    night.alive()
    night.beat(clock.now - 4, "eval of test")
    night.signals(effective=5e-4)
    answer = guard("status", "runs/exp1")
    assert answer.code == 0
    assert answer.out.startswith("exp1: running, step 1,714\n")
    assert max(map(len, answer.out.splitlines())) <= 80
    for part in (
        "started 2023-11-14 22:13:20 UTC (3 h 0 min",
        "step 1,714, tick 1,734, phase eval of test; last heartbeat 4 s",
        "step 1,714: loss 2.29, gradient norm 0.8",
        "enforce: the guard acts",
        "0.5 of the schedule's (0.0005; the schedule says 0.001)",
        "BF16, in place of the loop's",
        "switched to BF16 (guard undo runs/exp1 i0001)",
        "4, of which 1 open",
        "1 not delivered; to deliver them: guard notify runs/exp1",
    ):
        assert part in answer.out, part
    clock.advance(3000)
    assert "running, step 1,714, but NO PROGRESS for 50 min (phase eval of test)" in guard("status", "runs/exp1").out


def test_status_as_json(guard, night):
    night.write("mode", mode="observe", author="ada", policy="clip-on-explosion")
    answer = json.loads(guard("status", "runs/exp1", "--json").out)
    assert (answer["state"], answer["mode"]) == ("gone", "enforce")
    assert (answer["lr_multiplier"], answer["precision"]) == (0.5, "bf16")
    assert answer["policy_modes"] == {"clip-on-explosion": "observe"}
    assert answer["open_incidents"] == ["i0004"]
    assert [c["incident"] for c in answer["in_force"]] == ["i0001", "i0004"]
    assert [p["incident"] for p in answer["untold"]] == ["i0001"]


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (None, "exp1: not running, and it did not say why (killed or crashed)"),
        ("finished", "exp1: finished"),
        ("stopped", "exp1: stopped"),
        ("crashed", "exp1: crashed"),
    ],
)
def test_status_of_a_run_that_is_over(guard, night, ending, said):
    if ending:
        night.finished(ending)
    answer = guard("status", "runs/exp1").out
    assert answer.startswith(f"{said}\n")
    assert "guard undo" not in answer
    if ending == "crashed":
        assert "i0004, loss_spike: Needs you: the run crashed before this was repaired" in " ".join(answer.split())


def test_a_second_cut_multiplies_and_modes_of_the_whole_run_replace_others(guard, night):
    night.attempt("i0004", halved(0.5), rung=1)
    night.write("mode", mode="observe", author="ada", policy="clip-on-explosion")
    night.write("mode", mode="observe", author="ada", policy=None)
    answer = json.loads(guard("status", "runs/exp1", "--json").out)
    assert (answer["lr_multiplier"], answer["mode"], answer["policy_modes"]) == (0.25, "observe", {})
    night.undone("i0004", lr_multiplier=1.0)
    night.attempt("i0001", bf16(), would=True)
    answer = json.loads(guard("status", "runs/exp1", "--json").out)
    assert (answer["lr_multiplier"], len(answer["in_force"])) == (1.0, 1)


def test_a_look_changes_nothing(guard, night):
    before = sorted(night.path.rglob("*"))
    for command in ("status", "incidents", "show"):
        guard(command, "runs/exp1")
    assert sorted(night.path.rglob("*")) == before


def test_status_without_a_readable_policy(guard, night):
    (night.path / "policy.yaml").write_text("version: 7")
    answer = guard("status", "runs/exp1")
    assert answer.code == 0
    assert "not known: runs/exp1/policy.yaml:1:10" in answer.out.replace("\n" + " " * 17, " ")
    assert "policy.yaml:" not in guard("show", "runs/exp1", "i0001").out


# ---- which run


def test_the_newest_run_is_taken_and_said(guard, night):
    a_night(Path("runs/exp2"))
    os.utime("runs/exp1/journal.jsonl", (2e9, 2e9))
    answer = guard("incidents")
    assert answer.out == INCIDENTS
    assert answer.err == "guard: reading runs/exp1 (the newest of 2 in ./runs)\n"


def test_the_environment_may_name_the_run(guard, night, monkeypatch):
    monkeypatch.setenv("GUARD_RUN_DIR", str(night.path))
    assert guard("incidents").err == "guard: reading runs/exp1 (GUARD_RUN_DIR)\n"


@pytest.mark.parametrize("command", ["incidents", "show", "status", "notify"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("runs/exp11", "there is no directory runs/exp11; did you mean 'exp1'? there are: exp1"),
        ("nowhere/at/all", "there is no directory nowhere/at/all"),
        ("runs/exp1/journal.jsonl", "is a file, and a run directory is expected; did you mean runs/exp1?"),
        ("runs/exp1/journal.jsonl/x", "there is no directory"),
        ("runs", "runs is not a run directory: it has no journal.jsonl; run directories in it: runs/exp1"),
        ("empty", "empty is not a run directory"),
    ],
)
def test_what_is_no_run_directory(guard, night, command, given, said):
    Path("empty").mkdir()
    answer = guard(command, given)
    assert answer.code == 3
    assert said in answer.err
    assert answer.out == ""


def test_no_runs_at_all(guard):
    answer = guard("status")
    assert answer.code == 3
    assert "which run? There is none in ./runs" in answer.err


def test_what_may_not_be_read(guard, night, monkeypatch):
    def refuse(*_: object, **__: object) -> object:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Follower, "read", refuse)
        answer = guard("incidents", "runs/exp1")
        assert answer.code == 3
        assert "journal.jsonl cannot be read: Permission denied" in answer.err
    monkeypatch.setattr(Path, "stat", refuse)
    answer = guard("incidents", "runs/exp1")
    assert answer.code == 3
    assert "runs/exp1 cannot be read: Permission denied" in answer.err


# ---- damaged journals


def test_damaged_lines_are_counted_and_the_rest_is_told(guard, night):
    night.raw(b'\xff\xfe\n{"kind": "incident_opened"}\n{"v":1,"se')
    answer = guard("incidents", "runs/exp1")
    assert (answer.code, answer.out) == (0, INCIDENTS)
    assert "2 lines of the journal are damaged and passed over" in answer.err


def test_no_single_wrong_value_in_a_journal_is_too_much(guard, night):
    (night.path / "policy.yaml").write_text("version: 1\nreceivers: {here: {type: console}}\n")
    lines = (night.path / "journal.jsonl").read_bytes().splitlines()
    wrongs = (None, [7], {"\x1b[31m": None}, -1.5, "\x1b[31m")
    turn = 0
    for number, line in enumerate(lines):
        entry = json.loads(line)
        for key in entry:
            turn += 1
            wrong, command = wrongs[turn % 5], ("incidents", "show", "status")[turn % 3]
            changed = [*lines[:number], json.dumps({**entry, key: wrong}).encode(), *lines[number + 1 :]]
            (night.path / "journal.jsonl").write_bytes(b"\n".join(changed) + b"\n")
            answer = guard(command, "runs/exp1")
            assert answer.code in (0, 3), (key, wrong)
            assert "\x1b" not in answer.out, (key, command)
