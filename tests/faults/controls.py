"""Controls: runs that look odd and are healthy. Nothing is the right thing to do."""

from __future__ import annotations

import math
from typing import Any

import torch
from faults._case import Hooks, Run, control
from faults._material import (
    Encoder,
    Factors,
    Gru,
    clusters,
    convolutional,
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


@control("REINFORCE: the loss has either sign and no trend, and the policy gets better all the same")
def reinforce(seed: int, bad: bool) -> Run:
    worth = torch.randn(5, 4, generator=generator(31))
    net = dense(5, 32, 4, act=nn.Tanh)

    def batches(i: int) -> Any:
        g = generator(seed, i)
        return torch.randn(48, 5, generator=g), torch.rand(48, 1, generator=g), torch.randn(48, generator=g)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        state, luck, noise = batch
        chances = model(state).softmax(1)
        action = (chances.detach().cumsum(1) < luck).sum(1).clamp(max=3)[:, None]
        reward = (state @ worth).gather(1, action).squeeze(1) + noise
        return -((reward - reward.mean()) * chances.gather(1, action).squeeze(1).log()).mean()

    held = torch.randn(400, 5, generator=generator(32))
    return Run(
        net,
        torch.optim.Adam(net.parameters(), lr=1e-2),
        batches,
        loss,
        500,
        lambda m: -(m(held).softmax(1) * (held @ worth)).sum(1).mean().item(),
    )


@control("GAN: two losses against each other, neither goes down")
def gan(seed: int, bad: bool) -> Run:
    net = nn.ModuleDict({"make": dense(4, 32, 2), "tell": dense(2, 32, 1, act=lambda: nn.LeakyReLU(0.2))})
    both = [torch.optim.Adam(net[part].parameters(), lr=1e-3, betas=(0.5, 0.99)) for part in ("tell", "make")]
    g = generator(33)
    turn, noise = 2 * math.pi * torch.rand(256, generator=g), torch.randn(256, 4, generator=g)
    ring = torch.stack([turn.cos(), turn.sin()], 1)

    def batches(i: int) -> Any:
        g = generator(seed, i)
        return ring[torch.randint(256, (64,), generator=g)], torch.randn(2, 64, 4, generator=g)

    def iterate(run: Run, batch: Any, hooks: Hooks) -> Tensor:
        real, noise = batch
        tell, make = run.model["tell"], run.model["make"]
        for optimizer in both:
            optimizer.zero_grad()
        fooled = F.softplus(-tell(make(noise[0])))
        caught = F.softplus(-tell(real)).mean() + F.softplus(tell(make(noise[1]).detach())).mean()
        caught.backward()
        both[0].step()
        both[1].zero_grad()
        fooled = F.softplus(-tell(make(noise[0]))).mean()
        fooled.backward()
        both[1].step()
        return fooled

    def distance(model: nn.Module) -> float:
        return torch.cdist(ring, model["make"](noise)).min(1).values.mean().item()

    return Run(net, both, batches, lambda m, b: torch.zeros(()), 300, distance, iterate=iterate)


@control("LBFGS with line search: several losses a step, and the loss falls by orders of magnitude")
def lbfgs(seed: int, bad: bool) -> Run:
    data = mixture()
    net = dense(12, 16, 1, act=nn.Tanh)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=5, line_search_fn="strong_wolfe")

    def mse(out: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(out.squeeze(1), y)

    def iterate(run: Run, batch: Any, hooks: Hooks) -> Tensor:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = run.loss(run.model, batch)
            loss.backward()
            return loss

        return optimizer.step(closure)

    return Run(
        net,
        optimizer,
        lambda i: (data.x, data.y),
        lambda m, b: mse(m(b[0]), b[1]),
        80,
        data.judge(mse),
        iterate=iterate,
    )


@control("batch size 1 and plain SGD under a Huber loss: every step is noise")
def one_by_one(seed: int, bad: bool) -> Run:
    data = mixture()
    net = dense(12, 32, 1, act=nn.Tanh)

    def huber(out: Tensor, y: Tensor) -> Tensor:
        return F.huber_loss(out.squeeze(1), y)

    return Run(
        net,
        torch.optim.SGD(net.parameters(), lr=0.01),
        data.reader(1, seed),
        lambda m, b: huber(m(b[0]), b[1]),
        900,
        data.judge(huber),
    )


@control("curriculum: harder samples come in at step 150, and the loss steps up")
def curriculum(seed: int, bad: bool) -> Run:
    data = gratings()
    net = convolutional()
    read = data.reader(32, seed)

    def batches(i: int) -> Any:
        x, y = read(i)
        return x + (1.2 * torch.randn(x.shape, generator=generator(seed, i)) if i >= 150 else 0), y

    return Run(
        net, torch.optim.AdamW(net.parameters(), lr=1e-3), batches, cross_entropy, 320, data.judge(F.cross_entropy)
    )


@control("FP16: the loss scaler starts at 2^24 and finds its scale, and looks higher every 40 steps")
def scale_search(seed: int, bad: bool) -> Run:
    data = clusters()
    net = dense(20, 48, 48, 8)
    return Run(
        net,
        torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9),
        data.reader(32, seed),
        cross_entropy,
        300,
        data.judge(F.cross_entropy),
        dtype=torch.float16,
        scaler=torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=40),
    )


