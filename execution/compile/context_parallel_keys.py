"""Instructions that one rank issues for the keys and values of an attention under context parallelism (see `sublayers.pieces`).

Forward: the rank's own keys and values, then a gather of those of all tokens, which are freed after the computation. Backward:
they are gathered again; the computation writes their gradient on all tokens, of which the rank gets its own part of the sum
over the group; what that adds to the gradients of input and parameters comes last. Of a recomputed unit the rank's own keys and
values are not kept, but computed again; so are they where what comes before the products is recomputed.

In all functions `at` is the rank's builder, to which instructions are appended.
"""

from __future__ import annotations

from typing import Any

from trainplan.execution.compile import context_parallel_heads
from trainplan.execution.compile.instruction_builder import InstructionBuilder
from trainplan.execution.instructions import Op
from trainplan.execution.program import MicroBatchPart
from trainplan.profiling.models.sublayers import HeadPieces


def forward(at: InstructionBuilder, unit: int, part: MicroBatchPart, inside: str, weights: tuple[str, ...]) -> tuple[str, ...]:
    """Issue (append to the rank's instructions in `at`) what an attention under context parallelism does before its forward
    computation: keys and values of the rank's tokens, and their all-gather. Returns the buffer that the forward computation
    then reads: all keys and values or, if ranks exchange heads, the results of attention's core. Empty for units (sub-layers)
    without context parallelism.

    unit: index of the unit. part: micro-batch or half. inside: the buffer that the matrix multiplications read. weights:
    buffers of the parameters.
    """
    if (share := at.key_share(unit)) is None:
        return ()
    if isinstance(share, HeadPieces):
        return (context_parallel_heads.forward(at, share, unit, part, inside, weights),)
    recomputed = _again(at, unit)
    context_parallel_heads.issue_own_keys(at, unit, part, inside, weights, graph=not recomputed)
    return (_gathered(at, unit, part, freed=recomputed),)


def done_with(at: InstructionBuilder, unit: int, keys: tuple[str, ...]) -> tuple[str, ...]:
    """The buffers to free after the forward computation of the attention with index `unit`. keys: the result of `forward`: the
    buffer that this computation read, or nothing. Gathered keys and values are freed; results of attention's core (if ranks
    exchange heads) are freed only if the attention is recomputed. at: the builder of the rank's program."""
    return keys if not isinstance(at.key_share(unit), HeadPieces) or at.strategies[unit].ckpt else ()


def before_backward(
    at: InstructionBuilder, unit: int, part: MicroBatchPart, inside: str, weights: tuple[str, ...]
) -> tuple[str, ...]:
    """Issue (append to the rank's instructions in `at`) what an attention under context parallelism does before its backward
    computation: recomputation of keys and values if they were not kept, and their all-gather. Returns the buffer that the
    backward computation then reads: all keys and values or, if ranks exchange heads, the results of attention's core. Empty
    for units (sub-layers) without context parallelism.

    unit: index of the unit. part: micro-batch or half. inside: the buffer that the matrix multiplications read. weights:
    buffers of the parameters.
    """
    if (share := at.key_share(unit)) is None:
        return ()
    if isinstance(share, HeadPieces):
        return (context_parallel_heads.before_backward(at, share, unit, part, inside, weights),)
    if _again(at, unit):
        context_parallel_heads.issue_own_keys(at, unit, part, inside, weights, graph=True)
    return (_gathered(at, unit, part, freed=True),)


def gradient_of(at: InstructionBuilder, unit: int, part: MicroBatchPart, keys: tuple[str, ...]) -> tuple[str, ...]:
    """Declare, in the builder `at`, the buffers in which the backward computation of attention `unit` leaves the gradient of
    `keys`, the result of `before_backward`, and return their names; empty for empty `keys`. part: micro-batch or half."""
    name = "results-gradient" if isinstance(at.key_share(unit), HeadPieces) else "keys-gradient-whole"
    return tuple(at.buffer(f"{name}.{unit}.{part}", at.buffers[key]) for key in keys)


def after_backward(
    at: InstructionBuilder,
    unit: int,
    part: MicroBatchPart,
    inside: str,
    into: str,
    weights: tuple[str, ...],
    gradient: str,
    frees: tuple[str, ...],
) -> None:
    """Issue (append to the rank's instructions in `at`) what an attention under context parallelism does after its backward
    computation: the reduce-scatter of the gradient of keys and values, and the backward pass of their projections, which adds
    to the gradient of the input (the buffer `into`) and of the parameters (the buffer `gradient`).

    unit: index of the attention. part: micro-batch or half. inside: the buffer that the matrix multiplications read. weights:
    buffers of the parameters. frees: buffers to free after that.
    """
    share, rows = at.key_share(unit), len(at.rows(unit, part))
    assert share is not None
    own = at.buffer(f"keys-gradient.{unit}.{part}", share.own_bytes(rows))
    if isinstance(share, HeadPieces):
        context_parallel_heads.after_backward(at, share, unit, part)
    else:
        whole = f"keys-gradient-whole.{unit}.{part}"
        size, group = at.buffers[whole], at.piece_peers(unit)
        fields: dict[str, Any] = {"reads": (whole,), "writes": (own,), "frees": (whole,), "group": group}
        at.issue(Op.SCATTER_KEYS, unit, part, **fields, message_bytes=size, workspace_bytes=size)
    graph = f"keys-graph.{unit}.{part}"
    at.issue(
        Op.KEYS_BACKWARD,
        unit,
        part,
        reads=(graph, inside, own, weights[0], into, gradient),
        writes=(into, gradient),
        frees=(graph, own, *frees),
        workspace_bytes=share.backward_workspace_bytes(rows),
    )


def _again(at: InstructionBuilder, unit: int) -> bool:
    """Whether the keys and values of the rank's own tokens are computed again in the backward pass of the attention with index
    `unit`, instead of being kept. at: the builder of the rank's program."""
    share = at.key_share(unit)
    return share is not None and (share.recomputes_projections or at.strategies[unit].ckpt)


def _gathered(at: InstructionBuilder, unit: int, part: MicroBatchPart, freed: bool) -> str:
    """Issue (append to the rank's instructions in `at`) the all-gather of keys and values over the context-parallel ranks of
    attention `unit`; returns the buffer of the keys and values of all tokens. part: micro-batch or half. freed: whether the
    rank's own keys and values are freed after it."""
    share, rows, own = at.key_share(unit), len(at.rows(unit, part)), f"keys.{unit}.{part}"
    assert share is not None
    whole = at.buffer(f"keys-whole.{unit}.{part}", share.whole_bytes(rows))
    size, group = at.buffers[whole], at.piece_peers(unit)
    fields: dict[str, Any] = {"reads": (own,), "writes": (whole,), "frees": (own,) if freed else (), "group": group}
    at.issue(Op.GATHER_KEYS, unit, part, **fields, message_bytes=size, workspace_bytes=size)  # order of ranks to that of tokens
    return whole
