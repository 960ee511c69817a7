"""The page of scores: every method on every instance of the library, as one command ran them.

trainplan library run '*' --time-limit 5 -j 2 -o scores
python -m benchmarks.library_scores scores
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from trainplan.profiling.base.quantities import format_gap, plural
from trainplan.solvers.core.method_registry import methods

import trainplan as tp
from benchmarks.pages import DOCS, table_row
from trainplan.libraries.scoring import Scores, scores
from trainplan.studies.results import Study

PICTURES = {"value": "library-values.png", "seconds": "library-seconds.png"}
PAGE = """\
# Scores: every method on the library

All methods that trainplan has, the papers' planners and baselines among them, on all {instances} of the [library](library.md),
each solve in a process of its own. MILP and CP-SAT begin without the plan of another method. Made by

```sh
{command}
python -m benchmarks.library_scores scores
```

on {date}, with {machine}. Seconds depend on the machine; every number is in
[library-scores.json](library-scores.json).

- closed: proven optimal within a gap of {gap}, or proven to have no solution.
- best known: as good as the best solution that the library knows.
- nothing found: no solution within the limit, though one is known.
- loss: how far the solution lies above the best known one.

{table}

## Profiles

The share of instances on which a method's solution is at most so far above the best of any method (Dolan and Moré, 2002). A
line ends at the share on which the method finds any solution.

![Performance profiles of values, a panel for each problem](pictures/library-values.png)

The share of instances that a method proves optimal, or infeasible, within a multiple of the fastest method's seconds.

![Performance profiles of seconds to a proof, a panel for each problem](pictures/library-seconds.png)

## Open instances

{open}

## What each planner loses, by instance

The loss of every method that proves nothing, where the best known step is known; `-` where it finds no solution.

{losses}
"""


def main() -> None:
    """Write the page, its pictures and its numbers from the folder of a study over the library."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="the folder that `trainplan library run` wrote")
    study = tp.read_study(parser.parse_args().folder)
    found = scores(study.rows(), tp.library())
    for measure, name in PICTURES.items():
        study.picture("profile", measure=measure).savefig(DOCS / "pictures" / name, dpi=90)
    (DOCS / "library-scores.json").write_text(json.dumps([dict(loss) for loss in found.losses], indent=0) + "\n")
    (DOCS / "library-scores.md").write_text(page(study, found))
    print(f"written {DOCS / 'library-scores.md'}")


def page(study: Study, found: Scores) -> str:
    """The text of the page. study: of methods over the library. found: its scores."""
    rows = study.rows()
    limits = {row["time_limit_s"] for row in rows}
    (limit,) = limits
    machine = json.loads(rows[0]["machine"])
    return PAGE.format(
        instances=plural(len({row["library"] for row in rows}), "instance"),
        command=f"trainplan library run '*' --time-limit {limit:g} -j 2 -o scores",
        date=max(row["started"] for row in rows)[:10],
        machine=f"{machine['cores']} cores of an {machine['processor']}",
        gap=format_gap(rows[0]["tolerance"] or 0.0),
        table=table([list(found.headings.values()), *found.cells()]),
        open=open_instances(),
        losses="\n\n".join(
            losses_of(problem, found.losses) for problem in dict.fromkeys(row["problem"] for row in found.rows())
        ),
    )


def table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose first row has the headings."""
    heads, *others = rows
    return "\n".join([table_row(heads), "|---" * len(heads) + "|", *map(table_row, others)])


def open_instances() -> str:
    """A Markdown table of the library's open instances, with the gap between the best known solution and the bound."""
    rows = [[f"`{row['name']}`", format_gap(row["gap"])] for row in tp.library().rows() if row["status"] == "open"]
    return table([["instance", "gap"], *rows]) if rows else "None."


def losses_of(problem: str, losses: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown section of one problem: a row for each instance, a column for each method that proves nothing. losses: entries
    of `Scores.losses`; instances without a known solution are left out. Empty if the problem has no such method."""
    names = [entry.name for entry in methods(problem) if not entry.proves]
    of = {(one["name"], one["method"]): one["loss"] for one in losses if one["problem"] == problem and one["best_ns"]}
    instances = sorted({name for name, _ in of})
    if not names:
        return ""
    texts = [
        [
            f"`{instance.partition('/')[2]}`",
            *("-" if (loss := of.get((instance, name))) is None else format_gap(loss) for name in names),
        ]
        for instance in instances
    ]
    return f"### {problem}\n\n" + table([["instance", *names], *texts])


if __name__ == "__main__":
    main()
