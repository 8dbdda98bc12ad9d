"""The page on the Slack app and its manifest say what the code does."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from guard.daemon.deeds import TWINS
from guard.daemon.hearing import BUTTONS, COMMANDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "slack-app.md").read_text("utf-8")


def table(title: str) -> list[list[str]]:
    """Rows of the table under a heading, without its head."""
    section = PAGE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_each_button_is_described_with_its_twin() -> None:
    typed = [TWINS[verb].format(run_dir="RUN_DIR", incident="INCIDENT") for verb in BUTTONS]
    assert [row[-1].strip("`") for row in table("Buttons")] == typed


def test_each_command_is_described() -> None:
    assert {re.match(r"`/guard (\w+)", row[0])[1] for row in table("Commands")} == set(COMMANDS)  # type: ignore[index]


@pytest.mark.parametrize("verb", BUTTONS)
def test_each_twin_is_a_command(verb: str) -> None:
    program, command, *_ = TWINS[verb].split()
    assert program == "guard"
    assert importlib.import_module(f"guard.cli.{command}").command


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    return dict(YAML(typ="safe").load((ROOT / "deploy" / "slack-app-manifest.yaml").read_text("utf-8")))


def test_the_manifest_switches_on_what_the_listener_needs(manifest: dict[str, Any]) -> None:
    assert manifest["settings"]["socket_mode_enabled"] is True
    assert manifest["settings"]["interactivity"]["is_enabled"] is True
    (command,) = manifest["features"]["slash_commands"]
    assert command["command"] == "/guard"
    assert set(re.findall(r"[a-z]{4,}", command["usage_hint"])) == set(COMMANDS)
    assert len(command["usage_hint"]) <= 1000
    assert len(command["description"]) <= 2000


def test_each_scope_is_explained_and_no_other(manifest: dict[str, Any]) -> None:
    text = (ROOT / "deploy" / "slack-app-manifest.yaml").read_text("utf-8")
    explained = {
        scope for line in re.findall(r"^#   ((?:[\w:]+, )*[\w:]+)  +", text, re.MULTILINE) for scope in line.split(", ")
    }
    assert set(manifest["oauth_config"]["scopes"]["bot"]) == explained | {"chat:write"}
    assert "connections:write" not in manifest["oauth_config"]["scopes"]["bot"], "an app-level token's"
