"""Snapshots of a run: captured at iteration boundaries, restored in place, bit for bit; in memory, and on disk.

What lies on disk can be listed and verified without torch, so the names here are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guard.checkpoints.buffers import ChangedBuffers
    from guard.checkpoints.disk import DiskStore, Outcome
    from guard.checkpoints.interval import DiskInterval, Interval, keep_that_fits
    from guard.checkpoints.loading import Loading
    from guard.checkpoints.manifest import Checkpoint, Manifest
    from guard.checkpoints.portable import Portable, to_portable, to_snapshot
    from guard.checkpoints.ring import Ring
    from guard.checkpoints.rng import RngState
    from guard.checkpoints.state import Snapshot, Stateful, Surroundings, TrainingState

_HOMES = {
    "ChangedBuffers": "buffers",
    "Checkpoint": "manifest",
    "DiskInterval": "interval",
    "DiskStore": "disk",
    "Interval": "interval",
    "Loading": "loading",
    "Manifest": "manifest",
    "Outcome": "disk",
    "Portable": "portable",
    "Ring": "ring",
    "RngState": "rng",
    "Snapshot": "state",
    "Stateful": "state",
    "Surroundings": "state",
    "TrainingState": "state",
    "keep_that_fits": "interval",
    "to_portable": "portable",
    "to_snapshot": "portable",
}

__all__ = [
    "ChangedBuffers",
    "Checkpoint",
    "DiskInterval",
    "DiskStore",
    "Interval",
    "Loading",
    "Manifest",
    "Outcome",
    "Portable",
    "Ring",
    "RngState",
    "Snapshot",
    "Stateful",
    "Surroundings",
    "TrainingState",
    "keep_that_fits",
    "to_portable",
    "to_snapshot",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'guard.checkpoints' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"guard.checkpoints.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
