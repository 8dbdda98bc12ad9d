"""Guarded runs on several ranks, with faults that one of them has. Each function runs in every process."""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import warnings
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

import guard
from guard.errors import GuardError
from guard.guard import Guard
from guard.signals.gradients import is_sharded

Wrap = Literal["ddp", "unused", "fsdp", "mixed", "offload"]
Fault = tuple[int, int, str]  # rank, micro-batch, what

CHECKPOINTS = {"every": "5 steps", "probation": "2 steps"}
REPLAY = {
    "name": "replay",
    "trigger": {"type": "non_finite"},
    "attempts": [[{"type": "rollback", "data": "replay"}], [{"type": "rollback", "data": "skip_offending"}]],
}


def rules(*policies: dict[str, Any], **checkpoints: Any) -> dict[str, Any]:
    return {"version": 1, "checkpoints": {**CHECKPOINTS, **checkpoints}, "policies": list(policies) or [REPLAY]}


class WithUnused(nn.Module):
    """Half of its parameters take turns in having no gradient."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.heads, self.calls = net, nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)]), 0
        self.register_buffer("turn", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.turn += 1
        return self.heads[int(self.turn) % 2](self.net(x))  # type: ignore[no-any-return]


def sharded(net: nn.Module, wrap: Wrap, world: int) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    more: dict[str, Any] = {"mesh": init_device_mesh("cpu", (world,))}
    if wrap == "mixed":
        more["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if wrap == "offload":
        more["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
    for layer in (net[0], net[4]):  # type: ignore[index]
        fully_shard(layer, **more)
    return fully_shard(net, **more)


class Rank:
    """One rank of a run: a model with dropout, momentum, a schedule; every rank has its own batches."""

    def __init__(self, rank: int, wrap: Wrap = "ddp") -> None:
        torch.manual_seed(0)
        net: nn.Module = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
        self.rank, self.world = rank, dist.get_world_size()
        if wrap == "unused":
            net = WithUnused(net)
        if wrap in ("ddp", "unused"):
            self.model: nn.Module = nn.parallel.DistributedDataParallel(net, find_unused_parameters=wrap == "unused")
        else:
            self.model = sharded(net, wrap, self.world)
        torch.manual_seed(100 + rank)
        random.seed(rank)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 200)
        self.guard: Guard
        self.faults: dict[int, str] = {}
        self.accumulate = 1

    def attach(self, run_dir: Path, policy: Any, **arguments: Any) -> Rank:
        self.guard = guard.attach(
            self.model,
            self.optimizer,
            scheduler=self.schedule,
            policy=policy,
            run_dir=run_dir,
            receivers=[],
            **arguments,
        )
        return self

    def batch(self, index: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * self.rank + index))
        return x, x[:, :3].argmax(1)

    def go(self, steps: int, faults: list[Fault] = [], *, until: int = -1) -> Rank:  # noqa: B006 - only read
        """Trains; a fault is transient: it comes the first time only."""
        mine = {index: what for rank, index, what in faults if rank == self.rank}
        for number, (x, y) in enumerate(self.guard.batches(self.batch, steps=steps, accumulate=self.accumulate)):
            if self.guard.step == until:
                break
            first, last = number % self.accumulate == 0, (number + 1) % self.accumulate == 0
            if first:
                self.optimizer.zero_grad()
            what = mine.pop(self.guard.live.feed.position - 1, "")  # type: ignore[union-attr]
            with contextlib.nullcontext() if last or self.world == 1 else self.model.no_sync():
                loss = F.cross_entropy(self.model(x), y)
                loss = loss * {"loss": math.nan, "spike": 1e4, "inf": math.inf}.get(what, 1.0)
                self.guard.backward(loss)
            if what == "gradient":
                p = next(p for p in self.model.parameters() if p.grad is not None and local(p.grad).numel())
                local(p.grad).view(-1)[0] = math.nan
            elif what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if last:
                self.optimizer.step()
                self.schedule.step()
        return self

    def answer(self) -> dict[str, Any]:
        """What a test looks at. Closes the guard."""
        told = [
            {
                "detector": i.detector,
                "tick": i.opened_tick,
                "status": i.status,
                "actions": [[r.type for r in a.results] for a in i.attempts],
                "ranks": i.evidence.get("ranks"),
            }
            for i in self.guard.incidents
        ]
        g = self.guard
        found = {"incidents": told, "tick": g.tick, "step": g.step, "multiplier": g.lr_multiplier}
        self.guard.close()
        return {**found, "weights": [whole(p) for p in self.model.parameters()], "mine": digest(self.model)}


def local(tensor: Any) -> Tensor:
    return tensor.to_local() if is_sharded(tensor) else tensor


def whole(parameter: Any) -> list[float]:
    full = parameter.full_tensor() if is_sharded(parameter) else parameter
    return list(full.detach().flatten().tolist())


def digest(model: nn.Module) -> list[float]:
    return [float(local(p.detach()).double().sum()) for p in model.parameters()]


def run(
    rank: int,
    folder: str,
    wrap: Wrap = "ddp",
    faults: list[Fault] = [],  # noqa: B006 - only read
    policy: Any = None,
    steps: int = 24,
    accumulate: int = 1,
) -> dict[str, Any]:
    """A run to its end."""
    warnings.simplefilter("ignore")
    one = Rank(rank, wrap).attach(Path(folder), policy or rules())
    one.accumulate = accumulate
    return one.go(steps, faults).answer()


def stopped(rank: int, folder: str) -> tuple[int, bool]:
    """A policy stops it because of what one rank has seen; the step at which each of them was."""
    stop = {"name": "stop", "trigger": {"type": "non_finite"}, "attempts": [[{"type": "stop", "restore": "last_good"}]]}
    one = Rank(rank).attach(Path(folder), rules(stop))
    try:
        one.go(24, [(1, 13, "loss")])
    except guard.TrainingStopped:
        step = one.guard.step
        one.answer()
        return step, True
    return one.guard.step, False


def logs(rank: int, folder: str) -> list[tuple[float | None, float]]:
    """Rank 1 alone logs a validation loss; what every rank's detectors see of it, and the best one."""
    one = Rank(rank).attach(Path(folder), rules())
    seen: list[tuple[float | None, float]] = []
    for x, y in one.guard.batches(one.batch, steps=8):
        one.optimizer.zero_grad()
        one.guard.backward(F.cross_entropy(one.model(x), y))
        if rank == 1 and one.guard.step in (2, 5):
            one.guard.log(val_loss=float(one.guard.step))
        one.optimizer.step()
        metrics = one.guard.slots[0].signals.metrics
        seen.append((metrics["val_loss"] if metrics else None, one.guard.boundary.best))
    one.answer()
    return seen


