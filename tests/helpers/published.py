"""Answers of Galvatron's own engine (hetu-galvatron 2.4.0 from PyPI) for an invented profile.

They are in `tests/formulations/published.json`. Its `costs` are times and bytes of layers, ends, stages and iterations of
random plans; its `searches` are the plans that the engine finds, without Ulysses layers. `slow` divides the bandwidths of all-
reduces. The numbers were made by running the engine's cost_model.py, search_engine.py and dp_core.cpp.
"""

import json
import os
import pathlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from trainplan.formulations.pipeline.instance import Instance as PipelineInstance
from trainplan.profiling.imports.galvatron_memory import Ends

from trainplan.papers.galvatron_engine.costs import EngineOptions
from trainplan.papers.galvatron_engine.instances import build
from trainplan.papers.galvatron_engine.problem import Configuration, Instance
from trainplan.papers.galvatron_engine.profile import EngineProfile, MessageTimes, read_engine_profile

Json = dict[str, Any]
HERE = pathlib.Path(__file__).parents[1]
DATA = pathlib.Path(os.environ.get("TRAINPLAN_DATA") or HERE.parent.parent / "shared/data") / "galvatron"
MIB, GIB = 2**20, 2**30
NUMBERS: Json = json.loads((HERE / "formulations/published.json").read_text())


def invented(slow: int = 1) -> EngineProfile:
    """The invented profile that the engine was run with. slow: divides the bandwidths of all-reduces."""
    given = NUMBERS["profile"]
    measured = {}
    for ranks, times in given["measured"].items():
        line = np.polyfit([int(size) for size in times], [ms / 2 for ms in times.values()], 1)
        by_bytes = {int(size) * MIB: ms / 2 for size, ms in times.items()}
        measured[int(ranks)] = MessageTimes(by_bytes, (float(line[0]), float(line[1])))

    def degrees(table: dict[str, float], scale: int = 1) -> dict[int, float]:
        return {int(tp): size * scale for tp, size in table.items()}

    names = {"off": "other_memory_pp_off", "first": "other_memory_pp_on_first", "last": "other_memory_pp_on_last"}
    bandwidths = {tuple(key.split("_")): round(value / slow, 3) for key, value in given["allreduce"].items()}
    return EngineProfile(
        name="invented",
        layers=given["layers"],
        sequence=given["sequence"],
        hidden_size=given["hidden_size"],
        element_bytes=2,
        devices=8,
        layer_ms=tuple(given["layer_ms"]),
        ends_ms=tuple(given["ends_ms"]),
        parameter_mib=given["parameter_mib"],
        kept_mib=degrees(given["kept_mib"]),
        checkpoint_mib=given["checkpoint_mib"],
        ends={names[end]: Ends(*(degrees(table, MIB) for table in tables)) for end, tables in given["ends"].items()},
        all_reduce={(int(ranks), flag == "1"): 1 / value for (ranks, flag), value in bandwidths.items()},
        p2p={int(stages): 1 / value for stages, value in given["p2p"].items()},
        measured=measured,
        overlap=given["overlap"],
    )


def engine_options(case: Json) -> EngineOptions:
    """The options that the engine was run with in a case of the file."""
    return EngineOptions(measured_messages=case["measured"], zero2=case["zero2"], both_orders=case["both"])


def as_engine(instance: PipelineInstance, ends_ns: Callable[[Any], tuple[int, int]] = lambda _: (0, 0)) -> Instance:
    """A pipeline instance as one of the engine's problem, which has the engine's formula of the iteration time.

    ends_ns: gives the times of the first and the last stage's ends (embedding and head) of a configuration.
    """
    names = ("devices", "memory_bytes", "batch", "layer_names", "layer_kinds", "boundary_kinds")
    configurations = [
        Configuration(given.stages, given.micro_batches, given.tables, ends_ns=ends_ns(given))
        for given in instance.configurations
    ]
    return Instance(**{name: getattr(instance, name) for name in names}, configurations=tuple(configurations))


@cache
def large(batch: int, options: EngineOptions) -> Instance:
    """An instance of the invented profile with more memory than any plan needs. batch: samples of one step."""
    return build(invented(), 100 * GIB, batch, options)


def files(model: str, memory: str, times: str) -> list[pathlib.Path]:
    """The files of a profile that Galvatron's authors published: a model's memory and times, and the hardware.

    model: the folder. memory, times: names of files in it. Skips the test where the files are not there.
    """
    kinds = ("allreduce_bandwidth_1nodes_8gpus_per_node", "p2p_bandwidth_1nodes_8gpus_per_node", "overlap_coefficient")
    hardware = [DATA / f"hardware/{kind}.json" for kind in (*kinds, "sp_time_1nodes_8gpus_per_node")]
    paths = [DATA / model / memory, DATA / model / times, *hardware]
    if missing := [path for path in paths if not path.exists()]:
        pytest.skip(f"needs the published profile {missing[0].name}: set TRAINPLAN_DATA")
    return paths


def llama() -> EngineProfile:
    """The published profile of Llama 2 7B. Skips the test where it is not there."""
    names = (f"{kind}_profiling_bf16_llama2-7b_all.json" for kind in ("memory", "computation"))
    return read_engine_profile(files("llama2-7b", *names), layers=32, hidden_size=4096)


def llama_plan() -> pathlib.Path:
    """The file of the plan that Galvatron's authors published for Llama 2 7B on 8 GPUs."""
    return DATA / "llama2-7b/galvatron_config_llama2-7b_1nodes_8gpus_per_node_36GB_bf16.json"


def bert() -> EngineProfile:
    """The published profile of BERT-Large. Skips the test where it is not there."""
    names = (f"{kind}_profiling_bf16_hidden1024_head16.json" for kind in ("memory", "computation"))
    return read_engine_profile(files("bert-large", *names), layers=24, sequence=512)
