"""Incident -> message: pure functions from what the journal says to what people read.

The Slack receivers, the console, the demo and `guard show` all tell an incident with these.
"""

from __future__ import annotations

import shlex
import textwrap

from guard.incidents import IncidentLog
from guard.notify import blocks, story, why
from guard.notify.message import Message, Reply
from guard.notify.words import clean, count, cut, escape, fault, number, sentence, utc
from guard.types import Incident

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


def root(log: IncidentLog, incident: Incident) -> Message:
    """The one message of an incident, as it stands now."""
    also = story.attached(log, incident)
    severity = story.severity(log, [incident, *also])
    emoji = EMOJI[story.stage(log, incident)]
    first = cut(story.first_line(log, incident), 140)
    run = clean(log.run.get("run") or "this run", 80)
    headline = f"{severity.capitalize()} · {fault(incident.detector)} · run {run}"
    sections = [
        ("What happened", story.what_happened(incident)),
        ("Where it began", story.where_it_began(incident)),
        ("Why", why.told(incident)),
        (TRIED, why.listed(incident)),
        (
            "What the guard would have done" if incident.status == "observed" else "What the guard did",
            story.what_was_done(incident),
        ),
        ("Did it help?", story.did_it_help(log, incident)),
        (
            "Seen at the same time",
            "\n".join(f"• {_told_with(i)}" for i in also[:6])
            + (f"\n… and {len(also) - 6} more" if len(also) > 6 else ""),
        ),
        ("Still in force", "\n".join(f"• {s}" for s in story.standing(incident)[-4:])),
    ]
    kept = tuple((title, body) for title, body in sections if body)
    shown, command = _fields(log, incident), f"guard show {run_dir(log)} {shlex.quote(clean(incident.id, 80))}"
    body = [
        blocks.header(f"{emoji} {first}"),
        blocks.section("", headline),
        blocks.fields(shown, incident.opened_at),
        *(blocks.section(title, text) for title, text in kept),
        blocks.code("Next, type", command),
    ]
    return Message(f"{emoji} {first} ({headline})", blocks.bounded(body), first, headline, shown, kept, command)


def replies(log: IncidentLog, incident: Incident) -> list[Reply]:
    """The incident's history, oldest first. A key once given stays; new events come after it."""
    now = story.stage(log, incident)
    events: list[tuple[int, Reply]] = []
    for i, attempt in enumerate(incident.attempts):
        escalated = story.escalated(incident, i)
        before = "That did not hold. Next: " if escalated else ""
        # Somebody is woken by the latest turn for the worse, not by those before it; a stop is told by the ending.
        latest = i == len(incident.attempts) - 1 and not any(r.type == "stop" for r in attempt.results)
        waking = escalated and latest and now in ("firing", "verifying")
        line = story.attempt_line(
            incident, type(attempt)(attempt.rung, attempt.tick, attempt.step, attempt.results, attempt.unavailable)
        )
        events.append((attempt.tick, Reply(f"attempt:{i}", before + line, waking)))
    events += [
        (i.opened_tick, Reply(f"attached:{i.id}", f"Seen at the same time: {_told_with(i)}"))
        for i in story.attached(log, incident)
    ]
    events.sort(key=lambda event: event[0])
    return [reply for _, reply in events] + _ending(log, incident)


def _ending(log: IncidentLog, incident: Incident) -> list[Reply]:
    now = story.stage(log, incident)
    first = story.first_line(log, incident)
    crashed = Reply("crashed", sentence(first), broadcast=True)
    match now:
        case "resolved" | "exhausted" | "stopped":
            # The end of the run changes an exhausted incident's first line, but not what was told here.
            said = first if now != "exhausted" else "Needs you: out of remedies"
            text = sentence(said) + story.losses_said(incident)
            return [Reply(f"closed:{now}", text, now in story.NEEDS_YOU)]
        case "over" | "crashed":
            over = Reply("over", "Run over before a verdict: whether it would have helped is not known.")
            return ([over] if now == "over" or incident.status == "ended" else []) + (
                [crashed] if now == "crashed" else []
            )
        case "observed" if incident.closed_tick is not None:
            return [Reply("closed:observed", f"No longer seen, after {count(incident.count, 'time')}.")]
    return []


def storm(log: IncidentLog, incidents: list[Incident], since: float) -> Message:
    """One message for the incidents that would have been too many messages."""
    first = f"{count(len(incidents), 'more incident')} not told one by one"
    run = clean(log.run.get("run") or "this run", 80)
    lines = [f"• {fault(i.detector)} at step {number(i.opened_step)} ({clean(i.id, 60)})" for i in incidents[-5:]]
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
        count=len(incidents),
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
    return shlex.quote(clean(log.run.get("run_dir") or ".", 400))


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
    return tuple((label, clean(value, 120)) for label, value in pairs if value is not None)


def _told_with(incident: Incident) -> str:
    message = clean(story.detection(incident).get("message") or "", 240)
    what = f"{fault(incident.detector)}, step {number(incident.opened_step)}"
    return f"{what}: {message}" if message else what
