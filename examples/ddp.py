"""DistributedDataParallel: every rank holds the whole model and reads its own part of the data.

torchrun --nproc-per-node 2 examples/ddp.py
guard checkpoints runs/*
"""

import os

import torch
import torch.distributed as dist
from torch import nn
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
net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

# On all ranks, after the process group and the wrapper; rank 0 says where the run directory is.
with guard.attach(model, optimizer, policy=POLICY) as g:
    for inputs, targets in g.batches(loader, steps=STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
        g.backward(loss)
        optimizer.step()
        if rank == 0 and (g.step + 1) % 50 == 0:
            print(f"step {g.step + 1:>4}  loss {loss.item():.4f}")

dist.destroy_process_group()
