"""Rules for what each operation means for samples, partial sums and shards, and for what it must find in the buffers that it
reads.

Each rule takes the interpreter (`run`) and an instruction of a rank (`head`), raises Fault where a buffer that is read does not
mean what it must, and sets what the buffers that are written mean. Rules of groups take all members and their instructions.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainplan.execution.analysis.verify.interpreter import (
    Fault,
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
from trainplan.execution.analysis.verify.semantics_context_parallel import EXCHANGED, KEY_RULES, gradient_of_keys, whole_keys
from trainplan.execution.analysis.verify.semantics_optimizer_state import (
    EMPTY,
    REDUCED,
    STEPPED,
    Gradient,
    Sum,
    contribute,
    contribution_of,
)
from trainplan.execution.analysis.verify.semantics_sequence_parallel import SHARED, SHARED_TOGETHER, enters, own_tokens
from trainplan.execution.gc_paused import gc_paused
from trainplan.execution.instructions import Op
from trainplan.execution.program import Instruction, Program, sender_name


@gc_paused()
def meanings(programs: Sequence[Program]) -> list[str]:
    """Execute the programs of all ranks together symbolically, and check that they compute every sample's gradient exactly
    once. Returns the first fault as a list of one line of text; empty if there is none. A program is one rank's instructions
    for a training step."""
    try:
        interpreter = Interpreter(programs, _RULES, _TOGETHER)
        for values in interpreter.values:
            values["loss"] = Sum()
        interpreter.run()
    except Fault as fault:
        return [str(fault)]
    return []


def _input(run: Interpreter, rank: int, head: Instruction) -> None:
    """Symbolic execution of `head`, an instruction of `rank` that copies token ids into the first sub-layer's input: the
    buffer's meaning, in `Interpreter.values`, becomes the samples that the instruction names."""
    run.values[rank][head.writes[0]] = Hidden(0, head.args["rows"], only(0), 1)


def _post_receive(run: Interpreter, rank: int, head: Instruction) -> None:
    """Symbolic execution of `head`, an instruction of `rank` that posts a receive: the buffer's meaning, in
    `Interpreter.values`, becomes "posted", which nothing can use until the receive is done."""
    assert head.unit is not None
    run.values[rank][head.writes[0]] = Hidden(head.unit, (), only(0), 1, "posted")


def _targets(run: Interpreter, rank: int, head: Instruction) -> None:
    """Symbolic execution of `head`, an instruction of `rank` that copies the loss's targets: the buffer's meaning, in
    `Interpreter.values`, becomes the ids of the samples that the instruction names."""
    run.values[rank][head.writes[0]] = head.args["rows"]


def _unit_input(run: Interpreter, rank: int, head: Instruction) -> Hidden:
    """The meaning of the input of `head`, a forward computation of `rank`. Raises Fault unless it is the whole input of the
    instruction's unit (sub-layer), the instruction draws dropout for the same samples, and the parameters are complete, not
    shards."""
    source, weights = head.reads[0], head.reads[1]
    x = run.value(rank, source)
    assert head.unit is not None
    stage = "entry" if enters(run.programs[rank], head.unit) else "hidden"
    if not isinstance(x, Hidden) or x.stage != stage or x.boundary != head.unit or not x.complete():
        raise fault_at(rank, head, f"reads {source}, which is not the whole input of its unit")
    if (rows := head.args.get("rows", x.rows)) != x.rows:
        raise fault_at(rank, head, f"drops numbers as of samples {some(rows)} and gets {some(x.rows)}")
    need_parameters(run, rank, head, weights)
    if _uses_table(run, rank, head):
        need_parameters(run, rank, head, head.reads[2], 0)
    return x


def _uses_table(run: Interpreter, rank: int, head: Instruction) -> bool:
    """Whether `head`, an instruction of `rank`, belongs to the model's head and works with the embedding's own matrix."""
    program = run.programs[rank]
    return head.unit == len(program.strategies) - 1 and program.shares_table


