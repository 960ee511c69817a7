"""stage-assignment as a `Problem`: the layer assignment of AMP alone, from a request to a plan."""

from __future__ import annotations

from dataclasses import replace

from trainplan.formulations.chain_problem import Cutting, cut_enumeration
from trainplan.formulations.cluster_strategy.definition import layout, strategy_instance
from trainplan.formulations.cluster_strategy.instance import Degrees
from trainplan.formulations.cluster_strategy.instance import Instance as StrategyInstance
from trainplan.formulations.cluster_strategy.problem import Solution as Strategy
from trainplan.formulations.parameters import BY_UNIT, IGNORE_MEMORY, MICRO_BATCHES, PIPELINE, RECOMPUTE, TP
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.request import Request
from trainplan.formulations.problem import Table
from trainplan.formulations.stage_assignment import problem
from trainplan.formulations.stage_assignment.problem import NAME, Instance, InstanceRecord, Solution
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import divisors, format_bytes, format_time


class StageAssignment(Cutting):
    """The problem `stage-assignment`: choose which consecutive layers form each stage of a pipeline (AMP, Sections 3.4 and
    3.5).
    """

    solved_by = "trainplan.solvers.assignment"
    name = NAME
    record = InstanceRecord
    solution_record = Solution
    degrees = tuple(replace(degree, default=1) for degree in (PIPELINE, MICRO_BATCHES, TP))
    parameters = (*degrees, RECOMPUTE, IGNORE_MEMORY, BY_UNIT)
    enumeration = cut_enumeration(Solution)
    load = staticmethod(problem.load)
    load_solution = staticmethod(problem.load_solution)
    solution_dict = staticmethod(problem.solution_dict)
    evaluate = staticmethod(problem.evaluate)
    violations = staticmethod(problem.violations)
    describe = staticmethod(problem.describe)

    def cost_model(self, instance: Instance) -> str:
        """The names of the cost model, AMP's, and of the equation of the objective, as one text. instance: the times of all
        layers in each stage, and the memory limits.
        """
        return "amp, Eq. 5"

    def instance(self, request: Request) -> Instance:
        """The instance for a request's numbers of stages (`pipeline`), tensor-parallel devices of a stage (`tp`) and
        micro-batches of a pipeline (`micro_batches`), with devices assigned to stages in their order. request: the user's
        model, cluster, batch and options. Raises InputError if the problem cannot express the request.
        """
        return assignment_instance(strategy_instance(request), *(request.options[degree.name] for degree in self.degrees))

    def plan(self, instance: Instance, solution: Solution, request: Request) -> Plan:
        """The plan of a solution. instance: the times of all layers in each stage, and the memory limits. solution: the index
        of the first layer of every stage but the first. request: the user's model, cluster, batch and options. Raises
        InputError if the number of pipelines or of tensor-parallel devices is no power of two, or the request has no
        model.
        """
        whole = strategy_instance(request)
        degrees = Degrees(instance.stages, *(instance.provenance[name] for name in ("dp", "tmp", "mbs")))
        return layout(whole, Strategy(degrees, tuple(range(whole.devices)), solution.cuts, ()), request)

    def tables(self, instance: Instance, solution: Solution) -> list[Table]:
        """One table for the screen, with a row for every stage. instance: the times of all layers in each stage, and the
        memory limits. solution: the index of the first layer of every stage but the first.
        """
        rows = tuple(
            (
                str(number),
                f"{stage.first} .. {stage.last}",
                str(stage.last - stage.first + 1),
                format_time(stage.time_ns),
                format_time(stage.transfer_ns),
                "-" if stage.peak_bytes is None else format_bytes(stage.peak_bytes),
            )
            for number, stage in enumerate(problem.evaluate(instance, solution).stages)
        )
        return [Table("stages", ("stage", "layers", "count", "time", "transfer", "memory"), rows)]


PROBLEM = StageAssignment()


def assignment_instance(whole: StrategyInstance, pp: int, micro_batches: int, tmp: int = 1) -> Instance:
    """The stage-assignment instance for given degrees of parallelism of a cluster-strategy instance, with devices assigned in
    their order, so that only the cuts into stages remain to be chosen.

    Args:
        whole: the cluster-strategy instance: a cluster, and the layers' costs on its kinds of devices.
        pp: the number of stages.
        micro_batches: the number of micro-batches of each pipeline.
        tmp: the number of tensor-parallel devices of a stage in one pipeline.

    If data-parallel pipelines have unlike devices, the slowest time of every stage and boundary counts, and the memory of
    the stage's smallest device. Raises InputError if the cluster or the batch cannot be divided like that.
    """
    devices, batch = whole.devices, whole.batch
    if tmp not in whole.shards:
        raise InputError("command line", "--tp", f"is {tmp}", f"give one of: {', '.join(map(str, sorted(whole.shards)))}")
    if devices % (pp * tmp) or pp > whole.layers:
        counts = [pp for pp in divisors(devices // tmp) if pp <= whole.layers]
        raise InputError("command line", "--pipeline", f"is {pp}", f"give one of: {', '.join(map(str, counts))}")
    dp = devices // (pp * tmp)
    mbs, rest = divmod(batch, dp * micro_batches)
    if rest or (tmp, mbs) not in whole.tables:
        fix = f"give a multiple of {dp * micro_batches}: {dp} pipelines of {micro_batches} micro-batches"
        raise InputError("command line", "--batch", f"is {batch}", fix)
    placed = whole.placed(Degrees(pp, dp, tmp, mbs), range(devices))
    table, shard = whole.tables[tmp, mbs], whole.shards[tmp]
    memory = {
        "limit_bytes": placed.limits_bytes.min(axis=1).tolist(),
        "state_bytes": shard.state_bytes.tolist(),
        "kept_bytes": table.kept_bytes.tolist(),
        "workspace_bytes": table.workspace_bytes.tolist(),
    }
    return problem.load(
        {
            "problem": NAME,
            "version": 1,
            "name": f"{whole.name}, {pp} stages",
            "provenance": whole.provenance | {"dp": dp, "tmp": tmp, "mbs": mbs},
            "stages": pp,
            "micro_batches": micro_batches,
            "layer_ns": problem.compact(placed.layer_ns.max(axis=1)),
            "transfer_ns": problem.compact(placed.transfer_ns.max(axis=1)) if pp > 1 else [0] * (whole.layers - 1),
            "parameters": shard.gradient_bytes.tolist(),
            "memory": memory if whole.within_memory else None,
        }
    )
