"""`trainplan profile estimate`, `measure`, `import` and `show`: profiles, the times and bytes that plans are made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import typer

from trainplan import api
from trainplan.api.requests import PlanRequest
from trainplan.command import bars, options, tables
from trainplan.command.helping import HelpedCommand
from trainplan.command.options import Outcome, command_with, flag, options_of, output, word
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import parse_bytes
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.interpolate import complete
from trainplan.profiling.layer_summary import profiled_shapes, summary
from trainplan.profiling.profiles import Profile, load_profile

app = typer.Typer(
    name="profile", help="Make and look at profiles: the times and bytes that plans are made from.", no_args_is_help=True
)
SUBJECT = [
    flag("model", str, options.MODEL_HELP, options.REQUIRED),
    flag("cluster", str, options.CLUSTER_HELP, options.REQUIRED),
    flag("rows", str, "Samples on one device, such as 1,2,4; other numbers follow from a line.", "1,2,4"),
    flag("tp", str | None, "Tensor-parallel degrees, such as 1,2. [default: all up to 8]"),
    *options_of(PlanRequest, "sequence", "dtype"),
]
OUTPUTS = [output("Write the profile here.")]


def _numbers(text: str, option: str) -> list[int]:
    """The whole numbers of an option's text: "1,2,4" gives [1, 2, 4]. option: the flag, for the error. Raises InputError for a
    text of another form, or a number that is not from 1 to 2**20."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 0 < int(part) <= 2**20 for part in parts):
        raise InputError("command line", option, f"is {text!r}", "give whole numbers from 1 with commas, such as 1,2,4")
    return [int(part) for part in parts]


def _shapes(rows: str, tp: str | None) -> dict[str, Any]:
    """The arguments `rows` and `tp` of `api.profile`, sorted and without repetition, from the texts of the options `--rows` and
    `--tp`, such as "1,2,4". tp: None if the option is not given. Raises InputError for a text of another form."""
    return {"rows": sorted({*_numbers(rows, "--rows")}), "tp": None if tp is None else sorted({*_numbers(tp, "--tp")})}


def _outcome(profile: Profile) -> Outcome:
    """The outcome of a command that has made a profile: the profile is printed without its layers, and written to the file that
    `--output` names."""
    files: dict[str, Callable[[], Any]] = {"output": lambda: profile.model_dump_json(indent=1) + "\n"}
    return Outcome(profile.model_dump(mode="json"), partial(tables.profile, profile), files)


@app.command(cls=HelpedCommand)
@command_with(SUBJECT, OUTPUTS)
def estimate(rows: str, tp: str | None, **values: Any) -> Outcome:
    """Estimate a profile from shapes and data sheets: a roofline of every operator."""
    return _outcome(api.profile(**values, **_shapes(rows, tp)))


@app.command(cls=HelpedCommand)
@command_with(
    SUBJECT,
    [
        flag("device", str, "cpu: local processes; cuda: this machine's GPUs.", "cpu"),
        flag("budget", float, "Seconds for the repeats of everything together.", 60),
        flag("spread", float, "Repeat until a time's spread is below this share.", 0.05),
        flag("journal", Path | None, "Keep finished parts here, and go on from them.", names=("--resume",)),
        flag("seed", int, "Seed of the measurement.", 0),
    ],
    OUTPUTS,
)
def measure(rows: str, tp: str | None, budget: float, journal: Path | None, **values: Any) -> Outcome:
    """Measure a profile on this machine: sub-layers, links, host copies, optimizer, overlap."""
    shapes = _shapes(rows, tp)
    with bars.working("measuring") as progress:
        settings = {"measured": True, "budget_seconds": budget, "journal": journal, "progress": progress}
        return _outcome(api.profile(**values, **shapes, **settings))


@app.command("import", cls=HelpedCommand)
@command_with(
    [
        word("files", list[Path], "All files of one model: Hetu-Galvatron's, Piper's or H3T's, or a .npy or .csv table."),
        flag("cluster", str | None, "The cluster they are of, where the files leave it open."),
        flag("memory", str | None, "Memory of one device, such as 24GiB, where left open."),
        flag("layers", str | None, "Transformer layers, where left open; 24,24 where the files have two types of them."),
        flag("sequence", str | None, "Tokens of a sample, where several were profiled; of each type of layers."),
        flag("hidden_size", str | None, "Hidden size, where left open; of each type of layers."),
        flag("rows", int | None, "Samples that the times of H3T, or of a table, are for."),
        flag("tp", str | None, "Tensor-parallel degrees of a table's columns. [default: 1,2,4,...]"),
        flag("communication", str | None, "included in a table's times, or excluded from them."),
    ],
    OUTPUTS,
)
def import_(
    files: list[Path],
    cluster: str | None,
    memory: str | None,
    rows: int | None,
    communication: str | None,
    tp: str | None,
    **values: str | None,
) -> Outcome:
    """Read another project's measurements as a profile."""
    lists = {name: _numbers(text, f"--{name.replace('_', '-')}") for name, text in values.items() if text is not None}
    by_type: dict[str, Any] = {name: numbers[0] if len(numbers) == 1 else numbers for name, numbers in lists.items()}
    profile = api.import_profile(
        files,
        cluster=None if cluster is None else load_cluster(cluster),
        memory_bytes=None if memory is None else parse_bytes(memory),
        rows=rows,
        communication=communication,
        tp=None if tp is None else _numbers(tp, "--tp"),
        **by_type,
    )
    return _outcome(profile)


@app.command(cls=HelpedCommand)
@command_with(
    [
        word("profile", Path, "A profile file."),
        flag("tp", int | None, "Tensor-parallel degree. [default: the profile's smallest]"),
        flag("rows", int | None, "Samples on one device. [default: the profile's smallest]"),
        flag("kind", str | None, "Kind of device, where there are several. [default: the slowest]"),
        options.PICTURE,
    ]
)
def show(profile: Path, tp: int | None, rows: int | None, kind: str | None) -> Outcome:
    """Show where time and memory go, layer by layer."""
    loaded = load_profile(profile)
    shapes = profiled_shapes(loaded) or [(loaded.costs[0].tp, loaded.costs[0].rows)]
    tp = shapes[0][0] if tp is None else tp
    rows = next((rows for degree, rows in shapes if degree == tp), shapes[0][1]) if rows is None else rows
    if tp < 1 or rows < 1:
        option, value = ("--tp", tp) if tp < 1 else ("--rows", rows)
        raise InputError("command line", option, f"is {value}", "give a whole number from 1")
    if tp not in loaded.tp_degrees(tp):
        degrees = loaded.tp_degrees(2**20)
        raise InputError("command line", "--tp", f"is {tp}", f"give one of the profile's degrees: {list(degrees)}")
    loaded = complete(loaded, [(tp, rows)])
    units = summary(loaded, tp, rows, kind)
    listed = [asdict(unit) for unit in units]
    content = {"name": loaded.name, "tp": tp, "rows": rows, "origin": loaded.origin, "units": listed}
    files = {"picture": partial(api.draw_profile, loaded, tp, rows, kind)}
    return Outcome(content, partial(tables.layers, loaded, units, tp, rows), files)
