"""Where plug-ins are found: built-in modules, entry points, and decorators."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from guard.errors import UsageError

T = TypeVar("T")


class Registry(Generic[T]):
    """Name -> class, filled on first use.

    Args:
        kind: ``detector`` or ``action``; used in messages.
        package: built-in plug-ins are the modules of this package.
        group: entry-point group of installed plug-ins.
    """

    def __init__(self, kind: str, package: str, group: str) -> None:
        self.kind, self.package, self.group = kind, package, group
        self._found: dict[str, type[T]] = {}
        self._origin: dict[str, str] = {}
        self._loaded = False

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Class decorator that makes a plug-in known to YAML under `name`.

        Raises:
            UsageError: the name is taken by another class; names both origins.
        """

        def add(cls: type[T]) -> type[T]:
            origin = f"{cls.__module__}.{cls.__qualname__}"
            if self._origin.get(name, origin) != origin:
                raise UsageError(f"two {self.kind}s are called {name!r}: {self._origin[name]} and {origin}; rename one")
            self._found[name], self._origin[name] = cls, origin
            cls.name = name  # type: ignore[attr-defined]
            return cls

        return add

    def get(self, name: str) -> type[T] | None:
        """The class called `name`, or None."""
        self._load()
        return self._found.get(name)

    def origin(self, name: str) -> str:
        """Where `name` comes from, as ``module.Class``."""
        return self._origin[name]

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted(self._found))

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            if not module.name.startswith("_"):
                importlib.import_module(f"{self.package}.{module.name}")
        for point in entry_points(group=self.group):
            self.register(point.name)(point.load())


class Params(BaseModel):
    """Base of a plug-in's parameters as YAML gives them. Unknown keys are errors; values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)
