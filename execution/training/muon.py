"""torch's Muon for the matrices of transformer layers, with AdamW for all else, over parts of tensors that hold both.

A flat buffer has a unit's parameters one after the other, and one tensor may hold several matrices, or a rank's part of one.
Muon takes matrices alone, so each piece is stepped as a view: what it changes is in its tensor, as is the gradient it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from trainplan.execution.training.optimizer import Optimizer, TorchOptimizer, adamw

MOMENTUM = 0.95


class Piece(NamedTuple):
    """A part of a tensor that the optimizer steps separately. name: the name of its parameter in its unit (sub-layer). owner:
    the tensor. part: takes a tensor of the owner's shape (the owner, its gradient) to the view of this part. by_muon: whether
    it is a matrix that Muon steps."""

    name: str
    owner: Tensor
    part: Callable[[Tensor], Tensor]
    by_muon: bool


class MatricesWithAdamW:
    """An optimizer that steps pieces of tensors by the tensors' gradients: matrices by an optimizer of whole matrices, such as
    Muon, the rest by AdamW. pieces: every parameter exactly once. of_matrices: makes torch's optimizer, from the settings and
    (name, matrix) pairs."""

    def __init__(self, pieces: Iterable[Piece], settings: Optimizer, of_matrices: TorchOptimizer) -> None:
        self._pieces = [(piece, piece.part(piece.owner.detach()).requires_grad_()) for piece in pieces]
        self.optimizers: list[torch.optim.Optimizer] = []
        for by_muon, create in ((True, of_matrices), (False, adamw)):
            if some := [(piece.name, view) for piece, view in self._pieces if piece.by_muon == by_muon]:
                self.optimizers.append(create(settings, some))

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of both optimizers (of matrices, and AdamW), in torch's format."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def states(self) -> list[Tensor]:
        """All state tensors that both optimizers keep from step to step, such as moments."""
        kept = (value for optimizer in self.optimizers for state in optimizer.state.values() for value in state.values())
        return [value for value in kept if isinstance(value, Tensor)]

    def step(self) -> None:
        """Step all pieces by the gradients of the tensors that they are parts of; pieces of a tensor without a gradient stay
        as they are."""
        for piece, view in self._pieces:
            view.grad = None if piece.owner.grad is None else piece.part(piece.owner.grad)
        for optimizer in self.optimizers:
            optimizer.step()
        for _, view in self._pieces:
            view.grad = None


def muon(settings: Optimizer, parameters: Iterable[tuple[str, Tensor]]) -> torch.optim.Optimizer:
    """torch's Muon optimizer for (name, matrix) pairs, with steps scaled to AdamW's so that both use one learning rate (Liu et
    al., 2025), with Nesterov's momentum and AdamW's weight decay."""
    groups = settings.by_decay(parameters)
    return torch.optim.Muon(groups, lr=settings.rate, momentum=MOMENTUM, nesterov=True, adjust_lr_fn="match_rms_adamw")
