"""The `trainplan` command. Exit codes: 0 fine, 1 infeasible or violated, 2 bad input, 3 stopped by a limit or an interrupt, 4 a
run that was asked to end (SIGTERM) and has written its checkpoint.

A command's module is imported when it is called, so that `trainplan --help` need not wait for solvers and problems.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, NoReturn, TextIO

import typer

from trainplan.command.ending import BAD_INPUT, FINE, STOPPED, OutputError, stop, tell
from trainplan.command.helping import COMMON, HELP_ALL, HelpedCommand, called, show_all
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, InputWarning, MissingExtra

INTERRUPTED = 130  # what typer makes of Ctrl-C
HELP = (
    "Plan distributed Transformer training, prove how good the plan is, and run it.\n\n"
    "Exit codes: 0 fine, 1 infeasible or violated, 2 bad input, 3 stopped by a limit or an interrupt, 4 a run that was asked "
    "to end (SIGTERM) and has written its checkpoint."
)
# By task: a command's name, the module of this package that has it, and what it does.
TASKS = {
    "Plan": {
        "plan": ("planning", "Find the best plan for a model on a cluster, with its prediction and a proof of how good it is."),
        "fit": ("planning", "Say whether a model fits on a cluster, and the least memory that it needs."),
        "place": ("planning", "plan --like amp: degrees, placement and shares on a cluster of mixed devices."),
        "partition": ("planning", "plan --like autopipe: a pipeline cut at sub-layers, with sliced micro-batches."),
        "switch": ("planning", "plan --like h3t: what every sub-layer recomputes, offloads and prefetches."),
        "throughput": ("running", "Find the batch size with the largest throughput, for many planners; or compare plans."),
    },
    "Look at plans and run them": {
        "simulate": ("running", "Simulate one training step of a plan, or of a partition, pass by pass."),
        "data": ("running", "Write a file of tokens to train on, from texts."),
        "run": ("running", "Run a plan: training steps on local processes, compared with one process."),
        "trial": ("running", "Run plans for a few steps on this machine, and pick the fastest."),
        "export": ("running", "Write a plan's pipeline for another runtime."),
        "explain": ("plan_files", "Say why a plan is as it is, or what two plans differ in."),
        "report": ("plan_files", "Write a plan's report: one page with its timeline, memory, bound and comparison."),
        "import-run": (
            "importing",
            "Judge what another runtime runs now: its prediction, how good it is, and what to change first.",
        ),
        "compare": ("plan_files", "Compare plans, or a plan with the log of its run."),
        "compare-planners": ("plan_files", "Say what each paper's planner loses on a model and a cluster."),
        "validate": ("validating", "Compare predictions of runs with what was measured."),
        "mcp": ("serving", "Serve plan, fit, explain, import-run and export to an assistant (MCP)."),
    },
    "Problems by themselves": {
        "build": ("problems", "Make an instance of a problem from a model and a cluster, or from a profile."),
        "solve": ("problems", "Solve an instance with one method; the answer is checked."),
        "compare-methods": ("problems", "Solve an instance with several methods, each checking the others."),
        "frontier": ("problems", "Solve an instance under several memory limits: time against memory."),
        "check": ("problems", "Check the programs of a plan, or a solution against an instance."),
        "methods": ("problems", "List the methods for a problem."),
        "schema": ("problems", "Print the JSON Schema of a file format."),
    },
}
COMMANDS = {name: command for commands in TASKS.values() for name, command in commands.items()}
ALIASES = {"place", "partition", "switch"}  # of `plan --like`, which `trainplan --help-all` lists, too
NUMBERS = "Models, clusters, profiles"
GROUPS = {
    "model": ("catalogue:models", "Models: list, show."),
    "cluster": ("catalogue:clusters", "Clusters: list, kinds, show, detect."),
    "profile": ("profiles:app", "Profiles: estimate, measure, import, show."),
}
COMPLETION = "_TRAINPLAN_COMPLETE"  # set by the shell, with the words so far in one of the other two
COMPLETED_WORDS = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")


def application(words: Sequence[str]) -> typer.Typer:
    """The command with every name in its help; only what the words call for is imported."""
    app = typer.Typer(
        name="trainplan",
        help=HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_application)
    named = next((word for word in words if not word.startswith("-")), None)
    hidden = set() if HELP_ALL in words else ALIASES
    for task, commands in TASKS.items():
        for name, (module, about) in commands.items():
            if name == named:
                function = import_module(f"trainplan.command.{module}").command(name, words)
                app.command(name, cls=HelpedCommand, rich_help_panel=task)(function)
            else:
                app.command(name, help=about, rich_help_panel=task, hidden=name in hidden)(_uncalled)
    for name, (target, about) in GROUPS.items():
        module, attribute = target.split(":")
        if name == named:
            app.add_typer(getattr(import_module(f"trainplan.command.{module}"), attribute), rich_help_panel=NUMBERS)
        else:
            group = typer.Typer(name=name, help=about)
            group.command("list")(_uncalled)
            app.add_typer(group, rich_help_panel=NUMBERS)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        from trainplan import __version__

        print(f"trainplan {__version__}")
        raise typer.Exit


def _application(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
    help_all: Annotated[
        bool, typer.Option(HELP_ALL, callback=show_all, is_eager=True, help="Show the short names of presets, too, and exit.")
    ] = False,
) -> None:
    """Options of the whole command."""


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
    """Shows a warning as one line on standard error, without the file and line of ours that it comes from."""
    text = message.error.command_text if isinstance(message, InputWarning) else f"{category.__name__}: {message}"
    tell(f"trainplan: warning: {text}")


def _refused(error: Any) -> tuple[str, dict[str, str]]:
    """What is wrong with the words of a command line, and, where a value is of another type, the value; also in fields."""
    param = getattr(error, "param", None)
    name = getattr(error, "option_name", None) or next(iter(getattr(param, "opts", ())), "")
    path, name_of_command = (error.ctx.command_path, called(error.ctx)) if error.ctx else ("trainplan", "")
    helping = f"See `{path} {HELP_ALL if name_of_command in COMMON else '--help'}`."
    refused: list[Any] = getattr(error.__cause__, "errors", list)()
    if refused and param is not None:
        cause = refused[0].get("ctx", {}).get("error")  # of a parser of ours
        problem, fix = f"is {refused[0]['input']!r}", _fix_for(refused[0]["msg"])
        problem, fix = (cause.problem, cause.fix) if isinstance(cause, InputError) else (problem, fix)
        text = f"{name} {problem}; {fix}."
    else:
        text, fix = str(error.format_message()), ""
        problem = text
    fields = {"where": COMMAND_LINE, "field": name, "problem": problem, "fix": fix or helping}
    return text and f"{text} {helping}", fields


def _fix_for(message: str) -> str:
    """What to give instead, made of pydantic's message about a value of another type."""
    text = message.replace("Input should be", "give").partition(", unable to")[0]
    return text.replace("a valid integer", "a whole number").replace("a valid number", "a number")


