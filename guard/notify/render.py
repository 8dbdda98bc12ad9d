"""Incident -> message: pure functions from what the journal says to what people read.

The Slack receivers, the console, the demo and `guard show` all tell an incident with these.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import replace

from guard.incidents import IncidentLog
from guard.notify import account, blocks, buttons, story, why
from guard.notify.from_outside import HAPPENED
from guard.notify.message import Message, Reply
from guard.notify.words import clean, count, cut, escape, fault, nth, number, one_line, sentence, utc
from guard.types import Entry, Incident

TRIED = "Tried aside"
EMOJI = {
    "firing": "🟡",
    "verifying": "🟡",
    "resolved": "🟢",
    "exhausted": "🔴",
    "stopped": "🔴",
    "crashed": "🔴",
    "over": "⚪",
    "observed": "🔵",
}


def root(log: IncidentLog, incident: Incident, *, listening: bool = False) -> Message:
    """The one message of an incident, as it stands now; also of the same fault once more.

    Args:
        listening: somebody hears buttons.
    """
    together = story.groups(log).get(incident.id) or story.Together([incident], [])
    now, also = together.latest, together.attached
    severity = story.severity(log, [*together.again, *also])
    again = f" ({nth(len(together.again))} time)" if len(together.again) > 1 else ""
    first = cut(story.first_line(log, now), 120) + again
    run = one_line(log.run.get("run") or "this run", 80)
    acknowledged = f" · {_acknowledged(ack)}" if (ack := story.ack(log, now)) else ""
    headline = f"{severity.capitalize()} · {fault(now.detector)} · run {run}{acknowledged}"
    sections = [
        ("What happened", account.what_happened(now)),
        ("Where it began", account.where_it_began(now)),
        ("Why", why.told(now)),
        (TRIED, why.listed(now)),
        (
            "What the guard would have done" if now.status == "observed" else "What the guard did",
            account.what_was_done(now),
        ),
        ("Did it help?", story.did_it_help(log, now)),
        ("Before", _listed([_earlier(log, i) for i in together.again[:-1]], newest=True)),
        ("Seen at the same time", _listed([_told_with(i) for i in also])),
        ("Still in force", "\n".join(f"• {s}" for i in together.again for s in account.standing(i)[-4:])),
    ]
    kept = tuple((title, body) for title, body in sections if body)
    shown, command = _fields(log, now), f"guard show {run_dir(log)} {shlex.quote(one_line(now.id, 80))}"
    body = [
        blocks.header(f"{EMOJI[story.stage(log, now)]} {first}"),
        blocks.section("", headline),
        blocks.fields(shown, now.opened_at),
        *(blocks.section(title, text) for title, text in kept),
        *(buttons.for_incident(log, together) if listening else []),
        blocks.code("Next, type", command),
    ]
    text = f"{EMOJI[story.stage(log, now)]} {first} ({headline})"
    return Message(text, blocks.bounded(body), first, headline, shown, kept, command)


_EACH = 3  # times that a fault is told each time it comes


def replies(log: IncidentLog, incident: Incident) -> list[Reply]:
    """Its history, oldest first. A key once given stays; new events come after it. Of a fault that comes again and
    again the 4th, 8th, 16th … time is told, and each that needs a person: the root counts them all."""
    together = story.groups(log).get(incident.id) or story.Together([incident], [])
    found: list[Reply] = []
    for n, member in enumerate(together.again, 1):
        history, latest = _history(log, member), member is together.latest
        needs_person = story.needs_person(log, member)
        if n > _EACH and n & (n - 1) and not needs_person:
            history = [r for r in history if r.broadcast]
        elif n > 1:
            needed = latest and needs_person and not any(r.broadcast for r in history)  # which wakes already
            again = f"Again, {nth(n)} time: {_told_with(member)}"
            history = [Reply("again", again, needed), *history]
        found += [
            replace(r, key=r.key if n == 1 else f"{r.key}/{member.id}", broadcast=r.broadcast and latest)
            for r in history
        ]
    return found


def _history(log: IncidentLog, incident: Incident) -> list[Reply]:
    """What became of one incident."""
    now = story.stage(log, incident)
    events: list[tuple[int, Reply]] = []
    for i, attempt in enumerate(incident.attempts):
        escalated = account.escalated(incident, i)
        before = "That did not hold. Next: " if escalated else ""
        # Somebody is woken by the latest turn for the worse, not by those before it; a stop is told by the ending.
        latest = i == len(incident.attempts) - 1 and not any(r.type == "stop" for r in attempt.results)
        waking = escalated and latest and now in ("firing", "verifying")
        line = account.attempt_line(
            incident, type(attempt)(attempt.rung, attempt.tick, attempt.step, attempt.results, attempt.unavailable)
        )
        events.append((attempt.tick, Reply(f"attempt:{i}", before + line, waking)))
    events += [
        (i.opened_tick, Reply(f"attached:{i.id}", f"Seen at the same time: {_told_with(i)}"))
        for i in story.attached(log, incident)
    ]
    events.sort(key=lambda event: event[0])
    given = [e for i in (incident, *story.attached(log, incident)) if (e := log.acks.get(i.id))]
    ack = [Reply("ack", f"{_acknowledged(given[0])}.")] if given else []
    return [*(reply for _, reply in events), *ack, *_ending(log, incident)]


def _ending(log: IncidentLog, incident: Incident) -> list[Reply]:
    now = story.stage(log, incident)
    first = story.first_line(log, incident)
    waking = story.needs_person(log, incident)
    match now:
        case "resolved" | "exhausted" | "stopped":
            # The end of the run changes an exhausted incident's first line, but not what was told here.
            remedies = now == "exhausted" and waking and incident.detector not in HAPPENED
            said = "Needs you: out of remedies" if remedies else first
            return [Reply(f"closed:{now}", sentence(said) + account.losses_said(incident), waking)]
        case "over" if first.startswith("No action") or incident.detector in HAPPENED:
            return [Reply("over", sentence(first))]
        case "over" | "crashed":
            over = Reply("over", "Run over before a verdict: whether it would have helped is not known.")
            return ([over] if now == "over" or incident.status == "ended" else []) + (
                [Reply("crashed", sentence(first), broadcast=True)] if now == "crashed" else []
            )
        case "observed" if incident.closed_tick is not None:
            return [Reply("closed:observed", f"No longer seen, after {count(incident.count, 'time')}.")]
    return []


def storm(log: IncidentLog, incidents: list[Incident], since: float, elsewhere: Sequence[int] = ()) -> Message:
    """One message for the incidents that would have been too many messages.

    Args:
        incidents: of this run.
        elsewhere: how many there were in each of the other runs that are told in the same channel.
    """
    total = len(incidents) + sum(elsewhere)
    first = f"{count(total, 'more incident')} not told one by one"
    run = one_line(log.run.get("run") or "this run", 80)
    if elsewhere:
        run += f" and {count(len(elsewhere), 'other run')}"
    lines = [f"• {fault(i.detector)} at step {number(i.opened_step)} ({one_line(i.id, 60)})" for i in incidents[-5:]]
    body = f"Since {utc(since)}. The latest:\n" + "\n".join(lines)
    command = f"guard incidents {run_dir(log)}"
    parts = [
        blocks.header(f"🟡 {first}"),
        blocks.section("", f"run {run}"),
        blocks.section("", body),
        blocks.code("To see all of them, type", command),
    ]
    return Message(
        f"🟡 {first} (run {run})",
        blocks.bounded(parts),
        first,
        f"run {run}",
        sections=(("Too many at once", body),),
        command=command,
        count=total,
    )


def to_terminal(message: Message, width: int = 88) -> str:
    """The message for a terminal: no colours, no markup."""
    lines = [message.first_line, message.headline]
    if message.fields:
        pad = max(len(label) for label, _ in message.fields)
        lines += ["", *(f"  {label:<{pad}}  {value}" for label, value in message.fields)]
    for title, body in message.sections:
        lines += ["", title]
        for line in body.splitlines():
            hang = " " * (2 + (3 if line[:1].isdigit() and line[1:3] == ". " else 2 if line.startswith("• ") else 0))
            lines += textwrap.wrap(line, width, initial_indent="  ", subsequent_indent=hang) or [""]
    return "\n".join([*lines, "", f"Next: {message.command}"]) + "\n" if message.command else "\n".join(lines) + "\n"


def slack_text(text: str, mention: str | None = None) -> str:
    """Plain text as Slack wants it; only the receiver's own mention stays markup."""
    return f"{mention} {escape(text)}" if mention else escape(text)


