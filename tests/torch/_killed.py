"""A run that is killed at random moments and started again, as often as it takes; a program of its own.

    python _killed.py FOLDER KILLS SEED KIND

Forks every run from a process that has loaded torch and done nothing else. A run kills itself, at a random read of a
batch or at a random file operation, which is often in the middle of a save. Prints one JSON line about it all.
"""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # what is loaded late is loaded once, before any fork
import torch.distributed.checkpoint
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

import guard
import guard.attaching  # likewise
from guard.incidents import read_journal

STEPS = 240
CHECKPOINTS = {"every": "5 steps", "probation": "2 steps", "disk": {"every": "7 steps", "keep": 2}}
POLICY = {"version": 1, "extends": "default", "checkpoints": CHECKPOINTS}


def train(folder: Path, name: str, kind: str, on_batch: Callable[[], None]) -> None:
    """Dropout, BatchNorm, momentum, a schedule, accumulation, a shuffled loader."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    random.seed(1)
    model = nn.Sequential(nn.Linear(16, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    x = torch.randn(96, 16)
    data = torch.utils.data.TensorDataset(x, (x @ torch.randn(16, 4)).argmax(1))
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    g = guard.attach(model, optimizer, scheduler=schedule, policy=POLICY, run_dir=folder / name, receivers=[])
    accumulate = 2 if kind == "accumulated" else 1

    def batches() -> Any:
        if kind == "epochs":
            for _ in range(STEPS // len(loader)):
                yield from g.batches(loader)
                g.log(val_loss=1.0 / (1 + g.step))
        else:
            yield from g.batches(loader, steps=STEPS, accumulate=accumulate)

    for number, (bx, by) in enumerate(batches(), start=1):
        on_batch()
        if number % accumulate == 1 % accumulate:
            optimizer.zero_grad()
        g.backward(F.cross_entropy(model(bx), by))
        if number % accumulate == 0:
            optimizer.step()
            schedule.step()
    state = model.state_dict()
    g.close()
    torch.save(state, folder / f"{name}.pt")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def plan(r: random.Random) -> Callable[[], None]:
    """Arranges this process's end; returns what is to be called at every batch."""
    left = {"batch": r.randrange(1, 2 * STEPS)} if r.random() < 0.5 else {"file": r.randrange(1, 400)}

    def count(what: str) -> None:
        if what in left:
            left[what] -= 1
            if not left[what]:
                die()

    for name in ("fsync", "replace", "rename", "open", "write"):
        real = getattr(os, name)

        def counted(*args: Any, _real: Any = real, **kwargs: Any) -> Any:
            count("file")
            return _real(*args, **kwargs)

        setattr(os, name, counted)
    return lambda: count("batch")


def fork(run: Callable[[], None]) -> int:
    """Exit code, or minus the signal that ended it."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        code = 1
        try:
            run()
            code = 0
        except BaseException:  # noqa: BLE001 - told by the exit code
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / name / "signals.csv").open() as file:
        return [{k: v for k, v in row.items() if k != "segment"} for row in csv.DictReader(file)]


def main() -> None:
    folder, kills, r, kind = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3])), sys.argv[4]
    assert fork(lambda: train(folder, "whole", kind, lambda: None)) == 0
    whole = torch.load(folder / "whole.pt", weights_only=True)
    done, wrong, resumed, runs = 0, [], 0, 0
    while done < kills:
        name, code = f"killed-{runs}", -signal.SIGKILL
        runs += 1
        for attempt in range(4):
            seed = r.random()
            last = attempt == 3

            def run(seed: float = seed, last: bool = last, name: str = name) -> None:
                train(folder, name, kind, (lambda: None) if last else plan(random.Random(seed)))

            code = fork(run)
            if code != -signal.SIGKILL:
                break
            done += 1
            if any(e["kind"] == "run_finished" for e in read_journal(folder / name)):
                break  # killed after its end
        if code == -signal.SIGKILL:
            continue
        journal = read_journal(folder / name)
        resumed += sum(e["kind"] == "resumed" for e in journal)
        weights = torch.load(folder / f"{name}.pt", weights_only=True) if code == 0 else {}
        same = all(torch.equal(v, weights.get(k, torch.empty(0))) for k, v in whole.items())
        signals = code == 0 and rows(folder, name) == rows(folder, "whole")
        gapless = [e["seq"] for e in journal] == list(range(len(journal)))
        if not (code == 0 and same and signals and gapless):
            wrong.append([name, code, same, signals, gapless])
    print(json.dumps({"kills": done, "runs": runs, "resumed": resumed, "wrong": wrong}))


if __name__ == "__main__":
    main()
