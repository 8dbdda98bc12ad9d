"""A secret is known by its reference only; its value comes out of `reveal` and nowhere else."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from guard import policy
from guard.policy import PolicySet, Receiver, SecretRef

VALUE = "xoxb-hush"


def one(**keys: Any) -> PolicySet:
    return policy.load({"version": 1, "receivers": {"team": {"type": "slack", "channel": "#a", **keys}}})


def shown(loaded: PolicySet) -> str:
    """Everything that anybody might print of a policy set."""
    token = loaded.receivers["team"].token
    return " ".join(
        [
            repr(loaded),
            str(loaded),
            policy.dump(loaded),
            *policy.explain(loaded),
            str(loaded.model_dump()),
            loaded.model_dump_json(),
            repr(token),
            str(token),
            f"{token}",
        ]
    )


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("${SLACK_BOT_TOKEN}", "${SLACK_BOT_TOKEN}"),
        ("${SLACK_BOT_TOKEN:-}", "${SLACK_BOT_TOKEN:-}"),
        ("${UNSET:-xoxb-hush}", "${UNSET:-***}"),
        ("xoxb-hush", "***"),
        ("xoxb-${SLACK_BOT_TOKEN}-hush", "***${SLACK_BOT_TOKEN}***"),
        ("$${hush}", "***"),
    ],
)
def test_only_references_are_shown(text: str, reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACK_BOT_TOKEN", VALUE)
    loaded = one(token=text)
    assert loaded.receivers["team"].token.reference == reference
    assert "hush" in loaded.receivers["team"].credential()
    assert loaded.receivers["team"].off_reason is None
    assert "hush" not in shown(loaded)


def test_the_value_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACK_BOT_TOKEN", VALUE)
    loaded = one(token="${SLACK_BOT_TOKEN}")
    assert b"hush" not in pickle.dumps(loaded)
    assert copy.deepcopy(loaded) == loaded
    monkeypatch.setenv("SLACK_BOT_TOKEN", "rotated")
    assert loaded.receivers["team"].token.reveal() == "rotated"


@pytest.mark.parametrize(
    ("token", "environment", "reason"),
    [
        ("${SLACK_BOT_TOKEN:-}", None, "SLACK_BOT_TOKEN is not set"),
        ("${SLACK_BOT_TOKEN}", None, "SLACK_BOT_TOKEN is not set"),
        ("${SLACK_BOT_TOKEN}", "", "SLACK_BOT_TOKEN is empty"),
        ("", None, "no secret is given"),
        ("***", None, "the secret was left out of this copy of the policy"),
        ("${UNSET:-***}", None, "the secret was left out of this copy of the policy"),
    ],
)
def test_a_missing_secret_switches_off(
    token: str, environment: str | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if environment is not None:
        monkeypatch.setenv("SLACK_BOT_TOKEN", environment)
    receiver = one(token=token).receivers["team"]
    assert (receiver.off_reason, receiver.credential()) == (reason, "")


def test_token_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    receiver = one(token_file=file).receivers["team"]
    assert (receiver.off_reason, receiver.credential()) == (f"{file} cannot be read", "")
    file.write_text("\n")
    assert (receiver.off_reason, receiver.credential()) == (f"{file} is empty", "")
    file.write_text(VALUE + "\n")
    assert (receiver.off_reason, receiver.credential()) == (None, VALUE)


def test_webhooks(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = policy.load(
        {
            "version": 1,
            "receivers": {
                "a": {"type": "slack", "webhook_url": "${UNSET:-}"},
                "b": {"type": "webhook", "url": "http://here"},
                "c": {"type": "console"},
            },
        }
    )
    assert [r.off_reason for r in loaded.receivers.values()] == ["UNSET is not set", None, None]
    assert [r.credential() for r in loaded.receivers.values()] == ["", "http://here", ""]


@pytest.mark.parametrize(
    "bad",
    [
        {"token": "xoxb-hush${"},
        {"token": 5, "channel": 3},
        {"token": ["xoxb-hush"]},
        {"token": "xoxb-hush", "webhook_url": "xoxb-hush"},
    ],
)
def test_not_even_pydantic_errors_show_it(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        Receiver(type="slack", **bad)
    assert "hush" not in str(caught.value)


def test_equality_is_of_the_text() -> None:
    assert len({SecretRef("${A}"), SecretRef("${A}"), SecretRef("${B}")}) == 2
