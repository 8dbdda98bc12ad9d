"""A look inside: the numbers are right, the run is left as it was, and nothing is measured that nobody asked for."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import guard
from guard.clock import FakeClock
from guard.errors import PolicyError
from guard.patching import entry_modules
from guard.signals import Deep
from guard.signals.deep import _ENTRIES, _UNITS

FAULTS = ["dead_activations", "saturated_activations", "update_ratio", "weights", "bad_batch", "slow_step"]
EVERYTHING = {"activations": 1, "layers": 1, "updates": 1, "inputs": 1, "seconds": 1}


def policy(*types: str, **params: Any) -> dict[str, Any]:
    names = types or FAULTS
    every = {} if "every" not in params else {"every": params["every"]}
    return {"version": 1, "policies": [
        {"name": f"on {n}", "trigger": {"type": n, **(every if n in FAULTS[:-1] else {})}, "severity": "info"}
        for n in names]}  # fmt: skip


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    assert not _ENTRIES
    assert not _UNITS


class Looker:
    """A training loop around a bare collector."""

    def __init__(self, model: nn.Module, lr: float = 0.1, **needs: int) -> None:
        self.model, self.clock = model, FakeClock()
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr) if list(model.parameters()) else None
        optimizers = [self.optimizer] if self.optimizer else []
        self.deep = Deep(model, entry_modules(model), optimizers, needs or EVERYTHING, self.clock)
        self.tick = 0
        self.deep.start()

    def step(self, *inputs: Any, updated: bool = True, loss: float = 1.0, scale: float = 1.0) -> dict[str, Any]:
        for x in inputs:
            out = self.model(x)
            out = out[0] if isinstance(out, tuple) else out
            (out.square().mean() * scale).backward()
        found = self.deep.collect(loss, 1.0, 0.1, scale)
        if updated and self.optimizer:
            self.optimizer.step()
        if self.optimizer:
            self.optimizer.zero_grad()
        self.tick += 1
        self.clock.advance(0.5)
        self.deep.next_tick(self.tick, updated=updated)
        return found or {}

    def __enter__(self) -> Looker:
        return self

    def __exit__(self, *_: object) -> None:
        self.deep.stop()
        assert hooks(self.model) == 0


# ---- the numbers


def test_layers() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[1].bias.requires_grad_(False)
    with Looker(model, layers=1) as looker:
        x = torch.randn(5, 3)
        model(x).square().mean().backward()
        gradient, weight = model[0].weight.grad.clone(), model[0].weight.detach().clone()
        looker.optimizer.zero_grad()
        layers = looker.step(x)["layers"]
        assert list(layers) == ["0.weight", "0.bias", "1.weight", "1.bias"]
        w = layers["0.weight"]
        assert (w["size"], w["dims"]) == (12, 2)
        assert w["grad"] == pytest.approx(float(gradient.norm()), rel=1e-6)
        assert w["norm"] == pytest.approx(float(weight.norm()), rel=1e-6)
        assert w["peak"] == pytest.approx(float(weight.abs().max()), rel=1e-6)
        assert w["spread"] == pytest.approx(float(weight.max() - weight.min()), rel=1e-6)
        assert layers["1.bias"]["grad"] is None
        assert looker.step(x, scale=1024.0)["layers"]["0.bias"]["grad"] < 10


def test_updates_are_those_of_the_look_before() -> None:
    model = nn.Linear(3, 4)
    with Looker(model, lr=0.1, updates=2) as looker:
        x = torch.randn(5, 3)
        model(x).square().mean().backward()
        expected = 0.1 * float(model.weight.grad.norm() / model.weight.detach().norm())
        looker.optimizer.zero_grad()
        assert looker.step(x) == {}
        updates = looker.step(x)["updates"]
        assert updates["tick"] == 0
        assert updates["layers"]["weight"]["ratio"] == pytest.approx(expected, rel=1e-4)
        assert updates["layers"]["weight"]["rms"] == pytest.approx(0.3, rel=0.5)
        assert looker.step(x, updated=False) == {}
        assert looker.step(x) == {}, "a step that was left out has no update"


def test_a_sample_of_a_large_tensor_says_the_same() -> None:
    model = nn.Linear(1024, 1500, bias=False)
    with Looker(model, lr=0.1, updates=1) as looker:
        before = model.weight.detach().clone()
        looker.step(torch.randn(4, 1024))
        after = model.weight.detach().clone()
        found = looker.step(torch.randn(4, 1024))["updates"]["layers"]["weight"]
        assert found["ratio"] == pytest.approx(float((after - before).norm() / before.norm()), rel=0.05)


def test_dead_units_are_counted_over_looks() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    with torch.no_grad():
        model[0].bias.copy_(torch.tensor([100.0, -100.0, -100.0, 100.0]))
    with Looker(model, lr=0.0, activations=2) as looker:
        x = torch.randn(5, 3)
        first = looker.step(x)["activations"]
        assert first == {"1": {"dead": [0.5] + [0.0] * 7, "units": 4, "values": 5}}
        assert looker.step(x) == {}
        assert looker.step(x, x)["activations"]["1"] == {"dead": [0.5, 0.5] + [0.0] * 6, "units": 4, "values": 10}
        looker.step(x)
        with torch.no_grad():
            model[0].bias[1] = 100.0
        assert looker.step(x)["activations"]["1"]["dead"] == [0.25, 0.25, 0.25] + [0.0] * 5


def test_a_unit_that_lives_in_one_micro_batch_lives() -> None:
    model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0], [-1.0]]))
    with Looker(model, lr=0.0, activations=1) as looker:
        assert looker.step(torch.ones(4, 1))["activations"]["1"]["dead"][0] == 0.5
        assert looker.step(torch.ones(4, 1), -torch.ones(4, 1))["activations"]["1"]["dead"][0] == 0.0


@pytest.mark.parametrize(
    ("function", "inner", "flat"),
    [
        (nn.Sigmoid(), 1.0, 50.0),
        (nn.Tanh(), 0.5, -50.0),
        (nn.Hardtanh(-2, 2), 1.9, 3.0),
        (nn.Hardsigmoid(), 0.0, -4.0),
        (nn.ReLU6(), 5.0, 7.0),
        (nn.Softsign(), 1.0, 1e4),
    ],
)
def test_saturated_units(function: nn.Module, inner: float, flat: float) -> None:
    model = nn.Sequential(nn.Linear(1, 4), function, nn.Linear(4, 1))
    nn.init.zeros_(model[0].weight)
    with torch.no_grad():
        model[0].bias.copy_(torch.tensor([inner, flat, flat, flat]))
    with Looker(model, lr=0.0, activations=1) as looker:
        entry = looker.step(torch.randn(5, 1))["activations"]["1"]
        assert entry["saturated"] == [0.75] + [0.0] * 7


def test_the_models_own_output_may_be_certain() -> None:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.out = nn.Sequential(nn.Linear(1, 4), nn.Sigmoid(), nn.Linear(4, 1)), nn.Sigmoid()

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.hidden(x)).squeeze(-1)

    with Looker(Classifier(), activations=1) as looker:
        for _ in range(2):
            assert list(looker.step(torch.randn(5, 1))["activations"]) == ["hidden.1"]


def test_inputs() -> None:
    model = nn.Linear(2, 2)
    with Looker(model, inputs=1) as looker:
        good = {"finite": True, "peak": 4.0, "zero": False, "ignored": False}
        assert looker.step(torch.tensor([[1.0, -4.0]]))["inputs"] == good
        assert looker.step(torch.zeros(3, 2))["inputs"] == good | {"peak": 0.0, "zero": True}
        assert not looker.step(torch.tensor([[1.0, math.inf]]))["inputs"]["finite"]
        assert not looker.step(torch.ones(1, 2), torch.tensor([[math.nan, 1.0]]))["inputs"]["finite"]
        with torch.no_grad():
            model(torch.full((1, 2), 9.0))  # not a training pass
        assert looker.step(torch.ones(1, 2))["inputs"]["peak"] == 1.0


LONG = torch.int64


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ((torch.ones(3, 2), torch.full((3,), -100, dtype=LONG)), {"ignored": True}),
        ((torch.ones(3, 2), torch.tensor([-100, 1, 2])), {}),
        ({"x": torch.ones(3, 2), "attention_mask": torch.full((3,), -math.inf)}, {}),
        ([torch.ones(3, 2), {"bias": torch.tensor([0.0, -math.inf])}], {}),
        ((torch.ones(3, 2), torch.tensor([0.0, math.inf])), {"finite": False}),
        ((torch.ones(3, 2, dtype=torch.bfloat16), torch.zeros(3)), {}),
        ((torch.zeros(3, 2, dtype=torch.float16), torch.ones(3)), {"zero": True}),
        ((torch.ones(3, 2, requires_grad=True), "text", None, 3), {}),
        ((torch.ones(0, 2), torch.ones(1)), {}),
        (torch.tensor([1, 2]), {"peak": 0.0}),
    ],
)
def test_batches_of_all_kinds(batch: Any, expected: dict[str, Any]) -> None:
    with Looker(nn.Linear(1, 1), inputs=1) as looker:
        looker.deep.saw(batch)
        inputs = looker.deep.collect(1.0, 1.0, 0.1, 1.0)["inputs"]  # type: ignore[index]
        healthy = {"finite": True, "peak": inputs["peak"], "zero": False, "ignored": False}
        assert inputs == healthy | expected
        assert inputs["peak"] <= 1.0


def test_large_batches_are_looked_at_now_and_then_and_when_the_step_is_bad() -> None:
    large, small = torch.ones(1001, 1000), torch.ones(2, 1000)
    with Looker(nn.Linear(1000, 1), lr=0.0, inputs=3) as looker:
        looks = [looker.step(large if t != 4 else small, loss=math.nan if t == 5 else 1.0) for t in range(8)]
    assert ["inputs" in look for look in looks] == [True, False, False, True, True, True, True, False]


def test_seconds() -> None:
    with Looker(nn.Linear(1, 1), seconds=1) as looker:
        assert [looker.step(torch.ones(1, 1)) for _ in range(3)] == [{}, {"seconds": 0.5}, {"seconds": 0.5}]


# ---- models of all kinds


class Reused(nn.Module):
    """One ReLU at two places, the second of which is dead."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.relu = nn.Linear(2, 4), nn.Linear(4, 4), nn.ReLU()
        nn.init.constant_(self.b.bias, -100.0)
        nn.init.constant_(self.a.bias, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.b(self.relu(self.a(x))))


