from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from cli.run_builder import RunBuilder, a_night

from guard.cli import main


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Guard = Callable[..., Answer]


@pytest.fixture
def guard(capsys: pytest.CaptureFixture[str]) -> Guard:
    """The command, run in this process: what it printed and how it exited."""

    def run(*arguments: object) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Answer(end.value.code, out, err)

    return run


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test in an empty folder, without what the environment might say."""
    monkeypatch.chdir(tmp_path)
    for name in ("GUARD_RUN_DIR", "GUARD_TEST_HOOK", "SLACK_BOT_TOKEN", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def night(alone: None) -> RunBuilder:
    return a_night(Path("runs/exp1"))
