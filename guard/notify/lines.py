"""Receivers that can only be told, not edited: webhooks and the console. One message for each state of an incident."""

from __future__ import annotations

import sys
from typing import Any

from guard.incidents import IncidentLog
from guard.notify import render, story, webhook
from guard.notify.desk import Desk
from guard.notify.failure import Failure
from guard.notify.message import Message
from guard.notify.outbox import Item
from guard.notify.turn import Turn
from guard.types import Incident


class LineDesk(Desk):
    """Tells the present state whenever it is another than the one told last.

    A lost reply cannot be looked up here, so it is told again: twice is better than not at all.
    """

    def tell(self, turn: Turn, incident: Incident) -> bool:
        item = turn.box.item(self.spec.name, incident.id, "root")
        stage, state = story.stage(turn.log, incident), _state(turn.log, incident)
        if item.state == "told" and item.digest == state:
            return True
        if self.later(turn, item):
            return False
        if item.state in ("due", "stormed") and self.stormed(turn, item, incident):
            return True
        worse = stage in story.NEEDS_YOU or (stage == "verifying" and story.escalated(incident, -1))
        severity = story.severity(turn.log, [incident, *story.attached(turn.log, incident)])
        facts = {
            "incident": incident.id,
            "policy": incident.policy,
            "detector": incident.detector,
            "status": incident.status,
            "severity": severity,
            "count": incident.count,
            "mention": self.spec.mention if worse else None,
        }
        self._send(turn, item, render.root(turn.log, incident), state, facts)
        return True

    def untold(self, log: IncidentLog, incident: Incident, rows: dict[str, Item]) -> list[str]:
        root = rows.get("root")
        return [] if root and (root.state == "stormed" or root.digest == _state(log, incident)) else ["root"]

    def tell_storm(self, turn: Turn, item: Item, message: Message) -> None:
        # It cannot be edited: told at 1, 2, 4, 8 … incidents.
        state = f"storm/{message.count.bit_length()}"
        if item.state != "told" or item.digest != state:
            self._send(turn, item, message, state, {"incident": None, "mention": None, "count": message.count})

    def _send(self, turn: Turn, item: Item, message: Message, state: str, facts: dict[str, Any]) -> None:
        if self.spec.type != "console":
            turn.pace.wait(self.spec.name)
        turn.box.sending(item, turn.now)
        try:
            self._put(turn, message, f"{turn.run_key}/{item.incident}/{state}", facts)
        except Failure as failure:
            raise self.item_failed(turn, item, failure) from None
        turn.box.told(item, turn.now, state)
        turn.told += 1

    def _put(self, turn: Turn, message: Message, key: str, facts: dict[str, Any]) -> None:
        if self.spec.type == "console":
            put_on_console(message)
            return
        body = (
            webhook.slack_body(message, facts["mention"])
            if self.spec.type == "slack"
            else webhook.json_body(message, {**facts, "key": key})
        )
        webhook.post(self.spec, body, key, lambda: turn.pace.left(self.spec.timeout))


def _state(log: IncidentLog, incident: Incident) -> str:
    return f"{story.stage(log, incident)}/{len(incident.attempts)}"


def put_on_console(message: Message) -> None:
    """On stderr, set apart from the training's own output."""
    lines = render.to_terminal(message).rstrip("\n").split("\n")
    text = "\n".join(["", *(f"guard │ {line}".rstrip() for line in lines), ""])
    encoding = sys.stderr.encoding or "utf-8"
    try:
        sys.stderr.write(text.encode(encoding, "replace").decode(encoding) + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):  # closed; there is nowhere left to say so
        raise Failure("retry", "stderr is closed") from None
