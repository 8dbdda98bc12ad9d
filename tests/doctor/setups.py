"""Training set-ups as people make them: healthy ones of many kinds, and what goes wrong with them.

Each factory takes a seed and returns what a user's function returns. `BROKEN` names, for each fault, the checks in
which it may be told; anywhere else is a wrong accusation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

Parts = dict[str, Any]
Factory = Callable[[int], Parts]


def loader(*tensors: Tensor, batch: int = 64, shuffle: bool = True, **how: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*tensors), batch_size=batch, shuffle=shuffle, **how)


def digits(images: bool = False) -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    x = torch.tensor(x, dtype=torch.float32) / 16
    return (x.view(-1, 1, 8, 8) if images else x), torch.tensor(y)


def mlp(sizes: tuple[int, ...], act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


def base(seed: int, lr: float = 1e-3, **changes: Any) -> Parts:
    """Digits, an MLP, Adam."""
    torch.manual_seed(seed)
    x, y = digits()
    model = changes.pop("model", None) or mlp((64, 128, 64, 10))
    parts = {
        "model": model,
        "train": loader(x[:1400], y[:1400]),
        "loss": nn.CrossEntropyLoss(),
        "optimizer": torch.optim.Adam(model.parameters(), lr=lr),
        "validation": loader(x[1400:], y[1400:], shuffle=False),
    }
    return parts | changes


# ---------------------------------------------------------------- healthy


class Cnn(nn.Module):
    def __init__(self, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(2 * width * 16, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))


class CharLM(nn.Module):
    def __init__(
        self, vocabulary: int, width: int = 64, layers: int = 2, context: int = 32, tied: bool = False
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, 4, True) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        if tied:
            for e in (self.tokens, self.places):
                nn.init.normal_(e.weight, std=0.02)
            self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x) + self.places.weight[: x.shape[1]]
        return self.head(self.norm(self.blocks(h)))


def text(length: int = 60_000) -> tuple[Tensor, int]:
    from pydoc_data.topics import topics

    raw = "\n".join(topics[k] for k in sorted(topics))[:length]
    numbers = {c: i for i, c in enumerate(sorted(set(raw)))}
    return torch.tensor([numbers[c] for c in raw]), len(numbers)


def flat_ce(out: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(out.flatten(0, 1), y.flatten(), ignore_index=-100)


def char_lm(seed: int, tied: bool = False, **size: Any) -> Parts:
    torch.manual_seed(seed)
    data, vocabulary = text()
    pieces = data[: len(data) // 33 * 33].view(-1, 33)
    model = CharLM(vocabulary, tied=tied, **size)
    return {
        "model": model,
        "train": loader(pieces[:1500, :-1], pieces[:1500, 1:], batch=16),
        "loss": flat_ce,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3),
        "validation": loader(pieces[1500:, :-1], pieces[1500:, 1:], batch=16, shuffle=False),
    }


def regression(seed: int) -> Parts:
    torch.manual_seed(seed)
    x = torch.randn(1500, 12)
    y = torch.sin(x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3] + 0.1 * torch.randn(1500, 1)
    model = mlp((12, 64, 64, 1), nn.Tanh)
    return {
        "model": model,
        "train": loader(x, y, batch=32),
        "loss": nn.MSELoss(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    }


def cnn(seed: int) -> Parts:
    torch.manual_seed(seed)
    x, y = digits(images=True)
    model = Cnn()
    return {
        "model": model,
        "train": loader(x[:1400], y[:1400], batch=32),
        "loss": functional.cross_entropy,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4),
        "validation": loader(x[1400:], y[1400:], shuffle=False),
    }


def imbalanced(seed: int) -> Parts:
    """Three in a hundred are positive, and can be told."""
    torch.manual_seed(seed)
    x = torch.randn(3000, 20)
    y = (x[:, :3].sum(1) > 3.2).float()
    model = mlp((20, 64, 1))
    return {
        "model": model,
        "train": loader(x, y[:, None], batch=64),
        "loss": nn.BCEWithLogitsLoss(),
        "optimizer": torch.optim.AdamW(model.parameters(), lr=3e-3),
    }


class Residual(nn.Module):
    """A small ResNet whose residual branches begin at zero."""

    def __init__(self, width: int = 24, blocks: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.ModuleList()
        for _ in range(blocks):
            block = nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
            )
            nn.init.zeros_(block[-1].weight)
            self.blocks.append(block)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = functional.relu(x + block(x))
        return self.head(x.mean((2, 3)))


def resnet(seed: int) -> Parts:
    parts = cnn(seed)
    model = Residual()
    return parts | {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=2e-3)}


class Lstm(nn.Module):
    """Counts: is the sum of a sequence positive?"""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(4, 48, batch_first=True, num_layers=2, dropout=0.1), nn.Linear(48, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


def lstm(seed: int) -> Parts:
    torch.manual_seed(seed)
    x = torch.randn(1200, 16, 4)
    y = (x[:, :, 0].sum(1) > 0).long()
    model = Lstm()
    return {
        "model": model,
        "train": loader(x, y, batch=32),
        "loss": nn.CrossEntropyLoss(),
        "optimizer": torch.optim.Adam(model.parameters(), lr=3e-3),
    }


class OwnLoss(nn.Module):
    """Like a Hugging Face model: keywords in, an object with loss and logits out; shifts by itself."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.lm = CharLM(vocabulary, width=48, layers=1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None) -> Any:
        from types import SimpleNamespace

        logits = self.lm(input_ids)
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        return SimpleNamespace(loss=loss, logits=logits)


