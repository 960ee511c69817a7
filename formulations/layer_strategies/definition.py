"""layer-strategies as a `Problem`: from a request to instances and plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from trainplan.formulations.costs.sequential.cost_models import COST_MODELS
from trainplan.formulations.layer_strategies import problem
from trainplan.formulations.layer_strategies.costs import EvenStage, build
from trainplan.formulations.layer_strategies.problem import Instance, InstanceRecord, SolutionRecord
from trainplan.formulations.parameters import BY_UNIT, MICRO_BATCHES, PIPELINE, Parameter
from trainplan.formulations.plan.plan import Batch, Plan, staged_plan
from trainplan.formulations.plan.request import Request
from trainplan.formulations.plan.run_length import runs
from trainplan.formulations.plan.strategy_words import in_words
from trainplan.formulations.problem import Enumeration, Models, Problem, SingleStrategy, Table
from trainplan.formulations.strategy_spaces import stage_counts
from trainplan.profiling.base.errors import InputError

EVERY = 4096  # choices between two moments to look at the clock

COST_MODEL = Parameter(
    "cost_model", str, "whose costs: the paper's, or those of trainplan's programs", "paper", tuple(COST_MODELS)
)
TAKEAWAY3 = Parameter("takeaway3", bool, "never mix DP and SDP in one strategy (the paper's Takeaway 3)", True)

Choice = Sequence[int]


def improving(instance: Instance) -> Iterator[Choice | None]:
    """Solutions for brute force: every choice of options (one per layer) that fits into memory and takes less time than all
    choices before it; None from time to time, so that the caller can check the time limit. instance: the costs of each
    layer under each of its options (strategies), and the memory limit.
    """
    best = float("inf")
    for number, choice in enumerate(product(*map(range, instance.options))):
        if number % EVERY == 0:
            yield None
        evaluation = problem.evaluate(instance, choice)
        if evaluation.peak_bytes <= instance.memory_bytes and evaluation.time_ns < best:
            best = evaluation.time_ns
            yield choice


def single_strategy_instances(instance: Instance) -> list[Instance]:
    """For each strategy that all layers offer, the instance in which every layer has only that strategy. instance: the costs
    of each layer under each of its options (strategies), and the memory limit.
    """
    shared = [name for name in instance.strategies[0] if all(name in names for names in instance.strategies)]
    return [instance.only([names.index(name) for names in instance.strategies]) for name in shared]


class LayerStrategies(Problem):
    """The problem `layer-strategies`: choose a parallel strategy for each layer of one pipeline stage for the shortest time,
    under the stage's peak memory. An option is a strategy of a layer with its costs.
    """

    name = problem.NAME
    record, solution_record = InstanceRecord, SolutionRecord
    solved_by = "trainplan.solvers.chain"
    parameters = (
        COST_MODEL,
        PIPELINE,
        Parameter("stage", int, "which of the pipeline's even stages, from 0", 0, least=0),
        MICRO_BATCHES,
        BY_UNIT,
        TAKEAWAY3,
    )
    enumeration = Enumeration(lambda instance: prod(instance.options), improving)
    models = Models(start=lambda instance, solution: {f"x[{l},{s}]" for l, s in enumerate(solution)})
    single_strategy = SingleStrategy(single_strategy_instances)
    load = staticmethod(problem.load)
    load_solution = staticmethod(problem.load_solution)
    solution_dict = staticmethod(problem.solution_dict)
    evaluate = staticmethod(problem.evaluate)
    violations = staticmethod(problem.violations)
    describe = staticmethod(problem.describe)

    def cost_model(self, instance: Instance) -> str:
        """The names of an instance's cost model and of its objective: `Eq. 8` (the whole step) for a pipeline of one stage,
        else the time of a micro-batch in the stage, such as `a micro-batch in stage 1 of 4`. instance: the costs of each
        layer under each of its options (strategies), and the memory limit.
        """
        index, count = instance.provenance.get("stage", (0, 1))
        objective = "Eq. 8" if count == 1 else f"a micro-batch in stage {index} of {count}"
        return f"{super().cost_model(instance)}, {objective}"

    def instance(self, request: Request) -> Instance:
        """The instance of the stage that the request names, of a pipeline whose stages have equally many layers; by default of
        the only stage. request: the user's model, cluster, batch and options. Raises InputError if the problem cannot
        express the request.
        """
        options, devices = request.options, request.origin.devices
        [count], index = stage_counts(devices, options["pipeline"] or 1), options["stage"]
        stage = EvenStage(count, index, options["micro_batches"] or 1)
        group = devices // count
        profile = request.profile_for([stage.samples(request.samples)], [group], devices=group)
        return build(
            profile,
            request.limit_bytes,
            request.samples,
            costs=COST_MODELS[options["cost_model"]],
            stage=stage,
            by_unit=options["by_unit"],
            takeaway3=options["takeaway3"],
            name=f"{profile.name} on {request.cluster_name}" + (f", stage {index} of {count}" if count > 1 else ""),
            provenance={"cluster": request.cluster_name},
        )

    def plan(self, instance: Instance, solution: Choice, request: Request) -> Plan:
        """The plan of a solution, with all devices in one stage. solution: for every layer, the index of its option. instance:
        the costs of each layer under each of its options (strategies), and the memory limit. request: the user's model,
        cluster, batch and options. Raises InputError if the request has several stages.
        """
        count = request.options["pipeline"] or 1
        if count > 1:
            raise InputError("command line", "--pipeline", f"is {count}", "give 1: a plan has all stages of its pipeline")
        strategies = [names[s] for names, s in zip(instance.strategies, solution, strict=True)]
        batch = Batch(global_samples=request.samples, micro_batches=request.options["micro_batches"] or 1)
        return staged_plan(request, [(0, instance.layers - 1)], strategies, batch)

    def tables(self, instance: Instance, solution: Choice) -> list[Table]:
        """One table for the screen: a row for each run of layers with equal strategy. solution: for every layer, the index of
        its option. instance: the costs of each layer under each of its options (strategies), and the memory limit.
        """
        chosen = [names[s] for names, s in zip(instance.strategies, solution, strict=True)]
        rows = strategy_runs(instance.layer_names, chosen)
        return [Table("strategies", ("layers", "count", "strategy"), tuple(rows))]


def strategy_runs(names: Sequence[str], strategies: Sequence[str]) -> list[tuple[str, str, str]]:
    """Rows (layers, number of layers, strategy) of a table for the screen, with consecutive layers of equal strategy as one
    row.

    names, strategies: the name and the strategy of each layer, in order.
    """
    return [(layers, str(count), in_words(strategy)) for _, layers, count, strategy in runs(names, strategies)]


PROBLEM = LayerStrategies()
