"""`trainplan profile`: estimate, measure, import and show profiles."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from trainplan import api
from trainplan.command import render, tables
from trainplan.command.options import (
    ClusterName,
    Dtype,
    Json,
    ModelName,
    PictureFile,
    Sequence,
    check_targets,
    print_json,
    write_picture,
)
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import check_different, check_writable, write_whole
from trainplan.profiling.base.quantities import parse_bytes
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.complete import complete
from trainplan.profiling.profiles import Profile, load_profile
from trainplan.profiling.summary import profiled_shapes, summary

app = typer.Typer(
    name="profile", help="Make and look at profiles: the times and bytes that plans are made from.", no_args_is_help=True
)

Rows = Annotated[str, Option("--rows", help="Samples on one device, such as 1,2,4; other numbers follow from a line.")]
Degrees = Annotated[str | None, Option("--tp", help="Tensor-parallel degrees, such as 1,2. [default: all up to 8]")]
Output = Annotated[Path | None, Option("--output", "-o", help="Write the profile here.")]


def _numbers(text: str, option: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 0 < int(part) <= 2**20 for part in parts):
        raise InputError("command line", option, f"is {text!r}", "give whole numbers from 1 with commas, such as 1,2,4")
    return sorted({int(part) for part in parts})


def _shapes(rows: str, tp: str | None) -> dict[str, Any]:
    """The options of `api.profile`."""
    return {"rows": _numbers(rows, "--rows"), "tp": None if tp is None else _numbers(tp, "--tp")}


def _done(profile: Profile, output: Path | None, as_json: bool) -> None:
    if output:
        write_whole(output, profile.model_dump_json(indent=1) + "\n")
    if as_json:
        print_json(profile.model_dump(mode="json"))
    else:
        tables.profile(profile)
        if output:
            render.pairs([("written", str(output))])


@app.command(epilog="Example: trainplan profile estimate --model llama2-7b --cluster h100-8 --dtype bfloat16 -o profile.json")
def estimate(
    model: ModelName,
    cluster: ClusterName,
    rows: Rows = "1,2,4",
    tp: Degrees = None,
    sequence: Sequence = None,
    dtype: Dtype = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Estimate a profile from shapes and data sheets: a roofline of every operator."""
    if output:
        check_writable(output)
    found = api.profile(model=model, cluster=cluster, sequence=sequence, dtype=dtype, **_shapes(rows, tp))
    _done(found, output, as_json)


@app.command(
    epilog="Example: trainplan profile measure --model gpt2 --cluster cpu-4 --sequence 256 --resume gpt2.journal -o gpt2.json"
)
def measure(
    model: ModelName,
    cluster: ClusterName,
    rows: Rows = "1,2,4",
    tp: Degrees = None,
    sequence: Sequence = None,
    dtype: Dtype = None,
    device: Annotated[str, Option("--device", help="cpu: local processes; cuda: this machine's GPUs.")] = "cpu",
    budget: Annotated[float, Option("--budget", help="Seconds for the repeats of everything together.")] = 60,
    spread: Annotated[float, Option("--spread", help="Repeat until a time's spread is below this share.")] = 0.05,
    resume: Annotated[Path | None, Option("--resume", help="Keep finished parts here, and go on from them.")] = None,
    seed: Annotated[int, Option("--seed", help="Seed of the measurement.")] = 0,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Measure a profile on this machine: sub-layers, links, host copies, optimizer, overlap."""
    check_different(output, resume)
    for target in (output, resume):
        if target:
            check_writable(target)
    with render.working("measuring") as progress:
        found = api.profile(
            model=model,
            cluster=cluster,
            sequence=sequence,
            dtype=dtype,
            **_shapes(rows, tp),
            measured=True,
            device=device,
            budget_seconds=budget,
            spread=spread,
            seed=seed,
            journal=resume,
            progress=progress,
        )
    _done(found, output, as_json)


@app.command("import", epilog="Example: trainplan profile import bert32a100.json -o profile.json")
def import_(
    files: Annotated[list[Path], Argument(help="All files of one model: Hetu-Galvatron's, Piper's or H3T's.")],
    cluster: Annotated[str | None, Option("--cluster", help="The cluster they are of, where the files leave it open.")] = None,
    memory: Annotated[str | None, Option("--memory", help="Memory of one device, such as 24GiB, where left open.")] = None,
    layers: Annotated[int | None, Option("--layers", help="Transformer layers, where left open.")] = None,
    sequence: Annotated[int | None, Option("--sequence", help="Tokens of a sample, where several were profiled.")] = None,
    hidden_size: Annotated[int | None, Option("--hidden-size", help="Hidden size, where left open.")] = None,
    rows: Annotated[int | None, Option("--rows", help="Samples on a device that H3T's times are for.")] = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Read another project's measurements as a profile."""
    if output:
        check_writable(output)
    found = api.import_profile(
        files,
        cluster=None if cluster is None else load_cluster(cluster),
        memory_bytes=None if memory is None else parse_bytes(memory),
        layers=layers,
        sequence=sequence,
        hidden_size=hidden_size,
        rows=rows,
    )
    _done(found, output, as_json)


@app.command(epilog="Example: trainplan profile show profile.json --tp 2 --rows 4 --picture profile.png")
def show(
    profile: Annotated[Path, Argument(help="A profile file.")],
    tp: Annotated[int | None, Option("--tp", help="Tensor-parallel degree. [default: the profile's smallest]")] = None,
    rows: Annotated[int | None, Option("--rows", help="Samples on one device. [default: the profile's smallest]")] = None,
    kind: Annotated[
        str | None, Option("--kind", help="Kind of device, where there are several. [default: the slowest]")
    ] = None,
    picture: PictureFile = None,
    as_json: Json = False,
) -> None:
    """Show where time and memory go, layer by layer."""
    if picture:
        check_targets(picture=picture)
    loaded = load_profile(profile)
    known = profiled_shapes(loaded) or [(loaded.costs[0].tp, loaded.costs[0].rows)]
    tp = known[0][0] if tp is None else tp
    rows = next((r for t, r in known if t == tp), known[0][1]) if rows is None else rows
    if tp < 1 or rows < 1:
        option, value = ("--tp", tp) if tp < 1 else ("--rows", rows)
        raise InputError("command line", option, f"is {value}", "give a whole number from 1")
    if tp not in loaded.tp_degrees(tp):
        degrees = loaded.tp_degrees(2**20)
        raise InputError("command line", "--tp", f"is {tp}", f"give one of the profile's degrees: {list(degrees)}")
    loaded = complete(loaded, [(tp, rows)])
    units = summary(loaded, tp, rows, kind)
    if picture:
        write_picture(api.draw_profile(loaded, tp, rows, kind), picture)
    if as_json:
        listed = [asdict(unit) for unit in units]
        print_json({"name": loaded.name, "tp": tp, "rows": rows, "origin": loaded.origin, "units": listed})
        return
    tables.profile(loaded)
    tables.layers(units, tp, rows)
    if picture:
        render.pairs([("drawn", str(picture))])
