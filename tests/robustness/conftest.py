"""A small training run under a guard, whose disk and plug-ins the tests break."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import guard
from guard.incidents import read_journal, rundir

BAD_BATCH = {
    "name": "skip-nan",
    "severity": "critical",
    "trigger": {"type": "non_finite"},
    "actions": [{"type": "skip_step"}],
    "resolve_after": 3,
}


class Training:
    """Linear regression, an index per batch; a poisoned batch makes the loss NaN by arithmetic (inf - inf)."""

    def __init__(
        self, run_dir: Path, *policies: dict[str, Any], checkpoints: dict[str, Any] | None = None, **options: Any
    ) -> None:
        torch.manual_seed(0)
        self.run_dir, self.index, self.poisoned = run_dir, 0, set[int]()
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        policy = {
            "version": 1,
            "checkpoints": checkpoints or {"every": 5, "probation": 1},
            "policies": list(policies) or [BAD_BATCH],
        }
        self.guard = guard.attach(
            self.model, self.optimizer, policy=policy, run_dir=run_dir, **{"receivers": [], **options}
        )

    def steps(self, count: int) -> None:
        for _ in range(count):
            generator = torch.Generator().manual_seed(self.index)
            x = torch.randn(16, 4, generator=generator)
            y = x.sum(1, keepdim=True)
            if self.index in self.poisoned:
                x = x * torch.inf
            self.index += 1
            self.optimizer.zero_grad()
            nn.functional.mse_loss(self.model(x), y).backward()
            self.optimizer.step()

    def fault(self) -> None:
        """One poisoned batch, and as many good ones as end its incident."""
        self.poisoned.add(self.index)
        self.steps(5)

    @property
    def finite(self) -> bool:
        return all(bool(p.isfinite().all()) for p in self.model.parameters())

    @property
    def journal(self) -> list[dict[str, Any]]:
        return read_journal(self.run_dir)

    @property
    def kinds(self) -> list[str]:
        return [e["kind"] for e in self.journal]


Train = Callable[..., Training]


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Train]:
    runs: list[Training] = []

    def make(*policies: dict[str, Any], **options: Any) -> Training:
        runs.append(Training(options.pop("run_dir", tmp_path / "run"), *policies, **options))
        return runs[-1]

    yield make
    for run in runs:
        run.guard.close(timeout=5.0)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are looked for at every step, and a disk that does not answer is given up on sooner."""
    monkeypatch.setattr(rundir, "_ASK", 0.0)
    monkeypatch.setattr(rundir, "_PATIENCE_DURABLE", 0.5)
