"""Weights of lowered plans from and to files of Hugging Face."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor
from trainplan.execution.lowering.trainer import Trainer
from trainplan.execution.lowering.weights import gathered, write_unit
from trainplan.execution.training.weight_files import WeightFiles, WeightWriter
from trainplan.profiling.models import torch_units


def load_weights(trainer: Trainer, folder: str) -> None:
    """Load the parameters of the rank's units from a folder; one unit is whole at a time."""
    files = WeightFiles.of(folder)
    for position, unit in sorted(trainer.units.items()):
        write_unit(unit, dict(files.unit(trainer.model, position)))


def save_weights(trainer: Trainer, folder: str) -> None:
    """Write the parameters to a folder, in the model's dtype; called on all ranks. The first rank of each stage writes its
    units' files."""
    writer = WeightWriter(folder, trainer.model, torch_units.DTYPES[trainer.model.dtype])
    if dist.get_rank() == 0:
        writer.begin()
    dist.barrier()
    indices: dict[str, str] = {}
    for position, unit in sorted(trainer.units.items()):
        whole: dict[str, Tensor] = dict(gathered(unit, False))
        if trainer.index_in_stage == 0:
            indices |= writer.write(position, whole)
    by_rank: list[dict[str, str]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(by_rank, indices)
    if dist.get_rank() == 0:
        writer.finish({name: file for some in by_rank for name, file in some.items()})
    dist.barrier()
