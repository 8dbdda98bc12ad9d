"""Plug-ins from outside: decorators and entry points, named by YAML at once; a broken one is named, and stays alone."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

import guard
from guard.actions import ACTIONS
from guard.cli import main
from guard.detectors import DETECTORS
from guard.policy import explain, json_schema, parse
from guard.registry import Registry

ROOT = Path(__file__).parent.parent
POLICY = """\
version: 1
policies:
  - name: mine
    trigger: {type: tilt, degrees: 30.0}
    actions: [{type: straighten, slowly: true}]
"""


def tilt() -> type[guard.Detector]:
    class Tilt(guard.Detector):
        """Tilt: it leans to one side."""

        class Params(guard.Detector.Params):
            degrees: Annotated[float, Field(gt=0)] = 10.0

        def score(self, s: guard.Signals) -> None:
            return None

    return Tilt


def straighten() -> type[guard.Action]:
    class Straighten(guard.Action):
        """Straighten: put it upright."""

        class Params(guard.Action.Params):
            slowly: bool = False

        def apply(self, run: Any, detection: Any) -> guard.Result:
            return guard.Result("straighten", "put it upright")

        def describe(self) -> str:
            return f"put it upright{' slowly' if self.params.slowly else ''}"

    return Straighten


@pytest.fixture(autouse=True)
def _forgotten_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in (DETECTORS, ACTIONS):
        list(registry)  # what is built in stays
        for table in ("_found", "_origin", "failed"):
            monkeypatch.setattr(registry, table, dict(getattr(registry, table)))


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes entry points known as if a package with them had been installed before Python started."""

    def installed(*points: EntryPoint, **modules: types.ModuleType) -> None:
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr("guard.registry.entry_points", lambda group: [p for p in points if p.group == group])
        for registry in (DETECTORS, ACTIONS):
            monkeypatch.setattr(registry, "_loaded", False)

    return installed


@pytest.fixture
def package() -> types.ModuleType:
    module = types.ModuleType("leaning")
    module.Tilt, module.Straighten, module.no_class = tilt(), straighten(), len  # type: ignore[attr-defined]
    return module


