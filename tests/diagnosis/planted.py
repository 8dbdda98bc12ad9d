"""Runs with one fault each, of which module, function and cause are known; `benchmarks/diagnosis.py` prints a table."""

from __future__ import annotations

import contextlib
import copy
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

import guard
from guard.incidents.diagnose import Diagnosis, from_plain

AT, STEPS = 24, 44  # step at which the fault shows; steps of a run
BATCH, WIDTH = 16, 8

POLICY: dict[str, Any] = {
    "version": 1,
    "checkpoints": {"every": 8, "probation": 2},
    "policies": [
        {"name": "nan", "trigger": {"type": "non_finite"}, "attempts": "auto", "severity": "critical"},
        {"name": "spike", "trigger": {"type": "loss_spike"}, "attempts": "auto"},
    ],
}


@dataclass
class Parts:
    """What a script has.

    Args:
        batch: index -> batch.
        loss: (model, batch) -> loss.
        before: called before each iteration with its index.
        dtype: of autocast.
    """

    model: nn.Module
    batch: Callable[[int], Any]
    loss: Callable[[nn.Module, Any], Tensor] = lambda m, b: F.mse_loss(m(b[0]).float(), b[1])
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda p: torch.optim.SGD(p, lr=1e-2)
    before: Callable[[int], None] = lambda _: None
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class Planted:
    """One fault.

    Args:
        cause: the verdict that is right.
        module: path of the module (``""``: the model itself), name of the tensor, or None: not in the model.
        ops: names of the function, any of which is right; empty: none made it.
        backward: born there.
        loop: through `g.batches`, or a loop that only calls `attach`.
    """

    name: str
    build: Callable[[], Parts]
    cause: str
    module: str | None
    ops: frozenset[str] = frozenset()
    backward: bool = False
    loop: Literal["batches", "one line"] = "batches"
    samples: tuple[int, ...] | None = None


FAULTS: list[Planted] = []


def planted(cause: str, module: str | None, ops: str = "", **more: Any) -> Callable[[Callable[[], Parts]], Any]:
    """Registers a fault; with ``both=True`` in both kinds of loop."""
    both = more.pop("both", False)

    def add(build: Callable[[], Parts]) -> Callable[[], Parts]:
        name = build.__name__
        FAULTS.append(Planted(name, build, cause, module, frozenset(ops.split()), **more))
        if both:
            FAULTS.append(
                Planted(f"{name}, one line", build, cause, module, frozenset(ops.split()), loop="one line", **more)
            )
        return build

    return add


# ---- material


def data(index: int, change: Callable[[Tensor], Tensor] | None = None, *, at: int = AT) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(index)
    x = torch.rand(BATCH, WIDTH, generator=g) + 0.5
    y = x[:, :1].sin()
    return (change(x) if change is not None and index == at else x), y


