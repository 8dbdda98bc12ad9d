"""A healthy run under the guard, observed or protected, is bit for bit the run without it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from _runs import (
    OPTIMIZERS,
    Parts,
    Setup,
    differences,
    flatten,
    guarded,
    make_model,
    make_source,
    mse_loss,
    plain_batches,
    policies,
    rng_state,
    seed_everything,
    train,
    unguarded,
)
from torch import nn

# Torch's own, when a GradScaler leaves out the first step.
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")

MODES = ["observe", "enforce"]

SETUPS = [
    *(Setup(optimizer=name, batch_norm=name != "muon") for name in OPTIMIZERS),
    Setup(optimizer="tensor_lr"),
    Setup(optimizer="fused"),
    Setup(optimizer="fused_sgd"),
    Setup(optimizer="fused", fp16=True),
    Setup(optimizer="fused_sgd", fp16=True, accumulate=2),
    Setup(fp16=True, batch_norm=True, ema="module"),
    Setup(accumulate=3, ema="dict", scheduler="plateau"),
    Setup(source="shuffled", scheduler="cosine"),
    Setup(source="generator", scheduler="lambda"),
    Setup(source="augmented"),
    Setup(source="epochs"),
    Setup(source="workers", steps=12),
]


def assert_silent(g: Any) -> None:
    assert [(i.policy, i.opened_step, i.cause) for i in g.incidents] == []


# ---- the guard's loop


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("setup", SETUPS, ids=repr)
def test_guarded_loop_is_the_plain_loop(setup: Setup, mode: str) -> None:
    outcome = train(setup, "default", mode=mode)
    assert outcome.incidents == []
    assert differences(outcome.state, unguarded(setup)) == []


@pytest.mark.parametrize("every", [1, 3])
def test_frequent_snapshots_change_nothing(every: int) -> None:
    setup = Setup(batch_norm=True, ema="module", source="augmented")
    assert differences(train(setup, policies(every=every)).state, unguarded(setup)) == []


def test_passes_without_a_number_of_steps() -> None:
    setup = Setup(source="shuffled", steps=30, batch_norm=True)
    parts = Parts(setup)
    with parts.attached("default") as g:
        for _ in range(3):
            for batch in g.batches(parts.source):
                loss = parts.forward(batch)
                g.backward(loss)
                parts.update(loss)
        assert g.step == 30
    assert differences(parts.state(), unguarded(setup)) == []


# ---- a loop that only calls attach


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("setup", SETUPS, ids=repr)
def test_only_attach(setup: Setup, mode: str) -> None:
    parts = Parts(setup)
    with parts.attached("default", mode=mode) as g:
        plain_loop(parts)
        assert_silent(g)
        assert g.step == g.tick == setup.steps
    assert differences(parts.state(), unguarded(setup)) == []


def plain_loop(parts: Parts) -> None:
    accumulate = parts.setup.accumulate
    for number, batch in enumerate(plain_batches(parts.source, parts.setup.steps * accumulate), 1):
        loss = parts.forward(batch)
        parts.backward(loss)
        if number % accumulate == 0:
            parts.update(loss)


@pytest.mark.parametrize(
    "setup", [Setup(batch_norm=True), Setup(fp16=True, batch_norm=True), Setup(accumulate=2)], ids=repr
)
@pytest.mark.parametrize("nan_at", [0, 9, 29])
def test_observed_fault_runs_its_course(setup: Setup, nan_at: int) -> None:
    """Observing means that a NaN poisons the run just as it would without a guard."""

    def end_state(attach: Any) -> dict[str, Any]:
        parts = Parts(setup)
        with attach(parts):
            for number in range(30):
                x, y = parts.source(number)
                loss = parts.forward((x * float("nan") if number == nan_at else x, y))
                parts.backward(loss)
                if number % setup.accumulate == setup.accumulate - 1:
                    parts.update(loss)
        return parts.state()

    plain = end_state(lambda parts: nullcontext())
    assert differences(end_state(lambda parts: parts.attached("default", mode="observe")), plain) == []
    assert differences(end_state(lambda parts: parts.attached("observe")), plain) == []


# ---- loops of other shapes: each is run without a guard, observed, and protected

Loop = Callable[[Callable[..., Any]], dict[str, Any]]


@contextmanager
def no_guard(*_: Any, **__: Any) -> Iterator[None]:
    yield


def attach_with(mode: str) -> Callable[..., Any]:
    @contextmanager
    def attach(model: nn.Module, optimizer: Any, **kwargs: Any) -> Iterator[Any]:
        with guarded(model, optimizer, mode=mode, **kwargs) as g:
            yield g
            assert_silent(g)

    return attach


def assert_same_with_and_without(loop: Loop) -> None:
    plain = loop(no_guard)
    for mode in MODES:
        assert differences(loop(attach_with(mode)), plain) == [], mode


def end(**parts: Any) -> dict[str, Any]:
    return flatten({**{k: p.state_dict() for k, p in parts.items()}, "rng": rng_state()})


def batches(count: int) -> Iterator[Any]:
    source = make_source("callable")
    yield from map(source, range(count))


def test_scaler_overflows() -> None:
    """A scale far too high at first, and growth that overflows again and again: GradScaler's ordinary search."""

    def loop(attach: Any) -> dict[str, Any]:
        parts = Parts(Setup(fp16=True, steps=40))
        parts.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=3)
        overflows = 0
        with attach(parts.model, parts.optimizer, scheduler=parts.scheduler, scaler=parts.scaler):
            for batch in batches(40):
                scale = parts.scaler.get_scale()
                loss = parts.forward(batch)
                parts.backward(loss)
                parts.update(loss)
                overflows += parts.scaler.get_scale() < scale
        assert overflows >= 3
        return parts.state()

    assert_same_with_and_without(loop)


