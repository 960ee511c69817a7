"""One process, the whole batch, ordinary autograd: the reference with which every plan must agree."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F
from trainplan.execution.training.muon import MatricesWithAdamW, Piece
from trainplan.execution.training.optimizer import PLAIN as PLAIN_ADAMW
from trainplan.execution.training.optimizer import Optimizer, torch_optimizer
from trainplan.execution.training.weight_files import WeightFiles
from trainplan.profiling.models import torch_units
from trainplan.profiling.models.dropout import Draw
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.optimizers import OPTIMIZERS, OptimizerName, is_stepped_by_muon
from trainplan.profiling.models.precision import PLAIN, Precision
from trainplan.profiling.models.sublayers import Sublayer, shard_bounds

LEARNING_RATE = PLAIN_ADAMW.rate


def batch_tokens(model: Model, samples: int, seed: int) -> Tensor:
    """Token ids of synthetic samples from a seed, (samples, sequence + 1): inputs are all but the last token, targets all but
    the first."""
    generator = torch.Generator().manual_seed(seed * 7919 + 17)
    return torch.randint(model.vocabulary, (samples, model.tokens + 1), generator=generator)


def pieces_of(part: Sublayer, name: str, value: Tensor, tp: int) -> list[Piece]:
    """The pieces of a sub-layer's parameter that the optimizer steps separately if it is Muon with AdamW: the whole parameter
    or, of each of its matrices, the part of each of `tp` tensor-parallel ranks. part: the sub-layer. name, value: the
    parameter's."""
    parameter = next(candidate for candidate in part.parameters() if candidate.name == name)
    if not is_stepped_by_muon(part, parameter):
        return [Piece(name, value, torch.Tensor.detach, False)]
    along, (*several, _, _) = parameter.split or 0, parameter.shape
    ranks = 1 if parameter.split is None else tp
    bounds = [shard_bounds(parameter.shape[along], ranks, index) for index in range(ranks)]
    indices = list(product(*map(range, several)))
    return [
        Piece(name, value, partial(_block, along, low, high, index_of_matrix), True)
        for low, high in bounds
        for index_of_matrix in indices
    ]


def _block(along: int, low: int, high: int, index_of_matrix: tuple[int, ...], tensor: Tensor) -> Tensor:
    """Rows or columns `low` to `high` (exclusive) of one matrix of `tensor`, a stack. along: the dimension that is cut.
    index_of_matrix: the matrix's index in the stack; empty for a single matrix."""
    return tensor.narrow(along, low, high - low)[index_of_matrix]