TILT = EntryPoint("tilt", "leaning:Tilt", "guard.detectors")
STRAIGHTEN = EntryPoint("straighten", "leaning:Straighten", "guard.actions")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs `guard ...`: exit code and all that was said, without its line breaks."""

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        return int(end.value.code or 0), " ".join("".join(capsys.readouterr()).split())

    return run


@pytest.fixture
def check(tmp_path: Path, command: Any) -> Callable[..., tuple[int, str]]:
    """`guard check` of a policy."""

    def run(text: str = POLICY) -> tuple[int, str]:
        (tmp_path / "mine.yaml").write_text(text)
        return command("check", str(tmp_path / "mine.yaml"))

    return run


@pytest.fixture
def known(check: Any, command: Any) -> Callable[[], None]:
    return lambda: assert_known(check, command)


def assert_known(check: Any, command: Any) -> None:
    """YAML, `guard check`, `guard schema` and `guard plugins` know the two."""
    loaded = parse(POLICY, None)
    told = explain(loaded)[0]
    assert told == ("mine (warning): on tilt (it leans to one side; degrees 30.0): put it upright slowly, every time.")
    code, output = check()
    assert code == 0
    assert "it leans to one side; degrees 30.0" in output
    definitions = json_schema()["$defs"]
    assert definitions["detector.tilt"]["properties"]["degrees"]["exclusiveMinimum"] == 0
    assert definitions["detector.tilt"]["description"] == "Tilt: it leans to one side."
    assert definitions["action.straighten"]["properties"]["slowly"]["default"] is False
    listed = json.loads(command("plugins", "--json")[1])
    assert ["tilt", "it leans to one side"] in [row[:2] for row in listed["detectors"]]
    assert ["straighten", "put it upright"] in [row[:2] for row in listed["actions"]]


def test_decorated_ones_are_known_at_once(known: Any) -> None:
    guard.detector("tilt")(tilt())
    guard.action("straighten")(straighten())
    known()


def test_installed_ones_are_known_without_an_import(known: Any, install: Any, package: types.ModuleType) -> None:
    install(TILT, STRAIGHTEN, leaning=package)
    known()


def test_a_module_may_decorate_what_its_entry_point_names(install: Any, package: types.ModuleType) -> None:
    guard.detector("tilt")(package.Tilt)
    install(TILT, leaning=package)
    assert DETECTORS.get("tilt") is package.Tilt
    assert DETECTORS.failed == {}


def test_their_parameters_are_checked_like_all_others(check: Any) -> None:
    guard.detector("tilt")(tilt())
    guard.action("straighten")(straighten())
    text = POLICY.replace("degrees: 30.0", "degree: 30.0").replace("slowly: true", "slowly: very")
    code, output = check(text)
    assert code == 1
    assert "mine.yaml:4:" in output
    assert "unknown parameter of tilt: 'degree'; did you mean 'degrees'?" in output
    assert "found 'very'; allowed: true or false" in output


def test_a_name_that_is_taken_is_refused_with_both_origins() -> None:
    guard.detector("tilt")(tilt())

    class Other(guard.Detector):
        def score(self, s: guard.Signals) -> None:
            return None

    with pytest.raises(guard.UsageError) as refused:
        guard.detector("tilt")(Other)
    assert f"{__name__}.tilt.<locals>.Tilt" in str(refused.value)
    assert "<locals>.Other" in str(refused.value)
    assert str(refused.value).startswith("two detectors are called 'tilt': ")
    assert DETECTORS.get("tilt") is not Other


def test_a_built_in_name_is_taken_before_anything_was_looked_up() -> None:
    fresh: Registry[guard.Detector] = Registry("detector", "guard.detectors", "guard.detectors")
    with pytest.MonkeyPatch.context() as patch:
        # Importing the built-in ones again would not run their decorators again.
        patch.setattr(fresh, "_load_built_in", lambda: fresh.register("loss_spike")(DETECTORS.get("loss_spike")))
        with pytest.raises(guard.UsageError, match=r"'loss_spike': guard\.detectors\.loss_spike\.LossSpike and "):
            fresh.register("loss_spike")(tilt())


@pytest.mark.parametrize(
    ("point", "why"),
    [
        (
            EntryPoint("bad", "no_such_package.faults:Bad", "guard.detectors"),
            "ModuleNotFoundError: No module named 'no_such_package' (entry point no_such_package.faults:Bad)",
        ),
        (EntryPoint("bad", "leaning:Absent", "guard.detectors"), "AttributeError: "),
        (EntryPoint("bad", "leaning:no_class", "guard.detectors"), "must be a class derived from guard.Detector"),
    ],
)
def test_one_that_cannot_be_loaded_is_named_and_the_others_are_there(
    check: Any, command: Any, install: Any, package: types.ModuleType, point: EntryPoint, why: str
) -> None:
    install(point, TILT, STRAIGHTEN, leaning=package)
    assert parse(POLICY, None).policies  # who does not name it is not bothered
    code, output = check()
    assert code == 1
    assert "guard: the detector 'bad' cannot be loaded: " in output
    assert why in output
    assert "no problems. 1 policy" in output
    code, listed = command("plugins")
    assert code == 1
    assert "it leans to one side" in listed
    with pytest.raises(guard.PolicyError) as refused:
        parse(POLICY.replace("tilt, degrees: 30.0", "bad"), None)
    assert "the detector 'bad' cannot be loaded: " in str(refused.value)
    assert why in str(refused.value)
    assert ":4:" in str(refused.value)


def test_an_installed_one_with_a_taken_name_is_refused_and_named(
    check: Any, install: Any, package: types.ModuleType
) -> None:
    before = DETECTORS.get("loss_spike")
    install(EntryPoint("loss_spike", "leaning:Tilt", "guard.detectors"), TILT, STRAIGHTEN, leaning=package)
    assert DETECTORS.get("loss_spike") is before
    code, output = check()
    assert code == 1
    assert "two detectors are called 'loss_spike': guard.detectors.loss_spike.LossSpike and " in output
    assert "Tilt; rename one (entry point leaning:Tilt)" in output


def test_the_example_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "custom_detector.py")],
        cwd=tmp_path,
        timeout=100,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("i0001 shrink-on-long-codes: resolved, codes are ")
    assert done.stdout.count("shrank the encoder") == 1
