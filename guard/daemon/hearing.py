"""What Slack brings, read: who wants what of which run, or why it is refused. Pure.

Everything in an envelope may be forged, huge or of another type than it should be; nothing in it raises.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from guard.units import parse_seconds

HELP = (
    "/guard status [RUN]: how the runs are\n"
    "/guard silence [RUN] [1h]: no messages of a run for a time; it is protected as before\n"
    "/guard stop [RUN]: stop a run at its next step\n"
    "RUN is a run's name or id; it may be left out where there is only one."
)
BUTTONS = ("ack", "silence", "observe", "undo", "rollback", "stop", "resume")
COMMANDS = ("status", "silence", "stop", "help")
HOUR = 3600.0
_LONGEST_SILENCE = 7 * 24 * HOUR
_OF_AN_INCIDENT = frozenset({"ack", "undo"})
_LONG = 2000  # characters; Slack's own limit for a button's value
_USER = re.compile(r"[UW][A-Z0-9]{2,40}")
_NAME = re.compile(r"[\w.:-]{1,100}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody wants.

    Args:
        verb: one of `BUTTONS` or `COMMANDS`.
        user: Slack's id of who wants it.
        key: names this click or command; a repeat of it has the same.
        answer_at: where to answer, as the envelope says; not checked yet.
        run: id of the run; of a command, its name or id; "": not said.
        incident: id, or "".
        seconds: how long, for silence.
        command: it was typed, not pressed.
    """

    verb: str
    user: str
    key: str
    answer_at: str = ""
    run: str = ""
    incident: str = ""
    seconds: float = HOUR
    command: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """What is not done.

    Args:
        why: the same words for the same reason, nothing of the envelope in them.
        tell: what the person hears; "": nothing.
        wish: what it was, as far as it was understood.
        answer_at: where to answer.
    """

    why: str
    tell: str = ""
    wish: Wish | None = None
    answer_at: str = ""


class _Garbled(ValueError):  # noqa: N818 - caught here
    pass


def hear(envelope: Any, *, app: str, team: str | None, operators: Collection[str]) -> Wish | Refused:
    """Reads one envelope.

    Args:
        envelope: decoded JSON of any kind.
        app: id of our app.
        team: id of our workspace, or None if it is not known.
        operators: ids of those who may act.
    """
    try:
        kind, payload = _text(envelope, "type", 50), _dict(envelope, "payload")
        if _text(payload, "api_app_id", 50) != app:
            return Refused("it was meant for another Slack app")
        if kind == "interactive":
            return _pressed(payload, app, team, operators)
        if kind == "slash_commands":
            return _typed(payload, team, operators)
        return Refused("neither a button nor a command")
    except _Garbled as why:
        return Refused(str(why))


def _pressed(payload: dict[str, Any], app: str, team: str | None, operators: Collection[str]) -> Wish | Refused:
    if payload.get("type") != "block_actions":
        return Refused("neither a button nor a command")
    if team is not None and _text(_dict(payload, "team"), "id", 50) != team:
        return Refused("it came from another workspace")
    message = payload.get("message")
    if isinstance(message, dict) and message.get("app_id") not in (None, app):
        return Refused("the message with the button is not the guard's")
    actions = payload.get("actions")
    if not isinstance(actions, list) or len(actions) != 1:
        raise _Garbled("not exactly one button")
    verb = _text(actions[0], "action_id", 100).removeprefix("guard:")
    if verb not in BUTTONS or actions[0]["action_id"] != f"guard:{verb}":
        return Refused("not a button of the guard's")
    value = _value(actions[0])
    if value.get("verb", verb) != verb:
        return Refused("the button contradicts itself")
    user = _user(_dict(payload, "user"), "id")
    wish = Wish(
        verb,
        user,
        f"{user} {_text(actions[0], 'action_ts', 50)}",
        _text(payload, "response_url", _LONG),
        _name(value, "run"),
        _name(value, "incident") if value.get("incident") or verb in _OF_AN_INCIDENT else "",
    )
    return _allowed(wish, operators)


def _value(action: dict[str, Any]) -> dict[str, Any]:
    text = _text(action, "value", _LONG)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise _Garbled("the button's value is not understood") from None
    if not isinstance(value, dict):
        raise _Garbled("the button's value is not understood")
    return value


def _typed(payload: dict[str, Any], team: str | None, operators: Collection[str]) -> Wish | Refused:
    if team is not None and _text(payload, "team_id", 50) != team:
        return Refused("it came from another workspace")
    user, answer_at = _user(payload, "user_id"), _text(payload, "response_url", _LONG)
    key = f"{user} {_text(payload, 'trigger_id', 200)}"
    verb, *rest = _text(payload, "text", _LONG, empty=True).split() or ["help"]
    if verb not in COMMANDS:
        return Refused("no such command", f"There is no such command.\n{HELP}", answer_at=answer_at)
    seconds = HOUR
    if verb == "silence" and rest:
        with contextlib.suppress(ValueError):  # it is no time, but a name
            seconds = parse_seconds(rest[-1])
            rest.pop()
        if not 60.0 <= seconds <= _LONGEST_SILENCE:
            return Refused("no such time", "A silence lasts from 1min to 7d.", answer_at=answer_at)
    return _allowed(Wish(verb, user, key, answer_at, " ".join(rest), seconds=seconds, command=True), operators)


def _allowed(wish: Wish, operators: Collection[str]) -> Wish | Refused:
    if wish.user in operators or wish.verb == "help":
        return wish
    tell = f"Only people listed as operators may do that; your id is {wish.user}."
    return Refused("not listed as an operator", tell, wish, wish.answer_at)


def _dict(found: Any, key: str) -> dict[str, Any]:
    value = found.get(key) if isinstance(found, dict) else None
    if not isinstance(value, dict):
        raise _Garbled(f"no {key}")
    return value


def _text(found: Any, key: str, limit: int, *, empty: bool = False) -> str:
    value = found.get(key) if isinstance(found, dict) else None
    if not isinstance(value, str) or not (value or empty):
        raise _Garbled(f"no {key}")
    if len(value) > limit:
        raise _Garbled(f"{key} is too long")
    return value


def _name(found: dict[str, Any], key: str) -> str:
    name = _text(found, key, _LONG)
    if not _NAME.fullmatch(name):
        raise _Garbled(f"{key} is not an id")
    return name


def _user(found: dict[str, Any], key: str) -> str:
    user = _text(found, key, 50)
    if not _USER.fullmatch(user):
        raise _Garbled("no user")
    return user
