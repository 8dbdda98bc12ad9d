"""Writes docs/detectors.md, docs/actions.md and docs/policies.md from the code: `make docs`.

The pages are the docstrings, what `guard check` says of the shipped policies, and the models that read a policy file.
`tests/test_generated_docs.py` fails when they are out of date.
"""

from __future__ import annotations

import inspect
import math
import os
import random
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from guard.actions import ACTIONS, STRENGTH
from guard.cli.check import _clauses, _last_colon  # laid out as `guard check` does it
from guard.detectors import DETECTORS
from guard.policy import Checkpoints, Disk, Limits, Policy, PolicySet, Receiver, explain, load
from guard.policy.build import POLICY_KEYS, RECEIVER_KEYS, SET_KEYS
from guard.policy.files import shipped
from guard.policy.schema import yaml_name
from guard.registry import Registry
from guard.types import Signals

FOLDER = Path(__file__).parent
HEAD = "<!-- Written by docs/generate.py; to change it, change the code and run: make docs -->\n\n"
WIDTH = 50  # losses that the classic rule looks at
RATIO = 0.3  # its limit


def pages() -> dict[str, str]:
    """File name -> text of every generated page."""
    for name in ("SLACK_BOT_TOKEN", "SLACK_CHANNEL"):  # else the pages would depend on who writes them
        os.environ.pop(name, None)
    return {"detectors.md": HEAD + detectors(), "actions.md": HEAD + actions(), "policies.md": HEAD + policies()}


# ---- detectors and actions


def detectors() -> str:
    return f"""# Detectors

What a policy can wait for: `trigger: {{type: NAME, ...parameters}}`. Thresholds have defaults at which healthy runs are
left alone, so most policies name no parameter at all. How to add one: `CONTRIBUTING.md`; how to add one without
touching this project: `examples/custom_detector.py`.

{overview(DETECTORS, "fires when")}

{classic_rule()}
{"".join(page(DETECTORS, name) for name in built_in(DETECTORS))}"""


def actions() -> str:
    return f"""# Actions

What a policy can do: `actions: [{{type: NAME, ...parameters}}]`, or rung by rung under `attempts:`. If several policies
fire in one tick, the strongest action decides: {", ".join(STRENGTH)}, then the others.

{overview(ACTIONS, "what it does")}
{"".join(page(ACTIONS, name) for name in built_in(ACTIONS))}"""


def built_in(registry: Registry[Any]) -> list[str]:
    """Plug-ins that happen to be installed are not part of this project's pages."""
    return [name for name in registry if registry.origin(name).startswith(f"{registry.package}.")]


def overview(registry: Registry[Any], what: str) -> str:
    rows = (registry.page(name).partition("\n")[0].rstrip(".").partition(": ")[2] for name in built_in(registry))
    return table(("type", what), [(f"`{name}`", row) for name, row in zip(built_in(registry), rows, strict=True)])


def page(registry: Registry[Any], name: str) -> str:
    """A docstring as a section: its headings become bold, its arguments a list, its example a block."""
    title, _, rest = registry.page(name).partition("\n")
    return f"\n## {name}\n\n{title}\n\n{markdown(rest.strip())}\n"


def markdown(text: str) -> str:
    parts = [section(*part) for part in re.findall(r"^(\w[\w ]*):(?: ?)(.*(?:\n(?:[ ].*|$))*)", text, re.MULTILINE)]
    return "\n\n".join(parts)


def section(head: str, body: str) -> str:
    if head == "Args" and "\n" in body:
        entries = re.split(r"\n    (?=\w+: )", "\n" + body.strip("\n"))
        return "**Parameters:**\n" + "".join(
            f"\n- `{key}`: {one_line(rest)}"
            for key, _, rest in (entry.strip().partition(": ") for entry in entries if entry.strip())
        )
    if head == "Args":
        return f"**Parameters:** {one_line(body)}"
    if head == "Example":
        return f"**Example:**\n\n```text\n{inspect.cleandoc(body.strip(chr(10)))}\n```"
    return f"**{head}:** {one_line(body)}"


