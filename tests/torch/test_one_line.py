"""Loops that only call `attach`: the loss is heard, a rollback restores state, and the loop goes on with fresh data."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from _runs import (
    Parts,
    Setup,
    differences,
    flatten,
    guarded,
    make_model,
    make_source,
    mse_loss,
    policies,
    policy,
    rng_state,
    seed_everything,
)
from torch import nn

BACK = {"type": "rollback"}  # without a feed there is nothing to replay: it goes on with fresh data
POLICY = policies(policy("non_finite", [BACK], limits={"max": 20}), every=4, probation=2)


def losses_of(g: Any) -> list[float]:
    return [row[2] for row in g.signals]


# ---- the loss


@pytest.mark.parametrize(
    "how",
    [
        lambda loss: loss.backward(),
        lambda loss: torch.autograd.backward(loss),
        lambda loss: torch.autograd.backward([loss]),
        lambda loss: loss.backward(torch.ones(())),
    ],
    ids=["method", "function", "list", "gradient"],
)
def test_loss_is_heard(how: Callable[[torch.Tensor], None]) -> None:
    parts, said = Parts(Setup()), []
    with parts.attached("default") as g:
        for number in range(5):
            loss = parts.forward(parts.source(number))
            how(loss)
            parts.update(loss)
            said.append(loss.item())
        assert losses_of(g) == said


def test_loss_scale_is_taken_out() -> None:
    parts, said = Parts(Setup(fp16=True)), []
    with parts.attached("default") as g:
        for number in range(12):  # the scale grows meanwhile
            loss = parts.forward(parts.source(number))
            parts.backward(loss)
            parts.update(loss)
            said.append(loss.item())
        assert losses_of(g) == pytest.approx(said, rel=1e-6)
        assert len({row[6] for row in g.signals}) > 1


def test_accumulation_by_hand_sums_divided_losses() -> None:
    parts, said = Parts(Setup(accumulate=4)), []
    with parts.attached("default") as g:
        for number in range(20):
            loss = parts.forward(parts.source(number))
            parts.backward(loss)
            said.append(loss.item())
            if number % 4 == 3:
                parts.update(loss)
        assert losses_of(g) == pytest.approx([sum(said[i : i + 4]) / 4 for i in range(0, 20, 4)], rel=1e-5)
        assert g.tick == g.step == 5


def test_several_losses_of_one_step_are_summed() -> None:
    parts = Parts(Setup())
    with parts.attached("default") as g:
        one, two = parts.forward(parts.source(0)), parts.forward(parts.source(1))
        one.backward()
        two.backward()
        parts.optimizer.step()
        assert losses_of(g) == pytest.approx([one.item() + two.item()])


def test_record_wins_over_what_is_heard() -> None:
    parts = Parts(Setup())
    with parts.attached("default") as g:
        loss = parts.forward(parts.source(0))
        g.record(42.0)
        (loss * 10).backward()
        parts.optimizer.step()
        assert losses_of(g) == [42.0]


def test_backward_without_a_scalar_is_no_loss() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with guarded(model, optimizer) as g:
        model(torch.ones(1, 2)).backward(torch.ones(1, 2))
        optimizer.step()
        assert math.isnan(losses_of(g)[0])
        assert g.incidents == []


# ---- a rollback


class Recorder:
    """Notes the whole state at the start of every iteration, by step."""

    def __init__(self, parts: Parts, g: Any) -> None:
        self.parts, self.g, self.visits = parts, g, []

    def begin(self) -> None:
        state = self.parts.state()
        self.visits.append((self.g.step, {k: v for k, v in state.items() if not k.startswith("/rng")}))

    def went_back(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """For every step begun twice: the state at the first and at the second time."""
        seen: dict[int, dict[str, Any]] = {}
        pairs = []
        for step, state in self.visits:
            if step in seen:
                pairs.append((seen[step], state))
            seen[step] = state
        return pairs


@pytest.mark.parametrize(
    "setup",
    [
        Setup(batch_norm=True, ema="module", scheduler="cosine", steps=24),
        Setup(ema="dict", scheduler="onecycle", steps=60),
        Setup(scheduler="plateau", steps=24),
        Setup(fp16=True, scheduler="lambda", ema="module", steps=24),
        Setup(fp16=True, optimizer="fused", steps=24),
        Setup(accumulate=2, scheduler="cosine", ema="dict", steps=24),
    ],
    ids=repr,
)
@pytest.mark.parametrize("kind", ["input", "update"])
def test_rollback_restores_everything_and_goes_on(setup: Setup, kind: str) -> None:
    """Scheduler, scaler and moving average in the rest of the discarded iteration leave no trace."""
    parts = Parts(setup)
    with parts.attached(POLICY) as g:
        # The hook sees the restored state: it runs after the guard's, at the start of the next training forward pass.
        recorder = Recorder(parts, g)
        begins = [True]

        def begin(*_: Any) -> None:
            if begins[0]:
                begins[0] = False
                recorder.begin()

        parts.model[0].register_forward_pre_hook(begin)
        micro = 0
        while g.tick < setup.steps:
            if micro % setup.accumulate == 0:
                begins[0] = True
            x, y = parts.source(micro)
            bad = kind == "input" and g.tick == 13
            loss = parts.forward((x * math.nan if bad else x, y))
            parts.backward(loss)
            micro += 1
            if micro % setup.accumulate == 0:
                if kind == "update" and g.tick == 13:
                    handle = parts.optimizer.register_step_post_hook(
                        lambda *_: parts.model[0].weight.data.fill_(math.inf)
                    )
                    parts.update(loss)
                    handle.remove()
                else:
                    parts.update(loss)
        assert [len(i.attempts) for i in g.incidents] == [1]
        lost = g.incidents[0].attempts[0].results[0].changes
        assert lost["data"] == "advance"
        assert g.step == setup.steps - 1 - (lost["from_step"] - lost["to_step"])
    first, second = recorder.went_back()[0]
    if kind == "update":
        first = next(state for step, state in recorder.visits if step == lost["to_step"])
    assert differences(first, second) == []
    assert all(bool(torch.isfinite(v).all()) for v in parts.state().values() if isinstance(v, torch.Tensor))
    if setup.scheduler in ("cosine", "lambda", "onecycle"):
        assert parts.scheduler.last_epoch == g.step


def test_rollback_in_the_first_step() -> None:
    parts = Parts(Setup(batch_norm=True, scheduler="cosine", ema="dict"))
    start = parts.state()
    with parts.attached(POLICY) as g:
        x, y = parts.source(0)
        loss = parts.forward((x * math.nan, y))
        parts.backward(loss)
        parts.update(loss)
        g.live.boundary()
        assert g.step == 0
        assert differences(parts.state(), start) == []


def test_run_ends_right_after_a_rollback() -> None:
    """The last iteration was discarded: `close` undoes what the rest of the loop's body did to it."""
    parts = Parts(Setup(batch_norm=True, scheduler="cosine", ema="dict"))
    with parts.attached(POLICY) as g:
        for number in range(10):
            x, y = parts.source(number)
            loss = parts.forward((x * math.nan if number == 9 else x, y))
            parts.backward(loss)
            parts.update(loss)
        step = g.step
    assert parts.scheduler.last_epoch == step
    assert all(bool(torch.isfinite(v).all()) for v in parts.state().values() if isinstance(v, torch.Tensor))


