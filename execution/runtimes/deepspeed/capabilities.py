"""The features that plans for DeepSpeed may have.

One stage, one strategy for all units, ZeRO stages 1 to 3 among all ranks or copies of states, recomputation of whole layers,
the optimizer's states or all states on the host (`--host`). Tensor parallelism is not used.
"""

from __future__ import annotations

from trainplan.formulations.costs.overlapped.analytic_memory import COPY_BYTES
from trainplan.formulations.plan.plan import Plan, RunBy
from trainplan.formulations.runtimes import DECODERS, Runtime

REDUCE_BUCKET = 500_000_000  # elements, the default of reduce_bucket_size


def _run_by(plan: Plan) -> RunBy:
    """The settings with which DeepSpeed runs a plan. Gradients that are wider than the model's numbers are reduced so, too, in
    buckets of as many bytes more."""
    wide = plan.precision.gradients == "float32" and plan.planned_model().element_bytes < COPY_BYTES
    buffers = {"reduce_elements": 2 * REDUCE_BUCKET} if wide else {}
    return RunBy(name="deepspeed", software="deepspeed", flags="FusedAdam overlap_comm", buffers=buffers)


CAPABILITIES = Runtime(
    ("1f1b",),
    (0, 1, 2, 3),
    one_stage=True,
    shards_masters=True,
    hybrid=False,
    host=("optimizer", "parameters"),
    families=DECODERS,
    features=("master weights", "ZeRO stage 1", "ZeRO stage 2", "recomputation of modules", "states on the host"),
    title="DeepSpeed",
    run_by=_run_by,
    layout_file="ds_config.json",
    one_micro_batch=True,
)
