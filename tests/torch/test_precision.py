"""FP16 that overflows: the run goes on in BF16, in a loop made for it and in one that knows nothing of the guard."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from _runs import BACK, Setup, guarded, make_model, mse_loss, policies, policy, seed_everything
from torch import nn
from torch.optim.swa_utils import AveragedModel

import guard

STEPS, GROWS_AT = 170, 130


class Loud(nn.Module):
    """Its inner activations are 100 times its inputs: beyond FP16 for large inputs, an ordinary number in BF16."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.out = nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.norm(self.inner(x) * 100)))


def batch_of(index: int, amplitude: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(index)
    x = torch.randn(16, 6, generator=generator)
    loud = amplitude if amplitude is not None else 3000.0 if index >= GROWS_AT else 1.0
    return x * loud, torch.nn.functional.normalize(x)[:, :2]


class Script:
    """A training script under autocast."""

    def __init__(self, dtype: torch.dtype = torch.float16, *, scaled: bool = False) -> None:
        seed_everything()
        self.dtype = dtype
        self.model = Loud()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8) if scaled else None

    def iteration(self, index: int) -> None:
        """No word of a guard."""
        x, y = batch_of(index)
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=self.dtype):
            loss = mse_loss(self.model(x).float(), y)
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    @torch.no_grad()
    def validation_loss(self) -> float:
        self.model.eval()
        losses = []
        for seed, amplitude in itertools.product(range(10_000, 10_010), (1.0, 3000.0)):
            x, y = batch_of(seed, amplitude)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                losses.append(mse_loss(self.model(x).float(), y).item())
        return sum(losses) / len(losses)


@pytest.fixture(scope="module")
def pure_bf16() -> float:
    script = Script(torch.bfloat16)
    for index in range(STEPS):
        script.iteration(index)
    return script.validation_loss()


def test_unguarded_run_is_lost() -> None:
    script = Script()
    for index in range(STEPS):
        script.iteration(index)
    assert math.isnan(script.validation_loss())


def assert_cured(g: guard.Guard, script: Script, pure: float) -> None:
    first = g.incidents[0]
    assert first.policy == "nan-rollback-retry-bf16"
    assert first.opened_step == GROWS_AT
    assert first.status == "resolved"
    assert [(r.type, r.changes.get("precision")) for r in first.attempts[0].results] == [
        ("rollback", None),
        ("precision", "bf16"),
    ]
    assert "BF16" in first.attempts[0].results[1].summary
    assert len(g.incidents) == len(first.attempts) == 1
    assert script.validation_loss() <= 1.05 * pure


@pytest.mark.parametrize("scaled", [False, True])
def test_guarded_loop_ends_like_bf16(scaled: bool, pure_bf16: float) -> None:
    script = Script(scaled=scaled)
    with guarded(script.model, script.optimizer, scaler=script.scaler) as g:
        for x, y in g.batches(batch_of, STEPS):
            script.optimizer.zero_grad()
            with g.autocast("cpu", dtype=torch.float16):
                loss = mse_loss(script.model(x).float(), y)
            g.backward(loss)
            if script.scaler is None:
                script.optimizer.step()
            else:
                script.scaler.step(script.optimizer)
                script.scaler.update()
    assert_cured(g, script, pure_bf16)


@pytest.mark.parametrize("scaled", [False, True])
def test_unmodified_loop_ends_like_bf16(scaled: bool, pure_bf16: float) -> None:
    script = Script(scaled=scaled)
    with guarded(script.model, script.optimizer, scaler=script.scaler) as g:
        for index in itertools.count():
            script.iteration(index)
            if g.step >= STEPS:
                break
    assert_cured(g, script, pure_bf16)


def test_half_precision_weights() -> None:
    """There is no autocast: weights and optimizer state themselves become BF16."""
    seed_everything()
    model = Loud().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    weights = list(model.parameters())
    with guarded(model, optimizer) as g:
        for x, y in g.batches(batch_of, STEPS):
            optimizer.zero_grad()
            g.backward(mse_loss(model(x.half()).float(), y))
            optimizer.step()
    assert [i.status for i in g.incidents] == ["resolved"]
    assert all(a is b for a, b in zip(weights, model.parameters(), strict=True))
    assert (
        {p.dtype for p in model.parameters()}
        == {s["momentum_buffer"].dtype for s in optimizer.state.values()}
        == {torch.bfloat16}
    )
    assert all(p.isfinite().all() for p in model.parameters())
    assert g.signals[-1][2] < g.signals[0][2]


def test_half_precision_weights_with_adam_after_a_rollback_to_the_first_step() -> None:
    """Weights changed their dtype since the snapshot, and state was made after it."""
    seed_everything()
    model = Loud().half()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-4)
    with guarded(
        model,
        optimizer,
        policy=policies(
            policy("non_finite", [BACK, {"type": "precision", "dtype": "fp32"}], [BACK], [BACK]), every=1000
        ),
    ) as g:
        for x, y in g.batches(lambda i: batch_of(i, 3000.0 if i > 10 else 1.0), 20):
            optimizer.zero_grad()
            g.backward(mse_loss(model(x.half()).float(), y))
            optimizer.step()
    assert [(i.opened_step, len(i.attempts)) for i in g.incidents] == [(11, 1)]
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {v.dtype for s in optimizer.state.values() for v in s.values()} == {torch.float32}


# ---- for some time only


