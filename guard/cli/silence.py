"""`guard silence`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from guard.cli import _runs
from guard.cli._asking import Policy, author
from guard.cli._courier import receivers
from guard.cli._runs import ActDir, RunStory, find_run, moment, read_run
from guard.cli._say import PROBLEMS, USAGE, fail, nearest, out, wrapped

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
    from guard.incidents.outside import append
    from guard.notify.words import span, utc

    if lift == (for_ is not None):
        fail("say how long (--for 1h), or --lift to end a silence", USAGE)
    path = find_run(run_dir)
    run = read_run(path)
    _check_policy(run, policy)
    now, what = _runs.CLOCK.time(), f"policy {policy}" if policy else "the whole run"
    held = any(e["policy"] == policy for e in run.log.silences(now))
    if lift and not held:
        fail(f"nothing is silenced for {what}", PROBLEMS)
    until = 0.0 if lift else now + _seconds(str(for_))
    append(path, _runs.CLOCK, "silence", moment=moment(run), until=until, author=author(), policy=policy)
    if lift:
        out(f"The silence of {what} is over; what is not resolved is told now.")
    else:
        out(wrapped(f"Quiet for {span(until - now)}, until {utc(until)}: {_who(path)}, about {what}."))
        out(wrapped("The journal is written and the guard repairs all the same."))


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
