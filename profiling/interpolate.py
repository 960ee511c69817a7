"""Complete a profile: other numbers of rows by a line, other tensor-parallel degrees by the roofline.

Times and bytes of a sub-layer grow with a + b rows, so two or more profiled sizes give all others. With fewer sizes, or for a
degree that was not profiled, the roofline's estimate is scaled by the ratio of profiled to estimated number at the nearest
profiled shape. Completed numbers have the origin `estimated`; their spread is the largest relative residual of their line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.lines import relative_line
from trainplan.profiling.estimate import estimated_cost, kind_of
from trainplan.profiling.models.model import Model
from trainplan.profiling.profiles import Number, Profile, UnitCost, shapes_of


def for_shapes(profile: Profile, group: int, shapes: Iterable[tuple[int, int]]) -> Profile:
    """The profile for a group of `group` devices (a part of the profile's cluster), with entries added for every pair in
    `shapes` that it lacks: a tensor-parallel degree and a number of rows (samples on one device). Raises InputError if the
    profile is of fewer devices, or if an entry cannot be computed.
    """
    if group > profile.devices:
        raise InputError("profile", "devices", f"is {profile.devices}", f"give a profile of at least {group} devices")
    completed = complete(profile, shapes)
    return completed.changed(devices=group) if completed.devices != group else completed


def complete(profile: Profile, shapes: Iterable[tuple[int, int]]) -> Profile:
    """A copy of the profile with costs added for every pair in `shapes` that it lacks: a tensor-parallel degree and a number
    of rows (samples on one device).

    An added entry is computed from profiled ones by a straight line in the number of rows, or else by the ratio of estimated
    times. Raises InputError if neither is possible.
    """
    shapes = list(shapes)
    model = profile.described_model
    profiled = {(entry.sublayer, entry.device, entry.tp, entry.rows) for entry in profile.costs}
    added = []
    for device in profile.kinds:
        for name in profile.shapes:
            entries = [entry for entry in profile.costs if (entry.sublayer, entry.device) == (name, device)]
            failed = [shape for shape in profile.out_of_memory if (shape.sublayer, shape.device) == (name, device)]
            for tp, rows in shapes:
                if (name, device, tp, rows) in profiled:
                    continue
                entry = _completed(profile, model, entries, name, device, tp, rows)
                too_large = any(shape.rows <= rows and shape.tp >= tp for shape in failed)
                added.append(_too_large(entry, profile.memory_bytes) if too_large else entry)
    if not added:
        return profile
    update: dict[str, object] = {"costs": [*profile.costs, *added]}
    if model is not None:
        degrees = {tp for tp, _ in shapes} | {shard.tp for shard in profile.sublayers[0].shards}
        update["sublayers"] = shapes_of(model, sorted(degrees))
    return profile.changed(**update)


def _too_large(entry: UnitCost, memory_bytes: int) -> UnitCost:
    """A copy of a profile's entry that needs the whole memory of the device as kept bytes and as workspace, so that no plan
    can use it.

    It is used for shapes (tensor-parallel degree, rows) that ran out of memory when they were measured, or that have at least
    as many rows and at most the degree of one that did.
    """
    all_of_it = Number(value=memory_bytes, origin="estimated")
    return entry.changed(kept_bytes=all_of_it, backward_workspace_bytes=all_of_it)


def _completed(
    profile: Profile,
    model: Model | None,
    entries: Sequence[UnitCost],
    name: str,
    device: str,
    tp: int,
    rows: int,
) -> UnitCost:
    """Compute the costs that a profile lacks, for the sub-layer `name` on the kind of device `device` at tensor-parallel
    degree `tp` with `rows` samples.

    model: the model that the profile describes; None if it describes none. entries: the profiled entries of this sub-layer on
    this kind of device. Raises InputError if they cannot be computed.
    """
    same = sorted((entry for entry in entries if entry.tp == tp), key=lambda entry: entry.rows)
    if len({entry.rows for entry in same}) > 1:
        return same[0].changed(rows=rows, **{n: _on_line(same, n, rows) for n in same[0].numbers})
    if model is None:
        if same:
            factor = rows / same[0].rows
            return same[0].changed(rows=rows, **{n: _scaled(number, factor) for n, number in same[0].numbers.items()})
        profiled = sorted({entry.tp for entry in entries})
        raise InputError("profile", f"{name} with tp {tp}", "is missing", f"use tp degrees among {profiled}, or profile it")
    part, kind = model.sublayers[name], kind_of(profile, device)
    wanted = estimated_cost(name, part, kind, tp, rows)
    if not entries:
        return wanted
    nearest = min(entries, key=lambda entry: (entry.tp != tp, abs(np.log(entry.tp / tp)), abs(np.log(entry.rows / rows))))
    there = estimated_cost(name, part, kind, nearest.tp, nearest.rows)
    ratios = {n: nearest.numbers[n].value / base.value if base.value else 1.0 for n, base in there.numbers.items()}
    return wanted.changed(**{n: _scaled(wanted.numbers[n], ratio) for n, ratio in ratios.items()})


def _scaled(number: Number, factor: float) -> Number:
    """Multiply a profiled time or size by a factor: returns the rounded product with the origin `estimated`."""
    return Number(value=round(number.value * factor), origin="estimated", spread=number.spread)


def _on_line(entries: Sequence[UnitCost], name: str, rows: int) -> Number:
    """Interpolate the field `name` (a time or a size) of profiled entries at `rows` samples, by the straight line of least
    relative squares through the entries; the result is never below 0.
    """
    x = np.array([entry.rows for entry in entries], dtype=float)
    y = np.array([getattr(entry, name).value for entry in entries], dtype=float)
    scale = np.maximum(y, max(1.0, y.max() * 1e-6))
    a, b = relative_line(x, y, scale)
    residual = float(np.max(np.abs(a + b * x - y) / scale))
    return Number(value=max(0, round(a + b * rows)), origin="estimated", spread=round(residual, 6))
