"""The demo: a real training run, broken three ways, without the guard and with it."""

from __future__ import annotations

from pathlib import Path


def run(out: Path = Path("demo-out"), seed: int = 0, steps: int | None = None) -> int:
    """Trains three times, tells what happened, and leaves a picture in `out`.

    Args:
        out: directory for the picture and the guarded run; made if it does not exist.
        seed: of weights and batches, the same for all three runs.
        steps: length of a run; the faults keep their places in it. Much shorter than the default, they cannot show.

    Returns:
        0 if the guarded run ends as well as the healthy one and the unguarded one does not; 1 if not; 130 after Ctrl-C.
    """
    from guard.demo.stage import perform

    return perform(out, seed, steps)
