"""Run command: start a program of your own.

Why: the guard cannot know your site: a ticket, a copy of the logs, a check of the node.
Does: starts the program without a shell, with the incident as JSON on stdin and only PATH, HOME, LANG and
    GUARD_RUN_DIR in its environment. The step does not wait; exit code and the last 4 kB of output are journaled when
    it ends. A program that fails is journaled and changes nothing; after `timeout`, and when the run ends, it is killed
    with all it started. Once per incident. Arguments are not journaled; what it prints is.

Args:
    command: the program and its arguments, a list; no shell reads it.
    timeout: how long it may take [s], > 0.
    wait: let the step wait for it.
Example:
    {type: run_command, command: [/opt/site/open-ticket, --queue, training], timeout: 30 s}
Source: alertmanager's webhook and systemd's OnFailure, as a local program.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from guard.actions._base import Action, Run, action
from guard.registry import Params as BaseParams
from guard.types import Detection, Result
from guard.units import Seconds


def _no_shell(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(value)
    raise ValueError(f"expected a list of arguments, no shell, got {value!r}")


@action("run_command")
class RunCommand(Action):
    remedy = False

    class Params(BaseParams):
        command: Annotated[tuple[str, ...], BeforeValidator(_no_shell), Field(min_length=1)]
        timeout: Annotated[Seconds, Field(gt=0)] = 60.0
        wait: bool = False

    @property
    def _program(self) -> str:
        return PurePath(self.params.command[0]).name

    def apply(self, run: Run, detection: Detection) -> Result:  # noqa: ARG002
        if not run.once(f"run_command {self.params.command}"):
            return Result("run_command", f"had run {self._program} before")
        outcome = run.run_command(self._program, self.params.command, self.params.timeout, wait=self.params.wait)
        changes = {"program": self._program, **outcome}
        if "failed" in outcome:
            return Result("run_command", f"ran {self._program}, which failed: {outcome['failed']}", changes)
        if "exit" in outcome:
            return Result("run_command", f"ran {self._program}, which ended with exit code {outcome['exit']}", changes)
        return Result("run_command", f"started {self._program}", changes)

    def describe(self) -> str:
        return f"run {self._program}" + (" and wait for it" if self.params.wait else "")
