"""Faults of arithmetic and of memory: roots of zero, logarithms, overflow, flipped bits."""

from __future__ import annotations

import math
from typing import Any

import torch
from faults._case import Run, case
from faults._material import (
    Gru,
    Once,
    convolutional,
    cross_entropy,
    dense,
    flip,
    generator,
    gratings,
    mixture,
    numbered,
    rolling,
)
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit


@case(
    "root of a zero distance has no gradient: pytorch/pytorch issue 6394, chain rule will lead to Nan, sqrt() example",
    "non_finite",
    110,
    "non_finite",
    "skip_batch",
)
def root_of_zero(seed: int, bad: bool) -> Run:
    """A contrastive loss on pairs; in two batches a pair holds the same image twice."""
    data = gratings()
    x, read = data.x.flatten(1), data.picks(32, seed)
    net = dense(64, 48, 8)

    def batches(i: int) -> Any:
        at = read(i)
        other = at.roll(1)
        if bad and i in (110, 190):
            other = torch.cat([at[:1], other[1:]])
        return x[at], x[other], (data.y[at] == data.y[other]).float()

    def contrast(a: Tensor, b: Tensor, alike: Tensor) -> Tensor:
        apart = ((a - b) ** 2).sum(1).sqrt()
        return (alike * apart**2 + (1 - alike) * F.relu(2 - apart) ** 2).mean()

    xv, yv = data.xv.flatten(1), data.yv
    return Run(
        net,
        torch.optim.RMSprop(net.parameters(), lr=1e-3),
        batches,
        lambda m, b: contrast(m(b[0]), m(b[1]), b[2]),
        260,
        lambda m: contrast(m(xv[:-1]), m(xv[1:]), (yv[:-1] == yv[1:]).float()).item(),
    )


@case(
    "log(softmax(x)) in place of log_softmax, when distilling: yzd-v/cls_KD issue 13, loss is always nan",
    "non_finite",
    140,
    "non_finite",
    "skip_batch",
)
def log_of_underflow(seed: int, bad: bool) -> Run:
    """KL to soft labels; a batch with one sample a hundred times too large drives a probability to 0."""
    data = gratings()
    net = nn.Sequential(nn.Flatten(), *dense(64, 64, 6))
    read = data.reader(48, seed)

    def batches(i: int) -> Any:
        x, y = read(i)
        if bad and i == 140:
            x = torch.cat([100 * x[:1], x[1:]])
        return x, 0.9 * F.one_hot(y, 6) + 0.1 / 6

    def loss(model: nn.Module, batch: Any) -> Tensor:
        p = model(batch[0]).softmax(1)
        return -(batch[1] * p.log()).sum(1).mean()

    return Run(net, torch.optim.Adamax(net.parameters(), lr=4e-3), batches, loss, 240, data.judge(F.cross_entropy))


@case(
    "x / x.norm() of a blank image is 0 / 0, contrastive loss: google-deepmind/optax pull request 946, ntxent fix",
    "non_finite",
    0,
    "non_finite",
    "skip_batch",
)
def norm_of_nothing(seed: int, bad: bool) -> Run:
    """InfoNCE; one image of the set is blank, and the encoder has no biases. It comes round once per pass."""
    data = gratings()
    x, read = data.x.flatten(1), data.picks(64, seed)
    if bad:
        x = x.clone()
        x[int(read(12)[5])] = 0
    net = dense(64, 64, 16, bias=False)

    def contrast(a: Tensor, b: Tensor) -> Tensor:
        a, b = a / a.norm(dim=1, keepdim=True), b / b.norm(dim=1, keepdim=True)
        return F.cross_entropy(a @ b.T / 0.2, torch.arange(len(a)))

    def batches(i: int) -> Any:
        chosen, g = x[read(i)], generator(seed, i)
        return tuple(chosen * (0.7 + 0.6 * torch.rand(chosen.shape, generator=g)) for _ in range(2))

    xv, g = data.xv[:128].flatten(1), generator(9)
    views = [xv * (0.7 + 0.6 * torch.rand(xv.shape, generator=g)) for _ in range(2)]
    return Run(
        net,
        torch.optim.AdamW(net.parameters(), lr=2e-3),
        batches,
        lambda m, b: contrast(m(b[0]), m(b[1])),
        200,
        lambda m: contrast(m(views[0]), m(views[1])).item(),
    )


