"""The command line: one file per command, torch-free except for doctor, demo and `checkpoints --export`."""

from guard.cli._main import main

__all__ = ["main"]
