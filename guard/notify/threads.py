"""Slack through its Web API: one root message an incident, edited in place, with its history as thread replies."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from guard.incidents import IncidentLog
from guard.notify import blocks, render, story
from guard.notify.desk import Desk
from guard.notify.failure import Failure, OutOfTime, advice
from guard.notify.message import Message, Reply
from guard.notify.outbox import Item
from guard.notify.slack import Slack
from guard.notify.spec import ReceiverSpec
from guard.notify.turn import Turn
from guard.notify.words import cut, escape
from guard.types import Incident

_NOT_EDITABLE = ("cant_update_message", "edit_window_closed", "update_failed")
_CANNOT_LOOK = ("missing_scope", "not_in_channel", "channel_not_found")
_CHANNEL_ID = re.compile(r"[CGD][A-Z0-9]{7,}")
_PLOT_TRIES = 3

# What is sent, richest first; if Slack refuses the blocks, the next is tried.
Forms = Sequence[tuple[str, list[dict[str, Any]] | None]]


class ThreadDesk(Desk):
    """Root first, then the replies in their order; the plot last, by an edit of the root."""

    def __init__(self, spec: ReceiverSpec) -> None:
        super().__init__(spec)
        self._said: set[str] = set()
        self._adopted: set[str] = set()

    # ---- what is due of one incident

    def tell(self, turn: Turn, incident: Incident) -> bool:
        root = turn.box.item(self.spec.name, incident.id, "root")
        if root.state in ("due", "stormed", "sending"):
            if self.later(turn, root):
                return False
            if root.state != "sending" and self.stormed(turn, root, incident):
                return True
            self._root(turn, root, incident)
        if root.state == "told" and not self._edit(turn, root, incident):
            return False
        return all(self._reply(turn, root, incident, reply) for reply in render.replies(turn.log, incident))

    def finish(self, turn: Turn, incident: Incident) -> bool:
        """The plot: once while the incident is open, once with its end in it. Without one the message stands."""
        root = turn.box.item(self.spec.name, incident.id, "root")
        if turn.plot is None or root.state != "told":
            return True
        over = story.stage(turn.log, incident) in story.SETTLED or incident.closed_tick is not None
        item = turn.box.item(self.spec.name, incident.id, "plot:closed" if over else "plot:open")
        if item.state == "due":
            item.ts = self._uploaded(turn, incident)
            item.state = "told" if item.ts else "dropped"
            turn.box.save(item)
        done = self._edit(turn, root, incident)
        item = turn.box.item(self.spec.name, incident.id, item.key)
        return done and not (item.state == "told" and item.next_try > turn.now)

    def untold(self, log: IncidentLog, incident: Incident, rows: dict[str, Item]) -> list[str]:
        root = rows.get("root") or Item(self.spec.name, incident.id, "root")
        if root.state == "stormed":
            return []
        images = ["", *(row.ts for key, row in rows.items() if key.startswith("plot:"))]
        message = render.root(log, incident)
        digests = {_digest(message, image) for image in images}
        current = root.state == "gone" or (root.state == "told" and root.digest in digests)
        missing = [
            r.key
            for r in render.replies(log, incident)
            if r.key not in rows or rows[r.key].state not in ("told", "dropped")
        ]
        return missing if current else ["root", *missing]

    def tell_storm(self, turn: Turn, item: Item, message: Message) -> None:
        if item.state == "told":
            self._update(turn, item, _forms(message), _digest(message))
        elif item.state != "gone":
            self._post(turn, item, _forms(message), _digest(message))

    # ---- root

    def _root(self, turn: Turn, root: Item, incident: Incident) -> None:
        suspect = root.state == "due" and incident.id in turn.suspects - self.looked
        if suspect:
            root.state, root.since, root.until = "sending", incident.opened_at, turn.now
        message = render.root(turn.log, incident)
        self._post(turn, root, _forms(message), _digest(message))
        if suspect and not root.digest:  # found, so its thread may hold replies as well
            self._adopted.add(incident.id)

    def _edit(self, turn: Turn, root: Item, incident: Incident) -> bool:
        """Brings the root up to date; False if that has to wait."""
        if root.state != "told":
            return True
        message, plot = render.root(turn.log, incident), self._plot(turn, incident)
        image = plot.ts if plot else ""
        if root.digest == _digest(message, image):
            return True
        if self.later(turn, root):
            return False
        if plot is None:
            self._update(turn, root, _forms(message), _digest(message))
            return True
        try:
            self._update(turn, root, _forms(message, image)[:1], _digest(message, image))
        except Failure as failure:
            if failure.kind != "message":
                raise
            # Slack still works on a file for some seconds after its upload, and refuses it until then.
            plot.attempts += 1
            plot.next_try = turn.now + 5.0 * plot.attempts
            plot.state = "told" if plot.attempts < _PLOT_TRIES else "dropped"
            turn.box.save(plot)
            self._update(turn, root, _forms(message), _digest(message))
        return True

    def _plot(self, turn: Turn, incident: Incident) -> Item | None:
        """The latest picture that Slack is ready to show."""
        for key in ("plot:closed", "plot:open"):
            item = turn.box.item(self.spec.name, incident.id, key)
            if item.state == "told" and item.next_try <= turn.now:
                return item
        return None

    # ---- replies

    def _reply(self, turn: Turn, root: Item, incident: Incident, reply: Reply) -> bool:
        """Tells one event of the history; False if it, and so all that follow, has to wait."""
        item = turn.box.item(self.spec.name, incident.id, reply.key)
        if item.state in ("told", "dropped"):
            return True
        if self.later(turn, item):
            return False
        if root.state == "gone":
            # Somebody deleted the message and does not want its history; that it got worse they must know.
            if not reply.broadcast:
                item.state = "dropped"
                turn.box.save(item)
                return True
            root.state, root.digest, root.ts, root.generation = "due", "", "", root.generation + 1
            self._root(turn, root, incident)
        if incident.id in self._adopted and item.state == "due" and not item.attempts:
            item.state = "sending"
        mention = self.spec.mention if reply.broadcast else None
        text = render.slack_text(cut(reply.text, 3000), mention)
        try:
            self._post(turn, item, [(text, None)], "told", root, broadcast=reply.broadcast)
        except Failure as failure:
            if failure.kind != "gone":
                raise
            root.state = "gone"
            turn.box.save(root)
            return False
        return True

    # ---- sending

    def _post(
        self, turn: Turn, item: Item, forms: Forms, digest: str, root: Item | None = None, *, broadcast: bool = False
    ) -> None:
        """Posts it; looks first whether it is there already if an earlier try may have succeeded."""
        key = self._key(turn, item)
        channel = root.channel if root else self._channel(turn)
        if item.state == "sending" and self._found(turn, item, key, root):
            turn.box.told(item, turn.now, "told" if root else "")
            turn.told += 1
            return
        for i, (text, body) in enumerate(forms):
            turn.pace.wait(self._pace_key)
            turn.box.sending(item, turn.now)
            try:
                item.channel, item.ts = self._slack(turn).post(
                    channel, text, key=key, blocks=body, thread=root.ts if root else None, broadcast=broadcast
                )
            except Failure as failure:
                if failure.kind == "message" and i + 1 < len(forms):
                    continue
                raise self.item_failed(turn, item, failure) from None
            turn.box.told(item, turn.now, digest)
            turn.told += 1
            self._remember(turn, item.channel)
            return

    def _update(self, turn: Turn, item: Item, forms: Forms, digest: str) -> None:
        for i, (text, body) in enumerate(forms):
            turn.pace.wait(self._pace_key)
            try:
                self._slack(turn).update(item.channel, item.ts, text, key=self._key(turn, item), blocks=body)
            except Failure as failure:
                if failure.kind == "message" and i + 1 < len(forms):
                    continue
                if failure.kind == "gone":
                    item.state = "gone"
                    turn.box.save(item)
                    return
                if failure.reason not in _NOT_EDITABLE:
                    raise self.item_failed(turn, item, failure) from None
                # The workspace forbids edits: the thread still tells the story.
            turn.box.told(item, turn.now, digest)
            turn.told += 1
            return

    def _found(self, turn: Turn, item: Item, key: str, root: Item | None) -> bool:
        slack = self._slack(turn)
        try:
            channel = root.channel if root else self._channel(turn)
            if not _CHANNEL_ID.fullmatch(channel):
                known = slack.channel_id(channel)
                if known is None:  # not in the channel, so it cannot have posted there
                    self.looked.add(item.incident)
                    return False
                channel = known
            ts = slack.find(channel, item.since, item.until, root.ts if root else None).get(key)
        except Failure as failure:
            if failure.kind == "gone":
                return False
            if failure.reason not in _CANNOT_LOOK:
                raise self.item_failed(turn, item, failure, looking=True) from None
            self._say_once(
                turn,
                f"cannot look for a message whose reply was lost ({failure.reason}), so it may be "
                f"told twice: {advice(failure.reason, self.spec.channel)}",
            )
            return False
        if ts is None:
            self.looked.add(item.incident)
            return False
        item.channel, item.ts = channel, ts
        return True

    def _uploaded(self, turn: Turn, incident: Incident) -> str:
        """The picture's file ID, or "" if there is none."""
        assert turn.plot is not None
        try:
            path = turn.plot(turn.run_dir, incident.id)
            return self._slack(turn).upload(path, f"Signals around incident {incident.id}") if path else ""
        except OutOfTime:
            raise
        except Failure as failure:
            why = failure.reason
        except Exception as error:  # noqa: BLE001 - drawing is somebody else's code, and a picture is not worth a message
            why = type(error).__name__
        self._say_once(
            turn, f"told without a plot ({why})" + (f": {advice(why, None)}" if why == "missing_scope" else "")
        )
        return ""

    # ---- small things

    def _slack(self, turn: Turn) -> Slack:
        return Slack(self.spec, lambda: turn.pace.left(self.spec.timeout))

    def _key(self, turn: Turn, item: Item) -> str:
        return f"{turn.run_key}/{item.incident}/{item.key}" + (f"#{item.generation}" if item.generation else "")

    @property
    def _pace_key(self) -> str:
        return f"{self.spec.base_url or ''} {self.spec.channel or ''}"

    def _channel(self, turn: Turn) -> str:
        """The channel's ID if it is known: a name may be looked up wrongly, an ID may not."""
        name = self.spec.channel or ""
        known, _, found = turn.box.standing(self.spec.name).channel.rpartition(" ")
        return found if known == name and found else name

    def _remember(self, turn: Turn, channel: str) -> None:
        standing = turn.box.standing(self.spec.name)
        if standing.channel != (known := f"{self.spec.channel} {channel}"):
            standing.channel = known
            turn.box.save_standing(standing)

    def _say_once(self, turn: Turn, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            turn.say(f"receiver {self.spec.name}: {text}")


def _forms(message: Message, image: str = "") -> Forms:
    plain = escape(cut(f"{render.to_terminal(message)}", 3000))
    forms: list[tuple[str, list[dict[str, Any]] | None]] = [(escape(message.text), message.blocks), (plain, None)]
    if image:
        forms.insert(0, (escape(message.text), blocks.with_image(message.blocks, image, message.first_line)))
    return forms


def _digest(message: Message, image: str = "") -> str:
    content = json.dumps([message.text, message.blocks, image], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]
