"""Runs a function in several processes that have found each other, with a hard limit on how long that may take."""

from __future__ import annotations

import multiprocessing
import pickle
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed.fsdp", "guard.ranks"])
_LIMIT = 60  # [s]


def run(function: Callable[..., Any], *arguments: Any, world: int = 2, mortal: tuple[int, ...] = ()) -> list[Any]:
    """What ``function(rank, *arguments)`` returns in each of `world` processes of one gloo process group, by rank.

    Args:
        mortal: ranks that may end without an answer; theirs is None.

    Raises:
        AssertionError: a process raised, ended, or did not end in time.
    """
    with tempfile.TemporaryDirectory() as folder:
        pipes = [_CONTEXT.Pipe(duplex=False) for _ in range(world)]
        children = [
            _CONTEXT.Process(target=_child, args=(pipes[rank][1], folder, rank, world, function, arguments))
            for rank in range(world)
        ]
        try:
            for child, (_, ours) in zip(children, pipes, strict=True):
                child.start()
                ours.close()
            return _answers([theirs for theirs, _ in pipes], mortal)
        finally:
            for child in children:
                child.kill()
                child.join()


def _answers(pipes: list[Connection], mortal: tuple[int, ...]) -> list[Any]:
    """As they come, so that the first error is the one that is shown."""
    answers: dict[int, Any] = dict.fromkeys(mortal)
    left = {id(pipe): rank for rank, pipe in enumerate(pipes)}
    while left:
        ready = wait([pipe for pipe in pipes if id(pipe) in left], _LIMIT)
        assert ready, f"ranks {sorted(left.values())} do not end"
        for pipe in ready:
            rank = left.pop(id(pipe))
            try:
                failed, answer = pickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
            except EOFError:
                assert rank in mortal, f"rank {rank} has ended without a word"
                continue
            assert not failed, f"rank {rank}: {answer}"
            answers[rank] = answer
    return [answers[rank] for rank in range(len(pipes))]


def _child(
    pipe: Connection, folder: str, rank: int, world: int, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder) / 'meeting'}", rank=rank, world_size=world)
        answer = (False, function(rank, *arguments))
    except BaseException:  # noqa: BLE001 - told to whoever asked
        answer = (True, traceback.format_exc())
    pipe.send_bytes(pickle.dumps(answer))
