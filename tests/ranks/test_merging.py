"""What several ranks saw, as one would have seen it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from guard.ranks import beyond, merged_looks, merged_metrics


def test_metrics_are_means_over_those_that_logged_them() -> None:
    assert merged_metrics([{"val_loss": 1.0, "a": 5.0}, None, {"val_loss": 3.0}]) == {"val_loss": 2.0, "a": 5.0}
    assert merged_metrics([None, None]) is None
    merged = merged_metrics([{"x": math.nan, "y": math.inf}, {"x": 1.0, "y": 1.0}])
    assert merged is not None
    assert math.isnan(merged["x"])
    assert merged["y"] == math.inf


def test_only_what_the_vector_does_not_carry_is_gathered() -> None:
    assert beyond({"seconds": 1.0, "inputs": {}, "layers": {"a": 1}}) == {"layers": {"a": 1}}
    assert beyond({"seconds": 1.0, "replicas": {}}) is None
    assert beyond(None) is None


def look(w: torch.Tensor, change: torch.Tensor, dead: list[float]) -> dict[str, Any]:
    norm = float(w.norm())
    layer = {"size": 24, "dims": 2, "grad": norm, "norm": norm, "peak": float(w.abs().max()), "spread": 1.0}
    rms = norm / math.sqrt(w.numel())
    update = {"dims": 2, "rms": rms, "ratio": float(change.norm()) / norm, "grad": None}
    units = {"units": 8, "values": 10, "dead": dead}
    return {
        "layers": {"w": layer},
        "updates": {"tick": 4, "lr": 0.1, "layers": {"w": update}},
        "activations": {"r": units},
    }


@pytest.mark.parametrize("sharded", [True, False])
def test_layers_and_updates(sharded: bool) -> None:
    w, change = torch.randn(4, 6), torch.randn(4, 6) / 100
    rows = [slice(0, 2), slice(2, 4)] if sharded else [slice(0, 4)] * 2
    merged = merged_looks(
        [look(w[r], change[r], [0.5, 0.25 * i]) for i, r in enumerate(rows)], {"w": 1.0 if sharded else 0.5}
    )
    (layer,), (update,) = merged["layers"].values(), merged["updates"]["layers"].values()
    assert layer["norm"] == layer["grad"] == pytest.approx(float(w.norm()), rel=1e-5)
    assert layer["peak"] == float(w.abs().max())
    assert update["rms"] == pytest.approx(float(w.square().mean().sqrt()), rel=1e-5)
    assert update["ratio"] == pytest.approx(float(change.norm() / w.norm()), rel=1e-5)
    assert update["grad"] is None
    assert (merged["updates"]["tick"], merged["updates"]["lr"]) == (4, 0.1)
    assert merged["activations"]["r"] == {"units": 8, "values": 20, "dead": [0.5, 0.0]}


def test_odd_numbers_and_ranks_that_saw_nothing() -> None:
    layer = {"size": 1, "dims": 1, "grad": None, "norm": 0.0, "peak": 1.0, "spread": 0.0}
    update = {"dims": 1, "rms": 0.0, "ratio": math.inf, "grad": None}
    looks = [
        {"layers": {"w": layer | {"peak": peak}}, "updates": {"tick": 1, "lr": 0.0, "layers": {"w": update}}}
        for peak in (1.0, math.nan)
    ]
    merged = merged_looks([*looks, None], {})
    assert math.isnan(merged["layers"]["w"]["peak"])
    assert merged["updates"]["layers"]["w"]["ratio"] == math.inf
    assert merged_looks([None, None], {}) == {}
