"""Rules for keys and values of cut samples: they are of one piece of each sample, and all pieces of a sample must come
together. Where ranks exchange heads, the rules of queries and of results of cores, too. The arguments of rules are as in
`semantics`."""

from __future__ import annotations

from collections.abc import Sequence

from trainplan.execution.analysis.verify.interpreter import (
    Hidden,
    Interpreter,
    JointRule,
    Rule,
    fault_at,
    need_parameters,
    only,
    some,
)
from trainplan.execution.analysis.verify.semantics_optimizer_state import Sum, contribute, contribution_of
from trainplan.execution.analysis.verify.semantics_sequence_parallel import drops_alike, enters
from trainplan.execution.instructions import Op
from trainplan.execution.program import Instruction
from trainplan.profiling.models.sublayers import HeadPieces

TO_HEADS = {"keys": "heads", "results-gradient": "mixed-gradient"}  # stages of values before and after an exchange
TO_TOKENS = {"mixed": "results", "heads-gradient": "keys-gradient"}


def whole_keys(run: Interpreter, rank: int, head: Instruction, rows: tuple[int, ...], position: int) -> None:
    """Raises Fault unless `head`, a computation of `rank` on the samples `rows`, reads the keys and values of all
    context-parallel pieces of these samples (or the results of attention's core on them). Does nothing for sub-layers without
    context parallelism. position: index of that buffer among those that the instruction reads."""
    assert head.unit is not None
    if run.programs[rank].key_share(head.unit) is None:
        return
    keys, by_heads = run.value(rank, head.reads[position]), _by_heads(run, rank, head)
    if (keys.stage, keys.boundary, keys.rows) != ("results" if by_heads else "keys-whole", head.unit, rows):
        wanted = "the core's results" if by_heads else "all keys and values"
        raise fault_at(rank, head, f"reads {head.reads[position]}, which is not {wanted} of samples {some(rows)}")


def _by_heads(run: Interpreter, rank: int, head: Instruction) -> bool:
    """Whether `head`, an instruction of `rank`, is of an attention under context parallelism whose ranks exchange heads
    (all-to-all) instead of gathering keys and values."""
    return isinstance(run.programs[rank].key_share(head.unit or 0), HeadPieces)


def gradient_of_keys(run: Interpreter, rank: int, head: Instruction, rows: tuple[int, ...]) -> bool:
    """Whether `head`, a backward computation of `rank` on the samples `rows`, is of an attention under context parallelism. If
    so, also sets the meaning of the second buffer that it writes: this rank's part of the gradient of all keys and values or,
    if ranks exchange heads, the gradient of the core's results."""
    assert head.unit is not None
    if run.programs[rank].key_share(head.unit) is None:
        return False
    if _by_heads(run, rank, head):
        run.values[rank][head.writes[1]] = Hidden(head.unit, rows, only(0), 1, "results-gradient")
        return True
    pieces = run.programs[rank].model.pieces
    run.values[rank][head.writes[1]] = Hidden(head.unit, rows, only(rows[0] % pieces), pieces, "keys-gradient")
    return True


def _keys(run: Interpreter, rank: int, head: Instruction) -> None:
    """Symbolic execution of `head`, which computes keys and values (and queries, if ranks exchange heads) on `rank`, for the
    rank's own piece of each sample. Raises Fault unless input and parameters are complete: neither shards nor partial sums.
    run: the interpreter, whose table `values` of what each buffer means is read and updated."""
    assert head.unit is not None
    x, stage = run.value(rank, head.reads[0]), "entry" if enters(run.programs[rank], head.unit) else "hidden"
    if not isinstance(x, Hidden) or (x.stage, x.boundary) != (stage, head.unit) or not x.complete():
        raise fault_at(rank, head, f"reads {head.reads[0]}, which is not the whole input of its unit")
    need_parameters(run, rank, head, head.reads[1])
    run.values[rank][head.writes[0]] = Hidden(head.unit, x.rows, only(0), 1, "keys")
    for graph in head.writes[1:]:
        run.values[rank][graph] = x


