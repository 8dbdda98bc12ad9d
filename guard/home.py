"""The home: where a user's runs, daemons and the listener on Slack find each other.

    home/
      runs/<run id>.json          a run has begun, and where it is
      daemons/<daemon id>.json    a daemon lives, for a minute from now
      listeners/<app>.json        who listens to a Slack app, for a minute from now
      forward/<daemon id>/        what a listener has heard for runs that only another host reaches

It may lie on a disk that several hosts share: files are written under a temporary name and renamed, and whoever claims
something does so for a time, so that a dead host blocks nobody.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import json
import os
import secrets
import socket
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from guard.clock import Clock
from guard.process import boot_id, started

VARIABLE = "GUARD_HOME"
LOCAL_VARIABLE = "GUARD_LOCAL_STATE"
LEASE = 60.0  # [s] a claim holds without renewal
_SCRATCH = Path("/var/tmp")
_SETTLE = 2.0  # [s] after which everybody has seen who was the last to write
_MAX_BYTES = 64 << 10
# File systems on which a lock or an SQLite file is not to be trusted, because other hosts see them too.
_SHARED = {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "9p", "afs", "wekafs"}


@dataclass(frozen=True, slots=True)
class Announcement:
    """A run, as `attach` announced it.

    Args:
        id: see `run_id`.
        pid, started: of rank 0; `started` as the kernel counts it.
        time: when [s since the epoch].
        world: number of ranks.
        supervisor: ``(pid, started)`` of a `guard run` that restarts it, or None.
        restarter: who else does: torchrun, Slurm, Kubernetes; or None.
    """

    id: str
    run_dir: str
    run: str
    host: str
    boot: str
    pid: int
    started: str | None
    user: str
    time: float
    world: int = 1
    supervisor: tuple[int, str | None] | None = None
    restarter: str | None = None


@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon, as it announces itself.

    Args:
        id: host, user and state directory, made short.
        delivers: it tells people; False for one that only watches.
        page: address of its status page, or "".
    """

    id: str
    host: str
    boot: str
    pid: int
    started: str | None
    delivers: bool = True
    page: str = ""


def where() -> Path | None:
    """The user's home of guards: ``GUARD_HOME``, else in the user's state directory. None: ``GUARD_HOME`` is empty, and
    nothing is announced."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return Path(named).absolute() if named.strip() else None
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return (Path(state) / "training-guard").expanduser()


def local_state() -> Path:
    """A folder of this user on this host's own disk, which outlives a reboot: for SQLite and locks.
    ``GUARD_LOCAL_STATE``, else in /var/tmp; where somebody else has put something in its place, in the user's home."""
    named = os.environ.get(LOCAL_VARIABLE, "").strip()
    if named:
        return Path(named).absolute()
    usual = _SCRATCH / f"training-guard-{os.getuid()}"
    try:
        found = usual.lstat()
    except FileNotFoundError:
        return usual
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return usual if own else Path.home() / ".local/state" / f"training-guard-{socket.gethostname()}"


