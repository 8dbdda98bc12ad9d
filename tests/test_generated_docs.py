"""The generated pages are those of the code as it is now."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from guard.actions import ACTIONS
from guard.detectors import DETECTORS
from guard.policy.files import shipped
from guard.policy.validate import keys

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(generate: ModuleType) -> dict[str, str]:
    return generate.pages()


@pytest.mark.parametrize("name", ["detectors.md", "actions.md", "policies.md"])
def test_pages_are_up_to_date(name: str, pages: dict[str, str]) -> None:
    written = (DOCS / name).read_text("utf-8") if (DOCS / name).exists() else ""
    if written != pages[name]:
        pytest.fail(f"docs/{name} is out of date; run: make docs", pytrace=False)


def test_nothing_is_left_out(generate: ModuleType, pages: dict[str, str]) -> None:
    for registry, name in ((DETECTORS, "detectors.md"), (ACTIONS, "actions.md")):
        sections = re.findall(r"^## (\w+)$", pages[name], re.MULTILINE)
        assert sections == generate.built_in(registry)
        for plug_in in sections:
            for parameter in keys(registry.get(plug_in).Params):
                section = pages[name].split(f"\n## {plug_in}\n", 1)[1].split("\n## ", 1)[0]
                assert f"\n- `{parameter}`: " in section, (plug_in, parameter)
    for policy in shipped():
        assert f"\n## {policy}\n" in pages["policies.md"]


def test_every_key_has_type_and_meaning(pages: dict[str, str]) -> None:
    rows = re.findall(r"^\| `.*\|$", pages["policies.md"], re.MULTILINE)
    assert len(rows) > 35
    assert [row for row in rows if not all(cell.strip() for cell in row.strip("|").split(" | "))] == []


def test_the_classic_rule_cries_wolf_where_oscillation_does_not(generate: ModuleType) -> None:
    for _, healthy, curve in generate.CURVES:
        losses = [curve(t, generate.random.Random(t)) for t in range(600)]  # other noise than in the document
        assert generate.classic_alarms(losses)
        assert bool(generate.own_alarms(losses)) is not healthy
