"""What the end of a command means: done, stopped on purpose, taken away, or a fault."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from guard.daemon.child import UNKNOWN
from guard.daemon.hang import Hang
from guard.exiting import STOPPED
from guard.incidents import Follower, IncidentLog
from guard.incidents.journal import NAME
from guard.types import Entry

Kind = Literal["done", "stopped", "preempted", "ended", "crash", "hang"]
_ON_TERM = (128 + signal.SIGTERM, -signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Life:
    """One run of the command, from start to end.

    Args:
        code: exit code, minus the signal, or `UNKNOWN`.
        seconds: how long it ran.
        step: the furthest it was, None if it was never heard of.
        moment: its last ``(tick, step)``.
        ranks: heartbeats seen.
        hang: why it was ended, if it was for that.
        asked: signal on which the supervisor was asked to end it, or None.
        memory: what the kernel said about a lack of memory, or "".
        out, err: last lines.
        stacks: per process.
        lost: it did not even end on KILL.
        unseen: it ended while no supervisor lived.
    """

    code: int
    seconds: float = 0.0
    step: int | None = None
    moment: tuple[int, int] = (0, 0)
    ranks: int = 0
    hang: Hang | None = None
    asked: int | None = None
    memory: str = ""
    out: list[str] = field(default_factory=list)
    err: list[str] = field(default_factory=list)
    stacks: dict[str, str] = field(default_factory=dict)
    lost: bool = False
    unseen: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Args:
    kind: a `crash` or `hang` is worth a restart; nothing else is.
    exit_code: of the supervisor, if there is none.
    message: one clause.
    """

    kind: Kind
    exit_code: int
    message: str

    @property
    def fault(self) -> bool:
        return self.kind in ("crash", "hang")


class Segment:
    """What the guard inside has journaled in this life.

    Args:
        run_dir: need not exist yet.
        offset: of the journal, where the life began [bytes]; None: now.
    """

    def __init__(self, run_dir: Path, offset: int | None = None) -> None:
        path = run_dir / NAME
        self.offset = offset if offset is not None else path.stat().st_size if path.exists() else 0
        self._follower = Follower(path, self.offset)

    def read(self) -> Iterator[Entry]:
        return self._follower.read()


def judge(life: Life, log: IncidentLog) -> Verdict:
    """Why it ended.

    Args:
        log: of this life only.
    """
    if life.code == UNKNOWN:
        life = replace(life, code=_as_journaled(life, log))
    code, how = exit_code(life.code), described(life)
    status = str((log.finished or {}).get("status", ""))
    stopped = [i for i in log.incidents.values() if i.status == "stopped"]
    if life.code == STOPPED or status == "stopped" or (stopped and status == "crashed"):
        who = "a person" if stopped and stopped[-1].policy == "person" else "its policy"
        return Verdict("stopped", STOPPED, f"the run was stopped by {who}")
    if status == "finished" and life.code:
        # It would not be taken up again. What the script does after its training is its own.
        return Verdict("ended", code, f"the run had finished; after that its process {how}")
    if life.asked is not None and not life.hang:
        code = 128 + life.asked if life.code == UNKNOWN else code
        return Verdict("ended", code, f"ended on {signal.Signals(life.asked).name} ({how})")
    if life.hang is not None:
        h = life.hang
        others = f", nor does any of the {h.others} others" if h.others else ""
        message = (
            f"rank {h.rank} made no progress for {h.seconds:.0f} s at step {h.step:,} in phase {h.phase}{others} "
            f"(limit {h.limit:.0f} s)"
        )
        return Verdict("hang", code or 1, message)
    # torchrun sends TERM to the ranks that are left when one has died: their word for it does not count then.
    if life.code in _ON_TERM or (status == "preempted" and life.ranks < 2):
        return Verdict("preempted", code, f"somebody took the machine away ({how})")
    if exit_code(life.code) == 128 + signal.SIGINT:
        return Verdict("ended", code, f"somebody interrupted it ({how})")
    if life.code == UNKNOWN and status == "reopened":
        return Verdict("ended", code, "the run had been stopped, and a person lets it go on")
    if life.code == 0:
        return Verdict("done", 0, "done")
    return Verdict("crash", code, f"the training process {how}")


def _as_journaled(life: Life, log: IncidentLog) -> int:
    """The exit code that nobody has been told, by what the process itself has said of its end."""
    finished = log.finished or {}
    match finished.get("status"):
        case "finished":
            return 0
        case "preempted" if life.ranks < 2:
            return 128 + signal.SIGTERM
        case "crashed" if str(finished.get("error", "")).startswith("KeyboardInterrupt"):
            return 128 + signal.SIGINT
    return UNKNOWN


def exit_code(code: int) -> int:
    """As a shell says it: 128 + n for signal n; 1 for one that is not known."""
    return 1 if code == UNKNOWN else 128 - code if code < 0 else code


def described(life: Life) -> str:
    """``exited with code 1``; ``was killed (SIGKILL)``; ``is gone, its exit code not known``."""
    if life.lost:
        return "does not even end on SIGKILL"
    if life.code == UNKNOWN:
        how = "is gone, its exit code not known"
    elif life.code >= 0:
        how = f"exited with code {life.code}"
        by = life.code - 128
        if by in {*signal.Signals} and life.code != 128:
            how += f" (128 + {signal.Signals(by).name})"
    else:
        known = -life.code in {*signal.Signals}
        how = f"was killed ({signal.Signals(-life.code).name if known else f'signal {-life.code}'})"
    return f"{how}; {life.memory}" if life.memory else how