def test_a_module_that_is_used_twice_is_two_places() -> None:
    with Looker(Reused(), lr=0.0, activations=1) as looker:
        for _ in range(2):
            found = looker.step(torch.randn(3, 2), torch.randn(3, 2))["activations"]
            assert {place: entry["dead"][0] for place, entry in found.items()} == {"relu": 0.0, "relu#2": 1.0}


def conv() -> tuple[nn.Module, Tensor]:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 1))
    nn.init.constant_(net[1].bias, 1.0)
    with torch.no_grad():
        net[1].bias[0] = -100.0  # one channel of four
    return net, torch.randn(5, 1, 8, 8)


def sequence() -> tuple[nn.Module, Tensor]:
    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))
    with torch.no_grad():
        net[0].bias[:2] = -100.0
        net[0].bias[2:] = 1.0
    return net, torch.randn(3, 7, 4)


def convolution_over_time() -> tuple[nn.Module, Tensor]:
    net = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Conv1d(4, 1, 3))
    nn.init.constant_(net[0].bias, 1.0)
    with torch.no_grad():
        net[0].bias[0] = -100.0
    return net, torch.randn(3, 2, 9)


@pytest.mark.parametrize("make", [conv, sequence, convolution_over_time])
def test_units_are_channels_or_features(make: Callable[[], tuple[nn.Module, Tensor]]) -> None:
    model, x = make()
    with Looker(model, lr=0.0, activations=1) as looker:
        (entry,) = looker.step(x)["activations"].values()
        assert entry["dead"][0] == 0.25


