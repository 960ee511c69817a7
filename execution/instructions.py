"""The instructions that programs consist of: one entry of `Op` says everything about one of them.

Checks, memory and time analysis, cost models, pictures and the executor read the entry; none of them has a table of its own.
What an entry cannot say is code: how the instruction runs is the method of `run.executor.Executor` of the same name, and where
it computes something new, what that means is a rule of `analysis.verify.semantics`.

The operands of an instruction are texts `reads -> writes` of the buffers that it reads and writes, in the order in which the
executor takes them. In them `u` stands for the instruction's unit, `v` for the one after and `0` for the first; `p` for its
part, a micro-batch or half of one, `w` for the whole micro-batch of a half, `a` and `b` for the halves of a whole one. `|` is
between alternatives, `?` after what may be left out. What stands in braces depends on where a unit's states are, and is filled
in by `analysis.verify.operands`. A buffer is freed by the last instruction that touches it: only gathered parameters and hidden
states that have been offloaded have an instruction of their own for that (`lets_go`).
"""

from __future__ import annotations

from enum import StrEnum
from functools import partial

from trainplan.execution.instruction_spec import OpSpec

_arrange = partial(OpSpec, kind="arrange")
_order = partial(OpSpec, kind="order")
_forward = partial(OpSpec, kind="forward", workspace="piece")
_backward = partial(OpSpec, kind="backward", workspace="piece")
_optimizer = partial(OpSpec, kind="optimizer", smallest_part="step")
_collective = partial(OpSpec, kind="collective", lane="communication")
_message = partial(OpSpec, kind="message", lane="communication")
_copy_in = partial(OpSpec, kind="copy-in", lane="copy")
_copy_out = partial(OpSpec, kind="copy-out", lane="copy")

ARRIVED = "hidden.u.p|input.u.p"
UNIT_INPUT = f"{ARRIVED}|prefetched.u.p"
OUTPUT_GRADIENT = "hidden.v.p|input-gradient.v.p|input-gradient.v.w|output-gradient.u.p|output-gradient.u.w"
_IN_ANOTHER_LAYOUT = (
    "hidden.u.p|hidden-whole.u.p -> input.u.p|hidden-laid.u.p",
    "input-gradient.v.p|input-gradient-whole.v.p -> output-gradient.u.p|input-gradient-laid.v.p",
)


