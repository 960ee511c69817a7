"""The `trainplan` command: the verbs of `trainplan.api` with files, tables, progress and exit codes."""

__all__ = ["main"]


def main() -> None:
    """Entry point of the `trainplan` command. What it needs is imported here, where interrupts are awaited."""
    try:
        from trainplan.command.ending import exit_code

        code = exit_code("trainplan.command.app")
    except KeyboardInterrupt:
        from trainplan.command.ending import STOPPED, stop

        stop("interrupted", STOPPED)
    raise SystemExit(code)
