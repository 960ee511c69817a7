"""Options of commands, made of settings, functions of the API and parameters of problems; and what all commands do.

A command is a function of keyword arguments that gives an Outcome; `takes` gives it the signature from which typer makes its
options, checks before any work that its files can be written, and writes, prints and exits afterwards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from copy import copy
from functools import partial, wraps
from inspect import Parameter as Argument
from inspect import Signature, signature
from io import BytesIO
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from typer import Argument as TyperArgument
from typer import Exit, Option

from trainplan.api.keywords import texts_of
from trainplan.api.requests import PlanRequest, SearchOptions
from trainplan.command import render
from trainplan.command.helping import HELP_ALL, show_all
from trainplan.formulations.parameters import Parameter, flag_of
from trainplan.profiling.base.arguments import UNIONS
from trainplan.profiling.base.dtypes import DTYPE_BYTES
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import check_different, check_writable, write_whole
from trainplan.profiling.base.quantities import parse_tokens
from trainplan.profiling.shipped import shipped
from trainplan.solvers.core import limits
from trainplan.solvers.core.result import Result

FINE, INFEASIBLE, STOPPED = 0, 1, 3
ENDED = 4  # a run that was asked to end, with its checkpoint
# Options that name files of an Outcome.
WRITTEN = ("output", "best_output", "uniform_output", "save_profile", "trace", "picture")
CHECKED = (*WRITTEN, "journal")
MOST_DIGITS = 1000  # of a method's option that is read as a number; Python reads none of several thousand


class Outcome(NamedTuple):
    """What a command has for its user.

    content: all of it, for `--json`, or what makes it. show: what prints it for people. files: by the option that names the
    file, what makes its text or its matplotlib Figure. code: the exit code.
    """

    content: Any
    show: Callable[[], None]
    files: Mapping[str, Callable[[], Any]] = {}
    code: int = FINE


def printed(outcome: Outcome, written: list[Path], as_json: bool) -> None:
    """An outcome on standard output, and which files were written."""
    if as_json:
        print(json.dumps(content_of(outcome), indent=2))
        return
    outcome.show()
    render.pairs([("written", str(target)) for target in written])


def content_of(outcome: Outcome) -> Any:
    """An outcome as plain values."""
    return outcome.content() if callable(outcome.content) else outcome.content


PRESENT: ContextVar[Callable[[Outcome, list[Path], bool], None]] = ContextVar("PRESENT", default=printed)
Command = Callable[..., None]
SUBJECT, CHOICES, SEARCHING, OUTPUT = "What to plan for", "What is chosen, or fixed", "Search", "Output"


def flag(
    name: str,
    kind: Any,
    about: str,
    default: Any = None,
    *,
    names: tuple[str, ...] = (),
    values: Callable[[], Iterable[str]] | None = None,
    parser: Callable[[str], Any] | None = None,
) -> Argument:
    """An option of a command. kind: its type; default: Argument.empty where it must be given; names: default --name.
    values: those that the shell completes. parser: makes the value of its text, and raises InputError."""
    words = names or (flag_of(name),)
    complete = None if values is None else lambda: list(values())
    option = Option(*words, help=_plain(about), autocompletion=complete, parser=parser, metavar="TOKENS" if parser else None)
    return Argument(name, Argument.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


def word(name: str, kind: Any, about: str, default: Any = Argument.empty, metavar: str | None = None) -> Argument:
    """A positional argument of a command. metavar: what the help calls it, if not by its name."""
    argument = TyperArgument(help=_plain(about), metavar=metavar)
    return Argument(name, Argument.KEYWORD_ONLY, default=default, annotation=Annotated[kind, argument])


def _plain(about: str) -> str:
    """A text that means no markup: typer reads help texts as rich's."""
    return about.replace("[", "\\[")


def panel(title: str, arguments: Iterable[Argument]) -> list[Argument]:
    """The same options under a title of their own in the help."""
    titled = []
    for argument in arguments:
        kind, option = argument.annotation.__origin__, copy(argument.annotation.__metadata__[0])
        option.rich_help_panel = title
        titled.append(argument.replace(annotation=Annotated[kind, option]))
    return titled


