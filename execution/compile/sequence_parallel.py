"""Instructions that one rank issues for a unit with sequence parallelism (see `sublayers.token_share`).

Forward: enter, gather tokens, forward, reduce-scatter tokens, leave. Backward: the gradient of what left is gathered, and so,
again, is what entered, of which a rank keeps its own tokens alone; then backward, reduce-scatter tokens, and the backward pass
of what entered. A recomputed unit keeps its input, of the rank's tokens: it enters again, without leaving.

In all functions `at` is the rank's builder, to which instructions are appended.
"""

from __future__ import annotations

from typing import Any

from trainplan.execution.compile import context_parallel_keys
from trainplan.execution.compile.relayout import UnitBoundaries
from trainplan.execution.instructions import Op
from trainplan.execution.program import MicroBatchPart


def forward(
    at: UnitBoundaries, unit: int, part: MicroBatchPart, source: str, weights: tuple[str, ...], freed: tuple[str, ...]
) -> None:
    """Issue (append to the rank's instructions in `at`) the forward pass, under sequence parallelism, of the unit (sub-layer)
    with index `unit` on a micro-batch or half (`part`): what comes before its matrices, all-gather of tokens, matrices,
    reduce-scatter of tokens, and what comes after. source: the buffer of its input, in the unit's layout. weights: buffers of
    the parameters. freed: which of these parameter buffers to free after their last use here."""
    share, rows, ckpt = at.token_share(unit), len(at.rows(unit, part)), at.strategies[unit].ckpt
    entry, inside, recomputed = "", source, ckpt or share.recomputes_entry
    if share.enters:
        entry = _enter(at, unit, part, weights, graph=not recomputed)
        inside = _gather_entry(at, unit, part, freed=recomputed and not share.post_norm)
        freed = (*freed, inside)
    keys = context_parallel_keys.forward(at, unit, part, inside, weights)
    after = f"{unit + 1}.{part}"
    if at.model.units[unit].kind == "head":
        result = at.buffer(f"hidden.{after}", share.sublayer.output_bytes(rows, share.tp))
    else:
        result = at.buffer(f"hidden-partial.{after}", share.whole_bytes(rows))
    graph, workspace = at.buffer(f"graph.{unit}.{part}", share.graph_bytes(rows)), share.forward_workspace_bytes(rows)
    op, writes = Op.FORWARD, tuple[str, ...]((result, graph))
    if ckpt:
        op, writes, workspace = Op.FORWARD_WITHOUT_GRAPH, (result,), workspace + share.graph_bytes(rows)
    frees = (*freed, *context_parallel_keys.done_with(at, unit, keys))
    at.issue(op, unit, part, reads=(inside, *weights, *keys), writes=writes, frees=frees, workspace_bytes=workspace)
    if at.model.units[unit].kind == "head":
        return
    output = at.scatter_tokens(unit, part, result, f"hidden.{after}")
    if share.leaves:
        residual = ((entry if share.post_norm else source),) if share.adds_residual else ()
        frees = (entry,) if recomputed and share.post_norm else ()
        fields: dict[str, Any] = {"reads": (output, *residual), "writes": (output,), "frees": frees}
        at.issue(Op.LEAVE, unit, part, **fields, workspace_bytes=share.leave_workspace_bytes(rows))


def incoming(at: UnitBoundaries, unit: int, part: MicroBatchPart, arrived: tuple[str, ...]) -> tuple[str, ...]:
    """Issue (append to the rank's instructions in `at`) the steps, under sequence parallelism, from the gradient of a unit's
    output on the rank's own tokens (the buffers `arrived`) to the gradient of its matrices' output on all tokens, whose buffer
    is returned: backward pass of dropout, all-gather of tokens. For the head, `arrived` is returned. unit: index of the unit
    (sub-layer). part: micro-batch or half."""
    share, rows = at.token_share(unit), len(at.rows(unit, part))
    if at.model.units[unit].kind == "head":
        return arrived
    (gradient,) = arrived
    frees = tuple[str, ...](() if share.adds_residual else (gradient,))
    if share.drops_output:
        dropped = at.buffer(f"leave-gradient.{unit}.{part}", share.own_bytes(rows))
        fields: dict[str, Any] = {"reads": (gradient,), "writes": (dropped,), "frees": frees}
        at.issue(Op.LEAVE_BACKWARD, unit, part, **fields, workspace_bytes=share.leave_workspace_bytes(rows))
        gradient, frees = dropped, (dropped,)
    return (at.gather_tokens(unit, part, gradient, f"output-gradient-whole.{unit}.{part}", unit, frees),)


