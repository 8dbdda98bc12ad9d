"""Nothing of the user's changes, bit for bit: weights, statistics, random numbers, modes, hooks, gradients."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from doctor.setups import base, cnn, init_times, loader, lstm
from torch import Tensor, nn
from torch.nn import functional

from guard import doctor
from guard.doctor import Setup
from guard.doctor.effort import Effort
from guard.doctor.sandbox import Sandbox, holds

SHORT = Effort(batches=6, overfit_steps=5, range_steps=12, rate_steps=3, curve_steps=6, sample=4, clock=lambda: 0.0)


def state(parts: dict[str, Any]) -> dict[str, Any]:
    model, optimizer = parts["model"], parts["optimizer"]
    sampler = parts["train"].generator
    return {
        "tensors": {n: t.detach().clone() for n, t in model.state_dict(keep_vars=True).items()},
        "ids": {n: id(t) for n, t in model.state_dict(keep_vars=True).items()},
        "grads": {n: None if p.grad is None else (id(p.grad), p.grad.clone()) for n, p in model.named_parameters()},
        "requires": {n: p.requires_grad for n, p in model.named_parameters()},
        "modes": {n: m.training for n, m in model.named_modules()},
        "hooks": {n: (len(m._forward_hooks), len(m._forward_pre_hooks)) for n, m in model.named_modules()},
        "attributes": {n: sorted(vars(m)) for n, m in model.named_modules()},
        "optimizer": copy.deepcopy(optimizer.state_dict()),
        "rates": [g["lr"] for g in optimizer.param_groups],
        "loader": None if sampler is None else sampler.get_state(),
        "python": random.getstate(),
        "numpy": np.random.get_state()[1],
        "torch": torch.get_rng_state(),
        "grad mode": torch.is_grad_enabled(),
    }


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def used(parts: dict[str, Any]) -> dict[str, Any]:
    """In the middle of a life: optimizer state, gradients, a hook, mixed modes, a frozen parameter."""
    for x, y in list(parts["train"])[:2]:
        parts["optimizer"].zero_grad()
        functional.cross_entropy(parts["model"](x), y).backward()
        parts["optimizer"].step()
    parts["model"].register_forward_hook(lambda *_: None)
    next(iter(parts["model"].children())).eval()
    list(parts["model"].parameters())[-1].requires_grad_(False)
    return parts


def closed_over(seed: int) -> dict[str, Any]:
    """The loss function holds on to the model by itself."""
    parts = cnn(seed)
    model = parts["model"]

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(out, y) + 1e-4 * sum(p.square().sum() for p in model.parameters())

    return parts | {"loss": loss}


class NoCopy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head, self.calls = nn.BatchNorm1d(64), nn.Linear(64, 10), 0

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("holds a socket")

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = self.head(self.norm(x))
        return self.last


def not_copied(seed: int) -> dict[str, Any]:
    return base(seed, model=NoCopy())


@pytest.mark.parametrize("make", [base, cnn, lstm, closed_over, not_copied, init_times(30.0)])
def test_nothing_is_changed(make):
    parts = used(make(0))
    before = state(parts)
    report = doctor.examine(Setup.of(parts), effort=SHORT)
    assert not [f for f in report.findings if "could not be looked at" in f.sentence]
    assert [k for k, v in state(parts).items() if not same(v, before[k])] == []


def test_a_loader_with_its_own_generator_goes_on_as_if_nobody_had_read():
    parts = base(0)
    generators = [torch.Generator().manual_seed(5) for _ in range(2)]
    x, y = parts["train"].dataset.tensors
    one, two = (loader(x, y, generator=g) for g in generators)
    doctor.examine(Setup.of(parts | {"train": one}), effort=SHORT, only=["data"])
    assert all(torch.equal(a[0], b[0]) for a, b in zip(one, two, strict=True))


def test_an_error_in_a_check_leaves_no_trace_either():
    class Breaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.count = nn.Linear(64, 10), 0

        def forward(self, x: Tensor) -> Tensor:
            if len(x) != 64:
                raise RuntimeError("one size only")
            return self.head(x)

        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("no")

    parts = base(0, model=Breaks())
    before = state(parts)
    report = doctor.examine(Setup.of(parts), effort=SHORT)
    assert "could not be looked at: RuntimeError: one size only" in report.of("overfit")[0].sentence
    assert [k for k, v in state(parts).items() if not same(v, before[k])] == []


def test_who_holds_the_model():
    model = nn.Linear(2, 2)
    assert holds(lambda out, y: out.sum() + model.weight.sum(), model)
    assert not holds(lambda out, y: out.sum(), model)
    assert not holds(nn.MSELoss(), model)


def test_every_trial_begins_alike():
    with Sandbox(Setup.of(cnn(0))) as box:
        seen = []
        for _ in range(2):
            with box.trial() as model:
                seen.append([p.detach().clone() for p in model.parameters()] + [torch.rand(3)])
                for p in model.parameters():
                    p.data.add_(1.0)
                model.net[1].running_mean.add_(1.0)
        assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))
        assert float(box.model.net[1].running_mean.sum()) == 0.0
