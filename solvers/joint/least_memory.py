"""Why no joint plan fits: the least memory of any, and what to change.

Configurations are filled by `filling`, the most promising first, each with a limit that beats the best so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainplan.formulations.joint.enumeration import solution_count, solutions
from trainplan.formulations.joint.evaluation import Evaluation, evaluate, over_memory
from trainplan.formulations.joint.first_layers import RECOMPUTE_FIRST
from trainplan.formulations.joint.problem import Configuration, Instance, Solution
from trainplan.solvers.core.result import Infeasibility, short_of_memory
from trainplan.solvers.joint.filling import LARGEST, excess_bytes, ways

MOST_ENUMERATED = 20_000
COARSE = (4, 32)  # parts of a device's memory by which configurations beat each other at first
HOST_PARTS = ("on the host", "on the device")


def explain(instance: Instance) -> Infeasibility | None:
    """Why no solution fits, in the user's terms; None where one does, or where that is not certain."""
    if fits(instance):
        return None
    solution = least(instance)
    if solution is None:
        return None if any(each.schedule.chunks > 1 for each in instance.configurations) else host_reason(instance)
    evaluation = evaluate(instance, solution)
    return reason(instance, solution, evaluation) if over_memory(instance, solution, evaluation) else None


def fits(instance: Instance) -> bool | None:
    """Whether some solution fits; None where interleaved chunks might, which are not looked at."""
    plain = [place for place, each in enumerate(instance.configurations) if each.schedule.chunks == 1]
    possible = sorted((way for place in plain for way in ways(instance, place)), key=lambda each: each.least_excess)
    if any(way.least_excess <= 0 and way.within(0) is not None for way in possible):
        return True
    return False if len(plain) == len(instance.configurations) else None


def host_reason(instance: Instance) -> Infeasibility | None:
    """Why no solution fits where hosts are too small for any, whatever memory devices have; None where it is not that: there is
    no solution at all then, since no options of neighbours agree, or nothing may be cut."""

    def within(room: int) -> Solution | None:
        """A solution that needs no more of the host for each device."""
        limited = replace(instance, classes=tuple(replace(each, host_bytes=room) for each in instance.classes))
        possible = (way for place in range(len(limited.configurations)) for way in ways(limited, place))
        return next((solution for way in possible if (solution := way.within(LARGEST)) is not None), None)

    rooms = [room for each in instance.configurations for x in each.sites if (room := instance.host_limit_bytes(x)) is not None]
    least_host = within(LARGEST)
    if not rooms or least_host is None:
        return None
    low = min(rooms) + 1
    high = max(stage.host_bytes for stage in evaluate(instance, least_host).stages)
    while low < high:
        middle = (low + high) // 2
        if (smaller := within(middle)) is None:
            low = middle + 1
        else:
            high, least_host = max(stage.host_bytes for stage in evaluate(instance, smaller).stages), smaller
    stage = max(evaluate(instance, least_host).stages, key=lambda each: each.host_bytes)
    name = f"{instance.units[stage.last].name}, of a host's part for each device"
    advice = ("give hosts of more memory, or options that keep less there",)
    return Infeasibility(min(rooms), high, stage.last, name, high, 0, advice, parts=HOST_PARTS)


def least(instance: Instance) -> Solution | None:
    """A solution that needs the least memory beyond the limits of its devices; None where that is not known: of interleaved
    chunks, and where hosts are too small for any."""
    best: tuple[int, Solution] | None = None
    chunked = [place for place, each in enumerate(instance.configurations) if each.schedule.chunks > 1]
    plain = [place for place in range(len(instance.configurations)) if place not in chunked]
    possible = sorted((way for place in plain for way in ways(instance, place)), key=lambda each: each.least_excess)
    for parts in COARSE:  # so that few are followed to the byte
        for way in possible:
            limit = max(instance.limit_bytes(site) for site in way.configuration.sites)
            best = way.much_better(best, max(1, limit // parts))
    for way in possible:
        if best is None or way.least_excess < best[0]:
            best = way.better(best)
    if not chunked or (best is not None and best[0] <= 0):
        return None if best is None else best[1]
    rest = instance.only(chunked)
    if solution_count(rest) > MOST_ENUMERATED:
        return None
    for solution in solutions(rest):
        if solution is not None and not _over_host(instance, chunked, solution):
            lifted = replace(solution, configuration=chunked[solution.configuration])
            excess = excess_bytes(instance, lifted)
            best = (excess, lifted) if best is None or excess < best[0] else best
    return None if best is None else best[1]


def _over_host(instance: Instance, places: Sequence[int], solution: Solution) -> bool:
    """Whether a stage needs more of its host than there is. places: of the configurations that the solution's is counted in."""
    lifted = replace(solution, configuration=places[solution.configuration])
    configuration = instance.configurations[lifted.configuration]
    rooms = [instance.host_limit_bytes(configuration.site(x)) for x in range(configuration.stages)]
    needs = [stage.host_bytes for stage in evaluate(instance, lifted).stages]
    return any(room is not None and need > room for room, need in zip(rooms, needs, strict=True))


def _may_offload(instance: Instance, configuration: Configuration) -> bool:
    """Whether units could have their inputs on the host, which goes with neither context parallelism nor a number of first
    layers to recompute, and no option has."""
    origin = instance.provenance
    if RECOMPUTE_FIRST.name in origin:
        return False
    tables = [table for each in configuration.tables for table in each.units]
    there = any("hidden" in option.host for table in tables for option in table.options)
    return origin.get("cost_model") == "streams" and origin.get("cp") == "1" and not there


def reason(instance: Instance, solution: Solution, evaluation: Evaluation) -> Infeasibility:
    """Why the solution of least memory does not fit, and what to change."""
    configuration = instance.configurations[solution.configuration]
    limits = [instance.limit_bytes(configuration.site(x)) for x in range(configuration.stages)]
    spare = [limit - stage.peak_bytes for limit, stage in zip(limits, evaluation.stages, strict=True)]
    x = spare.index(min(spare))
    worst, limit = evaluation.stages[x], limits[x]
    if worst.state_bytes > limit:
        advice = "use a --cluster of more devices: the model states alone do not fit"
    else:
        advice = f"take a smaller --batch than {instance.batch}, or a --cluster of more devices"
        if _may_offload(instance, configuration):
            advice = f"keep inputs of units on the host (--host hidden); or {advice}"
    name = f"{instance.units[worst.peak_unit].name} in stage {x} ({configuration})"
    return short_of_memory(limit, worst.peak_bytes, worst.peak_unit, name, worst.state_bytes, advice)
