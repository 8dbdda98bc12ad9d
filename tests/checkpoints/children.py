"""What other processes do in these tests. They are forked from a server that has loaded torch and nothing else."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints.small import OPTIMIZERS, Run, bits, differences, folders, open_store, save

from guard.checkpoints import shards
from guard.errors import ChangedModelError

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed.fsdp", "checkpoints.small"])


def in_processes(target: Callable[..., None], *arguments: Any, count: int = 1) -> None:
    """Runs ``target(rank, *arguments)`` in `count` new processes; raises what any of them raised."""
    answers = _CONTEXT.SimpleQueue()
    children = [_CONTEXT.Process(target=_run, args=(answers, target, rank, arguments)) for rank in range(count)]
    for child in children:
        child.start()
    for child in children:
        child.join(100)
        assert child.exitcode is not None, "it does not end"
    said = [answers.get() for _ in children if not answers.empty()]
    assert [c.exitcode for c in children] == [0] * count, said
    assert said == [None] * count, "\n".join(map(str, said))


def _run(answers: Any, target: Callable[..., None], rank: int, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    try:
        target(rank, *arguments)
        answers.put(None)
    except BaseException:
        import traceback

        answers.put(f"rank {rank}: {traceback.format_exc()}")
        raise


# ---- a resumed run


def resume_all(_: int, folder: Path, steps: int) -> None:
    """Each optimizer's run, built with other random numbers, goes on from its checkpoint; what it comes to is saved."""
    for name in OPTIMIZERS:
        store = open_store(folder / name)
        run = Run(name, seed=99)
        loading = run.resume(store)
        assert loading.refused == []
        assert loading.portable.left_out == ()
        before = run.everything()
        after = run.steps(steps).everything()
        torch.save({"before": before, "after": after}, folder / f"{name}.pt")
        store.close(30)


# ---- a killed one


def _trained() -> Run:
    """What the killed ones save; torch has loaded here all that a save needs."""
    run = Run().steps(2)
    with tempfile.TemporaryDirectory() as folder:
        shards.write(Path(folder), run.portable().tensors)
    return run


def _save_and_be_killed(run: Run, folder: Path, prepare: Callable[[], None]) -> None:
    """One child process saves step 2 again, and is killed somewhere."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            store = open_store(folder)
            store._tidy()
            prepare()
            save(store, run, "probation", tick=5)
        os._exit(7)
    os.waitpid(pid, 0)


def killed_at_each_event(_: int, folders: list[Path]) -> None:
    """In `folders[n]`, kill -9 at the n-th file that the writer opens, renames or removes."""
    wanted = [-1]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        ours = event in ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.listdir")
        if wanted[0] < 0 or not ours or threading.current_thread().name != "guard-checkpoints":
            return
        if wanted[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        wanted[0] -= 1

    run = _trained()
    sys.addaudithook(hook)
    for number, folder in enumerate(folders):

        def arm(number: int = number) -> None:
            wanted[0] = number

        _save_and_be_killed(run, folder, arm)


def killed_within_a_file(_: int, folders: dict[int, Path]) -> None:
    """The kernel kills the writer in the middle of the `write` that makes a file larger than the key says [bytes]."""
    run = _trained()
    for limit, folder in folders.items():

        def arm(limit: int = limit) -> None:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        _save_and_be_killed(run, folder, arm)


# ---- a disk that is full


def too_small_a_file_limit(_: int, folder: Path) -> None:
    """Whatever file does not fit: the save fails with a sentence, the next one works."""
    run, store = Run().steps(2), open_store(folder)
    assert [o.kind for o in save(store, run)] == ["saved"]
    run.steps(1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (10, 1000, 9000, 20_000, 50_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        (outcome,) = save(store, run)
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert outcome.kind == "failed"
        assert outcome.reason.endswith(": a file would be larger than is allowed"), outcome.reason
        assert folders(folder) == ["step-2"]
    assert [o.kind for o in save(store, run)] == ["saved"]
    fresh = Run(seed=9)
    fresh.resume(store)
    assert differences(fresh.everything(), run.everything()) == []
    assert store.close(30)


# ---- several ranks


def _ranks(rank: int, folder: Path, world: int = 2) -> Any:
    """A process group for training, and the store's own."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    return dist.new_group(backend="gloo")


def _fully(model: torch.nn.Module) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))


def _both(value: Any) -> list[Any]:
    import torch.distributed as dist

    values = [None, None]
    dist.all_gather_object(values, value)
    return values


