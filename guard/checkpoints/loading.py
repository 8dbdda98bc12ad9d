"""The newest checkpoint that is whole, read into the live run's names."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException

from guard.checkpoints import manifest, shards
from guard.checkpoints.crew import Crew
from guard.checkpoints.manifest import Checkpoint, Manifest
from guard.checkpoints.portable import Portable, targets
from guard.checkpoints.state import TrainingState
from guard.checkpoints.writing import SHARED, own_file, sentence
from guard.errors import ChangedModelError, CheckpointError


@dataclass(slots=True)
class Loading:
    """What came of a load.

    Args:
        portable: what was loaded; None: there was nothing that could be.
        manifest: of it.
        refused: (name, why) of those that were passed over, newest first.
    """

    portable: Portable | None = None
    manifest: Manifest | None = None
    refused: list[tuple[str, str]] = field(default_factory=list)


def in_order(checkpoints: list[Checkpoint]) -> list[Checkpoint]:
    """As a resume tries them: good and preempted ones, newest first, then those on probation."""
    return sorted(checkpoints, key=lambda c: (c.manifest.state != "probation", c.manifest.tick), reverse=True)


def load(folder: Path, state: TrainingState, crew: Crew, step: int | None = None) -> Loading:
    """Reads the newest checkpoint that is whole; all ranks call it. Each verifies a part of the files.

    Args:
        state: the live run; not changed.
        step: this one or none; None: the first sound one in the order of `in_order`.

    Raises:
        ChangedModelError: it is sound, but of another model.
        CheckpointError: the folder cannot be read, or there is no such step.
    """
    found: Any = None
    if crew.rank == 0:
        try:
            found = manifest.listing(folder)
        except OSError as error:
            found = f"{folder}: {sentence(error, folder)}"
    found = crew.tell(found)[0]
    if isinstance(found, str):
        raise CheckpointError(found)
    chosen = in_order(found.checkpoints)
    refused = list(found.refused)
    if step is not None:
        chosen = [c for c in chosen if c.manifest.step == step]
        refused = [r for r in refused if r[0] == f"step-{step}"]
        if not chosen and not refused:
            there = ", ".join(str(c.manifest.step) for c in found.checkpoints)
            raise CheckpointError(f"there is no checkpoint of step {step} in {folder}; there are: {there or 'none'}")
    for checkpoint in chosen:
        why = _damage(checkpoint, crew)
        if why is None:
            portable = _read(checkpoint, state, crew)
            if isinstance(portable, Portable):
                return Loading(portable, checkpoint.manifest, refused)
            why = portable
        refused.append((checkpoint.name, why))
    return Loading(refused=refused)


def _damage(checkpoint: Checkpoint, crew: Crew) -> str | None:
    names = sorted(checkpoint.manifest.files)
    needed = {SHARED, shards.LIST, *(own_file(rank) for rank in range(checkpoint.manifest.world))}
    missing = [f"{name} is not in its manifest" for name in sorted(needed - set(names))]
    if missing:
        return missing[0]
    mine = manifest.damage(checkpoint, set(names[crew.rank :: crew.world]))
    found = [problem for part in crew.tell(mine) for problem in part]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return found[0] + more if found else None


def _read(checkpoint: Checkpoint, state: TrainingState, crew: Crew) -> Portable | str:
    """All ranks read or none does."""
    path, made = checkpoint.path, checkpoint.manifest
    shared: dict[str, Any] = {}
    own: dict[str, Any] = {}
    into: dict[str, Any] = {}
    foreign = crew.rank >= made.world
    differences: list[str] = []

    def prepare() -> None:
        saved, files = shards.saved(path)
        if unlisted := files - set(made.files):
            raise ValueError(f"{min(unlisted)} is not in its manifest")
        shared.update(values(path / SHARED))
        own.update(values(path / own_file(0 if foreign else crew.rank)))
        try:
            into.update(targets(state, shared, saved, checkpoint.name))
        except ChangedModelError as error:  # told to the others, so that none of them waits for this rank
            differences.extend(error.differences)

    problem = _first(crew.tell(_attempt(path, prepare)))
    if problem is not None:
        return problem
    if changed := next((d for d in crew.tell(differences) if d), None):
        raise ChangedModelError(checkpoint.name, changed)
    try:
        shards.read(path, into, crew.group)
    except CheckpointException as error:
        problem = sentence(next(iter(error.failures.values()))[0], path)
    except (OSError, RuntimeError, ValueError, KeyError, AssertionError) as error:
        problem = sentence(error, path)
    problem = _first(crew.tell(problem))
    if problem is not None:
        return problem
    new = [n for n in state.others if n not in own["others"] and not _named(n, made.left_out)]
    left_out = (*made.left_out, *(f"other.{n} is not in the checkpoint and stays as it is" for n in new))
    return Portable(made.tick, made.step, into, shared, own, left_out, own_is_foreign=foreign)


def _named(name: str, sentences: tuple[str, ...]) -> bool:
    return any(text.startswith(f"other.{name} ") for text in sentences)


def _first(problems: list[str | None]) -> str | None:
    return next((p for p in problems if p is not None), None)


def _attempt(path: Path, do: Any) -> str | None:
    try:
        do()
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError) as error:
        return sentence(error, path)
    return None


def values(path: Path) -> dict[str, Any]:
    """The plain values of a file; no code that might stand in it is run.

    Raises:
        OSError, RuntimeError, pickle.UnpicklingError: it cannot be read.
    """
    found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return found
