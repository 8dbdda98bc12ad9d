"""`guard run`: one command, watched from outside, and started again when that helps.

    start -> watch (heartbeats, output, signals) -> judge the end -> write it down -> start again, or give up

Only this kills and restarts; it never touches a process that no `guard run` has started. If a `guard run` is killed,
what it started goes on, and the next one takes it over.
"""

from __future__ import annotations

import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from guard.clock import Clock
from guard.daemon import kernel, stacks
from guard.daemon.beats import Beats
from guard.daemon.budget import Budget
from guard.daemon.child import Child
from guard.daemon.custody import Ward
from guard.daemon.ending import Ending
from guard.daemon.hang import Hang, HangJudge
from guard.daemon.record import Record, told
from guard.daemon.verdict import Life, Segment, Verdict, judge
from guard.incidents import IncidentLog

_POLL = 0.1  # [s] between looks at the process
_LOOK = 1.0  # [s] between looks at heartbeats: they are written at most that often
_ASLEEP = 5.0  # [s] between two looks after which nobody can have been watching
_LINES = 200  # of each stream, from which evidence is taken


@dataclass(frozen=True, slots=True)
class Plan:
    """What is wished for.

    Args:
        run_dir: where the guard inside writes, if it attaches.
        restarts: in a row without progress.
        hang_timeout: seconds in every phase; None: learned; infinite: never.
        new_steps: what counts as progress.
        restarter: somebody else who starts this process again, or None.
    """

    run_dir: Path
    restarts: int
    hang_timeout: float | None = None
    new_steps: int = 1
    restarter: str | None = None


