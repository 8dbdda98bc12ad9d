"""How runs are, in a line each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from guard.clock import Clock
from guard.daemon.beats import beats_since
from guard.home import Announcement
from guard.incidents import IncidentLog, read_story
from guard.incidents.journal import NAME
from guard.incidents.rundir import holder_alive
from guard.notify import story
from guard.notify.words import count, one_line

_MAX_RUNS = 20


def runs(run: Announcement, clock: Clock) -> bool:
    """A live guard owns its directory."""
    return holder_alive(Path(run.run_dir), clock)


def of_all(found: Sequence[Announcement], clock: Clock) -> str:
    """One line for each run; of many, the first."""
    lines = [_line(run, clock) for run in found[:_MAX_RUNS]]
    more = [f"… and {len(found) - _MAX_RUNS} more"] if len(found) > _MAX_RUNS else []
    return "\n".join([*lines, *more]) or "No such run is known here."


def _line(run: Announcement, clock: Clock) -> str:
    run_dir, name = Path(run.run_dir), f"{one_line(run.run, 80)} ({run.id}) on {one_line(run.host, 80)}"
    if not (run_dir / NAME).is_file():
        return f"{name}: not reachable from here"
    log = IncidentLog(read_story(run_dir))
    return ", ".join([f"{name}: {_state(run, log, clock)}", *_progress(run_dir), *_incidents(log)])


def _state(run: Announcement, log: IncidentLog, clock: Clock) -> str:
    if log.finished is not None:
        return one_line(log.finished.get("status", "finished"), 40)
    if not runs(run, clock):
        return "not running, and it did not say why"
    return "running" + (" (observe only)" if log.mode == "observe" else "")


def _progress(run_dir: Path) -> list[str]:
    beat = beats_since(run_dir, 0.0).get(0)
    return [f"step {beat.step:,}", *(["paused"] if beat.phase == "paused" else [])] if beat else []


def _incidents(log: IncidentLog) -> list[str]:
    needs = [i for i in log.incidents.values() if story.needs_person(log, i) and not story.ack(log, i)]
    if needs:
        return [f"{one_line(needs[-1].id, 40)}: {story.first_line(log, needs[-1])}"]
    open_ = [i for i in log.incidents.values() if not i.ended and log.finished is None]
    return [count(len(open_), "open incident") if open_ else "no open incident"]
