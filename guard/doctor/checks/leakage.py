"""Samples of a batch must not know of each other: the output of one has no gradient with respect to another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

from guard.doctor import tree
from guard.doctor.case import Case
from guard.doctor.finding import Finding, Verdict
from guard.doctor.form import main_tensor
from guard.doctor.walk import Call, watching

_Answer = tuple[float, int] | None


def check(case: Case) -> list[Finding]:
    """The gradient of one sample's output with respect to the inputs of the others, in evaluation mode."""
    assert case.form is not None
    if case.form.mode == "model":
        return [Finding("leakage", "SKIP", "the loss function runs the model itself: there is no output to look at")]
    along, across = _leaks(case, case.few(max(4, case.effort.sample)))
    if along is None:
        return [Finding("leakage", "SKIP", "the output does not tell samples apart, or no gradient leads to the input")]
    share, others = along
    if share == 0.0:
        return [
            Finding("leakage", "PASS", f"a sample's output depends on none of {others} others", "leaking share", share)
        ]
    norms = [n for n, m in case.box.model.named_modules() if _own_statistics(m)]
    if norms:
        return [
            _finding(
                "WARN",
                f"a sample's output depends on {share:.0%} of the others through {norms[0]}, which uses the batch's "
                "statistics even in evaluation",
                share,
                "track_running_stats=True, or LayerNorm or GroupNorm",
            )
        ]
    if across is not None and across[0] == 0.0 and not _certain(case.setup.train):
        one, other = case.dim, 1 - case.dim
        return [
            _finding(
                "WARN",
                f"outputs depend on each other along dimension {one}, not {other}: well if that counts the samples",
                share,
                "if dimension 0 counts samples: batch_first=True, or a transpose",
            )
        ]
    return [
        _finding(
            "FAIL",
            f"a sample's output depends on {share:.0%} of the other samples of its batch",
            share,
            "look for view or transpose that mix the batch dimension, mean or softmax over dim 0, attention without "
            "batch_first",
            explains=("overfit", "rate", "curve"),
        )
    ]


def _finding(verdict: Verdict, sentence: str, share: float, advice: str, explains: tuple[str, ...] = ()) -> Finding:
    return Finding("leakage", verdict, sentence, "leaking share", share, advice, explains=explains)


def _leaks(case: Case, batch: Any) -> tuple[_Answer, _Answer]:
    """Along the dimension that counts samples, and along the other of the first two."""
    assert case.form is not None
    sources: list[Tensor] = []
    (args, kwargs), _ = case.form.split(batch)

    def lead(t: Tensor) -> Tensor:
        if not t.is_floating_point() or not t.dim():
            return t
        t = t.detach().clone().requires_grad_(True)
        sources.append(t)
        return t

    def see(call: Call) -> None:
        if isinstance(call.module, nn.Embedding) and call.out.requires_grad:
            sources.append(call.out)

    with case.box.trial() as model:
        model.eval()
        for module in model.modules():
            if (
                isinstance(module, nn.RNNBase) and case.box.device.type == "cuda"
            ):  # cuDNN goes back in training mode only
                module.train()
                module.dropout = 0.0
        for p in model.parameters():
            p.requires_grad_(True)  # else nothing is known of tokens behind a frozen embedding
        with watching(model, see):
            args, kwargs = tree.change(args, lead), tree.change(kwargs, lead)
            main = main_tensor(model(*args, **kwargs))
        if main is None or not main.requires_grad:
            return None, None
        return _leak(sources, main, case.dim), _leak(sources, main, 1 - case.dim)


def _leak(sources: list[Tensor], main: Tensor, dim: int) -> _Answer:
    """Share of other samples that the output of one depends on, and how many there are; None if `dim` counts none."""
    if main.dim() <= dim or main.shape[dim] < 2:
        return None
    count = main.shape[dim]
    usable = [s for s in sources if s.dim() > dim and s.shape[dim] == count]
    if not usable:
        return None
    own = count // 2
    one = main.select(dim, own)
    weights = torch.randn(one.shape, generator=torch.Generator().manual_seed(0)).to(one)
    grads = torch.autograd.grad((one * weights).sum(), usable, retain_graph=True, allow_unused=True)
    reached = torch.zeros(count, dtype=torch.bool, device=main.device)
    for g in grads:
        if g is not None:
            reached |= (g.movedim(dim, 0).reshape(count, -1) != 0).any(1)
    if not bool(reached[own]):
        return None  # it does not even depend on its own input
    reached[own] = False
    return float(reached.float().sum()) / (count - 1), count - 1


def _certain(loader: Any) -> bool:
    """torch's own collate function puts the samples first; of others it is not known."""
    return isinstance(loader, DataLoader) and loader.collate_fn is default_collate


def _own_statistics(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and not module.track_running_stats
