"""FP32 against BF16 and FP16 on the same batch: which layers lose precision, which leave the range."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from guard.doctor.case import Case
from guard.doctor.finding import Finding
from guard.doctor.walk import Call, watching

_NAMES = {torch.bfloat16: "BF16", torch.float16: "FP16", torch.float32: "FP32"}
_HALF = (torch.bfloat16, torch.float16)
_LOSES = 0.1  # relative error of a layer; 20 times what rounding to BF16 alone costs (2^-8)
_TURNED, _LOST = 0.9, 0.5  # cosine between the gradients
_SCALE = 65536.0  # where a GradScaler begins; it halves until all is finite


@dataclass(slots=True)
class _Look:
    """One pass: outputs by layer in order, loss, gradients by parameter; why it was not possible, if so."""

    outputs: dict[str, Tensor] = field(default_factory=dict)
    loss: float = math.nan
    grads: dict[str, Tensor] = field(default_factory=dict)
    scale: float = 1.0
    error: str = ""
    overflowed: str = ""  # where a value was first not finite

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and all(bool(torch.isfinite(g).all()) for g in self.grads.values())


def check(case: Case) -> list[Finding]:
    """Loss, gradients and every layer's output in FP32, BF16, FP16 and FP16 with loss scaling."""
    batch = case.few(case.effort.sample)
    exact = _look(case, batch, None)
    if exact.error or not exact.finite:
        return [Finding("precision", "SKIP", f"FP32 itself is not finite: {exact.error or exact.loss}")]
    own = next((p.dtype for p in case.setup.model.parameters() if p.dtype in _HALF), None)
    chosen = case.setup.dtype if case.setup.dtype in _HALF else own
    looks = {"BF16": _look(case, batch, torch.bfloat16), "FP16": _look(case, batch, torch.float16)}
    looks["FP16 scaled"] = _scaled(case, batch)
    layers = _layers(exact, looks)
    found = [f for d in _HALF if (f := _judge(_NAMES[d], exact, looks, layers, chosen is d))]
    if not found:
        found = [_well(exact, looks, layers, chosen)]
    return [dataclasses.replace(found[0], plots={"precision": layers, "passes": _passes(exact, looks)}), *found[1:]]


def _look(case: Case, batch: Any, dtype: torch.dtype | None, scale: float = 1.0) -> _Look:
    look = _Look(scale=scale)
    calls: dict[str, int] = {}

    def see(call: Call) -> None:
        if not look.overflowed and not _finite(call.out):
            look.overflowed = call.label if _finite(call.given) else f"front of {call.label}"
        if call.out.is_floating_point():
            calls[call.label] = count = calls.get(call.label, 0) + 1
            look.outputs[call.label if count == 1 else f"{call.label} #{count}"] = call.out.detach().float().cpu()

    low = torch.autocast(case.box.device.type, dtype=dtype) if dtype else contextlib.nullcontext()
    with case.box.trial(quiet=True) as model:
        try:
            with watching(model, see), low:
                loss = case.loss(model, batch)
            look.loss = float(loss.detach())
            (loss * scale).backward()  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001 - an operation that does not exist in this dtype, or a constant that does not fit
            look.error = str(error).partition("\n")[0][:160]
            return look
        look.grads = {
            n: p.grad.detach().float().cpu()
            for n, p in model.named_parameters()
            if p.grad is not None and not p.grad.is_sparse
        }
    return look


def _finite(t: Tensor | None) -> bool:
    return t is None or not t.is_floating_point() or bool(torch.isfinite(t).all())


def _scaled(case: Case, batch: Any) -> _Look:
    """FP16 with the largest loss scale at which gradients stay finite, as a GradScaler finds it."""
    scale = _SCALE
    while True:
        look = _look(case, batch, torch.float16, scale)
        if look.error or look.finite or not math.isfinite(look.loss) or scale <= 1.0:
            look.grads = {n: g / scale for n, g in look.grads.items()}
            return look
        scale /= 16.0


def _layers(exact: _Look, looks: dict[str, _Look]) -> list[dict[str, Any]]:
    """Per layer in order: largest FP32 value, relative error in each precision (None: not finite)."""
    rows: list[dict[str, Any]] = []
    for name, out in exact.outputs.items():
        row: dict[str, Any] = {"name": name, "max": float(out.abs().max()) if out.numel() else 0.0}
        norm = float(out.norm())
        for precision in ("BF16", "FP16"):
            other = looks[precision].outputs.get(name)
            if other is None or other.shape != out.shape:
                continue
            error = float((other - out).norm()) / max(norm, 1e-30)
            row[precision] = error if math.isfinite(error) else None
        rows.append(row)
    return rows