def _check_pieces(run: Interpreter, ranks: Sequence[int], heads: list[Instruction], values: Sequence[Hidden]) -> None:
    """Raises Fault unless the ranks of a context-parallel group have all pieces of the same samples, one piece per rank, in
    order. heads, values: the instruction, and the meaning of its input, on each of `ranks`."""
    pieces = run.programs[ranks[0]].model.pieces
    for number, (rank, head, value) in enumerate(zip(ranks, heads, values, strict=True)):
        wanted = tuple(row // pieces * pieces + number for row in values[0].rows)
        if value.rows != wanted or len(values) != pieces or (value.stage, value.boundary) != (values[0].stage, head.unit):
            raise fault_at(rank, head, f"has pieces {some(value.rows)}, not {some(wanted)} of {pieces} a sample")


def _gather_keys(run: Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    """Symbolic execution of the all-gather of keys and values under context parallelism: every rank then has those of all
    pieces of its samples. heads: the instruction of each of `ranks`. run: the interpreter, whose table `values` of what each
    buffer means is read and updated."""
    values = [run.value(rank, head.reads[0]) for rank, head in zip(ranks, heads, strict=True)]
    if any(value.stage != "keys" for value in values):
        raise fault_at(ranks[0], heads[0], "gathers what is no keys and values")
    _check_pieces(run, ranks, heads, values)
    for rank, head, value in zip(ranks, heads, values, strict=True):
        run.values[rank][head.writes[0]] = value._replace(stage="keys-whole")


def _scatter_keys(run: Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    """Symbolic execution of the reduce-scatter of gradients of keys and values under context parallelism: each rank gets the
    sum for its own piece of each sample. heads: the instruction of each of `ranks`. run: the interpreter, whose table `values`
    of what each buffer means is read and updated."""
    values = [run.value(rank, head.reads[0]) for rank, head in zip(ranks, heads, strict=True)]
    _check_pieces(run, ranks, heads, values)
    parts = frozenset[int]().union(*(value.parts for value in values))
    for rank, head, value in zip(ranks, heads, values, strict=True):
        run.values[rank][head.writes[0]] = value._replace(parts=parts)


def _exchange(run: Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    """Symbolic execution of the all-to-all of heads under context parallelism: every rank gets all pieces of its heads, or all
    heads of its piece. heads: the instruction of each of `ranks`. run: the interpreter, whose table `values` of what each
    buffer means is read and updated."""
    values = [run.value(rank, head.reads[0]) for rank, head in zip(ranks, heads, strict=True)]
    stages = TO_HEADS if heads[0].op is Op.EXCHANGE_HEADS else TO_TOKENS
    if any(value.stage not in stages for value in values):
        raise fault_at(ranks[0], heads[0], f"exchanges what is none of {', '.join(stages)}")
    _check_pieces(run, ranks, heads, values)
    for rank, head, value in zip(ranks, heads, values, strict=True):
        run.values[rank][head.writes[0]] = value._replace(stage=stages[value.stage])


def _core(run: Interpreter, rank: int, head: Instruction) -> None:
    """Symbolic execution of `head`, attention's core (softmax of queries and keys, times values) on all tokens of the heads of
    `rank`: it writes the core's results. Raises Fault unless it reads all tokens. run: the interpreter, whose table `values` of
    what each buffer means is read and updated."""
    heads = run.value(rank, head.reads[0])
    if (heads.stage, heads.boundary) != ("heads", head.unit):
        raise fault_at(rank, head, f"reads {head.reads[0]}, which is not all tokens of its heads")
    drops_alike(rank, head, heads)
    run.values[rank][head.writes[0]] = heads._replace(stage="mixed")
    for graph in head.writes[1:]:
        run.values[rank][graph] = heads


def _core_backward(run: Interpreter, rank: int, head: Instruction) -> None:
    """Symbolic execution of `head`, the backward pass of attention's core on `rank`: it writes the gradient of the core's
    queries, keys and values. Raises Fault unless all that it reads is of the samples of its graph. run: the interpreter, whose
    table `values` of what each buffer means is read and updated."""
    graph, *values = (run.value(rank, name) for name in head.reads)
    for name, value, stage in zip(head.reads[1:], values, ("heads", "mixed", "mixed-gradient"), strict=True):
        if value != graph._replace(stage=stage) or graph.boundary != head.unit:
            raise fault_at(rank, head, f"reads {name}, which is not of what its graph was made of")
    run.values[rank][head.writes[0]] = graph._replace(stage="heads-gradient")


def _keys_backward(run: Interpreter, rank: int, head: Instruction) -> None:
    """Symbolic execution of `head`, the backward pass of the projections to keys and values on `rank`. It completes the
    gradients of the sub-layer's input and parameters, which the sub-layer's backward pass has left without this part. Raises
    Fault if what it reads does not fit. run: the interpreter, whose table `values` of what each buffer means is read and
    updated."""
    assert head.unit is not None
    graph, source, gradient, into = (run.value(rank, head.reads[index]) for index in (0, 1, 2, 4))
    if source != graph:
        raise fault_at(rank, head, f"reads {head.reads[1]}, which is not what its graph was made of")
    if (gradient.stage, gradient.boundary, gradient.rows) != ("keys-gradient", head.unit, graph.rows) or not gradient.whole():
        raise fault_at(rank, head, f"reads {head.reads[2]}, which is not the whole gradient of its keys and values")
    if (into.stage, into.boundary, into.rows) != ("queries-gradient", head.unit, graph.rows):
        raise fault_at(rank, head, f"adds to {head.reads[4]}, which is not what comes by the queries of the same samples")
    need_parameters(run, rank, head, head.reads[3])
    shared = enters(run.programs[rank], head.unit)
    run.values[rank][head.writes[0]] = into._replace(stage="entry-gradient" if shared else "gradient")
    contribution = contribution_of(graph.rows, run.shard(rank, head).tp_index)
    contribute(run, rank, head, head.writes[-1], contribution._replace(replicated=Sum()) if shared else contribution)


KEY_RULES: dict[Op, Rule] = {
    Op.KEYS: _keys,
    Op.KEYS_WITHOUT_GRAPH: _keys,
    Op.KEYS_BACKWARD: _keys_backward,
    Op.CORE: _core,
    Op.CORE_WITHOUT_GRAPH: _core,
    Op.CORE_BACKWARD: _core_backward,
}
EXCHANGED: dict[Op, JointRule] = {
    Op.GATHER_KEYS: _gather_keys,
    Op.SCATTER_KEYS: _scatter_keys,
    Op.EXCHANGE_HEADS: _exchange,
    Op.EXCHANGE_TOKENS: _exchange,
}
