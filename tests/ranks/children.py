"""What the ranks do in these tests. Each function runs in every process and returns what its test looks at."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from guard.errors import GuardError, RankLostError, UnavailableError
from guard.ranks import Ranks
from guard.signals import GradientReader, nonfinite_names
from guard.signals.gradients import shares, values
from guard.types import Signals

Said = tuple[Any, ...]


def each(rank: int, function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> list[Any]:
    """Several calls in the same processes, because starting them takes longest."""
    return [function(rank, *arguments) for arguments in calls]


def agreed_on(rank: int, ticks: list[list[dict[str, Any]]]) -> list[Said]:
    """One agreement per tick; `ticks`: by tick and rank, what the rank says."""
    ranks, told = Ranks.attach(timeout=30.0), []
    for by_rank in ticks:
        said = dict(by_rank[rank])
        norm_squared, flags = said.pop("norm_squared"), said.pop("flags", {})
        s = Signals(**said)
        flags = {"leaving": False, "has_more": False} | flags
        agreed = ranks.agree(s, norm_squared=norm_squared, **flags)
        told.append((agreed, tuple(getattr(s, name) for name in sorted(Signals.__slots__))))
    ranks.close()
    return told


def talk(rank: int) -> dict[str, Any]:
    """Everything that is not the agreement."""
    ranks = Ranks.attach(timeout=30.0)
    tensors = [
        torch.full((3, 2), float(rank), dtype=dtype)
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
    ]
    tensors += [torch.full((), rank), torch.full((2, 3), rank).t(), torch.full((0, 3), rank)]
    ranks.copy_from(1, tensors)
    found: dict[str, Any] = {
        "gather": ranks.gather({"rank": rank}),
        "broadcast": (ranks.broadcast(f"of {rank}"), ranks.broadcast(rank, 1)),
        "all": (ranks.all(True), ranks.all(rank == 0)),
        "worst": (ranks.worst(rank), ranks.worst(-rank)),
        "largest": ranks.largest(torch.tensor([rank, -rank, 2**62 * (1 - 2 * rank)])).tolist(),
        "norms": ranks.norms([3.0, float("nan") if rank else 1.0, 4.0 if rank else 3.0, 0.0], [0.5, 0.5, 1.0, 1.0]),
        "copied": [t.clone() for t in tensors],
        "leave": ranks.leave().leaving,
        "together": (ranks.together(lambda: True), ranks.together(lambda: rank == 0)),
    }
    for failing in (0, 1):
        try:
            ranks.together(lambda failing=failing: 1 // int(rank != failing) > 0)
        except (GuardError, ZeroDivisionError) as error:
            found[f"rank {failing} fails"] = type(error).__name__
    ranks.close()
    ranks.close()
    try:
        ranks.all(True)
    except RankLostError as error:
        found["closed"] = str(error)
    return found


# ---- trouble


def dies(rank: int) -> Said:
    """Rank 1 is killed between two agreements; the others wait for it without a limit of their own."""
    ranks = Ranks.attach()
    agree = {"norm_squared": 1.0, "leaving": False, "has_more": False}
    ranks.agree(Signals(loss=1.0), **agree)  # type: ignore[arg-type]
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    messages = []
    for _ in range(2):
        try:
            ranks.agree(Signals(loss=1.0), **agree)  # type: ignore[arg-type]
        except RankLostError as error:
            messages.append(str(error))
    try:
        ranks.gather(1)
    except RankLostError as error:
        messages.append(str(error))
    return tuple(messages)


def hangs(rank: int) -> str:
    """Rank 1 does not come to the agreement until rank 0 has given up."""
    ranks = Ranks.attach(timeout=0.5)
    message = ""
    if rank == 0:
        try:
            ranks.all(True)
        except RankLostError as error:
            message = str(error)
    dist.barrier()
    return message


# ---- gradients


def model(norm: bool = False) -> nn.Sequential:
    """Some tensors have fewer rows than there are ranks."""
    torch.manual_seed(0)
    middle = nn.LayerNorm(5) if norm else nn.Tanh()
    return nn.Sequential(nn.Linear(3, 5), middle, nn.Linear(5, 200), nn.Tanh(), nn.Linear(200, 1))


def train_once(net: nn.Module, rank: int, poison: float | None = None) -> None:
    generator = torch.Generator().manual_seed(7 + rank)
    x = torch.randn(4, 3, generator=generator)
    net(x).square().mean().backward()
    if poison is not None and rank == dist.get_world_size() - 1:
        parameters = [p for p in net.parameters() if p.grad is not None and values(p.grad).numel()]
        values(parameters[-1].grad).view(-1)[0] = poison  # type: ignore[arg-type]


def whole_norm(net: nn.Module) -> float:
    """By way of the whole tensors."""
    squares = 0.0
    for p in net.parameters():
        g: Any = p.grad
        squares += float((g.full_tensor() if hasattr(g, "full_tensor") else g).double().square().sum())
    return squares**0.5


def agreed_norm(ranks: Ranks, net: nn.Module, scale: float = 1.0) -> tuple[float, float, int]:
    """As the guard gets it: local norm, global norm, tensors."""
    reader = GradientReader(torch.optim.SGD(net.parameters(), lr=0.1), ranks.world)
    local = reader.read() / scale
    s = Signals(loss=1.0, grad_norm=local)
    ranks.agree(s, norm_squared=local * local * reader.share, leaving=False, has_more=False)
    return local, s.grad_norm, reader.count


def norms_of(rank: int, kind: str, poison: float | None = None, size: float = 1.0) -> dict[str, Any]:
    """The norm of one backward pass under DDP, FSDP2 and their mixtures."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    ranks, world = Ranks.attach(timeout=30.0), dist.get_world_size()
    net: nn.Module = model()
    if kind == "ddp":
        net = nn.parallel.DistributedDataParallel(net)
    elif kind == "hsdp":
        fully_shard(net, mesh=init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("copies", "shards")))
    elif kind == "fsdp2":
        mesh = init_device_mesh("cpu", (world,))
        for child in net:  # type: ignore[attr-defined]
            if isinstance(child, nn.Linear):
                fully_shard(child, mesh=mesh)
        fully_shard(net, mesh=mesh)
    else:  # one layer sharded, the rest replicated; its gradients are averaged by hand
        fully_shard(net[2], mesh=init_device_mesh("cpu", (world,)))  # type: ignore[index]
    train_once(net, rank, None if kind == "mixed" else poison)
    if kind == "mixed":
        for p in net.parameters():
            if type(p.grad) is Tensor:
                dist.all_reduce(p.grad)
                p.grad /= world
    with torch.no_grad():
        for p in net.parameters():
            p.grad.mul_(size)  # type: ignore[union-attr]
    local, total, count = agreed_norm(ranks, net)
    return {
        "local": local,
        "global": total,
        "count": count,
        "whole": whole_norm(net),
        "names": nonfinite_names(net),
        "shares": shares(net, world),
    }


