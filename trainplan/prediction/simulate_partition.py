"""A simulated step of a pipeline-partition instance: its layers cut into stages by a solution, under a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainplan.formulations.pipeline_partition.problem import Instance, Solution
from trainplan.formulations.problem import problem_of
from trainplan.formulations.schedule.simulate import simulate as simulate_passes
from trainplan.prediction.schedule_options import checked_orders, number_sliced
from trainplan.prediction.simulation import Simulation
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Source
from trainplan.profiling.base.quantities import span
from trainplan.solvers.core.limits import TIME_LIMIT_S
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.solve import solve
from trainplan.verification import solution_source


def with_chunks(instance: Instance, chunks: int) -> Instance:
    """A copy of a pipeline-partition instance (sub-layers to be cut into pipeline stages) with `chunks` stages per device.
    Raises InputError if there are fewer sub-layers than stages.

    With more than one stage per device, the instance's memory limit is dropped, since it would limit a stage and not a
    device.
    """
    stages = instance.stages * chunks
    if stages > instance.sublayers:
        fix = f"give at most {instance.sublayers // instance.stages}: every stage needs a sub-layer"
        raise InputError("command line", "--chunks", f"is {chunks}", fix)
    return instance if chunks == 1 else replace(instance, stages=stages, memory=None)


def chosen_cuts(
    instance: Instance,
    solution: Result | Source | Sequence[int] | None,
    method: str | None,
    chunks: int,
    arguments: Mapping[str, Any],
) -> Solution:
    """The solution that states where a pipeline-partition instance is cut into stages: the given one or, if it is None, the
    one that a method finds. Raises InputError if there is none.

    solution: a result, a file, or the cuts themselves. method: the solver's method; None for exact, or algorithm-1 if there
    are several stages per device. chunks: stages per device. arguments: options of the method.
    """
    problem = problem_of(instance)
    if solution is None:
        method = method or ("exact" if chunks == 1 else "algorithm-1")
        result = solve(instance, method, **{"time_limit": TIME_LIMIT_S, **arguments})
        if result.solution is None:
            why = result.reason.command_text if result.reason else result.message or result.status
            raise InputError("instance", "memory", why, "give a --solution")
        solution = result
    elif method is not None:
        raise InputError("command line", "--method", f"is {method!r}", "leave it out: the solution is given")
    cuts: Solution = problem.load_solution(solution_source(problem, solution))
    return cuts


def simulated_partition(
    instance: Instance, solution: Solution, where: str, *, schedule: str, sliced: int | str, chunks: int
) -> Simulation:
    """Simulate a step of a pipeline-partition instance that a solution cuts into stages, under a schedule. Raises InputError
    if schedule and solution contradict each other.

    where: the name of the solution's file in errors. schedule: its name, such as "1f1b". sliced: the micro-batches that are
    cut in two: a number or a rule; 0 for the solution's own number. chunks: stages per device.
    """
    broken = [text for text in problem_of(instance).violations(instance, solution) if text.startswith("cuts")]
    if broken:
        problem, fix = broken[0].removeprefix("cuts ").split("; ", 1)
        raise InputError(where, "cuts", problem, fix)
    ends = (*solution.cuts, instance.sublayers)
    names = tuple(
        span(instance.name_of(first), instance.name_of(end - 1)) for first, end in zip((0, *solution.cuts), ends, strict=True)
    )
    work, count = instance.work(solution.cuts), instance.micro_batches
    number = number_sliced(work, count, sliced or solution.sliced)
    timeline = simulate_passes(work, checked_orders(work.stages // chunks, count, schedule, number, chunks))
    syncs = (0,) * len(timeline.devices)
    return Simulation(instance.name, schedule, count, number, chunks, names, timeline, syncs)
