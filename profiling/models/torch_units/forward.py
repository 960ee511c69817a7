"""The forward pass of every kind of sub-layer on one tensor-parallel rank: whole, and in the pieces of sequence parallelism."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from trainplan.profiling.models.dropout import Draw, drop, hidden_mask
from trainplan.profiling.models.fused import gated
from trainplan.profiling.models.recompute_on_backward import recomputed_on_backward, without_saving
from trainplan.profiling.models.sublayers import (
    Attention,
    FeedForward,
    InputProjection,
    LanguageHead,
    Norm,
    ParallelBlock,
    PatchMerging,
    Sublayer,
    TokenEmbedding,
    Upsample,
    ValueHead,
    halves,
    shard_bounds,
)
from trainplan.profiling.models.torch_units.attention import (
    attention_of_piece,
    attention_of_whole_samples,
    output_projection,
)
from trainplan.profiling.models.torch_units.entry import ACTIVATIONS, enter, normed
from trainplan.profiling.models.torch_units.parameters import Parameters, Shard


def forward(
    sublayer: Sublayer,
    parameters: Parameters,
    x: Tensor,
    shard: Shard,
    memory: Tensor | None = None,
    draw: Draw | None = None,
    modules: Collection[str] = (),
    keys: Tensor | None = None,
) -> Tensor:
    """Run a sub-layer on one tensor-parallel rank: its partial output, (samples, tokens, hidden), to be summed over the
    tensor-parallel ranks.

    Of a language head the output is the rank's columns of the logits, (samples, tokens, vocabulary / tp). parameters: the
    rank's slices of the sub-layer's parameters, by name. x: hidden states, (samples, tokens, hidden); of a token embedding,
    token ids, (samples, tokens); of an input projection, (samples, groups, features). shard: the rank's index in its
    tensor-parallel group, and the group's size. memory: the hidden states that a cross-attention reads, (samples, memory
    tokens, hidden). draw: seed, step and samples that determine the dropout masks; None for no dropout, as in evaluation.
    modules: names of modules whose results the backward pass computes again instead of keeping them, such as "norms". keys:
    for attention under context parallelism, keys and values of all tokens of the samples, (samples, all tokens, 2, heads,
    width); or if the ranks exchange heads, results of the attention core for the rank's own tokens, (samples, tokens, heads,
    width).
    """
    if isinstance(sublayer, ParallelBlock):
        return _parallel_block(sublayer, parameters, x, shard, draw)
    if not isinstance(sublayer, Attention | FeedForward | LanguageHead | TokenEmbedding):
        return _FORWARD[type(sublayer)](sublayer, parameters, x, shard)
    recomputation = None
    if isinstance(sublayer, Attention) and sublayer.by_heads:  # the core, and all before it, has been computed
        entered = enter(sublayer, parameters, x, draw) if sublayer.post_norm else x
    elif "norms" not in modules or sublayer.kind == "embedding":
        entered = enter(sublayer, parameters, x, draw)
    else:
        names = [name for name in parameters if name.startswith(("norm.", "dense.", "dense_norm."))]
        values = [parameters[name] for name in names]
        entered, recomputation = recomputed_on_backward(partial(_enter_with, sublayer, names, draw), x, *values)
    with without_saving(recomputation):
        y = matrices(sublayer, parameters, entered, shard, memory, draw, modules, keys)
    residual = _residual(sublayer, x, entered) if shard.first else None
    if sublayer.sandwich:
        y = normed(sublayer, parameters, y, "post_norm")
    y = leave(sublayer, y, residual, draw)  # a partial sum is dropped as the whole is: each number on all ranks or none
    return y.view_as(x) if isinstance(sublayer, Attention | FeedForward) else y


def _enter_with(sublayer: Sublayer, names: Sequence[str], draw: Draw | None, x: Tensor, *values: Tensor) -> Tensor:
    """Compute the input of a sub-layer's matrices, as `enter` does (a norm or the like), with parameters as separate tensors,
    so that autograd can differentiate with respect to them.

    names: names of the parameters; values: their tensors, in the same order. draw: seed, step and samples that determine the
    dropout masks; None for no dropout. x: the sub-layer's input, (samples, tokens, hidden).
    """
    return enter(sublayer, dict(zip(names, values, strict=True)), x, draw)


def matrices(
    sublayer: Sublayer,
    parameters: Parameters,
    entered: Tensor,
    shard: Shard,
    memory: Tensor | None = None,
    draw: Draw | None = None,
    modules: Collection[str] = (),
    keys: Tensor | None = None,
) -> Tensor:
    """Compute the part of a sub-layer that needs all tokens (its matrix multiplications and everything between them): a
    tensor-parallel rank's partial output before output dropout and residual, to be summed over the tensor-parallel ranks.

    parameters: the rank's slices of the sub-layer's parameters, by name. entered: the normed input of all tokens, as `enter`
    returns it. shard: the rank's index in its tensor-parallel group, and the group's size. memory: the hidden states that a
    cross-attention reads, (samples, memory tokens, hidden). draw: seed, step and samples that determine the dropout masks;
    None for no dropout. modules: names of modules whose results the backward pass computes again. keys: for attention under
    context parallelism, keys and values of all tokens, (samples, all tokens, 2, heads, width), or if ranks exchange heads,
    results of the attention core, (samples, tokens, heads, width). Returns (samples x tokens, hidden), of an embedding
    (samples, tokens, hidden), of a head the rank's columns of the logits. The result is no view of another tensor, so that
    later additions can be in place.
    """
    if isinstance(sublayer, TokenEmbedding):
        return _token_embedding(sublayer, parameters, entered, shard)
    if isinstance(sublayer, Attention):
        recompute = "attention" in modules
        if keys is None:
            return attention_of_whole_samples(sublayer, parameters, entered, shard, memory, draw, recompute)
        if sublayer.by_heads:
            return output_projection(parameters, keys.flatten(2).flatten(0, 1), shard)
        return attention_of_piece(sublayer, parameters, entered, keys, shard, draw, recompute)
    if isinstance(sublayer, FeedForward):
        return _feed_forward(sublayer, parameters, entered, shard, "activation" in modules)
    logits = F.linear(entered, parameters["logits.weight"], parameters.get("logits.bias"))
    cap = getattr(sublayer, "softcap", 0.0)
    return logits.div_(cap).tanh_() * cap if cap else logits


def _residual(sublayer: Sublayer, x: Tensor, entered: Tensor) -> Tensor | None:
    """The tensor that is added to a sub-layer's output: its input x, or if the residual is the normed input, `entered`.

    Both are (samples, tokens, hidden). Returns None for embeddings and heads, which have no residual.
    """
    if isinstance(sublayer, Attention | FeedForward):
        return entered if sublayer.post_norm else x
    return None


def leave(sublayer: Sublayer, y: Tensor, residual: Tensor | None, draw: Draw | None = None) -> Tensor:
    """The end of a sub-layer: apply dropout to y, then add the residual. Overwrites y and returns it. It works on tokens
    independently, so y may have any of the samples' tokens.

    y: the result of the sub-layer's matrices, summed over the tensor-parallel ranks. residual: a tensor with as many numbers
    as y; None adds nothing. draw: seed, step and samples that determine the dropout masks; None for no dropout.
    """
    y = drop(y, draw, "output", 0.0 if isinstance(sublayer, LanguageHead) else sublayer.dropout)
    return y if residual is None else y.add_(residual.view_as(y))


def leave_gradient(sublayer: Sublayer, gradient: Tensor, draw: Draw | None) -> Tensor:
    """The gradient of y, the argument of `leave` (output dropout and residual), in a new tensor: the gradient of the result
    with the output's dropout mask applied.

    gradient: the gradient of the result of `leave`. draw: inputs of the dropout masks of the forward pass; None is not
    allowed.
    """
    assert draw is not None
    mask = hidden_mask(draw, "output", sublayer.dropout, gradient)
    return mask.drop(gradient.clone(memory_format=torch.contiguous_format))


def _only_first(y: Tensor, shard: Shard) -> Tensor:
    """Make a tensor that all tensor-parallel ranks computed a summand: y on rank 0 and zeros on other ranks, so that the sum
    over the ranks is y.

    shard: the rank's index in its tensor-parallel group, and the group's size.
    """
    return y if shard.first else y * 0.0


def _token_embedding(sublayer: TokenEmbedding, parameters: Parameters, tokens: Tensor, shard: Shard) -> Tensor:
    """A tensor-parallel rank's partial hidden states, (samples, tokens, hidden), of token ids, (samples, tokens): their sum
    over the tensor-parallel ranks is the embedding.

    A rank looks up the tokens in its part of the vocabulary, and has zeros for others; rank 0 adds positions and token types.
    parameters: the rank's slices of the sub-layer's parameters, by name. shard: the rank's index in its tensor-parallel
    group, and the group's size, and the index of its piece of each sample.
    """
    if shard.tp == 1:
        y = F.embedding(tokens, parameters["tokens.weight"], sublayer.padding)
    else:
        low, high = shard_bounds(sublayer.vocabulary, shard.tp, shard.index)
        outside = (tokens < low) | (tokens >= high)
        padding = None if sublayer.padding is None or not low <= sublayer.padding < high else sublayer.padding - low
        y = F.embedding((tokens - low).masked_fill_(outside, 0), parameters["tokens.weight"], padding)
        y = y.masked_fill_(outside.unsqueeze(-1), 0.0)
    if sublayer.scale != 1:
        y = y.mul_(sublayer.scale)
    if shard.first:
        if sublayer.positions:
            y = y.add_(F.embedding(_position_rows(sublayer, tokens, shard), parameters["positions.weight"]))
        if sublayer.token_types:
            y = y.add_(F.embedding(torch.zeros_like(tokens), parameters["types.weight"]))
    return y


def _position_rows(sublayer: TokenEmbedding, tokens: Tensor, shard: Shard) -> Tensor:
    """Row of the table of positions for each token of a sample that a rank has, as a vector.

    tokens: token ids, (samples, tokens), of which only the shape and device are read. shard: has the index of the piece of each
    sample that the rank works on, if context parallelism cuts samples.
    """
    cut = sublayer.pieces > 1
    ranges = halves(shard.piece, sublayer.pieces, sublayer.tokens) if cut else (range(tokens.shape[1]),)
    indices = torch.cat([torch.arange(part.start, part.stop, device=tokens.device) for part in ranges])
    return indices.add_(sublayer.first_position)


def _input_projection(sublayer: InputProjection, parameters: Parameters, x: Tensor, shard: Shard) -> Tensor:
    """Embed patches of an image or latent vectors by a linear map: x is (samples, groups, features); returns hidden states,
    (samples, tokens, hidden), on tensor-parallel rank 0 and zeros on other ranks, so that the sum over the ranks is the
    embedding.

    parameters: the rank's slices of the sub-layer's parameters, by name. shard: the rank's index in its tensor-parallel
    group, and the group's size.
    """
    y = F.linear(x, parameters["patches.weight"], parameters["patches.bias"])
    y = y.view(x.shape[0], sublayer.projected_tokens, sublayer.hidden)
    if sublayer.class_token:
        y = torch.cat((parameters["class.weight"].expand(x.shape[0], 1, -1), y), 1)
    if sublayer.positions:
        y = y + parameters["positions.weight"] if not sublayer.class_token else y.add_(parameters["positions.weight"])
    if sublayer.normed:
        y = normed(sublayer, parameters, y)
    return _only_first(y, shard)


def _feed_forward(sublayer: FeedForward, parameters: Parameters, entered: Tensor, shard: Shard, recompute: bool) -> Tensor:
    """A tensor-parallel rank's partial output of a feed-forward network, (samples x tokens, hidden), to be summed over the
    tensor-parallel ranks.

    parameters: the rank's slices of the sub-layer's parameters, by name. entered: the normed input, (samples, tokens,
    hidden). shard: the rank's index in its tensor-parallel group, and the group's size; rank 0 alone adds the bias.
    recompute: whether the backward pass computes the activation again.
    """
    flat = entered.view(-1, sublayer.hidden)
    inner = [F.linear(flat, parameters["up.weight"], parameters.get("up.bias"))]
    if sublayer.gated:
        inner.append(F.linear(flat, parameters["gate.weight"], parameters.get("gate.bias")))
    function = partial(activated_values, sublayer)
    activated, recomputation = recomputed_on_backward(function, *inner) if recompute else (function(*inner), None)
    del inner  # a relu's is not kept
    with without_saving(recomputation):
        return F.linear(activated, parameters["down.weight"], parameters.get("down.bias") if shard.first else None)


def activated_values(sublayer: FeedForward, up: Tensor, gate: Tensor | None = None) -> Tensor:
    """Input of a feed-forward network's down-projection: activation(up), or, if there is a gate, activation(gate) x up.

    up and gate: results of the projections, of equal shape.
    """
    function = ACTIVATIONS[sublayer.activation]
    return function(up) if gate is None else gated(function, up, gate)


def _parallel_block(sublayer: ParallelBlock, parameters: Parameters, x: Tensor, shard: Shard, draw: Draw | None) -> Tensor:
    """A tensor-parallel rank's partial output, (samples, tokens, hidden), of a block whose attention and feed-forward network
    read the same input x.

    parameters: the rank's slices of the sub-layer's parameters, by name. x: (samples, tokens, hidden). shard: the rank's
    index in its tensor-parallel group, and the group's size; rank 0 alone adds x. draw: seed, step and samples that determine
    the dropout masks; None for no dropout.
    """
    entered = normed(sublayer, parameters, x)
    y = attention_of_whole_samples(sublayer.attention, parameters, entered, shard, None, draw, False)
    if not sublayer.shared_norm:
        entered = normed(sublayer, parameters, x, "ffn_norm")
    y.add_(_feed_forward(sublayer.feed_forward, parameters, entered, shard, False))
    return (y.add_(x.view_as(y)) if shard.first else y).view_as(x)


def _norm(sublayer: Norm, parameters: Parameters, x: Tensor, shard: Shard) -> Tensor:
    """Apply a norm that is a sub-layer of its own: returns x normed, (samples, tokens, hidden), on tensor-parallel rank 0, and
    zeros on other ranks, so that the sum over the ranks is the norm.

    parameters: the rank's slices of the sub-layer's parameters, by name. shard: the rank's index in its tensor-parallel
    group, and the group's size.
    """
    return _only_first(normed(sublayer, parameters, x), shard)


def _patch_merging(sublayer: PatchMerging, parameters: Parameters, x: Tensor, shard: Shard) -> Tensor:
    """A tensor-parallel rank's partial output, (samples, tokens, hidden), of Swin's patch merging of x, (samples, 4 x tokens,
    hidden / 2).

    Four neighbouring tokens are concatenated in the published order, down first, then right (Liu et al., 2021), normed, and
    projected by the rank's part of the projection's inputs.
    """
    rows, side = x.shape[0], math.isqrt(sublayer.tokens)
    x = x.view(rows, side, 2, side, 2, -1).permute(0, 1, 3, 4, 2, 5).reshape(rows, sublayer.tokens, sublayer.gathered)
    low, high = shard_bounds(sublayer.gathered, shard.tp, shard.index)
    return F.linear(normed(sublayer, parameters, x)[..., low:high], parameters["reduction.weight"])


def _upsample(sublayer: Upsample, parameters: Parameters, x: Tensor, shard: Shard) -> Tensor:
    """Double the side of square images: x is (samples, tokens / 4, from_hidden); returns (samples, tokens, hidden) on
    tensor-parallel rank 0 and zeros on other ranks, so that the sum over the ranks is the result. Learned positions are added.

    parameters: the rank's slices of the sub-layer's parameters, by name. shard: the rank's index in its tensor-parallel
    group, and the group's size.
    """
    rows, side = x.shape[0], math.isqrt(sublayer.tokens) // 2
    image = x.transpose(1, 2).reshape(rows, sublayer.from_hidden, side, side)
    if sublayer.from_hidden == sublayer.hidden:
        image = F.interpolate(image, scale_factor=2, mode="bicubic")
    else:
        image = F.pixel_shuffle(image, 2)
    return _only_first(image.flatten(2).transpose(1, 2) + parameters["positions.weight"], shard)


def _value_head(sublayer: ValueHead, parameters: Parameters, x: Tensor, shard: Shard) -> Tensor:
    """Compute an image head's values (such as scores of classes) from hidden states x, (samples, tokens, hidden): returns a
    tensor-parallel rank's columns, (samples, values / tp), or without pooling (samples, tokens, values / tp).

    parameters: the rank's slices of the sub-layer's parameters, by name. shard: the rank's index in its tensor-parallel
    group, and the group's size.
    """
    x = normed(sublayer, parameters, x)
    if sublayer.pool != "none":
        x = x[:, 0] if sublayer.pool == "first" else x.mean(1)
    return F.linear(x, parameters["values.weight"], parameters["values.bias"])


_FORWARD: dict[type[Sublayer], Callable[..., Tensor]] = {
    InputProjection: _input_projection,
    Norm: _norm,
    PatchMerging: _patch_merging,
    Upsample: _upsample,
    ValueHead: _value_head,
}
