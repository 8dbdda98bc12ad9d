"""What every detector keeps, swept over the whole registry."""

from __future__ import annotations

import copy
import json
import math
import random
import sys
from typing import Any

import pytest
from detectors.traces import REQUIRED, layer, look, looked_at, make, replicas, units, update
from pydantic import ValidationError
from ruamel.yaml import YAML

from guard.detectors import DETECTORS, Detector
from guard.types import Detection, Signals

NAMES = list(DETECTORS)
SECTIONS = (
    "Why it matters:",
    "Fires when:",
    "Args:",
    "Signals:",
    "Cost:",
    "Blind to:",
    "Raises:",
    "Example:",
    "Source:",
)
NAN, INF = math.nan, math.inf


def fresh(name: str) -> Detector:
    return make(name, **REQUIRED.get(name, {}))


def bumpy(ticks: int, seed: int = 0, start: int = 0) -> list[Signals]:
    """A bit of everything: falling, spikes, NaN, overflows, gaps, validation losses, a swing and a rise."""
    r = random.Random(seed)
    signals = []
    for t in range(start, start + ticks):
        loss = 1.0 + 2.0 * math.exp(-t / 40) + max(0, t - 250) / 50 + 20.0 * (t % 97 == 96) + 0.05 * r.gauss(0, 1)
        norm = math.exp(0.3 * r.gauss(0, 1)) * (0.0 if 120 < t < 170 else 1.0)
        over = t % 61 == 60
        known = t % 83 != 82
        signals.append(
            Signals(
                t,
                t,
                loss if known else NAN,
                INF if over else norm,
                1e-3 if t < 200 else 1e-2,
                loss_known=known,
                loss_scale=0.5 if over else 1024.0,
                overflow=over,
                params=0 if 130 < t < 160 else 4,
                metrics={"val_loss": 0.5 + abs(t - 150) / 100} if t % 20 == 0 else None,
                deep=looks(t, r),
            )
        )
    return signals


def looks(t: int, r: random.Random) -> dict[str, Any] | None:
    """Healthy up to 200, then not, and sometimes partial."""
    if t % 3 == 1:
        return None
    deep = look(t, r)
    if t > 200:
        deep["seconds"] *= 50
        deep["inputs"] |= {"finite": t % 5 > 0, "zero": t % 7 == 0, "peak": 1e4 if t % 4 == 0 else 3.0}
        deep["layers"] |= {"a": layer(spread=0.0, norm=2.0 ** (t - 200), peak=1e5)}
        deep["updates"]["layers"] |= {"a": update(ratio=10.0), "b": update(ratio=1e-9)}
        deep["replicas"] = replicas(*range(t % 3), most=t % 2 == 0)
        deep["activations"] |= {"relu": units("dead", 0.9), "tanh": units("saturated", 0.9)}
    return {key: deep[key] for key in deep if r.random() < 0.9}


def take(detector: Detector, s: Signals) -> Detection | None:
    found = detector.score(s)
    (detector.learn if found is None else detector.hold)(s)
    return found


def same(a: object, b: object) -> bool:
    return repr(a) == repr(b)  # NaN equals itself here


@pytest.mark.parametrize("name", NAMES)
def test_score_is_pure(name: str) -> None:
    detector = fresh(name)
    for s in bumpy(400):
        before = repr(detector.state_dict())
        assert same(detector.score(s), detector.score(s))
        assert repr(detector.state_dict()) == before
        take(detector, s)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ticks", [0, 7, 60, 155, 330])
def test_state_goes_round(name: str, ticks: int) -> None:
    original = fresh(name)
    for s in bumpy(ticks):
        take(original, s)
    state = original.state_dict()
    kept = copy.deepcopy(state)
    later = bumpy(200, seed=1, start=ticks)
    expected = [take(original, s) for s in later]
    assert same(state, kept), "state_dict aliases the detector"
    for _ in range(2):  # the same state is loaded more than once
        twin = fresh(name)
        twin.load_state_dict(state)
        assert same(twin.state_dict(), kept)
        assert same([take(twin, s) for s in later], expected)
        assert same(twin.state_dict(), original.state_dict())
        assert same(state, kept), "load_state_dict aliases the state"


@pytest.mark.parametrize("name", NAMES)
def test_settled_is_for_good(name: str) -> None:
    """It says nothing and learns nothing any more, whatever comes: nobody need ask it."""
    for signals in (*STRANGE.values(), bumpy(700)):
        detector = fresh(name)
        for s in signals:
            take(detector, s)
            if detector.settled:
                break
        if detector.settled:
            state = repr(detector.state_dict())
            for s in bumpy(400, seed=1, start=500):
                detector.refill()
                assert take(detector, s) is None
                assert repr(detector.state_dict()) == state


