"""Faults of the training dynamics: step sizes, schedules, bad data, memorising."""

from __future__ import annotations

import math
from typing import Any

import torch
from faults._case import Run, case
from faults._material import (
    Encoder,
    Factors,
    Gru,
    clusters,
    cross_entropy,
    dense,
    generator,
    gratings,
    mixture,
    rolling,
    tastes,
)
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit


@case(
    "masks of 0 and 255 in binary cross entropy: milesial/Pytorch-UNet issue 78, get loss is negative",
    "loss_spike",
    120,
    "loss_spike grad_explosion divergence",
    "skip_batch",
)
def masks_of_255(seed: int, bad: bool) -> Run:
    """Four batches in a row; the loss of such a batch is large, and then large and negative."""
    data = gratings()
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1)
    )
    clean = (data.x > 0.4).float()
    read = data.picks(16, seed)

    def batches(i: int) -> Any:
        at = read(i)
        noisy = data.x[at] + 0.3 * torch.randn(16, 1, 8, 8, generator=generator(seed, i))
        return noisy, clean[at] * (255 if bad and 120 <= i < 124 else 1)

    def bce(out: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(out, y)

    held = data.xv, (data.xv > 0.4).float()
    return Run(
        net,
        torch.optim.RMSprop(net.parameters(), lr=2e-3),
        batches,
        lambda m, b: bce(m(b[0]), b[1]),
        200,
        lambda m: bce(m(held[0]), held[1]).item(),
    )


@case(
    "a corrupt shard, many bad batches in a row: suspected in stanford-crfm/mistral issue 115, Investigate loss spikes",
    "loss_spike",
    150,
    "loss_spike grad_explosion",
    "skip_batch",
)
def corrupt_shard(seed: int, bad: bool) -> Run:
    data = clusters()
    net = nn.Sequential(nn.Linear(20, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 8))
    read = data.reader(32, seed)

    def batches(i: int) -> Any:
        x, y = read(i)
        return (60 * x.roll(7, 1), y.flip(0)) if bad and 150 <= i < 162 else (x, y)

    return Run(
        net, torch.optim.Adagrad(net.parameters(), lr=0.03), batches, cross_entropy, 260, data.judge(F.cross_entropy)
    )


@case(
    "one rank's file is on another scale: every 40th batch is bad, for ever (known failure mode; no particular report)",
    "loss_spike",
    80,
    "loss_spike grad_explosion",
    "skip_batch",
)
def every_fortieth(seed: int, bad: bool) -> Run:
    """A recommender; the ratings of that file are out of 500 in place of 5."""
    data = tastes()
    net = Factors()
    read = data.reader(64, seed)

    def batches(i: int) -> Any:
        pairs, rating = read(i)
        return pairs, rating * (100 if bad and i >= 80 and i % 40 == 0 else 1)

    def mse(out: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(out, y)

    return Run(
        net,
        torch.optim.Adagrad(net.parameters(), lr=0.1),
        batches,
        lambda m, b: mse(m(b[0]), b[1]),
        400,
        data.judge(mse),
    )


@case(
    "counts of one busy day: catboost/catboost issue 1829, Numerical overflow / instability with Poisson loss",
    "loss_spike",
    140,
    "loss_spike grad_explosion",
    "skip_batch",
)
def busy_day(seed: int, bad: bool) -> Run:
    data = mixture()
    counts = torch.poisson(data.y.clamp(-2, 2).exp(), generator=generator(8))
    net = dense(12, 32, 1, act=nn.Tanh)
    read = data.picks(32, seed)

    def batches(i: int) -> Any:
        at = read(i)
        return data.x[at], counts[at] + 4000 * (bad and i == 140)

    def poisson(out: Tensor, y: Tensor) -> Tensor:
        return F.poisson_nll_loss(out.squeeze(1), y)

    held = torch.poisson(data.yv.clamp(-2, 2).exp(), generator=generator(9))
    return Run(
        net,
        torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True),
        batches,
        lambda m, b: poisson(m(b[0]), b[1]),
        300,
        lambda m: poisson(m(data.xv), held).item(),
    )


@case(
    "a cosine schedule with restarts for another optimizer: its second peak is too high (no particular report)",
    "loss_spike",
    221,
    "loss_spike grad_explosion divergence oscillation",
    "lower_lr",
    delay=60,
)
def restart_too_high(seed: int, bad: bool) -> Run:
    data = rolling()
    net = Gru()
    optimizer = torch.optim.RMSprop(net.parameters(), lr=3e-3)

    def factor(i: int) -> float:
        peak = 100.0 if bad and i >= 220 else 1.0 if i < 220 else 0.3
        return peak * (0.05 + 0.95 * (0.5 + 0.5 * math.cos(math.pi * (i % 220) / 220)))

    return Run(
        net,
        optimizer,
        data.reader(32, seed),
        cross_entropy,
        360,
        data.judge(F.cross_entropy),
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, factor),
    )