class Part(nn.Module):
    """A module of one function."""

    def __init__(self, what: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.what = what

    def forward(self, x: Tensor) -> Tensor:
        return self.what(x)


def net(**parts: nn.Module) -> nn.Sequential:
    """``first``, the parts, ``last``."""
    model = nn.Sequential()
    model.add_module("first", nn.Linear(WIDTH, WIDTH))
    nn.init.eye_(model.first.weight)
    nn.init.zeros_(model.first.bias)
    model.first.requires_grad_(False)  # so that what the parts are given is known
    for name, part in parts.items():
        model.add_module(name, part)
    model.add_module("last", nn.Linear(WIDTH, 1))
    return model


def once(index: int, done: list[int]) -> bool:
    if index == AT and not done:
        done.append(index)
        return True
    return False


# ---- functions outside of their domain


class Logs(nn.Module):
    """The logarithm is taken in the root module itself."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        nn.init.eye_(self.fc.weight)
        nn.init.zeros_(self.fc.bias)
        self.fc.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.log(F.relu(self.fc(x))))


@planted("numerical_domain", "", "log", both=True)
def log_in_the_root() -> Parts:
    return Parts(Logs(), lambda i: data(i, lambda x: -x))


@planted("numerical_domain", "distance", "sqrt", backward=True, both=True)
def root_at_zero() -> Parts:
    """Forward it is 0; its slope is not finite."""
    scale = nn.Linear(WIDTH, WIDTH, bias=False)
    nn.init.eye_(scale.weight)
    distance = Part(lambda x: ((x - x[:, :1]) ** 2).sum(1, keepdim=True).sqrt().expand(-1, WIDTH))
    return Parts(
        net(scale=scale, distance=distance),
        lambda i: data(i, torch.ones_like),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.0),  # the scale stays 1, so that equal inputs stay equal
    )


@planted("numerical_domain", "share", "div truediv")
def division_by_a_sum() -> Parts:
    share = Part(lambda x: x / x.sum(1, keepdim=True))
    signs = torch.tensor([1.0, -1.0]).repeat(WIDTH // 2)
    return Parts(net(share=share), lambda i: data(i, lambda x: signs.expand(BATCH, WIDTH).clone()))


@planted("numerical_domain", "gate", "exp", both=True)
def exponential_runs_over() -> Parts:
    return Parts(net(gate=Part(lambda x: (20 * x).exp().log() / 20)), lambda i: data(i, lambda x: 5 * x))


@planted("numerical_domain", "root", "pow")
def power_of_a_negative() -> Parts:
    return Parts(net(root=Part(lambda x: x**0.5)), lambda i: data(i, lambda x: x - 1.0))


@planted("numerical_domain", "angle", "acos")
def angle_of_more_than_one() -> Parts:
    return Parts(net(angle=Part(lambda x: torch.acos(x / 2))), lambda i: data(i, lambda x: 2 * x))


@planted("numerical_domain", "norm", "div truediv")
def constant_row() -> Parts:
    """Standardised without an epsilon."""
    norm = Part(lambda x: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True))
    return Parts(net(norm=norm), lambda i: data(i, lambda x: torch.cat([torch.ones(1, WIDTH), x[1:]])))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).T
        return scores.masked_fill(mask, -math.inf).softmax(-1) @ x


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.out = Attention(), nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.out(self.attention(x, mask))


@planted("numerical_domain", "attention", "softmax", both=True)
def whole_row_masked() -> Parts:
    def batch(i: int) -> Any:
        mask = torch.ones(BATCH, BATCH).triu(1).bool()
        if i == AT:
            mask[0] = True
        return (*data(i), mask)

    return Parts(Masked(), batch, lambda m, b: F.mse_loss(m(b[0], b[2]), b[1]))


class Loop(nn.Module):
    """The same layer over and over; the longer, the larger."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 1)
        nn.init.eye_(self.cell.weight)
        self.cell.weight.data.mul_(1.8)
        self.cell.requires_grad_(False)

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        h = x
        for _ in range(int(times)):
            h = self.cell(h)
        return self.out(h / h.norm())


@planted("numerical_domain", "cell", "linear", both=True)
def growth_in_a_loop() -> Parts:
    return Parts(
        Loop(),
        lambda i: (*data(i), torch.tensor(200 if i == AT else 8)),
        lambda m, b: F.mse_loss(m(b[0], b[2]), b[1]),
    )


@planted("numerical_domain", None, "log")
def log_in_the_loss() -> Parts:
    """Cross-entropy by hand, of a probability that is 0."""
    model = net(sharp=Part(lambda x: 200.0 * (x - x.mean(1, keepdim=True))))
    model.last = nn.Identity()
    model.register_parameter("temperature", nn.Parameter(torch.ones(())))

    def batch(i: int) -> Any:
        x, _ = data(i)
        return x, x.argmin(1) if i == AT else x.argmax(1)

    def loss(m: nn.Module, b: Any) -> Tensor:
        p = (m(b[0]) * m.temperature).softmax(1)
        return -p.gather(1, b[1][:, None]).log().mean()

    return Parts(model, batch, loss)


# ---- precision


class Block(nn.Module):
    def __init__(self, gain: float) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        nn.init.eye_(self.fc1.weight)
        nn.init.eye_(self.fc2.weight)
        self.fc2.weight.data.mul_(gain)
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(self.fc2(self.fc1(x)), (WIDTH,))


class Blocks(nn.Module):
    def __init__(self, *gains: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(g) for g in gains)
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x) * 1.5
        return self.out(x)


@planted("precision_overflow", "blocks.1.fc2", "linear", both=True)
def fp16_overflows_in_a_block() -> Parts:
    model = Blocks(1.0, 1.0, 1.0)

    @torch.no_grad()
    def grow(index: int) -> None:
        model.blocks[1].fc2.weight.copy_(torch.eye(WIDTH) * (60_000.0 if index >= AT else 1.0))

    return Parts(model, data, before=grow, dtype=torch.float16)


@planted("precision_underflow", "ratio", "div truediv")
def fp16_underflows_in_a_ratio() -> Parts:
    """1e-4 squared is 0 in FP16."""
    ratio = Part(lambda h: (h * h) / (h * h))
    model = net(narrow=nn.Linear(WIDTH, WIDTH, bias=False), ratio=ratio)
    nn.init.eye_(model.narrow.weight)

    @torch.no_grad()
    def shrink(index: int) -> None:
        model.narrow.weight.copy_(torch.eye(WIDTH) * (1e-4 if index >= AT else 1.0) + (1e-6 if index >= AT else 0.0))

    return Parts(model, data, before=shrink, dtype=torch.float16)


