"""Inputs: finite, not empty of information, in a range that layers are made for."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from guard.doctor import tree
from guard.doctor.case import Case
from guard.doctor.finding import ORDER, Finding
from guard.doctor.walk import Call, normalising, watching, weighted

_SCAN = 2e8  # elements of a data set in memory that are looked through for NaN
# Layers are initialised for inputs of unit variance; a scale of 10 multiplies the first layer's gradient by 10 and the
# curvature by 100, which no learning rate for the other layers allows. Digits from 0 to 16 (rms 8) still train.
_LARGE, _SMALL = 10.0, 0.01
_OFFSET = 10.0  # mean / std: what varies is a tenth of what does not
_UNEVEN = 1e3  # largest / smallest std of two features
_FAR = 50.0  # robust sigma; a normal sample of 1e9 stays below 7, and heavy but usable tails below 50
_ALL = tuple(name for name in ORDER if name not in ("data", "weights"))
_SCALE = ("loss", "activations", "gradients", "overfit", "rate", "precision", "curve")


def check(case: Case) -> list[Finding]:
    """Findings on the inputs; none if all is well."""
    found = broken(case)
    if found:
        return found
    columns: dict[str, list[Tensor]] = {}
    for batch in case.batches:
        for name, t in case.inputs(batch).items():
            columns.setdefault(name, []).append(t.detach())
    for name, parts in columns.items():
        found += _zeros(name, parts)
        if parts[0].is_floating_point():
            found += _same(name, parts) or _outliers(name, parts)
    return found + _scale(case)


def broken(case: Case) -> list[Finding]:
    """NaN and Inf, anywhere in the batches or in a data set that is in memory."""
    for i, batch in enumerate(case.supply.batches):
        for name, t in tree.tensors(batch):
            if t.is_floating_point() and not bool(torch.isfinite(t).all()):
                return [_non_finite(f"in batch {i}, {name or 'the tensor'}", t)]
    dataset = getattr(case.setup.train, "dataset", None)
    if isinstance(dataset, TensorDataset):
        for i, t in enumerate(dataset.tensors):
            if t.is_floating_point() and t.numel() < _SCAN and not bool(torch.isfinite(t).all()):
                return [_non_finite(f"in tensor {i} of the data set", t)]
    return []


def _non_finite(where: str, t: Tensor) -> Finding:
    bad = ~torch.isfinite(t)
    count, rows = int(bad.sum()), bad.reshape(len(bad), -1).any(1).nonzero().flatten().tolist() if t.dim() else [0]
    samples = f"{len(rows)} sample{'s' * (len(rows) != 1)}, first {rows[0]}"
    return Finding(
        "data",
        "FAIL",
        f"NaN or Inf {where}: {count} of {t.numel()} numbers, in {samples}",
        "non-finite numbers",
        float(count),
        "find out where they come from (missing values, log of 0, division by a std of 0); fill or drop them",
        explains=_ALL,
        stops=True,
    )


def _zeros(name: str, parts: list[Tensor]) -> list[Finding]:
    zero = sum(int((p.reshape(len(p), -1) == 0).all(1).sum()) for p in parts if p.dim() > 1)
    total = sum(len(p) for p in parts if p.dim() > 1)
    if not total or zero <= 0.1 * total:
        return []
    return [
        Finding(
            "data",
            "FAIL" if zero == total else "WARN",
            f"{zero / total:.0%} of the samples of {name} are all zeros",
            "share of samples",
            zero / total,
            "check decoding, padding and normalisation of the inputs",
            explains=_ALL if zero == total else (),
        )
    ]


def _same(name: str, parts: list[Tensor]) -> list[Finding]:
    rows = [p.reshape(len(p), -1) for p in parts if p.dim() and len(p) > 1]
    if not rows or any(bool((r != r[:1]).any()) for r in rows):
        return []
    return [
        Finding(
            "data",
            "FAIL",
            f"all samples of a batch have the same {name}",
            "distinct samples",
            1.0,
            "the data set returns one sample for every index, or the inputs were overwritten",
            explains=_ALL,
        )
    ]


def _outliers(name: str, parts: list[Tensor]) -> list[Finding]:
    x = torch.cat([p.reshape(len(p), -1) if p.dim() == 2 else p.reshape(-1, 1) for p in parts if p.dim()]).float()
    if len(x) > 100_000:
        x = x[:: len(x) // 100_000 + 1]
    if len(x) < 64 or x.shape[1] > 4096:
        return []
    low, quarter, median, three, high = torch.quantile(x, x.new_tensor([0.01, 0.25, 0.5, 0.75, 0.99]), dim=0)
    sigma = (high - low) / 4.65  # of a normal distribution
    usable = (quarter < three) & (sigma > 0)  # a feature that is mostly one value has no scale of its own
    if not bool(usable.any()):
        return []
    z = ((x - median).abs() / sigma.clamp_min(1e-30))[:, usable]
    worst = float(z.max())
    if worst < _FAR:
        return []
    return [
        Finding(
            "data",
            "WARN",
            f"{name} has values {worst:.0f} robust standard deviations from its median, in "
            f"{float((z > _FAR).any(1).float().mean()):.1%} of the rows",
            "largest z-score",
            worst,
            "look at these samples: a unit, a sentinel such as -999, or a heavy tail to take the logarithm of",
            explains=_SCALE,
        )
    ]


def _scale(case: Case) -> list[Finding]:
    """How large the inputs are where the first layer takes them: a model may normalise by itself."""
    first: list[Call] = []

    def see(call: Call) -> None:
        if not first and (weighted(call.module) or normalising(call.module)) and call.given is not None:
            first.append(call)

    try:
        with case.box.trial(quiet=True) as model, torch.no_grad(), watching(model, see):
            assert case.form is not None
            case.form.forward(model, case.batches[0])
    except Exception:  # noqa: BLE001 - what the model raises is told by the check that needs it
        return []
    if not first or normalising(first[0].module) or case.tokens:
        return []
    x = first[0].given
    assert x is not None
    if not x.is_floating_point() or not x.numel():
        return []
    x = x.float()
    rms, mean, std = float(x.square().mean().sqrt()), float(x.mean()), float(x.std(unbiased=False))
    low, high = float(x.min()), float(x.max())
    numbers = f"mean {mean:.3g}, std {std:.3g}, range {low:.3g} to {high:.3g}"
    bytes_like = low >= 0 and 64 < high <= 255
    if rms > _LARGE:
        return [
            Finding(
                "data",
                "WARN",
                f"the inputs are not normalised: {numbers}",
                "rms of the inputs",
                rms,
                "divide by 255"
                if bytes_like
                else "subtract the mean and divide by the standard deviation of the training data",
                explains=_SCALE,
            )
        ]
    if 0 < max(abs(low), abs(high)) < _SMALL:
        return [
            Finding(
                "data",
                "WARN",
                f"the inputs are tiny: {numbers}",
                "rms of the inputs",
                rms,
                "normalise to mean 0 and standard deviation 1; were they divided by 255 twice?",
                explains=_SCALE,
            )
        ]
    if std > 0 and abs(mean) > _OFFSET * std:
        return [
            Finding(
                "data",
                "WARN",
                f"the inputs hardly vary around a large mean: {numbers}",
                "mean / std",
                abs(mean) / std,
                "subtract the mean of the training data",
                explains=_SCALE,
            )
        ]
    return _features(x)


def _features(x: Tensor) -> list[Finding]:
    if x.dim() != 2 or len(x) < 16:
        return []
    std = x.std(0)
    std = std[std > 0]
    if len(std) < 2 or float(std.max()) < _UNEVEN * float(std.median()) or float(std.max()) < 1.0:
        return []
    ratio = float(std.max() / std.median())
    return [
        Finding(
            "data",
            "WARN",
            f"features differ in scale: one has {ratio:.0f} times the standard deviation of the median one",
            "largest / median std",
            ratio,
            "standardise each feature",
            explains=_SCALE,
        )
    ]
