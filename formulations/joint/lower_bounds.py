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
    """(S,): for each of the S options of a unit (sub-layer or layer), the time in ns of both passes of a micro-batch. sliced:
    whether some micro-batches run in two halves; then each pass counts as a whole or as two halves, whichever is cheaper."""
    if not sliced or table.halved is None:
        return table.forward_ns + table.backward_ns
    halves = table.halved.forward_ns.sum(axis=0)
    u: Integers = np.minimum(table.forward_ns, halves) + np.minimum(table.backward_ns, table.halved.backward_ns)
    return u


def closed_form_ns(instance: Instance, configuration: Configuration) -> int:
    """A lower bound in ns of the step of every plan of a configuration (schedule, number of micro-batches and device groups),
    whatever the memory. A unit is a sub-layer or layer that has one option.

    Proof: some device group runs the passes of all micro-batches for at least an even share of the sum of the units' least
    times, or for the largest of these times. Stage 0 ends last, and then adds at least the reduction and the optimizer of its
    first unit. Where cuts are fixed and no micro-batch is sliced, the time of the passes is also at least this, for every
    device group: all of its passes, and the passes of one micro-batch in the stages before the group's first stage. instance:
    the configurations to choose from, with costs and memory limits."""
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
    """A lower bound in ns of the step of a configuration (schedule, number of micro-batches and device groups) whose stages are
    fixed: for some device group, all of its passes, and the passes of one micro-batch in the stages before the group's first
    stage. least: for every unit (sub-layer or layer), the least time in ns of both passes of a micro-batch.

    Proof: the first forward pass on a device group follows those of the same micro-batch in all stages before the group's first
    one, and its last backward pass is followed by these stages' backward passes.
    """
    assert configuration.cuts is not None
    group_count, stages = len(configuration.device_groups), np.add.reduceat(np.array(least), [0, *configuration.cuts])
    passes = [configuration.micro_batches * int(stages[group::group_count].sum()) for group in range(group_count)]
    return max(int(stages[:group].sum()) + passes[group] for group in range(group_count))


def any_schedule_ns(configuration: Configuration, evaluation: Evaluation) -> int:
    """A lower bound in ns on the step of given stages and options under any order of their passes, whatever memory the order
    needs. Passes are of whole micro-batches, unless the schedule slices some; a device does one thing at a time.
    evaluation: the costs of a solution, with the times of its stages.

    Proof: stage x begins after some micro-batch's forward passes through the stages before it; then its devices run m
    passes in each direction, m being the number of micro-batches. Its last backward pass is followed by the same
    micro-batch's backward passes on the stages before x and by the work at the end of stage 0, and also by the work at the
    end of stage x. This holds for each single stage of a device group, and for all stages of the group taken together. A
    weight table that the first and the last stage share has its gradients summed on the device groups of both, which may be
    one group. configuration: one schedule, number of micro-batches and division into device groups, with the costs of all
    options.
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
    """A lower bound in ns of the step of an instance with one configuration (schedule, number of micro-batches and device
    groups), from each unit's (sub-layer's or layer's) least time over all options, without boundaries.

    A device group works at least as long as an even share of all micro-batches' times, and as all micro-batches of one
    unit; and one micro-batch passes all units. Under the papers' formulas Eq. 8, Eq. 5 and Eq. 4 the slowest stage counts
    for all micro-batches but one, and all stages count for one.
    """
    (configuration,) = instance.configurations
    least = [_least_ns(configuration, unit.kind, l == instance.length - 1) for l, unit in enumerate(instance.units)]
    m, whole = configuration.micro_batches, sum(least)
    if instance.step == "simulated":
        return max(-(-m * whole // len(configuration.device_groups)), m * max(least), whole)
    return (m - 1) * max(-(-whole // configuration.stages), max(least)) + whole


def _least_ns(configuration: Configuration, kind: int, last: bool) -> int:
    """The least time in ns of both passes of a micro-batch in one kind of unit (sub-layer or layer), over all options and all
    kinds of device group. kind: the number of the kind of unit; units of one kind have equal costs. last: whether the unit is
    the model's last, which may have further options with a weight table that it shares with the embedding. configuration: one
    schedule, number of micro-batches and division into device groups, with the costs of all options.
    """
    tables = [group_tables.units[kind] for group_tables in configuration.tables]
    if last and configuration.tied is not None and configuration.tied.once is not None:
        tables.append(configuration.tied.once)
    return min(_passes_ns(table) for table in tables)


def _passes_ns(table: OptionTable) -> int:
    """The least time in ns of both passes of a micro-batch over all options of a table, whole or in two halves if the table has
    halves."""
    forward, backward = table.forward_ns, table.backward_ns
    if table.halved is not None:
        forward = np.minimum(forward, table.halved.forward_ns.sum(axis=0))
        backward = np.minimum(backward, table.halved.backward_ns)
    return int((forward + backward).min())
