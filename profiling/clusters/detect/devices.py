"""One GPU: the driver's information on it, and its data sheet if there is one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.clusters.cluster import DeviceKind
from trainplan.profiling.clusters.efficiencies import shipped_efficiencies
from trainplan.profiling.clusters.kinds import device_kind
from trainplan.profiling.clusters.sheets import sheets

# A sixteenth of a GPU's memory is kept from plans, as context, buffers and fragmentation take on an H100.
RESERVED = 16


@dataclass(frozen=True)
class Gpu:
    """One GPU of this machine as its driver describes it; a field that the driver does not report is None."""

    name: str
    memory_bytes: int
    pcie_bytes_per_s: float | None = None
    cores: int | None = None
    clock_hz: float | None = None
    memory_bytes_per_s: float | None = None

    def sheet(self) -> str | None:
        """The name of the data sheet of this GPU, found by the driver's name for it; None if there is none."""
        name = re.sub(r"\b(NVIDIA|GeForce|Tesla)\b", "", self.name).strip()
        patterns = {key: sheet.driver_name for key, sheet in sheets().items()}
        return next((key for key, pattern in patterns.items() if pattern and re.fullmatch(pattern, name)), None)

    def kind(self) -> DeviceKind:
        """The kind of device that this GPU is: as its data sheet describes it, else with the rate of float32 computed from its
        cores and clock. Raises InputError if there is no data sheet and cores, clock or memory bandwidth are unknown.
        """
        reserve_bytes = self.memory_bytes // RESERVED
        if name := self.sheet():
            kind = device_kind(name, shipped_efficiencies())
            return kind.changed(name=self.name, memory_bytes=self.memory_bytes, reserve_bytes=reserve_bytes)
        if not (self.cores and self.clock_hz and self.memory_bytes_per_s):
            fix = "install nvidia-ml-py to have its rates estimated, or write a cluster file with its flops_per_s"
            raise InputError("detect", "device", f"is {shown(self.name)}, of which there is no data sheet", fix)
        return DeviceKind(
            name=self.name,
            memory_bytes=self.memory_bytes,
            reserve_bytes=reserve_bytes,
            flops_per_s={"float32": float(round(2 * self.cores * self.clock_hz))},
            memory_bytes_per_s=self.memory_bytes_per_s,
        )
