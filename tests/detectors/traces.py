"""Seeded traces, and what a detector says to them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from guard.detectors import DETECTORS, Detector
from guard.types import Detection, Signals

# Detectors that need parameters, for the sweeps over all of them.
REQUIRED: dict[str, dict[str, Any]] = {"threshold": {"signal": "loss", "above": 1e9}}

Curve = Callable[[int, random.Random], float]


def make(name: str, **params: Any) -> Detector:
    """A detector with these parameters."""
    cls = DETECTORS.get(name)
    assert cls is not None
    return cls(cls.Params(**params))


def trace(
    ticks: int,
    loss: Curve,
    norm: Curve = lambda t, r: math.exp(r.gauss(0.0, 0.2)),
    lr: Callable[[int], float] = lambda t: 1e-3,
    seed: int = 0,
    **fields: Any,
) -> list[Signals]:
    """`ticks` signals, drawn from curves of tick and random generator."""
    r = random.Random(seed)
    return [Signals(t, t, loss(t, r), norm(t, r), lr(t), **fields) for t in range(ticks)]


def play(detector: Detector, signals: Sequence[Signals]) -> dict[int, Detection]:
    """Every alarm by tick, as the guard would ask for them: overflow ticks are scored, but not learnt."""
    alarms = {}
    for s in signals:
        found = detector.score(s)
        if found is not None:
            alarms[s.tick] = found
        if not s.overflow:
            (detector.learn if found is None else detector.hold)(s)
    return alarms


def fires(name: str, signals: Sequence[Signals], **params: Any) -> list[int]:
    """The ticks at which a fresh detector fires."""
    return list(play(make(name, **params), signals))


def falling(start: float, end: float, over: float, noise: float = 0.0) -> Curve:
    """From `start` down to `end`, with time constant `over` and Gaussian noise."""
    return lambda t, r: end + (start - end) * math.exp(-t / over) + noise * r.gauss(0.0, 1.0)


def at(ticks: Sequence[int], factor: float, curve: Curve) -> Curve:
    """`curve`, multiplied at some ticks."""
    return lambda t, r: curve(t, r) * (factor if t in ticks else 1.0)


def layer(**changes: Any) -> dict[str, Any]:
    """What a look shows of one healthy weight matrix."""
    return {"size": 100, "dims": 2, "grad": 0.1, "norm": 1.0, "peak": 0.3, "spread": 0.6} | changes


def update(**changes: Any) -> dict[str, Any]:
    """What a look shows of one healthy update."""
    return {"dims": 2, "rms": 0.1, "ratio": 1e-3, "grad": 0.1} | changes


def inputs(**changes: Any) -> dict[str, Any]:
    """What a look shows of one healthy batch."""
    return {"finite": True, "peak": 3.0, "zero": False, "ignored": False} | changes


def units(kind: str, share: float, looks: int = 8, values: int = 64) -> dict[str, Any]:
    """What a look shows of one layer's units, `share` of which have been idle for `looks` looks."""
    return {kind: [share] * looks + [0.0] * (8 - looks), "units": 10, "values": values}


def replicas(*others: int, **changes: Any) -> dict[str, Any]:
    """What a comparison of the ranks shows: `others` hold other weights."""
    equal = {"equal": not others, "count": len(others), "name": "a" if others else "", "ranks": list(others)}
    return {**equal, "most": True} | changes


def look(t: int, r: random.Random) -> dict[str, Any]:
    """Everything that a look into a healthy model shows."""
    idle = [0.9**n * r.random() for n in range(1, 9)]
    return {
        "seconds": math.exp(0.2 * r.gauss(0, 1)),
        "inputs": inputs(peak=3.0 + r.random()),
        "layers": {"a": layer(norm=1 + t / 300), "bias": layer(dims=1, norm=0.0, spread=0.0, peak=0.0)},
        "updates": {"tick": t - 1, "lr": 1e-3, "layers": {"a": update(ratio=1e-3 * math.exp(r.gauss(0, 1)))}},
        "replicas": replicas(),
        "activations": {"relu": {"dead": [x / 2 for x in idle], "units": 8, "values": 32},
                        "tanh": {"saturated": [x / 3 for x in idle], "units": 8, "values": 128}},
    }  # fmt: skip


def looked_at(looks: Sequence[dict[str, Any] | None]) -> list[Signals]:
    """One ordinary tick for each of `looks`."""
    return [Signals(t, t, 0.5 + math.exp(-t / 200), 1.0, 1e-3, deep=deep) for t, deep in enumerate(looks)]