def save_sharded(rank: int, folder: Path) -> None:
    """FSDP2: saved by two ranks; two new runs go on from there exactly; whole tensors are left to compare with."""
    import torch.distributed as dist

    group = _ranks(rank, folder)
    store = open_store(folder / "sharded", rank=rank, world=2, group=group)
    run = Run(shard=_fully, rank=rank).steps(3)
    portable = run.portable()
    sharded = portable.tensors["model.body.0.weight"]
    assert any(sharded.to_local().data_ptr() == t.data_ptr() for t in portable.source.tensors), "not copied"
    assert hasattr(portable.tensors["optimizer.0.model.body.0.weight.exp_avg"], "to_local")
    before = run.everything()
    whole = {n: t.full_tensor() if hasattr(t, "full_tensor") else t.clone() for n, t in portable.tensors.items()}
    exported = {k: t.full_tensor() if hasattr(t, "full_tensor") else t for k, t in run.model.state_dict().items()}
    if rank == 0:
        torch.save(whole, folder / "whole.pt")
        torch.save(exported, folder / "exported.pt")
    assert store.save(portable, state="good")
    after = run.steps(3).everything()  # training goes on meanwhile, over the other process group
    assert store.wait(60)
    assert [o.kind for o in store.outcomes()] == ["saved"]
    fresh = Run(seed=9, shard=_fully, rank=rank)
    loading = fresh.resume(store)
    assert loading.refused == []
    assert not loading.portable.own_is_foreign
    assert differences(fresh.everything(), before) == []
    assert differences(fresh.steps(3).everything(), after) == []
    fresh.state.restore(fresh.capture())  # from memory, in place
    assert store.close(30)
    dist.barrier()
    dist.destroy_process_group()


def load_sharded_from_one(rank: int, folder: Path) -> None:
    """What one process saved is distributed over two; the second has no random states of its own."""
    import torch.distributed as dist

    group = _ranks(rank, folder)
    store = open_store(folder / "one", rank=rank, world=2, group=group)
    run = Run(seed=9, shard=_fully, rank=rank)
    drawn = torch.get_rng_state()
    loading = run.resume(store)
    assert loading.portable.own_is_foreign == (rank == 1)
    assert bool((torch.get_rng_state() == drawn).all()) == (rank == 1)
    wanted = torch.load(folder / "one.pt", weights_only=True)
    for name, tensor in wanted.items():
        found = run.portable().tensors.get(name)
        if found is not None:
            assert bits(found) == bits(tensor), name
    assert store.close(30)
    dist.barrier()
    dist.destroy_process_group()


def save_replicated(rank: int, folder: Path) -> None:
    """Plain tensors, the same on both; random states, statistics and extra objects are each rank's own."""
    import torch.distributed as dist

    group = _ranks(rank, folder)
    store = open_store(folder / "plain", rank=rank, world=2, group=group, keep=1)
    run = Run(rank=0)
    run.steps(2)
    torch.manual_seed(rank)
    run.model.body[1].running_mean.fill_(rank)
    run.scheduler.best = rank  # whatever an extra object knows
    before = run.everything()
    for tick in (2, 3):  # the second replaces the first
        assert [o.kind for o in save(store, run, tick=tick)] == ["saved"]
        assert folders(store.folder) == ["step-2"]
    fresh = Run(seed=9)
    fresh.resume(store)
    assert differences(fresh.everything(), before) == []

    # One rank cannot write: both say so, the old one stays, the next save works.
    import guard.checkpoints.writing as writing

    real, run.step = writing._save, 5
    if rank == 1:

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        writing._save = full
    (outcome,) = save(store, run)
    assert outcome.reason.endswith(": rank 1: the disk is full"), outcome
    writing._save = real
    _both(None)
    assert folders(store.folder) == ["step-2"]
    run.step = 5 + rank
    (outcome,) = save(store, run)
    assert outcome.reason.endswith("the ranks do not save the same step: 5, 6"), outcome
    run.step = 7
    assert save(store, run)[0].kind == "saved"
    store.promote(7)
    store.rewind(3)
    assert store.close(30)
    _both(None)

    # A shard that is missing is found by whoever verifies it, and refused by both.
    again = open_store(folder / "plain", rank=rank, world=2, group=group)
    if rank == 0:
        (folder / "plain" / "step-7" / "rank_1.pt").unlink()
    _both(None)
    loading = again.load(fresh.state, step=7)
    assert loading.refused == [("step-7", "rank_1.pt is missing")]

    # Another model on one rank is an error on both.
    changed = Run(hidden=8 + 8 * rank)
    with pytest.raises(ChangedModelError, match=r"model\.body\.0\.weight \[16, 8\] \(there \[8, 8\]\)"):
        again.load(changed.state, step=2)
    assert again.close(30)
    dist.barrier()
    dist.destroy_process_group()
