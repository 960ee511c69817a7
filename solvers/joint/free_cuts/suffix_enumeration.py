"""Evaluates the pipelines that path bounds leave open: all pipelines of columns that may be better than the best plan, from the
last stage on.

A suffix is the last stages of a pipeline, each with a column. It is a pipeline itself, so it is simulated on its own; whatever
stands before it, the step is at least H, the least sum of u up to it, plus its own passes, and, for any of its stages, the
least forward passes before it plus that stage's end. Suffixes are extended depth first, those with the least bounds first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, overload

import numpy as np
from trainplan.formulations.joint.problem import Configuration
from trainplan.formulations.numbers import Integers
from trainplan.solvers.joint.free_cuts.pipeline_columns import Passes, pass_ends_ns
from trainplan.solvers.joint.stages.label_setting import Column
from trainplan.solvers.joint.stages.option_tables import Floats, Indices, StageTables

if TYPE_CHECKING:
    from trainplan.solvers.joint.free_cuts.column_pruning import PoolBounds

CHUNK = 2048
PASSES = 2**23  # of all pipelines that are simulated at once


@dataclass(frozen=True, eq=False)
class Pool:
    """The N columns (choices of options) that a stage may have, in parallel arrays (N,): first and last unit (sub-layer), and
    the interface states (layouts of activations) in which the stage is entered and left; passes: (1, N), their times."""

    columns: Sequence[Column]
    first: Indices
    last: Indices
    enter: Indices
    leave: Indices
    passes: Passes

    def at(self, indices: Indices) -> Pool:
        """Select some of the columns (choices of options for one stage). indices: the columns' indices, in whose order they are
        returned.
        """
        return Pool(
            Chosen(self.columns, indices),
            self.first[indices],
            self.last[indices],
            self.enter[indices],
            self.leave[indices],
            _changed(self.passes, lambda array: array[..., indices]),
        )


class Chosen(Sequence[Column]):
    """The columns of a pool at given indices, as a sequence of columns."""

    def __init__(self, columns: Sequence[Column], indices: Indices) -> None:
        self.columns, self.indices = columns, indices

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, number: int) -> Column: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[Column]: ...

    def __getitem__(self, number: int | slice) -> Column | Sequence[Column]:
        if isinstance(number, slice):
            return Chosen(self.columns, self.indices[number])
        return self.columns[int(self.indices[number])]


@dataclass(frozen=True, eq=False)
class Suffixes:
    """N suffixes: the last stages of pipelines, from `stage` to the last stage, each with a column (choice of options). first:
    (N,), their first units (sub-layers). enter: (N,), the interface states (layouts of activations) in which these are entered.
    chosen: (P - stage, N), the index of each stage's column in its pool. passes: (P - stage, N), their times. bound: (N,), a
    lower bound in ns on the step time of every pipeline with the suffix."""

    stage: int
    first: Indices
    enter: Indices
    chosen: Indices
    passes: Passes
    bound: Floats

    def at(self, indices: Indices | slice) -> Suffixes:
        """Select some of the suffixes. indices: their indices, or a slice."""
        return Suffixes(
            self.stage,
            self.first[indices],
            self.enter[indices],
            self.chosen[:, indices],
            _changed(self.passes, lambda array: array[..., indices]),
            self.bound[indices],
        )


def _changed(passes: Passes, change: Callable[[Integers], Integers]) -> Passes:
    """A copy of pass times in which a function is applied to each array. passes: the times. change: the function, for instance
    one that selects some of the pipelines."""
    return Passes(**{field.name: change(getattr(passes, field.name)) for field in fields(passes)})


@dataclass
class Enumeration:
    """Evaluates all pipelines of one configuration (number of stages and micro-batches, with a schedule) that may be better
    than the best plan, joined stage by stage from the last one on. A suffix is the last stages of a pipeline, each with a
    column (choice of options).

    pools: for each stage, its columns. boundary_kinds: the kind of each boundary between units (sub-layers). before_ns: for
    each stage, (L + 1,), the least time of forward plus backward passes of a micro-batch before each unit with the work at the
    end of stage 0, infinite if no pipeline within the limit has a cut there. forward_ns: (L + 1,), the least forward passes
    before each unit. tied_ns: the time in ns in which both ends of the pipeline sum the gradients of a table shared by
    embedding and head. bounds: further lower bounds on suffixes, by weighted paths, or None."""

    tables: StageTables
    configuration: Configuration
    pools: Sequence[Pool]
    boundary_kinds: Sequence[int]
    before_ns: Sequence[Floats]
    forward_ns: Floats
    tied_ns: int
    bounds: PoolBounds | None = None

    def run(
        self,
        limit: Callable[[], float],
        report: Callable[[Suffixes, int], None],
        stop: Callable[[], bool],
    ) -> float:
        """Run the enumeration: extend all suffixes whose lower bound is at most the limit to whole pipelines, depth first,
        suffixes of least bounds first.

        limit: returns the largest step time in ns that is still of interest. report: called with whole pipelines and the index
        of the best of them. stop: returns whether to end early. Returns the least bound in ns of the suffixes that were not
        examined because the search ended early, infinite if all were."""
        waiting = [self._last(limit())]
        while waiting and not stop():
            suffixes = waiting.pop()
            suffixes = suffixes.at(np.flatnonzero(suffixes.bound <= limit()))
            count = self._at_once(suffixes)
            if len(suffixes.first) > count:
                waiting.append(suffixes.at(slice(count, None)))
                suffixes = suffixes.at(slice(count))
            if not len(suffixes.first):
                continue
            if suffixes.stage == 0:
                report(suffixes, int(suffixes.bound.argmin()))
            else:
                longer = self._longer(suffixes, limit())
                waiting.append(longer.at(np.argsort(longer.bound, kind="stable")))
        return min((float(suffixes.bound.min()) for suffixes in waiting if len(suffixes.first)), default=np.inf)

    def _at_once(self, suffixes: Suffixes) -> int:
        """The number of suffixes (last stages of pipelines) to extend in one batch, such that simulating the results takes only
        a moment. suffixes: those that are to be extended."""
        x = suffixes.stage
        columns = len(self.pools[x - 1].columns) / max(1, len(np.unique(self.pools[x - 1].last))) if x else 1.0
        work = (len(self.pools) - x + 1) * (self.configuration.micro_batches + len(self.pools)) * max(1.0, columns)
        return max(1, min(CHUNK, int(PASSES / work)))

    def _last(self, limit: float) -> Suffixes:
        """The suffixes with which the enumeration begins: those that consist of the last stage alone and whose lower bound on
        the step time is at most `limit` ns."""
        pool, x = self.pools[-1], len(self.pools) - 1
        chosen = np.arange(len(pool.columns))[None]
        return self._bounded(Suffixes(x, pool.first, pool.enter, chosen, pool.passes, np.zeros(len(pool.first))), limit)

    def _longer(self, suffixes: Suffixes, limit: float) -> Suffixes:
        """Put one stage in front of suffixes, in all possible ways (layouts of activations must agree at the cut), and return
        the results whose lower bound on the step time is at most `limit` ns. suffixes: those to extend."""
        x = suffixes.stage - 1
        pool, link = self.pools[x], self.configuration.links[x]
        added, row = np.nonzero(pool.last[:, None] + 1 == suffixes.first)
        kinds = np.array(self.boundary_kinds, np.intp)[pool.last[added]]
        state = kinds, pool.leave[added], suffixes.enter[row]
        agreed = np.flatnonzero(np.isfinite(self.tables.moves[state]))
        added, row, kinds = added[agreed], row[agreed], kinds[agreed]
        new = _changed(pool.passes, lambda array: array[..., added].copy())
        old = _changed(suffixes.passes, lambda array: array[..., row].copy())
        for kind in np.unique(kinds):
            here = np.flatnonzero(kinds == kind)
            crossing = self.tables.crossings[kind]
            pair = pool.leave[added[here]], suffixes.enter[row[here]]
            back = crossing.backward_ns[pair] + crossing.message_backward_ns[link][pair]
            new.backward_ns[0, here] += back
            new.halved_backward_ns[0, here] += back
            old.forward_ns[0, here] += crossing.forward_ns[pair] + crossing.message_forward_ns[link][pair]
            old.halves_ns[:, 0, here] += crossing.halved_forward_ns[pair] + crossing.halved_message_ns[link][pair]
        joined = Passes(
            **{
                field.name: np.concatenate([getattr(new, field.name), getattr(old, field.name)], axis=-2)
                for field in fields(new)
            }
        )
        chosen = np.concatenate([added[None], suffixes.chosen[:, row]])
        return self._bounded(Suffixes(x, pool.first[added], pool.enter[added], chosen, joined, suffixes.bound[row]), limit)

    def _bounded(self, suffixes: Suffixes, limit: float) -> Suffixes:
        """Raise the lower bounds of suffixes by simulating each as a pipeline of its own; return those whose bound is at most
        `limit` ns.

        Proof: the suffix begins after the first micro-batch's forward passes, or first halves, through the stages before it. If
        stage 0 ends last, the last micro-batch's backward passes through these stages, and the work at the end of stage 0,
        follow the suffix's own last pass. Else a stage of the suffix ends last.
        """
        if not len(suffixes.first):
            return suffixes
        x, passes, schedule = suffixes.stage, suffixes.passes, self.configuration.schedule
        ends = pass_ends_ns(passes, schedule, self.configuration.micro_batches)
        reduced = ends + passes.reduce_ns
        if x == 0 and self.tied_ns:
            reduced[0] = reduced[-1] = np.maximum(reduced[0], reduced[-1]) + self.tied_ns
        elif self.tied_ns:
            reduced[-1] += self.tied_ns
        after_ns = (reduced + passes.optimizer_ns).max(axis=0)
        bound = self.forward_ns[suffixes.first] + after_ns
        if x:
            bound = np.maximum(bound, self.before_ns[x][suffixes.first] + ends[0])
        bound = np.maximum(bound, suffixes.bound)
        if self.bounds is not None and x:
            bound = np.maximum(bound, self.bounds.least_ns(x, suffixes.first, suffixes.enter, passes))
        chosen = replace(suffixes, bound=bound)
        return chosen.at(np.flatnonzero(bound <= limit))
