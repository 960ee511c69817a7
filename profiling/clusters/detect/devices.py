"""GPUs: what the driver tells of one, and what data sheets say of those that are known."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.clusters.cluster import DeviceKind


class DataSheet(NamedTuple):
    """Data sheet of a device: dense peaks without sparsity, float32 on CUDA cores (no TF32), NVLink of one link one way."""

    pattern: str  # of the driver's name, without NVIDIA, GeForce and Tesla
    float32_teraflops: float
    half_teraflops: float
    float64_teraflops: float
    memory_gb_per_s: float
    nvlink_gb_per_s: float = 0
    bfloat16: bool = True
    half_size: int = 64

    @property
    def teraflops(self) -> dict[str, float]:
        """Peak rates of matrix products in teraflops, by dtype."""
        halves = ("bfloat16", "float16") if self.bfloat16 else ("float16",)
        full = {"float32": self.float32_teraflops, "float64": self.float64_teraflops}
        return full | dict.fromkeys(halves, self.half_teraflops)


DEVICES = (
    DataSheet(r"TITAN RTX", 16.3, 130.5, 0.51, 672, 25, bfloat16=False),
    DataSheet(r"RTX 2080 Ti", 13.4, 53.8, 0.42, 616, 25, bfloat16=False),
    DataSheet(r"RTX 3090", 35.6, 71, 0.556, 936, 14.06),
    DataSheet(r"RTX 4090", 82.6, 165.2, 1.29, 1008),
    DataSheet(r"T4", 8.1, 65, 0.253, 320, bfloat16=False),
    DataSheet(r"V100-SXM2.*", 15.7, 125, 7.8, 900, 25, bfloat16=False),
    DataSheet(r"V100-PCIE.*", 14, 112, 7, 900, bfloat16=False),
    DataSheet(r"A10", 31.2, 125, 0.976, 600),
    DataSheet(r"A100-SXM\S*40GB", 19.5, 312, 19.5, 1555, 25, half_size=128),
    DataSheet(r"A100-PCIE-40GB", 19.5, 312, 19.5, 1555, 25, half_size=128),
    DataSheet(r"A100-SXM\S*80GB", 19.5, 312, 19.5, 2039, 25, half_size=128),
    DataSheet(r"A100 80GB PCIe", 19.5, 312, 19.5, 1935, 25, half_size=128),
    DataSheet(r"L4", 30.3, 121, 0.47, 300),
    DataSheet(r"L40S", 91.6, 362, 1.43, 864),
    DataSheet(r"H100 PCIe", 51, 756, 51, 2000, 25, half_size=256),
    DataSheet(r"H100 80GB HBM3", 67, 989, 67, 3350, 25, half_size=256),
    DataSheet(r"H200", 67, 989, 67, 4800, 25, half_size=256),
    DataSheet(r"B200", 75, 2250, 37, 7700, 50, half_size=256),
)


RESERVED = 16  # one part in so many of a GPU's memory: what context, buffers and fragmentation take of an H100, see h100-8


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver tells it; None where it does not."""

    name: str
    memory_bytes: int
    pcie_bytes_per_s: float | None = None
    cores: int | None = None
    clock_hz: float | None = None
    memory_bytes_per_s: float | None = None

    def sheet(self) -> DataSheet | None:
        """The data sheet of this GPU by its name; None where the table has none."""
        name = re.sub(r"\b(NVIDIA|GeForce|Tesla)\b", "", self.name).strip()
        return next((sheet for sheet in DEVICES if re.fullmatch(sheet.pattern, name)), None)

    def kind(self) -> DeviceKind:
        """Rates from the data sheet, else float32's from cores and clock. Raises InputError."""
        if sheet := self.sheet():
            teraflops, memory_bytes_per_s, half_size = sheet.teraflops, sheet.memory_gb_per_s * 1e9, sheet.half_size
        elif self.cores and self.clock_hz and self.memory_bytes_per_s:
            teraflops = {"float32": 2 * self.cores * self.clock_hz / 1e12}
            memory_bytes_per_s, half_size = self.memory_bytes_per_s, 64
        else:
            fix = "install nvidia-ml-py to have its rates estimated, or write a cluster file with its flops_per_s"
            raise InputError("detect", "device", f"is {shown(self.name)}, which is not in the table of known devices", fix)
        return DeviceKind.model_validate(
            {
                "name": self.name,
                "memory_bytes": self.memory_bytes,
                "reserve_bytes": self.memory_bytes // RESERVED,
                "flops_per_s": {dtype: round(rate * 1e12) for dtype, rate in teraflops.items()},
                "memory_bytes_per_s": memory_bytes_per_s,
                "half_size": half_size,
            }
        )
