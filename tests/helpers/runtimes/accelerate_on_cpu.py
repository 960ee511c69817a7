"""Runs a script with Accelerate on CPUs, by gloo: it has FSDP for GPUs alone. Nothing else is changed.

accelerate launch ... accelerate_on_cpu.py SCRIPT [arguments]
"""

import os
import runpy
import sys
from pathlib import Path

import torch
from accelerate import state
from accelerate.utils import DistributedType

KIND = DistributedType.MULTI_GPU if os.environ.get("ACCELERATE_USE_FSDP") else DistributedType.MULTI_CPU


def set_device(self: state.PartialState) -> None:
    self.device = torch.device("cpu")


state.PartialState._prepare_backend = lambda self, cpu=False, sm=False, backend=None: ("gloo", KIND)
state.PartialState.set_device = set_device
sys.argv = sys.argv[1:]
sys.path.insert(0, str(Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
