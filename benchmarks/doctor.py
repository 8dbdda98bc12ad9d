"""What the doctor says of broken and healthy set-ups: a table of set-ups x checks, over seeds.

    python benchmarks/doctor.py                        # all set-ups, one seed, quick
    python benchmarks/doctor.py --seeds 3 --full char_lm cnn

A letter per check: P pass, W warning, F fail, . skipped or explained; the worst over seeds. `!` stands behind a check
that speaks although it is not the one at fault, `missed` where the right one was silent for some seed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "doctor"))
from setups import BROKEN, HEALTHY

import guard
from guard.doctor import ORDER, Report

_LETTERS = {"PASS": "P", "WARN": "W", "FAIL": "F", "SKIP": "."}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="set-ups; all by default")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--full", action="store_true", help="without --quick")
    parser.add_argument("--why", action="store_true", help="print every finding that is no PASS")
    arguments = parser.parse_args()
    print(f"{'':<24}" + "".join(f"{name[:6]:>8}" for name in ORDER) + "       s")
    for name, (make, right) in {**{n: (m, frozenset[str]()) for n, m in HEALTHY.items()}, **BROKEN}.items():
        if arguments.names and name not in arguments.names:
            continue
        reports, seconds = [], []
        for seed in range(arguments.seeds):
            begun = time.monotonic()
            reports.append(guard.doctor.examine(guard.doctor.Setup.of(make(seed)), quick=not arguments.full, seed=seed))
            seconds.append(time.monotonic() - begun)
        print(line(name, reports, right) + f"{statistics.mean(seconds):>8.1f}" + verdict(reports, right), flush=True)
        if arguments.why:
            for finding in (f for r in reports for f in r.findings if f.verdict != "PASS"):
                print(f"      {finding.check:<12}{finding.verdict:<5}{finding.sentence}")


def line(name: str, reports: list[Report], right: frozenset[str]) -> str:
    cells = []
    for check in ORDER:
        worst = max((r.verdict_of(check) for r in reports), key=("SKIP", "PASS", "WARN", "FAIL").index)
        wrong = worst in ("WARN", "FAIL") and check not in right
        cells.append(f"{_LETTERS[worst] + ('!' if wrong else ''):>8}")
    return f"{name:<24}" + "".join(cells)


def verdict(reports: list[Report], right: frozenset[str]) -> str:
    missed = [r for r in reports if right and not any(r.verdict_of(c) in ("WARN", "FAIL") for c in right)]
    return f"   missed {len(missed)} of {len(reports)}" if missed else ""


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
