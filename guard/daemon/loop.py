"""The daemon's main thread: starts it, feeds systemd's watchdog as long as every job advances, reads its file again
when that changes, and ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from guard.daemon import systemd
from guard.daemon.page import Page
from guard.daemon.service import Daemon
from guard.daemon.settings import Settings

_LOOK = 1.0  # [s] between looks


class Loop:
    """Runs a daemon until it is told to end.

    Args:
        file: its settings, looked at for changes; None: there are none.
        load: reads them again; None if they have problems, which it has said.
    """

    def __init__(self, daemon: Daemon, file: Path | None, load: Callable[[], Settings | None]) -> None:
        self._daemon, self._file, self._load = daemon, file, load
        self._ending, self._reload = threading.Event(), False
        self._stamp: tuple[int, int] | None = None
        self._stamp = self._changed()
        self._page: Page | None = None

    def end(self) -> None:
        """Safe in a signal handler."""
        self._ending.set()

    def ask_to_reload(self) -> None:
        """Safe in a signal handler."""
        self._reload = True

    def run(self, timeout: float) -> None:
        """Until `end`.

        Args:
            timeout: for what is under way then [s].
        """
        daemon = self._daemon
        self._serve()
        daemon.say(f"watching {', '.join(str(h.path) for h in daemon.homes)}; state in {daemon.state}")
        daemon.start()
        try:
            while not daemon.clock.wait(self._ending, self._pause()):
                self.look()
        finally:
            daemon.say("ending")
            if self._page is not None:
                self._page.close()
            daemon.close(timeout)

    def look(self) -> None:
        """Once: the watchdog, and whether there are other settings."""
        stuck = self._daemon.jobs.stuck()
        if not stuck:
            systemd.notify("WATCHDOG=1", f"STATUS=watching {len(self._daemon.watched())} runs")
        stamp = self._changed()
        if self._reload or stamp != self._stamp:
            self._reload, self._stamp = False, stamp
            self._take_up(self._load())

    def _take_up(self, settings: Settings | None) -> None:
        if settings is None:
            self._daemon.say("the new settings are refused, the old ones stay in force")
            return
        moved = settings.address() != self._daemon.settings.address()
        self._daemon.reload(settings)
        if moved:
            self._serve()
        self._daemon.say("new settings are in force")

    def _serve(self) -> None:
        if self._page is not None:
            self._page.close()
            self._page = None
        self._daemon.presence = replace(self._daemon.presence, page="")
        address = self._daemon.settings.address()
        if address is None:
            return
        try:
            self._page = Page(self._daemon, address)
        except OSError as error:
            self._daemon.say(f"no status page: {address[0]}:{address[1]} cannot be had ({error.strerror})")
            return
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        page = f"http://{host}:{self._page.port}/"
        self._daemon.presence = replace(self._daemon.presence, page=page)
        self._daemon.say(f"status page on {page}")

    def _changed(self) -> tuple[int, int] | None:
        """When the file was last written; None if it is not there for the moment."""
        try:
            found = self._file.stat() if self._file is not None else None
        except OSError:
            return self._stamp
        return None if found is None else (found.st_mtime_ns, found.st_size)

    def _pause(self) -> float:
        limit = systemd.watchdog()
        return _LOOK if limit is None else min(_LOOK, limit / 3)
