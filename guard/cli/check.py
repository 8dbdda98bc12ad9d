"""`guard check`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guard.cli._plugins import load_all
from guard.cli._say import PROBLEMS, note, out, wrapped

if TYPE_CHECKING:
    from guard.policy import PolicySet

EXAMPLES = ("guard check guard.yaml", "guard check default", "guard check guard.yaml --send-test")


def command(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", show_default=False, help="Policy files, or names of shipped policies."),
    ],
    send_test: Annotated[bool, typer.Option("--send-test", help="Send a test message to each receiver.")] = False,
) -> None:
    """Check policies, and say what they will do.

    All problems of a file are told at once, each with its line and column. A policy without problems is
    told in plain sentences, attempt by attempt.
    """
    broken = load_all()
    for number, file in enumerate(files):
        if number:
            out()
        policies = _load(file)
        if policies is None:
            broken = True
            continue
        _explain(file, policies)
        if send_test:
            broken |= not _test(policies)
    raise typer.Exit(PROBLEMS if broken else 0)


def _load(file: str) -> PolicySet | None:
    """The policy set; None after its problems have been said, one a line."""
    from guard.errors import PolicyError
    from guard.policy import load

    try:
        return load(Path(file) if os.path.lexists(file) else file)
    except PolicyError as error:
        for problem in error.problems:
            typer.echo(str(problem).replace("<policy>", file), err=True)
        note(f"{file}: {len(error.problems)} problem{'' if len(error.problems) == 1 else 's'}")
        return None


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
