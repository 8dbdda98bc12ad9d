"""How long a fault goes unseen: faults put into healthy runs, watched in observe mode under the default policy.

    python benchmarks/detection.py [--quick] [--runs 24] [--seed 0]

For every kind of fault: runs in which it did harm, how many of them its own detector named, the delay in ticks until
then, and until any detector said anything. A non-finite number should be seen in its own tick, a spike or an explosion
at most one later, oscillation and divergence within one window of their detector. Deterministic; asserts nothing.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from false_alarms import TASKS, Spec, make_optimizer
from torch import Tensor

import guard
from guard.detectors import DETECTORS

BEFORE, AFTER = 40, 120  # ticks whose losses tell whether a slow fault did harm
HARM = 1.3


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Args:
        detectors: whose business it is.
        target: largest delay aimed at [ticks]; None: the window of the detectors.
        lasts: from its tick on, not only in it.
        spoil: takes the loss and a size drawn for this run; what is trained on instead.
        rate: factor on the learning rate while it lasts; takes the size.
        sizes: smallest and largest size.
    """

    detectors: tuple[str, ...]
    target: int | None
    sizes: tuple[float, float] = (1.0, 1.0)
    lasts: bool = False
    spoil: Callable[[Tensor, float], Tensor] | None = None
    rate: Callable[[float], float] | None = None


def stretched(loss: Tensor, factor: float) -> Tensor:
    """The same loss with `factor` times its gradient."""
    return loss + (factor - 1) * (loss - loss.detach())


FAULTS = {
    "non-finite loss": Fault(("non_finite",), 0, spoil=lambda loss, _: loss * math.nan),
    "non-finite gradient": Fault(("non_finite",), 0, spoil=lambda loss, _: loss + (loss - loss.detach()).abs().sqrt()),
    "loss spike": Fault(("loss_spike",), 1, (10.0, 300.0), spoil=lambda loss, size: loss * size),
    "gradient explosion": Fault(("grad_explosion",), 1, (30.0, 3000.0), spoil=stretched),
    "oscillation (rate too high)": Fault(
        ("oscillation", "divergence"), None, (8.0, 60.0), lasts=True, rate=lambda size: size
    ),
    "divergence (gradient upside down)": Fault(
        ("divergence",), None, (0.05, 0.4), lasts=True, spoil=lambda loss, size: stretched(loss, -size)
    ),
}


@dataclass
class Seen:
    """One run.

    Args:
        first: detector -> tick of its first word at or after the fault.
        early: detectors that spoke before it.
    """

    at: int
    losses: list[float] = field(default_factory=list)
    first: dict[str, int] = field(default_factory=dict)
    early: set[str] = field(default_factory=set)


def draw(fault: str, number: int, seed: int) -> tuple[Spec, int, float]:
    """A healthy run, the tick of its fault, and the fault's size."""
    r = random.Random(f"{seed}/{fault}/{number}")
    task, loss = r.choice(
        (
            ("mlp", "ce"),
            ("mlp", "bce"),
            ("gru", "ce"),
            ("regression", "huber"),
            ("autoencoder", "mse"),
            ("language", "ce"),
            ("conv", "ce"),
            ("regression", "mse"),
        )
    )
    optimizer = r.choice(("momentum", "nesterov", "adam", "rmsprop"))
    rate = {"momentum": 1e-2 * TASKS[task].sgd, "nesterov": 1e-2 * TASKS[task].sgd}.get(optimizer, 2e-3)
    low, high = FAULTS[fault].sizes
    size = math.exp(r.uniform(math.log(low), math.log(high)))
    spec = Spec(
        number,
        task,
        loss,
        optimizer,
        "constant",
        "fp32",
        r.choice((16, 32, 64)),
        420,
        rate * r.uniform(0.7, 1.4) * TASKS[task].rate,
        0.0,
        0.0,
        r.randrange(10_000),
    )
    return spec, r.randrange(150, 260), size


def watch(name: str, number: int, seed: int) -> Seen:
    fault = FAULTS[name]
    spec, at, size = draw(name, number, seed)
    torch.manual_seed(spec.seed)
    parts = TASKS[spec.task].make(spec)
    optimizer = make_optimizer(spec, parts.model)
    seen = Seen(at)
    with (
        tempfile.TemporaryDirectory() as folder,
        guard.attach(parts.model, optimizer, run_dir=f"{folder}/run", receivers=[], mode="observe") as g,
    ):
        for tick, batch in enumerate(g.batches(parts.batches, steps=min(spec.steps, at + 2 * AFTER))):
            now = tick == at or (fault.lasts and tick > at)
            if tick == at and fault.rate is not None:
                for group in optimizer.param_groups:
                    group["lr"] *= fault.rate(size)
            optimizer.zero_grad()
            loss = parts.loss(parts.model, batch)
            if now and fault.spoil is not None:
                loss = fault.spoil(loss, size)
            g.backward(loss)
            optimizer.step()
            seen.losses.append(float(loss))
            hear(g, tick, seen)
            if not fault.lasts and tick > at + 20:
                break
    return seen


def hear(g: guard.Guard, tick: int, seen: Seen) -> None:
    for detection in g.slots[0].bank.flagged.values():
        if tick < seen.at:
            seen.early.add(detection.detector)
        else:
            seen.first.setdefault(detection.detector, tick - seen.at)


def harmful(fault: Fault, seen: Seen) -> bool:
    """A higher rate may be welcome: then there is nothing to see."""
    if not fault.lasts:
        return True
    before = statistics.fmean(seen.losses[seen.at - BEFORE : seen.at])
    after = statistics.fmean(seen.losses[seen.at :][:AFTER])
    return not after < before + (HARM - 1) * abs(before)


def window_of(fault: Fault) -> int:
    if fault.target is not None:
        return fault.target
    found = [DETECTORS.get(name) for name in fault.detectors]
    return max(cls.Params().window for cls in found if cls is not None)


def middle(values: list[int]) -> str:
    return f"{statistics.median(values):6.0f}{max(values):8}" if values else f"{'-':>6}{'-':>8}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="6 runs of each kind")
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    print(
        f"{'':36}{'runs':>6}{'named':>7}{'in time':>9}{'delay: median, most':>22}{'any word: median, most':>24}"
        f"{'target':>8}"
    )
    for name, fault in FAULTS.items():
        runs = [watch(name, n, chosen.seed) for n in range(6 if chosen.quick else chosen.runs)]
        hurt = [r for r in runs if harmful(fault, r)]
        words = [[r.first[d] for d in fault.detectors if d in r.first] for r in hurt]
        own = [min(ticks) for ticks in words if ticks]
        every = [min(r.first.values()) for r in hurt if r.first]
        target = window_of(fault)
        in_time = sum(d <= target for d in own)
        print(
            f"{name:36}{len(hurt):6}{len(own):7}{in_time:9}{'':8}{middle(own)}{'':10}{middle(every)}{target:8}",
            flush=True,
        )
        early = [d for r in runs for d in r.early if d != "lr_jump"]
        if early:
            print(f"    spoke before the fault: {', '.join(sorted(early))}")


if __name__ == "__main__":
    main()
