"""`guard doctor`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guard.cli._say import PROBLEMS, USAGE, fail, note, out, out_json
from guard.errors import UsageError

if TYPE_CHECKING:
    from guard.doctor import Report

EXAMPLES = (
    "guard doctor train:make --quick",
    "guard doctor train.py:make --html report.html",
    "guard doctor train:make --only data,loss --json",
)

_PIPE = 100  # columns where there is no terminal


def command(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            show_default=False,
            help="Returns model, train loader, loss function; optionally optimizer, validation loader, dtype.",
        ),
    ],
    *,
    quick: Annotated[bool, typer.Option("--quick", help="A first look: shorter trials.")] = False,
    only: Annotated[
        str | None, typer.Option("--only", metavar="CHECKS", show_default=False, help="Names, with commas between.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, show_default=False, help="Planned steps, for the schedule.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", show_default=False, help="Write the report as a page too.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON in place of the table.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the trials.")] = 0,
) -> None:
    """Check data, loss, model and rate before a run.

    Trains only copies; nothing of what the function returned is changed. Exit code 1: a check failed.
    """
    if html is not None and not html.absolute().parent.is_dir():
        fail(f"there is no folder {html.absolute().parent} for {html.name}", USAGE)
    try:
        report = _examine(target, quick, only, steps, seed)
    except UsageError as error:
        fail(str(error), USAGE)
    if html is not None:
        from guard.doctor.page import render

        html.write_text(render(report), encoding="utf-8")
        note(f"wrote {html}")
    if as_json:
        out_json(report.to_dict())
    else:
        _table(report)
    raise typer.Exit(PROBLEMS if report.verdict == "FAIL" else 0)


def _examine(target: str, quick: bool, only: str | None, steps: int | None, seed: int) -> Report:
    import dataclasses

    from guard import doctor
    from guard.doctor.loading import load

    with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints is not the answer
        setup = load(target)
        if steps is not None:
            setup = dataclasses.replace(setup, steps=steps)
        names = None if only is None else [name.strip() for name in only.split(",") if name.strip()]
        with _progress() as progress:
            return doctor.examine(setup, quick=quick, only=names, seed=seed, progress=progress)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar on stderr, on a terminal only."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(28), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda title, done, total: bar.update(task, description=title, completed=done, total=total)


def _table(report: Report) -> None:
    from rich.console import Console

    from guard.doctor.table import show

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PIPE
    with console.capture() as capture:
        show(report, console)
    out("\n".join(line.rstrip() for line in capture.get().splitlines()))
