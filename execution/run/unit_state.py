"""The parameters of a unit on one rank.

They lie in one flat buffer (split ones first, then the replicated ones), of which sharded data parallelism keeps a slice, or
the whole (ZeRO stages 1 and 2), whose slice the optimizer works on. A gathered buffer is one tensor whose storage is emptied
between uses: views into it, also those that a graph saved, show the parameters again after they are gathered back. It is filled
through `.data`, so that autograd's version counters take no offence at contents that are the same.

The optimizer works on that slice itself, or on a master copy of it in a wider dtype, from which it is then rounded. Gradients
are as wide as the copy, or as the parameters; then they are widened while it works.

Every unit has an optimizer of its own, so that its moments and its count of steps change at its own instruction and nowhere
else. Against one for all units of the rank that costs some 25 microseconds a unit and step. Under Muon it is one for the unit's
matrices, each a view of the buffer, and one for the rest.

Where a unit's optimizer works on the host, its shards of parameters, gradients and moments lie there, in memory that a GPU
copies from and to directly. The device's own copy of the shard then has its storage emptied too wherever it is prefetched; so
has that of the whole parameters, where they are not sharded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from trainplan.execution.analysis.verify.buffer_sizes import zero_stage
from trainplan.execution.program import Program
from trainplan.execution.run.flat_gradients import FlatGradients, Layout
from trainplan.execution.training.muon import MatricesWithAdamW, Piece
from trainplan.execution.training.optimizer import PLAIN, torch_optimizer
from trainplan.profiling.models import torch_units
from trainplan.profiling.models.optimizers import OPTIMIZERS, is_stepped_by_muon
from trainplan.profiling.models.sublayers import Sublayer


@dataclass
class UnitState:
    """The parameters, gradients and optimizer of one unit (sub-layer) on one rank. The rank's tensor-parallel part of all
    parameters is one flat tensor, of which sharded data parallelism cuts a shard (slice) for each rank.

    shard: degree and index of the rank's tensor-parallel part. layout: (name, start, end, shape) of each parameter in the flat
    tensor. flat_shard: the rank's shard on the device, from which whole parameters are gathered. master: the shard that the
    optimizer updates: flat_shard itself or, if the optimizer works on the host or in a wider dtype, a copy of it. gradient: the
    summed gradient of `master`. summed: the flat gradient to which the backward passes of all micro-batches add: `gradient`
    itself, or the gradient of the whole flat tensor, of which `gradient` is a slice. optimizer: torch's optimizer of `master`.
    whole: the flat tensor. views: the parameters by name, as views of `whole`. gradients: collects the gradients of these
    views. partitioned: whether `whole` has memory only while it is gathered (ZeRO stage 3). replicated_start: index in the flat
    tensor at which the parameters begin that all tensor-parallel ranks hold alike.
    """

    shard: torch_units.Shard
    layout: Layout
    flat_shard: Tensor
    master: Tensor
    gradient: Tensor
    summed: Tensor
    optimizer: torch.optim.Optimizer | MatricesWithAdamW
    whole: Tensor
    views: dict[str, Tensor]
    gradients: FlatGradients
    partitioned: bool
    replicated_start: int

    @property
    def kept(self) -> Tensor:
        """The flat parameters that the rank keeps between steps: the whole or, under ZeRO stage 3, its shard; on the host if
        the optimizer works there. Never the wider master copy."""
        if self.master.dtype is not self.flat_shard.dtype:
            return self.flat_shard if self.partitioned else self.whole
        return self.master if self.partitioned or self.master.numel() == self.whole.numel() else self.whole

    def step(self) -> None:
        """Run the optimizer's step on the rank's shard, and update the parameters from the master copy if there is one."""
        master, gradient = self.master, self.gradient
        master.grad = gradient if gradient.dtype is master.dtype else gradient.to(master.dtype)
        self.optimizer.step()
        master.grad = None
        if master.dtype is not self.flat_shard.dtype:
            self.flat_shard.copy_(master.detach())


def host_tensor(elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A flat tensor of this number of elements and this dtype, all zeros, in the host's memory, pinned if `device` is a GPU."""
    return torch.zeros(elements, dtype=dtype, pin_memory=device.type == "cuda")


def fill_storage(tensor: Tensor) -> None:
    """Allocate the memory of a flat tensor whose storage was emptied again, uninitialised; nothing if it has its memory."""
    storage, size = tensor.untyped_storage(), tensor.numel() * tensor.element_size()
    if storage.nbytes() != size:
        storage.resize_(size)


def empty_storage(tensor: Tensor) -> None:
    """Release the memory of a flat tensor; the tensor and its views remain, without contents."""
    tensor.untyped_storage().resize_(0)


