"""The data as the loader gives it: inputs, targets, order, and whether the two belong together."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

from guard.doctor import tree
from guard.doctor.case import Case
from guard.doctor.checks import _inputs, _order, _pairing, _targets
from guard.doctor.checks._pictures import pictures
from guard.doctor.finding import ORDER, Finding

_ALL = tuple(name for name in ORDER if name not in ("data", "weights"))


def check(case: Case) -> list[Finding]:
    """Shapes, NaN, scale, labels, duplicates, shuffling, pairing."""
    unreadable = _unreadable(case)
    if unreadable:
        return [unreadable]
    found: list[Finding] = []
    if case.form is None or (case.problem is not None and case.problem.stage == "output"):
        return [*_inputs.broken(case), _refused(case)]
    found += _inputs.check(case)
    found += _targets.check(case)
    if not any(f.verdict == "FAIL" for f in found):
        found += _order.check(case)
        found += _pairing.check(case)
    found += _few(case)
    if not any(f.bad for f in found):
        found.append(Finding("data", "PASS", summary(case), "samples read", float(_count(case))))
    plots = {**_targets.histogram(case), **pictures(case)}
    return found if not plots else [*found[:-1], _with(found[-1], plots)]


def _with(finding: Finding, plots: dict[str, Any]) -> Finding:
    return dataclasses.replace(finding, plots={**finding.plots, **plots})


def _unreadable(case: Case) -> Finding | None:
    supply = case.supply
    if supply.error:
        at = f"after {len(supply.batches)} batches " if supply.batches else ""
        return Finding(
            "data",
            "FAIL",
            f"the train loader raised {at}{supply.error}",
            advice="iterate over the loader alone and mend what it raises",
            explains=_ALL,
            stops=True,
        )
    if not supply.batches:
        why = (
            " (fewer samples than one batch, and drop_last=True?)"
            if getattr(case.setup.train, "drop_last", False)
            else ""
        )
        return Finding(
            "data",
            "FAIL",
            f"the train loader is empty: one pass gave no batch{why}",
            "batches",
            0.0,
            "check the path, the split and the filter of the data set",
            explains=_ALL,
            stops=True,
        )
    if not any(True for _ in tree.tensors(case.supply.batches[0])):
        kind = type(supply.batches[0]).__name__
        return Finding(
            "data",
            "FAIL",
            f"a batch is a {kind} that holds no tensor",
            advice="let the data set or collate_fn return tensors",
            explains=_ALL,
            stops=True,
        )
    return None


def _refused(case: Case) -> Finding:
    """No form of calling the model worked."""
    problem = str(case.problem)
    shapes = ", ".join(f"{n or 'batch'} {_shape(t)}" for n, t in list(tree.tensors(case.supply.batches[0]))[:6])
    advice = "make shapes and dtypes of the batch what the model's forward takes"
    dtypes = {t.dtype for _, t in tree.tensors(case.supply.batches[0])}
    if torch.float64 in dtypes and ("Double" in problem or "double" in problem or "dtype" in problem):
        advice = "the batch is float64 (numpy's default) and the model float32: convert with .float()"
    if torch.uint8 in dtypes and ("Byte" in problem or "dtype" in problem):
        advice = "the batch is uint8: convert with .float() / 255"
    tokens = [t for _, t in tree.tensors(case.supply.batches[0]) if not t.is_floating_point() and t.numel()]
    sizes = [m.num_embeddings for m in case.box.model.modules() if isinstance(m, nn.Embedding)]
    if "index out of range" in problem and tokens and sizes:
        top = max(int(t.max()) for t in tokens)
        advice = (
            f"the largest number in the batch is {top}, the embeddings hold {', '.join(map(str, sorted(set(sizes))))}"
        )
    return Finding(
        "data",
        "FAIL",
        f"the model does not take the batch ({shapes}): {problem}",
        advice=advice,
        explains=_ALL,
        stops=True,
    )


def _few(case: Case) -> list[Finding]:
    if case.supply.one_shot:
        return [
            Finding(
                "data",
                "WARN",
                "the train loader is an iterator that can be read once; the batches read here are gone from it",
                "batches",
                float(len(case.supply.batches)),
                "give a DataLoader or another iterable that starts anew each pass",
            )
        ]
    if case.supply.complete and len(case.supply.batches) == 1:
        return [
            Finding(
                "data",
                "WARN",
                f"one pass over the train loader is a single batch of {case.size}: every step sees the same data",
                "batches",
                1.0,
                "lower the batch size, or check that the data set is complete",
            )
        ]
    return []


def summary(case: Case) -> str:
    """What the data is, in one sentence."""
    inputs = ", ".join(f"{n} {_shape(t)}" for n, t in list(case.inputs(case.batches[0]).items())[:3])
    order = {"shuffled": "; shuffled", "fixed": "; always in the same order"}.get(case.supply.order, "")
    n = len(case.batches)
    return f"{n} batch{'es' * (n != 1)} of {inputs}{_targets.summary(case)}{order}"


def _count(case: Case) -> int:
    return case.size * len(case.batches)


def _shape(t: torch.Tensor) -> str:
    return f"{list(t.shape)} {str(t.dtype).removeprefix('torch.')}"
