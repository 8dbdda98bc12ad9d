"""Slack blocks, within Slack's limits: 50 blocks, header 150, section 3000, 10 fields of 2000, 10,000 in all."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable
from typing import Any

from guard.notify.words import cut, escape, escape_code

Block = dict[str, Any]

_HALF_ENTITY = re.compile(r"&[a-z]{0,3}$")
HEADER, SECTION, FIELD, TOTAL = 150, 2900, 300, 9000


def header(text: str) -> Block:
    return {"type": "header", "text": {"type": "plain_text", "text": cut(text, HEADER), "emoji": True}}


def section(title: str, body: str) -> Block:
    bold = f"*{escape(title)}*\n" if title else ""
    return {"type": "section", "text": _mrkdwn(bold + _fitting(body, SECTION - 100))}


def fields(pairs: Iterable[tuple[str, str]], time: float) -> Block:
    """Label and value side by side; the time in each reader's own time zone."""
    shown = [
        (
            label,
            f"<!date^{int(time)}^{{date_short_pretty}} {{time_secs}}|{escape(value)}>"
            if label == "Time"
            else _fitting(value, FIELD),
        )
        for label, value in pairs
    ]
    return {"type": "section", "fields": [_mrkdwn(f"*{escape(label)}*\n{value}") for label, value in shown][:10]}


def code(label: str, command: str) -> Block:
    return {"type": "section", "text": _mrkdwn(f"*{escape(label)}*\n{typed(command)}")}


def typed(command: str) -> str:
    """A command, to be copied."""
    return f"`{_fitting(command, SECTION - 100, escape_code)}`"


def with_image(blocks: list[Block], file_id: str, alt: str) -> list[Block]:
    """The blocks with an uploaded picture before what a person can do: buttons and the command."""
    image = {"type": "image", "slack_file": {"id": file_id}, "alt_text": cut(alt, 200)}
    end = -2 if len(blocks) > 1 and blocks[-2]["type"] == "actions" else -1
    return [*blocks[:end], image, *blocks[end:]]


def with_mention(blocks: list[Block], mention: str | None) -> list[Block]:
    """The blocks with somebody called beneath the header; in a text beside blocks nobody is called."""
    ping = [{"type": "section", "text": _mrkdwn(mention)}] if mention else []
    return [*blocks[:1], *ping, *blocks[1:]]


def without_buttons(blocks: list[Block]) -> list[Block]:
    return [b for b in blocks if b["type"] != "actions"]


def bounded(blocks: list[Block]) -> list[Block]:
    """At most as much text as Slack takes: the longest sections give way first, the command (the last) never."""
    blocks = copy.deepcopy(blocks[:48] + blocks[-1:]) if len(blocks) > 49 else copy.deepcopy(blocks)
    while (excess := text_size(blocks) - TOTAL) > 0:
        texts = [b["text"] for b in blocks[:-1] if b["type"] == "section" and "text" in b]
        longest = max(texts, key=lambda t: len(t["text"]), default=None)
        if longest is None or len(longest["text"]) <= 200:
            break
        shorter = longest["text"][: max(198, len(longest["text"]) - excess - 2)]
        longest["text"] = _HALF_ENTITY.sub("", shorter) + " …"
    return blocks


def text_size(blocks: Iterable[Block]) -> int:
    return sum(len(text["text"]) for b in blocks for text in ([b["text"]] if "text" in b else b.get("fields", [])))


def _fitting(text: str, limit: int, escape: Callable[[str], str] = escape) -> str:
    """Escaped, and within the limit after escaping, which can make text five times as long."""
    escaped = escape(cut(text, limit))
    while len(escaped) > limit:
        text = cut(text, max(10, len(text) * limit // (len(escaped) + 1)))
        escaped = escape(text)
    return escaped


def _mrkdwn(text: str) -> Block:
    # verbatim: Slack must not turn "@here" or "#general" in somebody's error text into a mention.
    return {"type": "mrkdwn", "text": text, "verbatim": True}