def gradient_dtype(program: Program) -> torch.dtype:
    """The dtype in which gradients are accumulated, and summed over ranks."""
    gradients = program.precision.gradients
    return torch_units.DTYPES[program.model.dtype if gradients == "model" else gradients]


def flat_layout(program: Program, position: int) -> Layout:
    """The layout of a rank's flat tensor of a sub-layer's parameters: (name, start, end, shape) of each, in order. A head that
    uses the embedding's table has no entry for it. position: the sub-layer's index."""
    strategy, last = program.strategies[position], len(program.strategies) - 1
    shard = torch_units.Shard(strategy.degree("tp"), strategy.index(program.index_in_stage, "tp"))
    layout = torch_units.flat_layout(program.model.units[position].sublayer, shard)
    if position < last or not program.shares_table:
        return layout
    (_, _, size, _), *others = layout  # split parameters come first, and it is the first of them
    return [(name, start - size, end - size, shape) for name, start, end, shape in others]


def pieces_of(flat: Tensor, layout: Layout, part: Sublayer) -> Iterator[Piece]:
    """The parts of a unit's flat tensor that the optimizer steps separately if it is Muon with AdamW: each matrix, and each
    other parameter. layout: (name, start, end, shape) of each parameter. part: the sub-layer."""
    specification = {parameter.name: parameter for parameter in part.parameters()}
    for name, start, end, shape in layout:
        if not is_stepped_by_muon(part, specification[name]):
            yield Piece(name, flat, partial(_between, start, end), False)
            continue
        size = shape[-2] * shape[-1]
        for first in range(start, end, size):
            yield Piece(name, flat, partial(_between, first, first + size, shape=shape[-2:]), True)


def _between(start: int, end: int, tensor: Tensor, shape: tuple[int, ...] = (-1,)) -> Tensor:
    """The elements `start` to `end` (exclusive) of a flat tensor, viewed in this shape."""
    return tensor[start:end].view(shape)


def make_unit(program: Program, position: int, seed: int, device: torch.device) -> UnitState:
    """The initial state of a unit (sub-layer) on this rank: its part of the values that the seed gives. position: the unit's
    index."""
    model, strategy = program.model, program.strategies[position]
    part = model.units[position].sublayer
    piece = strategy.data_index(program.index_in_stage) % model.pieces
    shard = torch_units.Shard(strategy.degree("tp"), strategy.index(program.index_in_stage, "tp"), piece)
    layout = flat_layout(program, position)
    values = torch_units.whole_parameters(part, torch_units.unit_seed(model, position, seed))
    specification = {parameter.name: parameter for parameter in part.parameters()}
    degree, size, dtype = strategy.degree("sdp"), layout[-1][2], torch_units.DTYPES[model.dtype]
    length = -(-size // degree)
    whole = torch.zeros(length * degree, dtype=dtype, device=device)
    for name, start, end, _ in layout:
        whole[start:end] = torch_units.sharded(specification[name], values[name], shard).reshape(-1)
    zero, first = zero_stage(program, position), strategy.index(program.index_in_stage, "sdp") * length
    flat_shard = master = whole[first : first + length].clone() if zero == 3 else whole.detach()[first : first + length]
    if program.steps_on_host(position):
        master = host_tensor(length, dtype, device).copy_(flat_shard)
        gradient = summed = host_tensor(length, dtype, device)
    else:
        summed = torch.zeros_like(flat_shard if zero >= 2 else whole, dtype=gradient_dtype(program))
        gradient = summed if zero >= 2 else summed[first : first + length]
    views = {name: whole[start:end].view(shape).detach().requires_grad_() for name, start, end, shape in layout}
    if zero == 3:
        empty_storage(whole)
    if f"parameter.{position}" not in program.persistent:
        empty_storage(flat_shard)
    if program.precision.master is not None:
        master = flat_shard.to(torch_units.DTYPES[program.precision.master])
    gradients = FlatGradients(layout, views)
    master.requires_grad_()
    optimizer: torch.optim.Optimizer | MatricesWithAdamW
    if OPTIMIZERS[program.optimizer].whole_matrices:
        optimizer = MatricesWithAdamW(pieces_of(master, layout, part), PLAIN, torch_optimizer(program.optimizer))
    else:
        optimizer = torch_optimizer(program.optimizer)(PLAIN, [("parameters", master)])
    replicated = [start for name, start, _, _ in layout if specification[name].split is None]
    start = replicated[0] if replicated else size
    return UnitState(shard, layout, flat_shard, master, gradient, summed, optimizer, whole, views, gradients, zero == 3, start)
