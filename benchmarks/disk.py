"""What checkpoints on disk cost: bytes, seconds in the background, and the pause of the training thread.

A transformer-sized stack of layers with AdamW state is saved while nothing else runs, then while a training loop runs
beside it. Prints bytes on disk per parameter, the seconds of a save, and what the training thread waits: for the copy
that a snapshot in memory takes anyway, and for giving that snapshot names and handing it over. Asserts nothing.

    python benchmarks/disk.py [--millions 50] [--folder /where/to/write]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from guard.checkpoints import DiskStore, TrainingState, to_portable, to_snapshot
from guard.clock import SystemClock
from guard.units import show_bytes

WIDTH = 512  # of a layer: 0.26 M parameters


def build(millions: float) -> tuple[nn.Module, torch.optim.Optimizer, TrainingState]:
    layers = max(1, round(millions * 1e6 / (WIDTH * WIDTH + 3 * WIDTH)))
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return model, optimizer, TrainingState(model, [optimizer], {})


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """One step; returns its seconds."""
    start = time.perf_counter()
    optimizer.zero_grad()
    model(torch.randn(8, WIDTH)).square().mean().backward()
    optimizer.step()
    return time.perf_counter() - start


def timed(what: str, seconds: list[float]) -> None:
    print(f"  {what:<44}{statistics.median(seconds) * 1e3:10.1f}{max(seconds) * 1e3:10.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--millions", type=float, default=50.0, help="parameters")
    parser.add_argument("--folder", type=Path, help="a folder on the disk in question; default: a temporary one")
    parser.add_argument("--saves", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model, optimizer, state = build(given.millions)
    train(model, optimizer)
    parameters = sum(p.numel() for p in model.parameters())
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        store = DiskStore(Path(folder) / "checkpoints", keep=1, clock=SystemClock())
        copies, names, handing, alone, beside, steps_alone, steps_beside = ([] for _ in range(7))
        for step in range(2 * given.saves):
            start = time.perf_counter()
            snapshot = state.capture(step, step)
            copied = time.perf_counter()
            portable = to_portable(state, snapshot)
            named = time.perf_counter()
            store.save(portable, state="good")
            handed = time.perf_counter()
            if step % 2:
                while store.writing:
                    steps_beside.append(train(model, optimizer))
            store.wait()
            (saved, *_) = (o for o in store.outcomes() if o.kind in ("saved", "failed"))
            assert saved.kind == "saved", saved.reason
            (beside if step % 2 else alone).append(saved.seconds)
            copies.append(copied - start)
            names.append(named - copied)
            handing.append(handed - named)
            state.recycle(snapshot)
            steps_alone += [train(model, optimizer) for _ in range(5)]
        start = time.perf_counter()
        loading = store.load(state)
        assert loading.portable is not None
        state.restore(to_snapshot(state, loading.portable))
        loaded = time.perf_counter() - start
        store.close(60)
    print(f"{parameters / 1e6:.1f} M parameters with AdamW state, {len(portable.tensors):,} tensors, float32")
    print(f"  on disk: {show_bytes(saved.bytes)}, {saved.bytes / parameters:.2f} bytes per parameter")
    print(f"  {'':<44}{'median':>10}{'largest':>10}   [ms]")
    timed("training thread: copy of the snapshot", copies)
    timed("training thread: names (to_portable)", names)
    timed("training thread: save()", handing)
    timed("background: a save, nothing beside it", alone)
    timed("background: a save, training beside it", beside)
    timed("a step, no save under way", steps_alone)
    timed("a step, a save under way", steps_beside)
    print(f"  {saved.bytes / statistics.median(alone) / 1e6:.0f} MB/s; read, verified and restored in {loaded:.2f} s")


if __name__ == "__main__":
    main()
