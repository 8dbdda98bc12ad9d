"""Batches, models, losses and loaders in the forms they come in."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from doctor.setups import Rows, base, digits, loader, mlp, own_loss, segmentation
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

from guard import doctor
from guard.doctor import Setup
from guard.doctor.effort import Effort
from guard.doctor.form import FormError, find
from guard.errors import UsageError

SHORT = Effort(batches=6, overfit_steps=5, range_steps=12, rate_steps=3, curve_steps=6, sample=4, clock=lambda: 0.0)
X, Y = torch.randn(8, 4), torch.randint(3, (8,))
LINEAR = nn.Linear(4, 3)
CE = nn.CrossEntropyLoss()
Pair = namedtuple("Pair", "x y")


@dataclasses.dataclass
class Both:
    x: Tensor
    y: Tensor


class Two(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a[:, :3] + b[:, :3]


class OneOfPair(nn.Module):
    def forward(self, pair: Any) -> Tensor:
        return pair[0][:, :3] + pair[1][:, :3]


class Named(nn.Module):
    def forward(self, image: Tensor, mask: Tensor | None = None) -> Tensor:
        return image[:, :3]


class Whole(nn.Module):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return batch["image"][:, :3]


class Own(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"loss": CE(x[:, :3], y), "logits": x[:, :3]}


class TokenModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e, self.h = nn.Embedding(9, 6), nn.Linear(6, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.h(self.e(x))


TOKENS = torch.randint(9, (4, 7))


@pytest.mark.parametrize(
    ("model", "loss", "batch"),
    [
        (LINEAR, CE, (X, Y)),
        (LINEAR, CE, [X, Y]),
        (LINEAR, CE, Pair(X, Y)),
        (LINEAR, CE, {"x": X, "y": Y}),
        (LINEAR, CE, OrderedDict(input=X, label=Y)),
        (Named(), CE, {"image": X, "mask": X, "index": Y, "label": Y}),
        (Named(), CE, {"image": X, "species": Y}),
        (Whole(), CE, {"image": X, "label": Y}),
        (LINEAR, CE, (X, Y, torch.arange(8))),
        (Two(), CE, (X, X, Y)),
        (Two(), CE, ((X, X), Y)),
        (OneOfPair(), CE, ((X, X), Y)),
        (Two(), CE, ({"a": X, "b": X}, Y)),
        (
            LINEAR,
            lambda out, y, w: (functional.cross_entropy(out, y, reduction="none") * w).mean(),
            (X, Y, torch.ones(8)),
        ),
        (Own(), None, (X, Y)),
        (Own(), None, {"x": X, "y": Y}),
        (nn.Linear(4, 4), nn.MSELoss(), X),
        (nn.Linear(4, 4), nn.MSELoss(), (X,)),
        (nn.Linear(4, 4), lambda out: out.square().mean(), X),
        (LINEAR, lambda model, batch: CE(model(batch["a"]), batch["b"]), {"a": X, "b": Y}),
        (TokenModel(), CE, (TOKENS, TOKENS)),
    ],
)
def test_a_form_is_found(model, loss, batch):
    form = find(model, loss, batch)
    value = form.run(model, loss, batch).loss
    assert value.dim() == 0
    assert torch.isfinite(value)


def test_dataclasses_are_batches():
    form = find(Whole2(), CE, Both(X, Y))
    assert form.run(Whole2(), CE, Both(X, Y)).loss.dim() == 0


class Whole2(nn.Module):
    def forward(self, batch: Both) -> Tensor:
        return batch.x[:, :3]


def test_the_most_natural_error_is_told():
    with pytest.raises(FormError, match="mat1 and mat2 shapes cannot be multiplied"):
        find(nn.Linear(5, 3), CE, (X, Y))


def quick(**parts: Any) -> Any:
    return doctor.examine(Setup.of(base(0) | parts), effort=SHORT)


def worst(report: Any) -> str:
    return next(f.sentence for f in report.findings if f.verdict in ("FAIL", "WARN"))


def test_own_loss_and_segmentation_run_through():
    for make in (own_loss, segmentation):
        report = doctor.examine(Setup.of(make(0)), effort=SHORT)
        assert [f.sentence for f in report.findings if "could not be looked at" in f.sentence] == []


class Stream(IterableDataset[Any]):
    def __init__(self, count: int) -> None:
        self.x, self.y = digits()
        self.count = count

    def __iter__(self):
        return iter((self.x[i], self.y[i]) for i in range(self.count))


def test_a_stream_is_no_fault():
    report = quick(train=DataLoader(Stream(600), batch_size=32))
    assert report.verdict_of("data") == "PASS"


def test_an_empty_loader():
    x, y = digits()
    report = quick(train=loader(x[:10], y[:10], drop_last=True))
    assert "the train loader is empty" in worst(report)
    assert "drop_last" in worst(report)
    assert {report.verdict_of(c) for c in report.checks} == {"FAIL", "PASS", "SKIP"}


def test_a_loader_of_one_batch():
    x, y = digits()
    assert "a single batch of 64" in worst(quick(train=loader(x[:64], y[:64])))


def test_an_iterator_is_told_to_be_spent():
    batches = list(base(0)["train"])
    report = quick(train=iter(batches))
    assert any("can be read once" in f.sentence for f in report.of("data"))


def test_a_list_of_batches_is_a_loader():
    report = quick(train=list(base(0)["train"]))
    assert report.verdict_of("data") != "FAIL"
    assert report.verdict_of("gradients") == "PASS"


class Raises(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 100

    def __getitem__(self, i: int) -> Any:
        raise FileNotFoundError("img_17.png")


def test_a_data_set_that_raises():
    assert "FileNotFoundError: img_17.png" in worst(quick(train=DataLoader(Raises(), batch_size=4)))


def test_double_inputs_get_the_right_advice():
    x, y = digits()
    report = quick(train=loader(x.double(), y))
    assert ".float()" in report.of("data")[0].advice


def test_tokens_beyond_the_embedding():
    report = doctor.examine(
        TokenModel(), loader(torch.randint(20, (64, 7)), torch.randint(9, (64, 7))), CE, effort=SHORT
    )
    assert "the embeddings hold 9" in report.of("data")[0].advice


def test_a_loss_that_raises():
    def loss(out: Tensor, y: Tensor) -> Tensor:
        raise KeyError("weights")

    report = quick(loss=loss)
    assert "KeyError" in report.of("loss")[0].sentence
    assert report.verdict_of("leakage") in ("PASS", "SKIP")


def test_each_check_alone():
    for name in doctor.ORDER:
        assert doctor.examine(Setup.of(base(0)), effort=SHORT, only=[name]).checks == (name,)


def test_a_half_precision_model_is_examined():
    x, y = digits()
    model = mlp((64, 32, 10)).to(torch.bfloat16)
    report = doctor.examine(model, loader(x.to(torch.bfloat16), y), CE, effort=SHORT)
    assert report.verdict_of("gradients") == "PASS"
    assert next(model.parameters()).dtype == torch.bfloat16


def test_rows_with_names():
    x, y = digits()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp((64, 16, 10))

        def forward(self, pixels: Tensor) -> Tensor:
            return self.net(pixels)

    report = doctor.examine(Model(), DataLoader(Rows(pixels=x, digit=y), batch_size=32, shuffle=True), CE, effort=SHORT)
    assert report.verdict_of("data") == "PASS"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "returned None; it must return"),
        ((LINEAR, [X]), "returned 2 values"),
        ({"model": LINEAR}, "lacks 'train'"),
        ({"model": LINEAR, "train": [X], "lr": 1}, "holds 'lr'"),
        ((X, [X], CE), "the model must be a torch.nn.Module, not a Tensor"),
        ((LINEAR, 3, CE), "the train loader must be an iterable"),
        ((LINEAR, [X], 3), "must be callable"),
        ((LINEAR, [X], CE, 0.1), "a float after the loss function"),
        ((LINEAR, [X], CE, torch.bfloat16, torch.float16), "two values that could be the dtype"),
    ],
)
def test_what_a_function_must_not_return(value, message):
    with pytest.raises(UsageError, match=message):
        Setup.of(value)


def test_extras_are_known_by_what_they_are():
    optimizer = torch.optim.SGD(LINEAR.parameters(), lr=0.1)
    setup = Setup.of((LINEAR, [X], CE, torch.bfloat16, optimizer))
    assert (setup.optimizer, setup.dtype, setup.validation) == (optimizer, torch.bfloat16, None)


def test_an_unknown_check_is_a_usage_error():
    with pytest.raises(UsageError, match="there is no check 'lr'; there are: data, loss"):
        doctor.examine(LINEAR, [(X, Y)], CE, only=["lr"])