def run_dir(log: IncidentLog) -> str:
    return shlex.quote(one_line(log.run.get("run_dir") or ".", 400))


def _fields(log: IncidentLog, incident: Incident) -> tuple[tuple[str, str], ...]:
    run = log.run
    pairs = [
        ("Run", run.get("run")),
        ("Host", run.get("host")),
        ("Rank", run.get("rank")),
        ("Step", number(incident.opened_step)),
        ("Time", utc(incident.opened_at)),
        ("Policy", incident.policy),
    ]
    return tuple((label, one_line(value, 120)) for label, value in pairs if value is not None)


def _told_with(incident: Incident) -> str:
    message = clean(account.detection(incident).get("message") or "", 240)
    what = f"{fault(incident.detector)}, step {number(incident.opened_step)}"
    return f"{what}: {message}" if message else what


def _listed(lines: list[str], *, newest: bool = False) -> str:
    """As bullets, at most six."""
    more = f"… and {len(lines) - 6} more" if len(lines) > 6 else ""
    shown = [f"• {line}" for line in (lines[-6:] if newest else lines[:6])]
    return "\n".join([*([more] if more and newest else []), *shown, *([more] if more and not newest else [])])


def _earlier(log: IncidentLog, incident: Incident) -> str:
    return f"Step {number(incident.opened_step)}, {utc(incident.opened_at)}: {story.first_line(log, incident)}"


def _acknowledged(ack: Entry) -> str:
    return f"Acknowledged by {one_line(ack['author'], 80)}"
