"""`guard init`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from guard.cli._say import USAGE, fail, nearest, out

EXAMPLES = ("guard init", "guard init --preset observe policies/careful.yaml")
PRESETS = "default, llm_pretraining, finetuning, vision, reinforcement_learning, observe"


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")] = Path("guard.yaml"),
    preset: Annotated[
        str, typer.Option("--preset", metavar="NAME", help=f"Shipped policy to start from: {PRESETS}.")
    ] = "default",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is already there.")] = False,
) -> None:
    """Write a commented policy to start from."""
    if file.suffix not in (".yaml", ".yml"):
        fail(f"a policy file ends in .yaml; did you mean {file}.yaml?", USAGE)
    from guard.policy.files import shipped

    known = shipped()
    if preset not in known:
        fail(f"no preset is called {preset!r}{nearest(preset, known)}", USAGE)
    text = known[preset].read_text("utf-8")
    again = "" if preset == "default" else f" --preset {preset}"
    head = f"# Written by `guard init{again}`; it is yours now. After each change: guard check {file}\n#\n"
    try:
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if force else os.O_EXCL)
        with os.fdopen(os.open(file, flags, 0o666), "w", encoding="utf-8") as target:
            target.write(head + text)
    except FileExistsError:
        fail(f"{file} is already there; --force replaces it", USAGE)
    except FileNotFoundError:
        fail(f"there is no folder {file.parent}", USAGE)
    except OSError as error:
        fail(f"{file} cannot be written: {error.strerror}", USAGE)
    out(
        f"Wrote {file} from the preset {preset!r}.\n\nNext:\n  guard check {file}\n"
        f"  in the training script: guard.attach(model, optimizer, policy={str(file)!r})"
    )