class Op(StrEnum):
    """The kinds of instruction that a rank's program consists of, by name; `spec`, the entry of each, says everything about it
    except the code that runs it."""

    spec: OpSpec

    def __new__(cls, spec: OpSpec) -> Op:
        """A member whose value is the name in its entry."""
        member = str.__new__(cls, spec.name)
        member._value_ = spec.name
        member.spec = spec
        return member

    INPUT = _arrange("input", ("-> hidden.u.p",), args=("rows",), selects_rows=True)  # tokens of the rank's rows
    TARGETS = _arrange(  # the next token of each of these tokens
        "targets", ("-> targets.p",), of_unit="last", args=("rows",), selects_rows=True
    )
    FORWARD = _forward(  # partial output; keeps the graph
        "forward",
        ("{arrived} {weights} {keys} -> {output} graph.u.p",),
        piece="matrices",
        graph="kept",
        draws=True,
        pass_time="forward_ns",
        measured_as="forward_ns",
    )
    FORWARD_WITHOUT_GRAPH = _forward(
        "forward-without-graph",
        ("{arrived} {weights} {keys} -> {output}",),
        piece="matrices",
        graph="discarded",
        draws=True,
        pass_time="forward_ns",
        measured_as="forward_without_graph_ns",
    )
    RECOMPUTE = OpSpec(  # rebuilds the graph from the kept input
        "recompute",
        ("{source} {weights} {keys} -> graph.u.p",),
        kind="recompute",
        workspace="piece",
        piece="matrices",
        graph="rebuilt",
        draws=True,
        pass_time="recompute_ns",
        measured_as="forward_ns",
    )
    BACKWARD = _backward(  # partial input gradient; adds to the parameter gradients that it reads, else writes them
        "backward",
        ("graph.u.p {source} {incoming} {weights} {keys} {sum_before} -> {source_gradient} {keys_gradient} {sums}",),
        piece="matrices",
        optional_args=("blocks",),
        pass_time="backward_ns",
        measured_as="backward_ns",
    )
    ENTER = _forward(  # with sequence parallelism: what comes before the matrices, on the rank's tokens; keeps the graph
        "enter",
        (f"{UNIT_INPUT} {{own}} -> entry.u.p entry-graph.u.p",),
        piece="entry",
        graph="kept",
        needs_shared_tokens=True,
        draws=True,
    )
    ENTER_WITHOUT_GRAPH = _forward(
        "enter-without-graph",
        (f"{UNIT_INPUT} {{own}} -> entry.u.p",),
        piece="entry",
        graph="discarded",
        needs_shared_tokens=True,
        draws=True,
    )
    LEAVE = _forward(  # what comes after the sum over partial outputs, on the rank's tokens: dropout, residual
        "leave", ("hidden.v.p {residual} -> hidden.v.p",), piece="exit", needs_shared_tokens=True, draws=True
    )
    LEAVE_BACKWARD = _backward(  # the gradient of the dropout there
        "leave-backward", (f"{OUTPUT_GRADIENT} -> leave-gradient.u.p",), piece="exit", needs_shared_tokens=True, draws=True
    )
    ENTER_BACKWARD = _backward(  # the gradient of the unit's input; adds to the parameter gradients
        "enter-backward",
        (
            f"entry-graph.u.p {UNIT_INPUT} entry-gradient.u.p {{residual_gradient}} {{own}} {{sum}} "
            "-> input-gradient.u.p {sum}",
        ),
        piece="entry",
        needs_shared_tokens=True,
        optional_args=("blocks",),
    )
    KEYS = _forward(  # with context parallelism: an attention's keys and values of the rank's tokens, and its queries where
        # heads are exchanged; keeps the graph
        "keys",
        ("{source} {own} -> keys.u.p keys-graph.u.p",),
        piece="keys",
        graph="kept",
    )
    KEYS_WITHOUT_GRAPH = _forward("keys-without-graph", ("{arrived} {own} -> keys.u.p",), piece="keys", graph="discarded")
    CORE = _forward(  # where context-parallel ranks exchange heads: attention's core on all of the rank's tokens
        "core", ("heads.u.p -> mixed.u.p core-graph.u.p",), piece="core", graph="kept", draws=True
    )
    CORE_WITHOUT_GRAPH = _forward(
        "core-without-graph", ("heads.u.p -> mixed.u.p",), piece="core", graph="discarded", draws=True
    )
    CORE_BACKWARD = _backward(
        "core-backward", ("core-graph.u.p heads.u.p mixed.u.p mixed-gradient.u.p -> heads-gradient.u.p",), piece="core"
    )
    KEYS_BACKWARD = _backward(  # what keys and values add to the gradients of the unit's input and of its parameters
        "keys-backward",
        ("keys-graph.u.p {source} keys-gradient.u.p {own} {keys_into} {sum} -> {keys_into} {sum}",),
        piece="keys",
    )
    LOSS_STATISTICS = OpSpec(  # per token: largest logit, sum of exponentials, target's logit, of the shard
        "loss-statistics", ("hidden.v.p targets.p -> hidden.v.p statistics.p",), kind="forward", of_unit="last"
    )
    LOSS = OpSpec(  # the rank's loss, and the logits' gradient, which overwrites the logits
        "loss",
        ("hidden.v.p targets.p statistics.p all-statistics.p? loss -> {logits_gradient} loss",),
        kind="forward",
        of_unit="last",
        args=("scale",),
    )
    OPTIMIZER_STEP = _optimizer(
        "optimizer-step", ("gradient.u -> parameter.u moments.u master.u?",), workspace="step", steps="moments"
    )
    SLICE = _arrange(  # change of layout where the rank already holds its rows
        "slice", _IN_ANOTHER_LAYOUT, args=("blocks", "rows"), selects_rows=True
    )
    GATHER_SLICE = _collective(  # change of layout: gather blocks, keep own rows
        "gather-slice",
        _IN_ANOTHER_LAYOUT,
        args=("blocks", "rows"),
        selects_rows=True,
        group_axis="rows",
        moved="blocks",
        has_halves=True,
        workspace="message",
        transfer="all-gather",
        priced_by_buffer=True,
    )
    SLICE_TOKENS = _arrange(  # change of layout: keep the rank's tokens of each sample
        "slice-tokens",
        (
            "hidden.u.p|hidden-whole.u.p|hidden-laid.u.p -> input.u.p",
            "input-gradient.v.p|input-gradient-whole.v.p|input-gradient-laid.v.p -> output-gradient.u.p",
        ),
        args=("tokens",),
    )
    JOIN = _arrange(  # the rows of both halves of a micro-batch, in one buffer
        "join",
        ("hidden.u.a hidden.u.b -> hidden.u.p", "input-gradient.u.a input-gradient.u.b -> input-gradient.u.p"),
        of_unit="boundary",
        args=("blocks",),
        optional_args=("rows",),
        selects_rows=True,
    )
    ALL_REDUCE = _collective(  # partial outputs or input gradients over the tensor-parallel group
        "all-reduce",
        ("hidden.v.p -> hidden.v.p", "input-gradient.u.p -> input-gradient.u.p"),
        piece="matrices",
        group_axis="tp",
        moved="written",
        has_halves=True,
        transfer="all-reduce",
    )
    GATHER_TOKENS = _collective(  # all tokens of what the tensor-parallel group's ranks have split among them
        "gather-tokens",
        (
            "entry.u.p -> entry-whole.u.p",
            f"leave-gradient.u.p|{OUTPUT_GRADIENT} -> output-gradient-whole.u.p",
            "hidden.u.p -> hidden-whole.u.p|input.u.p",
            "hidden.v.p -> hidden-whole.v.p",
            "input-gradient.v.p -> input-gradient-whole.v.p|output-gradient.u.p",
            "input-gradient.u.p -> input-gradient-whole.u.p",
        ),
        piece="matrices",
        args=("tokens",),
        group_axis="tp",
        moved="written",
        has_halves=True,
        workspace="message",
        transfer="all-gather",
        priced_by_buffer=True,
    )
    REDUCE_SCATTER_TOKENS = _collective(  # partial outputs or gradients of all tokens; the rank's own of the sum
        "reduce-scatter-tokens",
        ("hidden-partial.v.p -> hidden.v.p", "entry-gradient-partial.u.p -> entry-gradient.u.p"),
        piece="matrices",
        needs_shared_tokens=True,
        args=("tokens",),
        group_axis="tp",
        moved="read",
        has_halves=True,
        workspace="message",
        transfer="reduce-scatter",
    )
    GATHER_KEYS = _collective(  # keys and values of all tokens of what context-parallel ranks have cut
        "gather-keys",
        ("keys.u.p -> keys-whole.u.p",),
        piece="keys",
        group_axis="cp",
        moved="written",
        workspace="message",
        transfer="all-gather",
    )
    SCATTER_KEYS = _collective(  # gradients of keys and values, summed over these ranks; each rank gets its own tokens'
        "scatter-keys",
        ("keys-gradient-whole.u.p -> keys-gradient.u.p",),
        piece="keys",
        group_axis="cp",
        moved="read",
        workspace="message",
        transfer="reduce-scatter",
    )
    EXCHANGE_HEADS = _collective(  # of the rank's tokens of all heads to all tokens of its part of the heads, or gradients
        "exchange-heads",
        ("keys.u.p -> heads.u.p", "results-gradient.u.p -> mixed-gradient.u.p"),
        piece="core",
        group_axis="cp",
        moved="written",
        workspace="exchange",
        transfer="all-to-all",
    )
    EXCHANGE_TOKENS = _collective(  # the inverse of exchange-heads
        "exchange-tokens",
        ("mixed.u.p -> results.u.p", "heads-gradient.u.p -> keys-gradient.u.p"),
        piece="core",
        group_axis="cp",
        moved="read",
        workspace="exchange",
        transfer="all-to-all",
    )
    GATHER_STATISTICS = _collective(
        "gather-statistics",
        ("statistics.p -> all-statistics.p",),
        of_unit="last",
        group_axis="tp",
        moved="written",
        has_halves=True,
        transfer="all-gather",
    )
    GATHER_PARAMETERS = _collective(  # a sharded unit's parameters, whole until they are freed
        "gather-parameters",
        ("parameter.u -> gathered.u",),
        zero_stages=frozenset({3}),
        own_reads=1,
        group_axis="sdp",
        moved="written",
        transfer="all-gather",
    )
    GATHER_UPDATED = _collective(  # parameters that are whole on every rank of a group, after every rank has stepped its shard
        "gather-updated",
        ("parameter.u -> parameter.u",),
        smallest_part="step",
        zero_stages=frozenset({1, 2}),
        group_axis="sdp",
        moved="written",
        transfer="all-gather",
    )
    REDUCE_REPLICATED = _collective(  # gradients of replicated parameters over the tensor-parallel group
        "reduce-replicated",
        ("{sum} -> {sum}",),
        smallest_part="micro-batch",
        group_axis="tp",
        moved="replicated",
        transfer="all-reduce",
    )
    REDUCE_SCATTER_GRADIENTS = _collective(
        "reduce-scatter-gradients",
        ("{sum} {shard_before} -> gradient.u",),
        smallest_part="micro-batch",
        zero_stages=frozenset({1, 2, 3}),
        group_axis="sdp",
        moved="read",
        workspace="shard",
        transfer="reduce-scatter",
    )
    ALL_REDUCE_GRADIENTS = _collective(
        "all-reduce-gradients",
        ("gradient.u -> gradient.u",),
        smallest_part="step",
        group_axis="copies",
        moved="shard",
        transfer="all-reduce",
    )
    REDUCE_TIED = _collective(  # gradient of a matrix that embedding and head share, where each has a copy of its own
        "reduce-tied",
        (),  # of no unit: see `analysis.verify.operands.tied_buffers`
        of_unit="none",
        smallest_part="step",
        group_axis="tied",
        moved="tied",
        workspace="message",
        transfer="all-reduce",
    )
    REDUCE_LOSS = _collective(
        "reduce-loss", ("loss -> loss",), of_unit="none", smallest_part="step", group_axis="world", moved="written"
    )
    SEND = _message(  # hidden states to the next stage, or their gradients to the one before
        "send",
        ("hidden.u.p|hidden-whole.u.p ->", "input-gradient.u.p|input-gradient-whole.u.p ->"),
        of_unit="boundary",
        optional_args=("blocks", "rows"),
        selects_rows=True,
        group_axis="stage",
        moved="sent",
    )
    RECEIVE = _message(  # in the sender's layout, or of unlike stages in the receiver's
        "receive",
        ("hidden.u.p? -> hidden.u.p", "input-gradient.u.p? -> input-gradient.u.p"),
        of_unit="boundary",
        args=("rows",),
        optional_args=("tokens",),
        group_axis="stage",
        moved="written",
        has_halves=True,
        transfer="p2p",
        priced_by_buffer=True,
    )
    POST_RECEIVE = _arrange(  # from here on a message may arrive in the buffer that its receive then waits for
        "post-receive", ("-> hidden.u.p", "-> input-gradient.u.p"), lane="communication", of_unit="boundary"
    )
    SEND_RECEIVE = _message(  # sends and receives at once: its operands are those of its messages
        "send-receive", (), of_unit="none", smallest_part="step", transfer="p2p"
    )
    PREFETCH_SHARD = _copy_in(  # of the parameters, from the host
        "prefetch-shard", ("host-parameter.u -> parameter.u",), own_reads=1, moved="written", copied="to_device"
    )
    RESHARD = _order(  # free gathered parameters
        "reshard", ("->",), lane="communication", smallest_part="micro-batch", lets_go=("gathered.u",)
    )
    OFFLOAD_HIDDEN = _copy_out(  # a unit's input, to the host
        "offload-hidden", (f"{ARRIVED} -> host-hidden.u.p",), moved="written", copied="to_host"
    )
    DROP_HIDDEN = _copy_out(  # free an offloaded input on the device
        "drop-hidden", ("host-hidden.u.p ->",), lets_go=tuple(ARRIVED.split("|"))
    )
    PREFETCH_HIDDEN = _copy_in(  # a unit's input, back from the host
        "prefetch-hidden", ("host-hidden.u.p -> prefetched.u.p",), own_reads=1, moved="written", copied="to_device"
    )
    OFFLOAD_GRADIENT = _copy_out(  # a shard of the gradient, to the host
        "offload-gradient", ("gradient.u -> host-gradient.u",), smallest_part="micro-batch", moved="written", copied="to_host"
    )
    HOST_OPTIMIZER_STEP = _optimizer(  # on the host's shards of parameters, gradients and moments
        "host-optimizer-step", ("host-gradient.u -> host-parameter.u host-moments.u",), lane="host", steps="host-moments"
    )
    SYNCHRONISE = _order("synchronise", ("->",), smallest_part="step")  # all lanes wait for all
    MARK = _order("mark", ("->",), smallest_part="micro-batch", own_reads=0)  # does nothing; comes after its reads