class Supervisor:
    """Runs a command to its end.

    Args:
        start: starts the command once more, with this mark; OSError if that cannot be.
        say: tells the person at the terminal.
        random: in [0, 1).
        note: writes down, for the next supervisor, what has changed of the ward.
        left: what a supervisor that was killed has left behind, and its process, which may have ended.
        judge: of hangs; None: one as planned, which knows what that supervisor had learned.
    """

    def __init__(
        self,
        plan: Plan,
        start: Callable[[str], Child],
        *,
        clock: Clock,
        say: Callable[[str], None],
        random: Callable[[], float],
        look: Callable[[list[int]], dict[str, str]] = stacks.look,
        memory: Callable[[], kernel.OutOfMemory] = kernel.out_of_memory,
        note: Callable[..., None] = lambda **_: None,
        left: tuple[Ward, Child | None] | None = None,
        judge: HangJudge | None = None,
    ) -> None:
        self._plan, self._start, self._clock, self._say, self._random = plan, start, clock, say, random
        self._stacks, self._memory, self._note, self._left = look, memory, note, left
        ward = left[0] if left else Ward()
        self._judge = judge or HangJudge(plan.hang_timeout, ward.longest)
        self._budget = Budget(plan.restarts, plan.new_steps, ward.spent, ward.best)
        self._record = Record(plan.run_dir, clock, say)
        self._asked: list[int] = []  # signals that came, oldest first
        self._never = threading.Event()
        self.gave_up = False  # there was a fault, and nobody repaired it

    def ask_to_end(self, number: int) -> None:
        """Signal `number` came. The same again is impatience, and goes one rung further. Safe in a signal handler."""
        self._asked.append(number)

    def run(self) -> int:
        """Until it is done, stopped, taken away, or given up; the exit code.

        Raises:
            OSError: the command cannot be started.
        """
        while True:
            life, verdict, told = self._live()
            if life.unseen and verdict.kind in ("preempted", "ended"):
                self._say(f"{verdict.message}; it is started again, because guard run is")
                continue
            if not verdict.fault:
                if verdict.kind != "done":
                    self._say(f"{verdict.message}; it is not started again")
                elif life.unseen:
                    self._say("the run came to its end while no guard run watched it; it is not started again")
                return verdict.exit_code
            # Where another restarts the run, it just has.
            wanted = not life.lost and not self._asked
            due = wanted and (self._budget.spend(life.step) or (life.unseen and not self._plan.restarts))
            who = self._who(life, due=due)
            self._say(f"{verdict.message}; {who}")
            if not told:
                self._record.fault(life, verdict, who)
            if not due:
                self.gave_up = True
                self._record.given_up(verdict.kind)
                return verdict.exit_code
            if self._plan.restarts and not self._pause():
                return 128 + self._asked[0]
            self._record.restarted(verdict.kind, self._budget.spent, self._plan.restarts)

    # ---- one life

    def _live(self) -> tuple[Life, Verdict, bool]:
        """One life, what its end means, and whether the journal knows that already."""
        (ward, child), self._left = self._left or (Ward(), None), None
        age, unseen = 0.0, False
        self._judge.begin()
        if child is None:
            segment, beats = Segment(self._plan.run_dir), Beats(self._plan.run_dir)
            child = self._begin(segment.offset)
        else:
            segment, beats = Segment(self._plan.run_dir, ward.offset), Beats(self._plan.run_dir, ward.began)
            age, unseen = max(0.0, self._clock.time() - ward.began), child.poll() is not None
            if not unseen:
                self._say(f"its guard run was killed, process {child.pid} was not: this one watches it from now on")
        life = replace(self._watch(child, beats, age), unseen=unseen)
        entries = list(segment.read())  # before what is left behind is ended too, which it may take for a preemption
        verdict = judge(life, IncidentLog(entries))
        if verdict.kind != "done":
            self._clear(child)
        if not life.lost:
            child.close()
        out, err = child.last(_LINES)
        return replace(life, out=out, err=err), verdict, told(entries)

    def _begin(self, offset: int) -> Child:
        """Starts it. The mark is written down first: even one killed in this moment leaves what finds the process."""
        token = uuid.uuid4().hex
        spent, best, longest = self._budget.spent, self._budget.best, self._judge.longest
        begins = {"offset": offset, "began": self._clock.time(), "spent": spent, "best": best, "longest": longest}
        self._note(token=token, child=None, relay=None, **begins)
        child = self._start(token)
        self._note(**child.handle())
        return child

    def _watch(self, child: Child, beats: Beats, age: float) -> Life:
        """Until it ends.

        Args:
            age: how long it has run [s].
        """
        clock, began = self._clock, self._clock.monotonic() - age
        last, look_at, step = clock.monotonic(), clock.monotonic(), -1
        memory = [self._memory()] * 2  # as of the last two looks
        found, hang, seen, evidence = beats.read(), None, 0, dict[str, str]()
        ending: Ending | None = None
        while (code := child.poll()) is None and not (ending and ending.failed):
            now = clock.monotonic()
            if now - last > _ASLEEP:
                self._judge.forgive(now)
            last = now
            if self._asked and (ending is None or len(self._asked) > seen):
                ending, seen = self._on_signal(ending, now), len(self._asked)
            if ending is not None:
                ending.go_on(child, now)
            if now >= look_at:
                look_at, memory = now + _LOOK, [memory[1], self._memory()]
                found = beats.read() or found
                step = max([step, *(b.step for b in found.values())])
                if ending is None and (hang := self._judge.look(found, now)) is not None:
                    evidence = self._on_hang(child, hang)
                    last = clock.monotonic()
                    ending = Ending("hang", last)
                self._note(longest=self._judge.longest)
            clock.wait(self._never, _POLL)
        found = beats.read() or found
        leader = found[min(found)] if found else None
        return Life(
            -signal.SIGKILL if code is None else code,
            seconds=clock.monotonic() - began,
            step=max([step, *(b.step for b in found.values())]) if found else None,
            moment=(leader.tick, leader.step) if leader else (0, 0),
            ranks=len(found),
            hang=hang,
            asked=self._asked[0] if self._asked else None,
            memory=self._memory().since(memory[0]) if code else "",
            stacks=evidence,
            lost=code is None,
        )

    def _on_signal(self, ending: Ending | None, now: float) -> Ending:
        if ending is not None:
            ending.hurry()
            return ending
        name = signal.Signals(self._asked[0]).name
        self._say(f"{name}: passed on to the command, which may take its time; once more to hurry it")
        return Ending("interrupt" if self._asked[0] == signal.SIGINT else "terminate", now)

    def _on_hang(self, child: Child, hang: Hang) -> dict[str, str]:
        self._say(
            f"rank {hang.rank} has made no progress for {hang.seconds:.0f} s (phase {hang.phase}, step {hang.step:,}); "
            "the command is ended"
        )
        return self._stacks(child.family() or [child.pid])

    def _clear(self, child: Child) -> None:
        """What the command has left behind gets its grace too: under a shell that has gone, it is the run itself."""
        ending = Ending("rest", self._clock.monotonic())
        while child.family() and not ending.failed:
            if len(self._asked) > 1:
                ending.hurry()
            ending.go_on(child, self._clock.monotonic())
            self._clock.wait(self._never, _POLL)

    # ---- between two lives

    def _who(self, life: Life, *, due: bool) -> str:
        plan = self._plan
        if life.lost:
            return "it cannot be ended, so it is not started again"
        if due:
            return "it is started again"
        if plan.restarter is not None and not plan.restarts:
            return f"{plan.restarter} may start it again; guard run does not (--restarts 0)"
        if not plan.restarts:
            return "it is not started again (--restarts 0)"
        if self._asked:
            return "it is not started again"
        times = f"{self._budget.spent} restart{'' if self._budget.spent == 1 else 's'}"
        return f"GIVEN UP: {times} brought no new step"

    def _pause(self) -> bool:
        """Waits before a restart; False: somebody wants an end instead."""
        seconds = self._budget.pause(self._random())
        self._say(f"restart {self._budget.spent} of {self._plan.restarts} without a new step, in {seconds:.0f} s")
        until = self._clock.monotonic() + seconds
        while not self._asked and self._clock.monotonic() < until:
            self._clock.wait(self._never, min(_POLL, max(0.0, until - self._clock.monotonic())))
        return not self._asked


@contextmanager
def listening(supervisor: Supervisor) -> Iterator[None]:
    """Ctrl-C, TERM and a terminal that is closed end the command first. What is ignored (nohup) stays ignored."""

    def handle(number: int, _: Any) -> None:
        supervisor.ask_to_end(number)

    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    heard = {n: handler for n, handler in before.items() if handler is not signal.SIG_IGN}
    for number in heard:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in heard.items():
            signal.signal(number, handler)
