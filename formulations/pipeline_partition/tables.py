"""Tables of a partition for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainplan.formulations.pipeline_partition.problem import Instance
from trainplan.formulations.problem import Table
from trainplan.profiling.base.quantities import format_bytes, format_time, plural, span


def stage_tables(instance: Instance, described: Mapping[str, Any]) -> list[Table]:
    """Two tables: the stages of a partition with the master stage marked, and start-up time and bubble. described: what
    `describe` returns for the solution."""
    memory, master = instance.memory, described["master_stage"]
    columns = ["stage", "sub-layers", "count", "forward", "backward", "transfer", *(["peak", "of"] if memory else []), ""]
    rows = []
    for x, stage in enumerate(described["stages"]):
        first, last = stage["first"], stage["last"]
        row = [str(x), span(instance.name_of(first), instance.name_of(last)), str(last - first + 1)]
        row += [format_time(stage[name]) for name in ("forward_ns", "backward_ns", "transfer_ns")]
        if memory is not None:
            row += [format_bytes(stage["peak_bytes"]), format_bytes(int(memory.limit_bytes[x]))]
        rows.append((*row, "<- master stage" if x == master else ""))
    step = (format_time(described["startup_ns"]), f"{described['bubble']:.1%}")
    pipelines = plural(instance.provenance.get("dp", 1), "pipeline")
    title = f"{pipelines} of {plural(instance.stages, 'stage')}, {instance.sublayers} sub-layers; "
    title += plural(instance.micro_batches, "micro-batch")
    return [Table(title, tuple(columns), tuple(rows)), Table("", ("start-up", "bubble"), (step,))]