def _forward(run: Interpreter, rank: int, head: Instruction) -> None:
    """Symbolic execution of `head`, a sub-layer's forward computation on `rank`: it writes the partial output of one
    tensor-parallel rank and, if kept, autograd's graph. Raises Fault unless input, keys and values, and parameters are
    complete: neither shards nor partial sums. run: the interpreter, whose table `values` of what each buffer means is read and
    updated."""
    x, shard = _unit_input(run, rank, head), run.shard(rank, head)
    assert head.unit is not None
    whole_keys(run, rank, head, x.rows, -1)
    stage = "logits" if head.unit == len(run.programs[rank].strategies) - 1 else "hidden"
    run.values[rank][head.writes[0]] = Hidden(head.unit + 1, x.rows, only(shard.tp_index), shard.tp, stage)
    for graph in head.writes[1:]:
        run.values[rank][graph] = x


def _recompute(run: Interpreter, rank: int, head: Instruction) -> None:
    """Symbolic execution of `head`, a recomputation on `rank`: it writes a sub-layer's autograd graph, from the sub-layer's
    kept input. Raises Fault unless input, keys and values, and parameters are complete: neither shards nor partial sums. run:
    the interpreter, whose table `values` of what each buffer means is read and updated."""
    run.values[rank][head.writes[0]] = x = _unit_input(run, rank, head)
    whole_keys(run, rank, head, x.rows, -1)


def _statistics(run: Interpreter, rank: int, head: Instruction) -> None:
    """Symbolic execution of `head`, which computes the loss's statistics on `rank`: it writes the statistics of the logits of
    one vocabulary shard. Raises Fault if logits and targets are of different samples. run: the interpreter, whose table
    `values` of what each buffer means is read and updated."""
    logits, targets = run.value(rank, head.reads[0]), run.value(rank, head.reads[1])
    if logits.stage != "logits" or logits.rows != targets:
        raise fault_at(rank, head, f"has logits of samples {some(logits.rows)} and targets of {some(targets)}")
    for name, stage in zip(head.writes, ("exponentials", "statistics"), strict=True):
        run.values[rank][name] = logits._replace(stage=stage)


def _disjoint(ranks: Sequence[int], heads: list[Instruction], hidden: list[Hidden]) -> frozenset[int]:
    """The union of the partial results (as tensor-parallel indices) that the ranks of a group hold. heads, hidden: the
    instruction, and the meaning of its input, on each of `ranks`. Raises Fault unless each partial result comes exactly once,
    and all are of the same samples."""
    parts: set[int] = set()
    for rank, head, value in zip(ranks, heads, hidden, strict=True):
        if value._replace(parts=hidden[0].parts) != hidden[0]:
            raise fault_at(rank, head, f"sums samples {some(value.rows)} with samples {some(hidden[0].rows)}")
        if parts & value.parts:
            raise fault_at(rank, head, "sums the same partial result twice")
        parts |= value.parts
    return frozenset(parts)


def _loss(run: Interpreter, rank: int, head: Instruction) -> None:
    """Symbolic execution of `head`, the loss of the samples of `rank`: it adds them to the meaning of `loss` (on one
    tensor-parallel rank) and writes the gradient of their logits. Raises Fault if statistics of vocabulary shards are missing,
    or the loss is not divided by the tokens of the whole step. run: the interpreter, whose table `values` of what each buffer
    means is read and updated."""
    logits = run.value(rank, head.reads[0])
    statistics = [run.value(rank, name) for name in head.reads[2:-1]]
    if logits.stage != "exponentials" or not statistics[-1].whole():
        raise fault_at(rank, head, "lacks the statistics of some vocabulary shards")
    program = run.programs[rank]
    if abs(head.args["scale"] * program.samples * program.model.tokens - 1) > 1e-12:
        raise fault_at(rank, head, "is not divided by the tokens of the whole step")
    if head.writes[0] != "loss":  # else the backward pass recomputes the logits, and then their gradient
        run.values[rank][head.writes[0]] = Hidden(logits.boundary, logits.rows, only(0), 1, "gradient")
    if run.shard(rank, head).tp_index == 0:
        run.values[rank]["loss"] = run.values[rank]["loss"] + Sum(logits.rows)


