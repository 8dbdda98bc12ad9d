"""Gradients per parameter, and whether the optimizer holds what has one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from guard.doctor.case import Case
from guard.doctor.finding import Finding
from guard.doctor.walk import WEIGHTED, watching

_LATER = ("overfit", "rate", "precision", "curve")
_VANISHED, _VANISHING = 1e-8, 1e-6  # of the largest rms of a matrix; ten sigmoid layers reach 1e-8
_EXPLODED, _EXPLODING = 1e4, 100.0  # norm of gradient / norm of weight; a usual one begins below 1
_LOOKS = 3  # backward passes, with steps between: what begins at zero behind a zero weight has woken by then
_NAMED = 3


@dataclass(slots=True)
class _Row:
    """One parameter: gradient's norm and rms at the first look, share of zeros, and whether it was ever there."""

    name: str
    norm: float = 0.0
    rms: float = 0.0
    zeros: float = 1.0
    weight: float = 0.0
    there: bool = False
    moved: bool = False
    finite: bool = True
    matrix: bool = False
    elements: int = 0


def check(case: Case) -> list[Finding]:
    """None, zero, vanishing, exploding, non-finite gradients; parameters that are frozen or forgotten."""
    model = case.box.model
    names = {id(p): n for n, p in model.named_parameters()}
    if not any(p.requires_grad for p in model.parameters()):
        return [
            _finding(
                "FAIL",
                "no parameter can be trained: all are frozen",
                "requires_grad_(True) on what is to be trained",
                stops=True,
            )
        ]
    found = [*_frozen(model), *_forgotten(case, names)]
    rows, called = _measure(case)
    if rows is None:
        return [
            _finding(
                "FAIL",
                "the loss does not depend on any parameter: the graph was cut",
                "look for .detach(), .data, .item(), torch.no_grad() or numpy between model and loss",
                stops=True,
            ),
            *(f for f in found if not f.symptom),
        ]
    found += [f for f in (_non_finite(rows), _absent(case, rows, called), _zero(rows)) if f]
    if not any(f.verdict == "FAIL" for f in found):
        found += [f for f in (_vanishing(rows), _exploding(rows)) if f]
    if not any(f.bad for f in found):
        found.append(_well(rows))
    plot = {
        "names": [r.name for r in rows],
        "norm": [r.norm for r in rows],
        "rms": [r.rms for r in rows],
        "zeros": [r.zeros for r in rows],
    }
    return [dataclasses.replace(found[0], plots={"gradients": plot}), *found[1:]]


def _finding(
    verdict: str, sentence: str, advice: str, measure: str = "", number: float | None = None, **more: object
) -> Finding:
    explains = more.pop("explains", _LATER)
    return Finding("gradients", verdict, sentence, measure, number, advice, explains=explains, **more)  # type: ignore[arg-type]


def _measure(case: Case) -> tuple[list[_Row] | None, set[str]]:
    """Rows of all trainable parameters, and the layers that were called; None if nothing has a gradient."""
    called: set[str] = set()
    with case.box.trial(quiet=True) as model:
        matrices = {id(p) for m in model.modules() if isinstance(m, WEIGHTED) for p in m.parameters() if p.dim() > 1}
        trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        rows = {n: _Row(n, matrix=id(p) in matrices, elements=p.numel()) for n, p in trained}
        optimizer = torch.optim.Adam([p for _, p in trained], lr=1e-3)
        for look in range(_LOOKS):
            optimizer.zero_grad(set_to_none=True)
            with watching(model, lambda call: called.add(call.name)):
                loss = case.loss(model, case.batches[look % len(case.batches)])
            if not loss.requires_grad:
                return None, called
            loss.backward()  # type: ignore[no-untyped-call]
            for name, p in trained:
                _take(rows[name], p, look == 0)
            if all(r.moved or not r.there for r in rows.values()) or not all(r.finite for r in rows.values()):
                break
            optimizer.step()
    return (list(rows.values()) if any(r.there for r in rows.values()) else None), called


@torch.no_grad()
def _take(row: _Row, p: torch.Tensor, first: bool) -> None:
    if p.grad is None:
        return
    g = p.grad.coalesce().values() if p.grad.is_sparse else p.grad
    g = g.float()
    row.there = True
    row.finite &= bool(torch.isfinite(g).all())
    zeros = float((g == 0).float().mean()) if g.numel() else 1.0
    row.moved |= zeros < 1.0
    if first:
        row.norm, row.zeros, row.weight = float(g.norm()), zeros, float(p.float().norm())
        row.rms = row.norm / math.sqrt(max(1.0, g.numel() * (1 - zeros)))


def _frozen(model: nn.Module) -> Iterator[Finding]:
    frozen = [(n, p.numel()) for n, p in model.named_parameters() if not p.requires_grad]
    if frozen:
        total = sum(p.numel() for p in model.parameters())
        share = sum(k for _, k in frozen) / total
        yield _finding(
            "WARN",
            f"{len(frozen)} parameter tensors are frozen ({share:.0%} of the weights): {_list([n for n, _ in frozen])}",
            "meant in fine-tuning; else requires_grad_(True)",
            "share of weights",
            share,
        )


