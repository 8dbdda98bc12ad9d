"""warmup_lr: a ramp on top of the standing multiplier."""

from __future__ import annotations

import pytest

from guard.incidents.control import Request, submit

from ._small import call
from .conftest import Start

LR = 1e-2


def warm(steps: int, start: float) -> dict[str, object]:
    return {"type": "warmup_lr", "steps": steps, "from": start}


def test_the_ramp(start: Start) -> None:
    run = start(call(warm(4, 0.2))).go(12, calls=[5])
    assert run.rates == pytest.approx([LR] * 5 + [0.2 * LR, 0.4 * LR, 0.6 * LR, 0.8 * LR] + [LR] * 3)
    assert run.optimizer.param_groups[0]["lr"] == LR
    assert run.guard.lr_multiplier == 1.0
    (result,) = run.results
    assert result.summary == "began to warm the learning rate up from 20 % of it over 4 steps"
    assert result.changes == {"warmup": {"from": 0.2, "until": 9}}
    assert any(e.get("message") == "the learning rate has warmed up" for e in run.journal)


def test_from_nothing(start: Start) -> None:
    run = start(call(warm(2, 0.0)))
    run.go(5)
    before = run.model[3].weight.clone()
    run.go(6, calls=[5])
    assert run.rates[-1] == 0.0
    assert before.equal(run.model[3].weight)


def test_on_top_of_a_standing_cut_which_may_recover(start: Start) -> None:
    run = start(call({"type": "scale_lr", "factor": 0.5}, warm(4, 0.0))).go(12, calls=[5])
    assert run.rates[5:11] == pytest.approx([0.0, 0.125 * LR, 0.25 * LR, 0.375 * LR, 0.5 * LR, 0.5 * LR])
    run = start(call({"type": "scale_lr", "factor": 0.5, "recover": 2}, warm(4, 0.5))).go(12, calls=[5])
    assert run.rates[5:11] == pytest.approx([0.25 * LR, 0.75 * 0.625 * LR, 0.75 * LR, 0.875 * LR, LR, LR])


def test_a_cut_during_the_ramp_counts_from_the_standing_multiplier(start: Start) -> None:
    cut = {
        "name": "cut",
        "trigger": {"type": "threshold", "signal": "cut", "above": 0.5},
        "actions": [{"type": "scale_lr", "factor": 0.5}],
    }
    run = start(call(warm(4, 0.0)), cut)
    run.go(10, calls=[5], each=lambda step: run.guard.log(cut=1.0) if step == 7 else None)
    assert run.rates[5:] == pytest.approx([0.0, 0.25 * LR, 0.25 * LR, 0.375 * LR, 0.5 * LR])


def test_after_a_rollback_the_first_update_begins_it(start: Start) -> None:
    run = start(call({"type": "rollback", "data": "replay"}, warm(2, 0.5))).go(12, calls=[9])
    assert run.rates[10:14] == pytest.approx([0.5 * LR, 0.75 * LR, LR, LR])


def test_undo(start: Start) -> None:
    run = start(call(warm(50, 0.0))).go(8, calls=[4])
    submit(run.run_dir, Request("undo", "ada", incident="i0001"))
    run.go(10)
    assert run.rates[-1] == LR
    (undone,) = [e for e in run.journal if e["kind"] == "undone"]
    assert undone["changes"] == {"warmup": "off"}
