"""What the guard costs in a healthy step, measured in the live loop.

Own time is everything the guard adds to an iteration: the wall time of the iteration minus the time inside the real
work (reading the batch, `zero_grad`, the model's forward, the autograd engine, the real `optimizer.step`), minus what
is left over in a bare loop that carries the same timers. It is compared with the own time of
`torch.nn.utils.clip_grad_norm_` on the same gradients, taken in the same way. Bare, clipped and guarded blocks take
turns in shuffled order on one model, so that drift of a shared machine hits all of them alike.

    python benchmarks/overhead.py [--quick] [--models mlp,gpt-1m] [--seed 0]

Prints medians (a usual step) and means (which hold the snapshot of every 100th step); asserts nothing.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

import guard

now = time.perf_counter
Batch = tuple[Tensor, Tensor]
BARE, CLIP = "bare", "clip_grad_norm_"
PARTS = ("batch", "zero_grad", "forward", "backward", "step")
WARM_UP = 40  # iterations of every variant before anything counts


# ---- models: called as model(x, y), they return the loss


class Mlp(nn.Module):
    def __init__(self, *, norm: bool) -> None:
        super().__init__()
        widths = [64, 128, 64]
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise(widths):
            layers += [nn.Linear(a, b), *([nn.BatchNorm1d(b)] if norm else []), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], 10))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.layers(x), y)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.before(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, c))
        return x + self.narrow(F.gelu(self.wide(self.between(x))))


class Gpt(nn.Module):
    def __init__(self, depth: int, width: int, heads: int, words: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.register_buffer("order", torch.arange(length))
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.head(self.norm(self.blocks(self.words(x) + self.places(self.order))))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


class ManySmall(nn.Module):
    def __init__(self, layers: int = 500, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        for p in self.parameters():
            nn.init.normal_(p, std=0.01)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return F.mse_loss(x, y)


def vectors(width: int, batch: int, classes: int | None) -> list[Batch]:
    """A handful of batches: features, and classes (or, without classes, targets of the same width)."""
    g = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(batch, width, generator=g),
            torch.randint(classes, (batch,), generator=g) if classes else torch.randn(batch, width, generator=g),
        )
        for _ in range(16)
    ]


def tokens(words: int, batch: int, length: int) -> list[Batch]:
    g = torch.Generator().manual_seed(1)
    pairs = [torch.randint(words, (2, batch, length), generator=g) for _ in range(16)]
    return [(p[0], p[1]) for p in pairs]


@dataclass(frozen=True, slots=True)
class Workload:
    """A model with its data, and how long to measure it.

    Args:
        block: iterations of one variant before another has its turn.
        ticks: guarded iterations per API; a multiple of 100, so that every run holds its share of snapshots.
    """

    title: str
    make: Callable[[], nn.Module]
    data: Callable[[], list[Batch]]
    block: int
    ticks: int


WORKLOADS = {
    "mlp": Workload("tiny MLP", lambda: Mlp(norm=False), lambda: vectors(64, 64, 10), 50, 3000),
    "batchnorm": Workload("MLP, BatchNorm", lambda: Mlp(norm=True), lambda: vectors(64, 64, 10), 50, 3000),
    "small-tensors": Workload("1,000 tensors", ManySmall, lambda: vectors(16, 32, None), 20, 600),
    "gpt-1m": Workload("GPT, 1 M", lambda: Gpt(4, 128, 4, 512, 64), lambda: tokens(512, 8, 64), 10, 500),
    "gpt-11m": Workload("GPT, 11 M", lambda: Gpt(6, 384, 6, 256, 64), lambda: tokens(256, 2, 64), 5, 200),
}


# ---- the loop, with a timer inside every real piece of work


class Timed:
    """Calls `work` and adds up the time spent in it."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self.work, self.spent = work, 0.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        start = now()
        try:
            return self.work(*args, **kwargs)
        finally:
            self.spent += now() - start

    def take(self) -> float:
        spent, self.spent = self.spent, 0.0
        return spent


