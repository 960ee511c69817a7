"""The plans that a script of torch and transformers alone can run.

One strategy for all units, any ZeRO stage, any order of levels, recomputation of whole layers, of attention, activations and
the loss, all schedules, stages that begin at any sub-layer; tensor parallelism of the models that `why_not_split` accepts, and
sequence parallelism if units are recomputed. `refusals` lists what torch's own pieces cannot do of a given plan.
"""

from __future__ import annotations

from trainplan.execution.support import COMPILED, OF_COPIES, OF_OPTIMIZERS
from trainplan.formulations.runtimes import DECODERS, Runtime

CAPABILITIES = Runtime(
    ("gpipe", "1f1b", "interleaved"),
    (0, 1, 2, 3),
    ("activation", "attention", "loss"),
    neighbours=False,
    cuts_layers=True,
    by_torch=True,
    families=DECODERS,
    features=COMPILED - OF_OPTIMIZERS - OF_COPIES - {"states on the host"},
    by_programs=True,
)
