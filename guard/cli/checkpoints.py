"""`guard checkpoints`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guard.cli import _runs
from guard.cli._runs import AsJson, ReadDir, find_run
from guard.cli._say import NO_RUN, PROBLEMS, USAGE, ago, fail, note, out, out_json, out_table
from guard.units import show_bytes

if TYPE_CHECKING:
    from guard.checkpoints import Checkpoint

EXAMPLES = (
    "guard checkpoints runs/exp1",
    "guard checkpoints runs/exp1 --verify",
    "guard checkpoints runs/exp1 --export 4000 weights.pt",
)


def command(
    run_dir: ReadDir = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read every file again; say which are damaged.")] = False,
    export: Annotated[
        tuple[int, Path] | None,
        typer.Option("--export", metavar="STEP FILE", help="Write the weights of a checkpoint (.pt, .safetensors)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List, verify or export a run's checkpoints on disk."""
    path = find_run(run_dir)
    folder = _folder(path)
    from guard.checkpoints import manifest

    try:
        found = manifest.listing(folder)
    except OSError as error:
        fail(f"{folder} cannot be read: {error.strerror}", NO_RUN)
    if export is not None:
        _export(found.checkpoints, folder, *export)
        return
    damaged = dict(found.refused)
    if verify:
        damaged |= _verified(found.checkpoints)
    if as_json:
        facts = [_facts(c, damaged.get(c.name), verify=verify) for c in found.checkpoints]
        refused = [{"name": name, "reason": why} for name, why in found.refused]
        out_json({"run_dir": str(path), "folder": str(folder), "checkpoints": facts, "refused": refused})
    else:
        _tell(folder, found.checkpoints, damaged, verify=verify)
    if damaged:
        raise typer.Exit(PROBLEMS)


def _folder(run_dir: Path) -> Path:
    """Where its policy puts them."""
    from guard.errors import PolicyError
    from guard.policy.files import Unreadable, read
    from guard.policy.yaml_reader import read_yaml

    path = run_dir / "policy.yaml"
    try:
        named = read_yaml(read(path), path).value["checkpoints"].value["disk"].value["dir"].value
    except (PolicyError, Unreadable, KeyError, TypeError, AttributeError):
        named = "checkpoints"
    return run_dir / str(named)


def _verified(checkpoints: list[Checkpoint]) -> dict[str, str]:
    """Name -> what is damaged in it. One that a running guard removes meanwhile is none."""
    from guard.checkpoints import manifest

    found = {c.name: "; ".join(manifest.damage(c)) for c in checkpoints}
    return {c.name: found[c.name] for c in checkpoints if found[c.name] and c.path.exists()}


def _export(checkpoints: list[Checkpoint], folder: Path, step: int, file: Path) -> None:
    chosen = next((c for c in checkpoints if c.manifest.step == step), None)
    if chosen is None:
        there = ", ".join(str(c.manifest.step) for c in checkpoints) or "none"
        fail(f"there is no checkpoint of step {step} in {folder}; there are: {there}", USAGE)
    if not file.absolute().parent.is_dir():
        fail(f"there is no directory {file.absolute().parent}", USAGE)
    if damage := _verified([chosen]):
        fail(f"{chosen.name} is damaged and was not exported: {damage[chosen.name]}", PROBLEMS)
    from guard.checkpoints.export import export

    count = export(chosen, file)
    note(f"{count:,} tensors of {chosen.name} are in {file}")


def _facts(checkpoint: Checkpoint, damage: str | None, *, verify: bool) -> dict[str, Any]:
    made = checkpoint.manifest
    return {
        "name": checkpoint.name,
        "step": made.step,
        "tick": made.tick,
        "created": made.created,
        "age": _runs.CLOCK.time() - made.created,
        "state": made.state,
        "world": made.world,
        "bytes": made.bytes,
        "tensor_bytes": made.tensor_bytes,
        "left_out": made.left_out,
        "guard": made.guard,
        "torch": made.torch,
        **({"damage": damage} if verify else {}),
    }


def _tell(folder: Path, checkpoints: list[Checkpoint], damaged: dict[str, str], *, verify: bool) -> None:
    if not checkpoints and not damaged:
        out(f"No checkpoints in {folder}.")
        return
    from guard.notify.words import clean

    rows = [
        (
            f"{c.manifest.step:,}",
            f"{c.manifest.tick:,}",
            ago(_runs.CLOCK.time() - c.manifest.created),
            show_bytes(c.manifest.bytes),
            str(c.manifest.world),
            "damaged" if c.name in damaged else c.manifest.state,
        )
        for c in checkpoints
    ]
    if rows:
        out_table(("Step", "Tick", "Age", "Size", "Ranks", "State"), rows, numbers=("Step", "Tick", "Size", "Ranks"))
    for name, why in damaged.items():
        note(f"{name} is damaged: {clean(why, 300)}")
    lacking: dict[str, list[str]] = {}
    for c in checkpoints:
        for sentence in c.manifest.left_out:
            lacking.setdefault(sentence, []).append(c.name)
    for sentence, names in lacking.items():
        note(f"{', '.join(names)}: {clean(sentence, 300)}")
    if verify and not damaged:
        out(f"\nAll {len(checkpoints)} are as they were written." if len(rows) > 1 else "\nIt is as it was written.")
