"""Plain sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

from guard import policy

HERE = Path(__file__).parent
pytestmark = pytest.mark.usefixtures("plug_ins")


def test_every_construct(monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = policy.explain(policy.load(HERE / "every_construct.yaml"))
    text = "\n".join(sentences).replace(str(HERE), "HERE") + "\n"
    assert text == (HERE / "every_construct.txt").read_text("utf-8")


def test_an_observing_set_says_so_first() -> None:
    loaded = policy.load({"version": 1, "mode": "observe", "policies": [{"name": "one", "trigger": {"type": "shaky"}}]})
    assert policy.explain(loaded) == [
        "This set only observes: what follows is reported as what would have been done, and nothing is touched.",
        "one (warning): on shaky signal (it moves more than it should): tell, and do nothing.",
        (
            "Checkpoints: every 100 steps in memory, the last 3 good ones in at most 25 % of free memory, "
            "good after 20 steps without a fault; none on disk."
        ),
    ]
