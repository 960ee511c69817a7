"""Explains why no joint plan fits: the least memory of any plan, and what to change.

Configurations are searched by `greedy_fill`, the most promising first, each with a limit that beats the best so far. For
interleaved ones `interleaved_memory` gives a bound and a solution, and tiny ones where these differ are enumerated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from trainplan.formulations.joint.enumeration import improving, solution_count, solutions
from trainplan.formulations.joint.evaluation import Evaluation, evaluate, group_state_bytes, over_memory
from trainplan.formulations.joint.problem import Configuration, Instance, Schedule, Solution
from trainplan.formulations.joint.recompute_first import RECOMPUTE_FIRST
from trainplan.formulations.plan.strategy import Strategy
from trainplan.solvers.core.result import Infeasibility, short_of_memory
from trainplan.solvers.joint.memory_feasibility.greedy_fill import LARGEST, FillOrder, excess_bytes, fill_orders, over_hosts
from trainplan.solvers.joint.memory_feasibility.interleaved_memory import LeanChoice
from trainplan.solvers.joint.memory_feasibility.interleaved_memory import leanest as leanest_chunks
from trainplan.solvers.joint.memory_feasibility.runtime_memory import RuntimeMemory

MOST_ENUMERATED = 20_000
COARSE = (4, 32)  # parts of a device's memory by which configurations beat each other at first
HOST_PARTS = ("on the host", "on the device")


def explain(instance: Instance) -> Infeasibility | None:
    """The reason, for users, why no plan fits the memory; None if one fits, if that is not certain, or if no reason is known.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from."""
    memory = least_memory(instance)
    if memory.fits():
        return None
    least = memory.least()
    if least is None:
        return host_reason(instance)
    solution, bound = least
    evaluation = evaluate(instance, solution)
    fitting = bound <= 0 or not over_memory(instance, solution, evaluation)
    return None if fitting else reason(instance, solution, evaluation, bound)


def fits(instance: Instance) -> bool | None:
    """Whether some plan of the instance fits its memory; None if that is not known, which may be so for interleaved
    configurations (numbers of stages and micro-batches, with a schedule) with many solutions.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from."""
    return least_memory(instance).fits()


def leanest(instance: Instance) -> tuple[Solution, int] | None:
    """A plan that needs little memory on every device, whatever the limits, and a lower bound in bytes: in every plan, some
    device needs at least that much (mostly the bound is what the returned plan needs); None if no plan is known.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from."""
    least = least_memory(instance.with_memory(0)).least()
    return None if least is None else (least[0], max(0, least[1]))


def least_memory(instance: Instance) -> LeastMemory | RuntimeMemory:
    """The object that finds the least memory of an instance's plans: by the instance's tables, or by the prediction of its
    runtime."""
    return LeastMemory(instance) if instance.runtime is None else RuntimeMemory(instance)


class LeastMemory:
    """Finds the least memory that the plans of an instance need; each result is computed when it is first used. The excess of a
    plan is the bytes by which its fullest stage exceeds its limit, negative if it fits."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance

    @cached_property
    def fill_orders(self) -> list[FillOrder]:
        """The searches for a solution within memory that together cover all configurations without an interleaved schedule,
        sorted by their lower bounds on the excess, the most promising first."""
        plain = [
            configuration_index
            for configuration_index, configuration in enumerate(self.instance.configurations)
            if configuration.schedule.chunks == 1
        ]
        return sorted(
            (order for configuration_index in plain for order in fill_orders(self.instance, configuration_index)),
            key=lambda order: order.least_excess,
        )

    @cached_property
    def lean_choices(self) -> dict[int, LeanChoice]:
        """For each interleaved configuration, by its index: a lower bound in bytes on the excess of its solutions, and one
        solution of little memory."""
        chunked = [
            configuration_index
            for configuration_index, configuration in enumerate(self.instance.configurations)
            if configuration.schedule.chunks > 1
        ]
        return {configuration_index: leanest_chunks(self.instance, configuration_index) for configuration_index in chunked}

    def fits(self) -> bool | None:
        """Whether some plan fits all limits; None if that is not known, because an interleaved configuration has too many
        solutions to evaluate."""
        if any(order.least_excess <= 0 and order.within(0) is not None for order in self.fill_orders):
            return True
        if any(lean.excess_bytes <= 0 for lean in self.lean_choices.values()):
            return True
        open_ones = [configuration_index for configuration_index, lean in self.lean_choices.items() if lean.bound_bytes <= 0]
        if (part := self._few(open_ones)) is None:
            return None
        return any(solution is not None for solution in improving(part))

    def _few(self, indices: Sequence[int]) -> Instance | None:
        """A copy of the instance with some of its configurations only, if these have few enough solutions to evaluate all of
        them; else None. indices: the configurations' indices."""
        part = self.instance.only(indices)
        return part if solution_count(part) <= MOST_ENUMERATED else None

    def least(self) -> tuple[Solution, int] | None:
        """A plan of little memory, and a lower bound in bytes on the excess of every plan, mostly equal to the excess of the
        returned plan. None if no plan is known: hosts are too small for any, or stages are interleaved."""
        best: tuple[int, Solution] | None = None
        for parts in COARSE:  # so that few are bisected to the byte
            for order in self.fill_orders:
                limit = max(self.instance.limit_bytes(group) for group in order.configuration.device_groups)
                best = order.improve_by_at_least(best, max(1, limit // parts))
        for order in self.fill_orders:
            if best is None or order.least_excess < best[0]:
                best = order.better(best)
        if best is not None and best[0] <= 0:
            return best[1], best[0]
        for lean in self.lean_choices.values():
            if lean.solution is not None and (best is None or lean.excess_bytes < best[0]):
                best = lean.excess_bytes, lean.solution
        bounds = {
            configuration_index: lean.bound_bytes
            for configuration_index, lean in self.lean_choices.items()
            if best is None or lean.bound_bytes < best[0]
        }
        if (part := self._few(tuple(bounds))) is not None:
            best, bounds = self._enumerated(tuple(bounds), part, best), {}
        return None if best is None else (best[1], min([best[0], *bounds.values()]))

    def _enumerated(
        self, indices: Sequence[int], part: Instance, best: tuple[int, Solution] | None
    ) -> tuple[int, Solution] | None:
        """The solution of least excess, with its excess in bytes, among the best one so far and all solutions of a part of the
        instance. part: the instance with few configurations. indices: the indices of these configurations in the whole
        instance. best: the best solution so far with its excess, or None."""
        for solution in solutions(part):
            if solution is not None:
                lifted = replace(solution, configuration=indices[solution.configuration])
                excess = excess_bytes(self.instance, lifted)
                if (best is None or excess < best[0]) and not over_hosts(self.instance, lifted):
                    best = excess, lifted
        return best


def host_reason(instance: Instance) -> Infeasibility | None:
    """The reason, for users, why nothing fits if the memory of hosts is too small for every plan, however much memory devices
    have; None if that is not the reason. (Mostly no plan exists at all then, since no two options of neighbouring units agree
    on the layout of activations between them, or no cut between stages is allowed.)

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from."""
    apart = replace(instance, configurations=tuple(map(_one_by_one, instance.configurations)))

    def first_of(limited: Instance) -> Solution | None:
        possible = (order for index in range(len(limited.configurations)) for order in fill_orders(limited, index))
        return next((solution for order in possible if (solution := order.within(LARGEST)) is not None), None)

    def within(host_limit: int) -> Solution | None:
        """A solution that needs no more of the host for each device."""
        return first_of(replace(apart, classes=tuple(replace(devices, host_bytes=host_limit) for devices in apart.classes)))

    host_limits = [
        host_limit
        for configuration in instance.configurations
        for x in configuration.device_groups
        if (host_limit := instance.host_limit_bytes(x)) is not None
    ]
    if not host_limits or first_of(apart) is not None or (least_host := within(LARGEST)) is None:
        return None
    low = min(host_limits) + 1
    high = max(stage.host_bytes for stage in evaluate(instance, least_host).stages)
    while low < high:
        middle = (low + high) // 2
        if (smaller := within(middle)) is None:
            low = middle + 1
        else:
            high, least_host = max(stage.host_bytes for stage in evaluate(instance, smaller).stages), smaller
    stage = max(evaluate(instance, least_host).stages, key=lambda evaluated: evaluated.host_bytes)
    name = f"{instance.units[stage.last].name}, of a host's part for each device"
    advice = ("give hosts of more memory, or options that keep less there",)
    return Infeasibility(min(host_limits), high, stage.last, name, high, 0, advice, parts=HOST_PARTS)


def _one_by_one(configuration: Configuration) -> Configuration:
    """Simplify an interleaved configuration (number of stages and micro-batches, with a schedule in which each device group
    runs several stages), to find out whether hosts are the reason why nothing fits: the copy gives every stage a device group
    of its own, under GPipe, with the same host memory per stage. Other configurations are returned as they are.

    configuration: the one to simplify; it is not changed."""
    chunks = configuration.schedule.chunks
    if chunks == 1:
        return configuration
    return replace(configuration, schedule=Schedule("gpipe"), device_groups=configuration.device_groups * chunks)


def _may_offload(instance: Instance, configuration: Configuration) -> bool:
    """Whether users are to be advised to allow that inputs of sub-layers are kept on the host: true if the instance would
    support it, but no option of the configuration (number of stages and micro-batches, with a schedule) does so. It is not
    supported together with context parallelism or with a fixed number of first layers to recompute.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from."""
    origin = instance.provenance
    if RECOMPUTE_FIRST.name in origin:
        return False
    tables = [table for group_tables in configuration.tables for table in group_tables.units]
    there = any("hidden" in option.host for table in tables for option in table.options)
    return origin.get("cost_model") == "streams" and origin.get("cp") == "1" and not there


def reason(instance: Instance, solution: Solution, evaluation: Evaluation, bound: int) -> Infeasibility:
    """The reason, with advice for users, why no plan fits the memory: it describes the stage that exceeds its limit by the most
    bytes in a plan of little memory. solution: that plan. evaluation: the times and memory of that plan. bound: a lower bound
    in bytes on the excess of every plan over its limits.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from."""
    configuration = instance.configurations[solution.configuration]
    limits = [instance.limit_bytes(configuration.device_group(x)) for x in range(configuration.stages)]
    spare = [limit - stage.peak_bytes for limit, stage in zip(limits, evaluation.stages, strict=True)]
    x = spare.index(min(spare))
    worst, limit, state_bytes = evaluation.stages[x], limits[x], group_state_bytes(configuration, evaluation, x)
    if state_bytes > limit:
        advice = "use a --cluster of more devices: the model states alone do not fit"
    else:
        options = instance.table(configuration, x, worst.peak_unit).options
        strategy = options[solution.choice[worst.peak_unit]].strategy
        advice = f"{_smaller(instance, configuration, strategy, worst.in_flight)}, or a --cluster of more devices"
        if _may_offload(instance, configuration):
            advice = f"keep inputs of sub-layers on the host (--host hidden); or {advice}"
    name = f"{instance.units[worst.peak_unit].name} in stage {x} ({configuration})"
    least = None if bound == -min(spare) else limit + bound
    return short_of_memory(limit, worst.peak_bytes, worst.peak_unit, name, state_bytes, advice, least)


def _smaller(instance: Instance, configuration: Configuration, strategy: Strategy | None, in_flight: int) -> str:
    """Advice for users that makes a device's activations smaller: a shorter sequence, if a device has one sample only, or else
    a smaller batch. strategy: the parallel strategy of the sub-layer with the memory peak, None if unknown. configuration: the
    plan's configuration. in_flight: micro-batches in flight in the peak's stage.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from."""
    sequence = (instance.provenance.get("model") or {}).get("sequence")
    samples = 0 if strategy is None else instance.batch // configuration.micro_batches // strategy.data_degree
    if samples == 1 and sequence and in_flight < configuration.micro_batches:  # however few samples there are
        return f"take a shorter --sequence than {sequence}"
    return f"take a smaller --batch than {instance.batch}"
