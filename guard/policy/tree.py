"""A parsed document in which every value knows where it was written."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from guard.errors import PolicyError, Problem

DEEPEST = 40  # a policy needs 7 levels; Python's stack ends near 1000

_WORDS: dict[str, bool | None] = {
    "": None,
    "~": None,
    **dict.fromkeys(("null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"[-+]?\d{1,300}|0o[0-7]{1,300}|0x[\da-fA-F]{1,300}", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands; line and column are 1-based, 0 if it was not read from text."""

    file: Path | None = None
    line: int = 0
    column: int = 0
    path: str = ""

    def problem(self, message: str) -> Problem:
        return Problem(message, self.file, self.line, self.column, self.path)


@dataclass(frozen=True, slots=True)
class Node:
    """One value: a mapping of nodes, a list of nodes, or text, a number, true/false or None.

    Args:
        key: where its key stands, if it is a value of a mapping.
    """

    value: Any
    place: Place
    key: Place | None = None


def typed(text: str) -> Any:
    """An unquoted scalar as YAML 1.2 types it; ``1e-7`` is a number here even without its dot."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if _FLOAT.fullmatch(text) or _NOT_FINITE.fullmatch(text):
        return float(text.replace(".i", "i").replace(".I", "I").replace(".n", "n").replace(".N", "N"))
    return text


def from_python(data: Any) -> Node:
    """The same tree for a policy given as plain Python values.

    Raises:
        PolicyError: something in it has no YAML form; names all of them.
    """
    problems: list[Problem] = []
    root = _from_python(data, "", problems)
    if problems:
        raise PolicyError(problems)
    return root


def _from_python(data: Any, path: str, problems: list[Problem]) -> Node:
    place = Place(path=path)
    if path.count(".") + path.count("[") > DEEPEST:
        problems.append(place.problem(f"nested more than {DEEPEST} levels deep"))
        return Node(None, place)
    if isinstance(data, PathLike):
        data = fspath(data)
    if isinstance(data, Mapping):
        wrong = [key for key in data if not isinstance(key, str)]
        problems.extend(place.problem(f"found the key {key!r}; keys are text") for key in wrong)
        return Node(
            {
                key: replace(_from_python(child, join(path, key), problems), key=Place(path=join(path, key)))
                for key, child in data.items()
                if isinstance(key, str)
            },
            place,
        )
    if isinstance(data, (list, tuple)):
        return Node([_from_python(child, f"{path}[{i}]", problems) for i, child in enumerate(data)], place)
    if data is not None and not isinstance(data, (str, int, float)):
        problems.append(
            place.problem(
                f"found a Python {type(data).__name__}; allowed are mappings, lists, text, "
                "numbers, True, False and None"
            )
        )
    elif message := impossible(data):
        problems.append(place.problem(message))
    return Node(data, place)


def join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def impossible(value: Any) -> str | None:
    """Why this scalar cannot be meant, or None."""
    if isinstance(value, str):
        return "found half of a character (a lone surrogate)" if any("\ud800" <= c <= "\udfff" for c in value) else None
    if isinstance(value, (int, float)):
        try:
            finite = math.isfinite(value)
        except OverflowError:
            finite = False
        return None if finite else "found a number that is not finite or too large; allowed are finite numbers"
    return None
