"""Runs the cases with the guard, and scores it beside doing nothing and doing anything.

    cd tests && python -m faults._run [NAME ...] [--seeds 0 1] [--policy default] [--json OUT]

A fault is *seen* if an incident names it, not before it shows and at most `DELAY` ticks after; it ends *right* if nine
tenths of the damage are undone and the run came to its end, or, where nothing inside the loop helps, if it was stopped
with a finite state that is about as good as the best before. A control is *left alone* if there is no incident and the
weights are those of the plain run bit for bit.
"""

from __future__ import annotations

import argparse
import copy
import functools
import importlib
import json
import math
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from faults._case import CASES, DELAY, Case, Hooks, Remedy, Run
from torch import Tensor, nn

import guard

UNDONE = 0.9  # share of the damage
WORSE = 0.1  # how much worse than the best a stopped run may be left
RANDOM_DRAWS = 3
_EVERY = 25  # steps between snapshots, and looks at the held-out loss, of the runs without a guard
ACTIONS: tuple[Remedy, ...] = ("clip", "lower_lr", "rollback", "rollback_bf16", "skip_batch", "stop", "none")


def cases() -> list[Case]:
    for folder in ("numbers", "dynamics", "programs", "controls"):
        importlib.import_module(f"faults.{folder}")
    return list(CASES)


# ---- one run


@dataclass
class Trace:
    """What one run did.

    Args:
        losses, norms: per tick, without a guard.
        best: lowest held-out loss that was seen on the way.
        incidents: detector, tick, actions, message.
    """

    start: float
    final: float = math.nan
    best: float = math.nan
    finite: bool = True
    stopped: bool = False
    ticks: int = 0
    steps: int = 0
    error: str = ""
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    incidents: list[dict[str, Any]] = field(default_factory=list)
    state: list[Tensor] = field(default_factory=list)


def usual(run: Run, batch: Any, hooks: Hooks) -> Tensor:
    """Forward and backward of one micro-batch."""
    dtype = run.dtype or torch.bfloat16
    with hooks.autocast("cpu", dtype=dtype, enabled=run.dtype is not None):
        loss = run.loss(run.model, batch)
    hooks.backward(loss)
    return loss


def update(run: Run) -> None:
    if run.scaler is None:
        run.optimizer.step()
    else:
        run.scaler.step(run.optimizer)
        run.scaler.update()


def iterate(run: Run, batch: Any, hooks: Hooks, micro: int) -> Tensor:
    """One pass of the loop's body."""
    if run.iterate is not None:
        return run.iterate(run, batch, hooks)
    if micro % run.accumulate == 0:
        run.optimizer.zero_grad()
    loss = usual(run, batch, hooks)
    if (micro + 1) % run.accumulate == 0:
        update(run)
        if run.scheduler is not None:
            run.scheduler.step()
    return loss


def finish(trace: Trace, run: Run, began: float) -> Trace:
    trace.final = run.held_out()
    trace.state = [v.detach().clone() for v in run.model.state_dict().values()]
    trace.finite = all(bool(torch.isfinite(v).all()) for v in trace.state if v.is_floating_point())
    trace.seconds = time.perf_counter() - began
    return trace


def seeded(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)


def guarded(case: Case, seed: int, policy: Any = "default") -> Trace:
    began, run = time.perf_counter(), case.make(seed)
    seeded(seed)
    trace = Trace(run.held_out())
    with tempfile.TemporaryDirectory() as folder:
        g = guard.attach(
            run.model,
            run.optimizer,
            policy=policy,
            scheduler=run.scheduler,
            scaler=run.scaler,
            run_dir=f"{folder}/run",
            receivers=[],
        )
        try:
            hooks = Hooks(g.backward, g.autocast)
            for micro, batch in enumerate(g.batches(run.batches, run.steps, run.accumulate)):
                iterate(run, batch, hooks, micro)
                if run.validate and g.step % run.validate == 0:
                    g.log(val_loss=run.held_out())
                assert g.tick <= 4 * run.steps, "never ends"
        except guard.TrainingStopped:
            trace.stopped = True
        except Exception as error:  # noqa: BLE001 - a row of the table
            trace.error = f"{type(error).__name__}: {error}"
        trace.ticks, trace.steps = g.tick, g.step
        g.close()
        trace.incidents = [
            {
                "detector": i.detector,
                "policy": i.policy,
                "tick": i.opened_tick,
                "status": i.status,
                "actions": [r.type for a in i.attempts for r in a.results],
                "message": i.evidence.get("detection", {}).get("message", i.cause),
            }
            for i in g.incidents
        ]
    return finish(trace, run, began)


