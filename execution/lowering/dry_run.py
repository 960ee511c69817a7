"""The memory of lowered ranks before they run: their step on shapes alone.

A lowered plan's memory is decided by torch: parts that FSDP gathers ahead, what autograd keeps, results of collectives. The
programs of the plan do not have all of that, so their peak memory is not its prediction. The dry run is: the lowered model
itself takes a step on tensors that have shapes, dtypes and storages without memory (`FakeTensorMode`), its collectives go to a
process group that moves nothing, and the dispatch tracker counts as in a run. No device is needed, however large the plan.

Kernels are those of the CPU: where a GPU's attention keeps other tensors for its backward pass, the peak differs by these. gloo
has no reduce-scatter: on CPUs torch does an all-reduce of a copy, which is counted for as long as that takes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.stage import InferenceMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves
from trainplan.execution.lowering.trainer import Trainer
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.processes import Report, run_workers
from trainplan.profiling.models.model import Model


class Shapes(FakeTensorMode):
    """A mode of torch in which operations compute shapes only (FakeTensorMode), with one addition: a number that is read from
    a tensor without memory (an id, loss or norm) is 1."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            (read,) = (leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor))
            return 1.0 if read.is_floating_point() else 1
        return super().__torch_dispatch__(func, types, args, kwargs)


class Sent:
    """A stand-in for a batch of messages in flight, in a dry run; as with real messages, its tensors are kept alive until it
    is waited for."""

    def __init__(self, messages: list[dist.P2POp]) -> None:
        self.held = [message.tensor for message in messages]

    def wait(self) -> None:
        """Does nothing: in a dry run no message moves."""


def dry_peaks(plans: list[Plan], model: Model | None = None, by_gloo: bool = True) -> list[list[int]]:
    """Predict the peak memory of a training step by torch with a dry run on shapes: [plan][rank] -> bytes.

    Only the first rank of each stage is simulated, whose parts are the largest; its peak is taken for the stage's other ranks,
    too. plans: plans that torch's own parallel modules can run (`execution.runtimes.torch.refusals` is empty for them). model:
    to run instead of the plans' own; None for the plans'. by_gloo: whether gloo sums gradients, which needs a copy. Raises
    WorkerError if a process fails.
    """
    tried = [(number, stage) for number, plan in enumerate(plans) for stage in range(plan.depth)]
    models = [model or plan.planned_model() for plan in plans]
    jobs = [(plans[number], models[number], plans[number].stages[x].ranks[0], by_gloo) for number, x in tried]
    measured = run_workers("trainplan.execution.lowering.dry_run:run_rank", len(jobs), jobs, backend="fake")
    by_stage = dict(zip(tried, measured, strict=True))
    return [_by_rank(plan, [by_stage[number, stage] for stage in range(plan.depth)]) for number, plan in enumerate(plans)]


def _by_rank(plan: Plan, peaks: list[int]) -> list[int]:
    """Peak bytes of every rank of a plan, in rank order. peaks: peak bytes of the first rank of each stage, in stage order."""
    of_rank = {rank: peak for stage, peak in zip(plan.stages[: plan.depth], peaks, strict=True) for rank in stage.ranks}
    return [of_rank[rank] for rank in range(plan.world)]


def run_rank(number: int, count: int, jobs: list[tuple[Plan, Model, int, bool]], report: Report) -> int:
    """Body of a process of the dry run: the peak memory in bytes of one rank of one plan. number: the process's, which is the
    index of its job. count, report: unused; part of the signature of such bodies. jobs: (plan, model, rank, whether gloo sums
    gradients)."""
    plan, model, rank, by_gloo = jobs[number]
    dist.destroy_process_group()  # the one of these processes, which have nothing to say to each other
    dist.init_process_group("fake", rank=rank, world_size=plan.world, store=FakeStore())
    shapes = Shapes()
    trainer = Trainer(plan, model, rank, 0, torch.device("cpu"), shapes=shapes)
    for stage in trainer.stages:
        stage._inference_mode = InferenceMode.STATIC  # on which stages agree by a message before their first step
    trainer.schedule._warmup_p2p = lambda *stages: None
    schedules._batch_p2p = lambda messages, desc=None: [Sent(messages)] if messages else []
    with shapes:
        trainer.step()
        return trainer.peak_bytes(by_gloo)
