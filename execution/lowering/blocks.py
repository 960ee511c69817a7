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
    """The part of a unit (sub-layer) that one rank's modules hold. tp: the rank's tensor-parallel mesh; None without tensor
    parallelism, if the rank has the full matrices of the unit. share: (index, count) of the rank's part of each sample's tokens
    outside the matrices, under sequence parallelism; (0, 1): all tokens."""

    tp: DeviceMesh | None = None
    share: tuple[int, int] = (0, 1)

    @property
    def shard(self) -> torch_units.Shard:
        """The rank's tensor-parallel part (degree, index) of heads, columns and vocabulary."""
        return torch_units.Shard() if self.tp is None else torch_units.Shard(self.tp.size(), self.tp.get_local_rank())


class Unit(nn.Module):
    """Base class of the torch modules of all sub-layers (units) of a model. Rows are samples; hidden is the hidden size. Under
    sequence parallelism a rank's hidden states have only its own tokens.

    part: the sub-layer. strategy: the unit's parallel layout and recomputation. rank_part: the rank's part of the unit; set
    when the unit is parallelised. recomputed: names of modules of the unit, such as 'attention', that the backward pass
    recomputes without the rest of the unit."""

    def __init__(self, part: Any, strategy: Strategy) -> None:
        super().__init__()
        self.part, self.strategy, self.rank_part = part, strategy, RankPart()
        self.recomputed = frozenset(strategy.modules) & frozenset(modules_of(part))
        if not isinstance(part, TokenEmbedding):
            self.norm = norm_of(part)

    def forward(self, x: Tensor, draw: Draw | None = None, targets: Tensor | None = None) -> Tensor:
        """The unit's output on this rank, recomputed in the backward pass if the strategy says so: hidden states (rows,
        tokens, hidden); for a head, a scalar: its samples' cross-entropies, summed and divided by the tokens of the whole
        step.

        x: hidden states (rows, tokens, hidden), or token ids (rows, tokens) for an embedding. draw: the random numbers for
        dropout masks; None without dropout. targets: ids of the tokens to predict, (rows, tokens), for a head; else None.
        """
        if self.strategy.ckpt:
            return recomputed_call(self.computed, x, draw, targets)
        return self.computed(x, draw, targets)

    def computed(self, x: Tensor, draw: Draw | None, targets: Tensor | None) -> Tensor:
        """The unit's output on this rank, without recomputation of the whole unit: hidden states (rows, tokens, hidden); for a
        head, a scalar: its samples' cross-entropies, summed and divided by the tokens of the whole step. Subclasses define it.
        x: hidden states (rows, tokens, hidden), or token ids (rows, tokens). draw: the random numbers for dropout masks; None
        without dropout. targets: ids of the tokens to predict, (rows, tokens), for a head; else unused."""
        raise NotImplementedError

    def recomputing(self, module: str, function: Callable[..., Any], *inputs: Any) -> Any:
        """The result of `function` on `inputs`. If the plan recomputes the module called `module` ('norms', 'attention',
        'activation', ...) by itself, only the inputs are kept for the backward pass, which computes the function again."""
        return recomputed_call(function, *inputs) if module in self.recomputed else function(*inputs)


def recomputed_call(function: Callable[..., Any], *inputs: Any) -> Any:
    """The result of `function` on `inputs`; only the inputs are kept for the backward pass, which computes the function again.
    Dropout masks follow from ids of samples, so that the state of no random generator is kept."""
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)


class RMSNorm(nn.RMSNorm):
    """torch's RMSNorm, with an autograd graph that keeps only what fused kernels keep."""

    def forward(self, x: Tensor) -> Tensor:
        """The normalised hidden states, of the shape of x."""
        assert self.eps is not None
        return rms_norm(x, self.weight, self.eps)


def norm_of(part: Sublayer, width: int | None = None) -> nn.Module:
    """A norm module of the sub-layer's kind (RMSNorm or LayerNorm), over a last dimension of `width` numbers; None for the
    hidden size."""
    if part.norm == "rms":
        return RMSNorm(width or part.hidden, part.epsilon)
    return nn.LayerNorm(width or part.hidden, part.epsilon, bias=part.norm_bias)


def dropped(y: Tensor, draw: Draw | None, probability: float, site: Any = "output") -> Tensor:
    """y with dropout of this probability, in new memory, since `drop` works in place and y may be a view; y itself without
    dropout. draw: the random numbers for the mask; None without dropout. site: the name of the point in the sub-layer, by
    which masks differ."""
    return y if draw is None or not probability else drop(y.clone(), draw, site, probability)


def gathering(unit: Unit, module: nn.Module, x: Tensor) -> Any:
    """The result of `module`, a part of the sub-layer `unit` that reads all tokens, on x. If x has only the rank's own tokens
    (sequence parallelism), what the module gathers is not kept for the backward pass but gathered again."""
    recomputed = unit.strategy.ckpt or "norms" in unit.recomputed
    return module(x) if unit.rank_part.share == (0, 1) or recomputed else recomputed_call(module, x)


