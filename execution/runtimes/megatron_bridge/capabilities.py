"""The plans that Megatron-Bridge's GPTModelProvider can run: the same as Megatron-LM, for decoder models only; and the settings
with which it runs them.

Rows of measured runs of Megatron-Bridge that say nothing are of its performance recipes (`overlapped.frameworks.BRIDGE`). A
file of its ConfigContainer says what it turns on, and whatever it leaves out has the default of Megatron-Bridge's classes: so
the settings of a plan, and of a file that is read, name each of those that its recipes turn on, on or off.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from trainplan.execution.runtimes.megatron import capabilities as megatron_capabilities
from trainplan.execution.runtimes.megatron.capabilities import FUSED_LOSS, TE_LOSS
from trainplan.formulations.plan.plan import Plan, RunBy
from trainplan.formulations.runtimes import DECODERS

SOFTWARE = "Megatron-Bridge"  # the framework in tables of measured runs
TENSOR = "tp-comm-overlap"
ON = (*megatron_capabilities.OVERLAPS, TENSOR, megatron_capabilities.GATHERED, FUSED_LOSS)  # in its recipes


def stated(settings: Collection[str]) -> str:
    """Settings of a run in words, with those that the run does not have: "overlap-grad-reduce adamw, no tp-comm-overlap, ..".
    settings: words for those that are on, which may be more than its recipes turn on."""
    return ", ".join((" ".join(settings), *(f"no {name}" for name in ON if name not in settings)))


def run_by(plan: Plan) -> RunBy:
    """The settings with which Megatron-Bridge runs what is exported of a plan: bridge.yaml turns on overlap as Megatron-LM's
    export does, and the loss of Transformer Engine, and says nothing of overlap between tensor-parallel ranks."""
    settings = (*megatron_capabilities.settings_of(plan), FUSED_LOSS, TE_LOSS, plan.optimizer)
    return RunBy(name="megatron-bridge", software=SOFTWARE, flags=stated(settings))


CAPABILITIES = replace(
    megatron_capabilities.CAPABILITIES,
    families=DECODERS,
    title="Megatron-Bridge",
    run_by=run_by,
    runs_as="megatron",
    layout_file="bridge.yaml",
    vocabulary_keys="model.vocab_size, with what is added to it,",
)