# ---- without a guard: nothing, or one action at one tick


class Bare:
    """A training loop without a guard, in which something can be done by hand before a step."""

    def __init__(self, run: Run) -> None:
        self.run, self.tick, self.index, self.stopped = run, 0, 0, False
        self.trace = Trace(run.held_out())
        self.trace.best = self.trace.start
        self._parts = [run.model, *optimizers(run), *([run.scheduler] if run.scheduler else [])]
        self._best = copy.deepcopy(run.model.state_dict())
        self._save()

    def train(self, act: Callable[[Bare], object] | None = None, at: int = -1) -> Trace:
        began, run = time.perf_counter(), self.run
        while self.index < run.steps:
            if self.tick and self.tick % (run.validate or _EVERY) == 0:
                self._look()
            if self.tick == at and act is not None:
                act(self)
            if self.stopped:
                break
            if self.index < run.steps:
                losses = [
                    float(iterate(run, run.batches(self.index * run.accumulate + m), self._hooks, m))
                    for m in range(run.accumulate)
                ]
                self.trace.losses.append(sum(losses) / len(losses))
                self.trace.norms.append(norm_of(run.model))
                self.tick += 1
                self.index += 1
        self.trace.ticks, self.trace.steps, self.trace.stopped = self.tick, self.index, self.stopped
        return finish(self.trace, run, began)

    @property
    def _hooks(self) -> Hooks:
        run = self.run

        def backward(loss: Tensor) -> None:
            loss = loss / run.accumulate if run.accumulate > 1 else loss
            (loss if run.scaler is None else run.scaler.scale(loss)).backward()

        return Hooks(backward=backward)

    def take(self, remedy: Remedy) -> None:
        match remedy:
            case "clip":
                usual_norm = statistics.median(self.trace.norms[-100:] or [1.0])
                self._before_step(lambda params: nn.utils.clip_grad_norm_(params, usual_norm))
            case "lower_lr":
                self._restore()
                self._slower(0.1)
            case "rollback":
                self._restore()
            case "rollback_bf16":
                self._restore()
                if any(p.dtype == torch.float16 for p in self.run.model.parameters()):
                    self.run.model.bfloat16()
                else:
                    self.run.dtype, self.run.scaler = torch.bfloat16, None
            case "skip_batch":
                self.index += 1
            case "stop":
                self.run.model.load_state_dict(self._best)
                self.stopped = True

    def _look(self) -> None:
        value = self.run.held_out()
        if math.isfinite(value):
            self._save()
        if value < self.trace.best:
            self.trace.best, self._best = value, copy.deepcopy(self.run.model.state_dict())

    def _save(self) -> None:
        self._saved = self.index, [copy.deepcopy(p.state_dict()) for p in self._parts]

    def _restore(self) -> None:
        self.index, states = self._saved
        for part, state in zip(self._parts, states, strict=True):
            part.load_state_dict(copy.deepcopy(state))

    def _before_step(self, do: Callable[[list[nn.Parameter]], object]) -> None:
        def before(optimizer: torch.optim.Optimizer, *_: object) -> None:
            do([p for g in optimizer.param_groups for p in g["params"]])

        for optimizer in optimizers(self.run):
            optimizer.register_step_pre_hook(before)

    def _slower(self, factor: float) -> None:
        def scale(optimizer: torch.optim.Optimizer, by: float) -> None:
            for group in optimizer.param_groups:
                group["lr"] *= by

        for optimizer in optimizers(self.run):
            optimizer.register_step_pre_hook(lambda o, *_: scale(o, factor))
            optimizer.register_step_post_hook(lambda o, *_: scale(o, 1 / factor))


