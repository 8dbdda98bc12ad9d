"""Values as plain ones that `torch.load(weights_only=True)` reads, and back.

Numbers, text, bytes, None, lists, and mappings from text stay as they are. Everything else becomes a mapping with the
key ``~`` that says what it was. Tensors are taken out and referred to by name.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

_KIND = "~"
_AS_THEY_ARE = frozenset({type(None), bool, int, float, complex, str, bytes})
_SEQUENCES: dict[type, tuple[str, Callable[[list[Any]], Any]]] = {
    tuple: ("tuple", tuple),
    set: ("set", set),
    frozenset: ("frozenset", frozenset),
    torch.Size: ("size", torch.Size),
}
_MAPPINGS: dict[type, tuple[str, Callable[[list[Any]], Any]]] = {
    dict: ("dict", dict),
    OrderedDict: ("ordered", OrderedDict),
    Counter: ("counter", lambda pairs: Counter(dict(pairs))),
}
_FACTORIES: dict[str, Any] = {f.__name__: f for f in (dict, list, set, int, float)}
_MAKE = dict((*_SEQUENCES.values(), *_MAPPINGS.values()))

Keep = Callable[[str, Tensor], str]


class UnportableError(TypeError):
    """A value that is not plain data. Says where and what."""


class Encoder:
    """From values to plain ones.

    Args:
        keep: takes a tensor and the name it should have, returns the name it has.
        live: identity of a live object -> what stands for it, plain.
        classes: data classes that may occur, by name.
    """

    def __init__(self, keep: Keep, live: Mapping[int, Any], classes: Mapping[str, type]) -> None:
        self._keep, self._live = keep, live
        self._names = {cls: name for name, cls in classes.items()}

    def encode(self, value: Any, where: str) -> Any:
        """The plain value.

        Args:
            where: its name; tensors inside are called after it.

        Raises:
            UnportableError: something in it is no plain data.
        """
        type_ = type(value)
        if type_ in _AS_THEY_ARE:
            return value
        if id(value) in self._live:
            return {_KIND: "live", "name": self._live[id(value)]}
        if isinstance(value, Tensor):
            return self._tensor(value, where)
        if type_ is list:
            return [self.encode(v, f"{where}.{i}") for i, v in enumerate(value)]
        if type_ in _SEQUENCES:
            return self._tagged(_SEQUENCES[type_][0], list(value), where)
        if type_ is deque:
            return self._tagged("deque", list(value), where) | {"maxlen": value.maxlen}
        if type_ in _MAPPINGS or type_ is defaultdict:
            return self._mapping(value, where)
        if type_ in self._names:
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            return {_KIND: "data", "class": self._names[type_], "of": self.encode(fields, where)}
        if type_ in (torch.dtype, torch.device):
            return {_KIND: type_.__name__, "of": str(value).removeprefix("torch.")}
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)) and value.dtype.kind in "biufc":
            return self._array(numpy, value, where)
        raise UnportableError(f"{where} is a {type_.__module__}.{type_.__qualname__}, which is no plain data")

    def _tagged(self, kind: str, values: list[Any], where: str) -> dict[str, Any]:
        return {_KIND: kind, "of": self.encode(values, where)}

    def _mapping(self, value: dict[Any, Any], where: str) -> dict[str, Any]:
        attributes = vars(value) if hasattr(value, "__dict__") else {}
        if type(value) is dict and all(type(k) is str for k in value) and _KIND not in value:
            return {k: self.encode(v, f"{where}.{k}") for k, v in value.items()}
        pairs = [
            [self.encode(k, f"{where}.key {i}"), self.encode(v, f"{where}.{_short(self._live, k)}")]
            for i, (k, v) in enumerate(value.items())
        ]
        if isinstance(value, defaultdict):
            factory = getattr(value.default_factory, "__name__", None)
            if factory is not None and _FACTORIES.get(factory) is not value.default_factory:
                raise UnportableError(f"{where} is a defaultdict of {factory}, which is no plain data")
            return {_KIND: "defaultdict", "of": pairs, "factory": factory}
        encoded = {_KIND: _MAPPINGS[type(value)][0], "of": pairs}
        return encoded | ({"attributes": self.encode(attributes, where)} if attributes else {})

    def _tensor(self, value: Tensor, where: str) -> dict[str, Any]:
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            raise UnportableError(f"{where} is a {value.layout} tensor on {value.device}, which is no plain data")
        if type(value) not in (Tensor, nn.Parameter) and not hasattr(value, "to_local"):
            raise UnportableError(f"{where} is a tensor of the class {type(value).__qualname__}")
        device = {} if value.device.type == "cpu" else {"device": value.device.type}
        return {_KIND: "tensor", "name": self._keep(where, value.detach()), **device}

    def _array(self, numpy: Any, value: Any, where: str) -> dict[str, Any]:
        flat = numpy.frombuffer(bytearray(numpy.ascontiguousarray(value).tobytes()), dtype="uint8")
        one = {} if isinstance(value, numpy.ndarray) else {"scalar": True}
        data = self._tensor(torch.from_numpy(flat), where) if len(flat) else None
        return {_KIND: "array", "dtype": value.dtype.str, "shape": list(value.shape), "of": data, **one}


def decode(
    value: Any, tensors: Callable[[str], Tensor], live: Callable[[Any], Any], classes: Mapping[str, type]
) -> Any:
    """Back from a plain value.

    Args:
        tensors: name -> tensor.
        live: what stands for a live object -> that object.
        classes: data classes by name.

    Raises:
        KeyError: something in it is not known here.
    """

    def back(part: Any) -> Any:
        if isinstance(part, list):
            return [back(p) for p in part]
        if not isinstance(part, dict):
            return part
        if _KIND not in part:
            return {k: back(v) for k, v in part.items()}
        kind, of = part[_KIND], part.get("of")
        if kind == "live":
            return live(part["name"])
        if kind == "tensor":
            tensor = tensors(part["name"])
            return tensor.to(part["device"]) if "device" in part else tensor
        if kind == "deque":
            return deque(back(of), part["maxlen"])
        if kind == "defaultdict":
            return defaultdict(_FACTORIES.get(part["factory"]), back(of))
        if kind == "data":
            return classes[part["class"]](**back(of))
        if kind == "dtype":
            return getattr(torch, of)  # type: ignore[arg-type]
        if kind == "device":
            return torch.device(of)  # type: ignore[arg-type]
        if kind == "array":
            return _array(part, back(of))
        made = _MAKE[kind](back(of))
        for name, attribute in back(part.get("attributes", {})).items():
            setattr(made, name, attribute)
        return made

    return back(value)


def _array(part: dict[str, Any], data: Tensor | None) -> Any:
    import numpy

    raw = b"" if data is None else data.numpy().tobytes()
    array = numpy.frombuffer(bytearray(raw), dtype=part["dtype"]).reshape(part["shape"])
    return array[()] if part.get("scalar") else array


def _short(live: Mapping[int, Any], key: Any) -> str:
    """A key as a part of a name."""
    return str(live.get(id(key), key))[:80]
