"""A diagnosis in words: two sentences, the table of its experiments, and what to change in the code."""

from __future__ import annotations

import math

from guard.incidents.diagnose import (
    DIVIDING,
    EXPS,
    GREW,
    HALF,
    LARGEST,
    LOGS,
    ROOTS,
    Diagnosis,
    Evidence,
    Look,
    Origin,
    Trial,
)

CAUSES = {
    "precision_overflow": "numbers too large for the precision",
    "precision_underflow": "numbers too small for the precision",
    "bad_batch": "a bad batch",
    "learning_rate": "a learning rate that is too high",
    "numerical_domain": "a function outside of its domain",
    "corrupted_state": "a state that was damaged from outside",
    "transient": "something that does not come back",
    "model_or_code": "the model or the program itself",
    "unknown": "not known",
}
TRIALS = {
    "again": "the same step again",
    "fp32": "in FP32",
    "bf16": "in BF16",
    "without_samples": "without the suspicious samples",
    "another_batch": "with another batch",
    "checkpoint": "with the weights of the checkpoint before",
    "rerun": "trained again from that checkpoint",
    "rerun_slower": "trained again at a tenth of the rate",
    "rerun_slowest": "trained again at a hundredth of the rate",
    "rerun_halved": "trained again, clipped, at half of the rate",
    "rerun_quartered": "trained again, clipped, at a quarter of the rate",
    "rerun_clipped": "trained again with clipped gradients",
    "as_it_is": "a short run as it is",
    "rate_tenth": "at a tenth of the rate",
    "twice_the_batch": "with twice the batch",
    "shuffled": "with the data shuffled",
    "one_batch": "one batch, over and over",
}


def sentences(d: Diagnosis) -> str:
    """Where it began, and what the experiments say: two sentences."""
    return f"{_where(d.evidence)} {_why(d)}"


def table(d: Diagnosis) -> list[tuple[str, str, str]]:
    """(experiment, outcome, numbers) of each, in order."""
    return [(TRIALS.get(t.name, t.name), outcome(t), _measured(t)) for t in d.evidence.trials]


def outcome(t: Trial) -> str:
    if t.bad is None:
        return f"not tried: {t.note}" if t.note else "not tried"
    if t.steps > 1 and math.isfinite(t.first):
        return f"loss {_n(t.first)} to {_n(t.loss)}"
    return "the fault is there" if t.bad else "in order"


def _measured(t: Trial) -> str:
    if t.bad is None:
        return ""
    parts = [f"loss {_n(t.loss)}", *([f"gradient norm {_n(t.grad_norm)}"] if t.grad_norm == t.grad_norm else [])]
    return ", ".join([*parts, *([f"{t.steps} steps"] if t.steps > 1 else [])])


def _where(e: Evidence) -> str:
    if e.origin is None:
        if e.flaws:
            return f"The batch is odd: {'; '.join(e.flaws[:3])}."
        return "No tensor was found that is not finite." if e.fault == "non_finite" else "All tensors are finite."
    o, first = e.origin, e.origin.first
    share = f"{first.nonfinite:.2g} of it NaN or Inf" if first.nonfinite < 1.0 else "all of it NaN or Inf"
    facts = ", ".join([p for p in (first.dtype, "x".join(map(str, first.shape)) or "a scalar", share) if p])
    how = "backward" if o.backward else "forward"
    match first.role:
        case "input" | "target":
            return f"The {first.role} `{first.name}` of the batch is not finite ({facts})."
        case "weight" | "buffer":
            return f"The {first.role} `{first.name}` is not finite ({facts})."
        case "gradient":
            place = f"in the gradient of `{first.name}`"
        case "update":
            return f"The update of `{first.name}` made it non-finite, from finite gradients ({facts})."
        case _:
            behind = "in the loss" if first.role == "loss" else "in the loop, before the model"
            place = behind if o.outside else f"in `{first.name or 'the model itself'}`"
    made = f" by `{first.op}`" if first.op else ""
    return f"It was born {place}{made}, {how} ({facts}){_range(o)}."


def _range(o: Origin) -> str:
    """What the function was given."""
    given = [look for look in o.inputs if look.peak == look.peak]
    if o.calls > 2 and o.growth >= GREW:
        return f", after {o.calls} calls in a row, each {o.growth:.2g} times the one before"
    limit = LARGEST.get(o.first.dtype, math.inf)
    if o.first.dtype in HALF and o.first.peak > 0.5 * limit:
        return f": |x| reaches {_n(o.first.peak)}, and {o.first.dtype} ends at {limit:g}"
    if not given:
        return ""
    return f": it was given {' and '.join(f'[{_n(g.low)}, {_n(g.high)}]' for g in given[:2])}"


def _why(d: Diagnosis) -> str:
    e = d.evidence
    said = [f"{TRIALS[t.name]}: {_verdict(t)}" for t in _telling(d)]
    so = f"so: {CAUSES[d.cause]}"
    if d.cause == "bad_batch" and e.samples:
        so += f" ({_which(e.samples)})"
    if d.cause == "unknown":
        so = "the cause is not known"
    text = f"{'; '.join(said)}; {so}." if said else f"{so}."
    return text[:1].upper() + text[1:]