@planted("precision_underflow", "0.weight")
def epsilon_of_adam_in_half_weights() -> Parts:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)).half()

    def batch(i: int) -> Any:
        x, y = data(i)
        return x * (0.0 if i > 2 else 1.0), y

    return Parts(
        model,
        batch,
        lambda m, b: 1e-3 * F.mse_loss(m(b[0].half()).float(), b[1]),
        lambda p: torch.optim.Adam(p, lr=1e-4),
    )


# ---- the batch


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 1))


@planted("bad_batch", "batch[0]", samples=(3,))
def nan_in_a_sample() -> Parts:
    return Parts(plain(), lambda i: data(i, lambda x: x.index_fill(0, torch.tensor([3]), math.nan)))


@planted("bad_batch", "args[0]", samples=(3,), loop="one line")
def nan_in_an_argument() -> Parts:
    return nan_in_a_sample()


@planted("bad_batch", "batch[1]", samples=(5,))
def nan_in_a_target() -> Parts:
    def batch(i: int) -> Any:
        x, y = data(i)
        return x, y.index_fill(0, torch.tensor([5]), math.nan) if i == AT else y

    return Parts(plain(), batch)


@planted("bad_batch", None, "cross_entropy nll_loss")
def no_valid_label() -> Parts:
    def batch(i: int) -> Any:
        x, _ = data(i)
        y = (x[:, 0] > 1).long()
        return x, torch.full_like(y, -100) if i == AT else y

    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 2))
    return Parts(model, batch, lambda m, b: F.cross_entropy(m(b[0]), b[1]))


@planted("bad_batch", "2", "linear", samples=(7,))
def sample_out_of_all_proportion() -> Parts:
    """What no FP32 number holds any more after two layers."""

    def broken(x: Tensor) -> Tensor:
        x[7] *= 1e38
        return x

    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 1))
    nn.init.constant_(model[2].weight, 2.0)
    nn.init.constant_(model[0].weight, 0.05)
    return Parts(
        model,
        lambda i: data(i, broken),
        lambda m, b: F.huber_loss(m(b[0]), b[1]),
        lambda p: torch.optim.SGD(p, lr=1e-5),
    )


@planted("bad_batch", None, samples=(2, 9))
def targets_off_by_a_hundred() -> Parts:
    """Finite: a loss spike."""

    def broken(x: Tensor) -> Tensor:
        x[[2, 9]] *= 100
        return x

    return Parts(plain(), lambda i: data(i, broken, at=AT + 12))


# ---- the state