def _cosine(exact: _Look, other: _Look) -> float:
    """Between all gradients; 1 if there are none."""
    dot = math.fsum(float((g * other.grads[n]).sum()) for n, g in exact.grads.items() if n in other.grads)
    one = math.sqrt(math.fsum(float(g.square().sum()) for g in exact.grads.values()))
    two = math.sqrt(math.fsum(float(g.square().sum()) for g in other.grads.values()))
    return dot / (one * two) if one * two > 0 else (1.0 if one == two else 0.0)


def _underflow(exact: _Look, other: _Look) -> float:
    """Share of the gradients that are not zero in FP32 and zero there."""
    alive = sum(int((g != 0).sum()) for g in exact.grads.values())
    gone = sum(int(((g != 0) & (other.grads[n] == 0)).sum()) for n, g in exact.grads.items() if n in other.grads)
    return gone / alive if alive else 0.0


def _passes(exact: _Look, looks: dict[str, _Look]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"name": "FP32", "loss": exact.loss}]
    for name, look in looks.items():
        row: dict[str, Any] = {"name": name, "loss": look.loss, "error": look.error, "scale": look.scale}
        if not look.error and look.finite:
            row |= {"cosine": _cosine(exact, look), "underflow": _underflow(exact, look)}
        rows.append(row)
    return rows


def _judge(
    name: str, exact: _Look, looks: dict[str, _Look], layers: list[dict[str, Any]], chosen: bool
) -> Finding | None:
    look = looks[name]
    bad = "FAIL" if chosen else "WARN"
    keep = "keep these layers in FP32" if chosen else f"do not train in {name} without that"
    if look.error:
        return _finding("FAIL", f"{name} is not possible: {look.error}", "choose another dtype") if chosen else None
    if not math.isfinite(look.loss) or look.overflowed:
        where = look.overflowed or "the loss"
        top = next((row["max"] for row in layers if where.endswith(row["name"])), exact.loss)
        beyond = f": FP32 has {top:.3g} there, and FP16 ends at 65504" if top > 3e4 and name == "FP16" else ""
        advice = f"BF16 has the range; else {keep}, or scale down what grows"
        return _finding(bad, f"{name} overflows first in {where}{beyond}", advice, "largest FP32 value", top)
    if not look.finite:
        if name == "FP16" and looks["FP16 scaled"].finite:
            return None
        return _finding(bad, f"{name} gradients are not finite, with every loss scale", f"BF16; or {keep}")
    if not chosen:
        return None
    judged = looks["FP16 scaled"] if name == "FP16" and looks["FP16 scaled"].finite else look
    cosine = _cosine(exact, judged)
    if cosine < _TURNED:
        return _finding(
            "FAIL" if cosine < _LOST else "WARN",
            f"{name} gradients point elsewhere than those of FP32",
            keep,
            "cosine to FP32",
            cosine,
        )
    losing = [row for row in layers if (row.get(name) or 0.0) > _LOSES]
    if losing:
        return _finding(
            "WARN",
            f"{name} loses precision in {len(losing)} of {len(layers)} layers, first in {losing[0]['name']}",
            "FP32 for what subtracts nearly equal numbers or divides by small ones",
            "relative error",
            losing[0][name],
        )
    return None


def _finding(verdict: Any, sentence: str, advice: str, measure: str = "", number: float | None = None) -> Finding:
    return Finding("precision", verdict, sentence, measure, number, advice, symptom=True)


def _well(exact: _Look, looks: dict[str, _Look], layers: list[dict[str, Any]], chosen: torch.dtype | None) -> Finding:
    parts, worst = [], 0.0
    for name in ("BF16", "FP16"):
        look = looks[name]
        errors = [row[name] for row in layers if row.get(name) is not None]
        if look.error:
            parts.append(f"{name} not tried ({look.error[:60]})")
            continue
        worst = max(worst, *errors, 0.0)
        parts.append(f"{name} within {max(errors, default=0.0):.2%} in every layer")
    advice = ""
    lost = 0.0 if looks["FP16"].error or not looks["FP16"].finite else _underflow(exact, looks["FP16"])
    if lost > 0.01:
        parts.append(f"without loss scaling FP16 loses {lost:.0%} of the gradients")
        advice = "with FP16 use a GradScaler"
    used = f"planned: {_NAMES[chosen]}; " if chosen else ""
    return Finding("precision", "PASS", used + "; ".join(parts), "largest relative error", worst, advice)