def one_line(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ("---",) * len(head), *rows))


# ---- the classic rule, in numbers


def classic_rule() -> str:
    """Loss curves, told by two rules."""
    rows = []
    for kind, healthy, curve in CURVES:
        r = random.Random(0)
        losses = [curve(t, r) for t in range(600)]
        theirs, ours = classic_alarms(losses), own_alarms(losses)
        rows.append(
            (
                kind,
                "yes" if healthy else "**no**",
                f"{losses[0]:.2f}",
                f"{losses[-1]:.2g}",
                str(len(theirs)),
                str(theirs[0]) if theirs else "never",
                str(len(ours)),
                str(ours[0]) if ours else "never",
            )
        )
    head = (
        "600 losses",
        "healthy",
        "first",
        "last",
        "classic rule: ticks in alarm",
        "from",
        "`oscillation`: ticks in alarm",
        "from",
    )
    return f"""## Why `oscillation` is not a ratio

The classic rule calls it an oscillation when the standard deviation of the last {WIDTH} losses is above {RATIO} of
their mean. A loss that falls fast has a large deviation because it falls, and one near zero has a large ratio because
its mean is small: the rule alarms on runs that could not go better, and a guard that acts on it cuts their rate.
`oscillation` takes the trend out and asks for lost ground. Both rules on three seeded traces:

{table(head, rows)}

The classic rule is right in the last row, but had been in alarm since long before the swing began. `oscillation` takes
half a window of lost ground for proof, a single swing not.
"""


def classic_alarms(losses: list[float]) -> list[int]:
    def fires(t: int) -> bool:
        window = losses[t + 1 - WIDTH : t + 1]
        return statistics.pstdev(window) > RATIO * statistics.fmean(window)

    return [t for t in range(WIDTH - 1, len(losses)) if fires(t)]


def own_alarms(losses: list[float]) -> list[int]:
    cls = DETECTORS.get("oscillation")
    assert cls is not None
    detector, r, alarms = cls(cls.Params()), random.Random(1), []
    for t, loss in enumerate(losses):
        s = Signals(t, t, loss, math.exp(r.gauss(0.0, 0.2)), 1e-3)
        found = detector.score(s)
        if found is not None:
            alarms.append(t)
        (detector.learn if found is None else detector.hold)(s)
    return alarms


def _fast_fall(t: int, r: random.Random) -> float:
    return 0.5 + 9.5 * math.exp(-t / 25) + 0.02 * r.gauss(0.0, 1.0)


def _near_zero(t: int, r: random.Random) -> float:
    return 2.3 * math.exp(-t / 60) * math.exp(0.5 * r.gauss(0.0, 1.0))


def _swings(t: int, r: random.Random) -> float:
    calm = 0.4 + 1.6 * math.exp(-t / 30) + 0.02 * r.gauss(0.0, 1.0)
    return calm if t < 300 else 1.2 * (1.0 + 0.6 * math.sin(2 * math.pi * t / 7)) + 0.02 * r.gauss(0.0, 1.0)


CURVES: list[tuple[str, bool, Callable[[int, random.Random], float]]] = [
    ("falls from 10 to 0.5 in a hundred steps", True, _fast_fall),
    ("memorises its data: falls to zero", True, _near_zero),
    ("swings from step 300 on", False, _swings),
]


# ---- policies


