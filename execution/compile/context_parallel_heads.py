"""Instructions that one rank issues for an attention whose context-parallel ranks exchange heads (see `sublayers.head_pieces`).

Forward: queries, keys and values of the rank's tokens, an exchange, the core on all tokens of the rank's heads, an exchange
back; the unit's own computation begins at the results. Backward: it leaves their gradient, which goes the same way back, to
what queries, keys and values add to the gradients of input and parameters. The core's inputs and outputs are kept for its
backward pass, unless the unit or its core is recomputed: then the exchange is repeated, too.

In all functions `at` is the rank's builder, to which instructions are appended, and `share` has the bytes of the buffers.
"""

from __future__ import annotations

from typing import Any

from trainplan.execution.compile.instruction_builder import InstructionBuilder
from trainplan.execution.instructions import Op
from trainplan.execution.program import MicroBatchPart
from trainplan.profiling.models.sublayers import HeadPieces


def forward(
    at: InstructionBuilder, share: HeadPieces, unit: int, part: MicroBatchPart, inside: str, weights: tuple[str, ...]
) -> str:
    """Issue (append to the rank's instructions in `at`) everything that an attention whose context-parallel ranks exchange
    heads does before the sub-layer's forward computation: queries, keys and values of the rank's tokens, the all-to-all to all
    tokens of the rank's heads, attention's core, and the all-to-all back. Returns the buffer of the core's results on the
    rank's tokens.

    share: sizes of these buffers. unit: index of the attention in the model. part: micro-batch or half. inside: the buffer
    that the matrix multiplications read. weights: buffers of the parameters.
    """
    ckpt = at.strategies[unit].ckpt
    recomputed, core_recomputed = share.recomputes_projections or ckpt, share.recomputes_core or ckpt
    issue_own_keys(at, unit, part, inside, weights, graph=not recomputed)
    own, mixed = f"keys.{unit}.{part}", f"mixed.{unit}.{part}"
    freed = (own,) if recomputed or not share.recomputes_core else ()
    heads = _to_heads(at, share, unit, part, own, f"heads.{unit}.{part}", freed)
    _core(at, share, unit, part, heads, graph=not core_recomputed)
    return _to_tokens(at, share, unit, part, mixed, f"results.{unit}.{part}", (mixed,) if core_recomputed else ())


def before_backward(
    at: InstructionBuilder, share: HeadPieces, unit: int, part: MicroBatchPart, inside: str, weights: tuple[str, ...]
) -> str:
    """Issue (append to the rank's instructions in `at`) the recomputation that an attention whose context-parallel ranks
    exchange heads needs before the sub-layer's backward computation; nothing if all is kept. Returns the buffer of the core's
    results on the rank's tokens.

    share: sizes of these buffers. unit: index of the attention in the model. part: micro-batch or half. inside: the buffer
    that the matrix multiplications read. weights: buffers of the parameters.
    """
    ckpt, own, results = at.strategies[unit].ckpt, f"keys.{unit}.{part}", f"results.{unit}.{part}"
    core_recomputed = share.recomputes_core or ckpt
    if share.recomputes_projections or ckpt:
        issue_own_keys(at, unit, part, inside, weights, graph=True, freed=not core_recomputed)
    if core_recomputed:
        heads = _to_heads(at, share, unit, part, own, f"heads.{unit}.{part}", (own,))
        _core(at, share, unit, part, heads, graph=True)
    if ckpt:
        _to_tokens(at, share, unit, part, f"mixed.{unit}.{part}", results, ())
    return results


def after_backward(at: InstructionBuilder, share: HeadPieces, unit: int, part: MicroBatchPart) -> None:
    """Issue (append to the rank's instructions in `at`) the way back from the gradient of the core's results on the rank's
    tokens to the gradient of its queries, keys and values: all-to-all, backward pass of attention's core, all-to-all back.
    share: sizes of these buffers. unit: index of the attention in the model. part: micro-batch or half."""
    rows, suffix = len(at.rows(unit, part)), f"{unit}.{part}"
    gradient_of_results, mixed = f"results-gradient.{suffix}", f"mixed-gradient.{suffix}"
    _to_heads(at, share, unit, part, gradient_of_results, mixed, (gradient_of_results,))
    kept = (f"core-graph.{suffix}", f"heads.{suffix}", f"mixed.{suffix}", mixed)
    gradient = at.buffer(f"heads-gradient.{suffix}", share.whole_bytes(rows))
    workspace = share.core_backward_workspace_bytes(rows)
    at.issue(Op.CORE_BACKWARD, unit, part, reads=kept, writes=(gradient,), frees=kept, workspace_bytes=workspace)
    _to_tokens(at, share, unit, part, gradient, f"keys-gradient.{suffix}", (gradient,))


