"""The problem galvatron-engine: the iteration time that Galvatron's published engine (Hetu-Galvatron v2.4.0) minimises.

An instance is one of the problem `pipeline`, with three differences. The layers are split evenly into stages
(`even_partition`): any other partition is a violation. Re-laying activations between layers (R) and before the first layer
(entry) counts in no final cost; the engine's search counts R. And instead of Eq. 8 the iteration time of a configuration with P
stages and m micro-batches is, with T_i the time of stage i for a micro-batch, G_i the synchronisation of gradients in it,
C_i = T_i - G_i and w = min(P, m) - 1,

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
    """A configuration in the file of a galvatron-engine instance: costs of layers for one number of stages and micro-batches,
    and times of embedding and head.
    """

    schedule: Literal["1f1b"] = "1f1b"
    ends_ns: Annotated[tuple[TimeNs, TimeNs], Field(strict=False, description="embedding and head, contained in time_ns")] = (
        0,
        0,
    )


class InstanceRecord(instance_file.InstanceRecord):
    """The file format, version 1, of an instance of the problem galvatron-engine: layers with the costs of their strategies."""

    problem: Literal["galvatron-engine"]  # type: ignore[assignment]
    configurations: Annotated[list[ConfigurationRecord], Field(min_length=1)]  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class Configuration(pipeline_instance.Configuration):
    """Cost tables of layers for one number of stages and micro-batches, as one pass of the loops around the search of
    Galvatron's engine fixes them.

    ends_ns: time of (embedding, head) for one micro-batch, which is included in the times of the first and last layer.
    """

    ends_ns: tuple[int, int] = (0, 0)

    @property
    def key(self) -> tuple[Any, ...]:
        """A tuple of the parameters, other than the cost tables, that determine the solution; used to find equal
        configurations.
        """
        return *super().key, self.ends_ns

    @cached_property
    def counted(self) -> pipeline_instance.Configuration:
        """The configuration with the costs that enter the engine's final cost of a plan: times of redistributing activations
        between layers, and before the first layer, are 0.
        """
        tables = replace(self.tables, transitions_ns=0 * self.tables.transitions_ns, entries_ns=0 * self.tables.entries_ns)
        return pipeline_instance.Configuration(self.stages, self.micro_batches, tables, self.schedule)

    def to_dict(self) -> dict[str, Any]:
        """The configuration as a dict in the JSON file format of instances: the keys of a configuration of the problem
        `pipeline`, and `ends_ns`."""
        return {**super().to_dict(), "ends_ns": list(self.ends_ns)}


@dataclass(frozen=True, eq=False)
class Instance(pipeline_instance.Instance):
    """An instance of the problem galvatron-engine (choose stages, micro-batches and a strategy for every layer), with costs as
    arrays.
    """

    configurations: tuple[Configuration, ...]

    problem: ClassVar[str] = NAME


def load(source: Source, where: str = "instance") -> Instance:
    """Read an instance of the problem galvatron-engine (layers with the costs of their strategies) from a file or a dict.
    where: the name of a dict in errors. Raises InputError, which names file, field and fix.
    """
    record = parse(source, InstanceRecord, name_of_source(source, where))
    configurations = [
        Configuration(entry.stages, entry.micro_batches, instance_file.tables_of(entry), entry.schedule, entry.ends_ns)
        for entry in record.configurations
    ]
    return Instance(configurations=tuple(configurations), **instance_file.common_fields(record))


def even_partition(layers: int, stages: int) -> tuple[int, ...]:
    """The number of layers of each stage as Galvatron's engine splits them (pp_division_even): equal numbers, rounded down, and
    the last stage also takes the remainder. Example: 10 layers in 4 stages -> (2, 2, 2, 4).
    """
    return (layers // stages,) * (stages - 1) + (layers - layers // stages * (stages - 1),)


def iteration_ns(configuration: Configuration, times_ns: Sequence[int], syncs_ns: Sequence[int]) -> int:
    """The iteration time in ns of a 1F1B pipeline by the cost model of Galvatron's engine.

    times_ns: time T_i of one micro-batch on each stage i, with gradient synchronisation. syncs_ns: the synchronisation G_i
    contained in T_i. With P stages, m micro-batches, C_i = T_i - G_i, w = min(P, m) - 1, and e_i the time of embedding or head
    on the first and the last stage (`configuration.ends_ns`, contained in T_i), the time is
        max ( sum_i C_i + (m-1) C_{P-1},  max (w C_0, sum_{i>0} C_i) + max (0, m+1-P) C_0 )
            + max (0, max_i ( T_i - e_i - sum_{k<=i} C_k ))
    """
    silent = [time - sync for time, sync in zip(times_ns, syncs_ns, strict=True)]
    stages, m = configuration.stages, configuration.micro_batches
    led = max((min(stages, m) - 1) * silent[0], sum(silent[1:])) + max(0, m + 1 - stages) * silent[0]
    layers_ns = list(times_ns)
    for stage, end in zip((0, -1), configuration.ends_ns, strict=True):
        layers_ns[stage] -= end
    unhidden = max(time - before for time, before in zip(layers_ns, accumulate(silent), strict=True))
    return max(sum(silent) + (m - 1) * silent[-1], led) + max(0, unhidden)


def evaluate(instance: Instance, solution: Solution) -> Evaluation:
    """Compute the iteration time in ns of a solution, and time and memory of each stage. instance: the cost tables of all
    configurations. solution: the index of a configuration, the number of layers per stage, and the strategy of each layer.
    Raises ValueError if the solution does not belong to the instance.
    """
    if wrong := malformed(instance, solution):
        raise ValueError(wrong[0])
    configuration = instance.configurations[solution.configuration]
    stages = evaluate_stages(instance, solution, configuration.counted)
    times_ns, syncs_ns = zip(*((stage.time_ns, stage.sync_ns) for stage in stages), strict=True)
    return Evaluation(iteration_ns(configuration, times_ns, syncs_ns), stages)


def violations(instance: Instance, solution: Solution) -> list[str]:
    """Describe every constraint of the instance that a solution violates, one text per constraint; empty if the solution is
    feasible.
    """
    return malformed(instance, solution) or pipeline.over_memory(instance, evaluate(instance, solution))


def malformed(instance: Instance, solution: Solution) -> list[str]:
    """Describe why a solution does not belong to an instance (such as layers that are not split evenly), one text per reason;
    empty if it belongs to it. Memory is not checked.
    """
    if wrong := pipeline.malformed(instance, solution):
        return wrong
    even = even_partition(instance.layers, len(solution.stages))
    if tuple(solution.stages) != even:
        return [f"stages is {list(solution.stages)}; the published engine splits the layers evenly: {list(even)}"]
    return []


def describe(instance: Instance, solution: Solution) -> dict[str, Any]:
    """Evaluate a solution by the cost model of Galvatron's engine and return its costs as a JSON-ready dict. Keys: `time_ns`
    (the step), `throughput_samples_per_s` (None if the time is 0), `pipeline` (number of stages), `micro_batches`, `schedule`
    (its name), `time_balance` and `memory_balance` (fractions from 0 to 1 - 1/stages, larger if stages are more even), `stages`
    (for each stage a dict with the attributes of `EvaluatedStage`, times in ns), and `strategies` (the name of every layer's
    strategy). Of the stage with the largest peak memory: `peak_bytes` and `state_bytes` (model states) of one device, and
    `peak_layer` and `peak_layer_name`, index and name of the layer in whose backward pass the peak is.

    instance: the cost tables of all configurations (numbers of stages and micro-batches). solution: the index of a
    configuration, the number of layers of each stage, and the strategy of every layer. Raises ValueError if the solution does
    not belong to the instance."""
    return pipeline.described(instance, solution, evaluate(instance, solution))


load_solution, solution_dict = pipeline.load_solution, pipeline.solution_dict
