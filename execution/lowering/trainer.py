"""One rank of a lowered plan: its stages, its optimizers, and a training step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import loss_parallel
from trainplan.execution.lowering.blocks import Unit
from trainplan.execution.lowering.memory import StorageTracker
from trainplan.execution.lowering.meshes import make_meshes
from trainplan.execution.lowering.norms import global_square, scale
from trainplan.execution.lowering.stages import Chain, make_schedule, make_stage
from trainplan.execution.training.batches import Batches
from trainplan.execution.training.optimizer import Optimizer
from trainplan.execution.training.settings import DEFAULT_TRAINING, Training
from trainplan.formulations.costs.sequential.communication import shares_table
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy import rows_of
from trainplan.profiling.models.model import Model


class Trainer:
    """One rank that trains a plan by torch's own parallel modules. Created on all ranks together; with default settings it
    trains on the same samples and from the same initial values as the executor of programs.

    model: to run instead of the plan's own. Every unit (sub-layer) has optimizers of its own, one for each device mesh that
    its parameters lie on, since fused optimizers take tensors of one mesh. steps: number of steps done. gradient_norm: the
    global norm of the last step's gradients, before they were scaled down; None if it is not needed. shapes: a mode in which
    parameters get a shape and no values, for a dry run; None in real runs.
    """

    def __init__(
        self,
        plan: Plan,
        model: Model,
        rank: int,
        seed: int,
        device: torch.device,
        training: Training = DEFAULT_TRAINING,
        shapes: FakeTensorMode | None = None,
    ) -> None:
        self.plan, self.model, self.rank, self.device, self.training = plan, model, rank, device, training
        self.steps, self.gradient_norm = 0, None
        make_meshes(plan, device.type)
        numbers = [number for number, stage in enumerate(plan.stages) if rank in stage.ranks]
        self.index_in_stage = plan.stages[numbers[0]].ranks.index(rank)
        chains = [Chain(plan, model, number, self.index_in_stage, seed, device, shapes) for number in numbers]
        self.stages = [make_stage(plan, model, number, one, device) for number, one in zip(numbers, chains, strict=True)]
        self.chains: list[Chain] = chains
        self.schedule = make_schedule(plan, self.stages)
        self.tied = TiedTables(plan, model, self)
        self.optimizers = [one for unit in self.units.values() for one in optimizers_of(unit, training.optimizer)]
        self.batches = training.batches(plan, model, seed)
        self._take(self.batches, 0)

    @property
    def units(self) -> dict[int, Unit]:
        """The torch modules of the rank's units (sub-layers), by their index in the model."""
        return dict(chain.from_iterable(zip(part.positions, part.units, strict=True) for part in self.chains))

    def _take(self, batches: Batches, step: int) -> None:
        """Set this rank's inputs and targets from the batch of a step: micro-batch after micro-batch, in each the samples of
        this rank."""
        plan, strategies = self.plan, self.plan.strategies()
        count = plan.batch.global_samples // plan.batch.micro_batches

        def tokens(position: int) -> Tensor:
            """Token ids of the rank's rows under a unit's layout."""
            starts = range(0, plan.batch.global_samples, count)
            rows = [row for start in starts for row in rows_of(strategies[position], self.index_in_stage, start, count)]
            return batches.rows(step, rows)

        self.inputs: tuple[Tensor, ...] = ()
        self.others: dict[str, Any] = {"samples": torch.arange(plan.batch.global_samples)}
        if 0 in self.units:
            self.inputs = (tokens(0)[:, :-1].to(self.device),)
        self.ends = len(strategies) - 1 in self.units
        if self.ends:
            self.others |= {"targets": tokens(len(strategies) - 1)[:, 1:].contiguous().to(self.device)}

    def step(self) -> float:
        """Run one training step; returns the loss of the whole batch before the update."""
        if self.training.data is not None:
            self._take(self.batches, self.steps)
        loss = self.gradients()
        optimizer = self.training.optimizer
        if self.gradient_norm is not None and (factor := optimizer.scale(self.gradient_norm)) < 1:
            scale(self.parameters(), factor)
        optimizer.set_rate(self.optimizers, self.steps)
        for stepped in self.optimizers:
            stepped.step()
        self.done(self.steps + 1)
        return loss

    def done(self, steps: int) -> None:
        """Set the number of steps done, from which the samples, dropout masks and learning rate of the next step follow."""
        self.steps = steps
        for part in self.chains:
            part.step = steps

    def gradients(self) -> float:
        """Run the forward and backward passes of a batch; returns its loss. The gradients are left in `.grad` of the
        parameters, each laid out over ranks as its parameter is."""
        for unit in self.units.values():
            unit.zero_grad(set_to_none=True)
        losses: list[Tensor] = []
        with loss_parallel():
            self.schedule.step(*self.inputs, **self.others, **self._ending(losses), return_outputs=False)
        for copies in (copies for part in self.chains for copies in part.copies):
            copies.finish()
        for parameter in self.parameters():
            match_parameter_layout(parameter)
        self.tied.sum()
        square = (
            global_square(self.units.values(), self.index_in_stage, self.tied.second, self.device)
            if self.training.normed
            else None
        )
        loss, whole_square = self._summed(losses, square)
        self.gradient_norm = None if square is None else whole_square**0.5
        return loss

    @torch.no_grad()
    def evaluate(self, batches: Batches, count: int) -> float:
        """The mean loss of the first `count` of these batches, without dropout and without training on them. A collective of
        all ranks."""
        total = 0.0
        for part in self.chains:
            part.eval()
        for step in range(count):
            self._take(batches, step)
            losses: list[Tensor] = []
            with loss_parallel():
                self.schedule.eval(*self.inputs, **self.others, **self._ending(losses), return_outputs=False)
            total += self._summed(losses, None)[0]
        for part in self.chains:
            part.train()
            for module in part.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()  # as a backward pass does: until then, parameters are the gathered ones
        self._take(self.batches, self.steps)
        return total / count

    def _ending(self, losses: list[Tensor]) -> dict[str, Any]:
        """The arguments `target` and `losses` with which torch's schedule fills the list `losses`, for ranks with the model's
        head; empty on other ranks."""
        return {"target": self.others["samples"], "losses": losses} if self.ends else {}

    def _summed(self, losses: list[Tensor], square: Tensor | None) -> tuple[float, float]:
        """Sum two numbers over all ranks. Returns (the batch's loss, the square of the gradients' global norm). losses: the
        losses of this rank's micro-batches; empty on ranks without the model's head. square: this rank's part of the square of
        the norm; None if it is not needed, and the second number is then 0."""
        total = torch.zeros(2, dtype=torch.float64, device=self.device)
        last = self.plan.strategies()[-1]
        if self.ends and last.index(self.index_in_stage, "tp") == 0:
            total[0] = torch.stack([one.detach().double() for one in losses]).sum()
        if square is not None:
            total[1] = square
        dist.all_reduce(total)
        loss, whole = total.tolist()
        return loss, whole

    def states(self) -> Iterator[Tensor]:
        """The rank's tensors that live from step to step: parameters, optimizer states, the batch, and the buffers that
        messages arrive in."""
        yield from self.parameters()
        for optimizer in self.optimizers:
            yield from (value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor))
        yield from (*self.inputs, *self.others.values())
        for stage in self.stages:
            infos = [*stage.args_recv_info.values(), *stage.grad_recv_info.values()]
            yield from (info.buffer for received in infos for info in received if info.buffer is not None)

    def peak_bytes(self, copies: bool = False) -> int:
        """Peak memory in bytes of one training step, which is run for it. copies: whether the input of a reduce-scatter is
        counted twice, as a dry run needs for gloo."""
        for parameter in self.parameters():
            parameter.grad = None
        with StorageTracker(copies) as memory:
            memory.count(self.states())
            self.step()
        return memory.peak_bytes

    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of all units of this rank, in order."""
        for unit in self.units.values():
            yield from unit.parameters()


@torch.no_grad()
def match_parameter_layout(parameter: nn.Parameter) -> None:
    """Bring a parameter's gradient into the parameter's own layout over ranks, in place: ranks that worked on their own tokens
    or heads have partial sums of it."""
    gradient = parameter.grad
    if isinstance(parameter, DTensor) and isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
        parameter.grad = gradient.redistribute(placements=parameter.placements)


def optimizers_of(unit: Unit, settings: Optimizer) -> list[torch.optim.Optimizer]:
    """AdamW optimizers with these settings for a sub-layer's parameters: one for the parameters of each device mesh, as fused
    kernels require."""
    by_mesh: dict[Any, list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in unit.named_parameters():
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        by_mesh.setdefault(mesh, []).append((name, parameter))
    return [settings.adamw(group) for group in by_mesh.values()]


class TiedTables:
    """The tied table of embedding and head on one rank. If embedding and head are on different stages or have different
    layouts, each has a copy; both copies begin equal and get the sum of both gradients in every step, so that they stay equal.
    shared_table: whether the table is a single parameter instead. second: the head's copy, if the rank holds one. ends: the
    copies of the table that this rank holds."""

    def __init__(self, plan: Plan, model: Model, trainer: Trainer) -> None:
        self.ends: list[nn.Parameter] = []
        self.group: Any = None
        self.second: nn.Parameter | None = None
        self.shared_table = model.tied and shares_table(plan.strategies(), range(plan.stages[0].last_unit + 1))
        if not model.tied or self.shared_table:
            return
        ranks = sorted({*plan.stages[0].ranks, *plan.stages[-1].ranks})
        self.group = dist.new_group(ranks) if len(ranks) > 1 else None
        names = {0: "tokens.weight", len(plan.units) - 1: "logits.weight"}
        for position, name in names.items():
            if position in trainer.units:
                self.ends.append(trainer.units[position].get_parameter(name))
                self.second = self.ends[-1] if position else None
        self.first = trainer.index_in_stage == 0

    @torch.no_grad()
    def sum(self) -> None:
        """Sum the gradients of both copies of the table over the ranks that hold them, in place; nothing if there is one
        parameter. A collective; for each copy, the first rank of its stage contributes."""
        if not self.ends:
            return
        total: Tensor | None = None
        for parameter in self.ends:
            assert parameter.grad is not None
            whole = parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad
            whole = whole if self.first else torch.zeros_like(whole)
            total = whole.clone() if total is None else total.add_(whole)
        assert total is not None
        if self.group is not None:
            dist.all_reduce(total, group=self.group)
        for parameter in self.ends:
            if isinstance(parameter, DTensor):
                mesh = parameter.device_mesh
                everywhere = DTensor.from_local(total, mesh, [Replicate()] * mesh.ndim, run_check=False)
                parameter.grad = everywhere.redistribute(placements=parameter.placements)
            else:
                parameter.grad = total.clone()
