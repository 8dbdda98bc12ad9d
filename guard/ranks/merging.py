"""What several ranks have gathered, put together into what one would have seen. The same on all ranks.

For parts that come now and then: logged metrics, looks at layers, updates and activations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

_IN_THE_VECTOR = ("seconds", "inputs", "replicas")  # agreed on by other means


def beyond(deep: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Those parts of a look that no tick's agreement carries, so that they are to be gathered; None: there are none."""
    return {part: value for part, value in (deep or {}).items() if part not in _IN_THE_VECTOR} or None


def merged_metrics(told: Sequence[Mapping[str, float] | None]) -> dict[str, float] | None:
    """Each metric's mean over the ranks that logged it; NaN or Inf if one of them was.

    Args:
        told: by rank; None: it logged nothing.
    """
    names = dict.fromkeys(name for metrics in told if metrics is not None for name in metrics)
    merged = {}
    for name in names:
        values = [metrics[name] for metrics in told if metrics is not None and name in metrics]
        merged[name] = sum(values) / len(values)
    return merged or None


def merged_looks(seen: Sequence[Mapping[str, Any] | None], shares: Mapping[str, float]) -> dict[str, Any]:
    """Layers, updates and activations as one process would have seen them.

    Norms add up by their squares; a unit is idle only if it is on all ranks, so of idle shares the smallest counts,
    which is as many as there can be.

    Args:
        seen: by rank, what `beyond` gave.
        shares: parameter name -> part of its squares that counts in the sum over ranks; as many ranks for others.
    """
    there = [deep for deep in seen if deep is not None]
    even = 1.0 / max(1, len(seen))
    merged: dict[str, Any] = {}
    if layers := _by_name([deep["layers"] for deep in there if "layers" in deep]):
        merged["layers"] = {name: _layer(rows, shares.get(name, even)) for name, rows in layers.items()}
    if looks := [deep["updates"] for deep in there if "updates" in deep]:
        updates = _by_name([look["layers"] for look in looks])
        rows = {name: _update(rows, shares.get(name, even)) for name, rows in updates.items()}
        merged["updates"] = {"tick": looks[0]["tick"], "lr": looks[0]["lr"], "layers": rows}
    if units := _by_name([deep["activations"] for deep in there if "activations" in deep]):
        merged["activations"] = {name: _units(rows) for name, rows in units.items()}
    return merged


def _by_name(tables: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for table in tables for name in table)
    return {name: [table[name] for table in tables if name in table] for name in names}


def _root(values: Sequence[float], share: float) -> float:
    return math.sqrt(sum(x * x for x in values) * share)


def _largest(values: Sequence[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else max(values)


def _gradient(rows: Sequence[Mapping[str, Any]], share: float) -> float | None:
    known = [row["grad"] for row in rows if row["grad"] is not None]
    return _root(known, share) if known else None


def _layer(rows: Sequence[Mapping[str, Any]], share: float) -> dict[str, Any]:
    return {
        "size": rows[0]["size"],
        "dims": rows[0]["dims"],
        "grad": _gradient(rows, share),
        "norm": _root([row["norm"] for row in rows], share),
        "peak": _largest([row["peak"] for row in rows]),
        "spread": _largest([row["spread"] for row in rows]),
    }


def _update(rows: Sequence[Mapping[str, Any]], share: float) -> dict[str, Any]:
    weights = _root([row["rms"] for row in rows], 1.0)
    moves = _root([row["ratio"] * row["rms"] for row in rows if row["rms"] != 0.0], 1.0)
    return {
        "dims": rows[0]["dims"],
        "rms": weights / math.sqrt(len(rows)),
        "ratio": moves / weights if weights > 0.0 else _largest([row["ratio"] for row in rows]),
        "grad": _gradient(rows, share),
    }


def _units(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {"units": rows[0]["units"], "values": sum(row["values"] for row in rows)}
    for kind in ("dead", "saturated"):
        shares = [row[kind] for row in rows if kind in row]
        if shares:
            merged[kind] = [min(n) for n in zip(*shares, strict=False)]
    return merged
