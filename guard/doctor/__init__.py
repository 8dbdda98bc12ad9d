"""Checks before a run: is there anything in data, loss, model or optimizer that would waste it?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from guard.doctor.finding import ORDER, Finding, Report, Verdict

if TYPE_CHECKING:
    from guard.doctor.setup import Setup

__all__ = ["CHECKS", "ORDER", "Finding", "Report", "Setup", "Verdict", "examine"]


def examine(
    model: Any,
    train: Any = None,
    loss: Callable[..., Any] | None = None,
    *,
    optimizer: Any = None,
    validation: Any = None,
    dtype: Any = None,
    scheduler: Any = None,
    steps: int | None = None,
    decode: Callable[[Any], str] | None = None,
    quick: bool = False,
    only: Sequence[str] | None = None,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
    effort: Any = None,
) -> Report:
    """Examines a training set-up, and leaves it as it was, bit for bit.

    Args:
        model: a torch.nn.Module; or a `Setup`, and nothing else of it.
        train: a DataLoader or any other iterable of batches: tuples, dicts, tensors, objects with tensors.
        loss: ``loss(output, target)`` -> scalar tensor; ``loss(model, batch)`` if its first parameter is called
            ``model``; None: the model returns its loss.
        optimizer: as it will be used; None: AdamW, and no judgement of its learning rate.
        validation: a loader that is not trained on.
        dtype: precision of the planned run, e.g. ``torch.bfloat16``.
        scheduler, steps: of the planned run; with both, they are compared.
        decode: one input -> text, for the report.
        quick: under 20 s for a model of a million parameters on two cores.
        only: names of checks, of `ORDER`; None: all.
        seed: of everything random the checks do.
        progress: told the title of each check, its number, and how many there are.
        effort: a `guard.doctor.effort.Effort` in place of what `quick` says.

    Raises:
        UsageError: an argument is of the wrong kind, or a check has no such name.

    Example:
        >>> report = guard.doctor.examine(model, loader, loss_fn, optimizer=optimizer, quick=True)
        >>> report.verdict, report.verdict_of("rate")
    """
    from guard.doctor.effort import Effort
    from guard.doctor.runner import run
    from guard.doctor.setup import Setup

    setup = (
        model
        if isinstance(model, Setup)
        else Setup(model, train, loss, optimizer, validation, dtype, scheduler, steps, decode)
    )
    return run(setup, effort or (Effort.quick() if quick else Effort()), only, seed, progress)


def __getattr__(name: str) -> Any:
    """`Setup` and `CHECKS` load torch."""
    if name == "Setup":
        from guard.doctor.setup import Setup

        return Setup
    if name == "CHECKS":
        from guard.doctor.runner import CHECKS

        return CHECKS
    raise AttributeError(f"module 'guard.doctor' has no attribute {name!r}")
