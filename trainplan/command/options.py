"""Options of commands, made of settings classes, functions of the API and parameters of problems; and the steps of any command.

A command is a function of keyword arguments that returns an Outcome. `command_with` gives it the signature from which typer
makes its options; before the function is called it checks that the files can be written, and afterwards it writes them, prints
the outcome and exits.
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

FINE, INFEASIBLE, STOPPED = 0, 1, 3  # exit codes
ENDED = 4  # exit code of a run that was ended by SIGTERM, with its checkpoint written
# Options that name the files of an Outcome.
WRITTEN = ("output", "calibrated_output", "best_output", "uniform_output", "save_profile", "trace", "picture")
CHECKED = (*WRITTEN, "journal")  # options that name files which must be writable
MOST_DIGITS = 1000  # of a method's option that is read as a number at most, since Python refuses several thousand


class Outcome(NamedTuple):
    """The answer of a command to its user: the function of a command returns it, and `command_with` writes its files, prints it
    and exits.

    Attributes:
        content: the JSON-ready answer for `--json` (dicts, lists, texts, numbers), or a function that makes it.
        show: prints the answer for people.
        files: by the name of the option that names a file, a function that makes the file's text, bytes or matplotlib Figure.
        code: the exit code.
    """

    content: Any
    show: Callable[[], None]
    files: Mapping[str, Callable[[], Any]] = {}
    code: int = FINE


def printed(outcome: Outcome, written: list[Path], as_json: bool) -> None:
    """Print a command's outcome on standard output: as JSON if `as_json`, else for people, then with the names of the files
    that the command wrote (`written`)."""
    if as_json:
        print(json.dumps(content_of(outcome), indent=2))
        return
    outcome.show()
    render.pairs([("written", str(target)) for target in written])


def content_of(outcome: Outcome) -> Any:
    """The JSON-ready content of a command's outcome (dicts, lists, texts, numbers); if the outcome has a function that makes
    the content, the function is called."""
    return outcome.content() if callable(outcome.content) else outcome.content


# Presents an outcome; called with it, the files that were written, and whether JSON is wanted.
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
    """An option of a command, as a parameter that `command_with` puts into the signature from which typer makes the command's
    options.

    Args:
        name: the name of the parameter that gets the option's value.
        kind: the parameter's type, which typer reads from the option's text.
        about: the option's help.
        default: its default; Argument.empty if the option must be given.
        names: its flags, such as ("--output", "-o"); if empty, `--name` with dashes.
        values: gives the values that the shell completes.
        parser: makes the value of the option's text; raises InputError. None if typer reads it by its type.
    """
    words = names or (flag_of(name),)
    complete = None if values is None else lambda: list(values())
    option = Option(*words, help=_plain(about), autocompletion=complete, parser=parser, metavar="TOKENS" if parser else None)
    return Argument(name, Argument.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


def word(name: str, kind: Any, about: str, default: Any = Argument.empty, metavar: str | None = None) -> Argument:
    """A positional argument of a command, as a parameter that `command_with` puts into the signature that typer reads.

    name: the name of the parameter that gets the value. kind: its type. about: the help. default: its default; Argument.empty
    if the argument must be given. metavar: what the help calls it; None if that is its name.
    """
    argument = TyperArgument(help=_plain(about), metavar=metavar)
    return Argument(name, Argument.KEYWORD_ONLY, default=default, annotation=Annotated[kind, argument])


def _plain(about: str) -> str:
    """A help text in which brackets are escaped by a backslash, so that typer does not take them for rich's markup."""
    return about.replace("[", "\\[")


def panel(title: str, arguments: Iterable[Argument]) -> list[Argument]:
    """Copies of a command's options that the help shows together, as a panel with the given title."""
    titled = []
    for argument in arguments:
        kind, option = argument.annotation.__origin__, copy(argument.annotation.__metadata__[0])
        option.rich_help_panel = title
        titled.append(argument.replace(annotation=Annotated[kind, option]))
    return titled


