"""Compares the shards of all ranks with one process that trains the whole model on the same samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from trainplan.execution.analysis.verify.buffer_sizes import zero_stage
from trainplan.execution.program import Program
from trainplan.execution.run.unit_state import flat_layout
from trainplan.execution.training.batches import Batches
from trainplan.execution.training.optimizer import PLAIN, Optimizer
from trainplan.execution.training.single_process import Reference
from trainplan.profiling.models import torch_units


class Outcome(NamedTuple):
    """A rank's results after its steps. gradients: by unit, the flat shard of the first step's gradient. parameters: by unit,
    flat, after the last step: the shard where parameters are gathered for each pass, else the whole. losses: of the whole
    batch, per step."""

    gradients: dict[int, Tensor]
    parameters: dict[int, Tensor]
    losses: list[float]


class Differences(NamedTuple):
    """Largest differences from one process (see `RunReport`)."""

    gradient_difference: float
    parameter_difference: float
    loss_difference: float


def compare(
    programs: Sequence[Program],
    outcome: Outcome,
    seed: int,
    group: Any,
    done: int = 0,
    batches: Batches | None = None,
    settings: Optimizer = PLAIN,
    weights: str | None = None,
) -> Differences | None:
    """Called on all ranks of a group: rank 0 runs the model alone and compares every rank's shards, one at a time.

    programs: of all ranks. outcome: of this rank. seed: of the initial parameters. done: number of steps before those of the
    outcome. batches: samples of each step (None: made up from the seed). settings: of AdamW. weights: a folder with the initial
    values. The result is None on all ranks but 0.
    """
    rank = dist.get_rank(group)
    if rank:
        for unit in programs[rank].units:
            for values in (outcome.gradients, outcome.parameters):
                dist.send(values[unit].double(), dst=0, group=group)
        return None
    model = programs[0].model.in_pieces(1)
    tp = [strategy.degree("tp") for strategy in programs[0].strategies]
    reference = Reference(model, seed, programs[0].precision, settings, weights, programs[0].optimizer, tp)
    batches = batches or Batches(model, programs[0].samples // programs[0].model.pieces, seed)
    gradients: list[dict[str, Tensor]] = []
    loss = gradient = parameter = 0.0
    for step in range(done):
        reference.step(batches.whole(step))
    for step, value in enumerate(outcome.losses):
        loss = max(loss, abs(reference.step(batches.whole(done + step)) - value))
        if step == 0:
            gradients = [{name: value.grad.clone() for name, value in unit.items()} for unit in reference.parameters]
    parameters = [{name: value.detach() for name, value in unit.items()} for unit in reference.parameters]
    for program in programs:
        for unit in program.units:
            largest = max(float(value.abs().max()) for value in gradients[unit].values())
            apart = _apart(program, unit, gradients[unit], outcome.gradients, group, True)
            gradient = max(gradient, apart / largest)
            shards = zero_stage(program, unit) == 3
            parameter = max(parameter, _apart(program, unit, parameters[unit], outcome.parameters, group, shards))
    return Differences(gradient, parameter, loss)


def _apart(
    program: Program, unit: int, whole: dict[str, Tensor], flat_values: dict[int, Tensor], group: Any, shards: bool
) -> float:
    """Largest difference between a rank's flat values, received unless they are rank 0's own, and the unit's whole values.
    shards: whether the rank has only its slice of them."""
    strategy, sublayer = program.strategies[unit], program.model.units[unit].sublayer
    shard = torch_units.Shard(strategy.degree("tp"), strategy.index(program.index_in_stage, "tp"))
    specification = {parameter.name: parameter for parameter in sublayer.parameters()}
    names = [name for name, *_ in flat_layout(program, unit)]
    flat = torch.cat([torch_units.sharded(specification[name], whole[name], shard).flatten() for name in names])
    degree = strategy.degree("sdp")
    piece = -(-flat.numel() // degree)
    start, size = (strategy.index(program.index_in_stage, "sdp") * piece, piece) if shards else (0, piece * degree)
    expected = flat[start : start + size]
    values = flat_values[unit].double() if program.rank == 0 else torch.empty(size, dtype=torch.float64)
    if program.rank:
        dist.recv(values, src=program.rank, group=group)
    return float((values[: len(expected)] - expected).abs().max()) if len(expected) else 0.0
