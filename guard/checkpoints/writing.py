"""One checkpoint, written so that it is there whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import shutil
import uuid
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException

from guard import __version__
from guard.checkpoints import manifest, shards
from guard.checkpoints.crew import Crew
from guard.checkpoints.manifest import Checkpoint, File, Manifest, State
from guard.checkpoints.portable import Portable
from guard.checkpoints.retention import surplus
from guard.errors import CheckpointError
from guard.units import show_bytes

SHARED = "shared.pt"
_TEMPORARY = re.compile(r"\.tmp-step-\d+-[0-9a-f]{8}")
_PER_TENSOR = 2048  # [bytes] around each tensor in a file
_MARGIN = 1 << 20  # [bytes] for everything else
_SENTENCES = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file would be larger than is allowed",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "writing there is not permitted",
    errno.ENOENT: "the folder has gone; mount it or make it again",
    errno.ENOTDIR: "the folder has gone; mount it or make it again",
    errno.EIO: "the disk reports an input/output error",
}


def own_file(rank: int) -> str:
    """The file of what one rank alone knows."""
    return f"rank_{rank}.pt"


def room_needed(portable: Portable) -> int:
    """Disk space [bytes] that a checkpoint will take, all ranks together; a little more than it does."""
    return portable.bytes + len(portable.tensors) * _PER_TENSOR + _MARGIN


def write(folder: Path, portable: Portable, state: State, crew: Crew, now: float) -> Checkpoint:
    """Writes ``step-<step>`` in `folder`, in place of one that is there; all ranks call it.

    Every file is checksummed and brought to the disk, then the manifest, under a temporary name; then it gets its name.

    Args:
        now: seconds since the epoch.

    Raises:
        CheckpointError: in one sentence; the same on all ranks. What was there before still is.
    """
    steps = crew.tell((portable.step, portable.tick))
    if len(set(steps)) > 1:
        raise CheckpointError(f"the ranks do not save the same step: {', '.join(str(s) for s, _ in steps)}")
    temporary = folder / crew.tell(f".tmp-step-{portable.step}-{uuid.uuid4().hex[:8]}")[0]
    try:
        crew.agree(_attempt(folder, lambda: temporary.mkdir(mode=0o700)) if crew.rank == 0 else None)
        files = _write_files(temporary, portable, crew)
        made = _manifest(portable, state, crew, files, now)
        place = folder / f"step-{portable.step}"
        crew.agree(_attempt(folder, lambda: _finish(temporary, place, made)) if crew.rank == 0 else None)
        return Checkpoint(place, made)
    except CheckpointException as error:
        causes = [(rank, cause) for rank, (cause, _) in error.failures.items()]
        rank, cause = next(((r, c) for r, c in causes if isinstance(c, OSError)), causes[0])
        raise CheckpointError(f"rank {rank}: {sentence(cause, folder)}") from error
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(sentence(error, folder)) from error
    finally:
        if crew.rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)


def _write_files(temporary: Path, portable: Portable, crew: Crew) -> dict[str, File]:
    """Everything but the manifest; name -> size and checksum, of all ranks."""
    crew.agree(_attempt(temporary.parent, lambda: _write_values(temporary, portable, crew.rank)))
    shards.write(temporary, _share(portable, crew.rank), crew.group)
    files: dict[str, File] = {}
    crew.agree(_attempt(temporary.parent, lambda: files.update(_seal(temporary, crew.rank))))
    return {name: file for part in crew.tell(files) for name, file in part.items()}


def _manifest(portable: Portable, state: State, crew: Crew, files: dict[str, File], now: float) -> Manifest:
    left_out = [text for part in crew.tell(portable.left_out) for text in part]
    return Manifest(
        step=portable.step,
        tick=portable.tick,
        created=now,
        state=state,
        world=crew.world,
        tensor_bytes=portable.bytes,
        files=files,
        left_out=tuple(dict.fromkeys(left_out)),
        guard=__version__,
        torch=str(torch.__version__),
    )


def _attempt(folder: Path, do: Any) -> str | None:
    """The problem in one sentence, or None: the others must not wait for a rank that raised."""
    try:
        do()
    except (OSError, RuntimeError, ValueError) as error:
        return sentence(error, folder)
    return None


def _write_values(temporary: Path, portable: Portable, rank: int) -> None:
    own = portable.own or {}
    _save(own if rank else {**own, "buffers": {}}, temporary / own_file(rank))
    if rank == 0:
        _save(portable.shared, temporary / SHARED)


def _save(values: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:  # given a path, `torch.save` forgets what the disk said
        torch.save(values, file)


def _share(portable: Portable, rank: int) -> dict[str, Any]:
    """Buffers that are not distributed are rank 0's: it is whose a data-parallel model gives to all."""
    if rank == 0:
        return portable.tensors
    return {
        name: tensor
        for name, tensor in portable.tensors.items()
        if hasattr(tensor, "to_local") or not (name.startswith("buffer.") or ".buffer." in name)
    }


