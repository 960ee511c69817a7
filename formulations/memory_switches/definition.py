"""memory-switches as a `Problem`: from a request to instances and plans."""

from __future__ import annotations

from trainplan.formulations.memory_switches import costs, enumeration, problem, tables
from trainplan.formulations.memory_switches.problem import Instance, Solution, matrix
from trainplan.formulations.memory_switches.segments import shared_switches
from trainplan.formulations.parameters import BY_UNIT, Parameter
from trainplan.formulations.plan.plan import Batch, Plan, staged_plan
from trainplan.formulations.plan.request import Request
from trainplan.formulations.plan.strategy import Strategy
from trainplan.formulations.problem import Enumeration, Models, Problem, SingleStrategy, Table
from trainplan.profiling.base.errors import InputError

PAPER_COMBINATIONS = Parameter("paper_combinations", bool, "offload inputs without recomputation, too", False)


def start(instance: Instance, solution: Solution) -> set[str]:
    """The names of the variables x that are 1 in a solution, for a warm start: by layer, option, and the states before and
    after, as in `segment_columns`."""
    options, (r, lazy) = [instance.options.index(s) for s in solution.switches], shared_switches(matrix([solution])[0])
    states = [0, *(2 * r[:-1] + lazy[1:]).tolist(), 0]
    return {f"x[{i},{s},{states[i]},{states[i + 1]}]" for i, s in enumerate(options)}


class MemorySwitches(Problem):
    """H3T's problem: memory switches of every layer for the shortest step that fits, all devices one group of sharded data
    parallelism."""

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
        """The name of H3T's simulated step, whose segments are synchronised."""
        return "H3T's simulated step, synchronised"

    def instance(self, request: Request) -> Instance:
        """The step of the request's batch on all devices, with a layer for each Transformer layer or, `by_unit`, for each
        sub-layer."""
        return _built(request, request.options["by_unit"])

    def instances(self, request: Request) -> list[Instance]:
        """The one instance that planning solves, by sub-layers as plans are. Raises InputError where plans cannot express
        it."""
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
        request's, before the margin is taken off. Raises InputError where the instance is not one of sub-layers."""
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
        """Two tables: the switches of all layers, and the parts and lanes of the step."""
        return [tables.switch_table(instance, solution), tables.step_table(instance, solution)]


def _built(request: Request, by_unit: bool) -> Instance:
    """The instance of a request, by Transformer layers or by sub-layers."""
    profile = request.profile_for([costs.rows_of(request.samples, request.origin.devices)], [1])
    return costs.build(
        profile,
        request.samples,
        request.limit_bytes,
        offload_needs_ckpt=not request.options["paper_combinations"],
        by_unit=by_unit,
    )


PROBLEM = MemorySwitches()
