"""joint as a problem of trainplan: from a request to its instances, and from a solution to a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from trainplan.formulations.costs.sequential.primitives import host_costs
from trainplan.formulations.joint.cost_tables import JointCosts, tp_degrees
from trainplan.formulations.joint.enumeration import binary_variables, improving, solution_count
from trainplan.formulations.joint.evaluation import describe, evaluate, shares_table, violations
from trainplan.formulations.joint.instance_file import InstanceRecord, load, load_solution, solution_dict
from trainplan.formulations.joint.lower_bounds import least_ns
from trainplan.formulations.joint.options import (
    CP,
    CP_EXCHANGE,
    GRADIENTS,
    MEMORY_TABLES,
    OPTIMIZER,
    PARAMETERS,
    PRECISION,
    cp_choices,
)
from trainplan.formulations.joint.overlap_cost_tables import (
    COST_MODEL,
    StreamedCosts,
    recipe_of,
    request_of_one_rank,
    sharing_heads,
)
from trainplan.formulations.joint.overlap_units_request import check_unlike_layouts
from trainplan.formulations.joint.overlap_units_tables import UnitLayoutCosts
from trainplan.formulations.joint.overlap_units_weights import CORNERS, Weights
from trainplan.formulations.joint.problem import NAME, Instance, Solution
from trainplan.formulations.joint.proof import JointCertificate
from trainplan.formulations.joint.recompute_first import with_first_layers
from trainplan.formulations.joint.refinement import JointRefinement
from trainplan.formulations.joint.request_scope import JointScope
from trainplan.formulations.joint.runtime_costs import runtime_costs
from trainplan.formulations.joint.search_space import Space
from trainplan.formulations.joint.single_strategy import single_strategy_instances, widened
from trainplan.formulations.joint.solution_to_plan import unit_of
from trainplan.formulations.joint.tables import Option
from trainplan.formulations.joint.user_constraints import CONSTRAINTS, PRICED, TP, WIDEST, requested_space
from trainplan.formulations.joint.within_runtime import with_gradients
from trainplan.formulations.plan.plan import Batch, Plan, Stage
from trainplan.formulations.plan.request import Request
from trainplan.formulations.plan.run_length import runs
from trainplan.formulations.plan.strategy import HEADS_WORD
from trainplan.formulations.plan.strategy_words import in_words
from trainplan.formulations.problem import Enumeration, Models, Problem, SingleStrategy, Subproblem, Table
from trainplan.profiling.base.errors import InputError, Unsupported
from trainplan.profiling.base.quantities import divisors, format_bytes, format_time, plural, span
from trainplan.profiling.clusters.cluster import Cluster

MOST_CANDIDATES = 2000  # choices of first layers that a runtime is predicted for one by one; more are searched by tables
MOST_VARIABLES = 100_000  # binary ones, of the models of all configurations; a search of more ends with hardly any bound


def subproblems(instance: Instance, out_of_time: Callable[[], bool]) -> list[Subproblem]:
    """The parts of an instance that integer models (MILP, CP-SAT) solve one by one: one for each configuration (schedule,
    number of micro-batches and device groups), with a lower bound of its step.

    out_of_time: unused; part of the signature that all problems share. instance: the configurations to choose from, with
    costs and memory limits. Raises Unsupported if the models of all configurations together are too large to be solved.
    """

    def lift(index: int) -> Callable[[Solution], Solution]:
        return lambda solution: replace(solution, configuration=index)

    def lower(index: int) -> Callable[[Solution], Solution | None]:
        return lambda solution: replace(solution, configuration=0) if solution.configuration == index else None

    if instance.runtime is not None:
        problem = f"solves tables of costs, and plans for {instance.runtime.runtime} are compared by its own prediction"
        raise Unsupported("command line", "--method", problem, "give exact, or leave --for out")
    if (variables := binary_variables(instance)) > MOST_VARIABLES:
        problem = f"builds models of {variables:,} binary variables here, of at most {MOST_VARIABLES:,}"
        fix = "give exact, which proves the same problem, or --like galvatron-bmw with this method, whose models are smaller"
        raise Unsupported("command line", "--method", problem, fix)
    parts = [instance.only([index]) for index in range(len(instance.configurations))]
    return [Subproblem(part, least_ns(part), lift(index), lower(index)) for index, part in enumerate(parts)]


def start(instance: Instance, solution: Solution) -> set[str]:
    """The names of the model variables that are 1 in a solution, for a solver to start from: `x[l,i,s]` if unit (sub-layer or
    layer) l lies in stage i and has option s. If embedding and head share a weight table as one parameter, the last unit's
    options stand twice in the model, and the name is that of the second copy. instance: the configurations to choose from,
    with costs and memory limits. solution: the chosen configuration, the cuts between stages, and an option for every unit.
    """
    nodes = [(l, x, solution.choice[l]) for x, (a, b) in enumerate(solution.spans()) for l in range(a, b + 1)]
    configuration = instance.configurations[solution.configuration]
    if shares_table(configuration, solution.choice):
        l, x, s = nodes[-1]
        nodes[-1] = l, x, s + len(instance.table(configuration, x, l).options)
    return {f"x[{l},{x},{s}]" for l, x, s in nodes}


class Joint(Problem):
    """The problem of choosing schedule, micro-batches, stages cut at any sub-layer, and the strategy of every sub-layer, for
    one batch."""

    name = NAME
    record, solution_record = InstanceRecord, Solution
    solved_by = "trainplan.solvers.joint"
    parameters = (*PARAMETERS, *CONSTRAINTS)
    constraints, widest = PRICED, WIDEST
    enumeration = Enumeration(solution_count, improving)
    models = Models(subproblems, start)
    single_strategy = SingleStrategy(single_strategy_instances, widened=widened)
    refinement, certificate = JointRefinement(), JointCertificate()
    scope: ClassVar[JointScope] = JointScope()
    load = staticmethod(load)
    load_solution = staticmethod(load_solution)
    solution_dict = staticmethod(solution_dict)
    evaluate = staticmethod(evaluate)
    violations = staticmethod(violations)
    describe = staticmethod(describe)

    def cost_model(self, instance: Instance) -> str:
        """The names of an instance's cost model and of the formula that combines the stages' times into the step, as one text
        such as `streams, simulated step`; for a runtime, `streams, predicted step of megatron`. instance: the configurations
        to choose from, with costs and memory limits.
        """
        step = STEP_NAMES[instance.step] if instance.runtime is None else f"predicted step of {instance.runtime.runtime}"
        return f"{super().cost_model(instance)}, {step}"

    def instances(self, request: Request) -> list[Instance]:
        """The instances that planning solves for a request: one for each context-parallel degree, and each kind of exchange
        between context-parallel ranks (keys or heads), that the request allows and that devices, tokens and attention heads
        support. Raises InputError if none is possible.
        """
        self.scope.clipped_request(request)  # refuses options that leave nothing, where a single degree would only be skipped
        choices, instances, refused = cp_choices(request.options), list[Instance](), list[InputError]()
        for degree, exchange in choices:
            chosen = {CP.name: str(degree), CP_EXCHANGE.name: exchange}
            try:
                instances.append(self.instance(replace(request, options={**request.options, **chosen})))
            except InputError as error:
                refused.append(error)
        if not instances:
            raise refused[0]
        return instances

    def instance(self, request: Request) -> Instance:
        """The instance of a request that has one context-parallel degree: all numbers of stages and micro-batches and all
        strategies that are possible, or those that the request names. request: the user's model, cluster, batch and
        options. Raises InputError if nothing is possible or the request names several degrees.
        """
        request = self.scope.clipped_request(request)
        space, model = requested_space(request), request.described_model
        runtime = runtime_costs(request) if space.overlapped else None
        space = replace(space, shards_in_pipelines=runtime is not None)
        instance = build(request, space)
        if space.first_layers is not None and model is not None:
            first = with_first_layers(instance, model, space.first_layers)
            many = sum(len(configuration.tables[0].units[0].options) for configuration in first.configurations)
            return replace(first, runtime=runtime if many <= MOST_CANDIDATES else None)
        if request.options["one_strategy"]:
            return replace(single_strategy_instances(instance)[0], runtime=runtime)
        return instance

    def plan(self, instance: Instance, solution: Solution, request: Request) -> Plan:
        """The plan of a solution, without prediction: stages, schedule, micro-batches, and for every sub-layer its strategy,
        recomputation and what it keeps on the host. instance: the configurations to choose from, with costs and memory
        limits. solution: the chosen configuration, the cuts between stages, and an option for every unit. request: the
        user's model, cluster, batch and options. Raises InputError if the request describes no model.
        """
        model = request.described_model
        if not model:
            problem, fix = "is missing", "give it: the profile describes no model that can be planned"
            raise InputError("command line", "--model", problem, fix)
        configuration = instance.configurations[solution.configuration]
        schedule, groups = configuration.schedule, configuration.device_groups
        begins = [sum(group.size for group in groups[:index]) for index in range(len(groups))]
        stages, chosen = [], list[Option]()
        for x, (first, last) in enumerate(solution.spans()):
            begin, units = begins[x % len(groups)], instance.units
            ranks = list(range(begin, begin + configuration.device_group(x).size))
            stages.append(Stage(ranks=ranks, first_unit=units[first].first, last_unit=units[last].last))
            for l in range(first, last + 1):
                option = instance.table(configuration, x, l).options[solution.choice[l]]
                chosen += [option] * (units[l].last - units[l].first + 1)
        precision, optimizer = with_gradients(request).precision, request.options.get(OPTIMIZER.name, OPTIMIZER.default)
        kept: dict[str, Any] = {"precision": precision, "optimizer": optimizer}
        if any(option.host for option in chosen):
            nvlink = not _shares_bus(request)
            streamed = instance.provenance.get("cost_model") == COST_MODEL  # else one thing after the other, as tables price it
            kept = kept | {"nvlink": nvlink} if streamed else {"nvlink": nvlink, "backend": "serial"}
        products = request.options.get(PRECISION.name, PRECISION.default)
        planned = [unit_of(unit, option, products) for unit, option in zip(model.units, chosen, strict=True)]
        return Plan(
            model=model.shape(),
            model_digest=model.digest,
            world=sum(group.size for group in groups),
            memory_bytes=request.with_margin(0).limit_bytes,
            batch=Batch(global_samples=instance.batch, micro_batches=configuration.micro_batches),
            schedule=schedule.planned,
            sliced=schedule.sliced,
            stages=stages,
            units=planned,
            **kept,
        )

    def tables(self, instance: Instance, solution: Solution) -> list[Table]:
        """A list of one table for the screen: the stages of a solution, and in each stage its units (sub-layers, or layers);
        consecutive units with equal options form one row. instance: the configurations to choose from, with costs and
        memory limits. solution: the chosen configuration, the cuts between stages, and an option for every unit.
        """
        configuration, rows = instance.configurations[solution.configuration], []
        evaluation = evaluate(instance, solution)
        for x, stage in enumerate(evaluation.stages):
            times, group = stage.times, x % len(configuration.device_groups)
            first = sum(device_group.size for device_group in configuration.device_groups[:group])
            cells: tuple[str, ...] = (
                str(x),
                span(str(first), str(first + configuration.device_groups[group].size - 1)),
                str(stage.in_flight),
                format_time(times.forward_ns),
                format_time(times.backward_ns),
            )
            cells += (format_bytes(stage.peak_bytes),)
            indices = range(stage.first, stage.last + 1)
            chosen = [instance.table(configuration, x, l).options[solution.choice[l]].name for l in indices]
            for _, units, count, name in runs([instance.units[l].name for l in indices], chosen):
                rows.append((cells[0], units, str(count), in_words(name), *cells[1:]))
                cells = ("",) * len(cells)
        title = f"{plural(configuration.stages, 'stage')}, {plural(configuration.micro_batches, 'micro-batch')}"
        title += f", {configuration.schedule}" if configuration.stages > 1 else ""
        memory = (
            "memory"
            if instance.runtime
            else "memory at least"
            if instance.provenance.get(MEMORY_TABLES.name) == "least"
            else "memory (solver)"
        )
        columns = ("stage", "sub-layers", "count", "strategy", "ranks", "in flight", "forward", "backward", memory)
        return [Table(title, columns, tuple(rows))]


STEP_NAMES = {"simulated": "simulated step", "eq8": "Eq. 8", "eq5": "Eq. 5", "eq4": "Eq. 4"}


def _shares_bus(request: Request) -> bool:
    """Whether copies to the host and collectives use one bus, as far as the request's profile says; False if no profile
    says so. request: the user's model, cluster, batch and options.
    """
    profile = request.profile or next(iter(request.obtained), None)
    return profile is not None and profile.host is not None and profile.host.shares_bus


def host_part_bytes(cluster: Cluster | None) -> int | None:
    """One device's equal part, in bytes, of its host's memory; on clusters of unlike hosts the smallest such part. None if the
    cluster's hosts are not described.
    """
    nodes = [] if cluster is None else cluster.nodes
    if any(node.host is None for node in nodes) and not any(node.host for node in nodes):
        return None
    return min((node.host.memory_bytes // node.devices for node in nodes if node.host), default=None)


def unlike_layout_bounds(request: Request) -> list[Instance]:
    """Instances of a request for unlike layouts, with equal options, whose objectives are single lower bounds of the simulated
    step where that of the request's own instance is their weighted mean; so the largest of a solution is a lower bound, too.
    """
    request = PROBLEM.scope.clipped_request(request)
    space = requested_space(request)
    return [build(request, space, weights) for weights in CORNERS]


def build(request: Request, space: Space, weights: Weights | None = None) -> Instance:
    """The instance of the joint problem for a request, whose costs count overlap or not as the search space says. The profile
    is obtained (given, measured or estimated) for all sizes that are needed. space: the allowed schedules, stages and
    strategies. request: the user's model, cluster, batch and options. weights: for unlike layouts, the weights of the lower
    bounds of the step in the objective; None to choose them. Raises InputError if options do not go together or nothing is
    possible.
    """
    devices, samples = request.origin.devices, request.samples
    if space.host and not space.overlapped and request.precision.gradients != "model":
        problem = f"is {request.precision.gradients}, with states on the host, which are in the model's dtype"
        raise InputError("command line", GRADIENTS.flag, problem, "give model, or leave --host out")
    numbers = divisors(samples) if space.micro_batches is None else list(space.micro_batches)
    if wrong := [count for count in numbers if count < 1 or samples % count]:
        problem = f"is {samples} in {wrong[0]} micro-batches"
        raise InputError("command line", "--batch", problem, "give a multiple of --micro-batches")
    possible = divisors(devices)
    if space.depths is not None:
        if not (requested := [depth for depth in possible if depth in space.depths]):
            fix = f"give one of: {', '.join(map(str, possible))}"
            raise InputError("command line", "--pipeline", f"is {', '.join(map(str, space.depths))}", fix)
        possible = requested
    degrees = tp_degrees(request, max(devices // depth for depth in possible))
    groups = [devices // depth for depth in possible]
    sizes = {samples // m for m in numbers}
    sizes |= {size // 2 for size in sizes if size % 2 == 0 and space.most_sliced}
    recipe, own, model = None, request, request.model
    if space.overlapped:
        recipe, own = recipe_of(request), request_of_one_rank(request, space.cp)
        if space.exchange == "heads" and model is not None:
            degrees = sharing_heads(model, degrees, space.cp, request.options[TP.name])
    profile = own.profile_for([size * space.cp for size in sorted(sizes)], groups, degrees=degrees)
    if space.overlapped:
        assert model is not None and request.cluster is not None  # else `streams` is refused
        if space.unit_layouts:
            check_unlike_layouts(request)
        given = (profile, space, degrees, model, request.cluster, samples, recipe, request.precision)
        unlike = partial(UnitLayoutCosts, memory_bytes=request.limit_bytes, fixed=weights)
        costs: JointCosts = unlike(*given) if space.unit_layouts else StreamedCosts(*given)
    else:
        costs = JointCosts(profile, space, degrees, request.precision)
    name = f"{profile.name} on {request.cluster_name}" + ", unlike layouts" * (space.overlapped and space.unit_layouts)
    if space.cp > 1:
        name += f", cp{space.cp}{HEADS_WORD * (space.exchange == 'heads')}"
    if space.host and profile.described_model is not None:
        host_costs(profile)  # raises InputError where the profile lacks them
    provenance = {
        "cluster": request.cluster_name,
        CP.name: str(space.cp),
        CP_EXCHANGE.name: space.exchange,
        OPTIMIZER.name: space.optimizer,
        MEMORY_TABLES.name: "least" if space.least_memory else "most",
    }
    host_bytes = host_part_bytes(request.cluster)
    return costs.instance(samples, request.limit_bytes, host_bytes=host_bytes, name=name, provenance=provenance)


PROBLEM = Joint()
