"""A unit's strategy in torch's words: `parallelize_module` for tp and sequence parallelism, `fully_shard` for dp and sdp.

    tp      projections by columns, the matrix after them by rows, tables and logits by the vocabulary
    -sp     norms on a rank's own tokens, which are gathered before the projections and scattered after the sum
    dp      each gradient all-reduced as soon as the step's last micro-batch has added to it (with a master copy of the
            parameters: fully_shard over (dp, 1), which keeps both)
    sdp     fully_shard over (dp, sdp), with dp hybrid sharding:
              ZeRO-3  parameters gathered for each pass, gradients reduce-scattered in each micro-batch
              ZeRO-2  parameters whole until the last micro-batch's backward pass
              ZeRO-1  gradients, too, whole until then, and reduce-scattered once a step

Everywhere gradients are summed (`set_gradient_divide_factor(1.0)`), and the loss is divided by the tokens of the whole step.
With unlike data degrees in one model an average over each unit's own ranks would weigh units against each other.

fully_shard and tp never split a tensor along the same dimension where it has another: what tp splits by rows FSDP splits by
columns. Of what remains, biases, both split the only one, evenly.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from trainplan.execution.lowering.blocks import RankPart, Unit
from trainplan.execution.lowering.embedding_and_head import EmbeddingUnit
from trainplan.execution.lowering.meshes import Ranks, level_mesh
from trainplan.execution.lowering.weights import INTO
from trainplan.formulations.plan.strategy import Strategy
from trainplan.profiling.models import torch_units
from trainplan.profiling.models.precision import Precision


def parallelise(unit: Unit, ranks: Ranks, device: str) -> None:
    """Split a sub-layer's matrices over its tensor-parallel ranks, in place, and set its `rank_part`; nothing if it has no
    tensor parallelism. ranks: the ranks of each stage. device: 'cpu' or 'cuda'."""
    strategy, tp = unit.strategy, unit.strategy.degree("tp")
    if tp == 1:
        return
    mesh = level_mesh(device, ranks, strategy.levels)["tp"]
    share = (mesh.get_local_rank(), tp) if strategy.sequence_parallel else (0, 1)
    unit.rank_part = RankPart(mesh, share)
    styles = {name: style for name, style in _styles(strategy).items() if _has(unit, name)}
    parallelize_module(unit, mesh, styles)
    if isinstance(unit, EmbeddingUnit) and hasattr(unit, "table"):
        unit.table.tie()
    if isinstance(bias := getattr(unit, "bias", None), Tensor):  # of a head: added to logits that are split
        unit.bias = nn.Parameter(distribute_tensor(bias.detach(), mesh, [Replicate()], src_data_rank=None))


def _has(unit: Unit, name: str) -> bool:
    """Whether a sub-layer has a submodule of this name."""
    return any(name == other for other, _ in unit.named_modules())


def _styles(strategy: Strategy) -> dict[str, ParallelStyle]:
    """How torch's `parallelize_module` splits the submodules of a unit (sub-layer) with this strategy: for every name that a
    submodule of any unit may have, a style. Outside the matrices a rank works on its own tokens if there is sequence
    parallelism, else on all tokens, as all ranks do."""
    outside: Any = Shard(1) if strategy.sequence_parallel else Replicate()
    styles: dict[str, ParallelStyle] = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=outside),
        "logits": ColwiseParallel(input_layouts=outside, output_layouts=Shard(-1), use_local_output=False),
        "q_norm": SequenceParallel(sequence_dim=2, use_local_output=True),  # heads, of which each rank has its own
        "k_norm": SequenceParallel(sequence_dim=2, use_local_output=True),
    }
    for name in ("project", "project_up"):
        styles[name] = PrepareModuleInput(input_layouts=(outside,), desired_input_layouts=(Replicate(),))
        styles |= {f"{name}.{matrix}": ColwiseParallel() for matrix in INTO}
    for name in ("out", "down"):
        styles[name] = RowwiseParallel(output_layouts=outside)
    styles |= {f"table.{name}": styles[name] for name in ("tokens", "logits")}
    if strategy.sequence_parallel:
        for name in ("norm", "ffn_norm", "dense", "dense_norm"):
            styles[name] = SequenceParallel(use_local_output=True)
    return styles


def shards_data(strategy: Strategy, precision: Precision) -> bool:
    """Whether a sub-layer with this strategy is put under `fully_shard`: because its data-parallel ranks shard states, or
    because parameters are kept in two precisions."""
    return strategy.degree("sdp") > 1 or precision.master is not None


def policy_of(precision: Precision, dtype: torch.dtype) -> MixedPrecisionPolicy:
    """The mixed-precision policy for `fully_shard`: parameters are kept in the master copy's dtype and computed with in
    `dtype`, the model's; no conversion if there are no master copies."""
    if precision.master is None:
        return MixedPrecisionPolicy()
    reduce = dtype if precision.gradients == "model" else torch_units.DTYPES[precision.gradients]
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduce)


