"""Clusters: how many devices, what one device can do, and which link joins which of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, model_validator
from trainplan.profiling.errors import InputError
from trainplan.profiling.files import Record, parse
from trainplan.profiling.shipped import locate

Positive = Annotated[float, Field(gt=0, le=1e18, allow_inf_nan=False, strict=False)]


class Device(Record):
    """One kind of device. `efficiency` is the share of the peak rate that matrix products reach."""

    name: str
    memory_bytes: Annotated[int, Field(gt=0, le=2**48)]
    flops_per_s: Positive
    memory_bytes_per_s: Positive
    efficiency: Annotated[float, Field(gt=0, le=1, strict=False)] = 0.5


class Island(Record):
    """Consecutive devices joined by one kind of link: bandwidth of one device's link in a ring, latency of a ring step."""

    devices: Annotated[int, Field(ge=1, le=2**20)]
    bandwidth_bytes_per_s: Positive
    latency_ns: Annotated[int, Field(ge=0, le=10**12)] = 0


def slowest_link(islands: Sequence[Island], ranks: Sequence[int]) -> Island:
    """The smallest island that holds all `ranks`: its link is the slowest that their ring must cross."""
    for island in islands:
        if len({rank // island.devices for rank in ranks}) == 1:
            return island
    raise ValueError(f"ranks {list(ranks)} lie outside the largest island, of {islands[-1].devices} devices")


class Cluster(Record):
    """A homogeneous cluster; islands are nested, smallest first, and the last one holds every device."""

    name: str
    devices: Annotated[int, Field(ge=1, le=2**20)]
    device: Device
    islands: Annotated[list[Island], Field(min_length=1)]
    source: str = ""

    @model_validator(mode="after")
    def _islands_nest(self) -> Cluster:
        for smaller, larger in zip(self.islands, self.islands[1:], strict=False):
            if larger.devices <= smaller.devices or larger.devices % smaller.devices:
                raise InputError(
                    "", "islands", f"has {smaller.devices} then {larger.devices} devices", "nest them, smallest first"
                )
        if self.islands[-1].devices != self.devices:
            raise InputError("", "islands[-1].devices", f"is {self.islands[-1].devices}", f"give all devices, {self.devices}")
        if self.devices & (self.devices - 1):
            raise InputError(
                "",
                "devices",
                f"is {self.devices}",
                f"give a power of two, such as {1 << self.devices.bit_length() - 1}",
            )
        return self


def load_cluster(source: str | os.PathLike[str]) -> Cluster:
    """A shipped cluster by name, or a JSON file. Raises InputError."""
    name = os.fspath(source)
    return parse(locate("clusters", name, "--cluster", "a cluster file"), Cluster, name)