def test_last_update_of_an_unmodified_loop_is_checked() -> None:
    """The optimizer's last update wrote Inf, nothing comes after it but `close`."""
    parts = Parts(Setup())
    with parts.attached(POLICY) as g:
        for number in range(10):
            loss = parts.forward(parts.source(number))
            parts.backward(loss)
            parts.optimizer.step()
        parts.model[0].weight.data[0, 0] = math.inf
    assert bool(parts.model[0].weight.isfinite().all())
    assert [i.detector for i in g.incidents] == ["non_finite"]


def test_gradients_that_nobody_clears_are_not_poisoned() -> None:
    """0 * NaN is NaN: a loop that accumulates over a bad step must get finite gradients afterwards."""
    parts = Parts(Setup())
    with parts.attached(policies(policy("non_finite", [{"type": "skip_step"}]))) as g:
        for number in range(12):
            loss = parts.forward(parts.source(number))
            (loss * math.nan if number == 4 else loss).backward()
            parts.optimizer.step()
        assert sum(math.isnan(x) for x in losses_of(g)) == 1
        assert g.incidents[0].count == 1
    assert all(bool(p.isfinite().all()) for p in parts.model.parameters())


# ---- models of other shapes


def test_gan_rolls_both_players_back() -> None:
    seed_everything()
    generator, critic = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    players = nn.ModuleList([generator, critic])
    optimizers = [torch.optim.Adam(generator.parameters(), 1e-3), torch.optim.Adam(critic.parameters(), 1e-3)]
    schedulers = [torch.optim.lr_scheduler.LinearLR(o, total_iters=30) for o in optimizers]
    begun: dict[int, list[dict[str, Any]]] = {}
    with guarded(players, optimizers, scheduler=schedulers, policy=POLICY) as g:
        for number in range(24):
            begins = [True]

            def begin(*_: Any, begins: list[bool] = begins) -> None:
                if begins[0]:
                    begins[0] = False
                    begun.setdefault(g.step, []).append(
                        flatten([t.state_dict() for t in (players, *optimizers, *schedulers)])
                    )

            handle = generator.register_forward_pre_hook(begin)
            for optimizer in optimizers:
                optimizer.zero_grad()
            fake = generator(torch.randn(8, 3))
            loss = (critic(fake.detach()) - critic(torch.randn(8, 4) + 2)).mean()
            (loss * math.nan if number == 10 else loss).backward()
            optimizers[1].step()
            optimizers[0].zero_grad()
            (-critic(fake)).mean().backward()
            optimizers[0].step()
            for scheduler in schedulers:
                scheduler.step()
            handle.remove()
        assert [(len(i.attempts), a.repeats) for i in g.incidents for a in i.attempts] == [(1, 0)]
        change = g.incidents[0].attempts[0].results[0].changes
        assert g.step == 24 - 1 - (change["from_step"] - change["to_step"])
        first, second = begun[change["to_step"]][:2]
    assert differences(first, second) == []
    assert [s.last_epoch for s in schedulers] == [g.step] * 2
    assert all(bool(p.isfinite().all()) for p in players.parameters())


