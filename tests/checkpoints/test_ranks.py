"""Several ranks: each its shard, its random states; read by as many, by one, and by more."""

from __future__ import annotations

from pathlib import Path

import torch
from checkpoints.children import in_processes, load_sharded_from_one, save_replicated, save_sharded
from checkpoints.small import Run, bits, open_store, save

from guard.checkpoints import manifest
from guard.checkpoints.export import export


def test_sharded_by_two_read_by_two_and_by_one(tmp_path: Path) -> None:
    in_processes(save_sharded, tmp_path, count=2)
    (checkpoint,) = manifest.listing(tmp_path / "sharded").checkpoints
    assert checkpoint.manifest.world == 2
    assert {"__0_0.distcp", "__1_0.distcp", "rank_0.pt", "rank_1.pt"} <= set(checkpoint.manifest.files)

    alone, store = Run(seed=9, shard=lambda _: None), open_store(tmp_path / "sharded")
    loading = alone.resume(store)
    assert loading.portable.left_out == ()
    found = alone.portable().tensors
    wanted = torch.load(tmp_path / "whole.pt", weights_only=True)
    assert {n for n in wanted if not torch.equal(wanted[n], loading.portable.tensors[n])} == set()
    assert {n for n in found if n in wanted and bits(found[n]) != bits(wanted[n])} == set()
    alone.steps(1)
    assert store.close(30)

    assert export(checkpoint, tmp_path / "weights.pt") == len(alone.model.state_dict())
    exported = torch.load(tmp_path / "weights.pt", weights_only=True)
    state_dict = torch.load(tmp_path / "exported.pt", weights_only=True)
    assert exported.keys() == state_dict.keys()
    assert all(torch.equal(exported[k], state_dict[k]) for k in exported)
    alone.model.load_state_dict(exported)


def test_saved_by_one_read_by_two(tmp_path: Path) -> None:
    run, store = Run(shard=lambda _: None).steps(3), open_store(tmp_path / "one")
    save(store, run)
    torch.save(dict(run.portable().tensors), tmp_path / "one.pt")
    assert store.close(30)
    in_processes(load_sharded_from_one, tmp_path, count=2)


def test_replicated(tmp_path: Path) -> None:
    in_processes(save_replicated, tmp_path, count=2)
