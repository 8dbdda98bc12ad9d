"""The page about the daemon names the keys, the states and the files that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from guard.daemon.condition import STATES
from guard.daemon.settings import Digest, Escalate, Settings, SlackApp

ROOT = Path(__file__).parent.parent.parent
PARTS: dict[str, type[BaseModel]] = {"digest": Digest, "escalate": Escalate, "slack_app": SlackApp}


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs/daemon.md").read_text("utf-8")


def section(page: str, title: str) -> str:
    return page.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def first_cells(text: str) -> list[str]:
    return re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE)


def test_every_key_of_its_file_is_explained(page: str) -> None:
    keys = ["version"]
    for key in Settings.model_fields:
        keys += [f"{key}.{inner}" for inner in PARTS[key].model_fields] if key in PARTS else [key]
    assert sorted(first_cells(section(page, "What it is told"))) == sorted(keys)


def test_every_state_is_explained(page: str) -> None:
    assert tuple(first_cells(section(page, "How a run is"))) == STATES


def test_every_unit_is_named(page: str) -> None:
    named = set(re.findall(r"`deploy/systemd/([\w@.-]+)`", page))
    assert named == {path.name for path in (ROOT / "deploy/systemd").iterdir()}
