"""Weights before the first step: spread, scale, symmetry."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from guard.doctor.case import Case
from guard.doctor.finding import Finding
from guard.doctor.walk import NORMS, WEIGHTED

# gain = std * sqrt(fan_in): 1.41 after Kaiming, 1 after Xavier, 0.58 as torch initialises by default, 0.16 with std
# 0.02 and width 64, 0.05 in depthwise convolutions by fan_out. A gain of 10 multiplies the signal by 7 in every layer.
_HUGE, _LARGE, _TINY = 10.0, 5.0, 0.03
_EMBEDDING = 20.0  # std; torch's default is 1
_NORM = 10.0  # gain of a normalisation layer; it begins at 1
_LATER = ("loss", "activations", "gradients", "overfit", "rate", "precision", "curve")


@dataclass(frozen=True, slots=True)
class _Weight:
    name: str
    module: nn.Module
    value: Tensor
    fan_in: int

    @property
    def gain(self) -> float:
        return float(self.value.std(unbiased=False)) * math.sqrt(self.fan_in)


def check(case: Case) -> list[Finding]:
    """Mean, std, min and max of every parameter; matrices that are constant, huge or tiny."""
    rows = [
        {"name": name, "shape": list(p.shape), **_numbers(p.detach().float())}
        for name, p in case.box.model.named_parameters()
        if p.numel()
    ]
    found = [f for f in (_broken(case.box.model), _constant(case), *_scales(case)) if f]
    if not found:
        found = [_well(case, len(rows))]
    return [dataclasses.replace(found[0], plots={"weights": rows}), *found[1:]]


def _numbers(p: Tensor) -> dict[str, float]:
    return {"mean": float(p.mean()), "std": float(p.std(unbiased=False)), "min": float(p.min()), "max": float(p.max())}


def _matrices(model: nn.Module) -> Iterator[_Weight]:
    """What layers multiply by; each tensor once, however often it is tied."""
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        if not isinstance(module, WEIGHTED):
            continue
        for name, p in module.named_parameters(recurse=False):
            if p.dim() < 2 or not p.numel() or id(p) in seen:
                continue
            seen.add(id(p))
            fan_in = p[0].numel()
            if isinstance(module, nn.modules.conv._ConvTransposeNd):
                fan_in = p.shape[0] * p[0, 0].numel()
            yield _Weight(f"{prefix}.{name}" if prefix else name, module, p.detach().float(), fan_in)


def _broken(model: nn.Module) -> Finding | None:
    bad = [n for n, p in model.named_parameters() if not bool(torch.isfinite(p).all())]
    # Masks, and extremes that begin at infinity, are buffers that hold it by right.
    bad += [n for n, b in model.named_buffers() if bool(torch.isnan(b).any())]
    if not bad:
        return None
    return Finding(
        "weights",
        "FAIL",
        f"NaN or Inf in {_list(bad)}",
        "tensors",
        float(len(bad)),
        "initialise them (torch.empty does not), or load another checkpoint",
        explains=(*_LATER, "leakage"),
    )


def _constant(case: Case) -> Finding | None:
    """All units of a layer alike: they get the same gradient, and stay alike."""
    alike, zero, matrices = [], [], list(_matrices(case.box.model))
    for weight in matrices:
        rows = weight.value.reshape(len(weight.value), -1)
        if not bool(rows.any()):
            zero.append(weight.name)
        elif len(rows) > 1 and not bool((rows != rows[:1]).any()) and rows.shape[1] > 1:
            alike.append(weight.name)
    if alike:
        return Finding(
            "weights",
            "FAIL",
            f"all units of {_list(alike)} have the same weights: they stay alike for ever",
            "layers",
            float(len(alike)),
            "initialise at random: kaiming_normal_, xavier_uniform_, or what the layer does by default",
            explains=_LATER,
        )
    if len(zero) > 1 and 2 * len(zero) >= len(matrices):  # zeros at the end of a branch are meant
        return Finding(
            "weights",
            "FAIL",
            f"the weights of {_list(zero)} are all zero, {len(zero)} of {len(matrices)} matrices",
            "layers",
            float(len(zero)),
            "initialise at random; only the last layer of a branch may begin at zero",
            explains=_LATER,
        )
    return None


def _scales(case: Case) -> Iterator[Finding]:
    weights = [w for w in _matrices(case.box.model) if bool(w.value.any()) and w.value.numel() >= 8]
    worst = max(weights, key=lambda w: w.gain, default=None)
    if worst is not None and worst.gain > _LARGE:
        large = [w.name for w in weights if w.gain > _LARGE]
        yield Finding(
            "weights",
            "FAIL" if worst.gain > _HUGE else "WARN",
            f"weights are too large in {_list(large)}: {worst.name} has std {float(worst.value.std()):.3g} with "
            f"{worst.fan_in} inputs",
            "std x sqrt(inputs), usual 0.2 to 1.5",
            worst.gain,
            "initialise with a standard deviation near 1 / sqrt(inputs)",
            explains=_LATER,
        )
    gains = sorted(w.gain for w in weights)
    if gains and gains[len(gains) // 2] < _TINY:
        yield Finding(
            "weights",
            "WARN",
            f"weights are tiny: half of the {len(gains)} matrices have std x sqrt(inputs) below "
            f"{gains[len(gains) // 2]:.2g}",
            "std x sqrt(inputs), usual 0.2 to 1.5",
            gains[len(gains) // 2],
            "initialise with a standard deviation near 1 / sqrt(inputs)",
            explains=_LATER,
        )
    for name, module in case.box.model.named_modules():
        if isinstance(module, nn.Embedding) and float(module.weight.detach().float().std()) > _EMBEDDING:
            std = float(module.weight.detach().float().std())
            yield Finding(
                "weights",
                "FAIL",
                f"the embedding {name} has std {std:.3g}",
                "std, usual 0.02 to 1",
                std,
                "initialise with std 0.02 to 1",
                explains=_LATER,
            )
        scale = getattr(module, "weight", None)
        if isinstance(module, NORMS) and isinstance(scale, Tensor) and float(scale.detach().abs().mean()) > _NORM:
            yield Finding(
                "weights",
                "WARN",
                f"the normalisation {name} scales by {float(scale.detach().abs().mean()):.3g}",
                "mean weight, usual 1",
                float(scale.detach().abs().mean()),
                "initialise it with 1",
                explains=_LATER,
            )
            return


def _well(case: Case, count: int) -> Finding:
    gains = sorted(w.gain for w in _matrices(case.box.model))
    if not gains:
        return Finding("weights", "PASS", f"{count} parameter tensors, finite", "tensors", float(count))
    return Finding(
        "weights",
        "PASS",
        f"{len(gains)} matrices with std x sqrt(inputs) from {gains[0]:.2g} to {gains[-1]:.2g}; none is constant",
        "median std x sqrt(inputs)",
        gains[len(gains) // 2],
    )


def _list(names: list[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
