"""A lower bound of a configuration in closed form, and whether its model states fit."""

from __future__ import annotations

import numpy as np
from trainplan.formulations.joint.lower_bounds import closed_form_ns, whole_ns
from trainplan.formulations.joint.problem import Configuration, Instance
from trainplan.solvers.joint.stages.option_tables import Floats


def least_u_ns(instance: Instance, configuration: Configuration) -> Floats:
    """For each of the L units (sub-layers), (L,): the least time in ns of forward plus backward pass of a micro-batch over all
    of its options, ignoring memory.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from. configuration: gives the tables of options.
    """
    tables, sliced = configuration.tables[configuration.device_groups[0].kind], configuration.schedule.sliced > 0
    by_kind = [float(whole_ns(table, sliced).min()) for table in tables.units]
    least = np.array([by_kind[unit.kind] for unit in instance.units])
    if configuration.tied is not None and (once := configuration.tied.once) is not None:
        least[-1] = min(least[-1], float((once.forward_ns + once.backward_ns).min()))
    return least


def quick_bound_ns(instance: Instance, configuration: Configuration) -> float:
    """A lower bound in ns on the step time of every plan of a configuration (number of stages and micro-batches, with a
    schedule), in closed form, ignoring memory.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from. configuration: the one to bound.

    Proof: let u be the forward plus backward pass of a micro-batch in a unit (sub-layer), U the sum over units of their least
    u, P the number of device groups, m the micro-batches, and t the largest u of a device group (of all of its chunks), which
    is busy for m t: t is at least an even share of U, and at least the largest unit. Of 1F1B in whole passes, also H + (m - w)
    t + S + w t / 2 by `critical_path_bounds.one_f_one_b_ns`, where H and S are the u of the groups before and after, H + S = U
    - t, and w <= P - 1 groups come after; of GPipe H + S + m t. After its last pass the first device group adds at least the
    work at the end of its first unit. If cuts are fixed, also `formulations.joint.lower_bounds.closed_form_ns`."""
    least, m = least_u_ns(instance, configuration), configuration.micro_batches
    group_count, schedule = len(configuration.device_groups), configuration.schedule
    total = float(least.sum())
    largest = max(total / group_count, float(least.max()))
    bound, w = m * largest, group_count - 1
    if schedule.name == "gpipe":
        bound = max(bound, total + (m - 1) * largest)
    elif schedule.name == "1f1b" and not schedule.sliced and w < m and m - 1 - w / 2 >= 0:
        bound = max(bound, total + (m - 1 - w / 2) * largest)
    first = configuration.tables[configuration.device_groups[0].kind].units[instance.units[0].kind]
    quick = float(np.ceil(bound * (1 - 1e-12))) + int((first.last_ns + first.end_ns).min())
    return quick if configuration.cuts is None else max(quick, float(closed_form_ns(instance, configuration)))


def holds_states(instance: Instance, configuration: Configuration) -> bool:
    """Whether all device groups together have enough memory for the least model states of all units (sub-layers); if not, no
    plan of the configuration (number of stages and micro-batches, with a schedule) fits.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from. configuration: the one to test."""
    return least_states(instance, configuration) <= sum(instance.limit_bytes(group) for group in configuration.device_groups)


def least_states(instance: Instance, configuration: Configuration) -> int:
    """The least bytes of model states of all units (sub-layers) together, each unit with its leanest option on one device of
    one device group.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from. configuration: gives the tables of options."""
    tables, tied = configuration.tables, configuration.tied
    by_kind = [min(int(table.units[kind].state_bytes.min()) for table in tables) for kind in range(len(tables[0].units))]
    least = [by_kind[unit.kind] for unit in instance.units]
    if tied is not None and tied.once is not None:
        least[-1] = min(least[-1], int(tied.once.state_bytes.min()))
    return sum(least)
