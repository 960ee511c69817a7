"""Rules for the pieces of a unit with sequence parallelism, and for gathers, scatters and slices of tokens. The arguments of
rules are as in `semantics`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from trainplan.execution.analysis.verify.interpreter import (
    Hidden,
    Interpreter,
    JointRule,
    Rule,
    fault_at,
    need_parameters,
    of_half,
    only,
    some,
)
from trainplan.execution.instructions import Op
from trainplan.execution.program import Instruction, Program
from trainplan.profiling.models.sublayers import shard_bounds


def enters(program: Program, unit: int) -> bool:
    """Whether the unit (sub-layer) with index `unit` has sequence parallelism and computes something on the rank's own tokens
    before its matrix multiplications, such as a norm."""
    return program.shares_tokens(unit) and program.token_share(unit).enters


def own_tokens(run: Interpreter, rank: int, unit: int) -> tuple[int, int] | None:
    """(first, end) of the tokens of each sample that a rank holds in the layout of the unit (sub-layer) with index `unit`;
    None if it holds all tokens."""
    program = run.programs[rank]
    part, parts = program.strategies[unit].share(program.index_in_stage)
    return shard_bounds(program.model.units[unit].sublayer.tokens, parts, part) if parts > 1 else None


def drops_alike(rank: int, head: Instruction, x: Hidden) -> None:
    """Raises Fault if `head`, an instruction of `rank`, draws dropout masks for other samples than those that it works on,
    whose meaning is `x`."""
    if (rows := head.args.get("rows", x.rows)) != x.rows:
        raise fault_at(rank, head, f"drops numbers as of samples {some(rows)} and gets {some(x.rows)}")


def _enter(run: Interpreter, rank: int, head: Instruction) -> None:
    """Symbolic execution of `head`, the computation of a sub-layer before its matrices (such as its norm) on the tokens of
    `rank`, under sequence parallelism. Raises Fault unless its input is on these tokens and its parameters are whole. run: the
    interpreter, whose table `values` of what each buffer means is read and updated."""
    x = run.value(rank, head.reads[0])
    assert head.unit is not None
    tokens = own_tokens(run, rank, head.unit)
    if not isinstance(x, Hidden) or (x.stage, x.boundary, x.tokens) != ("hidden", head.unit, tokens) or not x.whole():
        raise fault_at(rank, head, f"reads {head.reads[0]}, which is not the input of its unit on the rank's tokens")
    drops_alike(rank, head, x)
    need_parameters(run, rank, head, head.reads[1])
    run.values[rank][head.writes[0]] = Hidden(head.unit, x.rows, only(0), 1, "entry", tokens)
    for graph in head.writes[1:]:
        run.values[rank][graph] = x


def _leave(run: Interpreter, rank: int, head: Instruction) -> None:
    """Symbolic execution of `head`, the computation of a sub-layer after the sum of its matrices' outputs (dropout, residual)
    on the tokens of `rank`, under sequence parallelism. Raises Fault unless sum and residual are whole and of the same samples
    and tokens. run: the interpreter, whose table `values` of what each buffer means is read and updated."""
    assert head.unit is not None
    y, share = run.value(rank, head.reads[0]), run.programs[rank].token_share(head.unit)
    if (y.stage, y.boundary) != ("sum", head.unit + 1) or not y.whole():
        raise fault_at(rank, head, f"reads {head.reads[0]}, which is not the sum of its matrices' outputs")
    drops_alike(rank, head, y)
    if share.adds_residual:
        x, stage = run.value(rank, head.reads[1]), "entry" if share.post_norm else "hidden"
        if (x.stage, x.boundary, x.rows, x.tokens) != (stage, head.unit, y.rows, y.tokens) or not x.whole():
            raise fault_at(rank, head, f"adds {head.reads[1]}, which is not the residual of the same samples and tokens")
    run.values[rank][head.writes[0]] = y._replace(stage="hidden")


def _leave_backward(run: Interpreter, rank: int, head: Instruction) -> None:
    """Symbolic execution of `head`, the backward pass of a sub-layer's dropout after its matrices on the tokens of `rank`,
    under sequence parallelism: it writes the gradient of the dropout's input. Raises Fault unless it reads the whole gradient
    of the output. run: the interpreter, whose table `values` of what each buffer means is read and updated."""
    assert head.unit is not None
    gradient = run.value(rank, head.reads[0])
    of_output = (gradient.stage, gradient.boundary, gradient.tokens)
    if of_output != ("gradient", head.unit + 1, own_tokens(run, rank, head.unit)) or not gradient.whole():
        raise fault_at(rank, head, f"reads {head.reads[0]}, which is not the gradient of its output on the rank's tokens")
    drops_alike(rank, head, of_half(rank, head, gradient, head.reads[0]))
    run.values[rank][head.writes[0]] = gradient._replace(stage="leave-gradient")


def _gather_tokens(run: Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    """Symbolic execution of the all-gather of tokens under sequence parallelism: every rank of the group then has all tokens of
    its samples. heads: the instruction of each of `ranks`. Raises Fault if samples differ or tokens are missing. run: the
    interpreter, whose table `values` of what each buffer means is read and updated."""
    values = [run.value(rank, head.reads[0]) for rank, head in zip(ranks, heads, strict=True)]
    first = values[0]
    for rank, head, value in zip(ranks, heads, values, strict=True):
        if head.args["tokens"] != tuple(other.tokens for other in values):
            raise fault_at(rank, head, "gathers other tokens than it was compiled for")
        if not value.whole() or value._replace(tokens=first.tokens) != first:
            raise fault_at(rank, head, f"gathers samples {some(value.rows)} with samples {some(first.rows)}, or partial sums")
    _check_all_tokens(run, ranks, heads, [value.tokens for value in values])
    for rank, head in zip(ranks, heads, strict=True):
        run.values[rank][head.writes[0]] = first._replace(tokens=None)


def _scatter_tokens(run: Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    """Symbolic execution of the reduce-scatter of tokens under sequence parallelism: partial results on all tokens are summed,
    and each rank gets its own tokens of the sum. heads: the instruction of each of `ranks`. Raises Fault if samples differ or a
    partial result comes twice. run: the interpreter, whose table `values` of what each buffer means is read and updated."""
    values = [run.value(rank, head.reads[0]) for rank, head in zip(ranks, heads, strict=True)]
    first, parts = values[0], set[int]()
    for rank, head, value in zip(ranks, heads, values, strict=True):
        if value._replace(parts=first.parts) != first or value.tokens is not None:
            raise fault_at(rank, head, f"sums samples {some(value.rows)} with samples {some(first.rows)}")
        if parts & value.parts:
            raise fault_at(rank, head, "sums the same partial result twice")
        parts |= value.parts
    _check_all_tokens(run, ranks, heads, [head.args["tokens"] for head in heads])
    for rank, head in zip(ranks, heads, strict=True):
        assert head.unit is not None
        leaves = first.stage == "hidden" and run.programs[rank].token_share(head.unit).leaves
        whole = first._replace(parts=frozenset(parts), stage="sum" if leaves else first.stage)
        run.values[rank][head.writes[0]] = whole._replace(tokens=head.args["tokens"])


def _check_all_tokens(
    run: Interpreter, ranks: Sequence[int], heads: list[Instruction], shares: Sequence[tuple[int, int] | None]
) -> None:
    """Raises Fault unless the ranks of a group have all tokens of a sample together, in order, without overlap. heads, shares:
    the instruction, and (first, end) of the tokens, of each of `ranks`."""
    unit = heads[0].unit
    assert unit is not None
    ends = [0, *(end for share in shares for end in share or ())]
    all_tokens = run.programs[ranks[0]].model.units[min(unit, len(run.programs[ranks[0]].strategies) - 1)].sublayer.tokens
    if None in shares or ends[-1] != all_tokens or any(a != b for a, b in list(pairwise(ends))[::2]):
        raise fault_at(ranks[0], heads[0], f"has not all {all_tokens} tokens of each sample, each once")


def _slice_tokens(run: Interpreter, rank: int, head: Instruction) -> None:
    """Symbolic execution of `head`, which takes the own tokens of `rank` out of a buffer of all tokens. Raises Fault if the
    buffer is not complete, or the tokens are not the rank's. run: the interpreter, whose table `values` of what each buffer
    means is read and updated."""
    assert head.unit is not None
    value, tokens = run.value(rank, head.reads[0]), head.args["tokens"]
    if not value.complete():
        raise fault_at(rank, head, "moves a partial sum, or a part of the tokens")
    if tokens != own_tokens(run, rank, head.unit):
        raise fault_at(rank, head, f"takes tokens {tokens}, which are not the rank's")
    run.values[rank][head.writes[0]] = value._replace(tokens=tokens)


SHARED: dict[Op, Rule] = {
    Op.ENTER: _enter,
    Op.ENTER_WITHOUT_GRAPH: _enter,
    Op.LEAVE: _leave,
    Op.LEAVE_BACKWARD: _leave_backward,
    Op.SLICE_TOKENS: _slice_tokens,
}
SHARED_TOGETHER: dict[Op, JointRule] = {
    Op.GATHER_TOKENS: _gather_tokens,
    Op.REDUCE_SCATTER_TOKENS: _scatter_tokens,
}
