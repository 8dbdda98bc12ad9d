"""Who may take over what."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from guard.daemon.child import ChildProcess
from guard.daemon.custody import Custody, Ward
from guard.errors import UsageError
from guard.process import started

COMMAND = ["python", "train.py"]
DEAD = 2**22 + 1, "17"  # beyond every pid


@pytest.fixture
def custody(tmp_path):
    said = []

    def make(command=COMMAND, **environment):
        made = Custody(tmp_path / "state", tmp_path / "run", command, said.append, environment)
        made.said = said
        return made

    return make


@pytest.fixture
def sleeper():
    """A process that lives, and its start time."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid, started(process.pid)
        process.kill()


def record(tmp_path):
    (path,) = (tmp_path / "state" / "supervised").glob("*.json")
    return path


def orphaned(tmp_path, **changes):
    """The supervisor that has written the record dies."""
    path = record(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "supervisor": DEAD, **changes}))


def test_nothing_is_there_at_first_and_nothing_is_left_at_the_end(custody, tmp_path):
    mine = custody()
    assert mine.claim() is None
    assert record(tmp_path).exists()
    mine.release()
    assert not list((tmp_path / "state").rglob("*.json"))


def test_a_process_whose_supervisor_died_is_taken_over_with_what_it_knew(custody, tmp_path, sleeper):
    first = custody()
    first.claim()
    first.note(token="t", child=sleeper, offset=70, spent=2, best=40, longest={"step": 3.0})
    orphaned(tmp_path)
    ward = custody().claim()
    assert (ward.child, ward.offset, ward.spent, ward.best, ward.longest) == (sleeper, 70, 2, 40, {"step": 3.0})
    assert ward.alive
    with pytest.raises(UsageError, match=f"supervised by another guard run \\(pid {os.getpid()}\\)"):
        custody().claim()


def test_one_that_lives_is_not_overruled(custody):
    custody().claim()
    with pytest.raises(UsageError, match="end that one first"):
        custody().claim()


def test_ranks_of_one_run_have_a_supervisor_each(custody):
    custody(RANK="0").claim()
    assert custody(RANK="1").claim() is None


@pytest.mark.parametrize("changes", [{"boot": "another"}, {"run_dir": "/elsewhere"}, {"child": 3}, {"more": 1}])
def test_what_is_of_another_boot_or_makes_no_sense_is_not_taken_over(custody, tmp_path, sleeper, changes):
    first = custody()
    first.claim()
    first.note(token="t", child=sleeper)
    orphaned(tmp_path, **changes)
    assert custody().claim() is None


def test_a_pid_that_is_another_process_by_now_is_not_the_child(custody, tmp_path, sleeper):
    first = custody()
    first.claim()
    first.note(token="t", child=(sleeper[0], "1"))
    orphaned(tmp_path)
    assert not custody().claim().alive


def test_another_command_is_refused_while_the_process_lives_and_begins_anew_else(custody, tmp_path, sleeper):
    first = custody()
    first.claim()
    first.note(token="t", child=sleeper)
    orphaned(tmp_path)
    with pytest.raises(UsageError, match=f"another command is at work .*pid {sleeper[0]}"):
        custody(["python", "other.py"]).claim()
    orphaned(tmp_path, child=DEAD)
    assert custody(["python", "other.py"]).claim() is None


def test_one_started_in_the_moment_of_death_is_found_by_its_mark(custody, tmp_path):
    first = custody()
    first.claim()
    first.note(token="5eb63bbbe01eeed0")
    child = ChildProcess([sys.executable, "-c", "import signal; signal.pause()"], os.environ, token="5eb63bbbe01eeed0")
    orphaned(tmp_path)
    assert custody().claim().child == (child.pid, started(child.pid))
    child.kill()
    child.close()


def test_between_two_lives_the_budget_is_what_is_left(custody, tmp_path):
    first = custody()
    first.claim()
    first.note(token="nobody bears it", spent=1, best=9)
    orphaned(tmp_path)
    ward = custody().claim()
    assert (ward.child, ward.spent, ward.best) == (None, 1, 9)


def test_what_could_not_be_ended_is_left_to_the_next_one(custody, tmp_path, sleeper):
    mine = custody()
    mine.claim()
    mine.note(token="t", child=sleeper)
    mine.release()
    assert record(tmp_path).exists()


def test_where_nothing_can_be_written_the_run_is_supervised_all_the_same(custody, tmp_path):
    (tmp_path / "state").write_text("no folder")
    mine = custody()
    assert mine.claim() is None
    mine.note(spent=1)
    mine.release()
    assert len(mine.said) == 1
    assert "no other can take over" in mine.said[0]


def test_a_folder_that_others_may_write_to_is_not_believed(custody, tmp_path, sleeper):
    first = custody()
    first.claim()
    first.note(token="t", child=sleeper)
    orphaned(tmp_path)
    record(tmp_path).parent.chmod(0o777)
    mine = custody()
    assert mine.claim() is None
    assert "others may write there" in mine.said[0]


def test_nobody_is_in_custody_of_nobody():
    assert not Ward().alive
