"""The `trainplan` command: its subcommands by task, and how it ends.

Exit codes: 0 fine, 1 infeasible or violated, 2 bad input, 3 stopped by a limit or an interrupt, 4 a run that was asked to end
(SIGTERM) and has written its checkpoint. A subcommand's module is imported only where that subcommand is called, so that
`trainplan --help` need not wait for solvers and problems.
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
from trainplan.command.helping import COMMON, HELP_ALL, HelpedCommand, command_name, show_all
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, InputWarning, MissingExtra

INTERRUPTED = 130  # typer's exit code for Ctrl-C
HELP = (
    "Plan distributed Transformer training, prove how good the plan is, and run it.\n\n"
    "Exit codes: 0 fine, 1 infeasible or violated, 2 bad input, 3 stopped by a limit or an interrupt, 4 a run that was asked "
    "to end (SIGTERM) and has written its checkpoint."
)
# The commands by task: by its name, the module of this package that has it, and its help in a line.
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
        "report": ("plan_files", "Write the report of a plan (timeline, memory, bound) or of a study (pictures, cells)."),
        "import-run": (
            "importing",
            "Judge what another runtime runs now: its prediction, how good it is, and what to change first.",
        ),
        "compare": ("plan_files", "Compare plans, or a plan with the log of its run."),
        "compare-planners": ("plan_files", "Say what each paper's planner loses on a model and a cluster."),
        "validate": ("validating", "Compare predictions of runs with what was measured."),
        "mcp": ("serving", "Serve plan, fit, explain, import-run and export to an assistant (MCP)."),
    },
    "Studies": {
        "study": ("studies", "Run batches of experiments: requests or instances, times methods, limits and seeds."),
        "sweep": ("sweeping", "Say what other memory, devices, links or batch would change, and what one more is worth."),
        "results": ("study_results", "Sum up the results of a study, or query them in SQL."),
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
ALIASES = {"place", "partition", "switch"}  # short names of `plan --like ...`, which only `trainplan --help-all` lists
NUMBERS = "Models, clusters, profiles, instances"
# Commands with subcommands: by name, "module:attribute" of the typer application, or of a function that makes it of the command
# line's words; and its help in a line.
GROUPS = {
    "model": ("catalogue:models", "Models: list, show."),
    "cluster": ("catalogue:clusters", "Clusters: list, kinds, show, detect."),
    "profile": ("profiles:app", "Profiles: estimate, measure, import, show."),
    "library": ("library:application", "The library of instances: list, show, get, run, check, add."),
}
COMPLETION = "_TRAINPLAN_COMPLETE"  # an environment variable that the shell sets where it wants completions
COMPLETED_WORDS = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")  # one of these has the words that were typed so far


def application(words: Sequence[str]) -> typer.Typer:
    """The typer application for a command line, given as its words without the program's name.

    The help lists every command, but only the module of the command that the words name is imported; the other commands are
    placeholders that do nothing.
    """
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
                app.command(name, help=about, rich_help_panel=task, hidden=name in hidden)(_placeholder)
    for name, (target, about) in GROUPS.items():
        module, attribute = target.split(":")
        if name == named:
            found = getattr(import_module(f"trainplan.command.{module}"), attribute)
            app.add_typer(found if isinstance(found, typer.Typer) else found(words), rich_help_panel=NUMBERS)
        else:
            group = typer.Typer(name=name, help=about)
            group.command("list")(_placeholder)
            app.add_typer(group, rich_help_panel=NUMBERS)
    return app


def _version(wanted: bool) -> None:
    """The callback of the option `--version`: prints trainplan's version and ends the command by typer.Exit. wanted: whether
    the option was given; nothing happens if it was not."""
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
    """The function from whose signature typer makes the options of `trainplan` itself: --version and --help-all. It does
    nothing, since the callbacks of these options, which print the version or the help and exit, do all the work."""


def _placeholder() -> None:
    """Do nothing: it stands for a command that the help lists but that this command line does not call, so that the command's
    module need not be imported."""


_UsageError: Any = typer.BadParameter.__base__  # errors of typer's own parser, whose class has no public name


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a Python warning as one line on standard error, without the source file and line that it comes from.

    It replaces `warnings.showwarning`, whose parameters it has. message: the warning. category: its class, which is printed
    unless the warning is trainplan's own InputWarning. filename, lineno, file, line: unused.
    """
    text = message.error.command_text if isinstance(message, InputWarning) else f"{category.__name__}: {message}"
    tell(f"trainplan: warning: {text}")


