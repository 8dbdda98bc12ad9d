"""Listening to Slack: people press a button or type a command, and the run obeys. One listener for each Slack app."""

from __future__ import annotations

import json
import os
import queue
import random
import re
import secrets
import socket
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from guard.clock import Clock
from guard.daemon.answers import Answers
from guard.daemon.deeds import Deeds
from guard.daemon.doing import Doing
from guard.daemon.hearing import Refused, hear
from guard.daemon.link import Link
from guard.daemon.once import Once
from guard.home import LEASE, Home
from guard.notify.failure import ADVICE, Failure

Status = Literal["off", "waiting", "connecting", "connected"]

_TOKEN = re.compile(r"xapp-\d+-([A-Z0-9]{2,40})-\S+")
_RENEW, _TRY_AGAIN = LEASE / 3, 3.0  # [s] between claims: of who has it, of who waits for it
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # [s] between connections that fail
_HOPELESS = 300.0  # [s] before another try where a person must change something first
_REMEMBERED = 5000
_ID = 200  # characters of an envelope's id
_STEADY = 60.0  # [s] after which a connection counts as a good one
_WORRY = 3  # failures in a row that are worth a line in the log


@dataclass(frozen=True, slots=True)
class ListenerState:
    """How it is.

    Args:
        status: off (not started, or no token), waiting (another one listens), connecting, connected.
        since: of that [s since the epoch].
        last_event_at: when Slack last brought something; None: never.
        done: wishes done or passed on.
        refused: envelopes and wishes that were not.
        why: of the last failure, or of being off.
    """

    status: Status = "off"
    since: float = 0.0
    last_event_at: float | None = None
    done: int = 0
    refused: int = 0
    why: str = ""


