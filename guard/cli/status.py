"""`guard status`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from guard.cli import _runs
from guard.cli._attention import silenced, untold_facts
from guard.cli._courier import untold
from guard.cli._in_force import InForce, in_force
from guard.cli._runs import AsJson, ReadDir, RunStory, open_run
from guard.cli._say import ago, out, out_fields, out_json
from guard.incidents.rundir import holder_alive
from guard.incidents.tail import last_signals
from guard.types import Incident

if TYPE_CHECKING:
    from guard.notify import Pending

EXAMPLES = ("guard status runs/exp1", "guard status --json")

_QUIET = 300.0  # [s] without a heartbeat after which a live run is called quiet
_STATES = {
    "running": "running",
    "finished": "finished",
    "preempted": "preempted: goes on when it is started again",
    "stopped": "stopped",
    "reopened": "stopped, but may go on when it is started again",
    "crashed": "crashed",
    "gone": "not running, and it did not say why (killed or crashed)",
}


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat: progress of one rank, and how long ago [s]."""

    rank: int
    tick: int
    step: int
    phase: str
    age: float


def command(run_dir: ReadDir = None, as_json: AsJson = False) -> None:
    """Say how a run is.

    Whether it is alive, where it is, what the guard has changed in it, and what nobody has been told yet.
    """
    run = open_run(run_dir)
    state, beats, now = _state(run), _beats(run.path), in_force(run.entries)
    measured, pending = last_signals(run.path), untold(run.path)
    from guard.notify.words import clean

    if as_json:
        out_json(
            {
                "run_dir": str(run.path),
                "run": run.log.run.get("run"),
                "state": state,
                "mode": run.log.mode,
                "policy_modes": now.modes,
                "heartbeats": [asdict(b) for b in beats],
                "signals": measured,
                "open_incidents": [i.id for i in _open(run)],
                "incidents": len(run.log.incidents),
                "lr_multiplier": now.lr_multiplier,
                "precision": now.precision,
                "in_force": [dict(zip(("incident", "action", "summary"), c, strict=True)) for c in now.changes],
                "untold": untold_facts(pending),
                "silences": run.log.silences(_runs.CLOCK.time()),
                "damaged_lines": run.damaged,
            }
        )
        return
    out(f"{_name(run)}: {_STATES[state]}{_headline(state, beats)}")
    out()
    out_fields(
        [
            ("Run", _where(run)),
            ("Progress", _progress(run, beats)),
            ("Last step", _measured(measured)),
            ("Mode", _mode(run, now)),
            ("Learning rate", _lr(now, measured)),
            ("Precision", f"{now.precision.upper()}, in place of the loop's" if now.precision else "as the loop says"),
            (
                "In force",
                "\n".join(
                    clean(summary, 300) + (f" (guard undo {run.path} {i})" if state == "running" else "")
                    for i, _, summary in now.changes
                ),
            ),
            ("Incidents", _incidents(run)),
            ("Messages", _messages(run, pending)),
            ("Last notice", _notice(run)),
        ]
    )


def _state(run: RunStory) -> str:
    if run.log.finished is not None:
        status = str(run.log.finished.get("status"))
        return status if status in _STATES else "finished"
    return "running" if holder_alive(run.path, _runs.CLOCK) else "gone"


def _beats(run_dir: Path) -> list[Beat]:
    found = []
    for file in sorted(run_dir.glob("heartbeat.*")):
        try:
            tick, step, *phase, _, at = file.read_text("utf-8", "replace").split()
            age = _runs.CLOCK.time() - float(at)
            found.append(Beat(int(file.suffix[1:]), int(tick), int(step), " ".join(phase), age))
        except (OSError, ValueError):
            continue
    return sorted(found, key=lambda beat: beat.rank)


def _name(run: RunStory) -> str:
    from guard.notify.words import clean

    return clean(run.log.run.get("run") or run.path.absolute().name, 80)


