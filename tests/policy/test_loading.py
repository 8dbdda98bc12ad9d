"""What a policy file may say, and what becomes of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from guard import policy
from guard.actions import ACTIONS
from guard.detectors import DETECTORS
from guard.errors import PolicyError
from guard.policy import All, Leaf, PolicySet, leaves
from guard.policy import Any as AnyOf
from guard.policy.tree import typed

HERE = Path(__file__).parent
pytestmark = pytest.mark.usefixtures("plug_ins")


def one(**keys: Any) -> dict[str, Any]:
    """A file with one policy."""
    return {"version": 1, "policies": [{"name": "one", "trigger": {"type": "shaky"}, **keys}]}


def shaky(**params: Any) -> Leaf:
    return Leaf(type="shaky", params=DETECTORS.get("shaky").Params(**params))


def test_every_construct() -> None:
    loaded = policy.load(HERE / "every_construct.yaml")

    assert (loaded.name, loaded.mode, loaded.version) == ("all-of-it", "enforce", 1)
    checkpoints = loaded.checkpoints
    assert (checkpoints.every, checkpoints.keep, checkpoints.memory, checkpoints.probation) == ("auto", 2, 0.125, 15)
    assert (checkpoints.disk.dir, checkpoints.disk.every, checkpoints.disk.keep) == ("states", 7200.0, 5)
    assert checkpoints.disk.max_bytes == 50 * 10**9

    combined, ladder, cause, told = loaded.policies  # in the base's order, then what the overlay adds
    assert combined.description == "Kept by the overlay."
    either = AnyOf(of=(shaky(signal="grad_norm"), shaky(signal="lr")))
    assert combined.trigger == All(of=(shaky(window=32, threshold=2.5), either))
    assert [leaf.params.signal for leaf in leaves(combined.trigger)] == ["loss", "grad_norm", "lr"]
    assert (combined.repeats, len(combined.attempts), combined.for_, combined.mode) == (True, 1, 3, "observe")
    assert [spec.type for spec in combined.attempts[0]] == ["scale_lr", "clip", "clip"]
    assert combined.attempts[0][0].action.params.min_lr == 1e-9
    assert (combined.limits.cooldown, combined.limits.max, combined.limits.per) == (50, 2, 900)

    assert [[spec.type for spec in rung] for rung in ladder.attempts] == [
        ["rollback", "precision"],
        ["rollback"],
        ["rollback", "scale_lr"],
        ["rollback"],
        ["stop"],
    ]
    assert (ladder.repeats, ladder.resolve_after, ladder.on_exhausted) == (False, 30, "stop")
    assert ladder.attempts[0][1].action.params.lasts == 400
    assert (ladder.auto, ladder.diagnoses, ladder.max_seconds, ladder.rungs) == (True, True, 60.0, 6)
    assert (cause.attempts, cause.auto, cause.diagnoses, cause.rungs) == ((), True, True, 1)
    assert (told.attempts, told.repeats, told.severity, told.enabled) == ((), False, "warning", True)

    assert {name: r.min_severity for name, r in loaded.receivers.items()} == {
        "screen": "info",
        "team": "warning",
        "night": "critical",
        "hook": "warning",
        "post": "warning",
    }
    assert loaded.receivers["team"].channel == "#runs"
    assert loaded.receivers["night"].token_file == HERE / "token.txt"
    assert (loaded.receivers["night"].remind_every, loaded.receivers["post"].remind_every) == (1800.0, None)
    assert loaded.receivers["screen"].url is None  # of another type than in the base, so nothing of that is left


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-7", 1e-7),
        ("1E5", 1e5),
        ("-2", -2),
        ("+.5", 0.5),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("3.", 3.0),
        ("12:30", "12:30"),
        ("yes", "yes"),
        ("on", "on"),
        ("off", "off"),
        ("True", True),
        ("false", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("2001-01-01", "2001-01-01"),
        ("1_000", "1_000"),
        ("1.2.3", "1.2.3"),
        ("-", "-"),
        ("\u0661", "\u0661"),
    ],
)
def test_unquoted_scalars(text: str, value: object) -> None:
    assert typed(text) == value
    assert type(typed(text)) is type(value)


def test_the_same_whether_file_text_path_or_dict(tmp_path: Path) -> None:
    text = "version: 1\npolicies:\n- {name: one, trigger: {type: shaky}, for: 2}\n"
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    loaded = policy.load(file)
    assert loaded.name == "mine"
    assert policy.load(str(file)) == policy.parse(text, file) == loaded
    assert policy.load(one(**{"for": 2})) == policy.parse(text) == loaded.model_copy(update={"name": "inline"})
    assert policy.load(loaded) is loaded


def test_a_dict_has_no_positions_but_paths() -> None:
    with pytest.raises(PolicyError) as caught:
        policy.load(one(severity="loud", limits={"max": object(), 3: 4}, actions=({"type": "nudge"},)))
    assert [str(p) for p in caught.value.problems] == [
        "<policy>: policies[0].limits: found the key 3; keys are text",
        (
            "<policy>: policies[0].limits.max: found a Python object; "
            "allowed are mappings, lists, text, numbers, True, False and None"
        ),
    ]
    with pytest.raises(PolicyError, match=r"^<policy>: policies\[0\]\.severity: found 'loud'; allowed: 'info'"):
        policy.load(one(severity="loud"))


def test_a_dict_that_holds_itself() -> None:
    looped: dict[str, Any] = {"version": 1}
    looped["policies"] = looped
    with pytest.raises(PolicyError, match="nested more than"):
        policy.load(looped)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere/at_all.yaml", "nowhere/at_all.yaml: there is no such file"),
        (HERE, f"{HERE}: this is a folder; a policy is one YAML file"),
        ("default.yml", "default.yml: there is no such file"),
        ("observed", "<policy>: no shipped policy is called 'observed'; did you mean 'observe'? shipped: "),
        ("a\0b.yaml", "the file cannot be read"),
    ],
)
def test_nothing_to_read(source: str | Path, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        policy.load(source)
    assert message in str(caught.value)
    assert len(caught.value.problems) == 1


def test_byte_order_mark_and_carriage_returns(tmp_path: Path) -> None:
    file = tmp_path / "windows.yaml"
    file.write_bytes(b"\xef\xbb\xbfversion: 1\r\npolicies: []\r\n")
    assert policy.load(file).policies == ()


class TestReferences:
    def test_filled_and_typed_where_a_number_is_wanted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COUNT", "4")
        monkeypatch.setenv("NUMBER_NAME", "123")
        nudge = {"type": "nudge", "by": "${UNSET:-1e-3}", "labels": ["${COUNT}"], "gently": "${UNSET:-false}"}
        loaded = policy.load(
            one(
                description="${NUMBER_NAME} $${COUNT}",
                actions=[nudge],
                limits={"max": "${COUNT}", "cooldown": "${COUNT} steps"},
            )
        )
        (policy_,) = loaded.policies
        assert policy_.description == "123 ${COUNT}"
        assert (policy_.limits.max, policy_.limits.cooldown) == (4, 4)
        params = policy_.attempts[0][0].action.params
        assert (params.by, params.labels, params.gently) == (1e-3, ("4",), False)

    def test_what_a_wrong_one_holds_is_not_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SLACK_BOT_TOKEN", "xoxb-hush")
        with pytest.raises(PolicyError) as caught:
            policy.load(
                one(
                    severity="${SLACK_BOT_TOKEN}",
                    **{"for": "${SLACK_BOT_TOKEN}"},
                    actions=[{"type": "nudge", "wait": "${SLACK_BOT_TOKEN}"}, {"type": "${SLACK_BOT_TOKEN}"}],
                )
            )
        assert len(caught.value.problems) == 4
        assert "hush" not in str(caught.value)

    def test_keys_are_not_filled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(PolicyError, match="unknown key"):
            policy.load({"version": 1, "${UNSET:-policies}": []})


class TestOverlay:
    BASE = """
