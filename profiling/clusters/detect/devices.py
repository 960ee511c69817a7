"""GPUs: what the driver tells of one, and what data sheets say of those that are known."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.clusters.cluster import DeviceKind
from trainplan.profiling.clusters.efficiencies import shipped_efficiencies
from trainplan.profiling.clusters.kinds import device_kind
from trainplan.profiling.clusters.sheets import sheets

# One part in so many of a GPU's memory: what context, buffers and fragmentation take of an H100, see its data sheet.
RESERVED = 16


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver tells it; None where it does not."""

    name: str
    memory_bytes: int
    pcie_bytes_per_s: float | None = None
    cores: int | None = None
    clock_hz: float | None = None
    memory_bytes_per_s: float | None = None

    def sheet(self) -> str | None:
        """The name of the data sheet of this GPU; None where there is none."""
        name = re.sub(r"\b(NVIDIA|GeForce|Tesla)\b", "", self.name).strip()
        return next((key for key, each in sheets().items() if each.driver_name and re.fullmatch(each.driver_name, name)), None)

    def kind(self) -> DeviceKind:
        """Rates from the data sheet, else float32's from cores and clock. Raises InputError."""
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
