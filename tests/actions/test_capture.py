"""capture: batch, random states and layer statistics as they were when the fault was seen."""

from __future__ import annotations

import csv
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

from guard.run import evidence, iteration

from ._small import Run, batch, call, equal
from .conftest import Start

CAPTURE = {"type": "capture"}


def folder(run: Run) -> Path:
    return run.run_dir / "evidence" / "i0001"


def layers(run: Run) -> dict[str, dict[str, str]]:
    with (folder(run) / "layers.csv").open() as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def kept(run: Run) -> Any:
    return torch.load(folder(run) / "batch.pt", weights_only=True)


def test_the_batch_and_the_random_states_of_the_iteration(start: Start) -> None:
    run = start(call(CAPTURE))
    states: dict[int, Any] = {}

    def each(step: int) -> None:
        states[step] = (torch.get_rng_state(), random.getstate())
        torch.rand(3), random.random()  # as dropout draws, within the iteration

    run.go(8, calls=[4], each=each).close()
    (result,) = run.results
    assert result.summary == "captured the batch and layer statistics"
    assert result.changes == {"folder": "evidence/i0001"}
    assert run.evidence["captured"] == {"files": ["layers.csv", "batch.pt"]}
    found = kept(run)
    ((x, y),) = found["batches"]
    assert torch.equal(x, batch(4)[0])
    assert torch.equal(y, batch(4)[1])
    assert (found["tick"], found["step"]) == (4, 4)
    assert torch.equal(found["rng"]["cpu"], states[4][0])
    assert found["rng"]["python"] == states[4][1]


def test_it_changes_nothing(start: Start) -> None:
    assert equal(start(call(CAPTURE)).go(8, calls=[4]).weights, start().go(8).weights)


def test_all_micro_batches_of_a_window(start: Start) -> None:
    run = start(call(CAPTURE)).go(4, calls=[2], accumulate=2).close()
    assert [torch.equal(x, batch(i)[0]) for (x, _), i in zip(kept(run)["batches"], (4, 5), strict=True)] == [True, True]


def test_files_are_their_owners(start: Start) -> None:
    run = start(call(CAPTURE)).go(6, calls=[4]).close()
    assert {stat.S_IMODE(p.stat().st_mode) for p in folder(run).iterdir()} == {0o600}
    assert stat.S_IMODE(folder(run).stat().st_mode) == 0o700


@pytest.mark.parametrize("other", ["skip_step", "rollback"])
def test_it_looks_before_others_change_anything(start: Start, other: str) -> None:
    run = start(call({"type": other}, CAPTURE))

    def poison(step: int) -> None:
        if run.guard.tick == 9:
            run.model[0].weight.register_hook(lambda g: g.index_fill(0, torch.tensor([0, 1]), torch.nan))

    run.go(10, calls=[9], each=poison).close()
    assert [r.type for r in run.results][:2] == ["capture", other]
    weight = layers(run)["0.weight"]
    assert (weight["shape"], weight["dtype"]) == ("8x4", "float32")
    assert float(weight["gradient_nonfinite"]) == 0.25
    assert float(weight["gradient_max"]) != 0.0
    assert float(weight["weight_nonfinite"]) == 0.0
    assert layers(run)["1.running_var"]["gradient_max"] == ""


def test_a_batch_that_is_too_large_is_left_out_and_that_is_said(start: Start) -> None:
    run = start(call({**CAPTURE, "max_bytes": 100})).go(6, calls=[4]).close()
    assert run.results[0].summary == "captured layer statistics only: the batch takes 160 bytes, more than 100"
    assert [p.name for p in folder(run).iterdir()] == ["layers.csv"]


def test_a_file_that_turns_out_too_large_is_left_out(start: Start) -> None:
    """What surrounds the tensors counts too."""
    run = start(call({**CAPTURE, "max_bytes": 200})).go(6, calls=[4]).close()
    assert run.evidence["captured"] == {"files": ["layers.csv"], "no_batch": "it is larger than 200 bytes"}
    assert [p.name for p in folder(run).iterdir()] == ["layers.csv"]


def test_statistics_only(start: Start) -> None:
    run = start(call({**CAPTURE, "max_bytes": 0})).go(6, calls=[4]).close()
    assert run.results[0].summary == "captured layer statistics only: a batch is not wanted"


def test_once_per_incident(start: Start) -> None:
    run = start(call(CAPTURE)).go(12, calls=[4, 5, 6]).close()
    assert kept(run)["step"] == 4
    assert len([e for e in run.journal if "captured" in e.get("evidence", {})]) == 1


def test_a_loop_of_its_own_has_no_batch_to_keep(start: Start) -> None:
    run = start(call(CAPTURE))
    for index in range(6):
        x, y = batch(index)
        if index == 4:
            run.guard.log(called=1.0)
        mse_loss(run.model(x), y).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
    assert "the loop does not take its batches from g.batches" in run.results[0].summary


def test_batches_are_not_hoarded(start: Start) -> None:
    for mode in ("enforce", "observe"):
        run = start(call(CAPTURE), mode=mode).go(6, accumulate=2)
        assert len(run.guard.live.iteration.batches) == 2
    quiet = {**call({"type": "checkpoint"}), "diagnose": False}
    nan = {"name": "nan", "trigger": {"type": "non_finite"}, "actions": [{"type": "skip_step"}], "diagnose": False}
    assert start(quiet, nan).go(6).guard.live.iteration is None


def test_a_disk_that_cannot_is_said(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(evidence, "_private", full)
    run = start(call(CAPTURE)).go(8, calls=[4]).close()
    assert "No space left" in run.evidence["captured"]["failed"]
    assert run.guard.step == 8


def test_batches_of_any_kind() -> None:
    class Odd:
        def __init__(self) -> None:
            self.names = ["a"]

    x = torch.arange(4.0)
    given = {"x": x, "more": [x[:2], ("text", 7)], "odd": Odd(), "none": None}
    copied = iteration.clone(given)
    x.zero_()
    assert copied["x"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert copied["more"][0].tolist() == [0.0, 1.0]
    assert copied["more"][1] == ["text", 7]
    assert copied["odd"] is not given["odd"]
    assert iteration.size_of(given) == 16 + 8


ODD_PARAMETERS: dict[str, Callable[[], torch.Tensor]] = {
    "empty": lambda: torch.zeros(0),
    "whole numbers": lambda: torch.arange(3),
    "bool": lambda: torch.tensor([True]),
    "half": lambda: torch.tensor([60000.0, torch.inf]).half(),
    "complex": lambda: torch.tensor([1 + 2j]),
    "all nan": lambda: torch.full((2,), torch.nan),
}


@pytest.mark.parametrize("kind", ODD_PARAMETERS)
def test_statistics_of_any_tensor(kind: str) -> None:
    model = torch.nn.Module()
    model.register_buffer("b", ODD_PARAMETERS[kind]())
    model.register_parameter("sparse", torch.nn.Parameter(torch.ones(3, 2)))
    model.sparse.grad = torch.sparse_coo_tensor([[1]], [[4.0, 5.0]], (3, 2), check_invariants=True)
    rows = list(csv.DictReader(evidence.layer_table(model, 2.0).splitlines()))
    assert (rows[0]["name"], rows[0]["gradient_max"]) == ("sparse", "2.5")
    if kind == "half":
        assert (float(rows[1]["weight_max"]), rows[1]["weight_nonfinite"]) == (pytest.approx(60000, rel=1e-3), "0.5")
