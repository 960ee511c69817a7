"""The results of a sweep: a row for each of its requests, and what one more unit of each number is worth."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from trainplan.prediction.training_costs import HOUR_S
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, one_of
from trainplan.profiling.base.plugins import attribute
from trainplan.studies.cells import canonical
from trainplan.studies.changes import FACTORS
from trainplan.studies.sweep import FLAG, MARGINS, Point
from trainplan.tabular import frame_of

COLUMNS = {  # of pictures, by axis, where a column of rows has another name
    "memory": "memory_bytes",
}


@dataclass(frozen=True)
class MarginalValue:
    """The time of a step that one more unit of a number saves; negative if the step becomes longer.

    Attributes:
        axis: the number, such as memory.
        unit: what one unit is.
        units: by how many units the two requests differ.
        saved_ns: by the predictions, ns of a step saved for each unit; None if either request has no prediction.
        least_ns: the least that is saved for each unit if both requests have optimal plans, by the solver's step model; None if
            not known.
        most_ns: the most that is saved; None if not known.
        share: `saved_ns` as a share of the request's step.
        why: why there is no value, such as "infeasible"; None if there is one.
    """

    axis: str
    unit: str
    units: float
    saved_ns: float | None = None
    least_ns: float | None = None
    most_ns: float | None = None
    share: float | None = None
    why: str | None = None

    @property
    def proven(self) -> str:
        """How much is proven of the value: `exact`, `saves`, `costs` (it makes the step longer), `open` (it may do either), or
        `unknown`."""
        if self.least_ns is None or self.most_ns is None:
            return "unknown"
        if self.least_ns == self.most_ns:
            return "exact"
        return "saves" if self.least_ns > 0 else "costs" if self.most_ns < 0 else "open"

    def to_dict(self) -> dict[str, Any]:
        """The value as a JSON-ready dict: its fields, and `proven`."""
        return {**asdict(self), "proven": self.proven}


def marginal_value(point: Point, before: Mapping[str, Any], after: Mapping[str, Any]) -> MarginalValue:
    """Compute what one more unit of a number is worth.

    Args:
        point: the request with more of it.
        before: the row of the sweep's own request.
        after: the row of the point.

    Both rows have `status`, `value_ns`, `bound_ns`, `predicted_step_ns`, `batch` and `sequence`, as a study's rows do.
    """
    assert point.margin is not None
    work = _tokens(before) / _tokens(after)
    made = MarginalValue(point.margin, MARGINS[point.margin], point.units)
    if missing := next((row for row in (before, after) if row.get("value_ns") is None), None):
        return replace(made, why=f"{missing['status']}{': ' + str(missing['reason']) if missing.get('reason') else ''}")
    step_ns, other_ns = before.get("predicted_step_ns"), after.get("predicted_step_ns")
    saved = None if step_ns is None or other_ns is None else (step_ns - work * other_ns) / point.units
    bounds = before.get("bound_ns"), after.get("bound_ns")
    least = None if bounds[0] is None else (bounds[0] - work * after["value_ns"]) / point.units
    if least is not None and point.margin == "memory":
        least = max(least, 0.0)  # every plan that fits into less memory fits into more
    most = None if bounds[1] is None else (before["value_ns"] - work * bounds[1]) / point.units
    share = None if saved is None or not step_ns else saved / step_ns
    return replace(made, saved_ns=saved, least_ns=least, most_ns=most, share=share)


def _tokens(row: Mapping[str, Any]) -> int:
    """The tokens of a row's step: its batch times its sequence; where a row has none of these, 1 stands for it."""
    return int(row.get("batch") or 1) * int(row.get("sequence") or 1)


