"""The guard patches instances, everything that looks at them goes on working, and `detach` puts all of it back."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
from typing import Any

import pytest
import torch
from _runs import (
    BACK,
    Parts,
    Setup,
    differences,
    flatten,
    guarded,
    make_model,
    make_optimizer,
    make_scheduler,
    make_source,
    mse_loss,
    policies,
    policy,
    seed_everything,
)
from torch import nn

import guard

MODES = ["observe", "enforce"]


def training(model: nn.Module, optimizer: Any, count: int, *, nan_at: int = -1) -> None:
    source = make_source("callable")
    for number in range(count):
        x, y = source(number)
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        (loss * math.nan if number == nan_at else loss).backward()
        optimizer.step()


@pytest.fixture
def pair() -> tuple[nn.Module, torch.optim.Optimizer]:
    seed_everything()
    model = make_model(Setup(batch_norm=True))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


# ---- what an optimizer looks like


def test_optimizer_still_looks_like_one(pair: Any) -> None:
    model, optimizer = pair
    with guarded(model, optimizer):
        assert type(optimizer) is torch.optim.AdamW
        assert optimizer.step.__name__ == "step"
        assert optimizer.step.__self__ is optimizer
        assert optimizer.step.__func__.__wrapped__ is torch.optim.AdamW.step
        assert "closure" in inspect.signature(optimizer.step).parameters
        assert "step" not in vars(torch.optim.AdamW(model.parameters())), "instances only"


@pytest.mark.parametrize("name", ["none", "lambda", "cosine", "onecycle", "plateau"])
@pytest.mark.parametrize("before", [True, False])
def test_schedulers_made_before_and_after(name: str, before: bool, recwarn: Any) -> None:
    seed_everything()
    model = make_model()
    optimizer = make_optimizer("momentum", model.parameters())
    scheduler = make_scheduler(name, optimizer, 10) if before else None
    with guarded(model, optimizer) as g:
        scheduler = scheduler or make_scheduler(name, optimizer, 10)
        for number in range(6):
            training(model, optimizer, 1, nan_at=0 if number == 0 else -1)
            if scheduler is not None:
                scheduler.step(*[1.0] * (name == "plateau"))
        assert g.tick == 6
    training(model, optimizer, 1)
    assert g.tick == 6
    assert [str(w.message) for w in recwarn if "lr_scheduler" in str(w.message)] == []


def test_step_hooks_of_others_are_called_around_the_real_step_only(pair: Any) -> None:
    model, optimizer = pair
    called = []
    optimizer.register_step_pre_hook(lambda *_: called.append("pre"))
    optimizer.register_step_post_hook(lambda *_: called.append("post"))
    with guarded(model, optimizer) as g:
        training(model, optimizer, 3, nan_at=1)
        assert g.tick == 3
    assert called == ["pre", "post"] * 2


def test_profiler_names_the_step(pair: Any) -> None:
    model, optimizer = pair
    with guarded(model, optimizer), torch.profiler.profile() as profile:
        training(model, optimizer, 2)
    assert sum("Optimizer.step#AdamW.step" in e.name for e in profile.events()) == 2


def test_arguments_that_the_guard_does_not_know_go_through(pair: Any) -> None:
    class Odd(torch.optim.SGD):
        def step(self, closure: Any = None, *, twice: bool = False) -> Any:  # type: ignore[override]
            super().step()
            return super().step() if twice else "once"

    model, _ = pair
    optimizer = Odd(model.parameters(), lr=0.1)
    with guarded(model, optimizer):
        model(torch.ones(2, 6)).sum().backward()
        assert optimizer.step() == "once"
        assert optimizer.step(twice=True) is None


def test_an_optimizer_of_ones_own(pair: Any) -> None:
    """One that wraps another, as research code does."""

    class Lookahead(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.inner, self.count = inner, 0
            super().__init__(inner.param_groups, {})
            self.param_groups = inner.param_groups

        def step(self, closure: Any = None) -> Any:
            self.count += 1
            return self.inner.step(closure)

    model, optimizer = pair
    outer = Lookahead(optimizer)
    with guarded(model, outer) as g:
        training(model, outer, 5, nan_at=2)
        assert g.tick == 5
    assert outer.count == 4
    assert all(p.isfinite().all() for p in model.parameters())


class WithoutRate(torch.optim.Optimizer):
    """A parameter-free method: its groups know no learning rate."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(0.01 * p.grad)


