"""Lower bounds of the step in closed form, which need no search and no certificate.

Symbols: m micro-batches; u the least time of both passes of a micro-batch in a unit; p stages. Every function states its proof.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from trainplan.formulations.joint.evaluation import Evaluation
from trainplan.formulations.joint.problem import Configuration, Instance
from trainplan.formulations.joint.tables import OptionTable
from trainplan.formulations.numbers import Integers


def whole_ns(table: OptionTable, sliced: bool) -> Integers:
    """For each option, u in ns: both passes of a micro-batch; where some micro-batches are sliced, the cheaper of whole and
    halves."""
    if not sliced or table.halved is None:
        return table.forward_ns + table.backward_ns
    halves = table.halved.forward_ns.sum(axis=0)
    u: Integers = np.minimum(table.forward_ns, halves) + np.minimum(table.backward_ns, table.halved.backward_ns)
    return u


def closed_form_ns(instance: Instance, configuration: Configuration) -> int:
    """A lower bound in ns of the step of every plan of a configuration, whatever the memory.

    Proof: some device group runs m passes of at least an even share of the sum of u, or of the largest u of one unit. Stage 0
    ends last, and then adds at least the reduction and the optimizer of its first unit. Where cuts are fixed, see also
    `_filled_ns`.
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
    """A lower bound in ns of the step with fixed cuts: all passes of a device group, and those of one micro-batch in the stages
    before its first one. least: u of every unit.

    Proof: the first forward pass on a device group follows those of the same micro-batch in all stages before the group's first
    one, and its last backward pass is followed by these stages' backward passes.
    """
    assert configuration.cuts is not None
    group_count, stages = len(configuration.device_groups), np.add.reduceat(np.array(least), [0, *configuration.cuts])
    passes = [configuration.micro_batches * int(stages[group::group_count].sum()) for group in range(group_count)]
    return max(int(stages[:group].sum()) + passes[group] for group in range(group_count))


def any_schedule_ns(configuration: Configuration, evaluation: Evaluation) -> int:
    """A lower bound in ns of the step of these stages with these options under any order of their passes, whatever memory it
    needs. Passes are of whole micro-batches, unless the schedule slices some; a device does one thing at a time.

    Proof: stage x begins after some micro-batch's forward passes through the stages before it; then its devices run m passes
    each way; its last backward pass is followed by those of the same micro-batch on the stages before x and by the work at the
    end of stage 0, and by the work at the end of stage x. This holds for each of several chunks of a device group, and for all
    of their passes together. A table that both ends of the pipeline share is summed once on each of their groups, which may be
    one group.
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
    """A lower bound in ns of the step of an instance with one configuration: every unit at its fastest, without boundaries.

    A device group works at least as long as an even share of all micro-batches, and as all micro-batches of one unit; and one
    micro-batch passes all units. Under Eq. 8 and Eq. 5 the slowest stage counts for all micro-batches but one, and all stages
    for that one.
    """
    (configuration,) = instance.configurations
    least = [_least_ns(configuration, unit.kind, l == instance.length - 1) for l, unit in enumerate(instance.units)]
    m, whole = configuration.micro_batches, sum(least)
    if instance.step == "simulated":
        return max(-(-m * whole // len(configuration.device_groups)), m * max(least), whole)
    return (m - 1) * max(-(-whole // configuration.stages), max(least)) + whole


def _least_ns(configuration: Configuration, kind: int, last: bool) -> int:
    """The least time in ns of both passes of a micro-batch in a kind of unit. last: whether the unit is the model's last, which
    may share a table."""
    tables = [group_tables.units[kind] for group_tables in configuration.tables]
    if last and configuration.tied is not None and configuration.tied.once is not None:
        tables.append(configuration.tied.once)
    return min(_passes_ns(table) for table in tables)


def _passes_ns(table: OptionTable) -> int:
    """The least time in ns of both passes of a micro-batch over all options of a table, whole or in halves."""
    forward, backward = table.forward_ns, table.backward_ns
    if table.halved is not None:
        forward = np.minimum(forward, table.halved.forward_ns.sum(axis=0))
        backward = np.minimum(backward, table.halved.backward_ns)
    return int((forward + backward).min())
