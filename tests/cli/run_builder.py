"""A run directory as a guard would leave it, written entry by entry."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

from guard.incidents.journal import NAME, encode
from guard.incidents.rundir import CSV_COLUMNS
from guard.process import boot_id, started

START = 1_700_000_000.0
POLICY = """\
version: 1
name: night
policies:
- name: clip-on-explosion
  trigger: {type: grad_explosion}
  actions: [{type: clip, max_norm: auto}]
- name: nan-rollback-retry-bf16
  severity: critical
  trigger: {type: non_finite}
  attempts:
  - - {type: rollback, data: replay}
    - {type: precision, dtype: bf16}
receivers:
  out: {type: webhook, url: "${GUARD_TEST_HOOK:-}"}
  here: {type: console, min_severity: critical}
"""


class RunBuilder:
    """Each method writes what its name says; ticks and times go on by themselves."""

    def __init__(self, path: Path) -> None:
        self.path, self.seq, self.tick, self.time = path, 0, 1200, START
        path.mkdir(parents=True)
        (path / "policy.yaml").write_text(POLICY)
        self.write(
            "run_started",
            run=path.name,
            run_dir=str(path),
            host="node7",
            pid=4711,
            rank=0,
            script="train.py",
            mode="enforce",
            policy="night",
            policy_digest="0",
            versions={},
        )

    def write(self, kind: str, **keys: Any) -> dict[str, Any]:
        entry = {
            "v": 1,
            "seq": self.seq,
            "time": self.time,
            "kind": kind,
            "tick": self.tick,
            "step": self.tick - 20,
            **keys,
        }
        with (self.path / NAME).open("ab") as file:
            file.write(encode(entry))
        self.seq, self.tick, self.time = self.seq + 1, self.tick + 1, self.time + 1
        return entry

    def raw(self, line: bytes) -> None:
        with (self.path / NAME).open("ab") as file:
            file.write(line)

    def opened(
        self,
        id: str,
        *,
        severity: str = "critical",
        detector: str = "non_finite",
        policy: str = "nan-rollback-retry-bf16",
        message: str = "loss is nan",
        observed: bool = False,
        attached_to: str | None = None,
    ) -> None:
        detection = {
            "signal": "loss",
            "value": float("nan"),
            "threshold": float("inf"),
            "baseline": 2.3125,
            "since": self.tick - 2,
            "message": message,
        }
        rows = [[self.tick - n, self.tick - n - 20, 2.3 + n / 100, 0.81, 1e-3, 1e-3, 1.0] for n in range(12, 0, -1)]
        self.write(
            "incident_opened",
            incident=id,
            policy=policy,
            detector=detector,
            severity=severity,
            detection=detection,
            observed=observed,
            attached_to=attached_to,
            signals=rows,
        )

    def attempt(
        self,
        id: str,
        *results: dict[str, Any],
        rung: int = 0,
        would: bool = False,
        unavailable: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.write(
            "attempt",
            incident=id,
            rung=rung,
            rungs=4,
            repeat=0,
            escalated=rung > 0,
            would=would,
            results=list(results),
            unavailable=[list(u) for u in unavailable],
        )

    def closed(self, id: str, status: str = "resolved", count: int = 1) -> None:
        self.write(
            "incident_closed",
            incident=id,
            status=status,
            count=count,
            outcome={"loss_before": 2.31, "loss_after": 2.29, "loss_expected": 2.3, "steps_lost": 40},
        )

    def undone(self, id: str, **changes: Any) -> None:
        self.write("undone", incident=id, author="ada", changes=changes)

    def finished(self, status: str = "finished") -> None:
        self.write("run_finished", status=status, summary={})

    def signals(self, *, lr: float = 1e-3, effective: float = 1e-3) -> None:
        row = (self.tick, self.tick - 20, 2.29, 0.8, lr, effective, 1.0, 0)
        (self.path / "signals.csv").write_text(",".join(CSV_COLUMNS) + "\n" + ",".join(map(str, row)) + "\n1299,12")

    def beat(self, at: float, phase: str = "step") -> None:
        text = f"{self.tick} {self.tick - 20} {phase} 12.000 {at:.3f}"
        (self.path / "heartbeat.0").write_text(text.ljust(79) + "\n")

    def alive(self) -> None:
        """This test's own process owns the directory, under another pid's name: the parent's."""
        pid = os.getppid()
        owner = {"host": socket.gethostname(), "boot": boot_id(), "pid": pid, "started": started(pid), "expires": 2e9}
        (self.path / "owner.json").write_text(json.dumps(owner))


def rollback() -> dict[str, Any]:
    return {
        "type": "rollback",
        "summary": "rolled back 40 steps to step 1,160 and replays the same batches",
        "changes": {"from_step": 1200, "to_step": 1160, "skipped_windows": 0},
        "standing": False,
    }


def bf16() -> dict[str, Any]:
    return {"type": "precision", "summary": "switched to BF16", "changes": {"precision": "bf16"}, "standing": True}


def halved(before: float = 1.0) -> dict[str, Any]:
    return {
        "type": "scale_lr",
        "summary": "scaled the learning rate by 0.5",
        "standing": True,
        "changes": {"lr_multiplier": [before, before / 2]},
    }


def a_night(path: Path) -> RunBuilder:
    """A repaired NaN, a clip that rode along, a spike that is being watched, and a fault only observed."""
    run = RunBuilder(path)
    run.opened("i0001")
    run.attempt("i0001", rollback(), bf16(), unavailable=(("clip", "there is no usual norm yet"),))
    run.opened(
        "i0002",
        severity="warning",
        detector="grad_explosion",
        policy="clip-on-explosion",
        attached_to="i0001",
        message="gradient norm 812 is 900 times its usual",
    )
    run.tick += 25
    run.closed("i0002", "ended")
    run.closed("i0001", count=3)
    run.tick += 500
    run.opened(
        "i0003",
        severity="warning",
        detector="oscillation",
        policy="halve-lr-on-oscillation",
        observed=True,
        message="loss swings between 2.1 and 3.4",
    )
    run.opened(
        "i0004",
        severity="warning",
        detector="loss_spike",
        policy="skip-on-loss-spike",
        message="loss 9.1 is 14 times its usual distance from 2.3",
    )
    run.attempt("i0004", halved())
    return run
