"""The plans that Megatron-Bridge's GPTModelProvider can run: the same as Megatron-LM, for decoder models only."""

from __future__ import annotations

from dataclasses import replace

from trainplan.execution.runtimes.megatron import capabilities as megatron_capabilities
from trainplan.formulations.runtimes import DECODERS

CAPABILITIES = replace(megatron_capabilities.CAPABILITIES, families=DECODERS)
