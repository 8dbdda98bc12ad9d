"""How commands speak: answers on stdout, everything about the answer on stderr; and what the exit codes mean."""

from __future__ import annotations

import difflib
import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import typer

PROBLEMS, USAGE, NO_RUN = 1, 2, 3
_STYLES = {
    "critical": "red",
    "warning": "yellow",
    "resolved": "green",
    "exhausted": "red",
    "stopped": "red",
    "firing": "yellow",
    "verifying": "yellow",
}
_KNOWN = 20  # names listed in an error


def out(text: str = "") -> None:
    typer.echo(harmless(text))


def harmless(text: str) -> str:
    """What a journal holds must not drive the terminal that shows it."""
    from guard.notify.words import without_control

    return without_control(text)


def note(text: str) -> None:
    """Something beside the answer; on stderr, so that a pipe gets the answer alone."""
    typer.echo(harmless(f"guard: {text}"), err=True)


def fail(text: str, code: int) -> NoReturn:
    """Says what is wrong and ends the command."""
    note(text)
    raise typer.Exit(code)


def out_json(value: Any) -> None:
    """Valid JSON whatever a journal holds: non-finite numbers are strings, as there."""
    from guard.incidents.journal import encode

    out(json.dumps(json.loads(encode({"value": value}))["value"], indent=2, ensure_ascii=False))


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'a1'? there are: a1, a2`` for an error about an unknown name."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    more = f" and {len(names) - _KNOWN} earlier ones" if len(names) > _KNOWN else ""
    guess = f"; did you mean {close[0]!r}?" if close else ";"
    return f"{guess} there are: {', '.join(names[-_KNOWN:]) or 'none'}{more}"


def width() -> int:
    """Columns to write in."""
    return max(40, min(100, shutil.get_terminal_size().columns)) if sys.stdout.isatty() else 80


def wrapped(text: str, indent: str = "", hang: str | None = None) -> str:
    """One paragraph, broken between words."""
    return textwrap.fill(
        text,
        width(),
        initial_indent=indent,
        subsequent_indent=indent if hang is None else hang,
        break_long_words=False,
        break_on_hyphens=False,
    )


def out_fields(pairs: Iterable[tuple[str, str]]) -> None:
    """Labels and values, aligned; a value may have several lines, an empty one is left out."""
    for label, value in pairs:
        for number, line in enumerate(value.splitlines()):
            out(wrapped(line, f"  {label if not number else '':<15}", " " * 17))


def out_table(headers: Sequence[str], rows: Sequence[Sequence[str]], numbers: Iterable[str] = ()) -> None:
    """Columns; the first is never broken. In a pipe each row is one line, whatever its length."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for i, header in enumerate(headers):
        longest = max(len(row[i]) for row in rows) if rows else 0
        table.add_column(
            header,
            justify="right" if header in numbers else "left",
            overflow="fold",
            no_wrap=not terminal,
            min_width=longest if i == 0 else None,
        )
    for row in rows:
        table.add_row(*(Text(" ".join(harmless(cell).split("\n")), style=_STYLES.get(cell, "")) for cell in row))
    console = Console(width=None if terminal else 10_000, highlight=False)
    with console.capture() as capture:
        console.print(table)
    typer.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def ago(seconds: float) -> str:
    """``3 s``, ``12 min``, ``5 h 10 min``, ``2 days``."""
    s = max(0.0, seconds)
    if s < 90:
        return f"{s:.0f} s"
    if s < 3600:
        return f"{s / 60:.0f} min"
    if s < 2 * 86400:
        return f"{s // 3600:.0f} h {s % 3600 // 60:.0f} min"
    return f"{s / 86400:.0f} days"