# Runs in good health, each of a kind that has made some monitor cry wolf.
HEALTHY: dict[str, list[Signals]] = {
    "language model": trace(
        1500, lambda t, r: 2.5 + 8 * (1 + t / 20) ** -0.5 + 0.05 * r.gauss(0, 1),
        lambda t, r: 0.5 + 50 * math.exp(-t / 20) + 0.1 * abs(r.gauss(0, 1)), lambda t: 3e-4 * min(1.0, (t + 1) / 100)),
    "cosine to zero": trace(
        1000, falling(4.0, 2.4, 60, 0.07), lr=lambda t: 1.5e-3 * (1 + math.cos(math.pi * t / 1000))),
    "tiny batches": trace(
        1500, lambda t, r: (0.02 + 0.6 * math.exp(-t / 100)) * math.exp(1.1 * r.gauss(0, 1)),
        lambda t, r: (0.1 + math.exp(-t / 100)) * math.exp(0.9 * r.gauss(0, 1))),
    "memorised to zero": trace(
        1000, lambda t, r: 2.3 * math.exp(-t / 60) * math.exp(0.5 * r.gauss(0, 1)),
        lambda t, r: 2 * math.exp(-t / 70) * math.exp(0.5 * r.gauss(0, 1))),
    "heavy tail": trace(
        1500, lambda t, r: 0.2 * r.paretovariate(2.0) + math.exp(-t / 200),
        lambda t, r: 0.5 * r.paretovariate(2.5), seed=1),
    "negative loss": trace(1000, falling(3.0, -3.0, 200, 0.3), lambda t, r: 5 * math.exp(0.5 * r.gauss(0, 1))),
    "policy gradient": trace(1000, lambda t, r: 0.02 * r.gauss(0, 1), lambda t, r: math.exp(0.3 * r.gauss(0, 1))),
    "value loss of growing returns": trace(
        1500, lambda t, r: (0.5 + t / 1000) * math.exp(0.5 * r.gauss(0, 1)),
        lambda t, r: (1 + t / 1000) * math.exp(0.5 * r.gauss(0, 1))),
    "warm restarts": trace(
        1200, lambda t, r: 0.3 + 2 * math.exp(-t / 200) + 0.12 * (1 - t % 300 / 300) + 0.04 * r.gauss(0, 1),
        lr=lambda t: 5e-4 * (1 + math.cos(math.pi * (t % 300) / 300)) + 1e-6),
    "step drops": trace(
        1200, lambda t, r: 0.2 + 2 * math.exp(-t / 100) + 0.3 * 0.1 ** (t // 400) * (1 + 0.3 * r.gauss(0, 1)),
        lr=lambda t: 0.1 * 0.1 ** (t // 400)),
    "quickly converged": trace(1000, falling(3.0, 1.0, 20, 0.15), falling(2.0, 0.5, 20, 0.1)),
    "converged at its Bayes error": trace(1000, falling(0.72, 0.60, 30, 0.02), falling(0.5, 0.2, 30, 0.02)),
    "slow fine-tuning": trace(
        2000, lambda t, r: 2 - 6e-5 * t + 0.08 * r.gauss(0, 1), lr=lambda t: 1e-5 * (1 - t / 2001)),
    "late start": trace(600, lambda t, r: 2.3 - 0.0012 * t + 0.01 * r.gauss(0, 1)),
    "wild first ticks": trace(
        500, lambda t, r: (6.9, 9, 16.9, 14, 11, 9, 8)[t] if t < 7 else falling(8, 3, 100, 0.08)(t, r),
        lambda t, r: (3, 20, 60, 30, 20, 10, 5)[t] if t < 7 else math.exp(0.2 * r.gauss(0, 1))),
    "full batch": trace(1000, falling(2.3, 0.001, 200), falling(1.0, 0.001, 220)),
    "nothing left to learn": trace(300, lambda t, r: 0.0 if t > 40 else math.exp(-t / 10), lambda t, r: float(t <= 40)),
    "looked into": looked_at([look(t, random.Random(t)) if t % 3 == 0 else None for t in range(900)]),
    "generator of a GAN": trace(1500, lambda t, r: 0.7 + 3 * (1 - math.exp(-t / 1000)) + 0.1 * r.gauss(0, 1)),
}  # fmt: skip
