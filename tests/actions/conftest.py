from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from guard.incidents import rundir

from ._small import Run

Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Begins runs, each in a directory of its own, and closes them."""
    runs: list[Run] = []

    def begin(*policies: dict[str, Any], **options: Any) -> Run:
        runs.append(Run(tmp_path / str(len(runs)), *policies, **options))
        return runs[-1]

    yield begin
    for run in runs:
        run.guard.close(timeout=1.0)


@pytest.fixture(autouse=True)
def _as_tests_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread; requests are looked for at every step."""
    torch.set_num_threads(1)
    monkeypatch.setattr(rundir, "_ASK", 0.0)
