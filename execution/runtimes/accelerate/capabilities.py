"""The features that plans for Accelerate may have.

One stage; states sharded by FSDP2 (ZeRO stages 2 and 3), copies of shards (`--hybrid`) or copies alone; recomputation of whole
layers. Tensor parallelism is not used.
"""

from __future__ import annotations

from trainplan.formulations.plan.plan import RunBy
from trainplan.formulations.runtimes import DECODERS, Runtime

CAPABILITIES = Runtime(
    ("1f1b",),
    (0, 2, 3),
    one_stage=True,
    families=DECODERS,
    features=("master weights", "ZeRO stage 2", "recomputation of modules"),
    title="Accelerate",
    run_by=lambda _: RunBy(name="accelerate", software="PyTorch FSDP (Accelerate)"),
    layout_file="accelerate.yaml",
    one_micro_batch=True,
)