def takes(*groups: Iterable[Argument]) -> Callable[[Callable[..., Outcome]], Command]:
    """Makes a command of a function of keyword arguments and these groups of options, `--json` and `--help-all`; of one name,
    the last.

    The function gets the options but for `--json` and, unless it names them, those of WRITTEN; for `--option` it gets the
    method's options themselves.
    """
    arguments = {argument.name: argument for group in (*groups, [JSON, ALL]) for argument in group}

    def command_of(function: Callable[..., Outcome]) -> Command:
        apart = [name for name in WRITTEN if name in arguments and name not in signature(function).parameters]

        @wraps(function)
        def command(**values: Any) -> None:
            check_targets({name: path for name in CHECKED if (path := values.get(name)) is not None})
            values.pop(ALL.name, None)  # which has ended the command before
            as_json, targets = values.pop("as_json"), {name: values.get(name) for name in WRITTEN}
            options = method_options(values.pop("option", None), values)
            outcome = function(**{name: value for name, value in values.items() if name not in apart}, **options)
            written = {target: make for name, make in outcome.files.items() if (target := targets[name])}
            for target, make in written.items():
                write(target, make())
            PRESENT.get()(outcome, [*written], as_json)
            raise Exit(outcome.code)

        del command.__wrapped__  # whose annotations typer would read
        command.__doc__ = _plain("\n\n".join(" ".join(part.split()) for part in (function.__doc__ or "").split("\n\n")))
        command.__signature__ = Signature([*arguments.values()])  # type: ignore[attr-defined]
        command.__annotations__ = {name: argument.annotation for name, argument in arguments.items()}
        return command

    return command_of


class Special(NamedTuple):
    """What an option of a name has in the command alone: its flags, values that the shell completes, a parser of its text, and
    another form that the text may have, after the one that Python takes, too."""

    flags: tuple[str, ...] = ()
    values: Callable[[], Iterable[str]] | None = None
    parser: Callable[[str], Any] | None = None
    also: tuple[str, str] = ("", "")


def options_of(source: Callable[..., Any], *names: str, others: Iterable[Callable[..., Any]] = ()) -> list[Argument]:
    """An option for each field of a class of settings, or parameter of a function, that has a default: its name, type and
    default are those in its signature, its help is the first paragraph of what its docstring says of it.

    names: those that become options, in this order; all of a class, if none are given. others: further classes, to whose
    fields the docstring refers.
    """
    hints, texts, parameters = get_type_hints(source), texts_of(source), signature(source).parameters
    known = {name for kind in (source, *others) for name in signature(kind).parameters}
    made = []
    for name in names or texts:
        special, default, kind = SPECIAL.get(name, Special()), parameters[name].default, _kind(name, hints[name])
        flags = (f"{flag_of(name)}/--no-{flag_of(name)[2:]}",) if kind is bool and default is None else special.flags
        about = _in_flags(texts[name].partition("\n\n")[0], known).replace(*special.also)
        kind = kind | None if default is None else kind
        made.append(flag(name, kind, about, default, names=flags, values=special.values, parser=special.parser))
    return made


def _kind(name: str, wanted: Any) -> Any:
    """What the command reads where Python takes a value of an annotation: a text for a model or a cluster, which may be a name,
    and for whatever may be a text or a number; a path for a file; else the value itself."""
    kinds = [kind for kind in get_args(wanted) if kind is not NoneType] if get_origin(wanted) in UNIONS else [wanted]
    if any(get_origin(kind) is PathLike for kind in kinds):
        return str if name in ("model", "cluster") else Path
    return str if str in kinds or get_origin(wanted) is Literal else kinds[0]


def _in_flags(text: str, names: Collection[str]) -> str:
    """What a docstring says of a parameter, as a help: other parameters as flags, and the default in brackets at the end."""
    flagged = re.sub(r"`(\w+)`", lambda match: flag_of(match[1]) if match[1] in names else match[0], text)
    return re.sub(r" \(default: (.+)\)\.$", r". [default: \1]", flagged)


def flags_of(parameters: Iterable[Parameter]) -> list[Argument]:
    """An option for each parameter of a problem; the default stands in the help, and is put in by the problem."""
    return panel(CHOICES, map(_flag_of, parameters))


def _flag_of(parameter: Parameter) -> Argument:
    name, default, about = parameter.flag, parameter.default, parameter.about[0].upper() + parameter.about[1:]
    if parameter.type is bool:
        both = f"{name}/--no-{name[2:]}"
        return flag(parameter.name, bool | None, about + ".", None, names=(both if default else name,))
    about += f": {', '.join(parameter.choices)}." if parameter.choices else "."
    about += "" if default is None else f" [default: {default}]"
    kind = list[parameter.type] | None if parameter.many else parameter.type | None  # type: ignore[name-defined]
    return flag(parameter.name, kind, about, None, names=(name,), values=lambda: parameter.choices)


def cluster_names() -> list[str]:
    """Names of clusters that the shell completes: those shipped, and nodes of every kind of device."""
    from trainplan.profiling.clusters.nodes import completions  # which reads all data sheets: only when the shell asks

    return [*shipped("clusters"), *completions()]