class Projections(nn.ModuleDict):
    """Several matrices with one input, as one module, so that tensor-parallel ranks gather tokens, and sum gradients, only
    once for all of them."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """The output of each matrix on x, in order, as a tuple."""
        return tuple(matrix(x) for matrix in self.values())


class AttentionUnit(Unit):
    """The module of an attention sub-layer: norm, projections, scaled dot-product attention, output projection, residual."""

    def __init__(self, part: Attention, strategy: Strategy) -> None:
        super().__init__(part, strategy)
        self.project = Projections(attention_matrices(part))
        self.out = nn.Linear(part.heads * part.width, part.hidden, bias=part.out_bias)
        add_head_norms(self, part)
        if part.sandwich:
            self.post_norm = norm_of(part)

    def computed(self, x: Tensor, draw: Draw | None, targets: Tensor | None) -> Tensor:
        """The hidden states after the attention on this rank, (rows, tokens, hidden), residual included. x: the hidden states
        before it. draw: the random numbers for dropout masks; None without dropout. targets: unused; part of the signature
        that all units share."""
        part = self.part

        def entered(x: Tensor) -> tuple[Tensor, ...]:
            inside = dropped(self.norm(x), draw, part.input_dropout, "input")
            return inside, *gathering(self, self.project, inside)

        inside, q, k, v = self.recomputing("norms", entered, x)
        y = self.out(self.recomputing("attention", core(self, part, draw), q, k, v))
        y = self.post_norm(y) if part.sandwich else y
        return (inside if part.post_norm else x) + dropped(y, draw, part.dropout)


def attention_matrices(part: Attention) -> dict[str, nn.Module]:
    """The linear projections of an attention to queries, keys and values, under the names 'q', 'k' and 'v'."""
    keys = part.kv_heads * part.width
    return {
        "q": nn.Linear(part.hidden, part.heads * part.width, bias=part.bias),
        "k": nn.Linear(part.hidden, keys, bias=part.bias),
        "v": nn.Linear(part.hidden, keys, bias=part.bias),
    }


def add_head_norms(unit: nn.Module, part: Attention) -> None:
    """Add to `unit` the modules `q_norm` and `k_norm`, norms of each head's query and key, if the attention `part` has such
    norms."""
    if part.normed_heads:
        unit.q_norm, unit.k_norm = norm_of(part, part.width), norm_of(part, part.width)


def core(unit: Unit, part: Attention, draw: Draw | None) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """A function that computes an attention between its projections: norms of heads and rotary positions if the attention has
    them, scores, softmax and the weighted sum of values. It takes the projected queries, keys and values, each (rows, tokens,
    heads * head width) with the heads of this tensor-parallel rank (keys and values may have fewer heads than queries), and
    returns a tensor of the shape of the queries. Rows are samples.

    unit: the torch module of the sub-layer; its `q_norm` and `k_norm` are used if the attention normalises the heads of queries
    and keys, and its `rank_part` states which heads are on this rank. part: the description of the attention (sizes, masks,
    positions). draw: the random numbers for dropout masks; None without dropout."""

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
    """The module of a feed-forward sub-layer: norm, up-projection with or without gate, activation, down-projection,
    residual."""

    def __init__(self, part: FeedForward, strategy: Strategy) -> None:
        super().__init__(part, strategy)
        self.project = Projections(feed_forward_matrices(part))
        self.down = nn.Linear(part.inner, part.hidden, bias=part.bias)
        if part.sandwich:
            self.post_norm = norm_of(part)

    def computed(self, x: Tensor, draw: Draw | None, targets: Tensor | None) -> Tensor:
        """The hidden states after the feed-forward network on this rank, (rows, tokens, hidden), residual included. x: the
        hidden states before it. draw: the random numbers for dropout masks; None without dropout. targets: unused; part of the
        signature that all units share."""
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
    """The linear projections of a feed-forward network into its inner dimension: 'up' and, if the network is gated, 'gate'."""
    return {name: nn.Linear(part.hidden, part.inner, bias=part.bias) for name in ("up", "gate")[: 1 + part.gated]}


class ParallelUnit(Unit):
    """The module of a sub-layer with attention and feed-forward network in parallel: both read the same hidden states."""

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
        """The hidden states after attention and feed-forward network in parallel, on this rank: the sum of x and of both
        results, (rows, tokens, hidden). x: the hidden states before. draw: the random numbers for dropout masks; None without
        dropout. targets: unused; part of the signature that all units share."""
        part, inside = self.part, self.norm(x)
        mixed = core(self, part.attention, draw)(*self.project(inside))
        if not part.shared_norm:
            inside = self.ffn_norm(x)
        inner = torch_units.activated_values(part.feed_forward, *self.project_up(inside))
        return x + self.out(mixed) + self.down(inner)
