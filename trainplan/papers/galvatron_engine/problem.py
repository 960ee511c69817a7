"""galvatron-engine: what Galvatron's published engine minimises (Hetu-Galvatron v2.4.0), over the stages that it tries.

An instance is one of `pipeline`, with three differences. The layers are split evenly (`even_partition`): any other partition is
a violation. R and entry count in no final cost; the engine's search knows R. And in place of Eq. 8 the iteration time of a
configuration is, with C_i = T_i - G_i and w = min(P, m) - 1,

    max ( sum_i C_i + (m-1) C_{P-1},  max (w C_0, sum_{i>0} C_i) + max (0, m+1-P) C_0 )
        + max (0, max_i ( T_i - e_i - sum_{k<=i} C_k ))

where e_i, of the first and the last stage, is the time of embedding and head (`ends_ns`, contained in T_i). Memory is that of
`pipeline`, Eq. 2. The schedule is 1F1B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from trainplan.formulations.layer_strategies.problem import TimeNs
from trainplan.formulations.pipeline import instance as pipeline_instance
from trainplan.formulations.pipeline import instance_file
from trainplan.formulations.pipeline import problem as pipeline
from trainplan.formulations.pipeline.problem import Evaluation, Solution, evaluate_stages
from trainplan.profiling.base.files import Source, name_of_source, parse

NAME = "galvatron-engine"


class ConfigurationRecord(instance_file.ConfigurationRecord):
    """Tables of one pass of the engine's loops."""

    schedule: Literal["1f1b"] = "1f1b"
    ends_ns: Annotated[tuple[TimeNs, TimeNs], Field(strict=False, description="embedding and head, contained in time_ns")] = (
        0,
        0,
    )


class InstanceRecord(instance_file.InstanceRecord):
    """The file format of a galvatron-engine instance, version 1."""

    problem: Literal["galvatron-engine"]  # type: ignore[assignment]
    configurations: Annotated[list[ConfigurationRecord], Field(min_length=1)]  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class Configuration(pipeline_instance.Configuration):
    """One pass of the engine's loops. ends_ns: nanoseconds of embedding and head."""

    ends_ns: tuple[int, int] = (0, 0)

    @property
    def key(self) -> tuple[Any, ...]:
        """What the answer depends on, beside the tables."""
        return *super().key, self.ends_ns

    @cached_property
    def counted(self) -> pipeline_instance.Configuration:
        """The configuration as its final cost counts it: without R and entry."""
        tables = replace(self.tables, transitions_ns=0 * self.tables.transitions_ns, entries_ns=0 * self.tables.entries_ns)
        return pipeline_instance.Configuration(self.stages, self.micro_batches, tables, self.schedule)

    def to_dict(self) -> dict[str, Any]:
        """The configuration in the file format of its instance."""
        return {**super().to_dict(), "ends_ns": list(self.ends_ns)}


@dataclass(frozen=True, eq=False)
class Instance(pipeline_instance.Instance):
    """The engine's problem in arrays."""

    configurations: tuple[Configuration, ...]

    problem: ClassVar[str] = NAME


def load(source: Source, where: str = "instance") -> Instance:
    """An instance from a file or a dict (which errors then call `where`). Raises InputError naming file, field and fix."""
    record = parse(source, InstanceRecord, name_of_source(source, where))
    configurations = [
        Configuration(entry.stages, entry.micro_batches, instance_file.tables_of(entry), entry.schedule, entry.ends_ns)
        for entry in record.configurations
    ]
    return Instance(configurations=tuple(configurations), **instance_file.common_fields(record))


def even_partition(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage as the engine splits equal layers (pp_division_even): the last stage takes the rest."""
    return (layers // stages,) * (stages - 1) + (layers - layers // stages * (stages - 1),)


def iteration_ns(configuration: Configuration, times_ns: Sequence[int], syncs_ns: Sequence[int]) -> int:
    """The engine's iteration time from the stages' times and the synchronisation in them."""
    silent = [time - sync for time, sync in zip(times_ns, syncs_ns, strict=True)]
    stages, m = configuration.stages, configuration.micro_batches
    led = max((min(stages, m) - 1) * silent[0], sum(silent[1:])) + max(0, m + 1 - stages) * silent[0]
    layers_ns = list(times_ns)
    for stage, end in zip((0, -1), configuration.ends_ns, strict=True):
        layers_ns[stage] -= end
    unhidden = max(time - before for time, before in zip(layers_ns, accumulate(silent), strict=True))
    return max(sum(silent) + (m - 1) * silent[-1], led) + max(0, unhidden)


def evaluate(instance: Instance, solution: Solution) -> Evaluation:
    """Time and memory of a solution. Raises ValueError where it is no solution of the instance."""
    if wrong := malformed(instance, solution):
        raise ValueError(wrong[0])
    configuration = instance.configurations[solution.configuration]
    stages = evaluate_stages(instance, solution, configuration.counted)
    times_ns, syncs_ns = zip(*((stage.time_ns, stage.sync_ns) for stage in stages), strict=True)
    return Evaluation(iteration_ns(configuration, times_ns, syncs_ns), stages)


def violations(instance: Instance, solution: Solution) -> list[str]:
    """Every constraint that a solution breaks, in words; empty where it is feasible."""
    return malformed(instance, solution) or pipeline.over_memory(instance, evaluate(instance, solution))


def malformed(instance: Instance, solution: Solution) -> list[str]:
    """Why a solution is none of the instance, in words; empty where it is one, whatever memory it needs."""
    if wrong := pipeline.malformed(instance, solution):
        return wrong
    even = even_partition(instance.layers, len(solution.stages))
    if tuple(solution.stages) != even:
        return [f"stages is {list(solution.stages)}; the published engine splits the layers evenly: {list(even)}"]
    return []


def describe(instance: Instance, solution: Solution) -> dict[str, Any]:
    """What users see of a solution's costs."""
    return pipeline.described(instance, solution, evaluate(instance, solution))


load_solution, solution_dict = pipeline.load_solution, pipeline.solution_dict
