"""No detector says anything about a healthy run."""

from __future__ import annotations

import pytest
from detectors.traces import HEALTHY, REQUIRED, fires

from guard.detectors import DETECTORS


@pytest.mark.parametrize("run", HEALTHY)
@pytest.mark.parametrize("name", list(DETECTORS))
def test_healthy_runs_are_left_alone(name: str, run: str) -> None:
    assert fires(name, HEALTHY[run], **REQUIRED.get(name, {})) == []
