"""There and back again is exact, in this process and in another; another model is refused."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints.children import in_processes, resume_all
from checkpoints.conftest import Open
from checkpoints.small import OPTIMIZERS, Net, Run, differences, flatten, folders, open_store, save
from torch import nn

from guard.checkpoints import TrainingState, to_portable, to_snapshot
from guard.checkpoints.names import Names
from guard.checkpoints.plain import Encoder, UnportableError, decode
from guard.errors import ChangedModelError


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_into_new_objects(name: str, store: Open) -> None:
    run = Run(name).steps(3)
    assert [o.kind for o in save(store(), run)] == ["saved"]
    before = run.everything()
    after = run.steps(4).everything()
    fresh = Run(name, seed=9)
    assert differences(fresh.everything(), before) != []
    fresh.resume(store())
    assert differences(fresh.everything(), before) == []
    assert differences(fresh.steps(4).everything(), after) == []


def test_into_a_new_process(tmp_path: Path) -> None:
    """Weights, statistics, optimizer, dropout masks, all bit for bit, for every optimizer."""
    wanted = {}
    for name in OPTIMIZERS:
        store, run = open_store(tmp_path / name), Run(name).steps(3)
        save(store, run)
        store.close(30)
        wanted[name] = {"before": run.everything(), "after": run.steps(4).everything()}
    in_processes(resume_all, tmp_path, 4)
    for name, both in wanted.items():
        found = torch.load(tmp_path / f"{name}.pt", weights_only=True)
        assert {k: differences(found[k], both[k]) for k in both} == {"before": [], "after": []}, name


def test_before_the_first_step_and_into_a_run_that_has_trained(store: Open) -> None:
    """Optimizer state that did not exist is removed again."""
    run = Run()
    save(store(), run)
    before = run.everything()
    trained = Run(seed=3).steps(5)
    trained.resume(store())
    assert differences(trained.everything(), before) == []
    assert dict(trained.optimizers[0].state) == {}


def test_restored_twice(store: Open) -> None:
    run = Run("lbfgs").steps(3)
    save(store(), run)
    portable = store().load(run.state).portable
    snapshot = to_snapshot(run.state, portable)
    before, after = run.everything(), run.steps(3).everything()
    for _ in range(2):
        run.state.restore(snapshot)
        run.step = 3
        assert differences(run.everything(), before) == []
        assert differences(run.steps(3).everything(), after) == []


def test_names() -> None:
    run = Run().steps(1)
    names = Names(run.state)
    assert set(run.portable().tensors) >= {
        "model.embed.weight",
        "model.body.0.bias",
        "buffer.body.1.running_mean",
        "buffer.seen",
        "extra.average.model.module.embed.weight",
        "optimizer.0.model.embed.weight.exp_avg",
    }
    assert "model.out.weight" not in names.parameters, "tied: saved once"
    assert names.exported["out.weight"] == names.exported["embed.weight"] == "model.embed.weight"
    assert names.passing == {"buffer.seen", "extra.average.buffer.module.seen"}
    assert set(names.exported) == set(run.model.state_dict())


def test_wrappers_leave_no_trace_in_names() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    wrapped = nn.DataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled = nn.Module()  # as torch.compile does it
    compiled._orig_mod = model
    for outer in (model, wrapped, compiled):
        assert set(Names(TrainingState(outer, [optimizer], {})).exported) == {"0.weight", "0.bias"}


def test_parameters_that_only_an_optimizer_holds() -> None:
    model, loose = nn.Linear(2, 2), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([{"params": model.parameters()}, {"params": [loose]}], lr=0.1, momentum=0.9)
    state = TrainingState(model, [optimizer], {})
    (loose.sum() + model(torch.ones(2)).sum()).backward()
    optimizer.step()
    portable = to_portable(state, state.capture(1, 1))
    assert {"loose.0.1/0", "optimizer.0.loose.0.1/0.momentum_buffer"} <= set(portable.tensors)


@dataclass(frozen=True)
class Spot:
    number: int
    of: tuple[int, ...]


PLAIN: dict[str, Any] = {
    "none": None,
    "numbers": [1, 2.5, -(2**70), True, 1j, float("inf")],
    "bytes": b"\x00\xff",
    "tuple": (1, (2, "x"), [3]),
    "set": {1, 2},
    "frozen": frozenset({"a"}),
    "int keys": {0: "a", (1, 2): "b", None: "c", "~": "d"},
    "tilde": {"~": "tensor"},
    "ordered": OrderedDict([("b", 1), ("a", 2)]),
    "counter": Counter({2: 1, 5: 3}),
    "default": defaultdict(list, {"a": [1]}),
    "deque": deque([1, 2], maxlen=3),
    "size": torch.Size([2, 3]),
    "dtype": torch.bfloat16,
    "device": torch.device("cpu"),
    "python rng": random.Random(3).getstate(),
    "numpy scalar": np.float64(2.5),
    "data": Spot(3, (1, 2)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_values(name: str, tmp_path: Path) -> None:
    value, tensors = PLAIN[name], {}
    encoded = Encoder(lambda n, t: tensors.setdefault(n, t) is None or n, {}, {"Spot": Spot}).encode(value, "here")
    torch.save(encoded, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", weights_only=True)
    back = decode(loaded, tensors.__getitem__, lambda n: n, {"Spot": Spot})
    assert back == value
    assert type(back) is type(value)
    if isinstance(value, (deque, defaultdict)):
        assert getattr(back, "maxlen", None) == getattr(value, "maxlen", None)
        assert getattr(back, "default_factory", None) == getattr(value, "default_factory", None)


@pytest.mark.parametrize("array", [np.arange(6, dtype="int16").reshape(2, 3), np.zeros((0, 2)), np.array(3.5)])
def test_arrays(array: Any) -> None:
    tensors: dict[str, Any] = {}
    encoded = Encoder(lambda n, t: tensors.update({n: t}) or n, {}, {}).encode(array, "here")
    back = decode(encoded, tensors.__getitem__, lambda n: n, {})
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())


@pytest.mark.parametrize("value", [lambda: 1, object(), defaultdict(lambda: 1), np.array([object()]), Net])
def test_what_is_no_plain_data(value: Any) -> None:
    with pytest.raises(UnportableError, match="no plain data"):
        Encoder(lambda n, t: n, {}, {}).encode({"a": [value]}, "here")


class Odd:
    def __init__(self) -> None:
        self.loaded: Any = "untouched"

    def state_dict(self) -> dict[str, Any]:
        return {"big": torch.ones(20_000), "hook": {"of": [lambda: 1]}}

    def load_state_dict(self, state: Any) -> None:
        self.loaded = state


def test_an_extra_that_cannot_be_stored_is_named_and_the_rest_is_saved(store: Open) -> None:
    def state() -> tuple[TrainingState, Odd]:
        model, odd = nn.Linear(2, 2), Odd()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.param_groups[0]["callback"] = odd
        return TrainingState(model, [optimizer], {"odd": odd}), odd

    live, _ = state()
    portable = to_portable(live, live.capture(1, 1))
    assert [text.partition(": ")[0] for text in portable.left_out] == [
        "optimizer.0.group 0.callback was left out",
        "other.odd was left out",
    ]
    assert "other.odd.hook.of.0 is a builtins.function, which is no plain data" in portable.left_out[1]
    assert not [n for n in portable.tensors if n.startswith("other.")], "nothing of it is kept"
    one = store()
    assert one.save(portable)
    assert one.wait(30)
    (outcome,) = one.outcomes()
    assert (outcome.kind, outcome.left_out) == ("saved", portable.left_out)
    fresh, odd = state()
    loading = one.load(fresh)
    fresh.restore(to_snapshot(fresh, loading.portable))
    assert loading.portable.left_out == portable.left_out
    assert odd.loaded == "untouched"
    assert isinstance(fresh.optimizers[0].param_groups[0]["callback"], Odd)
    assert torch.equal(fresh.model.weight, live.model.weight)


def test_context_with_live_objects_and_data_classes(store: Open) -> None:
    run = Run().steps(1)
    snapshot = run.capture()
    weight = run.model.embed.weight
    snapshot.context.update(
        place=Spot(7, (1,)),
        held={run.optimizers[0]: {weight: torch.ones(16, 8)}},
        baselines=[{0: deque([1.5])}],
        no=None,
    )
    one = store()
    one.save(to_portable(run.state, snapshot, {"Spot": Spot}))
    one.wait(30)
    fresh = Run(seed=9)
    portable = one.load(fresh.state).portable
    assert portable.left_out == ()
    context = to_snapshot(fresh.state, portable, {"Spot": Spot}).context
    assert context["place"] == Spot(7, (1,))
    assert context["baselines"] == [{0: deque([1.5])}]
    assert context["no"] is None
    ((optimizer, held),) = context["held"].items()
    assert optimizer is fresh.optimizers[0]
    assert flatten(held[fresh.model.embed.weight]) == flatten(torch.ones(16, 8))


def test_keys_that_look_alike_stay_apart() -> None:
    state = TrainingState(nn.Linear(1, 1), [], {})
    snapshot = state.capture(0, 0)
    snapshot.context["x"] = {1: torch.ones(20_000), "1": torch.zeros(20_000), "k" * 200: torch.ones(1)}
    portable = to_portable(state, snapshot)
    back = to_snapshot(state, portable).context["x"]
    assert [float(back[k].sum()) for k in (1, "1")] == [20_000.0, 0.0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda r: r.model.add_module("more", nn.Linear(1, 2)),
            "not in the checkpoint: model.more.weight, model.more.bias",
        ),
        (lambda r: delattr(r.model, "frozen"), "only in the checkpoint: model.frozen.weight, model.frozen.bias"),
        (lambda r: r.model.body[0].bfloat16(), "of another dtype: model.body.0.weight bfloat16 (there float32)"),
        (
            lambda r: setattr(r.model.body[0], "bias", nn.Parameter(torch.ones(3))),
            "of another shape: model.body.0.bias [3] (there [8])",
        ),
        (lambda r: r.model.register_buffer("table", torch.ones(2)), "not in the checkpoint: buffer.table"),
        (
            lambda r: r.state.optimizers.__setitem__(0, torch.optim.SGD(r.model.parameters(), lr=0.1)),
            "optimizer 0 is SGD (there AdamW)",
        ),
        (lambda r: r.state.optimizers.append(r.optimizers[0]), "2 optimizers (there 1)"),
        (
            lambda r: r.optimizers[0].add_param_group({"params": [r.model.frozen.weight]}),
            "optimizer 0 has 2 parameter groups (there 1)",
        ),
        (lambda r: r.state.others.pop("ema"), "schedulers or extra objects only in the checkpoint: ema"),
    ],
)
def test_another_model_is_refused_with_all_differences(change: Any, said: str, store: Open) -> None:
    save(store(), Run().steps(1))
    run = Run()
    run.state.modules.pop("average")
    change(run)
    before = run.everything()
    with pytest.raises(ChangedModelError) as caught:
        store().load(run.state)
    text = str(caught.value)
    assert text.startswith("step-1 was taken of another model or optimizer than this process has:\n")
    assert said in text
    assert "only in the checkpoint: " in text, "the average, which is gone too"
    assert differences(run.everything(), before) == []


def test_differences_are_bounded(store: Open) -> None:
    save(store(), Run().steps(1))
    run = Run()
    run.model.more = nn.ModuleList(nn.Linear(1, 1) for _ in range(500))
    with pytest.raises(ChangedModelError, match=r"more\.0\.weight, .* and 994 more") as caught:
        store().load(run.state)
    assert len(str(caught.value)) < 1000


def test_late_buffers_outside_state_dict_are_no_difference(store: Open) -> None:
    """Tables that a layer makes at its first use."""
    run = Run()
    run.model.register_buffer("cos", torch.ones(7), persistent=False)
    save(store(), run)
    fresh = Run(seed=9)
    fresh.model.register_buffer("sin", torch.zeros(5), persistent=False)
    fresh.resume(store())
    assert fresh.model.sin.tolist() == [0.0] * 5


def test_a_new_extra_stays_as_it_is_and_is_said(store: Open) -> None:
    run = Run()
    del run.state.others["ema"]
    save(store(), run)
    loading = Run().resume(store())
    assert loading.portable.left_out == ("other.ema is not in the checkpoint and stays as it is",)


def test_channels_last_momentum_stays_so(store: Open) -> None:
    def make(fill: float) -> TrainingState:
        model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        (model(torch.full((1, 3, 5, 5), fill)).sum()).backward()
        optimizer.step()
        return TrainingState(model, [optimizer], {})

    live = make(1.0)
    one = store()
    one.save(to_portable(live, live.capture(1, 1)))
    one.wait(30)
    fresh = make(2.0)
    fresh.optimizers[0].state.clear()
    fresh.restore(to_snapshot(fresh, one.load(fresh).portable))
    weight = fresh.model.weight
    momentum = fresh.optimizers[0].state[weight]["momentum_buffer"]
    assert momentum.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(momentum, live.optimizers[0].state[live.model.weight]["momentum_buffer"])


def test_nothing_is_drawn_and_nothing_copied(store: Open) -> None:
    run = Run().steps(2)
    snapshot = run.capture()
    before = run.everything()
    portable = to_portable(run.state, snapshot)
    assert differences(run.everything(), before) == []
    pointers = {t.data_ptr() for t in snapshot.tensors}
    assert {t.data_ptr() for n, t in portable.tensors.items() if n.startswith("model.")} <= pointers
    assert folders(store().folder.parent) in ([], ["checkpoints"])
