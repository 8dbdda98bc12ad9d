"""Loading a policy: read, lay over what it extends, validate; every problem at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from guard.errors import PolicyError, Problem
from guard.policy.build import Builder
from guard.policy.files import Unreadable, find, read
from guard.policy.overlay import resolve
from guard.policy.schema import PolicySet
from guard.policy.tree import Node, from_python
from guard.policy.yaml_reader import read_yaml


def load(source: str | os.PathLike[str] | Mapping[str, Any] | PolicySet) -> PolicySet:
    """A policy set from wherever it is.

    Args:
        source: the name of a shipped policy; a path (text with a separator or ending in ``.yaml``); a dict with what
            such a file would hold; a `PolicySet`, which is returned as it is.

    Raises:
        PolicyError: with all problems found, each with its file, line and column.
    """
    if isinstance(source, PolicySet):
        return source
    if isinstance(source, Mapping):
        return _build(from_python(source), None)
    path: Path | None = None
    try:
        path = find(source) if isinstance(source, str) else Path(source)
        text = read(path)
    except Unreadable as error:
        raise PolicyError([Problem(str(error), path)]) from None
    return parse(text, path)


def parse(text: str, file: Path | None = None) -> PolicySet:
    """A policy set from YAML text.

    Args:
        file: where the text was read from; relative `extends` start there.

    Raises:
        PolicyError: with all problems found.
    """
    return _build(read_yaml(text, file), file)


def _build(root: Node, file: Path | None) -> PolicySet:
    problems: list[Problem] = []
    resolved = resolve(root, problems, () if file is None else (file.resolve(),))
    built = Builder(problems).policy_set(resolved, file.stem if file else "inline")
    if problems:
        raise PolicyError(sorted(problems, key=lambda p: (str(p.file), p.line, p.column)))
    assert built is not None
    return built
