"""The policies that come with the guard."""

from __future__ import annotations

from pathlib import Path

import pytest

from guard import policy
from guard.policy import files

FOLDER = Path(__file__).parents[2] / "policies"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_loads_explains_and_comes_back(name: str) -> None:
    loaded = policy.load(name)
    assert loaded.name == name
    assert len(policy.explain(loaded)) > len(loaded.policies)
    assert policy.parse(policy.dump(loaded)) == loaded


def test_default_holds_what_was_promised() -> None:
    default = policy.load("default")
    told = {p.name: p for p in default.policies}
    assert default.mode == "enforce"
    assert [[spec.type for spec in rung] for rung in told["nan-rollback-retry-bf16"].attempts][:2] == [
        ["rollback", "precision"], ["rollback"]]
    assert told["clip-on-explosion"].attempts[0][0].type == "clip"
    assert (told["halve-lr-on-oscillation"].attempts[0][0].action.params.factor) == 0.5
    assert default.receivers["slack"].off_reason == "SLACK_BOT_TOKEN is not set"


def test_observe_is_default_that_only_reports() -> None:
    default = policy.load("default")
    assert policy.load("observe") == default.model_copy(update={"name": "observe", "mode": "observe"})


def test_found_inside_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "_policies").mkdir()
    (tmp_path / "_policies" / "packed.yaml").write_text("version: 1\n")
    monkeypatch.setattr(files.resources, "files", {"guard": tmp_path}.__getitem__)
    assert policy.load("packed").name == "packed"
    assert list(files.shipped()) == ["packed"]
