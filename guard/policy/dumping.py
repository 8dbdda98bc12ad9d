"""A policy set written as YAML again."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from pydantic import BaseModel
from ruamel.yaml import YAML
from ruamel.yaml.representer import SafeRepresenter

from guard.policy.build import AUTO, RECEIVER_KEYS, SECRETS
from guard.policy.references import escape
from guard.policy.schema import Policy, PolicySet, Receiver, yaml_name
from guard.policy.triggers import Leaf, Trigger


def dump(policies: PolicySet) -> str:
    """The policy as resolved: what was extended is written out, references are filled in, except those of secrets,
    which stay as they are. A literal secret is left out (``***``). `parse` reads it back to an equal set."""
    document: dict[str, Any] = {"version": policies.version, "name": escape(policies.name)}
    if policies.mode:
        document["mode"] = policies.mode
    document["deliver"] = policies.deliver
    document["checkpoints"] = _plain(policies.checkpoints)
    if isinstance(every := policies.checkpoints.disk and policies.checkpoints.disk.every, float):
        document["checkpoints"]["disk"]["every"] = f"{Decimal(repr(every)):f} s"  # a bare number would be steps
    document["policies"] = [_policy(policy) for policy in policies.policies]
    document["receivers"] = {name: _receiver(receiver) for name, receiver in policies.receivers.items()}
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.Representer = _Representer
    yaml.default_flow_style, yaml.width, yaml.sort_base_mapping_type_on_output = None, 100, False
    out = io.StringIO()
    yaml.dump(document, out)
    return out.getvalue()


_WORDS = re.compile(r"[A-Za-z_][\w./-]*( [\w./-]+)*", re.ASCII)


class _Representer(SafeRepresenter):
    """Quotes all but ordinary words: what ruamel leaves bare, such as ``?x`` or U+0085, it may not read back."""

    def represent_str(self, data: str) -> Any:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if _WORDS.fullmatch(data) else '"')


_Representer.add_representer(str, _Representer.represent_str)


def _policy(policy: Policy) -> dict[str, Any]:
    shown = _plain(policy, skip=("trigger", "attempts", "repeats", "enabled", "auto"))
    head = {key: shown.pop(key) for key in ("name", "description", "severity")}
    rungs = [[{"type": spec.type} | _plain(spec.action.params) for spec in rung] for rung in policy.attempts]
    ladder: Any = ([AUTO, *rungs] if rungs else AUTO) if policy.auto else rungs
    remedy: dict[str, Any] = {"actions": rungs[0]} if policy.repeats else {"attempts": ladder}
    return head | {"trigger": _trigger(policy.trigger)} | remedy | shown


def _receiver(receiver: Receiver) -> dict[str, Any]:
    plain = _plain(receiver, references=SECRETS)
    return {key: plain[key] for key in RECEIVER_KEYS[receiver.type] if key in plain}


def _trigger(trigger: Trigger) -> dict[str, Any]:
    if isinstance(trigger, Leaf):
        return {"type": trigger.type} | _plain(trigger.params)
    return {type(trigger).__name__.lower(): [_trigger(part) for part in trigger.of]}


def _plain(model: BaseModel, *, skip: Iterable[str] = (), references: Iterable[str] = ()) -> dict[str, Any]:
    """The model's fields under their YAML names; a None that is the default anyway is left out."""
    plain = {}
    for name, field in type(model).model_fields.items():
        part = getattr(model, name)
        if name in skip or (part is None and not field.is_required() and field.get_default() is None):
            continue
        if isinstance(part, BaseModel):
            value: Any = _plain(part)
        else:
            (value,) = model.model_dump(mode="json", by_alias=True, include={name}).values()
            value = value if name in references else _escaped(value)
        plain[yaml_name(name, field)] = value
    return plain


def _escaped(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _escaped(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_escaped(child) for child in value]
    return escape(value) if isinstance(value, str) else value
