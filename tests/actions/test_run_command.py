"""run_command: a program of the person's own, kept on a short leash."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from guard.clock import FakeClock, SystemClock
from guard.errors import PolicyError
from guard.policy import load
from guard.run import command

from ._small import call, equal
from .conftest import Start

FOREVER = "import signal; print('here', flush=True); signal.pause()"


def python(code: str, **more: Any) -> dict[str, Any]:
    return {"type": "run_command", "command": [sys.executable, "-c", code], **more}


class Hasty(FakeClock):
    """A second passes whenever somebody looks."""

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


def run_it(code: str, tmp_path: Path, *, timeout: float = 60.0, clock: Any = None) -> dict[str, Any]:
    return command.run(
        [sys.executable, "-c", code],
        b"{}\n",
        tmp_path,
        timeout=timeout,
        clock=clock or SystemClock(),
        enough=threading.Event(),
    )


def test_it_reads_the_incident(start: Start, tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    run = start(call(python(f"import sys; open({str(told)!r}, 'w').write(sys.stdin.read())", wait=True)))
    run.go(6, calls=[4])
    facts = json.loads(told.read_text())
    assert (facts["run_dir"], facts["tick"], facts["step"]) == (str(run.run_dir), 4, 4)
    assert (facts["incident"]["id"], facts["incident"]["policy"]) == ("i0001", "on-call")
    assert "called" in facts["incident"]["evidence"]["detection"]["message"]


def test_waiting_puts_its_end_into_the_result(start: Start) -> None:
    run = start(call(python("print('on it'); raise SystemExit(3)", wait=True))).go(6, calls=[4])
    (result,) = run.results
    program = Path(sys.executable).name
    assert result.summary == f"ran {program}, which ended with exit code 3"
    assert (result.changes["exit"], result.changes["output"]) == (3, "on it\n")
    assert "command" not in result.changes  # arguments may hold what is nobody's business


def test_in_the_background_its_end_is_journaled_later(start: Start) -> None:
    run = start(call(python("print('done')"))).go(8, calls=[4])
    program = Path(sys.executable).name
    assert run.results[0].summary == f"started {program}"
    run.guard.close(timeout=60.0)
    outcome = run.evidence[f"command {program}"]
    assert (outcome["exit"], outcome["output"]) == (0, "done\n")
    assert equal(run.weights, start().go(8).weights)


def test_what_is_still_under_way_ends_with_the_run(start: Start) -> None:
    run = start(call(python(FOREVER, timeout="1 h"))).go(6, calls=[4])
    run.guard.close(timeout=0.0)
    (outcome,) = [v for k, v in run.evidence.items() if k.startswith("command ")]
    assert outcome["failed"] == "the run ended, so it was killed"


def test_a_program_that_is_not_there(start: Start) -> None:
    run = start(call({"type": "run_command", "command": ["/no/such/program", "--key=hush"], "wait": True}))
    run.go(8, calls=[4])
    assert run.results[0].summary == "ran program, which failed: it did not start: No such file or directory"
    assert run.guard.step == 8
    assert run.failures == []
    assert "hush" not in json.dumps(run.journal)


def test_once_per_incident(start: Start, tmp_path: Path) -> None:
    run = start(call(python(f"open({str(tmp_path / 'count')!r}, 'a').write('x')", wait=True)))
    run.go(12, calls=[4, 5, 6])
    assert (tmp_path / "count").read_text() == "x"


def test_a_string_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"found 'rm -rf /tmp/x'; allowed: a list of arguments, no shell"):
        load({"version": 1, "policies": [call({"type": "run_command", "command": "rm -rf /tmp/x"})]})
    with pytest.raises(PolicyError, match="command"):
        load({"version": 1, "policies": [call({"type": "run_command", "command": []})]})


def test_no_shell_reads_the_arguments(tmp_path: Path) -> None:
    done = command.run(
        ["echo", "$HOME;", "`id`"], b"", tmp_path, timeout=60.0, clock=SystemClock(), enough=threading.Event()
    )
    assert done["output"] == "$HOME; `id`\n"


def test_the_environment_holds_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACK_BOT_TOKEN", "hush")
    names = run_it("import os; print(*sorted(os.environ))", tmp_path)["output"].split()
    assert set(names) <= {"PATH", "HOME", "LANG", "GUARD_RUN_DIR", "LC_CTYPE"}  # the last is python's own
    assert "GUARD_RUN_DIR" in names


def test_it_is_killed_when_its_time_is_up(tmp_path: Path) -> None:
    done = run_it(FOREVER, tmp_path, timeout=5.0, clock=Hasty())
    assert done["failed"] == "it took longer than 5 s, so it was killed"


def test_only_the_end_of_its_output_is_kept(tmp_path: Path) -> None:
    done = run_it("print('x' * 1_000_000 + 'end')", tmp_path)
    assert done["exit"] == 0
    assert len(done["output"]) == 4096
    assert done["output"].endswith("xend\n")


def test_one_that_reads_nothing_and_is_told_much(tmp_path: Path) -> None:
    done = command.run(
        ["true"], b"x" * (1 << 20), tmp_path, timeout=60.0, clock=SystemClock(), enough=threading.Event()
    )
    assert done["exit"] == 0


def test_what_it_leaves_behind_is_killed_and_not_waited_for(tmp_path: Path) -> None:
    code = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {FOREVER!r}]).pid, flush=True)"
    done = run_it(code, tmp_path)
    assert done["exit"] == 0
    assert done["seconds"] < 30


def test_closing_its_output_is_not_its_end(tmp_path: Path) -> None:
    done = run_it("import os, sys; os.close(1); os.close(2); sys.stdin.read(); os._exit(4)", tmp_path)
    assert done["exit"] == 4