def asked(rank: int, folder: str) -> list[str]:
    """A person asks for observe, and the ranks change their mode in the same tick."""
    from guard.incidents import control

    one = Rank(rank).attach(Path(folder), rules())
    one.guard.files.__class__.requested = lambda self: not self.rank  # type: ignore[method-assign]  # whatever the time
    modes: list[str] = []
    for x, y in one.guard.batches(one.batch, steps=8):
        if one.guard.step == 3 and rank == 0:
            control.submit(Path(folder), control.Request("observe", "ada"))
        one.optimizer.zero_grad()
        one.guard.backward(F.cross_entropy(one.model(x), y))
        one.optimizer.step()
        modes.append(one.guard.mode)
    one.answer()
    return modes


def fails(rank: int, folder: str) -> dict[str, Any]:
    """The guard of rank 1 fails inside; every rank lets go in the same tick, and training goes on."""
    one = Rank(rank).attach(Path(folder), rules())
    if rank == 1:
        real = one.guard.slots[0].measure

        def broken(live: Any, metrics: Any) -> Any:
            if live.tick == 6:
                raise RuntimeError("no such thing")
            return real(live, metrics)

        type(one.guard.slots[0]).measure = lambda self, live, metrics: broken(live, metrics)  # type: ignore[method-assign]
    tick = one.go(12).guard.tick
    return {**one.answer(), "seen": tick}