def _verdict(t: Trial) -> str:
    if t.steps > 1 and math.isfinite(t.first):
        return f"loss from {_n(t.first)} to {_n(t.loss)}"
    return "there" if t.bad else "gone"


_TELLING = {
    "precision_overflow": ("fp32", "bf16"),
    "precision_underflow": ("fp32", "bf16", "rerun"),
    "bad_batch": ("again", "without_samples", "another_batch"),
    "learning_rate": (
        "checkpoint",
        "rerun",
        "rerun_slower",
        "rerun_clipped",
        "rerun_halved",
        "rerun_quartered",
        "as_it_is",
        "rate_tenth",
        "twice_the_batch",
    ),
    "numerical_domain": ("again", "fp32", "another_batch"),
    "corrupted_state": ("checkpoint", "rerun"),
    "transient": ("again",),
    "model_or_code": ("fp32", "another_batch", "checkpoint", "one_batch"),
    "unknown": ("again", "another_batch"),
}


def _telling(d: Diagnosis) -> list[Trial]:
    wanted = _TELLING[d.cause]
    return [t for t in d.evidence.trials if t.name in wanted and t.bad is not None]


def _which(samples: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, samples[:6]))
    return f"sample {shown}" if len(samples) == 1 else f"samples {shown}{', …' if len(samples) > 6 else ''}"


def advice(d: Diagnosis) -> str:
    """What to change in the code, where that is known; else empty."""
    e, o = d.evidence, d.evidence.origin
    op = o.first.op if o is not None else ""
    match d.cause:
        case "precision_overflow":
            return f"Run {_place(o)} in BF16 or FP32, or keep its numbers small: normalise its input, scale its output."
        case "precision_underflow" if e.no_epsilon:
            return "The optimizer's eps is 0 in the dtype of the weights: 1e-4 is usual there, or keep FP32 weights."
        case "precision_underflow":
            return f"Run {_place(o)} in FP32, or add an epsilon that the dtype can hold."
        case "bad_batch":
            return "Look at the batch named here, and filter such samples where the data is read."
        case "learning_rate":
            return "Lower the learning rate, lengthen its warm-up, or clip the gradients."
        case "transient":
            return "Suspect the machine, or something that is not deterministic, if it comes again."
        case "corrupted_state":
            return "Training does not lead to this state: suspect memory or storage, or code that writes into weights."
        case "model_or_code" if e.gathers:
            return "Call optimizer.zero_grad() once per step: gradients of earlier steps were still there."
        case "model_or_code":
            return "Overfit one batch in FP32 before the next long run: the targets, the loss and what is frozen."
        case "unknown" if e.bad("one_batch") is False:
            return "One batch can be learnt, the data as a whole not: check that inputs and targets belong together."
        case "numerical_domain":
            return _domain(o, op) + _loss_range(e)
    return ""


def _domain(o: Origin | None, op: str) -> str:
    if o is not None and o.calls > 2 and o.growth >= GREW:
        return "It grows in a loop: normalise in it, bound its gain, or initialise it closer to orthogonal."
    if op in LOGS:
        return "Take the logarithm of what cannot be 0: log_softmax, binary_cross_entropy_with_logits, log(x + eps)."
    if op in ROOTS:
        return "The root has no slope at 0, and none below: sqrt(x + eps), eps inside of the root."
    if op in DIVIDING:
        return "Do not divide by 0: x / (y + eps), clamp(min=...), or leave out what is empty."
    if op in EXPS:
        return "Subtract the maximum before exp (softmax and logsumexp do), or clamp its argument; mask no whole row."
    return f"Keep the arguments of {op} inside of where it is defined."


def _loss_range(e: Evidence) -> str:
    if e.output is None:
        return ""
    targets = f", the distinct targets are {', '.join(map(_n, e.targets))}" if e.targets else ""
    return f" The model's output lies in [{_n(e.output.low)}, {_n(e.output.high)}]{targets}."


def _place(o: Origin | None) -> str:
    if o is None:
        return "this"
    return "the loss" if o.outside else f"`{o.first.name or 'the model'}`"


def look_line(look: Look) -> str:
    """One tensor in a line: ``output blocks.3.fc2 (linear): float16 32x256, [-3.1, 2.9]``."""
    made = f" ({look.op})" if look.op else ""
    shape = "x".join(map(str, look.shape)) or "scalar"
    spread = "no finite element" if look.low != look.low else f"[{_n(look.low)}, {_n(look.high)}]"
    share = f", {look.nonfinite:.2g} not finite" if look.nonfinite else ""
    return f"{look.role} {look.name or '(the model itself)'}{made}: {look.dtype} {shape}, {spread}{share}"


def _n(x: float) -> str:
    if math.isnan(x):
        return "NaN"
    if math.isinf(x):
        return "Inf" if x > 0 else "-Inf"
    return f"{x:.4g}"