def partial_sums(rank: int) -> tuple[float, float]:
    """A gradient whose sum over ranks is still to be taken, as tensor parallelism may leave it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate

    ranks, mesh = Ranks.attach(timeout=30.0), init_device_mesh("cpu", (dist.get_world_size(),))
    p = nn.Parameter(DTensor.from_local(torch.zeros(3), mesh, [Replicate()]))
    p.grad = DTensor.from_local(torch.full((3,), float(rank + 1)), mesh, [Partial()])
    reader = GradientReader(torch.optim.SGD([p], lr=0.1), ranks.world)
    local = reader.read()
    s = Signals(grad_norm=local)
    ranks.agree(s, norm_squared=local * local * reader.share, leaving=False, has_more=False)
    return local, s.grad_norm


def clips(rank: int, kind: str, pattern: str | None) -> dict[str, Any]:
    """A live run's clip; everything afterwards as whole tensors."""
    live, net = _live(rank, kind)
    before = whole_norm(net)
    each = {n: float(g.norm()) for n, g in _whole_gradients(net).items()}
    factor = live.clip(0.5 * before if pattern is None else 1e-3, pattern, None)
    after = {n: float(g.norm()) for n, g in _whole_gradients(net).items()}
    live.leave_out()
    cleared = all(not g.any() for g in _whole_gradients(net).values())
    return {"factor": factor, "before": before, "each": each, "after": after, "cleared": cleared}


def _whole_gradients(net: nn.Module) -> dict[str, Tensor]:
    found: dict[str, Any] = {n: p.grad for n, p in net.named_parameters()}
    return {n: g.full_tensor() if hasattr(g, "full_tensor") else g for n, g in found.items()}