@control("cosine with warm restarts, as meant: the loss rises a little at each")
def warm_restarts(seed: int, bad: bool) -> Run:
    data = rolling()
    net = Gru()
    optimizer = torch.optim.RMSprop(net.parameters(), lr=3e-3)
    return Run(
        net,
        optimizer,
        data.reader(32, seed),
        cross_entropy,
        400,
        data.judge(F.cross_entropy),
        scheduler=torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 100, eta_min=3e-5),
    )


@control("a ranking loss with Adagrad on rare embeddings: most rows get no gradient")
def rare_items(seed: int, bad: bool) -> Run:
    data = tastes()
    net = Factors(6, biased=False)

    def ranking(model: nn.Module, pairs: Tensor, rating: Tensor) -> Tensor:
        other = torch.stack([pairs[:, 0], pairs[:, 1].roll(1)], 1)
        return F.softplus(-torch.sign(rating - rating.roll(1)) * (model(pairs) - model(other))).mean()

    return Run(
        net,
        torch.optim.Adagrad(net.parameters(), lr=0.3),
        data.reader(32, seed),
        lambda m, b: ranking(m, *b),
        500,
        lambda m: ranking(m, data.xv, data.yv).item(),
    )


@control("BF16 denoising at random levels: heavy tails by nature")
def denoising(seed: int, bad: bool) -> Run:
    data = gratings()
    x, read = data.x.flatten(1), data.picks(8, seed)
    net = dense(65, 64, 64, act=nn.SiLU)

    def noisy(x: Tensor, *place: int) -> Any:
        g = generator(*place)
        return x, torch.randn(x.shape, generator=g), torch.rand(len(x), 1, generator=g)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        clean, noise, level = batch
        out = model(torch.cat([(1 - level).sqrt() * clean + level.sqrt() * noise, level], 1)).float()
        return ((out - noise) ** 2 / level.clamp(min=0.01).sqrt()).mean()

    held = noisy(data.xv.flatten(1), 99)
    return Run(
        net,
        torch.optim.AdamW(net.parameters(), lr=2e-3),
        lambda i: noisy(x[read(i)], seed, i),
        loss,
        500,
        lambda m: loss(m, held).item(),
        dtype=torch.bfloat16,
    )


@control("a Gaussian likelihood crosses zero and goes on down")
def below_zero(seed: int, bad: bool) -> Run:
    data = mixture()
    net = dense(12, 48, 48, 2, act=nn.Tanh)

    def nll(out: Tensor, y: Tensor) -> Tensor:
        return (out[:, 1] + 0.5 * (y - out[:, 0]) ** 2 * (-2 * out[:, 1]).exp()).mean()

    return Run(
        net,
        torch.optim.NAdam(net.parameters(), lr=2e-3),
        data.reader(64, seed),
        lambda m, b: nll(m(b[0]), b[1]),
        400,
        data.judge(nll),
    )


@control("accumulation over four micro-batches in a transformer with dropout and warm-up")
def accumulation(seed: int, bad: bool) -> Run:
    data = rolling()
    net = Encoder(layers=1, norm_first=True, dropout=0.2)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    return Run(
        net,
        optimizer,
        data.reader(8, seed),
        cross_entropy,
        150,
        data.judge(F.cross_entropy),
        accumulate=4,
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / 30)),
    )


@control("a hinge loss that is satisfied: loss and gradient are exactly 0 for most of the run")
def satisfied(seed: int, bad: bool) -> Run:
    data = clusters()
    x, y = data.x[:64], data.y[:64]
    net = dense(20, 128, 8)

    def hinge(model: nn.Module, batch: Any) -> Tensor:
        return F.multi_margin_loss(model(batch[0]), batch[1])

    return Run(
        net,
        torch.optim.Adamax(net.parameters(), lr=1e-2),
        lambda i: (x, y),
        hinge,
        300,
        lambda m: hinge(m, (x, y)).item(),
    )


@control("a new head first, the trunk from step 100 on: the gradient grows when it is let loose")
def thawed(seed: int, bad: bool) -> Run:
    data = gratings()
    net = convolutional()
    trunk = [p for layer in net[:-1] for p in layer.parameters()]
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def batches(i: int) -> Any:
        return (i, *read(i))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        i, x, y = batch
        for p in trunk:
            p.requires_grad_(i >= 100)
        return cross_entropy(model, (x, y))

    read = data.reader(32, seed)
    return Run(net, optimizer, batches, loss, 280, data.judge(F.cross_entropy))
