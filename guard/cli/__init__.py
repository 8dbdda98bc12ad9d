"""The command line: one file per command, torch-free except for `guard demo` and `guard checkpoints --export`."""

from guard.cli._main import main

__all__ = ["main"]