class Rows(torch.utils.data.Dataset[Any]):
    def __init__(self, **columns: Tensor) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {k: v[i] for k, v in self.columns.items()}


def own_loss(seed: int) -> Parts:
    torch.manual_seed(seed)
    data, vocabulary = text()
    ids = data[: 32 * 1000].view(-1, 32)
    labels = ids.clone()
    labels[:, :4] = -100
    model = OwnLoss(vocabulary)
    rows = Rows(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels)
    return {
        "model": model,
        "train": DataLoader(rows, batch_size=16, shuffle=True),
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3),
    }


class Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU())
        self.deep = nn.Sequential(
            nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Upsample(scale_factor=2)
        )
        self.head = nn.Conv2d(48, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down(x)
        return self.head(torch.cat([a, self.deep(a)], 1))


def segmentation(seed: int) -> Parts:
    torch.manual_seed(seed)
    x = torch.randn(400, 1, 16, 16)
    smooth = functional.avg_pool2d(x, 3, 1, 1)[:, 0]
    y = (smooth > 0.2).long() + (smooth > 0.6).long()
    y[:, 0] = 255  # a border without labels
    model = Unet()
    return {
        "model": model,
        "train": loader(x, y, batch=16),
        "loss": nn.CrossEntropyLoss(ignore_index=255),
        "optimizer": torch.optim.Adam(model.parameters(), lr=3e-3),
    }


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.numbers = nn.Embedding(50, 16), nn.Linear(6, 16)
        self.head = mlp((32, 32, 1))

    def forward(self, words: Tensor, numbers: Tensor) -> Tensor:
        return self.head(torch.cat([self.words(words).mean(1), torch.relu(self.numbers(numbers))], 1)).squeeze(-1)


def two_inputs(seed: int) -> Parts:
    torch.manual_seed(seed)
    words, numbers = torch.randint(50, (1000, 5)), torch.randn(1000, 6)
    y = numbers[:, 0] + (words < 10).float().sum(1) - 1 + 0.1 * torch.randn(1000)
    model = TwoTowers()
    return {
        "model": model,
        "train": loader(words, numbers, y, batch=32),
        "loss": nn.SmoothL1Loss(),
        "optimizer": torch.optim.Adam(model.parameters(), lr=3e-3),
    }


def fine_tuning(seed: int) -> Parts:
    """Trained already, the body frozen, a new head, a small rate."""
    parts = base(seed)
    model: nn.Sequential = parts["model"]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(3):
        for x, y in parts["train"]:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    for p in model[:4].parameters():
        p.requires_grad_(False)
    model[4] = nn.Linear(64, 10)
    return parts | {"optimizer": torch.optim.AdamW(model[4].parameters(), lr=1e-3)}


def deep_mlp(seed: int) -> Parts:
    """Eight layers as torch initialises them: not good, but it trains."""
    return base(seed, model=_seeded(seed, lambda: mlp((64, *[96] * 6, 10))))


def autoencoder(seed: int) -> Parts:
    torch.manual_seed(seed)
    x, _ = digits()
    model = mlp((64, 32, 8, 32, 64), nn.GELU)
    return {
        "model": model,
        "train": DataLoader(x, batch_size=64, shuffle=True),
        "loss": nn.MSELoss(),
        "optimizer": torch.optim.Adam(model.parameters(), lr=3e-3),
    }


def _seeded(seed: int, make: Callable[[], Any]) -> Any:
    torch.manual_seed(seed)
    return make()


HEALTHY: dict[str, Factory] = {
    "digits": base,
    "regression": regression,
    "char_lm": char_lm,
    "cnn": cnn,
    "imbalanced": imbalanced,
    "char_lm_tied": lambda seed: char_lm(seed, tied=True),
    "resnet": resnet,
    "lstm": lstm,
    "own_loss": own_loss,
    "segmentation": segmentation,
    "two_inputs": two_inputs,
    "fine_tuning": fine_tuning,
    "deep_mlp": deep_mlp,
    "autoencoder": autoencoder,
}

# ---------------------------------------------------------------- broken


def unshuffled_sorted(seed: int) -> Parts:
    parts = base(seed)
    x, y = digits()
    order = y[:1400].argsort()
    return parts | {"train": loader(x[:1400][order], y[:1400][order], shuffle=False)}


def labels_from_one(seed: int) -> Parts:
    parts = base(seed)
    x, y = digits()
    return parts | {"train": loader(x[:1400], y[:1400] + 1)}


def labels_of_neighbour(seed: int) -> Parts:
    parts = base(seed)
    x, y = digits()
    torch.manual_seed(seed)
    order = torch.randperm(len(y))
    x, y = x[order], y[order]
    return parts | {"train": loader(x[:1400], y[:1400].roll(1)), "validation": None}


def labels_at_random(seed: int) -> Parts:
    parts = base(seed)
    x, y = digits()
    y = y[torch.randperm(len(y))]
    return parts | {"train": loader(x[:1400], y[:1400]), "validation": loader(x[1400:], y[1400:])}


def targets_not_shifted(seed: int) -> Parts:
    parts = char_lm(seed)
    x = parts["train"].dataset.tensors[0]
    return parts | {"train": loader(x, x, batch=16), "validation": None}


def double_softmax(seed: int) -> Parts:
    return base(seed, model=_seeded(seed, lambda: nn.Sequential(mlp((64, 128, 64, 10)), nn.Softmax(-1))))


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = mlp((64, 128, 64)), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(x)).detach())