def policies() -> str:
    names = sorted(shipped(), key=lambda name: (name != "default", name == "observe", name))
    return f"""# Policies

A policy file says what should happen to a run; `guard check FILE` says it in plain sentences. Here is what each shipped
policy does, and then the language.

{"".join(shipped_policy(name) for name in names)}## The language

Strict YAML 1.2. Each mistake is told with file, line and column, all of them at once. Where a number has a unit it may
be written with it: `100 steps`, `30 min`, `25 %`. `${{VAR}}` and `${{VAR:-default}}` stand for environment variables. A
file that `extends` another changes it policy by policy, by `name`: keys that are given replace those of the same name,
`enabled: false` drops a policy, a receiver set to `null` is dropped.

### The file

{
        keys_table(
            PolicySet,
            SET_KEYS,
            {
                "extends": ("name or path", "none", "Shipped policy or file that this one changes."),
                "version": ("`1`", "needed", "Of the language."),
                "name": ("text", "the file's name", "What the set is called."),
                "mode": ("observe or enforce", "`enforce`", "Only report, or act."),
                "deliver": (
                    "auto, process or daemon",
                    "`auto`",
                    "Who tells: the training process, a daemon, or a daemon if one of this host says that it does.",
                ),
                "policies": ("list", "none", "See below."),
                "receivers": ("mapping of name to receiver", "none", "Who is told."),
                "checkpoints": ("mapping", "see below", "How often the state is kept."),
            },
        )
    }

### `policies:`

{
        keys_table(
            Policy,
            POLICY_KEYS,
            {
                "name": (
                    "text",
                    "needed",
                    "What it is called in messages, and what a file that extends this one names it by.",
                ),
                "description": ("text", "none", "For people."),
                "severity": (
                    "info, warning or critical",
                    "`warning`",
                    "Worth a line; worse off, or lost, if nobody acts.",
                ),
                "trigger": (
                    "detector, `{all: [...]}` or `{any: [...]}`",
                    "needed",
                    "What it waits for: `docs/detectors.md`.",
                ),
                "attempts": (
                    "list of lists of actions",
                    "none",
                    "The ladder: the next one when one has failed. None: only told.",
                ),
                "actions": (
                    "list of actions",
                    "none",
                    "In place of `attempts`: taken at every firing, within `limits`.",
                ),
                "limits": ("mapping", "none", "How often it may act."),
                "for": ("steps, as in `3 steps`", "`1 step`", "Ticks in a row that the trigger must hold."),
                "on_exhausted": ("notify or stop", "`notify`", "When attempts or budget are spent."),
                "mode": ("observe or enforce", "the set's", "For this policy alone."),
                "enabled": ("true or false", "`true`", "False drops the policy, for instance one of an extended file."),
            },
        )
    }

An action is `{{type: NAME, ...parameters}}`: `docs/actions.md`.

### `limits:`

{keys_table(Limits, given={"per": ("steps, as in `1000 steps`", "the whole run", "What `max` is counted over.")})}

### `checkpoints:`

{keys_table(Checkpoints, given={"disk": ("mapping", "none: memory only", "See below.")})}

### `checkpoints: {{disk: ...}}`

{keys_table(Disk, given={"every": ("steps, time or `auto`", "`30 min`", "`auto`: 0.5 % of the run's time.")})}

### `receivers:`

{receivers()}

What is told when, and what the keys lead to: `docs/slack.md`.
"""


def shipped_policy(name: str) -> str:
    loaded = load(name)
    comment = re.match(r"(?:#.*\n)+", shipped()[name].read_text("utf-8"))
    lead = re.sub(r"^# ?", "", comment[0], flags=re.MULTILINE).partition("\n\n")[0].strip() if comment else ""
    known = {} if name == "default" else {p.name: p for p in load("default").policies}
    same = [p.name for p in loaded.policies if known.get(p.name) == p]
    dropped = [other for other in known if other not in {p.name for p in loaded.policies}]
    told = [items(text) for text in explain(loaded) if text.partition(" (")[0] not in same]
    lists = {"As in `default`": same, "Not here": dropped}
    told += [f"- {what}: {', '.join(f'`{n}`' for n in names)}." for what, names in lists.items() if names]
    return f"## {name}\n\n{lead}\n\n" + "\n".join(told) + "\n\n"


def items(text: str) -> str:
    """A sentence as a list item, its clauses below it; a policy's name in bold."""
    first, *others = _clauses(text)
    head, colon, remedy = _last_colon(first)
    name, bracket, rest = head.partition(" (")
    head = f"**{name}**{bracket}{rest}" if bracket and " " not in name else head
    return "\n".join([f"- {head}{colon}", *(f"  - {clause}" for clause in [remedy, *others] if clause)])


