"""What a person wants of a run, done: here, or by the daemon of the host that reaches the run."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

from guard.clock import Clock
from guard.daemon import standing
from guard.daemon.hearing import BUTTONS, COMMANDS, HELP, Refused, Wish
from guard.daemon.once import Once
from guard.errors import GuardError, UsageError
from guard.home import Announcement, Home
from guard.incidents import acts, control
from guard.incidents.journal import NAME
from guard.incidents.rundir import holder_alive
from guard.notify.failure import Failure
from guard.notify.words import clean, one_line

EXPIRY = 600.0  # [s] after which nobody wants any more what was asked
_MAX_WAITING = 100
_MAX_NAMED = 10  # runs listed in an answer
_MINUTE = 60.0

# What is typed in place of each button.
TWINS = {
    "ack": "guard ack {run_dir} {incident}",
    "silence": "guard silence {run_dir} --for 1h",
    "observe": "guard observe {run_dir}",
    "undo": "guard undo {run_dir} {incident}",
    "rollback": "guard rollback {run_dir}",
    "stop": "guard stop {run_dir}",
    "resume": "guard resume {run_dir}",
}
_ASKED = {
    "observe": "only report from its next step on",
    "undo": "take back what {incident} changed",
    "rollback": "go back to its last good checkpoint",
    "stop": "stop at its next step",
    "resume": "go on",
}


@dataclass(slots=True)
class _Waiting:
    """A request whose receipt the person is to hear."""

    asked: acts.Asked
    name: str
    answer_at: str
    until: float


class Deeds:
    """Does what is wanted and answers. One thread at a time.

    Args:
        homes: where runs are found.
        answer: says something to the person at an address; raises `Failure`.
        say: for the log.
    """

    def __init__(
        self, homes: Sequence[Home], clock: Clock, answer: Callable[[str, str], None], say: Callable[[str], None]
    ) -> None:
        self._homes, self._clock, self._answer, self._say = homes, clock, answer, say
        self._waiting: list[_Waiting] = []
        self._refused = Once(1000)

    def do(self, wish: Wish) -> bool:
        """Does it, or says why not; True if it was done or passed on."""
        return self._done(wish, lambda: self._general(wish) or self._at_its_place(wish, self._find(wish)))

    def do_forwarded(self, message: dict[str, Any]) -> bool:
        """Does what the listener on another host has passed on, out of `Home.forwarded`."""
        if (wish := _revived(message)) is None:
            self._say("a forwarded request is not understood")
            return False

        def here() -> str:
            if self._clock.time() > message["expires"]:
                raise UsageError("it came too late to this host")
            run = self._find(wish)
            if not reachable(run):
                raise UsageError(f"this host does not reach {run.run_dir}")
            return self._act(wish, run)

        return self._done(wish, here)

    def refuse(self, refused: Refused) -> None:
        """Journals it with its run, as far as that is known, and tells the person."""
        if refused.wish is not None and refused.wish.run:
            self._journal(refused.wish, refused.why)
        if refused.tell:
            self._tell(refused.answer_at, refused.tell)

    def tick(self) -> None:
        """Tells people how their requests were answered by the runs."""
        for waiting in list(self._waiting):
            gone = not holder_alive(waiting.asked.run_dir, self._clock)  # asked first, see below
            receipt = waiting.asked.receipt()
            if receipt is not None:
                done = f"done at step {receipt['step']:,}" if receipt.get("accepted") else "refused"
                text = f"{done}: {clean(receipt.get('message', ''), 600)}"
            elif gone:  # and what it wrote before it went has been read
                waiting.asked.withdraw()
                text = "it ended before it took the request, which is withdrawn"
            elif self._clock.time() > waiting.until:
                text = "it has not taken the request in time; nobody wants it any more"
            else:
                continue
            self._waiting.remove(waiting)
            self._tell(waiting.answer_at, f"{waiting.name}: {text}")

    # ---- one wish

    def _done(self, wish: Wish, do: Callable[[], str]) -> bool:
        try:
            text, done = do(), True
        except GuardError as error:
            text, done = f"Not done: {error}", False
            self._journal(wish, str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the next one is heard
            text, done = "Not done: the guard's daemon failed; its log says more.", False
            self._say(f"{wish.verb} wanted by {wish.user} failed: {type(error).__name__}: {clean(error, 200)}")
        self._tell(wish.answer_at, text)
        return done

    def _general(self, wish: Wish) -> str:
        """What concerns no single run; "" for the rest."""
        if wish.verb == "help":
            return HELP
        if wish.verb == "status":
            return standing.of_all(self._named(wish.run), self._clock)
        return ""

    def _at_its_place(self, wish: Wish, run: Announcement) -> str:
        if reachable(run):
            return self._act(wish, run)
        home = next(home for home in self._homes if home.run(run.id))
        there = sorted((d for d in home.daemons() if d.host == run.host), key=lambda d: not d.delivers)
        if not there:
            raise UsageError(
                f"{_name(run)} is on {clean(run.host, 80)}, which this host does not reach, and no daemon lives there. "
                f"Type there: {_twin(wish, run)}"
            )
        message = {**asdict(wish), "run": run.id, "expires": self._clock.time() + EXPIRY}
        try:
            home.forward(there[0].id, message)
        except OSError as error:
            raise UsageError(f"it cannot be passed on to {clean(run.host, 80)}: {error.strerror}") from error
        return f"{_name(run)}: passed on to the daemon on {clean(run.host, 80)}, which answers here itself."

    def _act(self, wish: Wish, run: Announcement) -> str:
        run_dir, author, clock = Path(run.run_dir), _author(wish), self._clock
        if not (run_dir / NAME).is_file():
            raise UsageError(f"there is no run in {run_dir} any more")
        if wish.verb == "ack":
            return f"{_name(run)}: {acts.acknowledge(run_dir, wish.incident, author, clock)}."
        if wish.verb == "silence":
            policy = acts.policy_of(run_dir, wish.incident) if wish.incident else None
            return f"{_name(run)}: {acts.silence(run_dir, clock.time() + wish.seconds, author, clock, policy)}."
        if wish.verb == "resume" and acts.reopen(run_dir, author, clock):
            return f"{_name(run)} may go on. Start it again with the same run directory: {run_dir}"
        return self._ask(wish, run, run_dir)

    def _ask(self, wish: Wish, run: Announcement, run_dir: Path) -> str:
        """Leaves a request for the run itself."""
        request = control.Request(
            cast("control.Verb", wish.verb),
            _author(wish),
            incident=wish.incident if wish.verb == "undo" else None,
            expires=self._clock.time() + EXPIRY,
        )
        asked = acts.ask(run_dir, request, self._clock)
        del self._waiting[: -_MAX_WAITING + 1]
        self._waiting.append(_Waiting(asked, _name(run), wish.answer_at, self._clock.time() + EXPIRY))
        return f"{_name(run)} was asked to {_ASKED[wish.verb].format(incident=wish.incident)}."

    # ---- which run

    def _find(self, wish: Wish) -> Announcement:
        """The one that is meant. Raises `UsageError` if that is not clear."""
        if not wish.command:
            if known := [run for home in self._homes if (run := home.run(wish.run)) is not None]:
                return known[0]
            raise UsageError("this run is not known here; perhaps another user's daemon listens, or it was forgotten")
        found = self._named(wish.run)
        if len(found) > 1 and (live := [r for r in found if not reachable(r) or standing.runs(r, self._clock)]):
            found = live
        if len(found) == 1:
            return found[0]
        names = ", ".join(f"{_name(r)} ({r.id})" for r in found[:_MAX_NAMED])
        if found:
            raise UsageError(f"which run? Name one, by its id where names are the same: {names}")
        raise UsageError(f"there is no run {clean(wish.run, 80)!r}" if wish.run else "no run is known here")

    def _named(self, name: str) -> list[Announcement]:
        """Those of that name or id, the newest first; all, for ""."""
        runs = {run.id: run for home in self._homes for run in home.runs()}
        return sorted((r for r in runs.values() if name in ("", r.id, r.run)), key=lambda r: -r.time)

    # ---- telling

    def _tell(self, answer_at: str, text: str) -> None:
        try:
            self._answer(answer_at, text)
        except Failure as failure:
            self._say(f"a person in Slack was not answered: {failure.reason}")

    def _journal(self, wish: Wish, why: str) -> None:
        """A refusal, in the journal of its run; at most one a minute for the same person and verb."""
        run = self._run_of(wish)
        minute = int(self._clock.time() // _MINUTE)
        if not self._refused.first((wish.user, wish.verb, wish.run, minute)):
            return
        if run is not None and reachable(run):
            asked = {"verb": wish.verb, **({"incident": wish.incident} if wish.incident else {})}
            try:
                acts.refuse(Path(run.run_dir), asked, _author(wish), why, self._clock)
                return
            except GuardError:
                pass
        self._say(f"refused {wish.verb} of {wish.user} for run {clean(wish.run, 80)!r}: {clean(why, 300)}")

    def _run_of(self, wish: Wish) -> Announcement | None:
        try:
            return self._find(wish) if wish.run else None
        except UsageError:
            return None


def reachable(run: Announcement) -> bool:
    """Its directory can be reached from this host: it is on this one, or on a disk that both see."""
    if run.host == socket.gethostname():
        return True
    try:
        with (Path(run.run_dir) / "run.json").open("rb") as file:
            # Another host's path may exist here too, and be another run's.
            return bool(json.loads(file.read(1 << 20)).get("host") == run.host)
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def _revived(message: dict[str, Any]) -> Wish | None:
    expires = message.get("expires")
    given = {f.name: message.get(f.name) for f in fields(Wish)}
    numbers = (expires, given["seconds"])
    if not all(isinstance(n, (int, float)) for n in numbers) or given["verb"] not in (*BUTTONS, *COMMANDS):
        return None
    if not all(isinstance(given[key], str) for key in ("verb", "user", "key", "answer_at", "run", "incident")):
        return None
    return Wish(**cast("dict[str, Any]", {**given, "command": False}))


def _author(wish: Wish) -> str:
    return f"{wish.user} (Slack)"


def _name(run: Announcement) -> str:
    return one_line(run.run, 80)


def _twin(wish: Wish, run: Announcement) -> str:
    return TWINS[wish.verb].format(run_dir=run.run_dir, incident=wish.incident).strip()