@pytest.mark.parametrize("name", NAMES)
def test_state_is_plain(name: str) -> None:
    detector = fresh(name)
    for s in bumpy(330):
        take(detector, s)
    json.dumps(detector.state_dict())


STRANGE = {
    "nan": [Signals(t, t, NAN, NAN, NAN, loss_known=True) for t in range(250)],
    "infinite": [Signals(t, t, INF, INF, 1e-3) for t in range(250)],
    "minus infinite": [Signals(t, t, -INF, 1.0, 1e-3) for t in range(250)],
    "unknown loss": [Signals(t, t, NAN, 1.0, 1e-3) for t in range(250)],
    "constant": [Signals(t, t, 1.0, 1.0, 1e-3) for t in range(250)],
    "all zero": [Signals(t, t, 0.0, 0.0, 0.0, params=0) for t in range(250)],
    "negative": [Signals(t, t, -1.0 - t, 1.0, 1e-3) for t in range(250)],
    "zero rate": [Signals(t, t, 2.0 - t / 250, 1.0, 0.0) for t in range(250)],
    "huge": [Signals(t, t, 1e308 * (-1) ** t, 1e308, 1e308) for t in range(250)],
    "tiny": [Signals(t, t, 5e-324, 5e-324, 5e-324, loss_scale=5e-324) for t in range(250)],
    "growing without end": [Signals(t, t, 10.0**t, 10.0**t, 1e-3) for t in range(300)],
    "odd metrics": [Signals(t, t, 1.0, 1.0, metrics={"val_loss": NAN, "x": INF} if t % 2 else {}) for t in range(250)],
    "zero after noise": bumpy(40) + [Signals(t, t, 0.0, 0.0, 0.0) for t in range(40, 250)],
    "empty looks": looked_at([
        {}, {"layers": {}, "updates": {"tick": 0, "lr": 0.0, "layers": {}}, "activations": {}}] * 100),
    "odd looks": looked_at([{
        "seconds": x, "inputs": {"finite": False, "peak": x, "zero": True, "ignored": True},
        "layers": {"a": layer(grad=x, norm=x, peak=x, spread=x), "b": layer(size=1, grad=None)},
        "replicas": replicas(*range(t % 20), name=""),
        "updates": {"tick": t, "lr": x, "layers": {"a": update(rms=x, ratio=x, grad=x), "b": update(grad=None)}},
        "activations": {"a": units("dead", x, values=0), "b": {"saturated": [], "units": 0, "values": 0}, "c": {}},
    } for t, x in enumerate([NAN, INF, 0.0, -1.0, 1e308, 5e-324] * 40)]),
    "always overflowing": [Signals(t, t, 1.0, INF, loss_scale=2.0**-t, overflow=True) for t in range(250)],
}  # fmt: skip


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("name", NAMES)
def test_never_raises(name: str, kind: str) -> None:
    detector = fresh(name)
    for s in STRANGE[kind]:
        found = take(detector, s)
        assert found is None or (found.detector == name and found.since <= s.tick and found.message)
        detector.learn(s)  # even out of turn
        detector.hold(s)
    detector.refill()
    json.dumps(detector.state_dict())
    for s in bumpy(60, start=300):
        take(detector, s)


@pytest.mark.parametrize("name", NAMES)
def test_unknown_parameters_are_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="no_such_thing"):
        make(name, **REQUIRED.get(name, {}), no_such_thing=1)


@pytest.mark.parametrize("name", NAMES)
def test_docstring_is_complete(name: str) -> None:
    cls = DETECTORS.get(name)
    assert cls is not None
    page = sys.modules[cls.__module__].__doc__ or ""
    title, _, rest = page.partition("\n")
    assert title.endswith(".")
    assert ":" in title
    places = [rest.find(f"\n{section}") for section in SECTIONS]
    assert -1 not in places, [s for s, at in zip(SECTIONS, places, strict=True) if at < 0]
    assert places == sorted(places)
    for parameter in cls.Params.model_fields:
        assert f"\n    {parameter}: " in rest, f"{parameter} is not described"


@pytest.mark.parametrize("name", NAMES)
def test_example_loads(name: str) -> None:
    cls = DETECTORS.get(name)
    assert cls is not None
    page = sys.modules[cls.__module__].__doc__ or ""
    example = page.split("\nExample:\n", 1)[1].split("\nSource:", 1)[0]
    trigger = YAML(typ="safe").load(example)
    assert trigger.pop("type") == name
    cls(cls.Params(**trigger))


@pytest.mark.parametrize("name", NAMES)
def test_file_is_named_after_the_fault(name: str) -> None:
    cls = DETECTORS.get(name)
    assert cls is not None
    assert cls.name == name
    assert cls.__module__ == f"guard.detectors.{name}"