def data_mesh(strategy: Strategy, ranks: Ranks, device: str) -> DeviceMesh:
    """The device mesh (dp, sdp) of the ranks that split a sub-layer's samples; either dimension may be 1. ranks: the ranks of
    each stage. device: 'cpu' or 'cuda'."""
    return level_mesh(device, ranks, strategy.levels)["dp", "sdp"]


def shard(unit: Unit, ranks: Ranks, device: str, policy: MixedPrecisionPolicy, kept_whole: bool) -> None:
    """Put a unit (sub-layer) under `fully_shard`, in place. ranks: the ranks of each stage. device: 'cpu' or 'cuda'. policy:
    dtypes of parameters and reductions. kept_whole: whether gathered parameters stay until the step's last backward pass."""

    def dimension(parameter: nn.Parameter) -> Shard | None:
        if isinstance(parameter, DTensor) and parameter.ndim > 1 and parameter.placements == (Shard(0),):
            return Shard(1)
        return None

    strategy = unit.strategy
    for module in sharded_modules(unit):
        fully_shard(
            module,
            mesh=data_mesh(strategy, ranks, device),
            reshard_after_forward=strategy.shares_parameters and not kept_whole,
            shard_placement_fn=dimension,
            mp_policy=policy,
        )
        sums(module)


def sharded_modules(unit: Unit) -> list[Any]:
    """The modules to put under `fully_shard` for a sub-layer, inner ones first: a tied table, if the sub-layer has one, and
    the sub-layer."""
    return [unit.table, unit] if isinstance(unit, EmbeddingUnit) and hasattr(unit, "table") else [unit]


class Copies:
    """Sums the gradients of a unit whose parameters all data-parallel ranks hold as copies (plain data parallelism). last:
    whether the next backward pass is the last one of a step; in it each gradient's all-reduce begins as soon as it is
    complete, in parallel with the computation. group: the process group of these ranks."""

    def __init__(self, unit: Unit, group: dist.ProcessGroup) -> None:
        self.group, self.last = group, False
        self._works: list[Any] = []
        for parameter in unit.parameters():
            parameter.register_post_accumulate_grad_hook(self._sum)

    @torch.no_grad()
    def _sum(self, parameter: Tensor) -> None:
        """Begin the all-reduce of a parameter's gradient, if this is the step's last backward pass; torch calls this after
        each accumulation."""
        gradient = parameter.grad
        if self.last and gradient is not None:
            local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            self._works.append(dist.all_reduce(local, group=self.group, async_op=True))

    def finish(self) -> None:
        """Wait until all all-reduces that have begun are done."""
        for work in self._works:
            work.wait()
        self._works.clear()


def sums(module: Any) -> None:
    """Make a module under `fully_shard` sum gradients over ranks instead of averaging them."""
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)


def before_backward(unit: Unit, kept_whole: bool, last: bool) -> None:
    """Set what `fully_shard` does after a sub-layer's next backward pass: free gathered parameters, reduce gradients.
    kept_whole: whether gathered parameters stay until the step's last backward pass. last: whether it is the step's last one.
    """
    strategy = unit.strategy
    for module in sharded_modules(unit):
        module.set_reshard_after_backward(last or (strategy.shares_parameters and not kept_whole), recurse=False)
        module.set_requires_gradient_sync(last or strategy.shares_gradients, recurse=False)
        module.set_requires_all_reduce(last, recurse=False)
