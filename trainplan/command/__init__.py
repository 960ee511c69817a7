"""The `trainplan` command: the verbs of `trainplan.api` with files, tables, progress and exit codes."""

from trainplan.command.app import main

__all__ = ["main"]
