"""`extends`: one document laid over another, policy by policy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from guard.errors import PolicyError, Problem
from guard.policy.files import Unreadable, find, read
from guard.policy.messages import kind, nearest, show
from guard.policy.references import fill
from guard.policy.tree import Node
from guard.policy.yaml_reader import read_yaml

VERSION = 1


def resolve(root: Node, problems: list[Problem], chain: tuple[Path, ...] = ()) -> Node:
    """The document with everything it extends underneath.

    Args:
        chain: the files that led here; the last one is this document's own.

    Raises:
        PolicyError: this document, or one it extends, cannot be used at all.
    """
    check_version(root, problems)
    extends = root.value.get("extends")
    if extends is None:
        return root
    base = _base(extends, problems, chain)
    return _alone(root) if base is None else _overlay(base, root, problems)


def check_version(root: Node, problems: list[Problem]) -> None:
    if not isinstance(root.value, dict):
        found = f"found {kind(root.value)}; allowed: a mapping that starts with `version: {VERSION}`"
        raise PolicyError([root.place.problem(found)])
    version = root.value.get("version")
    if version is None:
        problems.append(root.place.problem(f"'version' is missing; write `version: {VERSION}` as the first line"))
        root.value["version"] = Node(VERSION, root.place)  # said once, not again by what checks the whole
    elif type(version.value) is int and version.value > VERSION:
        # What else this guard would find wrong may be right in that version.
        raise PolicyError(
            [
                version.place.problem(
                    f"found version {show(version)}; this guard reads version {VERSION}: install a newer training-guard"
                )
            ]
        )


def _base(extends: Node, problems: list[Problem], chain: tuple[Path, ...]) -> Node | None:
    if not isinstance(extends.value, str):
        found = f"found {kind(extends.value)}; allowed: the name of a shipped policy, or a path"
        problems.append(extends.place.problem(found))
        return None
    try:
        path = find(fill(extends.value), extends.place.file)
        if path.resolve() in chain:
            names = " -> ".join(step.name for step in (*chain[chain.index(path.resolve()) :], path))
            raise Unreadable(f"these files extend each other: {names}; one of them must not")
        text = read(path)
    except (Unreadable, ValueError, OSError) as error:
        written = f"cannot extend {extends.value!r}: " if "extend each other" not in str(error) else ""
        problems.append(extends.place.problem(f"{written}{error}"))
        return None
    try:
        return resolve(read_yaml(text, path), problems, (*chain, path.resolve()))
    except PolicyError as error:
        problems.extend(error.problems)
        return None


def _alone(over: Node) -> Node:
    """What can be judged of a document whose base could not be read: all that is not a change to that base."""

    def stands(node: Node, key: str) -> bool:
        return not isinstance(node.value, dict) or key in node.value

    kept = dict(over.value)
    if "policies" in kept and isinstance(policies := kept["policies"].value, list):
        kept["policies"] = replace(kept["policies"], value=[p for p in policies if stands(p, "trigger")])
    if "receivers" in kept and isinstance(receivers := kept["receivers"].value, dict):
        kept["receivers"] = replace(kept["receivers"], value={k: r for k, r in receivers.items() if stands(r, "type")})
    return replace(over, value=kept)


def _overlay(base: Node, over: Node, problems: list[Problem]) -> Node:
    merged = {key: node for key, node in base.value.items() if key not in ("extends", "name")}
    for key, node in over.value.items():
        under = merged.get(key)
        if key == "policies" and under is not None:
            merged[key] = _policies(under, node, problems)
        elif key == "receivers" and under is not None:
            merged[key] = _receivers(under, node, problems)
        elif key == "checkpoints" and under is not None:
            merged[key] = _keys(under, node)
        else:
            merged[key] = node
    return replace(over, value=merged)


def _keys(under: Node, over: Node) -> Node:
    """A mapping's keys replaced one by one. What is no mapping replaces the whole, and is a problem later."""
    if isinstance(under.value, dict) and isinstance(over.value, dict):
        return replace(over, value=under.value | over.value)
    return over


def _policies(under: Node, over: Node, problems: list[Problem]) -> Node:
    if not (isinstance(under.value, list) and isinstance(over.value, list)):
        return over
    merged = list(under.value)
    known = {name: i for i, item in enumerate(merged) if (name := _name(item))}
    changed: set[str] = set()
    for item in over.value:
        name = _name(item)
        if name in known and name not in changed:
            merged[known[name]] = _policy(merged[known[name]], item)
            changed.add(name)
        elif name is None or name in known or "trigger" in item.value:
            # A second one of that name is a problem later.
            merged.append(_policy(merged[known[name]], item) if name in known else item)
        else:
            problems.append(
                item.value["name"].place.problem(
                    f"the extended file has no policy {name!r} to change{nearest(name, known) or ';'} "
                    f"it has: {', '.join(known)}; a new policy needs a 'trigger'"
                )
            )
    return replace(over, value=merged)


def _name(item: Node) -> str | None:
    name = item.value.get("name") if isinstance(item.value, dict) else None
    return name.value if name is not None and isinstance(name.value, str) else None


def _policy(under: Node, over: Node) -> Node:
    """`attempts` and `actions` are two ways to say the same, so each replaces the other."""
    remedies = {"attempts", "actions"}
    replaced = remedies if remedies & over.value.keys() else set()
    kept = {key: node for key, node in under.value.items() if key not in replaced}
    return replace(over, value=kept | over.value)


def _receivers(under: Node, over: Node, problems: list[Problem]) -> Node:
    if not (isinstance(under.value, dict) and isinstance(over.value, dict)):
        return over
    merged = dict(under.value)
    for name, node in over.value.items():
        if node.value is None and name not in merged:
            problems.append(
                (node.key or node.place).problem(
                    f"the extended file has no receiver {name!r} to drop"
                    f"{nearest(name, merged) or ';'} it has: {', '.join(merged)}"
                )
            )
        merged[name] = _keys(merged[name], node) if name in merged and _same_type(merged[name], node) else node
    return replace(over, value=merged)


def _same_type(under: Node, over: Node) -> bool:
    """A receiver of another type has other keys and so replaces the whole."""
    if not (isinstance(under.value, dict) and isinstance(over.value, dict)):
        return False
    type_ = over.value.get("type")
    return type_ is None or ("type" in under.value and type_.value == under.value["type"].value)
