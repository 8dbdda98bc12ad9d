"""How often the guard cries wolf: generated healthy runs under the default policy.

Each run is drawn from models, losses, optimizers, schedules, batch sizes, precisions and lengths, with rates that
people would choose. It is trained twice from the same seeds, bare and guarded. A run whose loss on the same batches
does not end at least 5 % below where it began, or not 2 % below that of the best answer that ignores the input, is
doubtful: it is listed, and not counted as healthy.

    python benchmarks/false_alarms.py [--quick] [--runs 200] [--first 0] [--seed 0] [--workers 2]

Prints the interventions (none is the aim), which runs alarmed and why, whether the weights are those of the bare run
bit for bit, and how often each detector spoke per 100,000 steps; asserts nothing. The same arguments give the same
runs.
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import math
import multiprocessing
import random
import statistics
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

import guard

QUICK = 40
_ASKED = 16  # batches on which a run is judged
_SAMPLES = 512  # at least so many where it is compared with a constant answer
ACTIONS = ("clip", "skip_step", "scale_lr", "rollback", "precision", "stop")


@dataclass(frozen=True)
class Spec:
    """What a run is made of."""

    number: int
    task: str
    loss: str
    optimizer: str
    schedule: str
    precision: str
    batch: int
    steps: int
    rate: float
    dropout: float
    decay: float
    seed: int

    def __str__(self) -> str:
        return (
            f"#{self.number} {self.task}/{self.loss} {self.optimizer} lr {self.rate:.2g} {self.schedule} "
            f"batch {self.batch} {self.precision} dropout {self.dropout} decay {self.decay} {self.steps} steps"
        )


@dataclass
class Parts:
    """The objects of one training run; `loss` takes the model and a batch."""

    model: nn.Module
    batches: Callable[[int], Any]
    loss: Callable[[nn.Module, Any], Tensor]


@dataclass
class Ended:
    """How a run went.

    Args:
        finite: every loss was.
        before, after: loss of the first and of the last weights on the same batches.
        knows: by how much the last weights beat the best constant answer [share of its loss]; NaN where the model's
            output is no single tensor.
        spoke: detector -> ticks in which it spoke.
        incidents: policy, tick, message, actions.
    """

    before: float
    after: float = math.nan
    knows: float = math.nan
    ticks: int = 0
    finite: bool = True
    weights: list[Tensor] = field(default_factory=list)
    spoke: Counter[str] = field(default_factory=Counter)
    incidents: list[tuple[str, int, str, list[str]]] = field(default_factory=list)
    stopped: bool = False


# ---- data


@functools.cache
def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    return torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)


@functools.cache
def curve() -> tuple[Tensor, Tensor]:
    """A smooth function of ten features under noise with heavy tails."""
    g = torch.Generator().manual_seed(11)
    x = torch.randn(2000, 10, generator=g)
    noise = torch.randn(2000, generator=g) / torch.rand(2000, generator=g).clamp(min=0.05).sqrt()
    return x, x[:, 0].sin() + 0.5 * x[:, 1] * x[:, 2] + 0.2 * noise


@functools.cache
def text() -> Tensor:
    """Twenty thousand symbols of a Markov chain with 16 states."""
    g = torch.Generator().manual_seed(12)
    chances = torch.softmax(2.5 * torch.randn(16, 16, generator=g), 1)
    symbols = [0]
    for u in torch.rand(20_000, generator=g).tolist():
        row = chances[symbols[-1]].cumsum(0)
        symbols.append(min(15, int((row < u).sum())))
    return torch.tensor(symbols)


@functools.cache
def ratings() -> tuple[Tensor, Tensor]:
    """(user, item) pairs, and what rank-4 tastes say about them."""
    g = torch.Generator().manual_seed(13)
    users, items = torch.randn(120, 4, generator=g), torch.randn(80, 4, generator=g)
    pairs = torch.stack([torch.randint(120, (6000,), generator=g), torch.randint(80, (6000,), generator=g)], 1)
    score = (users[pairs[:, 0]] * items[pairs[:, 1]]).sum(1)
    return pairs, score + 0.3 * torch.randn(6000, generator=g)


def epochs(count: int, batch: int, seed: int) -> Callable[[int], Tensor]:
    """Index of a batch -> places of its samples, shuffled anew in every pass."""
    per_pass = max(1, count // batch)

    @functools.lru_cache(maxsize=2)
    def order(number: int) -> Tensor:
        return torch.randperm(count, generator=torch.Generator().manual_seed(seed * 1009 + number))

    return lambda i: order(i // per_pass)[i % per_pass * batch :][:batch]


def noise_of(index: int, seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * 100_003 + index)


# ---- tasks


def mlp(*sizes: int, dropout: float = 0.0, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), act(), *([nn.Dropout(dropout)] if dropout else [])]
    return nn.Sequential(*layers[:-2] if dropout else layers[:-1])


class Recurrent(nn.Module):
    """A GRU over rows (vectors) or symbols; reads out at the end or everywhere."""

    def __init__(self, inputs: int, outputs: int, *, symbols: bool) -> None:
        super().__init__()
        self.enter = nn.Embedding(inputs, 24) if symbols else nn.Linear(inputs, 24)
        self.body, self.leave, self.symbols = nn.GRU(24, 32, batch_first=True), nn.Linear(32, outputs), symbols

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(self.enter(x))[0]
        return self.leave(out if self.symbols else out[:, -1])


class Attentive(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(24, 2, 48, dropout, batch_first=True, norm_first=True)
        self.enter, self.places = nn.Linear(8, 24), nn.Parameter(0.02 * torch.randn(8, 24))
        self.body, self.leave = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.body(self.enter(x) + self.places).mean(1))


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = mlp(64, 48, 16), mlp(8, 48, 64)

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, logvar = self.encode(x).float().chunk(2, 1)
        return self.decode(mean + noise * (0.5 * logvar).exp()), mean, logvar


class Taste(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(120, 8), nn.Embedding(80, 8)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, pairs: Tensor) -> Tensor:
        return (self.users(pairs[:, 0]) * self.items(pairs[:, 1])).sum(1)


def classify(loss: str) -> Callable[[nn.Module, Any], Tensor]:
    def of(out: Tensor, y: Tensor) -> Tensor:
        target = F.one_hot(y, 10).float()
        match loss:
            case "ce":
                return F.cross_entropy(out, y)
            case "smoothed":
                return F.cross_entropy(out, y, label_smoothing=0.1)
            case "bce":
                return F.binary_cross_entropy_with_logits(out, target)
            case "focal":
                p = out.log_softmax(1).gather(1, y[:, None]).squeeze(1)
                return -((1 - p.exp()) ** 2 * p).mean()
            case "kl":
                return F.kl_div(out.log_softmax(1), 0.9 * target + 0.01, reduction="batchmean")
        return F.huber_loss(out, target)

    return lambda model, batch: of(model(batch[0]).float(), batch[1])


def digit_task(model: nn.Module, shape: tuple[int, ...], spec: Spec) -> Parts:
    x, y = digits()
    pick = epochs(len(x), spec.batch, spec.seed)
    return Parts(model, lambda i: (x[pick(i)].view(-1, *shape), y[pick(i)]), classify(spec.loss))


def conv(spec: Spec) -> Parts:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(spec.dropout),
        nn.Linear(16, 10),
    )
    return digit_task(model, (1, 8, 8), spec)


def regression(spec: Spec) -> Parts:
    x, y = curve()
    pick = epochs(len(x), spec.batch, spec.seed)
    nll = spec.loss == "gaussian"

    def loss(model: nn.Module, batch: Any) -> Tensor:
        out = model(batch[0]).float()
        if nll:
            return F.gaussian_nll_loss(out[:, 0], batch[1], F.softplus(out[:, 1]) + 0.01)
        of = {"mse": F.mse_loss, "huber": F.huber_loss, "l1": F.l1_loss}[spec.loss]
        return of(out[:, 0], batch[1])

    return Parts(
        mlp(10, 48, 48, 2 if nll else 1, dropout=spec.dropout, act=nn.Tanh), lambda i: (x[pick(i)], y[pick(i)]), loss
    )


def autoencoder(spec: Spec) -> Parts:
    x, _ = digits()
    pick = epochs(len(x), spec.batch, spec.seed)
    of = {"mse": F.mse_loss, "bce": F.binary_cross_entropy_with_logits}[spec.loss]
    return Parts(mlp(64, 32, 8, 32, 64, act=nn.GELU), lambda i: x[pick(i)], lambda m, b: of(m(b).float(), b))


def vae(spec: Spec) -> Parts:
    x, _ = digits()
    pick = epochs(len(x), spec.batch, spec.seed)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        out, mean, logvar = model(*batch)
        fit = F.binary_cross_entropy_with_logits(out.float(), batch[0], reduction="sum")
        return (fit - 0.5 * (1 + logvar - mean**2 - logvar.exp()).sum()) / len(out)

    return Parts(Vae(), lambda i: (x[pick(i)], torch.randn(spec.batch, 8, generator=noise_of(i, spec.seed))), loss)


def language(spec: Spec) -> Parts:
    symbols = text()

    def batch(i: int) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(symbols) - 25, (spec.batch,), generator=noise_of(i, spec.seed))
        window = symbols[starts[:, None] + torch.arange(25)]
        return window[:, :-1], window[:, 1:]

    return Parts(
        Recurrent(16, 16, symbols=True),
        batch,
        lambda m, b: F.cross_entropy(m(b[0]).float().flatten(0, 1), b[1].flatten()),
    )


def recommender(spec: Spec) -> Parts:
    pairs, score = ratings()
    pick = epochs(len(pairs), spec.batch, spec.seed)

    def ranking(model: nn.Module, batch: Any) -> Tensor:
        """Pairwise: what was liked before another item of the same user."""
        other = torch.stack([batch[0][:, 0], batch[0][:, 1].roll(1)], 1)
        better = torch.sign(batch[1] - batch[1].roll(1))
        return F.softplus(-better * (model(batch[0]) - model(other)).float()).mean()

    return Parts(
        Taste(),
        lambda i: (pairs[pick(i)], score[pick(i)]),
        ranking if spec.loss == "ranking" else lambda m, b: F.mse_loss(m(b[0]).float(), b[1]),
    )


def contrastive(spec: Spec) -> Parts:
    x, y = digits()
    pick = epochs(len(x), spec.batch, spec.seed)

    def batch(i: int) -> tuple[Tensor, Tensor, Tensor]:
        at, g = pick(i), noise_of(i, spec.seed)
        a, b = (x[at] + 0.1 * torch.randn(len(at), 64, generator=g) for _ in range(2))
        return a, b, y[at]

    def loss(model: nn.Module, both: Any) -> Tensor:
        a, b = (F.normalize(model(v).float(), dim=1) for v in both[:2])
        if spec.loss == "triplet":
            return F.triplet_margin_loss(a, b, b.roll(1, 0), margin=0.5)
        return F.cross_entropy(a @ b.T / 0.2, torch.arange(len(a)))

    return Parts(mlp(64, 48, 16, dropout=spec.dropout), batch, loss)


def denoiser(spec: Spec) -> Parts:
    """Predicts the noise in an image at a random level; its loss has heavy tails by nature."""
    x, _ = digits()
    pick = epochs(len(x), spec.batch, spec.seed)

    def batch(i: int) -> tuple[Tensor, Tensor, Tensor]:
        g, at = noise_of(i, spec.seed), pick(i)
        return x[at], torch.randn(len(at), 64, generator=g), torch.rand(len(at), 1, generator=g)

    def loss(model: nn.Module, b: Any) -> Tensor:
        clean, noise, level = b
        noisy = (1 - level).sqrt() * clean + level.sqrt() * noise
        out = model(torch.cat([noisy, level], 1)).float()
        weight = (1 / level.clamp(min=0.02)).sqrt()
        return (weight * (out - noise) ** 2).mean()

    return Parts(mlp(65, 96, 96, 64, act=nn.SiLU), batch, loss)


def bandit(spec: Spec) -> Parts:
    """REINFORCE with a baseline: the loss has either sign and says little about how good the policy is."""
    g = torch.Generator().manual_seed(14)
    worth = torch.randn(6, 5, generator=g)

    def batch(i: int) -> tuple[Tensor, Tensor, Tensor]:
        g = noise_of(i, spec.seed)
        return (
            torch.randn(spec.batch, 6, generator=g),
            torch.rand(spec.batch, 1, generator=g),
            0.5 * torch.randn(spec.batch, generator=g),
        )

    def loss(model: nn.Module, b: Any) -> Tensor:
        state, luck, noise = b
        chances = model(state).float().softmax(1)
        with torch.no_grad():
            action = (chances.cumsum(1) < luck).sum(1).clamp(max=4)
            reward = (state @ worth).gather(1, action[:, None]).squeeze(1) + noise
            gain = reward - (chances * (state @ worth)).sum(1)
        chosen = chances.gather(1, action[:, None]).squeeze(1)
        return -(gain * (chosen + 1e-6).log()).mean() - 0.01 * -(chances * (chances + 1e-6).log()).sum(1).mean()

    return Parts(mlp(6, 32, 5, act=nn.Tanh), batch, loss)


@dataclass(frozen=True)
class Task:
    """A kind of run.

    Args:
        losses: what it may be trained with.
        rate: factor on every rate.
        sgd: further factor on the rate of optimizers whose steps grow with the gradient.
        least: smallest batch that makes sense.
    """

    make: Callable[[Spec], Parts]
    losses: tuple[str, ...]
    rate: float = 1.0
    sgd: float = 1.0
    least: int = 1


TASKS = {
    "mlp": Task(
        lambda s: digit_task(mlp(64, 48, 48, 10, dropout=s.dropout), (64,), s),
        ("ce", "smoothed", "bce", "focal", "kl", "huber"),
    ),
    "conv": Task(conv, ("ce", "smoothed", "focal"), least=8),
    "gru": Task(lambda s: digit_task(Recurrent(8, 10, symbols=False), (8, 8), s), ("ce", "bce"), rate=1.5, sgd=3.0),
    "transformer": Task(lambda s: digit_task(Attentive(s.dropout), (8, 8), s), ("ce", "smoothed")),
    "language": Task(language, ("ce",)),
    "regression": Task(regression, ("mse", "huber", "l1", "gaussian"), sgd=0.3),
    "autoencoder": Task(autoencoder, ("mse", "bce"), sgd=5.0),
    "vae": Task(vae, ("elbo",), sgd=0.02),
    "recommender": Task(recommender, ("mse", "ranking"), rate=6.0, sgd=3.0, least=16),
    "contrastive": Task(contrastive, ("infonce", "triplet"), least=8),
    "denoiser": Task(denoiser, ("weighted",), rate=2.0, sgd=2.0, least=4),
    "bandit": Task(bandit, ("reinforce",), sgd=0.5, least=8),
}

# Name -> (usual rate, how it is made, whether its steps grow with the gradient).
OPTIMIZERS: dict[str, tuple[float, Callable[..., torch.optim.Optimizer], bool]] = {
    "sgd": (5e-2, torch.optim.SGD, True),
    "momentum": (1e-2, functools.partial(torch.optim.SGD, momentum=0.9), True),
    "nesterov": (1e-2, functools.partial(torch.optim.SGD, momentum=0.9, nesterov=True), True),
    "adam": (2e-3, torch.optim.Adam, False),
    "amsgrad": (2e-3, functools.partial(torch.optim.Adam, amsgrad=True), False),
    "adamw": (2e-3, torch.optim.AdamW, False),
    "nadam": (2e-3, torch.optim.NAdam, False),
    "radam": (2e-3, torch.optim.RAdam, False),
    "adamax": (3e-3, torch.optim.Adamax, False),
    "rmsprop": (1e-3, torch.optim.RMSprop, False),
    "adagrad": (1e-2, torch.optim.Adagrad, False),
    "lbfgs": (1.0, functools.partial(torch.optim.LBFGS, max_iter=4, line_search_fn="strong_wolfe"), False),
}
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SCHEDULES = ("constant", "cosine", "warmup", "onecycle", "steps", "cyclic", "exponential", "restarts", "plateau")


def draw(number: int, seed: int) -> Spec:
    """The run of this number."""
    r = random.Random(f"{seed}/{number}")
    task = list(TASKS)[number % len(TASKS)]
    optimizer = r.choice(list(OPTIMIZERS))
    batch = r.choice([b for b in BATCHES if b >= TASKS[task].least])
    rate, _, grows = OPTIMIZERS[optimizer]
    steps = r.choice((200, 300, 400, 600))
    schedule, precision = r.choice(SCHEDULES), r.choice(("fp32", "fp32", "fp32", "bf16", "fp16"))
    dropout, decay = r.choice((0.0, 0.1, 0.3)), r.choice((0.0, 0.0, 1e-4, 1e-2))
    factor = TASKS[task].rate * math.exp(r.uniform(math.log(0.5), math.log(2.0)))
    if optimizer == "lbfgs":  # wants the same smooth function at every call
        batch, steps, schedule, precision, dropout, decay, factor = 256, 60, "constant", "fp32", 0.0, 0.0, 1.0
    if grows:
        factor *= TASKS[task].sgd
    if optimizer != "lbfgs" and batch < 8:  # as everyone does: noisy gradients, short steps
        factor *= (batch / 8) ** 0.5
    return Spec(
        number,
        task,
        r.choice(TASKS[task].losses),
        optimizer,
        schedule,
        precision,
        batch,
        steps,
        rate * factor,
        dropout,
        decay,
        r.randrange(10_000),
    )


def make_optimizer(spec: Spec, model: nn.Module) -> torch.optim.Optimizer:
    make = OPTIMIZERS[spec.optimizer][1]
    more = {} if spec.optimizer == "lbfgs" else {"weight_decay": spec.decay}
    return make(model.parameters(), lr=spec.rate, **more)


def make_schedule(spec: Spec, optimizer: torch.optim.Optimizer) -> Any:
    by = torch.optim.lr_scheduler
    steps, warm = spec.steps, spec.steps // 10
    match spec.schedule:
        case "cosine":
            return by.CosineAnnealingLR(optimizer, steps)
        case "warmup":
            return by.LambdaLR(optimizer, lambda i: min((i + 1) / warm, 0.5 + 0.5 * math.cos(math.pi * i / steps)))
        case "onecycle":
            return by.OneCycleLR(optimizer, spec.rate, steps + 1, cycle_momentum=False)
        case "steps":
            return by.StepLR(optimizer, steps // 3, 0.1)
        case "cyclic":
            return by.CyclicLR(optimizer, spec.rate / 10, spec.rate, steps // 8, cycle_momentum=False)
        case "exponential":
            return by.ExponentialLR(optimizer, 0.02 ** (1 / steps))
        case "restarts":
            return by.CosineAnnealingWarmRestarts(optimizer, steps // 4, eta_min=spec.rate / 20)
        case "plateau":
            return by.ReduceLROnPlateau(optimizer, patience=steps // 8)
    return None


# ---- running one


def train(spec: Spec, *, guarded: bool) -> Ended:
    torch.manual_seed(spec.seed)
    random.seed(spec.seed)
    parts = TASKS[spec.task].make(spec)
    optimizer = make_optimizer(spec, parts.model)
    schedule = make_schedule(spec, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=100) if spec.precision == "fp16" else None
    dtype = torch.float16 if spec.precision == "fp16" else torch.bfloat16
    ended = Ended(before=standing(parts))
    with tempfile.TemporaryDirectory() as folder:
        g = (
            guard.attach(
                parts.model, optimizer, scheduler=schedule, scaler=scaler, run_dir=f"{folder}/run", receivers=[]
            )
            if guarded
            else None
        )
        batches = map(parts.batches, range(spec.steps)) if g is None else g.batches(parts.batches, steps=spec.steps)
        try:
            for batch in batches:
                ended.finite &= math.isfinite(update(spec, parts, batch, optimizer, schedule, scaler, dtype))
                ended.ticks += 1
                if g is not None:
                    listen(g, ended)
        except guard.TrainingStopped:
            ended.stopped = True
        if g is not None:
            ended.incidents = [
                (
                    i.policy,
                    i.opened_tick,
                    i.evidence.get("detection", {}).get("message", i.cause),
                    [r.type for a in i.attempts for r in a.results],
                )
                for i in g.incidents
            ]
            g.close()
    ended.after = standing(parts)
    if not guarded:
        ended.knows = knows(parts, spec.batch)
    ended.weights = [v.detach().clone() for v in parts.model.state_dict().values()]
    return ended


def standing(parts: Parts) -> float:
    """Mean loss on some batches, without a trace."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = copy.deepcopy(parts.model)
        return statistics.fmean(float(parts.loss(model, parts.batches(i))) for i in range(_ASKED))


