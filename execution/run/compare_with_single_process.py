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
    """The results of one rank of a run, for the comparison with a single process. A unit is a sub-layer of the model, known by
    its index. gradients: by unit, the rank's flat shard of the first step's gradient. parameters: by unit, the flat parameters
    after the last step: the rank's shard if parameters are gathered for each pass (ZeRO stage 3), else all of them. losses: the
    loss of the whole batch, one per step."""

    gradients: dict[int, Tensor]
    parameters: dict[int, Tensor]
    losses: list[float]


class Differences(NamedTuple):
    """The largest differences between a run and the training of the whole model on one process. gradient_difference: over all
    gradients of the first step, relative to the largest gradient of the same unit (sub-layer). parameter_difference: absolute,
    over all parameters after the last step. loss_difference: absolute, over the losses of all steps."""

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
    """Compare a run with training of the whole model on one process. Called on all ranks of the process group `group`: rank 0
    trains the model alone and receives every rank's values, one rank at a time. A program is one rank's instructions for a
    training step.

    programs: the programs of all ranks. outcome: this rank's results. seed: the seed of the initial parameters. done: number of
    steps before the first step of the outcome, if the run resumed from a checkpoint. batches: the samples of each step; None:
    synthetic samples from the seed. settings: the settings of the optimizer. weights: a folder with the initial values; None:
    from the seed. Returns None on all ranks but 0.
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
    """The largest absolute difference between a rank's flat values of a unit (sub-layer) and the reference's. Runs on rank 0,
    which receives the values over `group` unless they are its own. program: the program of the rank whose values are compared.
    whole: the reference's values (those of the single process), by name of the parameter. flat_values: rank 0's own values, by
    unit. shards: whether the rank holds only its shard of them. A program is one rank's instructions for a training step."""
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
