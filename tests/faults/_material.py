"""Data and models that several cases are made of. Everything is synthetic and the same in every process."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit


class Set:
    """Samples to train on, and others to judge by."""

    def __init__(self, x: Tensor, y: Tensor, held_out: int) -> None:
        self.x, self.y, self.xv, self.yv = x[held_out:], y[held_out:], x[:held_out], y[:held_out]

    def picks(self, batch: int, seed: int) -> Callable[[int], Tensor]:
        """Index of a batch -> places of its samples, shuffled anew in every pass."""
        per_pass = len(self.x) // batch

        @functools.lru_cache(maxsize=4)
        def order(number: int) -> Tensor:
            return torch.randperm(len(self.x), generator=generator(seed, number))

        return lambda i: order(i // per_pass)[i % per_pass * batch :][:batch]

    def reader(self, batch: int, seed: int) -> Callable[[int], tuple[Tensor, Tensor]]:
        pick = self.picks(batch, seed)
        return lambda i: (self.x[pick(i)], self.y[pick(i)])

    def judge(self, loss: Callable[..., Tensor]) -> Callable[[nn.Module], float]:
        return lambda model: loss(model(self.xv).float(), self.yv).item()


def generator(*seeds: int) -> torch.Generator:
    number = 17
    for seed in seeds:
        number = number * 100_003 + seed
    return torch.Generator().manual_seed(number)


@functools.cache
def gratings() -> Set:
    """Noisy 8 x 8 images of stripes; the class is their direction, one of six."""
    g = generator(1)
    y = torch.randint(6, (1600,), generator=g)
    angle = y * math.pi / 6 + 0.12 * torch.randn(1600, generator=g)
    phase = 2 * math.pi * torch.rand(1600, generator=g)
    row, column = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
    wave = angle.cos()[:, None, None] * row + angle.sin()[:, None, None] * column
    x = (1.3 * wave + phase[:, None, None]).sin() + 0.5 * torch.randn(1600, 8, 8, generator=g)
    return Set(x[:, None], y, 300)


@functools.cache
def rolling() -> Set:
    """Series of 16 ticks of two sensors a quarter turn apart; the class is the frequency, one of five."""
    g = generator(2)
    y = torch.randint(5, (1400,), generator=g)
    speed = 0.35 + 0.3 * y + 0.04 * torch.randn(1400, generator=g)
    t = torch.arange(16.0)
    phase = 2 * math.pi * torch.rand(1400, 1, generator=g) + torch.tensor([0.0, math.pi / 2])
    x = (speed[:, None, None] * t[:, None] + phase[:, None]).sin() + 0.25 * torch.randn(1400, 16, 2, generator=g)
    return Set(x, y, 250)


@functools.cache
def mixture() -> Set:
    """Regression: what a small random network says about twelve features, with some noise."""
    g = generator(3)
    x = torch.randn(1600, 12, generator=g)
    hidden = (x @ torch.randn(12, 6, generator=g) / 3).tanh()
    y = hidden @ torch.randn(6, 1, generator=g)
    return Set(x, (y + 0.1 * torch.randn(1600, 1, generator=g)).squeeze(1), 300)


@functools.cache
def clusters() -> Set:
    """Eight overlapping classes in 20 dimensions."""
    g = generator(4)
    y = torch.randint(8, (1600,), generator=g)
    centres = 1.1 * torch.randn(8, 20, generator=g)
    return Set(centres[y] + torch.randn(1600, 20, generator=g), y, 300)


@functools.cache
def tastes() -> Set:
    """(user, item) pairs and ratings of rank 3 around 3."""
    g = generator(5)
    users, items = torch.randn(90, 3, generator=g), torch.randn(70, 3, generator=g)
    pairs = torch.stack([torch.randint(90, (3000,), generator=g), torch.randint(70, (3000,), generator=g)], 1)
    rating = 3 + 0.7 * (users[pairs[:, 0]] * items[pairs[:, 1]]).sum(1) + 0.3 * torch.randn(3000, generator=g)
    return Set(pairs, rating, 600)


# ---- models


def dense(*sizes: int, act: Callable[[], nn.Module] = nn.ReLU, bias: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b, bias=bias), act()]
    return nn.Sequential(*layers[:-1])


def convolutional(classes: int = 6, width: int = 8) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * width, classes),
    )


class Gru(nn.Module):
    def __init__(self, inputs: int = 2, outputs: int = 5, width: int = 24, *, everywhere: bool = False) -> None:
        super().__init__()
        self.body, self.head = nn.GRU(inputs, width, batch_first=True), nn.Linear(width, outputs)
        self.everywhere = everywhere

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(x)[0]
        return self.head(out if self.everywhere else out[:, -1])


class Encoder(nn.Module):
    """A small transformer over a series; two ticks are one token."""

    def __init__(self, *, layers: int, norm_first: bool, dropout: float = 0.0) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(24, 2, 48, dropout, batch_first=True, norm_first=norm_first)
        self.enter, self.places = nn.Linear(4, 24), nn.Parameter(0.1 * torch.randn(8, 24))
        self.body, self.head = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.enter(x.unflatten(1, (8, 2)).flatten(2)) + self.places).mean(1))


class Factors(nn.Module):
    """A recommender: users times items."""

    def __init__(self, width: int = 8, *, biased: bool = True) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(90, width), nn.Embedding(70, width)
        self.usual = nn.Parameter(torch.tensor(3.0 if biased else 0.0))
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, pairs: Tensor) -> Tensor:
        return self.usual + (self.users(pairs[:, 0]) * self.items(pairs[:, 1])).sum(1)


# ---- little helpers


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]).float(), batch[1])


def flip(tensor: Tensor, index: int, bit: int) -> None:
    """Flips one bit of one FP32 number, as a cosmic ray does."""
    with torch.no_grad():
        tensor.view(-1)[index : index + 1].view(torch.int32)[:] ^= 1 << bit


class Once:
    """True the first time it is asked at a place; a transient fault does not come back when the step is taken again."""

    def __init__(self, place: int) -> None:
        self.place, self.done = place, False

    def __call__(self, place: int) -> bool:
        now = place == self.place and not self.done
        self.done |= now
        return now


def numbered(read: Callable[[int], Any]) -> Callable[[int], Any]:
    """Batches with their index in front."""
    return lambda i: (i, *read(i))
