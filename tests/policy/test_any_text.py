"""Whatever is in a file, the answer is a policy set or a PolicyError with a place in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guard import policy
from guard.errors import PolicyError

pytestmark = pytest.mark.usefixtures("plug_ins")
WORDS = st.sampled_from(
    [
        "version",
        "policies",
        "name",
        "trigger",
        "type",
        "shaky",
        "nudge",
        "actions",
        "attempts",
        "receivers",
        "slack",
        "token",
        "checkpoints",
        "every",
        "disk",
        "extends",
        "observe",
        "for",
        "all",
        "any",
        "limits",
        "max",
        "window",
        ": ",
        "- ",
        "\n",
        "\n  ",
        "\n    ",
        "[",
        "]",
        "{",
        "}",
        ", ",
        "&a ",
        "*a",
        "!!str ",
        "'",
        '"',
        "\\U",
        "FFFFFFFF",
        "|",
        ">",
        "? ",
        "#",
        "${",
        "}",
        "~",
        "\t",
        "1",
        "-1",
        "1e999",
        ".nan",
        "5 steps",
        "25 %",
        "---\n",
        "...\n",
        "%YAML 1.2\n",
        "<<: ",
        "\0",
        "é",
        "\u2028",
        "\ufeff",
    ]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=2) | WORDS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.integers(), inner, max_size=4),
    max_leaves=20,
)


def survives(load: Callable[[], object]) -> None:
    problems = None
    try:
        load()
    except PolicyError as error:
        problems = error.problems
    assert problems is None or (problems and all(problem.message for problem in problems))


@given(st.text() | st.lists(WORDS, max_size=30).map("".join))
def test_text(text: str) -> None:
    survives(lambda: policy.parse(text))


@given(st.lists(WORDS, max_size=30).map("".join))
def test_the_rest_of_a_file(text: str) -> None:
    survives(lambda: policy.parse("version: 1\npolicies:\n  - name: one\n    trigger: {type: shaky}\n" + text))


def test_aliases_that_nest_without_end() -> None:
    chain = "".join(f"k{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 2000))
    with pytest.raises(PolicyError, match="larger than 10000 values"):
        policy.parse("k0: &a0 [1]\n" + chain)
    short = "".join(f"k{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 90))
    with pytest.raises(PolicyError, match="unknown key 'k1'"):
        policy.parse(f"version: 1\nk0: &a0 [1]\n{short}policies: [{{name: x, trigger: {{type: shaky, signal: *a89}}}}]")


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(["version", "mode", "checkpoints", "policies", "receivers", "extends"]), VALUES))
def test_values(document: dict) -> None:
    survives(lambda: policy.load({"version": 1, **document}))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["name", "trigger", "attempts", "actions", "limits", "for", "severity"]), VALUES)
def test_values_in_a_policy(key: str, value: object) -> None:
    one = {"name": "one", "trigger": {"type": "shaky"}, key: value}
    survives(lambda: policy.load({"version": 1, "policies": [one]}))
