"""The `trainplan` command. Exit codes: 0 fine, 1 infeasible or violated, 2 bad input, 3 stopped without an answer.

A command's module is imported when it is called, so that `trainplan --help` need not wait for solvers and problems.
"""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn, TextIO

import typer

from trainplan.profiling.base.errors import InputError, InputWarning, MissingExtra

FINE, BAD_INPUT, STOPPED = 0, 2, 3
INTERRUPTED = 130  # what typer makes of Ctrl-C
HELP = (
    "Plan distributed Transformer training, prove how good the plan is, and run it.\n\n"
    "Exit codes: 0 fine, 1 infeasible or violated, 2 bad input, 3 stopped without an answer."
)
# A command's name, the module of this package that has it, and what it does.
COMMANDS = {
    "plan": ("planning", "Find the best plan for a model on a cluster, with its prediction and its claim."),
    "place": ("planning", "plan --like amp: degrees, placement and shares on a cluster of mixed devices."),
    "partition": ("planning", "plan --like autopipe: a pipeline cut at sub-layers, with sliced micro-batches."),
    "switch": ("planning", "plan --like h3t: what every sub-layer recomputes, offloads and prefetches."),
    "simulate": ("running", "Simulate one training step of a plan, or of a partition, pass by pass."),
    "run": ("running", "Run a plan: training steps on local processes, compared with one process."),
    "trial": ("running", "Run plans for a few steps on this machine, and pick the fastest."),
    "export": ("running", "Write a plan's pipeline for another runtime."),
    "throughput": ("running", "Find the batch size with the largest throughput, for many planners; or compare plans."),
    "build": ("problems", "Make an instance of a problem from a model and a cluster, or from a profile."),
    "solve": ("problems", "Solve an instance with one method; the answer is checked and its bound named."),
    "check": ("problems", "Check a solution against an instance: time, peak memory, violations."),
    "compare": ("problems", "Solve an instance with several methods, or hold plans side by side."),
    "methods": ("problems", "List the methods for a problem."),
    "schema": ("problems", "Print the JSON Schema of a file format."),
}
GROUPS = {
    "profile": ("profiles:app", "Profiles: estimate, measure, import, show."),
    "model": ("catalogue:models", "Models: list, show."),
    "cluster": ("catalogue:clusters", "Clusters: list, show, detect."),
}


def application(words: Sequence[str]) -> typer.Typer:
    """The command with every name in its help; only what the words call for is imported."""
    app = typer.Typer(
        name="trainplan",
        help=HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    called = next((word for word in words if not word.startswith("-")), None)
    for name, (module, about) in COMMANDS.items():
        if name == called:
            function, example = import_module(f"trainplan.command.{module}").command(name, words)
            app.command(name, epilog=example)(function)
        else:
            app.command(name, help=about)(_uncalled)
    for name, (target, about) in GROUPS.items():
        module, attribute = target.split(":")
        if name == called:
            app.add_typer(getattr(import_module(f"trainplan.command.{module}"), attribute))
        else:
            group = typer.Typer(name=name, help=about)
            group.command("list")(_uncalled)
            app.add_typer(group)
    return app


def _uncalled() -> None:
    """Stands in the help for a command that is not called."""


_UsageError: Any = typer.BadParameter.__base__  # typer has a parser of its own, and does not name its errors


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Shows a warning as one line on standard error, without the place in our code that it comes from."""
    text = message.error if isinstance(message, InputWarning) else f"{category.__name__}: {message}"
    print(f"trainplan: warning: {text}", file=sys.stderr)


def _stop(text: str, code: int) -> NoReturn:
    print(f"trainplan: {text}", file=sys.stderr)
    raise SystemExit(code)


def main() -> None:
    """Entry point of the `trainplan` command."""
    warnings.showwarning = _warn
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends its processes as Ctrl-C does
    try:
        raise SystemExit(application(sys.argv[1:])(standalone_mode=False) or FINE)
    except _UsageError as error:
        message = error.format_message()
        helping = error.ctx.command_path if error.ctx else "trainplan"
        # Without any argument the message is the whole help.
        _stop(message if "\n" in message else f"{message} See `{helping} --help`.", BAD_INPUT)
    except typer.Abort:
        _stop("interrupted", STOPPED)
    except (InputError, MissingExtra) as error:
        _stop(str(error), BAD_INPUT)
    except KeyboardInterrupt:
        _stop("interrupted", STOPPED)
    except SystemExit as error:
        if error.code == INTERRUPTED:
            _stop("interrupted", STOPPED)
        raise
    except BrokenPipeError:
        raise SystemExit(FINE) from None
    except Exception as error:
        _stop_for(error)


def _stop_for(error: Exception) -> NoReturn:
    """The line of an error that only some commands can raise; any other error is a fault of ours, and is raised again."""
    from pydantic import ValidationError

    from trainplan.profiling.base.files import as_input_error
    from trainplan.profiling.base.processes import WorkerError

    if isinstance(error, ValidationError):
        _stop(str(as_input_error(error, "input")), BAD_INPUT)
    if isinstance(error, WorkerError):
        _stop(str(error), STOPPED)
    raise error
