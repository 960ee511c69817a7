"""Instances of degenerate sizes, as dicts of their file formats: one layer, one device, one option, one micro-batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.helpers.assignments import random_assignment_dict
from tests.helpers.cluster_instances import random_cluster_dict
from tests.helpers.instances import random_pipeline_dict
from tests.helpers.partition_instances import random_partition_dict
from tests.helpers.switch_instances import random_instance as random_switches

Record = dict[str, Any]


def layer_strategies(rng: random.Random, ordinary: Callable[[random.Random], Record]) -> Record:
    """A layer-strategies instance of one layer, one option for each layer, or both, cut from one that `ordinary` draws."""
    record, cut = ordinary(rng), rng.choice(("layer", "option", "both"))
    if cut != "option":
        record |= {"layers": record["layers"][:1], "transitions_ns": []}
    if cut != "layer":
        record["layers"] = [{"options": layer["options"][:1]} for layer in record["layers"]]
        record["transitions_ns"] = [[table[0][:1]] for table in record["transitions_ns"]]
    return record


def pipeline(rng: random.Random) -> Record:
    """A pipeline instance of one layer, one option, one device, or one configuration of one micro-batch."""
    record, cut = random_pipeline_dict(rng), rng.choice(("layer", "option", "device", "micro-batch"))
    configurations = record["configurations"]
    if cut in ("layer", "device"):
        for configuration in configurations:
            configuration["stages"] = 1
            _keep_options(configuration, ("single", "single-ckpt") if cut == "device" else ("dp4", "tp4", "sdp4", "dp4-ckpt"))
    if cut == "layer":
        record |= {"layer_names": ["layer 0"], "layer_kinds": record["layer_kinds"][:1], "boundary_kinds": []}
    elif cut == "device":
        record["devices"] = 1
    elif cut == "option":
        for configuration in configurations:
            _keep_options(configuration, [configuration["options"][0][0]["strategy"]])
    else:
        record["configurations"] = [{**configurations[0], "micro_batches": 1}]
    return record


def _keep_options(configuration: Record, names: Sequence[str]) -> None:
    """Cuts a configuration to its first options, as many as there are names, which they get."""
    count = min(len(names), len(configuration["options"][0]))
    configuration["options"] = [
        [options[index] | {"strategy": names[index]} for index in range(count)] for options in configuration["options"]
    ]
    configuration["transitions_ns"] = [[row[:count] for row in table[:count]] for table in configuration["transitions_ns"]]
    configuration["entries_ns"] = [row[:count] for row in configuration["entries_ns"]]


def stage_assignment(rng: random.Random) -> Record:
    """A stage-assignment instance of one layer, one stage, or a stage for each layer."""
    layers, stages = rng.choice(((1, 1), (6, 1), (6, 6)))
    record = random_assignment_dict(rng, layers, stages, memory=rng.random() < 0.5)
    return record | {"micro_batches": rng.choice((1, record["micro_batches"]))}


def pipeline_partition(rng: random.Random) -> Record:
    """A pipeline-partition instance of one sub-layer, one stage, or a stage for each sub-layer, often of one micro-batch."""
    sublayers, stages = rng.choice(((1, 1), (8, 1), (8, 8), (2, 2)))
    record = random_partition_dict(rng, sublayers, stages, memory=rng.random() < 0.5)
    return record | {"micro_batches": rng.choice((1, record["micro_batches"]))}


def memory_switches(rng: random.Random) -> Record:
    """A memory-switches instance of one layer, whose costs are small (mostly 0) or large."""
    needed, numbers = rng.random() < 0.5, np.random.default_rng(rng.randrange(2**32))
    return random_switches(numbers, 1, rng.choice((1, 2, 100)), offload_needs_ckpt=needed).to_dict()


def cluster_strategy(rng: random.Random) -> Record:
    """A cluster-strategy instance of one layer, one device or one table, or whose degrees divide neither devices nor batch."""
    cut = rng.choice(("layer", "device", "both", "table", "batch", "degrees"))
    devices = 1 if cut in ("device", "both") else rng.choice((2, 3, 4))
    record = random_cluster_dict(rng, devices, 1 if cut in ("layer", "both") else 4)
    if cut == "table":
        record |= {"shards": record["shards"][:1], "tables": record["tables"][:1]}
    elif cut == "batch":
        record |= {"batch": 1, "tables": [table | {"mbs": 2} for table in record["tables"] if table["mbs"] == 1]}
    elif cut == "degrees":
        tmp = 4 if devices < 4 else 3
        record["shards"] = [shard | {"tmp": tmp} for shard in record["shards"][:1]]
        record["tables"] = [table | {"tmp": tmp} for table in record["tables"][:1]]
    return record
