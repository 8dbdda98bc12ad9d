"""The demo: its faults are real arithmetic, its verdict is honest, and it leaves what it promises."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from guard.demo import run, stage
from guard.demo.data import Text
from guard.demo.faults import Plan
from guard.demo.model import CharTransformer
from guard.demo.outcome import Outcome, shortfall
from guard.demo.screen import Screen, Teller, shown
from guard.demo.training import loss_of
from guard.types import Attempt, Incident, Result


@pytest.fixture(scope="module")
def text() -> Text:
    return Text()


def ended(validation: float) -> Outcome:
    return Outcome([(0, 4.0), (1, validation)], validation, [])


def repaired() -> Incident:
    incident = Incident(
        "i0001", "p", "loss_spike", "warning", "resolved", 7, 7, evidence={"outcome": {"steps_lost": 1}}
    )
    incident.attempts = [Attempt(0, 7, 7, [Result("skip_step", "left this step out")])]
    return incident


def test_a_batch_is_the_same_whenever_it_is_read(text: Text) -> None:
    assert torch.equal(text.train(3, 14).x, text.train(3, 14).x)
    assert not torch.equal(text.train(3, 14).x, text.train(3, 15).x)
    assert torch.equal(text.train(0, 0).x[:, 1:], text.train(0, 0).y[:, :-1])


def test_the_corrupt_batch_comes_back_in_the_next_pass(text: Text) -> None:
    plan, batch = Plan(600, faulty=True), text.train(0, 0)
    corrupt = [i for i in range(600) if plan.corrupt(batch, i).weight.max() > 1]
    assert corrupt == [plan.bad_batch, plan.bad_batch + plan.pass_length]
    assert all(Plan(600, faulty=False).corrupt(batch, i) is batch for i in corrupt)


def test_fp16_overflows_where_bf16_does_not(text: Text) -> None:
    torch.manual_seed(0)
    model, batch = CharTransformer(text.vocabulary, 48), text.train(0, 0)
    with torch.no_grad():
        for block in model.blocks:
            block.attention.qkv.weight.mul_(10)  # scores as large as they get by learning
        with torch.autocast("cpu", dtype=torch.float16):
            assert math.isnan(loss_of(model, batch))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert math.isfinite(loss_of(model, batch))


def test_the_rate_is_wrong_for_the_rest_of_the_run() -> None:
    right, wrong = Plan(600, faulty=False), Plan(600, faulty=True)
    start = wrong.rate_rises_at
    assert all(wrong.rate(s) == right.rate(s) for s in range(start))
    assert wrong.rate(start + 72) / right.rate(start + 72) == wrong.rate(599) / right.rate(599) == pytest.approx(80)


@pytest.mark.parametrize(
    ("unguarded", "guarded", "says"),
    [
        (math.nan, 1.85, None),
        (2.40, 1.85, None),
        (math.nan, 1.95, "the guarded run ended at 1.950"),
        (math.nan, math.nan, "the guarded run ended at nan"),
        (1.90, 1.85, "too little harm"),
    ],
)
def test_the_verdict(unguarded: float, guarded: float, says: str | None) -> None:
    found = shortfall(ended(1.8), ended(unguarded), ended(guarded))
    assert found is None if says is None else says in (found or "")


def test_an_incident_is_two_lines() -> None:
    console = Console(file=io.StringIO(), width=100)
    teller, incident = Teller(console), repaired()
    teller.tell([replace(incident, status="verifying")])
    teller.tell([incident])
    teller.tell([incident])
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "  🟡 step   7  loss spike → left the step out",
        "  🟢 step   7  loss spike → resolved: it helped, 1 step lost",
    ]


def test_losses_keep_their_width() -> None:
    assert [shown(x) for x in (2.345, 2534.0, math.nan)] == [" 2.35", " 2534", "  NaN"]


def test_a_short_demo_leaves_picture_and_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, seed=0, steps=12) == 1  # so short a run shows nothing, and says so
    out, err = capsys.readouterr()
    assert "Final loss on text that was not trained on" in out
    assert "faults, guarded" in out
    assert "\x1b" not in out
    assert "guard demo: " in err
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / stage.RUN / "journal.jsonl").exists()
    assert run(tmp_path, seed=0, steps=3) == 1  # and again in the same place


def test_an_unwritable_place_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert run(tmp_path / "file" / "out") == 1
    assert "Choose another directory with --out" in capsys.readouterr().err


def test_ctrl_c_ends_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stage, "train", interrupted)
    threads = torch.get_num_threads()
    assert run(tmp_path) == 130
    assert torch.get_num_threads() == threads
    assert "Traceback" not in capsys.readouterr().err


def test_slack_needs_token_and_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLACK_CHANNEL", raising=False)
    monkeypatch.setenv("SLACK_BOT_TOKEN", "xoxb-test")
    assert stage._slack() == []
    monkeypatch.setenv("SLACK_CHANNEL", "#runs")
    assert [(s.type, s.channel) for s in stage._slack()] == [("slack", "#runs")]


def test_the_screen_fits_a_pipe() -> None:
    console = Console(file=io.StringIO())
    Screen(console).introduce(Text(), Plan(600, faulty=True))
    assert max(map(len, console.file.getvalue().splitlines())) <= 100  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_guard_saves_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, seed=0) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert "switched to BF16" in out
    assert "left this step out" in out
    assert "learning rate" in out
