"""Answers go to Slack and nowhere else, and say only text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from daemon.fake_socket_mode import FakeSocketMode

from guard.daemon.answers import Answers
from guard.notify.failure import Failure


@pytest.fixture
def slack() -> Iterator[FakeSocketMode]:
    fake = FakeSocketMode().start()
    yield fake
    fake.stop()


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.slack.com/actions/1",
        "https://hooks.slack.com.evil.example/actions/1",
        "https://evil.example/hooks.slack.com",
        "https://hooks.slack.com@evil.example/",
        "https://hooks.slack.com:8443/actions/1",
        "https://user@hooks.slack.com/actions/1",
        "https://hooks.slack.com\\@evil.example/",
        "https://hooks.slack.com /",
        "https://hooks.slack.com\n/",
        "https://hooks.slack.com:x/",
        "https://[::1/",
        "https:///actions/1",
        "file:///etc/passwd",
        "http://127.0.0.1:1/latest/meta-data",
        "//hooks.slack.com/a",
        "",
    ],
)
def test_nothing_but_slack_is_called(url: str) -> None:
    answers = Answers("http://127.0.0.1:9/api/")
    assert not answers.allowed(url)
    with pytest.raises(Failure, match="not Slack's"):
        answers.send(url, "hello")


def test_slack_is_allowed_and_without_a_base_url_nothing_else() -> None:
    assert Answers().allowed("https://hooks.slack.com/actions/T1/2/x")
    assert Answers().allowed("https://hooks.slack.com:443/commands/T1/2/x")
    assert not Answers().allowed("http://127.0.0.1:9/api/")


def test_it_is_text_for_one_person(slack: FakeSocketMode) -> None:
    Answers(slack.url).send(f"http://127.0.0.1:{slack.port}/answer/1", "<!channel> @here & <@U012>\x1b[31m")
    ((_, body),) = slack.answers
    assert body["response_type"] == "ephemeral"
    assert body["replace_original"] is False
    assert body["text"] == "&lt;!channel&gt; @\u200bhere &amp; &lt;@U012&gt;"


def test_a_redirect_is_not_followed(slack: FakeSocketMode) -> None:
    slack.redirect = f"http://127.0.0.1:{slack.port}/answer/elsewhere"
    with pytest.raises(Failure, match="HTTP 302"):
        Answers(slack.url).send(f"http://127.0.0.1:{slack.port}/answer/1", "hello")
    assert slack.answers == []


def test_who_does_not_answer_is_a_failure_without_the_address(slack: FakeSocketMode) -> None:
    slack.stop()
    with pytest.raises(Failure) as failure:
        Answers(slack.url).send(f"http://127.0.0.1:{slack.port}/answer/secret", "hello")
    assert "secret" not in str(failure.value)
