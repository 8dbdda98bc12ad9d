"""What pydantic found, said in plain sentences at the place where it was written."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any, cast

from pydantic_core import ErrorDetails

from guard.errors import Problem
from guard.policy.references import has_reference
from guard.policy.tree import Node

_PLAIN = {
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a finite number": "a number",
    "a valid boolean": "true or false",
    "a valid string": "text",
    "a valid array": "a list",
    "a valid tuple": "a list",
    "a valid list": "a list",
    "an object": "a mapping",
    "a valid dictionary": "a mapping",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "more than",
}
_UNITS = re.compile(r"expected (.*?)(?:, got .*)?", re.DOTALL)


def nearest(name: str, allowed: Iterable[str]) -> str:
    """`` did you mean …?`` if something allowed looks like `name`, else nothing."""
    close = difflib.get_close_matches(name.lower(), list(allowed), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def unknown(what: str, name: str, allowed: Iterable[str]) -> str:
    names = list(allowed)
    return f"unknown {what} {shorten(name)!r}{nearest(name, names) or ';'} allowed: {', '.join(names) or 'none'}"


def kind(value: Any) -> str:
    """What a value is, without showing it."""
    if isinstance(value, bool) or value is None:
        return "nothing" if value is None else str(value).lower()
    names = ((str, "text"), (int, "a number"), (float, "a number"), (list, "a list"), (dict, "a mapping"))
    return next(name for type_, name in names if isinstance(value, type_))


def shorten(text: str, limit: int = 40) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def show(node: Node) -> str:
    """What was written: a reference, not what it was filled with."""
    if isinstance(node.value, str):
        return repr(shorten(node.value))
    if type(node.value) in (int, float):
        return shorten(str(node.value))
    return kind(node.value)


def translate(node: Node, errors: Iterable[ErrorDetails], hidden: frozenset[str] = frozenset()) -> list[Problem]:
    """One problem per place: the branches of a union (`a number or 'auto'`) become one sentence.

    Args:
        node: the mapping that was validated.
        hidden: keys whose values are never shown.
    """
    at: dict[tuple[str | int, ...], list[ErrorDetails]] = {}
    for error in errors:
        at.setdefault(_inside(node, error["loc"]), []).append(error)
    return [_problem(node, where, found, hidden) for where, found in at.items()]


def _inside(node: Node, loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """The part of a location that exists in the document; pydantic adds the names of union branches."""
    found: list[str | int] = []
    for item in loc:
        if (child := _child(node, item)) is not None:
            node = child
            found.append(item)
    return tuple(found)


def _child(node: Node, item: str | int) -> Node | None:
    if isinstance(node.value, dict):
        return cast("Node | None", node.value.get(item))
    if isinstance(node.value, list) and isinstance(item, int) and item < len(node.value):
        return cast("Node", node.value[item])
    return None


def _problem(root: Node, where: tuple[str | int, ...], errors: list[ErrorDetails], hidden: frozenset[str]) -> Problem:
    node = root
    for item in where:
        node = node.value[item]
    first = errors[0]
    if first["type"] == "missing":
        names = [repr(str(error["loc"][-1])) for error in errors]
        return node.place.problem(f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} missing")
    allowed = [_allowed(error) for error in errors]
    if None in allowed:
        return _free(node, first)
    found = kind(node.value) if where and where[0] in hidden else show(node)
    options = list(dict.fromkeys(text for text in allowed if text))
    guess = nearest(node.value, _literals(errors)) if isinstance(node.value, str) and found == show(node) else ""
    return node.place.problem(f"found {found}; allowed: {' or '.join(options)}{guess}")


def _allowed(error: ErrorDetails) -> str | None:
    """What this branch would have taken, or None if the message is a free sentence."""
    if error["type"] == "value_error":
        match = _UNITS.fullmatch(_sentence(error))
        return match[1] if match else None
    head, should, rest = error["msg"].partition("should be ")
    if not should:
        head, should, rest = error["msg"].partition("should have ")
        rest = f"{'text' if head == 'String ' else 'a value'} with {rest}"
    if not head.endswith(" ") or not should:
        return None
    rest = rest.split(", unable to parse")[0]
    for theirs, ours in _PLAIN.items():
        rest = rest.replace(theirs, ours)
    return rest


def _sentence(error: ErrorDetails) -> str:
    cause = error.get("ctx", {}).get("error")
    return str(cause) if cause is not None else error["msg"]


def _free(node: Node, error: ErrorDetails) -> Problem:
    """A sentence of a validator's own. Where it begins with a quoted key, that key's place is meant."""
    sentence = _sentence(error)
    if isinstance(value := error.get("input"), str) and value and has_reference(node.value):
        sentence = sentence.replace(value, node.value)
    key = re.match(r"'(\w+)'", sentence)
    child = node.value.get(key[1]) if key and isinstance(node.value, dict) else None
    return (child.key or child.place if child is not None else node.place).problem(sentence)


def _literals(errors: list[ErrorDetails]) -> list[str]:
    return [
        name
        for error in errors
        if error["type"] == "literal_error"
        for name in re.findall(r"'([^']*)'", error.get("ctx", {}).get("expected", ""))
    ]
