"""`--help` of commands with many options: the common ones, and with `--help-all` every one."""

from __future__ import annotations

from copy import copy
from typing import Any

import typer
from typer.core import TyperCommand

from trainplan.command.examples import example

HELP_ALL = "--help-all"
MOST = 10  # options that a short help shows, besides --json, --help and --help-all
ALWAYS = ("as_json", "help_all")
LIMITS = ("time_limit", "gap")
REQUEST = ("model", "cluster", "batch", "sequence", "memory", "dtype")
# By command: the options that its short help shows, in this order; a command that is not here shows all of its options.
COMMON: dict[str, tuple[str, ...]] = {
    "plan": ("batch", "sequence", "for_", "memory", "precision", "devices", "what_if", "time_limit", "output", "details"),
    "fit": ("batch", "sequence", "for_", "memory", "reserve", "dtype", "precision", "zero", "host"),
    "place": (*REQUEST, "uneven_shares", *LIMITS, "output"),
    "partition": (*REQUEST, "pipeline", "micro_batches", "time_limit", "output"),
    "switch": (*REQUEST, *LIMITS, "output", "picture"),
    "simulate": ("cluster", "for_", "profile", "schedule", "solution", "time_limit", "trace", "picture"),
    "run": ("steps", "data", "scale_down", "dtype", "device", "learning_rate", "checkpoint", "resume", "metrics", "output"),
    "trial": (*REQUEST, "top", "steps", "scale_down", "output"),
    "import-run": ("cluster", "model", "batch", "sequence", "settings", "memory", "search", "time_limit", "values", "output"),
    "compare-planners": (*REQUEST, "reserve", *LIMITS, "profile"),
    "throughput": ("model", "cluster", "sequence", "memory", "dtype", "planner", "step", *LIMITS, "picture"),
    "build": (*REQUEST, "profile", "measure", "output"),
    "profile measure": ("model", "cluster", "rows", "tp", "sequence", "dtype", "device", "budget", "journal", "output"),
}


def show_all(context: typer.Context, asked: bool) -> None:
    """Print the whole help of a command, where it is asked for, and end."""
    if asked and not context.resilient_parsing:
        context.meta[__name__] = True
        typer.echo(context.get_help())
        raise typer.Exit


class HelpedCommand(TyperCommand):
    """A command whose `--help` ends with its example; of one in COMMON, it has the common options alone, as one panel, the
    first paragraph of what it does, and how many more options there are. All options may be given all the same."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        name = called(ctx)
        shown, options = copy(self), {param.name: param for param in self.params if param.param_type_name == "option"}
        arguments = [param for param in self.params if param.param_type_name == "argument"]
        shown.epilog = example(name)
        if name not in COMMON or len(options) <= MOST + len(ALWAYS):
            shown.params = [param for param in self.params if param.name != "help_all"]
        elif __name__ not in ctx.meta:
            brief = [copy(options[each]) for each in (*COMMON[name], *ALWAYS) if each in options]
            for option in brief:
                option.rich_help_panel = None  # type: ignore[attr-defined]
            shown.params = [*arguments, *brief]
            shown.help = (self.help or "").split("\n\n")[0]
            shown.epilog += f"\n\n{len(options) - len(brief)} more options: trainplan {name} {HELP_ALL}"
        TyperCommand.format_help(shown, ctx, formatter)


def called(context: Any) -> str:
    """A command as it is called after the program's name, such as `profile show`."""
    names = list[str]()
    while context.parent is not None:
        names.insert(0, context.info_name)
        context = context.parent
    return " ".join(names)
