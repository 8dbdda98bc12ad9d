"""Who supervises which process, written down on this host's own disk: so that the next `guard run` can take over from
one that was killed, and no second process is started beside one that lives.

    <local state>/supervised/<digest of the run directory>.json
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from guard.daemon.child import marked
from guard.daemon.output import Relay
from guard.errors import UsageError
from guard.process import boot_id, started

Who = tuple[int, str | None]  # pid and start time
_RANKS = ("RANK", "SLURM_PROCID")  # one supervisor for each of them, of one run directory


@dataclass(frozen=True, slots=True)
class Ward:
    """A process in custody. Of a life that is about to be started only the mark is known.

    Args:
        run_dir: of the run.
        command: its digest.
        boot: of the host.
        supervisor: that has it.
        token: mark of the process, or "" if none was started yet.
        child: its pid and start time.
        relay: that its output goes through.
        offset: of the journal, where its life began [bytes].
        began: when [s since the epoch].
        spent: restarts without progress, before it was started.
        best: the furthest step, before it was started.
        longest: what the judge of hangs has learned.
    """

    run_dir: str = ""
    command: str = ""
    boot: str = ""
    supervisor: Who = (0, None)
    token: str = ""
    child: Who | None = None
    relay: Relay | None = None
    offset: int = 0
    began: float = 0.0
    spent: int = 0
    best: int = -1
    longest: Mapping[str, float] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        return self.child is not None and _lives(self.child)


class Custody:
    """Of one run directory.

    Args:
        folder: on this host's own disk; made when something is written.
        command: what is supervised: program and arguments.
        say: told when nothing can be written; the run is supervised all the same.
        environment: of the command; ranks of one run on one host are told apart by it.
    """

    def __init__(
        self,
        folder: Path,
        run_dir: Path,
        command: Sequence[str],
        say: Callable[[str], None],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        rank = next((v for name in _RANKS if (v := (environment or {}).get(name))), "")
        self._folder, self._say = folder / "supervised", say
        self._path = self._folder / f"{_digest([str(run_dir), rank])}.json"
        self._mine = Ward(str(run_dir), _digest(command), boot_id(), (os.getpid(), started(os.getpid())))
        self._said = False

    def claim(self) -> Ward | None:
        """Takes the run directory into custody.

        Returns:
            what a supervisor of this boot that has died has left behind; None: nothing.

        Raises:
            UsageError: another supervisor of it lives, or one of another command has died and its command has not.
        """
        found: Ward | None = None
        try:
            with self._locked():
                found = self._left()
                if found is not None:
                    self._mine = replace(found, supervisor=self._mine.supervisor)
                self._write()
        except OSError as error:
            self._complain(error)
        return found

    def note(self, **changes: Any) -> None:
        """Writes down what has changed of the ward; nothing is written if nothing has."""
        changed = replace(self._mine, **changes)
        if changed != self._mine:
            self._mine = changed
            try:
                self._write()
            except OSError as error:
                self._complain(error)

    def release(self) -> None:
        """The supervisor ends. What it could not end is left to the next one."""
        if not self._mine.alive:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _left(self) -> Ward | None:
        ward = self._read()
        if ward is None or ward.boot != self._mine.boot or ward.run_dir != self._mine.run_dir:
            return None
        pid, _ = ward.supervisor
        if _lives(ward.supervisor):
            raise UsageError(f"{ward.run_dir} is supervised by another guard run (pid {pid}): end that one first")
        if ward.child is None and ward.token:
            ward = replace(ward, child=_leader(ward.token))
        if ward.command == self._mine.command:
            return ward
        if ward.alive and ward.child is not None:
            raise UsageError(
                f"another command is at work in {ward.run_dir} (pid {ward.child[0]}), and its guard run has died: end "
                "that one first, or take it over with the same guard run as before"
            )
        return None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One supervisor at a time looks and writes. The lock goes with the process that holds it."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = self._folder.stat()
        if owner.st_uid != os.getuid() or owner.st_mode & 0o022:
            raise PermissionError(1, "others may write there")
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _read(self) -> Ward | None:
        try:
            raw = json.loads(self._path.read_text("utf-8"))
            relay = Relay(**raw.pop("relay")) if raw["relay"] else None
            child = _who(raw.pop("child")) if raw["child"] else None
            return Ward(**{**raw, "relay": relay, "child": child, "supervisor": _who(raw["supervisor"])})
        except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError):
            return None

    def _write(self) -> None:
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(asdict(self._mine)), "utf-8")
        temporary.replace(self._path)

    def _complain(self, error: OSError) -> None:
        if not self._said:
            self._said = True
            self._say(f"if this guard run is killed, no other can take over: {self._folder}: {error.strerror}")


def _lives(who: Who) -> bool:
    return who[1] is not None and started(who[0]) == who[1]


def _leader(token: str) -> Who | None:
    """The process that was started with a mark by one that died before it could write down whom: of those that bear it
    now, the oldest."""
    found = [(pid, started(pid)) for pid in marked(token)]
    return min(((pid, s) for pid, s in found if s and s.isdigit()), key=lambda w: (int(w[1] or 0), w[0]), default=None)


def _who(raw: Any) -> Who:
    return int(raw[0]), raw[1]


def _digest(words: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:16]
