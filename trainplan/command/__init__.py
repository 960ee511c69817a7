"""The `trainplan` command: the verbs of `trainplan.api` with files, tables, progress and exit codes."""

__all__ = ["main"]


def main() -> None:
    """The entry point of the `trainplan` command: run the command line and end with its exit code.

    It imports inside the function, so that an interrupt during the imports ends the command in one line, too.
    """
    try:
        from trainplan.command.ending import exit_code

        code = exit_code("trainplan.command.app")
    except KeyboardInterrupt:
        from trainplan.command.ending import STOPPED, stop

        stop("interrupted", STOPPED)
    raise SystemExit(code)
