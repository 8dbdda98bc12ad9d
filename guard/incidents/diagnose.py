"""From the numbers of an incident's experiments to its cause. Pure: what was measured goes in, a verdict comes out.

The checklist is an expert's. Again: does it come back? Is the state sound, is the batch? In FP32? With another batch,
with an earlier state? If the state is at fault: does training from the checkpoint lead there again, and at a tenth of
the rate?
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Cause = Literal[
    "precision_overflow",
    "precision_underflow",
    "bad_batch",
    "learning_rate",
    "numerical_domain",
    "corrupted_state",
    "transient",
    "model_or_code",
    "unknown",
]
Remedy = Literal["bf16", "fp32", "skip", "clip", "halve", "quarter", "slower", "replay", "stop", ""]
Role = Literal["input", "target", "weight", "buffer", "output", "loss", "gradient", "update"]

# Faults that are there from one step to the next, and those that need many steps to be seen.
SUDDEN = frozenset({"non_finite", "loss_spike", "grad_explosion", "loss_scale_collapse"})
SLOW = frozenset({"oscillation", "flat_loss", "divergence", "dead_parameters"})
HALF = frozenset({"float16", "bfloat16"})
LARGEST = {"float16": 65504.0, "bfloat16": 3.39e38, "float32": 3.40e38}
# Functions that are not defined, or run over, somewhere in the ordinary range of their inputs.
DIVIDING = frozenset({"div", "true_divide", "reciprocal", "rsqrt", "normalize", "norm", "std", "var", "mean"})
ROOTS = frozenset({"sqrt", "pow", "norm", "linalg_vector_norm", "cdist", "std", "pairwise_distance"})
LOGS = frozenset({"log", "log2", "log10", "log1p", "xlogy", "logit"})
EXPS = frozenset({"exp", "exp2", "expm1", "sinh", "cosh", "softmax"})
OTHERS = frozenset({"acos", "asin", "atanh", "acosh", "tan", "lgamma", "digamma", "inverse", "logsumexp", "softplus"})
DOMAIN = DIVIDING | ROOTS | LOGS | EXPS | OTHERS
_LIKE = 4.0  # times another batch's loss: so much may an ordinary batch lose
_UNDERFLOWS = DIVIDING | LOGS | ROOTS
GREW = 1.5  # factor from call to call from which on the calls of one function are a loop that grows


@dataclass(frozen=True, slots=True)
class Look:
    """One tensor that was looked at.

    Args:
        role: what it is to the step.
        name: parameter, place in the batch, or the path of the module that made it.
        op: the function that made it; empty if none did.
        shape, dtype: of the tensor.
        low, high: range of its finite elements; NaN: there are none.
        nonfinite: share of elements that are NaN or Inf.
    """

    role: Role
    name: str
    op: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    low: float = math.nan
    high: float = math.nan
    nonfinite: float = 0.0

    @property
    def peak(self) -> float:
        """Largest finite magnitude; NaN if there is none."""
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the first tensor that is not finite came from.

    Args:
        first: that tensor.
        backward: it was born in the backward pass.
        inputs: what the function that made it was given.
        before: the tensors that were looked at before it, all in order; the latest last.
        calls, growth: how often that function had been called in a row on its own output, and how much larger it became
            each time (1.0: it did not).
        outside: not in the model's forward pass: in the loss, or between the model and it.
    """

    first: Look
    backward: bool = False
    inputs: tuple[Look, ...] = ()
    before: tuple[Look, ...] = ()
    calls: int = 1
    growth: float = 1.0
    outside: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """One experiment: the failing step again, with one thing changed.

    Args:
        name: what was changed.
        bad: the fault came back; None: it could not be tried, `note` says why.
        loss, grad_norm: what was measured; NaN: not known.
        first: the loss at the beginning, where several steps were made.
        steps: how many.
        seconds: what it took.
    """

    name: str
    bad: bool | None
    loss: float = math.nan
    grad_norm: float = math.nan
    first: float = math.nan
    steps: int = 1
    seconds: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a diagnosis has measured.

    Args:
        fault: the detector.
        origin: of the first tensor that is not finite; None: all that was seen is finite, or nothing could be seen.
        trials: in the order in which they were made.
        flaws: what is wrong with the batch to look at (``sample 3: NaN``).
        samples: which samples those are; empty: none, or all.
        poisoned: weights, buffers or optimizer state were not finite when it was seen.
        no_epsilon: the optimizer's eps is 0 in the dtype of the weights.
        gathers: the loop does not clear its gradients from step to step.
        notes: what could not be looked at, and why.
        output: range of the model's output, where the fault was born behind it.
        targets: distinct targets of the batch, at most a few; likewise.
        seconds: what all of it took.
    """

    fault: str
    origin: Origin | None = None
    trials: tuple[Trial, ...] = ()
    flaws: tuple[str, ...] = ()
    samples: tuple[int, ...] = ()
    poisoned: bool = False
    no_epsilon: bool = False
    gathers: bool = False
    notes: tuple[str, ...] = ()
    output: Look | None = None
    targets: tuple[float, ...] = ()
    seconds: float = 0.0

    def bad(self, name: str) -> bool | None:
        """The outcome of an experiment; None: it was not made, or not known."""
        return next((t.bad for t in self.trials if t.name == name), None)

    def trial(self, name: str) -> Trial | None:
        return next((t for t in self.trials if t.name == name), None)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The verdict.

    Args:
        cause: read off the experiments.
        remedy: what to do about it; empty: nothing is known that would help.
        evidence: all that it rests on.
    """

    cause: Cause
    remedy: Remedy
    evidence: Evidence = field(default_factory=lambda: Evidence(""))


