"""cluster-strategy as a `Problem`: strategies on mixed clusters, from a request to a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from trainplan.formulations.cluster_strategy import costs, enumeration, instance_file, problem
from trainplan.formulations.cluster_strategy.instance import NAME, Instance
from trainplan.formulations.cluster_strategy.instance_file import InstanceRecord
from trainplan.formulations.cluster_strategy.problem import Solution, SolutionRecord, describe, shares_of
from trainplan.formulations.parameters import BY_UNIT, IGNORE_MEMORY, RECOMPUTE, Parameter
from trainplan.formulations.plan.plan import Batch, Plan, staged_plan
from trainplan.formulations.plan.request import Request
from trainplan.formulations.plan.strategy import Strategy
from trainplan.formulations.problem import Enumeration, Models, Problem, Table
from trainplan.formulations.strategy_spaces import stage_sizes
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.plugins import attribute
from trainplan.profiling.base.quantities import divisors, format_bytes, format_time, plural, span

UNEVEN_SHARES = Parameter("uneven_shares", bool, "let pipelines take different numbers of micro-batches", False)

TIED = Parameter("tied", bool, "count the reduction of a table that embedding and head share, which AMP's model lacks", True)
MOST_RUNS = 8  # of device numbers that a cell shows


class ClusterStrategy(Problem):
    """The problem `cluster-strategy` of the paper AMP (Section 3), for clusters of unlike devices: choose the degrees of
    parallelism, the device of every rank, the micro-batch size, the layers of each stage, and the micro-batches of each
    pipeline together.
    """

    name = NAME
    record = InstanceRecord
    solution_record = SolutionRecord
    solved_by = "trainplan.solvers.cluster"
    picture = "trainplan.pictures.placement:draw_placement"
    parameters = (UNEVEN_SHARES, RECOMPUTE, IGNORE_MEMORY, BY_UNIT, TIED)
    enumeration = Enumeration(enumeration.count, enumeration.solutions)
    models = Models(lambda *arguments: attribute("trainplan.solvers.cluster.exact:subproblems")(*arguments))
    load = staticmethod(instance_file.load)
    load_solution = staticmethod(problem.load_solution)
    solution_dict = staticmethod(problem.solution_dict)
    evaluate = staticmethod(problem.evaluate)
    violations = staticmethod(problem.violations)
    describe = staticmethod(problem.describe)

    def cost_model(self, instance: Instance) -> str:
        """The name of the cost model, AMP's costs and objective: `amp, Eq. 3-5`, with `, with the tied table` if the reduction
        of a weight table that embedding and head share is added. instance: the cluster, the batch, and the layers' costs on
        each kind of device.
        """
        return "amp, Eq. 3-5" + (", with the tied table" if instance.tied_bytes else "")

    def instance(self, request: Request) -> Instance:
        """The instance of a request for the whole cluster, with any number of pipelines. request: the user's model, cluster,
        batch and options. Raises InputError if the request has no cluster, or neither model nor profile.
        """
        return strategy_instance(request, uneven_shares=bool(request.options.get(UNEVEN_SHARES.name)))

    def instances(self, request: Request) -> list[Instance]:
        """A list of one instance, whose numbers of pipelines and of tensor-parallel devices are powers of two, as plans have
        them. request: the user's model, cluster, batch and options. Raises InputError if the problem cannot express the
        request.
        """
        return [replace(self.instance(request), powers_of_two=True)]

    def plan(self, instance: Instance, solution: Solution, request: Request) -> Plan:
        """The plan of a solution: one strategy for all sub-layers, on the devices of its placement. instance: the cluster, the
        batch, and the layers' costs on each kind of device. request: the user's model, cluster, batch and options. Raises
        InputError if the number of pipelines or of tensor-parallel devices is no power of two, or the request has no
        model.
        """
        return layout(instance, solution, request)

    def tables(self, instance: Instance, solution: Solution) -> list[Table]:
        """Two tables for the screen: the strategy's degrees, and its stages. instance: the cluster, the batch, and the layers'
        costs on each kind of device. solution: degrees of parallelism, the device of every rank, the cuts between stages,
        and the micro-batches of each pipeline.
        """
        return [strategy_table(instance, solution), stage_table(instance, solution)]


def strategy_table(instance: Instance, solution: Solution) -> Table:
    """A table of one row for the screen: the degrees of a strategy, and the micro-batches of each pipeline. instance: the
    cluster, the batch, and the layers' costs on each kind of device. solution: degrees of parallelism, the device of every
    rank, the cuts between stages, and the micro-batches of each pipeline.
    """
    costs = describe(instance, solution)
    columns = ("pp", "dp", "tmp", "devices", "samples of a step", "a pipeline", "samples each")
    numbers = (costs["pp"], costs["dp"], costs["tmp"], instance.devices, instance.batch, _shares(costs["shares"]), costs["mbs"])
    return Table("strategy", columns, (tuple(map(str, numbers)),))


def stage_table(instance: Instance, solution: Solution) -> Table:
    """A table for the screen with a row for each stage: devices, layers, times, and bytes and limit of the device closest to
    its memory limit. instance: the cluster, the batch, and the layers' costs on each kind of device. solution: degrees of
    parallelism, the device of every rank, the cuts between stages, and the micro-batches of each pipeline.
    """
    columns = ("stage", "devices", "kinds", "layers", "count", "time", "transfer", "sync", "memory", "of")
    size, rows = solution.degrees.dp * solution.degrees.tmp, []
    for number, stage in enumerate(describe(instance, solution)["stages"]):
        rows.append(
            (
                str(number),
                _runs(sorted(solution.placement[number * size : (number + 1) * size])),
                ", ".join(f"{count} x {name}" for name, count in stage["kinds"]),
                span(instance.layer_names[stage["first"]], instance.layer_names[stage["last"]]),
                str(stage["last"] - stage["first"] + 1),
                *(format_time(stage[name]) for name in ("time_ns", "transfer_ns", "sync_ns")),
                *(format_bytes(stage[name]) for name in ("peak_bytes", "limit_bytes")),
            )
        )
    return Table("stages", columns, tuple(rows))


def _shares(shares: Sequence[int]) -> str:
    """The numbers of micro-batches of the pipelines as a text: [4, 4] -> `4 micro-batches`; [3, 5] -> `3, 5 micro-batches`."""
    if len(set(shares)) == 1:
        return plural(shares[0], "micro-batch")
    return f"{', '.join(map(str, shares))} micro-batches"


def _runs(numbers: Sequence[int]) -> str:
    """Ascending numbers as a text, with consecutive ones as a range: [0, 1, 2, 5] -> `0-2, 5`; ends in `...` after MOST_RUNS
    ranges."""
    indices = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in run] for _, run in indices]
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ", ".join(shown if len(shown) <= MOST_RUNS else [*shown[:MOST_RUNS], "..."])


PROBLEM = ClusterStrategy()


def strategy_instance(request: Request, uneven_shares: bool = False) -> Instance:
    """The cluster-strategy instance of a request, with layers or sub-layers, recomputation and memory as its options say.
    uneven_shares: whether pipelines may take different numbers of micro-batches.

    request: the user's model, cluster, batch and options. Raises InputError if the request has no cluster, or neither
    model nor profile.
    """
    if request.cluster is None:
        raise InputError("command line", "--cluster", "is missing", "give it: devices are placed on its nodes")
    if request.model is None and request.profile is None:
        raise InputError("command line", "--model", "is missing", "give it, or a --profile")
    profile = request.profile_for(divisors(request.samples), stage_sizes(request.cluster.devices))
    return costs.build(
        profile,
        request.cluster,
        request.samples,
        memory_bytes=request.memory_bytes,
        margin_bytes=request.margin_bytes,
        recompute=bool(request.options.get(RECOMPUTE.name)),
        by_unit=bool(request.options.get(BY_UNIT.name)),
        uneven_shares=uneven_shares,
        within_memory=not request.options.get(IGNORE_MEMORY.name),
        tied=request.options.get(TIED.name, True),
    )


def layout(instance: Instance, solution: Solution, request: Request) -> Plan:
    """The plan that a solution describes: all layers with one strategy, on the devices that the solution assigns to the ranks.
    instance: the cluster, the batch, and the layers' costs on each kind of device. solution: degrees of parallelism, the
    device of every rank, the cuts between stages, and the micro-batches of each pipeline. request: the user's model,
    cluster, batch and options. Raises InputError if the number of pipelines or of tensor-parallel devices is no power of
    two, or the request has no model.
    """
    degrees, shares = solution.degrees, shares_of(instance, solution)
    strategy = Strategy.of(("dp", degrees.dp), ("tp", degrees.tmp), ckpt=bool(instance.provenance.get("recompute")))
    even, in_order = len(set(shares)) == 1, list(solution.placement) == list(range(instance.devices))
    return staged_plan(
        request,
        solution.spans(instance.layers),
        [str(strategy)] * instance.layers,
        Batch(global_samples=instance.batch, micro_batches=max(shares), shares=None if even else list(shares)),
        placement=None if in_order else list(solution.placement),
    )