@dataclass(slots=True)
class Sample:
    """One iteration: its wall time [s], and the part of it outside the real work, per piece."""

    wall: float
    outside: tuple[float, ...]

    @property
    def own(self) -> float:
        return sum(self.outside)


class Bench:
    """One model, its optimizer, and timers in the real work."""

    def __init__(self, load: Workload) -> None:
        torch.manual_seed(0)
        self.model = load.make()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.parameters = list(self.model.parameters())
        data = load.data()
        self.source = Timed(lambda i: data[i % len(data)])
        self.zero_grad = Timed(self.optimizer.zero_grad)
        self.forward = Timed(self.model.forward)
        self.model.forward = self.forward
        self.engine = Timed(torch.autograd.backward)
        torch.autograd.backward = self.engine
        self.real_step = Timed(self.optimizer.step)
        self.inner = (self.source, self.zero_grad, self.forward, self.engine, self.real_step)

    def run(
        self,
        count: int,
        batches: Iterator[Batch],
        backward: Callable[[Tensor], None],
        step: Callable[[], Any],
        extra: Callable[[], Any] | None = None,
    ) -> list[Sample]:
        """`count` iterations of a training loop."""
        samples = []
        for _ in range(count):
            t0 = now()
            x, y = next(batches)
            t1 = now()
            self.zero_grad()
            t2 = now()
            loss = self.model(x, y)
            t3 = now()
            backward(loss)
            t4 = now()
            if extra is not None:
                extra()
            step()
            t5 = now()
            walls = (t1 - t0, t2 - t1, t3 - t2, t4 - t3, t5 - t4)
            samples.append(Sample(t5 - t0, tuple(w - i.take() for w, i in zip(walls, self.inner, strict=True))))
        return samples

    def restore(self) -> None:
        torch.autograd.backward = self.engine.work