def _usage_error(error: Any) -> tuple[str, dict[str, str]]:
    """The message for an error of typer's parser, such as an unknown option, and the same error as a dict for `--json`.

    error: the exception that typer raised. Returns (message, fields): message is one line for standard error, or empty if typer
    has printed the whole help, since the command line had no argument; fields has where, field (the option), problem and fix.
    """
    param = getattr(error, "param", None)
    name = getattr(error, "option_name", None) or next(iter(getattr(param, "opts", ())), "")
    path, command = (error.ctx.command_path, command_name(error.ctx)) if error.ctx else ("trainplan", "")
    see_help = f"See `{path} {HELP_ALL if command in COMMON else '--help'}`."
    type_errors: list[Any] = getattr(error.__cause__, "errors", list)()  # pydantic's
    if type_errors and param is not None:
        cause = type_errors[0].get("ctx", {}).get("error")  # raised by an option's own parser
        problem, fix = f"is {type_errors[0]['input']!r}", _fix_for(type_errors[0]["msg"])
        problem, fix = (cause.problem, cause.fix) if isinstance(cause, InputError) else (problem, fix)
        text = f"{name} {problem}; {fix}."
    else:
        text, fix = str(error.format_message()), ""
        problem = text
    fields = {"where": COMMAND_LINE, "field": name, "problem": problem, "fix": fix or see_help}
    return text and f"{text} {see_help}", fields


def _fix_for(message: str) -> str:
    """The advice for an option's value of a wrong type, made of pydantic's message about it.

    For example "Input should be a valid integer, unable to parse string as an integer" becomes "give a whole number".
    """
    text = message.replace("Input should be", "give").partition(", unable to")[0]
    return text.replace("a valid integer", "a whole number").replace("a valid number", "a number")


def _words() -> list[str]:
    """The words of the command line after the program's name; if the shell wants completions, the words that were typed so
    far."""
    if COMPLETION not in os.environ:
        return sys.argv[1:]
    return next((os.environ[name].split()[1:] for name in COMPLETED_WORDS if name in os.environ), [])


def run() -> NoReturn:
    """Run the command line of this process, and end it with the command's exit code; an error in the user's input becomes one
    line on standard error.

    Raises SystemExit with the exit code, and OutputError or BrokenPipeError if standard output cannot be written. Any other
    exception is a fault of trainplan, and passes through.
    """
    warnings.showwarning = _warn
    try:
        raise SystemExit(application(_words())(standalone_mode=False) or FINE)
    except _UsageError as error:
        text, fields = _usage_error(error)
        if not text:  # the whole help has been printed, since no argument was given
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
    """End the command with one line on standard error for an error that few commands raise; raise any other exception again.

    A ValidationError of pydantic ends it with exit code 2 (bad input), a WorkerError of a run's process with 3 (stopped). The
    classes are imported here, not at the module's top, since most command lines never need them.
    """
    from pydantic import ValidationError

    from trainplan.profiling.base.files import as_input_error
    from trainplan.profiling.base.processes import WorkerError

    if isinstance(error, ValidationError):
        stop(as_input_error(error, "input").command_text, BAD_INPUT)
    if isinstance(error, WorkerError):
        stop(str(error), STOPPED)
    raise error
