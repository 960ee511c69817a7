"""torch's Muon for the matrices of transformer layers, with AdamW for all else, over parts of tensors that hold both.

A flat buffer has a unit's parameters one after the other, and one tensor may hold several matrices, or a rank's part of one.
Muon takes matrices alone, so each piece is stepped as a view: what it changes is in its tensor, as is the gradient it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from trainplan.execution.training.optimizer import Optimizer

MOMENTUM = 0.95


class Piece(NamedTuple):
    """A part of a tensor that is stepped separately. name: of its parameter in its unit. owner: the tensor. part: gives the
    part's view of a tensor of the owner's shape. by_muon: whether it is a matrix that Muon steps."""

    name: str
    owner: Tensor
    part: Callable[[Tensor], Tensor]
    by_muon: bool


class MuonWithAdamW:
    """Steps pieces by the gradients of their tensors. Muon is scaled to AdamW's learning rate, by which both step (Liu et al.,
    2025), with Nesterov's momentum and AdamW's weight decay."""

    def __init__(self, pieces: Iterable[Piece], settings: Optimizer) -> None:
        self._pieces = [(piece, piece.part(piece.owner.detach()).requires_grad_()) for piece in pieces]
        self.optimizers: list[torch.optim.Optimizer] = []
        for by_muon, create in ((True, _muon), (False, Optimizer.adamw)):
            if some := [(piece.name, view) for piece, view in self._pieces if piece.by_muon == by_muon]:
                self.optimizers.append(create(settings, some))

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of both optimizers."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def states(self) -> list[Tensor]:
        """All tensors that both optimizers keep from step to step."""
        kept = (value for optimizer in self.optimizers for state in optimizer.state.values() for value in state.values())
        return [value for value in kept if isinstance(value, Tensor)]

    def step(self) -> None:
        """Step by the gradients of the owners; a tensor without one stays as it is."""
        for piece, view in self._pieces:
            view.grad = None if piece.owner.grad is None else piece.part(piece.owner.grad)
        for optimizer in self.optimizers:
            optimizer.step()
        for _, view in self._pieces:
            view.grad = None


def _muon(settings: Optimizer, parameters: Iterable[tuple[str, Tensor]]) -> torch.optim.Optimizer:
    """torch's Muon for matrices, by their names in their units."""
    groups = settings.by_decay(parameters)
    return torch.optim.Muon(groups, lr=settings.rate, momentum=MOMENTUM, nesterov=True, adjust_lr_fn="match_rms_adamw")
