"""A digest: several runs over a span of time in one message. Every figure comes from their journals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from guard.clock import Clock
from guard.incidents import IncidentLog
from guard.notify import blocks, story
from guard.notify.desk import Desk
from guard.notify.failure import OutOfTime
from guard.notify.lifecycle import counted
from guard.notify.lines import LineDesk
from guard.notify.message import Message, Reply
from guard.notify.outbox import LeaseLost, Outbox
from guard.notify.spec import ReceiverSpec
from guard.notify.subject import Subject
from guard.notify.threads import ThreadDesk
from guard.notify.turn import Limiter, Pace, Turn
from guard.notify.words import count, number, one_line, span, utc
from guard.types import Entry, Incident

_RUNS = 25  # lines of one digest
_ID = "@digest"


def render_digest(runs: Iterable[Sequence[Entry]], since: float, until: float) -> Message:
    """What became of some runs between two times.

    Args:
        runs: of each the whole story, as `guard.incidents.read_story` reads it. One that had ended before, or had not
            begun, does not count.
        since, until: seconds since the epoch.
    """
    logs = [log for entries in runs if (log := _as_of(entries, until)) and _lived(log, since)]
    recent = [[i for i in log.incidents.values() if since <= i.opened_at < until] for log in logs]
    totals = [count(len(logs), "run"), *_totals(logs, recent)]
    first = f"Last {span(until - since)}: {', '.join(totals)}"
    needs = any(story.needs_person(log, i) for log, found in zip(logs, recent, strict=True) for i in found)
    lines = [f"• {_line(log, found)}" for log, found in zip(logs, recent, strict=True)]
    more = [f"… and {count(len(lines) - _RUNS, 'more run')}"] if len(lines) > _RUNS else []
    body = "\n".join([*lines[:_RUNS], *more]) or "No run was under way."
    emoji, headline = "🔴" if needs else "🟢", f"From {utc(since)} to {utc(until)}"
    parts = [blocks.header(f"{emoji} {first}"), blocks.section("", headline), blocks.section("", body)]
    sections = (("Runs", body),)
    return Message(f"{emoji} {first}", blocks.bounded(parts), first, headline, sections=sections, count=len(logs))


def _as_of(entries: Sequence[Entry], until: float) -> IncidentLog | None:
    """The story as it was then; None before its beginning."""
    past = [e for e in entries if e["time"] < until]
    return IncidentLog(past) if past else None


def _lived(log: IncidentLog, since: float) -> bool:
    return log.finished is None or float(log.finished["time"]) >= since


def _totals(logs: Sequence[IncidentLog], recent: Sequence[Sequence[Incident]]) -> list[str]:
    """``5 incidents``, ``5 repaired``: of all runs together."""
    own = [(log, i) for log, found in zip(logs, recent, strict=True) for i in found if story.carrier(log, i).id == i.id]
    repaired = sum(story.stage(log, i) == "resolved" for log, i in own)
    needs = sum(story.needs_person(log, i) for log, i in own)
    return [
        count(len(own), "incident"),
        *([f"{repaired:,} repaired"] if repaired else []),
        *([f"{needs:,} {'needs' if needs == 1 else 'need'} you"] if needs else []),
    ]


def _line(log: IncidentLog, recent: Sequence[Incident]) -> str:
    name = one_line(log.run.get("run") or "a run", 60)
    begun = float(log.lifecycle[0]["time"]) if log.lifecycle else math.nan
    if log.finished is None:
        how = "under way" + (f" since {utc(begun)}" if math.isfinite(begun) else "")
    else:
        step = f" at step {number(log.finished['step'])}" if log.finished["step"] else ""
        after = f" after {span(log.finished['time'] - begun)}" if math.isfinite(begun) else ""
        how = f"{one_line(log.finished.get('status'), 40)}{step}{after}"
    return f"{name}: {how}; {', '.join(counted(log, recent)) or 'no incidents'}"


class _Digest(Subject):
    def __init__(self, message: Message, key: str, begun: float) -> None:
        self._message, self.id, self.begun = message, f"{_ID}/{key}", begun

    def message(self, *, listening: bool = False) -> Message:  # noqa: ARG002 - there is nothing to press
        return self._message

    def replies(self) -> list[Reply]:
        return []

    def state(self) -> str:
        return "digest"


def post_digest(
    spec: ReceiverSpec,
    message: Message,
    *,
    key: str,
    box: Outbox,
    clock: Clock,
    limiter: Limiter | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> bool:
    """Tells a digest to one receiver, once however often it is asked to.

    Args:
        key: names this digest, e.g. the time at which it was due; what was told under it is not told again.
        box: where that is remembered.

    Returns:
        It has been told; else try again later with the same key, which keeps to the receiver's waiting times.
    """
    subject = _Digest(message, key, clock.time())
    if spec.off_reason or box.item(spec.name, subject.id, "root").state == "told":
        return not spec.off_reason
    if not box.take_lease(clock.time()):
        return False
    desk: Desk = ThreadDesk(spec) if spec.threaded else LineDesk(spec)
    turn = Turn(IncidentLog(), box, Pace(clock, limiter), Path(), "digest", {}, set(), None, say)
    try:
        desk.deliver(turn, [subject])
    except (LeaseLost, OutOfTime):
        return False
    return box.item(spec.name, subject.id, "root").state == "told"
