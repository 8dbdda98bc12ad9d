"""After a diagnosis the run goes on as if there had been none: bit for bit, whatever it consists of."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from _runs import (
    BACK,
    Faults,
    Outcome,
    Parts,
    Samples,
    Setup,
    differences,
    make_source,
    mse_loss,
    policies,
    policy,
    train,
    unguarded,
)
from torch.utils.data import DataLoader

SKIP = {"type": "skip_step"}
BAD = 13  # the sample that holds a NaN


class Flawed(Samples):
    """One sample holds a NaN."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.x[BAD, 2] = math.nan


def flawed_source(name: str) -> Any:
    sound = make_source(name)
    if isinstance(sound, DataLoader):
        generator = torch.Generator().manual_seed(7) if name == "generator" else None
        return DataLoader(Flawed(augment=name == "augmented"), sound.batch_size, shuffle=True, generator=generator)

    def batch(index: int) -> Any:
        x, y = sound(index)
        return (x.index_fill(0, torch.tensor([1]), math.nan), y) if index % 17 == 11 else (x, y)

    return batch


def loop_api(setup: Setup, chosen: Any) -> Outcome:
    parts = Parts(setup)
    parts.source = flawed_source(setup.source)
    with parts.attached(chosen) as g:
        for micro, batch in enumerate(g.batches(parts.source, setup.steps, setup.accumulate), 1):
            loss = parts.forward(batch, g.autocast)
            g.backward(loss)
            if micro % setup.accumulate == 0:
                parts.update(loss)
        return Outcome(parts.state(), g.incidents, g.signals, {})


def one_line(setup: Setup, chosen: Any) -> Outcome:
    """The loop knows nothing of the guard."""
    parts = Parts(setup)
    source = flawed_source("callable")
    with parts.attached(chosen) as g:
        for index in range(setup.steps):
            x, y = source(index)
            with torch.autocast("cpu", dtype=torch.float16, enabled=setup.fp16):
                out = parts.model(x)
            loss = mse_loss(out.float(), y)
            parts.backward(loss)
            parts.update(loss)
        return Outcome(parts.state(), g.incidents, g.signals, {})


SETUPS = [
    Setup(),
    Setup(batch_norm=True, optimizer="momentum", scheduler="cosine"),
    Setup(fp16=True, scheduler="plateau"),
    Setup(source="generator", ema="dict"),
    Setup(source="shuffled", batch_norm=True, accumulate=2, steps=24),
    Setup(source="augmented", fp16=True, ema="module", batch_norm=True),
    Setup(optimizer="tensor_lr", scheduler="none", source="shuffled"),
]
ids = [str(i) for i in range(len(SETUPS))]
LADDERS: dict[str, list[list[dict[str, Any]]]] = {"in place": [[SKIP]], "back": [[BACK], [SKIP]]}


def ladder(rungs: list[list[dict[str, Any]]], *, diagnose: bool) -> Any:
    return policies(policy("non_finite", *rungs, severity="critical", diagnose=diagnose, limits={"max": 50}))


def diagnosed(outcome: Outcome) -> list[str]:
    return [i.evidence["diagnosis"]["cause"] for i in outcome.incidents if "diagnosis" in i.evidence]


@pytest.mark.parametrize("rungs", LADDERS.values(), ids=LADDERS)
@pytest.mark.parametrize(("loop", "setup"), [*((loop_api, s) for s in SETUPS), *((one_line, s) for s in SETUPS[:3])])
def test_a_diagnosis_changes_nothing(loop: Any, setup: Setup, rungs: list[list[dict[str, Any]]]) -> None:
    without, with_it = (loop(setup, ladder(rungs, diagnose=d)) for d in (False, True))
    assert differences(without.state, with_it.state) == []
    assert [(r[0], r[1]) for r in without.rows] == [(r[0], r[1]) for r in with_it.rows]
    assert diagnosed(without) == []
    assert set(diagnosed(with_it)) == {"bad_batch"}
    assert not any(i.detector == "plugin_failure" for i in with_it.incidents)


@pytest.mark.parametrize("setup", SETUPS, ids=ids)
def test_so_does_one_that_chooses_the_remedy(setup: Setup) -> None:
    """Of a bad batch: its step is left out, as a policy without a diagnosis would."""
    auto = policies({"name": "auto", "trigger": {"type": "non_finite"}, "attempts": "auto", "severity": "critical"})
    without, with_it = loop_api(setup, ladder([[SKIP]], diagnose=False)), loop_api(setup, auto)
    assert differences(without.state, with_it.state) == []
    assert {r.type for i in with_it.incidents for a in i.attempts for r in a.results} == {"skip_step"}
    assert set(diagnosed(with_it)) == {"bad_batch"}


ONCE = [
    (setup, kind)
    for setup in SETUPS
    for kind in ("input", "gradient", "weight")
    if setup.source != "augmented" and not (setup.fp16 and kind == "gradient")  # an ordinary overflow under a scaler
]


@pytest.mark.parametrize(("setup", "kind"), ONCE)
def test_what_happens_once_leaves_no_trace(setup: Setup, kind: str) -> None:
    """The diagnosis finds that it does not come back; after its rollback the end is that of the run without a fault."""
    auto = policies(
        {"name": "nan", "trigger": {"type": "non_finite"}, "attempts": "auto", "severity": "critical"},
        {"name": "spike", "trigger": {"type": "loss_spike"}, "attempts": "auto", "severity": "critical"},
    )
    outcome = train(setup, auto, Faults((kind, 19)))
    expected = {"corrupted_state"} if kind == "weight" else {"transient"}
    assert set(diagnosed(outcome)) == expected
    assert differences(outcome.state, unguarded(setup)) == []


def test_a_loop_that_is_left_within_an_experiment_is_as_it_was() -> None:
    """The state is put back, the incident is told, the gate holds."""
    parts = Parts(Setup())
    source = flawed_source("callable")
    with parts.attached(ladder([[SKIP]], diagnose=True)) as g:
        seen = 0
        for batch in g.batches(source, 30):
            if g.inquiry.busy:
                break
            seen += 1
            g.backward(parts.forward(batch, g.autocast))
            parts.update(torch.zeros(()))
    assert seen == 12
    assert [i.detector for i in g.incidents] == ["non_finite"]
    assert all(bool(p.isfinite().all()) for p in parts.model.parameters())
