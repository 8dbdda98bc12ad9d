"""A checkpoint's weights for use elsewhere."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from guard.checkpoints import shards
from guard.checkpoints.loading import values
from guard.checkpoints.manifest import Checkpoint
from guard.checkpoints.writing import SHARED, sentence
from guard.errors import CheckpointError


def export(checkpoint: Checkpoint, file: Path) -> int:
    """Writes the model's `state_dict`, as `load_state_dict` takes it.

    Original names, tied weights under each of theirs, buffers that belong to it. Needs no model and no process group,
    however many processes wrote the checkpoint.

    Args:
        checkpoint: verified before.
        file: ``.safetensors`` is written as such, anything else so that `torch.load(weights_only=True)` reads it.

    Returns:
        How many tensors were written.

    Raises:
        CheckpointError: it cannot be read or written, or `safetensors` is not installed.
    """
    write = _safetensors() if file.suffix == ".safetensors" else torch.save
    temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        weights = _weights(checkpoint)
        write(weights, temporary)
        temporary.replace(file)
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{checkpoint.name} cannot be exported to {file}: {sentence(error, file.parent)}"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return len(weights)


def _weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
    exported: dict[str, str] = values(checkpoint.path / SHARED)["exported"]
    saved, _ = shards.saved(checkpoint.path)
    into = {name: torch.empty(saved[name].shape, dtype=saved[name].dtype) for name in set(exported.values())}
    shards.read(checkpoint.path, into)
    return {key: into[name] for key, name in exported.items()}


def _safetensors() -> Callable[[dict[str, Tensor], Path], None]:
    try:
        from safetensors.torch import save_file
    except ImportError:
        raise CheckpointError(
            "writing .safetensors needs the extra: pip install 'training-guard[safetensors]'; "
            "a file with another ending, such as .pt, needs nothing"
        ) from None

    def write(weights: dict[str, Tensor], file: Path) -> None:
        """Each name with memory of its own, as the format wants it."""
        seen: set[int] = set()
        own = {}
        for key, tensor in weights.items():
            own[key] = tensor.clone() if tensor.data_ptr() in seen else tensor
            seen.add(tensor.data_ptr())
        save_file(own, os.fspath(file), metadata={"format": "pt"})

    return write
