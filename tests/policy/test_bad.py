"""Every kind of mistake has a file in `bad/`, and beside it what is said about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from guard import policy
from guard.actions import ACTIONS
from guard.detectors import DETECTORS
from guard.errors import PolicyError
from guard.policy.files import shipped

BAD = Path(__file__).parent / "bad"
pytestmark = pytest.mark.usefixtures("plug_ins")


def said(source: str | Path | dict) -> str:
    """All problems, with file names in place of paths and placeholders for what depends on the registries."""
    with pytest.raises(PolicyError) as caught:
        policy.load(source)
    text = str(caught.value)
    for problem in caught.value.problems:
        text = text.replace(str(problem.file), problem.file.name) if problem.file else text
    for name, known in (("actions", ACTIONS), ("detectors", DETECTORS), ("shipped", shipped())):
        text = text.replace(", ".join(known), f"<{name}>")
    return text + "\n"


@pytest.mark.parametrize("name", sorted(path.stem for path in BAD.glob("*.yaml")))
def test_mistake(name: str) -> None:
    assert said(BAD / f"{name}.yaml") == (BAD / f"{name}.txt").read_text("utf-8")


def test_every_message_belongs_to_a_file() -> None:
    assert {path.stem for path in BAD.glob("*.txt")} == {path.stem for path in BAD.glob("*.yaml")}


def test_no_message_speaks_pydantic_or_shows_a_secret() -> None:
    for path in BAD.glob("*.txt"):
        for word in ("Input should", "pydantic", "Value error", "validation", "<block", "hush"):
            assert word not in path.read_text("utf-8")