def test_an_optimizer_without_a_rate(pair: Any) -> None:
    model, _ = pair
    optimizer = WithoutRate(model.parameters())
    with guarded(model, optimizer) as g:
        training(model, optimizer, 10, nan_at=5)
        g.live.scale_lr(0.5, 0.0, None)
        training(model, optimizer, 2)
        assert g.tick == 12
        assert [i.detector for i in g.incidents] == ["non_finite"]
    assert all(p.isfinite().all() for p in model.parameters())


def test_groups_added_after_a_load_are_read() -> None:
    """`load_state_dict` replaces the list of groups."""
    seed_everything()
    model = nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=1e-2)
    with guarded(model, optimizer) as g:
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        training(model, optimizer, 2)
        optimizer.add_param_group({"params": list(model[1].parameters())})
        optimizer.zero_grad()
        mse_loss(model(torch.ones(2, 6)), torch.ones(2, 2)).backward()
        model[1].weight.grad.fill_(math.nan)
        optimizer.step()
        assert [i.detector for i in g.incidents] == ["non_finite"]
    assert all(p.isfinite().all() for p in model.parameters())


# ---- copies


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))], ids=["deepcopy", "pickle"]
)
def test_copies_are_inert(duplicate: Any, mode: str) -> None:
    parts = Parts(Setup(batch_norm=True, fp16=True))
    training(parts.model, parts.optimizer, 2)
    with guarded(parts.model, parts.optimizer, scaler=parts.scaler, mode=mode) as g:
        training(parts.model, parts.optimizer, 2)
        model, optimizer, scaler = duplicate((parts.model, parts.optimizer, parts.scaler))
        before = [p.clone() for p in parts.model.parameters()]
        loss = mse_loss(model(torch.ones(3, 6)), torch.ones(3, 2))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert g.tick == 2
        assert all(torch.equal(a, b) for a, b in zip(before, parts.model.parameters(), strict=True))
        assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True) if a.dim() > 1)
        training(parts.model, parts.optimizer, 1)
        assert g.tick == 3


def test_a_state_dict_is_what_it_was(pair: Any) -> None:
    model, optimizer = pair
    training(model, optimizer, 3)
    before = flatten({"m": model.state_dict(), "o": optimizer.state_dict()})
    with guarded(model, optimizer):
        assert differences(flatten({"m": model.state_dict(), "o": optimizer.state_dict()}), before) == []


# ---- coming and going


def attributes(thing: Any) -> dict[str, Any]:
    return {k: (dict(v) if isinstance(v, dict) else v) for k, v in vars(thing).items()}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("with_scheduler", [False, True])
def test_detach_puts_everything_back(mode: str, with_scheduler: bool) -> None:
    parts = Parts(Setup(fp16=True, batch_norm=True, scheduler="cosine" if with_scheduler else "none"))
    things = [parts.optimizer, parts.scaler, *parts.model.modules()]
    backward, before = torch.autograd.backward, [attributes(t) for t in things]
    classes = [dict(vars(c)) for c in (torch.optim.AdamW, torch.optim.Optimizer, torch.amp.GradScaler, nn.Module)]
    with guarded(parts.model, parts.optimizer, scaler=parts.scaler, scheduler=parts.scheduler, mode=mode) as g:
        assert torch.autograd.backward is not backward
        g.detach()
        assert torch.autograd.backward is backward
        for thing, attrs in zip(things, before, strict=True):
            now = attributes(thing)
            assert now.keys() == attrs.keys()
            assert all(now[k] is attrs[k] or now[k] == attrs[k] for k in attrs if not isinstance(now[k], torch.Tensor))
        g.detach()  # a second time changes nothing
    assert classes == [
        dict(vars(c)) for c in (torch.optim.AdamW, torch.optim.Optimizer, torch.amp.GradScaler, nn.Module)
    ]


