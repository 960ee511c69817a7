"""The problem memory-switches, as the rest of trainplan uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trainplan.formulations.memory_switches import costs, enumeration, problem, tables
from trainplan.formulations.memory_switches.problem import Instance, Solution, matrix
from trainplan.formulations.memory_switches.segments import shared_switches
from trainplan.formulations.parameters import BY_UNIT, Parameter
from trainplan.formulations.plan.plan import Batch, Plan, staged_plan
from trainplan.formulations.plan.request import Request
from trainplan.formulations.plan.strategy import Strategy
from trainplan.formulations.problem import Part, Problem, Table
from trainplan.profiling.base.errors import InputError

PAPER_COMBINATIONS = Parameter("paper_combinations", bool, "offload inputs without recomputation, too", False)


class MemorySwitches(Problem):
    """H3T's problem: switches of every layer for the shortest step that fits, all devices one sharded-data group."""

    home = problem
    name = problem.NAME
    record = problem.InstanceRecord
    solution_record = problem.SolutionRecord
    solved_by = "trainplan.solvers.switches"
    picture = "trainplan.pictures.lanes:draw_switches"
    parameters = (PAPER_COMBINATIONS, BY_UNIT)

    def cost_model(self, instance: Instance) -> str:
        """H3T's simulated step, whose segments are synchronised."""
        return "H3T's simulated step, synchronised"

    def instance(self, request: Request) -> Instance:
        """The step of the request's batch on all devices, a layer for each layer or, `by_unit`, for each sub-layer."""
        return _built(request, request.options["by_unit"])

    def instances(self, request: Request) -> list[Instance]:
        """The one instance that planning solves, by sub-layers as plans are. Raises InputError where plans cannot say it."""
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
        """One stage of all devices, a layer for each sub-layer; the memory is the request's, without what it sets aside."""
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

    def uniform(self, instance: Instance) -> tuple[list[Instance], str]:
        """The instance itself: a method of the paper looks at all combinations for all layers alike."""
        return [instance], "manual"

    def count(self, instance: Instance) -> int:
        """Combinations of a layer to the power of the layers."""
        return enumeration.count(instance)

    def most_solutions(self, instance: Instance) -> int:
        """Those of 4 layers, whose costs are sums over the tables of the segments."""
        return enumeration.LARGEST

    def solutions(self, instance: Instance) -> Iterator[Solution | None]:
        """Of each lot of choices the fastest one that fits, where it is faster than those before it."""
        return enumeration.solutions(instance)

    def parts(self, instance: Instance, out_of_time: Callable[[], bool]) -> list[Part] | None:
        """None: the models state the step whole."""
        return None

    def start(self, instance: Instance, solution: Solution) -> set[str]:
        """x, by layer, option, and the states before and after, as of `columns`."""
        indices, (r, lazy) = [instance.options.index(s) for s in solution.switches], shared_switches(matrix([solution])[0])
        states = [0, *(2 * r[:-1] + lazy[1:]).tolist(), 0]
        return {f"x[{i},{s},{states[i]},{states[i + 1]}]" for i, s in enumerate(indices)}

    def size(self, instance: Instance) -> dict[str, int]:
        """Layers, combinations of switches of each, and the limit of a device."""
        return {"layers": instance.layers, "options": len(instance.options), "memory_bytes": instance.memory_bytes}

    def tables(self, instance: Instance, solution: Solution) -> list[Table]:
        """The switches of all layers, and the parts and lanes of the step."""
        return [tables.switch_table(instance, solution), tables.step_table(instance, solution)]


def _built(request: Request, by_unit: bool) -> Instance:
    profile = request.profile_for([costs.rows_of(request.samples, request.origin.devices)], [1])
    return costs.build(
        profile,
        request.samples,
        request.limit_bytes,
        offload_needs_ckpt=not request.options["paper_combinations"],
        by_unit=by_unit,
    )


PROBLEM = MemorySwitches()
