"""`guard resume` on a run that has ended."""

from __future__ import annotations

import pytest

from guard.incidents import read_journal


def test_a_stopped_run_may_go_on_and_the_journal_says_who_let_it(guard, night):
    night.finished("stopped")
    assert guard("status", night.path).out.startswith("exp1: stopped\n")
    answer = guard("resume", night.path)
    assert answer.code == 0
    assert "The run may go on" in answer.out
    *_, before, last = read_journal(night.path)
    assert (before["kind"], last["kind"]) == ("run_finished", "reopened")
    assert last["seq"] == before["seq"] + 1
    assert last["author"]
    assert guard("status", night.path).out.startswith("exp1: stopped, but may go on when it is started again\n")
    assert not (night.path / "owner.json").exists()


@pytest.mark.parametrize("status", ["finished", "crashed", "preempted", None])
def test_one_that_was_not_stopped_has_nothing_to_be_let(guard, night, status):
    if status:
        night.finished(status)
    before = read_journal(night.path)
    answer = guard("resume", night.path)
    assert answer.code == 3
    assert "no guard is running" in answer.err
    assert read_journal(night.path) == before