REQUIRED = Argument.empty
SPECIAL = {
    "model": Special(values=partial(shipped, "models")),
    "cluster": Special(values=cluster_names),
    "sequence": Special(("--sequence", "--seq"), parser=parse_tokens, also=("such as 8192", "such as 8192 or 8k")),
    "dtype": Special(values=lambda: DTYPE_BYTES),
}
SUBJECT_NAMES = ("model", "cluster", "batch", "memory", "reserve", "sequence", "dtype", "profile", "measure")
REQUEST = panel(SUBJECT, options_of(PlanRequest, *SUBJECT_NAMES))
OR_PROFILE = " A --profile may stand in for it."
MODEL_HELP, CLUSTER_HELP = (option.annotation.__metadata__[0].help.removesuffix(OR_PROFILE) for option in REQUEST[:2])
WORDS = [
    word("model_word", str | None, MODEL_HELP + " Also as --model.", None, "MODEL"),
    word("cluster_word", list[str] | None, CLUSTER_HELP + " Also as --cluster.", None, "CLUSTER"),  # such as 8x8 h100
]


def from_words(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a command that takes WORDS, with `model` and `cluster` from them.
    Raises InputError where both are given."""
    named = {"model": values.pop("model_word"), "cluster": " ".join(values.pop("cluster_word") or []) or None}
    for name, value in named.items():
        if value is not None and values[name] is not None:
            problem = f"is {values[name]!r}, and {value!r} is given by position"
            raise InputError("command line", flag_of(name), problem, "give one of the two")
    return values | {name: value for name, value in named.items() if value is not None}


OPTION = flag("option", list[str] | None, "NAME=VALUE, an option of the method; may be repeated.")
LIMITS = options_of(SearchOptions, "time_limit", "solver_memory", "gap", "seed", "cold")
SEARCH = panel(SEARCHING, [*options_of(SearchOptions, "method"), OPTION, *LIMITS])
EACH_LIMIT = flag("time_limit", float, "Seconds of each search.", limits.TIME_LIMIT_S)
PICTURE = flag("picture", Path | None, "Draw it here (.png, .svg or .pdf); needs the plot extra.")
JSON = flag("as_json", bool, "Print JSON, and nothing else, to standard output.", False, names=("--json",))
ALL = Argument(
    "help_all",
    Argument.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[bool, Option(HELP_ALL, is_eager=True, callback=show_all, help="Show every option and exit.")],
)


def value_of(name: str, words: Iterable[str], default: str) -> str:
    """The value of an option among a command's words, before they are parsed: it may say which other options there are."""
    rest = list(words)
    for index, text in enumerate(rest):
        if text.startswith(f"{name}="):
            return text.removeprefix(f"{name}=")
        if text == name and index + 1 < len(rest):
            return rest[index + 1]
    return default


def output(about: str, name: str = "output") -> Argument:
    """The option -o. name: of the function's argument; but for "output", it may be a folder."""
    return flag(name, Path | None, about, names=("--output", "-o"))


def method_options(texts: list[str] | None, others: Iterable[str]) -> dict[str, Any]:
    """Options of a method from NAME=VALUE. others: names that are options of the command. Raises InputError."""
    options: dict[str, Any] = {}
    for text in texts or []:
        name, _, value = text.partition("=")
        if not name.isidentifier() or not value:
            raise InputError("command line", "--option", f"is {text!r}", "give NAME=VALUE, such as granularity_bytes=1048576")
        if name in others or name in ("time_limit", "gap", "seed", "progress", "method", "instance"):
            raise InputError("command line", "--option", f"is {text!r}", f"give it as --{name.replace('_', '-')}")
        options[name] = int(value) if value.isdecimal() and len(value) < MOST_DIGITS else value
    return options


def exit_code(result: Result) -> int:
    """Of a result: 3 where a limit or an interrupt stopped it, with a solution or without, or where nothing was found."""
    if result.stopped is not None:
        return STOPPED
    return {"optimal": FINE, "feasible": FINE, "infeasible": INFEASIBLE}.get(result.status, STOPPED)


def check_targets(targets: Mapping[str, Path]) -> None:
    """Raises InputError where a file cannot be written. targets: paths by the name of their option."""
    check_different(*targets.values())
    picture = targets.get("picture")
    if picture is not None and picture.suffix not in (".png", ".svg", ".pdf"):
        raise InputError("command line", "--picture", f"is {str(picture)!r}", "give a name that ends in .png, .svg or .pdf")
    for target in targets.values():
        check_writable(target)


def write(target: Path, made: Any) -> None:
    """Write a text or a matplotlib Figure, whole or not at all."""
    if isinstance(made, str):
        write_whole(target, made)
        return
    image = BytesIO()
    made.savefig(image, format=target.suffix[1:], dpi=150)
    write_whole(target, image.getvalue())
