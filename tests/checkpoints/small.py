"""Small runs that can be built anew in another process, and compared bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from guard.checkpoints import DiskStore, Snapshot, TrainingState, to_portable, to_snapshot
from guard.checkpoints.disk import Outcome
from guard.clock import SystemClock

OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=1e-2),
    "adamw-tensor-lr": lambda ps: torch.optim.AdamW(ps, lr=torch.tensor(1e-2)),
    "adam-amsgrad": lambda ps: torch.optim.Adam(ps, amsgrad=True),
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.1),
    "momentum": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
    "adagrad": lambda ps: torch.optim.Adagrad(ps),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, centered=True, momentum=0.5),
    "adafactor": lambda ps: torch.optim.Adafactor(ps),
    "lbfgs": lambda ps: torch.optim.LBFGS(ps, max_iter=4),
    "sparse-adam": lambda ps: torch.optim.SparseAdam(ps[:1]),
    "two": None,
    "stateful": lambda ps: Stateful(ps),
}


class Stateful(torch.optim.SGD):
    """State that is not keyed by parameters, and not all of it tensors."""

    def __init__(self, ps: Any) -> None:
        super().__init__(ps, lr=0.1, momentum=0.9)

    def step(self, closure: Any = None) -> Any:
        shared = self.state["global"]
        shared["count"] = shared.get("count", 0) + 1
        shared.setdefault("history", [None]).append((shared["count"], torch.rand(2)))
        shared["mean"] = shared.get("mean", torch.zeros(3)) * 0.9 + shared["count"]
        return super().step(closure)


class Net(nn.Module):
    """Embedding tied to the output layer, BatchNorm, dropout, a frozen layer, and a buffer outside `state_dict`."""

    def __init__(self, *, sparse: bool = False, hidden: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8, sparse=sparse)
        self.body = nn.Sequential(nn.Linear(8, hidden), nn.BatchNorm1d(hidden), nn.Dropout(0.3), nn.Linear(hidden, 8))
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(requires_grad=False)
        self.out = nn.Linear(8, 16, bias=False)
        if not sparse:
            self.out.weight = self.embed.weight
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return self.out(self.frozen(self.body(self.embed(x))))


class Ema:
    """A moving average kept by hand."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = {k: v.detach().clone() for k, v in model.named_parameters()}

    def update(self, model: nn.Module) -> None:
        for k, v in model.named_parameters():
            self.shadow[k].lerp_(v.detach(), 0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": self.shadow}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shadow = state["shadow"]


class Run:
    """Model, optimizers, scheduler, moving averages; `steps` trains.

    Args:
        shard: distributes the model before the optimizer sees it.
        rank: draws other batches and other random numbers than another rank.
    """

    def __init__(
        self,
        optimizer: str = "adamw",
        seed: int = 0,
        *,
        shard: Callable[[nn.Module], Any] | None = None,
        rank: int = 0,
        **net: Any,
    ) -> None:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        self.model = Net(sparse=optimizer == "sparse-adam", **net)
        if shard is not None:
            shard(self.model)
        self.rank = rank
        trained = [p for p in self.model.parameters() if p.requires_grad]
        if optimizer == "two":
            half = len(trained) // 2
            self.optimizers = [
                torch.optim.AdamW(trained[:half], lr=1e-2),
                torch.optim.SGD([{"params": trained[half:-1]}, {"params": trained[-1:], "lr": 0.01}], lr=0.1),
            ]
        else:
            self.optimizers = [OPTIMIZERS[optimizer](trained)]
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizers[0], [2, 5], gamma=0.5)
        self.ema = Ema(self.model)
        self.average = torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2) if shard is not None else self.model)
        others: dict[str, Any] = {"scheduler 0": self.scheduler, "ema": self.ema, "average": self.average}
        self.state = TrainingState(self.model, self.optimizers, others)
        self.step = 0
        torch.manual_seed(seed + 1000 * rank)

    def steps(self, count: int) -> Run:
        for _ in range(count):
            generator = torch.Generator().manual_seed(self.step + 1000 * self.rank)
            x = torch.randint(16, (12,), generator=generator)

            def closure(x: Tensor = x) -> Tensor:
                for optimizer in self.optimizers:
                    optimizer.zero_grad()
                loss = cross_entropy(self.model(x), (x + 1) % 16) + 0 * random.random() + 0 * np.random.rand()
                loss.backward()
                return loss

            if isinstance(self.optimizers[0], torch.optim.LBFGS):
                self.optimizers[0].step(closure)  # type: ignore[arg-type]
            else:
                closure()
                for optimizer in self.optimizers:
                    optimizer.step()
            self.scheduler.step()
            self.ema.update(self.model)
            if isinstance(self.average.module, Net):
                self.average.update_parameters(self.model)
            self.step += 1
        return self

    def capture(self, tick: int | None = None) -> Snapshot:
        snapshot = self.state.capture(self.step if tick is None else tick, self.step)
        snapshot.finite = self.state.verify(snapshot)
        return snapshot

    def portable(self, tick: int | None = None) -> Any:
        return to_portable(self.state, self.capture(tick))

    def resume(self, store: DiskStore, **how: Any) -> Any:
        loading = store.load(self.state, **how)
        assert loading.portable is not None, loading.refused
        self.state.restore(to_snapshot(self.state, loading.portable))
        self.step = loading.portable.step
        return loading

    def everything(self) -> dict[str, Any]:
        """All that decides how the run goes on, flat."""
        buffers = {f"{k}.{n}": b for k, m in self.model.named_modules() for n, b in m._buffers.items()}
        return flatten(
            {
                "model": self.model.state_dict(),
                "buffers": buffers,
                "optimizers": [o.state_dict() for o in self.optimizers],
                "scheduler": self.scheduler.state_dict(),
                "ema": self.ema.state_dict(),
                "average": self.average.state_dict(),
                "rng": [torch.get_rng_state(), repr(random.getstate()), repr(np.random.get_state())],
                "step": self.step,
            }
        )


def flatten(value: Any, where: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        parts = [(f"{where}.{k}", v) for k, v in value.items()]
    elif isinstance(value, (list, tuple)):
        parts = [(f"{where}.{i}", v) for i, v in enumerate(value)]
    elif isinstance(value, Tensor):
        return {where: (value.dtype, value.shape, bits(value))}
    else:
        return {where: value}
    return {where: len(parts)} | {k: v for name, part in parts for k, v in flatten(part, name).items()}


def bits(tensor: Tensor) -> bytes:
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def differences(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    return sorted(k for k in a.keys() | b.keys() if a.get(k, "missing") != b.get(k, "missing"))


def open_store(folder: Path, **how: Any) -> DiskStore:
    return DiskStore(folder, **{"keep": 3, "clock": SystemClock(), **how})


def save(store: DiskStore, run: Run, state: Any = "good", tick: int | None = None) -> list[Outcome]:
    """A whole save, and what came of it."""
    assert store.save(run.portable(tick), state=state)
    assert store.wait(60)
    return store.outcomes()


def folders(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir())