def test_recurrent_nets() -> None:
    for nonlinearity, kind in (("tanh", "saturated"), ("relu", "dead")):
        rnn = nn.RNN(3, 4, nonlinearity=nonlinearity, batch_first=True)
        nn.init.constant_(rnn.bias_ih_l0, -100.0)

        class Last(nn.Module):
            def __init__(self, inner: nn.RNN) -> None:
                super().__init__()
                self.rnn, self.lstm, self.head = inner, nn.LSTM(4, 4, batch_first=True), nn.Linear(4, 1)

            def forward(self, x: Any) -> Tensor:
                return self.head(self.lstm(self.rnn(x)[0])[1][0])

        with Looker(Last(rnn), lr=0.0, activations=1) as looker:
            assert looker.step(torch.randn(2, 5, 3))["activations"]["rnn"][kind][0] == 1.0
            packed = nn.utils.rnn.pack_padded_sequence(torch.randn(2, 5, 3), [5, 3], batch_first=True)
            assert looker.step(packed)["activations"]["rnn"]["values"] == 8


def test_a_transformer() -> None:
    class Block(nn.TransformerEncoderLayer):
        def __init__(self) -> None:
            super().__init__(8, 2, 16, dropout=0.1, activation=nn.ReLU(), batch_first=True)

    with Looker(nn.TransformerEncoder(Block(), 2, enable_nested_tensor=False)) as looker:
        for _ in range(3):
            found = looker.step(torch.randn(3, 5, 8))
        assert set(found) == set(EVERYTHING)
        assert len(found["activations"]) == 2


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_parts_are_counted_once(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.part = nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.part, self.first(x), use_reentrant=reentrant)  # type: ignore[no-any-return]

    with Looker(Checkpointed(), activations=1) as looker:
        found = looker.step(torch.randn(6, 2))["activations"]
        assert list(found) == ["part.1"]
        assert found["part.1"]["values"] == 6


