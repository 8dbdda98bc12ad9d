from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from notify.fake_slack import FakeSlack

from guard.clock import FakeClock
from guard.daemon import kernel
from guard.daemon.custody import Ward
from guard.daemon.supervise import Plan, Supervisor
from guard.incidents.journal import NAME, encode
from guard.notify import outbox

if TYPE_CHECKING:
    from daemon.theatre import Theatre


class Stage:
    """A run directory whose processes are played: what a guard inside would have written, written by hand."""

    def __init__(self, path: Path, clock: FakeClock) -> None:
        self.path, self.clock, self.seq = path, clock, 0

    def beat(self, tick: int, step: int | None = None, phase: str = "step", rank: int = 0) -> None:
        self.path.mkdir(exist_ok=True)
        text = f"{tick} {tick if step is None else step} {phase} {self.clock.now:.3f} {self.clock.now:.3f}"
        (self.path / f"heartbeat.{rank}").write_text(text.ljust(79) + "\n")

    def journal(self, kind: str, tick: int = 0, **keys: object) -> None:
        self.path.mkdir(exist_ok=True)
        file = self.path / NAME
        seq = len(file.read_bytes().splitlines()) if file.exists() else 0
        entry = {"v": 1, "seq": seq, "time": self.clock.now, "kind": kind, "tick": tick, "step": tick, **keys}
        with file.open("ab") as opened:
            opened.write(encode(entry))

    def started(self, run: str = "run") -> None:
        self.journal("run_started", mode="enforce", run=run, run_dir=str(self.path), host="here", pid=1)

    def stopped(self, policy: str = "nan") -> None:
        detection = {"message": "loss is nan"}
        self.journal(
            "incident_opened", incident="i1", policy=policy, detector="nan", severity="critical", detection=detection
        )
        self.journal("incident_closed", incident="i1", status="stopped", count=1, outcome={})


@dataclass
class Script:
    """What one life of the command does: at `at` seconds `do` happens; it ends at `ends`, if ever, with `code`.

    Args:
        on: signal -> exit code with which it obeys; others are ignored. KILL always works, unless `immortal`.
        leaves: members of the family that it leaves behind; they end on TERM.
    """

    code: int = 0
    ends: float | None = 1.0
    do: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    on: dict[int, int] = field(default_factory=dict)
    leaves: int = 0
    immortal: bool = False
    err: list[str] = field(default_factory=list)


class Actor:
    """A process that follows a script, on the fake clock."""

    def __init__(self, script: Script, clock: FakeClock, pid: int) -> None:
        self.pid, self._script, self._clock, self._began = pid, script, clock, clock.now
        self._todo, self._end, self.left = list(script.do), None, script.leaves
        self.signals: list[tuple[int, bool]] = []
        self.closed = False

    def poll(self) -> int | None:
        age = self._clock.now - self._began
        while self._end is None and self._todo and self._todo[0][0] <= age:
            self._todo.pop(0)[1]()
        if self._end is None and self._script.ends is not None and age >= self._script.ends:
            self._end = self._script.code
        return self._end

    def send(self, number: int, *, group: bool) -> None:
        self.signals.append((number, group))
        if self._end is not None and number == signal.SIGTERM:
            self.left = 0
        if self._end is None and number in self._script.on:
            self._end = self._script.on[number]

    def family(self) -> list[int]:
        alive = [self.pid] if self._end is None else []
        return [*alive, *range(self.pid + 1, self.pid + 1 + self.left)]

    def kill(self) -> None:
        self.signals.append((signal.SIGKILL, True))
        if not self._script.immortal:
            self.left = 0
            self._end = -signal.SIGKILL if self._end is None else self._end

    def last(self, lines: int) -> tuple[list[str], list[str]]:
        return [], self._script.err[-lines:]

    def close(self) -> None:
        self.closed = True

    def handle(self) -> dict[str, object]:
        return {"child": (self.pid, "1"), "relay": None}


class Play:
    """A supervisor with a cast: each start is the next script; the last one is played again and again."""

    def __init__(self, stage: Stage, *scripts: Script, restarts: int = 3, **plan: object) -> None:
        self.stage, self.clock, self._scripts = stage, stage.clock, list(scripts)
        self.lives: list[Actor] = []
        self.said: list[str] = []
        self.oom = kernel.OutOfMemory()
        self.looked: list[list[int]] = []
        self.notes: list[dict[str, object]] = []
        self._plan = Plan(stage.path, restarts, **plan)
        self.take_over(None, None)

    def take_over(self, ward: Ward | None, child: Actor | None) -> None:
        """Another supervisor has left this behind."""
        self.supervisor = Supervisor(
            self._plan,
            self._start,
            clock=self.clock,
            say=self.said.append,
            random=lambda: 0.0,
            look=self._look,
            memory=lambda: self.oom,
            note=lambda **changes: self.notes.append(changes),
            left=(ward, child) if ward is not None else None,
        )

    def run(self) -> int:
        return self.supervisor.run()

    def _start(self, _token: str) -> Actor:
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        self.lives.append(Actor(script, self.clock, 100 * (len(self.lives) + 1)))
        return self.lives[-1]

    def _look(self, pids: list[int]) -> dict[str, str]:
        self.looked.append(pids)
        return {f"pid {pid}": "wait_for_data (train.py:12)" for pid in pids}


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "run", FakeClock())


@pytest.fixture
def theatre(tmp_path: Path) -> Iterator[Theatre]:
    from daemon.theatre import Theatre  # which needs what stands here

    made = Theatre(tmp_path)
    yield made
    for daemon in made.daemons:
        daemon.close(0.0)


@pytest.fixture
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_SYNCHRONOUS", "OFF")


@pytest.fixture
def slack(theatre: Theatre, no_waiting_for_the_disk: None) -> Iterator[FakeSlack]:
    fake = FakeSlack(theatre.clock).start()
    yield fake
    fake.stop()
