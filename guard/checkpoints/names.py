"""Names of a run's live tensors that mean the same in another process."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from guard.checkpoints.state import BufferKey, TrainingState

# Wrappers keep what they wrap under these names; the wrapped layer is called the same without them.
_TRANSPARENT = frozenset({"_orig_mod", "_checkpoint_wrapped_module"})
_PARALLEL = (nn.parallel.DistributedDataParallel, nn.DataParallel)


class Names:
    """One name per parameter and buffer.

    ``model.<path>``, ``buffer.<path>``, ``extra.<name>.model.<path>``, ``extra.<name>.buffer.<path>``, and
    ``loose.<optimizer>.<group>/<index>`` for a parameter that only an optimizer holds. Wrappers for data parallelism
    and compilation leave no trace in them.

    Args:
        state: whose tensors; looked at once.

    Attributes:
        parameters: name -> parameter; tied ones once, under the first of their names.
        buffers: name -> module and name of the buffer in it.
        passing: buffers that are no part of a `state_dict`.
        exported: key in the model's own `state_dict` -> name; tied ones have several keys.
    """

    def __init__(self, state: TrainingState) -> None:
        self.parameters: dict[str, nn.Parameter] = {}
        self.buffers: dict[str, tuple[nn.Module, str]] = {}
        self.passing: set[str] = set()
        self.exported: dict[str, str] = {}
        self._of: dict[int, str] = {}
        for called, top in state.modules.items():
            first = f"extra.{called}." if called else ""
            for path, module in _walk(top, ""):
                self._note_parameters(first, path, module, export=not called)
                self._note_buffers(first, path, module, export=not called)
        for i, optimizer in enumerate(state.optimizers):
            for g, group in enumerate(optimizer.param_groups):
                for k, parameter in enumerate(group["params"]):
                    self._note(f"loose.{i}.{g}/{k}", parameter)
        self._by_key: dict[BufferKey, str] = {(id(m), n): name for name, (m, n) in self.buffers.items()}

    def of(self, thing: object) -> str | None:
        """The name of a parameter, None for anything else."""
        return self._of.get(id(thing))

    def of_buffer(self, key: BufferKey) -> str | None:
        return self._by_key.get(key)

    def live(self, name: str) -> Tensor | None:
        """The tensor of that name, if there is one."""
        if name in self.parameters:
            return self.parameters[name].data
        if name in self.buffers:
            module, inner = self.buffers[name]
            return module._buffers[inner]
        return None

    def _note_parameters(self, first: str, path: str, module: nn.Module, *, export: bool) -> None:
        for name, parameter in module._parameters.items():
            if parameter is not None:
                called = self._note(f"{first}model.{path}{name}", parameter)
                if export:
                    self.exported[path + name] = called

    def _note_buffers(self, first: str, path: str, module: nn.Module, *, export: bool) -> None:
        for name, buffer in module._buffers.items():
            if buffer is None:
                continue
            called = self._of.setdefault(id(buffer), f"{first}buffer.{path}{name}")
            self.buffers.setdefault(called, (module, name))
            if name in module._non_persistent_buffers_set:
                self.passing.add(called)
            elif export:
                self.exported[path + name] = called
        self.passing -= set(self.exported.values())

    def _note(self, name: str, parameter: Tensor) -> str:
        called = self._of.setdefault(id(parameter), name)
        self.parameters.setdefault(called, parameter)  # type: ignore[arg-type]
        return called


def _walk(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """All layers with their paths; one that stands in two places comes twice."""
    yield path, module
    for name, child in module._modules.items():
        if child is not None:
            hidden = name in _TRANSPARENT or (name == "module" and isinstance(module, _PARALLEL))
            yield from _walk(child, path if hidden else f"{path}{name}.")
