"""`guard demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from guard.cli._say import PROBLEMS, fail

EXAMPLES = ("guard demo --out demo",)


def command(
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", show_default=False, help="Where the demo's run directory goes."),
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, show_default=False, help="Steps to train.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", show_default=False, help="Seed of the run.")] = None,
) -> None:
    """Break a small training run, and watch it being repaired."""
    try:
        from guard.demo import run
    except ImportError as error:
        fail(f"the demo needs what is not installed: {error}", PROBLEMS)
    given: dict[str, Any] = {"out": out, "steps": steps, "seed": seed}
    raise typer.Exit(run(**{name: value for name, value in given.items() if value is not None}))
