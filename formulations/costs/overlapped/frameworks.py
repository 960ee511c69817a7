"""The frameworks that plans are priced for, where the user names no other."""

from __future__ import annotations

from dataclasses import replace

from trainplan.formulations.costs.overlapped.layout import Framework
from trainplan.profiling.models.optimizers import OptimizerName

MEGATRON = Framework(
    "Megatron-Core", overlaps_messages=True, overlaps_tensor_backward=True, pads=128, logit_bytes=6, loss_passes=3.0
)
# Its flags --overlap-grad-reduce and --overlap-param-gather set, as recipes have them.
OVERLAPPED = replace(MEGATRON, overlaps_gradients=True, overlaps_parameters=True)
# With Muon, Megatron-Core gathers updated parameters after its step (`LayerWiseDistributedOptimizer`, core 0.16, 2026).
MUON = replace(OVERLAPPED, overlaps_parameters=False)


def planned_framework(optimizer: OptimizerName, gradient_bytes: int) -> Framework:
    """The framework that plans with an optimizer are priced for. gradient_bytes: bytes of a gradient, as the plan states."""
    return replace(MUON if optimizer == "muon" else OVERLAPPED, gradient_bytes=gradient_bytes)
