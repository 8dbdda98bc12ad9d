"""From ``MODULE:FUNCTION`` on a command line to a set-up; every mistake is a sentence."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from guard.doctor.setup import Setup
from guard.errors import UsageError

_FORM = "give MODULE:FUNCTION, such as train:make or train.py:make; the function takes no arguments"


def load(target: str) -> Setup:
    """Imports the module, calls the function, and takes what it returns.

    Args:
        target: ``package.module:function`` or ``path/to/file.py:function``, from the current directory.

    Raises:
        UsageError: one of these steps failed; says which, where and what is allowed.
    """
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise UsageError(f"{target!r} names no function; {_FORM}")
    module = _module(place)
    function = getattr(module, name, None)
    if function is None:
        known = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        close = difflib.get_close_matches(name, known, n=1)
        guess = f"; did you mean {close[0]!r}?" if close else ""
        raise UsageError(f"{place} has no {name!r}{guess}; {_FORM}")
    if not callable(function):
        raise UsageError(f"{target} is a {type(function).__name__}, not a function; {_FORM}")
    try:
        value = function()
    except Exception as error:
        raise UsageError(f"{target} raised {_what(error)}; {_FORM}") from error
    except SystemExit as error:
        raise UsageError(f"{target} ended the program ({error.code}); it must return the set-up") from error
    return Setup.of(value, target)


def _module(place: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        path = Path(place)
        if not path.is_file():
            raise UsageError(f"there is no file {place}; {_FORM}")
        return _from_file(path)
    except UsageError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (place == error.name or place.startswith(error.name + ".")):
            raise UsageError(f"there is no module {place!r} in {here} or on the path; {_FORM}") from error
        raise UsageError(f"importing {place} raised {_what(error)}") from error
    except Exception as error:
        raise UsageError(f"importing {place} raised {_what(error)}") from error
    except SystemExit as error:
        raise UsageError(
            f"importing {place} ended the program ({error.code}): put what runs under `if __name__ == '__main__':`"
        ) from error


def _from_file(path: Path) -> ModuleType:
    """A script imports what lies beside it, as when it is run."""
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # as an import would have it: worker processes look there
    spec.loader.exec_module(module)
    return module


def _what(error: BaseException) -> str:
    """``ValueError: bad path (data.py:12, in make)``."""
    frames: Any = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    where = f" ({Path(last.filename).name}:{last.lineno}, in {last.name})" if last else ""
    first = str(error).strip().partition("\n")[0][:300]
    return f"{type(error).__name__}: {first}{where}" if first else f"{type(error).__name__}{where}"
