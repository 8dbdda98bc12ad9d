"""``${VAR}`` and ``${VAR:-default}``, and secrets that are known only by their reference."""

from __future__ import annotations

import os
import re
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema

_REFERENCE = re.compile(
    r"\$(?P<escaped>\$\{)|\$\{(?P<name>[A-Za-z_]\w*)(?P<default>:-[^}]*)?\}|(?P<broken>\$\{)", re.ASCII
)
_HOW = "a reference is written ${NAME} or ${NAME:-default}"
HIDDEN = "***"


def has_reference(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


def fill(text: str) -> str:
    """`text` with its references replaced; ``$${`` stands for a literal ``${``. As in a shell, ``:-`` also
    replaces a variable that is set but empty.

    Raises:
        ValueError: a variable without default is not set, or a reference is not written rightly.
    """

    def value(match: re.Match[str]) -> str:
        if match["escaped"]:
            return "${"
        if match["broken"]:
            raise ValueError(f"{_HOW}; for the characters themselves write $${{")
        name, default = match["name"], match["default"]
        if default is not None:
            return os.environ.get(name) or default[2:]
        if name not in os.environ:
            raise ValueError(f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}")
        return os.environ[name]

    return _REFERENCE.sub(value, text)


def escape(text: str) -> str:
    """The text that `fill` turns into `text`."""
    return text.replace("${", "$${")


class SecretRef:
    """A secret by reference. The value is read from the environment when `reveal` asks for it, and shown nowhere.

    Args:
        text: as the policy writes it, e.g. ``${SLACK_BOT_TOKEN:-}``. A literal secret is accepted.

    Raises:
        ValueError: a reference in it is not written rightly.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        if any(match["broken"] for match in _REFERENCE.finditer(text)):
            raise ValueError(_HOW)
        self._text = text

    @property
    def reference(self) -> str:
        """What may be shown: references as written, everything literal (defaults too) as ``***``."""
        shown, end = "", 0
        for match in _REFERENCE.finditer(self._text):
            literal = match.start() > end or match["escaped"]
            default = match["default"] or ""
            name = f"${{{match['name']}{':-' + HIDDEN if default[2:] else default}}}" if match["name"] else ""
            shown, end = shown + (HIDDEN if literal else "") + name, match.end()
        shown += HIDDEN if end < len(self._text) else ""
        return shown.replace(HIDDEN * 2, HIDDEN)

    def reveal(self) -> str:
        """The secret itself; empty if it is missing."""
        return "" if self.missing() else fill(self._text)

    def missing(self) -> str | None:
        """Why there is no secret, e.g. ``SLACK_BOT_TOKEN is not set``, or None."""
        if HIDDEN in self._text:
            return "the secret was left out of this copy of the policy"
        for match in _REFERENCE.finditer(self._text):
            name, default = match["name"], (match["default"] or "")[2:]
            if name and not (os.environ.get(name) or default):
                return f"{name} is {'empty' if name in os.environ else 'not set'}"
        return None if self._text.strip() else "no secret is given"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretRef) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return f"SecretRef({self.reference!r})"

    def __str__(self) -> str:
        return self.reference

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validate, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "examples": ["${SLACK_BOT_TOKEN:-}"]}

    @classmethod
    def _validate(cls, value: Any) -> SecretRef:
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls(value)
        raise ValueError("expected text such as '${SLACK_BOT_TOKEN:-}'")
