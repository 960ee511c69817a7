"""`trainplan model` and `trainplan cluster`: lists of those shipped, the content of a file, and the machine at hand."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from inspect import Parameter as Argument
from pathlib import Path
from typing import Any

import typer

from trainplan import api
from trainplan.api.requests import PlanRequest
from trainplan.command import tables
from trainplan.command.helping import HelpedCommand
from trainplan.command.options import CLUSTER_HELP, Outcome, command_with, flag, options_of, output, word
from trainplan.inputs import model_of
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import parse_bytes
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.clusters.detect.machine import to_yaml
from trainplan.profiling.clusters.nodes import node_of
from trainplan.profiling.clusters.sheets import sheets
from trainplan.profiling.models.model import load_model
from trainplan.profiling.shipped import shipped, sized_names

models = typer.Typer(name="model", help="Models: those shipped, and what a config.json describes.", no_args_is_help=True)
clusters = typer.Typer(
    name="cluster", help="Clusters: those shipped, what a file says, and this machine.", no_args_is_help=True
)


def _filter(about: str) -> Argument:
    """The positional argument of a `list` command: words that a row of the list must have to be shown. about: the rows that are
    shown, as a text for the help, such as "models whose name or family has it"."""
    return word("words", list[str] | None, f"Only {about}. [default: all]", None, "[WORD]...")


def _having(words: list[str] | None, texts: Mapping[str, str], listing: str) -> list[str]:
    """The names whose text contains all the given words, without regard to upper and lower case; all names if no words are
    given.

    words: the words to look for. texts: by name, the text that is searched. listing: the command that lists all names, such as
    "model list", for the error. Raises InputError if no name is left.
    """
    wanted = [word.lower() for word in words or ()]
    kept = [name for name, text in texts.items() if all(word in text.lower() for word in wanted)]
    if not kept:
        problem = f"is {' '.join(wanted)!r}, which nothing in the list has"
        raise InputError("command line", "WORD", problem, f"`trainplan {listing}` lists all")
    return kept


@models.command("list", cls=HelpedCommand)
@command_with([_filter("models whose name or family has it, such as qwen")])
def list_models(words: list[str] | None) -> Outcome:
    """List the shipped models by family, with their sizes: parameters, layers, hidden size, attention heads, context."""
    loaded = [load_model(name) for name in [*shipped("models"), *sized_names()]]
    loaded += [load_model(name, planned=False) for name in [*shipped("mixtures"), *sized_names("mixtures")]]
    kept = _having(words, {model.name: tables.searched(model) for model in loaded}, "model list")
    rows = [tables.model_row(model) for model in loaded if model.name in kept]
    return Outcome(rows, partial(tables.models, rows))


@models.command("show", cls=HelpedCommand)
@command_with(
    [
        word("model", str, "A shipped name or a Hugging Face config.json."),
        flag("rows", int, "Samples on one device.", 1),
        flag("tp", int, "Tensor-parallel degree.", 1),
        *options_of(PlanRequest, "sequence", "dtype"),
    ]
)
def show_model(model: str, rows: int, tp: int, sequence: int | None, dtype: str | None) -> Outcome:
    """Show a model's sub-layers: parameters, flops and bytes, from shapes alone."""
    for option, value in (("--rows", rows), ("--tp", tp)):
        if not 1 <= value <= 2**20:
            raise InputError("command line", option, f"is {value}", "give a whole number from 1 to 1048576")
    loaded = model_of(model, sequence, dtype, planned=False)
    parts = tables.sublayer_rows(loaded, rows, tp)
    content = {**loaded.shape(), "parameters": loaded.total_parameters, **tables.active(loaded), "sublayers": parts}
    return Outcome(content, partial(tables.model, loaded, rows, tp))


@clusters.command("list", cls=HelpedCommand)
@command_with([_filter("clusters whose name or devices have it, such as h100")])
def list_clusters(words: list[str] | None) -> Outcome:
    """List the shipped clusters; nodes of any kind are named as h100:8x16, see `cluster kinds`."""
    loaded = {name: load_cluster(name) for name in shipped("clusters")}
    texts = {name: " ".join([name, *(kind.name for kind in cluster.used_kinds)]) for name, cluster in loaded.items()}
    loaded = {name: loaded[name] for name in _having(words, texts, "cluster list")}
    rows = [
        {"name": name, "devices": c.devices, "kinds": [k.name for k in c.used_kinds], "same_as": c.name, "paper": c.paper}
        for name, c in loaded.items()
    ]
    return Outcome(rows, partial(tables.clusters, loaded))


@clusters.command("kinds", cls=HelpedCommand)
@command_with([_filter("kinds whose name has it, such as a100")])
def list_kinds(words: list[str] | None) -> Outcome:
    """List the kinds of devices that clusters can be named by, as h100:8x16 is 16 nodes of 8 H100: one node of each."""
    nodes = {name: node_of(name) for name in _having(words, {name: name for name in sheets()}, "cluster kinds")}
    content = [{"kind": name, "sheet": sheets()[name].model_dump(mode="json")} for name in nodes]
    return Outcome(content, partial(tables.kinds, nodes))


@clusters.command("show", cls=HelpedCommand)
@command_with([word("cluster", str, CLUSTER_HELP)])
def show_cluster(cluster: str) -> Outcome:
    """Show a cluster: its devices, its links, and where the numbers come from."""
    loaded = load_cluster(cluster)
    return Outcome(loaded.model_dump(mode="json", exclude_none=True), partial(tables.cluster, loaded))


@clusters.command("detect", cls=HelpedCommand)
@command_with(
    [
        flag("nodes", int, "Machines like this one.", 1),
        flag("processes", int | None, "Without a GPU: processes that stand for devices."),
        flag("network", str | None, "Bytes a second between machines, such as 12.5GB."),
        flag("topology", Path | None, "An NCCL topology file. [default: NCCL_TOPO_FILE]"),
        flag("name", str | None, "The cluster's name. [default: this machine's]"),
        output("Write the cluster here, as YAML."),
    ]
)
def detect(network: str | None, topology: Path | None, output: Path | None, **values: Any) -> Outcome:
    """Describe the machine that this runs on: GPUs by NVML and nvidia-smi, or its CPU."""
    rate = None if network is None else parse_bytes(network, "--network")
    cluster = api.detect(network_bytes_per_s=rate, topology_file=None if topology is None else str(topology), **values)
    show = partial(tables.cluster, cluster) if output else partial(print, to_yaml(cluster), end="")
    return Outcome(cluster.model_dump(mode="json", exclude_none=True), show, {"output": partial(to_yaml, cluster)})
