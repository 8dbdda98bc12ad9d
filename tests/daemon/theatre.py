"""A daemon, the runs that it watches, and the clock that both go by."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

from daemon.conftest import Stage

from guard.clock import FakeClock
from guard.daemon.service import Daemon
from guard.daemon.settings import Settings
from guard.home import Home
from guard.incidents import IncidentLog, read_story
from guard.process import boot_id, started


class Theatre:
    """A daemon and the runs that it watches."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock, self.said = folder, FakeClock(), list[str]()
        self.home = Home(folder / "home", self.clock)
        self.daemons: list[Daemon] = []
        self.daemon = self.begin("state")

    def restart(self, state: str = "state", **settings: Any) -> Daemon:
        """The first daemon ends, and another one begins in its place."""
        self.daemons.remove(self.daemon)
        self.daemon.close(0.0)
        self.daemon = self.begin(state, **settings)
        return self.daemon

    def begin(self, state: str, **settings: Any) -> Daemon:
        daemon = Daemon(
            Settings(home=(self.home.path,), listen="off", **settings),
            self.folder / state,
            self.clock,
            self.said.append,
        )
        self.daemons.append(daemon)
        return daemon

    def run(self, name: str = "run", **announced: Any) -> Stage:
        """A run that has begun. Its process is the one that runs these tests' parent, which lives."""
        stage = Stage(self.folder / "".join(c if c.isalnum() else "-" for c in name), self.clock)
        stage.started(name)
        self.own(stage, os.getppid())
        (stage.path / "policy.yaml").write_text("version: 1\npolicies: []\n")
        self.home.announce_run(stage.path, name, **announced)
        stage.beat(0, phase="start")
        return stage

    def own(self, stage: Stage, pid: int) -> None:
        owner = {"host": socket.gethostname(), "boot": boot_id(), "pid": pid, "started": started(pid), "expires": 4e9}
        (stage.path / "owner.json").write_text(json.dumps(owner))

    def die(self, stage: Stage) -> None:
        """As `kill -9` leaves it."""
        owner = json.loads((stage.path / "owner.json").read_text())
        (stage.path / "owner.json").write_text(json.dumps({**owner, "started": "1"}))

    def go(self, seconds: float, *, stages: tuple[Stage, ...] = (), every: float = 1.0) -> None:
        """Time passes; the runs in `stages` make progress."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.advance(every)
            for stage in stages:
                stage.beat(int(self.clock.now))
            for daemon in self.daemons:
                daemon.roster()
                daemon.watch()
                daemon.tell()
                daemon.telling.settle()
                daemon.digest()

    def state(self, daemon: Daemon | None = None) -> list[str]:
        return [w.state for w in sorted((daemon or self.daemon).watched(), key=lambda w: w.run.run)]

    def incidents(self, stage: Stage) -> list[tuple[str, str]]:
        return [(i.detector, i.status) for i in IncidentLog(read_story(stage.path)).incidents.values()]
