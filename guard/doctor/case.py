"""Everything the checks work with: the set-up, what was read from it, and how to run it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from guard.doctor import tree
from guard.doctor.effort import Effort
from guard.doctor.finding import Finding
from guard.doctor.form import Form, FormError, Outcome, find, natural, samples, to
from guard.doctor.losses import LossFacts, look
from guard.doctor.reading import Supply, read
from guard.doctor.sandbox import Sandbox
from guard.doctor.setup import Setup


@dataclass(slots=True)
class Case:
    """One examination.

    Args:
        setup: as the user gave it.
        box: where models are run.
        supply, validation: what was read from the loaders.
        form: how batches are run; None if no way was found.
        problem: why not.
        facts: of the loss function; all unknown without a form.
        batches: those of `supply`, on the model's device.
        held_out: batches that are not trained on, on the model's device.
        notes: what checks leave for later ones, e.g. the rate suggested.
    """

    setup: Setup
    effort: Effort
    box: Sandbox
    supply: Supply
    validation: Supply | None
    form: Form | None
    problem: FormError | None
    facts: LossFacts
    batches: tuple[Any, ...]
    held_out: tuple[Any, ...]
    size: int
    dim: int
    notes: dict[str, Any] = field(default_factory=dict)

    def run(self, model: nn.Module, batch: Any) -> Outcome:
        """Forward pass and loss."""
        assert self.form is not None
        return self.form.run(model, self.box.loss, batch)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss, a scalar tensor."""
        value: Tensor = self.run(model, batch).loss
        return value

    @torch.no_grad()
    def mean_loss(self, model: nn.Module, batches: tuple[Any, ...]) -> float:
        """Mean loss over batches, without dropout; leaves mode and buffers of the model as they are."""
        modes = [(m, m.training) for m in model.modules()]
        kept = [(b, b.clone()) for b in model.buffers()]
        self.box.still(model)
        try:
            return math.fsum(float(self.loss(model, b)) for b in batches) / max(1, len(batches))
        finally:
            for module, training in modes:
                module.training = training
            for buffer, value in kept:
                buffer.copy_(value)

    def few(self, count: int, batch: Any = None) -> Any:
        """The first samples of a batch (the first batch by default)."""
        batch = self.batches[0] if batch is None else batch
        assert self.form is not None
        size, dim = samples(self.form, batch)
        return batch if size <= count else tree.take(batch, slice(0, count), size, dim)

    def glance(self, batches: Sequence[Any]) -> tuple[Any, ...]:
        """As much of each batch as a model is judged on between steps."""
        count = max(4, self.effort.look // 8) if self.per_position else self.effort.look
        return tuple(self.few(count, b) for b in batches)

    def inputs(self, batch: Any) -> dict[str, Tensor]:
        return self.form.inputs(batch) if self.form else {}

    def targets(self, batch: Any) -> dict[str, Tensor]:
        return self.form.targets(batch) if self.form else {}

    @property
    def tokens(self) -> bool:
        """Inputs are numbers of an embedding, not measurements."""
        inputs = list(self.inputs(self.batches[0]).values()) if self.batches else []
        return bool(inputs) and not any(t.is_floating_point() for t in inputs)

    @property
    def per_position(self) -> bool:
        """Several targets a sample: token models, segmentation."""
        target = next(iter(self.targets(self.batches[0]).values()), None) if self.batches else None
        return (
            target is not None and self.size > 0 and not target.is_floating_point() and target.numel() >= 8 * self.size
        )


@contextlib.contextmanager
def opened(setup: Setup, effort: Effort, seed: int = 0) -> Iterator[Case]:
    """Reads the data, makes the copies, finds out how to run a batch; closes all of it again."""
    supply = read(setup.train, effort.batches, clock=effort.clock)
    validation = None if setup.validation is None else read(setup.validation, max(4, effort.batches // 4), deeply=False)
    with Sandbox(setup, seed) as box:
        batches = tuple(to(b, box.device, box.floating) for b in supply.batches)
        form, problem, facts = None, None, LossFacts()
        if batches:
            try:
                form, facts = _form(box, batches[0])
            except FormError as error:
                problem = error
                with box.trial(quiet=True) as model:
                    form = natural(model, box.loss, batches[0]) if error.stage == "loss" else None
        size, dim = samples(form, batches[0]) if form else (0, 0)
        if validation is not None and validation.batches:
            held_out = tuple(to(b, box.device, box.floating) for b in validation.batches)
        else:
            held_out = batches[len(batches) - len(batches) // 5 :] if len(batches) > 4 else ()
        yield Case(setup, effort, box, supply, validation, form, problem, facts, batches, held_out, size, dim)


def _form(box: Sandbox, batch: Any) -> tuple[Form, LossFacts]:
    with box.trial(quiet=True) as model:
        try:
            form = find(model, box.loss, batch)
        except FormError:
            model.train()  # some models compute their loss only in training mode
            form = find(model, box.loss, batch)
        outcome = form.run(model, box.loss, batch)
        facts = look(outcome.loss, box.setup.loss) if isinstance(outcome.loss, Tensor) else LossFacts()
        return form, facts


def skipped(check: str, why: str) -> Finding:
    """A check that was not run."""
    return Finding(check, "SKIP", why)