def diagnose(evidence: Evidence) -> Diagnosis:
    """Reads the cause off the experiments."""
    cause = _slow(evidence) if evidence.trial("as_it_is") is not None else _sudden(evidence)
    return Diagnosis(cause, _remedy(cause, evidence), evidence)


def _sudden(e: Evidence) -> Cause:
    """A fault that is there from one step to the next."""
    origin, first = e.origin, e.origin.first if e.origin else None
    if e.bad("again") is False and not e.poisoned:
        return "transient"
    if e.bad("rerun") is False:  # the state is bad, and training does not lead there
        return "corrupted_state"
    if e.poisoned or (first is not None and first.role == "update"):
        return _poisoned(e)
    if first is not None and first.role in ("input", "target"):
        return "bad_batch"
    of_precision = e.bad("fp32") is False
    flawed = bool(e.flaws) and False in (e.bad("without_samples"), e.bad("another_batch"))
    if flawed and not (of_precision and _ordinary(e)):
        return "bad_batch"
    if of_precision:
        return "precision_underflow" if origin is not None and _underflowed(origin) else "precision_overflow"
    if e.bad("another_batch") is True and e.bad("checkpoint") is False:  # finite, but no state to go on from
        return "learning_rate" if False in map(e.bad, _GENTLER) else _of_model(e)
    if origin is not None and in_domain(origin):
        return "numerical_domain"
    if e.bad("without_samples") is False or (e.bad("another_batch") is False and e.bad("checkpoint") is not False):
        return "bad_batch"
    return _of_model(e)


_GENTLER = ("rerun_slower", "rerun_slowest", "rerun_clipped")


def _ordinary(e: Evidence) -> bool:
    """In FP32 the failing batch is a batch like any other: its loss is."""
    here, other = e.trial("fp32"), e.trial("another_batch")
    if here is None or other is None or other.bad is not False:
        return True
    return abs(here.loss) <= _LIKE * abs(other.loss)


def _poisoned(e: Evidence) -> Cause:
    """Weights or buffers are not finite, and training leads there again, or it is not known whether it does."""
    first = e.origin.first if e.origin else None
    if e.no_epsilon:
        return "precision_underflow"
    if e.bad("rerun") is None:
        return "unknown"
    if first is not None and first.role in ("input", "target"):
        return "bad_batch"
    if e.bad("rerun_slower") is False:
        return "learning_rate"
    if first is not None and first.dtype in HALF:
        return "precision_underflow" if first.role == "update" else "precision_overflow"
    return "numerical_domain" if e.origin is not None and in_domain(e.origin) else _of_model(e)


def _of_model(e: Evidence) -> Cause:
    """It comes back whatever is changed: then it is the program. Enough must have been tried to say so."""
    changed = [t for t in e.trials if t.name in ("fp32", "another_batch", "checkpoint") and t.bad is not None]
    if e.origin is not None and in_domain(e.origin):
        return "numerical_domain"
    return "model_or_code" if len(changed) >= 2 and all(t.bad for t in changed) else "unknown"


def in_domain(origin: Origin) -> bool:
    """A function was asked for a value that it does not have, or that no number can hold."""
    return origin.first.op in DOMAIN or (origin.calls > 2 and origin.growth >= GREW)


