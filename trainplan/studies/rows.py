"""The columns of a study's results: one row is the result of one cell, a method's run on one request or instance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["optimal", "feasible", "infeasible", "unknown", "failed", "refused", "crashed", "out of memory", "timed out"]
# The statuses of cells whose process gave no result, in addition to those of `trainplan solve`.
WITHOUT_RESULT: tuple[Status, ...] = ("refused", "crashed", "out of memory", "timed out")


@dataclass(frozen=True)
class Column:
    """One column of a study's results.

    type: its type in DuckDB and Parquet. about: one line for users. nullable: whether rows may have no value in it.
    """

    type: Literal["VARCHAR", "BIGINT", "DOUBLE", "BOOLEAN", "VARCHAR[]"]
    about: str
    nullable: bool = True

    @property
    def empty(self) -> Any:
        """The value of a row that has none: None, or where the column may not be empty an empty list, text, number or False."""
        blank: dict[str, Any] = {"VARCHAR[]": [], "VARCHAR": "", "BIGINT": 0, "DOUBLE": 0.0, "BOOLEAN": False}
        return None if self.nullable else blank[self.type]


COLUMNS: dict[str, Column] = {
    "key": Column("VARCHAR", "hash of everything that decides the result: what is never solved twice", nullable=False),
    "name": Column("VARCHAR", "the cell in words, which names one cell of the study", nullable=False),
    "task": Column("VARCHAR", "solve (one method on one instance) or plan (as `trainplan plan` does)", nullable=False),
    "problem": Column("VARCHAR", "the problem; of task plan, the preset"),
    "method": Column("VARCHAR", "the solution method", nullable=False),
    "runtime": Column("VARCHAR", "the runtime that was planned for, as `plan --for`"),
    "model": Column("VARCHAR", "the model"),
    "cluster": Column("VARCHAR", "the cluster"),
    "devices": Column("BIGINT", "number of devices"),
    "nodes": Column("BIGINT", "number of nodes"),
    "batch": Column("BIGINT", "samples of a step, over all devices"),
    "sequence": Column("BIGINT", "tokens of a sample"),
    "memory_bytes": Column("BIGINT", "memory of a device in bytes that the request or instance states"),
    "options": Column("VARCHAR", "options of the method, as JSON", nullable=False),
    "request": Column("VARCHAR", "the whole request, as JSON", nullable=False),
    "groups": Column("VARCHAR[]", "the study's groups that the cell belongs to", nullable=False),
    "instance_hash": Column("VARCHAR", "SHA-256 of the instance that the result is about"),
    "instance_name": Column("VARCHAR", "the instance's own name"),
    "instance_size": Column("VARCHAR", "sizes of the instance, as JSON"),
    "library": Column("VARCHAR", "name of the instance in the library"),
    "status": Column(
        "VARCHAR",
        "optimal, feasible, infeasible, unknown or failed, as `trainplan solve` says; refused (bad input), crashed (the "
        "process died), out of memory, or timed out (ended after its limit)",
        nullable=False,
    ),
    "reason": Column("VARCHAR", "why there is no value, in one line"),
    "stopped": Column("VARCHAR", "what stopped the search before a proof: time limit, memory limit or interrupt"),
    "value_ns": Column("BIGINT", "objective of the best solution in ns"),
    "bound_ns": Column("BIGINT", "lower bound in ns on the objective of every solution"),
    "gap": Column("DOUBLE", "(value - bound) / value"),
    "tolerance": Column("DOUBLE", "gap at which the method might stop"),
    "bound_source": Column("VARCHAR", "the method or argument that proved the bound"),
    "solution_source": Column("VARCHAR", "the method that found the solution"),
    "predicted_step_ns": Column("BIGINT", "predicted time of a step in ns, for the runtime (task plan)"),
    "predicted_peak_bytes": Column("BIGINT", "predicted peak memory of a device in bytes, for the runtime (task plan)"),
    "peak_bytes": Column("BIGINT", "peak memory of a device in bytes, as the problem counts it"),
    "samples_per_second": Column("DOUBLE", "predicted samples a second (task plan)"),
    "tokens_per_second": Column("DOUBLE", "predicted tokens a second (task plan)"),
    "mfu": Column("DOUBLE", "predicted model FLOP/s utilization (task plan)"),
    "time_limit_s": Column("DOUBLE", "time limit of the method in seconds"),
    "solver_memory_bytes": Column("BIGINT", "memory limit of the solving process in bytes"),
    "seed": Column("BIGINT", "random seed", nullable=False),
    "cold": Column("BOOLEAN", "whether models begin without the plan of a fast method", nullable=False),
    "repeat": Column("BIGINT", "number of the repetition, from 0", nullable=False),
    "seconds": Column("DOUBLE", "wall seconds of building the model and solving it, without imports"),
    "build_seconds": Column("DOUBLE", "seconds of these in which the method built its model"),
    "solve_seconds": Column("DOUBLE", "seconds of these in which the method solved it"),
    "import_seconds": Column("DOUBLE", "seconds in which solvers were imported and their processes started"),
    "wall_seconds": Column("DOUBLE", "wall seconds of the cell's process"),
    "processor_seconds": Column("DOUBLE", "processor seconds, user and system, of the cell's process and of its children"),
    "process_peak_bytes": Column("BIGINT", "largest resident memory of the cell's process or of a child of it, in bytes"),
    "started": Column("VARCHAR", "when the cell began, in UTC (ISO 8601)", nullable=False),
    "versions": Column("VARCHAR", "versions of Python, trainplan and solvers, as JSON", nullable=False),
    "machine": Column("VARCHAR", "the machine that ran the cell, as JSON", nullable=False),
    "machine_id": Column("VARCHAR", "hash of the machine's description", nullable=False),
    "plan_path": Column("VARCHAR", "file of the plan in the study's folder"),
    "solution_path": Column("VARCHAR", "file of the solution in the study's folder"),
    "history_path": Column("VARCHAR", "file of the history of solutions and bounds in the study's folder"),
    "certificate": Column("BOOLEAN", "whether the plan carries evidence of its bound", nullable=False),
    "price_per_device_hour": Column("DOUBLE", "price of a device for an hour, where one is given"),
    "training_tokens": Column("BIGINT", "tokens of the whole training, where given"),
    "training_seconds": Column("DOUBLE", "predicted seconds of the whole training"),
    "training_money": Column("DOUBLE", "price of the whole training"),
    "training_energy_kwh": Column("DOUBLE", "energy of the whole training in kWh"),
    "step_energy_j": Column("DOUBLE", "energy of a step in J"),
}


def row_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """A row with every column in the order of COLUMNS: the given values, and the columns' empty values for the rest.

    values: by column. Raises KeyError for a name that is no column.
    """
    for name in values:
        _ = COLUMNS[name]
    return {name: values[name] if values.get(name) is not None else column.empty for name, column in COLUMNS.items()}


def table_of_columns() -> str:
    """The columns as a table in Markdown, as docs/studies.md prints it."""
    lines = ["| column | type | content |", "|---|---|---|"]
    lines += [f"| `{name}` | {column.type} | {column.about} |" for name, column in COLUMNS.items()]
    return "\n".join(lines)
