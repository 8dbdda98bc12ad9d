"""How a run is, as seen from outside: a pure state machine. What is seen and the time go in, the state comes out.

new -> running <-> late <-> hung            the process lives
any -> finished | stopped | crashed         its journal says so, or it is gone without a word
any -> new                                  another process goes on with the run
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from guard.daemon.beats import Beat
from guard.daemon.hang import Hang, HangJudge

State = Literal["new", "running", "late", "hung", "crashed", "finished", "stopped"]
STATES: tuple[State, ...] = get_args(State)
OVER: frozenset[State] = frozenset({"crashed", "finished", "stopped"})
_LATE = 0.5  # of the limit of its silence
_GONE = 5.0  # [s] without its process before that is believed: it may be starting again
_SAID: dict[str, State] = {"crashed": "crashed", "stopped": "stopped", "preempted": "stopped", "reopened": "stopped"}


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at a run.

    Args:
        life: names the process that the run is.
        beats: heartbeats of that process, by rank.
        said: what its journal says of its end, or None.
        alive: the process is there.
    """

    life: str
    beats: Mapping[int, Beat]
    said: str | None
    alive: bool


class Condition:
    """Of one run.

    Args:
        judge: knows how long it may be silent.

    Attributes:
        since: when it came into its state [s, monotonic].
        hang: the latest one, while it is hung.
    """

    def __init__(self, judge: HangJudge) -> None:
        self.judge = judge
        self.state: State = "new"
        self.since = 0.0
        self.hang: Hang | None = None
        self._life = ""
        self._gone: float | None = None

    def look(self, seen: Seen, now: float) -> bool:
        """Takes one look; whether the state has changed."""
        before = self.state
        if seen.life != self._life:
            self._life, self._gone, self.hang = seen.life, None, None
            self.judge.begin()
        self.state = self._judge(seen, now)
        if self.state != before:
            self.since = now
        return self.state != before

    def forgive(self, now: float) -> None:
        """The one who looks was stopped, or the machine asleep: nobody could be seen making progress."""
        self.judge.forgive(now)
        if self._gone is not None:
            self._gone = now

    def _judge(self, seen: Seen, now: float) -> State:
        if seen.said is not None:
            return _SAID.get(seen.said, "finished")
        if not seen.alive:
            self._gone = now if self._gone is None else self._gone
            return "crashed" if now - self._gone >= _GONE or self.state == "crashed" else self.state
        self._gone = None
        self.hang = self.judge.look(seen.beats, now)
        if self.hang is not None:
            return "hung"
        if not seen.beats or all(b.phase == "start" for b in seen.beats.values()):
            return "new"
        return "late" if self.judge.silence(now) > _LATE else "running"