def keys_table(
    model: type[BaseModel], keys: tuple[str, ...] | None = None, given: dict[str, tuple[str, str, str]] | None = None
) -> str:
    """Keys, types, defaults and meanings; `given` where the model says less than is true of a file."""
    fields = {yaml_name(*item): item for item in model.model_fields.items()}
    meanings, rows = described(model), []
    for key in keys or tuple(fields):
        if given and key in given:
            rows.append((f"`{key}`", *given[key]))
        else:
            name, field = fields[key]
            schema = model.model_json_schema(by_alias=False)["properties"][name]
            rows.append((f"`{key}`", kind(schema), default(field.default, schema), meanings.get(name, "")))
    return table(("key", "type", "default", "meaning"), rows)


def described(model: type[BaseModel]) -> dict[str, str]:
    """Field -> what the docstring's arguments say of it; `a, b: text` describes both."""
    _, _, body = inspect.cleandoc(model.__doc__ or "").partition("Args:\n")
    entries = re.split(r"\n    (?=[\w, ]+: )", "\n" + body)
    pairs = (entry.strip().partition(": ") for entry in entries if entry.strip())
    return {key.strip(): sentence_case(one_line(rest)) for keys, _, rest in pairs for key in keys.split(",")}


def sentence_case(text: str) -> str:
    return text[:1].upper() + text[1:]


def kind(schema: dict[str, Any]) -> str:
    """A JSON Schema in words."""
    example = str(schema.get("examples", [""])[0])
    if example and not example.startswith("$"):
        word = {"steps": "steps", "%": "share", "GB": "bytes"}.get(example.rpartition(" ")[2], "time")
        options = [word, *(["`auto`"] if "auto" in str(schema.get("anyOf", "")) else [])]
        return f"{' or '.join(options)}, as in `{example}`"
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if "const" in schema:
        return f"`{schema['const']}`"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(kind(s) for s in schema["anyOf"] if s.get("type") != "null"))
    if schema.get("type") == "integer":
        return "whole number"
    return {"string": "text", "boolean": "true or false", "number": "number"}.get(str(schema.get("type")), "text")


def default(value: Any, schema: dict[str, Any]) -> str:
    if value is PydanticUndefined:
        return "needed"
    if value is None or value == "":
        return "none"
    text = kind(schema)
    if text.startswith("steps"):
        return f"`{value} step{'' if value == 1 else 's'}`"
    if text.startswith("share"):
        return f"`{value * 100:g} %`"
    if isinstance(value, float):
        return f"`{value / 3600:g} h`" if value >= 3600 else f"`{value / 60:g} min`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def receivers() -> str:
    """One table: which type takes which key."""
    meanings = described(Receiver) | {
        "type": "Where it tells.",
        "remind_every": "Until an unresolved incident that nobody acknowledged is told once more, then twice as long "
        "and so on; `null`: no reminders.",
        "escalate": "`{after: 30 min, to: NAME}`: another receiver that is told of an incident that needs a person and "
        "that nobody acknowledged for so long. It is told nothing else, whatever its `min_severity`.",
    }
    schema = Receiver.model_json_schema()["properties"]
    keys = [key for key in Receiver.model_fields if any(key in own for own in RECEIVER_KEYS.values())]
    rows = [
        (
            f"`{key}`",
            ", ".join(type_ for type_, own in RECEIVER_KEYS.items() if key in own),
            "mapping" if key == "escalate" else kind(schema[key]),
            default(Receiver.model_fields[key].default, schema[key]),
            meanings.get(key, ""),
        )
        for key in keys
    ]
    return table(("key", "of", "type", "default", "meaning"), rows)


if __name__ == "__main__":
    for file, text in pages().items():
        (FOLDER / file).write_text(text, encoding="utf-8")
