"""FSDP2: parameters, gradients and optimizer state are sharded over the ranks.

torchrun --nproc-per-node 2 examples/fsdp2.py
guard checkpoints runs/*
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import guard

STEPS = 200
# Killed and started again with the same GUARD_RUN_DIR, it goes on from the newest of these.
POLICY = {"version": 1, "extends": "default", "checkpoints": {"every": "50 steps", "disk": {"every": "50 steps"}}}

cuda = torch.cuda.is_available()
dist.init_process_group("nccl" if cuda else "gloo")  # torchrun says who and where
rank = dist.get_rank()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)

x = torch.randn(4096, 16, generator=torch.Generator().manual_seed(0))
data = TensorDataset(x, x[:, :4].sin().sum(1, keepdim=True))
sampler = DistributedSampler(data, shuffle=True, drop_last=True)  # `g.batches` calls its `set_epoch`, pass by pass
loader = DataLoader(data, batch_size=32, sampler=sampler, drop_last=True)

torch.manual_seed(0)
model = nn.Sequential(
    *(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(3)), nn.Linear(16, 1)
)
model.to(device)
mesh = init_device_mesh(device.type, (dist.get_world_size(),))
for block in model:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)  # after sharding: it holds the shards

# On all ranks, after sharding; rank 0 says where the run directory is. Each reads its own shards of the gradients, and
# the norm is that of all of them together.
with guard.attach(model, optimizer, policy=POLICY) as g:
    for inputs, targets in g.batches(loader, steps=STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
        g.backward(loss)
        optimizer.step()
        if rank == 0 and (g.step + 1) % 50 == 0:
            print(f"step {g.step + 1:>4}  loss {loss.item():.4f}")

dist.destroy_process_group()
