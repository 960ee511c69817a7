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
    """One row: a weighted sum of bytes and its limit. factors: of columns, (L,) by name. entering, returning: (L,), of the
    messages over the boundary before each unit. most_bytes: the limit."""

    factors: Mapping[str, Floats]
    entering: Floats
    returning: Floats
    most_bytes: int


@dataclass(frozen=True, eq=False)
class Sizes:
    """The bytes of a choice: columns, (L,) by name, and one message in each direction over the boundary before each
    unit, (L,)."""

    columns: Mapping[str, Integers]
    entering: Integers
    returning: Integers

    @classmethod
    def of(cls, chain: Chain, choice: Choice) -> Sizes:
        """The bytes of a choice of a chain."""
        entering = chain.crossed(choice, [boundary.message_forward_bytes for boundary in chain.boundaries])
        returning = chain.crossed(choice, [boundary.message_backward_bytes for boundary in chain.boundaries])
        return cls({name: chain.column(name, choice) for name in COLUMNS}, entering, returning)

    def by_unit(self, row: Row) -> Floats:
        """(L,): the part of each unit, and the boundary before it, in a row."""
        total = row.entering * self.entering + row.returning * self.returning
        for name, factor in row.factors.items():
            total = total + factor * self.columns[name]
        return total


@dataclass(frozen=True, eq=False)
class DeviceGroupMemory:
    """The R rows of one device group, whose stages have U units. units: (U,), their indices. in_flight, kept, work: (R, U), the
    factors of those columns (`held` has the factors of in_flight, `state` has 1). entering, returning: (R, L), of messages.
    most_bytes: the limit."""

    units: Indices
    in_flight: Integers
    kept: Integers
    work: Integers
    entering: Integers
    returning: Integers
    most_bytes: int

    @classmethod
    def of(cls, chain: Chain, group: int, moments: Sequence[Moment], most_bytes: int) -> DeviceGroupMemory:
        """The rows of a device group of the chain's configuration at its moments."""
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
        """(R,): the bytes by which each row exceeds the memory, below 0 where it does not."""
        own = {name: sizes.columns[name][self.units] for name in (STATE, HELD, KEPT, WORK)}
        total = own[STATE].sum() + self.in_flight @ own[HELD] + self.kept @ own[KEPT] + self.work @ own[WORK]
        return total + self.entering @ sizes.entering + self.returning @ sizes.returning - self.most_bytes

    def factors(self, index: int) -> Integers:
        """(R, 3): the factors of the bytes that one unit holds, keeps and works in. index: of the unit among the
        group's units."""
        return np.stack([self.in_flight[:, index], self.kept[:, index], self.work[:, index]], axis=1)

    def more(self, index: int, state: int, held: int, kept: int, work: int) -> Integers:
        """(R,): by how much the rows rise when the columns of one unit rise by these bytes. index: of the unit among the
        group's units."""
        return state + held * self.in_flight[:, index] + kept * self.kept[:, index] + work * self.work[:, index]

    def row(self, number: int) -> Row:
        """One row, with factors for all units of the model."""
        length = self.entering.shape[1]
        factors = {}
        for name, values in ((STATE, np.ones(len(self.units))), (HELD, self.in_flight), (KEPT, self.kept), (WORK, self.work)):
            factors[name] = np.zeros(length)
            factors[name][self.units] = values if values.ndim == 1 else values[number]
        return Row(factors, self.entering[number].astype(float), self.returning[number].astype(float), self.most_bytes)

    @property
    def fullest(self) -> int:
        """The index of the row with the most micro-batches in flight."""
        return int(self.kept.sum(axis=1).argmax())


def group_memories(chain: Chain, most_bytes: int) -> list[DeviceGroupMemory]:
    """The rows of all device groups of a chain's configuration. most_bytes: the memory limit of a device."""
    configuration: Configuration = chain.configuration
    group_count = len(configuration.device_groups)
    by_group: list[list[Moment]] = [[] for _ in range(group_count)]
    for moment in moments_of(configuration):
        by_group[moment.counts[0][0] % group_count].append(moment)
    return [DeviceGroupMemory.of(chain, group, moments, most_bytes) for group, moments in enumerate(by_group)]


def host_row(chain: Chain, stage: int, most_bytes: int) -> Row:
    """The row of one stage's host. most_bytes: its limit."""
    nothing = np.zeros(chain.units)
    inside: NDArray[np.float64] = (chain.stage_of == stage).astype(float)
    return Row({HOST: inside}, nothing, nothing, most_bytes)
