"""What an action is, and what it may ask of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Protocol

from guard import registry
from guard.registry import Registry
from guard.types import Detection, Result

# Strongest first (DESIGN §5): when several policies fire in one tick, the strongest action's policy owns it.
STRENGTH = {"stop": 0, "rollback": 1, "skip_step": 2, "clip": 3, "scale_lr": 4}
OTHER = 5

SnapshotName = Literal["last_good", "previous", "start", "best"]
DataMode = Literal["replay", "skip_offending", "skip_window", "advance"]


class Run(Protocol):
    """The run as an action sees it. The guard implements it; tests may too."""

    @property
    def lr_multiplier(self) -> float: ...

    @property
    def tick(self) -> int: ...

    def typical_grad_norm(self, before: int) -> float:
        """Typical global gradient norm of the healthy ticks before tick `before`; NaN while nothing is known."""

    def clip(self, max_norm: float, pattern: str | None, lasts: int | None) -> float:
        """Scales the gradients of parameters whose name matches `pattern` (all if None) down to `max_norm`,
        in place; with `lasts` those of the following ticks too. Returns the factor (1.0: nothing to do)."""

    def skip_step(self) -> None:
        """Leaves this step out: no update, buffers changed by the forward pass put back."""

    def can_scale_lr(self) -> str | None:
        """None, or why there is no rate to scale."""

    def scale_lr(self, multiplier: float, min_lr: float, recover: int | None, since: int | None = None) -> None:
        """Sets the standing multiplier of all learning rates; with `recover` it returns to 1 over that many steps, with
        `since` it holds only from the step of that tick on."""

    def rollback(self, to: SnapshotName, data: DataMode, since: int) -> dict[str, Any]:
        """Restores a snapshot in place. Returns `from_step`, `to_step`, `skipped_windows`.

        Raises:
            UnavailableError: there is no such snapshot.
        """

    def can_rollback(self, to: SnapshotName, since: int) -> str | None:
        """None, or why such a rollback is impossible."""

    def can_replay(self) -> bool:
        """The data source can go back."""

    def set_precision(self, dtype: str, lasts: int | None) -> None:
        """Overrides the autocast dtype (``bf16``, ``fp32``) from the next forward pass on, for `lasts` ticks."""

    def can_set_precision(self, dtype: str) -> str | None:
        """None, or why that precision is impossible or already in force."""

    def stop(self, restore: Literal["best", "last_good", "none"], since: int) -> dict[str, Any]:
        """Restores what is asked and ends the run: `TrainingStopped` is raised once journal and state are safe."""

    def can_reset_optimizer(self) -> str | None:
        """None, or why emptying its state would not make the optimizer a fresh one."""

    def reset_optimizer(self, *, everything: bool) -> int:
        """Empties the optimizer state of every parameter (`everything`: also what belongs to none). Returns how many
        parameters had some."""

    def can_rebroadcast(self) -> str | None:
        """None, or why there are no other ranks that hold the same parameters."""

    def rebroadcast(self, source: Literal["majority", "first"], since: int) -> dict[str, Any]:
        """Overwrites parameters, buffers and optimizer state of all ranks with those of one; checkpoints in memory that
        were taken after tick `since` are dropped. Returns `from_rank`, `tensors`, `ranks_that_differed`.

        Raises:
            UnavailableError: the ranks do not hold the same tensors.
        """

    def warmup_lr(self, steps: int, start: float) -> int:
        """A further factor on all learning rates rises from `start` to 1 over `steps` ticks. Returns its last tick."""

    def can_accumulate(self, factor: int, most: int) -> str | None:
        """None, or why there cannot be `factor` times as many windows per update, or would be more than `most`."""

    def accumulate(self, factor: int) -> tuple[int, int]:
        """From the next tick on, `factor` times as many windows per update. Returns how many before and after."""

    def can_change_loss_scale(self) -> str | None:
        """None, or why there is no loss scaler at work."""

    def change_loss_scale(
        self, value: float | None, growth_interval: int | None, floor: float | None
    ) -> dict[str, Any]:
        """From the next iteration on; None: as it is. Returns ``name: [before, after]`` of what changed."""

    def checkpoint(self) -> None:
        """A snapshot is taken at the next iteration boundary."""

    def pause(self, timeout: float) -> None:
        """Once this tick's actions are journaled the run waits for a person, for `timeout` [s] at most."""

    def once(self, what: str) -> bool:
        """True the first time that this incident asks for `what`."""

    def capture_evidence(self, max_bytes: int) -> dict[str, Any]:
        """Copies batch (if it takes no more than `max_bytes`), random states and layer statistics; they are written in
        the background. Returns `folder`, and `no_batch`: why there is none."""

    def run_command(self, name: str, command: Sequence[str], timeout: float, *, wait: bool) -> dict[str, Any]:
        """Runs a program with the incident on its stdin; never raises. Returns `exit` or `failed`, `output`, `seconds`;
        without `wait` it goes on in the background, and these are journaled under `name` when it has ended."""


class Action(ABC):
    """One change to a run. Loads no torch: tensors are the `Run`'s business.

    Args:
        params: validated parameters, an instance of the class's own `Params`.
    """

    name: ClassVar[str]
    leaves_data_out: ClassVar[bool] = False  # a fault on *other* data afterwards is no failure of this remedy
    repeatable: ClassVar[bool] = False  # may be taken at every firing without climbing the ladder
    remedy: ClassVar[bool] = True  # False: it only looks or tells, before the others change anything

    class Params(registry.Params):
        """What YAML may set."""

    def __init__(self, params: Any) -> None:
        self.params = params

    def unavailable(self, run: Run, detection: Detection) -> str | None:  # noqa: ARG002 - for those that can be
        """Why this action is impossible now, or None. Asked before anything runs."""
        return None

    @abstractmethod
    def apply(self, run: Run, detection: Detection) -> Result:
        """Does it."""

    @abstractmethod
    def describe(self) -> str:
        """What it will do, as one clause in plain words: ``roll back to the last good checkpoint and replay``."""


ACTIONS: Registry[Action] = Registry("action", "guard.actions", "guard.actions")
action = ACTIONS.register