def test_sparse_complex_half_and_empty_parameters() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10, 4, sparse=True)
            self.wave = nn.Parameter(torch.ones(3, dtype=torch.cfloat))
            self.short = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
            self.nothing = nn.Parameter(torch.zeros(0))

        def forward(self, i: Tensor) -> Tensor:
            return self.embedding(i).mean() * (self.wave.abs().sum() + self.short.float().sum())  # type: ignore[no-any-return]

    with Looker(Odd()) as looker:
        looker.step(torch.tensor([1, 2]))
        found = looker.step(torch.tensor([1, 2]))
        assert set(found["layers"]) == set(found["updates"]["layers"]) == {"embedding.weight", "wave", "short"}
        assert all(math.isfinite(u["ratio"]) for u in found["updates"]["layers"].values())


def test_lazy_modules_and_parameters_from_elsewhere() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.Linear(3, 1))
    other = nn.Parameter(torch.ones(2))
    deep = Deep(model, [model], [torch.optim.SGD([*model.parameters(), other])], EVERYTHING, FakeClock())
    assert set(deep.collect(1.0, 1.0, 0.1, 1.0)["layers"]) == {"2.weight", "2.bias", "parameter 4"}  # type: ignore[index]


# ---- what it leaves behind


def test_hooks_are_there_only_in_a_tick_that_is_looked_at() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    with Looker(model, activations=3) as looker:
        seen = []
        for _ in range(7):
            before = hooks(model)
            loss = model(torch.randn(4, 2)).sum()
            during = hooks(model)
            loss.backward()
            looker.step()
            seen.append((before, during))
        assert seen == [(1, 3), (1, 1), (1, 1)] * 2 + [(1, 3)]


def test_evaluation_in_between_is_not_looked_at() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    with Looker(model, activations=1) as looker:
        looker.step(torch.randn(4, 2))
        model.eval()
        with torch.no_grad():
            model(torch.randn(100, 2))
        model(torch.randn(100, 2))
        assert hooks(model) == 1
        model.train()
        assert looker.step(torch.randn(4, 2))["activations"]["1"]["values"] == 4


def test_copies_taken_during_a_look_are_free_of_it() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    with Looker(model) as looker:
        model(torch.randn(4, 2))
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            twin(torch.randn(50, 2)).sum().backward()
        assert looker.step(torch.randn(4, 2))["activations"]["1"]["values"] == 8