def _headline(state: str, beats: list[Beat]) -> str:
    """The one thing to know: where it is, or since when it has not moved."""
    if state != "running" or not beats:
        return ""
    beat = beats[0]
    if beat.phase == "paused":
        return f", step {beat.step:,}, paused by its policy {ago(beat.age)} ago; to let it go on: guard resume"
    quiet = f", but NO PROGRESS for {ago(beat.age)} (phase {beat.phase})" if beat.age > _QUIET else ""
    return f", step {beat.step:,}{quiet}"


def _where(run: RunStory) -> str:
    from guard.notify.words import clean, utc

    started = run.log.run
    if not started:
        return f"{run.path}; the journal has no start of a run"
    script = f", {clean(started['script'], 80)}" if started.get("script") else ""
    policy = clean(started.get("policy") or "unknown", 80)
    return (
        f"{run.path}{script}, policy {policy}\non {clean(started.get('host'), 80)}, pid {started.get('pid')}, "
        f"started {utc(started['time'])} ({ago(_runs.CLOCK.time() - started['time'])} ago)"
    )


def _progress(run: RunStory, beats: list[Beat]) -> str:
    if beats:
        return "\n".join(
            (f"rank {b.rank}: " if len(beats) > 1 else "") + f"step {b.step:,}, tick {b.tick:,}, "
            f"phase {b.phase}; last heartbeat {ago(b.age)} ago"
            for b in beats
        )
    last = max((entry["step"] for entry in run.entries), default=0)
    return f"no heartbeat; the journal knows step {last:,}"


def _measured(row: dict[str, float] | None) -> str:
    from guard.notify.words import number

    if row is None:
        return ""
    return f"step {row['step']:,.0f}: loss {number(row['loss'])}, gradient norm {number(row['grad_norm'])}"


def _mode(run: RunStory, now: InForce) -> str:
    whole = {"enforce": "enforce: the guard acts", "observe": "observe: the guard only reports"}[run.log.mode]
    return "\n".join([whole, *(f"{policy}: {mode}" for policy, mode in now.modes.items())])


def _lr(now: InForce, row: dict[str, float] | None) -> str:
    from guard.notify.words import number

    if now.lr_multiplier != 1.0:
        rate = f" ({number(row['lr_effective'])}; the schedule says {number(row['lr'])})" if row else ""
        return f"{now.lr_multiplier:.3g} of the schedule's{rate}"
    return "as the schedule says" + (f" ({number(row['lr'])})" if row else "")


def _open(run: RunStory) -> list[Incident]:
    over = run.log.finished is not None
    return [] if over else [i for i in run.log.incidents.values() if not i.ended]


def _incidents(run: RunStory) -> str:
    from guard.notify import story

    found, open_ = list(run.log.incidents.values()), _open(run)
    if not found:
        return "none"
    needs = [i for i in found if story.needs_person(run.log, i) and i not in open_]
    lines = [f"{i.id}, {i.detector}: {story.first_line(run.log, i)}" for i in [*needs, *open_]]
    more = [f"… and {len(lines) - 6} more: guard incidents {run.path}"] if len(lines) > 6 else []
    return "\n".join([f"{len(found)}, of which {len(open_) or 'none'} open", *lines[-6:], *more])


def _messages(run: RunStory, pending: list[Pending] | str) -> str:
    if isinstance(pending, str):
        return f"not known: {pending}"
    if not pending:
        return "\n".join(["all delivered", *silenced(run)])
    lines = [f"{p.receiver}, {p.incident}: {p.error or 'not told yet'}" for p in pending[:5]]
    more = [f"… and {len(pending) - 5} more"] if len(pending) > 5 else []
    return "\n".join(
        [f"{len(pending)} not delivered; to deliver them: guard notify {run.path}", *lines, *more, *silenced(run)]
    )


def _notice(run: RunStory) -> str:
    from guard.notify.words import clean

    return clean(run.log.notices[-1].get("message", ""), 300) if run.log.notices else ""