def _backward(run: Interpreter, rank: int, head: Instruction) -> None:
    """Symbolic execution of `head`, a sub-layer's backward computation on `rank`: it writes the gradient of the sub-layer's
    input, and adds its samples to the gradients of the sub-layer's parameters. Raises Fault unless graph, incoming gradient and
    parameters are whole and of the same samples. run: the interpreter, whose table `values` of what each buffer means is read
    and updated."""
    assert head.unit is not None
    program = run.programs[rank]
    graph, incoming, first_parameter = run.value(rank, head.reads[0]), run.value(rank, head.reads[2]), 3
    if program.selective(head.unit).has("loss"):
        incoming, first_parameter = _recomputed_loss(run, rank, head)
    need_parameters(run, rank, head, head.reads[first_parameter])
    stage = "leave-gradient" if program.shares_tokens(head.unit) and program.token_share(head.unit).drops_output else "gradient"
    if incoming.stage != stage or incoming.boundary != head.unit + 1 or not incoming.complete():
        raise fault_at(rank, head, f"reads {head.reads[2]}, which is not the whole gradient of its output")
    incoming = of_half(rank, head, incoming, head.reads[2])
    if incoming.rows != graph.rows:
        raise fault_at(rank, head, f"has a graph of samples {some(graph.rows)} and a gradient of {some(incoming.rows)}")
    shard, shared = run.shard(rank, head), enters(program, head.unit)
    if shared and run.value(rank, head.reads[1]) != graph:
        raise fault_at(rank, head, f"reads {head.reads[1]}, which is not what its graph was made of")
    whole_keys(run, rank, head, graph.rows, first_parameter + 1)
    by_keys = gradient_of_keys(run, rank, head, graph.rows)
    if head.unit > 0:
        stage = "queries-gradient" if by_keys else "entry-gradient" if shared else "gradient"
        run.values[rank][head.writes[0]] = Hidden(head.unit, graph.rows, only(shard.tp_index), shard.tp, stage)
    # Where something comes before the matrices, its backward pass completes the gradients of replicated parameters; that of
    # keys and values the others, too.
    contribution = contribution_of(graph.rows, shard.tp_index)
    contribution = contribution._replace(replicated=Sum()) if shared else contribution
    contribute(run, rank, head, head.writes[-1], EMPTY if by_keys else contribution)
    if _uses_table(run, rank, head):
        need_parameters(run, rank, head, head.reads[first_parameter + 1], 0)
        contribute(run, rank, head, head.writes[-2], Gradient(Sum(), Sum(), Sum(graph.rows)))


def _recomputed_loss(run: Interpreter, rank: int, head: Instruction) -> tuple[Hidden, int]:
    """For `head`, the backward pass of the model's head on `rank`, which recomputes the gradient of its logits from the
    targets and the statistics of all vocabulary shards. Returns (the meaning of that gradient; the index of the parameters
    among the buffers that the instruction reads). Raises Fault if statistics are missing."""
    assert head.unit is not None
    first_parameter = 4 + head.reads[4].startswith("all-statistics")
    targets, statistics = run.value(rank, head.reads[2]), [run.value(rank, name) for name in head.reads[3:first_parameter]]
    if (
        any((statistic.stage, statistic.rows) != ("statistics", targets) for statistic in statistics)
        or not statistics[-1].whole()
    ):
        raise fault_at(rank, head, "lacks the statistics of some vocabulary shards")
    return Hidden(head.unit + 1, targets, only(0), 1, "gradient"), first_parameter


