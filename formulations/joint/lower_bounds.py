"""A bound of one configuration that needs no evidence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
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
    kinds = [configuration.tables[kind].units for kind in {site.kind for site in configuration.sites}]
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
    sites = len(configuration.sites)
    step = configuration.micro_batches * max(-(-sum(least) // sites), max(least))
    if configuration.cuts is not None and instance.step == "simulated" and not sliced:
        step = max(step, _filled_ns(configuration, least))
    return step + more


def _filled_ns(configuration: Configuration, least: Sequence[int]) -> int:
    """All passes of a site, and one micro-batch's of the stages before its first one. least: u by unit.

    Proof: the first forward pass on a site follows that of the same micro-batch in all stages before the site's first one, and
    its last backward pass is followed by these stages' backward passes.
    """
    assert configuration.cuts is not None
    sites, stages = len(configuration.sites), np.add.reduceat(np.array(least), [0, *configuration.cuts])
    passes = [configuration.micro_batches * int(stages[site::sites].sum()) for site in range(sites)]
    return max(int(stages[:site].sum()) + passes[site] for site in range(sites))
