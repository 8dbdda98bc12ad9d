"""`guard check`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from guard.cli._plugins import load_all
from guard.cli._say import PROBLEMS, note, out, wrapped

if TYPE_CHECKING:
    from guard.policy import PolicySet

T = TypeVar("T")

EXAMPLES = ("guard check guard.yaml", "guard check default", "guard check guard.yaml --send-test")


def command(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", show_default=False, help="Policy files, the daemon's file, or names of shipped policies."
        ),
    ],
    send_test: Annotated[bool, typer.Option("--send-test", help="Send a test message to each receiver.")] = False,
) -> None:
    """Check files, and say what they will do.

    Files are policies, or the daemon's settings.

    All problems of a file are told at once, each with its line and column. A policy without problems is
    told in plain sentences, attempt by attempt.
    """
    from guard.policy import load

    broken = load_all()
    for number, file in enumerate(files):
        if number:
            out()
        if _is_settings(file):
            broken |= not _check_settings(file, send_test=send_test)
            continue
        policies = _said(file, load)
        if policies is None:
            broken = True
            continue
        _explain(file, policies)
        if send_test:
            broken |= not _test(policies)
    raise typer.Exit(PROBLEMS if broken else 0)


def _said(file: str, load: Callable[[Path | str], T]) -> T | None:
    """What `load` makes of the file; None after its problems have been said, one a line."""
    from guard.errors import PolicyError

    try:
        return load(Path(file) if os.path.lexists(file) else file)
    except PolicyError as error:
        for problem in error.problems:
            typer.echo(str(problem).replace("<policy>", file), err=True)
        note(f"{file}: {len(error.problems)} problem{'' if len(error.problems) == 1 else 's'}")
        return None


def _is_settings(file: str) -> bool:
    if not os.path.lexists(file):
        return False
    from guard.daemon.settings import is_settings

    return is_settings(Path(file))


def _check_settings(file: str, *, send_test: bool) -> bool:
    """Says what the daemon would do; True if that can be."""
    from guard.daemon import settings
    from guard.policy import PolicySet

    found = _said(file, lambda path: settings.load(Path(path)))
    if found is None:
        return False
    out(f"{file}: no problems. It is the daemon's: guard daemon {file}")
    out()
    for sentence in settings.explain(found):
        out(wrapped(sentence, "  - ", "    "))
    return not send_test or _test(PolicySet(receivers=found.receivers))


def _explain(file: str, policies: PolicySet) -> None:
    from guard.policy import explain

    count = len(policies.policies)
    mode = f", mode {policies.mode}" if policies.mode else ""
    out(f"{file}: no problems. {count} {'policy' if count == 1 else 'policies'}{mode}.")
    for sentence in explain(policies):
        first, *others = _clauses(sentence)
        head, colon, remedy = _last_colon(first)
        out()
        out(wrapped(head + colon, "", "  "))
        for clause in ([remedy] if remedy else []) + others:
            out(wrapped(clause, "  - ", "    "))


def _clauses(sentence: str) -> Iterator[str]:
    """Split at semicolons that are not inside brackets."""
    start = depth = 0
    for i, character in enumerate(sentence):
        depth += (character in "([") - (character in ")]")
        if sentence.startswith("; ", i) and depth <= 0:
            yield sentence[start:i]
            start = i + 2
    yield sentence[start:]


def _last_colon(clause: str) -> tuple[str, str, str]:
    """What fires, and what is done about it; the latter is empty if there is no colon outside brackets."""
    at = clause.rfind(": ", clause.rfind(")") + 1)
    return (clause, "", "") if at < 0 else (clause[:at], ":", clause[at + 2 :])


def _test(policies: PolicySet) -> bool:
    """Sends the test messages; True if all arrived."""
    from guard.notify import send_test
    from guard.receivers import receiver_specs

    findings = [send_test(spec) for spec in receiver_specs(policies)]
    out("\nTest messages" if findings else "\nTest messages: there are no receivers.")
    for finding in findings:
        out(wrapped(f"{finding.receiver}: {'' if finding.ok else 'FAILED: '}{finding.message}", "  - ", "    "))
    return all(finding.ok for finding in findings)
