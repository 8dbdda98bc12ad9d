"""An optimizer as if it had just been made: its memory of past gradients is gone, its settings stay."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def why_not(optimizers: Sequence[torch.optim.Optimizer], made_early: Sequence[bool]) -> str | None:
    """Why emptying the state would not give fresh optimizers, or None.

    Args:
        made_early: which of them had state when the guard was attached: perhaps they make it only once.
    """
    if not any(o.state for o in optimizers):
        return "the optimizer has no state yet"
    for optimizer, early in zip(optimizers, made_early, strict=True):
        if early and not type(optimizer).__module__.startswith("torch.optim"):
            return f"{type(optimizer).__name__} may make its state only when it is made, so it cannot be emptied"
    return None


@torch.no_grad()
def reset(optimizers: Sequence[torch.optim.Optimizer], *, everything: bool) -> int:
    """Empties the state in place; the next step makes it anew. Returns how many parameters had some.

    Args:
        everything: also what belongs to no parameter.
    """
    count = 0
    for optimizer in optimizers:
        parameters = [p for g in optimizer.param_groups for p in g["params"]]
        for group in optimizer.param_groups:
            count += sum(p in optimizer.state for p in group["params"])
        if isinstance(optimizer, torch.optim.Adagrad):  # makes its state in its constructor, and only there
            for group in optimizer.param_groups:
                start = group.get("initial_accumulator_value", optimizer.defaults["initial_accumulator_value"])
                for p in group["params"]:
                    state = optimizer.state[p]
                    state["step"].zero_()
                    state["sum"].fill_(complex(start, start) if torch.is_complex(p) else start)
        elif everything:
            optimizer.state.clear()
        else:
            for p in parameters:
                optimizer.state.pop(p, None)
    return count
