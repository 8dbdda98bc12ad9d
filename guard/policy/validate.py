"""One mapping of a document against one pydantic model, with a problem for each of its mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from guard.errors import Problem
from guard.policy.messages import kind, translate, unknown
from guard.policy.references import fill, has_reference
from guard.policy.schema import yaml_name
from guard.policy.tree import Node, typed

M = TypeVar("M", bound=BaseModel)

BROKEN: Any = object()
"""In place of a part whose problems are noted already."""


def keys(model: type[BaseModel]) -> list[str]:
    """What YAML may set in a model."""
    return [yaml_name(*item) for item in model.model_fields.items()]


class Validator:
    """Checks nodes and collects what is wrong with them.

    Args:
        problems: where it goes.
    """

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems

    def note(self, node: Node, message: str, *, at_key: bool = False) -> Any:
        place = node.key if at_key and node.key else node.place
        self.problems.append(place.problem(message))
        return BROKEN

    def mapping(self, node: Node, what: str = "a mapping of keys to values") -> dict[str, Node] | None:
        if isinstance(node.value, dict):
            return node.value
        self.note(node, f"found {kind(node.value)}; allowed: {what}")
        return None

    def items(self, node: Node, what: str) -> list[Node] | None:
        if isinstance(node.value, list):
            return node.value
        self.note(node, f"found {kind(node.value)}; allowed: {what}")
        return None

    def model(self, model: type[M], node: Node, allowed: Iterable[str] | None = None, **how: Any) -> M | None:
        """`validate` for a model of the guard's own."""
        return self.validate(lambda data: model.model_validate(data, strict=True), node, allowed or keys(model), **how)

    def validate(
        self,
        make: Callable[[dict[str, Any]], M],
        node: Node,
        allowed: Iterable[str],
        *,
        what: str = "key",
        done: Mapping[str, Any] | None = None,
        leave_out: Iterable[str] = (),
        raw: frozenset[str] = frozenset(),
    ) -> M | None:
        """The model made from a mapping, or None if that has problems.

        Args:
            make: takes plain values, raises pydantic's ValidationError.
            allowed: the keys that may stand here.
            what: they are called in messages.
            done: parts that are built already, by key.
            leave_out: keys that may stand here and are not for the model.
            raw: keys whose references stay references, and whose values are never shown.
        """
        children = self.mapping(node)
        if children is None:
            return None
        before, names, built = len(self.problems), list(allowed), dict(done or {})
        for key, child in children.items():
            if key not in names and key not in leave_out:
                self.note(child, unknown(what, key, names), at_key=True)
        ours = {
            key: child for key, child in children.items() if key in names and key not in built and key not in leave_out
        }
        data = built | {key: child.value if key in raw else self.filled(child) for key, child in ours.items()}
        broken = {key for key, value in data.items() if value is BROKEN}
        data = {key: value for key, value in data.items() if key not in broken}
        made, errors = _attempt(make, data, broken)
        # What a reference was filled with is text, until it turns out that a number is wanted.
        numbers = {
            key: self.filled(ours[key], typed)
            for key in data.keys() & ours.keys() - raw
            if any(error["loc"][:1] == (key,) for error in errors)
        }
        if any(numbers[key] != data[key] for key in numbers):
            made, errors = _attempt(make, data | numbers, broken)
        self.problems.extend(translate(node, errors, raw))
        return made if len(self.problems) == before and not broken else None

    def filled(self, node: Node, convert: Callable[[str], Any] = str) -> Any:
        """The plain value, or `BROKEN` if a reference in it cannot be filled.

        Args:
            convert: applied to text that held a reference.
        """
        if isinstance(node.value, dict):
            mapping = {key: self.filled(child, convert) for key, child in node.value.items()}
            return BROKEN if BROKEN in mapping.values() else mapping
        if isinstance(node.value, list):
            values = [self.filled(child, convert) for child in node.value]
            return BROKEN if BROKEN in values else values
        try:
            return convert(fill(node.value)) if has_reference(node.value) else node.value
        except ValueError as error:
            return self.note(node, str(error))


def _attempt(
    make: Callable[[dict[str, Any]], M], data: dict[str, Any], broken: set[str]
) -> tuple[M | None, list[ErrorDetails]]:
    try:
        return make(data), []
    except ValidationError as error:
        errors = error.errors(include_url=False)
        if broken:  # what is missing for that reason is no mistake, and the whole cannot be judged
            errors = [e for e in errors if e["loc"] and e["loc"][0] not in broken]
        return None, errors