def test_a_scheduler_made_meanwhile_works_after_detach(pair: Any) -> None:
    model, optimizer = pair
    with guarded(model, optimizer) as g:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        training(model, optimizer, 1)
        scheduler.step()
    weights = model[0].weight.clone()
    training(model, optimizer, 1)
    scheduler.step()
    assert not torch.equal(weights, model[0].weight)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-3)
    assert g.tick == 1


def test_two_guards_share_the_one_process_wide_patch() -> None:
    backward = torch.autograd.backward
    one, two = Parts(Setup()), Parts(Setup())
    with guarded(one.model, one.optimizer) as first:
        with guarded(two.model, two.optimizer) as second:
            training(one.model, one.optimizer, 2)
            training(two.model, two.optimizer, 3)
            assert (first.tick, second.tick) == (2, 3)
        assert torch.autograd.backward is not backward
        training(one.model, one.optimizer, 1)
        assert not math.isnan(first.signals[-1][2])
    assert torch.autograd.backward is backward


def test_second_attach_on_the_same_optimizer_replaces_the_first(pair: Any) -> None:
    model, optimizer = pair
    with guarded(model, optimizer) as first:
        training(model, optimizer, 2)
        with guarded(model, optimizer) as second:
            training(model, optimizer, 3)
            assert (first.tick, second.tick) == (2, 3)
            assert math.isfinite(second.signals[-1][2])
        training(model, optimizer, 1)
        assert (first.tick, second.tick) == (2, 3)
    assert "step" not in vars(optimizer)
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_a_guard_dies_with_its_run(pair: Any) -> None:
    """Closed guards keep nothing alive: scripts make thousands of runs in one process."""
    import gc
    import weakref

    def run() -> Any:
        model = make_model()
        optimizer = make_optimizer("sgd", model.parameters())
        with guarded(model, optimizer):
            training(model, optimizer, 1)
        return weakref.ref(model)

    gone = run()
    gc.collect()
    assert gone() is None


# ---- closures


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_lbfgs_converges_as_without(line_search: str | None) -> None:
    def final_loss(*, with_guard: bool) -> float:
        seed_everything()
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=10, line_search_fn=line_search)
        data = torch.randn(50, 6), torch.randn(50, 2)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = mse_loss(model(data[0]), data[1])
            loss.backward()
            return loss

        def train() -> float:
            for _ in range(8):
                optimizer.step(closure)
            return closure().item()

        if not with_guard:
            return train()
        with guarded(model, optimizer) as g:
            loss = train()
            assert g.tick == 8
            return loss

    assert final_loss(with_guard=True) == final_loss(with_guard=False)


def test_bad_closure_never_reaches_the_weights(pair: Any) -> None:
    """Lightning: the loss is born inside `step(closure)`, which returns it even if the update was left out."""
    model, optimizer = pair
    with guarded(model, optimizer) as g:
        for number in range(6):

            def closure(number: int = number) -> torch.Tensor:
                optimizer.zero_grad()
                loss = model(torch.ones(3, 6)).sum() * (math.nan if number == 3 else 1.0)
                loss.backward()
                return loss

            returned = optimizer.step(closure)
            assert math.isnan(returned.item()) == (number == 3)
        assert g.tick == 6
        assert [i.opened_tick for i in g.incidents] == [3]
    assert all(t.isfinite().all() for t in model.state_dict().values())


