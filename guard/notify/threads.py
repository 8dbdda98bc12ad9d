"""Slack through its Web API: one root message an incident, edited in place, with its history as thread replies."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from guard.notify import blocks, render
from guard.notify.desk import Desk
from guard.notify.failure import Failure, OutOfTime, advice
from guard.notify.message import Message, Reply
from guard.notify.outbox import Item
from guard.notify.slack import Slack
from guard.notify.spec import ReceiverSpec
from guard.notify.subject import Subject, Told
from guard.notify.turn import Turn
from guard.notify.words import cut

_NOT_EDITABLE = ("cant_update_message", "edit_window_closed", "update_failed")
_CANNOT_LOOK = ("missing_scope", "not_in_channel", "channel_not_found")
_CHANNEL_ID = re.compile(r"[CGD][A-Z0-9]{7,}")
_PLOT_TRIES = 3
_DONE = ("told", "dropped")
LATE = 120.0  # [s] after its beginning from which on a first message leaves out what happened before it

# What is sent, richest first; if Slack refuses the blocks, the next is tried.
Forms = Sequence[tuple[str, list[dict[str, Any]] | None]]


class ThreadDesk(Desk):
    """Root first, then the replies in their order; the plot last, by an edit of the root."""

    def __init__(self, spec: ReceiverSpec) -> None:
        super().__init__(spec)
        self._said: set[str] = set()
        self._adopted: set[str] = set()

    # ---- what is due of one subject

    def tell(self, turn: Turn, subject: Subject) -> bool:
        root = turn.box.item(self.spec.name, subject.id, "root")
        if root.state not in ("told", "gone"):
            if self.later(turn, root):
                return False
            if root.state != "sending" and (self.held_back(turn, root, subject) or self.stormed(turn, root, subject)):
                return True
            self._root(turn, root, subject)
        if root.state == "told" and not self._edit(turn, root, subject):
            return False
        nudges = self.nudges(subject, root, turn.now)[0] if root.state == "told" else []
        muted = subject.muted_until(turn.now) > 0
        return all(self._reply(turn, root, subject, reply, muted=muted) for reply in [*subject.replies(), *nudges])

    def finish(self, turn: Turn, subject: Subject) -> bool:
        """The plot: once while the incident is open, once with its end in it. Without one the message stands."""
        root = turn.box.item(self.spec.name, subject.id, "root")
        if turn.plot is None or root.state != "told" or not isinstance(subject, Told):
            return True
        item = turn.box.item(self.spec.name, subject.id, _plot_key(subject))
        if item.state == "due":
            item.ts = self._uploaded(turn, subject.latest.id)
            item.state = "told" if item.ts else "dropped"
            turn.box.save(item)
        done = self._edit(turn, root, subject)
        item = turn.box.item(self.spec.name, subject.id, item.key)
        return done and not (item.state == "told" and item.next_try > turn.now)

    def untold(self, subject: Subject, rows: dict[str, Item]) -> list[str]:
        root = rows.get("root") or Item(self.spec.name, subject.id, "root")
        if root.state in ("stormed", "dropped") or (root.state == "muted" and not subject.unresolved()):
            return []
        images = ["", *(row.ts for key, row in rows.items() if key.startswith("plot:"))]
        forms = [self._content(subject, image) for image in images]
        current = root.state == "gone" or (root.state == "told" and root.digest in [digest for _, digest in forms])
        missing = [r.key for r in subject.replies() if r.key not in rows or rows[r.key].state not in _DONE]
        return missing if current else ["root", *missing]

    def tell_storm(self, turn: Turn, item: Item, message: Message) -> None:
        forms, digest = _forms(message), _digest(message.text, message.blocks)
        if item.state == "told":
            self._update(turn, item, forms, digest)
        elif item.state != "gone" and not self._adopt(turn, item):
            self._post(turn, item, forms, digest)

    # ---- root

    def _root(self, turn: Turn, root: Item, subject: Subject) -> None:
        suspect = root.state == "due" and subject.id in turn.suspects - self.looked
        if suspect:
            root.state, root.since, root.until = "sending", subject.begun, turn.now
        if self._adopt(turn, root):
            if suspect:  # its thread may hold replies as well
                self._adopted.add(subject.id)
            return
        # What it told before it was seen: the message itself says it all, and wakes for it if it must.
        late = turn.now - subject.begun > LATE or root.state == "muted"
        for reply in subject.replies():
            if late or (reply.broadcast and subject.calls()):
                self._drop(turn, turn.box.item(self.spec.name, subject.id, reply.key))
        forms, digest = self._content(subject, listening=turn.listening)
        self._post(turn, root, forms, digest)
        self.rooted(turn, subject)

    def _edit(self, turn: Turn, root: Item, subject: Subject) -> bool:
        """Brings the root up to date; False if that has to wait."""
        if root.state != "told":
            return True
        plot = self._plot(turn, subject)
        forms, digest = self._content(subject, plot.ts if plot else "", listening=turn.listening)
        if root.digest == digest:
            return True
        if self.later(turn, root):
            return False
        if plot is None:
            self._update(turn, root, forms, digest)
            return True
        try:
            self._update(turn, root, forms[:1], digest)
        except Failure as failure:
            if failure.kind != "message":
                raise
            # Slack still works on a file for some seconds after its upload, and refuses it until then.
            plot.attempts += 1
            plot.next_try = turn.now + 5.0 * plot.attempts
            plot.state = "told" if plot.attempts < _PLOT_TRIES else "dropped"
            turn.box.save(plot)
            self._update(turn, root, *self._content(subject, listening=turn.listening))
        return True

    def _content(self, subject: Subject, image: str = "", *, listening: bool = False) -> tuple[Forms, str]:
        """What is sent as its root, and the digest of that. Buttons do not count: where listeners come and go, no
        message is edited only for that."""
        message = subject.message(listening=listening)
        mention = self.spec.mention if subject.calls() else None
        body = blocks.with_mention(message.blocks, mention)
        text = render.slack_text(message.text, mention)
        digest = _digest(text, blocks.without_buttons(body), image)
        return _forms(replace(message, blocks=body), image, mention), digest

    def _plot(self, turn: Turn, subject: Subject) -> Item | None:
        """The latest picture that Slack is ready to show."""
        if not isinstance(subject, Told):
            return None
        for key in dict.fromkeys((_plot_key(subject), "plot:closed", "plot:open")):
            item = turn.box.item(self.spec.name, subject.id, key)
            if item.state == "told" and item.next_try <= turn.now:
                return item
        return None

    # ---- replies

    def _reply(self, turn: Turn, root: Item, subject: Subject, reply: Reply, *, muted: bool) -> bool:
        """Tells one event of the history; False if it, and so all that follow, has to wait."""
        item = turn.box.item(self.spec.name, subject.id, reply.key)
        if item.state in _DONE:
            return True
        if self.later(turn, item):
            return False
        if muted and item.state != "sending":
            self._drop(turn, item)
            return True
        if root.state == "gone":
            # Somebody deleted the message and does not want its history; that it got worse they must know.
            if not reply.broadcast:
                self._drop(turn, item)
                return True
            root.state, root.digest, root.ts, root.generation = "due", "", "", root.generation + 1
            self._root(turn, root, subject)
            if (item := turn.box.item(self.spec.name, subject.id, reply.key)).state in _DONE:
                return True
        if subject.id in self._adopted and item.state == "due" and not item.attempts:
            item.state = "sending"
        if self._adopt(turn, item, root):
            return True
        mention = self.spec.mention if reply.broadcast else None
        text = render.slack_text(cut(reply.text, 3000), mention)
        text += f" {blocks.typed(reply.command)}" if reply.command else ""
        try:
            self._post(turn, item, [(text, None)], "told", root, broadcast=reply.broadcast)
        except Failure as failure:
            if failure.kind != "gone":
                raise
            root.state = "gone"
            turn.box.save(root)
            return False
        return True

    @staticmethod
    def _drop(turn: Turn, item: Item) -> None:
        if item.state == "due":
            item.state = "dropped"
            turn.box.save(item)

    # ---- sending

    def _adopt(self, turn: Turn, item: Item, root: Item | None = None) -> bool:
        """An earlier try may have succeeded: it is there already, and was told."""
        if item.state != "sending" or not self._found(turn, item, self._key(turn, item), root):
            return False
        turn.box.told(item, turn.now, "told" if root else "")
        turn.told += 1
        return True

    def _post(
        self, turn: Turn, item: Item, forms: Forms, digest: str, root: Item | None = None, *, broadcast: bool = False
    ) -> None:
        key = self._key(turn, item)
        channel = root.channel if root else self._channel(turn)
        for i, (text, body) in enumerate(forms):
            turn.pace.wait(self.channel_key)
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
            turn.pace.wait(self.channel_key)
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

    def _uploaded(self, turn: Turn, incident: str) -> str:
        """The picture's file ID, or "" if there is none."""
        assert turn.plot is not None
        try:
            path = turn.plot(turn.run_dir, incident)
            return self._slack(turn).upload(path, f"Signals around incident {incident}") if path else ""
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
    def channel_key(self) -> str:
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


def _forms(message: Message, image: str = "", mention: str | None = None) -> Forms:
    plain = render.slack_text(cut(f"{render.to_terminal(message)}", 3000), mention)
    text = render.slack_text(message.text, mention)
    forms: list[tuple[str, list[dict[str, Any]] | None]] = [(text, message.blocks), (plain, None)]
    if image:
        forms.insert(0, (text, blocks.with_image(message.blocks, image, message.first_line)))
    return forms


def _digest(text: str, body: list[blocks.Block], image: str = "") -> str:
    content = json.dumps([text, body, image], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _plot_key(subject: Told) -> str:
    again = "" if subject.latest is subject.incident else f"/{subject.latest.id}"
    return f"plot:{'closed' if subject.over() else 'open'}{again}"