class NoForward(nn.Module):
    """Its loop calls parts of it only; it has no forward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 8), nn.Linear(8, 2)

    def training_loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return mse_loss(self.decoder(torch.tanh(self.encoder(x))), y)


class ForwardForInference(NoForward):
    """It has one, which training does not use."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(torch.tanh(self.encoder(x)))


@pytest.mark.parametrize("kind", [NoForward, ForwardForInference])
@pytest.mark.parametrize("nan_at", [0, 12])
def test_model_whose_root_forward_is_never_called(kind: type[NoForward], nan_at: int) -> None:
    seed_everything()
    model = kind()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    source = make_source("callable")
    with guarded(model, optimizer, policy=POLICY) as g:
        for number in range(20):
            x, y = source(number)
            optimizer.zero_grad()
            loss = model.training_loss(x, y)
            (loss * math.nan if number == nan_at else loss).backward()
            optimizer.step()
        assert [[r.type for r in a.results] for i in g.incidents for a in i.attempts] == [["rollback"]]
        assert g.step < g.tick == 20
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_evaluation_is_no_iteration() -> None:
    """Forward passes without gradients between two steps take no snapshot and end no iteration."""
    parts = Parts(Setup(batch_norm=True))
    with parts.attached(policies(policy("non_finite", [BACK]), every=1)) as g:
        for number in range(6):
            loss = parts.forward(parts.source(number))
            parts.backward(loss)
            parts.update(loss)
            tick = g.live.ring.newest_tick()
            parts.model.eval()
            with torch.no_grad():
                parts.forward(parts.source(100))
            parts.model.train()
            assert g.live.ring.newest_tick() == tick


