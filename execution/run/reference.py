"""One process, the whole batch, ordinary autograd: what every plan must agree with."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from trainplan.profiling.models import torch_units
from trainplan.profiling.models.dropout import Draw
from trainplan.profiling.models.model import Model

LEARNING_RATE = 1e-3


def batch_tokens(model: Model, samples: int, seed: int) -> Tensor:
    """Synthetic samples, (samples, sequence + 1): inputs are all but the last token, targets all but the first."""
    generator = torch.Generator().manual_seed(seed * 7919 + 17)
    return torch.randint(model.vocabulary, (samples, model.tokens + 1), generator=generator)


class Reference:
    """The model on one process. `step` gives the loss; afterwards gradients stay in `.grad` of the parameters.

    In `steps` are those done, which the masks of dropout follow from.
    """

    def __init__(self, model: Model, seed: int) -> None:
        self.model, self.seed, self.steps = model, seed, 0
        self.parameters: list[dict[str, Tensor]] = []
        for position, unit in enumerate(model.units):
            values = torch_units.whole_parameters(unit.sublayer, torch_units.unit_seed(model, position, seed))
            self.parameters.append({name: value.requires_grad_() for name, value in values.items()})
        if model.tied:
            self.parameters[-1]["logits.weight"] = self.parameters[0]["tokens.weight"]
        distinct = {id(value): value for values in self.parameters for value in values.values()}
        self.optimizer = torch.optim.AdamW(list(distinct.values()), lr=LEARNING_RATE, fused=True)

    def logits(self, tokens: Tensor, training: bool = False) -> Tensor:
        """The logits of token ids (samples, sequence), of shape (samples, sequence, vocabulary). training: with dropout."""
        x, samples = tokens, tuple(range(len(tokens)))
        for position, (unit, values) in enumerate(zip(self.model.units, self.parameters, strict=True)):
            draw = Draw(self.seed, self.steps, position, samples) if training else None
            x = torch_units.forward(unit.sublayer, values, x, torch_units.Shard(), draw=draw)
        return x

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean cross-entropy over all tokens of the batch, with the dropout of the next step."""
        logits = self.logits(tokens[:, :-1], training=True)
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def gradients(self, tokens: Tensor) -> float:
        """Loss, with the gradients of the batch left in `.grad`."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(tokens)
        loss.backward()
        return float(loss.detach())

    def step(self, tokens: Tensor) -> float:
        """The loss of a batch before the optimizer's step on it."""
        loss = self.gradients(tokens)
        self.optimizer.step()
        self.steps += 1
        return loss
