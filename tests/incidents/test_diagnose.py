"""Experiments in, a cause out."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.incidents import advice
from guard.incidents.diagnose import (
    Cause,
    Diagnosis,
    Evidence,
    Look,
    Origin,
    Remedy,
    Role,
    Trial,
    better,
    diagnose,
    from_plain,
    to_plain,
)
from guard.incidents.journal import encode

HERE = Look("output", "blocks.3.fc2", "linear", (32, 256), "float16", -7e4, 6.1e4, 0.01)
LINEAR = Origin(HERE, inputs=(Look("input", "", "", (32, 64), "float16", -3.0, 4.0),))
LOG = Origin(
    Look("loss", "", "log", (32,), "float32", -20.0, 0.0, 0.03),
    inputs=(Look("input", "", "", (32,), "float32", 0.0, 1.0),),
    outside=True,
)
HALF_DIVISION = Origin(
    Look("output", "ratio", "div", (8,), "float16"), inputs=(Look("input", "", "", (8,), "float16", 0.0, 0.0),)
)


def evidence(origin: Origin | None = None, fault: str = "non_finite", **outcomes: Any) -> Evidence:
    """Trials by name: True there, False gone, None not tried; the rest are fields."""
    fields = {k: outcomes.pop(k) for k in list(outcomes) if k in Evidence.__dataclass_fields__}
    trials = tuple(Trial(name, bad, 0.5 if bad is False else math.nan) for name, bad in outcomes.items())
    return Evidence(fault, origin, trials, **fields)


@pytest.mark.parametrize(
    ("found", "cause", "remedy"),
    [
        (evidence(LINEAR, again=True, fp32=False, bf16=False, another_batch=False), "precision_overflow", "bf16"),
        (evidence(LINEAR, again=True, fp32=False, bf16=True, another_batch=False), "precision_overflow", "fp32"),
        (evidence(HALF_DIVISION, again=True, fp32=False, bf16=False), "precision_underflow", "bf16"),
        (evidence(again=False), "transient", "replay"),
        (evidence(LOG, again=True, another_batch=False, checkpoint=True), "numerical_domain", "skip"),
        (evidence(LOG, again=True, another_batch=None), "numerical_domain", ""),
        (evidence(LOG, again=True, another_batch=True, checkpoint=True), "numerical_domain", ""),
        (
            evidence(Origin(Look("input", "batch[0]")), again=True, another_batch=False, samples=(3,)),
            "bad_batch",
            "skip",
        ),
        (evidence(again=True, another_batch=False, checkpoint=True, flaws=("no label",)), "bad_batch", "skip"),
        (evidence(fault="loss_spike", again=True, another_batch=False, checkpoint=True), "bad_batch", "skip"),
        (
            evidence(LINEAR, again=True, another_batch=True, checkpoint=False, rerun=False),
            "corrupted_state",
            "replay",
        ),
        (
            evidence(again=True, another_batch=True, checkpoint=False, rerun=True, rerun_slower=False),
            "learning_rate",
            "slower",
        ),
        (
            evidence(
                again=True, another_batch=True, checkpoint=False, rerun=True, rerun_slower=True, rerun_clipped=False
            ),
            "learning_rate",
            "clip",
        ),
        (evidence(LINEAR, again=True, another_batch=True, checkpoint=True, fp32=True), "model_or_code", "stop"),
        (evidence(LINEAR, again=True, another_batch=True), "unknown", ""),
        (evidence(poisoned=True, rerun=False), "corrupted_state", "replay"),
        (evidence(poisoned=True, rerun=True, rerun_slower=False), "learning_rate", "slower"),
        (evidence(poisoned=True, no_epsilon=True, rerun=True), "precision_underflow", "bf16"),
        (evidence(poisoned=True, rerun=None), "unknown", ""),
        (evidence(), "unknown", ""),
    ],
)
def test_sudden_faults(found: Evidence, cause: Cause, remedy: Remedy) -> None:
    verdict = diagnose(found)
    assert (verdict.cause, verdict.remedy) == (cause, remedy)


def test_a_huge_sample_is_a_bad_batch_in_half_precision_too() -> None:
    """FP32 holds its numbers, but its loss is no ordinary one."""
    odd = evidence(LINEAR, again=True, fp32=False, without_samples=False, another_batch=False, flaws=("sample 3",))
    huge = tuple(replace(t, loss=1e6) if t.name == "fp32" else t for t in odd.trials)
    assert diagnose(odd).cause == "precision_overflow"
    assert diagnose(replace(odd, trials=huge)).cause == "bad_batch"


def test_growth_in_a_loop_is_a_matter_of_the_function() -> None:
    grows = replace(LINEAR, calls=40, growth=3.0)
    found = evidence(grows, again=True, another_batch=False, checkpoint=True)
    assert diagnose(found).cause == "numerical_domain"
    assert "loop" in advice.advice(diagnose(found))
    assert diagnose(replace(found, origin=replace(grows, growth=1.01))).cause == "bad_batch"


# ---- slow faults


def run(name: str, first: float, last: float, bad: bool = False) -> Trial:
    return Trial(name, bad, last, first=first, steps=25)


@pytest.mark.parametrize(
    ("runs", "gathers", "cause"),
    [
        ([run("as_it_is", 1.0, math.inf, True), run("rate_tenth", 1.0, 0.6)], False, "learning_rate"),
        ([run("as_it_is", 3.7, 3.2), run("rate_tenth", 3.7, 2.8)], False, "learning_rate"),
        ([run("as_it_is", 3.7, 2.8), run("rate_tenth", 3.7, 3.2), run("one_batch", 3.7, 0.1)], False, "unknown"),
        ([run("as_it_is", 1.0, 0.9), run("twice_the_batch", 1.0, 0.6)], False, "learning_rate"),
        ([run("as_it_is", 2.3, 2.3), run("one_batch", 2.3, 2.3, True)], False, "model_or_code"),
        ([run("as_it_is", 1.0, 9.0), run("rate_tenth", 1.0, 0.5)], True, "model_or_code"),
    ],
)
def test_slow_faults(runs: list[Trial], gathers: bool, cause: Cause) -> None:
    assert diagnose(Evidence("divergence", trials=tuple(runs), gathers=gathers)).cause == cause


def test_better_asks_for_a_visible_difference() -> None:
    assert better(run("a", 2.0, 1.0), run("b", 2.0, 1.5))
    assert not better(run("a", 2.0, 1.49), run("b", 2.0, 1.5))
    assert better(run("a", 2.0, 1.9), run("b", 2.0, math.inf))
    assert not better(run("a", 2.0, math.nan), run("b", 2.0, 1.9))
    assert better(run("a", -1.0, -3.0), run("b", -1.0, -1.0))  # a loss may be negative


# ---- whatever is measured

NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
LOOKS = st.builds(
    Look,
    st.sampled_from(get_args(Role)),
    st.text(max_size=8),
    st.sampled_from(["", "linear", "log", "div", "sqrt", "exp", "unheard_of"]),
    st.tuples(st.integers(0, 9)),
    st.sampled_from(["float16", "bfloat16", "float32", "int64"]),
    NUMBERS,
    NUMBERS,
    st.floats(0, 1),
)
ORIGINS = st.builds(
    Origin,
    LOOKS,
    st.booleans(),
    st.lists(LOOKS, max_size=2).map(tuple),
    st.lists(LOOKS, max_size=2).map(tuple),
    st.integers(1, 99),
    NUMBERS,
    st.booleans(),
)
TRIALS = st.builds(
    Trial, st.sampled_from(sorted(advice.TRIALS)), st.sampled_from([True, False, None]), NUMBERS, NUMBERS, NUMBERS
)
EVIDENCE = st.builds(
    Evidence,
    st.sampled_from(["non_finite", "loss_spike", "divergence"]),
    st.none() | ORIGINS,
    st.lists(TRIALS, max_size=8, unique_by=lambda t: t.name).map(tuple),
    st.lists(st.text(max_size=9), max_size=2).map(tuple),
    st.lists(st.integers(0, 9), max_size=3).map(tuple),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    output=st.none() | LOOKS,
    targets=st.lists(NUMBERS, max_size=2).map(tuple),
)


@given(EVIDENCE)
def test_there_is_always_a_verdict_and_it_can_be_told(found: Evidence) -> None:
    verdict = diagnose(found)
    assert verdict.cause in get_args(Cause)
    assert verdict.remedy in get_args(Remedy)
    assert advice.sentences(verdict).endswith(".")
    assert len(advice.table(verdict)) == len(found.trials)
    assert isinstance(advice.advice(verdict), str)


@given(EVIDENCE)
def test_the_journal_gives_it_back(found: Evidence) -> None:
    verdict = diagnose(found)
    line = encode({"kind": "incident_evidence", "evidence": {"diagnosis": to_plain(verdict)}})
    again = from_plain(json.loads(line)["evidence"]["diagnosis"])
    assert again is not None
    assert repr(again) == repr(verdict)


@given(EVIDENCE)
def test_nothing_is_said_to_be_transient_that_came_back(found: Evidence) -> None:
    if diagnose(found).cause == "transient":
        assert found.bad("again") is False
    if diagnose(found).cause == "corrupted_state":
        assert found.bad("rerun") is False


@pytest.mark.parametrize("plain", [{}, {"cause": "transient"}, {"cause": 1, "remedy": 2, "nothing": 3}])
def test_what_is_no_diagnosis_is_none(plain: dict[str, Any]) -> None:
    assert from_plain(plain) is None


# ---- in words


def test_two_sentences_tell_where_and_why() -> None:
    found = evidence(LINEAR, again=True, fp32=False, bf16=False)
    assert advice.sentences(diagnose(found)) == (
        "It was born in `blocks.3.fc2` by `linear`, forward (float16, 32x256, 0.01 of it NaN or Inf): |x| reaches "
        "7e+04, and float16 ends at 65504. In FP32: gone; in BF16: gone; so: numbers too large for the precision."
    )


def test_the_loss_tells_its_range_and_the_distinct_targets() -> None:
    output = Look("output", "", "", (32,), "float32", -23.7, 17.0)
    found = evidence(LOG, again=True, another_batch=False, output=output, targets=(0.0, 1.0))
    said = advice.advice(diagnose(found))
    assert "log_softmax" in said
    assert said.endswith("The model's output lies in [-23.7, 17], the distinct targets are 0, 1.")


def test_every_cause_has_a_name() -> None:
    assert set(advice.CAUSES) == set(get_args(Cause))
    for cause in get_args(Cause):
        assert advice.sentences(Diagnosis(cause, "", evidence(LOG, again=True)))