def command_with(*groups: Iterable[Argument]) -> Callable[[Callable[..., Outcome]], Command]:
    """A decorator that makes a command of a function that takes keyword arguments and returns an Outcome.

    groups: lists of options and positional arguments; of arguments with one name the last counts; `--json` and `--help-all` are
    added. The command calls the function with the options' values as keywords, except `--json`, `--help-all`, and the options
    of output files (WRITTEN) that are not among the function's parameters. The option `--option NAME=VALUE` becomes keywords
    NAME. Afterwards the command writes the outcome's files, prints the outcome, and raises typer.Exit with its code.
    """
    arguments = {argument.name: argument for group in (*groups, [JSON, ALL]) for argument in group}

    def command_of(function: Callable[..., Outcome]) -> Command:
        withheld = [name for name in WRITTEN if name in arguments and name not in signature(function).parameters]

        @wraps(function)
        def command(**values: Any) -> None:
            check_targets({name: path for name in CHECKED if (path := values.get(name)) is not None})
            values.pop(ALL.name, None)  # its callback has ended the command, where it was given
            as_json, targets = values.pop("as_json"), {name: values.get(name) for name in WRITTEN}
            options = method_options(values.pop("option", None), values)
            outcome = function(**{name: value for name, value in values.items() if name not in withheld}, **options)
            written = {target: make for name, make in outcome.files.items() if (target := targets[name])}
            for target, make in written.items():
                write(target, make())
            PRESENT.get()(outcome, [*written], as_json)
            raise Exit(outcome.code)

        del command.__wrapped__  # typer would read the annotations of the function, not of the command
        command.__doc__ = _plain("\n\n".join(" ".join(part.split()) for part in (function.__doc__ or "").split("\n\n")))
        command.__signature__ = Signature([*arguments.values()])  # type: ignore[attr-defined]
        command.__annotations__ = {name: argument.annotation for name, argument in arguments.items()}
        return command

    return command_of


class Special(NamedTuple):
    """Properties that an option of the command has, but that the parameter of the Python verb with its name has not; the table
    SPECIAL has one for each such parameter.

    Attributes:
        flags: the option's flags; empty for the default --name.
        values: gives the values that the shell completes.
        parser: makes the value of the option's text; raises InputError.
        also: a piece of the Python parameter's text, and its replacement in the option's help, which names another form of the
            value.
    """

    flags: tuple[str, ...] = ()
    values: Callable[[], Iterable[str]] | None = None
    parser: Callable[[str], Any] | None = None
    also: tuple[str, str] = ("", "")


def options_of(source: Callable[..., Any], *names: str, others: Iterable[Callable[..., Any]] = ()) -> list[Argument]:
    """Options of a command that are made of a settings class's fields, or of a function's parameters.

    An option's name, type and default are those in the signature; its help is the first paragraph of the parameter's text in
    the docstring.

    Args:
        source: the class or the function, with a docstring in Google's style.
        *names: the fields or parameters that become options, in this order; if there are none, all that the docstring
            describes.
        others: further classes; a field of theirs that a parameter's text mentions as `name` is written as a flag in the help,
            too.
    """
    hints, texts, parameters = get_type_hints(source), texts_of(source), signature(source).parameters
    known = {name for kind in (source, *others) for name in signature(kind).parameters}
    options = []
    for name in names or texts:
        special, default, kind = SPECIAL.get(name, Special()), parameters[name].default, _kind(name, hints[name])
        flags = (f"{flag_of(name)}/--no-{flag_of(name)[2:]}",) if kind is bool and default is None else special.flags
        about = _in_flags(texts[name].partition("\n\n")[0], known).replace(*special.also)
        kind = kind | None if default is None else kind
        options.append(flag(name, kind, about, default, names=flags, values=special.values, parser=special.parser))
    return options


def _kind(name: str, wanted: Any) -> Any:
    """The type that a command's option has for a parameter that Python annotates as `wanted`.

    It is str for a model or a cluster, which may be a name or a file, and for a parameter that may be a text or a number; Path
    for any other file; else the annotated type, without None: `int | None` gives int. name: the parameter's name.
    """
    kinds = [kind for kind in get_args(wanted) if kind is not NoneType] if get_origin(wanted) in UNIONS else [wanted]
    if any(get_origin(kind) is PathLike for kind in kinds):
        return str if name in ("model", "cluster") else Path
    return str if str in kinds or get_origin(wanted) is Literal else kinds[0]


def _in_flags(text: str, names: Collection[str]) -> str:
    """A parameter's text from a docstring as the help of a command's option: "Bytes of `memory` (default: 0)." becomes "Bytes
    of --memory. [default: 0]".

    names: the parameters that are options; only these become flags in the text.
    """
    flagged = re.sub(r"`(\w+)`", lambda match: flag_of(match[1]) if match[1] in names else match[0], text)
    return re.sub(r" \(default: (.+)\)\.$", r". [default: \1]", flagged)


def flags_of(parameters: Iterable[Parameter]) -> list[Argument]:
    """Options of a command for the parameters of an optimization problem, one for each, in one panel of the help.

    An option's help states the parameter's default, but its value is None unless it is given: the problem fills in the default.
    """
    return panel(CHOICES, map(_flag_of, parameters))


