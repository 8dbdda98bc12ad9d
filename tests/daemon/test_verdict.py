from __future__ import annotations

import signal

import pytest

from guard.daemon.hang import Hang
from guard.daemon.verdict import Life, judge
from guard.incidents import IncidentLog, read_journal

HANG = Hang(1, 40, 41, "data", 75.2, 60.0, 3)


@pytest.mark.parametrize(
    ("life", "status", "kind", "code"),
    [
        (Life(0), None, "done", 0),
        (Life(0), "finished", "done", 0),
        (Life(-signal.SIGKILL), "finished", "ended", 137),
        (Life(1), "finished", "ended", 1),
        (Life(1), None, "crash", 1),
        (Life(1), "crashed", "crash", 1),
        (Life(-signal.SIGSEGV), None, "crash", 139),
        (Life(-signal.SIGKILL), None, "crash", 137),
        (Life(76), None, "stopped", 76),
        (Life(1), "stopped", "stopped", 76),
        (Life(0), "stopped", "stopped", 76),
        (Life(143), "preempted", "preempted", 143),
        (Life(-signal.SIGTERM), None, "preempted", 143),
        (Life(0, ranks=1), "preempted", "preempted", 0),
        (Life(1, ranks=4), "preempted", "crash", 1),  # torchrun ended the others because one had died
        (Life(130), "crashed", "ended", 130),
        (Life(-signal.SIGINT, asked=signal.SIGINT), None, "ended", 130),
        (Life(0, asked=signal.SIGTERM), None, "ended", 0),
        (Life(143, hang=HANG), "preempted", "hang", 143),
        (Life(0, hang=HANG), None, "hang", 1),
        (Life(-signal.SIGKILL, hang=HANG, asked=signal.SIGINT), None, "hang", 137),
    ],
)
def test_what_an_end_means(stage, life, status, kind, code):
    stage.started()
    if status:
        stage.journal("run_finished", status=status, summary={})
    verdict = judge(life, IncidentLog(read_journal(stage.path)))
    assert (verdict.kind, verdict.exit_code) == (kind, code)
    assert verdict.fault == (kind in ("crash", "hang"))


@pytest.mark.parametrize(("policy", "who"), [("person", "a person"), ("nan", "its policy")])
def test_who_stopped_it_whatever_the_script_made_of_the_exception(stage, policy, who):
    stage.started()
    stage.stopped(policy)
    stage.journal("run_finished", status="crashed", summary={})
    verdict = judge(Life(1), IncidentLog(read_journal(stage.path)))
    assert (verdict.kind, verdict.message) == ("stopped", f"the run was stopped by {who}")


@pytest.mark.parametrize(
    ("life", "message"),
    [
        (Life(3), "the training process exited with code 3"),
        (Life(-signal.SIGKILL), "the training process was killed (SIGKILL)"),
        (Life(137), "the training process exited with code 137 (128 + SIGKILL)"),
        (Life(-9, memory="out of memory"), "the training process was killed (SIGKILL); out of memory"),
        (Life(-9, lost=True), "the training process does not even end on SIGKILL"),
        (
            Life(0, hang=HANG),
            "rank 1 made no progress for 75 s at step 41 in phase data, nor does any of the 3 others (limit 60 s)",
        ),
    ],
)
def test_it_is_said_in_a_clause(life, message):
    assert judge(life, IncidentLog()).message == message
