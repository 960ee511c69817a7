"""Options of commands: declared once, put together in groups, and made of the parameters of problems.

A command is a function of keyword arguments; `takes` gives it the signature from which typer makes its options.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from inspect import Parameter as Argument
from inspect import Signature
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

from typer import Argument as TyperArgument
from typer import Option

from trainplan.formulations.parameters import Parameter
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import check_different, check_writable, write_whole

FINE, INFEASIBLE, BAD_INPUT, STOPPED = 0, 1, 2, 3
Json = Annotated[bool, Option("--json", help="Print JSON, and nothing else, to standard output.")]


def flag(name: str, kind: Any, about: str, default: Any = None, *, names: tuple[str, ...] = ()) -> Argument:
    """An option of a command. kind: its type; default: Argument.empty where it must be given; names: default --name."""
    option = Option(*(names or ("--" + name.replace("_", "-"),)), help=about)
    return Argument(name, Argument.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


def word(name: str, kind: Any, about: str, default: Any = Argument.empty) -> Argument:
    """A positional argument of a command."""
    return Argument(name, Argument.KEYWORD_ONLY, default=default, annotation=Annotated[kind, TyperArgument(help=about)])


def takes(*groups: Iterable[Argument]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a function of keyword arguments the options of these groups; of one name, the last."""
    arguments = {argument.name: argument for group in groups for argument in group}.values()

    def signed(function: Callable[..., None]) -> Callable[..., None]:
        function.__signature__ = Signature([*arguments])  # type: ignore[attr-defined]
        function.__annotations__ = {argument.name: argument.annotation for argument in arguments}
        return function

    return signed


def flags_of(parameters: Iterable[Parameter]) -> list[Argument]:
    """An option for each parameter of a problem; the default stands in the help, and is put in by the problem."""
    return [_flag_of(parameter) for parameter in parameters]


def _flag_of(parameter: Parameter) -> Argument:
    name, default, about = parameter.flag, parameter.default, parameter.about[0].upper() + parameter.about[1:]
    if parameter.type is bool:
        both = f"{name}/--no-{name[2:]}"
        return flag(parameter.name, bool | None, about + ".", None, names=(both if default else name,))
    about += f": {', '.join(parameter.choices)}." if parameter.choices else "."
    about += "" if default is None else f" [default: {default}]"
    kind = list[parameter.type] | None if parameter.many else parameter.type | None  # type: ignore[name-defined]
    return flag(parameter.name, kind, about, None, names=(name,))


def typed(name: str, annotation: Any, default: Any = None) -> Argument:
    """An option whose type, name and help an annotation has."""
    return Argument(name, Argument.KEYWORD_ONLY, default=default, annotation=annotation)


REQUIRED = Argument.empty
MODEL_HELP = "A Hugging Face config.json, or a name from `trainplan model list`."
CLUSTER_HELP = "A YAML or JSON file, or a name from `trainplan cluster list`."
OR_PROFILE = " A --profile may stand in for it."
ModelName = Annotated[str, Option("--model", help=MODEL_HELP)]
ClusterName = Annotated[str, Option("--cluster", help=CLUSTER_HELP)]
Memory = Annotated[str | None, Option("--memory", help="Memory of one device, such as 8GiB. [default: the cluster's]")]
Sequence = Annotated[int | None, Option("--sequence", help="Sequence length. [default: the model's largest]")]
Dtype = Annotated[
    str | None, Option("--dtype", help="float32, float64, bfloat16 or float16. [default: float32, or the profile's]")
]
PictureFile = Annotated[Path | None, Option("--picture", help="Draw it here (.png, .svg or .pdf); needs the plot extra.")]
REQUEST = [
    flag("model", str | None, MODEL_HELP + OR_PROFILE),
    flag("cluster", str | None, CLUSTER_HELP + OR_PROFILE),
    flag("batch", int | None, "Samples of one step, over all devices."),
    typed("memory", Memory),
    typed("sequence", Sequence),
    typed("dtype", Dtype),
    flag("profile", Path | None, "A profile made earlier. [default: estimate]"),
    flag("measure", bool, "Measure the model on this machine, on as many processes.", False),
]
METHOD = flag("method", str, "A name from `trainplan methods PROBLEM`; exact is the best proven one.", "exact")
SEED = flag("seed", int, "Seed of the method.", 0)
GAP = flag("gap", float, "Relative gap at which to stop.", 0.0)
TIME_LIMIT = flag("time_limit", float | None, "Seconds in all; the best solution and its bound are kept.")
OPTION = flag("option", list[str] | None, "NAME=VALUE, an option of the method; may be repeated.")
SEARCH = [METHOD, OPTION, TIME_LIMIT, GAP, SEED]
PICTURE = typed("picture", PictureFile)
JSON = typed("as_json", Json, False)
BACKEND_HELP = (
    "serial; on CPUs also fused (all but compute in one FIFO beside it) or threads (one for each lane, pausing at random); on "
    "GPUs also streams (one for each lane)."
)
RUN_BACKEND = flag("backend", str, BACKEND_HELP, "serial")
RUN_DEVICE = flag("device", str, "cpu (gloo) or cuda (NCCL), a GPU for each process.", "cpu")


def value_of(name: str, words: Iterable[str], default: str) -> str:
    """The value of an option among a command's words, before they are parsed: it may say which other options there are."""
    rest = list(words)
    for place, text in enumerate(rest):
        if text.startswith(f"{name}="):
            return text.removeprefix(f"{name}=")
        if text == name and place + 1 < len(rest):
            return rest[place + 1]
    return default


def output(about: str) -> Argument:
    """The option -o."""
    return flag("output", Path | None, about, names=("--output", "-o"))


def method_options(texts: list[str] | None) -> dict[str, Any]:
    """Options of a method from NAME=VALUE. Raises InputError."""
    options: dict[str, Any] = {}
    for text in texts or []:
        name, _, value = text.partition("=")
        if not name.isidentifier() or not value:
            raise InputError("command line", "--option", f"is {text!r}", "give NAME=VALUE, such as granularity_bytes=1048576")
        if name in ("time_limit", "gap", "seed", "progress", "method", "instance"):
            raise InputError("command line", "--option", f"is {text!r}", f"give it as --{name.replace('_', '-')}")
        options[name] = int(value) if value.isdecimal() else value
    return options


def exit_code(status: str) -> int:
    """Of a result's status."""
    return {"optimal": FINE, "feasible": FINE, "infeasible": INFEASIBLE}.get(status, STOPPED)


def print_json(value: Any) -> None:
    """To standard output."""
    print(json.dumps(value, indent=2))


def check_targets(*targets: Path | None, picture: Path | None = None) -> None:
    """Raises InputError where a file cannot be written, before any work is done."""
    check_different(*targets, picture)
    if picture is not None and picture.suffix not in (".png", ".svg", ".pdf"):
        raise InputError("command line", "--picture", f"is {str(picture)!r}", "give a name that ends in .png, .svg or .pdf")
    for target in (*targets, picture):
        if target is not None:
            check_writable(target)


def write_picture(figure: Any, target: Path) -> None:
    """Write a matplotlib Figure, whole or not at all."""
    image = BytesIO()
    figure.savefig(image, format=target.suffix[1:], dpi=150)
    write_whole(target, image.getvalue())
