"""Pipelines of columns that are picked for the stages of one path: simulated together, and bettered one stage at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainplan.formulations.joint.problem import Configuration
from trainplan.solvers.joint.free_cuts.pipeline_columns import agree, passes_of, steps_ns
from trainplan.solvers.joint.stages.label_setting import Column
from trainplan.solvers.joint.stages.option_tables import StageTables


@dataclass(frozen=True, eq=False)
class Pipelines:
    """What a path's pipelines are simulated by. cuts: the kind of boundary at each of them."""

    tables: StageTables
    configuration: Configuration
    tied_ns: int
    cuts: Sequence[int]

    def best(
        self, picks: Sequence[Sequence[Column]], weights: Sequence[int], out_of_time: Callable[[], bool]
    ) -> tuple[int, list[Column]] | None:
        """The step in ns and the columns of the best pipeline that simulation finds: of one weight p of p u + g for all stages,
        and then with one stage's column exchanged at a time, as long as that helps. None where no columns agree.

        picks: by stage, columns to choose from. weights: some p, beside powers of two and all micro-batches."""
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
        """The cheapest columns at each weight, the same with those of least u behind the first stage, and the first ones."""
        m, rows = self.configuration.micro_batches, list[list[Column]]()
        for p in sorted({0, *weights, *(1 << i for i in range(m.bit_length())), m}):

            def cost_ns(column: Column, p: int = p) -> int:
                return (p + 1) * _u_ns(column) + column.extra_ns * (p > 0)

            rows.append([min(pick, key=cost_ns) for pick in picks])
            rows.append([rows[-1][0], *(min(pick, key=_u_ns) for pick in picks[1:])])
        return [*rows, [pick[0] for pick in picks]]

    def _agree(self, row: Sequence[Column]) -> bool:
        return all(agree(self.tables, a, b, cut) for a, b, cut in zip(row, row[1:], self.cuts, strict=False))


def _u_ns(column: Column) -> int:
    return column.forward_ns + column.backward_ns
