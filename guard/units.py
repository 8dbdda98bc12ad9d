"""Quantities as people write them in YAML: ``100 steps``, ``30 min``, ``25 %``."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

_SECONDS = {
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "min": 60.0,
    "minute": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "d": 86400.0,
    "day": 86400.0,
}
_BYTES: dict[str, int] = {"B": 1} | {
    f"{prefix}{infix}B": base**power
    for infix, base in (("", 1000), ("i", 1024))
    for power, prefix in enumerate("kMGTP", start=1)
}
_QUANTITY = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([A-Za-z%]*)\s*$")


def _split(value: Any, example: str) -> tuple[float, str]:
    match = _QUANTITY.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"expected something like {example!r}, got {value!r}")
    return float(match[1]), match[2]


def parse_steps(value: Any) -> int:
    """Steps [ticks]: ``100 steps``, ``100 step`` or a bare whole number.

    Raises:
        ValueError: anything else, with what was expected.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number, unit = _split(value, "100 steps")
    if unit not in ("", "step", "steps") or number != int(number):
        raise ValueError(f"expected a whole number of steps like '100 steps', got {value!r}")
    return int(number)


def parse_seconds(value: Any) -> float:
    """A time [s]: ``45 s``, ``30 min``, ``2 h``, ``1 day`` or a bare number of seconds.

    Raises:
        ValueError: anything else, with what was expected.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    number, unit = _split(value, "30 min")
    scale = _SECONDS.get(unit) or _SECONDS.get(unit.rstrip("s"))
    if scale is None:
        raise ValueError(f"expected a time like '30 s', '30 min', '2 h' or '1 day', got {value!r}")
    return number * scale


def parse_share(value: Any) -> float:
    """A share from 0 to 1: ``25 %`` or ``0.25``.

    Raises:
        ValueError: anything else, with what was expected.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        share = float(value)
    else:
        number, unit = _split(value, "25 %")
        if unit not in ("", "%"):
            raise ValueError(f"expected a share like '25 %', got {value!r}")
        share = number / 100 if unit else number
    if not 0 <= share <= 1:
        raise ValueError(f"expected a share between 0 % and 100 %, got {value!r}")
    return share


def show_bytes(count: int) -> str:
    """An amount of data [bytes] for a person: ``512 B``, ``1.5 GB``."""
    amount, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.3g} {unit}"


def parse_bytes(value: Any) -> int:
    """An amount of data [bytes]: ``50 GB``, ``500 MiB`` or a bare whole number of bytes.

    Raises:
        ValueError: anything else, with what was expected.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number, unit = _split(value, "50 GB")
    factor = _BYTES.get(unit) or _BYTES.get(unit[:1].lower() + unit[1:] if unit[:1] == "K" else "")
    if factor is None:
        raise ValueError(f"expected an amount of data like '500 MB', '50 GB' or '2 TB', got {value!r}")
    return int(number * factor)


_STRING = {"anyOf": [{"type": "number"}, {"type": "string"}]}


def _schema(example: str) -> Any:
    from pydantic import WithJsonSchema

    return WithJsonSchema({**_STRING, "examples": [example]})


Steps = Annotated[int, BeforeValidator(parse_steps), _schema("100 steps")]
Seconds = Annotated[float, BeforeValidator(parse_seconds), _schema("30 min")]
Bytes = Annotated[int, BeforeValidator(parse_bytes), _schema("50 GB")]
Share = Annotated[float, BeforeValidator(parse_share), _schema("25 %")]
