"""What ranks say to each other beyond the agreement, and what becomes of it when one is no more."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from ranks import children
from ranks.processes import run

from guard.ranks.group import has_ended


@pytest.fixture(scope="module")
def said() -> list[dict[str, Any]]:
    return run(children.talk)


def test_everybody_hears_the_same(said: list[dict[str, Any]]) -> None:
    zero, one = said
    assert zero["gather"] == one["gather"] == [{"rank": 0}, {"rank": 1}]
    assert zero["broadcast"] == one["broadcast"] == ("of 0", 1)
    assert zero["all"] == one["all"] == (True, False)
    assert zero["worst"] == one["worst"] == (1, 0)
    assert zero["largest"] == one["largest"] == [1, 0, 2**62]
    assert zero["norms"] == one["norms"] == [3.0, float("inf"), 5.0, 0.0]
    assert zero["leave"] == one["leave"] == (0, 1)
    assert zero["together"] == one["together"] == (True, False)
    assert "closed" in zero["closed"]
    for tensor, sent in zip(zero["copied"], one["copied"], strict=True):
        assert torch.equal(tensor, sent)
        assert (tensor == 1).all()


def test_who_fails_fails_with_the_others(said: list[dict[str, Any]]) -> None:
    zero, one = said
    assert (zero["rank 0 fails"], one["rank 0 fails"]) == ("ZeroDivisionError", "GuardError")
    assert (zero["rank 1 fails"], one["rank 1 fails"]) == ("GuardError", "ZeroDivisionError")


def test_a_rank_that_is_killed_is_an_error_on_all_others() -> None:
    told = run(children.dies, world=3, mortal=(1,))
    assert told[1] is None
    for rank in (0, 2):
        first, second, gathering = told[rank]
        assert first.startswith(f"rank {rank} of 3 is alone in the agreement of a tick: ")
        assert "gloo says: " in first
        assert first == second == gathering, "it is known from then on"


def test_a_rank_that_hangs_is_an_error_when_the_time_is_over() -> None:
    message, _ = run(children.hangs)
    assert "another rank does not answer" in message
    assert "imed out" in message


def test_which_process_has_ended() -> None:
    assert not has_ended(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and nobody has fetched its status
    assert has_ended(child.pid)
    child.communicate()
    assert has_ended(child.pid)
