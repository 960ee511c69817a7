"""Steps and memory of many solutions at once, as arrays: the numbers of `evaluation.evaluate`, computed faster.

All solutions of a batch have one configuration and the same cuts, and differ in the options of units. Only schedules of whole
micro-batches with one stage on every device group are supported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from trainplan.formulations.joint.problem import Configuration, Instance
from trainplan.formulations.joint.tables import FORBIDDEN, OptionTable
from trainplan.formulations.numbers import Integers
from trainplan.formulations.schedule.stage_memory import stage_peak
from trainplan.formulations.schedule.vectorised import pass_ends_ns

SUMMED = ("forward_ns", "backward_ns", "last_ns", "reduce_ns", "optimizer_ns")


def supports_batching(configuration: Configuration) -> bool:
    """Whether `ChoiceBatch` can evaluate many choices of a configuration (schedule, number of micro-batches and device groups)
    at once: whole micro-batches, one stage on each device group, and no common reduction of all gradients of a stage."""
    return configuration.schedule.has_closed_forms and configuration.reduction is None


@dataclass(frozen=True, eq=False)
class ChoiceBatch:
    """N choices of options, evaluated at once for one configuration (schedule, number of micro-batches and device groups) with
    given cuts. An option is one way to run a unit (a sub-layer, or a layer).

    cuts: the first unit of every stage but the first. choices: (N, L), for each choice the index of the option of each of
    the L units. A weight table that embedding and head share is, depending on their options, either one parameter, or two
    parameters whose gradients are summed.
    """

    instance: Instance
    configuration: Configuration
    cuts: tuple[int, ...]
    choices: Integers

    def steps_ns(self) -> tuple[Integers, NDArray[np.bool_]]:
        """Two arrays (N,): the step in ns of every choice, and whether it is feasible: neighbouring options agree and memory
        suffices. The step of an infeasible choice means nothing."""
        instance, configuration, choices = self.instance, self.configuration, self.choices
        edges, count = (0, *self.cuts, instance.length), len(choices)
        once = self._is_tied_once()
        times = {name: np.zeros((configuration.stages, count), np.int64) for name in (*SUMMED, "sent", "returned")}
        fits = np.ones(count, bool)
        for x in range(configuration.stages):
            first, end = edges[x], edges[x + 1]
            for name in SUMMED:
                times[name][x] = sum(self._column(name, l, x, once) for l in range(first, end))
            times["forward_ns"][x] += self._column("head_ns", first, x, once)
            times["backward_ns"][x] += self._column("turn_ns", end - 1, x, once) + self._column("tail_ns", first, x, once)
            fits &= self._fits(x, range(first, end), once)
        for x in range(configuration.stages):
            for l in range(max(1, edges[x]), edges[x + 1]):
                fits &= self._cross(times, l, x, l == edges[x])
        return self._aggregated(times, once), fits

    def _is_tied_once(self) -> NDArray[np.bool_]:
        """(N,): for each choice, whether the weight table that embedding and head share is one parameter, so that no gradients
        have to be summed between both.
        """
        tied = self.configuration.tied
        if tied is None or tied.equal is None:
            return np.zeros(len(self.choices), bool)
        return np.asarray(tied.equal)[self.choices[:, 0], self.choices[:, -1]].astype(bool)

    def _column(self, name: str, unit: int, stage: int, once: NDArray[np.bool_]) -> Integers:
        """(N,): one number of the option that each choice gives to a unit in a stage, such as its forward time.

        name: the number's column in the table of options, such as `forward_ns`. once: (N,), for each choice, whether the
        weight table that embedding and head share is one parameter.
        """
        values = getattr(self._table(unit, stage), name)[self.choices[:, unit]]
        tied = self.configuration.tied
        if unit == self.instance.length - 1 and once.any() and tied is not None and tied.once is not None:
            values = np.where(once, getattr(tied.once, name)[self.choices[:, unit]], values)
        return values

    def _table(self, unit: int, stage: int) -> OptionTable:
        """The options of a unit in a stage, with their costs."""
        return self.instance.table(self.configuration, stage, unit)

    def _fits(self, stage: int, units: Sequence[int], once: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(N,): for each choice, whether the units of a stage fit into the memory of its devices and of their hosts. units: the
        indices of the stage's units. once: (N,), whether the weight table that embedding and head share is one parameter."""
        group = self.configuration.device_group(stage)

        def columns(name: str) -> Integers:
            return np.stack([self._column(name, l, stage, once) for l in units], axis=1)

        state, kept, work = (columns(name) for name in ("state_bytes", "kept_bytes", "work_bytes"))
        peaks, _ = stage_peak(state, kept, work, self.configuration.in_flight(stage), columns("held_bytes"))
        fits: NDArray[np.bool_] = peaks <= self.instance.limit_bytes(group)
        if (host_limit := self.instance.host_limit_bytes(group)) is not None:
            fits &= columns("host_bytes").sum(axis=1) <= host_limit
        return fits

    def _cross(self, times: dict[str, Integers], unit: int, stage: int, begins_stage: bool) -> NDArray[np.bool_]:
        """Add the times of the boundary before a unit (re-layout of hidden states or, where a stage begins, messages) to the
        times of the stages on both sides. Returns (N,): for each choice, whether the options on both sides may follow each
        other.

        times: for each name of a time of a stage, an array (stages, N) in ns, which is written to. begins_stage: whether
        the stage begins with the unit.
        """
        boundary = self.instance.boundary(self.configuration, stage, unit)
        before = self._table(unit - 1, stage - begins_stage).leave[self.choices[:, unit - 1]]
        pairs = before, self._table(unit, stage).enter[self.choices[:, unit]]
        there, back = boundary.relayout_forward_ns[pairs], boundary.relayout_backward_ns[pairs]
        agree: NDArray[np.bool_] = np.maximum(there, back) < FORBIDDEN
        if not begins_stage or boundary.relayout_at_cut:
            times["forward_ns"][stage] += np.where(agree, there, 0)
            times["backward_ns"][stage - begins_stage] += np.where(agree, back, 0)
        if begins_stage:
            link = self.configuration.links[stage - 1]
            times["sent"][stage] += boundary.message_forward_ns[link][pairs]
            times["returned"][stage - 1] += boundary.message_backward_ns[link][pairs]
        return agree

    def _aggregated(self, times: dict[str, Integers], once: NDArray[np.bool_]) -> Integers:
        """(N,): for each choice, the step in ns by the instance's formula (such as the simulated schedule). times: for each
        name of a time of a stage, an array (stages, N) in ns. once: (N,), for each choice, whether the weight table that
        embedding and head share is one parameter.
        """
        configuration = self.configuration
        tied = np.where(once, 0, 0 if configuration.tied is None else configuration.tied.reduce_ns)
        forward, backward = times["forward_ns"] + times["sent"], times["backward_ns"] + times["returned"]
        m = configuration.micro_batches
        if self.instance.step == "eq5":
            alone = times["forward_ns"] + times["backward_ns"]
            return (m - 1) * alone.max(axis=0) + (forward + backward).sum(axis=0)
        if self.instance.step == "eq4":
            syncs = times["reduce_ns"] + times["optimizer_ns"]
            syncs[sorted({0, len(syncs) - 1})] += tied
            alone = times["forward_ns"] + times["backward_ns"]
            return (m - 1) * alone.max(axis=0) + (forward + backward).sum(axis=0) + syncs.max(axis=0)
        if self.instance.step == "eq8":
            syncs = (times["last_ns"] + times["reduce_ns"] + times["optimizer_ns"]).sum(axis=0) + tied
            return (m - 1) * (forward + backward).max(axis=0) + (forward + backward).sum(axis=0) + syncs
        ends = pass_ends_ns(configuration.schedule.name, forward, backward, m, times["last_ns"])
        reduced = ends + times["reduce_ns"]
        if configuration.tied is not None:
            reduced[[0, -1]] = np.where(tied > 0, np.maximum(reduced[0], reduced[-1]) + tied, reduced[[0, -1]])
        steps: Integers = (reduced + times["optimizer_ns"]).max(axis=0)
        return steps
