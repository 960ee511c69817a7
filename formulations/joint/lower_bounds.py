"""A bound of one configuration that needs no evidence.

Bounds are in closed form, of any schedule of given stages, and of a configuration whatever the memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from trainplan.formulations.joint.evaluation import Evaluation
from trainplan.formulations.joint.problem import Configuration, Instance
from trainplan.formulations.joint.tables import OptionTable
from trainplan.formulations.numbers import Integers


def whole_ns(table: OptionTable, sliced: bool) -> Integers:
    """By option, both passes of a micro-batch, with halves of it where some are sliced and these take less."""
    if not sliced or table.halved is None:
        return table.forward_ns + table.backward_ns
    halves = table.halved.forward_ns.sum(axis=0)
    u: Integers = np.minimum(table.forward_ns, halves) + np.minimum(table.backward_ns, table.halved.backward_ns)
    return u


def closed_form_ns(instance: Instance, configuration: Configuration) -> int:
    """No plan of the configuration has a shorter step.

    Proof: some site runs m passes of an even share of the least u at least, or of the largest unit; stage 0 ends last, and then
    adds what its first unit adds at least. Where cuts are fixed, also `_filled_ns`.
    """
    kinds = [configuration.tables[kind].units for kind in {group.kind for group in configuration.device_groups}]
    sliced = configuration.schedule.sliced > 0
    by_kind = [min(int(whole_ns(table, sliced).min()) for table in tables) for tables in zip(*kinds, strict=True)]
    least = [by_kind[unit.kind] for unit in instance.units]
    firsts = [units[instance.units[0].kind] for units in kinds]
    more = min(int((first.last_ns + first.reduce_ns + first.optimizer_ns).min()) for first in firsts)
    if instance.step != "simulated":
        more = 0
    if configuration.tied is not None and (once := configuration.tied.once) is not None:
        least[-1] = min(least[-1], int(whole_ns(once, sliced).min()))
        if instance.length == 1:
            more = 0
    group_count = len(configuration.device_groups)
    step = configuration.micro_batches * max(-(-sum(least) // group_count), max(least))
    if configuration.cuts is not None and instance.step == "simulated" and not sliced:
        step = max(step, _filled_ns(configuration, least))
    return step + more


def _filled_ns(configuration: Configuration, least: Sequence[int]) -> int:
    """All passes of a site, and one micro-batch's of the stages before its first one. least: u by unit.

    Proof: the first forward pass on a site follows that of the same micro-batch in all stages before the site's first one, and
    its last backward pass is followed by these stages' backward passes.
    """
    assert configuration.cuts is not None
    group_count, stages = len(configuration.device_groups), np.add.reduceat(np.array(least), [0, *configuration.cuts])
    passes = [configuration.micro_batches * int(stages[group::group_count].sum()) for group in range(group_count)]
    return max(int(stages[:group].sum()) + passes[group] for group in range(group_count))


def any_schedule_ns(configuration: Configuration, evaluation: Evaluation) -> int:
    """No order of the passes of these stages with these options has a shorter step, whatever memory it needs: passes of whole
    micro-batches, unless the schedule slices some, with one thing at a time on each device.

    Proof: stage x begins no earlier than micro-batch 0's, or any one's, forward passes through the stages before it allow; then
    its devices run m passes each way; its last backward pass is followed by those of the same micro-batch on the stages before
    x and by what stage 0 adds at last, and by what stage x adds itself. Of chunks on one site, each alone, and all of their
    passes together. A table that both ends of the pipeline share is added up once on each of their sites, which may be one.
    """
    m, stages = configuration.micro_batches, [stage.times for stage in evaluation.stages]
    forward = [stage.forward_ns + stage.message_forward_ns for stage in stages]
    backward = [stage.backward_ns + stage.message_backward_ns for stage in stages]
    if configuration.schedule.sliced:  # whole or in halves, the cheaper of both
        halves = [stage.first_half_ns + stage.second_half_ns + 2 * stage.message_half_ns for stage in stages]
        forward = [min(pair) for pair in zip(forward, halves, strict=True)]
        backs = [stage.halved_backward_ns + stage.message_backward_ns for stage in stages]
        backward = [min(pair) for pair in zip(backward, backs, strict=True)]
    ends = [stage.reduce_ns + stage.optimizer_ns for stage in stages]
    ends[0] += evaluation.tied_ns
    if len(stages) > 1:
        ends[-1] += evaluation.tied_ns
    group_count, bounds = len(configuration.device_groups), []
    head = [0] if configuration.schedule.sliced else [sum(forward[:x]) for x in range(len(stages))]
    for x in range(len(stages)):
        begins = head[x] if x < len(head) else 0
        work = begins + m * (forward[x] + backward[x])
        bounds += [work + sum(backward[:x]) + ends[0], work + ends[x]]
    for group in range(group_count):
        mine = range(group, len(stages), group_count)
        begins = head[group] if group < len(head) else 0
        work = begins + sum(m * (forward[x] + backward[x]) for x in mine)
        tied_twice = evaluation.tied_ns if group_count == 1 < len(stages) else 0
        bounds += [work + sum(backward[:group]) + ends[0], work + sum(ends[x] for x in mine) - tied_twice]
    return max(bounds)


def least_ns(instance: Instance) -> int:
    """Of an instance of one configuration: every unit at its fastest, without links and ends of stages.

    A site works at least as long as an even share of all micro-batches, and as one unit's; one micro-batch passes all units.
    Under Eq. 8 and Eq. 5 the slowest stage counts for all micro-batches but one, and all stages for that one.
    """
    (configuration,) = instance.configurations
    least = [_least_ns(configuration, unit.kind, l == instance.length - 1) for l, unit in enumerate(instance.units)]
    m, whole = configuration.micro_batches, sum(least)
    if instance.step == "simulated":
        return max(-(-m * whole // len(configuration.device_groups)), m * max(least), whole)
    return (m - 1) * max(-(-whole // configuration.stages), max(least)) + whole


def _least_ns(configuration: Configuration, kind: int, last: bool) -> int:
    """One micro-batch in both passes of a kind of unit. last: whether it is the last one, which may share a table."""
    tables = [group_tables.units[kind] for group_tables in configuration.tables]
    if last and configuration.tied is not None and configuration.tied.once is not None:
        tables.append(configuration.tied.once)
    return min(_passes_ns(table) for table in tables)


def _passes_ns(table: OptionTable) -> int:
    forward, backward = table.forward_ns, table.backward_ns
    if table.halved is not None:
        forward = np.minimum(forward, table.halved.forward_ns.sum(axis=0))
        backward = np.minimum(backward, table.halved.backward_ns)
    return int((forward + backward).min())
