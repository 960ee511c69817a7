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
    """Raises Fault unless a computation on `rows` reads the keys and values of all pieces of their samples; nothing for units
    without context parallelism. position: index of that buffer among those that it reads."""
    assert head.unit is not None
    if run.programs[rank].key_share(head.unit) is None:
        return
    keys, by_heads = run.value(rank, head.reads[position]), _by_heads(run, rank, head)
    if (keys.stage, keys.boundary, keys.rows) != ("results" if by_heads else "keys-whole", head.unit, rows):
        wanted = "the core's results" if by_heads else "all keys and values"
        raise fault_at(rank, head, f"reads {head.reads[position]}, which is not {wanted} of samples {some(rows)}")


def _by_heads(run: Interpreter, rank: int, head: Instruction) -> bool:
    """Whether the ranks of an attention whose samples are cut exchange heads."""
    return isinstance(run.programs[rank].key_share(head.unit or 0), HeadPieces)


def gradient_of_keys(run: Interpreter, rank: int, head: Instruction, rows: tuple[int, ...]) -> bool:
    """Whether a backward computation is of an attention whose samples are cut. If so, it leaves the gradient of keys and values
    of all tokens, this rank's part of the sum, or that of the core's results."""
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
    """Keys and values of a rank's own piece of each sample."""
    assert head.unit is not None
    x, stage = run.value(rank, head.reads[0]), "entry" if enters(run.programs[rank], head.unit) else "hidden"
    if not isinstance(x, Hidden) or (x.stage, x.boundary) != (stage, head.unit) or not x.complete():
        raise fault_at(rank, head, f"reads {head.reads[0]}, which is not the whole input of its unit")
    need_parameters(run, rank, head, head.reads[1])
    run.values[rank][head.writes[0]] = Hidden(head.unit, x.rows, only(0), 1, "keys")
    for graph in head.writes[1:]:
        run.values[rank][graph] = x


def _check_pieces(run: Interpreter, ranks: Sequence[int], heads: list[Instruction], values: Sequence[Hidden]) -> None:
    """Raises Fault unless the ranks of a group have all pieces of the same samples, in order of pieces."""
    pieces = run.programs[ranks[0]].model.pieces
    for number, (rank, head, value) in enumerate(zip(ranks, heads, values, strict=True)):
        wanted = tuple(row // pieces * pieces + number for row in values[0].rows)
        if value.rows != wanted or len(values) != pieces or (value.stage, value.boundary) != (values[0].stage, head.unit):
            raise fault_at(rank, head, f"has pieces {some(value.rows)}, not {some(wanted)} of {pieces} a sample")


def _gather_keys(run: Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    """The gather of keys and values of all pieces."""
    values = [run.value(rank, head.reads[0]) for rank, head in zip(ranks, heads, strict=True)]
    if any(value.stage != "keys" for value in values):
        raise fault_at(ranks[0], heads[0], "gathers what is no keys and values")
    _check_pieces(run, ranks, heads, values)
    for rank, head, value in zip(ranks, heads, values, strict=True):
        run.values[rank][head.writes[0]] = value._replace(stage="keys-whole")


def _scatter_keys(run: Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    """The sum of gradients of keys and values, of which each rank gets its piece's."""
    values = [run.value(rank, head.reads[0]) for rank, head in zip(ranks, heads, strict=True)]
    _check_pieces(run, ranks, heads, values)
    parts = frozenset[int]().union(*(value.parts for value in values))
    for rank, head, value in zip(ranks, heads, values, strict=True):
        run.values[rank][head.writes[0]] = value._replace(parts=parts)


def _exchange(run: Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    """The exchange of heads: every rank gets its heads of all pieces, or its piece of all heads."""
    values = [run.value(rank, head.reads[0]) for rank, head in zip(ranks, heads, strict=True)]
    stages = TO_HEADS if heads[0].op is Op.EXCHANGE_HEADS else TO_TOKENS
    if any(value.stage not in stages for value in values):
        raise fault_at(ranks[0], heads[0], f"exchanges what is none of {', '.join(stages)}")
    _check_pieces(run, ranks, heads, values)
    for rank, head, value in zip(ranks, heads, values, strict=True):
        run.values[rank][head.writes[0]] = value._replace(stage=stages[value.stage])


def _core(run: Interpreter, rank: int, head: Instruction) -> None:
    """Attention's core on all tokens of the rank's heads."""
    heads = run.value(rank, head.reads[0])
    if (heads.stage, heads.boundary) != ("heads", head.unit):
        raise fault_at(rank, head, f"reads {head.reads[0]}, which is not all tokens of its heads")
    drops_alike(rank, head, heads)
    run.values[rank][head.writes[0]] = heads._replace(stage="mixed")
    for graph in head.writes[1:]:
        run.values[rank][graph] = heads


def _core_backward(run: Interpreter, rank: int, head: Instruction) -> None:
    """The gradient of the core's queries, keys and values."""
    graph, *values = (run.value(rank, name) for name in head.reads)
    for name, value, stage in zip(head.reads[1:], values, ("heads", "mixed", "mixed-gradient"), strict=True):
        if value != graph._replace(stage=stage) or graph.boundary != head.unit:
            raise fault_at(rank, head, f"reads {name}, which is not of what its graph was made of")
    run.values[rank][head.writes[0]] = graph._replace(stage="heads-gradient")


def _keys_backward(run: Interpreter, rank: int, head: Instruction) -> None:
    """With what comes by keys and values, the gradients of a unit's input and parameters are complete."""
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