def detached(seed: int) -> Parts:
    return base(seed, model=_seeded(seed, Detached))


def detached_loss(seed: int) -> Parts:
    return base(seed, loss=lambda out, y: functional.cross_entropy(out.detach(), y))


def frozen_layer(seed: int) -> Parts:
    parts = base(seed)
    for p in parts["model"][0].parameters():
        p.requires_grad_(False)
    return parts


def not_normalised(seed: int) -> Parts:
    parts = base(seed)
    x, y = digits()
    return parts | {"train": loader(x[:1400] * 255, y[:1400]), "validation": loader(x[1400:] * 255, y[1400:])}


def rate_times(factor: float) -> Factory:
    return lambda seed: base(seed, lr=1e-3 * factor)


def sgd_rate_times(factor: float) -> Factory:
    def make(seed: int) -> Parts:
        parts = cnn(seed)
        return parts | {"optimizer": torch.optim.SGD(parts["model"].parameters(), lr=0.05 * factor, momentum=0.9)}

    return make


def init_times(factor: float, make: Factory = base) -> Factory:
    def scaled(seed: int) -> Parts:
        parts = make(seed)
        with torch.no_grad():
            for p in parts["model"].parameters():
                if p.dim() > 1:
                    p.mul_(factor)
        return parts

    return scaled


def nan_in_data(seed: int) -> Parts:
    parts = base(seed)
    parts["train"].dataset.tensors[0][317, 5] = math.nan
    return parts


def summed(seed: int) -> Parts:
    return base(seed, loss=nn.CrossEntropyLoss(reduction="sum"))


def not_reduced(seed: int) -> Parts:
    return base(seed, loss=nn.CrossEntropyLoss(reduction="none"))


class Leaky(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = mlp((64, 128, 64)), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.body(x))
        return self.head(h - h.mean(0, keepdim=True))


def leaky(seed: int) -> Parts:
    return base(seed, model=_seeded(seed, Leaky))


def leaky_attention(seed: int) -> Parts:
    """`nn.MultiheadAttention` without `batch_first`: samples look at samples."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.look = nn.Linear(4, 32), nn.MultiheadAttention(32, 4)
            self.head = nn.Linear(32, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = self.inside(x)
            return self.head((h + self.look(h, h, h)[0]).mean(1))

    parts = lstm(seed)
    model = Model()
    return parts | {"model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=3e-3)}


def dead_relu(seed: int) -> Parts:
    parts = base(seed)
    with torch.no_grad():
        parts["model"][2].bias.fill_(-20.0)
    return parts


class Overflowing(nn.Module):
    """Scores are not divided: FP16 holds 65504."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x)) * 3e4
        h = self.b(h)
        return self.head(torch.relu(h * 10) / 3e5)


