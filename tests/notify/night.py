"""A run's journal, written line by line as a test needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from guard.incidents import outside
from guard.incidents.journal import NAME, encode

MESSAGE = "loss is NaN at step 1,200"


class Night:
    def __init__(self, run_dir: Path, clock: Any) -> None:
        self.run_dir, self.clock, self.seq, self.tick = run_dir, clock, 0, 1200
        run_dir.mkdir(parents=True, exist_ok=True)
        self.started()

    def started(self) -> None:
        self.write(
            "run_started",
            run="exp1",
            run_dir=str(self.run_dir),
            host="node7",
            pid=4711,
            rank=0,
            script="train.py",
            mode="enforce",
            policy="default",
            policy_digest="0",
            versions={},
        )

    def write(self, kind: str, **more: Any) -> None:
        entry = {
            "v": 1,
            "seq": self.seq,
            "time": self.clock.time(),
            "kind": kind,
            "tick": self.tick,
            "step": self.tick - 20,
            **more,
        }
        with (self.run_dir / NAME).open("ab") as file:
            file.write(encode(entry))
        self.seq += 1
        self.tick += 1

    def opened(
        self,
        id: str = "a1",
        *,
        severity: str = "critical",
        detector: str = "non_finite",
        message: str = MESSAGE,
        observed: bool = False,
        attached_to: str | None = None,
        signal: str = "loss",
        policy: str = "nan-rollback-retry-bf16",
    ) -> None:
        detection = {
            "signal": signal,
            "value": float("nan"),
            "threshold": float("nan"),
            "baseline": 2.3125,
            "since": self.tick - 2,
            "message": message,
        }
        self.write(
            "incident_opened",
            incident=id,
            policy=policy,
            detector=detector,
            severity=severity,
            detection=detection,
            observed=observed,
            attached_to=attached_to,
            signals=[[self.tick - 2, self.tick - 22, 2.3, 1.0, 1e-3, 1e-3, 1.0]],
        )

    def attempt(
        self,
        id: str = "a1",
        rung: int = 0,
        *,
        would: bool = False,
        repeat: int = 0,
        summary: str = "rolled back 40 steps to step 1,160",
        standing: bool = False,
    ) -> None:
        self.write(
            "attempt",
            incident=id,
            rung=rung,
            rungs=4,
            repeat=repeat,
            escalated=rung > 0,
            would=would,
            results=[{"type": "rollback", "summary": summary, "changes": {}, "standing": standing}],
            unavailable=[["precision", "the run is in FP32 already"]],
        )

    def fired(self, id: str = "a1", count: int = 2) -> None:
        self.write("incident_fired", incident=id, count=count, detection={})

    def cause(self, id: str = "a1", cause: str = "attention in layer 7 overflowed in FP16") -> None:
        self.write("incident_evidence", incident=id, evidence={"layers": 1}, cause=cause)

    def closed(self, id: str = "a1", status: str = "resolved", count: int = 1) -> None:
        self.write(
            "incident_closed",
            incident=id,
            status=status,
            count=count,
            outcome={"loss_before": 2.31, "loss_after": 2.29, "loss_expected": 2.3, "steps_lost": 40},
        )

    def finished(self, status: str = "finished") -> None:
        self.write("run_finished", status=status, summary={})

    # ---- what those outside add

    def ack(self, id: str = "a1", author: str = "ada") -> None:
        outside.append(self.run_dir, self.clock, "ack", incident=id, author=author)

    def silence(self, seconds: float, policy: str | None = None) -> None:
        """0 lifts."""
        until = self.clock.time() + seconds if seconds else 0.0
        outside.append(self.run_dir, self.clock, "silence", until=until, author="ada", policy=policy)

    def watched(
        self,
        id: str = "w1",
        detector: str = "hang",
        *,
        message: str = "no progress for 900 s",
        severity: str = "critical",
    ) -> None:
        detection = {"signal": "seconds", "value": 900.0, "threshold": 600.0, "baseline": 1.0, "message": message}
        outside.append(
            self.run_dir,
            self.clock,
            "incident_opened",
            moment=(self.tick, self.tick - 20),
            incident=id,
            policy="watch",
            detector=detector,
            severity=severity,
            detection=detection,
            observed=False,
            attached_to=None,
            signals=[],
        )

    def goes_on(self, id: str = "w1", status: str = "resolved") -> None:
        outside.append(self.run_dir, self.clock, "incident_closed", incident=id, status=status, count=1, outcome={})
