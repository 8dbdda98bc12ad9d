"""The JSON Schema that editors complete from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from guard import policy
from guard.actions import ACTIONS
from guard.detectors import DETECTORS

HERE = Path(__file__).parent
pytestmark = pytest.mark.usefixtures("plug_ins")
TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}


def fits(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    """As much of JSON Schema as the policy schema uses."""
    if "$ref" in schema:
        assert schema["$ref"].startswith("#/$defs/")
        return fits(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root)
    checks = [
        "type" not in schema or isinstance(value, TYPES[schema["type"]]),
        "const" not in schema or value == schema["const"],
        "enum" not in schema or value in schema["enum"],
        "anyOf" not in schema or any(fits(value, part, root) for part in schema["anyOf"]),
        "oneOf" not in schema or sum(fits(value, part, root) for part in schema["oneOf"]) == 1,
        "not" not in schema or not fits(value, schema["not"], root),
    ]
    if isinstance(value, dict):
        own = schema.get("properties", {})
        checks += [key in value for key in schema.get("required", [])]
        checks += [fits(child, own[key], root) for key, child in value.items() if key in own]
        others = schema.get("additionalProperties", {})
        checks += [others is not False and fits(child, others, root) for key, child in value.items() if key not in own]
    if isinstance(value, list):
        checks += [fits(child, schema.get("items", {}), root) for child in value]
        checks.append(len(value) >= schema.get("minItems", 0))
    return all(checks)


def plain(file: Path) -> Any:
    return YAML(typ="safe", pure=True).load(file.read_text("utf-8"))


@pytest.fixture(scope="module")
def schema(plug_ins: None) -> dict[str, Any]:
    return json.loads(json.dumps(policy.json_schema()))


def test_every_plug_in_is_there_with_its_parameters(schema: dict[str, Any]) -> None:
    for registry in (DETECTORS, ACTIONS):
        for name in registry:
            properties = schema["$defs"][f"{registry.kind}.{name}"]["properties"]
            assert properties["type"] == {"const": name}
            fields = registry.get(name).Params.model_fields
            assert {field.alias or key for key, field in fields.items()} <= set(properties)


@pytest.mark.parametrize("file", ["every_construct.yaml", "parts/base.yaml", "bad/parts/sound.yaml"])
def test_a_right_file_fits(file: str, schema: dict[str, Any]) -> None:
    assert fits(plain(HERE / file), schema, schema)


@pytest.mark.parametrize(
    "mistake",
    [
        "unknown_key_top",
        "unknown_key_policy",
        "unknown_key_checkpoints",
        "unknown_parameter_detector",
        "unknown_parameter_action",
        "unknown_detector",
        "unknown_action",
        "attempts_and_actions",
        "attempts_flat",
        "attempts_empty_rung",
        "actions_mapping",
        "trigger_text",
        "trigger_two_kinds",
        "choice",
        "receiver_key",
        "receiver_type",
        "version_newer",
        "version_missing",
        "policies_mapping",
        "name_and_trigger_missing",
        "number_is_text",
    ],
)
def test_a_wrong_file_does_not(mistake: str, schema: dict[str, Any]) -> None:
    assert not fits(plain(HERE / "bad" / f"{mistake}.yaml"), schema, schema)


def test_every_reference_leads_somewhere(schema: dict[str, Any]) -> None:
    def references(part: Any) -> list[str]:
        if isinstance(part, dict):
            return [part["$ref"]] if "$ref" in part else references(list(part.values()))
        return [ref for child in part for ref in references(child)] if isinstance(part, list) else []

    assert {ref.removeprefix("#/$defs/") for ref in references(schema)} <= set(schema["$defs"])