def _words() -> list[str]:
    """The words of the command line; where the shell asks for completions, those that it has so far."""
    if COMPLETION not in os.environ:
        return sys.argv[1:]
    return next((os.environ[name].split()[1:] for name in COMPLETED_WORDS if name in os.environ), [])


def run() -> NoReturn:
    """Run the command that the words call for. Raises SystemExit; OutputError and BrokenPipeError of standard output."""
    warnings.showwarning = _warn
    try:
        raise SystemExit(application(_words())(standalone_mode=False) or FINE)
    except _UsageError as error:
        text, fields = _refused(error)
        if not text:  # without any argument, the whole help has been printed
            raise SystemExit(BAD_INPUT) from None
        stop(text, BAD_INPUT, fields)
    except (typer.Abort, KeyboardInterrupt):
        stop("interrupted", STOPPED)
    except InputError as error:
        fields = {"where": error.where, "field": error.command_field, "problem": error.problem, "fix": error.fix}
        stop(error.command_text, BAD_INPUT, fields)
    except MissingExtra as error:
        stop(str(error), BAD_INPUT)
    except SystemExit as error:
        if error.code == INTERRUPTED:
            stop("interrupted", STOPPED)
        raise
    except (BrokenPipeError, OutputError):
        raise
    except Exception as error:
        _stop_for(error)


def _stop_for(error: Exception) -> NoReturn:
    """The line of an error that only some commands can raise; any other error is a fault of ours, and is raised again."""
    from pydantic import ValidationError

    from trainplan.profiling.base.files import as_input_error
    from trainplan.profiling.base.processes import WorkerError

    if isinstance(error, ValidationError):
        stop(as_input_error(error, "input").command_text, BAD_INPUT)
    if isinstance(error, WorkerError):
        stop(str(error), STOPPED)
    raise error
