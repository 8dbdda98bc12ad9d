"""Reset optimizer: forget the moments of past gradients, so that the next step is like a fresh optimizer's first.

Why: after a spike, moments point where no good step lies, and go on doing so for a thousand steps.
Does: empties `optimizer.state` in place; learning rate, weight decay and other settings stay. Adam's first steps after
    it are of full length: `warmup_lr` beside it eases them. After a rollback in the same attempt it holds for what was
    restored.

Args:
    what: ``moments``, the state of every parameter, or ``all``, also what belongs to no parameter.
Example:
    {type: reset_optimizer, what: moments}
Source: resetting Adam's state at a change of regime, as in RL practice (Asadi et al. 2023).
"""

from __future__ import annotations

from typing import Literal

from guard.actions._base import Action, Run, action
from guard.registry import Params as BaseParams
from guard.types import Detection, Result


@action("reset_optimizer")
class ResetOptimizer(Action):
    class Params(BaseParams):
        what: Literal["moments", "all"] = "moments"

    def unavailable(self, run: Run, detection: Detection) -> str | None:  # noqa: ARG002
        return run.can_reset_optimizer()

    def apply(self, run: Run, detection: Detection) -> Result:  # noqa: ARG002
        count = run.reset_optimizer(everything=self.params.what == "all")
        return Result(
            "reset_optimizer",
            f"cleared the optimizer's state of {count} parameters",
            {"reset": self.params.what, "parameters": count},
        )

    def describe(self) -> str:
        return f"clear {'the moments' if self.params.what == 'moments' else 'all'} of the optimizer's state"
