"""memory-switches as a `Problem`: from a request to instances and plans."""

from __future__ import annotations

from collections.abc import Sequence

from trainplan.formulations.memory_switches import costs, enumeration, problem
from trainplan.formulations.memory_switches.problem import Instance, Solution, describe, matrix
from trainplan.formulations.memory_switches.segments import shared_switches
from trainplan.formulations.parameters import BY_UNIT, Parameter
from trainplan.formulations.plan.plan import Batch, Plan, staged_plan
from trainplan.formulations.plan.request import Request
from trainplan.formulations.plan.strategy import Strategy
from trainplan.formulations.plan.switches import SWITCHES, Switches
from trainplan.formulations.problem import Enumeration, Models, Problem, SingleStrategy, Table
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import format_bytes, format_time, span

PAPER_COMBINATIONS = Parameter("paper_combinations", bool, "offload inputs without recomputation, too", False)
MARKS = {True: "●", False: "·"}


def start(instance: Instance, solution: Solution) -> set[str]:
    """The names of the model variables that are 1 in a solution, for a warm start: `x[i,s,q,q']` for layer i with option s (a
    combination of switches); q and q' number those choices of layer i and of its neighbours that layer i shares with the
    layer before and with the layer after. instance: times and bytes of every layer, and the memory limit. solution: the
    memory switches of every layer.
    """
    options, (r, lazy) = [instance.options.index(s) for s in solution.switches], shared_switches(matrix([solution])[0])
    states = [0, *(2 * r[:-1] + lazy[1:]).tolist(), 0]
    return {f"x[{i},{s},{states[i]},{states[i + 1]}]" for i, s in enumerate(options)}


class MemorySwitches(Problem):
    """The problem `memory-switches` of the paper H3T: choose, for every layer, seven memory switches (recomputation,
    offloading to the host, partition of parameters, and the order of copies), for the shortest step that fits into memory;
    all devices are one group of sharded data parallelism.
    """

    name = problem.NAME
    record = problem.InstanceRecord
    solution_record = problem.Solution
    solved_by = "trainplan.solvers.switches"
    picture = "trainplan.pictures.lanes:draw_switches"
    parameters = (PAPER_COMBINATIONS, BY_UNIT)
    enumeration = Enumeration(enumeration.count, enumeration.solutions, lambda instance: enumeration.LARGEST)
    models = Models(lambda instance, out_of_time: None, start)
    single_strategy = SingleStrategy(lambda instance: [instance], method="manual")  # which looks at all layers alike
    load = staticmethod(problem.load)
    load_solution = staticmethod(problem.load_solution)
    solution_dict = staticmethod(problem.solution_dict)
    evaluate = staticmethod(problem.evaluate)
    violations = staticmethod(problem.violations)
    describe = staticmethod(problem.describe)

    def cost_model(self, instance: Instance) -> str:
        """The name of the cost model: H3T's simulated step, whose segments are synchronised. instance: times and bytes of
        every layer, and the memory limit.
        """
        return "H3T's simulated step, synchronised"

    def instance(self, request: Request) -> Instance:
        """The instance of the request's batch on all devices, with a layer for each Transformer layer or, with the option
        `by_unit`, for each sub-layer. request: the user's model, cluster, batch and options. Raises InputError if the
        problem cannot express the request.
        """
        return _built(request, request.options["by_unit"])

    def instances(self, request: Request) -> list[Instance]:
        """A list of the one instance that planning solves, with a layer for each sub-layer, as plans have them. request: the
        user's model, cluster, batch and options. Raises InputError if plans cannot express it.
        """
        cluster = request.cluster
        if cluster is not None and len(cluster.used_kinds) > 1:
            kinds = " and ".join(kind.name for kind in cluster.used_kinds)
            fix = "give a cluster of one kind, or use `place`: all devices hold as much and work at one pace"
            raise InputError("command line", "--cluster", f"is {cluster.name!r}, of {kinds}", fix)
        devices = request.origin.devices
        if devices & (devices - 1):
            near = 1 << devices.bit_length() - 1
            fix = f"give one of {near}, for these plans have powers of two, or use `plan` or `place`"
            raise InputError("command line", "--cluster", f"has {devices} devices", fix)
        return [_built(request, by_unit=True)]

    def plan(self, instance: Instance, solution: Solution, request: Request) -> Plan:
        """The plan of a solution: one stage of all devices, with the switches of every sub-layer. Its memory limit is the
        request's, before the safety margin is taken off. instance: times and bytes of every layer, and the memory limit.
        request: the user's model, cluster, batch and options. Raises InputError if the instance's layers are not the
        model's sub-layers.
        """
        model = request.described_model
        if model and instance.layers != len(model.units):
            mismatch = f"has {instance.layers} layers, and {model.name!r} {len(model.units)} sub-layers"
            raise InputError("instance", "layers", mismatch, f"build it with {BY_UNIT.flag}: plans decide for every sub-layer")
        world = request.origin.devices
        return staged_plan(
            request,
            [(0, instance.layers - 1)],
            [str(Strategy.of(("sdp", world), ckpt=chosen.ckpt)) for chosen in solution.switches],
            Batch(global_samples=request.samples),
            switches=solution.switches,
            nvlink=instance.nvlink,
        )

    def tables(self, instance: Instance, solution: Solution) -> list[Table]:
        """Two tables for the screen: the switches of all layers, and the phases and lanes of the step. instance: times and
        bytes of every layer, and the memory limit. solution: the memory switches of every layer.
        """
        return [switch_table(instance, solution), step_table(instance, solution)]


