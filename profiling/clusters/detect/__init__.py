"""The machine at hand as a cluster: its devices from NVML or `nvidia-smi`, its links from `nvidia-smi topo -m` or NCCL's XML.

Without a GPU each process on the CPU is a device. Whatever is asked of the system comes in as text, through `run` and `read`.
"""