def _enter_backward(run: Interpreter, rank: int, head: Instruction) -> None:
    """Symbolic execution of `head` on `rank`: under sequence parallelism, the backward pass of what a sub-layer computes before
    its matrices (such as its norm). It writes the gradient of the sub-layer's input on the rank's tokens, residual included,
    and completes the gradient of replicated parameters. Raises Fault if what it reads does not fit. run: the interpreter, whose
    table `values` of what each buffer means is read and updated."""
    assert head.unit is not None
    graph, source, entered = (run.value(rank, name) for name in head.reads[:3])
    share, tokens = run.programs[rank].token_share(head.unit), own_tokens(run, rank, head.unit)
    if source != graph:
        raise fault_at(rank, head, f"reads {head.reads[1]}, which is not what its graph was made of")
    if (entered.stage, entered.boundary, entered.tokens) != ("entry-gradient", head.unit, tokens) or not entered.whole():
        raise fault_at(rank, head, f"reads {head.reads[2]}, which is not the whole gradient of what entered")
    if entered.rows != graph.rows:
        raise fault_at(rank, head, f"has a graph of samples {some(graph.rows)} and a gradient of {some(entered.rows)}")
    if share.adds_residual:
        residual = of_half(rank, head, run.value(rank, head.reads[3]), head.reads[3])
        wanted = Hidden(head.unit + 1, graph.rows, only(0), 1, "gradient", tokens)
        if residual._replace(parts=only(0), of=1) != wanted or not residual.whole():
            raise fault_at(rank, head, f"reads {head.reads[3]}, which is not the gradient of its output on these tokens")
    need_parameters(run, rank, head, head.reads[-2])
    run.values[rank][head.writes[0]] = Hidden(head.unit, graph.rows, only(0), 1, "gradient", tokens)
    replicated = Gradient(Sum(), contribution_of(graph.rows, run.shard(rank, head).tp_index).replicated, Sum())
    contribute(run, rank, head, head.writes[-1], replicated)


