"""One run that the daemon watches: what is known of it, and what the daemon adds when nobody inside can."""

from __future__ import annotations

import math
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from guard.clock import Clock
from guard.daemon import kernel, stacks
from guard.daemon.beats import Beat, beats_since
from guard.daemon.condition import OVER, Condition, Seen, State
from guard.daemon.hang import HangJudge
from guard.errors import UsageError
from guard.home import Announcement
from guard.incidents import IncidentLog, StoryFollower, outside
from guard.incidents.rundir import holder_alive
from guard.process import started
from guard.types import Incident

POLICY = "watch"
_FAULTS: dict[State, str] = {"hung": "hang", "crashed": "crash"}
_SKEW = 1.0  # [s] a heartbeat may be older than the announcement that came after it
_DAMAGED = (AttributeError, KeyError, TypeError, ValueError)


class Watched:
    """Of one announcement; made anew when another process goes on with the run.

    Args:
        aside: where the daemon writes of the run if its own directory is not this user's.
        longest: pauses that the run has been seen to make.
        beside: calls a function in another thread; what takes long is done there.

    Attributes:
        log: its whole story, folded.
        beats: the latest heartbeats.
        beat_at: when one of them last changed [s, monotonic].
        lines: how many lines of its story have been read.
        damaged: why its story cannot be read to the end, or "".
    """

    def __init__(
        self,
        run: Announcement,
        clock: Clock,
        *,
        aside: Path,
        longest: Mapping[str, float],
        beside: Callable[[Callable[[], None]], object],
    ) -> None:
        self.run, self.path, self._clock, self._beside = run, Path(run.run_dir), clock, beside
        self.own = _is_mine(self.path)
        self.aside = None if self.own else aside
        self.condition = Condition(HangJudge(longest=longest))
        self.log, self.beats, self.beat_at, self.damaged = IncidentLog(), dict[int, Beat](), clock.monotonic(), ""
        self._story, self.lines = StoryFollower(self.path, self.aside), 0
        self._memory: kernel.OutOfMemory | None = None

    @property
    def state(self) -> State:
        return self.condition.state

    @property
    def step(self) -> int:
        """The furthest that a rank has said to be."""
        return max((b.step for b in self.beats.values()), default=0)

    @property
    def here(self) -> bool:
        """It runs on this host."""
        return self.run.host == socket.gethostname()

    @property
    def supervised(self) -> bool:
        """A live `guard run` sees to it."""
        return (
            self.here and self.run.supervisor is not None and started(self.run.supervisor[0]) == self.run.supervisor[1]
        )

    def go_on(self, run: Announcement) -> None:
        """Another process goes on with it."""
        self.run = run

    def look(self, memory: kernel.OutOfMemory, *, teller: bool) -> bool:
        """One look; whether its state has changed.

        Args:
            memory: the kernel's counters of now.
            teller: this daemon is the one that tells of it, and so the one that writes.
        """
        now = self._clock.monotonic()
        self._read()
        beats = beats_since(self.path, self.run.time - _SKEW)
        if heard := beats != self.beats:
            self.beats, self.beat_at = beats, now
        said = None if self.log.finished is None else str(self.log.finished.get("status"))
        run = self.run
        seen = Seen(f"{run.boot}/{run.pid}/{run.started}", beats, said, heard or holder_alive(self.path, self._clock))
        changed = self.condition.look(seen, now)
        if teller:
            self._keep_up("" if self._memory is None or not self.here else memory.since(self._memory))
        if seen.alive:
            self._memory = memory
        return changed

    def forgive(self) -> None:
        """The daemon was stopped, or the machine asleep."""
        self.condition.forgive(self._clock.monotonic())

    # ---- its story

    def _read(self) -> None:
        if self._story.shrunk():
            self.log, self._story = IncidentLog(), StoryFollower(self.path, self.aside)
        if self._story.grown():
            for entry in self._story.read():
                self.lines += 1
                try:
                    self.log.apply(entry)
                except _DAMAGED as error:  # one damaged line must not hide the others
                    self.damaged = type(error).__name__

    def _keep_up(self, memory: str) -> None:
        """Adds what is missing to the story: a fault that nobody inside could write down, or that it is over.

        Args:
            memory: what the kernel says about a lack of memory since the process was last seen, or "".
        """
        fault = _FAULTS.get(self.state)
        over = [i for i in self._mine() if i.detector != fault and i.status == "exhausted"]
        for incident in over:
            self._over(incident)
        due = fault is not None and not self.supervised and not self._known() and not self._interrupted()
        if due and fault is not None:
            self._open(fault, memory)
        if over or due:
            self._read()

    def _mine(self) -> list[Incident]:
        return [i for i in self.log.incidents.values() if i.policy == POLICY]

    def _known(self) -> bool:
        """Somebody has written this fault down already: the daemon, or a supervisor that gave the run up. One that
        meant to start it again, and is gone, has not."""
        since = float(self.log.run.get("time", 0.0))
        return any(
            i.detector in _FAULTS.values() and i.opened_at >= since and i.status == "exhausted"
            for i in self.log.incidents.values()
        )

    def _interrupted(self) -> bool:
        """A person pressed Ctrl-C, and knows."""
        return str((self.log.finished or {}).get("error", "")).startswith("KeyboardInterrupt")

    def _open(self, fault: str, memory: str) -> None:
        name, hang = f"w{secrets.token_hex(4)}", self.condition.hang if fault == "hang" else None
        error = str((self.log.finished or {}).get("error", ""))
        if hang is not None:
            others = f", nor does any of the {hang.others} others" if hang.others else ""
            message = (
                f"rank {hang.rank} has made no progress for {hang.seconds:.0f} s at step {hang.step:,} in phase "
                f"{hang.phase}{others} (limit {hang.limit:.0f} s)"
            )
            evidence: dict[str, Any] = {"rank": hang.rank, "phase": hang.phase}
        elif error:
            message, evidence = "the training process ended with an exception", {}
        else:
            message, evidence = "the training process is gone, and did not say why", {}
        detection = {
            "signal": "seconds without progress" if hang else "",
            "value": round(hang.seconds, 1) if hang else math.nan,
            "threshold": round(hang.limit, 1) if hang else math.nan,
            "baseline": math.nan,
            "since": self._moment()[0],
            "message": message,
        }
        self._write(
            "incident_opened",
            incident=name,
            policy=POLICY,
            detector=fault,
            severity="critical",
            detection=detection,
            observed=False,
            attached_to=None,
            signals=[],
        )
        evidence["restarts"] = self._who()
        self._write("incident_evidence", incident=name, evidence=evidence, cause=error or memory)
        self._write("incident_closed", incident=name, status="exhausted", count=1, outcome={})
        if fault == "hang" and self.own and self.here:
            self._beside(lambda: self._stacks(name))

    def _over(self, incident: Incident) -> None:
        """It goes on after all, or somebody has seen to it."""
        if self.log.run.get("time", 0.0) > incident.opened_at:
            restart = {"type": "restart", "summary": "somebody started the run again", "changes": {}, "standing": False}
            attempt: dict[str, Any] = {"rung": 0, "rungs": 1, "repeat": 0, "escalated": False, "would": False}
            self._write("attempt", incident=incident.id, **attempt, results=[restart], unavailable=[])
            self._write("incident_closed", incident=incident.id, status="ended", count=1, outcome={})
        elif incident.detector == "hang":
            status = "ended" if self.state in OVER else "resolved"
            self._write("incident_closed", incident=incident.id, status=status, count=1, outcome={})

    def _stacks(self, incident: str) -> None:
        if found := stacks.look(stacks.ranks_beside(self.run.pid), ask=False):
            self._write("incident_evidence", incident=incident, evidence={"stacks": found}, cause="")

    def _who(self) -> str:
        """Who starts it again, in a clause."""
        if self.run.restarter is not None:
            return f"{self.run.restarter} may start it again"
        return "nobody starts it again: its guard run is gone" if self.run.supervisor else "nobody starts it again"

    def _moment(self) -> tuple[int, int]:
        leader = self.beats.get(min(self.beats, default=0))
        return (leader.tick, leader.step) if leader else (0, 0)

    def _write(self, kind: str, **keys: Any) -> None:
        if self.aside is not None:
            self.aside.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            outside.append(self.aside or self.path, self._clock, kind, moment=self._moment(), **keys)
        except UsageError as error:
            self.damaged = str(error)


def _is_mine(path: Path) -> bool:
    """This user's, and so to be written."""
    try:
        return path.stat().st_uid == os.getuid()
    except OSError:
        return False
