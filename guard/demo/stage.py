"""The order of events: three runs, their comparison, the messages, the picture."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch

from guard.demo.data import Text
from guard.demo.faults import Plan
from guard.demo.outcome import Outcome, shortfall
from guard.demo.picture import draw
from guard.demo.screen import Screen
from guard.demo.training import train
from guard.incidents import IncidentLog, read_journal
from guard.notify import ReceiverSpec
from guard.policy import load
from guard.receivers import receiver_specs

STEPS = 600
RUN = "char-transformer"


def perform(out: Path, seed: int, steps: int | None) -> int:
    """See `guard.demo.run`."""
    screen = Screen()
    try:
        run_dir = _prepare(out)
    except OSError as error:
        screen.problem(f"cannot write to {out}: {error.strerror or error}. Choose another directory with --out.")
        return 1
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a model is slower on two, far more so when they are busy
    try:
        return _perform(screen, out, run_dir, seed, steps or STEPS)
    except KeyboardInterrupt:
        screen.problem("stopped by Ctrl-C")
        return 130
    finally:
        torch.set_num_threads(threads)


def _perform(screen: Screen, out: Path, run_dir: Path, seed: int, steps: int) -> int:
    text = Text()
    healthy, faulty = Plan(steps, faulty=False), Plan(steps, faulty=True)
    slack = _slack()
    screen.introduce(text, faulty)
    with screen.running(steps) as watch:
        outcomes: dict[str, Outcome] = {
            "healthy": train(text, healthy, seed, watch("healthy")),
            "unguarded": train(text, faulty, seed, watch("unguarded")),
            "guarded": train(text, faulty, seed, watch("guarded"), run_dir=run_dir, receivers=slack),
        }
    picture = draw(outcomes, faulty, out / "demo.png")
    screen.messages(IncidentLog(read_journal(run_dir)), told=bool(slack))
    missing = shortfall(**outcomes)
    screen.compare(outcomes, picture, run_dir, missing)
    return 1 if missing else 0


def _prepare(out: Path) -> Path:
    """The guarded run's directory, new; an earlier demo's is cleared away."""
    run_dir = out / RUN
    if (run_dir / "journal.jsonl").exists():
        shutil.rmtree(run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    probe = run_dir / ".writable"
    probe.touch()
    probe.unlink()
    return run_dir


def _slack() -> list[ReceiverSpec]:
    """The policy's own Slack receiver, if this machine says where and as whom."""
    if not (os.environ.get("SLACK_BOT_TOKEN") and os.environ.get("SLACK_CHANNEL")):
        return []
    return [spec for spec in receiver_specs(load("default")) if spec.type == "slack"]
