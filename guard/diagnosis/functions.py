"""Torch's functions by what they do to numbers, and the name under which one is told."""

from __future__ import annotations

import re
from typing import Any

# Put -inf where it is wanted.
MASKS = frozenset({"masked_fill", "where", "full", "full_like", "fill", "new_full", "triu", "tril", "tensor"})
_MOVING = """
    to float half bfloat16 double type view reshape expand transpose permute squeeze unsqueeze cat stack chunk split
    flatten contiguous clone detach getitem t cpu cuda select index_select gather T mT H mH data real imag
"""
# Only move or convert numbers.
MOVES = frozenset(_MOVING.split())
# A mask plus scores is a mask still.
KEEPS_MASKS = MOVES | {"add", "mul", "sub", "radd", "rmul", "div"}
_VIEWS = frozenset({"T", "mT", "H", "mH", "data", "real", "imag"})  # attributes that are tensors of the same numbers
_DIVISIONS = frozenset({"truediv", "floordiv", "rtruediv", "itruediv", "rdiv", "true_divide"})


def called(func: Any) -> str:
    """What `__torch_function__` was called for; empty: nothing that makes numbers."""
    name = str(func.__name__)
    if name == "__get__":
        attribute = getattr(getattr(func, "__self__", None), "__name__", "")
        return attribute if attribute in _VIEWS else ""
    return "" if name in ("__set__", "backward") else name


def in_place(name: str) -> bool:
    """It changes its first argument."""
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or name[:3] == "__i"


def told(name: str) -> str:
    """``__truediv__`` and ``div_`` are ``div``."""
    bare = name.strip("_")
    return "div" if bare in _DIVISIONS else bare


def of_node(name: str) -> str:
    """``SqrtBackward0`` is ``sqrt``."""
    bare = re.sub(r"Backward\d*$", "", name)
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", bare).lower()
