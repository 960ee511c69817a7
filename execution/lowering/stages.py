"""Stages: chains of units with changes of layout between, and the schedule of torch.distributed.pipelining that runs them.

Hidden states cross from stage to stage in the layout of the unit that produced them, between ranks of one index in their
stages; the first unit after a cut changes their layout, as between any two units. A plan of one stage is a pipeline of one.
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import pipelining
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _ComputationType, _PipelineScheduleRuntime
from torch.distributed.tensor import DTensor, Placement
from trainplan.execution.lowering.embedding_and_head import HeadUnit, unit_of
from trainplan.execution.lowering.meshes import (
    local_shape,
    pipeline_mesh,
    placements,
    relay_mesh,
    relays,
    stage_ranks,
)
from trainplan.execution.lowering.parallel import (
    Copies,
    before_backward,
    data_mesh,
    parallelise,
    policy_of,
    shard,
    shards_data,
    sums,
)
from trainplan.execution.lowering.weights import fill
from trainplan.formulations.costs.sequential.communication import shares_table
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.rank_grid import common_digits
from trainplan.formulations.plan.strategy import Strategy, rows_of
from trainplan.formulations.schedule.orders import SCHEDULES, orders
from trainplan.profiling.models import torch_units
from trainplan.profiling.models.dropout import Draw
from trainplan.profiling.models.model import Model


class Relay(nn.Module):
    """The torch module between two units (sub-layers) of a stage that moves hidden states from the layout of the first over
    ranks to that of the second; it does nothing if the layouts are equal."""

    def __init__(self, before: Strategy, after: Strategy, plan: Plan, device: str) -> None:
        super().__init__()
        self.mesh: DeviceMesh | None = None
        self.layouts: tuple[tuple[Placement, ...], tuple[Placement, ...]] = (), ()
        if relays(before, after):
            digits = common_digits([before, after])
            assert digits is not None
            mesh = relay_mesh(device, stage_ranks(plan), digits)
            self.mesh, self.layouts = mesh[mesh.mesh_dim_names[1:]], (placements(before, digits), placements(after, digits))

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states in the layout of the next unit. x and the result are this rank's (rows, tokens, hidden), before and
        after the move. A gradient is moved back the same way."""
        if self.mesh is None:
            return x
        before, after = self.layouts
        laid_out = DTensor.from_local(x, self.mesh, before, run_check=False).redistribute(placements=after)
        return laid_out.to_local(grad_placements=after)


class Chain(nn.Module):
    """The torch module of one pipeline stage on one rank: its units (sub-layers) in order, with changes of layout between them.

    stage: index of the stage. index_in_stage: the rank's index among the stage's ranks. seed: the seed of initial values and
    dropout. shapes: a mode in which parameters get a shape and no values, for a dry run; None for values from the seed. step:
    number of steps done, from which dropout masks follow; there is no dropout while it is evaluated. positions: indices of the
    units. The samples of a micro-batch are named by ids, and a unit takes those of its data-parallel rank.
    """

    def __init__(
        self,
        plan: Plan,
        model: Model,
        stage: int,
        index_in_stage: int,
        seed: int,
        device: torch.device,
        shapes: FakeTensorMode | None = None,
    ) -> None:
        super().__init__()
        first, last = plan.stages[stage].first_unit, plan.stages[stage].last_unit
        self.positions, self.index_in_stage, self.seed, self.step = range(first, last + 1), index_in_stage, seed, 0
        ranks, strategies, kind = stage_ranks(plan), plan.strategies(), device.type
        self.kept_whole = [plan.units[position].states.kept_whole for position in self.positions]
        precision, dtype = plan.precision.for_model(model), torch_units.DTYPES[model.dtype]
        policy = policy_of(precision, dtype)
        total, kept = plan.batch.global_samples * model.tokens, torch_units.DTYPES[precision.master or model.dtype]
        tied = model.tied and shares_table(strategies, self.positions)
        with torch.device("meta"):
            parts = [unit_of(model.units[position].sublayer, strategies[position], total, tied) for position in self.positions]
        self.units = nn.ModuleList(part.to(kept) for part in parts)
        before = [strategies[max(position - 1, 0)] for position in self.positions]
        self.relays = nn.ModuleList(Relay(one, unit.strategy, plan, kind) for one, unit in zip(before, self.units, strict=True))
        for unit, whole in zip(self.units, self.kept_whole, strict=True):
            parallelise(unit, ranks, kind)
            if shards_data(unit.strategy, precision):
                shard(unit, ranks, kind, policy, whole)
        sharded = [unit for unit in self.units if isinstance(unit, FSDPModule)]
        if sharded:  # one root for all: it waits for all gradients at the end, and lets units gather ahead of each other
            others = {parameter for unit in self.units if not isinstance(unit, FSDPModule) for parameter in unit.parameters()}
            fully_shard(self, mesh=data_mesh(sharded[0].strategy, ranks, kind), ignored_params=others)
            sums(self)
            for one, other in pairwise(sharded):
                one.set_modules_to_forward_prefetch([other])
                other.set_modules_to_backward_prefetch([one])
        with shapes or nullcontext():
            for unit in self.units:
                unit.to_empty(device=device)
        if tied:
            self.units[0].table.tie()
            self.units[-1].borrowed.append(self.units[0].table)
        for position, unit in zip(self.positions, self.units, strict=True) if shapes is None else ():
            fill(unit, torch_units.unit_seed(model, position, seed))
        self.copies = [
            Copies(unit, data_mesh(unit.strategy, ranks, kind).get_group("dp"))
            for unit in self.units
            if unit.strategy.copies > 1 and not isinstance(unit, FSDPModule)
        ]

    def forward(self, x: Tensor, samples: Tensor, targets: Tensor | None = None) -> Tensor:
        """The stage's output on this rank for one micro-batch: hidden states (rows, tokens, hidden) or, if it has the head, the
        loss of the rank's samples as a scalar.

        x: token ids (rows, tokens), or hidden states in the layout of the unit that produced them. samples: ids of all samples
        of the micro-batch. targets: for the stage with the head, ids of the tokens to predict of this rank's samples; None for
        other stages.
        """
        ids = tuple(samples.tolist())
        for position, relay, unit in zip(self.positions, self.relays, self.units, strict=True):
            draw = None
            if unit.part.draws and self.training:
                own = rows_of(unit.strategy, self.index_in_stage, 0, len(ids))
                draw = Draw(self.seed, self.step, position, ids[own.start : own.stop], unit.rank_part.share)
            x = unit(relay(x), draw, targets) if isinstance(unit, HeadUnit) else unit(relay(x), draw)
        return x

    def before_backward(self, last: bool) -> None:
        """Prepare all units for their backward pass of a micro-batch: what is freed and reduced after it. last: whether it is
        the last one of the step."""
        for unit, whole in zip(self.units, self.kept_whole, strict=True):
            if isinstance(unit, FSDPModule):
                before_backward(unit, whole, last)
        for copy in self.copies:
            copy.last = last


