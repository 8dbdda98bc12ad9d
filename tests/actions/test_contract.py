"""What every action keeps, swept over the whole registry."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML

from guard.actions import ACTIONS, Action
from guard.actions._base import Run as RunProtocol
from guard.clock import FakeClock
from guard.errors import PolicyError
from guard.policy import dump, load, parse
from guard.types import Detection, Result

from ._small import call
from .conftest import Start

NAMES = list(ACTIONS)
SECTIONS = ("Why:", "Does:", "Args:", "Example:", "Source:")
DETECTION = Detection("threshold", "grad_norm", 2.0, 1.0, 0.5, 3, "grad_norm 2 > 1")
METHODS = [n for n, m in vars(RunProtocol).items() if callable(m) and not n.startswith("_")]


def page(name: str) -> str:
    cls = ACTIONS.get(name)
    assert cls is not None
    return sys.modules[cls.__module__].__doc__ or ""


def example(name: str) -> dict[str, Any]:
    given: dict[str, Any] = YAML(typ="safe").load(page(name).split("\nExample:\n", 1)[1].split("\nSource:", 1)[0])
    return given


def make(name: str) -> Action:
    (policy,) = load({"version": 1, "policies": [call(example(name))]}).policies
    return policy.attempts[0][0].action


@pytest.mark.parametrize("name", NAMES)
def test_docstring_is_complete(name: str) -> None:
    cls = ACTIONS.get(name)
    assert cls is not None
    title, _, rest = page(name).partition("\n")
    assert title.endswith(".")
    assert ":" in title
    sections = [s for s in SECTIONS if s != "Args:" or cls.Params.model_fields]
    places = [rest.find(f"\n{section}") for section in sections]
    assert -1 not in places, [s for s, at in zip(sections, places, strict=True) if at < 0]
    assert places == sorted(places)
    for parameter, field in cls.Params.model_fields.items():
        assert f"\n    {field.alias or parameter}: " in rest, f"{parameter} is not described"


@pytest.mark.parametrize("name", NAMES)
def test_example_loads_and_is_dumped_as_it_was_written(name: str) -> None:
    assert example(name)["type"] == name
    policies = load({"version": 1, "policies": [call(example(name))]})
    assert parse(dump(policies), None).policies == policies.policies


@pytest.mark.parametrize("name", NAMES)
def test_unknown_parameters_are_refused(name: str) -> None:
    with pytest.raises(PolicyError, match="no_such_thing"):
        load({"version": 1, "policies": [call({**example(name), "no_such_thing": 1})]})
    cls = ACTIONS.get(name)
    assert cls is not None
    with pytest.raises(ValidationError, match="no_such_thing"):
        cls.Params(no_such_thing=1)


@pytest.mark.parametrize("name", NAMES)
def test_describe_is_one_clause(name: str) -> None:
    text = make(name).describe()
    assert text == text.strip()
    assert text[0].islower()
    assert not text.endswith(".")
    assert ". " not in text
    assert "\n" not in text
    assert len(text) <= 120


@pytest.mark.parametrize("name", NAMES)
def test_file_is_named_after_the_type(name: str) -> None:
    cls = ACTIONS.get(name)
    assert cls is not None
    assert (cls.name, cls.__module__) == (name, f"guard.actions.{name}")


def test_parameters_are_checked_where_importing_torch_fails() -> None:
    policy = {"version": 1, "policies": [call(*map(example, NAMES))]}
    code = (
        "import json, sys; sys.modules['torch'] = None; from guard.policy import load;"
        "p = load(json.loads(sys.argv[1])); print(*(a.type for a in p.policies[0].attempts[0]))"
    )
    done = subprocess.run([sys.executable, "-c", code, json.dumps(policy)], capture_output=True, text=True, check=False)
    assert done.stdout.split() == NAMES, done.stderr


class Canned:
    """A run on which everything is possible; counts what it was asked."""

    lr_multiplier, tick = 1.0, 7
    answers: ClassVar[dict[str, Any]] = {
        "typical_grad_norm": 0.5,
        "clip": 0.5,
        "rollback": {"from_step": 9, "to_step": 4, "skipped_windows": 0},
        "can_replay": True,
        "stop": {"from_step": 9, "to_step": 4},
        "reset_optimizer": 4,
        "rebroadcast": {"from_rank": 0, "tensors": 12, "ranks_that_differed": [1]},
        "warmup_lr": 207,
        "accumulate": (1, 2),
        "change_loss_scale": {"floor": [None, 1.0]},
        "once": True,
        "capture_evidence": {"folder": "evidence/i0001"},
        "run_command": {},
    }

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        assert name in METHODS, f"{name} is no method of guard.actions.Run"

        def answer(*_: Any, **__: Any) -> Any:
            self.asked.append(name)
            return self.answers.get(name)

        return answer


@pytest.mark.parametrize("name", NAMES)
def test_the_result_says_what_was_done(name: str) -> None:
    run = Canned()
    action = make(name)
    assert action.unavailable(run, DETECTION) is None  # type: ignore[arg-type]
    result = action.apply(run, DETECTION)  # type: ignore[arg-type]
    assert isinstance(result, Result)
    assert result.type == name
    verb = result.summary.split()[0]
    assert verb.endswith("ed") or verb in ("left", "went", "set", "began", "made", "ran", "kept"), result.summary
    assert not result.summary.endswith(".")
    json.dumps(result.changes, allow_nan=False)
    assert run.asked


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_fails_it_is_journaled_and_training_goes_on(start: Start, name: str) -> None:
    run = start(call(example(name), limits={"max": 2}))

    def fails(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("the run cannot")

    for method in METHODS:
        possible = method.startswith("can_") or method in ("typical_grad_norm", "once")
        answer = {"typical_grad_norm": 1.0, "once": True, "can_replay": True}.get(method)
        setattr(run.guard.live, method, (lambda *_, answer=answer: answer) if possible else fails)
    run.go(12, calls=[5, 9])
    assert run.guard.step == 12
    (failure,) = run.failures
    assert failure.startswith(f"action {name} failed: ZeroDivisionError: the run cannot")
    kinds = [(e["kind"], e.get("detector")) for e in run.journal]
    assert ("incident_opened", "plugin_failure") in kinds
    assert run.results == []


@pytest.mark.parametrize("looks", [{"type": "capture"}, {"type": "checkpoint"}, {"type": "pause", "timeout": 1}])
def test_what_only_looks_is_no_remedy_that_could_hold(start: Start, looks: dict[str, Any]) -> None:
    """A rung that mends nothing is followed by the next one when the fault comes again."""
    run = start(
        {
            "name": "on-call",
            "trigger": {"type": "threshold", "signal": "called", "above": 0.5},
            "attempts": [[looks], [{"type": "skip_step"}]],
        }
    )
    run.guard.clock = FakeClock()
    run.go(10, calls=[4, 5])
    assert [r.type for r in run.results] == [looks["type"], "skip_step"]


def test_evidence_beside_a_remedy_leaves_its_ladder_as_it_was(start: Start) -> None:
    """Clipping repeats without climbing, with or without a look."""
    run = start(
        {
            "name": "on-call",
            "trigger": {"type": "threshold", "signal": "called", "above": 0.5},
            "attempts": [[{"type": "clip", "max_norm": 1.0}, {"type": "capture"}], [{"type": "stop"}]],
        }
    )
    run.go(12, calls=[4, 6, 8])
    assert run.guard.step == 12
    assert run.results[0].type == "capture"
