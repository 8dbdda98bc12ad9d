"""Strict YAML 1.2 into nodes with positions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from guard.errors import PolicyError, Problem
from guard.policy.tree import DEEPEST, Node, Place, impossible, join, typed

_LARGEST = 10_000  # values once aliases are followed: a few lines of aliases of aliases can stand for billions


def read_yaml(text: str, file: Path | None) -> Node:
    """The one document in `text`.

    Raises:
        PolicyError: it is not YAML, or uses what a policy does not need (tags, several documents).
    """
    start = Place(file, 1, 1)
    try:
        root = _Reader(text, file).document()
    except PolicyError:
        raise
    except MarkedYAMLError as error:
        mark, message = _syntax(error, text)
        raise PolicyError([Place(file, mark.line + 1, mark.column + 1).problem(message)]) from None
    except (YAMLError, ValueError, OverflowError):  # what ruamel raises on characters that do not exist
        raise PolicyError([_unprintable(text, start).problem("found a character that YAML does not allow")]) from None
    if root is None:
        raise PolicyError([start.problem("the file is empty; allowed: a mapping that starts with `version: 1`")])
    return root


@dataclass
class _Reader:
    """Builds nodes from ruamel's events: its constructor would lose positions, and allow tags and dates."""

    text: str
    file: Path | None
    problems: list[Problem] = field(default_factory=list)
    anchors: dict[str, tuple[Node, int] | None] = field(default_factory=dict)
    count: int = 0

    def document(self) -> Node | None:
        self.events: Iterator[Any] = iter(YAML(typ="safe", pure=True).parse(self.text))
        root = None
        for event in self.events:
            name = type(event).__name__
            if name == "DocumentStartEvent":
                if root is not None:
                    self._refuse(self._place(event, ""), "found a second document after `---`; allowed: one per file")
                root = self._node(next(self.events), "", 0)
        if self.problems:
            raise PolicyError(self.problems)
        return None if root is None or root.value is None else root

    def _refuse(self, place: Place, message: str) -> None:
        """For what makes reading on pointless."""
        raise PolicyError([*self.problems, place.problem(message)])

    def _place(self, event: Any, path: str) -> Place:
        return Place(self.file, event.start_mark.line + 1, event.start_mark.column + 1, path)

    def _node(self, event: Any, path: str, depth: int) -> Node:
        place, before = self._place(event, path), self.count
        self.count += 1
        if depth > DEEPEST:
            self._refuse(replace(place, path=""), f"nested more than {DEEPEST} levels deep")
        if type(event).__name__ == "AliasEvent":
            return self._alias(event.anchor, place)
        if event.tag and event.tag != "!":
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self.problems.append(place.problem(f"found the tag {tag!r}; tags are not allowed in a policy"))
        if event.anchor:
            self.anchors[event.anchor] = None
        kind = type(event).__name__
        if kind == "MappingStartEvent":
            node = Node(self._mapping(path, depth), place)
        elif kind == "SequenceStartEvent":
            node = Node(self._sequence(path, depth), place)
        else:
            node = self._scalar(event, place)
        if event.anchor:
            self.anchors[event.anchor] = (node, self.count - before)
        return node

    def _alias(self, anchor: str, place: Place) -> Node:
        found = self.anchors.get(anchor)
        if found is None:
            why = "contains itself" if anchor in self.anchors else "has no anchor"
            self._refuse(place, f"the alias *{anchor} {why}")
        assert found is not None
        self.count += found[1]
        if self.count > _LARGEST:
            self._refuse(place, f"aliases make this document larger than {_LARGEST} values")
        return found[0]

    def _mapping(self, path: str, depth: int) -> dict[str, Node]:
        children: dict[str, Node] = {}
        while type(event := next(self.events)).__name__ != "MappingEndEvent":
            key, place = self._key(event, path, depth)
            node = self._node(next(self.events), place.path, depth + 1)
            if key in children:
                self.problems.append(place.problem(f"the key {key!r} is here twice"))
            elif key is not None:
                children[key] = replace(node, key=place)
        return children

    def _key(self, event: Any, path: str, depth: int) -> tuple[str | None, Place]:
        if type(event).__name__ != "ScalarEvent":
            self._node(event, path, depth + 1)  # read on behind it
            place = self._place(event, path)
            self.problems.append(place.problem("a key must be text"))
            return None, place
        place = self._place(event, join(path, event.value))
        if message := impossible(event.value):
            self.problems.append(self._place(event, path).problem(message))
        return event.value, place

    def _sequence(self, path: str, depth: int) -> list[Node]:
        children: list[Node] = []
        while type(event := next(self.events)).__name__ != "SequenceEndEvent":
            children.append(self._node(event, f"{path}[{len(children)}]", depth + 1))
        return children

    def _scalar(self, event: Any, place: Place) -> Node:
        value = typed(event.value) if event.style is None else event.value
        if message := impossible(value):
            self.problems.append(place.problem(message))
        return Node(value, place)


_OPEN = {
    "flow mapping": "{...}",
    "flow sequence": "[...]",
    "flow node": "[...] or {...}",
    "quoted scalar": "quoted text",
}


def _syntax(error: MarkedYAMLError, text: str) -> tuple[Any, str]:
    """ruamel's complaint, and its place, in words of someone who writes YAML rather than parsers."""
    problem, mark = str(error.problem), error.problem_mark or error.context_mark
    line = text.splitlines()[mark.line] if mark.line < len(text.splitlines()) else ""
    if "\t" in line[: len(line) - len(line.lstrip())] or "'\\t'" in problem:
        return mark, "found a tab; YAML is indented with spaces"
    if problem == "mapping values are not allowed here":
        return mark, (
            "this is not YAML: found ': ' where no value can follow; "
            "quote text that holds ': ', and check the line above and the indentation"
        )
    if "<block end>" in problem:
        return mark, "this is not YAML: the line does not fit the lines above it; check the indentation"
    if "stream end" in problem or "end of stream" in problem:
        what = next((ours for theirs, ours in _OPEN.items() if theirs in str(error.context)), "what begins here")
        return error.context_mark or mark, f"this is not YAML: {what} is not closed"
    return mark, f"this is not YAML: {problem}".replace("cannot start any token", "no value can start with; quote it")


def _unprintable(text: str, start: Place) -> Place:
    """Where the first character stands that ruamel's reader refuses."""
    bad = re.search(
        r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
        r"|\\U(?!000|0010)[\da-fA-F]{8}",
        text,
    )
    if bad is None:
        return start
    before = text[: bad.start()]
    return Place(start.file, before.count("\n") + 1, len(before) - before.rfind("\n"))
