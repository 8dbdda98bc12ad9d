"""What a person sees: table, page, JSON; and one fault told once."""

from __future__ import annotations

import io
import json
import re

import pytest
import torch
from doctor.setups import base, char_lm, cnn, constant_labels, dead_relu
from rich.console import Console

from guard import doctor
from guard.doctor import Finding, Setup
from guard.doctor.effort import Effort
from guard.doctor.explain import explain, next_steps
from guard.doctor.page import render
from guard.doctor.table import show

SHORT = Effort(batches=6, overfit_steps=60, range_steps=30, rate_steps=5, curve_steps=30, sample=4, clock=lambda: 0.0)


@pytest.fixture(scope="module")
def sick():
    return doctor.examine(Setup.of(dead_relu(0)), effort=SHORT)


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_fits_and_says_all(sick, width):
    console = Console(width=width, record=True, file=io.StringIO())
    show(sick, console)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    for title in ("Data", "Loss at initialisation", "Short run"):
        assert title in text
    assert "100% of the 64 units" in re.sub(r"\s+", " ", text)
    assert "Mend activations first" in text


def test_the_page_needs_nothing_else(sick):
    for report in (sick, doctor.examine(Setup.of(cnn(0)), effort=SHORT)):
        page = render(report)
        assert not re.search(r"""(src|href)=["'](?!data:)""", page)
        assert "<script" not in page
        assert "url(" not in page
        assert page.count("<figure") >= 6
    assert page.count("data:image/png;base64,") == 18  # three batches of six digits


def test_text_is_escaped_and_decoded():
    parts = char_lm(0)
    letters = lambda t: "<b>" + "".join(chr(97 + int(i) % 26) for i in t)  # noqa: E731
    report = doctor.examine(Setup.of(parts | {"decode": letters}), effort=SHORT, only=["data"])
    page = render(report)
    assert "&lt;b&gt;" in page
    assert "<b>" not in page


def test_json_is_valid_whatever_was_measured():
    parts = base(0)
    with torch.no_grad():
        parts["model"][0].weight[0, 0] = float("nan")
    report = doctor.examine(Setup.of(parts), effort=SHORT)
    answer = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert answer["verdict"] == "FAIL"
    assert [c["check"] for c in answer["checks"]] == list(doctor.ORDER)
    assert report.verdict_of("weights") == "FAIL"
    assert report.verdict_of("loss") == "SKIP"


def test_all_well_says_what_comes_next():
    steps = " ".join(next_steps([Finding("data", "PASS", "fine")]))
    assert "all the data" in steps
    assert "small learning rate" in steps
    assert "validation loss" in steps


def symptom(check: str, verdict="FAIL", **more) -> Finding:
    return Finding(check, verdict, "s", symptom=True, **more)


def test_a_symptom_is_explained_by_its_cause_even_if_that_comes_later():
    loss, weights = symptom("loss"), Finding("weights", "FAIL", "huge", explains=("loss",))
    told = explain([loss, weights])
    assert [f.verdict for f in told] == ["SKIP", "FAIL"]
    assert told[0].sentence == "explained by weights: s"


def test_a_warning_that_explains_a_failure_is_one():
    cause = Finding("data", "WARN", "not normalised", explains=("overfit",))
    assert [f.verdict for f in explain([cause, symptom("overfit")])] == ["FAIL", "SKIP"]
    assert [f.verdict for f in explain([cause, symptom("overfit", "WARN")])] == ["WARN", "SKIP"]


def test_the_first_symptom_explains_the_next_and_its_root_pays():
    root = Finding("weights", "WARN", "tiny", explains=("activations", "gradients"))
    chain = [root, symptom("activations", explains=("gradients",)), symptom("gradients")]
    assert [f.verdict for f in explain(chain)] == ["FAIL", "SKIP", "SKIP"]
    assert [f.verdict for f in explain(chain[1:])] == ["FAIL", "SKIP"]


def test_what_is_no_symptom_is_always_told():
    cause = Finding("data", "FAIL", "x", explains=("gradients",))
    assert [f.verdict for f in explain([cause, Finding("gradients", "FAIL", "not held")])] == ["FAIL", "FAIL"]


def test_early_symptoms_are_warnings_where_training_works():
    works = [Finding("overfit", "PASS", "x"), Finding("curve", "PASS", "x")]
    assert explain([symptom("activations"), *works])[0].verdict == "WARN"
    assert explain([symptom("activations"), works[0], symptom("curve", "WARN")])[0].verdict == "FAIL"


def test_constant_labels_name_the_label():
    report = doctor.examine(Setup.of(constant_labels(0)), effort=SHORT, only=["data"])
    assert re.fullmatch(r"all \d+ labels read are 3", report.of("data")[0].sentence)
