"""Programs that are supervised for real: ``python programs.py NAME FOLDER``. Lives are counted in the folder."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def life(folder: Path) -> int:
    """Which life this is, from 1."""
    with (folder / "lives").open("ab+") as file:
        file.write(b".")
        return file.tell()


def beats(folder: Path) -> None:
    """A guard's run directory without a guard. The first life falls silent at step 3, as a stopped process does."""
    from guard.clock import SystemClock
    from guard.incidents.rundir import RunDir

    now = [0, 0, "start"]
    files = RunDir(Path(os.environ["GUARD_RUN_DIR"]), SystemClock(), lambda: tuple(now))
    files.journal({"kind": "run_started", "tick": 0, "step": 0, "mode": "enforce"})
    number = life(folder)
    for step in range(1, 4 + number):
        now[:] = [step, step, "step"]
        files.flush()
        files.journal({"kind": "notice", "tick": step, "step": step, "message": "one step"}, durable=True)
        if number == 1 and step == 3:
            os.kill(os.getpid(), signal.SIGSTOP)
    files.journal({"kind": "run_finished", "tick": 5, "step": 5, "status": "finished", "summary": {}}, durable=True)
    files.close(5)


def trains(folder: Path) -> None:
    """A real run: killed at step 23 of its first life, stopped by its policy at step 35 of the second."""
    import torch
    from torch import nn

    import guard

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    policy = {
        "version": 1,
        "checkpoints": {"every": "5 steps", "probation": "2 steps", "disk": {"every": "5 steps", "keep": 3}},
        "policies": [{"name": "no-nan", "trigger": {"type": "non_finite"}, "actions": [{"type": "stop"}]}],
    }
    number = life(folder)
    g = guard.attach(model, optimizer, policy=policy, receivers=[])
    for x in g.batches(lambda i: torch.randn(4, 8, generator=torch.Generator().manual_seed(i)), steps=40):
        if number == 1 and g.step == 23:
            g.boundary.durable.store.wait(30)
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        bad = number == 2 and g.step == 35
        g.backward(model(x).square().mean() * (float("nan") if bad else 1.0))
        optimizer.step()


def night(folder: Path) -> None:
    """A real run of STEPS steps; the loss of every fiftieth is NaN, which its policy leaves out and tells."""
    import time

    import torch
    from torch import nn

    import guard

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    receiver = {
        "type": "slack",
        "channel": "#training",
        "token": "${SLACK_BOT_TOKEN}",
        "base_url": os.environ["SLACK_URL"],
    }
    left_out = {"trigger": {"type": "non_finite"}, "resolve_after": 5, "actions": [{"type": "skip_step"}]}
    policy = {
        "version": 1,
        "checkpoints": {"every": "10 steps", "probation": "3 steps", "disk": {"every": "20 steps", "keep": 3}},
        "policies": [{"name": "skip-nan", **left_out}],
        "receivers": {"slack": receiver},
    }
    g = guard.attach(model, optimizer, policy=policy)
    steps = int(os.environ["STEPS"])
    for x in g.batches(lambda i: torch.randn(4, 8, generator=torch.Generator().manual_seed(i)), steps=steps):
        optimizer.zero_grad()
        g.backward(model(x).square().mean() * (float("nan") if g.step % 50 == 17 else 1.0))
        optimizer.step()
        time.sleep(0.01)


def orphan(folder: Path) -> None:
    """Starts a process in a session of its own, as torchrun does, and both wait for ever."""
    child = os.fork()
    if not child:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with (folder / "fifo").open("wb", buffering=0) as fifo:
        fifo.write(f"{os.getpid()} ".encode())
        signal.pause()


def polite(folder: Path) -> None:
    """Ends with code 5 on a signal; says which came."""
    came = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda n, _: came.append(signal.Signals(n).name))
    print("ready", flush=True)
    while not came:
        signal.pause()
    print(*came, flush=True)
    sys.exit(5)


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
