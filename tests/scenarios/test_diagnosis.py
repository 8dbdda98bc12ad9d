"""Three o'clock, and the guard asks why before it does anything."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

import guard
from guard.diagnosis import inquiry
from guard.incidents import IncidentLog, read_journal
from guard.incidents.diagnose import from_plain
from guard.notify import evidence, render

BAD, STEPS = 60, 100
POLICY: dict[str, Any] = {
    "version": 1,
    "checkpoints": {"every": 20, "probation": 5},
    "policies": [
        {
            "name": "nan",
            "severity": "critical",
            "trigger": {"type": "non_finite"},
            "attempts": ["auto", [{"type": "skip_step"}]],
        }
    ],
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 32))
        self.head = nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.layer_norm(self.body(x), (32,)))


def features(index: int) -> torch.Tensor:
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(index))


class Friday:
    """A run in FP16 whose batch 60 is too loud for it."""

    def __init__(self, folder: Path, policy: Any = POLICY, *, loud: float = 200_000.0, **options: Any) -> None:
        torch.manual_seed(0)
        self.model, self.loud = Net(), loud
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.run_dir = folder / "friday"
        self.guard = guard.attach(
            self.model, self.optimizer, policy=policy, run_dir=self.run_dir, receivers=[], **options
        )
        self.iterations = 0

    def batch(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = features(index)
        return (x * self.loud if index == BAD else x), x[:, :1].sign()

    def go(self) -> guard.Guard:
        g = self.guard
        for x, y in g.batches(self.batch, steps=STEPS):
            self.iterations += 1
            self.optimizer.zero_grad()
            with g.autocast("cpu", dtype=torch.float16):
                out = self.model(x)
            g.backward(F.mse_loss(out.float(), y))
            self.optimizer.step()
            g.log(val_loss=1.0)
        g.close()
        return g

    @property
    def kinds(self) -> list[str]:
        return [e["kind"] for e in read_journal(self.run_dir) if e["kind"] not in ("memory", "notice")]

    @property
    def log(self) -> IncidentLog:
        return IncidentLog(read_journal(self.run_dir))


def test_born_in_the_body_in_fp16_and_finite_in_bf16_so_precision(tmp_path: Path) -> None:
    friday = Friday(tmp_path)
    g = friday.go()

    # The cause is known before the incident is a line old, and it has chosen the remedy.
    (nan,) = g.incidents
    assert friday.kinds == [
        "run_started",
        "examining",
        "incident_opened",
        "incident_evidence",
        "incident_evidence",
        "attempt",
        "incident_closed",
        "run_finished",
    ]
    (attempt,) = nan.attempts
    assert (nan.opened_tick, nan.opened_step, nan.status) == (BAD, BAD, "resolved")
    assert [(r.type, r.changes.get("precision")) for r in attempt.results] == [
        ("rollback", None),
        ("precision", "bf16"),
    ]

    # Experiments count for nothing: ticks are those of the run, and what the loop logged in them is not heard.
    back = attempt.results[0].changes["from_step"] - attempt.results[0].changes["to_step"]
    assert g.tick == STEPS + back + 1
    assert friday.iterations > g.tick

    # In the morning the channel says:
    text = render.to_terminal(render.root(friday.log, nan), width=300)
    assert "It was born in `body.0` by `linear`, forward (float16, 16x32" in text
    assert "In FP32: gone; in BF16: gone; so: numbers too large for the precision." in text
    assert "• in BF16: in order (loss " in text
    assert text.index("Why") < text.index("Tried aside") < text.index("What the guard did")

    # And the report has it as a table, with what had been in order before.
    page = evidence.report(friday.log, nan.id)
    assert "| in BF16 | in order | loss " in page
    assert "Looked at before it, and in order:" in page

    summary = g.summary()
    assert summary["causes"] == {"precision_overflow": 1}
    assert len(summary["repaired"]) == 1
    assert "numbers too large for the precision" in summary["repaired"][0]
    assert summary["best_loss"] <= summary["last_loss"]
    assert len(summary["grad_norms"]) == 10


def test_a_diagnosis_that_fails_is_told_and_the_ladder_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("the microscope fell down")
        yield

    monkeypatch.setattr(inquiry, "examine", broken)
    g = Friday(tmp_path).go()
    failure, nan = sorted(g.incidents, key=lambda i: i.detector == "non_finite")
    assert "the diagnosis failed: RuntimeError: the microscope fell down" in failure.evidence["detection"]["message"]
    assert [r.type for a in nan.attempts for r in a.results] == ["skip_step"]
    assert "diagnosis" not in nan.evidence


def test_its_time_is_bounded(tmp_path: Path) -> None:
    """No experiment begins after `max_seconds`; what was not tried is said."""
    policy = {**POLICY, "policies": [{**POLICY["policies"][0], "max_seconds": 1e-9}]}
    friday = Friday(tmp_path, policy)
    g = friday.go()
    (nan,) = g.incidents
    assert friday.iterations == g.tick
    assert [r.type for a in nan.attempts for r in a.results] == ["skip_step"]
    told = from_plain(nan.evidence["diagnosis"])
    assert told is not None
    assert (told.cause, {t.note for t in told.evidence.trials}) == ("unknown", {"the time for it was over"})


@pytest.mark.parametrize("how", [{"mode": "observe"}, {"policy": "off"}])
def test_nothing_is_examined_where_nothing_may_change_or_nobody_asks(tmp_path: Path, how: dict[str, Any]) -> None:
    if how.pop("policy", None):
        how["policy"] = {**POLICY, "policies": [{**POLICY["policies"][0], "attempts": [[{"type": "skip_step"}]], "diagnose": False}]}  # fmt: skip # noqa: E501
    friday = Friday(tmp_path, loud=math.nan, **how)
    g = friday.go()
    assert g.incidents
    assert not any("diagnosis" in i.evidence for i in g.incidents)
    assert "examining" not in friday.kinds
    assert friday.iterations == g.tick


def test_a_run_that_is_left_before_its_cause_is_known_still_tells_its_incident(tmp_path: Path) -> None:
    friday = Friday(tmp_path)
    g = friday.guard
    for x, y in g.batches(friday.batch, steps=STEPS):
        friday.optimizer.zero_grad()
        with g.autocast("cpu", dtype=torch.float16):
            out = friday.model(x)
        g.backward(F.mse_loss(out.float(), y))
        friday.optimizer.step()
        if g.responder.holds():
            break
    g.close()
    (nan,) = g.incidents
    assert (nan.detector, nan.opened_tick) == ("non_finite", BAD)
    assert [r.type for a in nan.attempts for r in a.results] == ["skip_step"]
    assert all(bool(p.isfinite().all()) for p in friday.model.parameters())


def test_the_next_fault_of_the_same_kind_is_not_examined_again(tmp_path: Path) -> None:
    """A bad sample comes round: what has helped is done again at once."""
    friday = Friday(tmp_path)
    sound = friday.batch
    friday.batch = lambda i: (sound(i + 1000)[0].index_fill(0, torch.tensor([2]), math.nan if i in (40, 75) else 1.0), sound(i)[1])  # type: ignore[method-assign] # fmt: skip # noqa: E501
    g = friday.go()
    first, second = g.incidents
    assert [[r.type for a in i.attempts for r in a.results] for i in (first, second)] == [["skip_step"], ["skip_step"]]
    assert first.evidence["diagnosis"]["cause"] == "bad_batch"
    assert first.evidence["diagnosis"]["samples"] == (2,)
    assert "diagnosis" not in second.evidence


def test_no_schedule_is_brought_further_than_the_run_has_been(tmp_path: Path) -> None:
    """A divergence in the first steps is examined with runs longer than the whole schedule, which would be an error."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 10.0, total_steps=13, cycle_momentum=False, div_factor=1.0
    )
    policy = {
        **POLICY,
        "policies": [
            {
                "name": "up",
                "severity": "critical",
                "trigger": {"type": "divergence"},
                "actions": [{"type": "skip_step"}],
            }
        ],
    }
    with guard.attach(
        model, optimizer, policy=policy, scheduler=scheduler, run_dir=tmp_path / "run", receivers=[]
    ) as g:
        for x in g.batches(features, steps=12):
            optimizer.zero_grad()
            g.backward((model(x) - x[:, :1]).pow(2).mean())
            optimizer.step()
            scheduler.step()
    told = [from_plain(i.evidence["diagnosis"]) for i in g.incidents if "diagnosis" in i.evidence]
    assert told
    assert told[0] is not None
    assert told[0].cause == "learning_rate"
    assert max(t.steps for t in told[0].evidence.trials) > 13


class OnlyInHalf(Net):
    """Written for autocast alone: without it, half and full precision meet."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(self.body(x).half(), self.head.weight, self.head.bias)


def test_a_precision_in_which_the_model_does_not_run_is_not_tried_in_the_loop(tmp_path: Path) -> None:
    friday = Friday(tmp_path)
    friday.guard.detach()
    friday.model = OnlyInHalf()
    optimizer = friday.optimizer = torch.optim.SGD(friday.model.parameters(), lr=0.01)
    friday.run_dir = tmp_path / "half"
    friday.guard = guard.attach(friday.model, optimizer, policy=POLICY, run_dir=friday.run_dir, receivers=[])
    assert friday.go().step == STEPS
    (incident,) = friday.log.incidents.values()
    tried = {t["name"]: t for t in incident.evidence["diagnosis"]["trials"]}
    assert "the model does not run in it" in tried["fp32"]["note"]
    assert tried["bf16"]["bad"] is not None, "in it the model runs"
