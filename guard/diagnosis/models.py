"""A model as it was written, and what of it is not finite."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from guard.diagnosis.looks import look, sound
from guard.incidents.diagnose import Origin, Role
from guard.run.precision import DTYPES, Precision


def without_a_step(model: nn.Module) -> Origin | None:
    """What is not finite without any step being tried: a weight, else a buffer, else a gradient."""
    model = bare(model)
    named = [(n, p) for n, p in model.named_parameters() if not nn.parameter.is_lazy(p)]
    standing: list[tuple[Role, str, Tensor]] = [("weight", n, p) for n, p in named]
    standing += [("buffer", n, b) for n, b in model.named_buffers() if math.isnan(float(b.sum())) or not is_mask(b)]
    standing += [("gradient", n, p.grad) for n, p in named if p.grad is not None]
    bad = next(((role, n, t) for role, n, t in standing if not sound(t)), None)
    return None if bad is None else Origin(look(*bad), backward=bad[0] == "gradient")


def is_mask(t: Tensor) -> bool:
    """Most of it is -inf or 0, as of an attention mask."""
    return t.dim() > 1 and bool(((t == 0) | (t == -math.inf)).all())


def bare(model: nn.Module) -> nn.Module:
    """The model without what DDP and torch.compile wrap around it."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


@contextlib.contextmanager
def as_the_loop_does(seen: Precision, precision: str | None) -> Iterator[None]:
    """Autocast as the loop's was, or in another precision, for a model that is called without the loop."""
    override = precision or seen.override
    dtype = DTYPES[override] if override else seen.autocast
    on = seen.autocast is not None and dtype is not torch.float32
    with torch.autocast(seen.device, dtype=dtype if on else None, enabled=on, cache_enabled=False):
        yield


def eager() -> Callable[[], None]:
    """Compiled functions run as they are written, so that what they do is seen. Nothing where nothing was compiled."""
    if "torch._dynamo" not in sys.modules or not hasattr(torch.compiler, "set_stance"):
        return lambda: None
    stance = torch.compiler.set_stance("force_eager")
    return lambda: stance.__exit__(None, None, None)
