"""The machine at hand as a cluster: its devices from NVML or `nvidia-smi`, its links from `nvidia-smi topo -m` or NCCL's XML.

Without a GPU each process on the CPU is a device. Whatever is asked of the system comes in as text, through `run` and `read`.
"""

from trainplan.profiling.clusters.detect.cpu import Rates, available_bytes, cpu_cores, measure_rates
from trainplan.profiling.clusters.detect.devices import Gpu
from trainplan.profiling.clusters.detect.driver import QUERY, nvml_gpus, parse_query
from trainplan.profiling.clusters.detect.machine import detect, to_yaml
from trainplan.profiling.clusters.detect.nccl import parse_nccl
from trainplan.profiling.clusters.detect.system import read_text, run_command
from trainplan.profiling.clusters.detect.topology import Topology, parse_topology

__all__ = [
    "QUERY",
    "Gpu",
    "Rates",
    "Topology",
    "available_bytes",
    "cpu_cores",
    "detect",
    "measure_rates",
    "nvml_gpus",
    "parse_nccl",
    "parse_query",
    "parse_topology",
    "read_text",
    "run_command",
    "to_yaml",
]