def test_closure_gradients_are_on_although_the_caller_switched_them_off(pair: Any) -> None:
    model, optimizer = pair

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(3, 6)).sum()
        loss.backward()
        return loss

    with guarded(model, optimizer) as g, torch.no_grad():
        optimizer.step(closure)
        assert g.tick == 1


# ---- exceptions belong to the user


class TroubleError(Exception):
    pass


def test_exceptions_of_the_loop_go_through_unchanged(pair: Any) -> None:
    model, optimizer = pair
    trouble = TroubleError("mine")

    def closure() -> float:
        raise trouble

    def hook(*_: Any) -> None:
        raise trouble

    with guarded(model, optimizer) as g:
        training(model, optimizer, 1)
        with pytest.raises(TroubleError) as raised:
            optimizer.step(closure)
        assert raised.value is trouble
        handle = optimizer.register_step_pre_hook(hook)
        with pytest.raises(TroubleError) as raised:
            training(model, optimizer, 1)
        assert raised.value is trouble
        handle.remove()
        handle = model[0].register_forward_hook(hook)
        with pytest.raises(TroubleError):
            training(model, optimizer, 1)
        handle.remove()
        training(model, optimizer, 3)
        assert g.incidents == []


def test_exceptions_of_the_loop_body_and_of_the_data_go_through(pair: Any) -> None:
    model, optimizer = pair
    trouble = TroubleError("mine")

    def source(index: int) -> Any:
        if index == 2:
            raise trouble
        return index

    def loop() -> None:
        with guarded(model, optimizer) as g:
            for _ in g.batches(source, 5):
                training(model, optimizer, 1)

    with pytest.raises(TroubleError) as raised:
        loop()
    assert raised.value is trouble
    assert "step" not in vars(optimizer)


def test_stop_is_raised_from_the_step_and_detaches(pair: Any) -> None:
    model, optimizer = pair
    with guarded(model, optimizer, policy=policies(policy("non_finite", [{"type": "stop"}]))):
        with pytest.raises(guard.TrainingStopped) as raised:
            training(model, optimizer, 5, nan_at=2)
        assert raised.value.incident.status == "stopped"
    assert "step" not in vars(optimizer)


# ---- GradScaler


def test_scaler_is_usable_after_a_rollback_and_after_detach() -> None:
    """A swallowed update must reset the scaler's per-optimizer state, or its next step raises."""
    parts = Parts(Setup(fp16=True))
    source = make_source("callable")
    with guarded(parts.model, parts.optimizer, scaler=parts.scaler, policy=policies(policy("non_finite", [BACK]))) as g:
        for number in range(8):
            x, y = source(number)
            parts.optimizer.zero_grad()
            loss = parts.forward((x * (math.nan if number == 4 else 1), y))
            parts.backward(loss)
            parts.scaler.unscale_(parts.optimizer)
            parts.scaler.step(parts.optimizer)
            parts.scaler.update()
        assert [i.opened_tick for i in g.incidents] == [4]
        assert g.tick == 8
    parts.backward(parts.forward(source(9)))
    parts.scaler.step(parts.optimizer)
    parts.scaler.update()


def test_a_disabled_scaler(pair: Any) -> None:
    model, optimizer = pair
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    with guarded(model, optimizer, scaler=scaler) as g:
        for number in range(4):
            optimizer.zero_grad()
            loss = mse_loss(model(torch.ones(2, 6)), torch.ones(2, 2)) * (math.nan if number == 2 else 1)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        assert g.tick == 4
        assert len(g.incidents) == 1
    assert all(p.isfinite().all() for p in model.parameters())


def test_a_scaler_that_also_serves_an_unguarded_optimizer(pair: Any) -> None:
    model, optimizer = pair
    other = nn.Linear(2, 2)
    other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with guarded(model, optimizer, scaler=scaler) as g:
        before = other.weight.clone()
        scaler.scale(other(torch.ones(1, 2)).sum()).backward()
        scaler.step(other_optimizer)
        scaler.update()
        assert g.tick == 0
        assert not torch.equal(before, other.weight)