@case(
    "exp(logvar) of a VAE runs over: vanderschaarlab/synthcity issue 331, Numerical instability in VAE",
    "non_finite",
    90,
    "non_finite loss_spike",
    "skip_batch",
)
def variance_runs_over(seed: int, bad: bool) -> Run:
    data = gratings()
    x, read = data.x.flatten(1), data.picks(16, seed)

    class Vae(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = dense(64, 48, 12), dense(6, 48, 64)

        def forward(self, v: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            mean, logvar = self.encode(v).chunk(2, 1)
            return self.decode(mean + noise * (0.5 * logvar).exp()), mean, logvar

    def elbo(model: nn.Module, batch: Any) -> Tensor:
        out, mean, logvar = model(*batch)
        hidden = -0.5 * (1 + logvar - mean**2 - logvar.exp()).sum(1)
        return ((out - batch[0]) ** 2).mean() + 0.01 * hidden.mean()

    def batches(i: int) -> Any:
        chosen = x[read(i)]
        if bad and i == 90:
            chosen = 255 * chosen
        return chosen, torch.randn(16, 6, generator=generator(seed, i))

    net = Vae()
    held = data.xv.flatten(1), torch.zeros(300, 6)
    return Run(net, torch.optim.NAdam(net.parameters(), lr=2e-3), batches, elbo, 260, lambda m: elbo(m, held).item())


class Retrieval(nn.Module):
    """Attention with a learnt, unclamped sharpness, as in CLIP."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 32, bias=False) for _ in range(3))
        self.sharpness, self.out = nn.Parameter(torch.tensor(start)), nn.Linear(32, 8)

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        asked, store = batch
        logits = (self.q(asked)[:, None] @ self.k(store).transpose(1, 2)) * self.sharpness.exp().to(asked.dtype)
        if torch.is_autocast_enabled("cpu"):
            logits = logits.to(torch.get_autocast_dtype("cpu"))
        return self.out((logits.float().softmax(-1).to(logits.dtype) @ self.v(store)).squeeze(1))


@case(
    "attention logits pass 65504 in fp16: plemeri/InSPyReNet issue 36, Overflow NaN can be happen in training",
    "non_finite",
    30,
    "non_finite",
    "rollback_bf16",
)
def attention_logits_grow(seed: int, bad: bool) -> Run:
    def batches(i: int, count: int = 32) -> Any:
        g = generator(seed, i)
        store = torch.randn(count, 12, 8, generator=g)
        chosen = torch.randint(12, (count,), generator=g)
        wanted = store[torch.arange(count), chosen]
        return (wanted + 0.3 * torch.randn(count, 8, generator=g), store), wanted

    net = Retrieval(5.0)
    rest = [p for name, p in net.named_parameters() if name != "sharpness"]
    optimizer = torch.optim.AdamW(
        [{"params": rest, "lr": 3e-3}, {"params": [net.sharpness], "lr": 4e-2}], weight_decay=0.0
    )
    optimizer.param_groups[1]["betas"] = (0.9, 0.99)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        # What pulls the sharpness up: the temperature of the softmax is being annealed by a term of its own.
        return F.mse_loss(model(batch[0]).float(), batch[1]) - 0.02 * model.sharpness

    held = batches(10_000_000, 200)
    return Run(
        net,
        optimizer,
        batches,
        loss,
        220,
        lambda m: F.mse_loss(m(held[0]).float(), held[1]).item(),
        dtype=torch.float16 if bad else torch.bfloat16,
    )


@case(
    "Adam's eps of 1e-8 is 0 in half precision: pytorch/pytorch issue 8860, NaN loss when using half precision",
    "non_finite",
    0,
    "non_finite",
    "rollback_bf16",
)
def half_weights(seed: int, bad: bool) -> Run:
    """`model.half()` and Adam: the squared gradient underflows, and 0 / 0 is written into the weights."""
    data = rolling()
    net = nn.Sequential(nn.Flatten(), dense(32, 32, 5))
    if bad:
        net.half()

    def loss(out_of: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out_of(x.to(net[1][0].weight.dtype)).float(), y)

    return Run(
        net,
        torch.optim.Adam(net.parameters(), lr=1e-3),
        data.reader(64, seed),
        lambda m, b: loss(m, *b),
        200,
        lambda m: loss(m, data.xv, data.yv).item(),
    )


@case(
    "a Gaussian likelihood whose variance has collapsed (arXiv 2306.16717, 2023) meets a shifted sensor",
    "loss_spike",
    220,
    "loss_spike grad_explosion",
    "skip_batch",
)
def variance_collapse(seed: int, bad: bool) -> Run:
    """The loss is negative by then; a batch of readings that are off by 3 makes it some thousands."""
    data = mixture()
    net = dense(12, 48, 48, 2, act=nn.Tanh)
    read = data.reader(64, seed)

    def nll(out: Tensor, y: Tensor) -> Tensor:
        return (out[:, 1] + 0.5 * (y - out[:, 0]) ** 2 * (-2 * out[:, 1]).exp()).mean()

    def batches(i: int) -> Any:
        x, y = read(i)
        return x, y + 3.0 * (bad and i == 220)

    return Run(
        net, torch.optim.Adam(net.parameters(), lr=3e-3), batches, lambda m, b: nll(m(b[0]), b[1]), 340, data.judge(nll)
    )


@case(
    "CTC with a transcript longer than its audio: pytorch/pytorch issue 31557, ctc_loss and inf-causing inputs",
    "non_finite",
    70,
    "non_finite",
    "skip_batch",
)
def impossible_transcript(seed: int, bad: bool) -> Run:
    g = generator(6)
    shapes = torch.randn(6, 4, generator=g)

    def spoken(i: int, count: int) -> tuple[Tensor, Tensor]:
        """Five symbols of three ticks each."""
        g = generator(seed, i)
        symbols = torch.randint(1, 6, (count, 5), generator=g)
        x = shapes[symbols].repeat_interleave(3, 1)
        return x + 0.4 * torch.randn(x.shape, generator=g), symbols

    def batches(i: int) -> Any:
        x, symbols = spoken(i, 8)
        if bad and i in (70, 71, 150):
            symbols = symbols.repeat(1, 4)  # two recordings' text in one file
        return x, symbols

    def ctc(model: nn.Module, batch: Any) -> Tensor:
        x, symbols = batch
        out = model(x).log_softmax(2).transpose(0, 1)
        lengths = [torch.full((len(x),), v.shape[1]) for v in (x, symbols)]
        return F.ctc_loss(out, symbols, lengths[0], lengths[1])

    net = Gru(4, 6, everywhere=True)
    held = spoken(9_999_999, 60)
    return Run(net, torch.optim.AdamW(net.parameters(), lr=1e-2), batches, ctc, 220, lambda m: ctc(m, held).item())


@case(
    "log of a reading of 0 is -inf in one row: cschlaffner/PROTzilla2 issue 41, log transform of 0 values in df",
    "non_finite",
    0,
    "non_finite",
    "skip_batch",
)
def minus_infinity(seed: int, bad: bool) -> Run:
    """Batch size 1; the row comes round once per pass."""
    data = rolling()
    x = data.x[:130].clone()
    read = torch.stack([torch.randperm(130, generator=generator(seed, p)) for p in range(3)]).flatten().tolist()
    if bad:
        x[read[40], 3, 1] = -math.inf
    net = Gru(2, 5)
    return Run(
        net,
        torch.optim.AdamW(net.parameters(), lr=4e-3),
        lambda i: (x[read[i]][None], data.y[read[i]][None]),
        cross_entropy,
        390,
        data.judge(F.cross_entropy),
    )


@case(
    "a random crop of width 0 divides by zero: datature/discolight pull request 23, Fixed bug where random crop ...",
    "non_finite",
    130,
    "non_finite",
    "rollback",
    transient=True,
)
def broken_crop(seed: int, bad: bool) -> Run:
    """BF16, and batch normalisation: the forward pass alone writes NaN into its statistics."""
    data = gratings()
    net, now = convolutional(), Once(130)
    read = data.reader(32, seed)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        i, x, y = batch
        if bad and now(i):
            x = x.clone()
            x[3] = torch.nan
        return cross_entropy(model, (x, y))

    return Run(
        net,
        torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9, nesterov=True),
        numbered(read),
        loss,
        200,
        data.judge(F.cross_entropy),
        dtype=torch.bfloat16,
    )


def huber(out: Tensor, y: Tensor) -> Tensor:
    return F.huber_loss(out.squeeze(1), y)


@case(
    "a bit of the optimizer's memory flips: Silent Data Corruptions at Scale (arXiv 2102.11245, 2021)",
    "loss_spike",
    161,
    "loss_spike grad_explosion non_finite divergence",
    "rollback",
    transient=True,
)
def momentum_bit(seed: int, bad: bool) -> Run:
    """The top exponent bit of one momentum: the next update throws a weight far out."""
    data = mixture()
    net, now = dense(12, 48, 48, 1), Once(160)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        i, x, y = batch
        if bad and now(i):
            memory = optimizer.state[net[2].weight]["momentum_buffer"]
            flip(memory, int(memory.abs().argmax()), 30)
        return huber(model(x), y)

    return Run(net, optimizer, numbered(data.reader(32, seed)), loss, 280, data.judge(huber))


def batch_norm_bit(seed: int, bad: bool, *, finite: bool) -> Run:
    data = gratings()
    net, now = convolutional(), Once(120)
    read = data.reader(32, seed)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        i, x, y = batch
        if bad and now(i):
            variance = model[1].running_var
            variance[2] = variance[2].clamp(max=0.99) if finite else variance[2].clamp(min=1.0)
            flip(variance, 2, 30)
        return cross_entropy(model, (x, y))

    return Run(
        net,
        torch.optim.AdamW(net.parameters(), lr=2e-3),
        numbered(read),
        loss,
        210,
        data.judge(F.cross_entropy),
        validate=10 if finite else 0,
    )


@case(
    "a bit of a running variance flips to Inf; trains on, and is lost in eval mode, as in pytorch/pytorch issue 1206",
    "non_finite",
    120,
    "non_finite",
    "rollback",
    transient=True,
    delay=110,
)
def statistics_bit(seed: int, bad: bool) -> Run:
    return batch_norm_bit(seed, bad, finite=False)


@case(
    "the same bit in a smaller variance: 1e38, finite, and seen only in eval mode (no particular report)",
    "non_finite",
    120,
    "overfitting loss_spike divergence",
    "rollback",
    transient=True,
    delay=110,
)
def statistics_bit_finite(seed: int, bad: bool) -> Run:
    return batch_norm_bit(seed, bad, finite=True)


@case(
    "a hand-written kernel's backward pass is wrong in some cases: triton-lang/triton issue 5660, FusedAttention Bug",
    "grad_explosion",
    100,
    "grad_explosion",
    "clip",
)
def wrong_backward(seed: int, bad: bool) -> Run:
    """Loss and data are right; every 25th gradient is ten thousand times too long."""
    data = mixture()
    net = dense(12, 48, 48, 1)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        i, x, y = batch
        out = huber(model(x), y)
        return out + 9_999 * (out - out.detach()) if bad and i >= 100 and i % 25 == 0 else out

    return Run(
        net,
        torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9, nesterov=True),
        numbered(data.reader(16, seed)),
        loss,
        300,
        data.judge(huber),
    )