def test_half_precision_weights_come_back() -> None:
    seed_everything()
    model = Loud().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    dtypes = []
    model.inner.register_forward_hook(lambda module, args, output: dtypes.append(output.dtype))
    with guarded(model, optimizer) as g:
        for number in range(12):
            if number == 3:
                g.live.set_precision("fp32", 4)
            x, y = batch_of(number)
            optimizer.zero_grad()
            mse_loss(model(x.half()).float(), y).backward()
            optimizer.step()
        assert g.incidents == []
    assert dtypes == [torch.float16] * 3 + [torch.float32] * 4 + [torch.float16] * 5
    assert {s["momentum_buffer"].dtype for s in optimizer.state.values()} == {torch.float16}


@contextmanager
def overridden(dtype: str = "bf16", **more: Any) -> Iterator[tuple[Script, guard.Guard, list[torch.dtype]]]:
    """A script whose guard has just been told to change precision; the list gets the dtype of every forward pass."""
    script = Script(scaled=more.pop("scaled", False))
    seen: list[torch.dtype] = []
    if more.pop("watch", True):  # such a hook cannot be pickled
        script.model.inner.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    with guarded(script.model, script.optimizer, scaler=script.scaler, **more) as g:
        script.iteration(0)
        g.live.set_precision(dtype, None)
        yield script, g, seen


def test_lasts_only_so_long() -> None:
    dtypes: list[torch.dtype] = []
    script = Script()
    script.model.inner.register_forward_hook(lambda module, args, output: dtypes.append(output.dtype))
    rung = [BACK, {"type": "precision", "dtype": "bf16", "lasts": "12 steps"}]
    with guarded(
        script.model, script.optimizer, policy=policies(policy("non_finite", rung, rung), every=1, probation=0)
    ) as g:
        for x, y in g.batches(lambda i: batch_of(i, 3000.0 if i == 20 else 1.0), 40):
            script.optimizer.zero_grad()
            with g.autocast("cpu", dtype=torch.float16):
                loss = mse_loss(script.model(x).float(), y)
            g.backward(loss)
            script.optimizer.step()
    half, brain = torch.float16, torch.bfloat16
    went_back = 20 - g.incidents[0].attempts[0].results[0].changes["to_step"]
    assert dtypes == [half] * 21 + [brain] * 11 + [half] * (20 + went_back - 11)


@pytest.mark.parametrize(("dtype", "expected"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_an_unmodified_loop_is_reached(dtype: str, expected: torch.dtype) -> None:
    with overridden(dtype) as (script, _, seen):
        script.iteration(1)
    assert seen == [torch.float16, expected]


def test_forward_passes_outside_autocast_stay_as_they_are() -> None:
    with overridden() as (script, _, seen), torch.no_grad():
        script.model.eval()
        script.model(batch_of(0)[0])
    assert seen[-1] is torch.float32


def test_validation_under_autocast_follows() -> None:
    with overridden() as (script, _, seen), torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        script.model.eval()
        script.model(batch_of(0)[0])
    assert seen[-1] is torch.bfloat16


def test_scaler_is_frozen_meanwhile() -> None:
    with overridden(scaled=True) as (script, _, _seen):
        script.scaler.set_growth_interval(2)  # the first iteration was one of the two
        scales = []
        for index in range(1, 6):
            script.iteration(index)
            scales.append(script.scaler.get_scale())
    assert scales == [scales[0]] * 5
    script.iteration(7)
    assert script.scaler.get_scale() == 2 * scales[0]


def test_exception_in_forward_leaves_no_autocast_behind() -> None:
    with overridden() as (script, _, _seen):
        for _ in range(3):
            with pytest.raises(RuntimeError, match="shapes"):
                script.model(torch.ones(2, 5))
            assert not torch.is_autocast_enabled("cpu")
        with torch.autocast("cpu", dtype=torch.float16):
            with pytest.raises(RuntimeError, match="shapes"):
                script.model(torch.ones(2, 5))
            assert torch.get_autocast_dtype("cpu") is torch.float16
        script.iteration(1)


def test_fp32_run_has_no_precision_to_change() -> None:
    seed_everything()
    model = make_model(Setup())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with guarded(model, optimizer) as g:
        for number in range(5):
            loss = model(torch.ones(2, 6)).sum()
            optimizer.zero_grad()
            (loss * (math.nan if number == 3 else 1)).backward()
            optimizer.step()
    attempt = g.incidents[0].attempts[0]
    assert [r.type for r in attempt.results] == ["rollback"]
    assert [(what, "FP32" in why) for what, why in attempt.unavailable] == [("precision", True)]


# ---- copies


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "ema": lambda model: AveragedModel(model).module,
}


@pytest.mark.parametrize("how", COPIES)
def test_copies_of_the_model_are_inert(how: str) -> None:
    """They compute with their own weights, in the precision the loop asks for, and no guard counts their passes."""
    x = batch_of(0)[0]
    with overridden(watch=False) as (script, g, _):
        twin = COPIES[how](script.model)
        with torch.no_grad():
            twin.inner.weight.zero_()
            twin.inner.bias.fill_(1.0)
        with torch.autocast("cpu", dtype=torch.float16):
            assert twin.inner(x).dtype is torch.float16
            out = twin(x)
            assert out.dtype is torch.float16
            assert torch.equal(out, out[:1].expand_as(out))
            assert script.model(x).dtype is torch.bfloat16
        out.float().sum().backward()
        assert g.tick == 1


def test_a_copy_can_be_guarded_itself() -> None:
    with overridden() as (script, g, _):
        twin = copy.deepcopy(script.model)
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
        with guarded(twin, optimizer) as other:
            for index in range(3):
                x, y = batch_of(index)
                mse_loss(twin(x), y).backward()
                optimizer.step()
            assert (other.tick, g.tick) == (3, 1)
            assert other.live.ring.start is not None
