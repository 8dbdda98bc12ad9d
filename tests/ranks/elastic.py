"""A training script for torchrun whose rank 1 dies in its first life. Prints what rank 0 comes to."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))

from ranks.guarded import REPLAY, Rank, rules

torch.set_num_threads(1)
# The agent's store outlives a restart, and gloo would meet the addresses of processes that are gone: a prefix per life.
agent = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
dist.init_process_group(
    "gloo",
    store=dist.PrefixStore(f"life {os.environ['TORCHELASTIC_RESTART_COUNT']}", agent),
    rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
)
one = Rank(dist.get_rank()).attach(Path(sys.argv[1]), rules(REPLAY, disk={"every": "5 steps"}))
began = one.guard.step
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and one.rank == 1:
    read = one.batch

    def batch(index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == 33:
            durable = one.guard.boundary.durable
            assert durable is not None
            durable.store.wait(10)
            os.kill(os.getpid(), signal.SIGKILL)
        return read(index)

    one.batch = batch  # type: ignore[method-assign]
found = one.go(60).answer()
if one.rank == 0:
    Path(sys.argv[2]).write_text(json.dumps({**found, "began": began}), encoding="utf-8")
dist.destroy_process_group()
