"""Do inputs and targets belong together? Labels of the neighbouring sample, and targets that are not shifted."""

from __future__ import annotations

import torch
from torch import Tensor

from guard.doctor import tree
from guard.doctor.case import Case
from guard.doctor.finding import Finding

_ENOUGH = 80  # samples in a row
_FEATURES = 128
_ALL = ("loss", "overfit", "rate", "curve")
# A linear fit whose error is estimated by leaving each sample out explains, of unrelated targets, 0 +- 1 / sqrt(n).
_RELATED, _UNRELATED = 0.15, 0.05


def check(case: Case) -> list[Finding]:
    """Findings on the pairing; none if all is well or nothing can be said."""
    return _tokens(case) or _neighbour(case)


def _tokens(case: Case) -> list[Finding]:
    """Language models: targets are the inputs one place on."""
    if not case.tokens or case.form is None or case.form.mode in ("own", "model"):
        return []
    x = next(iter(case.inputs(case.batches[0]).values()))
    y = next(iter(case.targets(case.batches[0]).values()), None)
    if y is None or y.is_floating_point() or y.numel() != x.numel() or x.dim() != 2:
        return []
    y = y.reshape(x.shape)
    valid = y != case.facts.ignore
    if float(valid.float().mean()) < 0.5 or len(torch.unique(x)) < 4 or x.shape[1] < 8:
        return []  # masked language models keep few labels, and those are the inputs

    def share(shift: int) -> float:
        a, b, m = (x, y, valid) if not shift else (x[:, shift:], y[:, :-shift], valid[:, :-shift])
        return float((a == b)[m].float().mean()) if bool(m.any()) else 0.0

    same, following, beyond = share(0), share(1), max(share(2), share(3))
    if same > 0.98 and following < 0.9:
        return [
            Finding(
                "data",
                "FAIL",
                "targets are the inputs themselves, not shifted by one place: the model learns to copy",
                "targets equal to their input",
                same,
                "targets must be the inputs one place on: x = t[:-1], y = t[1:]",
                explains=_ALL,
            )
        ]
    if beyond > 0.98 and following < 0.9:
        return [
            Finding(
                "data",
                "WARN",
                "targets are the inputs more than one place on",
                "targets equal to a later input",
                beyond,
                "shift by one place: x = t[:-1], y = t[1:]",
                explains=_ALL,
            )
        ]
    return []


def _neighbour(case: Case) -> list[Finding]:
    """Labels fit the sample before or after, and not their own."""
    if case.supply.neighbours is None or case.form is None or case.tokens or case.per_position:
        return []
    x = next(iter(case.form.inputs(case.supply.neighbours).values()), None)
    y = next(iter(case.form.targets(case.supply.neighbours).values()), None)
    if x is None or y is None or not x.is_floating_point() or len(x) != len(y) or len(x) < _ENOUGH:
        return []
    features = _features(x.cpu().float())
    answers = _answers(y.cpu())
    if answers is None or answers.shape[1] > 100 or not bool(torch.isfinite(features).all()):
        return []
    own = _explained(features, answers)
    fits = {s: _explained(features, answers.roll(s, 0)) for s in (-2, -1, 1, 2)}
    best = max(fits, key=lambda s: fits[s])
    if own > _UNRELATED or fits[best] < _RELATED:
        return []
    side = "following" if best < 0 else "preceding"
    return [
        Finding(
            "data",
            "FAIL",
            f"labels belong to another sample: those of the {side} one ({abs(best)} on) fit, their own do not",
            "explained by its own / the other's label",
            fits[best],
            "inputs and labels were shifted against each other: look where one of them was sorted, filtered or rolled",
            explains=_ALL,
        )
    ]


def _features(x: Tensor) -> Tensor:
    """[n, at most _FEATURES] standardised; wide inputs by a fixed random projection."""
    x = x.reshape(len(x), -1)
    if x.shape[1] > _FEATURES:
        draw = torch.randn(x.shape[1], _FEATURES, generator=torch.Generator().manual_seed(0))
        x = (x - x.mean(0)) @ draw / x.shape[1] ** 0.5
    return (x - x.mean(0)) / x.std(0).clamp_min(1e-6)


def _answers(y: Tensor) -> Tensor | None:
    """[n, classes or columns], centred."""
    y = tree.change(y, lambda t: t.reshape(len(t), -1))
    if y.is_floating_point():
        out = y.float()
    elif y.shape[1] == 1 and int(y.min()) >= 0 and int(y.max()) < 100:
        out = torch.nn.functional.one_hot(y[:, 0].long()).float()
    else:
        return None
    return out - out.mean(0)


def _explained(x: Tensor, y: Tensor) -> float:
    """Share of the variance that ridge regression explains, each sample predicted from the others.

    Args:
        x: [n, features]. y: [n, columns].
    """
    n, d = x.shape
    gram = x.T @ x + 0.1 * n * torch.eye(d)
    hat = x @ torch.linalg.solve(gram, x.T)
    rest = (y - hat @ y) / (1 - hat.diagonal()).clamp_min(1e-3)[:, None]
    total = float(y.square().sum())
    return 1 - float(rest.square().sum()) / total if total > 0 else 0.0
