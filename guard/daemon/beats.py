"""Heartbeats, as every rank leaves them in the run directory."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

_BYTES = 200  # a heartbeat is shorter


@dataclass(frozen=True, slots=True)
class Beat:
    """How far a rank was, and what it was doing."""

    rank: int
    tick: int
    step: int
    phase: str


class Beats:
    """The heartbeats of the processes that run now; those that earlier ones left behind do not count.

    Args:
        run_dir: need not exist yet.
        since: when they began [s since the epoch], by the clock of the host that writes them; None: now.
    """

    def __init__(self, run_dir: Path, since: float | None = None) -> None:
        self._run_dir = run_dir
        self._old = {rank: text for rank, text in self._texts().items() if since is None or _time(text) < since}
        self._leader = ""

    def read(self) -> dict[int, Beat]:
        """By rank. When rank 0 begins anew (torchrun has restarted its workers), ranks of before may be gone."""
        texts = self._texts()
        phase = beat.phase if (beat := _beat(0, texts.get(0, ""))) is not None else ""
        if phase == "start" and self._leader not in ("", "start"):
            self._old = {rank: text for rank, text in texts.items() if rank}
        if texts.get(0) != self._old.get(0):
            self._leader = phase
        found = (_beat(rank, text) for rank, text in texts.items() if self._old.get(rank) != text)
        return {beat.rank: beat for beat in found if beat is not None}

    def _texts(self) -> dict[int, str]:
        return _texts(self._run_dir)


def beats_since(run_dir: Path, time: float) -> dict[int, Beat]:
    """By rank, those that were written after `time` [s since the epoch], by the clock of the host that writes them."""
    found = ((_beat(rank, text), text) for rank, text in _texts(run_dir).items())
    return {beat.rank: beat for beat, text in found if beat is not None and _time(text) >= time}


def _texts(run_dir: Path) -> dict[int, str]:
    found: dict[int, str] = {}
    try:
        names = [name for name in os.listdir(run_dir) if name.startswith("heartbeat.")]  # noqa: PTH208 - of many runs
    except OSError:
        return found
    for name in names:
        try:
            with (run_dir / name).open("rb") as opened:
                found[int(name[10:])] = opened.read(_BYTES).decode("utf-8", "replace")
        except (OSError, ValueError):
            continue
    return found


def _time(text: str) -> float:
    try:
        return float(text.rsplit(maxsplit=1)[-1])
    except (ValueError, IndexError):
        return -math.inf


def _beat(rank: int, text: str) -> Beat | None:
    try:
        tick, step, *phase, _, _ = text.split()
        return Beat(rank, int(tick), int(step), " ".join(phase))
    except ValueError:
        return None
