"""Small training runs, with and without a guard and faults, whose whole end state can be compared bit for bit."""

from __future__ import annotations

import contextlib
import functools
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import guard

FEATURES, HIDDEN, BATCH, SAMPLES = 6, 8, 4, 40

# ---- policies


def policy(trigger: str, *rungs: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A policy; several rungs are a ladder, one is `actions`."""
    what = {"actions": list(rungs[0])} if len(rungs) == 1 else {"attempts": [list(r) for r in rungs]}
    return {"name": f"on-{trigger}", "trigger": {"type": trigger}, **what, **more}


def policies(*chosen: dict[str, Any], every: int = 4, probation: int = 2, keep: int = 3) -> dict[str, Any]:
    return {
        "version": 1,
        "checkpoints": {"every": every, "probation": probation, "keep": keep},
        "policies": list(chosen),
    }


BACK = {"type": "rollback", "data": "replay"}
BACK_AND_REPLAY = policies(
    policy("non_finite", [BACK], severity="critical", limits={"max": 20}),
    policy("loss_spike", [BACK], limits={"max": 20}),
)


@contextlib.contextmanager
def guarded(model: nn.Module, optimizer: Any, **kwargs: Any) -> Iterator[guard.Guard]:
    """`guard.attach` with a run directory of its own that tells nobody."""
    with (
        tempfile.TemporaryDirectory() as folder,
        guard.attach(model, optimizer, run_dir=f"{folder}/run", **{"receivers": [], **kwargs}) as g,
    ):
        yield g


# ---- one run


@dataclass(frozen=True)
class Setup:
    """What a run is made of.

    Args:
        source: callable, shuffled, generator, augmented, epochs (a sampler with set_epoch), workers.
        ema: none, module (an `AveragedModel`) or dict (a hand-made one).
        scheduler: none, or the name of one.
    """

    optimizer: str = "adamw"
    dropout: bool = True
    batch_norm: bool = False
    scheduler: str = "onecycle"
    ema: str = "none"
    fp16: bool = False
    accumulate: int = 1
    source: str = "callable"
    steps: int = 30


class DictEma:
    """The moving average that half of all repositories carry around."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = {k: v.detach().clone() for k, v in model.named_parameters()}

    def update_parameters(self, model: nn.Module) -> None:
        for k, v in model.named_parameters():
            self.shadow[k].lerp_(v.detach(), 0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": self.shadow}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shadow = state["shadow"]


class Samples(Dataset[Any]):
    """Points of a smooth function; `augment` adds noise from the global random generators."""

    def __init__(self, *, augment: bool = False) -> None:
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(SAMPLES, FEATURES, generator=generator)
        self.y = self.x[:, :2].sin() + 0.1 * torch.randn(SAMPLES, 2, generator=generator)
        self.augment = augment

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        x = self.x[index]
        if self.augment:
            x = x + 0.01 * torch.randn(FEATURES) + 0.01 * random.random() + 0.01 * float(np.random.rand())
        return x, self.y[index]


def make_source(name: str) -> Any:
    data = Samples(augment=name == "augmented")
    if name == "callable":

        def batch(index: int) -> Any:
            chosen = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(index))[:BATCH]
            return data.x[chosen], data.y[chosen]

        return batch
    if name == "generator":
        return DataLoader(data, BATCH, shuffle=True, generator=torch.Generator().manual_seed(7))
    if name == "epochs":
        return DataLoader(data, BATCH, sampler=DistributedSampler(data, num_replicas=1, rank=0, seed=3))
    return DataLoader(data, BATCH, shuffle=True, num_workers=2 if name == "workers" else 0)


def make_model(setup: Setup = Setup()) -> nn.Module:
    flat = setup.optimizer == "muon"  # which wants matrices only
    norm = (
        nn.BatchNorm1d(HIDDEN, affine=not flat)
        if setup.batch_norm
        else nn.LayerNorm(HIDDEN, elementwise_affine=not flat)
    )
    return nn.Sequential(
        nn.Linear(FEATURES, HIDDEN, bias=not flat),
        norm,
        nn.Tanh(),
        nn.Dropout(0.1 if setup.dropout else 0.0),
        nn.Linear(HIDDEN, 2, bias=not flat),
    )


def make_optimizer(name: str, parameters: Any) -> torch.optim.Optimizer:
    made: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
        "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
        "amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
        "fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
        "fused_sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, fused=True),
        "tensor_lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-2)),
        "sgd": lambda p: torch.optim.SGD(p, lr=2e-2),
        "momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
        "adagrad": lambda p: torch.optim.Adagrad(p, lr=2e-2),
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=2e-3, momentum=0.5, centered=True),
    }
    if hasattr(torch.optim, "Adafactor"):
        made["adafactor"] = lambda p: torch.optim.Adafactor(p, lr=1e-2)
    if hasattr(torch.optim, "Muon"):
        made["muon"] = lambda p: torch.optim.Muon(p, lr=1e-2)
    return made[name](parameters)


