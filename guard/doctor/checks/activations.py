"""What layers put out: growth and decay through the network, dead and saturated units."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from guard.doctor.case import Case
from guard.doctor.finding import Finding
from guard.doctor.walk import Call, watching, weighted
from guard.signals.activations import kinds

_LATER = ("loss", "gradients", "overfit", "rate", "precision", "curve")
# torch's default initialisation keeps 0.41 of the norm in a linear layer with ReLU, Kaiming's 1. An initialisation four
# times smaller than the default is 0.1.
_DECAY, _GROWTH = 0.1, 10.0  # per layer
_SIGNAL = 0.05  # per layer: what differs between samples, which a bias hides from the norm
_TOTAL = 1e4  # first to last layer; half precision spans 1e4 around 1 comfortably
_DEAD, _FLAT, _HALF_FLAT = 0.9, 0.9, 0.5
_BATCHES = 4
_VALUES = 16  # of a unit; fewer can all be zero by chance


@dataclass(slots=True)
class _Profile:
    """What the forward passes showed.

    Args:
        inputs: per weighted layer in order: name, rms, rms of what differs between samples; first batch only.
        depths: how many layers each of these counts for.
        outputs: per layer in order: name, rms; first batch only.
        lively: name -> per unit, whether it was ever not zero; values of a unit so far.
        flat: name -> values on the flat ends of a saturating function, values.
        broken: first layer with finite input and an output that is not.
    """

    inputs: list[tuple[str, float, float]] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    outputs: list[tuple[str, float]] = field(default_factory=list)
    lively: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)
    flat: dict[str, tuple[int, int]] = field(default_factory=dict)
    broken: str = ""


def check(case: Case) -> list[Finding]:
    """Activation norms layer by layer, and the share of dead and saturated units."""
    profile = _Profile()
    with case.box.trial(quiet=True) as model:
        for i, batch in enumerate(case.glance(case.batches[:_BATCHES])):
            with watching(model, lambda call, i=i: _see(profile, call, i == 0, case.dim)):  # type: ignore[misc]
                assert case.form is not None
                case.form.forward(model, batch) if case.form.mode != "model" else case.run(model, batch)
    found = _broken(profile) or [*_dead(profile), *_saturated(profile), *_trend(profile)]
    if not found:
        found = [_well(profile)]
    plot = {"names": [n for n, _ in profile.outputs], "rms": [r for _, r in profile.outputs]}
    return [dataclasses.replace(found[0], plots={"activations": plot}), *found[1:]]


@torch.no_grad()
def _see(profile: _Profile, call: Call, first: bool, dim: int) -> None:
    out = call.out.detach()
    if not out.is_floating_point() or not out.numel():
        return
    given = call.given.detach() if call.given is not None and call.given.is_floating_point() else None
    if (
        not profile.broken
        and not bool(torch.isfinite(out).all())
        and (given is None or bool(torch.isfinite(given).all()))
    ):
        profile.broken = call.label
    if first:
        profile.outputs.append((call.label, _rms(out)))
        if weighted(call.module) and given is not None and given.numel():
            differs = given.float() - given.float().mean(min(dim, given.dim() - 1), keepdim=True)
            profile.inputs.append((call.label, _rms(given), _rms(differs)))
            profile.depths.append(_depth(call.module))
    for kind, test in kinds(call.module).items():
        ok = test(out, call.module)
        if kind == "dead":
            _count_dead(profile, call.label, ok, _unit_dim(out))
        else:
            flat, values = profile.flat.get(call.label, (0, 0))
            profile.flat[call.label] = (flat + int((~ok).sum()), values + ok.numel())
    if weighted(call.module) and given is not None and profile.inputs and profile.inputs[0][0] != call.label:
        _see_functional(profile, call, given)


def _depth(module: nn.Module) -> int:
    """Layers it counts for: a gated recurrent one begins by halving its input and halving that again."""
    return 2 * module.num_layers if isinstance(module, nn.RNNBase) else 1


def _see_functional(profile: _Profile, call: Call, given: Tensor) -> None:
    """What a functional relu or tanh left is seen where the next layer takes it."""
    name = f"the input of {call.label}"
    if given.dim() > 1 and float(given.min()) == 0.0:
        _count_dead(profile, name, given != 0, -1 if isinstance(call.module, nn.Linear) else _unit_dim(given))
    top = given.abs()
    if (
        float(top.max()) <= 1.0
        and not bool(((given == 0) | (top == 1)).all())
        and float((top > 0.995).float().mean()) > 0
    ):
        flat, values = profile.flat.get(name, (0, 0))
        profile.flat[name] = (flat + int((top > 0.995).sum()), values + given.numel())


def _unit_dim(out: Tensor) -> int:
    return 1 if out.dim() == 4 else -1


def _count_dead(profile: _Profile, name: str, lively: Tensor, dim: int) -> None:
    if lively.dim() < 2:
        return
    by_unit = lively.movedim(dim, 0).reshape(lively.shape[dim], -1)
    before = profile.lively.get(name)
    now = by_unit.any(1)
    if before is not None and before.shape != now.shape:
        return
    profile.lively[name] = now if before is None else before | now
    profile.values[name] = profile.values.get(name, 0) + by_unit.shape[1]


def _rms(x: Tensor) -> float:
    return float(x.float().square().mean().sqrt())


def _broken(profile: _Profile) -> list[Finding]:
    if not profile.broken:
        return []
    return [
        Finding(
            "activations",
            "FAIL",
            f"{profile.broken} puts out NaN or Inf; it is the first layer to do so",
            advice="look at this layer's weights and arithmetic",
            symptom=True,
            explains=_LATER,
        )
    ]


def _dead(profile: _Profile) -> list[Finding]:
    shares = {
        name: 1 - float(lively.float().mean())
        for name, lively in profile.lively.items()
        if profile.values[name] >= _VALUES
    }
    worst = max(shares, key=lambda n: shares[n], default=None)
    if worst is None:
        return []
    units = len(profile.lively[worst])
    chance = 0.55 + 1.5 / math.sqrt(units)  # a unit that sees the same for all samples is off with probability 1/2
    if shares[worst] <= min(_DEAD, chance):
        return []
    bad = [n for n in shares if shares[n] > min(_DEAD, chance)]
    return [
        Finding(
            "activations",
            "FAIL" if shares[worst] > _DEAD else "WARN",
            f"{shares[worst]:.0%} of the {units} units of {worst} are zero for every sample"
            + (f"; {len(bad)} layers are so" if len(bad) > 1 else ""),
            "share of dead units",
            shares[worst],
            "check the layer before it (a large negative bias?); a smaller rate, or LeakyReLU or GELU",
            symptom=True,
            explains=_LATER,
        )
    ]


def _saturated(profile: _Profile) -> list[Finding]:
    shares = {name: flat / values for name, (flat, values) in profile.flat.items() if values}
    worst = max(shares, key=lambda n: shares[n], default=None)
    if worst is None or shares[worst] <= _HALF_FLAT:
        return []
    return [
        Finding(
            "activations",
            "FAIL" if shares[worst] > _FLAT else "WARN",
            f"{shares[worst]:.0%} of the values of {worst} are saturated: hardly any gradient passes",
            "share of saturated values",
            shares[worst],
            "smaller initial weights, normalised inputs, or a normalisation layer before it",
            symptom=True,
            explains=_LATER,
        )
    ]


def _trend(profile: _Profile) -> list[Finding]:
    """Growth and decay from the input of the first weighted layer to that of the last."""
    layers = [entry for entry in profile.inputs if entry[1] > 0]
    if len(profile.inputs) < 2 or len(layers) < 2:
        return []
    steps = sum(profile.depths[:-1])
    norm, signal = (max(layers[-1][k], 1e-38) / max(layers[0][k], 1e-38) for k in (1, 2))  # type: ignore[operator]
    per_layer, signal_per_layer = norm ** (1 / steps), signal ** (1 / steps)
    where = f"from {layers[0][0]} to {layers[-1][0]}"
    if per_layer < _DECAY or per_layer > _GROWTH:
        word = "decay" if per_layer < 1 else "grow"
        return [_finding("FAIL", f"activations {word} by a factor {_factor(per_layer)} per layer {where}", per_layer)]
    if layers[0][2] > 0 and signal_per_layer < _SIGNAL:
        sentence = f"what differs between samples decays by a factor {_factor(signal_per_layer)} per layer {where}"
        return [_finding("FAIL", sentence, signal_per_layer)]
    if norm < 1 / _TOTAL or norm > _TOTAL:
        word = "decay" if norm < 1 else "grow"
        return [_finding("WARN", f"activations {word} by a factor {_factor(norm)} {where}", norm)]
    if layers[0][2] > 0 and signal < 1 / _TOTAL:
        sentence = f"what differs between samples decays by a factor {_factor(signal)} {where}"
        return [_finding("WARN", sentence, signal)]
    return []


def _finding(verdict: Any, sentence: str, number: float) -> Finding:
    advice = "Kaiming or Xavier initialisation, or normalisation layers between"
    return Finding("activations", verdict, sentence, "factor", number, advice, symptom=True, explains=_LATER)


def _factor(ratio: float) -> str:
    return f"{ratio if ratio >= 1 else 1 / ratio:.3g}"


def _well(profile: _Profile) -> Finding:
    if len(profile.inputs) < 2:
        count = len(profile.outputs)
        return Finding("activations", "PASS", f"{count} layer{'s' * (count != 1)}, finite", "layers", float(count))
    ratio = profile.inputs[-1][1] / max(profile.inputs[0][1], 1e-38)
    dead = max((1 - float(u.float().mean()) for u in profile.lively.values()), default=0.0)
    return Finding(
        "activations",
        "PASS",
        f"norms change by a factor {ratio:.2g} in {len(profile.inputs)} layers; at most {dead:.0%} dead units in one",
        "last / first rms",
        ratio,
    )
