"""The bytes that each device group holds at every moment of its order, as rows that are linear in its units' columns.

At a moment a device group has n_x micro-batches of each of its stages x in flight; while a unit l of the stage y runs, it holds

    sum state + sum_x n_x sum (held + kept) - sum_y kept + sum_{k <= l of y} kept_k + work_l + messages that wait,

for every l: the largest of these is the group's peak (see `formulations.joint.stage_memory`). The bytes on a host are the sum
over one stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from trainplan.formulations.joint.problem import Configuration
from trainplan.formulations.joint.stage_memory import Moment, moments_of
from trainplan.formulations.numbers import Integers
from trainplan.solvers.joint.fixed_cuts.priced_chain import Chain, Choice
from trainplan.solvers.joint.stages.option_tables import Floats, Indices

COLUMNS = ("state_bytes", "held_bytes", "kept_bytes", "work_bytes", "host_bytes")
STATE, HELD, KEPT, WORK, HOST = COLUMNS


@dataclass(frozen=True, eq=False)
class Row:
    """A linear expression of the bytes of all L units (sub-layers) and its limit: the memory of a device group at one moment,
    or of a stage's host. factors: a dict from the name of a kind of bytes (such as kept_bytes) to (L,), the factor by which
    each unit's bytes of that kind count. entering, returning: (L,), the factors of the messages, forward and backward, over the
    boundary before each unit. most_bytes: the limit."""

    factors: Mapping[str, Floats]
    entering: Floats
    returning: Floats
    most_bytes: int


@dataclass(frozen=True, eq=False)
class Sizes:
    """The bytes of a choice of options for the L units (sub-layers) of a model. columns: a dict from the name of a kind of
    bytes (such as kept_bytes) to (L,), the bytes of each unit. entering, returning: (L,), the bytes of one message, forward and
    backward, over the boundary before each unit."""

    columns: Mapping[str, Integers]
    entering: Integers
    returning: Integers

    @classmethod
    def of(cls, chain: Chain, choice: Choice) -> Sizes:
        """Compute the bytes that a choice of options needs, of every unit and of every message. chain: the units of the
        configuration. choice: (L,), the option of each unit."""
        entering = chain.crossed(choice, [boundary.message_forward_bytes for boundary in chain.boundaries])
        returning = chain.crossed(choice, [boundary.message_backward_bytes for boundary in chain.boundaries])
        return cls({name: chain.column(name, choice) for name in COLUMNS}, entering, returning)

    def by_unit(self, row: Row) -> Floats:
        """The contribution of each unit, with the boundary before it, to a memory row's weighted sum of bytes: (L,). row: a
        linear expression of the units' bytes and messages, by its factors."""
        total = row.entering * self.entering + row.returning * self.returning
        for name, factor in row.factors.items():
            total = total + factor * self.columns[name]
        return total


