"""How a batch becomes an output and a loss: the one place that knows the forms batches, models and losses come in."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from guard.doctor import tree

_TARGETS = ("labels", "label", "targets", "target", "y")
_LOGITS = ("logits", "output", "out", "prediction", "predictions", "pred")

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One forward pass.

    Args:
        output: what the model returned.
        main: the tensor in it that is judged, [samples, ...] float; None if it returned only a loss.
        target: what the output is compared with; None if the model does that itself.
        loss: what the loss function returned; a tensor, of any shape.
    """

    output: Any
    main: Tensor | None
    target: Any
    loss: Any


class FormError(Exception):
    """No way was found from the batch to a loss.

    Args:
        stage: ``output`` or ``loss``: what could not be computed.
    """

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(message)
        self.stage = stage


@dataclass(frozen=True, slots=True)
class Form:
    """One way to read batches.

    Args:
        split: batch -> (arguments of the model, targets).
        mode: how the loss is had: ``own`` (the model returns it), ``model`` (``loss(model, batch)``), ``output``,
            ``main`` (the main tensor of the output), ``flat`` (its last dimension holds classes, as in token models).
    """

    split: Callable[[Any], tuple[Arguments, tuple[Any, ...]]]
    mode: str

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """What the model returns."""
        (args, kwargs), _ = self.split(batch)
        return model(*args, **kwargs)

    def inputs(self, batch: Any) -> dict[str, Tensor]:
        """Place -> tensor of what the model is given, without targets."""
        (args, kwargs), targets = self.split(batch)
        given = {id(t) for value in targets for _, t in tree.tensors(value)}
        kwargs = {k: v for k, v in kwargs.items() if k not in _TARGETS}
        found = [(name, t) for name, t in tree.tensors([*args, kwargs]) if id(t) not in given]
        return {"inputs" if len(found) == 1 else name.partition("].")[2] or name: t for name, t in found}

    def targets(self, batch: Any) -> dict[str, Tensor]:
        """Place -> tensor of what the output is compared with; of a model with its own loss what is called so."""
        (_, kwargs), targets = self.split(batch)
        own = {k: v for k, v in kwargs.items() if k in _TARGETS}
        return dict(tree.tensors(list(targets) if targets else own))

    def run(self, model: nn.Module, loss: Callable[..., Any] | None, batch: Any) -> Outcome:
        """Forward pass and loss."""
        if self.mode == "model":
            assert loss is not None
            return Outcome(None, None, None, _scalar(loss(model, batch)))
        output = self.forward(model, batch)
        _, targets = self.split(batch)
        return self.finish(output, targets, loss)

    def finish(self, output: Any, targets: tuple[Any, ...], loss: Callable[..., Any] | None) -> Outcome:
        """The loss of an output."""
        main = main_tensor(output)
        target = targets[0] if targets else None
        if self.mode == "own":
            return Outcome(output, main, target, own_loss(output))
        assert loss is not None
        if self.mode == "flat":
            assert main is not None
            assert target is not None
            return Outcome(output, main, target, loss(main.reshape(-1, main.shape[-1]), target.reshape(-1)))
        given = output if self.mode == "output" else main
        return Outcome(output, main, target, _scalar(loss(given, *targets)))


def own_loss(output: Any) -> Any:
    """The loss in what a model returned; None if there is none."""
    if isinstance(output, Tensor):
        return output
    named = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(named, Tensor):
        return named
    if isinstance(output, Mapping):  # several losses by name, as detection models have
        losses = [v for k, v in output.items() if isinstance(v, Tensor) and "loss" in str(k) and v.dim() == 0]
        return sum(losses) if losses else None
    if isinstance(output, (tuple, list)):
        return next((v for v in output if isinstance(v, Tensor) and v.dim() == 0 and v.is_floating_point()), None)
    return None


def main_tensor(output: Any) -> Tensor | None:
    """The tensor of an output that is compared with targets: logits, a prediction, or the first with samples."""
    if isinstance(output, Tensor):
        return output if output.dim() else None
    for name in _LOGITS:
        value = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
    return next((t for _, t in tree.tensors(output) if t.is_floating_point() and t.dim()), None)


