"""A paused run is not a stuck one: `guard status` says how it goes on."""

from __future__ import annotations

from guard.cli import status


def test_a_paused_run_is_called_paused() -> None:
    paused = status._headline("running", [status.Beat(0, 40, 40, "paused", 4000.0)])
    assert paused == ", step 40, paused by its policy 1 h 6 min ago; to let it go on: guard resume"
    assert "NO PROGRESS" in status._headline("running", [status.Beat(0, 40, 40, "step", 4000.0)])
