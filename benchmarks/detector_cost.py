"""What detectors and policies cost in a healthy tick, warm: pure Python, no torch in the loop.

    python benchmarks/detector_cost.py [--ticks 20000] [--rounds 15]

Three questions: 12 different detectors per tick (at most 3 us); a window of 5000 against one of 50 (at most 1.15
times); 300 policies that share 3 triggers against 3 (at most 1.2 times). Variants take turns, the least round of each
counts; time is this process's own. Prints, asserts nothing.
"""

from __future__ import annotations

import argparse
import gc
import math
import random
import time
from collections.abc import Mapping
from typing import Any

from guard.bank import Bank, Rules
from guard.detectors import DETECTORS
from guard.policy import load
from guard.types import Signals

# The twelve that watch every run; `threshold` needs a limit of its own.
TWELVE = (
    "non_finite",
    "loss_spike",
    "grad_explosion",
    "grad_vanishing",
    "oscillation",
    "divergence",
    "flat_loss",
    "plateau",
    "overfitting",
    "loss_scale_collapse",
    "dead_parameters",
    "lr_jump",
)
WINDOWED = ("loss_spike", "grad_explosion", "oscillation", "divergence")
WARM_UP = 12_000  # ticks: more than twice the longest window


def healthy(count: int) -> list[tuple[float, float]]:
    """Losses that fall to a level under noise, with their gradient norms."""
    r = random.Random(0)
    return [(0.4 + 2 * math.exp(-i / 300) + 0.05 * r.gauss(0, 1), math.exp(0.2 * r.gauss(0, 1))) for i in range(count)]


def policies(names: tuple[str, ...], *, copies: int = 1, **parameters: Any) -> Mapping[str, Any]:
    """One policy per detector and copy. Copies wait for the same trigger, as policies of one file often do."""

    def trigger(name: str) -> dict[str, Any]:
        return {"type": name, **parameters}

    return {
        "version": 1,
        "policies": [
            {"name": f"{name}-{copy}".replace("_", "-"), "trigger": trigger(name), "actions": [{"type": "skip_step"}]}
            for copy in range(copies)
            for name in names
        ],
    }


class Ticks:
    """A warm bank, ticked as the guard does it: score, then learn."""

    def __init__(self, chosen: Mapping[str, Any]) -> None:
        self.bank: Bank = Rules(load(chosen)).bank()
        self.at, self.fired, self.best = 0, 0, math.inf
        trace = healthy(2 * WARM_UP)
        self.usual = trace[WARM_UP:]
        self._pass(trace[:WARM_UP])

    def run(self, count: int) -> float:
        """Seconds per tick."""
        spent, left = 0.0, count
        while left > 0:
            spent += self._pass(self.usual[:left])
            left -= len(self.usual)
        return spent / count

    def _pass(self, values: list[tuple[float, float]]) -> float:
        bank, s, at = self.bank, Signals(), self.at
        s.lr = s.lr_effective = 0.01
        s.loss_known = True
        start = time.process_time()
        for loss, norm in values:
            s.tick = s.step = at
            s.loss, s.grad_norm = loss, norm
            bank.flagged = bank.score(s)
            if bank.flagged:
                self.fired += 1
            bank.learn(s)
            at += 1
        spent = time.process_time() - start
        self.at = at
        return spent


def empty(count: int) -> float:
    """The loop alone."""
    s = Signals()
    trace = healthy(count)
    start = time.process_time()
    for i, (loss, norm) in enumerate(trace):
        s.tick = s.step = i
        s.loss, s.grad_norm = loss, norm
    return (time.process_time() - start) / count


def compare(variants: dict[str, Mapping[str, Any]], ticks: int, rounds: int) -> dict[str, float]:
    """Least time of a tick [us] of each variant, without the loop itself."""
    ready = {name: Ticks(chosen) for name, chosen in variants.items()}
    loop = min(empty(ticks) for _ in range(rounds))
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for one in ready.values():
                one.best = min(one.best, one.run(ticks))
    finally:
        gc.enable()
    for name, one in ready.items():
        if one.fired:
            print(f"  {name}: {one.fired} detections in what should be a healthy trace")
    return {name: 1e6 * (one.best - loop) for name, one in ready.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ticks", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=15)
    chosen = parser.parse_args()
    missing = [name for name in TWELVE if name not in DETECTORS]
    assert not missing, missing

    each = compare({name: policies((name,)) for name in TWELVE}, chosen.ticks // 4, max(3, chosen.rounds // 3))
    for name, cost in sorted(each.items(), key=lambda pair: -pair[1]):
        print(f"  {name:22}{cost:8.3f} us alone")
    twelve = compare({"12 detectors": policies(TWELVE)}, chosen.ticks, chosen.rounds)["12 detectors"]
    print(f"12 detectors: {twelve:.2f} us per tick (target 3)")

    sizes = compare({str(w): policies(WINDOWED, window=f"{w} steps") for w in (50, 5000)}, chosen.ticks, chosen.rounds)
    long, short = sizes["5000"], sizes["50"]
    print(f"window 5000 / 50: {long / short:.3f} ({long:.2f} / {short:.2f} us; target 1.15)")

    many = compare(
        {str(3 * n): policies(("non_finite", "loss_spike", "oscillation"), copies=n) for n in (1, 100)},
        chosen.ticks,
        chosen.rounds,
    )
    print(f"300 policies / 3: {many['300'] / many['3']:.3f} ({many['300']:.2f} / {many['3']:.2f} us; target 1.2)")


if __name__ == "__main__":
    main()
