"""Numbers, times and other people's text, made safe to read."""

from __future__ import annotations

import math
import re
from datetime import datetime, timezone
from typing import Any

# Control characters, and those that turn the direction of what follows, break lines unseen or write in secret.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]"
)
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SHOUT = re.compile(r"@(?=(channel|here|everyone)\b)", re.IGNORECASE)

_MARKUP = re.compile(r"(?<!\w)[*_~](?=\S)")
_LOOKALIKE = {"*": "\u2217", "_": "\u02cd", "~": "\u223c"}

SIGNALS = {"grad_norm": "global gradient norm", "lr": "learning rate", "lr_effective": "effective learning rate"}
FAULTS = {
    "non_finite": "NaN or Inf in loss or gradients",
    "grad_explosion": "exploding gradients",
    "grad_vanishing": "vanishing gradients",
    "update_ratio": "update-to-weight ratio out of range",
    "weights": "weights out of range",
    "threshold": "a value past its limit",
    "crash": "the training process crashed",
    "hang": "no progress",
    "oscillation": "oscillating loss",
    "dead_parameters": "parameters without gradient",
}


def clean(text: object, limit: int = 600) -> str:
    """Text from elsewhere (an exception, a name) without control characters, cut to `limit` characters."""
    raw = str(text)
    # Cut before the regular expressions see it: an error text can be megabytes long.
    short = without_control(raw[: 2 * limit]).strip()
    return cut(short, limit) if len(raw) <= 2 * limit else short[: limit - 2].rstrip() + " …"


def without_control(text: str) -> str:
    """Without what drives a terminal, turns the reading direction or cannot be encoded."""
    return _UNSAFE.sub("", _ANSI.sub("", text)).encode("utf-8", "replace").decode()


def one_line(text: object, limit: int = 80) -> str:
    """A name from elsewhere: as `clean`, and without line breaks."""
    return " ".join(clean(text, limit).split())


def cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 2].rstrip() + " …"


def escape(text: str) -> str:
    """For Slack: nothing in it is markup, and nothing in it pings anybody.

    Slack knows no escape for ``*bold*`` and its like: where such a sign could open something, one that looks the same
    stands for it.
    """
    return escape_code(_MARKUP.sub(lambda match: _LOOKALIKE[match[0]], text))


def escape_code(text: str) -> str:
    """The same for text between backticks, where only ``&<>`` mean something, and which people copy.

    A backtick becomes a sign that looks like it and that no shell knows: a quote would end the quotation of a command.
    """
    quiet = _SHOUT.sub("@\u200b", text.replace("`", "\u02cb"))
    return quiet.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def as_float(value: Any) -> float:
    """A number from the journal, where NaN and Inf are strings; NaN if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def number(value: Any) -> str:
    """``1234`` -> ``1,234``; ``0.000512345`` -> ``0.0005123``; ``nan`` -> ``NaN``."""
    x = as_float(value)
    if math.isnan(x):
        return "NaN"
    if math.isinf(x):
        return "Inf" if x > 0 else "-Inf"
    if x == int(x) and abs(x) < 1e15:
        return f"{int(x):,}"
    return f"{x:,.0f}" if 1e4 <= abs(x) < 1e7 else f"{x:.4g}"


def count(n: int, noun: str) -> str:
    """``1 step``, ``40 steps``."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def nth(n: int) -> str:
    """``1st``, ``2nd``, ``11th``."""
    return f"{n}{'th' if 11 <= n % 100 <= 13 else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}"


def span(seconds: float) -> str:
    """``40 s``, ``12 min``, ``5 h 10 min``, ``2 days 3 h``."""
    minutes, s = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(count(days, "day"), days), (f"{hours} h", hours), (f"{minutes} min", minutes), (f"{s} s", s)]
    first = next((i for i, (_, n) in enumerate(parts) if n), 3)
    return " ".join(text for text, n in parts[first : first + (1 if first >= 2 else 2)] if n or first == 3)


def utc(time: float) -> str:
    try:
        return datetime.fromtimestamp(time, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return "unknown"


def fault(detector: str) -> str:
    return FAULTS.get(detector, one_line(detector, 60).replace("_", " "))


def signal(name: str) -> str:
    return SIGNALS.get(name, one_line(name, 60).replace("_", " "))


def sentence(text: str) -> str:
    """First letter large, full stop at the end."""
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text[-1] in ".!?…:" else ".")