def issue_own_keys(
    at: InstructionBuilder,
    unit: int,
    part: MicroBatchPart,
    inside: str,
    weights: tuple[str, ...],
    graph: bool,
    freed: bool = False,
) -> None:
    """Issue (append to the rank's instructions in `at`) the computation of the keys and values of the rank's own tokens, and
    of queries if context-parallel ranks exchange heads. unit: index of the attention in the model. part: micro-batch or half.
    inside: the buffer that the matrix multiplications read. weights: buffers of the parameters. graph: whether autograd's
    graph is kept. freed: whether the results are freed at once, since only the graph is needed."""
    share, rows = at.key_share(unit), len(at.rows(unit, part))
    assert share is not None
    own, kept = at.buffer(f"keys.{unit}.{part}", share.own_bytes(rows)), share.graph_bytes(rows)
    op, writes, workspace = Op.KEYS_WITHOUT_GRAPH, tuple[str, ...]((own,)), share.forward_workspace_bytes(rows) + kept
    if graph:
        op, writes, workspace = Op.KEYS, (own, at.buffer(f"keys-graph.{unit}.{part}", kept)), workspace - kept
    frees = (own,) if freed else ()
    at.issue(op, unit, part, reads=(inside, weights[0]), writes=writes, frees=frees, workspace_bytes=workspace)


def _core(at: InstructionBuilder, share: HeadPieces, unit: int, part: MicroBatchPart, heads: str, graph: bool) -> None:
    """Issue (append to the rank's instructions in `at`) attention's core on all tokens of the rank's heads. share: sizes of
    its buffers. unit: index of the attention in the model. part: micro-batch or half. heads: the buffer of queries, keys and
    values. graph: whether autograd's graph is kept."""
    rows = len(at.rows(unit, part))
    mixed, kept = at.buffer(f"mixed.{unit}.{part}", share.mixed_bytes(rows)), share.core_graph_bytes(rows)
    fields: dict[str, Any] = {"reads": (heads,), "writes": (mixed,), "frees": (heads,)}
    op, workspace = Op.CORE_WITHOUT_GRAPH, share.core_workspace_bytes(rows) + kept
    if graph:
        op, workspace = Op.CORE, workspace - kept
        fields |= {"writes": (mixed, at.buffer(f"core-graph.{unit}.{part}", kept)), "frees": ()}
    at.issue(op, unit, part, **fields, workspace_bytes=workspace)


def _to_heads(
    at: InstructionBuilder, share: HeadPieces, unit: int, part: MicroBatchPart, source: str, into: str, frees: tuple[str, ...]
) -> str:
    """Issue (append to the rank's instructions in `at`) the all-to-all from all heads of the rank's tokens, in the buffer
    `source`, to all tokens of the rank's heads, in the buffer `into`, whose name is returned. share: sizes of the buffers.
    unit: index of the attention in the model. part: micro-batch or half. frees: buffers to free after it."""
    rows = len(at.rows(unit, part))
    size = share.whole_bytes(rows) if into.startswith("heads") else share.mixed_bytes(rows)
    _exchanged(at, Op.EXCHANGE_HEADS, unit, part, source, at.buffer(into, size), frees, size)
    return into


def _to_tokens(
    at: InstructionBuilder, share: HeadPieces, unit: int, part: MicroBatchPart, source: str, into: str, frees: tuple[str, ...]
) -> str:
    """Issue (append to the rank's instructions in `at`) the all-to-all from all tokens of the rank's heads, in the buffer
    `source`, to all heads of the rank's tokens, in the buffer `into`, whose name is returned. share: sizes of the buffers.
    unit: index of the attention in the model. part: micro-batch or half. frees: buffers to free after it."""
    rows = len(at.rows(unit, part))
    size = share.results_bytes(rows) if into.startswith("results") else share.own_bytes(rows)
    _exchanged(at, Op.EXCHANGE_TOKENS, unit, part, source, at.buffer(into, size), frees, at.buffers[source])
    return into


def _exchanged(
    at: InstructionBuilder, op: Op, unit: int, part: MicroBatchPart, source: str, into: str, frees: tuple[str, ...], size: int
) -> None:
    """Issue (append to the rank's instructions in `at`) an all-to-all `op` of `size` bytes from the buffer `source` to the
    buffer `into` among the context-parallel ranks of attention `unit`. Its temporaries are a copy of what is sent, ordered by
    rank, and one of what arrives. part: micro-batch or half. frees: buffers to free after it."""
    fields: dict[str, Any] = {"reads": (source,), "writes": (into,), "frees": frees, "group": at.piece_peers(unit)}
    at.issue(op, unit, part, **fields, message_bytes=size, workspace_bytes=2 * size - at.buffers[into])
