"""Describe the machine at hand as a cluster: devices from NVML or `nvidia-smi`, links from `nvidia-smi topo -m` or NCCL's XML.

Without a GPU, processes on the CPU are the devices. All information of the system comes in as text, by the functions `run` (of
a command) and `read` (of a file), which tests replace.
"""