def test_a_hook_that_fails_is_told_where_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    with Looker(model, activations=1) as looker:
        monkeypatch.setattr(type(looker.deep._marks), "add", lambda *_: 1 / 0)
        model(torch.randn(4, 2)).sum().backward()
        with pytest.raises(ZeroDivisionError):
            looker.step()


# ---- under a guard


def train(
    tmp_path: Path,
    make: Callable[[], nn.Module],
    shape: tuple[int, ...],
    chosen: Any,
    mode: str = "enforce",
    loop: str = "attach",
    steps: int = 12,
) -> tuple[dict[str, Tensor], list[Any]]:
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    states = []

    def one(x: Tensor) -> None:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        states.append(g.slots[0].signals.deep if g else None)

    if chosen is None:
        g = None
        for _ in range(steps):
            one(torch.randn(shape))
    else:
        with guard.attach(model, optimizer, policy=chosen, mode=mode, run_dir=tmp_path, receivers=[]) as g:
            if loop == "attach":
                for _ in range(steps):
                    one(torch.randn(shape))
            else:
                for x in g.batches(lambda _: torch.randn(shape), steps=steps):
                    one(x)
            assert g.incidents == []
    assert hooks(model) == 0
    return {**model.state_dict(), "rng": torch.get_rng_state()}, states


def mlp() -> nn.Module:
    first = nn.Sequential(nn.Linear(6, 32), nn.ReLU(inplace=True), nn.Dropout(0.1))
    return nn.Sequential(*first, nn.Linear(32, 8), nn.Tanh(), nn.Linear(8, 2))


def convolutional() -> nn.Module:
    first = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU6())
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(8 * 36, 2), nn.Sigmoid())


def transformer() -> nn.Module:
    block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, activation=nn.GELU(), batch_first=True)
    return nn.TransformerEncoder(block, 2, enable_nested_tensor=False)


@pytest.mark.parametrize("mode", ["observe", "enforce"])
@pytest.mark.parametrize("loop", ["attach", "batches"])
@pytest.mark.parametrize(("make", "shape"), [(mlp, (16, 6)), (convolutional, (4, 1, 8, 8)), (transformer, (3, 5, 8))])
def test_training_is_the_same_bit_for_bit(tmp_path: Path, make: Any, shape: Any, mode: str, loop: str) -> None:
    plain, _ = train(tmp_path, make, shape, None)
    looked, states = train(tmp_path, make, shape, policy(every=1), mode, loop)
    assert all(torch.equal(plain[key], looked[key]) for key in plain)
    assert all(set(deep) >= {"activations", "layers", "updates", "inputs", "seconds"} for deep in states[1:])


