"""The JSON Schema from which editors complete a policy file."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from guard.actions import ACTIONS
from guard.detectors import DETECTORS
from guard.policy.build import AUTO, RECEIVER_KEYS
from guard.policy.schema import Checkpoints, Escalate, Limits, Policy, PolicySet, Receiver
from guard.registry import Registry

Schema = dict[str, Any]
_MODES = {"enum": ["observe", "enforce"]}


def json_schema() -> Schema:
    """JSON Schema 2020-12 of a policy file, with the parameters of every detector and action known now."""
    definitions: Schema = {}
    for model in (Checkpoints, Limits, Escalate):
        _define(definitions, model.__name__, model)
    definitions["Policy"] = _policy()
    definitions["Receiver"] = _receivers()
    definitions["Trigger"] = _trigger(_plug_ins(definitions, DETECTORS))
    definitions["Action"] = {"oneOf": _plug_ins(definitions, ACTIONS)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Training guard policy",
        "type": "object",
        "additionalProperties": False,
        "required": ["version"],
        "properties": {
            "version": {"const": 1},
            "name": {"type": "string", "description": "What this set is called; default: the file's name."},
            "extends": {"type": "string", "description": "Shipped policy or path; this file is laid over it."},
            "mode": _MODES | {"description": "observe: only report; enforce: act."},
            "deliver": PolicySet.model_json_schema()["properties"]["deliver"]
            | {"description": "Who tells: the process, a daemon, or a daemon of this host if one says that it does."},
            "checkpoints": _ref("Checkpoints"),
            "policies": _list_of(_ref("Policy")),
            "receivers": {"type": "object", "additionalProperties": {"anyOf": [_ref("Receiver"), {"type": "null"}]}},
        },
        "$defs": definitions,
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _list_of(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items} | more


def _define(definitions: Schema, name: str, model: type[BaseModel], prefix: str = "") -> Schema:
    """A model's schema under `name`, the models inside it beside it."""
    schema = model.model_json_schema(by_alias=True, ref_template=f"#/$defs/{prefix}{{model}}")
    for inner, its_schema in schema.pop("$defs", {}).items():
        definitions[f"{prefix}{inner}"] = its_schema
    definitions[name] = schema
    return schema


def _policy() -> Schema:
    """The model is what a policy becomes; a file may say `actions`, and an overlay may say only what it changes."""
    schema = Policy.model_json_schema()
    del schema["$defs"]  # a file does not say what the models inside say; what it does say is defined beside this
    rung = _list_of(_ref("Action"), minItems=1)
    auto = {"const": AUTO, "description": "The cause that the diagnosis finds chooses the remedy; first, or alone."}
    ladder = {"description": "The next one when one has failed.", "anyOf": [auto, _list_of({"anyOf": [auto, rung]})]}
    repeated = _list_of(_ref("Action"), description="Taken at every firing, within the limits.")
    own = {
        key: value
        for key, value in schema["properties"].items()
        if key not in ("trigger", "attempts", "repeats", "auto")
    }
    remedies = {"trigger": _ref("Trigger"), "attempts": ladder, "actions": repeated}
    return schema | {"properties": own | remedies, "required": ["name"], "not": {"required": ["attempts", "actions"]}}


def _receivers() -> Schema:
    """One alternative per type, with its own keys."""
    schema = Receiver.model_json_schema()

    def of(type_: str, keys: tuple[str, ...]) -> Schema:
        properties = {key: schema["properties"][key] for key in keys} | {"type": {"const": type_}}
        return {"type": "object", "additionalProperties": False, "properties": properties}

    return {"description": schema["description"], "oneOf": [of(*item) for item in RECEIVER_KEYS.items()]}


def _trigger(detectors: list[Schema]) -> Schema:
    combined = [
        {
            "type": "object",
            "additionalProperties": False,
            "required": [key],
            "properties": {key: _list_of(_ref("Trigger"), minItems=1)},
        }
        for key in ("all", "any")
    ]
    return {"oneOf": [*detectors, *combined]}


def _plug_ins(definitions: Schema, registry: Registry[Any]) -> list[Schema]:
    """References to one schema per plug-in: its parameters, and `type` to tell it by."""
    for name in registry:
        key = f"{registry.kind}.{name}"
        schema = _define(definitions, key, registry.get(name).Params, prefix=f"{key}.")  # type: ignore[union-attr]
        definitions[key] = schema | {
            "title": name,
            "description": registry.page(name),
            "properties": {"type": {"const": name}} | schema.get("properties", {}),
            "required": ["type", *schema.get("required", [])],
        }
    return [_ref(f"{registry.kind}.{name}") for name in registry]
