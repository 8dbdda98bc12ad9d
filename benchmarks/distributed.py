"""What it costs that ranks decide together: two gloo ranks on this machine.

The agreement of a tick is compared with one bare `torch.distributed.all_reduce` of the same size on the same process
group, in calm ticks. They take turns, block by block, so that drift of a shared machine hits both
alike. The checksum of the replicas is compared with a training step of the same model under DistributedDataParallel.

    python benchmarks/distributed.py [--blocks 60] [--world 2]

Prints medians and quartiles; asserts nothing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from guard.ranks import Ranks
from guard.signals.replicas import Replicas
from guard.types import Signals

TICKS = 50  # of a block
now = time.perf_counter


def timed(work: Callable[[], Any], count: int) -> float:
    """Seconds a call, of `count` in a row."""
    dist.barrier()
    start = now()
    for _ in range(count):
        work()
    return (now() - start) / count


def quartiles(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def agreement(ranks: Ranks, blocks: int) -> None:
    s, bare = Signals(), torch.zeros(8 + 2 * ranks.world, dtype=torch.float64)

    def agree() -> None:
        s.loss, s.grad_norm, s.lr, s.loss_known = 2.0, 1.0, 1e-3, True
        ranks.agree(s, norm_squared=0.5, leaving=False, has_more=False)

    def reduce() -> None:
        dist.all_reduce(bare, group=ranks._group)

    timed(agree, TICKS), timed(reduce, TICKS)
    times = [(timed(agree, TICKS), timed(reduce, TICKS)) for _ in range(blocks)]
    if ranks.rank == 0:
        ours, theirs = zip(*times, strict=True)
        print(f"agreement of a tick    {statistics.median(ours) * 1e6:8.1f} us")
        print(f"bare all_reduce        {statistics.median(theirs) * 1e6:8.1f} us, of {bare.numel()} float64")
        print(f"agreement / bare       {quartiles([a / b for a, b in times])}   (aim: at most 1.30)")


def checksum(ranks: Ranks, blocks: int, every: int = 200) -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = [m for _ in range(8) for m in (nn.Linear(512, 512), nn.GELU())]
    net = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    x = torch.randn(32, 512)
    replicas = Replicas(net, ranks, every)

    def step() -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    timed(step, 3), timed(replicas.look, 3)
    times = [(timed(replicas.look, 3), timed(step, 3)) for _ in range(max(10, blocks // 3))]
    if ranks.rank == 0:
        looks, steps = zip(*times, strict=True)
        look, usual = statistics.median(looks), statistics.median(steps)
        size = sum(p.numel() for p in net.parameters()) / 1e6
        print(f"step of {size:.1f} M weights   {usual * 1e3:8.2f} ms")
        print(f"checksum of all        {look * 1e3:8.2f} ms, {100 * look / usual:.1f} % of a step")
        print(f"  every {every} ticks              {100 * look / usual / every:.3f} % of the time")


def child(rank: int, folder: str, world: int, blocks: int) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{Path(folder) / 'meeting'}", rank=rank, world_size=world)
    ranks = Ranks.attach()
    agreement(ranks, blocks)
    checksum(ranks, blocks)
    ranks.close()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--world", type=int, default=2)
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {options.world} gloo ranks, 1 thread each")
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        children = [
            context.Process(target=child, args=(rank, folder, options.world, options.blocks))
            for rank in range(options.world)
        ]
        for process in children:
            process.start()
        for process in children:
            process.join()


if __name__ == "__main__":
    main()