def fp16_overflow(seed: int) -> Parts:
    return base(seed, model=_seeded(seed, Overflowing), dtype=torch.float16)


def half_an_optimizer(seed: int) -> Parts:
    parts = base(seed)
    return parts | {"optimizer": torch.optim.Adam(parts["model"][:2].parameters(), lr=1e-3)}


def constant_labels(seed: int) -> Parts:
    parts = base(seed)
    x, y = digits()
    return parts | {"train": loader(x[:1400], torch.full_like(y[:1400], 3)), "validation": None}


def broadcast(seed: int) -> Parts:
    parts = regression(seed)
    x, y = parts["train"].dataset.tensors
    return parts | {"train": loader(x, y[:, 0], batch=32)}


def constant_weights(seed: int) -> Parts:
    parts = base(seed)
    for p in parts["model"].parameters():
        nn.init.constant_(p, 0.05)
    return parts


def other_optimizer(seed: int) -> Parts:
    return base(seed, optimizer=torch.optim.Adam(mlp((64, 128, 64, 10)).parameters(), lr=1e-3))


def zero_rate(seed: int) -> Parts:
    return base(seed, lr=0.0)


def duplicate_batches(seed: int) -> Parts:
    parts = base(seed)
    x, y = digits()
    return parts | {"train": loader(x[:64].repeat(20, 1), y[:64].repeat(20), shuffle=False), "validation": None}


def saturated(seed: int) -> Parts:
    return init_times(60.0)(seed) | {}


def targets_not_normalised(seed: int) -> Parts:
    parts = regression(seed)
    x, y = parts["train"].dataset.tensors
    return parts | {"train": loader(x, y * 2e4 + 1e5, batch=32)}


BROKEN: dict[str, tuple[Factory, frozenset[str]]] = {
    "unshuffled_sorted": (unshuffled_sorted, frozenset({"data"})),
    "labels_from_one": (labels_from_one, frozenset({"data"})),
    "labels_of_neighbour": (labels_of_neighbour, frozenset({"data"})),
    "labels_at_random": (labels_at_random, frozenset({"curve", "rate"})),
    "targets_not_shifted": (targets_not_shifted, frozenset({"data"})),
    "double_softmax": (double_softmax, frozenset({"loss"})),
    "detached": (detached, frozenset({"gradients"})),
    "detached_loss": (detached_loss, frozenset({"gradients"})),
    "frozen_layer": (frozen_layer, frozenset({"gradients"})),
    "not_normalised": (not_normalised, frozenset({"data"})),
    "rate_x100": (rate_times(100.0), frozenset({"rate"})),
    "rate_x1000": (rate_times(1000.0), frozenset({"rate"})),
    "rate_/1000": (rate_times(1e-3), frozenset({"rate"})),
    "sgd_rate_x100": (sgd_rate_times(100.0), frozenset({"rate"})),
    "sgd_rate_/1000": (sgd_rate_times(1e-3), frozenset({"rate"})),
    "init_x30": (init_times(30.0), frozenset({"weights"})),
    "init_/30": (init_times(1 / 30), frozenset({"weights", "activations"})),
    "init_x30_lstm": (init_times(30.0, lstm), frozenset({"weights"})),
    "init_x30_lm": (init_times(30.0, char_lm), frozenset({"weights"})),
    "init_/30_regression": (init_times(1 / 30, regression), frozenset({"weights", "activations"})),
    "nan_in_data": (nan_in_data, frozenset({"data"})),
    "summed_loss": (summed, frozenset({"loss"})),
    "loss_not_reduced": (not_reduced, frozenset({"loss"})),
    "batch_leakage": (leaky, frozenset({"leakage"})),
    "leaky_attention": (leaky_attention, frozenset({"leakage"})),
    "dead_relu": (dead_relu, frozenset({"activations"})),
    "fp16_overflow": (fp16_overflow, frozenset({"precision"})),
    "half_an_optimizer": (half_an_optimizer, frozenset({"gradients"})),
    "other_optimizer": (other_optimizer, frozenset({"gradients"})),
    "constant_labels": (constant_labels, frozenset({"data"})),
    "broadcast": (broadcast, frozenset({"loss"})),
    "constant_weights": (constant_weights, frozenset({"weights"})),
    "zero_rate": (zero_rate, frozenset({"rate"})),
    "duplicate_batches": (duplicate_batches, frozenset({"data"})),
    "targets_not_normalised": (targets_not_normalised, frozenset({"data"})),
}
