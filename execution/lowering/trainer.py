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
    """A rank of a plan that trains; without settings it trains as the executor of programs does, on the same samples, from the
    same initial values.

    Created on all ranks together. model: to run instead of the plan's own. Every unit has optimizers of its own, one for each
    mesh that its parameters lie on: fused ones take tensors of one. steps: number of steps done. gradient_norm: of the last
    step, over all parameters of all ranks, before gradients were scaled; None where it is not needed. shapes: as of `Chain`,
    for a dry run.
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
        """The rank's units by their positions in the model."""
        return dict(chain.from_iterable(zip(part.positions, part.units, strict=True) for part in self.chains))

    def _take(self, batches: Batches, step: int) -> None:
        """Set this rank's part of a step's batch: micro-batch after micro-batch, its own rows of each."""
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
        """One training step; returns the loss of the whole batch before it."""
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
        """Set the number of steps done: samples, masks and learning rates of the next one follow from it."""
        self.steps = steps
        for part in self.chains:
            part.step = steps

    def gradients(self) -> float:
        """The loss of the batch, with its gradients left in `.grad` of the parameters, each laid out as its parameter."""
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
        """The mean loss of the first `count` batches, without dropout and without training on them."""
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
        """The arguments with which the schedule of a rank with the head fills a list of losses; empty on other ranks."""
        return {"target": self.others["samples"], "losses": losses} if self.ends else {}

    def _summed(self, losses: list[Tensor], square: Tensor | None) -> tuple[float, float]:
        """The loss of all ranks' rows, and the sum over ranks of their squares (0 without one)."""
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
        """Tensors that live from step to step: parameters, the optimizers' states, the batch, and the buffers that messages
        arrive in."""
        yield from self.parameters()
        for optimizer in self.optimizers:
            yield from (value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor))
        yield from (*self.inputs, *self.others.values())
        for stage in self.stages:
            infos = [*stage.args_recv_info.values(), *stage.grad_recv_info.values()]
            yield from (info.buffer for received in infos for info in received if info.buffer is not None)

    def peak_bytes(self, copies: bool = False) -> int:
        """Peak memory in bytes of a training step, which it takes. copies: as of `memory.StorageTracker`."""
        for parameter in self.parameters():
            parameter.grad = None
        with StorageTracker(copies) as memory:
            memory.count(self.states())
            self.step()
        return memory.peak_bytes

    def parameters(self) -> Iterator[nn.Parameter]:
        """All parameters of the rank."""
        for unit in self.units.values():
            yield from unit.parameters()


@torch.no_grad()
def match_parameter_layout(parameter: nn.Parameter) -> None:
    """Lay a gradient out as its parameter is: ranks that worked on their own tokens or heads have parts of a sum."""
    gradient = parameter.grad
    if isinstance(parameter, DTensor) and isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
        parameter.grad = gradient.redistribute(placements=parameter.placements)


def optimizers_of(unit: Unit, settings: Optimizer) -> list[torch.optim.Optimizer]:
    """AdamW for a unit's parameters, one for those of each mesh."""
    by_mesh: dict[Any, list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in unit.named_parameters():
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        by_mesh.setdefault(mesh, []).append((name, parameter))
    return [settings.adamw(group) for group in by_mesh.values()]


class TiedTables:
    """A table that embedding and head share. Where they are on unlike stages or have unlike layouts, both have one: these are
    equal at first and get the sum of both gradients in every step, so that they stay equal. shared_table: whether it is one
    parameter. second: the head's table, where the rank has it as a copy."""

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
        """Sum both gradients: of each table, the first rank of its stage contributes the whole."""
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