def _underflowed(origin: Origin) -> bool:
    """Something became 0 that should not have, and was divided by, or its logarithm taken."""
    touching = any(look.low <= 0.0 <= look.high for look in origin.inputs)
    return origin.first.op in _UNDERFLOWS and (touching or not origin.inputs)


# ---- faults that need many steps to be seen

_BETTER = 0.2  # of what the better of two runs has gained, by which it must be ahead
_VISIBLE = 0.02  # of the loss at the beginning; what is less is noise
_LEARNS = 0.9  # of one batch's loss, after many times that batch: more is not learnt


def _slow(e: Evidence) -> Cause:
    """Short runs, side by side."""
    as_it_is, slower, more, one = (e.trial(n) for n in ("as_it_is", "rate_tenth", "twice_the_batch", "one_batch"))
    assert as_it_is is not None
    if e.gathers:
        return "model_or_code"
    if slower is not None and better(slower, as_it_is):
        return "learning_rate"
    if more is not None and better(more, as_it_is):
        return "learning_rate"  # steps too long for gradients so noisy
    if one is not None and one.bad:
        return "model_or_code"
    return "unknown"


def better(a: Trial, b: Trial) -> bool:
    """Run `a` ends clearly lower than run `b`, which began in the same state."""
    if not math.isfinite(a.loss):
        return False
    if not math.isfinite(b.loss):
        return True
    gained = b.first - a.loss if math.isfinite(b.first) else 0.0
    return b.loss - a.loss > max(_BETTER * gained, _VISIBLE * abs(b.first), 0.0)


def learns(first: float, last: float) -> bool:
    """A loss that can be brought down by repeating one batch."""
    return math.isfinite(last) and last < first - (1.0 - _LEARNS) * abs(first)


def _remedy(cause: Cause, e: Evidence) -> Remedy:
    match cause:
        case "precision_overflow" | "precision_underflow":
            if e.bad("bf16") is False or (e.bad("bf16") is None and e.bad("fp32") is None):
                return "bf16"
            return "fp32" if e.bad("fp32") is False else ""
        case "bad_batch":
            return "skip"
        case "numerical_domain":
            return "skip" if e.bad("another_batch") is False else ""
        case "learning_rate":
            milder: tuple[tuple[str, Remedy], ...] = (
                ("rerun_clipped", "clip"),
                ("rerun_halved", "halve"),
                ("rerun_quartered", "quarter"),
            )
            slower: Remedy = "" if e.bad("rerun_slower") else "slower"
            return next((remedy for name, remedy in milder if e.bad(name) is False), slower)
        case "transient" | "corrupted_state":
            return "replay"
        case "model_or_code":
            return "stop"
    return ""


# ---- to the journal and back


def to_plain(diagnosis: Diagnosis) -> dict[str, Any]:
    """Numbers, texts, lists and mappings."""
    return {"cause": diagnosis.cause, "remedy": diagnosis.remedy, **asdict(diagnosis.evidence)}


def from_plain(plain: Mapping[str, Any]) -> Diagnosis | None:
    """What `to_plain` gave, read from a journal; None if it is not that."""
    try:
        rest = {k: v for k, v in plain.items() if k not in ("cause", "remedy")}
        origin = rest.get("origin")
        evidence = Evidence(
            **{
                **rest,
                "origin": None if origin is None else _origin(origin),
                "trials": tuple(Trial(**_numbers(t)) for t in rest.get("trials", ())),
                "output": None if rest.get("output") is None else _look(rest["output"]),
                "flaws": tuple(rest.get("flaws", ())),
                "samples": tuple(rest.get("samples", ())),
                "notes": tuple(rest.get("notes", ())),
                "targets": tuple(map(float, rest.get("targets", ()))),
                "seconds": float(rest.get("seconds", 0.0)),
            }
        )
        return Diagnosis(plain["cause"], plain["remedy"], evidence)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _origin(plain: Mapping[str, Any]) -> Origin:
    looks = {key: tuple(map(_look, plain[key])) for key in ("inputs", "before")}
    return Origin(**{**plain, "first": _look(plain["first"]), "growth": float(plain["growth"]), **looks})


def _look(plain: Mapping[str, Any]) -> Look:
    return Look(
        **{**plain, "shape": tuple(plain["shape"]), **{k: float(plain[k]) for k in ("low", "high", "nonfinite")}}
    )


def _numbers(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A journal holds NaN and Inf as text."""
    return {**plain, **{k: float(plain[k]) for k in ("loss", "grad_norm", "first", "seconds")}}
