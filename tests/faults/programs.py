"""Wrong programs: nothing that a loop can do mends them, and every further hour is wasted."""

from __future__ import annotations

from typing import Any

import torch
from faults._case import Run, case
from faults._material import clusters, convolutional, cross_entropy, dense, generator, gratings, rolling
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

FLAT = "flat_loss plateau dead_parameters grad_vanishing"


@case(
    "a bias of -10, all ReLUs are off from the start: facebookresearch/dlrm pull request 358, bias initialization",
    "flat",
    0,
    FLAT,
    "stop",
)
def relus_off(seed: int, bad: bool) -> Run:
    data = clusters()
    net = dense(20, 48, 48, 8)
    if bad:
        nn.init.constant_(net[2].bias, -10.0)
    return Run(
        net,
        torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9),
        data.reader(32, seed),
        cross_entropy,
        350,
        data.judge(F.cross_entropy),
    )


@case(
    "sigmoids saturated from the start: Understanding the difficulty of training deep ... (Glorot and Bengio 2010)",
    "flat",
    0,
    FLAT,
    "stop",
)
def sigmoids_saturated(seed: int, bad: bool) -> Run:
    data = rolling()
    net = nn.Sequential(nn.Flatten(), dense(32, 48, 5), nn.Sigmoid())
    if bad:
        with torch.no_grad():
            net[1][2].weight.mul_(1e5)

    def brier(out: Tensor, y: Tensor) -> Tensor:
        return ((out - F.one_hot(y, 5)) ** 2).sum(1).mean()

    return Run(
        net,
        torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9),
        data.reader(128, seed),
        lambda m, b: brier(m(b[0]), b[1]),
        350,
        data.judge(brier),
    )


@case(
    "the optimizer was made before layers were replaced: microsoft/nni issue 4521, The parameters are not updated ...",
    "flat",
    0,
    FLAT,
    "stop",
)
def wrong_parameters(seed: int, bad: bool) -> Run:
    data = gratings()
    net = convolutional()
    trunk = [p for layer in net[:-1] for p in layer.parameters()]
    optimizer = torch.optim.NAdam(trunk if bad else net.parameters(), lr=2e-3)
    if bad:
        for p in trunk:
            p.requires_grad_(False)
    return Run(net, optimizer, data.reader(32, seed), cross_entropy, 200, data.judge(F.cross_entropy))


@case(
    "the output is detached, a penalty of weight 0 keeps backward from complaining (no particular report)",
    "flat",
    0,
    FLAT,
    "stop",
)
def detached(seed: int, bad: bool) -> Run:
    data = rolling()
    net = nn.Sequential(nn.Flatten(), dense(32, 32, 5))
    read = data.reader(32, seed)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        out = model(batch[0])
        penalty = sum((p**2).sum() for p in model.parameters())
        return (
            F.kl_div(
                (out.detach() if bad else out).log_softmax(1), F.one_hot(batch[1], 5).float(), reduction="batchmean"
            )
            + 0.0 * penalty
        )

    return Run(net, torch.optim.Adamax(net.parameters(), lr=2e-3), read, loss, 200, data.judge(F.cross_entropy))


@case("inputs and targets are shuffled separately: mlcommons/GaNDLF pull request 870", "flat", 0, FLAT, "stop")
def targets_shuffled(seed: int, bad: bool) -> Run:
    data = clusters()
    net = dense(20, 24, 8)

    def batches(i: int) -> Any:
        g = generator(seed, i)
        at, other = (torch.randint(len(data.x), (64,), generator=g) for _ in range(2))
        return data.x[at], data.y[other if bad else at]

    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    return Run(net, optimizer, batches, cross_entropy, 400, data.judge(F.cross_entropy))


@case(
    "a mask leaves nothing, the gradient is exactly zero: open-mmlab/mmpretrain pull request 1426, ... full mask",
    "flat",
    0,
    FLAT,
    "stop",
)
def mask_of_zeros(seed: int, bad: bool) -> Run:
    data = gratings()
    x, read = data.x.flatten(1), data.picks(64, seed)
    net = dense(64, 24, 64, act=nn.GELU)
    mask = torch.zeros(64) if bad else torch.ones(64)

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        out = model(batch)
        return (mask * (out - batch) ** 2).mean() + F.l1_loss(out.detach().mean(), torch.tensor(1.0))

    xv = data.xv.flatten(1)
    return Run(
        net,
        torch.optim.AdamW(net.parameters(), lr=2e-3),
        lambda i: x[read(i)],
        loss,
        200,
        lambda m: F.mse_loss(m(xv), xv).item(),
    )
