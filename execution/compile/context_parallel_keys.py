"""What one rank issues for the keys and values of an attention under context parallelism (see `sublayers.pieces`).

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
    """Issue keys and values before a forward computation; returns the buffer that the computation then reads: all keys and
    values or, where ranks exchange heads, the results of the core. Empty for units without context parallelism. inside: the
    buffer that the unit's products read, or the input from which they compute it."""
    if (share := at.key_share(unit)) is None:
        return ()
    if isinstance(share, HeadPieces):
        return (context_parallel_heads.forward(at, share, unit, part, inside, weights),)
    recomputed = _again(at, unit)
    context_parallel_heads.issue_own_keys(at, unit, part, inside, weights, graph=not recomputed)
    return (_gathered(at, unit, part, freed=recomputed),)


def done_with(at: InstructionBuilder, unit: int, keys: tuple[str, ...]) -> tuple[str, ...]:
    """The buffers among `keys`, the result of `forward`, that are freed after the forward computation. Results of cores stay,
    unless the unit is recomputed."""
    return keys if not isinstance(at.key_share(unit), HeadPieces) or at.strategies[unit].ckpt else ()


def before_backward(
    at: InstructionBuilder, unit: int, part: MicroBatchPart, inside: str, weights: tuple[str, ...]
) -> tuple[str, ...]:
    """Issue keys and values before a backward computation; arguments and result as of `forward`."""
    if (share := at.key_share(unit)) is None:
        return ()
    if isinstance(share, HeadPieces):
        return (context_parallel_heads.before_backward(at, share, unit, part, inside, weights),)
    if _again(at, unit):
        context_parallel_heads.issue_own_keys(at, unit, part, inside, weights, graph=True)
    return (_gathered(at, unit, part, freed=True),)


def gradient_of(at: InstructionBuilder, unit: int, part: MicroBatchPart, keys: tuple[str, ...]) -> tuple[str, ...]:
    """Declare the buffers in which a backward computation leaves the gradient of `keys`, the result of `before_backward`."""
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
    """Issue, after a backward computation, what the gradient of keys and values adds to the gradient of the input (`into`) and
    of the parameters (`gradient`). frees: buffers to free after that."""
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
    """Whether a unit's own keys and values are computed again in the backward pass."""
    share = at.key_share(unit)
    return share is not None and (share.again or at.strategies[unit].ckpt)


def _gathered(at: InstructionBuilder, unit: int, part: MicroBatchPart, freed: bool) -> str:
    """Issue the gather of the keys and values of all tokens; returns its buffer. freed: whether the rank's own are freed
    then."""
    share, rows, own = at.key_share(unit), len(at.rows(unit, part)), f"keys.{unit}.{part}"
    assert share is not None
    whole = at.buffer(f"keys-whole.{unit}.{part}", share.whole_bytes(rows))
    size, group = at.buffers[whole], at.piece_peers(unit)
    fields: dict[str, Any] = {"reads": (own,), "writes": (whole,), "frees": (own,) if freed else (), "group": group}
    at.issue(Op.GATHER_KEYS, unit, part, **fields, message_bytes=size, workspace_bytes=size)  # order of ranks to that of tokens
    return whole