def optimizers(run: Run) -> list[torch.optim.Optimizer]:
    return list(run.optimizer) if isinstance(run.optimizer, (list, tuple)) else [run.optimizer]


def norm_of(model: nn.Module) -> float:
    grads = [p.grad.detach().float().flatten() for p in model.parameters() if p.grad is not None]
    return float(torch.cat(grads).norm()) if grads else 0.0


@functools.cache
def plain(case: Case, seed: int) -> Trace:
    """Doing nothing."""
    run = case.make(seed)
    seeded(seed)
    return Bare(run).train()


@functools.cache
def twin(case: Case, seed: int) -> Trace:
    """The same run without the fault."""
    run = case.twin(seed)
    seeded(seed)
    return Bare(run).train()


def by_hand(case: Case, seed: int, remedy: Remedy, at: int | None = None) -> Trace:
    """One action when the fault shows."""
    run = case.make(seed)
    seeded(seed)
    at = onset(case, seed) + case.transient if at is None else at
    return Bare(run).train(lambda loop: loop.take(remedy), at)


def without_bad_batches(case: Case, seed: int) -> Trace:
    """Every batch that differs from the healthy twin's is left out: the remedy `skip_batch`, with full knowledge."""
    run, sound = case.make(seed), case.twin(seed)
    micro = range(run.steps * run.accumulate)
    good = [i for i in micro if same_values(run.batches(i), sound.batches(i))]
    read, run.steps = run.batches, len(good) // run.accumulate
    run.batches = lambda i: read(good[i])
    seeded(seed)
    trace = Bare(run).train()
    trace.steps = len(micro) // run.accumulate
    return trace


def same_values(a: Any, b: Any) -> bool:
    if isinstance(a, (tuple, list)):
        return all(map(same_values, a, b))
    return torch.equal(a, b) if isinstance(a, Tensor) else bool(a == b)


def known_remedy(case: Case, seed: int) -> Trace:
    if case.remedy == "skip_batch":
        return without_bad_batches(case, seed)
    return by_hand(case, seed, case.remedy)


# ---- the verdict


def onset(case: Case, seed: int) -> int:
    """Tick at which the fault shows: where a number is not finite, this seed's first; else the case's."""
    assert case.fault_step is not None
    if case.kind != "non_finite":
        return case.fault_step
    seen = zip(plain(case, seed).losses, plain(case, seed).norms, strict=True)
    return next((i for i, pair in enumerate(seen) if not math.isfinite(sum(pair))), case.fault_step)


@dataclass
class Row:
    """One run, judged."""

    case: str
    kind: str
    remedy: str
    seed: int
    verdict: str
    plain: float
    twin: float
    final: float
    undone: float
    seen_at: int | None
    right: bool
    seconds: float
    incidents: list[dict[str, Any]]

    def __str__(self) -> str:
        told = ", ".join(f"{i['detector']}@{i['tick']}:{'+'.join(i['actions'][:4]) or '-'}" for i in self.incidents[:3])
        return (
            f"{self.case:24}{self.remedy:14}{self.seed:2} {self.verdict:13}{self.plain:10.3g}{self.twin:10.3g}"
            f"{self.final:10.3g}{self.undone:7.2f}{self.seconds:6.1f}  {told}"
        )


HEAD = (
    f"{'case':24}{'remedy':14}{'seed':>2} {'verdict':13}{'nothing':>10}{'healthy':>10}{'guarded':>10}{'undone':>7}"
    f"{'s':>6}  incidents"
)


def undone(case: Case, seed: int, final: float) -> float:
    """Share of the damage that is not there; a run that ended in NaN is damaged down to its start."""
    bare, best = plain(case, seed), twin(case, seed).final
    damage = (bare.final if math.isfinite(bare.final) else bare.start) - best
    if not math.isfinite(final):
        return 0.0
    return 1.0 if final <= best else 1 - (final - best) / damage if damage > 0 else 0.0


def ends_right(case: Case, seed: int, trace: Trace) -> bool:
    if case.remedy == "stop":
        best = min(plain(case, seed).best, trace.start)
        return trace.stopped and trace.finite and trace.final <= best + WORSE * abs(best)
    steps = plain(case, seed).steps
    return trace.finite and not trace.stopped and trace.steps >= steps and undone(case, seed, trace.final) >= UNDONE