def _built(request: Request, by_unit: bool) -> Instance:
    """The instance of a request. by_unit: whether every sub-layer is a layer; else every Transformer layer is. request: the
    user's model, cluster, batch and options.
    """
    profile = request.profile_for([costs.rows_of(request.samples, request.origin.devices)], [1])
    return costs.build(
        profile,
        request.samples,
        request.limit_bytes,
        offload_needs_ckpt=not request.options["paper_combinations"],
        by_unit=by_unit,
    )


def switch_table(instance: Instance, solution: Solution) -> Table:
    """A table for the screen: the switches of all layers, with a row for every run of layers with equal switches, or two rows
    where two combinations of switches alternate; the last row shows the share of layers in which each switch is on.
    instance: times and bytes of every layer, and the memory limit. solution: the memory switches of every layer.
    """
    rows = []
    for layers in folded(solution.switches):
        names = span(instance.name_of(layers[0]), instance.name_of(layers[-1]))
        marks = (MARKS[getattr(solution.switches[layers[0]], name)] for name in SWITCHES)
        rows.append((names + (", every second" if layers.step > 1 else ""), str(len(layers)), *marks))
    shares = (sum(getattr(switches, name) for switches in solution.switches) / instance.layers for name in SWITCHES)
    rows.append(("share of layers", str(instance.layers), *(f"{share:.0%}" for share in shares)))
    return Table("switches", ("layers", "count", *(name.replace("_", " ") for name in SWITCHES)), tuple(rows))


def step_table(instance: Instance, solution: Solution) -> Table:
    """A table for the screen: how long the phases of the step are, how busy its lanes are, and how many bytes of shards stay
    on the device. instance: times and bytes of every layer, and the memory limit. solution: the memory switches of every
    layer.
    """
    costs = describe(instance, solution)
    parts = ", ".join(f"{name} {format_time(costs[f'{name}_ns'])}" for name in ("forward", "backward", "optimizer"))
    busy = ", ".join(f"{lane} {time / max(1, costs['time_ns']):.0%}" for lane, time in costs["busy_ns"].items())
    stay = f"{format_bytes(costs['resident_bytes'])} of shards that stay"
    return Table("step", ("of the step", "value"), (("parts", parts), ("busy", busy), ("on the device", stay)))


def folded(switches: Sequence[Switches]) -> list[range]:
    """Group the layers into the rows of a table of switches: a row is a run of layers with equal switches, or, if two layers
    alternate, every second layer. Switches a a a b -> [0..2], [3]; a b a b -> [0, 2], [1, 3]. switches: the memory switches of
    every layer."""
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
    """The index at which the pattern of the `period` layers that begin at index `at` stops repeating, counting whole
    repetitions only: a b a b a, at 0, period 2 -> 4. switches: the memory switches of every layer."""
    end = at + period
    while end < len(switches) and switches[end] == switches[end - period]:
        end += 1
    return min(at + (end - at) // period * period, len(switches))


PROBLEM = MemorySwitches()
