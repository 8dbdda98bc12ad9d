"""The console entry: puts the commands together, and keeps tracebacks from people who only mistyped something."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn, TextIO

import typer

from guard.cli import (
    ack,
    check,
    checkpoint,
    checkpoints,
    daemon,
    demo,
    doctor,
    enforce,
    incidents,
    init,
    notify,
    observe,
    plugins,
    resume,
    rollback,
    run,
    runs,
    schema,
    show,
    silence,
    status,
    stop,
    undo,
)
from guard.cli._say import PROBLEMS, note
from guard.errors import GuardError

_EPILOG = """\b
Example:
  guard init && guard check guard.yaml

\b
Exit codes:
  0    all is well
  1    problems were found, or a request was refused or not answered in time
  2    the command was not used as it is meant
  3    there is no such run, or it is not running
  76   `guard run`: the run was stopped, by its policy or by a person
  130  interrupted with Ctrl-C
  else `guard run`: the code of its command, 128 + n for signal n
"""
_COMMANDS = (
    init,
    check,
    schema,
    doctor,
    demo,
    run,
    daemon,
    runs,
    incidents,
    show,
    status,
    ack,
    silence,
    observe,
    enforce,
    undo,
    rollback,
    checkpoint,
    checkpoints,
    resume,
    stop,
    notify,
    plugins,
)


def _version(wanted: bool) -> None:
    if wanted:
        from guard import __version__

        typer.echo(f"training guard {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Protects unattended PyTorch runs: policies, incidents, and a hand on the wheel."""


def _app() -> typer.Typer:
    app = typer.Typer(
        name="guard",
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode=None,
        epilog=_EPILOG,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for module in _COMMANDS:
        title = "Example:" if len(module.EXAMPLES) == 1 else "Examples:"
        lines = "\n".join(f"  {example}" for example in module.EXAMPLES)
        app.command(module.__name__.rpartition(".")[2], epilog=f"\b\n{title}\n{lines}")(module.command)
    return app


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs one command and exits.

    Args:
        arguments: in place of ``sys.argv[1:]``.
    """
    sys.stdout, sys.stderr = sys.stdout or _nowhere(), sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that cannot show a character must not end the command
            stream.reconfigure(errors="replace")
    sys.exit(_run(sys.argv[1:] if arguments is None else list(arguments)))


def _nowhere() -> TextIO:
    """In place of a stream that was closed before the command began."""
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - open as long as the process


def _run(arguments: list[str]) -> int:
    code = PROBLEMS
    try:
        _app()(arguments, prog_name="guard")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except (GuardError, OSError) as error:
        note(str(error))
    except KeyboardInterrupt:
        code = 130
    try:
        sys.stdout.flush()
    except OSError:  # whoever read it (`| head`) has gone: nothing more can be said, at exit neither
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return PROBLEMS
    return code
