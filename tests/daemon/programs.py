"""Programs that are supervised for real: ``python programs.py NAME FOLDER``. Lives are counted in the folder."""

from __future__ import annotations

import os
import signal
import sys
import threading
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
    """A real run: killed at step 23 of its first life, stopped by its policy at step 35 of the second. One further
    argument: the name of its own run directory in the folder."""
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
    own = folder / sys.argv[3] if len(sys.argv) > 3 else None
    g = guard.attach(model, optimizer, policy=policy, receivers=[], run_dir=own)
    for x in g.batches(lambda i: torch.randn(4, 8, generator=torch.Generator().manual_seed(i)), steps=40):
        if number == 1 and g.step == 23:
            g.boundary.durable.store.wait(30)
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        bad = number == 2 and g.step == 35
        g.backward(model(x).square().mean() * (float("nan") if bad else 1.0))
        optimizer.step()


def paced(folder: Path) -> None:
    """A real run with checkpoints on disk; alone in its folder, or it says so. Options, as ``name=number``:

    steps: how many.
    pause, first, eval: seconds of a step, of the first one, and of an evaluation after step 5.
    stop, kill: step at which the process (of several the last rank) is stopped or killed, once.
    """
    import fcntl

    given = dict(word.split("=") for word in sys.argv[3:])
    pause, first, evaluation = (float(given.get(k, v)) for k, v in (("pause", 0.05), ("first", 0), ("eval", 0)))
    steps, stop, kill = (int(given.get(k, v)) for k, v in (("steps", 60), ("stop", 0), ("kill", 0)))
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    alone = (folder / f"alone.{rank}").open("w")
    try:
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        (folder / "second").touch()
    (folder / "pid").write_text(str(os.getpid()))

    import torch
    from torch import nn

    import guard

    torch.set_num_threads(1)
    if world > 1:
        import torch.distributed as dist

        # gloo would meet the addresses of processes that are gone: a prefix per life (see docs/design/ranks.md).
        agent = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        life_of = f"{os.environ['TORCHELASTIC_RUN_ID']} {os.environ['TORCHELASTIC_RESTART_COUNT']}"
        dist.init_process_group("gloo", store=dist.PrefixStore(life_of, agent), rank=rank, world_size=world)
    torch.manual_seed(0)
    model: nn.Module = nn.Linear(8, 2)
    if world > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    policy = {
        "version": 1,
        "checkpoints": {"every": "5 steps", "probation": "2 steps", "disk": {"every": "5 steps", "keep": 3}},
        "policies": [{"name": "no-nan", "trigger": {"type": "non_finite"}, "actions": [{"type": "stop"}]}],
    }
    number = 0 if rank else life(folder)
    g = guard.attach(model, optimizer, policy=policy, receivers=[])
    fails = rank == world - 1 and not (folder / "failed").exists()
    tick = threading.Event()
    for x in g.batches(lambda i: torch.randn(4, 8, generator=torch.Generator().manual_seed(i)), steps=steps):
        tick.wait(first if number == 1 and g.step == 0 else pause)
        if fails and g.step in (stop, kill) and g.step:
            (folder / "failed").touch()
            if not rank:
                g.boundary.durable.store.wait(30)
            os.kill(os.getpid(), signal.SIGSTOP if g.step == stop else signal.SIGKILL)
        optimizer.zero_grad()
        g.backward(model(x).square().mean())
        optimizer.step()
        if not rank:
            print(f"step {g.step}", flush=True)
        if evaluation and g.step == 5:
            with g.phase("eval"):
                tick.wait(evaluation)
    if world > 1:
        g.close()
        dist.destroy_process_group()


def hungry(_: Path) -> None:
    """A run that begins, and allocates until the kernel ends it."""
    from guard.clock import SystemClock
    from guard.incidents.rundir import RunDir

    files = RunDir(Path(os.environ["GUARD_RUN_DIR"]), SystemClock(), lambda: (1, 1, "step"))
    started = {"kind": "run_started", "tick": 0, "step": 0, "mode": "enforce", "run": "run", "host": "here", "pid": 1}
    files.journal(started, durable=True)
    held = []
    while True:
        held.append(b"x" * (8 << 20))


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
