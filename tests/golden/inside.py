"""All that the recorder takes of trainplan in addition to its public verbs, and of other tests: the one place to change when
these move."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from trainplan.execution.prediction.evaluate_plan import PlanPrediction
from trainplan.execution.program import Instruction
from trainplan.execution.runtimes.registry import export_names, exporter
from trainplan.solvers.core.clock import Clock

from tests.helpers.cluster_instances import random_cluster_dict as cluster_dict
from tests.helpers.instances import random_dict as layers_dict
from tests.helpers.instances import random_pipeline_dict as pipeline_dict
from tests.helpers.partition_instances import random_partition_dict as partition_dict

__all__ = ["MEASURED", "cluster_dict", "layers_dict", "partition_dict", "pipeline_dict"]
__all__ += ["export_names", "exporter", "issued", "stop_clocks"]
MEASURED = files("trainplan.data") / "measured" / "steps.json"


def stop_clocks() -> None:
    """From now on no time passes for searches, so that none ends by a limit and what they do depends on no machine."""
    Clock.__init__.__defaults__ = (lambda: 0.0,)


def issued(judged: PlanPrediction) -> Iterator[tuple[Any, ...]]:
    """The compiled programs of a plan, in plain values: of each rank that is analysed those that it stands for, its buffers,
    how its rounds repeat, and every instruction."""
    for rounds, ranks in zip(judged.time.rounds, judged.classes.values(), strict=True):
        program = rounds.few
        yield (*ranks,), (*program.units,), program.micro_batches, sorted(program.buffers.items()), sorted(program.persistent)
        yield rounds.begin, rounds.end, rounds.count, rounds.size
        yield from map(_plain, program.instructions)


def _plain(instruction: Instruction) -> tuple[Any, ...]:
    i = instruction
    index = (str(i.op), i.unit, i.micro_batch, i.half, i.stream)
    buffers = (i.reads, i.writes, i.frees, i.after, i.marks)
    sizes = (i.group, sorted(i.args.items()), i.message_bytes, i.workspace_bytes, i.waits)
    return index, buffers, sizes, tuple(map(_plain, i.grouped))
