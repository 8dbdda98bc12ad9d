"""`guard schema`."""

from __future__ import annotations

from guard.cli._plugins import load_all
from guard.cli._say import out_json

EXAMPLES = ("guard schema > guard.schema.json",)


def command() -> None:
    """Print the JSON Schema of policies, for editors."""
    from guard.policy import json_schema

    load_all()
    out_json(json_schema())
