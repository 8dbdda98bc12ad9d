"""Several ranks under one guard: the same decision in the same tick, whoever had the fault."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from guard.checkpoints import manifest
from guard.incidents import read_journal

from . import guarded
from .processes import run

Answers = list[dict[str, Any]]


def agree(answers: Answers) -> dict[str, Any]:
    """All ranks say the same; returns what."""
    first = {k: v for k, v in answers[0].items() if k != "mine"}
    for other in answers[1:]:
        assert {k: v for k, v in other.items() if k != "mine"} == first
    return first


@pytest.mark.parametrize(
    ("wrap", "what"),
    [
        ("ddp", "loss"),
        ("ddp", "gradient"),
        ("fsdp", "loss"),
        ("fsdp", "gradient"),
        ("unused", "loss"),
        ("mixed", "gradient"),
        ("offload", "gradient"),
    ],
)
def test_a_transient_fault_of_one_rank_leaves_no_trace(tmp_path: Path, wrap: str, what: str) -> None:
    whole = agree(run(guarded.run, str(tmp_path / "whole"), wrap, []))
    assert whole["incidents"] == []
    found = agree(run(guarded.run, str(tmp_path / "faulty"), wrap, [(1, 13, what)]))
    (incident,) = found["incidents"]
    assert (incident["detector"], incident["tick"], incident["actions"]) == ("non_finite", 13, [["rollback"]])
    assert 1 in incident["ranks"]
    assert found["tick"] > 24
    assert found["weights"] == whole["weights"]


def test_gradients_accumulated_without_sync(tmp_path: Path) -> None:
    whole = agree(run(guarded.run, str(tmp_path / "whole"), "ddp", [], None, 16, 2))
    found = agree(run(guarded.run, str(tmp_path / "faulty"), "ddp", [(1, 20, "loss")], None, 16, 2))
    assert found["incidents"]
    assert found["weights"] == whole["weights"]


def test_a_spike_of_one_rank_is_skipped_on_all(tmp_path: Path) -> None:
    skip = {"name": "skip", "trigger": {"type": "loss_spike"}, "actions": [{"type": "skip_step"}]}
    found = agree(run(guarded.run, str(tmp_path), "ddp", [(1, 40, "spike")], guarded.rules(skip), 60))
    (incident,) = found["incidents"]
    assert (incident["detector"], incident["tick"], incident["actions"]) == ("loss_spike", 40, [["skip_step"]])


def test_a_stop_is_a_stop_for_all(tmp_path: Path) -> None:
    assert run(guarded.stopped, str(tmp_path)) == [(10, True)] * 2


def test_what_one_rank_logs_all_know(tmp_path: Path) -> None:
    first, second = run(guarded.logs, str(tmp_path))
    assert first == second
    assert [known for known, _ in first] == [None, None, 2.0, None, None, 5.0, None, None]
    assert first[-1][1] == 2.0


def test_a_request_is_obeyed_by_all_in_the_same_tick(tmp_path: Path) -> None:
    first, second = run(guarded.asked, str(tmp_path))
    assert first == second == ["enforce"] * 3 + ["observe"] * 5


def test_a_guard_that_fails_on_one_rank_lets_go_on_all(tmp_path: Path) -> None:
    first, second = run(guarded.fails, str(tmp_path))
    assert first["seen"] == second["seen"] == 6
    assert first["weights"] == second["weights"]
    assert first["incidents"][0]["detector"] == "plugin_failure"


def test_a_rank_that_dies_ends_the_others(tmp_path: Path) -> None:
    first, _ = run(guarded.lost, str(tmp_path), mortal=(1,))
    assert first in ("RankLostError", "RuntimeError")
    opened = [e for e in read_journal(tmp_path) if e["kind"] == "incident_opened"]
    assert [e["detector"] for e in opened] == ["rank_lost"]
    assert "rank 1 (process " in opened[0]["detection"]["message"]


def faults(count: int, steps: int, seed: int) -> list[guarded.Fault]:
    r = random.Random(seed)
    at = r.sample(range(30, steps), count)
    return [(r.randrange(2), i, r.choice(["loss", "inf", "gradient", "spike"])) for i in at]


def test_faults_at_random_moments(tmp_path: Path) -> None:
    found = run(guarded.many, str(tmp_path), faults(20, 200, 0), 200)
    assert agree(found)["step"] == 200
    assert found[0]["mine"] == found[1]["mine"]
    assert all(map(math.isfinite, found[0]["mine"]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_faults_at_random_moments(tmp_path: Path, seed: int) -> None:
    found = run(guarded.many, str(tmp_path), faults(100, 1000, seed), 1000)
    assert agree(found)["step"] == 1000
    assert {i["detector"] for i in found[0]["incidents"]} >= {"non_finite", "loss_spike"}
    assert found[0]["mine"] == found[1]["mine"]
    assert all(map(math.isfinite, found[0]["mine"]))


@pytest.mark.parametrize("wrap", ["ddp", "fsdp"])
def test_a_run_goes_on_from_disk_as_if_it_had_never_stopped(tmp_path: Path, wrap: str) -> None:
    whole = agree(run(guarded.saves, str(tmp_path / "whole"), wrap, -1, 24))
    run(guarded.saves, str(tmp_path / "lost"), wrap, 17, 24)
    found = agree(run(guarded.saves, str(tmp_path / "lost"), wrap, -1, 24))
    assert 0 < found["began"] < 17
    assert found["weights"] == whole["weights"]


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
@pytest.mark.parametrize("wrap", ["ddp", "fsdp"])
def test_a_run_goes_on_with_another_number_of_ranks(tmp_path: Path, wrap: str, before: int, after: int) -> None:
    run(guarded.saves, str(tmp_path), wrap, 17, 24, world=before)
    found = agree(run(guarded.saves, str(tmp_path), wrap, -1, 24, world=after))
    assert 0 < found["began"] < 17
    assert found["step"] == 24
    assert found["incidents"] == []


def test_sigterm_on_one_rank_ends_all_with_a_checkpoint(tmp_path: Path) -> None:
    (code, step), (other, other_step) = run(guarded.preempted, str(tmp_path))
    assert (code, step) == (other, other_step) == (143, 8)
    assert [c.manifest.state for c in manifest.listing(tmp_path / "checkpoints").checkpoints] == ["preempted"]


def end_after_kills(folder: Path, kills: int, seed: int, steps: int) -> tuple[dict[str, Any], int]:
    """One of two ranks is killed at random moments, so that the other ends too, and both are started again."""
    r = random.Random(seed)
    for _ in range(kills):
        moment = (r.randrange(1, steps), r.randrange(1, 300)) if r.random() < 0.5 else (steps * 9, r.randrange(1, 150))
        answers = run(guarded.dies, str(folder), steps, r.randrange(2), *moment, mortal=(0, 1))
        if None not in answers:  # it came to its end before
            return agree(answers), kills
    return agree(run(guarded.dies, str(folder), steps, -1, 0, 0)), kills


def without_gap_or_duplicate(folder: Path, steps: int) -> bool:
    rows = (folder / "signals.csv").read_text().splitlines()[1:]
    journal = [json.loads(line)["seq"] for line in (folder / "journal.jsonl").read_text().splitlines()]
    return [int(row.split(",")[0]) for row in rows] == list(range(steps)) and journal == list(range(len(journal)))


def test_kill_9_of_a_rank(tmp_path: Path) -> None:
    whole = agree(run(guarded.saves, str(tmp_path / "whole"), "ddp", -1, 60))
    found, _ = end_after_kills(tmp_path / "run", 2, 1, 60)
    assert found["weights"] == whole["weights"]
    assert without_gap_or_duplicate(tmp_path / "run", 60)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_kill_9_of_a_rank_at_thirty_moments(tmp_path: Path, seed: int) -> None:
    whole = agree(run(guarded.saves, str(tmp_path / "whole"), "ddp", -1, 200))
    found, _ = end_after_kills(tmp_path / "run", 3, seed, 200)
    assert found["weights"] == whole["weights"]
    assert without_gap_or_duplicate(tmp_path / "run", 200)


def torchrun(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        *map(str, arguments),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_torchrun_restarts_what_a_dead_rank_has_ended(tmp_path: Path) -> None:
    whole = agree(run(guarded.saves, str(tmp_path / "whole"), "ddp", -1, 60))
    program = Path(__file__).with_name("elastic.py")
    done = torchrun("--max-restarts=1", program, tmp_path / "run", tmp_path / "found.json")
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert 0 < found["began"] < 33
    assert found["weights"] == whole["weights"]
    assert without_gap_or_duplicate(tmp_path / "run", 60)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("GUARD_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.delenv("SLACK_BOT_TOKEN", raising=False)
    done = torchrun(Path(__file__).parents[2] / "examples" / f"{name}.py")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "step  200" in done.stdout
    assert manifest.listing(tmp_path / "run" / "checkpoints").checkpoints
    entries = [json.loads(line) for line in (tmp_path / "run" / "journal.jsonl").read_text().splitlines()]
    assert [e["kind"] for e in entries if e["kind"] != "notice"] == ["run_started", "run_finished"]


@pytest.mark.parametrize(("remedy", "world"), [("rebroadcast", 3), ("rebroadcast", 2), ("rollback", 2)])
def test_replicas_that_drift_apart_are_brought_together(tmp_path: Path, remedy: str, world: int) -> None:
    found = run(guarded.flips, str(tmp_path), remedy, world=world)
    assert agree(found)["incidents"][0]["actions"] == [[remedy]]
    assert all(answer["mine"] == found[0]["mine"] for answer in found)
    assert ("rank 1" if world > 2 else "no majority") in found[0]["messages"][0]
    assert "4.weight" in found[0]["messages"][0]
