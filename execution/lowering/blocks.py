"""The sub-layers of a model as ordinary modules of torch: what `parallelize_module` and `fully_shard` are applied to.

Each unit is norm, projections into the middle, the middle itself, and a projection back to the residual stream:

    x + out(middle(project(norm(x))))

Their parts are `nn.Linear`, `nn.LayerNorm`, `nn.RMSNorm` and `nn.Embedding`, built on the meta device. What a unit computes
between its matrices (rotary positions, the core of attention, activations, dropout's masks) are the functions of
`profiling.models`, on the rank's own heads, columns and samples, so that any plan, and one process, compute the same.

Recomputation is `torch.utils.checkpoint`: of the whole unit; or, of single modules, of what makes the result that is not to be
kept together with the matrix that reads it. The backward pass then stops recomputing at that matrix's input, so that the
matrix itself, and the sum after it, are not computed twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.checkpoint import checkpoint
from trainplan.formulations.plan.strategy import Strategy
from trainplan.profiling.models import torch_units
from trainplan.profiling.models.dropout import Draw, drop
from trainplan.profiling.models.fused import rms_norm
from trainplan.profiling.models.rotary import rotated
from trainplan.profiling.models.sublayers import (
    Attention,
    FeedForward,
    ParallelBlock,
    Sublayer,
    TokenEmbedding,
    modules_of,
)


@dataclass(frozen=True)
class RankPart:
    """A rank's part of a unit. tp: its tensor-parallel mesh (None: it has the unit's matrices whole). share: (index, count) of
    its part of each sample's tokens between the matrices."""

    tp: DeviceMesh | None = None
    share: tuple[int, int] = (0, 1)

    @property
    def shard(self) -> torch_units.Shard:
        """The rank's part of heads, columns and vocabulary."""
        return torch_units.Shard() if self.tp is None else torch_units.Shard(self.tp.size(), self.tp.get_local_rank())


class Unit(nn.Module):
    """Base of all units. part: the sub-layer. strategy: the unit's strategy, for its recomputation. rank_part: set when the
    unit is parallelised."""

    def __init__(self, part: Any, strategy: Strategy) -> None:
        super().__init__()
        self.part, self.strategy, self.rank_part = part, strategy, RankPart()
        self.recomputed = frozenset(strategy.modules) & frozenset(modules_of(part))
        if not isinstance(part, TokenEmbedding):
            self.norm = norm_of(part)

    def forward(self, x: Tensor, draw: Draw | None = None, targets: Tensor | None = None) -> Tensor:
        """The output on this rank; of a head, the loss: the sum of its rows' cross-entropies.

        x: (rows, tokens, hidden), or token ids (rows, tokens). draw: what masks of dropout follow from. targets: of a head, ids
        of its rows' tokens.
        """
        if self.strategy.ckpt:
            return recomputed_call(self.computed, x, draw, targets)
        return self.computed(x, draw, targets)

    def computed(self, x: Tensor, draw: Draw | None, targets: Tensor | None) -> Tensor:
        """The output as of `forward`, without recomputation of the whole unit."""
        raise NotImplementedError

    def recomputing(self, module: str, function: Callable[..., Any], *inputs: Any) -> Any:
        """A function's result; where the plan recomputes the module, only the inputs are kept for the backward pass."""
        return recomputed_call(function, *inputs) if module in self.recomputed else function(*inputs)


def recomputed_call(function: Callable[..., Any], *inputs: Any) -> Any:
    """A function's result, which the backward pass computes again. Dropout masks follow from samples, so no generator's state
    is kept."""
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)


class RMSNorm(nn.RMSNorm):
    """torch's RMSNorm, of whose graph only what fused kernels keep is kept."""

    def forward(self, x: Tensor) -> Tensor:
        """x, normalised."""
        assert self.eps is not None
        return rms_norm(x, self.weight, self.eps)


def norm_of(part: Sublayer, width: int | None = None) -> nn.Module:
    """A norm of the sub-layer's kind, over its hidden states or over `width` numbers."""
    if part.norm == "rms":
        return RMSNorm(width or part.hidden, part.epsilon)
    return nn.LayerNorm(width or part.hidden, part.epsilon, bias=part.norm_bias)


def dropped(y: Tensor, draw: Draw | None, probability: float, site: Any = "output") -> Tensor:
    """y with dropout. It is a copy, since `drop` works in place, and what a module of torch returns may be a view."""
    return y if draw is None or not probability else drop(y.clone(), draw, site, probability)


def gathering(unit: Unit, module: nn.Module, x: Tensor) -> Any:
    """The result of a module that reads all tokens of x. Where ranks have their own tokens of x alone, what they gather is not
    kept for the backward pass, but gathered again; together with what comes before it, where that is recomputed anyway."""
    recomputed = unit.strategy.ckpt or "norms" in unit.recomputed
    return module(x) if unit.rank_part.share == (0, 1) or recomputed else recomputed_call(module, x)


