"""One incident in full, for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from guard.cli._attention import silenced_until
from guard.cli._in_force import in_force
from guard.cli._policy_line import policy_line
from guard.cli._runs import RunStory
from guard.cli._say import out, out_fields, out_table, wrapped
from guard.types import Attempt, Incident

_SHOWN = 8  # ticks before the incident


def tell(run: RunStory, incident: Incident) -> None:
    """Prints all that is known of one incident."""
    from guard.notify import account, from_outside, story, why
    from guard.notify.render import TRIED
    from guard.notify.words import clean, fault

    out(wrapped(story.first_line(run.log, incident)))
    out(
        wrapped(
            f"{incident.severity.capitalize()} · {fault(incident.detector)} · run "
            f"{clean(run.log.run.get('run') or run.path.name, 80)}"
        )
    )
    out()
    out_fields(_head(run, incident))
    _section("What happened", account.what_happened(incident).splitlines()[:1])
    out_fields(_numbers(incident))
    _rows_before(incident)
    _section("Why", why.told(incident).splitlines())
    if rows := why.experiments(incident):
        out(f"\n{TRIED}")
        out_table(("  ", "the failing step", "outcome", "numbers"), [("", *row) for row in rows])
    _section("Looked at before it, and in order", [f"- {line}" for line in why.before(incident)])
    would = incident.status == "observed"
    _section(
        "What the guard would have done" if would else "What the guard did",
        [line for i, a in enumerate(incident.attempts, 1) for line in _attempt(i, a)] or ["Nothing."],
    )
    unsure = story.stage(run.log, incident) == "verifying"
    _section("Did it help?", ["Not known yet."] if unsure else story.did_it_help(run.log, incident).splitlines())
    changes = standing(run, incident)
    _section("Still in force", [f"- {clean(summary, 300)}" for _, summary in changes])
    also = story.attached(run.log, incident)
    _section(
        "Seen at the same time", [f"- {clean(i.id, 80)}, {fault(i.detector)}, step {i.opened_step:,}" for i in also]
    )
    for title, text in from_outside.evidence(incident):
        out("\n".join(["", title, *(f"  {line}".rstrip() for line in text.splitlines())]))
    _section("Evidence", [str(p) for p in evidence_files(run, incident)])
    if changes and run.log.finished is None:
        out(f"\nTo take it back: guard undo {run.path} {clean(incident.id, 80)}")


def _section(title: str, lines: list[str]) -> None:
    if lines:
        out(f"\n{title}")
    for line in lines:
        indent = " " * (2 + len(line) - len(line.lstrip()))
        out(wrapped(line.strip(), indent, indent + ("  " if line.lstrip()[:1] == "-" else "")))


def _head(run: RunStory, incident: Incident) -> Iterator[tuple[str, str]]:
    from guard.notify import story
    from guard.notify.words import clean, utc

    yield "Incident", f"{clean(incident.id, 80)}, {incident.status}" + _owner(incident)
    yield "Run", f"{run.path} on {clean(run.log.run.get('host') or 'an unknown host', 80)}"
    yield "Opened", f"step {incident.opened_step:,}, tick {incident.opened_tick:,}, {utc(incident.opened_at)}"
    if incident.closed_tick is not None and incident.closed_at is not None:
        yield "Closed", f"tick {incident.closed_tick:,}, {utc(incident.closed_at)}"
    if ack := story.ack(run.log, incident):
        yield "Acknowledged", f"by {clean(ack['author'], 80)}, {utc(ack['time'])}"
    if until := silenced_until(run, incident):
        yield "Silenced", f"until {utc(until)}"
    line = policy_line(run.path, incident.policy)
    yield "Policy", clean(incident.policy, 120) + (f"\n{run.path / 'policy.yaml'}:{line}" if line else "")
    yield "Detector", clean(incident.detector, 80)
    yield "Cause", clean(incident.cause)


def _owner(incident: Incident) -> str:
    owner = incident.evidence.get("attached_to")
    return f"; repaired together with {owner}" if owner else ""


def _numbers(incident: Incident) -> Iterator[tuple[str, str]]:
    """Value, limit and what is usual; when it began."""
    from guard.notify import account
    from guard.notify.words import count, number, signal

    d = account.detection(incident)
    if d.get("signal"):
        yield "Signal", signal(str(d["signal"]))
        yield "Value", number(d.get("value"))
        yield "Limit", _finite(d.get("threshold"), "none")
        yield "Usual", _finite(d.get("baseline"), "not known")
    since = d.get("since")
    if isinstance(since, int):
        before = incident.opened_tick - since
        when = f"{count(before, 'tick')} before it was seen" if before > 0 else "the tick in which it was seen"
        yield "Began", f"tick {since:,}, {when}"
    yield "Seen", count(incident.count, "time")


def _finite(value: Any, otherwise: str) -> str:
    from guard.notify.words import as_float, number

    return number(value) if math.isfinite(as_float(value)) else otherwise


def _rows_before(incident: Incident) -> None:
    """The last ticks before it, as the journal kept them."""
    from guard.incidents.rundir import SIGNAL_COLUMNS
    from guard.notify.words import number

    kept = incident.evidence.get("signals")
    whole = [r for r in kept if isinstance(r, list) and len(r) == len(SIGNAL_COLUMNS)] if isinstance(kept, list) else []
    rows = whole[-_SHOWN:]
    if not rows:
        return
    out("\nTicks before it")
    columns = ("tick", "step", "loss", "grad_norm", "lr_effective")
    places = [SIGNAL_COLUMNS.index(c) for c in columns]
    out_table(("  ", *columns), [("", *(number(row[i]) for i in places)) for row in rows], numbers=columns)


def _attempt(i: int, attempt: Attempt) -> Iterator[str]:
    from guard.notify.words import clean, count

    again = f", repeated {count(attempt.repeats, 'time')}" if attempt.repeats else ""
    yield f"{i}. Step {attempt.step:,}, tick {attempt.tick:,}, rung {attempt.rung + 1}{again}"
    for result in attempt.results:
        yield f"   - {clean(result.type, 40)}: {clean(result.summary, 300)}"
        for what, value in result.changes.items():
            yield f"       {clean(what, 60)}: {_change(value)}"
    for action, reason in attempt.unavailable:
        yield f"   - left out {clean(action, 40)}: {clean(reason, 300)}"
    if not attempt.results and not attempt.unavailable:
        yield "   - nothing could be done"


def _change(value: Any) -> str:
    """``1 -> 0.5`` for a pair of numbers, else the value."""
    from guard.notify.words import clean, number

    if isinstance(value, list) and len(value) == 2 and all(isinstance(v, (int, float)) for v in value):
        return f"{number(value[0])} -> {number(value[1])}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return number(value)
    return clean(", ".join(map(str, value)) if isinstance(value, list) else value, 300)


def standing(run: RunStory, incident: Incident) -> list[tuple[str, str]]:
    """``(action, summary)`` of what this incident changed and is still in force."""
    return [(action, summary) for owner, action, summary in in_force(run.entries).changes if owner == incident.id]


def evidence_files(run: RunStory, incident: Incident) -> list[Path]:
    """What is kept of it beside the journal."""
    folder = run.path / "evidence" / incident.id
    if folder.parent.name != "evidence" or not folder.is_dir():
        return []
    return sorted(p for p in folder.rglob("*") if p.is_file())