def on_shared_disk(path: Path) -> bool:
    """Other hosts may write there too, as far as the mount table tells."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    best, shared = -1, False
    for line in mounts:
        left, _, right = line.partition(" - ")
        mount, kind = left.split()[4].encode().decode("unicode_escape"), right.split()[0]
        if path.absolute().is_relative_to(mount) and len(mount) >= best:
            best, shared = len(mount), kind in _SHARED or kind.startswith("fuse.sshfs")
    return shared


def run_id(host: str, run_dir: str) -> str:
    """Names a run wherever a path is too long or says too much: 16 hexadecimal digits."""
    return hashlib.sha256(f"{host}\0{run_dir}".encode()).hexdigest()[:16]


class Home:
    """Reads and writes one home.

    Args:
        path: made when something is written.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path, self._clock = path, clock

    # ---- runs

    def announce_run(
        self,
        run_dir: Path,
        run: str,
        *,
        world: int = 1,
        supervisor: tuple[int, str | None] | None = None,
        restarter: str | None = None,
    ) -> Announcement:
        """Raises OSError where it cannot be written."""
        host, pid = socket.gethostname(), os.getpid()
        found = Announcement(
            run_id(host, str(run_dir)),
            str(run_dir),
            run,
            host,
            boot_id(),
            pid,
            started(pid),
            _user(),
            self._clock.time(),
            world,
            supervisor,
            restarter,
        )
        self._write(f"runs/{found.id}.json", asdict(found))
        return found

    def runs(self) -> Iterator[Announcement]:
        """Those announced; what cannot be understood is passed over."""
        for path in self._files("runs"):
            if (run := self.run(path.stem)) is not None:
                yield run

    def run(self, id_: str) -> Announcement | None:
        """One of them. The file's own name counts, so that a forged one cannot stand for another run."""
        raw = self._read(f"runs/{id_}.json") if id_.isalnum() else None
        try:
            found = Announcement(**{**raw, "supervisor": _pair(raw.get("supervisor"))}) if raw else None
        except (TypeError, ValueError):
            return None
        if found is None or not (isinstance(found.pid, int) and isinstance(found.time, (int, float))):
            return None
        return found if found.id == id_ == run_id(str(found.host), str(found.run_dir)) else None

    def forget_run(self, id_: str) -> None:
        with contextlib.suppress(OSError):
            (self.path / "runs" / f"{id_}.json").unlink()

    # ---- daemons

    def announce_daemon(self, daemon: Daemon) -> None:
        """Until `LEASE` seconds from now. Raises OSError."""
        self._write(f"daemons/{daemon.id}.json", {**asdict(daemon), "expires": self._clock.time() + LEASE})

    def withdraw_daemon(self, daemon: Daemon) -> None:
        with contextlib.suppress(OSError):
            (self.path / "daemons" / f"{daemon.id}.json").unlink()

    def daemons(self) -> list[Daemon]:
        """Those that live: of this boot of this host by their process, of others by their word."""
        found = []
        for path in self._files("daemons"):
            raw = self._read(f"daemons/{path.name}")
            if raw and self._valid(raw):
                try:
                    found.append(Daemon(**{k: v for k, v in raw.items() if k != "expires"}))
                except TypeError:
                    continue
        here = socket.gethostname(), boot_id()
        return [d for d in found if (d.host, d.boot) != here or started(d.pid) == d.started]

    def delivers(self, host: str) -> bool:
        """A live daemon of that host tells people."""
        return any(d.delivers and d.host == host for d in self.daemons())

    def teller(self, run: Announcement) -> Daemon | None:
        """The one daemon that tells of a run: of its own host if there is one, else any; of several the first by id."""
        living = [d for d in self.daemons() if d.delivers]
        near = [d for d in living if d.host == run.host]
        return min(near or living, key=lambda d: d.id, default=None)

    # ---- claims: one of many, for a time

    def claim(self, folder: str, name: str, holder: str, **more: Any) -> bool:
        """Whether `holder` has it now, renewed. What nobody has is claimed first, and had two seconds later, if nobody
        else was the last to write by then."""
        path, now = f"{folder}/{name}.json", self._clock.time()
        raw = self._read(path)
        valid = raw is not None and self._valid(raw)
        mine = raw is not None and valid and raw.get("holder") == holder
        if valid and not mine:
            return False
        since = float(raw["since"]) if mine and raw is not None else now
        try:
            self._write(path, {"holder": holder, "since": since, "expires": now + LEASE, **more})
        except OSError:
            return False
        return mine and now >= since + _SETTLE

    def release(self, folder: str, name: str, holder: str) -> None:
        raw = self._read(f"{folder}/{name}.json")
        if raw is not None and raw.get("holder") == holder:
            with contextlib.suppress(OSError):
                (self.path / folder / f"{name}.json").unlink()

    def claimed(self, folder: str) -> dict[str, dict[str, Any]]:
        """What is claimed there now, by name."""
        found = ((path.stem, self._read(f"{folder}/{path.name}")) for path in self._files(folder))
        return {name: raw for name, raw in found if raw is not None and self._valid(raw)}

    # ---- from a listener to the daemon that reaches the run

    def forward(self, daemon: str, message: dict[str, Any]) -> None:
        """Raises OSError."""
        self._write(f"forward/{daemon}/{secrets.token_hex(8)}.json", message)

    def forwarded(self, daemon: str) -> list[dict[str, Any]]:
        """What was left for `daemon`, taken out."""
        taken = []
        for path in self._files(f"forward/{daemon}"):
            raw = self._read(f"forward/{daemon}/{path.name}")
            with contextlib.suppress(OSError):
                path.unlink()
                taken.extend([raw] if raw else [])
        return taken

    # ---- files

    def _valid(self, raw: dict[str, Any]) -> bool:
        """An expiry far ahead was written by a clock that has been set back since."""
        expires, now = raw.get("expires"), self._clock.time()
        return isinstance(expires, (int, float)) and now < expires <= now + 2 * LEASE

    def _files(self, folder: str) -> list[Path]:
        try:
            return sorted(p for p in (self.path / folder).iterdir() if p.suffix == ".json")
        except OSError:
            return []

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            with (self.path / name).open("rb") as file:
                found = json.loads(file.read(_MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def _write(self, name: str, content: dict[str, Any]) -> None:
        path = self.path / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(json.dumps(content))
        temporary.replace(path)


def _pair(raw: Any) -> tuple[int, str | None] | None:
    return None if raw is None else (int(raw[0]), raw[1])


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container whose user has no name
        return f"uid {os.getuid()}"
