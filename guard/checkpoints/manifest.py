"""What lies in a folder of checkpoints, and whether it is what was written. Knows no torch.

A checkpoint is a folder ``step-<step>`` with a manifest, which lists every other file with its size and SHA-256 and was
written last. Nothing else in the folder of checkpoints is looked at, no link is followed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from guard.errors import CheckpointError

State = Literal["probation", "good", "preempted"]

VERSION = 1
NAME = "manifest.json"
_STATES = ("probation", "good", "preempted")
_FOLDER = re.compile(r"(\.old-)?step-(0|[1-9]\d{0,17})")  # .old-: gives way to another of the same step
_FILE = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]{0,99}")
_CHUNK = 4 << 20  # [bytes]
_LARGEST = 64 << 20  # [bytes] of a manifest
_GONE = (errno.ENOENT, errno.ENOTDIR)


@dataclass(frozen=True, slots=True)
class File:
    """One file of a checkpoint.

    Args:
        bytes: its size.
        sha256: of its content, hexadecimal.
    """

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint is.

    Args:
        step, tick: when it was taken.
        created: seconds since the epoch.
        state: probation; good: survived it; preempted: taken because the run had to end.
        world: processes that wrote it.
        tensor_bytes: of all tensors.
        left_out: what of the run's state is not in it, one sentence each.
        files: name -> size and checksum.
        guard, torch: versions that wrote it.
        version: of this format.
    """

    step: int
    tick: int
    created: float
    state: State
    world: int
    tensor_bytes: int
    files: dict[str, File]
    left_out: tuple[str, ...] = ()
    guard: str = ""
    torch: str = ""
    version: int = VERSION

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(f.bytes for f in self.files.values())


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder with a readable manifest; what is in it may still be damaged."""

    path: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        return f"step-{self.manifest.step}"


@dataclass(slots=True)
class Listing:
    """What a folder holds.

    Args:
        checkpoints: oldest first, by tick.
        refused: (name, why) of folders that look like a checkpoint and are none.
    """

    checkpoints: list[Checkpoint] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)


def listing(folder: Path) -> Listing:
    """The checkpoints in a folder; nothing if there is no such folder.

    A writer may be at work meanwhile: what vanishes between two looks is looked for once more.

    Raises:
        OSError: it cannot be read.
    """
    found, vanished = _look(folder)
    return _look(folder)[0] if vanished else found


def _look(folder: Path) -> tuple[Listing, bool]:
    result, vanished = Listing(), False
    try:
        names = sorted((match[2], match[0]) for name in os.listdir(folder) if (match := _FOLDER.fullmatch(name)))  # noqa: PTH208
    except OSError as error:
        if error.errno in _GONE:
            return result, False
        raise
    for step, name in dict(names).items():  # of two of a step, `step-` comes last and wins
        path = folder / name
        try:
            manifest = read(path)
        except CheckpointError as error:
            vanished = vanished or not path.exists()
            result.refused.append((f"step-{step}", str(error)))
            continue
        if manifest.step != int(step):
            result.refused.append((f"step-{step}", f"its manifest is of step {manifest.step}"))
        else:
            result.checkpoints.append(Checkpoint(path, manifest))
    result.checkpoints.sort(key=lambda c: (c.manifest.tick, c.manifest.step))
    return result, vanished


def read(folder: Path) -> Manifest:
    """A checkpoint's manifest.

    Raises:
        CheckpointError: it is missing, damaged, or of a newer version.
    """
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            raise CheckpointError("it is no folder")
        with _open(folder / NAME) as file:
            data = json.loads(file.read(_LARGEST))
    except OSError as error:
        what = "it has no manifest" if error.errno in _GONE else f"its manifest cannot be read: {error.strerror}"
        raise CheckpointError(what) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError("its manifest is damaged: it is not JSON") from error
    version = data.get("version") if isinstance(data, dict) else None
    if type(version) is int and version > VERSION:
        raise CheckpointError(
            f"its manifest is of version {version}, and this guard knows versions up to {VERSION}; use a newer guard"
        )
    try:
        if data.pop("sha256") != _digest(data):
            raise CheckpointError("its manifest is damaged: its checksum does not fit")
        return _manifest(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError("its manifest is damaged: something is missing in it") from error


def _manifest(data: dict[str, Any]) -> Manifest:
    files = {name: File(int(f["bytes"]), str(f["sha256"])) for name, f in data.pop("files").items()}
    made = Manifest(files=files, left_out=tuple(data.pop("left_out")), **data)
    if made.state not in _STATES or any(not _FILE.fullmatch(name) or name == NAME for name in files):
        raise ValueError(made.state)
    return made


def write(folder: Path, manifest: Manifest) -> None:
    """Writes a manifest whole: temporary name, fsync, rename, fsync of the folder.

    Raises:
        OSError: it cannot be written.
    """
    data = asdict(manifest)
    text = json.dumps(data | {"sha256": _digest(json.loads(json.dumps(data)))}, indent=1)
    temporary = folder / f".{NAME}.tmp"
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / NAME)
    sync_folder(folder)


def with_state(checkpoint: Checkpoint, state: str) -> Checkpoint:
    """Writes the manifest anew with another state.

    Raises:
        OSError: it cannot be written.
    """
    changed = replace(checkpoint.manifest, state=cast("State", state))
    write(checkpoint.path, changed)
    return Checkpoint(checkpoint.path, changed)


def _digest(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def seal(path: Path) -> File:
    """Size and checksum of a file, which is brought to the disk.

    Raises:
        OSError: it cannot be read or brought there.
    """
    with _open(path) as file:
        os.fsync(file.fileno())
        return _measure(file)


def damage(checkpoint: Checkpoint, names: Iterable[str] | None = None) -> list[str]:
    """Reads files again and compares; one sentence for each that is not as it was written.

    Args:
        names: of its files; None: all of them.
    """
    found = []
    for name, expected in sorted(checkpoint.manifest.files.items()):
        if names is None or name in names:
            problem = _compare(checkpoint.path / name, name, expected)
            if problem:
                found.append(problem)
    return found


def _compare(path: Path, name: str, expected: File) -> str | None:
    try:
        with _open(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size != expected.bytes:
                return f"{name} has {size:,} bytes instead of {expected.bytes:,}"
            return None if _measure(file) == expected else f"{name} is damaged: its checksum does not fit"
    except OSError as error:
        return f"{name} is missing" if error.errno in _GONE else f"{name} cannot be read: {error.strerror}"


def _measure(file: Any) -> File:
    digest, size = hashlib.sha256(), 0
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
    return File(size, digest.hexdigest())


def _open(path: Path) -> Any:
    """A regular file for reading; a link is not followed, a pipe not waited for."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no regular file")
    return os.fdopen(fd, "rb", buffering=0)


def sync_folder(folder: Path) -> None:
    """Brings a folder's list of names to the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
