"""What Slack brings is understood or refused; whatever it is, nothing is raised and nothing of it is quoted."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guard.daemon.hearing import BUTTONS, Refused, Wish, hear

APP, TEAM, RUN = "A0GUARD", "T0HOME", "0123456789abcdef"
OPERATORS = frozenset({"U0ADA"})
PRESSED: dict[str, Any] = {
    "type": "interactive",
    "envelope_id": "e1",
    "payload": {
        "type": "block_actions",
        "api_app_id": APP,
        "team": {"id": TEAM},
        "user": {"id": "U0ADA"},
        "message": {"app_id": APP},
        "response_url": "https://hooks.slack.com/actions/1",
        "actions": [
            {
                "action_id": "guard:ack",
                "action_ts": "1.5",
                "value": json.dumps({"run": RUN, "incident": "i0001", "verb": "ack"}),
            }
        ],
    },
}
TYPED: dict[str, Any] = {
    "type": "slash_commands",
    "envelope_id": "e2",
    "payload": {
        "api_app_id": APP,
        "team_id": TEAM,
        "user_id": "U0ADA",
        "command": "/guard",
        "text": "status",
        "trigger_id": "13.7",
        "response_url": "https://hooks.slack.com/commands/1",
    },
}
DELETE = object()


def heard(envelope: Any, team: str | None = TEAM) -> Wish | Refused:
    return hear(envelope, app=APP, team=team, operators=OPERATORS)


def changed(envelope: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    envelope = copy.deepcopy(envelope)
    *folders, last = path.split(".")
    place: Any = envelope
    for folder in folders:
        place = place[int(folder) if folder.isdigit() else folder]
    if value is DELETE:
        del place[last]
    else:
        place[last] = value
    return envelope


def button(verb: str, value: Any) -> dict[str, Any]:
    envelope = changed(PRESSED, "payload.actions.0.action_id", f"guard:{verb}")
    return changed(envelope, "payload.actions.0.value", value if isinstance(value, str) else json.dumps(value))


@pytest.mark.parametrize("verb", BUTTONS)
def test_each_button(verb: str) -> None:
    wish = heard(button(verb, {"run": RUN, "incident": "i0001", "verb": verb}))
    assert wish == Wish(verb, "U0ADA", "U0ADA 1.5", "https://hooks.slack.com/actions/1", RUN, "i0001")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("help", "", 3600.0)),
        ("help", ("help", "", 3600.0)),
        ("status", ("status", "", 3600.0)),
        ("status exp1", ("status", "exp1", 3600.0)),
        ("silence", ("silence", "", 3600.0)),
        ("silence 30min", ("silence", "", 1800.0)),
        ("silence exp1 2h", ("silence", "exp1", 7200.0)),
        ("silence 2024-exp", ("silence", "2024-exp", 3600.0)),
        ("silence my run 1d", ("silence", "my run", 86400.0)),
        ("stop  exp1 ", ("stop", "exp1", 3600.0)),
    ],
)
def test_each_command(text: str, expected: tuple[str, str, float]) -> None:
    wish = heard(changed(TYPED, "payload.text", text))
    assert isinstance(wish, Wish)
    assert (wish.verb, wish.run, wish.seconds) == expected
    assert wish.command


@pytest.mark.parametrize("text", ["silence 1s", "silence exp1 8d", "explode", "<!channel>"])
def test_a_command_that_cannot_be_is_explained(text: str) -> None:
    found = heard(changed(TYPED, "payload.text", text))
    assert isinstance(found, Refused)
    assert found.tell
    assert found.answer_at


@pytest.mark.parametrize("envelope", [PRESSED, TYPED], ids=["button", "command"])
def test_who_is_not_listed_is_told_so_and_what_he_wanted_is_kept(envelope: dict[str, Any]) -> None:
    path = "payload.user.id" if envelope is PRESSED else "payload.user_id"
    found = heard(changed(envelope, path, "U0EVE"))
    assert isinstance(found, Refused)
    assert found.wish is not None
    assert found.wish.user == "U0EVE"
    assert "U0EVE" in found.tell


def test_help_is_for_everybody() -> None:
    envelope = changed(changed(TYPED, "payload.user_id", "U0EVE"), "payload.text", "help")
    assert isinstance(heard(envelope), Wish)


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("payload.api_app_id", "A0OTHER", "another Slack app"),
        ("payload.api_app_id", DELETE, "no api_app_id"),
        ("payload.team.id", "T0OTHER", "another workspace"),
        ("payload.message.app_id", "A0OTHER", "not the guard's"),
        ("payload.type", "view_submission", "neither"),
        ("type", "events_api", "neither"),
        ("payload", None, "no payload"),
        ("payload", [], "no payload"),
        ("payload.actions", [], "not exactly one"),
        ("payload.actions", {"0": 1}, "not exactly one"),
        ("payload.actions", [7], "no action_id"),
        ("payload.actions.0.action_id", "other:ack", "not a button"),
        ("payload.actions.0.action_id", "ack", "not a button"),
        ("payload.actions.0.action_id", "guard:explode", "not a button"),
        ("payload.actions.0.action_id", "guard:status", "not a button"),
        ("payload.actions.0.action_id", "guard:guard:ack", "not a button"),
        ("payload.actions.0.value", 7, "no value"),
        ("payload.actions.0.value", "ack", "value is not understood"),
        ("payload.actions.0.value", "[" * 1999, "value is not understood"),
        ("payload.actions.0.value", "[]", "value is not understood"),
        ("payload.actions.0.value", '{"run": "' + "a" * 2000 + '"}', "value is too long"),
        ("payload.actions.0.value", '{"run": "../x", "incident": "i1"}', "run is not an id"),
        ("payload.actions.0.value", '{"run": "a", "incident": "../x"}', "incident is not an id"),
        ("payload.actions.0.value", '{"run": "a"}', "no incident"),
        ("payload.actions.0.value", '{"run": ["a"], "incident": "i1"}', "no run"),
        ("payload.actions.0.value", '{"run": "a", "incident": "i1", "verb": "stop"}', "contradicts itself"),
        ("payload.actions.0.action_ts", 1.5, "no action_ts"),
        ("payload.user.id", "<!channel>", "no user"),
        ("payload.user", "U0ADA", "no user"),
        ("payload.response_url", "x" * 2001, "response_url is too long"),
    ],
)
def test_what_is_forged_or_damaged_is_refused_in_our_words(path: str, value: Any, why: str) -> None:
    found = heard(changed(PRESSED, path, value))
    assert isinstance(found, Refused)
    assert why in found.why
    assert found.wish is None
    assert not found.tell
    assert len(found.why) < 60


def test_a_workspace_that_is_not_known_is_not_compared() -> None:
    assert isinstance(heard(changed(PRESSED, "payload.team.id", "T0OTHER"), team=None), Wish)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)
PATHS = [
    "type", "payload", "payload.type", "payload.api_app_id", "payload.team", "payload.team.id", "payload.user",
    "payload.user.id", "payload.message", "payload.message.app_id", "payload.response_url", "payload.actions",
    "payload.actions.0", "payload.actions.0.action_id", "payload.actions.0.action_ts", "payload.actions.0.value",
]  # fmt: skip


@settings(max_examples=300)
@given(path=st.sampled_from(PATHS), value=JSON)
def test_no_type_of_any_part_raises(path: str, value: Any) -> None:
    *folders, last = path.split(".")
    envelope = copy.deepcopy(PRESSED)
    place: Any = envelope
    for folder in folders:
        place = place[int(folder) if folder.isdigit() else folder]
    place[int(last) if last.isdigit() else last] = value
    assert isinstance(heard(envelope), (Wish, Refused))


@given(envelope=JSON)
def test_nothing_raises(envelope: Any) -> None:
    assert isinstance(heard(envelope), Refused)
