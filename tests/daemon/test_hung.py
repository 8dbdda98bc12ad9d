"""Hangs of real runs, with shorter floors than usual; what is slow but alive is left alone."""

from __future__ import annotations

import os
import random
import shutil
import sys
from pathlib import Path

import pytest

from guard.clock import SystemClock
from guard.daemon.child import ChildProcess
from guard.daemon.hang import HangJudge
from guard.daemon.supervise import Plan, Supervisor
from guard.incidents import IncidentLog, read_journal

PROGRAMS = Path(__file__).with_name("programs.py")
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
FLOOR, LONG = 4.0, 30.0  # [s]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def supervise(folder: Path, *options: str, launcher: tuple[str, ...] = ()) -> tuple[int, list[str]]:
    said: list[str] = []
    command = [sys.executable, *launcher, str(PROGRAMS), "paced", str(folder), *options]
    supervisor = Supervisor(
        Plan(folder / "run", 3),
        lambda token: ChildProcess(command, {**os.environ, "GUARD_RUN_DIR": str(folder / "run")}, token=token),
        clock=SystemClock(),
        say=said.append,
        random=random.random,
        judge=HangJudge(floor=FLOOR, long=LONG),
    )
    return supervisor.run(), said


def ended(folder: Path, run: str = "run") -> IncidentLog:
    """A journal without a gap, of a run that came to its last step."""
    entries = read_journal(folder / run)
    assert [e["seq"] for e in entries] == list(range(len(entries)))
    log = IncidentLog(entries)
    assert log.finished["status"] == "finished"
    assert not (folder / "second").exists()
    return log


def supervisors(log: IncidentLog):
    return [i for i in log.incidents.values() if i.policy == "supervisor"]


def test_a_stopped_process_is_hung_its_stacks_are_taken_and_it_goes_on_from_its_last_good_state(tmp_path):
    code, said = supervise(tmp_path, "stop=23", "pause=0.2", "steps=40")
    assert code == 0, said
    log = ended(tmp_path)
    (hang,) = supervisors(log)
    assert (hang.detector, hang.status, hang.count) == ("hang", "ended", 1)
    found = hang.evidence["detection"]
    assert found["threshold"] <= found["value"] <= found["threshold"] + 3.0
    (stacks,) = hang.evidence["stacks"].values()
    assert "T (stopped)" in stacks
    if shutil.which("py-spy", path=str(Path(sys.executable).parent)):
        assert "paced (" in stacks, "the function in which it was"
    resumed = [e["checkpoint"] for e in read_journal(tmp_path / "run") if e["kind"] == "resumed"]
    assert len(resumed) == 1
    assert (tmp_path / "lives").read_bytes() == b".."


@pytest.mark.parametrize(
    "options",
    [("pause=2.5", "steps=6"), ("first=8", "steps=30"), ("eval=12", "steps=30"), ("pause=6", "steps=4")],
    ids=["slow and steady", "a long first step", "a long evaluation", "each step longer than the floor"],
)
def test_no_hang_is_seen_where_there_is_none(tmp_path, options):
    code, said = supervise(tmp_path, *options)
    assert (code, said) == (0, [])
    assert supervisors(ended(tmp_path)) == []


def test_a_rank_that_is_killed_ends_the_others_and_all_are_started_again(tmp_path):
    code, said = supervise(tmp_path, "kill=23", "steps=40", launcher=TORCHRUN)
    assert code == 0, said
    (crash,) = supervisors(ended(tmp_path))
    assert (crash.detector, crash.status, crash.count) == ("crash", "ended", 1)
    assert (tmp_path / "lives").read_bytes() == b".."


def test_a_rank_that_is_stopped_is_named_and_all_are_started_again(tmp_path):
    code, said = supervise(tmp_path, "stop=23", "pause=0.2", "steps=40", launcher=TORCHRUN)
    assert code == 0, said
    (hang,) = supervisors(ended(tmp_path))
    assert (hang.detector, hang.status, hang.evidence["rank"]) == ("hang", "ended", 1)
    ranks = [name.partition(",")[0] for name in hang.evidence["stacks"]]
    assert {"rank 0", "rank 1"} <= set(ranks)
    assert any("T (stopped)" in text for name, text in hang.evidence["stacks"].items() if name.startswith("rank 1"))
    assert (tmp_path / "lives").read_bytes() == b".."