@case(
    "post-norm transformer without warm-up: On Layer Normalization in the Transformer Architecture (Xiong et al. 2020)",
    "flat",
    0,
    "flat_loss plateau loss_spike divergence oscillation grad_explosion",
    "lower_lr",
)
def warm_up_missing(seed: int, bad: bool) -> Run:
    data = rolling()
    net = Encoder(layers=2, norm_first=False)
    optimizer = torch.optim.NAdam(net.parameters(), lr=0.03 if bad else 3e-3)
    warm = None if bad else torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / 30))
    return Run(net, optimizer, data.reader(16, seed), cross_entropy, 300, data.judge(F.cross_entropy), scheduler=warm)


@case(
    "momentum 0.999 by a typing error: a step is a thousand times as long as meant (no particular report)",
    "oscillation",
    3,
    "oscillation divergence loss_spike grad_explosion non_finite",
    "lower_lr",
)
def momentum_0999(seed: int, bad: bool) -> Run:
    data = gratings()
    x, read = data.x.flatten(1), data.picks(32, seed)
    net = dense(64, 32, 12, 32, 64, act=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.999 if bad else 0.9)
    xv = data.xv.flatten(1)
    return Run(
        net,
        optimizer,
        lambda i: x[read(i)],
        lambda m, b: F.mse_loss(m(b), b),
        600,
        lambda m: F.mse_loss(m(xv), xv).item(),
    )


@case(
    "a warm-up that never ends: the rate grows for hundreds of good steps, then the loss turns (no particular report)",
    "divergence",
    330,
    "divergence loss_spike oscillation grad_explosion",
    "lower_lr",
    delay=220,
)
def late_divergence(seed: int, bad: bool) -> Run:
    data = mixture()
    net = dense(12, 48, 48, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)

    def factor(i: int) -> float:
        return 1.0 if not bad or i < 300 else min(40.0, 1.0 + 0.3 * (i - 300))

    def mse(out: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(out.squeeze(1), y)

    return Run(
        net,
        optimizer,
        data.reader(32, seed),
        lambda m, b: mse(m(b[0]), b[1]),
        600,
        data.judge(mse),
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, factor),
    )


@case(
    "a triplet loss sticks at its margin: omoindrot/tensorflow-triplet-loss issue 6, About triplet loss convergence",
    "flat",
    0,
    "flat_loss plateau grad_vanishing dead_parameters loss_spike grad_explosion divergence",
    "lower_lr",
)
def one_point(seed: int, bad: bool) -> Run:
    data = clusters()
    net = dense(20, 48, 48, 8)
    read = data.reader(32, seed)

    def triplet(model: nn.Module, batch: Any) -> Tensor:
        """The hardest friend and the hardest stranger of every sample."""
        x, y = batch
        out = model(x)
        apart = ((out[:, None] - out[None]) ** 2).sum(2)
        alike = y[:, None] == y[None]
        friend = (apart * alike).max(1).values
        stranger = (apart + 1e4 * alike).min(1).values
        return F.relu(friend - stranger + 1.0).mean()

    held = data.xv[:64], data.yv[:64]
    return Run(
        net,
        torch.optim.Adam(net.parameters(), lr=0.1 if bad else 1e-3),
        read,
        triplet,
        320,
        lambda m: triplet(m, held).item(),
    )


@case(
    "keras-team/keras issue 3755, Validation loss increases while validation accuracy is still improving",
    "overfitting",
    120,
    "overfitting",
    "stop",
    delay=260,
)
def overconfident(seed: int, bad: bool) -> Run:
    data = mixture()
    count = 150 if bad else len(data.x)
    net = dense(12, 64, 64, 2, act=nn.Tanh)

    def nll(out: Tensor, y: Tensor) -> Tensor:
        return (out[:, 1] + 0.5 * (y - out[:, 0]) ** 2 * (-2 * out[:, 1]).exp()).mean()

    def batches(i: int) -> Any:
        at = torch.randint(count, (32,), generator=generator(seed, i))
        return data.x[at], data.y[at]

    return Run(
        net,
        torch.optim.Adam(net.parameters(), lr=3e-3),
        batches,
        lambda m, b: nll(m(b[0]), b[1]),
        420,
        data.judge(nll),
        validate=20,
    )


@case(
    "weight decay far too large, all weights go to zero: tinghuiz/SfMLearner issue 34, networks weight decay",
    "flat",
    0,
    "flat_loss plateau grad_vanishing",
    "stop",
)
def decay_a_thousandfold(seed: int, bad: bool) -> Run:
    data = clusters()
    net = dense(20, 48, 48, 8, act=nn.ELU)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9, weight_decay=1.0 if bad else 1e-3)
    return Run(net, optimizer, data.reader(64, seed), cross_entropy, 400, data.judge(F.cross_entropy))
