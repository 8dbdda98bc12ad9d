"""Errors a user can meet, and the two that end a run on purpose."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from guard.types import Incident


class GuardError(Exception):
    """Base of every error the guard raises on purpose."""


class UsageError(GuardError, ValueError):
    """The guard was called in a way that cannot work. Says what is allowed."""


class UnavailableError(GuardError):
    """An action turned out to be impossible in this run, e.g. a rollback before any good checkpoint."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a policy file.

    Args:
        message: what was found and what is allowed, one sentence.
        file: where it was read from; None for a dict given in code.
        line, column: 1-based; 0 where the policy did not come from a file.
        path: where in the document, e.g. ``policies[1].trigger.window``.
    """

    message: str
    file: Path | None = None
    line: int = 0
    column: int = 0
    path: str = ""

    def __str__(self) -> str:
        where = f"{self.file or '<policy>'}" + (f":{self.line}:{self.column}" if self.line else "")
        return f"{where}: {self.path + ': ' if self.path else ''}{self.message}"


class PolicyError(GuardError, ValueError):
    """A policy that cannot be loaded. Carries *all* problems found, not only the first."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(p) for p in problems))


class RunDirError(GuardError):
    """The run directory cannot be used: another live guard owns it, or its run has ended."""


class CheckpointError(GuardError):
    """A checkpoint on disk cannot be written, found, read or used. Says which one and why."""


class ChangedModelError(CheckpointError):
    """A checkpoint is sound, but was taken of another model or optimizer. Carries *all* differences.

    Args:
        checkpoint: its name.
        differences: one sentence per kind of difference, bounded.
    """

    def __init__(self, checkpoint: str, differences: list[str]) -> None:
        self.differences = differences
        super().__init__(
            f"{checkpoint} was taken of another model or optimizer than this process has:\n  "
            + "\n  ".join(differences)
        )


class RankLostError(GuardError):
    """Another rank of a run on several processes does not answer any more; what it was asked cannot be agreed on."""


class TrainingStopped(GuardError):  # noqa: N818 - it is an outcome, not an error
    """Raised inside ``optimizer.step`` by the `stop` action, after checkpoint and journal are safe."""

    def __init__(self, incident: Incident) -> None:
        self.incident = incident
        what = incident.cause or incident.evidence.get("detection", {}).get("message") or incident.detector
        by = "a person" if incident.policy == "person" else f"policy {incident.policy!r}"
        super().__init__(f"training stopped by {by}: {what} (incident {incident.id})")
