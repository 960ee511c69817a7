"""Selects one column for each stage of a path: pipelines are simulated together, and improved one stage at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainplan.formulations.joint.problem import Configuration
from trainplan.solvers.joint.free_cuts.pipeline_columns import agree, passes_of, steps_ns
from trainplan.solvers.joint.stages.label_setting import Column
from trainplan.solvers.joint.stages.option_tables import StageTables


@dataclass(frozen=True, eq=False)
class Pipelines:
    """Simulates pipelines along one path (a sequence of stages, each with given units, that is, sub-layers), where each stage
    has several columns (choices of options for its units) to choose from. tied_ns: the time in ns of the sum of a shared
    table's gradients. cuts: the index of the kind of boundary at each cut."""

    tables: StageTables
    configuration: Configuration
    tied_ns: int
    cuts: Sequence[int]

    def best(
        self, picks: Sequence[Sequence[Column]], weights: Sequence[int], out_of_time: Callable[[], bool]
    ) -> tuple[int, list[Column]] | None:
        """The best pipeline that local search finds: its simulated step time in ns, and a column for each stage; None if no
        columns agree.

        It begins with the columns of least p u + g at one weight p for all stages (u, forward plus backward pass of a
        micro-batch; g, the work after the last one), then replaces the column of one stage at a time, as long as that helps.
        picks: for each stage, the columns to choose from. weights: values of p to begin with, in addition to powers of two and
        the number of micro-batches. out_of_time: returns True once the search should end."""
        if not all(picks):
            return None
        best: tuple[int, list[Column]] | None = None
        tried = self._even(picks, weights)
        while tried:
            unique = {tuple(map(id, row)): row for row in tried}
            rows = [row for row in unique.values() if self._agree(row)]
            if not rows:
                break
            passes = passes_of(self.tables, rows, self.cuts, self.configuration.links)
            times = steps_ns(passes, self.configuration, self.tied_ns)
            index = int(times.argmin())
            if best is not None and times[index] >= best[0]:
                break
            best = int(times[index]), rows[index]
            base, tried = rows[index], []
            for x, pick in enumerate(picks):
                tried += [[*base[:x], other, *base[x + 1 :]] for other in pick if other is not base[x]]
            if out_of_time():
                break
        return best

    def _even(self, picks: Sequence[Sequence[Column]], weights: Sequence[int]) -> list[list[Column]]:
        """Pipelines from which the local search starts, each a list of one column per stage. For each weight p: the columns of
        least p u + g in all stages (u, forward plus backward pass of a micro-batch; g, the work after the last one), and the
        same with columns of least u after the first stage; finally the first column of every stage. weights: values of p, in
        addition to powers of two and the number of micro-batches. picks: for each stage, the columns to choose from."""
        m, rows = self.configuration.micro_batches, list[list[Column]]()
        for p in sorted({0, *weights, *(1 << i for i in range(m.bit_length())), m}):

            def cost_ns(column: Column, p: int = p) -> int:
                return (p + 1) * _u_ns(column) + column.extra_ns * (p > 0)

            rows.append([min(pick, key=cost_ns) for pick in picks])
            rows.append([rows[-1][0], *(min(pick, key=_u_ns) for pick in picks[1:])])
        return [*rows, [pick[0] for pick in picks]]

    def _agree(self, row: Sequence[Column]) -> bool:
        """Whether the layouts of activations that consecutive stages leave and enter may follow each other at the cuts between
        them. row: one column (choice of options) for each stage."""
        return all(agree(self.tables, a, b, cut) for a, b, cut in zip(row, row[1:], self.cuts, strict=False))


def _u_ns(column: Column) -> int:
    """Time in ns of forward plus backward pass of a micro-batch of a stage with the options of a column (one choice of options
    for the stage's sub-layers)."""
    return column.forward_ns + column.backward_ns
