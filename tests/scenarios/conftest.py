"""What the stories share: the three mission policies, and a run told from its journal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import guard
from guard.incidents import IncidentLog, read_journal
from guard.notify import render
from guard.types import Incident

POLICIES = """\
version: 1
name: mission
checkpoints: {every: 50 steps, probation: 20 steps}
policies:
  - name: nan-rollback-retry-bf16
    description: Roll back to the last good checkpoint and retry in BF16.
    severity: critical
    trigger: {type: non_finite}
    diagnose: false            # these stories are about the ladder; test_diagnosis.py tells what finding the cause does
    attempts:
      - [{type: rollback, data: replay}, {type: precision, dtype: bf16}]
      - [{type: rollback, data: skip_offending}]
      - [{type: rollback, to: previous, data: skip_window}, {type: scale_lr, factor: 0.5}]
      - [{type: stop, restore: last_good}]
  - name: clip-on-explosion
    severity: warning
    trigger: {type: grad_explosion}
    actions: [{type: clip, max_norm: auto}]
  - name: halve-lr-on-oscillation
    severity: warning
    trigger: {type: oscillation}
    actions: [{type: scale_lr, factor: 0.5, min_lr: 1e-7}]
    limits: {cooldown: 300 steps, max: 4, per: 10000 steps}
"""


class Night:
    """A guarded run, and what its journal says in the morning."""

    def __init__(self, run_dir: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        policy = run_dir.with_name("mission.yaml")
        policy.write_text(POLICIES)
        self.run_dir = run_dir
        self.guard = guard.attach(model, optimizer, policy=policy, run_dir=run_dir, receivers=[], **options)

    @property
    def journal(self) -> list[dict[str, Any]]:
        return read_journal(self.run_dir)

    @property
    def kinds(self) -> list[str]:
        """The journal's kinds in order, without what the guard notes for itself; storms of firings count once."""
        kinds = [e["kind"] for e in self.journal if e["kind"] != "memory"]
        return [k for i, k in enumerate(kinds) if k != "incident_fired" or kinds[i - 1] != k]

    @property
    def log(self) -> IncidentLog:
        return IncidentLog(self.journal)

    def message(self, incident: Incident) -> str:
        """What a person reads of it."""
        return render.to_terminal(render.root(self.log, incident), width=200)

    def thread(self, incident: Incident) -> list[str]:
        return [r.text for r in render.replies(self.log, incident)]

    def loss(self, tick: int) -> float:
        return float(next(row[2] for row in self.guard.signals if row[0] == tick))


@pytest.fixture
def night(tmp_path: Path) -> Callable[..., Night]:
    def begin(model: torch.nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> Night:
        return Night(tmp_path / "friday", model, optimizer, **options)

    return begin


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
