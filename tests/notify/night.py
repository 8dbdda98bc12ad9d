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

    def outside(self, kind: str, **keys: Any) -> None:
        outside.append(self.run_dir, self.clock, kind, moment=(self.tick, self.tick - 20), **keys)

    def watched(
        self,
        id: str = "w1",
        detector: str = "hang",
        *,
        severity: str = "critical",
        restarts: str = "nobody starts it again",
        rank: int = 3,
        cause: str = "",
    ) -> None:
        """As the daemon writes down what it finds."""
        hang = detector == "hang"
        self.outside(
            "incident_opened",
            incident=id,
            policy="watch",
            detector=detector,
            severity=severity,
            detection={
                "signal": "seconds without progress" if hang else "",
                "value": 735.2 if hang else float("nan"),
                "threshold": 600.0 if hang else float("nan"),
                "baseline": float("nan"),
                "since": self.tick,
                "message": f"rank {rank} has made no progress for 735 s at step 1,180 in phase data (limit 600 s)"
                if hang
                else "the training process is gone, and did not say why",
            },
            observed=False,
            attached_to=None,
            signals=[],
        )
        evidence = {"rank": rank, "phase": "data"} if hang else {}
        self.outside("incident_evidence", incident=id, evidence={**evidence, "restarts": restarts}, cause=cause)
        self.goes_on(id, "exhausted")

    def goes_on(self, id: str = "w1", status: str = "resolved") -> None:
        self.outside("incident_closed", incident=id, status=status, count=1, outcome={})

    def somebody_restarted(self, id: str = "w1") -> None:
        """As the daemon writes it down, once it has heard of the new process."""
        restart = {"type": "restart", "summary": "somebody started the run again", "changes": {}, "standing": False}
        attempt = {"rung": 0, "rungs": 1, "repeat": 0, "escalated": False, "would": False}
        self.outside("attempt", incident=id, **attempt, results=[restart], unavailable=[])
        self.goes_on(id, "ended")

    def supervised(
        self, detector: str = "crash", *, id: str = "d0001", restarts: str = "it is started again", **evidence: Any
    ) -> None:
        """As `guard run` writes down what it finds."""
        hang = detector == "hang"
        self.write(
            "incident_opened",
            incident=id,
            policy="supervisor",
            detector=detector,
            severity="critical",
            detection={
                "signal": "seconds without progress" if hang else "exit code",
                "value": 735.2 if hang else 1,
                "threshold": 600.0 if hang else float("nan"),
                "baseline": float("nan"),
                "since": self.tick,
                "message": "rank 3 made no progress for 735 s at step 1,180 in phase data (limit 600 s)"
                if hang
                else "the training process exited with code 1",
            },
            observed=False,
            attached_to=None,
            signals=[],
        )
        kept = {"exit": 1, "seconds": 11000.0, "restarts": restarts, **({"rank": 3} if hang else {}), **evidence}
        self.write("incident_evidence", incident=id, evidence=kept, cause="ValueError: no such label")

    def supervisor_restarts(self, id: str = "d0001", spent: int = 1) -> None:
        summary = f"started the run again ({spent} of 3 without a new step)"
        restart = {"type": "restart", "summary": summary, "changes": {}, "standing": False}
        attempt = {"rung": 0, "rungs": 1, "repeat": spent - 1, "escalated": False, "would": False}
        self.write("attempt", incident=id, **attempt, results=[restart], unavailable=[])

    def given_up(self, id: str = "d0001") -> None:
        self.write("incident_closed", incident=id, status="exhausted", count=1, outcome={})
        self.finished("crashed")