def _live(rank: int, kind: str) -> tuple[Any, nn.Module]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from guard.policy import load
    from guard.run.live import LiveRun

    net: nn.Module = model()
    net.register_buffer("seen", torch.zeros(3))
    if kind == "fsdp2":
        fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    else:
        net = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    live = LiveRun(
        net,
        [optimizer],
        {},
        scaler=None,
        checkpoints=load("default").checkpoints,
        usual_grad_norm=lambda _: 1.0,
    )
    live.ranks = Ranks.attach(timeout=30.0)
    train_once(net, rank)
    return live, net


# ---- replicas


def compared(rank: int, wrong: dict[int, int], dtype: torch.dtype = torch.float32, stages: bool = False) -> Any:
    """Looks before and after a bit is flipped in parameter `wrong[rank]` of some ranks."""
    from guard.signals.replicas import Replicas

    net = model().to(dtype)
    ranks = Ranks.attach(timeout=30.0)
    replicas = Replicas(net if not stages or rank else nn.Linear(2, 2), ranks, 10)
    assert [t for t in range(30) if replicas.due(t)] == [0, 10, 20]
    try:
        before = replicas.look()
    except GuardError as error:
        return str(error)
    if rank in wrong:
        _flip(list(net.parameters())[wrong[rank]])
    return before, replicas.look()


def _flip(p: Tensor, bit: int = 1) -> None:
    flat = p.data.view(-1).view(torch.uint8)
    flat[0] ^= bit


def cannot_compare(rank: int) -> tuple[str, str]:
    """Rank 1's parameters are gone at the second look."""
    from guard.signals.replicas import Replicas

    net, ranks = model(), Ranks.attach(timeout=30.0)
    replicas = Replicas(net, ranks, 1)
    assert replicas.look() is not None
    if rank == 1:
        del net[0].weight
    try:
        replicas.look()
    except GuardError as error:
        return type(error).__name__, str(error)
    return "", ""


def sharded_is_silent(rank: int) -> Any:
    from guard.signals.replicas import Replicas

    live, net = _live(rank, "fsdp2")
    return Replicas(net, live.ranks, 1).look(), live.can_rebroadcast()


def rebroadcasts(rank: int, wrong: list[int], source: str, damage: str) -> dict[str, Any]:
    """Some ranks' state is damaged after a few steps, then given out again, then all train on."""
    live, net = _live(rank, "ddp")
    (optimizer,) = live.optimizers
    for _ in range(3):
        optimizer.step()
        optimizer.zero_grad()
        train_once(net, rank)
    live.tick = 3
    live.ring.restart(live.capture())
    for tick in (5, 8):
        live.tick = tick
        live.ring.good.append(live.capture())
    live.ring.set_best(live.capture())
    if rank in wrong:
        _damage(net, optimizer, damage, rank)
    before = _everything(net, optimizer)
    assert live.can_rebroadcast() is None
    try:
        changes = live.rebroadcast(source, 6)
    except UnavailableError as error:
        return {"refused": str(error), "untouched": _same(before, _everything(net, optimizer))}
    after = _everything(net, optimizer)
    optimizer.step()
    return {
        "changes": changes,
        "state": after,
        "before": before,
        "trained": [p.detach().clone() for p in net.parameters()],
        "kept": [s.tick for s in (live.ring.start, *live.ring.good) if s is not None],
        "best": live.ring.best,
        "wants": live.wants_snapshot,
    }


def _damage(net: nn.Module, optimizer: torch.optim.Optimizer, damage: str, rank: int) -> None:
    p = next(net.parameters())
    if damage == "weights":
        p.data.view(-1)[0] += 1.0 + rank
        net.module.seen += 1.0  # type: ignore[operator, union-attr]
        optimizer.state[p]["exp_avg"] += 1.0
        optimizer.state[p]["step"] += 5.0
    elif damage == "state":
        del optimizer.state[p]
        optimizer.state[list(net.parameters())[1]] = {"other": torch.ones(2), "exp_avg": torch.ones(7), "n": 3}
    else:
        net.module.seen = torch.zeros(4)  # type: ignore[assignment, union-attr]


def _everything(net: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    found: list[Any] = [t.detach().clone() for t in (*net.parameters(), *net.buffers())]
    for p in net.parameters():
        for name, value in sorted(optimizer.state.get(p, {}).items()):
            found += [name, value.clone() if isinstance(value, Tensor) else value]
    return found


def _same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x, y) if isinstance(x, Tensor) else x == y for x, y in zip(a, b, strict=True)
    )