@pytest.mark.parametrize("fused", [False, True])
def test_unscaled_and_clipped_by_the_loop(fused: bool) -> None:
    def loop(attach: Any) -> dict[str, Any]:
        parts = Parts(Setup(fp16=True, optimizer="fused" if fused else "adamw"))
        with attach(parts.model, parts.optimizer, scaler=parts.scaler):
            for batch in batches(20):
                parts.backward(parts.forward(batch))
                parts.scaler.unscale_(parts.optimizer)
                nn.utils.clip_grad_norm_(parts.model.parameters(), 0.1)
                parts.scaler.step(parts.optimizer)
                parts.scaler.update()
                parts.optimizer.zero_grad()
        return parts.state()

    assert_same_with_and_without(loop)


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_lbfgs_closure(line_search: str | None) -> None:
    def loop(attach: Any) -> dict[str, Any]:
        seed_everything()
        model = make_model()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5, line_search_fn=line_search)
        calls = []
        with attach(model, optimizer):
            for x, y in batches(10):

                def closure(x: Any = x, y: Any = y) -> torch.Tensor:
                    calls.append(1)
                    optimizer.zero_grad()
                    loss = mse_loss(model(x), y)
                    loss.backward()
                    return loss

                optimizer.step(closure)
        return {**end(model=model, optimizer=optimizer), "calls": len(calls)}

    assert_same_with_and_without(loop)


def test_step_with_a_closure_as_lightning_does() -> None:
    def loop(attach: Any) -> dict[str, Any]:
        seed_everything()
        model = make_model()
        optimizer = torch.optim.Adam(model.parameters())
        losses = []
        with attach(model, optimizer):
            for x, y in batches(10):

                def closure(x: Any = x, y: Any = y) -> torch.Tensor:
                    loss = mse_loss(model(x), y)
                    optimizer.zero_grad()
                    loss.backward()
                    return loss

                losses.append(optimizer.step(closure).item())
        return {**end(model=model, optimizer=optimizer), **flatten(losses)}

    assert_same_with_and_without(loop)


def test_sparse_embedding() -> None:
    def loop(attach: Any) -> dict[str, Any]:
        seed_everything()
        model = nn.Sequential(nn.Embedding(20, 3, sparse=True), nn.Flatten(), nn.Linear(6, 1))
        optimizers = [torch.optim.SparseAdam(model[0].parameters()), torch.optim.SGD(model[2].parameters(), lr=0.1)]
        with attach(model, optimizers):
            for _ in range(20):
                mse_loss(model(torch.randint(0, 20, (4, 2))), torch.randn(4, 1)).backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
        return end(model=model, sparse=optimizers[0], dense=optimizers[1])

    assert_same_with_and_without(loop)