version: 1
name: the-base
mode: enforce
checkpoints: {every: 10 steps, keep: 7, disk: {every: 5 steps}}
policies:
  - {name: a, trigger: {type: shaky}, attempts: [[{type: nudge}], [{type: stop}]], limits: {max: 3, cooldown: 9}}
  - {name: b, trigger: {type: shaky}, actions: [{type: nudge}]}
receivers:
  team: {type: slack, channel: "#a", token: "${SLACK_BOT_TOKEN:-}"}
  screen: {type: console}
"""

    def over(self, tmp_path: Path, text: str) -> PolicySet:
        (tmp_path / "base.yaml").write_text(self.BASE)
        (tmp_path / "over.yaml").write_text("version: 1\nextends: base.yaml\n" + text)
        return policy.load(tmp_path / "over.yaml")

    def test_nothing_changed(self, tmp_path: Path) -> None:
        assert self.over(tmp_path, "") == policy.parse(self.BASE).model_copy(update={"name": "over"})

    def test_given_keys_replace(self, tmp_path: Path) -> None:
        loaded = self.over(
            tmp_path,
            "mode: observe\ncheckpoints: {keep: 1, disk: null}\n"
            "policies: [{name: a, severity: critical, limits: {max: 1}}]",
        )
        assert loaded.mode == "observe"
        assert (loaded.checkpoints.every, loaded.checkpoints.keep, loaded.checkpoints.disk) == (10, 1, None)
        a = loaded.policies[0]
        assert (a.severity, a.limits.max, a.limits.cooldown, len(a.attempts)) == ("critical", 1, 0, 2)

    def test_actions_and_attempts_replace_each_other(self, tmp_path: Path) -> None:
        a, b = self.over(
            tmp_path, "policies: [{name: b, attempts: [[{type: stop}]]}, {name: a, actions: [{type: nudge}]}]"
        ).policies
        assert (a.name, a.repeats, len(a.attempts)) == ("a", True, 1)
        assert (b.name, b.repeats, b.attempts[0][0].type) == ("b", False, "stop")

    def test_no_actions_only_tells(self, tmp_path: Path) -> None:
        a = self.over(tmp_path, "policies: [{name: a, actions: []}]").policies[0]
        assert (a.attempts, a.repeats) == ((), False)

    def test_drop_and_add(self, tmp_path: Path) -> None:
        loaded = self.over(
            tmp_path,
            "policies: [{name: c, trigger: {type: shaky}}, {name: a, enabled: false}]\n"
            "receivers: {screen: null, post: {type: webhook, url: x}, team: {channel: '#b'}}",
        )
        assert [p.name for p in loaded.policies] == ["b", "c"]
        assert list(loaded.receivers) == ["team", "post"]
        assert loaded.receivers["team"].channel == "#b"

    def test_chain_brings_back(self, tmp_path: Path) -> None:
        self.over(tmp_path, "policies: [{name: a, enabled: false}]")
        (tmp_path / "third.yaml").write_text(
            "version: 1\nextends: ${UNSET:-./over}.yaml\npolicies: [{name: a, enabled: true}]\n"
        )
        assert [p.name for p in policy.load(tmp_path / "third.yaml").policies] == ["a", "b"]

    def test_from_a_dict(self, tmp_path: Path) -> None:
        (tmp_path / "base.yaml").write_text(self.BASE)
        loaded = policy.load(
            {"version": 1, "extends": str(tmp_path / "base.yaml"), "policies": [{"name": "b", "enabled": False}]}
        )
        assert (loaded.name, [p.name for p in loaded.policies]) == ("inline", ["a"])


def test_a_mistake_in_a_policy_that_is_switched_off_is_still_one() -> None:
    with pytest.raises(PolicyError, match="severity"):
        policy.load(one(enabled=False, severity="loud"))


def test_equal_leaves_hash_equal() -> None:
    first, second = (
        policy.load(one(trigger={"type": "shaky", "window": window})).policies[0].trigger for window in (9, "9 steps")
    )
    assert first == second
    assert len({first, second, shaky()}) == 2


def test_equal_actions_compare_and_hash_equal() -> None:
    first, second = (policy.load(one(actions=[{"type": "nudge", "times": 2}])).policies[0].attempts for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    assert first[0][0].action.params == ACTIONS.get("nudge").Params(times=2)


def test_loads_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import guard.policy as p; p.load({'version': 1}); p.json_schema()"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=HERE.parents[1])