def _scalar(value: Any) -> Any:
    """Loss functions, too, return dicts or tuples with the loss in them."""
    return value if isinstance(value, Tensor) else own_loss(value)


def find(model: nn.Module, loss: Callable[..., Any] | None, batch: Any) -> Form:
    """The first form in which model and loss take the batch. Runs them: give copies.

    Raises:
        FormError: none does; says what the most natural one raised.
    """
    if loss is not None and _first_parameter(loss) == "model":
        return Form(lambda b: (((b,), {}), ()), "model")
    wanted = _positional(loss)[0] - 1 if loss is not None else 0
    failed: FormError | None = None
    for split in _splits(model, batch, loss is None, max(1, wanted)):
        try:
            (args, kwargs), targets = split(batch)
            output = model(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever a model raises
            failed = failed or FormError("output", f"{type(error).__name__}: {_first_line(error)}")
            continue
        problem: Exception | None = None
        for mode in _modes(output, targets, loss):
            form = Form(split, mode)
            try:
                if form.finish(output, targets, loss).loss is not None:
                    return form
            except Exception as error:  # noqa: BLE001 - whatever a loss function raises
                problem = problem or error
        what = f"{type(problem).__name__}: {_first_line(problem)}" if problem else "no loss was returned"
        if failed is None or failed.stage == "output":
            failed = FormError("loss", what)
    raise failed or FormError("output", "the batch holds no tensor")


def natural(model: nn.Module, loss: Callable[..., Any] | None, batch: Any) -> Form | None:
    """The first form in which the model takes the batch, whatever the loss function does with the output."""
    wanted = _positional(loss)[0] - 1 if loss is not None else 0
    for split in _splits(model, batch, loss is None, max(1, wanted)):
        try:
            (args, kwargs), _ = split(batch)
            model(*args, **kwargs)
        except Exception:  # noqa: BLE001
            continue
        return Form(split, "own" if loss is None else "output")
    return None


def _modes(output: Any, targets: tuple[Any, ...], loss: Callable[..., Any] | None) -> Iterator[str]:
    if loss is None:
        yield "own"
        return
    yield "output"
    main = main_tensor(output)
    if main is None:
        return
    if main is not output:
        yield "main"
    target = targets[0] if targets else None
    if (
        isinstance(target, Tensor)
        and main.dim() == 3
        and target.shape == main.shape[:-1]
        and not target.is_floating_point()
    ):
        yield "flat"


def _splits(model: nn.Module, batch: Any, own: bool, wanted: int) -> Iterator[Callable[[Any], Any]]:
    """Ways to tell inputs from targets, the most natural first.

    Args:
        own: the model computes its loss: all belongs to it.
        wanted: how many targets the loss function takes.
    """
    names, anything = _names(model)
    if isinstance(batch, Mapping) or (tree.is_object(batch) and not isinstance(batch, Tensor)):
        yield from _named(batch, names, anything, own)
        return
    if isinstance(batch, (tuple, list)):
        yield from _tuple(model, len(batch), batch, own, wanted)
        return
    if own:
        yield lambda b: (((b,), {}), ())
    else:
        yield lambda b: (((b,), {}), (b,))  # an autoencoder, or a loss that is its own target
        yield lambda b: (((b,), {}), ())


def _tuple(model: nn.Module, n: int, batch: Any, own: bool, wanted: int) -> Iterator[Callable[[Any], Any]]:
    required, most = _positional(model.forward)
    if own:
        yield lambda b: ((tuple(b), {}), ())
        yield lambda b: ((tuple(b[:1]), {}), ())
        yield lambda b: (((b,), {}), ())
        return
    if n == 1:
        yield lambda b: (((b[0],), {}), (b[0],))
        return
    head = batch[0]
    if isinstance(head, Mapping):
        names, anything = _names(model)
        if anything or set(map(str, head)) & set(names):
            yield lambda b: (((), {k: v for k, v in b[0].items() if anything or k in names}), tuple(b[1 : 1 + wanted]))
    if isinstance(head, (tuple, list)) and required <= len(head) <= most and len(head) > 1:
        yield lambda b: ((tuple(b[0]), {}), tuple(b[1 : 1 + wanted]))
    counts = [n - wanted] if required <= n - wanted <= most else []
    counts += [k for k in range(max(1, required), min(most, n - 1) + 1) if k not in counts]
    for k in counts or [1]:
        yield partial(_leading, count=k, wanted=wanted)
    yield lambda b: (((tuple(b[:-1]),), {}), (b[-1],))


Split = tuple[Arguments, tuple[Any, ...]]


def _leading(batch: Any, *, count: int, wanted: int) -> Split:
    """The first are arguments, those after them targets."""
    return (tuple(batch[:count]), {}), tuple(batch[count : count + wanted])


def _by_name(batch: Any, *, names: list[str], target: str) -> Split:
    return ((), {k: _items(batch)[k] for k in names}), (_items(batch)[target],)


def _single(batch: Any, *, name: str | None, target: str) -> Split:
    """One argument: an entry of the batch, or all of it."""
    return ((batch if name is None else _items(batch)[name],), {}), (_items(batch)[target],)


def _items(batch: Any) -> dict[str, Any]:
    return dict(batch.items()) if isinstance(batch, Mapping) else dict(vars(batch))


def _named(batch: Any, names: list[str], anything: bool, own: bool) -> Iterator[Callable[[Any], Any]]:
    keys = list(_items(batch))
    known = [k for k in keys if k in names]
    if own:
        if known or anything:
            yield lambda b: (((), {k: v for k, v in _items(b).items() if anything or k in names}), ())
        yield lambda b: (((b,), {}), ())
        return
    called = [k for k in _TARGETS if k in keys]
    left = [k for k in keys if k not in known and isinstance(_items(batch)[k], Tensor)]
    for target in dict.fromkeys([*called[:1], *(left if len(left) == 1 else []), *keys[-1:]]):
        rest = [k for k in keys if k != target]
        inputs = rest if anything else [k for k in rest if k in names]
        if inputs:
            yield partial(_by_name, names=inputs, target=target)
        for k in rest:
            yield partial(_single, name=k, target=target)
        yield partial(_single, name=None, target=target)
    yield lambda b: (((b,), {}), (b,))


def _names(model: nn.Module) -> tuple[list[str], bool]:
    """Names of the forward pass's parameters, and whether it takes any keyword."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return [], False
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _positional(function: Any) -> tuple[int, int]:
    """Fewest and most positional arguments a function takes; modules are asked for their forward pass."""
    if isinstance(function, nn.Module):
        function = function.forward
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 2, 99
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    most = 99 if any(p.kind is p.VAR_POSITIONAL for p in parameters) else len(places)
    return sum(p.default is p.empty for p in places), most


def _first_parameter(function: Any) -> str:
    try:
        return next(iter(inspect.signature(function).parameters), "")
    except (TypeError, ValueError):
        return ""


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "(no message)")[:300]


def samples(form: Form, batch: Any) -> tuple[int, int]:
    """How many samples a batch has, and which dimension of its tensors counts them.

    It is the first, unless only the second agrees with the targets (sequences with time first).
    """
    inputs = [t for t in form.inputs(batch).values() if t.dim()]
    targets = [t for t in form.targets(batch).values() if t.dim()]
    if not inputs:
        return (len(targets[0]) if targets else 0), 0
    x = inputs[0]
    if targets and targets[0].shape[0] != x.shape[0] and x.dim() > 1 and targets[0].shape[0] == x.shape[1]:
        return x.shape[1], 1
    return x.shape[0], 0


def to(batch: Any, device: torch.device, floating: torch.dtype | None = None) -> Any:
    """The batch on a device; half-precision numbers in `floating` if that is given."""

    def move(t: Tensor) -> Tensor:
        if floating is not None and t.dtype in (torch.float16, torch.bfloat16):
            t = t.to(floating)
        return t.to(device)

    return tree.change(batch, move)