def test_gan() -> None:
    def loop(attach: Any) -> dict[str, Any]:
        seed_everything()
        generator, critic = (
            nn.Linear(3, 4),
            nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)),
        )
        optimizers = [torch.optim.Adam(generator.parameters(), 1e-3), torch.optim.RMSprop(critic.parameters(), 1e-3)]
        schedulers = [torch.optim.lr_scheduler.LinearLR(o, total_iters=10) for o in optimizers]
        with attach(nn.ModuleList([generator, critic]), optimizers, scheduler=schedulers):
            for _ in range(25):
                optimizers[1].zero_grad()
                (critic(generator(torch.randn(8, 3)).detach()) - critic(torch.randn(8, 4) + 2)).mean().backward()
                optimizers[1].step()
                optimizers[0].zero_grad()
                (-critic(generator(torch.randn(8, 3)))).mean().backward()
                optimizers[0].step()
                for scheduler in schedulers:
                    scheduler.step()
        return end(g=generator, c=critic, og=optimizers[0], oc=optimizers[1], sg=schedulers[0], sc=schedulers[1])

    assert_same_with_and_without(loop)


class Awkward(nn.Module):
    """Frozen, unused and tied weights, a complex one, a mask of -inf, half-precision and integer buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.inner.weight
        self.frozen = nn.Linear(6, 6).requires_grad_(requires_grad=False)
        self.unused = nn.Linear(6, 6)
        self.waves = nn.Parameter(torch.randn(6, dtype=torch.complex64))
        self.out = nn.Linear(6, 2)
        self.register_buffer("mask", torch.full((6, 6), -torch.inf).triu(1))
        self.register_buffer("always_inf", torch.full((2, 2), -torch.inf), persistent=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.register_buffer("narrow", torch.ones(3, dtype=torch.float16))
        self.register_buffer("late", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        if self.late is None:
            self.late = torch.full((2,), -torch.inf)
        x = self.frozen(self.tied(torch.tanh(self.inner(x)))) + self.mask.exp().sum()
        return self.out(torch.fft.ifft(torch.fft.fft(x) * self.waves).real)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_awkward_parameters(set_to_none: bool) -> None:
    def loop(attach: Any) -> dict[str, Any]:
        seed_everything()
        model = Awkward()
        optimizer = torch.optim.Adam(
            [
                {"params": [p for n, p in model.named_parameters() if n != "out.bias"]},
                {"params": [model.out.bias], "lr": 1e-2},
            ],
            lr=1e-3,
        )
        with attach(model, optimizer):
            for x, y in batches(25):
                optimizer.zero_grad(set_to_none=set_to_none)
                mse_loss(model(x), y).backward()
                optimizer.step()
        return {**end(model=model, optimizer=optimizer), "late": model.late.clone()}

    assert_same_with_and_without(loop)


def test_parameter_group_added_while_training() -> None:
    def loop(attach: Any) -> dict[str, Any]:
        seed_everything()
        model = make_model()
        optimizer = torch.optim.Adam(model[0].parameters(), lr=1e-3)
        with attach(model, optimizer):
            for number, (x, y) in enumerate(batches(24)):
                if number == 10:
                    optimizer.add_param_group({"params": list(model[4].parameters()), "lr": 1e-2})
                model.zero_grad()
                mse_loss(model(x), y).backward()
                optimizer.step()
        return end(model=model, optimizer=optimizer)

    assert_same_with_and_without(loop)


def test_evaluation_and_a_saved_checkpoint_in_between() -> None:
    def loop(attach: Any) -> dict[str, Any]:
        seed_everything()
        model = make_model(Setup(batch_norm=True))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        saved = []
        with attach(model, optimizer) as g:
            for number, (x, y) in enumerate(batches(24)):
                optimizer.zero_grad()
                mse_loss(model(x), y).backward()
                optimizer.step()
                if number % 5 == 4:
                    model.eval()
                    with torch.no_grad(), g.phase("eval") if g else nullcontext():
                        loss = mse_loss(model(x), y)
                    if g:
                        g.log(val_loss=loss.item())
                    model.train()
                    saved.append(copy.deepcopy(model.state_dict()))
        return {**end(model=model, optimizer=optimizer), **flatten(saved)}

    assert_same_with_and_without(loop)


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False])
def test_compiled(whole: bool) -> None:
    """`torch.compile` with a backend that needs no compiler; the model itself, or what the loop calls."""

    def loop(attach: Any) -> dict[str, Any]:
        torch.compiler.reset()
        seed_everything()
        model = make_model(Setup(batch_norm=True))
        compiled = torch.compile(model, backend="aot_eager")
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        with attach(compiled if whole else model, optimizer):
            for x, y in batches(24):
                optimizer.zero_grad()
                mse_loss(compiled(x), y).backward()
                optimizer.step()
        return end(model=model, optimizer=optimizer)

    assert_same_with_and_without(loop)