OPTIMIZERS = [
    "adamw",
    "amsgrad",
    "momentum",
    "adagrad",
    "rmsprop",
    *(n for n in ("adafactor", "muon") if hasattr(torch.optim, n.title())),
]


def make_scheduler(name: str, optimizer: torch.optim.Optimizer, steps: int) -> Any:
    schedules = torch.optim.lr_scheduler
    made: dict[str, Callable[[], Any]] = {
        "none": lambda: None,
        "lambda": lambda: schedules.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10)),
        "cosine": lambda: schedules.CosineAnnealingLR(optimizer, steps),
        "onecycle": lambda: schedules.OneCycleLR(
            optimizer, 1e-2, steps + 1, cycle_momentum=optimizer_has_momentum(optimizer)
        ),
        "cyclic": lambda: schedules.CyclicLR(optimizer, 1e-3, 1e-2, step_size_up=5, cycle_momentum=False),
        "sequential": lambda: schedules.SequentialLR(
            optimizer,
            [
                schedules.LinearLR(optimizer, 0.1, total_iters=8),
                schedules.CosineAnnealingLR(optimizer, steps),
            ],
            [8],
        ),
        "plateau": lambda: schedules.ReduceLROnPlateau(optimizer, patience=2),
    }
    return made[name]()


def optimizer_has_momentum(optimizer: torch.optim.Optimizer) -> bool:
    return "betas" in optimizer.defaults or bool(optimizer.defaults.get("momentum"))


class Parts:
    """The objects of a training script."""

    def __init__(self, setup: Setup) -> None:
        seed_everything()
        self.setup = setup
        self.model = make_model(setup)
        self.ema: Any = {
            "none": lambda: None,
            "dict": lambda: DictEma(self.model),
            "module": lambda: AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True),
        }[setup.ema]()
        self.optimizer = make_optimizer(setup.optimizer, self.model.parameters())
        self.scheduler = make_scheduler(setup.scheduler, self.optimizer, setup.steps)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=7) if setup.fp16 else None
        self.source = make_source(setup.source)

    def forward(self, batch: Any, autocast: Any = torch.autocast) -> torch.Tensor:
        x, y = batch
        with autocast("cpu", dtype=torch.float16, enabled=self.setup.fp16):
            out = self.model(x)
        return mse_loss(out.float(), y)

    def backward(self, loss: torch.Tensor) -> None:
        loss = loss / self.setup.accumulate if self.setup.accumulate > 1 else loss
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def update(self, loss: torch.Tensor) -> None:
        """All that a loop does once a step after its backward passes."""
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            self.scheduler.step(loss.item())
        elif self.scheduler is not None:
            self.scheduler.step()
        if self.ema is not None:
            self.ema.update_parameters(self.model)
        self.optimizer.zero_grad()

    def attached(self, policy: Any, **more: Any) -> contextlib.AbstractContextManager[guard.Guard]:
        extra = {} if self.ema is None else {"ema": self.ema}
        return guarded(
            self.model, self.optimizer, policy=policy, scheduler=self.scheduler, scaler=self.scaler, extra=extra, **more
        )

    def state(self) -> dict[str, Any]:
        """Everything that a run leaves behind, random generators included."""
        named = {
            "scheduler": self.scheduler,
            "scaler": self.scaler,
            "ema": self.ema,
            "optimizer": self.optimizer,
            "model": self.model,
        }
        state = {name: thing.state_dict() for name, thing in named.items() if thing is not None}
        state |= {"buffers": dict(self.model.named_buffers()), "rng": rng_state()}
        return flatten(state)