def _relayout(run: Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    """Symbolic execution of a change of layout of hidden states between data-parallel ranks: every rank gets the samples that
    it needs of those that the group has. heads: the instruction of each of `ranks`. Raises Fault if samples are missing or are
    partial sums. run: the interpreter, whose table `values` of what each buffer means is read and updated."""
    sources = [run.value(rank, head.reads[0]) for rank, head in zip(ranks, heads, strict=True)]
    for rank, head in zip(ranks, heads, strict=True):
        blocks, wanted = head.args["blocks"], head.args["rows"]
        if tuple(value.rows for value in sources) != tuple(blocks):
            raise fault_at(rank, head, "gathers other samples than it was compiled for")
        if any(
            not value.complete() or value.boundary != sources[0].boundary or value.stage != sources[0].stage
            for value in sources
        ):
            raise fault_at(rank, head, "moves a partial sum, or a part of the tokens")
        if not set(wanted) <= {row for block in blocks for row in block}:
            raise fault_at(rank, head, "lacks some of the samples that it needs")
        run.values[rank][head.writes[0]] = Hidden(sources[0].boundary, wanted, only(0), 1, sources[0].stage)


def _join(run: Interpreter, rank: int, head: Instruction) -> None:
    """Symbolic execution of `head`, which puts the samples of several buffers (both halves of a micro-batch, or what several
    ranks have sent) in one buffer of `rank`. Raises Fault unless they are the stated samples, whole, of one boundary between
    sub-layers. run: the interpreter, whose table `values` of what each buffer means is read and updated."""
    halves = [run.value(rank, name) for name in head.reads]
    if tuple(half.rows for half in halves) != head.args["blocks"]:
        raise fault_at(rank, head, "joins other samples than it was compiled for")
    first = halves[0]
    if any(not h.whole() or h.boundary != head.unit or (h.stage, h.tokens) != (first.stage, first.tokens) for h in halves):
        raise fault_at(rank, head, "joins what is not all parts of one boundary, whole")
    joined = tuple(row for half in halves for row in half.rows)
    rows = head.args.get("rows", joined)
    if sorted(rows) != sorted(joined):
        raise fault_at(rank, head, f"makes samples {some(rows)} of samples {some(joined)}")
    run.values[rank][head.writes[0]] = halves[0]._replace(rows=rows)


def _all_reduce(run: Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    """Symbolic execution of an all-reduce or all-gather of partial results over tensor-parallel ranks: all of them then have
    all results, summed or concatenated. heads: the instruction of each of `ranks`. Raises Fault if a result comes twice. run:
    the interpreter, whose table `values` of what each buffer means is read and updated."""
    hidden = [run.value(rank, head.reads[0]) for rank, head in zip(ranks, heads, strict=True)]
    whole = hidden[0]._replace(parts=_disjoint(ranks, heads, hidden))
    for rank, head in zip(ranks, heads, strict=True):
        run.values[rank][head.writes[0]] = whole


def _nothing(run: Interpreter, rank: int, head: Instruction) -> None:
    """Symbolic execution of an instruction that changes no meaning: one for order alone, or one that only frees. Its parameters
    are unused. run: the interpreter, whose table `values` of what each buffer means is read and updated."""


def _pass_on(run: Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    """Symbolic execution of a message: the receiver's buffer gets the meaning of the sender's, for the rows that the sender
    names. ranks: (sender, receiver). heads: (send, receive). Raises Fault if names, bytes, samples or tokens of the two differ.
    run: the interpreter, whose table `values` of what each buffer means is read and updated."""
    (sender, receiver), (send, receive) = ranks, heads
    (name,), (target,) = send.reads, receive.writes
    if name.replace("-whole.", ".") != sender_name(target):
        raise fault_at(sender, send, f"of {name} meets the receive of {target} on rank {receiver}")
    if send.message_bytes != receive.message_bytes:
        raise fault_at(sender, send, f"has {send.message_bytes} bytes, rank {receiver} receives {receive.message_bytes}")
    value = run.value(sender, name)
    if not value.whole():
        raise fault_at(sender, send, "passes on a partial sum")
    if value.stage == "posted":
        raise fault_at(sender, send, f"passes on {name}, which has not come")
    rows = send.args.get("rows", value.rows)
    if not set(rows) <= set(value.rows) or send.args.get("blocks", (value.rows,)) != (value.rows,):
        raise fault_at(sender, send, f"passes on samples {some(rows)} of {name}, which holds {some(value.rows)}")
    if rows != receive.args["rows"]:
        raise fault_at(receiver, receive, f"is of samples {some(receive.args['rows'])} and gets {some(rows)}")
    if receive.args.get("tokens") != value.tokens:
        raise fault_at(receiver, receive, f"is of tokens {receive.args.get('tokens')} and gets {value.tokens}")
    run.values[receiver][target] = value._replace(rows=rows)


def _copy(run: Interpreter, rank: int, head: Instruction) -> None:
    """Symbolic execution of `head`, a copy between device and host on `rank`: the target's meaning becomes the source's. Raises
    Fault if an offloaded input is not the whole input of its sub-layer. run: the interpreter, whose table `values` of what each
    buffer means is read and updated."""
    value = run.value(rank, head.reads[0])
    if head.op is Op.OFFLOAD_HIDDEN:
        hidden = isinstance(value, Hidden) and (value.stage, value.boundary) == ("hidden", head.unit)
        if not hidden or not value.whole():
            raise fault_at(rank, head, f"copies {head.reads[0]}, which is not the whole input of its unit")
    run.values[rank][head.writes[0]] = value


def _drop_hidden(run: Interpreter, rank: int, head: Instruction) -> None:
    """Symbolic execution of `head`, which frees a sub-layer's input on the device of `rank`. Raises Fault unless the host has a
    copy. run: the interpreter, whose table `values` of what each buffer means is read and updated."""
    (copy,), (name,) = head.reads, head.frees
    if run.value(rank, copy) != run.value(rank, name):
        raise fault_at(rank, head, f"drops {name}, of which {copy} is no copy")


COPIED: dict[Op, Rule] = {**{op: _copy for op in Op if op.spec.copied}, Op.DROP_HIDDEN: _drop_hidden}


_RULES: dict[Op, Rule] = {
    Op.INPUT: _input,
    Op.TARGETS: _targets,
    Op.POST_RECEIVE: _post_receive,
    Op.FORWARD: _forward,
    Op.FORWARD_WITHOUT_GRAPH: _forward,
    Op.RECOMPUTE: _recompute,
    Op.BACKWARD: _backward,
    Op.ENTER_BACKWARD: _enter_backward,
    Op.LOSS_STATISTICS: _statistics,
    Op.LOSS: _loss,
    **STEPPED,
    Op.JOIN: _join,
    **KEY_RULES,
    **COPIED,
    **SHARED,
    **{op: _nothing for op in Op if op.spec.kind == "order"},
}
_TOGETHER: dict[Op, JointRule] = {
    Op.SLICE: _relayout,
    Op.GATHER_SLICE: _relayout,
    Op.ALL_REDUCE: _all_reduce,
    **SHARED_TOGETHER,
    **EXCHANGED,
    Op.GATHER_STATISTICS: _all_reduce,
    **REDUCED,
    **{op: _pass_on for op in Op if op.spec.kind == "message"},
}
