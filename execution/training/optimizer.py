"""Settings of AdamW: its rate from step to step, which parameters decay, and at which norm gradients are clipped.

AdamW is that of torch (Loshchilov and Hutter, 2019), in one kernel for all parameters of a mesh. Without any setting it is as
programs have it: a constant rate, all parameters decaying alike, no gradient clipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

Schedule = Literal["constant", "cosine", "linear"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)


@dataclass(frozen=True)
class Optimizer:
    """How parameters are stepped.

    rate: the largest learning rate. schedule: how it falls to `least_rate` over `steps` steps, after `warmup` steps in which it
    rises linearly. weight_decay: of matrices and tables alone (norms and biases do not decay); None: torch's 0.01, of all.
    clip: the global norm to which larger gradients are scaled down (None: they are not).
    """

    rate: float = 1e-3
    schedule: Schedule = "constant"
    warmup: int = 0
    steps: int = 1
    least_rate: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float | None = None
    clip: float | None = None

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        if self.schedule == "constant":
            return self.rate
        past = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        fraction = (1 + math.cos(math.pi * past)) / 2 if self.schedule == "cosine" else 1 - past
        return self.least_rate + (self.rate - self.least_rate) * fraction

    def set_rate(self, optimizers: Iterable[Any], step: int) -> None:
        """Give torch's optimizers the rate of a step, counted from 0."""
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.rate_at(step)

    def decay_of(self, name: str) -> float:
        """The weight decay of a parameter, by its name in a unit."""
        if self.weight_decay is None:
            return 0.01
        return self.weight_decay if name.endswith("weight") and "norm" not in name else 0.0

    def adamw(self, parameters: Iterable[tuple[str, Any]]) -> Any:
        """torch's AdamW for parameters, by their names in their units; on one mesh, or on none."""
        import torch

        return torch.optim.AdamW(self.by_decay(parameters), lr=self.rate, betas=self.betas, fused=True)

    def by_decay(self, parameters: Iterable[tuple[str, Any]]) -> list[dict[str, Any]]:
        """Parameters, by their names in their units, as torch's groups, one per weight decay."""
        groups: dict[float, list[Any]] = {}
        for name, parameter in parameters:
            groups.setdefault(self.decay_of(name), []).append(parameter)
        return [{"params": some, "weight_decay": decay} for decay, some in groups.items()]

    def scale(self, norm: float) -> float:
        """The factor for gradients of this global norm: as of `torch.nn.utils.clip_grad_norm_`."""
        return 1.0 if self.clip is None else min(1.0, self.clip / (norm + 1e-6))


PLAIN = Optimizer()  # as programs have it
