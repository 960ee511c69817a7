"""The entry of one instruction in the table `instructions.Op`: its fields, and the values that they can have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from trainplan.formulations.costs.sequential.primitives import CopyDirection
from trainplan.formulations.plan.strategy import DATA, Paradigm
from trainplan.profiling.clusters.network import Operation

Stream = Literal["compute", "communication", "copy", "copy-out", "host"]
STREAMS: tuple[Stream, ...] = get_args(Stream)

# What an instruction does: a computation of the forward pass, of the backward pass or of recomputation; a step of the
# optimizer; a collective of several ranks; a message between two; a copy to the device or to the host; moving samples into a
# buffer on the rank itself (arrange); nothing but order or freeing memory (order).
Kind = Literal[
    "forward", "backward", "recompute", "optimizer", "collective", "message", "copy-in", "copy-out", "arrange", "order"
]
# The piece of a unit: what comes before its matrices, these, and what comes after the sum of their outputs (apart from each
# other where tensor-parallel ranks share the tokens); keys and values of an attention whose samples are cut, and its core.
Piece = Literal["entry", "matrices", "exit", "keys", "core"]
# Which ranks take part: those along a level of the unit's strategy; those that hold copies of the same states along any of
# its levels; those that hold pieces of the same samples ("cp"); those
# that hold rows which a rank needs in another layout; one of the next or the previous stage; all copies of a tied matrix; all.
GroupAxis = Paradigm | Literal["copies", "rows", "stage", "tied", "world"]
# Whose bytes are moved: the first buffer that is written or read; the rows that are sent; the blocks that are gathered; the
# rank's shard of the gradients; the gradients of replicated parameters, or of the tied matrix.
Moved = Literal["nothing", "written", "read", "sent", "blocks", "shard", "replicated", "tied"]
# Temporaries in addition to buffers: those of the piece of the unit; as much as is moved (to bring what comes in the order of
# ranks into that of samples, or back); both sides of an exchange; the sum that is added to a shard; what the optimizer widens
# or computes.
Workspace = Literal["none", "piece", "message", "exchange", "shard", "step"]
PassTime = Literal["forward_ns", "recompute_ns", "backward_ns"]
MeasuredTime = Literal["forward_ns", "forward_without_graph_ns", "backward_ns"]
SAMPLE_ARGUMENTS = frozenset({"rows", "blocks", "tokens"})


@dataclass(frozen=True)
class OpSpec:
    """Everything about one kind of instruction of a rank's program except the code that runs it.

    Words: a unit is a sub-layer of the model (embedding, attention, MLP, head); a piece is a part of a unit's computation
    (such as its matrix multiplications, or what comes before them); a lane is one of the queues on which a rank's instructions
    run, in parallel with other lanes (compute, communication, copy, copy-out, host); a buffer is a named piece of memory.

    name: as texts and files have it. operands: the buffers that it reads and writes, one text per situation in which it is
    issued. kind: its role. lane: where it runs by default; copies may be issued on other lanes, too.

    What it is about: of_unit: a unit of the rank, the model's last one, one at the boundary to another stage, or none.
    smallest_part: the smallest part of a step that it may be about. piece: the piece of the unit that it computes, or whose
    buffers it moves. graph: whether it keeps autograd's graph for the backward pass, discards it (since the unit, or this
    piece of it, is recomputed), or rebuilds it. zero_stages: the ZeRO stages of units that have this instruction; None for
    all. needs_shared_tokens: only units with sequence parallelism have it. draws: it may apply dropout, whose masks follow
    from the ids of the samples.

    Its fields: args: the names of its arguments. optional_args: names of arguments that it may have in addition. selects_rows:
    it takes the samples in its argument `rows` from what it reads. own_reads: the number of buffers that it really reads; any
    further ones are listed for order alone. lets_go: it frees one of these, which it neither reads nor writes.

    What it moves, needs and costs: group_axis: the ranks that take part; None for this one alone. moved: which of its buffers
    its bytes are counted by. has_halves: it moves samples, so that half of its micro-batch is half of its bytes. workspace:
    how its temporaries are sized. By profiles it takes the time of a pass (pass_time) or of a transfer between devices
    (transfer) or to and from the host (copied), or of an optimizer's step on a buffer of moments (steps); no time without any
    of them. priced_by_buffer: plans carry its time under the buffer that it moves, not under its unit. measured_as: the entry
    of a profile that its time in a run replaces.
    """

    name: str
    operands: tuple[str, ...]
    kind: Kind
    lane: Stream = "compute"
    of_unit: Literal["own", "last", "boundary", "none"] = "own"
    smallest_part: Literal["half", "micro-batch", "step"] = "half"
    piece: Piece | None = None
    graph: Literal["kept", "discarded", "rebuilt"] | None = None
    zero_stages: frozenset[int] | None = None
    needs_shared_tokens: bool = False
    draws: bool = False
    args: tuple[str, ...] = ()
    optional_args: tuple[str, ...] = ()
    selects_rows: bool = False
    own_reads: int | None = None
    lets_go: tuple[str, ...] = ()
    group_axis: GroupAxis | None = None
    moved: Moved = "nothing"
    has_halves: bool = False
    workspace: Workspace = "none"
    pass_time: PassTime | None = None
    transfer: Operation | None = None
    copied: CopyDirection | None = None
    steps: Literal["moments", "host-moments"] | None = None
    priced_by_buffer: bool = False
    measured_as: MeasuredTime | None = None

    @cached_property
    def is_copy(self) -> bool:
        """Whether the instruction is part of a copy between a device and its host (either direction)."""
        return self.kind in ("copy-in", "copy-out")

    @cached_property
    def is_free(self) -> bool:
        """Whether the instruction costs no time when it is priced by a profile: it has no pass, transfer, copy or optimizer
        step."""
        return not (self.pass_time or self.transfer or self.copied or self.steps)

    @cached_property
    def among_replicas(self) -> bool:
        """Whether it is a collective of ranks that work on different samples: of model states, or of the loss."""
        return self.group_axis in (*DATA, "copies", "tied", "world")

    @cached_property
    def sums_partials(self) -> bool:
        """Whether the instruction is a collective of tensor-parallel ranks within a unit or between two units: a sum of
        partial results, or a gather or scatter of tokens under sequence parallelism."""
        return self.kind == "collective" and self.piece == "matrices"

    @cached_property
    def names_samples(self) -> bool:
        """Whether the instruction's arguments may contain ids of samples or ranges of tokens, in which case they differ
        between the ranks of a stage (they follow from a rank's index in its stage)."""
        in_halves = self.kind == "backward" and bool(self.optional_args)
        return self.draws or in_halves or not SAMPLE_ARGUMENTS.isdisjoint(self.args)
