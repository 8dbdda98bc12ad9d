"""What a person may do to a run from outside its process. One place for what is typed and what is pressed in Slack.

Each function says in its answer what it did, and raises `UsageError` with the reason why it did not.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from guard.clock import Clock
from guard.errors import UsageError
from guard.incidents import control
from guard.incidents.afterwards import adding
from guard.incidents.journal import NAME, Follower, read_journal
from guard.incidents.log import IncidentLog
from guard.incidents.outside import append, read_story
from guard.incidents.rundir import holder_alive
from guard.types import Entry


@dataclass(slots=True)
class Asked:
    """A request that was left for a running guard.

    Args:
        file: where it lies until it is taken.
        journal: from where on the receipt will be.
    """

    run_dir: Path
    request: control.Request
    file: Path
    journal: Follower

    def receipt(self) -> Entry | None:
        """The run's answer, once it is there: a `request` entry with `accepted` and `message`. Given out once."""
        for entry in self.journal.read():
            asked = entry.get("request")
            if entry["kind"] == "request" and isinstance(asked, dict) and asked.get("id") == self.request.id:
                return entry
        return None

    def withdraw(self) -> None:
        """Nobody shall take it any more."""
        self.file.unlink(missing_ok=True)


def acknowledge(run_dir: Path, incident: str, author: str, clock: Clock) -> str:
    """A person has seen it; a second time changes nothing.

    Raises:
        UsageError: there is no such incident, or the directory cannot be written.
    """
    story = read_story(run_dir)
    log = _knows(story, incident, run_dir)
    if (first := log.acks.get(incident)) is not None:
        return f"{incident} was acknowledged before, by {first['author']}"
    append(run_dir, clock, "ack", moment=_moment(story), incident=incident, author=author)
    return f"{incident} is acknowledged: nobody is reminded of it, and no further receiver is called"


def silence(run_dir: Path, until: float, author: str, clock: Clock, policy: str | None = None) -> str:
    """Mutes messages, not protection.

    Args:
        until: seconds since the epoch.
        policy: only of this one; None: of the whole run.

    Raises:
        UsageError: there is no run, the time is none or has passed, or the directory cannot be written.
    """
    if not clock.time() < until < math.inf:
        raise UsageError("a silence needs an end that is still to come")
    story = _needs_run(run_dir)
    append(run_dir, clock, "silence", moment=_moment(story), until=until, author=author, policy=policy)
    minutes = (until - clock.time()) / 60
    return f"{_of(policy)} are silenced for {minutes:,.0f} min; the run is protected as before"


def lift(run_dir: Path, author: str, clock: Clock, policy: str | None = None) -> str:
    """Ends a silence before its time.

    Args:
        policy: of which it is; None: of the whole run.

    Raises:
        UsageError: there is no run or no such silence, or the directory cannot be written.
    """
    story = _needs_run(run_dir)
    if not any(e["policy"] == policy for e in IncidentLog(story).silences(clock.time())):
        raise UsageError(f"nothing is silenced for {f'policy {policy}' if policy else 'the whole run'}")
    append(run_dir, clock, "silence", moment=_moment(story), until=0.0, author=author, policy=policy)
    return f"{_of(policy)} come again; what is not resolved is told now"


def policy_of(run_dir: Path, incident: str) -> str:
    """Which policy opened it.

    Raises:
        UsageError: there is no such incident.
    """
    return _knows(read_story(run_dir), incident, run_dir).incidents[incident].policy


def ask(run_dir: Path, request: control.Request, clock: Clock) -> Asked:
    """Leaves a request for the process that runs now, and for no later one.

    Raises:
        UsageError: none is running, or the directory cannot be written.
    """
    process = control.incarnation(run_dir)
    if not holder_alive(run_dir, clock):
        raise UsageError("it is not running, so nobody would take the request")
    journal = run_dir / NAME
    try:
        follower = Follower(journal, offset=journal.stat().st_size)
    except OSError:
        follower = Follower(journal)
    request = replace(request, run=process)
    return Asked(run_dir, request, control.submit(run_dir, request), follower)


def reopen(run_dir: Path, author: str, clock: Clock) -> bool:
    """Lets a run that a policy or a person has stopped go on when it is started again; False if it is not such a one.

    Raises:
        RunDirError: a guard has just taken the directory.
    """
    if holder_alive(run_dir, clock):
        return False
    if (IncidentLog(read_journal(run_dir)).finished or {}).get("status") != "stopped":
        return False
    with adding(run_dir, clock) as (_, write):
        write("reopened", author=author)
    return True


def refuse(run_dir: Path, request: control.Request | dict[str, str], author: str, why: str, clock: Clock) -> None:
    """Journals what somebody wanted and was not done.

    Raises:
        UsageError: there is no run, or the directory cannot be written.
    """
    story = _needs_run(run_dir)
    asked = request if isinstance(request, dict) else asdict(request)
    append(run_dir, clock, "request", moment=_moment(story), request=asked, author=author, accepted=False, message=why)


def _of(policy: str | None) -> str:
    return f"messages of policy {policy}" if policy else "all messages of the run"


def _needs_run(run_dir: Path) -> list[Entry]:
    if not (story := read_story(run_dir)):
        raise UsageError(f"{run_dir} holds no journal of a run")
    return story


def _knows(story: list[Entry], incident: str, run_dir: Path) -> IncidentLog:
    log = IncidentLog(story)
    if incident not in log.incidents:
        raise UsageError(f"there is no incident {incident!r} in {run_dir}")
    return log


def _moment(story: list[Entry]) -> tuple[int, int]:
    """``(tick, step)`` as far as the run had come."""
    last = max(story, key=lambda entry: int(entry["tick"]), default=None)
    return (last["tick"], last["step"]) if last else (0, 0)
