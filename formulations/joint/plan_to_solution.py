"""A plan, whoever made it, as a solution of a joint instance, from which a search may start."""

from __future__ import annotations

from itertools import accumulate

from trainplan.formulations.joint.options import OPTIMIZER
from trainplan.formulations.joint.problem import Configuration, Instance, Solution
from trainplan.formulations.plan.plan import Plan


def solution_of_plan(instance: Instance, plan: Plan) -> Solution | None:
    """The solution of an instance that stands for a given plan, that is, which becomes a plan with the same programs. None if
    the instance has none: the plan is for another batch or optimizer, has stages, a schedule or strategies that the
    instance does not offer, runs on other devices, or keeps something on the host. instance: the configurations to choose
    from, with costs and memory limits.
    """
    batch, ends = plan.batch, [unit.last for unit in instance.units]
    if batch.global_samples != instance.batch or batch.shares or len(plan.units) != ends[-1] + 1 or plan.uses_host:
        return None
    if plan.optimizer != instance.provenance.get(OPTIMIZER.name, "adamw"):
        return None
    if plan.placement not in (None, list(range(plan.world))) or any(unit.precision != "model" for unit in plan.units):
        return None
    begins = {unit.first: l for l, unit in enumerate(instance.units)}
    cuts = tuple(begins.get(stage.first_unit, 0) for stage in plan.stages[1:])
    if 0 in cuts or any(not instance.cuttable[cut - 1] for cut in cuts):
        return None
    for index, configuration in enumerate(instance.configurations):
        choice = None
        if _has_shape_of(configuration, plan) and configuration.cuts in (None, cuts):
            choice = _choice(instance, configuration, plan, cuts)
        if choice is not None:
            return Solution(index, cuts, choice)
    return None


def _has_shape_of(configuration: Configuration, plan: Plan) -> bool:
    """Whether a plan has the stages, devices, schedule and number of micro-batches of a configuration. In a pipeline of one
    stage, the schedule does not matter. configuration: one schedule, number of micro-batches and division into device
    groups, with the costs of all options.
    """
    groups, schedule, begin = configuration.device_groups, configuration.schedule, [0]
    begin += accumulate(group.size for group in groups)
    ranks = [list(range(begin[x % len(groups)], begin[x % len(groups) + 1])) for x in range(configuration.stages)]
    if [stage.ranks for stage in plan.stages] != ranks or plan.batch.micro_batches != configuration.micro_batches:
        return False
    return len(ranks) == 1 or (schedule.planned, schedule.sliced) == (plan.schedule, plan.sliced)


def _choice(instance: Instance, configuration: Configuration, plan: Plan, cuts: tuple[int, ...]) -> tuple[int, ...] | None:
    """For every unit (sub-layer or layer), the index of the option with the plan's strategy and nothing on the host, if
    possible the same index for all units; None if some unit has no such option. cuts: the first unit of every stage but the
    first. instance: the configurations to choose from, with costs and memory limits. configuration: one schedule, number of
    micro-batches and division into device groups, with the costs of all options.
    """
    strategies, choices, x = plan.strategies(), list[list[int]](), 0
    for l, unit in enumerate(instance.units):
        x += l in cuts
        chosen = set(strategies[unit.first : unit.last + 1])
        options = instance.table(configuration, x, l).options
        indices = [s for s, option in enumerate(options) if not option.host and {option.strategy} == chosen]
        if not indices:
            return None
        choices.append(indices)
    common = set(choices[0]).intersection(*choices)
    return (min(common),) * len(choices) if common else tuple(indices[0] for indices in choices)
