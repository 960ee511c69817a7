"""The plans that `trainplan run` can run.

Everything that the joint problem knows, including context parallelism, except for low-precision matrix multiplications. Its
executor has Muon for copies of states only.
"""

from __future__ import annotations

from trainplan.execution.support import COMPILED, DEALT
from trainplan.formulations.plan.strategy import EXCHANGES, MODULES
from trainplan.formulations.runtimes import Runtime

CAPABILITIES = Runtime(
    ("gpipe", "1f1b", "interleaved"),
    (0, 1, 2, 3),
    MODULES,
    host=("optimizer", "parameters", "hidden"),
    neighbours=False,
    one_strategy=False,
    cuts_layers=True,
    sliced=True,
    exchanges=EXCHANGES,
    first_layers=True,
    optimizers={"muon": (0,)},
    by_programs=True,
    features=COMPILED - DEALT,  # what the executor runs of them
)