def lost(rank: int, folder: str) -> str:
    """Rank 1 dies; what the others end with."""
    from guard.errors import RankLostError

    one = Rank(rank).attach(Path(folder), rules())
    try:
        one.go(24, [(1, 9, "kill")])
    except (RankLostError, RuntimeError) as error:  # the training's own collective may meet it first
        one.guard.close(crashed=True)
        return type(error).__name__
    return "nothing"


def many(rank: int, folder: str, faults: list[Fault], steps: int) -> dict[str, Any]:
    """Faults of all kinds at random moments, each once."""
    skip = {"name": "skip", "trigger": {"type": "loss_spike"}, "actions": [{"type": "skip_step"}]}
    back = {"name": "back", "trigger": {"type": "non_finite"}, "actions": [{"type": "rollback", "data": "replay"}]}
    return run(rank, folder, "ddp", faults, rules(back, skip), steps)


def saves(rank: int, folder: str, wrap: Wrap, until: int, steps: int) -> dict[str, Any]:
    """A run with checkpoints on disk that is lost before step `until`; -1: it comes to its end."""
    warnings.simplefilter("ignore")
    policy = rules(REPLAY, disk={"every": "5 steps"})
    one = Rank(rank, wrap).attach(Path(folder), policy)
    began = one.guard.step
    one.go(steps, until=until)
    if until < 0:
        return {**one.answer(), "began": began}
    durable = one.guard.boundary.durable
    assert durable is not None
    assert durable.store.wait(30)
    one.guard.let_go()
    return {"began": began}


def preempted(rank: int, folder: str) -> tuple[int, int]:
    """Only rank 1 gets SIGTERM; exit code and step of each."""
    one = Rank(rank).attach(Path(folder), rules(REPLAY, disk={"every": "1000 steps"}))
    if rank == 1:
        real = one.batch

        def batch(index: int) -> tuple[Tensor, Tensor]:
            if index == 7:
                os.kill(os.getpid(), signal.SIGTERM)
            return real(index)

        one.batch = batch  # type: ignore[method-assign]
    try:
        one.go(40)
    except SystemExit as end:
        return int(end.code or 0), one.guard.step
    return 0, one.guard.step


def dies(rank: int, folder: str, steps: int, victim: int, batches: int, files: int) -> dict[str, Any] | None:
    """As `saves`, but rank `victim` is killed at its so manieth batch or file operation, whichever comes first."""
    warnings.simplefilter("ignore")
    if rank == victim:
        left = {"batch": batches, "file": files}

        def count(what: str) -> None:
            left[what] -= 1
            if not left[what]:
                os.kill(os.getpid(), signal.SIGKILL)

        for name in ("fsync", "replace", "rename", "open", "write"):
            real = getattr(os, name)
            setattr(os, name, lambda *a, _real=real, **k: (count("file"), _real(*a, **k))[1])
    one = Rank(rank)
    if rank == victim:
        read = one.batch
        one.batch = lambda index: (count("batch"), read(index))[1]  # type: ignore[method-assign]
    try:
        one.attach(Path(folder), rules(REPLAY, disk={"every": "5 steps"})).go(steps)
    except (RuntimeError, GuardError):  # the other one is gone
        return None
    return one.answer()


def flips(rank: int, folder: str, remedy: str) -> dict[str, Any]:
    """A bit of one of rank 1's weights flips; ranks compare their parameters every four ticks."""
    policy = {
        "name": "replicas",
        "severity": "critical",
        "trigger": {"type": "replica_divergence", "every": 4},
        "attempts": [[{"type": remedy}]],
    }
    one = Rank(rank).attach(Path(folder), rules(policy))
    messages = []
    for x, y in one.guard.batches(one.batch, steps=40):
        if rank == 1 and one.guard.tick == 21:
            weight = one.model.module[4].weight  # type: ignore[union-attr,index]
            weight.detach().view(torch.int32).view(-1)[3] ^= 1 << 12
        one.optimizer.zero_grad()
        one.guard.backward(F.cross_entropy(one.model(x), y))
        one.optimizer.step()
    messages = [i.evidence["detection"]["message"] for i in one.guard.incidents]
    return {**one.answer(), "messages": messages}
