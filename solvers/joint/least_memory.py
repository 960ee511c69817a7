"""Why no joint plan fits: the least memory of any, and what to change.

Configurations are filled by `filling`, the most promising first, each with a limit that beats the best so far; of interleaved
ones `chunk_memory` knows a bound and a solution, mostly the same, and tiny ones where they differ are enumerated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from trainplan.formulations.joint.enumeration import solution_count, solutions
from trainplan.formulations.joint.evaluation import Evaluation, evaluate, over_memory
from trainplan.formulations.joint.first_layers import RECOMPUTE_FIRST
from trainplan.formulations.joint.problem import Configuration, Instance, Solution
from trainplan.solvers.core.result import Infeasibility, short_of_memory
from trainplan.solvers.joint.chunk_memory import Lean, leanest
from trainplan.solvers.joint.filling import LARGEST, Way, excess_bytes, over_hosts, ways

MOST_ENUMERATED = 20_000
COARSE = (4, 32)  # parts of a device's memory by which configurations beat each other at first
HOST_PARTS = ("on the host", "on the device")


def explain(instance: Instance) -> Infeasibility | None:
    """Why no solution fits, in the user's terms; None where one does, or where that is not certain."""
    memory = LeastMemory(instance)
    if memory.fits():
        return None
    solution = memory.least()
    if solution is None:
        return None if memory.leans else host_reason(instance)
    evaluation = evaluate(instance, solution)
    return reason(instance, solution, evaluation) if over_memory(instance, solution, evaluation) else None


def fits(instance: Instance) -> bool | None:
    """Whether some solution fits; None where that is not known of interleaved chunks."""
    return LeastMemory(instance).fits()


class LeastMemory:
    """The least memory of an instance's configurations, looked for as far as it is asked for."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance

    @cached_property
    def ways(self) -> list[Way]:
        """Those of configurations that are not interleaved, the most promising first."""
        plain = [place for place, each in enumerate(self.instance.configurations) if each.schedule.chunks == 1]
        return sorted((way for place in plain for way in ways(self.instance, place)), key=lambda each: each.least_excess)

    @cached_property
    def leans(self) -> dict[int, Lean]:
        """Of interleaved configurations, by their places."""
        chunked = [place for place, each in enumerate(self.instance.configurations) if each.schedule.chunks > 1]
        return {place: leanest(self.instance, place) for place in chunked}

    def fits(self) -> bool | None:
        """Whether some solution fits; None where that is not known of interleaved chunks."""
        if any(way.least_excess <= 0 and way.within(0) is not None for way in self.ways):
            return True
        if any(lean.excess_bytes <= 0 for lean in self.leans.values()):
            return True
        return None if any(lean.bound_bytes <= 0 for lean in self.leans.values()) else False

    def least(self) -> Solution | None:
        """A solution that needs the least memory beyond the limits of its devices; None where that is not known: of interleaved
        chunks, and where hosts are too small for any."""
        best: tuple[int, Solution] | None = None
        for parts in COARSE:  # so that few are followed to the byte
            for way in self.ways:
                limit = max(self.instance.limit_bytes(site) for site in way.configuration.sites)
                best = way.much_better(best, max(1, limit // parts))
        for way in self.ways:
            if best is None or way.least_excess < best[0]:
                best = way.better(best)
        if best is not None and best[0] <= 0:
            return best[1]
        for lean in self.leans.values():
            if lean.solution is not None and (best is None or lean.excess_bytes < best[0]):
                best = lean.excess_bytes, lean.solution
        limit = LARGEST if best is None else best[0]
        unknown = [place for place, lean in self.leans.items() if lean.bound_bytes < min(limit, lean.excess_bytes)]
        best = self._enumerated(unknown, best) if unknown else best
        return None if best is None else best[1]

    def _enumerated(self, places: Sequence[int], best: tuple[int, Solution] | None) -> tuple[int, Solution] | None:
        """The best so far, or that of all solutions of some configurations; None where they are too many."""
        part = self.instance.only(places)
        if solution_count(part) > MOST_ENUMERATED:
            return None
        for solution in solutions(part):
            if solution is not None:
                lifted = replace(solution, configuration=places[solution.configuration])
                excess = excess_bytes(self.instance, lifted)
                if (best is None or excess < best[0]) and not over_hosts(self.instance, lifted):
                    best = excess, lifted
        return best


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
    worst, limit, sites = evaluation.stages[x], limits[x], len(configuration.sites)
    state_bytes = sum(stage.state_bytes for stage in evaluation.stages[x % sites :: sites])
    if state_bytes > limit:
        advice = "use a --cluster of more devices: the model states alone do not fit"
    else:
        advice = f"take a smaller --batch than {instance.batch}, or a --cluster of more devices"
        if _may_offload(instance, configuration):
            advice = f"keep inputs of units on the host (--host hidden); or {advice}"
    name = f"{instance.units[worst.peak_unit].name} in stage {x} ({configuration})"
    return short_of_memory(limit, worst.peak_bytes, worst.peak_unit, name, state_bytes, advice)
