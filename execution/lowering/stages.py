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
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
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
from trainplan.formulations.schedule.orders import orders
from trainplan.profiling.models import torch_units
from trainplan.profiling.models.dropout import Draw
from trainplan.profiling.models.model import Model


class Relay(nn.Module):
    """Changes the layout of hidden states from that of one unit to that of the next."""

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
        """x and the result are (rows, tokens, hidden) of this rank. A gradient goes back the same way, and gets x's layout."""
        if self.mesh is None:
            return x
        before, after = self.layouts
        laid_out = DTensor.from_local(x, self.mesh, before, run_check=False).redistribute(placements=after)
        return laid_out.to_local(grad_placements=after)


class Chain(nn.Module):
    """The units of one stage, on one rank.

    shapes: a mode in which parameters get a shape and no values, for a dry run; None for values from the seed. step: number of
    steps done, from which dropout masks follow; none are drawn while it is evaluated. The samples of a micro-batch are named by
    ids, and a unit takes those of its own block.
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
        precision, dtype = plan.precision.of(model), torch_units.DTYPES[model.dtype]
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
            if unit.strategy.degree("dp") > 1 and not isinstance(unit, FSDPModule)
        ]

    def forward(self, x: Tensor, samples: Tensor, targets: Tensor | None = None) -> Tensor:
        """The last unit's output on this rank: hidden states, or the loss of its rows.

        x: token ids, or hidden states as the unit before produced them. samples: ids of the micro-batch's samples. targets: for
        the stage with the head, ids of this rank's tokens.
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
        """Called before each micro-batch's backward pass. last: of the step."""
        for unit, whole in zip(self.units, self.kept_whole, strict=True):
            if isinstance(unit, FSDPModule):
                before_backward(unit, whole, last)
        for copy in self.copies:
            copy.last = last


class StageModule(nn.Module):
    """A chain as torch's pipeline sees it: no FSDP module itself, so that each micro-batch's gradients are reduced as the plan
    says. A pipeline of torch reduces those of an FSDP module once, at the end of a step."""

    def __init__(self, chain: Chain) -> None:
        super().__init__()
        self.chain = chain

    def forward(self, *inputs: Tensor, **others: Tensor) -> Tensor:
        """As `Chain.forward`."""
        result: Tensor = self.chain(*inputs, **others)
        return result


class Stage(PipelineStage):
    """A stage of torch's pipeline that passes on to its chain which backward pass is a step's last."""

    def backward_maybe_with_nosync(self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False) -> Any:
        """As PipelineStage's."""
        self.submod.chain.before_backward(last_backward)
        return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward=last_backward)


def make_stage(plan: Plan, model: Model, number: int, chain: Chain, device: torch.device) -> Stage:
    """A stage with the shapes of what it receives and sends, so that torch need not find them out by a trial."""
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
    """The loss, which the head has computed already, so that its logits can be recomputed."""
    return output


def make_schedule(plan: Plan, stages: list[Stage]) -> Any:
    """The schedule of a plan, for torch's pipeline. Gradients are not divided by the number of micro-batches: the loss is,
    once."""
    parts, options = plan.batch.micro_batches, {"loss_fn": _loss_of, "scale_grads": False}
    if plan.schedule == "interleaved-1f1b":
        return ScheduleInterleaved1F1B(stages, parts, **options)
    if plan.schedule == "gpipe":
        return ScheduleGPipe(stages[0], parts, **options)
    if parts >= len(plan.stages):
        return Schedule1F1B(stages[0], parts, **options)
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
