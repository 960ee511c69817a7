"""Tables of memory switches: which are on in which layers, and what the step then costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from trainplan.command.render import certificate, out, pairs, result
from trainplan.formulations.memory_switches.problem import Instance, Solution, load_solution
from trainplan.formulations.memory_switches.switches import SWITCHES, Switches
from trainplan.profiling.base.quantities import format_bytes, format_time, plural, span
from trainplan.solvers.core.result import Result
from trainplan.switching import SwitchPlan

MARKS = {True: "●", False: "·"}


def solved(instance: Instance, found: Result) -> None:
    """The switches of a result, its lanes, and the result."""
    if found.solution is not None:
        table(instance, load_solution(found.solution))
        lanes(found)
    result(found)


def planned(found: SwitchPlan) -> None:
    """The plan's switches, its lanes, and its certificate."""
    profile, instance = found.profile, found.instance
    shared = "copies beside the collectives" if instance.nvlink else "copies and collectives on one bus"
    limit = f"{plural(profile.devices, 'device')} of {format_bytes(instance.memory_bytes)} each, {shared}"
    samples = instance.provenance["batch"]
    rows = [
        ("model", f"{profile.name}, {found.model.tokens} tokens a sample, {profile.dtype}"),
        ("cluster", f"{profile.cluster}, {limit}"),
        ("profile", f"{profile.origin} (links {profile.links_origin})"),
        ("step", f"{plural(samples, 'sample')}, synchronisation of segments {instance.synchronisation}"),
    ]
    pairs(rows)
    if found.plan is not None and found.result.solution is not None:
        table(instance, load_solution(found.result.solution))
        lanes(found.result)
    certificate(found.result)
    if found.walk_bytes:
        ranks = "any rank" if len(found.walk_bytes) == profile.devices else "the first rank, the only one compiled"
        told = f"{format_bytes(max(found.walk_bytes))} at most on {ranks}, by its compiled program, {found.backend} back-end"
        pairs([("memory walk", told)])
    if found.reserve_bytes:
        told = f"{format_bytes(found.reserve_bytes)} of the limit, which the programs need beside the simulated step"
        pairs([("set aside", told)])


def table(instance: Instance, solution: Solution) -> None:
    """A row for every run of layers with equal switches, or two where two kinds of layer take turns."""
    shown = Table(box=box.SIMPLE_HEAD)
    shown.add_column("layers", no_wrap=True)
    shown.add_column("count", justify="right")
    for name in SWITCHES:
        shown.add_column(name.replace("_", " "), justify="center")
    for layers in folded(solution.switches):
        marks = (MARKS[getattr(solution.switches[layers[0]], name)] for name in SWITCHES)
        names = span(instance.name_of(layers[0]), instance.name_of(layers[-1]))
        shown.add_row(names + (", every second" if layers.step > 1 else ""), str(len(layers)), *marks)
    on = [sum(getattr(switches, name) for switches in solution.switches) / instance.layers for name in SWITCHES]
    shown.add_section()
    shown.add_row("share of layers", str(instance.layers), *(f"{share:.0%}" for share in on))
    out.print(shown)


def folded(switches: Sequence[Switches]) -> list[range]:
    """The layers of every row: runs of equal ones, and of pairs that repeat, every second layer a row."""
    found, at = list[range](), 0
    while at < len(switches):
        ends = [_end(switches, at, period) for period in (1, 2)]
        if ends[1] - at >= 4 and ends[1] > ends[0] + 1:
            found += [range(at, ends[1], 2), range(at + 1, ends[1], 2)]
            at = ends[1]
        else:
            found.append(range(at, ends[0]))
            at = ends[0]
    return found


def _end(switches: Sequence[Switches], at: int, period: int) -> int:
    """Where the pattern of the first `period` layers stops repeating, whole patterns only."""
    end = at + period
    while end < len(switches) and switches[end] == switches[end - period]:
        end += 1
    return min(at + (end - at) // period * period, len(switches))


def lanes(found: Result) -> None:
    """What the step is made of, and how busy its lanes are."""
    seen = found.evaluation
    assert seen is not None
    parts = ", ".join(f"{name} {format_time(seen[f'{name}_ns'])}" for name in ("forward", "backward", "optimizer"))
    busy = ", ".join(f"{lane} {time / max(1, seen['time_ns']):.0%}" for lane, time in seen["busy_ns"].items())
    pairs([("parts", parts), ("busy", busy), ("on the device", f"{format_bytes(seen['resident_bytes'])} of shards that stay")])


def lifted(layers: Mapping[str, Sequence[int]]) -> str:
    """The peaks that an H3T file has below what its layers leave behind. layers: by peak, those where it is so."""
    told = ", ".join(f"{name} of {plural(len(places), 'layer')}" for name, places in layers.items())
    return f"{told}, from below to what the layer leaves behind"
