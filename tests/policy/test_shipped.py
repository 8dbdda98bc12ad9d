"""The policies that come with the guard."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from detectors.traces import HEALTHY, play

from guard import policy
from guard.detectors import DETECTORS
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
        ["rollback", "precision"],
        ["rollback"],
    ]
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


# ---- the presets

PRESETS = ["finetuning", "llm_pretraining", "reinforcement_learning", "vision"]


def ladder(name: str, of: str) -> list[list[str]]:
    """The rungs of a policy, each action as its clause."""
    (found,) = (p for p in policy.load(name).policies if p.name == of)
    return [[spec.action.describe() for spec in rung] for rung in found.attempts]


def triggers(name: str) -> dict[str, policy.Policy]:
    return {leaf.type: p for p in policy.load(name).policies for leaf in policy.leaves(p.trigger)}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_changes_to_default(name: str) -> None:
    text = (FOLDER / f"{name}.yaml").read_text("utf-8")
    assert "\nextends: default\n" in text
    assert policy.load(name).mode == "enforce"
    assert triggers(name)["non_finite"].on_exhausted == "stop"
    assert [spec.type for spec in triggers(name)["non_finite"].attempts[-1]] == ["stop"]
    assert triggers(name)["grad_explosion"].attempts[0][0].type == "clip"


@pytest.mark.parametrize("name", PRESETS)
def test_each_number_of_a_preset_is_explained(name: str) -> None:
    """On its own line, or above it."""
    lines = (FOLDER / f"{name}.yaml").read_text("utf-8").splitlines()
    bare = []
    for i, line in enumerate(lines):
        code, _, comment = line.partition("#")
        if re.search(r"\d", code.replace("version: 1", "").replace("bf16", "").replace("fp32", "")) and not comment:
            above = next((j for j in range(i, -1, -1) if lines[j].lstrip().startswith("#")), None)
            entry = next((j for j in range(i, -1, -1) if re.match(r"\s*- (name|\{name)", lines[j])), None)
            if above is None or entry is None or above != entry - 1:
                bare.append((i + 1, line))
    assert bare == []


@pytest.mark.parametrize("name", PRESETS)
def test_what_is_only_told_keeps_no_checkpoint_from_counting_as_good(name: str) -> None:
    told = [p for p in policy.load(name).policies if not p.attempts and p.name != "tell-vanishing-gradients"]
    assert all(p.severity == "info" for p in told)
    if told:
        assert policy.load(name).receivers["slack"].min_severity == "info"


@pytest.mark.parametrize("name", PRESETS)
def test_a_checkpoint_can_finish_its_probation_before_the_next_one(name: str) -> None:
    checkpoints = policy.load(name).checkpoints
    assert isinstance(checkpoints.every, int)
    assert 2 * checkpoints.probation <= checkpoints.every


@pytest.mark.parametrize("name", PRESETS)
def test_windows_stay_where_the_detectors_were_tuned(name: str) -> None:
    for p in policy.load(name).policies:
        for leaf in policy.leaves(p.trigger):
            assert 50 <= getattr(leaf.params, "window", 50) <= 160 or leaf.type == "lr_jump"


@pytest.mark.parametrize("name", ["finetuning", "vision"])  # the others change no parameter of a detector
def test_what_a_preset_changes_in_a_detector_leaves_healthy_runs_alone(name: str) -> None:
    usual = {leaf for p in policy.load("default").policies for leaf in policy.leaves(p.trigger)}
    changed = {leaf for p in policy.load(name).policies for leaf in policy.leaves(p.trigger)} - usual
    assert changed
    for leaf in changed:
        cls = DETECTORS.get(leaf.type)
        assert cls is not None
        assert {kind: play(cls(leaf.params), run) for kind, run in HEALTHY.items()} == {kind: {} for kind in HEALTHY}


def test_pretraining_goes_back_and_skips_before_it_cuts_the_rate() -> None:
    rungs = ladder("llm_pretraining", "skip-on-loss-spike")
    assert rungs[0] == ["leave the step out"]
    assert rungs[1] == ["roll back to the last good checkpoint and leave out all batches since"]
    assert ["learning rate" in " ".join(rung) for rung in rungs] == [False, False, False, True]
    assert policy.load("llm_pretraining").checkpoints.probation == 100
    assert "scale_lr" not in [spec.type for spec in triggers("llm_pretraining")["divergence"].attempts[0]]
    assert "the start" not in str(policy.explain(policy.load("llm_pretraining")))
    for fault in ("flat_loss", "plateau", "overfitting"):
        assert triggers("llm_pretraining")[fault].attempts == ()


def test_fine_tuning_ends_with_the_best_state() -> None:
    assert ladder("finetuning", "stop-on-overfitting") == [["stop the run with the best state restored"]]
    assert triggers("finetuning")["flat_loss"].attempts == ()
    assert triggers("finetuning")["plateau"].attempts == ()


def test_reinforcement_learning_reads_nothing_into_the_shape_of_the_loss() -> None:
    assert set(triggers("reinforcement_learning")) == {
        "non_finite",
        "grad_explosion",
        "loss_scale_collapse",
        "dead_parameters",
        "grad_vanishing",
    }
    assert "replay" not in str(policy.explain(policy.load("reinforcement_learning")))


@pytest.mark.parametrize(("name", "added"), [("reinforcement_learning", 3), ("vision", 0)])
def test_examples_in_comments_load(name: str, added: int) -> None:
    text = (FOLDER / f"{name}.yaml").read_text("utf-8")
    before, start, rest = text.rpartition("  #\n  # - name: ") if added == 0 else text.partition("  #\n  # - name: ")
    example, blank, receivers = (start + rest).partition("\n\n")
    assert start
    shown = before + re.sub(r"^  # ?", "  ", example, flags=re.MULTILINE) + blank + receivers
    assert len(policy.parse(shown).policies) == len(policy.load(name).policies) + added
