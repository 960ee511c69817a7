"""A profile in which times that were measured in a run replace the profile's own.

- The times of a sub-layer become those measured of it, for the rows and the degree that it ran with. What the profile only
  estimates of the same sub-layer is left out: it is completed anew from what was measured, as for any profile.
- A link becomes as much slower or faster, for an operation, as all instructions that use it so took longer or shorter.
- So do copies between device and host; an optimizer's rate is the time of its steps by their parameters.

A simulation of the programs by this profile then takes as long as they took. Bytes stay as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median, quantiles
from typing import NamedTuple, get_args

from trainplan.execution.analysis.timing.profiled_costs import ProfiledCosts, stepped_parameters
from trainplan.execution.analysis.timing.simulate import Durations
from trainplan.execution.instruction_spec import MeasuredTime
from trainplan.execution.instructions import Op
from trainplan.execution.program import Instruction, Program
from trainplan.formulations.costs.sequential.stage_work import samples_of
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.network import Island, Network, Operation
from trainplan.profiling.profiles import Number, Profile, Rate, UnitCost

TIMES: tuple[MeasuredTime, ...] = get_args(MeasuredTime)
LEAST, MOST = 1.0, 1e18  # bounds of a link's bytes per second


class _Shape(NamedTuple):
    """The shape in which a sub-layer was computed: its name, the tensor-parallel degree, and the rows (samples) that one
    device works on at a time."""

    sublayer: str
    tp: int
    rows: int


def with_measured_times(profile: Profile, plan: Plan, programs: Sequence[Program], measured: Durations) -> Profile:
    """A copy of a profile in which times that were measured while a plan's programs ran replace the profile's own: of
    sub-layers, links, and optimizer steps. profile: has all shapes of the plan. plan, programs: the plan that ran, and the
    programs of all its ranks. measured: gives the duration in ns of an instruction of a program. Raises InputError if the
    profile is of several kinds of device, since a measured run is of one kind."""
    if len(profile.kinds) > 1:
        problem = f"are of several kinds of device: {', '.join(profile.kinds)}"
        raise InputError("profile", "costs", problem, "give a profile of one kind: what is measured here is")
    issued = [(program, i) for program in programs for i in program.instructions]
    computed = _computed(profile, samples_of(plan), issued, measured)
    names = {shape.sublayer for shape in computed}
    kept = [
        entry
        for entry in profile.costs
        if (entry.sublayer not in names or entry.forward_ns.origin != "estimated")
        and _Shape(entry.sublayer, entry.tp, entry.rows) not in computed
    ]
    predicted = ProfiledCosts(plan, profile)
    changes: dict[str, object] = {
        "costs": [*kept, *computed.values()],
        "network": _network(profile.network, plan, issued, measured, predicted),
        "provenance": profile.provenance | {"run": f"times of a run of {plan.world} processes"},
    }
    if rate := _rate(Op.OPTIMIZER_STEP, issued, measured):
        changes["optimizer_ns_per_parameter"] = rate
    if profile.host is not None:
        host: dict[str, object] = {}
        if rate := _rate(Op.HOST_OPTIMIZER_STEP, issued, measured):
            host["optimizer_ns_per_parameter"] = rate
        for direction in ("to_device", "to_host"):
            copies = [issued_copy for issued_copy in issued if issued_copy[1].op.spec.copied == direction]
            if ratio := _ratio(copies, measured, predicted):
                value = getattr(profile.host, f"{direction}_bytes_per_s").value / ratio
                host[f"{direction}_bytes_per_s"] = Rate(value=value, origin="measured")
        changes["host"] = profile.host.changed(**host)
    return profile.changed(**changes)


def _computed(
    profile: Profile, samples: int, issued: Sequence[tuple[Program, Instruction]], measured: Durations
) -> dict[_Shape, UnitCost]:
    """The profile's entries for all shapes (sub-layer, tensor-parallel degree, rows per device) that were computed as a whole
    micro-batch in the run, with measured times in place of the profile's. samples: samples per micro-batch. issued: all
    instructions, with their programs. measured: gives the duration in ns of an instruction of a program."""
    times: dict[_Shape, dict[Op, list[int]]] = defaultdict(lambda: defaultdict(list))
    for program, i in issued:
        if i.unit is not None and i.half is None and (i.op.spec.measured_as or i.op in (Op.LOSS_STATISTICS, Op.LOSS)):
            strategy, name = program.strategies[i.unit], program.model.key_of(program.model.units[i.unit])
            if strategy.sequence_parallel or strategy.modules:  # whose costs follow from those of the sub-layer whole
                continue
            shape = _Shape(name, strategy.degree("tp"), samples // strategy.data_degree)
            times[shape][i.op].append(measured(program, i))
    return {
        shape: _entry(profile.cost(*shape), of_shape)
        for shape, of_shape in times.items()
        if any(op.spec.measured_as for op in of_shape)
    }


def _entry(entry: UnitCost, times: Mapping[Op, Sequence[int]]) -> UnitCost:
    """A profile entry for one shape of a sub-layer with measured times in place of its own. times: durations in ns of each
    operation's instructions. A head's forward pass includes the loss's statistics, its backward pass the loss. A pass that was
    not measured keeps the entry's own time, scaled by (measured time / entry's time) of the first pass that was measured."""
    first = Op.FORWARD_WITHOUT_GRAPH if Op.FORWARD_WITHOUT_GRAPH in times else Op.FORWARD
    included = {first: Op.LOSS_STATISTICS, Op.BACKWARD: Op.LOSS}
    numbers: dict[str, Number] = {}
    for name in TIMES:
        if (op := next((op for op in Op if op.spec.measured_as == name and op in times), None)) is not None:
            added = median(times[included[op]]) if included.get(op) in times else 0
            numbers[name] = Number(value=round(median(times[op]) + added), origin="measured", spread=_spread(times[op]))
    ratios = [numbers[name].value / before for name in numbers if (before := getattr(entry, name).value)]
    for name in set(TIMES) - set(numbers):
        before = getattr(entry, name)
        numbers[name] = before.changed(value=round(before.value * (ratios[0] if ratios else 1)), origin="estimated")
    return entry.changed(**numbers)


def _spread(values: Sequence[int]) -> float:
    """The relative spread of durations: half the distance between their quartiles, divided by their median."""
    if len(values) < 2 or not median(values):
        return 0.0
    lower, middle, upper = quantiles(values, n=4)
    return round((upper - lower) / 2 / middle, 6)


def _rate(op: Op, issued: Sequence[tuple[Program, Instruction]], measured: Durations) -> Rate | None:
    """Measured time in ns per parameter over all AdamW steps of operation `op` (on the device or on the host), with its spread;
    None if there were none. Steps by Muon are left out, since their time is not proportional to parameters. issued:
    instructions with their programs. measured: gives the duration in ns of an instruction of a program."""
    steps = [(program, i) for program, i in issued if i.op is op and not (i.unit and program.muon_parameter_count(i.unit))]
    parameters = sum(stepped_parameters(program, i) for program, i in steps)
    return Rate(value=sum(measured(*step) for step in steps) / parameters, origin="measured") if parameters else None


def _ratio(issued: Sequence[tuple[Program, Instruction]], measured: Durations, predicted: Durations) -> float | None:
    """Measured time divided by predicted time, both summed over the given instructions; None if either sum is 0. issued:
    instructions with their programs. measured, predicted: give the duration in ns of an instruction of a program."""
    took, expected = (sum(costs(*pair) for pair in issued) for costs in (measured, predicted))
    return took / expected if took and expected else None


def _network(
    network: Network,
    plan: Plan,
    issued: Sequence[tuple[Program, Instruction]],
    measured: Durations,
    predicted: Durations,
) -> Network:
    """The network with each link's speed scaled for each operation (all-gather, all-reduce, ...), by the ratio of measured to
    predicted time of the instructions that used it. measured, predicted: give the duration in ns of an instruction of a
    program. issued: the plan's instructions with their programs. A network given as a matrix of links, which has one entry for
    all operations, stays as it is. issued: instructions with their programs."""
    if network.matrix is not None:
        return network
    devices = plan.placement or range(plan.world)
    users: dict[tuple[int, Operation], list[tuple[Program, Instruction]]] = defaultdict(list)
    for program, i in issued:
        if (transfer := i.op.spec.transfer) and len(i.group) > 1 and not i.by_processor:
            island = network.island_of([devices[rank] for rank in i.group], transfer)
            users[island, transfer].append((program, i))
    ratios = {key: ratio for key, user in users.items() if (ratio := _ratio(user, measured, predicted))}
    return network.changed(islands=list(_islands(network.islands, ratios))) if ratios else network


def _islands(islands: Sequence[Island], ratios: Mapping[tuple[int, Operation], float]) -> Iterator[Island]:
    """The given islands (groups of devices with a fast link among them), with an additional link for every operation that was
    measured on any of them. Every island gets such a link, since a link for the operation is preferred to a general one,
    whichever island is larger. ratios: (index of the island, operation) -> how many times slower the link is than the profile
    states."""
    operations = sorted({operation for _, operation in ratios})
    for index, island in enumerate(islands):
        if island.operation is not None:
            yield _scaled(island, ratios.get((index, island.operation)))
            continue
        span = (island.devices, island.first)
        fitted = {other.operation for other in islands if (other.devices, other.first) == span}
        for operation in operations:
            if operation not in fitted:
                yield _scaled(island.changed(operation=operation), ratios.get((index, operation)))
        yield island


def _scaled(island: Island, ratio: float | None) -> Island:
    """A copy of an island (a group of devices with a link among them) whose link is `ratio` times slower; the island itself if
    ratio is None."""
    if ratio is None:
        return island
    rates = {name: getattr(island, name) for name in ("bandwidth_bytes_per_s", "node_bytes_per_s")}
    slower = {name: min(max(rate / ratio, LEAST), MOST) for name, rate in rates.items() if rate is not None}
    latency = min(round(island.latency_ns * ratio), 10**12)
    return island.changed(**slower, latency_ns=latency, origin="measured", error=0.0)