def backward(
    at: UnitBoundaries,
    unit: int,
    part: MicroBatchPart,
    gradient: str,
    whole: tuple[str, ...],
    weights: tuple[str, ...],
    adds: tuple[str, ...],
    gradients: tuple[str, ...],
    frees: tuple[str, ...],
) -> None:
    """Issue (append to the rank's instructions in `at`) the backward pass, under sequence parallelism, of the unit (sub-layer)
    with index `unit` on a micro-batch or half (`part`). gradient, whole: buffers of the output's gradient, on the rank's
    tokens and on all. weights: buffers of the parameters. adds: gradients of parameters that are read because this pass adds
    to them. gradients: buffers of the gradients of parameters that it writes. frees: gradients and weights to free after their
    last use here."""
    share, rows, ckpt = at.token_share(unit), len(at.rows(unit, part)), at.strategies[unit].ckpt
    graph, source = at.backward_reads(unit, part)
    inside = source
    if share.enters:
        if ckpt or share.recomputes_entry:
            _enter(at, unit, part, weights, graph=True)
        inside = _gather_entry(at, unit, part, freed=True, again=True)
    keys = context_parallel_keys.before_backward(at, unit, part, inside, weights)
    if ckpt:
        workspace = share.forward_workspace_bytes(rows)
        head = at.model.units[unit].kind == "head"
        workspace += share.sublayer.output_bytes(rows, share.tp) if head else share.whole_bytes(rows)
        at.issue(Op.RECOMPUTE, unit, part, reads=(inside, *weights, *keys), writes=(graph,), workspace_bytes=workspace)
    later = (*((gradient,) if share.adds_residual else ()), *((weights[0],) if share.enters else ()))
    writes: tuple[str, ...] = ()
    if share.enters:
        writes = (at.buffer(f"entry-gradient-partial.{unit}.{part}", share.whole_bytes(rows)),)
    at.issue(
        Op.BACKWARD,
        unit,
        part,
        reads=(graph, inside, *whole, *weights, *keys, *adds),
        writes=(*writes, *context_parallel_keys.gradient_of(at, unit, part, keys), *gradients),
        frees=(graph, *(() if keys else (inside,)), *keys, *(name for name in frees if name not in later)),
        workspace_bytes=share.backward_workspace_bytes(rows),
    )
    if keys:
        context_parallel_keys.after_backward(at, unit, part, inside, writes[0], weights, gradients[-1], (inside,))
    if not share.enters:
        return
    entered = at.scatter_tokens(unit, part, writes[0], f"entry-gradient.{unit}.{part}")
    result = at.buffer(f"input-gradient.{unit}.{part}", share.own_bytes(rows))
    kept = (f"entry-graph.{unit}.{part}", source, entered)
    at.issue(
        Op.ENTER_BACKWARD,
        unit,
        part,
        reads=(*kept, *((gradient,) if share.adds_residual else ()), weights[0], gradients[-1]),
        writes=(result, gradients[-1]),
        frees=(*kept, *(name for name in frees if name in later)),
        workspace_bytes=share.enter_backward_workspace_bytes(rows),
    )


def _enter(at: UnitBoundaries, unit: int, part: MicroBatchPart, weights: tuple[str, ...], graph: bool) -> str:
    """Issue (append to the rank's instructions in `at`) the part of a unit's computation that comes before its matrices (such
    as its norm), on the rank's tokens, under sequence parallelism; returns the buffer of its result. unit: index of the unit
    (sub-layer). part: micro-batch or half. weights: buffers of the parameters. graph: whether autograd's graph is kept for the
    backward pass."""
    share, rows, source = at.token_share(unit), len(at.rows(unit, part)), at.backward_reads(unit, part)[1]
    entry = at.buffer(f"entry.{unit}.{part}", share.own_bytes(rows))
    kept = at.buffer(f"entry-graph.{unit}.{part}", share.entry_graph_bytes(rows))
    op, writes, workspace = Op.ENTER, tuple[str, ...]((entry, kept)), share.enter_workspace_bytes(rows)
    if not graph:
        op, writes, workspace = Op.ENTER_WITHOUT_GRAPH, (entry,), workspace + share.entry_graph_bytes(rows)
    at.issue(op, unit, part, reads=(source, weights[0]), writes=writes, workspace_bytes=workspace)
    return entry


def _gather_entry(at: UnitBoundaries, unit: int, part: MicroBatchPart, freed: bool, again: bool = False) -> str:
    """Issue (append to the rank's instructions in `at`) the all-gather of the tokens of the input of a unit's matrices, under
    sequence parallelism; returns its buffer. unit: index of the unit (sub-layer). part: micro-batch or half. freed: whether
    the rank's own tokens are freed then. again: whether it repeats a forward pass's gather for the backward pass."""
    entry = f"entry.{unit}.{part}"
    return at.gather_tokens(unit, part, entry, f"entry-whole.{unit}.{part}", unit, (entry,) if freed else (), again)
