"""The plans that Megatron-Bridge's GPTModelProvider can run: the same as Megatron-LM, for decoder models only."""

from __future__ import annotations

from dataclasses import replace

from trainplan.execution.runtimes.megatron import capabilities as megatron_capabilities
from trainplan.formulations.plan.plan import RunBy
from trainplan.formulations.runtimes import DECODERS

CAPABILITIES = replace(
    megatron_capabilities.CAPABILITIES,
    families=DECODERS,
    title="Megatron-Bridge",
    run_by=lambda _: RunBy(name="megatron-bridge", software="megatron-core", flags=megatron_capabilities.OVERLAPS),
    runs_as="megatron",
    layout_file="bridge.yaml",
    vocabulary_keys="model.vocab_size, with what is added to it,",
)
