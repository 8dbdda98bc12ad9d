"""One training run of the demo, the way a user would write it; the guard is one argument."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import guard
from guard.demo.data import Batch, Text
from guard.demo.faults import Plan
from guard.demo.model import CharTransformer
from guard.demo.outcome import Outcome
from guard.notify import ReceiverSpec

_RATE = 0.008

# Told of every step: (tick, step, loss, guard or None).
Watch = Callable[[int, int, float, Any], None]


def train(
    text: Text,
    plan: Plan,
    seed: int,
    watch: Watch,
    *,
    run_dir: Path | None = None,
    receivers: Iterable[ReceiverSpec] = (),
) -> Outcome:
    """Trains once, and measures the final validation loss in the precision of the run.

    Args:
        plan: how long, and what goes wrong.
        run_dir: the guarded run's directory; None: there is no guard.
    """
    torch.manual_seed(seed)
    model = CharTransformer(text.vocabulary, 48)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, plan.rate)
    g = (
        None
        if run_dir is None
        else guard.attach(model, optimizer, scheduler=schedule, run_dir=run_dir, receivers=list(receivers))
    )

    def read(index: int) -> Batch:
        return plan.corrupt(text.train(seed, index), index)

    def autocast() -> torch.autocast:
        return (g.autocast if g else torch.autocast)("cpu", dtype=plan.dtype)

    rows: list[tuple[int, float]] = []
    with contextlib.suppress(guard.TrainingStopped):  # a policy's last resort; how the run stands then is its result
        for batch in g.batches(read, plan.steps) if g else map(read, range(plan.steps)):
            step = g.step if g else len(rows)
            optimizer.zero_grad()
            with autocast():
                loss = loss_of(model, batch)
            if g:
                g.backward(loss)
            else:
                loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            rows.append((step, loss.item()))
            watch(len(rows), step, rows[-1][1], g)
    final = validate(model, text, autocast)
    if g:
        g.close()
    return Outcome(rows, final, g.incidents if g else [])


def loss_of(model: CharTransformer, batch: Batch) -> torch.Tensor:
    """Mean cross-entropy [nats per character] of the batch, each sequence with its weight."""
    logits = model(batch.x).float()
    each = functional.cross_entropy(logits.flatten(0, 1), batch.y.flatten(), reduction="none")
    return (each.view_as(batch.y).mean(1) * batch.weight).mean()


@torch.no_grad()
def validate(model: CharTransformer, text: Text, autocast: Callable[[], torch.autocast]) -> float:
    """Mean loss on text that was not trained on; NaN if the model cannot say."""
    model.eval()
    losses = []
    for batch in text.validation():
        with autocast():
            losses.append(loss_of(model, batch).item())
    model.train()
    return math.fsum(losses) / len(losses)
