"""Files of measured runs: a list of rows, each with a model's sizes, a layout, and what was measured."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, ValidationError

from trainplan.profiling.base.errors import InputError, caution, shown
from trainplan.profiling.base.files import Record, as_input_error, read_data

Count = Annotated[int, Field(ge=1, le=2**40)]
Measure = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=10_000)]


class Run(Record):
    """A measured run; what is null or left out is not said.

    model: its name, of a shipped configuration or a family's, whose fields the row's sizes override. params: parameters,
    layers to vocab: sizes; experts, topk: of a mixture of experts. gpu: of a data sheet, by words of its name; gpus: how many.
    seq: tokens of a sample; gbs: samples of a step, mbs: of a micro-batch on one rank. tp to dp: degrees, vpp the stages of
    each device. fsdp: how parameters are sharded, zero: the ZeRO stage. recompute, precision: in words. step_s to oom: what was
    measured. note: words and flags of the source; date and framework say what the framework did by default.
    """

    id: Text
    source: Text = ""
    model: Text
    params: Measure | None = None
    layers: Count | None = None
    hidden: Count | None = None
    heads: Count | None = None
    kv_heads: Count | None = None
    ffn: Count | None = None
    vocab: Count | None = None
    experts: Count | None = None
    topk: Count | None = None
    gpu: Text
    gpus: Count
    seq: Count | None = None
    gbs: Count | None = None
    mbs: Count | None = None
    tp: Count | None = None
    pp: Count | None = None
    vpp: Count | None = None
    cp: Count | None = None
    ep: Count | None = None
    dp: Count | None = None
    fsdp: Text | None = None
    recompute: Text | None = None
    precision: Text | None = None
    tokens_s_gpu: Measure | None = None
    tflops_gpu: Measure | None = None
    mfu: Measure | None = None
    step_s: Measure | None = None
    mem_gib: Measure | None = None
    oom: bool | None = None
    note: Text | None = None
    task: Text | None = None
    date: Text | None = None
    framework: Text | None = None
    zero: Annotated[int, Field(ge=0, le=3)] | None = None
    file: Text | None = None


# Fields that change no prediction, and why.
NAMES = "names the row"
MEASURED = "is measured: predictions are held against it"
UNMOVED = {
    **dict.fromkeys(("id", "source", "file"), NAMES),
    **dict.fromkeys(("tokens_s_gpu", "tflops_gpu", "mfu", "step_s", "mem_gib", "oom"), MEASURED),
    "params": "follows from the sizes, which count",
}


def load_runs(source: str | os.PathLike[str] | Sequence[Mapping[str, Any]]) -> list[Run]:
    """The rows of a JSON file, or of a list. Unknown fields are warned of once. Raises InputError."""
    listed = isinstance(source, Sequence) and not isinstance(source, str)
    where = "runs" if listed else os.fspath(source)  # type: ignore[arg-type]
    values: Any = source if listed else read_data(where)
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise InputError(where, "", f"holds {shown(values)}", "give a list of runs [...]")
    if not values:
        raise InputError(where, "", "holds no run", "give a list of at least one run")
    runs: list[Run] = []
    first: dict[str, int] = {}
    for place, value in enumerate(values):
        if not isinstance(value, Mapping):
            raise InputError(where, f"[{place}]", f"is {shown(value)}", "give an object with id, model, gpu and gpus")
        for name in sorted(set(value) - set(Run.model_fields)):
            if name not in first:
                first[name] = place
                caution(where, f"[{place}].{name}", "is a field that runs do not have", "it is left out")
        fields = {name: each for name, each in value.items() if name in Run.model_fields}
        try:
            run = Run.model_validate(fields)
        except ValidationError as error:
            wrong = as_input_error(error, where)
            raise InputError(where, f"[{place}].{wrong.field}".rstrip("."), wrong.problem, wrong.fix) from None
        runs.append(run)
    seen: dict[str, int] = {}
    for place, run in enumerate(runs):
        if run.id in seen:
            raise InputError(where, f"[{place}].id", f"is {run.id!r}, as of [{seen[run.id]}]", "give each run an id of its own")
        seen[run.id] = place
    return runs
