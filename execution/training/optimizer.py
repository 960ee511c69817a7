"""Settings of AdamW: its rate from step to step, which parameters decay, and at which norm gradients are clipped.

AdamW is that of torch (Loshchilov and Hutter, 2019), in one kernel for all parameters of a mesh. Without any setting it is as
programs have it: a constant rate, all parameters decaying alike, no gradient clipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from trainplan.profiling.base.plugins import attribute
from trainplan.profiling.models.optimizers import OPTIMIZERS, OptimizerName

Schedule = Literal["constant", "cosine", "linear"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)


@dataclass(frozen=True)
class Optimizer:
    """Settings of the optimizer. rate: the largest learning rate. schedule: how the learning rate falls to `least_rate` by step
    `steps` (constant, cosine or linear), after `warmup` steps in which it rises linearly. betas: AdamW's two coefficients.
    weight_decay: the weight decay of matrices and tables (norms and biases have none); None: torch's default of 0.01 for all
    parameters. clip: the limit to which larger global norms of gradients are scaled down; None: gradients are not clipped."""

    rate: float = 1e-3
    schedule: Schedule = "constant"
    warmup: int = 0
    steps: int = 1
    least_rate: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float | None = None
    clip: float | None = None

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0, by warm-up and schedule."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        if self.schedule == "constant":
            return self.rate
        past = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        fraction = (1 + math.cos(math.pi * past)) / 2 if self.schedule == "cosine" else 1 - past
        return self.least_rate + (self.rate - self.least_rate) * fraction

    def set_rate(self, optimizers: Iterable[Any], step: int) -> None:
        """Set the learning rate of a step, counted from 0, in torch's optimizers."""
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.rate_at(step)

    def decay_of(self, name: str) -> float:
        """The weight decay of the parameter called `name` in its unit (sub-layer), such as 'norm.weight'."""
        if self.weight_decay is None:
            return 0.01
        return self.weight_decay if name.endswith("weight") and "norm" not in name else 0.0

    def adamw(self, parameters: Iterable[tuple[str, Any]]) -> Any:
        """torch's fused AdamW with these settings. parameters: (name in its sub-layer, tensor) pairs, all on one device mesh,
        or all on none."""
        import torch

        return torch.optim.AdamW(self.by_decay(parameters), lr=self.rate, betas=self.betas, fused=True)

    def by_decay(self, parameters: Iterable[tuple[str, Any]]) -> list[dict[str, Any]]:
        """Parameters as torch's parameter groups, one per weight decay. parameters: (name in its sub-layer, tensor) pairs."""
        groups: dict[float, list[Any]] = {}
        for name, parameter in parameters:
            groups.setdefault(self.decay_of(name), []).append(parameter)
        return [{"params": some, "weight_decay": decay} for decay, some in groups.items()]

    def scale(self, norm: float) -> float:
        """The factor, at most 1, by which gradients of this global norm are multiplied to keep it below the limit `clip`, as
        in `torch.nn.utils.clip_grad_norm_`."""
        return 1.0 if self.clip is None else min(1.0, self.clip / (norm + 1e-6))


PLAIN = Optimizer()  # as programs have it


TorchOptimizer = Callable[[Optimizer, Iterable[tuple[str, Any]]], Any]  # what `torch` of an OptimizerSpec names


def torch_optimizer(name: OptimizerName) -> TorchOptimizer:
    """The function that makes torch's optimizer of this name from (settings, (name, tensor) pairs)."""
    made: TorchOptimizer = attribute(OPTIMIZERS[name].torch)
    return made


def adamw(settings: Optimizer, parameters: Iterable[tuple[str, Any]]) -> Any:
    """torch's fused AdamW with these settings. parameters: (name in its sub-layer, tensor) pairs."""
    return settings.adamw(parameters)