class Projections(nn.ModuleDict):
    """Matrices with one input: one module, so that tensor-parallel ranks gather tokens, and sum gradients, once for all."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """The output of each matrix, in order."""
        return tuple(matrix(x) for matrix in self.values())


class AttentionUnit(Unit):
    """Norm, projections, scaled dot-product attention, output projection, residual."""

    def __init__(self, part: Attention, strategy: Strategy) -> None:
        super().__init__(part, strategy)
        self.project = Projections(attention_matrices(part))
        self.out = nn.Linear(part.heads * part.width, part.hidden, bias=part.out_bias)
        add_head_norms(self, part)
        if part.sandwich:
            self.post_norm = norm_of(part)

    def computed(self, x: Tensor, draw: Draw | None, targets: Tensor | None) -> Tensor:
        """As of `Unit.computed`."""
        part = self.part

        def entered(x: Tensor) -> tuple[Tensor, ...]:
            inside = dropped(self.norm(x), draw, part.input_dropout, "input")
            return inside, *gathering(self, self.project, inside)

        inside, q, k, v = self.recomputing("norms", entered, x)
        y = self.out(self.recomputing("attention", core(self, part, draw), q, k, v))
        y = self.post_norm(y) if part.sandwich else y
        return (inside if part.post_norm else x) + dropped(y, draw, part.dropout)


def attention_matrices(part: Attention) -> dict[str, nn.Module]:
    """The projections to queries, keys and values, by name."""
    keys = part.kv_heads * part.width
    return {
        "q": nn.Linear(part.hidden, part.heads * part.width, bias=part.bias),
        "k": nn.Linear(part.hidden, keys, bias=part.bias),
        "v": nn.Linear(part.hidden, keys, bias=part.bias),
    }


def add_head_norms(unit: nn.Module, part: Attention) -> None:
    """Give a unit the norms of each query and key, where the attention has them."""
    if part.normed_heads:
        unit.q_norm, unit.k_norm = norm_of(part, part.width), norm_of(part, part.width)


def core(unit: Unit, part: Attention, draw: Draw | None) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The function between an attention's matrices: from queries, keys and values, (rows, tokens, heads x width), to the mixed
    values."""

    def mixed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        split = [projected.unflatten(-1, (-1, part.width)) for projected in (q, k, v)]
        if part.normed_heads:
            split[:2] = unit.q_norm(split[0]), unit.k_norm(split[1])
        if part.rotary:
            split[:2] = rotated(part, split[0]), rotated(part, split[1])
        queries, keys, content = (projected.transpose(1, 2) for projected in split)
        values = torch_units.mixed_values(part, {}, queries, keys, content, unit.rank_part.shard, draw, False)
        return values.view(q.shape)

    return mixed


class FeedForwardUnit(Unit):
    """Norm, up-projection with or without gate, activation, down-projection, residual."""

    def __init__(self, part: FeedForward, strategy: Strategy) -> None:
        super().__init__(part, strategy)
        self.project = Projections(feed_forward_matrices(part))
        self.down = nn.Linear(part.inner, part.hidden, bias=part.bias)
        if part.sandwich:
            self.post_norm = norm_of(part)

    def computed(self, x: Tensor, draw: Draw | None, targets: Tensor | None) -> Tensor:
        """As of `Unit.computed`."""
        part = self.part

        def entered(x: Tensor) -> tuple[Tensor, ...]:
            inside = self.norm(x)
            return inside, *gathering(self, self.project, inside)

        def left(*inner: Tensor) -> Tensor:
            y: Tensor = self.down(torch_units.activated_values(part, *inner))
            return y

        inside, *inner = self.recomputing("norms", entered, x)
        y = self.recomputing("activation", left, *inner)
        y = self.post_norm(y) if part.sandwich else y
        return (inside if part.post_norm else x) + dropped(y, draw, part.dropout)


def feed_forward_matrices(part: FeedForward) -> dict[str, nn.Module]:
    """The projections into the inner dimension, by name."""
    return {name: nn.Linear(part.hidden, part.inner, bias=part.bias) for name in ("up", "gate")[: 1 + part.gated]}


class ParallelUnit(Unit):
    """Attention and feed-forward network in parallel: both read the same hidden states."""

    def __init__(self, part: ParallelBlock, strategy: Strategy) -> None:
        super().__init__(part, strategy)
        attention, network = part.attention, part.feed_forward
        self.project = Projections(attention_matrices(attention))
        self.out = nn.Linear(attention.heads * attention.width, part.hidden, bias=attention.out_bias)
        add_head_norms(self, attention)
        if not part.shared_norm:
            self.ffn_norm = norm_of(part)
        self.project_up = Projections(feed_forward_matrices(network))
        self.down = nn.Linear(network.inner, part.hidden, bias=network.bias)

    def computed(self, x: Tensor, draw: Draw | None, targets: Tensor | None) -> Tensor:
        """As of `Unit.computed`."""
        part, inside = self.part, self.norm(x)
        mixed = core(self, part.attention, draw)(*self.project(inside))
        if not part.shared_norm:
            inside = self.ffn_norm(x)
        inner = torch_units.activated_values(part.feed_forward, *self.project_up(inside))
        return x + self.out(mixed) + self.down(inner)
