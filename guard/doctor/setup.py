"""What is examined: a model, its data, its loss function, and what else the user's function returned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from guard.errors import UsageError

_RETURNS = (
    "it must return (model, train loader, loss function), and may add an optimizer, a validation loader and a dtype; "
    "or a dict with the keys {keys}. A model that returns its own loss has None for the loss function"
)


@dataclass(frozen=True, slots=True)
class Setup:
    """A training set-up, not yet looked at.

    Args:
        model: a module; weights as they are before the run.
        train: a DataLoader or any other iterable of batches.
        loss: ``loss(output, target)`` -> scalar; ``loss(model, batch)`` if its first parameter is called ``model``;
            None: the model returns its loss.
        optimizer: over the model's parameters.
        validation: like `train`, never trained on.
        dtype: precision of the planned run; None: that of the parameters.
        scheduler: over the optimizer.
        steps: planned length of the run.
        decode: turns one input, e.g. [time] int64 tokens, into text for the report.
    """

    model: nn.Module
    train: Any
    loss: Callable[..., Any] | None = None
    optimizer: torch.optim.Optimizer | None = None
    validation: Any = None
    dtype: torch.dtype | None = None
    scheduler: Any = None
    steps: int | None = None
    decode: Callable[[Any], str] | None = None

    def __post_init__(self) -> None:
        """Raises `UsageError` for what cannot be examined, with what is allowed."""
        if not isinstance(self.model, nn.Module):
            raise UsageError(f"the model must be a torch.nn.Module, not {_what(self.model)}")
        if self.train is None or not (hasattr(self.train, "__iter__") or hasattr(self.train, "__getitem__")):
            raise UsageError(f"the train loader must be an iterable of batches, not {_what(self.train)}")
        if self.loss is not None and not callable(self.loss):
            raise UsageError(f"the loss function must be callable as loss(output, target), not {_what(self.loss)}")
        if self.optimizer is not None and not isinstance(self.optimizer, torch.optim.Optimizer):
            raise UsageError(f"the optimizer must be a torch.optim.Optimizer, not {_what(self.optimizer)}")
        if self.validation is not None and not hasattr(self.validation, "__iter__"):
            raise UsageError(f"the validation loader must be an iterable of batches, not {_what(self.validation)}")
        if self.dtype is not None and not isinstance(self.dtype, torch.dtype):
            raise UsageError(f"the dtype must be a torch.dtype such as torch.bfloat16, not {_what(self.dtype)}")
        if self.steps is not None and (not isinstance(self.steps, int) or self.steps < 1):
            raise UsageError(f"the planned steps must be a whole number above 0, not {self.steps!r}")

    @classmethod
    def of(cls, value: Any, origin: str = "the function") -> Setup:
        """From what a user's function returned.

        Args:
            value: a `Setup`, a tuple or a dict.
            origin: how messages name the function.

        Raises:
            UsageError: something is missing or of the wrong kind; says what is allowed.
        """
        keys = [f.name for f in fields(cls)]
        rule = _RETURNS.format(keys=", ".join(keys))
        if isinstance(value, Setup):
            return value
        if isinstance(value, Mapping):
            unknown = [repr(k) for k in value if k not in keys]
            missing = [repr(k) for k in ("model", "train") if k not in value]
            if unknown or missing:
                what = f"lacks {', '.join(missing)}" if missing else f"holds {', '.join(unknown)}"
                raise UsageError(f"the dict that {origin} returned {what}; {rule}")
            return cls(**value)
        if not isinstance(value, (tuple, list)):
            raise UsageError(f"{origin} returned {_what(value)}; {rule}")
        if len(value) < 3:
            raise UsageError(f"{origin} returned {len(value)} value{'s' * (len(value) != 1)}; {rule}")
        return cls(*value[:3], **_extras(value[3:], origin, rule))


def _extras(values: Any, origin: str, rule: str) -> dict[str, Any]:
    """The optional values by what they are, so that one can be left out without a None in its place."""
    found: dict[str, Any] = {}
    for value in values:
        if value is None:
            continue
        if isinstance(value, torch.optim.Optimizer):
            name = "optimizer"
        elif isinstance(value, torch.dtype):
            name = "dtype"
        elif isinstance(value, torch.optim.lr_scheduler.LRScheduler):
            name = "scheduler"
        elif hasattr(value, "__iter__") and not isinstance(value, (str, bytes, Mapping)):
            name = "validation"
        else:
            raise UsageError(f"{origin} returned {_what(value)} after the loss function; {rule}")
        if name in found:
            raise UsageError(f"{origin} returned two values that could be the {name}; {rule}")
        found[name] = value
    return found


def _what(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