def _flag_of(parameter: Parameter) -> Argument:
    """The option of a command for one parameter of an optimization problem; its value is None unless it is given."""
    name, default, about = parameter.flag, parameter.default, parameter.about[0].upper() + parameter.about[1:]
    if parameter.type is bool:
        both = f"{name}/--no-{name[2:]}"
        return flag(parameter.name, bool | None, about + ".", None, names=(both if default else name,))
    about += f": {', '.join(parameter.choices)}." if parameter.choices else "."
    about += "" if default is None else f" [default: {default}]"
    kind = list[parameter.type] | None if parameter.many else parameter.type | None  # type: ignore[name-defined]
    return flag(parameter.name, kind, about, None, names=(name,), values=lambda: parameter.choices)


def cluster_names() -> list[str]:
    """The names of clusters that the shell completes: all shipped clusters, and nodes of each kind of device, such as
    h100:8."""
    from trainplan.profiling.clusters.nodes import completions  # it reads all data sheets: only for a completion

    return [*shipped("clusters"), *completions()]


REQUIRED = Argument.empty
SPECIAL = {
    "model": Special(values=partial(shipped, "models")),
    "cluster": Special(values=cluster_names),
    "sequence": Special(("--sequence", "--seq"), parser=parse_tokens, also=("such as 8192", "such as 8192 or 8k")),
    "dtype": Special(values=lambda: DTYPE_BYTES),
}
SUBJECT_NAMES = ("model", "cluster", "batch", "memory", "reserve", "sequence", "dtype", "profile", "calibrated", "measure")
REQUEST = panel(SUBJECT, options_of(PlanRequest, *SUBJECT_NAMES))
OR_PROFILE = " A --profile may stand in for it."
MODEL_HELP, CLUSTER_HELP = (option.annotation.__metadata__[0].help.removesuffix(OR_PROFILE) for option in REQUEST[:2])
WORDS = [
    word("model_word", str | None, MODEL_HELP + " Also as --model.", None, "MODEL"),
    word("cluster_word", list[str] | None, CLUSTER_HELP + " Also as --cluster.", None, "CLUSTER"),  # such as 8x8 h100
]


def from_words(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a command's options, after the positional arguments MODEL and CLUSTER (WORDS) have become the values of the
    options `model` and `cluster`.

    values: the options' values by name; the entries model_word and cluster_word are removed from it. Raises InputError if the
    model or the cluster is given both by position and as an option.
    """
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
    """The value of an option in a command line that is not parsed yet, for commands whose further options depend on it.

    name: the option's flag, such as "--like". words: the command line; both `--like amp` and `--like=amp` are read. default:
    returned if the flag is not there.
    """
    rest = list(words)
    for index, text in enumerate(rest):
        if text.startswith(f"{name}="):
            return text.removeprefix(f"{name}=")
        if text == name and index + 1 < len(rest):
            return rest[index + 1]
    return default


def output(about: str, name: str = "output") -> Argument:
    """The option `-o` or `--output` of a command, which names a file to write. about: its help. name: the name of the parameter
    that gets the path.

    If the name is "output", `command_with` checks that the file can be written before the command begins, and writes it if the
    command's Outcome has its content. With another name it does neither, and the path may be a folder.
    """
    return flag(name, Path | None, about, names=("--output", "-o"))


def method_options(texts: list[str] | None, others: Iterable[str]) -> dict[str, Any]:
    """The options of a solution method by name, from the texts of `--option NAME=VALUE`: ["top=3"] gives {"top": 3}.

    texts: the texts; None if there are none. others: names of the command's own options, which cannot be given in this form. A
    value of digits becomes a number. Raises InputError for a text of another form, and for a name that is an option of the
    command.
    """
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
    """The exit code of a command for a solver's result: 0 with a solution; 1 if it is proven that there is none; 3 if a limit
    or an interrupt stopped the solver (with a solution or without), or if it found nothing."""
    if result.stopped is not None:
        return STOPPED
    return {"optimal": FINE, "feasible": FINE, "infeasible": INFEASIBLE}.get(result.status, STOPPED)


def check_targets(targets: Mapping[str, Path]) -> None:
    """Check, before a command works, that the files it is to write can be written. targets: paths by the names of their
    options.

    Raises InputError if a file cannot be written, if two options name one file, or if the picture's name does not end in .png,
    .svg or .pdf.
    """
    check_different(*targets.values())
    picture = targets.get("picture")
    if picture is not None and picture.suffix not in (".png", ".svg", ".pdf"):
        raise InputError("command line", "--picture", f"is {str(picture)!r}", "give a name that ends in .png, .svg or .pdf")
    for target in targets.values():
        check_writable(target)


def write(target: Path, content: Any) -> None:
    """Write a text, bytes or a matplotlib Figure to a file, whole or not at all: a failure leaves no half-written file. A
    figure's format is that of the file's ending."""
    if isinstance(content, str | bytes):
        write_whole(target, content)
        return
    image = BytesIO()
    content.savefig(image, format=target.suffix[1:], dpi=150)
    write_whole(target, image.getvalue())