class Listener:
    """Holds the claim on a Slack app, listens to it, and has done what listed people want.

    Envelopes are acknowledged by the thread that reads them; deeds are done by another one.

    Args:
        app_token: the app-level token, asked anew for each connection; "" while there is none.
        operators: Slack ids (``U…``) of those who may act.
        home: where runs are found, and where the claim is.
        say: for the log; hears each reason once.
        more: further homes in which runs are found.
        daemon: id of the daemon that holds this listener: what those of other hosts have forwarded to it is done too,
            whether this one listens or not.
        base_url: in place of Slack's own Web API; its host may also be answered.
        team: id of the workspace, if it is known; others are refused then.
        wait: how long a read waits for bytes [s].
    """

    def __init__(
        self,
        app_token: Callable[[], str],
        operators: Collection[str],
        home: Home,
        clock: Clock,
        say: Callable[[str], None],
        *,
        more: Sequence[Home] = (),
        daemon: str = "",
        base_url: str | None = None,
        team: str | None = None,
        wait: float = 1.0,
    ) -> None:
        self._token, self._operators, self._home, self._clock = app_token, frozenset(operators), home, clock
        self._say_always, self._base_url, self._team, self._wait = say, base_url, team, wait
        self._holder = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"
        self._homes, self._daemon = (home, *more), daemon
        self._doing = Doing(Deeds(self._homes, clock, Answers(base_url).send, say), self._count, say)
        self._envelopes, self._wishes, self._said = Once(_REMEMBERED), Once(_REMEMBERED), Once(_REMEMBERED)
        self._lock = threading.Lock()
        self._state = ListenerState(since=clock.time())
        self._last_token = ""
        self._app = ""  # whose claim we hold or want
        self._held_until = 0.0
        self._claim_at = self._connect_at = 0.0
        self._failures, self._worried = 0, False
        self._greeted_at: float | None = None  # by Slack, on the connection that stands
        self._link: Link | None = None
        self._retired: Link | None = None  # Slack ends it soon; another one takes its place
        self._threads: set[threading.Thread] = set()
        self._started = self._stopping = False

    @property
    def state(self) -> ListenerState:
        return self._state

    # ---- life

    def start(self) -> None:
        """Begins; `tick` does the rest."""
        self._doing.start()
        self._started = True

    def stop(self, timeout: float) -> None:
        """Disconnects, does what was acknowledged, gives the claim up; waits at most `timeout` [s]."""
        end = self._clock.monotonic() + timeout
        with self._lock:
            self._stopping = True
            threads = list(self._threads)
        self._disconnect()
        for thread in threads:
            thread.join(max(0.0, end - self._clock.monotonic()))
        if self._started:
            self._doing.stop(max(0.0, end - self._clock.monotonic()))
        if self._app:
            self._home.release("listeners", self._app, self._holder)
        self._held_until = 0.0
        self._become("off", "stopped")

    def tick(self) -> None:
        """To be called each second: renews the claim, and connects in another thread when it is time."""
        if not self._started or self._stopping:
            return
        self._take_forwarded()
        token = self._ask_token()
        if token != self._last_token:
            self._last_token, self._connect_at = token, 0.0
        app = app_id(token)
        if app != self._app:
            self._change_app(app)
        if not app:
            self._become("off", "there is no app-level token (xapp-…)")
            return
        if not self._claim():
            if self._link or self._retired:
                self._disconnect()
            self._become("waiting", "another one listens to this app, or the home cannot be written")
        elif self._link is None and self._clock.monotonic() >= self._connect_at:
            self._connect(token)

    def _ask_token(self) -> str:
        try:
            return (self._token() or "").strip()
        except Exception as error:  # noqa: BLE001 - it is somebody else's function; its text may hold the secret
            self._say("the app-level token", f"the app-level token cannot be read ({type(error).__name__})")
            return ""

    def _change_app(self, app: str) -> None:
        self._disconnect()
        if self._app:
            self._home.release("listeners", self._app, self._holder)
        self._app, self._held_until, self._claim_at, self._connect_at, self._failures = app, 0.0, 0.0, 0.0, 0

    # ---- the claim

    def _claim(self) -> bool:
        """Whether this one may listen now."""
        now, lapsed = self._clock.monotonic(), self._held_until > 0.0 and not self._held
        if now >= self._claim_at or lapsed:
            until = self._clock.time() + LEASE
            held = self._home.claim("listeners", self._app, self._holder)
            self._held_until = until if held else 0.0
            self._claim_at = now + (_RENEW if held else _TRY_AGAIN)
        return self._held

    @property
    def _held(self) -> bool:
        return self._clock.time() < self._held_until

    # ---- from other hosts

    def _take_forwarded(self) -> None:
        for home in self._homes if self._daemon else ():
            for message in home.forwarded(self._daemon):
                try:
                    self._doing.put(message, patience=0.0)
                except queue.Full:
                    self._say("forwarded", "too much was forwarded at once, some of it is not done")

    # ---- connections

    def _connect(self, token: str) -> None:
        link = Link(token, self._heard, self._base_url, self._wait)
        thread = threading.Thread(target=self._listen, args=(link,), name="guard-listener", daemon=True)
        with self._lock:
            if self._stopping:
                return
            self._link = link
            self._threads.add(thread)
        self._become("connecting", self._state.why)
        thread.start()

    def _listen(self, link: Link) -> None:
        try:
            link.run()
        except Failure as failure:
            self._lost(link, failure)
        except Exception as error:  # noqa: BLE001 - `tick` connects again
            self._lost(link, Failure("retry", type(error).__name__))
        finally:
            with self._lock:
                self._link = None if self._link is link else self._link
                self._retired = None if self._retired is link else self._retired
                self._threads.discard(threading.current_thread())

    def _lost(self, link: Link, failure: Failure) -> None:
        with self._lock:
            if link is not self._link or self._stopping:
                return  # nobody waits for it any more
            self._pause(_HOPELESS if failure.kind == "off" else failure.retry_after)
            worry = failure.kind != "off" and self._failures == _WORRY
            self._worried = self._worried or worry
        advice = f": {ADVICE[failure.reason]}" if failure.reason in ADVICE else ""
        if failure.kind == "off":
            self._say(failure.reason, f"Slack is not listened to: {failure.reason}{advice}")
        elif worry:
            self._say_always(f"Slack is not reached, so buttons do nothing ({failure.reason}); trying on")
        self._become("connecting", failure.reason)

    def _pause(self, least: float | None = None) -> None:
        """Sets when to connect again; with random, lest all come back at once. Under the lock."""
        now = self._clock.monotonic()
        if self._greeted_at is not None and now - self._greeted_at >= _STEADY:
            self._failures = 0
        self._greeted_at = None
        self._failures += 1
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self._failures - 1, 20)) * random.uniform(0.5, 1.0)
        self._connect_at = now + max(pause, least or 0.0)

    def _disconnect(self) -> None:
        with self._lock:
            links = [link for link in (self._link, self._retired) if link is not None]
            self._link = self._retired = None
        for link in links:
            link.close()

    # ---- what comes, in the thread that reads it

    def _heard(self, link: Link, text: bytes | None) -> None:
        if not self._held or self._stopping:
            link.close()  # another one may listen by now
            return
        if text is None:
            self._not_ours("a message is too long")
            return
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            self._not_ours("a message is not understood")
        elif message.get("type") == "hello":
            self._greeted(link, message)
        elif message.get("type") == "disconnect":
            self._retire(link, message)
        else:
            self._envelope(link, message)

    def _greeted(self, link: Link, message: dict[str, Any]) -> None:
        with self._lock:
            if link is not self._link:
                return
            self._greeted_at = self._clock.monotonic()
            old, self._retired = self._retired, None
            worried, self._worried = self._worried, False
        self._become("connected", "")
        if old is not None:
            old.close()
        elif isinstance(n := message.get("num_connections"), int) and n > 1:
            self._say(
                "connections",
                "others listen to this Slack app too, and Slack shares the clicks out among all; "
                "give each GUARD_HOME a Slack app of its own",
            )
        if worried:
            self._say_always("Slack is reached again")

    def _retire(self, link: Link, message: dict[str, Any]) -> None:
        """Slack is going to end this connection. It is read until the next one stands, so that no click is lost."""
        if message.get("reason") == "link_disabled":
            raise Failure("off", "Socket Mode is switched off for this Slack app")
        with self._lock:
            if link is not self._link:
                return
            old, self._retired, self._link = self._retired, link, None
            steady = self._greeted_at is not None and self._clock.monotonic() - self._greeted_at >= _STEADY
            self._pause()
            if steady:
                self._connect_at = 0.0
        if old is not None:
            old.close()

    def _envelope(self, link: Link, message: dict[str, Any]) -> None:
        id_ = message.get("envelope_id")
        if not isinstance(id_, str) or not 0 < len(id_) <= _ID:
            self._not_ours("a message is not understood")
            return
        with self._lock:
            self._state = replace(self._state, last_event_at=self._clock.time())
        if self._doing.full and id_ not in self._envelopes:
            # Slack shows a person whose envelope was not acknowledged that it came to nothing.
            self._not_ours("too many wishes at once")
            return
        link.acknowledge(id_)
        if not self._envelopes.first(id_):
            return
        found = hear(message, app=self._app, team=self._team, operators=self._operators)
        wish = found.wish if isinstance(found, Refused) else found
        if wish is not None and not self._wishes.first(wish.key):
            return
        if isinstance(found, Refused) and not (wish or found.tell):
            self._not_ours(found.why)
        else:
            self._doing.put(found)

    def _not_ours(self, why: str) -> None:
        """Nobody to be answered, and no run to be journaled in."""
        self._count(False)
        self._say(why, f"refused what came from Slack: {why}")

    # ---- telling

    def _become(self, status: Status, why: str) -> None:
        with self._lock:
            if (status, why) != (self._state.status, self._state.why):
                since = self._state.since if status == self._state.status else self._clock.time()
                self._state = replace(self._state, status=status, since=since, why=why)

    def _count(self, done: bool) -> None:
        with self._lock:
            now = self._state
            self._state = replace(now, done=now.done + done, refused=now.refused + (not done))

    def _say(self, key: str, text: str) -> None:
        if self._said.first(key):
            self._say_always(text)


def app_id(token: str) -> str:
    """Of an app-level token; "" for anything else."""
    match = _TOKEN.fullmatch(token)
    return match[1] if match else ""
