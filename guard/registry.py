"""Where plug-ins are found: built-in modules, entry points, and decorators."""

from __future__ import annotations

import importlib
import inspect
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

    Attributes:
        failed: name of an installed plug-in that cannot be used -> why. The others are not affected.
    """

    def __init__(self, kind: str, package: str, group: str) -> None:
        self.kind, self.package, self.group = kind, package, group
        self._found: dict[str, type[T]] = {}
        self._origin: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self._loaded = False

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Class decorator that makes a plug-in known to YAML under `name`.

        Raises:
            UsageError: the name is taken by another class (names both origins), or this is no class with parameters.
        """

        def add(cls: type[T]) -> type[T]:
            self._check(name, cls)
            origin = f"{cls.__module__}.{cls.__qualname__}"
            if not origin.startswith(f"{self.package}."):
                self._load_built_in()  # their names are taken first
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

    def page(self, name: str) -> str:
        """The docstring of `name`: the class's own, else its module's. Empty if there is none."""
        cls = self.get(name)
        module = inspect.getmodule(cls)
        return inspect.cleandoc((cls.__doc__ if cls else None) or (module.__doc__ if module else None) or "")

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted(self._found))

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        self._load_built_in()
        for point in entry_points(group=self.group):
            try:
                self.register(point.name)(point.load())
            except Exception as error:  # noqa: BLE001 - whatever somebody else's module raises
                what = "" if isinstance(error, UsageError) else f"{type(error).__name__}: "
                self.failed[point.name] = f"{what}{error} (entry point {point.value})"

    def _load_built_in(self) -> None:
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            if not module.name.startswith("_"):
                importlib.import_module(f"{self.package}.{module.name}")

    def _check(self, name: str, cls: object) -> None:
        if not issubclass(getattr(cls, "Params", object), Params):
            base = f"guard.{self.kind.capitalize()}"
            raise UsageError(
                f"{self.kind} {name!r} must be a class derived from {base}, and its `Params` from "
                f"{base}.Params; found {cls!r}"
            )


class Params(BaseModel):
    """Base of a plug-in's parameters as YAML gives them. Unknown keys are errors; values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)