def test_skip_puts_batch_norm_back_and_nothing_is_drawn() -> None:
    seed_everything()
    model = make_model(Setup(batch_norm=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    source = make_source("callable")
    with guarded(model, optimizer, policy=policies(policy("non_finite", [{"type": "skip_step"}]))):
        for number in range(6):
            x, y = source(number)
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
        before = flatten({"model": model.state_dict()})
        x, y = source(7)
        loss = mse_loss(model(x * math.nan), y)
        rng = flatten(rng_state())
        loss.backward()
        optimizer.step()
        assert differences(flatten({"model": model.state_dict()}), before) == []
        assert differences(flatten(rng_state()), rng) == []


def test_skip_puts_every_kind_of_changing_buffer_back() -> None:
    seed_everything()
    convolution = nn.utils.parametrizations.spectral_norm(nn.Conv1d(1, 4, 3))
    model = nn.Sequential(
        nn.Unflatten(1, (1, 6)), convolution, nn.InstanceNorm1d(4, track_running_stats=True), nn.Flatten()
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with guarded(model, optimizer, policy=policies(policy("non_finite", [{"type": "skip_step"}]))):
        for number in range(6):
            before = flatten(model.state_dict())
            optimizer.zero_grad()
            loss = model(torch.randn(4, 6)).pow(2).mean()
            (loss * math.nan if number == 5 else loss).backward()
            optimizer.step()
        assert differences(flatten(model.state_dict()), before) == []


def test_training_in_eval_mode() -> None:
    """Fine-tuning with frozen statistics: the model is in eval mode all the time, and still goes back."""
    seed_everything()
    model = make_model(Setup(batch_norm=True)).eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    source = make_source("callable")
    with guarded(model, optimizer, policy=POLICY) as g:
        for number in range(20):
            x, y = source(number)
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            (loss * math.nan if number == 12 else loss).backward()
            optimizer.step()
        assert [[r.type for r in a.results] for i in g.incidents for a in i.attempts] == [["rollback"]]


@pytest.mark.parametrize("what", ["model", "optimizer"])
def test_state_loaded_after_a_rollback_is_kept(what: str) -> None:
    """The last step of an epoch went back, then the loop loads its best weights: these count."""
    seed_everything()
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    source = make_source("callable")
    with guarded(model, optimizer, policy=POLICY) as g:
        for number in range(12):
            x, y = source(number)
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            (loss * math.nan if number == 10 else loss).backward()
            optimizer.step()
            if number == 3:
                best = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
            if number == 10:
                {"model": model, "optimizer": optimizer}[what].load_state_dict(best[what])
                loaded = flatten({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
                mse_loss(model(x), y)  # the next forward pass
                assert (
                    differences(flatten({"model": model.state_dict(), "optimizer": optimizer.state_dict()}), loaded)
                    == []
                )
        assert g.tick == 12


def test_settings_that_cannot_work_are_said_at_once() -> None:
    half = nn.Linear(3, 1).half()
    with guarded(half, torch.optim.Adam(half.parameters(), lr=1e-3)) as g:
        (notice,) = g.report.log.notices
        assert "eps of 1e-08 is 0 in torch.float16" in notice["message"]
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with guarded(model, optimizer) as g:
        assert "learning rate is 0" in g.report.log.notices[0]["message"]
    with guarded(model, optimizer, scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: i)) as g:
        assert g.report.log.notices == []
    model = nn.Linear(3, 1)
    with guarded(model, torch.optim.AdamW(model.parameters())) as g:
        assert g.report.log.notices == []
