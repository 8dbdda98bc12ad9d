"""From a document to a `PolicySet`, part by part."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic_core import to_json

from guard.actions import ACTIONS
from guard.detectors import DETECTORS
from guard.policy import triggers
from guard.policy.messages import kind, show, unknown
from guard.policy.references import has_reference
from guard.policy.schema import ActionSpec, Checkpoints, Disk, Escalate, Limits, Policy, PolicySet, Receiver
from guard.policy.tree import Node
from guard.policy.validate import BROKEN, Validator, keys
from guard.registry import Registry

T = TypeVar("T")

SET_KEYS = ("version", "name", "extends", "mode", "deliver", "checkpoints", "policies", "receivers")
POLICY_KEYS = tuple("actions" if key == "repeats" else key for key in keys(Policy) if key != "auto")
AUTO = "auto"  # in place of an attempt: the cause chooses
SECRETS = frozenset({"token", "webhook_url", "url", "secret"})
_EVERY_RECEIVER = ("type", "min_severity", "mention", "remind_every", "escalate", "lifecycle")
RECEIVER_KEYS = {
    "slack": (*_EVERY_RECEIVER, "channel", "token", "token_file", "webhook_url", "base_url"),
    "webhook": (*_EVERY_RECEIVER, "url", "secret"),
    "console": _EVERY_RECEIVER,
}


def _is_auto(attempts: Node) -> bool:
    """The diagnosis chooses: ``auto``, or a ladder whose first rung is that word."""
    value = attempts.value
    return value == AUTO or (isinstance(value, list) and bool(value) and value[0].value == AUTO)


class Builder(Validator):
    """Each method takes a node and returns what it says, or None if that has problems."""

    def policy_set(self, root: Node, name: str) -> PolicySet | None:
        if self.mapping(root) is None:
            return None
        done = self.parts(
            root, {"checkpoints": self._checkpoints, "policies": self._policies, "receivers": self.receivers}
        )
        if "name" not in root.value:
            done["name"] = name
        return self.model(PolicySet, root, SET_KEYS, done=done, leave_out={"extends"})

    def parts(self, parent: Node, builders: dict[str, Callable[[Node], Any]]) -> dict[str, Any]:
        """Those children that are there, built."""
        built = {key: build(parent.value[key]) for key, build in builders.items() if key in parent.value}
        return {key: BROKEN if value is None else value for key, value in built.items()}

    def _checkpoints(self, node: Node) -> Checkpoints | None:
        children = self.mapping(node)
        if children is None:
            return None
        memory_only = "disk" in children and children["disk"].value is None
        return self.model(Checkpoints, node, done={} if memory_only else self.parts(node, {"disk": self._disk}))

    def _disk(self, node: Node) -> Disk | None:
        every = node.value.get("every") if isinstance(node.value, dict) else None
        if every is None or not isinstance(every.value, float):
            return self.model(Disk, node)
        message = f"found {show(every)}, which may be steps or seconds; say which: '500 steps' or '30 min'"
        return self.model(Disk, node, done={"every": self.note(every, message)})

    def _policies(self, node: Node) -> tuple[Policy, ...] | None:
        items = self.items(node, "a list of policies")
        if items is None:
            return None
        names: set[str] = set()
        for name in (item.value["name"] for item in items if isinstance(item.value, dict) and "name" in item.value):
            if isinstance(name.value, str) and name.value in names:
                self.note(name, f"two policies are called {name.value!r}; give each a name of its own")
            names.add(str(name.value))
        built = [self._policy(item) for item in items]
        return tuple(policy for policy in built if policy is not None and policy.enabled)

    def _policy(self, node: Node) -> Policy | None:
        children = self.mapping(node)
        if children is None:
            return None
        if "attempts" in children and "actions" in children:
            self.note(
                children["actions"],
                "a policy has 'attempts' (a ladder) or 'actions' (which repeat), not both",
                at_key=True,
            )
        done = self.parts(
            node,
            {
                "trigger": self._trigger,
                "limits": lambda limits: self.model(Limits, limits),
                "attempts": self._attempts,
                "actions": self._rung,
            },
        )
        if "actions" in done:
            rung = done.pop("actions")
            done |= {"attempts": rung if rung is BROKEN else (rung,) if rung else (), "repeats": bool(rung)}
        if "attempts" in children and _is_auto(children["attempts"]):
            done["auto"] = True
        return self.model(Policy, node, POLICY_KEYS, done=done, leave_out={"actions"})

    def _trigger(self, node: Node) -> triggers.Trigger | None:
        children = self.mapping(node, "a mapping such as `{type: loss_spike}`")
        if children is None:
            return None
        given = [key for key in ("type", "all", "any") if key in children]
        if len(given) != 1 or (given[0] != "type" and len(children) > 1):
            self.note(
                node,
                "a trigger is {type: DETECTOR, ...its parameters}, {all: [...]} or {any: [...]}; "
                f"found {', '.join(map(repr, children)) or 'an empty mapping'}",
            )
            return None
        if given[0] == "type":
            found = self._plug_in(DETECTORS, node)
            return None if found is None else triggers.Leaf(type=found[0].name, params=found[1])
        return self._combination(triggers.All if given[0] == "all" else triggers.Any, children[given[0]])

    def _combination(self, how: type[triggers.All | triggers.Any], node: Node) -> triggers.Trigger | None:
        items = self.items(node, "a list of triggers")
        if items == []:
            self.note(node, "found an empty list; allowed: at least one trigger")
        parts = [self._trigger(item) for item in items or ()]
        whole = tuple(part for part in parts if part is not None)
        return how(of=whole) if parts and len(whole) == len(parts) else None

    def _attempts(self, node: Node) -> tuple[tuple[ActionSpec, ...], ...] | None:
        if node.value == AUTO:
            return ()
        items = self.items(
            node, f"{AUTO}, or a list of attempts, each a list of actions: `- [{{type: ...}}, {{type: ...}}]`"
        )
        if items is None:
            return None
        if _is_auto(node):
            items = items[1:]
        for item in items:
            if item.value == AUTO:
                self.note(item, f"{AUTO!r} can only be the first attempt: the cause is known before anything is tried")
                return None
        rungs = [self._rung(item) for item in items]
        for item in items:
            if item.value == []:
                self.note(item, "found an empty list; an attempt has at least one action")
        return None if None in rungs else tuple(rung for rung in rungs if rung)

    def _rung(self, node: Node) -> tuple[ActionSpec, ...] | None:
        items = self.items(node, "a list of actions: `[{type: ...}]`")
        if items is None:
            return None
        specs = [self._action(item) for item in items]
        return None if None in specs else tuple(spec for spec in specs if spec)

    def _action(self, node: Node) -> ActionSpec | None:
        found = self._plug_in(ACTIONS, node)
        if found is None:
            return None
        try:
            return ActionSpec(type=found[0].name, action=found[0](found[1]))
        except ValueError as error:  # a plug-in may look at its parameters once more
            self.note(node, str(error))
            return None

    def receivers(self, node: Node) -> dict[str, Receiver] | None:
        children = self.mapping(node)
        if children is None:
            return None
        kept = {name: child for name, child in children.items() if child.value is not None}
        built = {name: self._receiver(child) for name, child in kept.items()}
        for name, child in kept.items():
            self._escalates(name, child, kept)
        return {name: receiver for name, receiver in built.items() if receiver is not None}

    def _receiver(self, node: Node) -> Receiver | None:
        children = self.mapping(node)
        if children is None:
            return None
        type_ = children["type"].value if "type" in children else None
        if not isinstance(type_, str) or type_ not in RECEIVER_KEYS:
            return self.model(Receiver, node, raw=SECRETS)
        builders = {"token_file": self.path, "escalate": lambda escalate: self.model(Escalate, escalate)}
        done = self.parts(node, {k: b for k, b in builders.items() if k != "escalate" or children.get(k, node).value})
        what = f"key of a {type_} receiver:"
        return self.model(Receiver, node, RECEIVER_KEYS[type_], what=what, done=done, raw=SECRETS)

    def _escalates(self, name: str, node: Node, receivers: Mapping[str, Node]) -> None:
        """Whom a receiver calls must be another one."""
        escalate = node.value.get("escalate") if isinstance(node.value, dict) else None
        called = escalate.value.get("to") if escalate is not None and isinstance(escalate.value, dict) else None
        if called is None or has_reference(called.value):
            return
        if called.value == name:
            self.note(called, f"{name!r} would call itself; name another receiver")
        elif isinstance(called.value, str) and called.value and called.value not in receivers:
            self.note(called, unknown("receiver", called.value, [r for r in receivers if r != name]))

    def path(self, node: Node) -> Path | None:
        """A path that still holds when the policy is copied into the run directory."""
        written = self.filled(node)
        if isinstance(written, str) and written:
            folder = node.place.file.parent if node.place.file else Path()
            return (folder / os.path.expanduser(written)).absolute()  # noqa: PTH111 - Path's own raises on unknown users
        if written is not BROKEN:
            self.note(node, f"found {kind(written)}; allowed: a path" if written != "" else "the path is empty")
        return None

    def _plug_in(self, registry: Registry[T], node: Node) -> tuple[Any, Any] | None:
        """The class that `type` names, and its parameters."""
        children = self.mapping(node, "a mapping such as `{type: NAME}`")
        if children is None:
            return None
        if "type" not in children:
            self.note(node, f"'type' is missing; allowed: {', '.join(registry)}")
            return None
        name = self.filled(children["type"])
        if name is BROKEN:
            return None
        cls: Any = registry.get(name) if isinstance(name, str) else None
        if cls is None and isinstance(name, str) and name in registry.failed:
            self.note(children["type"], f"the {registry.kind} {name!r} cannot be loaded: {registry.failed[name]}")
            return None
        if cls is None:
            found = (
                unknown(registry.kind, children["type"].value, registry)
                if isinstance(name, str)
                else (f"found {kind(name)}; allowed: {', '.join(registry)}")
            )
            self.note(children["type"], found)
            return None

        def strict(data: dict[str, Any]) -> Any:
            # As JSON: "4" is no number, but a list may become a tuple or a set, as a plug-in's author expects.
            return cls.Params.model_validate_json(to_json(data, inf_nan_mode="constants"), strict=True)

        params = self.validate(strict, node, keys(cls.Params), what=f"parameter of {name}:", leave_out={"type"})
        return None if params is None else (cls, params)
