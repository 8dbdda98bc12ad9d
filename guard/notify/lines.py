"""Receivers that can only be told, not edited: webhooks and the console. One message for each state of an incident."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from guard.notify import render, webhook
from guard.notify.desk import Desk
from guard.notify.failure import Failure
from guard.notify.message import Message
from guard.notify.outbox import Item
from guard.notify.subject import Subject
from guard.notify.turn import Turn


class LineDesk(Desk):
    """Tells the present state whenever it is another than the one told last.

    A lost reply cannot be looked up here, so it is told again: twice is better than not at all.
    """

    def tell(self, turn: Turn, subject: Subject) -> bool:
        item = turn.box.item(self.spec.name, subject.id, "root")
        state = subject.state()
        if item.state != "told" or item.digest != state:
            if self.later(turn, item):
                return False
            if self._silenced(turn, item, subject, state):
                return True
            unseen = item.state not in ("told", "sending")
            if unseen and (self.held_back(turn, item, subject) or self.stormed(turn, item, subject)):
                return True
            first = item.state != "told"
            self._send(turn, item, subject.message(), state, self._facts(subject, worse=subject.worse()))
            if first:
                self.rooted(turn, subject)
        for nudge in self.nudges(subject, item, turn.now)[0]:
            said = turn.box.item(self.spec.name, subject.id, nudge.key)
            if said.state == "told":
                continue
            if self.later(turn, said):
                return False
            message = replace(subject.message(), text=nudge.line, first_line=nudge.line)
            self._send(turn, said, message, nudge.key, self._facts(subject, worse=True))
        return True

    def _silenced(self, turn: Turn, item: Item, subject: Subject, state: str) -> bool:
        """A state that a silence keeps back from somebody who knows of an earlier one: it is passed over. If it still
        matters when the silence ends, that is said then."""
        if item.state != "told" or not subject.muted_until(turn.now):
            return False
        item.digest = state
        turn.box.save(item)
        return True

    def untold(self, subject: Subject, rows: dict[str, Item]) -> list[str]:
        root = rows.get("root") or Item(self.spec.name, subject.id, "root")
        settled = root.state in ("stormed", "dropped") or (root.state == "muted" and not subject.unresolved())
        return [] if settled or root.digest == subject.state() else ["root"]

    def tell_storm(self, turn: Turn, item: Item, message: Message) -> None:
        # It cannot be edited: told at 1, 2, 4, 8 … incidents.
        state = f"storm/{message.count.bit_length()}"
        if item.state != "told" or item.digest != state:
            self._send(turn, item, message, state, {"incident": None, "mention": None, "count": message.count})

    @property
    def channel_key(self) -> str:
        return self.spec.name

    def _facts(self, subject: Subject, *, worse: bool) -> dict[str, Any]:
        return {**subject.facts(), "mention": self.spec.mention if worse else None}

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
        webhook.post(self.spec, body, key, lambda: turn.pace.left(self.spec.timeout), turn.now)


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
