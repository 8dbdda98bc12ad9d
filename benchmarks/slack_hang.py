"""What a Slack that hangs for 30 seconds costs a training step.

Two guarded runs of the same small model take turns, block by block: one tells nobody, one tells a server on this
machine that accepts every connection and never answers. Both see the same poisoned batches, so that there is something
to tell. Prints the 99th percentile of the step time of the second divided by that of the first (target: at most 1.1),
and how long `close()` takes (at most 5 s). Asserts nothing.

    python benchmarks/slack_hang.py [--steps 20000]
"""

from __future__ import annotations

import argparse
import random
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path

import torch
from torch import nn

import guard
from guard.notify import ReceiverSpec

BLOCK = 100
FAULT_EVERY = 400  # steps; each is an incident to be told


class Run:
    """One guarded run and the times of its steps."""

    def __init__(self, run_dir: Path, receivers: list[ReceiverSpec]) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        policy = {
            "version": 1,
            "extends": "default",
            "policies": [{"name": "nan-rollback-retry-bf16", "attempts": [[{"type": "skip_step"}]]}],
        }
        self.guard = guard.attach(self.model, self.optimizer, policy=policy, run_dir=run_dir, receivers=receivers)
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(16, 64, 64, generator=generator)
        self.y = torch.randint(10, (16, 64), generator=generator)
        self.times: list[float] = []
        self.done = 0

    def block(self) -> None:
        for _ in range(BLOCK):
            start = time.perf_counter()
            x = self.x[self.done % 16]
            if self.done % FAULT_EVERY == FAULT_EVERY - 1:
                x = x * torch.inf
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x), self.y[self.done % 16]).backward()
            self.optimizer.step()
            self.times.append(time.perf_counter() - start)
            self.done += 1

    def percentile(self, p: float) -> float:
        return sorted(self.times)[int(p * (len(self.times) - 1))]


def never_answers() -> str:
    """Starts a server that takes every connection and says nothing; its address."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    taken = []

    def accept() -> None:
        while True:
            taken.append(listener.accept())

    threading.Thread(target=accept, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/api/"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--steps", type=int, default=20_000, help="of each run")
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    slack = ReceiverSpec(
        "team", "slack", channel="#training", token="xoxb-none", base_url=never_answers(), timeout=30.0
    )
    with tempfile.TemporaryDirectory() as folder:
        runs = {"tells nobody": Run(Path(folder) / "quiet", []), "Slack hangs": Run(Path(folder) / "hangs", [slack])}
        order = random.Random(0)
        for _ in range(steps // BLOCK):
            for run in order.sample(list(runs.values()), 2):
                run.block()
        print(f"{'':14}{'median':>12}{'99 %':>12}{'99.9 %':>12}{'largest':>12}   [ms]")
        for name, run in runs.items():
            row = (statistics.median(run.times), run.percentile(0.99), run.percentile(0.999), max(run.times))
            print(f"{name:14}" + "".join(f"{t * 1e3:12.3f}" for t in row))
        quiet, hangs = runs.values()
        ratio = hangs.percentile(0.99) / quiet.percentile(0.99)
        print(f"99th percentile, Slack hangs / tells nobody: {ratio:.3f} (target <= 1.1)")
        print(f"incidents told of: {len(hangs.guard.incidents)}")
        for name, run in runs.items():
            start = time.perf_counter()
            run.guard.close()
            print(f"close(), {name}: {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
