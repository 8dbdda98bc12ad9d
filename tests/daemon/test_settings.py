"""The daemon's file: every key, every mistake with its place, and what it is said to do."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from guard.daemon import settings
from guard.daemon.settings import Settings, is_settings, load
from guard.errors import PolicyError

EVERY_KEY = """\
version: 1
home: [state/guard, /shared/guard]
receivers:
  lab: {type: slack, channel: "#training", token: "${SLACK_BOT_TOKEN:-}"}
  oncall: {type: webhook, url: "${ONCALL_URL:-}", min_severity: critical}
remind_every: 4 h
digest: {cron: "0 9 * * mon-fri", timezone: Europe/Berlin, to: [lab]}
escalate: {after: 30 min, to: oncall}
slack_app: {app_token: "${SLACK_APP_TOKEN:-}", operators: [U012AB3CD]}
listen: 127.0.0.1:8787
retention: 30 days
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "daemon.yaml"
    path.write_text(text)
    return path


def test_every_key(tmp_path: Path) -> None:
    found = load(written(tmp_path, EVERY_KEY))
    assert found.homes() == (tmp_path / "state/guard", Path("/shared/guard"))
    assert set(found.receivers) == {"lab", "oncall"}
    assert (found.remind_every, found.retention) == (4 * 3600.0, 30 * 86400.0)
    assert found.escalate is not None
    assert (found.escalate.after, found.escalate.to) == (1800.0, "oncall")
    assert found.slack_app is not None
    assert found.slack_app.operators == ("U012AB3CD",)
    assert found.address() == ("127.0.0.1", 8787)
    assert found.digest is not None
    assert "mon-fri" in str(found.digest.trigger())


def test_the_example_in_the_docstring_loads(tmp_path: Path) -> None:
    shown = textwrap.dedent(str(settings.__doc__).partition("\n\n")[2])
    assert set(load(written(tmp_path, shown)).receivers) == {"lab", "oncall"}


def test_without_a_file_there_are_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GUARD_HOME", str(tmp_path))
    assert load(None).homes() == (tmp_path,)
    monkeypatch.setenv("GUARD_HOME", "")
    with pytest.raises(PolicyError, match="no home is named"):
        load(None).homes()


def test_the_secret_is_never_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLACK_APP_TOKEN", "xapp-secret")
    found = load(written(tmp_path, EVERY_KEY))
    assert found.slack_app is not None
    assert found.slack_app.app_token.reveal() == "xapp-secret"
    assert "xapp-secret" not in repr(found) + " ".join(settings.explain(found))


@pytest.mark.parametrize(
    ("line", "where", "what"),
    [
        ("remind_evry: 4 h", "2:1", "unknown key 'remind_evry'; did you mean 'remind_every'?"),
        ("remind_every: soon", "2:15", "allowed: something like '30 min'"),
        ("remind_every: 0", "2:15", "allowed: more than 0"),
        ('digest: {cron: "0 9 * *"}', "2:16", "five fields such as '0 9 * * mon-fri'"),
        ('digest: {cron: "0 9 * * *", timezone: Europe/Berlni}', "2:39", "a time zone's name such as"),
        ('digest: {cron: "0 9 * * *", to: [nobody]}', "2:1", "'digest' names the receiver 'nobody'; there are: none"),
        ("escalate: {after: 30 min}", "2:11", "'to' is missing"),
        ("escalate: {after: 30 min, to: nobody}", "2:1", "'escalate' names the receiver 'nobody'"),
        ("slack_app: {operators: [U012]}", "2:12", "'app_token' is missing"),
        ('slack_app: {app_token: "x", operators: [bob]}', "2:40", "allowed: member IDs such as 'U012AB3CD'"),
        ('slack_app: {app_token: "x", operators: [7]}', "2:41", "found a number; allowed: text"),
        ("listen: 0.0.0.0:80", "2:9", "this machine only"),
        ("listen: localhost", "2:9", "this machine only"),
        ("home: []", "2:7", "an empty list"),
        ("home: 7", "2:7", "allowed: a path"),
        ("receivers: {lab: {type: slak}}", "2:25", "slack"),
        ("retention: -1 day", "2:12", "-1 day"),
        ("home: [a", "2:7", "is not closed"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, line: str, where: str, what: str) -> None:
    path = written(tmp_path, f"version: 1\n{line}\n")
    with pytest.raises(PolicyError) as error:
        load(path)
    said = [str(problem) for problem in error.value.problems]
    assert any(text.startswith(f"{path}:{where}") and what in text for text in said), said


def test_a_missing_version_and_a_newer_one(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="'version' is missing"):
        load(written(tmp_path, "retention: 1 day\n"))
    with pytest.raises(PolicyError, match="install a newer"):
        load(written(tmp_path, "version: 2\nretention: 1 day\n"))
    with pytest.raises(PolicyError, match="no such file"):
        load(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (EVERY_KEY, True),
        ("version: 1\nretention: 1 day\n", True),
        ("version: 1\nremind_evry: 1 h\nlisten: off\n", True),
        ("version: 1\npolicies: []\n", False),
        ("version: 1\nextends: default\n", False),
        ("version: 1\nreceivers: {}\n", False),
        ("[1]\n", False),
        ("a: [", False),
    ],
)
def test_whose_file_it_is(tmp_path: Path, text: str, meant: bool) -> None:
    assert is_settings(written(tmp_path, text)) is meant


def test_what_it_will_do_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLACK_BOT_TOKEN", "SLACK_APP_TOKEN", "ONCALL_URL"):
        monkeypatch.delenv(name, raising=False)
    said = "\n".join(settings.explain(load(written(tmp_path, EVERY_KEY))))
    for part in (
        "Tells lab (#training) of every run's incidents of severity warning and worse. It is off: SLACK_BOT_TOKEN is",
        "every 4 hours",
        "Tells oncall (webhook) what needs a person and nobody has acknowledged for 30 minutes. It is off: ONCALL_URL",
        "at '0 9 * * mon-fri' (Europe/Berlin) to lab",
        "obeys U012AB3CD. It is off: SLACK_APP_TOKEN is not set",
        "Forgets a run 30 days after its end",
    ):
        assert part in said
    assert "each run's own policy names" in "\n".join(settings.explain(Settings(home=(tmp_path,))))