def judge(case: Case, seed: int, got: Trace) -> Row:
    bare = plain(case, seed)
    row = functools.partial(
        Row,
        case.name,
        case.kind,
        case.remedy,
        seed,
        plain=bare.final,
        final=got.final,
        seconds=got.seconds,
        incidents=got.incidents,
    )
    if case.healthy:
        same = all(torch.equal(a, b) for a, b in zip(bare.state, got.state, strict=True))
        verdict = "ERROR" if got.error else "ALARM" if got.incidents else "ok" if same else "CHANGED"
        return row(verdict, twin=bare.final, undone=math.nan, seen_at=None, right=verdict == "ok")
    first = case.fault_step or 0
    last = onset(case, seed) + (DELAY[case.kind] if case.delay is None else case.delay)
    seen = [i["tick"] for i in got.incidents if i["detector"] in case.detectors and first <= i["tick"] <= last]
    right = ends_right(case, seed, got)
    verdict = (
        "ERROR"
        if got.error
        else "EARLY"
        if any(i["tick"] < first for i in got.incidents)
        else "NOT SEEN"
        if not seen
        else "ok"
        if right
        else "NOT STOPPED"
        if case.remedy == "stop"
        else "NOT REPAIRED"
    )
    return row(
        verdict,
        twin=twin(case, seed).final,
        undone=undone(case, seed, got.final),
        seen_at=min(seen, default=None),
        right=right,
    )


def random_right(case: Case, seed: int) -> float:
    """Share of random actions at the fault after which it ends right."""
    draw = random.Random(f"{case.name}/{seed}")
    chosen = [draw.choice(ACTIONS) for _ in range(RANDOM_DRAWS)]
    return sum(ends_right(case, seed, by_hand(case, seed, action)) for action in chosen) / RANDOM_DRAWS


def score(rows: list[Row]) -> str:
    faults = [r for r in rows if r.kind != "healthy"]
    ok = [r for r in rows if r.kind == "healthy"]
    fixable, hopeless = ([r for r in faults if (r.remedy == "stop") is stop] for stop in (False, True))
    return (
        f"seen in time {sum(r.seen_at is not None for r in faults)}/{len(faults)}, "
        f"repaired {sum(r.right for r in fixable)}/{len(fixable)}, "
        f"stopped rightly {sum(r.right for r in hopeless)}/{len(hopeless)}, "
        f"early alarms {sum(r.verdict == 'EARLY' for r in faults)}, "
        f"left alone {sum(r.right for r in ok)}/{len(ok)}, errors {sum(r.verdict == 'ERROR' for r in rows)}"
    )


def beside(rows: list[Row]) -> str:
    """What would have come of doing nothing, and of a random action when the fault shows."""
    by_name = {case.name: case for case in CASES}
    faults = [(by_name[r.case], r.seed) for r in rows if r.kind != "healthy"]
    right = sum(r.right for r in rows if r.kind != "healthy")
    nothing = sum(ends_right(case, seed, plain(case, seed)) for case, seed in faults)
    luck = sum(random_right(case, seed) for case, seed in faults)
    return (
        f"ends right: guarded {right}/{len(faults)}, doing nothing {nothing}/{len(faults)}, "
        f"a random action at the fault {luck:.1f}/{len(faults)}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--policy", default="default")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-baselines", action="store_true")
    parser.add_argument("--by-hand", action="store_true", help="instead: the known remedy, taken when the fault shows")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    rows = []
    print(HEAD)
    for case in cases():
        if chosen.names and case.name not in chosen.names:
            continue
        for seed in chosen.seeds:
            if chosen.by_hand and case.healthy:
                continue
            got = known_remedy(case, seed) if chosen.by_hand else guarded(case, seed, chosen.policy)
            rows.append(judge(case, seed, got))
            if chosen.by_hand:
                rows[-1].verdict = "ok" if rows[-1].right else "NO REMEDY"
            print(rows[-1], flush=True)
    print(score(rows))
    if not (chosen.no_baselines or chosen.by_hand):
        print(beside(rows))
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(r) for r in rows], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