class Reference:
    """The whole model trained on one process with ordinary autograd: the reference with which runs of plans must agree.
    Gradients stay in `.grad` of the parameters after a step.

    steps: number of steps done, from which dropout masks and learning rates follow. precision: the dtypes of model states, by
    which the optimizer works on a master copy of the parameters or not; gradients are computed in one backward pass, in the
    model's dtype. settings: the settings of the optimizer. weights: a folder with the initial values of the parameters; None:
    initial values from the seed. optimizer: the optimizer's name. tp: by unit (sub-layer), the number of tensor-parallel ranks
    of the plan, each of which orthogonalises its own part of a matrix under Muon (default: 1). gradient_norm: the global norm
    of the last step's gradients, before they were clipped.
    """

    def __init__(
        self,
        model: Model,
        seed: int,
        precision: Precision = PLAIN,
        settings: Optimizer = PLAIN_ADAMW,
        weights: str | None = None,
        optimizer: OptimizerName = "adamw",
        tp: Sequence[int] | None = None,
    ) -> None:
        self.model, self.seed, self.steps, self.settings, self.gradient_norm = model, seed, 0, settings, 0.0
        self.parameters: list[dict[str, Tensor]] = []
        for position, unit in enumerate(model.units):
            values = torch_units.whole_parameters(unit.sublayer, torch_units.unit_seed(model, position, seed))
            if weights is not None:
                read = WeightFiles.of(weights).unit(model, position)
                values = {name: value.to(values[name].dtype) for name, value in read}
            self.parameters.append({name: value.requires_grad_() for name, value in values.items()})
        if model.tied:
            self.parameters[-1]["logits.weight"] = self.parameters[0]["tokens.weight"]
        distinct = {
            id(value): (position, name, value)
            for position, values in enumerate(self.parameters)
            for name, value in values.items()
        }
        self._trained = [value for *_, value in distinct.values()]
        self._masters = self._trained
        if precision.master is not None:
            dtype = torch_units.DTYPES[precision.master]
            self._masters = [value.detach().to(dtype).requires_grad_() for value in self._trained]
        named = [(position, name, master) for (position, name, _), master in zip(distinct.values(), self._masters, strict=True)]
        self.optimizer: torch.optim.Optimizer | MatricesWithAdamW
        of_optimizer = torch_optimizer(optimizer)
        if OPTIMIZERS[optimizer].whole_matrices:
            degrees = tp or [1] * len(model.units)
            pieces = (pieces_of(model.units[x].sublayer, name, tensor, degrees[x]) for x, name, tensor in named)
            self.optimizer = MatricesWithAdamW([piece for some in pieces for piece in some], settings, of_optimizer)
        else:
            self.optimizer = of_optimizer(settings, [(name, tensor) for _, name, tensor in named])

    def logits(self, tokens: Tensor, training: bool = False) -> Tensor:
        """The logits, (samples, sequence, vocabulary), of token ids (samples, sequence). training: whether to apply dropout."""
        x, samples = tokens, tuple(range(len(tokens)))
        for position, (unit, values) in enumerate(zip(self.model.units, self.parameters, strict=True)):
            draw = Draw(self.seed, self.steps, position, samples) if training else None
            x = torch_units.forward(unit.sublayer, values, x, torch_units.Shard(), draw=draw)
        return x

    def loss(self, tokens: Tensor) -> Tensor:
        """The mean cross-entropy over all tokens of a batch, a scalar in float32 at least, with the dropout of the next step.
        tokens: (samples, sequence + 1)."""
        logits = self.logits(tokens[:, :-1], training=True).flatten(0, 1)
        wide = logits if logits.element_size() >= 4 else logits.float()
        return F.cross_entropy(wide, tokens[:, 1:].flatten())

    def gradients(self, tokens: Tensor) -> float:
        """Run the forward and backward pass of a batch; returns its loss, with the gradients left in `.grad` of the
        parameters. tokens: token ids, (samples, sequence + 1)."""
        for value in self._trained:
            value.grad = None
        loss = self.loss(tokens)
        loss.backward()
        return float(loss.detach())

    def step(self, tokens: Tensor) -> float:
        """Run one training step on a batch; returns its loss before the update. tokens: token ids, (samples, sequence + 1)."""
        loss = self.gradients(tokens)
        self._cut()
        self.settings.set_rate([self.optimizer], self.steps)
        if self._masters is self._trained:
            self.optimizer.step()
        else:
            self._step_masters()
        self.steps += 1
        return loss

    @torch.no_grad()
    def _cut(self) -> None:
        """Clip the gradients: scale them down, in place, if their global norm is above the settings' limit; sets
        `gradient_norm`."""
        gradients = [value.grad for value in self._trained if value.grad is not None]
        squares = [torch.linalg.vector_norm(gradient, dtype=torch.float64).square() for gradient in gradients]
        self.gradient_norm = float(torch.stack(squares).sum().sqrt())
        if (factor := self.settings.scale(self.gradient_norm)) < 1:
            for gradient in gradients:
                gradient.mul_(factor)

    @torch.no_grad()
    def _step_masters(self) -> None:
        """Run the optimizer's step on the master copies, and round the parameters from them."""
        pairs = list(zip(self._trained, self._masters, strict=True))
        for value, master in pairs:
            master.grad = None if value.grad is None else value.grad.to(master.dtype)
        self.optimizer.step()
        for value, master in pairs:
            value.copy_(master)
