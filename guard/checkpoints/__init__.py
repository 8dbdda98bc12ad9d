"""Snapshots of a run in memory: captured at iteration boundaries, restored in place, bit for bit."""

from guard.checkpoints.buffers import ChangedBuffers
from guard.checkpoints.interval import Interval, keep_that_fits
from guard.checkpoints.ring import Ring
from guard.checkpoints.rng import RngState
from guard.checkpoints.state import Snapshot, Stateful, Surroundings, TrainingState

__all__ = [
    "ChangedBuffers",
    "Interval",
    "Ring",
    "RngState",
    "Snapshot",
    "Stateful",
    "Surroundings",
    "TrainingState",
    "keep_that_fits",
]
