"""The order of the samples: shuffled, varied, without repetition, and none of the validation data among them."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from guard.doctor import tree
from guard.doctor.case import Case
from guard.doctor.finding import Finding
from guard.doctor.form import samples, to

_DYNAMIC = ("loss", "overfit", "rate", "curve")
_MARGIN = 0.3  # of neighbours with equal labels above what chance gives; chance varies by 0.5 / sqrt(n), n >= 64
_TREND = 0.9  # correlation of neighbouring regression targets


def check(case: Case) -> list[Finding]:
    """Findings on the order; none if all is well."""
    return [*_repeated(case), *(_sorted(case) or _unshuffled(case)), *_last(case), *_overlap(case)]


def _sorted(case: Case) -> list[Finding]:
    if case.per_position or case.supply.order == "shuffled" or len(case.batches) < 2:
        return []
    where = "" if case.supply.order == "fixed" else " (the loader has no second pass to compare with)"
    sequence = _sequence(case)
    everywhere = _spread(case)
    if sequence is None or len(sequence) < 64:
        return []
    if sequence.is_floating_point():
        if float(sequence.std()) == 0 or case.supply.order != "fixed":
            return []
        r = float(torch.corrcoef(torch.stack([sequence[:-1], sequence[1:]]))[0, 1])
        return (
            []
            if r < _TREND
            else [
                _finding("WARN", f"the samples come in an order: neighbouring targets correlate by {r:.2f}", r, where)
            ]
        )
    equal = float((sequence[1:] == sequence[:-1]).float().mean())
    reference = everywhere if everywhere is not None else sequence
    shares = torch.bincount(reference[reference >= 0]).double() / len(reference)
    chance = float((shares * shares).sum())
    if equal <= chance + _MARGIN * (1 - chance) or equal < 0.5:
        return []
    return [
        _finding(
            "FAIL",
            f"the samples are sorted by label and not shuffled: {equal:.0%} of neighbours share one, by chance "
            f"{chance:.0%} would",
            equal,
            where,
        )
    ]


def _finding(verdict: Any, sentence: str, number: float, where: str) -> Finding:
    return Finding(
        "data",
        verdict,
        sentence + where,
        "neighbours alike",
        number,
        "shuffle: DataLoader(..., shuffle=True), or a shuffle buffer for a stream",
        explains=_DYNAMIC,
    )


def _unshuffled(case: Case) -> list[Finding]:
    if case.supply.order != "fixed" or case.supply.streamed or case.supply.length == 1:
        return []
    return [
        Finding(
            "data",
            "WARN",
            "the train loader is not shuffled: every pass has the same order",
            advice="DataLoader(..., shuffle=True), unless the order is meant",
        )
    ]


def _sequence(case: Case) -> Tensor | None:
    """One number per sample, in the order in which the loader gives them."""
    parts = [next(iter(case.targets(b).values()), None) for b in case.batches]
    if not parts or parts[0] is None or any(p is None or p.reshape(len(p), -1).shape[1] != 1 for p in parts):
        return None
    return torch.cat([p.reshape(-1) for p in parts if p is not None])


def _spread(case: Case) -> Tensor | None:
    if case.supply.spread is None or case.form is None:
        return None
    target = next(iter(case.form.targets(case.supply.spread).values()), None)
    return None if target is None or target.is_floating_point() else target.reshape(-1)


def _repeated(case: Case) -> list[Finding]:
    """Batches that come twice in one pass."""
    if len(case.batches) < 2:
        return []
    digests = [_digest(b) for b in case.supply.batches]
    twice = len(digests) - len(set(digests))
    if twice:
        return [
            Finding(
                "data",
                "FAIL" if twice >= len(digests) // 2 else "WARN",
                f"{twice} of {len(digests)} batches of one pass are copies of an earlier one",
                "duplicate batches",
                float(twice),
                "the sampler repeats itself: does each worker read the same part of a stream?",
                explains=("curve",),
            )
        ]
    rows = [h for b in case.batches for h in _rows(case, b)]
    distinct = len(set(rows))
    if len(rows) >= 64 and distinct < 0.5 * len(rows):
        return [
            Finding(
                "data",
                "WARN",
                f"only {distinct} of {len(rows)} samples of one pass are distinct",
                "distinct samples",
                distinct / len(rows),
                "remove duplicates, unless they are meant (oversampling, coarse inputs)",
            )
        ]
    return []


def _digest(batch: Any) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for name, t in tree.tensors(batch):
        digest.update(name.encode())
        digest.update(_bytes(t))
    return digest.digest()


def _rows(case: Case, batch: Any) -> list[bytes]:
    """A digest of each sample's inputs."""
    size, dim = samples(case.form, batch) if case.form else (0, 0)
    inputs = [t for t in case.inputs(batch).values() if t.dim() > dim and t.shape[dim] == size]
    if not inputs or dim:
        return []
    return [hashlib.blake2b(b"".join(_bytes(t[i]) for t in inputs), digest_size=16).digest() for i in range(size)]


def _bytes(t: Tensor) -> bytes:
    return t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _last(case: Case) -> list[Finding]:
    """A last batch of one sample stops batch normalisation in training mode."""
    loader = case.setup.train
    size = getattr(loader, "batch_size", None)
    try:
        count = len(loader.dataset)
    except Exception:  # noqa: BLE001 - a stream, or no DataLoader
        return []
    norms = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in case.box.model.modules())
    if not isinstance(size, int) or size < 2 or getattr(loader, "drop_last", True) or count % size != 1 or not norms:
        return []
    return [
        Finding(
            "data",
            "WARN",
            f"the last batch of each pass has 1 sample ({count} = {count // size} x {size} + 1), on which batch "
            "normalisation fails or learns nothing",
            "samples in the last batch",
            1.0,
            "drop_last=True, or another batch size",
        )
    ]


def _overlap(case: Case) -> list[Finding]:
    """Validation samples that are trained on."""
    if case.validation is None or not case.validation.batches:
        return []
    trained = {h for b in case.batches for h in _rows(case, b)}
    if case.supply.neighbours is not None:
        trained |= set(_rows(case, to(case.supply.neighbours, case.box.device, case.box.floating)))
    held = [h for b in case.held_out for h in _rows(case, b)]
    first = next(iter(case.inputs(case.batches[0]).values()), None)
    if not held or first is None or (not first.is_floating_point() and first.numel() < 16 * len(first)):
        return []  # short token inputs can be alike by chance
    both = sum(h in trained for h in held)
    if both < 0.02 * len(held) or both < 2:
        return []
    return [
        Finding(
            "data",
            "WARN" if both < 0.2 * len(held) else "FAIL",
            f"{both} of {len(held)} validation samples looked at are training samples too",
            "share of validation samples",
            both / len(held),
            "split by sample before anything else: the validation loss says nothing like this",
        )
    ]
