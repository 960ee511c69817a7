"""`trainplan model` and `trainplan cluster`: what is shipped, what a file says, and what this machine is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from trainplan import api
from trainplan.command import render, tables
from trainplan.command.options import Dtype, Json, Sequence, print_json
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import check_writable, write_whole
from trainplan.profiling.base.quantities import parse_bytes
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.clusters.detect.machine import to_yaml
from trainplan.profiling.models.model import load_model
from trainplan.profiling.shipped import shipped

models = typer.Typer(name="model", help="Models: those shipped, and what a config.json describes.", no_args_is_help=True)
clusters = typer.Typer(
    name="cluster", help="Clusters: those shipped, what a file says, and this machine.", no_args_is_help=True
)


@models.command("list", epilog="Example: trainplan model list")
def list_models(as_json: Json = False) -> None:
    """List the shipped models."""
    found = [load_model(name) for name in shipped("models")]
    if as_json:
        rows = [{"name": m.name, "family": m.family, "layers": m.layers, "parameters": m.total_parameters} for m in found]
        print_json(rows)
    else:
        tables.models(found)


@models.command("show", epilog="Example: trainplan model show t5-512-4-48 --rows 8 --tp 2")
def show_model(
    model: Annotated[str, Argument(help="A shipped name or a Hugging Face config.json.")],
    rows: Annotated[int, Option("--rows", help="Samples on one device.")] = 1,
    tp: Annotated[int, Option("--tp", help="Tensor-parallel degree.")] = 1,
    sequence: Sequence = None,
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Show a model's sub-layers: parameters, flops and bytes, from shapes alone."""
    for option, value in (("--rows", rows), ("--tp", tp)):
        if not 1 <= value <= 2**20:
            raise InputError("command line", option, f"is {value}", "give a whole number from 1 to 1048576")
    found = load_model(model, sequence, dtype or "float32")
    if as_json:
        print_json({**found.shape(), "parameters": found.total_parameters, "sublayers": tables.sublayer_rows(found, rows, tp)})
    else:
        tables.model(found, rows, tp)


@clusters.command("list", epilog="Example: trainplan cluster list")
def list_clusters(as_json: Json = False) -> None:
    """List the shipped clusters."""
    found = [load_cluster(name) for name in shipped("clusters")]
    if as_json:
        print_json([{"name": c.name, "devices": c.devices, "kinds": [k.name for k in c.used_kinds]} for c in found])
    else:
        tables.clusters(found)


@clusters.command("show", epilog="Example: trainplan cluster show amp-heterogeneous-16")
def show_cluster(
    cluster: Annotated[str, Argument(help="A shipped name, or a YAML or JSON file.")],
    as_json: Json = False,
) -> None:
    """Show a cluster: its devices, its links, and where the numbers come from."""
    found = load_cluster(cluster)
    if as_json:
        print_json(found.model_dump(mode="json", exclude_none=True))
    else:
        tables.cluster(found)


@clusters.command("detect", epilog="Example: trainplan cluster detect --nodes 4 --network 12.5GB -o cluster.yaml")
def detect(
    nodes: Annotated[int, Option("--nodes", help="Machines like this one.")] = 1,
    processes: Annotated[int | None, Option("--processes", help="Without a GPU: processes that stand for devices.")] = None,
    network: Annotated[str | None, Option("--network", help="Bytes a second between machines, such as 12.5GB.")] = None,
    topology: Annotated[Path | None, Option("--topology", help="An NCCL topology file. [default: NCCL_TOPO_FILE]")] = None,
    name: Annotated[str | None, Option("--name", help="The cluster's name. [default: this machine's]")] = None,
    output: Annotated[Path | None, Option("--output", "-o", help="Write the cluster here, as YAML.")] = None,
    as_json: Json = False,
) -> None:
    """Describe the machine that this runs on: GPUs by NVML and nvidia-smi, or its CPU."""
    if output:
        check_writable(output)
    found = api.detect(
        nodes=nodes,
        processes=processes,
        network_bytes_per_s=None if network is None else parse_bytes(network, "--network"),
        topology_file=None if topology is None else str(topology),
        name=name,
    )
    text = to_yaml(found)
    if output:
        write_whole(output, text)
    if as_json:
        print_json(found.model_dump(mode="json", exclude_none=True))
    elif output:
        tables.cluster(found)
        render.pairs([("written", str(output))])
    else:
        print(text, end="")
