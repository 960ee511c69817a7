"""The GPUs of a machine as its driver lists them: by NVML, or by `nvidia-smi` if the package nvidia-ml-py is not installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.clusters.detect.devices import Gpu
from trainplan.profiling.clusters.detect.links import generation_bytes_per_s

QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,pcie.link.gen.max,pcie.link.width.max", "--format=csv,noheader,nounits")


def nvml_gpus() -> list[Gpu] | None:
    """All GPUs of this machine as NVML lists them; None without the package nvidia-ml-py or without a driver."""
    try:
        nvml = import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # without the package its error class is missing, too
        return None
    try:
        return [_nvml_gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(i)) for i in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return None
    finally:
        _ask(nvml, "nvmlShutdown")


def _nvml_gpu(nvml: Any, handle: Any) -> Gpu:
    """Describe one GPU by what NVML (NVIDIA's management library) reports on it. nvml: the module pynvml. handle: NVML's
    handle of the GPU.
    """
    name = nvml.nvmlDeviceGetName(handle)
    clock_mhz = _ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM)
    memory_clock_mhz = _ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_MEM)
    bus_bits = _ask(nvml, "nvmlDeviceGetMemoryBusWidth", handle)
    generation = _ask(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle)
    lanes = _ask(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle)
    return Gpu(
        name=name.decode() if isinstance(name, bytes) else name,
        memory_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).total,
        pcie_bytes_per_s=generation_bytes_per_s(generation, lanes),
        cores=_ask(nvml, "nvmlDeviceGetNumGpuCores", handle),
        clock_hz=clock_mhz and clock_mhz * 1e6,
        memory_bytes_per_s=bus_bits and memory_clock_mhz and bus_bits / 8 * memory_clock_mhz * 2e6,
    )


def _ask(nvml: Any, question: str, *arguments: Any) -> Any:
    """Call a function of NVML and return its result; None if this driver or device does not support it.

    nvml: the module pynvml. question: the function's name.
    """
    try:
        return getattr(nvml, question)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


def parse_query(text: str) -> list[Gpu]:
    """Parse the output of `nvidia-smi --query-gpu`, which has a line per GPU with its name, memory in MiB, PCIe generation and
    PCIe lanes, into a list of GPUs. Raises InputError for a line of another form.
    """
    gpus = []
    for i, line in enumerate(filter(str.strip, text.splitlines()), start=1):
        name, *cells = (cell.strip() for cell in line.rsplit(",", 3))
        if len(cells) != 3 or not cells[0].isdigit():
            raise InputError(QUERY[0], f"line {i}", f"is {shown(line.strip())}", "install nvidia-ml-py, which asks the driver")
        generation, lanes = (int(cell) if cell.isdigit() else None for cell in cells[1:])
        gpus.append(Gpu(name, int(cells[0]) * 2**20, generation_bytes_per_s(generation, lanes)))
    return gpus
