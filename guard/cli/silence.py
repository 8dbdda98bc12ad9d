"""`guard silence`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from guard.cli import _runs
from guard.cli._asking import Policy, author
from guard.cli._courier import receivers
from guard.cli._runs import ActDir, RunStory, find_run, read_run
from guard.cli._say import USAGE, fail, nearest, out, wrapped

EXAMPLES = (
    "guard silence runs/exp1 --for 1h",
    'guard silence runs/exp1 --policy clip-on-explosion --for "30 min"',
    "guard silence runs/exp1 --lift",
)

_LONGEST = 30 * 86400.0  # [s]


def command(
    run_dir: ActDir,
    policy: Policy = None,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="TIME", show_default=False, help="How long: 30 min, 1h, 2 days.")
    ] = None,
    lift: Annotated[bool, typer.Option("--lift", help="End the silence.")] = False,
) -> None:
    """Keep a run's messages back for a time.

    No new messages and no reminders until then; messages that are there are still brought up to date. The journal is
    written and the guard repairs all the same. What is not resolved at the end is told then.
    """
    from guard.incidents import acts
    from guard.notify.words import sentence, utc

    if lift == (for_ is not None):
        fail("say how long (--for 1h), or --lift to end a silence", USAGE)
    path = find_run(run_dir)
    _check_policy(read_run(path), policy)
    if lift:
        out(wrapped(sentence(acts.lift(path, author(), _runs.CLOCK, policy))))
        return
    until = _runs.CLOCK.time() + _seconds(str(for_))
    out(wrapped(sentence(acts.silence(path, until, author(), _runs.CLOCK, policy))))
    out(wrapped(f"Until {utc(until)} nothing new is told to {_who(path)}."))


def _seconds(text: str) -> float:
    from guard.units import parse_seconds

    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        fail(f"--for: {error}", USAGE)
    if not 0 < seconds <= _LONGEST:
        fail(f"--for: found {text!r}; allowed: more than 0 and at most 30 days", USAGE)
    return seconds


def _check_policy(run: RunStory, policy: str | None) -> None:
    """Known are those of the run's policy file and those that have had incidents."""
    from guard.errors import PolicyError
    from guard.policy import load

    known = {i.policy for i in run.log.incidents.values()}
    try:
        known |= {p.name for p in load(run.path / "policy.yaml").policies}
    except PolicyError:
        return
    if policy is not None and policy not in known:
        fail(f"there is no policy {policy!r} in {run.path}{nearest(policy, sorted(known))}", USAGE)


def _who(path: Path) -> str:
    """The receivers, by name and channel."""
    found = receivers(path)
    names = [] if isinstance(found, str) else [r.name + (f" ({r.channel})" if r.channel else "") for r in found]
    return ", ".join(names) or "everybody who is told of it"