def _seal(temporary: Path, rank: int) -> dict[str, File]:
    """The files that this rank wrote."""
    mine = (own_file(rank), *((SHARED, shards.LIST) if rank == 0 else ()))
    names = [n for n in os.listdir(temporary) if n in mine or n.startswith(shards.file_of(rank))]  # noqa: PTH208
    return {name: manifest.seal(temporary / name) for name in sorted(names)}


def _finish(temporary: Path, place: Path, made: Manifest) -> None:
    """The manifest, the name. One of the same step gives way only for the moment in which it has another name."""
    manifest.write(temporary, made)
    old = place.with_name(f".old-{place.name}")
    if place.exists():
        shutil.rmtree(old, ignore_errors=True)
        place.rename(old)
    temporary.rename(place)
    manifest.sync_folder(place.parent)
    shutil.rmtree(old, ignore_errors=True)


def tidy(folder: Path) -> None:
    """Removes what a killed process left half-written, and gives back its name to one that was to give way.

    Raises:
        OSError: the folder cannot be made or read.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in os.listdir(folder):  # noqa: PTH208 - names are enough
        path = folder / name
        if _TEMPORARY.fullmatch(name):
            shutil.rmtree(path, ignore_errors=True)
        elif re.fullmatch(r"\.old-step-\d+", name):
            place = folder / name.removeprefix(".old-")
            if place.exists():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.rename(place)


def remove(checkpoint: Checkpoint) -> None:
    """Takes its name away first: half a checkpoint is never seen.

    Raises:
        OSError: it cannot be removed.
    """
    step = checkpoint.manifest.step
    gone = checkpoint.path.with_name(f".tmp-step-{step}-{uuid.uuid4().hex[:8]}")
    checkpoint.path.rename(gone)
    shutil.rmtree(gone)


def make_room(folder: Path, needed: int, keep: int, max_bytes: int | None) -> list[Checkpoint]:
    """Removes what has to go before `needed` bytes may be written.

    Returns:
        What was removed.

    Raises:
        CheckpointError: it does not fit, with the numbers.
        OSError: the folder cannot be read.
    """
    kept = manifest.listing(folder).checkpoints
    gone: list[Checkpoint] = []
    if max_bytes is not None:
        if sum(c.manifest.bytes for c in kept) + needed > max_bytes:
            gone = surplus(kept, keep, max_bytes - needed)
        stays = sum(c.manifest.bytes for c in kept if c not in gone)
        if stays + needed > max_bytes:
            there = f" beside the {show_bytes(stays)} of the last good one" if stays else ""
            raise CheckpointError(
                f"a checkpoint takes {show_bytes(needed)} and does not fit into max_bytes ({show_bytes(max_bytes)})"
                f"{there}; allow at least {show_bytes(stays + needed)}"
            )
    free = shutil.disk_usage(folder).free + sum(c.manifest.bytes for c in gone)
    if free < needed:
        raise CheckpointError(
            f"the disk is full: {show_bytes(free)} are free and a checkpoint takes {show_bytes(needed)}"
        )
    for checkpoint in gone:
        remove(checkpoint)
    return gone


def sentence(error: BaseException, folder: Path) -> str:
    """What went wrong, for a person."""
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, OSError) and chain.errno is not None:
            return _SENTENCES.get(chain.errno, chain.strerror or type(chain).__name__)
        chain = chain.__cause__ or chain.__context__
    if "PytorchStreamWriter" in str(error) or "inline_container" in str(error):  # it forgets what the disk said
        return _look_at(folder)
    first = (str(error).splitlines() or [""])[0][:300]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _look_at(folder: Path) -> str:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return _SENTENCES.get(error.errno or 0, error.strerror or "the folder cannot be read")
    return "the disk is full" if free < _MARGIN else "a file could not be written"
