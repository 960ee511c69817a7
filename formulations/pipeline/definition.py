"""pipeline as a `Problem`: from a request to instances and plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from trainplan.formulations.costs.sequential.cost_models import COST_MODELS
from trainplan.formulations.layer_strategies.definition import COST_MODEL, TAKEAWAY3, strategy_runs
from trainplan.formulations.parameters import BY_UNIT, MICRO_BATCHES, PIPELINE, Parameter
from trainplan.formulations.pipeline import instance_file, problem
from trainplan.formulations.pipeline.costs import PipelineCosts
from trainplan.formulations.pipeline.enumeration import plan_count, plans
from trainplan.formulations.pipeline.instance import NAME, SCHEDULES, Instance
from trainplan.formulations.pipeline.instance_file import InstanceRecord
from trainplan.formulations.pipeline.layouts import least_ns, parts
from trainplan.formulations.pipeline.problem import Solution
from trainplan.formulations.plan.plan import Batch, Plan, staged_plan
from trainplan.formulations.plan.request import Request
from trainplan.formulations.problem import Enumeration, Models, Problem, SingleStrategy, Subproblem, Table
from trainplan.formulations.schedule.orders import SCHEDULES as PLAN_SCHEDULES
from trainplan.formulations.strategy_spaces import SPACES, micro_batch_counts, space, stage_counts
from trainplan.profiling.base.quantities import format_bytes, format_time, plural

SCHEDULE = Parameter("schedule", str, "order of forward and backward passes", "1f1b", SCHEDULES)
SPACE = Parameter("space", str, "which stages and strategies to choose from (default: full)", None, tuple(SPACES))


def subproblems(instance: Instance, out_of_time: Callable[[], bool]) -> list[Subproblem]:
    """The parts of an instance that integer models solve one by one: one for each configuration (numbers of stages and
    micro-batches), with a lower bound of its objective. out_of_time: unused; part of the signature that all problems share.
    instance: the configurations (numbers of stages and micro-batches) to choose from, with the costs of layers under each
    strategy, and the memory limit.
    """

    def lift(index: int) -> Callable[[Solution], Solution]:
        """A function that turns a solution of the part into one of the whole instance."""
        return lambda solution: replace(solution, configuration=index)

    def lower(index: int) -> Callable[[Solution], Solution | None]:
        """A function that turns a solution of the whole instance into one of the part, or None."""
        return lambda solution: replace(solution, configuration=0) if solution.configuration == index else None

    return [Subproblem(part, least_ns(part), lift(index), lower(index)) for index, part in enumerate(parts(instance))]


def start(instance: Instance, solution: Solution) -> set[str]:
    """The names of the model variables that are 1 in a solution, for a warm start: `x[l,i,s]` for layer l in stage i with
    option s. instance: the configurations (numbers of stages and micro-batches) to choose from, with the costs of layers
    under each strategy, and the memory limit. solution: a configuration, the number of layers of each stage, and the
    strategy of every layer.
    """
    stages = [i for i, size in enumerate(solution.stages) for _ in range(size)]
    return {f"x[{l},{i},{s}]" for l, (i, s) in enumerate(zip(stages, solution.choice, strict=True))}


def single_strategy_instances(instance: Instance) -> list[Instance]:
    """A list of one instance in which all layers of a plan have the same strategy: for each configuration (numbers of stages
    and micro-batches) of the given instance, and each of its strategies, it has a configuration with that strategy alone.
    instance: the configurations (numbers of stages and micro-batches) to choose from, with the costs of layers under each
    strategy, and the memory limit.
    """
    single = [
        replace(configuration, tables=configuration.tables.keep([option]))
        for configuration in instance.configurations
        for option in range(len(configuration.tables.strategies))
    ]
    return [replace(instance, configurations=tuple(single))]


class StagedProblem(Problem):
    """The base of problems whose instances and solutions are those of the problem `pipeline`, or extend them."""

    models = Models(subproblems, start)
    single_strategy = SingleStrategy(single_strategy_instances)
    load_solution = staticmethod(problem.load_solution)
    solution_dict = staticmethod(problem.solution_dict)

    def tables(self, instance: Instance, solution: Solution) -> list[Table]:
        """One table for the screen: the stages, and in each stage a row for each run of layers with equal strategy. instance:
        the configurations (numbers of stages and micro-batches) to choose from, with the costs of layers under each
        strategy, and the memory limit. solution: a configuration, the number of layers of each stage, and the strategy of
        every layer.
        """
        configuration, rows = instance.configurations[solution.configuration], []
        names = configuration.tables.strategies
        for number, stage in enumerate(problem.evaluate(instance, solution).stages):
            cells = (str(number), str(stage.in_flight), format_time(stage.time_ns), format_bytes(stage.peak_bytes))
            layers = slice(stage.first, stage.last + 1)
            for run in strategy_runs(instance.layer_names[layers], [names[s] for s in solution.choice[layers]]):
                rows.append((cells[0], *run, *cells[1:]))
                cells = "", "", "", ""
        title = f"{plural(configuration.stages, 'stage')}, {plural(configuration.micro_batches, 'micro-batch')}"
        title += f", {PLAN_SCHEDULES[configuration.schedule].title}" if configuration.stages > 1 else ""
        return [Table(title, ("stage", "layers", "count", "strategy", "in flight", "time", "memory"), tuple(rows))]


def improving(instance: Instance) -> Iterator[Solution | None]:
    """Solutions for brute force: every solution that fits into memory and takes less time than all solutions before it; None
    from time to time, so that the caller can check the time limit. instance: the configurations (numbers of stages and
    micro-batches) to choose from, with the costs of layers under each strategy, and the memory limit.
    """
    return plans(instance, instance.configurations, None, lambda index, *times: problem.iteration_ns(
        instance.configurations[index], *times))  # fmt: skip


class Pipeline(StagedProblem):
    """The problem `pipeline`: choose the stages, the number of micro-batches and the strategy of every layer together, for one
    batch.
    """

    name = NAME
    record, solution_record = InstanceRecord, Solution
    solved_by = "trainplan.solvers.pipeline"
    parameters = (COST_MODEL, PIPELINE, MICRO_BATCHES, SCHEDULE, SPACE, BY_UNIT, TAKEAWAY3)
    enumeration = Enumeration(plan_count, improving)
    load = staticmethod(instance_file.load)
    evaluate = staticmethod(problem.evaluate)
    violations = staticmethod(problem.violations)
    describe = staticmethod(problem.describe)

    def cost_model(self, instance: Instance) -> str:
        """The names of an instance's cost model and of the equation of its objective, such as `executed, Eq. 8`. instance: the
        configurations (numbers of stages and micro-batches) to choose from, with the costs of layers under each strategy,
        and the memory limit.
        """
        return f"{super().cost_model(instance)}, Eq. 8"

    def instance(self, request: Request) -> Instance:
        """The instance of a request, with all numbers of stages and micro-batches that are possible, or those that the request
        names. request: the user's model, cluster, batch and options. Raises InputError if nothing is possible.
        """
        options, devices, samples = request.options, request.origin.devices, request.samples
        choices = space(options["space"] or ("full" if options["takeaway3"] else "full-dp-sdp"))
        counts, numbers = stage_counts(devices, options["pipeline"]), micro_batch_counts(samples, options["micro_batches"])
        profile = request.profile_for([samples // m for m in numbers], [devices // count for count in counts])
        costs = PipelineCosts(profile, costs=COST_MODELS[options["cost_model"]], space=choices, by_unit=options["by_unit"])
        return costs.instance(
            samples,
            request.limit_bytes,
            schedule=options["schedule"],
            stages=counts,
            micro_batches=numbers,
            name=f"{profile.name} on {request.cluster_name}",
            provenance={"cluster": request.cluster_name},
        )

    def plan(self, instance: Instance, solution: Solution, request: Request) -> Plan:
        """The plan of a solution: its stages, micro-batches, schedule, and the strategy of every layer. instance: the
        configurations (numbers of stages and micro-batches) to choose from, with the costs of layers under each strategy,
        and the memory limit. request: the user's model, cluster, batch and options. Raises InputError if the request
        describes no model.
        """
        configuration = instance.configurations[solution.configuration]
        strategies = [configuration.tables.strategies[s] for s in solution.choice]
        batch = Batch(global_samples=request.samples, micro_batches=configuration.micro_batches)
        return staged_plan(request, solution.spans(), strategies, batch, schedule=configuration.schedule)


PROBLEM = Pipeline()