@dataclass(frozen=True)
class Sweep:
    """A sweep's requests and their rows.

    Attributes:
        points: the requests; the first one is the sweep's own, and those with a `margin` are for marginal values.
        rows: the rows of the points, in the same order, with the columns of a study's rows.
        prices: prices of a device-hour to compare; empty if none were varied.
    """

    points: tuple[Point, ...]
    rows: tuple[Mapping[str, Any], ...]
    prices: tuple[float, ...] = ()

    @property
    def margins(self) -> list[MarginalValue]:
        """The value of one more unit of each number, for each point with a margin."""
        pairs = zip(self.points, self.rows, strict=True)
        return [marginal_value(point, self.rows[0], row) for point, row in pairs if point.margin is not None]

    def table(self) -> list[dict[str, Any]]:
        """The sweep as a list of dicts, one for each request and price, as JSON has them; None for what is unknown.

        Keys: `change` (text), a key for each axis that is varied (its value, None where it is the request's own), `status`,
        `reason`, `devices`, `batch`, `step_ns` (predicted), `value_ns` and `bound_ns` (by the solver's step model), `gap` (a
        fraction), `share` (the step as a share of the request's own step minus 1, for equal tokens), `tokens_per_s_per_device`,
        `mfu`, `peak_bytes`, `price_per_device_hour`, `step_money`, `training_seconds`, `training_money`, `training_energy_kwh`,
        `step_energy_j`."""
        axes = dict.fromkeys(axis for point in self.points for axis in point.changes if point.margin is None)
        table = []
        for point, row in zip(self.points, self.rows, strict=True):
            if point.margin is None:
                varied = bool(self.prices) and (self.grid or not point.changes)
                for price in self.prices if varied else [row.get("price_per_device_hour")]:
                    label = replace(point, changes={**point.changes, "price": price} if varied else point.changes).label
                    changes = {axis: point.changes.get(axis) for axis in axes}
                    table.append({"change": label, **changes, **self._columns(row), **_costs(row, price)})
        return table

    def _columns(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The keys of the table that a row has at any price."""
        own_ns, step_ns = self.rows[0].get("predicted_step_ns"), row.get("predicted_step_ns")
        rate, devices = row.get("tokens_per_second"), row.get("devices")
        share = None if not own_ns or step_ns is None else step_ns / own_ns * _tokens(self.rows[0]) / _tokens(row) - 1
        return {
            **{name: row.get(name) for name in ("status", "reason", "devices", "batch")},
            "step_ns": step_ns,
            **{name: row.get(name) for name in ("value_ns", "bound_ns", "gap")},
            "share": share,
            "tokens_per_s_per_device": None if rate is None or not devices else rate / devices,
            "mfu": row.get("mfu"),
            "peak_bytes": row.get("predicted_peak_bytes"),
        }

    @property
    def grid(self) -> bool:
        """Whether all combinations of the axes' values were planned."""
        return any(len(point.changes) > 1 for point in self.points)

    def frame(self) -> Any:
        """The table as a pandas DataFrame. Raises MissingExtra if pandas is not installed."""
        return frame_of(self.table())

    def to_dict(self) -> dict[str, Any]:
        """The sweep as a JSON-ready dict. Keys: `points` (the table's rows, see `table`) and `margins`, for each number a dict
        with the fields of `MarginalValue` and `proven`."""
        return {"points": self.table(), "margins": [value.to_dict() for value in self.margins]}

    def picture(self, axis: str | None = None, **options: Any) -> Any:
        """A matplotlib Figure of the step against an axis; of a grid of two axes, a heat map.

        axis: such as memory (default: the first that was varied). options: as `draw_steps` or `draw_heat` take them. Raises
        InputError if nothing was varied, and MissingExtra if matplotlib is not installed.
        """
        varied = list(dict.fromkeys(axis for point in self.points if point.margin is None for axis in point.changes))
        if not varied or (axis is not None and axis not in varied):
            problem = "varies nothing but prices" if not varied else f"does not vary {axis}"
            raise InputError(
                COMMAND_LINE, FLAG, problem, one_of(axis or "", varied) if varied else "give memory=60GiB..80GiB/5"
            )
        chosen = axis or varied[0]
        wanted = [chosen] if not self.grid else varied
        rows = []
        for point, row in zip(self.points, self.rows, strict=True):
            if point.margin is None and set(point.changes) <= set(wanted):
                factors = {axis: point.changes.get(axis, 1.0) for axis in wanted if axis in FACTORS}
                rows.append({**row, "request": canonical({**json.loads(row["request"]), **factors})})
        frame = attribute("trainplan.studies.results:frame_of_rows")(rows)
        if self.grid and len(varied) == 2 and axis is None:
            return attribute("trainplan.pictures.studies:draw_heat")(frame, **options)
        return attribute("trainplan.pictures.studies:draw_steps")(frame, x=COLUMNS.get(chosen, chosen), **options)


def _costs(row: Mapping[str, Any], price: float | None) -> dict[str, Any]:
    """The costs of a row at a price of a device-hour; None for what is unknown."""
    step_ns, seconds, devices = row.get("predicted_step_ns"), row.get("training_seconds"), row.get("devices")
    hourly = None if price is None or devices is None else devices * price / HOUR_S
    return {
        "price_per_device_hour": price,
        "step_money": None if hourly is None or step_ns is None else hourly * step_ns / 1e9,
        "training_seconds": seconds,
        "training_money": None if hourly is None or seconds is None else hourly * seconds,
        "training_energy_kwh": row.get("training_energy_kwh"),
        "step_energy_j": row.get("step_energy_j"),
    }
