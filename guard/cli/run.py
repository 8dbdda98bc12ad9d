"""`guard run`."""

from __future__ import annotations

import math
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guard.cli import _runs
from guard.cli._say import USAGE, fail, note
from guard.errors import UsageError

if TYPE_CHECKING:
    from guard.daemon.supervise import Plan, Supervisor

EXAMPLES = (
    "guard run -- python train.py --lr 3e-4",
    "guard run --restarts 5 -- torchrun --nproc-per-node 4 train.py",
)

_CANNOT_RUN, _NOT_FOUND = 126, 127  # as a shell has it
_TELL = 15.0  # [s] for what nobody else will tell


def command(
    cmd: Annotated[list[str], typer.Argument(show_default=False, help="What to run; put -- before it.")],
    restarts: Annotated[
        int | None,
        typer.Option(
            min=0,
            show_default=False,
            help="Restarts in a row without a new step. Default: 3; 0 under torchrun, Slurm or Kubernetes.",
        ),
    ] = None,
    hang_timeout: Annotated[
        str, typer.Option(metavar="auto|off|SECONDS", help="Silence that is a hang; auto: learned, per phase.")
    ] = "auto",
    run_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="GUARD_RUN_DIR",
            show_envvar=False,
            show_default=False,
            help="Where the guard inside writes. Default: GUARD_RUN_DIR, else a new one in ./runs.",
        ),
    ] = None,
) -> None:
    """Run a command; start it again after a crash or hang.

    The guard inside (`guard.attach`) goes on from its last checkpoint on disk. A run that was stopped is not started
    again, nor one whose machine was taken away. If guard run itself is killed, the command goes on; the same guard run
    in the same directory takes it over.
    """
    from guard.daemon import budget
    from guard.daemon.supervise import Plan
    from guard.supervised import other_restarter

    other = other_restarter(os.environ)
    if restarts is None:
        restarts = budget.DEFAULT if other is None else 0
        if other is not None:
            note(f"{other} is what starts this again, so guard run does not (--restarts changes that)")
    path = (run_dir or new_run_dir(cmd)).absolute()
    raise typer.Exit(_supervise(cmd, Plan(path, restarts, _timeout(hang_timeout), restarter=other)))


def new_run_dir(program: Sequence[str]) -> Path:
    """``runs/<script>-<job | date-pid>``, as `attach` would name it."""
    script = next((word for word in program if word.endswith(".py")), program[0])
    job = os.environ.get("SLURM_JOB_ID") or f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    return Path("runs") / f"{Path(script).stem or 'run'}-{job}"


def _timeout(text: str) -> float | None:
    if text in ("auto", "off"):
        return None if text == "auto" else math.inf
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        fail(f"--hang-timeout must be auto, off, or seconds above 0, not {text!r}", USAGE)
    return seconds


def _supervise(program: Sequence[str], plan: Plan) -> int:
    from guard.daemon.child import AdoptedProcess, ChildProcess
    from guard.daemon.custody import Custody
    from guard.daemon.supervise import Supervisor, listening
    from guard.home import local_state

    environment = {**os.environ, "GUARD_RUN_DIR": str(plan.run_dir)}
    custody = Custody(local_state(), plan.run_dir, program, note, environment)
    try:
        ward = custody.claim()
    except UsageError as error:
        fail(str(error), USAGE)
    child = AdoptedProcess(ward.child, ward.token, ward.relay) if ward is not None and ward.child is not None else None
    supervisor = Supervisor(
        plan,
        lambda token: ChildProcess(program, environment, token=token),
        clock=_runs.CLOCK,
        say=note,
        random=random.random,
        note=custody.note,
        left=(ward, child) if ward is not None else None,
    )
    sys.stdout.flush()
    try:
        with listening(supervisor):
            code = supervisor.run()
    except OSError as error:
        found = isinstance(error, PermissionError)
        custody.release()
        fail(f"{program[0]} cannot be run: {error.strerror}", _CANNOT_RUN if found else _NOT_FOUND)
    custody.release()
    _tell(supervisor, plan)
    return code


def _tell(supervisor: Supervisor, plan: Plan) -> None:
    """What the process inside would have told, had it lived. Of a restart, the next one tells."""
    from guard.incidents.journal import NAME

    if not supervisor.gave_up or not (plan.run_dir / NAME).exists():
        return
    from guard.cli._courier import DAMAGED, courier, deliver, receivers, untold

    specs = receivers(plan.run_dir)
    if isinstance(specs, str) or not specs:
        return
    try:
        deliver(courier(plan.run_dir, specs, note), _TELL)
        left = untold(plan.run_dir)
    except (*DAMAGED, OSError) as error:
        left = f"{type(error).__name__}: {error}"
    if left:
        note(f"not everybody could be told; to try again: guard notify {plan.run_dir}")
