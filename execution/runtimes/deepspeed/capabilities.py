"""The features that plans for DeepSpeed may have.

One stage, one strategy for all units, ZeRO stages 1 to 3 among all ranks or copies of states, recomputation of whole layers,
the optimizer's states or all states on the host (`--host`). Tensor parallelism is not used.
"""

from __future__ import annotations

from trainplan.formulations.runtimes import DECODERS, Runtime

CAPABILITIES = Runtime(
    ("1f1b",),
    (0, 1, 2, 3),
    one_stage=True,
    hybrid=False,
    host=("optimizer", "parameters"),
    families=DECODERS,
    features=("master weights", "ZeRO stage 1", "ZeRO stage 2", "recomputation of modules", "states on the host"),
)