def seed_everything(seed: int = 0) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def rng_state() -> dict[str, Any]:
    return {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": np.random.get_state()}


# ---- loops


@dataclass
class Outcome:
    state: dict[str, Any]
    incidents: list[guard.Incident]
    rows: list[Any]
    losses: dict[int, float]

    @property
    def rollbacks(self) -> int:
        return sum(
            (1 + a.repeats) * sum(r.type == "rollback" for r in a.results) for i in self.incidents for a in i.attempts
        )


@functools.lru_cache(maxsize=256)
def unguarded(setup: Setup) -> dict[str, Any]:
    """The end state of the plain loop, without guard or fault."""
    parts = Parts(setup)
    batches = plain_batches(parts.source, setup.steps * setup.accumulate)
    for number, batch in enumerate(batches, 1):
        loss = parts.forward(batch)
        parts.backward(loss)
        if number % setup.accumulate == 0:
            parts.update(loss)
    return parts.state()


def plain_batches(source: Any, count: int) -> Iterator[Any]:
    if not hasattr(source, "__iter__"):
        yield from map(source, range(count))
        return
    number = passes = 0
    while number < count:
        if hasattr(getattr(source, "sampler", None), "set_epoch"):
            source.sampler.set_epoch(passes)
        for batch in source:
            yield batch
            number += 1
            if number == count:
                return
        passes += 1


def train(setup: Setup, policy: Any, faults: Faults | None = None, **more: Any) -> Outcome:
    """The same run in the guard's loop."""
    parts = Parts(setup)
    faults = faults or Faults()
    with parts.attached(policy, **more) as g:
        faults.join(parts, g)
        losses = {}
        for micro, batch in enumerate(g.batches(parts.source, setup.steps, setup.accumulate), 1):
            loss = parts.forward(faults.on_batch(batch), g.autocast)
            g.backward(loss)
            faults.after_backward()
            losses[g.step] = loss.item()
            if micro % setup.accumulate == 0:
                parts.update(loss)
        faults.leave()
        assert not faults.pending, f"never happened: {faults.pending}"
    return Outcome(parts.state(), g.incidents, g.signals, losses)


# ---- faults that happen once


class Faults:
    """Faults, each of which happens once, at a step.

    Args:
        faults: ``(kind, step)``. Kinds: weight (a flipped exponent bit before the forward pass), drift (a weight a
            thousand times too large), gradient (a NaN), input (a NaN), update (the optimizer writes Inf), buffer
            (BatchNorm's running variance becomes Inf while the loss is finite).
    """

    def __init__(self, *faults: tuple[str, int]) -> None:
        self.pending = set(faults)
        self._guard: guard.Guard
        self._parts: Parts
        self._handle: Any = None

    def join(self, parts: Parts, g: guard.Guard) -> None:
        self._parts, self._guard = parts, g
        self._handle = parts.optimizer.register_step_post_hook(self._in_update)

    def leave(self) -> None:
        self._handle.remove()

    @torch.no_grad()
    def on_batch(self, batch: Any) -> Any:
        weight = self._parts.model[-1].weight
        if self._now("weight"):
            weight.view(torch.int32)[0, 0] ^= 1 << 30
        if self._now("drift"):
            weight[0] *= 1000
        if self._now("input"):
            x, y = batch
            return x.index_fill(1, torch.tensor([1]), torch.nan), y
        return batch

    def after_backward(self) -> None:
        if self._now("buffer"):
            self._parts.model[1].running_var[2] = torch.inf
        if self._now("gradient"):
            self._parts.model[0].weight.grad[0, 0] = torch.nan

    def _in_update(self, *_: Any) -> None:
        if self._now("update"):
            self._parts.model[0].weight.data[1, 1] = torch.inf

    def _now(self, kind: str) -> bool:
        fault = (kind, self._guard.step)
        if fault not in self.pending:
            return False
        self.pending.remove(fault)
        return True


# ---- comparing


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Nested state as ``path -> leaf``; tensors are copied."""
    if isinstance(value, dict):
        items: Any = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        return {path: value.detach().clone() if isinstance(value, torch.Tensor) else value}
    return {k: leaf for name, part in items for k, leaf in flatten(part, f"{path}/{name}").items()}


def differences(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Paths at which two states are not bitwise the same."""
    return sorted({*a.keys() ^ b.keys(), *(k for k in a.keys() & b.keys() if not same(a[k], b[k]))})


def same(a: Any, b: Any) -> bool:
    """Bit for bit: NaN is NaN, 0.0 is not -0.0."""
    if isinstance(a, torch.Tensor):
        return (
            isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))
        )
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b))
    return bool(a == b) or callable(a) or (a != a and b != b)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