class StageModule(nn.Module):
    """A stage's chain of units as torch's pipelining sees it: wrapped so that it is no FSDP module itself, since torch would
    reduce an FSDP module's gradients only at the end of a step; so they are reduced per micro-batch, as the plan says."""

    def __init__(self, chain: Chain) -> None:
        super().__init__()
        self.chain = chain

    def forward(self, *inputs: Tensor, **others: Tensor) -> Tensor:
        """The output of the chain on this rank: hidden states, or the loss of its samples. inputs, others: the chain's
        arguments, as torch's pipelining gives them."""
        result: Tensor = self.chain(*inputs, **others)
        return result


class Stage(PipelineStage):
    """A stage of torch's pipelining that tells its chain of units which backward pass is a step's last."""

    def backward_maybe_with_nosync(self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False) -> Any:
        """Run a backward pass as torch's PipelineStage does, after preparing the chain for it. backward_type, bwd_kwargs: as
        in torch's method. last_backward: whether it is the step's last one."""
        self.submod.chain.before_backward(last_backward)
        return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward=last_backward)


def make_stage(plan: Plan, model: Model, number: int, chain: Chain, device: torch.device) -> Stage:
    """A stage for torch's pipelining, given the shapes of what it receives and sends, so that torch does not find them out by
    a trial run. number: index of the stage. chain: its module on this rank."""
    strategies, rows = plan.strategies(), plan.batch.global_samples // plan.batch.micro_batches
    dtype = torch_units.DTYPES[model.dtype]

    def output_of(position: int) -> Tensor:
        """A unit's output on one rank, without memory."""
        shape = local_shape(strategies[position], rows, model.tokens, model.units[position].sublayer.hidden)
        return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)

    first, last = chain.positions[0], chain.positions[-1]
    if first == 0:
        entering = torch.empty((rows // strategies[0].data_degree, model.tokens), dtype=torch.int64, device="meta")
    else:
        entering = output_of(first - 1)
    if last == len(strategies) - 1:
        leaving = torch.empty((), dtype=torch.float64 if dtype == torch.float64 else torch.float32, device="meta")
        leaving.requires_grad_()
    else:
        leaving = output_of(last)
    group = pipeline_mesh(device.type, stage_ranks(plan)).get_group("stage")
    return Stage(
        StageModule(chain), number, len(plan.stages), device, input_args=(entering,), output_args=(leaving,), group=group
    )


def _loss_of(output: Tensor, target: Tensor) -> Tensor:
    """The loss function that torch's pipelining is given: it returns `output`, the last stage's, which is already the loss
    (the head computes it, so that its logits can be recomputed). target: unused."""
    return output


def make_schedule(plan: Plan, stages: list[Stage]) -> Any:
    """The pipeline schedule of a plan as an object of torch.distributed.pipelining, for this rank's stages. Gradients are not
    divided by the number of micro-batches, since the loss already is divided by the tokens of the whole step."""
    parts, options = plan.batch.micro_batches, {"loss_fn": _loss_of, "scale_grads": False}
    spec = SCHEDULES[plan.schedule]
    if spec.torch and (plan.schedule != "1f1b" or parts >= len(plan.stages)):
        return getattr(pipelining, spec.torch)(stages if spec.chunked else stages[0], parts, **options)
    # Schedule1F1B wants as many micro-batches as stages; the order itself does not.
    runtime = _PipelineScheduleRuntime(stages, parts, **options)
    kinds = {"forward": _ComputationType.FORWARD, "backward": _ComputationType.FULL_BACKWARD}
    runtime._prepare_schedule_with_comms(
        {
            device: [_Action(one.stage, kinds[one.kind], one.micro_batch) for one in order]
            for device, order in enumerate(orders(plan.schedule, len(plan.stages), parts))
        }
    )
    return runtime
