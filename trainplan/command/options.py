"""Options that several commands share."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from trainplan.formulations.pipeline.problem import SCHEDULES, Schedule
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import check_writable, write_whole
from trainplan.solvers.core.result import Result

Json = Annotated[bool, Option("--json", help="Print JSON, and nothing else, to standard output.")]
ModelName = Annotated[str, Option("--model", help="A Hugging Face config.json, or a name from `trainplan model list`.")]
ClusterName = Annotated[str, Option("--cluster", help="A YAML or JSON file, or a name from `trainplan cluster list`.")]
OptionalModel = Annotated[str | None, Option("--model", help="As for `plan`; a --profile may stand in for it.")]
OptionalCluster = Annotated[str | None, Option("--cluster", help="As for `plan`; a --profile may stand in for it.")]
BatchSize = Annotated[int, Option("--batch", help="Samples of one step, over all devices.")]
Memory = Annotated[str | None, Option("--memory", help="Memory of one device, such as 8GiB. [default: the cluster's]")]
Sequence = Annotated[int | None, Option("--sequence", help="Sequence length. [default: the model's largest]")]
Dtype = Annotated[
    str | None, Option("--dtype", help="float32, float64, bfloat16 or float16. [default: float32, or the profile's]")
]
ProfileFile = Annotated[Path | None, Option("--profile", help="A profile made earlier. [default: estimate]")]
EngineFiles = Annotated[
    list[Path] | None,
    Option("--engine-files", help="pipeline: a file or folder of Hetu-Galvatron's profile; may be repeated."),
]
Pipeline = Annotated[int | None, Option("--pipeline", help="Pipeline stages. [default: the best number]")]
MicroBatches = Annotated[int | None, Option("--micro-batches", help="Micro-batches of a step. [default: the best number]")]
ScheduleName = Annotated[str, Option("--schedule", help="Order of passes: '1f1b' (1F1B-Flush) or 'gpipe'.")]
Space = Annotated[str, Option("--space", help="Search space: full, no-ckpt, dp+tp, dp+pp, dp, tp, pp, sdp, 3d or full-dp-sdp.")]
PictureFile = Annotated[Path | None, Option("--picture", help="Draw it here (.png, .svg or .pdf); needs the plot extra.")]
Gap = Annotated[float, Option("--gap", help="Relative gap at which to stop.")]
TimeLimit = Annotated[float | None, Option("--time-limit", help="Seconds; the best solution and its bound are kept.")]
Seed = Annotated[int, Option("--seed", help="Seed of the method.")]
Method = Annotated[str, Option("--method", help="A name from `trainplan methods`; exact is the best proven one.")]
Granularity = Annotated[str, Option("--granularity", help="Decide for each 'layer' or each 'unit' (sub-layer).")]

MethodOptions = Annotated[list[str] | None, Option("--option", help="NAME=VALUE, an option of the method; may be repeated.")]
UnevenShares = Annotated[
    bool, Option("--uneven-shares", help="Pipelines may take different numbers of micro-batches: fewer for slow devices.")
]
Recompute = Annotated[bool, Option("--recompute", help="Recompute every layer in the backward pass.")]
RunBackend = Annotated[
    str,
    Option(
        "--backend",
        help="serial; on CPUs also fused (all but compute in one FIFO beside it) or threads (one for each lane, pausing at "
        "random); on GPUs also streams (one for each lane).",
    ),
]
RunDevice = Annotated[str, Option("--device", help="cpu (gloo) or cuda (NCCL), a GPU for each process.")]
Synchronisation = Annotated[
    str, Option("--synchronisation", help="Of segments (H3T): 'forced' in every layer, as in the paper, or 'free'.")
]
IgnoreMemory = Annotated[bool, Option("--ignore-memory", help="Plan without memory limits, as AMP does.")]

FINE, INFEASIBLE, BAD_INPUT, STOPPED = 0, 1, 2, 3


def exit_code(found: Result) -> int:
    return {"optimal": FINE, "feasible": FINE, "infeasible": INFEASIBLE}.get(found.status, STOPPED)


def by_unit_of(granularity: str) -> bool:
    """Raises InputError."""
    if granularity not in ("layer", "unit"):
        raise InputError("command line", "--granularity", f"is {granularity!r}", "give 'layer' or 'unit'")
    return granularity == "unit"


def method_options(texts: list[str] | None) -> dict[str, Any]:
    """Options of a method from NAME=VALUE. Raises InputError."""
    found: dict[str, Any] = {}
    for text in texts or []:
        name, _, value = text.partition("=")
        if not name.isidentifier() or not value:
            raise InputError("command line", "--option", f"is {text!r}", "give NAME=VALUE, such as granularity_bytes=1048576")
        if name in ("time_limit", "gap", "seed", "progress", "method", "instance"):
            raise InputError("command line", "--option", f"is {text!r}", f"give it as --{name.replace('_', '-')}")
        found[name] = int(value) if value.isdecimal() else value
    return found


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def schedule_of(name: str) -> Schedule:
    """A pipeline schedule by name. Raises InputError."""
    for schedule in SCHEDULES:
        if schedule == name:
            return schedule
    raise InputError("command line", "--schedule", f"is {name!r}", f"give one of: {', '.join(SCHEDULES)}")


def check_picture(target: Path) -> None:
    """Raises InputError where a picture cannot be written."""
    if target.suffix not in (".png", ".svg", ".pdf"):
        raise InputError("command line", "--picture", f"is {str(target)!r}", "give a name that ends in .png, .svg or .pdf")
    check_writable(target)


def write_picture(figure: Any, target: Path) -> None:
    """Write a matplotlib Figure, whole or not at all."""
    drawn = BytesIO()
    figure.savefig(drawn, format=target.suffix[1:], dpi=150)
    write_whole(target, drawn.getvalue())
