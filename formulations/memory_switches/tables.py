"""Tables of a solution for people: which switches are on in which layers, and how the time of the step is made up."""

from __future__ import annotations

from collections.abc import Sequence

from trainplan.formulations.memory_switches.problem import Instance, Solution, describe
from trainplan.formulations.plan.switches import SWITCHES, Switches
from trainplan.formulations.problem import Table
from trainplan.profiling.base.quantities import format_bytes, format_time, span

MARKS = {True: "●", False: "·"}


def switch_table(instance: Instance, solution: Solution) -> Table:
    """The switches of all layers, with a row for every run of layers with equal switches, or two rows where two kinds of layer
    alternate; the last row shows the share of layers in which each switch is on."""
    rows = []
    for layers in folded(solution.switches):
        names = span(instance.name_of(layers[0]), instance.name_of(layers[-1]))
        marks = (MARKS[getattr(solution.switches[layers[0]], name)] for name in SWITCHES)
        rows.append((names + (", every second" if layers.step > 1 else ""), str(len(layers)), *marks))
    shares = (sum(getattr(switches, name) for switches in solution.switches) / instance.layers for name in SWITCHES)
    rows.append(("share of layers", str(instance.layers), *(f"{share:.0%}" for share in shares)))
    return Table("switches", ("layers", "count", *(name.replace("_", " ") for name in SWITCHES)), tuple(rows))


def step_table(instance: Instance, solution: Solution) -> Table:
    """How long the parts of the step are, how busy its lanes are, and how many bytes of shards stay on the device."""
    costs = describe(instance, solution)
    parts = ", ".join(f"{name} {format_time(costs[f'{name}_ns'])}" for name in ("forward", "backward", "optimizer"))
    busy = ", ".join(f"{lane} {time / max(1, costs['time_ns']):.0%}" for lane, time in costs["busy_ns"].items())
    stay = f"{format_bytes(costs['resident_bytes'])} of shards that stay"
    return Table("step", ("of the step", "value"), (("parts", parts), ("busy", busy), ("on the device", stay)))


def folded(switches: Sequence[Switches]) -> list[range]:
    """The layers of every row of the table: runs of layers with equal switches; where pairs of layers repeat, every second
    layer."""
    rows, at = list[range](), 0
    while at < len(switches):
        single, double = (_end(switches, at, period) for period in (1, 2))
        if double - at >= 4 and double > single + 1:
            rows += [range(at, double, 2), range(at + 1, double, 2)]
            at = double
        else:
            rows.append(range(at, single))
            at = single
    return rows


def _end(switches: Sequence[Switches], at: int, period: int) -> int:
    """The index at which the pattern of the first `period` layers from index `at` stops repeating; whole patterns only."""
    end = at + period
    while end < len(switches) and switches[end] == switches[end - period]:
        end += 1
    return min(at + (end - at) // period * period, len(switches))