@dataclass(frozen=True, eq=False)
class DeviceGroupMemory:
    """The memory of one device group at the R fullest moments of its order of passes, each a linear expression (a row) of the
    bytes of the U units (sub-layers) of its stages.

    units: (U,), their indices in the model. in_flight, kept, work: (R, U), for each moment the number of micro-batches of a
    unit in flight, the number for which it keeps activations, and whether its pass runs. entering, returning: (R, L), the
    numbers of messages, forward and backward, that wait at the boundary before each of the model's L units. most_bytes: the
    memory limit of a device."""

    units: Indices
    in_flight: Integers
    kept: Integers
    work: Integers
    entering: Integers
    returning: Integers
    most_bytes: int

    @classmethod
    def of(cls, chain: Chain, group: int, moments: Sequence[Moment], most_bytes: int) -> DeviceGroupMemory:
        """The memory of one device group at the given moments of its order of passes, as linear expressions of the units'
        bytes. moments: the moments to count, each with the pass that runs and the micro-batches in flight. chain: the units of
        the configuration. group: the index of the device group. most_bytes: the memory limit of a device."""
        own = np.flatnonzero(chain.stage_of % len(chain.configuration.device_groups) == group)
        stage_of, rows = chain.stage_of[own], list[tuple[Integers, ...]]()
        for moment in moments:
            counts = dict(moment.counts)
            in_flight = np.array([counts[int(x)] for x in stage_of], np.int64)
            messages = np.zeros((2, chain.units), np.int64)
            for (kind, x), n in moment.messages:
                messages[int(kind == "backward"), chain.starts[x]] += n
            running = [-1] if moment.stage is None else np.flatnonzero(stage_of == moment.stage).tolist()
            for unit in running:
                kept, work = in_flight.copy(), np.zeros(len(own), np.int64)
                if unit >= 0:
                    work[unit] = 1
                    kept -= (stage_of == moment.stage) & (np.arange(len(own)) > unit)
                rows.append((in_flight, kept, work, *messages))
        in_flights, kepts, works, entering, returning = (np.stack(column) for column in zip(*rows, strict=True))
        return cls(own, in_flights, kepts, works, entering, returning, most_bytes)

    def excess(self, sizes: Sizes) -> Integers:
        """The bytes by which the group's memory exceeds its limit at each moment, (R,); negative if it fits. sizes: the bytes
        of a choice of options."""
        own = {name: sizes.columns[name][self.units] for name in (STATE, HELD, KEPT, WORK)}
        total = own[STATE].sum() + self.in_flight @ own[HELD] + self.kept @ own[KEPT] + self.work @ own[WORK]
        return total + self.entering @ sizes.entering + self.returning @ sizes.returning - self.most_bytes

    def factors(self, index: int) -> Integers:
        """How many times one unit's bytes count at each moment: (R, 3), for the bytes held while a micro-batch is in flight,
        the bytes kept until its backward pass, and the work bytes of a running pass. index: the unit's index among the group's
        units."""
        return np.stack([self.in_flight[:, index], self.kept[:, index], self.work[:, index]], axis=1)

    def more(self, index: int, state: int, held: int, kept: int, work: int) -> Integers:
        """The bytes by which the group's memory rises at each moment, (R,), if one unit needs more bytes, for instance under
        another option. index: the unit's index among the group's units. state: additional bytes held during the whole step.
        held: while a micro-batch is in flight. kept: until its backward pass. work: while the unit's pass runs."""
        return state + held * self.in_flight[:, index] + kept * self.kept[:, index] + work * self.work[:, index]

    def row(self, number: int) -> Row:
        """The group's memory at one moment as a linear row with factors for all units of the model. number: the moment's index,
        0 to R - 1."""
        length = self.entering.shape[1]
        factors = {}
        for name, values in ((STATE, np.ones(len(self.units))), (HELD, self.in_flight), (KEPT, self.kept), (WORK, self.work)):
            factors[name] = np.zeros(length)
            factors[name][self.units] = values if values.ndim == 1 else values[number]
        return Row(factors, self.entering[number].astype(float), self.returning[number].astype(float), self.most_bytes)

    @property
    def fullest(self) -> int:
        """The index of the moment at which the group keeps activations of most micro-batches, summed over its units."""
        return int(self.kept.sum(axis=1).argmax())


def group_memories(chain: Chain, most_bytes: int) -> list[DeviceGroupMemory]:
    """The memory of every device group of a configuration (number of stages and micro-batches, with a schedule) at its fullest
    moments, as linear expressions of its units' bytes, in the order of the groups. chain: the units (sub-layers) of the
    configuration with fixed cuts. most_bytes: the memory limit of a device."""
    configuration: Configuration = chain.configuration
    group_count = len(configuration.device_groups)
    by_group: list[list[Moment]] = [[] for _ in range(group_count)]
    for moment in moments_of(configuration):
        by_group[moment.counts[0][0] % group_count].append(moment)
    return [DeviceGroupMemory.of(chain, group, moments, most_bytes) for group, moments in enumerate(by_group)]


def host_row(chain: Chain, stage: int, most_bytes: int) -> Row:
    """The linear row of the host memory of one stage: the sum of its units' host bytes. chain: the units (sub-layers) of the
    configuration (number of stages and micro-batches, with a schedule). most_bytes: the limit of the host's share."""
    nothing = np.zeros(chain.units)
    inside: NDArray[np.float64] = (chain.stage_of == stage).astype(float)
    return Row({HOST: inside}, nothing, nothing, most_bytes)