def knows(parts: Parts, batch: int) -> float:
    """By how much the model beats the best answer that ignores its input [share of that answer's loss]; NaN if its
    output is no single tensor."""
    model, shapes = copy.deepcopy(parts.model), []
    model.register_forward_hook(lambda _, __, out: shapes.append(out.shape if isinstance(out, Tensor) else None))
    with torch.random.fork_rng(devices=[]):
        batches = [parts.batches(i) for i in range(max(_ASKED, _SAMPLES // batch))]
        with torch.no_grad():
            ours = statistics.fmean(float(parts.loss(model, b)) for b in batches)
        if None in shapes or len(shapes) != len(batches) or len(shapes[0]) < 2:
            return math.nan
        inner = shapes[0][1:]
        answer = nn.Parameter(torch.zeros(inner if len(inner) == 1 else inner[-1:]))
        model.forward = lambda x, *_: answer.expand(len(x), *inner)
        optimizer = torch.optim.LBFGS([answer], max_iter=20, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = sum(parts.loss(model, b) for b in batches) / len(batches)
            loss.backward()
            return loss

        optimizer.step(closure)
        constant = float(closure())
    return (constant - ours) / abs(constant)


def update(
    spec: Spec, parts: Parts, batch: Any, optimizer: Any, schedule: Any, scaler: Any, dtype: torch.dtype
) -> float:
    """One iteration, as a training script that only calls `guard.attach` writes it; its loss."""

    def forward() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype, enabled=spec.precision != "fp32"):
            return parts.loss(parts.model, batch)

    def closure() -> Tensor:
        loss = forward()
        loss.backward()
        return loss

    if spec.optimizer == "lbfgs":
        loss = optimizer.step(closure)
    else:
        loss = forward()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    if isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
        schedule.step(float(loss))
    elif schedule is not None:
        schedule.step()
    return float(loss)


def listen(g: guard.Guard, ended: Ended) -> None:
    """What the detectors said in the tick that has just ended, whether or not a policy heard it."""
    for slot in g.slots:
        for name in {d.detector for d in slot.bank.flagged.values()}:
            ended.spoke[name] += 1


@dataclass
class Row:
    """One run, judged."""

    spec: Spec
    incidents: list[tuple[str, int, str, list[str]]]
    spoke: Counter[str]
    ticks: int
    healthy: bool
    same: bool
    fall: tuple[float, float]
    stopped: bool

    @property
    def acted(self) -> int:
        return sum(a in ACTIONS for i in self.incidents for a in i[3])


def judge(spec: Spec) -> Row:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    bare, ours = train(spec, guarded=False), train(spec, guarded=True)
    learnt = bare.after < bare.before - 0.05 * abs(bare.before) and not bare.knows < 0.02
    healthy = bare.finite and (learnt or spec.task == "bandit")
    same = all(torch.equal(a, b) for a, b in zip(bare.weights, ours.weights, strict=True))
    return Row(spec, ours.incidents, ours.spoke, ours.ticks, healthy, same, (bare.before, bare.after), ours.stopped)


def run_all(numbers: range, seed: int, workers: int) -> list[Row]:
    specs = [draw(n, seed) for n in numbers]
    if workers < 2:
        return list(map(judge, specs))
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        return list(pool.imap(judge, specs))


def show(rows: list[Row]) -> None:
    for row in rows:
        if row.incidents or row.stopped or not row.same or not row.healthy:
            marks = [
                *([] if row.healthy else ["doubtful"]),
                *([] if row.same else ["changed"]),
                *(["stopped"] if row.stopped else []),
            ]
            print(f"{row.spec}: loss {row.fall[0]:.3g} to {row.fall[1]:.3g} {' '.join(marks)}")
            for policy, tick, message, actions in row.incidents:
                print(f"    tick {tick}: {policy}: {message} -> {', '.join(actions) or 'told'}")
    sound = [r for r in rows if r.healthy]
    ticks, spoke = sum(r.ticks for r in sound), sum((r.spoke for r in sound), Counter[str]())
    print(
        f"\n{len(sound)} healthy runs ({len(rows) - len(sound)} doubtful ones left out), {ticks} steps: "
        f"{sum(r.acted for r in sound)} interventions, {sum(bool(r.incidents) for r in sound)} runs with an alarm, "
        f"{sum(not r.same for r in sound)} not the bare run bit for bit"
    )
    print(f"\n{'detector':22}{'per 100k steps':>16}{'runs':>6}")
    for name in sorted(guard_detectors()):
        runs = sum(name in r.spoke for r in sound)
        print(f"{name:22}{100_000 * spoke[name] / max(1, ticks):16.1f}{runs:6}")


def guard_detectors() -> set[str]:
    from guard.policy import load
    from guard.policy.triggers import leaves

    return {leaf.type for p in load("default").policies for leaf in leaves(p.trigger)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} runs")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args()
    count = QUICK if chosen.quick else chosen.runs
    show(run_all(range(chosen.first, chosen.first + count), chosen.seed, chosen.workers))


if __name__ == "__main__":
    main()
