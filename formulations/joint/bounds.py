"""A time that no solution of a configuration beats, whatever the memory, at once."""

from __future__ import annotations

import numpy as np
from trainplan.formulations.joint.problem import Configuration, Instance
from trainplan.formulations.joint.tables import OptionTable


def least_ns(instance: Instance) -> int:
    """Of an instance of one configuration: every unit at its fastest, without links and ends of stages.

    A site works at least as long as an even share of all micro-batches, and as one unit's; one micro-batch passes all units.
    Under Eq. 8 and Eq. 5 the slowest stage counts for all micro-batches but one, and all stages for that one.
    """
    (configuration,) = instance.configurations
    least = [_least_ns(configuration, unit.kind, l == instance.length - 1) for l, unit in enumerate(instance.units)]
    m, whole = configuration.micro_batches, sum(least)
    if instance.step == "simulated":
        return max(-(-m * whole // len(configuration.sites)), m * max(least), whole)
    return (m - 1) * max(-(-whole // configuration.stages), max(least)) + whole


def _least_ns(configuration: Configuration, kind: int, last: bool) -> int:
    """One micro-batch in both passes of a kind of unit. last: whether it is the last one, which may share a table."""
    tables = [each.units[kind] for each in configuration.tables]
    if last and configuration.tied is not None and configuration.tied.once is not None:
        tables.append(configuration.tied.once)
    return min(_passes_ns(table) for table in tables)


def _passes_ns(table: OptionTable) -> int:
    forward, backward = table.forward_ns, table.backward_ns
    if table.halved is not None:
        forward = np.minimum(forward, table.halved.forward_ns.sum(axis=0))
        backward = np.minimum(backward, table.halved.backward_ns)
    return int((forward + backward).min())