def _forgotten(case: Case, names: dict[int, str]) -> Iterator[Finding]:
    optimizer = case.box.optimizer
    if optimizer is None or not case.box.given:
        return
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    model = case.box.model
    missing = [names[id(p)] for p in model.parameters() if p.requires_grad and id(p) not in held]
    if not missing:
        return
    if not held & set(names):
        yield _finding(
            "FAIL",
            "the optimizer holds none of the model's parameters",
            "make the optimizer after the model, from its own parameters()",
            "parameter tensors",
            float(len(missing)),
            explains=("rate", "curve"),
        )
        return
    weights = sum(p.numel() for p in model.parameters() if p.requires_grad)
    share = sum(p.numel() for p in model.parameters() if p.requires_grad and id(p) not in held) / weights
    yield _finding(
        "FAIL",
        f"the optimizer lacks {len(missing)} trainable parameter tensors ({share:.0%} of all): {_list(missing)}",
        "give the optimizer model.parameters(), or freeze them with requires_grad_(False)",
        "share of weights",
        share,
        explains=("rate", "curve"),
    )


def _non_finite(rows: list[_Row]) -> Finding | None:
    bad = [r.name for r in rows if not r.finite]
    if not bad:
        return None
    return _finding(
        "FAIL",
        f"NaN or Inf in the gradient of {_list(bad)}",
        "look for sqrt(0), log(0), 0/0 or a norm of 0 in loss and model",
        symptom=True,
    )


def _absent(case: Case, rows: list[_Row], called: set[str]) -> Finding | None:
    absent = [r.name for r in rows if not r.there]
    if not absent:
        return None
    cut = [n for n in absent if any(n.startswith(layer + ".") for layer in called)]
    share = sum(r.elements for r in rows if not r.there) / sum(r.elements for r in rows)
    if cut:
        return _finding(
            "FAIL" if case.box.given and _held(case, cut) else "WARN",
            f"{_list(cut)} took part in the forward pass, but no gradient comes back: the graph was cut after it",
            "look for .detach(), .data, torch.no_grad() or numpy after these layers",
            "share of weights",
            share,
        )
    return _finding(
        "WARN",
        f"{_list(absent)} take no part in the loss",
        "remove these layers, or use what they compute",
        "share of weights",
        share,
        explains=(),
    )


def _held(case: Case, names: list[str]) -> bool:
    assert case.box.optimizer is not None
    held = {id(p) for group in case.box.optimizer.param_groups for p in group["params"]}
    own = dict(case.box.model.named_parameters())
    return any(id(own[n]) in held for n in names)


def _zero(rows: list[_Row]) -> Finding | None:
    dead = [r for r in rows if r.there and not r.moved and r.finite]
    if not dead:
        return None
    share = sum(r.elements for r in dead) / sum(r.elements for r in rows)
    matrices = [r for r in dead if r.matrix]
    if not matrices and share < 0.05:  # a bias that the next layer takes out again
        return None
    return _finding(
        "FAIL" if matrices and share > 0.01 else "WARN",
        f"the gradient of {_list([r.name for r in dead])} is exactly zero",
        "dead units, a cut branch, or weights that cannot move: look at the activations before these layers",
        "share of weights",
        share,
        symptom=True,
    )


def _vanishing(rows: list[_Row]) -> Finding | None:
    live = [r for r in rows if r.matrix and r.there and r.rms > 0]
    if len(live) < 2:
        return None
    weakest, strongest = min(live, key=lambda r: r.rms), max(live, key=lambda r: r.rms)
    ratio = weakest.rms / strongest.rms
    if ratio > _VANISHING:
        return None
    return _finding(
        "FAIL" if ratio < _VANISHED else "WARN",
        f"gradients vanish: {weakest.name} gets {ratio:.1e} of what {strongest.name} gets",
        "residual connections, normalisation layers, ReLU or GELU instead of sigmoid, Kaiming initialisation",
        "smallest / largest rms",
        ratio,
        symptom=True,
    )


def _exploding(rows: list[_Row]) -> Finding | None:
    live = [r for r in rows if r.matrix and r.there]
    worst = max(live, key=lambda r: r.norm / max(r.weight, math.sqrt(r.elements) * 1e-2), default=None)
    if worst is None:
        return None
    ratio = worst.norm / max(worst.weight, math.sqrt(worst.elements) * 1e-2)
    if ratio < _EXPLODING:
        return None
    return _finding(
        "FAIL" if ratio > _EXPLODED else "WARN",
        f"gradients are large: that of {worst.name} has {ratio:.3g} times the norm of its weights",
        "normalise inputs and targets, check the loss's reduction, clip the gradient norm (1.0 is usual)",
        "norm of gradient / weight",
        ratio,
        symptom=True,
    )


def _well(rows: list[_Row]) -> Finding:
    total = math.sqrt(math.fsum(r.norm**2 for r in rows))
    zeros = sum(r.zeros * r.elements for r in rows) / sum(r.elements for r in rows)
    return Finding(
        "gradients",
        "PASS",
        f"all {len(rows)} parameter tensors have one, global norm {total:.3g}; {zeros:.0%} of the numbers are zero",
        "global norm",
        total,
    )


def _list(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
