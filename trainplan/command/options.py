"""Options that several commands share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from typer import Option

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
MicroBatches = Annotated[int, Option("--micro-batches", help="Micro-batches of a step.")]
TimeLimit = Annotated[float | None, Option("--time-limit", help="Seconds; the best solution and its bound are kept.")]
Seed = Annotated[int, Option("--seed", help="Seed of the method.")]
Method = Annotated[str, Option("--method", help="A name from `trainplan methods`; exact is the best proven one.")]
Granularity = Annotated[str, Option("--granularity", help="Decide for each 'layer' or each 'unit' (sub-layer).")]


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))
