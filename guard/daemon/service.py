"""`guard daemon`: watches the runs that have announced themselves, and tells people.

    roster   who is there: runs, other daemons              every 5 s
    watch    journals and heartbeats; hung, crashed         every second
    tell     couriers: incidents, reminders, escalation     every second
    listen   the listener on Slack; what was forwarded      every second
    digest   the summary of all runs, when it is due        every 10 s
    tidy     what was learned is kept; old runs forgotten   every minute

It never signals a process, and never writes a run's journal: what it has to add goes beside it
(`guard.incidents.outside`). All of it could be killed at any moment and started again.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from filelock import FileLock, Timeout

from guard.clock import Clock
from guard.daemon import kernel, systemd
from guard.daemon.condition import OVER
from guard.daemon.jobs import Job, Jobs
from guard.daemon.listener import Listener
from guard.daemon.settings import Settings
from guard.daemon.store import Store
from guard.daemon.telling import Telling
from guard.daemon.watched import Watched
from guard.errors import GuardError
from guard.home import Announcement, Home
from guard.home import Daemon as Presence
from guard.process import boot_id, started

_ASLEEP = 5.0  # [s] between two looks after which nobody can have been watching
_ITS_CHANCE = 60.0  # [s] for a process on another host to tell of its own hang
_SOON = 3.0  # [s] for the listener's end
_HANDS = 4  # threads for what takes long


class DaemonRunningError(GuardError):
    """Another one serves this state directory."""


class Daemon:
    """The daemon, without its loop: each of its jobs may be called by itself.

    Args:
        settings: see there.
        state: folder of this daemon on the host's own disk; one daemon at a time.
        say: tells whoever reads its log.

    Raises:
        DaemonRunningError: another one holds `state`.
    """

    def __init__(self, settings: Settings, state: Path, clock: Clock, say: Callable[[str], None]) -> None:
        self.settings, self.state, self.clock, self.say = settings, state, clock, say
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = FileLock(state / "daemon.lock")
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            raise DaemonRunningError(f"a daemon runs already with the state directory {state}") from None
        self.store = Store(state / "daemon.db")
        host, pid = socket.gethostname(), os.getpid()
        name = hashlib.sha256(f"{host}\0{os.getuid()}\0{state.absolute()}".encode()).hexdigest()[:16]
        self.presence = Presence(name, host, boot_id(), pid, started(pid))
        self.runs: dict[str, Watched] = {}
        self.homes = [Home(path, clock) for path in settings.homes()]
        self._hands = ThreadPoolExecutor(_HANDS, thread_name_prefix="guard-hand")
        self.telling = Telling(self, self._hands)
        self._listener = self._new_listener()
        self.jobs = Jobs(self._jobs(), clock, say)
        self._mine: dict[str, int] = {}  # by run, how many looks in a row it was this daemon's to tell
        self._announced = set[str]()  # runs, at the latest look
        self._looked_at = clock.monotonic()
        self._runs_lock, self._said = threading.Lock(), set[str]()
        self.began = clock.time()

    # ---- jobs

    def roster(self) -> None:
        """Who is there."""
        homes = [(home, self._announce(home), list(home.runs())) for home in self.homes]
        self._announced = {run.id for _, _, runs in homes for run in runs}
        for home, known, runs in homes:
            for run in runs:
                self._take(run)
                teller = home.teller(run)
                # Where it may only read, the others do not know it: it tells of what none that they know tells of.
                mine = teller.id == self.presence.id if teller is not None else not known
                self._mine[run.id] = self._mine.get(run.id, 0) + 1 if mine else 0
        for id_ in set(self._mine) - self._announced:
            self._mine[id_] = 0

    def watch(self) -> None:
        """One look at every run."""
        now = self.clock.monotonic()
        asleep, self._looked_at = now - self._looked_at > _ASLEEP, now
        memory = kernel.out_of_memory()
        for watched in self.watched():
            if asleep:
                watched.forgive()
            if watched.look(memory, teller=self.cares_for(watched)):
                self.say(f"{watched.run.run} ({watched.run.id}): {watched.state}")

    def tell(self) -> None:
        """What is due to people."""
        self.telling.go_on()

    def listen(self) -> None:
        """What people ask."""
        self._listener.tick()

    def tidy(self) -> None:
        """Keeps what was learned, and forgets what is long over."""
        self.store.learned({w.run.id: w.condition.judge.longest for w in self.watched()})
        now = self.clock.time()
        for home in self.homes:
            for run in home.runs():
                watched = self.runs.get(run.id)
                here = run.host == self.presence.host
                gone = here and not Path(run.run_dir).exists()
                over = watched is not None and watched.state in OVER and not self.telling.waiting(run.id)
                if (over or gone) and now - self._ended_at(run, watched) > (0 if gone else self.settings.retention):
                    home.forget_run(run.id)
                    self._drop(run.id)
                    self.store.forget(run.id)
        # Forgotten by another daemon, or their home is not watched any more, or cannot be read for the moment.
        for id_ in {w.run.id for w in self.watched()} - self._announced:
            self._drop(id_)

    def digest(self) -> None:
        """The summary of all runs, when it is due."""
        self.telling.digests.look()

    # ---- what it knows

    @property
    def listening(self) -> str:
        """The listener on Slack: off, waiting, connecting, connected."""
        return self._listener.state.status

    def watched(self) -> list[Watched]:
        """All runs, in the order in which they were first seen."""
        with self._runs_lock:
            return list(self.runs.values())

    def tells(self, watched: Watched) -> bool:
        """This daemon is the one that tells of the run now."""
        if watched.here or watched.state in OVER or not watched.own:
            return self.cares_for(watched)
        # Of another host's run its own process tells as long as it lives, unless it is hung as a whole.
        hung = watched.state == "hung" and self.clock.monotonic() - watched.condition.since > _ITS_CHANCE
        return hung and self.cares_for(watched)

    def cares_for(self, watched: Watched) -> bool:
        """Of all daemons this one cares for the run, and every other has had time to see that."""
        return self._mine.get(watched.run.id, 0) >= 2

    # ---- its life

    def reload(self, settings: Settings) -> None:
        """Goes on with other settings; what is known of the runs is kept."""
        self.settings = settings
        for home in self.homes:
            if home.path not in settings.homes():
                home.withdraw_daemon(self.presence)
        self.homes = [Home(path, self.clock) for path in settings.homes()]
        self.telling.renew()
        self._listener.stop(_SOON)
        self._listener = self._new_listener()

    def start(self) -> None:
        self.jobs.start()
        systemd.notify("READY=1")

    def close(self, timeout: float = 5.0) -> None:
        """Ends its jobs, lets go of what it holds; waits at most `timeout` [s]."""
        systemd.notify("STOPPING=1")
        self.jobs.stop()
        self._listener.stop(min(timeout, _SOON))
        self.telling.close(timeout)
        self._hands.shutdown(wait=False, cancel_futures=True)
        self.store.learned({w.run.id: w.condition.judge.longest for w in self.watched()})
        self.store.close()
        for home in self.homes:
            home.withdraw_daemon(self.presence)
        self._lock.release()

    def _jobs(self) -> list[Job]:
        return [
            Job("roster", self.roster, 5.0),
            Job("watch", self.watch, 1.0),
            Job("tell", self.tell, 1.0),
            Job("listen", self.listen, 1.0),
            Job("digest", self.digest, 10.0),
            Job("tidy", self.tidy, 60.0),
        ]

    def _new_listener(self) -> Listener:
        """There is one in every daemon: it also does what those on other hosts have heard."""
        app = self.settings.slack_app
        listener = Listener(
            app.app_token.reveal if app is not None else lambda: "",
            app.operators if app is not None else (),
            self.homes[0],
            self.clock,
            self.say,
            more=self.homes[1:],
            daemon=self.presence.id,
            base_url=app.base_url if app is not None else None,
        )
        listener.start()
        return listener

    def _announce(self, home: Home) -> bool:
        """Whether the others there know of this daemon."""
        try:
            home.announce_daemon(self.presence)
        except OSError as error:
            self._once(f"{home.path} cannot be written ({error.strerror}), so that runs do not know of this daemon")
            return False
        return True

    def _take(self, run: Announcement) -> None:
        watched = self.runs.get(run.id)
        if watched is not None:
            if watched.run != run:
                watched.go_on(run)
            return
        if not Path(run.run_dir).exists():
            return  # on another host's own disk
        made = Watched(
            run,
            self.clock,
            aside=self.state / "runs" / run.id,
            longest=self.store.longest(run.id),
            beside=self._hands.submit,
        )
        with self._runs_lock:
            self.runs[run.id] = made

    def _drop(self, id_: str) -> None:
        with self._runs_lock:
            self.runs.pop(id_, None)
        self._mine.pop(id_, None)
        self.telling.drop(id_)

    def _ended_at(self, run: Announcement, watched: Watched | None) -> float:
        finished = watched.log.finished if watched is not None else None
        return float(finished["time"]) if finished is not None else run.time

    def _once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.say(text)
