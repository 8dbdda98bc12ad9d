"""Targets: in range, as many as inputs, varied, scaled."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from guard.doctor.case import Case
from guard.doctor.finding import ORDER, Finding
from guard.doctor.losses import ignored, is_cross_entropy

_ALL = tuple(name for name in ORDER if name not in ("data", "weights", "activations", "leakage"))
_BEHAVIOUR = ("loss", "activations", "gradients", "overfit", "rate", "precision", "curve")
_MAJORITY = 0.95  # share of the most frequent class at which accuracy says nothing any more
_LARGE = 100.0  # std or mean of regression targets: a squared error is then 1e4, its gradient 100 times the usual
_SHOWN = 40  # classes in a histogram


def check(case: Case) -> list[Finding]:
    """Findings on the targets; none if all is well, or if the model keeps them to itself."""
    targets = [next(iter(case.targets(b).values()), None) for b in case.batches]
    if targets[0] is None:
        return []
    known = [t for t in targets if t is not None]
    return _lengths(case, known) or _range(case, known) or _spread(case, known)


def labels(case: Case) -> Tensor | None:
    """All class labels read, [n] int64 without ignored ones; None if the targets are no classes."""
    parts = [next(iter(case.targets(b).values()), None) for b in case.batches]
    if not parts or any(p is None or not _discrete(case, p) for p in parts):
        return None
    flat = torch.cat([p.reshape(-1).long() for p in parts if p is not None])
    return flat[flat != _ignored(case)]


def _discrete(case: Case, target: Tensor) -> bool:
    if case.facts.kind == "labels":
        return bool(((target == 0) | (target == 1)).all()) and target.numel() <= 4 * len(target)
    return not target.is_floating_point() and case.facts.kind in ("classes", "other")


def _ignored(case: Case) -> int:
    return case.facts.ignore if case.facts.kind == "classes" else ignored(case.setup.loss)


def classes(case: Case, target: Tensor) -> int:
    """How many classes the output has for such targets; 0 if they are no class numbers."""
    if case.facts.classes:
        return case.facts.classes
    if target.is_floating_point() or case.form is None or case.form.mode == "model":
        return 0
    with case.box.trial(quiet=True) as model, torch.no_grad():
        from guard.doctor.form import main_tensor

        main = main_tensor(case.form.forward(model, case.batches[0]))
    if main is None or main.dim() < 2:
        return 0
    if main.dim() == target.dim() + 1 and main.shape[:-1] == target.shape and main.dim() == 3:
        return main.shape[-1] if main.shape[1] == target.shape[1] else main.shape[1]
    if main.dim() == target.dim() + 1 and main.shape[0] == target.shape[0]:
        return main.shape[1]
    return main.shape[-1] if target.dim() == 1 and main.shape[:1] == target.shape[:1] else 0


def _lengths(case: Case, targets: list[Tensor]) -> list[Finding]:
    for batch, target in zip(case.batches, targets, strict=True):
        x = next(iter(case.inputs(batch).values()), None)
        if x is None or not x.dim() or not target.dim() or len(x) == len(target):
            continue
        if x.dim() > 1 and x.shape[1] == len(target):  # time first
            continue
        if len(target) % len(x) == 0 and target.dim() == 1 and x.dim() > 1:  # one row per position
            continue
        return [
            Finding(
                "data",
                "FAIL",
                f"{len(x)} inputs but {len(target)} targets in a batch",
                "targets",
                float(len(target)),
                "inputs and targets were cut or filtered differently",
                explains=_ALL,
                stops=True,
            )
        ]
    return []


def _range(case: Case, targets: list[Tensor]) -> list[Finding]:
    if targets[0].is_floating_point():
        flat = torch.cat([t.reshape(-1).float() for t in targets])
        if case.facts.kind == "labels" and (float(flat.min()) < 0 or float(flat.max()) > 1):
            return [
                Finding(
                    "data",
                    "FAIL",
                    f"binary cross-entropy takes targets from 0 to 1; they go from {float(flat.min()):.3g} to "
                    f"{float(flat.max()):.3g}",
                    "largest target",
                    float(flat.max()),
                    "use 0 and 1, not -1 and 1 or class numbers",
                    explains=_ALL,
                    stops=True,
                )
            ]
        return []
    certain = case.facts.kind == "classes" or is_cross_entropy(case.setup.loss)
    if not certain and case.problem is None:
        return []  # another loss function may mean something else by its numbers
    count = classes(case, targets[0])
    every = torch.cat([t.reshape(-1).long() for t in targets])
    kept = every[every != _ignored(case)]
    if count and kept.numel() and (int(kept.min()) < 0 or int(kept.max()) >= count):
        low, high = int(kept.min()), int(kept.max())
        shifted = low == 1 and high == count
        return [
            Finding(
                "data",
                "FAIL",
                f"labels go from {low} to {high}; the model has {count} outputs, so 0 to {count - 1} are allowed",
                "largest label",
                float(high),
                "labels are counted from 1: subtract 1"
                if shifted
                else "map the labels to 0 .. classes - 1; mark what is to be ignored with the loss's ignore_index",
                explains=_ALL,
                stops=True,
            )
        ]
    if every.numel() and not kept.numel():
        return [
            Finding(
                "data",
                "FAIL",
                f"every label is {_ignored(case)}, which the loss ignores",
                "valid labels",
                0.0,
                "nothing is learnt from ignored labels: check how they are masked",
                explains=_ALL,
                stops=True,
            )
        ]
    return []


def _spread(case: Case, targets: list[Tensor]) -> list[Finding]:
    seen = labels(case)
    if seen is None:
        return _values(case, targets)
    if seen.numel() < 32:
        return []
    counts = torch.bincount(seen)
    share, top = float(counts.max()) / seen.numel(), int(counts.argmax())
    if share == 1.0:
        if _others(case, top):
            return []  # sorted, which the check of the order tells
        return [
            Finding(
                "data",
                "FAIL",
                f"all {seen.numel()} labels read are {top}",
                "distinct labels",
                1.0,
                "check how labels are made; a constant answer would be perfect",
                explains=_BEHAVIOUR,
            )
        ]
    if case.per_position:
        return []
    if share > _MAJORITY:
        return [
            Finding(
                "data",
                "WARN",
                f"{share:.1%} of the labels are {top}: a constant answer is right as often",
                "share of the largest class",
                share,
                "judge by balanced accuracy, recall or average precision; think of class weights or sampling",
            )
        ]
    count = case.facts.classes
    missing = (
        [] if not 2 < count <= seen.numel() / 50 else [c for c in range(count) if c >= len(counts) or not counts[c]]
    )
    if missing and len(missing) * 2 < count:
        shifted = missing == [0]
        return [
            Finding(
                "data",
                "WARN",
                f"of {count} classes {', '.join(map(str, missing[:5]))} never occur{'s' * (len(missing) == 1)} in "
                f"{seen.numel()} labels",
                "classes without a label",
                float(len(missing)),
                "are the labels counted from 1?" if shifted else "check the split, or the number of outputs",
            )
        ]
    return []


def _others(case: Case, label: int) -> bool:
    """Elsewhere in the data set there are other labels than this one."""
    if case.supply.spread is None or case.form is None:
        return False
    target = next(iter(case.form.targets(case.supply.spread).values()), None)
    return target is not None and bool((target != label).any())


def _values(case: Case, targets: list[Tensor]) -> list[Finding]:
    if not targets[0].is_floating_point():
        return []
    flat = torch.cat([t.reshape(-1).float() for t in targets])
    if flat.numel() < 2:
        return []
    mean, std = float(flat.mean()), float(flat.std())
    if std == 0.0 and case.form is not None and case.form.mode != "model":
        return [
            Finding(
                "data",
                "FAIL",
                f"all {flat.numel()} targets read are {mean:.4g}",
                "std of the targets",
                0.0,
                "check how targets are made; a constant answer would be perfect",
                explains=_BEHAVIOUR,
            )
        ]
    if case.facts.kind == "values" and (std > _LARGE or abs(mean) > _LARGE):
        return [
            Finding(
                "data",
                "WARN",
                f"the targets are not normalised: mean {mean:.3g}, std {std:.3g}; outputs begin near 0",
                "std of the targets",
                std,
                "standardise the targets, and turn predictions back",
                explains=_BEHAVIOUR,
            )
        ]
    return []


def summary(case: Case) -> str:
    """The targets in half a sentence, to follow the inputs."""
    seen = labels(case)
    if seen is not None and seen.numel():
        counts = torch.bincount(seen[seen >= 0])
        distinct = int((counts > 0).sum())
        return f"; {distinct} distinct labels, the most frequent {float(counts.max()) / seen.numel():.0%}"
    target = next(iter(case.targets(case.batches[0]).values()), None)
    if target is None:
        return ""
    if target.is_floating_point():
        t = target.float()
        return f"; targets {list(t.shape)}, mean {float(t.mean()):.3g}, std {float(t.std()):.3g}"
    return f"; targets {list(target.shape)}"


def histogram(case: Case) -> dict[str, Any]:
    """For the page: how often each label occurs, or the distribution of the targets."""
    seen = labels(case)
    if seen is not None and seen.numel():
        counts = torch.bincount(seen[seen >= 0])
        if len(counts) <= _SHOWN:
            return {"labels": {"names": list(map(str, range(len(counts)))), "counts": counts.tolist()}}
        top = counts.topk(_SHOWN)
        return {"labels": {"names": [str(i) for i in top.indices.tolist()], "counts": top.values.tolist()}}
    parts = [next(iter(case.targets(b).values()), None) for b in case.batches]
    if not parts or parts[0] is None or not parts[0].is_floating_point():
        return {}
    flat = torch.cat([p.reshape(-1).float().cpu() for p in parts if p is not None])
    flat = flat[torch.isfinite(flat)]
    if not flat.numel() or float(flat.min()) == float(flat.max()):
        return {}
    counts, edges = torch.histogram(flat, bins=_SHOWN)
    middle = (edges[:-1] + edges[1:]) / 2
    return {"labels": {"names": [f"{m:.3g}" for m in middle.tolist()], "counts": counts.tolist()}}
