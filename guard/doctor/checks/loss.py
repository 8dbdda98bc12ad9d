"""The loss before the first step: a scalar, of the right function, near what an untrained model must get."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from guard.doctor import tree
from guard.doctor.case import Case
from guard.doctor.checks._targets import labels
from guard.doctor.finding import Finding
from guard.doctor.form import Outcome, samples
from guard.doctor.losses import guess_of_classes

_LATER = ("gradients", "leakage", "overfit", "rate", "precision", "curve")
_DYNAMIC = ("gradients", "overfit", "rate", "precision", "curve")
# Random logits of standard deviation s cost about s * s / 2 nats more than uniform ones. Heads as torch initialises
# them begin below s = 1, after Kaiming near 2; beyond that the first steps only unlearn. The share is for many classes.
_NATS, _SHARE = 2.5, 0.25
_ABSURD = 20.0  # times the expected value: logits of standard deviation 20 and more
_VALUES, _ABSURD_VALUES = 10.0, 1000.0  # times the mean square of the targets, i.e. outputs sqrt of that too large


def check(case: Case) -> list[Finding]:
    """The loss at initialisation against the value expected and against the best constant answer."""
    if case.problem is not None:
        return [
            Finding(
                "loss",
                "FAIL",
                f"the loss cannot be computed: {case.problem}",
                advice="it is called as loss(output, target), or loss(model, batch) if its first parameter is model",
                explains=_LATER,
                stops=True,
            )
        ]
    with case.box.trial(quiet=True) as model:
        outcome = case.run(model, case.batches[0])
    wrong = _no_scalar(outcome) or _not_finite(outcome) or _broadcast(case, outcome)
    if wrong:
        return [wrong]
    value, guess = float(outcome.loss.detach()), guess_of(case)
    case.notes |= {"start": value, "guess": guess}
    found = [f for f in (_double(case, outcome), _reduction(case)) if f]
    parts = case.notes.get("summed", 1)
    expected = _expected(case, outcome)
    if not found or (parts > 1 and len(found) == 1):
        found += _compare(case, value / parts, expected, guess)
    return found


def guess_of(case: Case) -> float:
    """Loss of the best answer that ignores the input; NaN if it is not known."""
    facts = case.facts
    if facts.kind == "classes" and not facts.weighted and facts.classes > 1:
        seen = labels(case)
        return math.log(facts.classes) if seen is None or not len(seen) else guess_of_classes(seen, facts.classes)
    parts = [next(iter(case.targets(b).values()), None) for b in case.batches]
    if facts.weighted or not parts or any(p is None or p.shape[1:] != parts[0].shape[1:] for p in parts):  # type: ignore[union-attr]
        return math.nan
    target = torch.cat([p.reshape(len(p), -1).double().cpu() for p in parts if p is not None])
    if facts.kind == "labels":
        mean = target.mean(0)
        return float((torch.special.entr(mean) + torch.special.entr(1 - mean)).mean())
    return float(target.var(0).mean()) if facts.squared and len(target) > 1 else math.nan


def _no_scalar(outcome: Outcome) -> Finding | None:
    loss = outcome.loss
    if not isinstance(loss, Tensor):
        what = f"the loss is a {type(loss).__name__}, not a tensor"
    elif loss.numel() != 1:
        what = f"the loss has shape {list(loss.shape)}: backward needs one number"
    else:
        return None
    return Finding(
        "loss",
        "FAIL",
        what,
        advice="reduce it: reduction='mean', or .mean() at the end; no .item() before",
        explains=_LATER,
        stops=True,
    )


def _not_finite(outcome: Outcome) -> Finding | None:
    value = float(outcome.loss.detach())
    if math.isfinite(value):
        return None
    finite = outcome.main is None or bool(torch.isfinite(outcome.main).all())
    return Finding(
        "loss",
        "FAIL",
        f"the loss is {value} before the first step"
        + ("; the outputs are finite" if finite else "; so are the outputs"),
        "loss",
        value,
        "look for log(0), 0/0 or sqrt(0) in the loss" if finite else "see which layer is first not finite below",
        symptom=not finite,
        explains=_LATER,
        stops=True,
    )


def _broadcast(case: Case, outcome: Outcome) -> Finding | None:
    """[n, 1] against [n] is compared as [n, n], without an error."""
    if case.facts.kind not in ("values", "other") or outcome.main is None or not isinstance(outcome.target, Tensor):
        return None
    a, b = outcome.main.shape, outcome.target.shape
    if a == b or outcome.main.dim() == 0 or not outcome.target.is_floating_point() or case.form is None:
        return None
    if case.form.mode not in ("output", "main") or {a, b} != {(len(outcome.main),), (len(outcome.main), 1)}:
        return None
    if len(outcome.main) < 2 or (case.facts.kind == "other" and not _spreads(case, outcome)):
        return None
    return Finding(
        "loss",
        "FAIL",
        f"outputs {list(a)} and targets {list(b)} are broadcast to {[a[0], a[0]]}: each output meets all targets",
        advice="give both the same shape: output.squeeze(-1), or target.unsqueeze(-1)",
        explains=("overfit", "rate", "curve"),
    )


def _spreads(case: Case, outcome: Outcome) -> bool:
    """An unknown loss function may squeeze by itself: does the shape of the target change its value?"""
    assert outcome.main is not None
    assert case.box.loss is not None
    with torch.no_grad():
        same = case.box.loss(outcome.main.detach(), outcome.target.reshape(outcome.main.shape))
    return not math.isclose(float(same), float(outcome.loss.detach()), rel_tol=1e-4)


def _double(case: Case, outcome: Outcome) -> Finding | None:
    """The loss function does by itself what was already done to the outputs."""
    facts, out = case.facts, outcome.main
    if out is None:
        return None
    out = out.detach().float()
    axis = 1 if out.dim() > 1 and out.shape[1] == facts.classes else -1
    summed = out.sum(axis) if out.dim() > 1 else out
    probabilities = out.dim() > 1 and float(out.min()) >= 0 and bool(((summed - 1).abs() < 1e-3).all())
    if facts.kind == "classes" and facts.log_softmax and out.shape[axis] > 1 and (facts.softmax or probabilities):
        return Finding(
            "loss",
            "FAIL",
            "softmax is applied twice: the outputs are probabilities, and cross-entropy applies it again",
            "sum of a sample's outputs",
            float(summed.mean()),
            "give the loss raw scores (logits): take the softmax out of the model",
            explains=_DYNAMIC,
        )
    if facts.kind == "classes" and not facts.log_softmax and out.dim() > 1 and out.shape[axis] == facts.classes:
        total = float(out.exp().sum(axis).mean())
        if abs(total - 1) > 0.01:
            return Finding(
                "loss",
                "FAIL",
                "the negative log-likelihood is given outputs that are not logarithms of probabilities",
                "sum of exp(output)",
                total,
                "end the model with log_softmax, or use CrossEntropyLoss on raw scores",
                explains=_DYNAMIC,
            )
    if facts.kind == "labels" and facts.sigmoid and float(outcome.loss.detach()) > 0 and _with_logits(outcome.loss):
        return Finding(
            "loss",
            "FAIL",
            "sigmoid is applied twice: the outputs are probabilities, and the loss applies it again",
            "largest output",
            float(out.max()),
            "give the loss raw scores (logits): take the sigmoid out of the model",
            explains=_DYNAMIC,
        )
    return None


def _with_logits(loss: Tensor) -> bool:
    from guard.doctor.losses import find_node

    return "WithLogits" in type(find_node(loss.grad_fn)).__name__


def _reduction(case: Case) -> Finding | None:
    """Twice the samples, twice the loss: a sum."""
    assert case.form is not None
    batch = case.batches[0]
    size, dim = samples(case.form, batch)
    if size < 4 or case.form.mode == "model":
        return None
    half = size // 2
    try:
        with case.box.trial() as model, torch.no_grad():
            model.eval()  # so that no sample knows of another
            full = float(case.loss(model, tree.take(batch, slice(0, 2 * half), size, dim)))
            parts = [
                float(case.loss(model, tree.take(batch, slice(i * half, (i + 1) * half), size, dim))) for i in (0, 1)
            ]
    except Exception:  # noqa: BLE001 - a model that takes one size of batch only
        return None
    if not abs(full) > 1e-6 or abs(sum(parts) - full) > 0.02 * abs(full) or min(parts) < 0.1 * max(parts):
        return None
    target = next(iter(case.targets(batch).values()), None)
    count = size if target is None or target.is_floating_point() else target.numel()
    case.notes["summed"] = count
    return Finding(
        "loss",
        "WARN",
        f"the loss is a sum over the {size} samples of a batch, not a mean: gradients are {size} times as large, and "
        "change with the batch size",
        "loss",
        full,
        "reduction='mean', or divide by the number of samples; else the learning rate must be as much smaller",
        explains=_DYNAMIC,
    )


def _expected(case: Case, outcome: Outcome) -> float:
    """Loss of an untrained model that favours nothing: ln C, ln 2, the mean square of the targets; NaN: not known."""
    facts = case.facts
    if facts.kind == "classes" and facts.classes > 1:
        return math.log(facts.classes)
    if facts.kind == "labels" and not facts.weighted:
        return math.log(2)
    if facts.squared and isinstance(outcome.target, Tensor):
        return float(outcome.target.detach().double().square().mean())
    return math.nan


def _compare(case: Case, value: float, expected: float, guess: float) -> list[Finding]:
    baseline = "" if math.isnan(guess) else f"; a constant answer gets {guess:.4g}"
    if math.isnan(expected) or expected <= 0:
        return [
            Finding(
                "loss",
                "PASS",
                f"{value:.4g}: finite; no expected value is known for this loss{baseline}",
                "loss",
                value,
            )
        ]
    name = {"classes": f"ln {case.facts.classes}", "labels": "ln 2"}.get(case.facts.kind, "mean square of the targets")
    reached = f"{value:.4g}, expected {expected:.4g} ({name}){baseline}"
    per_sample = value / expected
    positions = _positions(case)
    if case.facts.kind in ("classes", "labels"):
        limit, absurd = expected * (1 + _SHARE) + _NATS, _ABSURD * expected
    else:
        limit, absurd = _VALUES * expected, _ABSURD_VALUES * expected
    if positions > 4 and case.facts.kind == "classes" and abs(per_sample / positions - 1) < 0.25:
        return [
            Finding(
                "loss",
                "WARN",
                f"{reached}: the loss is a sum over the {positions} positions of a sample, not their mean",
                "loss",
                value,
                "divide by the number of valid positions",
                explains=_DYNAMIC,
            )
        ]
    if value > limit:
        return [
            Finding(
                "loss",
                "FAIL" if value > absurd else "WARN",
                f"{reached}: the untrained model is sure of wrong answers",
                "loss",
                value,
                "make the last layer's initial weights smaller (0.02 is usual), its bias 0, and normalise the inputs",
                symptom=True,
                explains=("rate",) if value > absurd else (),
            )
        ]
    if value < 0.5 * min(guess if math.isfinite(guess) else expected, expected):
        reached += "; already far better than a guess: a pretrained model, or inputs that tell the answer"
    return [Finding("loss", "PASS", reached, "loss", value)]


def _positions(case: Case) -> int:
    target = next(iter(case.targets(case.batches[0]).values()), None)
    return target.numel() // case.size if target is not None and case.size and case.per_position else 1