class Tied(nn.Module):
    """The decoder is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(12, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 12, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.embed(x))))


def words(i: int) -> tuple[Tensor, Tensor]:
    x = torch.randint(12, (BATCH,), generator=torch.Generator().manual_seed(i))
    return x, (x + 1) % 12


@planted("corrupted_state", "embed.weight")
def somebody_writes_inf_into_a_tied_weight() -> Parts:
    model, done = Tied(), list[int]()

    @torch.no_grad()
    def damage(index: int) -> None:
        if once(index, done):
            model.head.weight[3, 2] = math.inf

    return Parts(model, words, lambda m, b: F.cross_entropy(m(b[0]), b[1]), before=damage)


@planted("numerical_domain", "head", "linear", both=True)
def logits_of_a_tied_weight_grow() -> Parts:
    """Not the tied weight: the loop in front of it has brought its input to Inf."""
    model = Tied()
    model.head.forward = lambda x: F.linear(x, model.embed.weight)  # type: ignore[method-assign]
    head = model.head

    class Grown(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.mix, self.head = model.embed, model.mix, head

        def forward(self, x: Tensor, times: Tensor) -> Tensor:
            h = self.mix(self.embed(x))
            for _ in range(int(times)):
                h = self.head(h)[:, :WIDTH]
            return self.head(torch.tanh(h))

    return Parts(
        Grown(),
        lambda i: (*words(i), torch.tensor(120 if i == AT else 3)),
        lambda m, b: F.cross_entropy(m(b[0], b[2]), b[1]),
        lambda p: torch.optim.SGD(p, lr=1e-4),
    )


@planted("corrupted_state", "0", "linear")
def weight_of_ten_to_the_thirty_eight() -> Parts:
    model, done = plain(), list[int]()

    @torch.no_grad()
    def damage(index: int) -> None:
        if once(index, done):
            model[0].weight[3] = 3e38

    return Parts(model, data, before=damage)


@planted("corrupted_state", None)
def weights_a_thousand_times_too_large() -> Parts:
    """Finite: a loss spike."""
    model, done = plain(), list[int]()

    @torch.no_grad()
    def damage(index: int) -> None:
        if index == AT + 12 and not done:
            done.append(index)
            model[0].weight.mul_(1000)

    return Parts(model, data, before=damage)


@planted("learning_rate", None)
def steps_too_long() -> Parts:
    """Every step makes the loss larger, until no number holds it."""
    return Parts(plain(), data, optimizer=lambda p: torch.optim.SGD(p, lr=3.0))


# ---- what does not come back, and what always does


@planted("transient", None)
def once_in_a_layer() -> Parts:
    """A bit in an activation, once."""
    done: list[int] = []
    model = plain()
    count = [0]

    def flip(_: nn.Module, args: Any, out: Tensor) -> Tensor:
        count[0] += 1
        return out * math.nan if count[0] > AT and not done and not done.append(1) else out  # type: ignore[func-returns-value]

    model[0].register_forward_hook(flip)
    return Parts(model, data)


@planted("model_or_code", "middle", "mul")
def program_gives_up_after_a_while() -> Parts:
    """Whatever the batch and the weights."""
    calls = [0]

    def forward(x: Tensor) -> Tensor:
        calls[0] += 1
        return x * (math.nan if calls[0] > AT else 1.0)

    return Parts(net(middle=Part(forward)), data)


class Wrong(torch.autograd.Function):
    """Its gradient is wrong from some step on."""

    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        Wrong.calls += 1
        return grad * math.nan if Wrong.calls > AT else grad


@planted("model_or_code", "own", "wrong", backward=True)
def backward_of_ones_own() -> Parts:
    Wrong.calls = 0
    return Parts(net(scale=nn.Linear(WIDTH, WIDTH), own=Part(Wrong.apply)), data)


# ---- wrapped models


@planted("numerical_domain", "root", "pow")
def compiled_with_eager() -> Parts:
    parts = power_of_a_negative()
    parts.model = torch.compile(parts.model, backend="eager")
    return parts


@planted("numerical_domain", "gate", "exp")
def compiled_with_aot() -> Parts:
    parts = exponential_runs_over()
    parts.model = torch.compile(parts.model, backend="aot_eager")
    return parts


@planted("numerical_domain", "angle", "acos", both=True)
def in_ddp() -> Parts:
    """One process, gloo."""
    import torch.distributed as dist

    if not dist.is_initialized():
        store = dist.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    parts = angle_of_more_than_one()
    parts.model = nn.parallel.DistributedDataParallel(parts.model)
    return parts


# ---- running them


@dataclass
class Found:
    """What came of one run."""

    diagnosis: Diagnosis | None
    actions: list[str] = field(default_factory=list)
    finite: bool = True


def run(fault: Planted, policy: Any = None) -> Found:
    """The run with its fault, in its kind of loop; the first diagnosis."""
    torch.manual_seed(0)
    parts = fault.build()
    optimizer = parts.optimizer([p for p in parts.model.parameters() if p.requires_grad])
    with (
        tempfile.TemporaryDirectory() as folder,
        guard.attach(
            parts.model, optimizer, policy=copy.deepcopy(policy or POLICY), run_dir=f"{folder}/run", receivers=[]
        ) as g,
    ):
        with contextlib.suppress(guard.TrainingStopped):
            (_through_batches if fault.loop == "batches" else _one_line)(g, parts, optimizer)
        told = [i.evidence["diagnosis"] for i in g.incidents if "diagnosis" in i.evidence]
        actions = [r.type for i in g.incidents for a in i.attempts for r in a.results]
        broken = [i.evidence["detection"]["message"] for i in g.incidents if i.detector == "plugin_failure"]
        assert not broken, broken
    finite = all(bool(p.isfinite().all()) for p in parts.model.parameters())
    return Found(from_plain(told[0]) if told else None, actions, finite)


def _through_batches(g: guard.Guard, parts: Parts, optimizer: torch.optim.Optimizer) -> None:
    for batch in g.batches(parts.batch, STEPS):
        parts.before(g.step)
        optimizer.zero_grad()
        with g.autocast("cpu", dtype=parts.dtype or torch.bfloat16, enabled=parts.dtype is not None):
            loss = parts.loss(parts.model, batch)
        g.backward(loss)
        optimizer.step()


def _one_line(g: guard.Guard, parts: Parts, optimizer: torch.optim.Optimizer) -> None:
    for index in range(STEPS):
        parts.before(index)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=parts.dtype or torch.bfloat16, enabled=parts.dtype is not None):
            loss = parts.loss(parts.model, parts.batch(index))
        loss.backward()
        optimizer.step()


def right_place(fault: Planted, found: Diagnosis) -> bool:
    """Module and function are the ones planted."""
    origin = found.evidence.origin
    if fault.cause in ("transient", "learning_rate") or (fault.module is None and not fault.ops):
        return True
    if origin is None:
        return False
    outside = fault.module is None
    named = origin.outside if outside else origin.first.name == fault.module and not origin.outside
    made = not fault.ops or origin.first.op in fault.ops
    return named and made and origin.backward == fault.backward
