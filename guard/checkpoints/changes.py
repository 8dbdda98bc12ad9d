"""Whether a checkpoint was taken of the model and the optimizers that are here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from guard.checkpoints.names import Names
from guard.checkpoints.state import TrainingState

_LISTED = 6  # names listed per kind of difference


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """What is known of a saved tensor before it is read."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def differences(
    names: Names, state: TrainingState, shared: Mapping[str, Any], saved: Mapping[str, SavedTensor]
) -> list[str]:
    """One sentence per kind of difference, bounded; empty: a checkpoint can be read into the live run.

    Args:
        names, state: of the live run.
        shared: the checkpoint's shared values.
        saved: what tensors it holds.
    """
    passing = names.passing | set(shared["passing"])
    here = {n: t for n in (*names.parameters, *names.buffers) if (t := names.live(n)) is not None}
    there = {n: t for n, t in saved.items() if n.startswith(("model.", "buffer.", "extra.", "loose."))}
    missing = [n for n in here if n not in there and n not in passing]
    unexpected = [n for n in there if n not in here and n not in passing]
    both = [n for n in here if n in there and not (n in passing and tuple(here[n].shape) != there[n].shape)]
    shapes = [
        f"{n} {list(here[n].shape)} (there {list(there[n].shape)})"
        for n in both
        if tuple(here[n].shape) != there[n].shape
    ]
    dtypes = [
        f"{n} {_dtype(here[n].dtype)} (there {_dtype(there[n].dtype)})" for n in both if here[n].dtype != there[n].dtype
    ]
    lists = [
        _listed("not in the checkpoint", missing),
        _listed("only in the checkpoint", unexpected),
        _listed("of another shape", shapes),
        _listed("of another dtype", dtypes),
        _listed(
            "schedulers or extra objects only in the checkpoint", [n for n in shared["others"] if n not in state.others]
        ),
        *_optimizer_differences(names, state, shared["optimizers"]),
    ]
    return [line for line in lists if line]


def _optimizer_differences(names: Names, state: TrainingState, saved: list[Any]) -> list[str]:
    if len(saved) != len(state.optimizers):
        return [f"{len(state.optimizers)} optimizers (there {len(saved)})"]
    lines = []
    for i, (optimizer, there) in enumerate(zip(state.optimizers, saved, strict=True)):
        if type(optimizer).__name__ != there["class"]:
            lines.append(f"optimizer {i} is {type(optimizer).__name__} (there {there['class']})")
        elif len(optimizer.param_groups) != len(there["groups"]):
            lines.append(
                f"optimizer {i} has {len(optimizer.param_groups)} parameter groups (there {len(there['groups'])})"
            )
        keys = [key["name"] for key, _ in there["state"] if isinstance(key, dict) and key.get("~") == "live"]
        lines.append(_listed(f"optimizer {i} holds no such parameter", [k for k in keys if k not in names.parameters]))
    return lines


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _listed(what: str, names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{what}: {', '.join(names[:_LISTED])}{more}" if names else ""
