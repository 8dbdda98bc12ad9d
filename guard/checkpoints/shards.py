"""Named tensors in a folder, written and read by torch.distributed.checkpoint.

One process drives planner and storage itself: `dcp.save` would warn at every save that nothing is distributed. Several
use `dcp.save` and `dcp.load`, over a process group of their own. Nothing but tensors is written, and the list of them
is read back without running code that might stand in it.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from guard.checkpoints.changes import SavedTensor

LIST = ".metadata"  # the file that says which tensors there are
_MODULES = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
_NAMES = frozenset(
    {
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
        ("collections", "OrderedDict"),
        ("pathlib", "PosixPath"),
        ("pathlib", "WindowsPath"),
        ("pathlib", "Path"),
        ("pathlib._local", "PosixPath"),
        ("pathlib._local", "WindowsPath"),
    }
)


def file_of(rank: int) -> str:
    """How the files begin that a rank writes."""
    return f"__{rank}_"


def write(folder: Path, tensors: dict[str, Tensor], group: Any = None) -> None:
    """Writes into an existing folder; with several processes, all of them call it.

    Args:
        tensors: name -> tensor; what several processes have in common is written once.
        group: gloo process group; None: this process alone.

    Raises:
        OSError, RuntimeError: of this process, or of any other (dcp.api.CheckpointException).
    """
    writer = FileSystemWriter(folder, sync_files=False)
    if group is not None:
        save(dict(tensors), storage_writer=writer, process_group=group)
        return
    planner = DefaultSavePlanner()
    planner.set_up_planner(dict(tensors), writer.storage_meta(), is_coordinator=True)
    writer.set_up_storage_writer(True)
    plan = writer.prepare_local_plan(planner.create_local_plan())
    plans, metadata = planner.create_global_plan([plan])
    (plan,) = writer.prepare_global_plan(plans)
    written = writer.write_data(planner.finish_plan(plan), planner).wait()
    writer.finish(metadata, [written])


def read(folder: Path, into: dict[str, Tensor], group: Any = None) -> None:
    """Fills tensors; each process gets its part of distributed ones, whatever the number of processes.

    Raises:
        OSError, RuntimeError, ValueError: they cannot be read.
    """
    if not into:
        return
    reader = _Reader(folder)
    if group is not None:
        load(into, storage_reader=reader, process_group=group)
        return
    planner = DefaultLoadPlanner()
    metadata = reader.read_metadata()
    planner.set_up_planner(into, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, True)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    (plan,) = reader.prepare_global_plan(planner.create_global_plan([plan]))
    reader.read_data(planner.finish_plan(plan), planner).wait()


def saved(folder: Path) -> tuple[dict[str, SavedTensor], set[str]]:
    """What tensors there are, and the names of the files that hold them.

    Raises:
        OSError, ValueError: the list cannot be read.
    """
    metadata = _Reader(folder).read_metadata()
    found = {}
    for name, what in metadata.state_dict_metadata.items():
        if not isinstance(what, TensorStorageMetadata):
            raise ValueError(f"{name} is no tensor")
        found[name] = SavedTensor(tuple(what.size), what.properties.dtype)
    return found, {str(info.relative_path) for info in metadata.storage_data.values()}


class _Reader(FileSystemReader):
    """Reads the list of tensors without trusting it."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        path = Path(self.path) / LIST
        with path.open("rb") as file:
            try:
                metadata = _Unpickler(file).load()
            except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, TypeError) as error:
                raise ValueError(f"{LIST} cannot be read ({error})") from error
        if not isinstance(metadata, Metadata):
            raise ValueError(f"{LIST} does not hold a list of tensors")
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _Unpickler(pickle.Unpickler):
    """Knows the handful of classes that a list of tensors consists of, and no function that does anything."""

    def find_class(self, module: str, name: str) -> Any:
        value: Any = None
        if (module, name) in _NAMES or (module in _MODULES and "." not in name):
            value = super().find_class(module, name)
            if module in _MODULES and not isinstance(value, type):
                value = None
        elif module == "torch":
            value = getattr(torch, name, None)
            value = value if isinstance(value, (torch.dtype, torch.layout)) else None
        if value is None:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in it")
        return value