def test_nothing_is_measured_that_nobody_asks_for(tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with guard.attach(model, optimizer, policy="default", mode="observe", run_dir=tmp_path, receivers=[]) as g:
        assert g.deep is None
        assert hooks(model) == 0
    states = train(tmp_path / "b", mlp, (16, 6), policy("weights", every=4))[1]
    assert [set(deep) if deep else None for deep in states] == ([{"layers"}, None, None, None] * 3)


@pytest.mark.parametrize("mode", ["observe", "enforce"])
@pytest.mark.parametrize("outside", [False, True])
def test_compiled_models_are_not_compiled_again(tmp_path: Path, mode: str, outside: bool) -> None:
    def compilations(chosen: Any) -> int:
        torch.compiler.reset()
        graphs = []

        def backend(graph: Any, _: Any) -> Any:
            graphs.append(graph)
            return graph.forward

        torch.manual_seed(0)
        model = mlp()
        compiled: Any = torch.compile(model, backend=backend)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        run = tmp_path / str(len(list(tmp_path.iterdir())))
        watched = compiled if outside else model
        with guard.attach(watched, optimizer, policy=chosen, mode=mode, run_dir=run, receivers=[]) as g:
            for _ in range(6):
                compiled(torch.randn(16, 6)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            assert g.incidents == []
        return len(graphs)

    assert compilations(policy(every=2)) == compilations(policy("grad_explosion"))


def test_a_batch_of_zeros_is_left_out_before_the_update(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    skip = {"name": "p", "trigger": {"type": "bad_batch"}, "actions": [{"type": "skip_step"}]}
    rules = {"version": 1, "policies": [skip]}
    with guard.attach(model, optimizer, policy=rules, run_dir=tmp_path, receivers=[]) as g:
        for x in g.batches(lambda i: torch.zeros(4, 6) if i == 5 else torch.randn(4, 6), steps=10):
            before = model[0].weight.detach().clone()
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            assert torch.equal(before, model[0].weight) == (g.tick == 6)
        assert [(i.detector, i.opened_tick) for i in g.incidents] == [("bad_batch", 5)]


def test_units_that_die_are_told_with_the_tick_of_their_death(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rules = policy("dead_activations", every=2)
    with guard.attach(model, optimizer, policy=rules, run_dir=tmp_path, receivers=[]) as g:
        for i in range(30):
            if i == 11:
                with torch.no_grad():
                    model[0].bias[:20] = -100.0
            model(torch.randn(64, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    (incident,) = g.incidents
    assert (incident.detector, incident.opened_tick) == ("dead_activations", 16)
    assert incident.evidence["detection"]["since"] == 12


def test_a_look_that_fails_is_reported_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guard.signals.deep._layers", lambda *_: 1 / 0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with guard.attach(model, optimizer, policy=policy(every=1), run_dir=tmp_path, receivers=[]) as g:
        for _ in range(4):
            model(torch.randn(64, 6)).square().mean().backward()
            optimizer.step()
        assert g.tick == 4
        assert [i.detector for i in g.incidents] == ["plugin_failure"]


def test_an_interval_of_zero_is_refused(tmp_path: Path) -> None:
    model = mlp()
    with pytest.raises(PolicyError, match="every"):
        guard.attach(model, torch.optim.SGD(model.parameters()), policy=policy("weights", every=0), run_dir=tmp_path)


def test_two_optimizers_and_a_container_of_models(tmp_path: Path) -> None:
    torch.manual_seed(0)
    generator, critic = mlp(), nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
    both = nn.ModuleDict({"generator": generator, "critic": critic})
    optimizers = [torch.optim.Adam(generator.parameters()), torch.optim.Adam(critic.parameters())]
    with guard.attach(both, optimizers, policy=policy(every=1), run_dir=tmp_path, receivers=[]) as g:
        for _ in range(4):
            (-critic(generator(torch.randn(32, 6))).mean()).backward()
            optimizers[0].step()
            deep = g.slots[0].signals.deep
            optimizers[1].step()
            for optimizer in optimizers:
                optimizer.zero_grad()
        assert g.incidents == []
    assert {"generator.1", "generator.4", "critic.1"} == set(deep["activations"])
    assert "critic.2.bias" in deep["layers"]
    assert set(deep["layers"]) == set(deep["updates"]["layers"])


def test_closures(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.randn(32, 6)).square().mean()
        loss.backward()
        return loss

    with guard.attach(model, optimizer, policy=policy(every=1), run_dir=tmp_path, receivers=[]) as g:
        for _ in range(3):
            optimizer.step(closure)
            assert g.slots[0].signals.deep["activations"]["1"]["values"] == 32
            assert hooks(model) == 2


def test_a_rollback_takes_back_what_looks_had_shown(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    undo = {"type": "rollback", "data": "skip_offending"}
    back = {"name": "back", "trigger": {"type": "non_finite"}, "actions": [undo]}
    rules = policy(every=2) | {"checkpoints": {"every": 2, "probation": 1}}
    rules["policies"].append(back)
    seen = {}
    with guard.attach(model, optimizer, policy=rules, run_dir=tmp_path, receivers=[]) as g:
        for x in g.batches(lambda i: torch.randn(32, 6) * (math.nan if i == 8 else 1.0), steps=16):
            model(x).square().mean().backward()
            optimizer.step()
            seen[g.tick - 1] = g.slots[0].signals.deep
            optimizer.zero_grad()
        assert {i.detector for i in g.incidents} == {"non_finite", "bad_batch"}
    assert not seen[8]["inputs"]["finite"]
    assert "updates" in seen[7]
    assert "updates" not in seen[9], "the weights went back in between"
    assert "updates" in seen[11]
    assert all(p.isfinite().all() for p in model.parameters())
