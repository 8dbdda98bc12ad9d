"""Does the diagnosis name the right cause, and the place where a NaN was born?

    python benchmarks/diagnosis.py [--planted] [--faults] [--gauntlet FOLDER] [--seeds 0 1 2]

`--planted` (the default): runs with one fault each, of which module and function are known
(`tests/diagnosis/planted.py`). `--faults`: the cases of `tests/faults` that have one cause, under the default policy.
`--gauntlet`: cases of the same kind from a folder outside this project, which has `run_guarded.py`. Prints a row a run,
and for each kind how many were right.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import guard
from guard.incidents.diagnose import Diagnosis, from_plain

TESTS = Path(__file__).parents[1] / "tests"

# What a person would say of the gauntlet's cases; where two words are true of one fault, either is right.
GAUNTLET = {
    "lr_too_high": "learning_rate",
    "garbage_batch": "bad_batch",
    "rnn_no_clip": "learning_rate numerical_domain",  # a recurrent network explodes at a rate that is too high
    "double_softmax": "model_or_code",
    "frozen_adapter": "model_or_code",
    "dead_relu": "learning_rate",
    "oscillating_lr": "learning_rate",
    "resume_lr_reset": "learning_rate corrupted_state",  # the rate is back at its peak, and the moments are lost
    "transformer_no_warmup": "learning_rate",
    "zero_grad_forgotten": "model_or_code",
    "fp16_output_overflow": "precision_overflow",
    "scaler_collapse_overflow": "precision_overflow",
    "nan_sample": "bad_batch",
    "all_labels_ignored": "bad_batch",
    "weight_bitflip": "corrupted_state",
    "log_of_zero": "numerical_domain",
}
FAULTS = {
    "root_of_zero": "numerical_domain",
    "log_of_underflow": "bad_batch numerical_domain",  # one sample is a hundred times too large, for log(softmax(x))
    "norm_of_nothing": "bad_batch numerical_domain",  # one image is blank, for x / x.norm()
    "variance_runs_over": "bad_batch",
    "attention_logits_grow": "precision_overflow",
    "half_weights": "precision_underflow",
    "variance_collapse": "bad_batch",
    "impossible_transcript": "bad_batch",
    "minus_infinity": "bad_batch",
    "broken_crop": "transient",
    "momentum_bit": "corrupted_state",
    "statistics_bit": "corrupted_state",
    "masks_of_255": "bad_batch",
    "corrupt_shard": "bad_batch",
    "every_fortieth": "bad_batch",
    "busy_day": "bad_batch",
    "restart_too_high": "learning_rate",
    "momentum_0999": "learning_rate",
    "late_divergence": "learning_rate",
    "one_point": "learning_rate",
    "relus_off": "model_or_code",
    "wrong_parameters": "model_or_code",
    "detached": "model_or_code",
    "targets_shuffled": "model_or_code",
    "mask_of_zeros": "model_or_code",
}


def first(incidents: list[guard.Incident]) -> tuple[Diagnosis | None, str]:
    """The first diagnosis of a run, and what was seen."""
    seen = ", ".join(dict.fromkeys(i.detector for i in incidents))
    told = [d for i in incidents if "diagnosis" in i.evidence and (d := from_plain(i.evidence["diagnosis"]))]
    return (told[0] if told else None), seen


def row(name: str, expected: str, found: Diagnosis | None, seen: str, *, place: bool | None = None) -> bool:
    """Prints one run; True: the cause is right."""
    right = found is not None and found.cause in expected.split()
    origin = found.evidence.origin if found is not None else None
    where = (
        "" if origin is None else f"{origin.first.name or ('loss' if origin.outside else '(root)')} {origin.first.op}"
    )
    trials = sum(t.steps for t in found.evidence.trials if t.bad is not None) if found is not None else 0
    seconds = found.evidence.seconds if found is not None else 0.0
    mark = "ok" if right and place is not False else "WRONG"
    said = found.cause if found is not None else f"- ({seen or 'nothing seen'})"
    placed = "" if place is None else "right place" if place else "WRONG PLACE"
    print(
        f"{name:42} {mark:6} {expected:33} {said:20} {where:30} {placed:12} {trials:4} steps {seconds:5.2f} s",
        flush=True,
    )
    return right


def planted() -> bool:
    sys.path.insert(0, str(TESTS / "diagnosis"))
    import planted as material

    causes, places = 0, 0
    for fault in material.FAULTS:
        found = material.run(fault)
        right = found.diagnosis is not None and material.right_place(fault, found.diagnosis)
        causes += row(fault.name, fault.cause, found.diagnosis, "", place=right)
        places += right
    n = len(material.FAULTS)
    print(f"planted faults: right cause {causes}/{n}, right place {places}/{n}\n")
    return causes >= 0.9 * n and places == n


def own_faults(seeds: list[int]) -> bool:
    sys.path.insert(0, str(TESTS))
    from faults import _run as material

    return several(
        "own faults", seeds, FAULTS, {c.name: lambda s, c=c: _of_fault(material, c, s) for c in material.cases()}
    )


def _of_fault(material: Any, case: Any, seed: int) -> None:
    material.guarded(case, seed)


def gauntlet(folder: Path, seeds: list[int]) -> bool:
    sys.path.insert(0, str(folder))
    import run_guarded as material

    runs = {c.name: lambda s, c=c: material.train_guarded(c, s, "default", None) for c in material.load(folder)}
    return several("gauntlet", seeds, GAUNTLET, runs)


def several(title: str, seeds: list[int], expected: dict[str, str], runs: dict[str, Callable[[int], Any]]) -> bool:
    """All cases that have a cause, with the incidents of each run taken from the guard that it attaches."""
    right = total = 0
    for name, causes in expected.items():
        for seed in seeds:
            with watched() as guards:
                runs[name](seed)
            found, seen = first(guards[-1].incidents)
            right += row(f"{name}, seed {seed}", causes, found, seen)
            total += 1
    print(f"{title}: right cause {right}/{total}\n")
    return right >= 0.9 * total


class watched:  # noqa: N801 - a context manager
    """Collects the guards that are attached inside."""

    def __enter__(self) -> list[guard.Guard]:
        found: list[guard.Guard] = []
        self._real = real = guard.attach

        def attach(*args: Any, **kwargs: Any) -> guard.Guard:
            found.append(real(*args, **kwargs))
            return found[-1]

        guard.attach = attach  # type: ignore[assignment]
        return found

    def __exit__(self, *_: object) -> None:
        guard.attach = self._real  # type: ignore[assignment]


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--planted", action="store_true")
    ap.add_argument("--faults", action="store_true")
    ap.add_argument("--gauntlet", type=Path)
    ap.add_argument("--seeds", type=int, nargs="+", default=[0])
    a = ap.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    print(f"torch {torch.__version__}, 1 thread")
    fine = []
    if a.planted or not (a.faults or a.gauntlet):
        fine.append(planted())
    if a.faults:
        fine.append(own_faults(a.seeds))
    if a.gauntlet:
        fine.append(gauntlet(a.gauntlet.absolute(), a.seeds))
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
