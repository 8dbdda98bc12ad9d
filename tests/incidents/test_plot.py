"""The picture of an incident: it is drawn from the run directory alone, whatever is missing there."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from guard.incidents import plot
from guard.incidents.journal import NAME, encode
from guard.incidents.rundir import SIGNAL_COLUMNS

FIRED, BACK, RESOLVED = 400, 360, 461


def a_night(run_dir: Path, *, csv: bool = True) -> Path:
    """A NaN at tick 400, gone back 40 steps and resolved."""
    run_dir.mkdir()
    rows = [
        (t, t, 2.0 + 3.0 * math.exp(-t / 150) + 0.05 * math.sin(t * 1.7), 0.8 + 0.1 * math.sin(t), 1e-3, 1e-3, 1.0)
        for t in range(520)
    ]
    rows[FIRED] = (FIRED, FIRED, math.nan, math.inf, 1e-3, 1e-3, 1.0)
    detection = {
        "signal": "loss",
        "value": math.nan,
        "threshold": math.nan,
        "baseline": 2.2,
        "since": FIRED,
        "message": "loss is nan",
    }
    result = {
        "type": "rollback",
        "summary": "went back",
        "changes": {"from_step": FIRED, "to_step": BACK},
        "standing": False,
    }
    lines = [
        ("run_started", FIRED - 400, {"run": "exp1", "mode": "enforce"}),
        (
            "incident_opened",
            FIRED,
            {
                "incident": "i0001",
                "policy": "nan-rollback",
                "detector": "non_finite",
                "severity": "critical",
                "detection": detection,
                "observed": False,
                "attached_to": None,
                "signals": [list(r) for r in rows[FIRED - 20 : FIRED]],
            },
        ),
        (
            "attempt",
            FIRED,
            {
                "incident": "i0001",
                "rung": 0,
                "rungs": 2,
                "repeat": 0,
                "escalated": False,
                "would": False,
                "results": [result],
                "unavailable": [],
            },
        ),
        ("incident_closed", RESOLVED, {"incident": "i0001", "status": "resolved", "count": 1, "outcome": {}}),
    ]
    with (run_dir / NAME).open("wb") as file:
        for n, (kind, tick, keys) in enumerate(lines):
            file.write(encode({"v": 1, "seq": n, "time": 1.7e9 + n, "kind": kind, "tick": tick, "step": tick, **keys}))
    if csv:
        text = [",".join(SIGNAL_COLUMNS), *(",".join(f"{x:.7g}" for x in r) for r in rows), "520,520,2."]
        (run_dir / "signals.csv").write_text("\n".join(text))
    return run_dir


def is_png(path: Path) -> bool:
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000


@pytest.mark.parametrize("csv", [True, False])
def test_it_is_drawn_with_the_rows_there_are(tmp_path: Path, csv: bool) -> None:
    path = plot.render(a_night(tmp_path / "run", csv=csv), "i0001")
    assert path == tmp_path / "run" / "evidence" / "i0001" / "plot.png"
    assert is_png(path)


def test_an_incident_that_nobody_knows_has_no_picture(tmp_path: Path) -> None:
    run_dir = a_night(tmp_path / "run")
    with pytest.raises(KeyError):
        plot.render(run_dir, "i0099")
