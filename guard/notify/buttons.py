"""The buttons under an incident's message: what a person can do about it now, each with its twin on the command line.

What a press means is for whoever listens: ``action_id`` is ``guard:VERB``, and the value is a small JSON object with
the run's id, the incident's and the verb.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from guard.clock import Clock
from guard.home import Home, run_id
from guard.incidents import IncidentLog
from guard.notify import account, story
from guard.notify.blocks import Block

PREFIX = "guard:"
_LOOK = 10.0  # [s]
_VALUE = 2000  # characters of a value that Slack takes


@dataclass(frozen=True, slots=True)
class _Button:
    """Args:
    confirm: asked before it is done; "" where nothing can go wrong.
    """

    verb: str
    label: str
    confirm: str = ""
    dangerous: bool = False


_ACK = _Button("ack", "Acknowledge")
_SILENCE = _Button("silence", "Silence 1 h")
_OBSERVE = _Button(
    "observe",
    "Observe only",
    "From now on the guard only reports what it sees in this run, and repairs nothing, until somebody types "
    "`guard enforce`.",
)
_UNDO = _Button("undo", "Undo", "What this incident changed and is still in force is taken back.")
_ROLLBACK = _Button(
    "rollback",
    "Roll back",
    "The run goes back to its last good checkpoint at its next step; the steps since are done again.",
    dangerous=True,
)
_STOP = _Button("stop", "Stop", "The run writes a checkpoint if its policy keeps any, and ends.", dangerous=True)
_RESUME = _Button("resume", "Resume", "The run goes on; one that was stopped, when it is started again.")


def for_incident(log: IncidentLog, together: story.Together) -> list[Block]:
    """An ``actions`` block with what makes sense now; nothing if nothing does."""
    run, now = _run(log), together.latest
    standing = next((i for i in reversed(together.again) if account.standing(i)), now)
    elements = [
        _element(b, {"run": run, "incident": (standing if b is _UNDO else now).id, "verb": b.verb})
        for b in _sensible(log, together)
    ]
    if not elements or any(len(e["value"]) > _VALUE for e in elements):
        return []
    return [{"type": "actions", "elements": elements}]


def _sensible(log: IncidentLog, together: story.Together) -> Iterator[_Button]:
    now = together.latest
    stage, goes_on = story.stage(log, now), log.finished is None
    open_ = stage in ("firing", "verifying") or story.needs_person(log, now)
    if open_ and not story.ack(log, now):
        yield _ACK
    if open_ or goes_on:
        yield _SILENCE
    if goes_on and story.lost(log) is None:  # somebody is there who can obey
        if log.mode == "enforce":
            yield _OBSERVE
        if any(account.standing(i) for i in together.again):
            yield _UNDO
        if log.mode == "enforce" and stage != "observed":
            yield _ROLLBACK
        yield _STOP
    if (goes_on and account.paused(now)) or (log.finished or {}).get("status") == "stopped":
        yield _RESUME


def _element(button: _Button, value: dict[str, str]) -> dict[str, Any]:
    element: dict[str, Any] = {
        "type": "button",
        "text": {"type": "plain_text", "text": button.label},
        "action_id": PREFIX + button.verb,
        "value": json.dumps(value, separators=(",", ":")),
    }
    if button.dangerous:
        element["style"] = "danger"
    if button.confirm:
        element["confirm"] = {
            "title": {"type": "plain_text", "text": f"{button.label}?"},
            "text": {"type": "plain_text", "text": button.confirm},
            "confirm": {"type": "plain_text", "text": button.label},
            "deny": {"type": "plain_text", "text": "Leave it"},
        }
    return element


def _run(log: IncidentLog) -> str:
    host, run_dir = (str(log.run.get(key)).encode("utf-8", "replace").decode() for key in ("host", "run_dir"))
    return run_id(host, run_dir)


class Listeners:
    """Whether somebody hears a press of a button.

    Args:
        home: where they announce themselves; None: nobody does.
    """

    def __init__(self, home: Home | None, clock: Clock) -> None:
        self._home, self._clock = home, clock
        self._looked, self._found = -math.inf, False

    def listening(self) -> bool:
        """Looks at most every ten seconds."""
        now = self._clock.monotonic()
        if self._home is not None and now - self._looked >= _LOOK:
            self._looked, self._found = now, bool(self._home.claimed("listeners"))
        return self._found
