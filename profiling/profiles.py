"""Profiles: times and bytes of every sub-layer on one device, and the links between devices, each with its origin."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from trainplan.profiling.clusters import Cluster, Island
from trainplan.profiling.errors import InputError
from trainplan.profiling.files import Record, parse
from trainplan.profiling.models import Kind, Model

LONGEST_NS = 10**13

Origin = Literal["measured", "estimated"]
Count = Annotated[int, Field(ge=0, le=2**48)]
Nanoseconds = Annotated[int, Field(ge=0, le=10**14)]


class UnitCost(Record):
    """One sub-layer on one device, with `rows` samples and tensor-parallel degree `tp`.

    `kept_bytes`: what the graph holds besides the unit's input. Workspaces: the most beyond input, kept and output.
    `spread`: relative half-width of the middle half of the repeats of the forward plus backward time.
    """

    kind: Kind
    tp: Annotated[int, Field(ge=1)]
    rows: Annotated[int, Field(ge=1)]
    forward_ns: Nanoseconds
    backward_ns: Nanoseconds
    kept_bytes: Count
    forward_workspace_bytes: Count
    backward_workspace_bytes: Count
    origin: Origin
    spread: Annotated[float, Field(ge=0, strict=False)] = 0.0


class Profile(Record):
    """A model's numbers on one group of devices. `islands` carries the links, fitted or taken from the cluster."""

    format: Literal["trainplan-profile"] = "trainplan-profile"
    version: Literal[1] = 1
    model: dict[str, Any]
    device: str
    devices: Annotated[int, Field(ge=1)]
    memory_bytes: Annotated[int, Field(gt=0)]
    islands: Annotated[list[Island], Field(min_length=1)]
    links_origin: Origin
    optimizer_ns_per_parameter: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False, strict=False)]
    optimizer_origin: Origin
    units: list[UnitCost]

    @model_validator(mode="after")
    def _consistent(self) -> Profile:
        try:
            Model(**self.model)
        except (TypeError, ValueError) as error:
            raise InputError(
                "", "model", f"is not a model ({error})", "write profiles with `trainplan plan --save-profile`"
            ) from None
        if self.islands[-1].devices < self.devices:
            raise InputError(
                "", "islands[-1].devices", f"is {self.islands[-1].devices}", f"give at least devices = {self.devices}"
            )
        return self

    @cached_property
    def _table(self) -> dict[tuple[str, int, int], UnitCost]:
        return {(unit.kind, unit.tp, unit.rows): unit for unit in self.units}

    def cost(self, kind: Kind, tp: int, rows: int) -> UnitCost:
        """The entry for one sub-layer. Raises InputError where the profile lacks it."""
        entry = self._table.get((kind, tp, rows))
        if entry is None:
            raise InputError(
                "profile", f"{kind} with tp {tp} and {rows} rows", "is missing", "measure or estimate it for this batch"
            )
        return entry

    @property
    def origin(self) -> str:
        return "+".join(sorted({unit.origin for unit in self.units}))


def needed_shapes(model: Model, group: int, rows: int) -> list[tuple[Kind, int, int]]:
    """All (kind, tp, rows on one device) that strategies over `group` devices can meet with `rows` samples at once."""
    kinds: tuple[Kind, ...] = ("embedding", "attention", "ffn", "head")
    shapes: list[tuple[Kind, int, int]] = []
    for tp in model.tp_degrees(group):
        data = group // tp
        if rows % data == 0:
            shapes += [(kind, tp, rows // data) for kind in kinds]
    if not shapes:
        raise InputError("command line", "--batch", f"is {rows}", f"give a multiple of {group // model.tp_degrees(group)[-1]}")
    return shapes


def estimate(model: Model, cluster: Cluster, group: int, rows: int) -> Profile:
    """A profile from shapes: a roofline of matrix products at the device's efficiency and of the bytes touched.

    A unit's forward time is the larger of flops / (efficiency x peak) and bytes / memory bandwidth, where the bytes are its
    input, output, kept activations and parameters once each; backward is twice forward (Galvatron-BMW, Section V). AdamW
    reads four and writes three numbers for each parameter.
    """
    device = cluster.device
    units = []
    for kind, tp, local in needed_shapes(model, group, rows):
        touched = (
            model.input_bytes(kind, local)
            + model.output_bytes(kind, local, tp)
            + model.kept_bytes(kind, local, tp)
            + (0 if kind == "embedding" else model.parameter_count(kind, tp) * model.element_bytes)
        )
        flops_ns = model.forward_flops(kind, local, tp) / (device.efficiency * device.flops_per_s) * 1e9
        forward_ns = max(1, round(max(flops_ns, touched / device.memory_bytes_per_s * 1e9)))
        if forward_ns > LONGEST_NS:
            raise InputError(
                "command line", "--batch", f"gives {kind} {forward_ns} ns", "give a smaller batch, or a faster device"
            )
        units.append(
            UnitCost(
                kind=kind,
                tp=tp,
                rows=local,
                forward_ns=forward_ns,
                backward_ns=2 * forward_ns,
                origin="estimated",
                **memory_of(model, kind, local, tp),
            )
        )
    return Profile(
        model=model.shape(),
        device=device.name,
        devices=group,
        memory_bytes=device.memory_bytes,
        islands=cluster.islands,
        links_origin="estimated",
        optimizer_ns_per_parameter=7 * model.element_bytes / device.memory_bytes_per_s * 1e9,
        optimizer_origin="estimated",
        units=units,
    )


def memory_of(model: Model, kind: Kind, rows: int, tp: int) -> dict[str, int]:
    """The three byte counts of a UnitCost, from shapes."""
    return {
        "kept_bytes": model.kept_bytes(kind, rows, tp),
        "forward_workspace_bytes": model.forward_workspace_bytes(kind, rows, tp),
        "backward_workspace_bytes": model.backward_workspace_bytes(kind, rows, tp),
    }


def load_profile(source: str | os.PathLike[str]) -> Profile:
    """A profile from its JSON file. Raises InputError."""
    return parse(source, Profile)
