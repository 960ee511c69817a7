"""joint as a problem that trainplan can be asked for: from a request to an instance, and from a solution to a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainplan.formulations.costs.sequential.primitives import host_costs
from trainplan.formulations.joint import home
from trainplan.formulations.joint.any_schedule import any_schedule_ns
from trainplan.formulations.joint.bounds import least_ns
from trainplan.formulations.joint.certificates.check import checked_bound_ns
from trainplan.formulations.joint.certificates.file import Evidence
from trainplan.formulations.joint.cost_tables import JointCosts, tp_degrees
from trainplan.formulations.joint.enumeration import binary_variables, improving, solution_count
from trainplan.formulations.joint.evaluation import table_once
from trainplan.formulations.joint.instance_file import InstanceRecord, SolutionRecord
from trainplan.formulations.joint.lower_bounds import closed_form_ns
from trainplan.formulations.joint.options import (
    CP,
    CP_EXCHANGE,
    GRADIENTS,
    MEMORY_TABLES,
    OPTIMIZER,
    PARAMETERS,
    PRECISION,
    cost_model_of,
    cp_choices,
    plainer_costs,
    space_of,
    within_optimizer,
)
from trainplan.formulations.joint.overlap_cost_tables import COST_MODEL, LEFT_OUT, streamed_costs
from trainplan.formulations.joint.plan_to_solution import incumbent_of
from trainplan.formulations.joint.problem import NAME, Configuration, Instance, Solution
from trainplan.formulations.joint.recompute_first import RECOMPUTE_FIRST, whole_layers, with_first_layers
from trainplan.formulations.joint.reduce_recomputation import eased
from trainplan.formulations.joint.runtime_capabilities import with_gradients, within_runtime
from trainplan.formulations.joint.search_space import Space
from trainplan.formulations.joint.suits import unlike_links, unsuited
from trainplan.formulations.joint.tables import Option, OptionTable
from trainplan.formulations.joint.unit_alternatives import UnitChanges, changes
from trainplan.formulations.joint.user_constraints import CONSTRAINTS, OF_CONFIGURATIONS, PRICED, WIDEST, narrowed, restrictions
from trainplan.formulations.plan.plan import Batch, Plan, Stage
from trainplan.formulations.plan.request import Request
from trainplan.formulations.plan.run_length import runs
from trainplan.formulations.plan.strategy import HEADS_WORD
from trainplan.formulations.plan.strategy_words import in_words
from trainplan.formulations.plan.unit import Order, PlannedUnit, planned_unit
from trainplan.formulations.problem import Part, Problem, Table
from trainplan.profiling.base.errors import InputError, Unsuited
from trainplan.profiling.base.quantities import divisors, format_bytes, format_time, plural, span
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.models.sublayers import LAYERED

MOST_VARIABLES = 100_000  # binary ones, of the models of all configurations; a search of more ends with hardly any bound


class Joint(Problem):
    """Schedule, micro-batches, stages cut at any sub-layer, and the strategy of every sub-layer, for one batch."""

    home = home
    name = NAME
    record, solution_record = InstanceRecord, SolutionRecord
    solved_by = "trainplan.solvers.joint"
    parameters = (*PARAMETERS, *CONSTRAINTS)
    constraints, widest = PRICED, WIDEST

    def cost_model(self, instance: Instance) -> str:
        """The name of the costs, and how a step is judged."""
        return f"{super().cost_model(instance)}, {STEP_NAMES[instance.step]}"

    def layouts(self, instance: Instance) -> list[str]:
        """See `Problem`."""
        return [str(configuration.tables[0].states[0]) for configuration in instance.configurations]

    def alike(self, instance: Instance) -> list[tuple[str, str]]:
        """See `Problem`: layouts with the option of the first unit behind the embedding, where it has one only."""
        names = [
            [option.name for option in configuration.tables[0].units[-1].options] for configuration in instance.configurations
        ]
        only = [each[0] if len(each) == 1 else "" for each in names]
        layouts = [f"{layout} {name}" for layout, name in zip(self.layouts(instance), only, strict=True)]
        return list(zip(layouts, self.shapes(instance), strict=True))

    def shapes(self, instance: Instance) -> list[str]:
        """See `Problem`."""
        return list(map(str, instance.configurations))

    def passes(self, instance: Instance) -> list[str]:
        """See `Problem`: sites with several stages, or with one."""
        return ["several" if configuration.schedule.chunks > 1 else "one" for configuration in instance.configurations]

    def evenly(self, instance: Instance, places: Sequence[int]) -> Instance | None:
        """See `Problem`: embedding and head aside, and only where every one of these has cuts to choose."""
        configurations = [instance.configurations[index] for index in places]
        cuts = [instance.even_cuts(configuration.stages) for configuration in configurations]
        if any(configuration.cuts is not None or configuration.stages == 1 for configuration in configurations) or None in cuts:
            return None
        even = [replace(configuration, cuts=chosen) for configuration, chosen in zip(configurations, cuts, strict=True)]
        return replace(instance, configurations=tuple(even))

    def eased(self, instance: Instance, solution: Solution) -> Solution:
        """See `Problem`."""
        return eased(instance, solution)

    def plainer_costs(self, request: Request) -> str | None:
        """See `Problem`."""
        return plainer_costs(self.within(request))

    def restrictions(self, request: Request, cost_model: str) -> list[str]:
        """What the values of the parameters, the devices and the cost model leave out of all plans that the problem knows."""
        links = unlike_links(request)
        of_links = [] if links is None else [f"no stages or groups with unlike links ({links})"]
        return [*restrictions(request.options), *of_links, *(LEFT_OUT if cost_model.startswith(COST_MODEL) else ())]

    def beyond(self, instance: Instance, narrower: Instance, left_out: str) -> Instance | None:
        """The configurations that only the wider instance has, where the parameter chooses among configurations alone: those
        of both have the same options."""
        if left_out not in OF_CONFIGURATIONS:
            return instance
        both = set(map(_setting, narrower.configurations))
        indices = [index for index, configuration in enumerate(instance.configurations) if _setting(configuration) not in both]
        return instance.only(indices) if indices else None

    # Certificates

    def any_schedule_ns(self, instance: Instance, solution: Solution) -> int | None:
        """A bound on the step with a solution's stages and strategies under every order of passes; None of another step than
        the simulated one."""
        if instance.step != "simulated":
            return None
        return any_schedule_ns(instance.configurations[solution.configuration], home.evaluate(instance, solution))

    def changes(self, instance: Instance, solution: Solution, stop: Callable[[], bool]) -> list[UnitChanges]:
        """What single units could have in place of their options, see `changes`."""
        return changes(instance, solution, stop)

    def checked_bound_ns(self, instance: Instance, proof: Mapping[str, Any] | None) -> int:
        """The bound in ns that evidence proves; without any, the least of the configurations' bounds in closed form."""
        if proof is None:
            return min(closed_form_ns(instance, configuration) for configuration in instance.configurations)
        return checked_bound_ns(instance, Evidence.from_dict(dict(proof)))

    # Memory

    def memory_bytes(self, instance: Instance) -> int | None:
        """The limit of one device; None where classes have different ones."""
        limits = {each.memory_bytes - instance.reserve_bytes for each in instance.classes}
        return limits.pop() if len(limits) == 1 else None

    def with_memory(self, instance: Instance, memory_bytes: int) -> Instance:
        """The instance under another limit of every device, beside the reserve."""
        return instance.with_memory(memory_bytes + instance.reserve_bytes)

    def site_bytes(self, instance: Instance, solution: Solution) -> list[tuple[int, bool]]:
        """See `Problem`."""
        sites = len(instance.configurations[solution.configuration].sites)
        stages = home.evaluate(instance, solution).stages
        by_stage = [(stage.peak_bytes, stage.peak_unit == instance.length - 1) for stage in stages]
        return [max(by_stage[index::sites]) for index in range(sites)]

    def tightest(self, instance: Instance) -> Instance | None:
        """The instance with the least memory that some solution needs; None where none is known: hosts may be too small."""
        reason = self.explain(self.with_memory(instance, 1))
        enough = reason is not None and self.explain(tight := self.with_memory(instance, reason.least_memory_bytes)) is None
        return tight if enough else None

    # From a request to a plan

    def unsuited(self, request: Request) -> str | None:
        """What the devices of a request have that is not alike; None where all are equal."""
        return unsuited(request)

    def instances(self, request: Request) -> list[Instance]:
        """One for each context-parallel degree asked for, and what its ranks exchange, that the devices, the tokens and the
        heads allow. Raises InputError."""
        self.within(request)  # says what they have none of, where one choice would just be left out
        choices, made, refused = cp_choices(request.options), list[Instance](), list[InputError]()
        for degree, exchange in choices:
            chosen = {CP.name: str(degree), CP_EXCHANGE.name: exchange}
            try:
                made.append(self.instance(replace(request, options={**request.options, **chosen})))
            except InputError as error:
                refused.append(error)
        if not made:
            raise refused[0]
        return made

    def within(self, request: Request) -> Request:
        """See `Problem`: with what its optimizer and its runtime have."""
        return within_runtime(within_optimizer(request))

    def options_of(self, instance: Instance, request: Request) -> dict[str, Any]:
        """See `Problem`: with the context-parallel degree of this instance, and what its ranks exchange."""
        kept = (CP.name, CP_EXCHANGE.name, MEMORY_TABLES.name)
        return {**request.options, **{name: instance.provenance[name] for name in kept if name in instance.provenance}}

    def instance(self, request: Request) -> Instance:
        """All depths, micro-batches and strategies that are possible, or those asked for, of one context-parallel degree.
        Raises InputError."""
        request = self.within(request)
        if (first := request.options[RECOMPUTE_FIRST.name]) is not None:
            if (model := request.described_model) is None:
                problem = f"is {first}, of a profile without a described model"
                raise InputError("command line", RECOMPUTE_FIRST.flag, problem, "leave it out, or give --model")
            request = replace(request, options=whole_layers(request.options))
            space = replace(narrowed(space_of(request.options), request), even_stages=True)
            return with_first_layers(build(request, space), model, first)
        instance = build(request, narrowed(space_of(request.options), request))
        return self.uniform(instance)[0][0] if request.options["one_strategy"] else instance

    def uniform(self, instance: Instance) -> tuple[list[Instance], str]:
        """One, with a configuration for each option of each of the instance's that all units have; none of plans with the first
        layers of stages recomputed, which units differ in."""
        if RECOMPUTE_FIRST.name in instance.provenance:
            return [], "exact"
        configurations = [each for configuration in instance.configurations for each in uniform(configuration)]
        return [replace(instance, configurations=tuple(configurations))], "exact"

    def of_uniform(self, instance: Instance, solution: Solution) -> Solution | None:
        """The same cuts with the option of that name for every unit."""
        names = [(place, name) for place, each in enumerate(instance.configurations) for name in _common(each)]
        place, name = names[solution.configuration]
        configuration = instance.configurations[place]
        choice = []
        for x, (first, last) in enumerate(solution.spans()):
            for l in range(first, last + 1):
                options = instance.table(configuration, x, l).options
                choice.append(next(s for s, option in enumerate(options) if option.name == name))
        return Solution(place, solution.cuts, tuple(choice))

    def plan(self, instance: Instance, solution: Solution, request: Request) -> Plan:
        """The plan of a solution. Raises InputError where no model is described."""
        model = request.described_model
        if not model:
            problem, fix = "is missing", "give it: the profile describes no model that can be planned"
            raise InputError("command line", "--model", problem, fix)
        configuration = instance.configurations[solution.configuration]
        schedule, sites = configuration.schedule, configuration.sites
        begins = [sum(site.size for site in sites[:index]) for index in range(len(sites))]
        stages, chosen = [], list[Option]()
        for x, (first, last) in enumerate(solution.spans()):
            begin, units = begins[x % len(sites)], instance.units
            ranks = list(range(begin, begin + configuration.site(x).size))
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
        planned = [_planned(unit.name, option) for unit, option in zip(model.units, chosen, strict=True)]
        products = request.options.get(PRECISION.name, PRECISION.default)
        planned = [
            each.changed(precision=products) if unit.kind in LAYERED else each
            for unit, each in zip(model.units, planned, strict=True)
        ]
        return Plan(
            model=model.shape(),
            model_digest=model.digest,
            world=sum(site.size for site in sites),
            memory_bytes=request.with_margin(0).limit_bytes,
            batch=Batch(global_samples=instance.batch, micro_batches=configuration.micro_batches),
            schedule=schedule.planned,
            sliced=schedule.sliced,
            stages=stages,
            units=planned,
            **kept,
        )

    def incumbent_of(self, instance: Instance, plan: Plan) -> Solution | None:
        """The solution of an instance that a plan stands for; None where there is none."""
        return incumbent_of(instance, plan)

    # Brute force

    def count(self, instance: Instance) -> int:
        """The number of cuts and choices in all configurations."""
        return solution_count(instance)

    def solutions(self, instance: Instance) -> Iterator[Solution | None]:
        """Every solution that fits and takes less time than those before it; None to look at the clock."""
        return improving(instance)

    # Models

    def parts(self, instance: Instance, out_of_time: Callable[[], bool]) -> list[Part]:
        """One for each configuration. Raises Unsuited where models of all of them are too large to be solved."""

        def lift(place: int) -> Callable[[Solution], Solution]:
            return lambda solution: replace(solution, configuration=place)

        def lower(place: int) -> Callable[[Solution], Solution | None]:
            return lambda solution: replace(solution, configuration=0) if solution.configuration == place else None

        indices = range(len(instance.configurations))
        if (variables := binary_variables(instance)) > MOST_VARIABLES:
            problem = f"builds models of {variables:,} binary variables here, of at most {MOST_VARIABLES:,}"
            fix = (
                "give exact, which proves the same problem, or --like galvatron-bmw with this method, whose models are smaller"
            )
            raise Unsuited("command line", "--method", problem, fix)
        return [Part(part := instance.only([place]), least_ns(part), lift(place), lower(place)) for place in indices]

    def start(self, instance: Instance, solution: Solution) -> set[str]:
        """x, by unit, stage and option; of the last unit, that with a table of both ends as one parameter where it is one."""
        indices = [(l, x, solution.choice[l]) for x, (a, b) in enumerate(solution.spans()) for l in range(a, b + 1)]
        configuration = instance.configurations[solution.configuration]
        if table_once(configuration, solution.choice):
            l, x, s = indices[-1]
            indices[-1] = l, x, s + len(instance.table(configuration, x, l).options)
        return {f"x[{l},{x},{s}]" for l, x, s in indices}

    # For people

    def size(self, instance: Instance) -> dict[str, int]:
        """Units, configurations, devices, and the memory of one device."""
        sizes = {"units": instance.length, "configurations": len(instance.configurations), "devices": instance.devices}
        limit = self.memory_bytes(instance)
        return sizes if limit is None else sizes | {"memory_bytes": limit}

    def tables(self, instance: Instance, solution: Solution) -> list[Table]:
        """The stages, and in each the options of its units, runs of equal ones as one row."""
        configuration, rows = instance.configurations[solution.configuration], []
        evaluation = home.evaluate(instance, solution)
        for x, stage in enumerate(evaluation.stages):
            times, site = stage.times, x % len(configuration.sites)
            first = sum(each.size for each in configuration.sites[:site])
            cells: tuple[str, ...] = (
                str(x),
                span(str(first), str(first + configuration.sites[site].size - 1)),
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
        memory = "memory at least" if instance.provenance.get(MEMORY_TABLES.name) == "least" else "memory (solver)"
        columns = ("stage", "sub-layers", "count", "strategy", "ranks", "in flight", "forward", "backward", memory)
        return [Table(title, columns, tuple(rows))]


STEP_NAMES = {"simulated": "simulated step", "eq8": "Eq. 8", "eq5": "Eq. 5", "eq4": "Eq. 4"}


def _setting(configuration: Configuration) -> tuple[Any, ...]:
    """What a configuration fixes."""
    return (
        configuration.schedule,
        configuration.micro_batches,
        configuration.sites,
        configuration.links,
        configuration.cuts,
    )


def _planned(name: str, option: Option) -> PlannedUnit:
    """A unit of a plan under an option."""
    assert option.strategy is not None
    unit, states = planned_unit(name, option.strategy), dict[str, Any]()
    if not option.host:
        return unit
    if "optimizer" in option.host:
        states = {"gradients": "host", "optimizer": "host", "parameters": "host" if "parameters" in option.host else "device"}
    hidden = unit.activations.changed(hidden="host" if "hidden" in option.host else "device")
    return unit.changed(states=unit.states.changed(**states), activations=hidden, order=Order())


def _shares_bus(request: Request) -> bool:
    """Whether copies to the host and collectives go through one bus, as far as that is known."""
    profile = request.profile or next(iter(request.obtained), None)
    return profile is not None and profile.host is not None and profile.host.shares_bus


def host_part_bytes(cluster: Cluster | None) -> int | None:
    """What one device has of its host's memory, on the smallest host for its devices; None where that is not described."""
    nodes = [] if cluster is None else cluster.nodes
    if any(node.host is None for node in nodes) and not any(node.host for node in nodes):
        return None
    return min((node.host.memory_bytes // node.devices for node in nodes if node.host), default=None)


def build(request: Request, space: Space) -> Instance:
    """The instance of a request in a space. Raises InputError."""
    devices, samples = request.origin.devices, request.samples
    (cp, exchange), *others = cp_choices(request.options)
    if others:
        first = {CP.name: str(cp), CP_EXCHANGE.name: exchange}
        parameter, what = (CP, "degree") if "," in request.options[CP.name] else (CP_EXCHANGE, "exchange")
        fix = f"give one {what} for an instance, such as {first[parameter.name]}"
        raise InputError("command line", parameter.flag, f"is {request.options[parameter.name]}", fix)
    if space.host and cost_model_of(request) != COST_MODEL and request.precision.gradients != "model":
        problem = f"is {request.precision.gradients}, with states on the host, which are in the model's dtype"
        raise InputError("command line", GRADIENTS.flag, problem, "give model, or leave --host out")
    numbers = divisors(samples) if space.micro_batches is None else list(space.micro_batches)
    if wrong := [count for count in numbers if count < 1 or samples % count]:
        problem = f"is {samples} in {wrong[0]} micro-batches"
        raise InputError("command line", "--batch", problem, "give a multiple of --micro-batches")
    possible = divisors(devices)
    if space.depths is not None:
        if not (asked := [depth for depth in possible if depth in space.depths]):
            fix = f"give one of: {', '.join(map(str, possible))}"
            raise InputError("command line", "--pipeline", f"is {', '.join(map(str, space.depths))}", fix)
        possible = asked
    degrees = tp_degrees(request, max(devices // depth for depth in possible))
    groups = [devices // depth for depth in possible]
    sizes = {samples // m for m in numbers}
    sizes |= {size // 2 for size in sizes if size % 2 == 0 and space.most_sliced}
    if cost_model_of(request) == COST_MODEL:
        costs: JointCosts = streamed_costs(request, space, degrees, sorted(sizes), groups, cp, exchange)
        profile = costs.profile
    else:
        profile = request.profile_for(sorted(sizes), groups, degrees=degrees)
        costs = JointCosts(profile, space, degrees, request.precision)
    name = f"{profile.name} on {request.cluster_name}" + ("" if cp == 1 else f", cp{cp}{HEADS_WORD * (exchange == 'heads')}")
    if space.host and profile.described_model is not None:
        host_costs(profile)  # which says what is missing
    provenance = {
        "cluster": request.cluster_name,
        CP.name: str(cp),
        CP_EXCHANGE.name: exchange,
        OPTIMIZER.name: space.optimizer,
        MEMORY_TABLES.name: "least" if space.least_memory else "most",
    }
    host_bytes = host_part_bytes(request.cluster)
    return costs.instance(samples, request.limit_bytes, host_bytes=host_bytes, name=name, provenance=provenance)


def uniform(configuration: Configuration) -> list[Configuration]:
    """The configuration with one option for all units, once for each option that all of them have."""
    return [_with_option(configuration, name) for name in _common(configuration)]


def _common(configuration: Configuration) -> list[str]:
    tables = [table for each in configuration.tables for table in each.units]
    names = [option.name for option in tables[0].options]
    return [name for name in names if all(any(option.name == name for option in table.options) for table in tables)]


def _with_option(configuration: Configuration, name: str) -> Configuration:
    def kept(table: OptionTable) -> OptionTable:
        return table.keep([next(s for s, option in enumerate(table.options) if option.name == name)])

    tables = tuple(replace(each, units=tuple(map(kept, each.units))) for each in configuration.tables)
    tied = configuration.tied
    if tied is not None and tied.equal is not None and tied.once is not None:
        first, last = (
            [option.name for option in table.options].index(name) for table in (configuration.tables[0].units[0], tied.once)
        )
        tied = replace(tied, equal=tied.equal[[first]][:, [last]], once=kept(tied.once))
    return replace(configuration, make_tables=lambda: tables, make_tied=lambda: tied)


PROBLEM = Joint()