class Variant:
    """One way to run the loop. Bare as it stands."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.batches: Iterator[Batch] = map(bench.source, itertools.count())
        self.samples: list[list[Sample]] = []

    def block(self, count: int) -> list[Sample]:
        return self.bench.run(count, self.batches, lambda loss: loss.backward(), self.bench.real_step)


class Clipped(Variant):
    """With `clip_grad_norm_` (the multi-tensor kind, its default), whose multiplication runs whatever the norm."""

    def block(self, count: int) -> list[Sample]:
        clip = torch.nn.utils.clip_grad_norm_
        return self.bench.run(
            count,
            self.batches,
            lambda loss: loss.backward(),
            self.bench.real_step,
            lambda: clip(self.bench.parameters, 1e9),
        )


class Guarded(Variant):
    """With a guard under the default policy, attached for the length of a block: one line, or the loop API.

    The guard stays the same over all blocks, as in a long run; it is put on and taken off outside the timing.
    """

    def __init__(self, bench: Bench, run_dir: Path, *, loop_api: bool) -> None:
        super().__init__(bench)
        self.guard = guard.attach(bench.model, bench.optimizer, receivers=[], run_dir=run_dir)
        self.guard.detach()
        self.loop_api = loop_api
        if loop_api:
            self.batches = self.guard.batches(bench.source, steps=1 << 40)

    def block(self, count: int) -> list[Sample]:
        g = self.guard
        g.attachment.install()
        g.attachment.watch_model()
        g._clock_slot.patch.real = self.bench.real_step
        backward = g.backward if self.loop_api else lambda loss: loss.backward()
        try:
            return self.bench.run(count, self.batches, backward, self.bench.optimizer.step)
        finally:
            g.detach()


# ---- from samples to a table


@dataclass(slots=True)
class Figures:
    """Of one variant, over all its blocks. Times in microseconds."""

    median: float
    mean: float
    of_clip: list[float] = field(default_factory=list)
    end_to_end: list[float] = field(default_factory=list)
    parts: tuple[float, ...] = ()


def measure(load: Workload, ticks: int, seed: int) -> list[dict[str, Figures]]:
    """Bare, clip and guard in turns; once for each way to use the guard."""
    return [measure_one(load, ticks, seed, loop_api=loop_api) for loop_api in (False, True)]


def measure_one(load: Workload, ticks: int, seed: int, *, loop_api: bool) -> dict[str, Figures]:
    bench = Bench(load)
    order = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        guarded = Guarded(bench, Path(folder), loop_api=loop_api)
        variants = {
            BARE: Variant(bench),
            CLIP: Clipped(bench),
            "guard, loop API" if loop_api else "guard, one line": guarded,
        }
        try:
            for variant in variants.values():
                variant.block(WARM_UP)
            gc.collect()
            for _ in range(ticks // load.block):
                turns = list(variants.values())
                order.shuffle(turns)
                for variant in turns:
                    variant.samples.append(variant.block(load.block))
        finally:
            guarded.guard.close(timeout=1.0)
            bench.restore()
    return evaluate(variants)


def evaluate(variants: dict[str, Variant]) -> dict[str, Figures]:
    bare = [s for block in variants[BARE].samples for s in block]
    rest = statistics.median(s.own for s in bare)
    rest_of = [statistics.median(s.outside[i] for s in bare) for i in range(len(PARTS))]
    mean_rest = statistics.fmean(s.own for s in bare)

    def usual(block: list[Sample]) -> float:
        return statistics.median(s.own for s in block) - rest

    figures = {}
    for name, variant in variants.items():
        every = [s for block in variant.samples for s in block]
        f = figures[name] = Figures(
            (statistics.median(s.own for s in every) - rest) * 1e6,
            (statistics.fmean(s.own for s in every) - mean_rest) * 1e6,
        )
        f.parts = tuple((statistics.median(s.outside[i] for s in every) - rest_of[i]) * 1e6 for i in range(len(PARTS)))
        turns = zip(variant.samples, variants[CLIP].samples, variants[BARE].samples, strict=True)
        for mine, clips, plain in turns:
            f.of_clip.append(usual(mine) / usual(clips))
            f.end_to_end.append(statistics.median(s.wall for s in mine) / statistics.median(s.wall for s in plain))
    figures[BARE].mean = statistics.fmean(s.wall for s in bare) * 1e6
    figures[BARE].median = statistics.median(s.wall for s in bare) * 1e6
    return figures


def quartiles(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:5.2f} [{low:.2f}, {high:.2f}]"


def show(load: Workload, results: list[dict[str, Figures]]) -> None:
    print(f"\n{load.title}: a bare step takes {results[0][BARE].median / 1e3:.3f} ms")
    print(f"  {'':18}{'own time [us]':>24}{'own / clip':>24}{'mean / mean':>13}{'with / bare':>24}")
    print(f"  {'':18}{'median':>12}{'mean':>12}{'median [quartiles]':>24}{'':>13}{'median [quartiles]':>24}")
    for figures in results:
        for name, f in figures.items():
            if name != BARE:
                print(
                    f"  {name:18}{f.median:12.1f}{f.mean:12.1f}{quartiles(f.of_clip):>24}"
                    f"{f.mean / figures[CLIP].mean:13.2f}{quartiles(f.end_to_end):>24}"
                )
    print(f"  {'of which [us, median]':24}" + "".join(f"{p:>12}" for p in PARTS))
    for figures in results:
        *_, (name, f) = figures.items()
        print(f"  {name:24}" + "".join(f"{p:12.1f}" for p in f.parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the time, and wider quartiles")
    parser.add_argument("--models", default=",".join(WORKLOADS), help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the blocks")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, 1 thread, AdamW (fused), default policy")
    for name in options.models.split(","):
        load = WORKLOADS[name]
        show(load, measure(load, max(100, load.ticks // 10) if options.quick else load.ticks, options.seed))


if __name__ == "__main__":
    main()
