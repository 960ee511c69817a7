"""A program: what one rank does in one training step, instruction by instruction, in issue order.

What is checked, walked and executed is this same object. Dependencies follow from the buffers: an instruction that reads a
buffer comes after its last writer, one that writes or frees it after all its readers too. `waits` is their transitive
reduction over the two streams, compute and communication, each of which runs in issue order.

A send and its receive name their buffer alike. A send that is followed by a receive from the same rank is grouped with it, so
that two neighbours that both have something to send do not wait for each other for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from trainplan.formulations.strategies import Strategy
from trainplan.profiling.models import Model

Stream = Literal["compute", "communication"]


class Part(NamedTuple):
    """What a pass is about: a micro-batch, or half 0 or 1 of its samples. Its buffers end in its name."""

    micro_batch: int
    half: int | None = None

    @property
    def halves(self) -> tuple[Part, Part]:
        return Part(self.micro_batch, 0), Part(self.micro_batch, 1)

    def __str__(self) -> str:
        return f"{self.micro_batch}" if self.half is None else f"{self.micro_batch}.{self.half}"


class Op(StrEnum):
    """The vocabulary. Every reader of programs handles all of it, or fails to import (see `handles_all`)."""

    INPUT = "input"  # tokens of the rank's rows
    TARGETS = "targets"  # next tokens of the rank's rows
    FORWARD = "forward"  # partial output; keeps the graph
    FORWARD_WITHOUT_GRAPH = "forward-without-graph"
    RECOMPUTE = "recompute"  # the graph again, from the kept input
    BACKWARD = "backward"  # partial input gradient; adds to the parameter gradients
    LOSS_STATISTICS = "loss-statistics"  # per token: largest logit, sum of exponentials, target's logit, of the shard
    LOSS = "loss"  # the rank's loss, and the logits' gradient in their place
    OPTIMIZER_STEP = "optimizer-step"
    ZERO_GRADIENTS = "zero-gradients"
    SLICE = "slice"  # re-layout where the rank already holds its rows
    GATHER_SLICE = "gather-slice"  # re-layout: gather blocks, keep own rows
    JOIN = "join"  # the rows of both halves of a micro-batch, in one buffer
    ALL_REDUCE = "all-reduce"  # partial outputs or input gradients over the tensor-parallel group
    GATHER_STATISTICS = "gather-statistics"
    GATHER_PARAMETERS = "gather-parameters"  # a sharded unit's parameters, whole for a while
    REDUCE_REPLICATED = "reduce-replicated"  # gradients of replicated parameters over the tensor-parallel group
    REDUCE_SCATTER_GRADIENTS = "reduce-scatter-gradients"
    ALL_REDUCE_GRADIENTS = "all-reduce-gradients"
    REDUCE_TIED = "reduce-tied"  # gradient of a matrix that embedding and head share
    REDUCE_LOSS = "reduce-loss"
    SEND = "send"  # hidden states to the next stage, or their gradients to the one before
    RECEIVE = "receive"  # in the sender's layout; re-laid here
    SEND_RECEIVE = "send-receive"  # both at once, with one neighbour


COLLECTIVES = frozenset(
    {
        Op.GATHER_SLICE,
        Op.ALL_REDUCE,
        Op.GATHER_STATISTICS,
        Op.GATHER_PARAMETERS,
        Op.REDUCE_REPLICATED,
        Op.REDUCE_SCATTER_GRADIENTS,
        Op.ALL_REDUCE_GRADIENTS,
        Op.REDUCE_TIED,
        Op.REDUCE_LOSS,
    }
)
POINT_TO_POINT = frozenset({Op.SEND, Op.RECEIVE, Op.SEND_RECEIVE})


def handles_all(handlers: Iterable[Op]) -> None:
    """Called at import by every reader of programs with the operations that it handles."""
    if missing := set(Op) - set(handlers):
        raise ImportError(f"a reader of programs does not handle {', '.join(sorted(missing))}")


@dataclass(frozen=True)
class Instruction:
    """One step. `frees`: buffers gone once it is done. `waits`: indices of instructions of the other stream to wait for.

    message_bytes: what a collective gathers or reduces, whole, or what is sent or received. workspace_bytes: temporaries while
    it runs. unit: of what passes between stages, the unit that reads the hidden states. grouped: the send and the receive.
    half: 0 or 1 where it is about a half of its micro-batch.
    """

    op: Op
    unit: int | None = None
    micro_batch: int | None = None
    half: int | None = None
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    frees: tuple[str, ...] = ()
    group: tuple[int, ...] = ()
    args: dict[str, Any] = field(default_factory=dict)
    message_bytes: int = 0
    workspace_bytes: int = 0
    waits: tuple[int, ...] = ()
    grouped: tuple[Instruction, ...] = ()

    @property
    def stream(self) -> Stream:
        return "communication" if self.op in COLLECTIVES or self.op in POINT_TO_POINT else "compute"

    @property
    def messages(self) -> tuple[Instruction, ...]:
        """Of a point-to-point operation, its sends and receives."""
        return self.grouped or (self,)

    def __str__(self) -> str:
        place = "" if self.unit is None else f" unit {self.unit}"
        place += "" if self.micro_batch is None else f" micro-batch {self.micro_batch}"
        place += "" if self.half is None else f" half {self.half}"
        return " with ".join(map(str, self.grouped)) or f"{self.op}{place}"


@dataclass(frozen=True)
class Program:
    """One rank's program. buffers: bytes by name; persistent: those that live from step to step.

    units: those of the rank's stage. place: the rank's number in its stage, from 0; strategies speak of these. samples: of the
    whole step. micro_batches: those that the rank works on.
    """

    rank: int
    world: int
    place: int
    units: range
    model: Model
    strategies: tuple[Strategy, ...]
    samples: int
    micro_batches: int
    buffers: dict[str, int]
    persistent: frozenset[str]
    instructions: tuple[Instruction, ...]


def grouped(send: Instruction, receive: Instruction) -> Instruction:
    """A send and a receive as one operation."""
    both = {name: getattr(send, name) + getattr(receive, name) for name in ("reads", "writes", "frees", "message_bytes")}
    return Instruction(Op.SEND_RECEIVE, group=send.group, grouped=(send, receive), **both)


def with_waits(instructions: list[Instruction]) -> tuple[Instruction, ...]:
    """The same instructions with their `waits`, from the buffers that they touch."""
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    seen: dict[Stream, dict[Stream, int]] = {"compute": {"communication": -1}, "communication": {"compute": -1}}
    result = []
    for place, instruction in enumerate(instructions):
        before: set[int] = set()
        for name in instruction.reads:
            before.update([writer[name]] if name in writer else [])
        for name in (*instruction.writes, *instruction.frees):
            before.update([writer[name]] if name in writer else [])
            before.update(readers.get(name, []))
        own = instruction.stream
        other: Stream = "communication" if own == "compute" else "compute"
        last = max((i for i in before if i != place and instructions[i].stream == other), default=-1)
        waits: tuple[int, ...] = ()
        if last > seen[own][other]:
            waits, seen[own][other] = (last,), last
        for name in instruction.reads:
            readers.setdefault(name, []).append(place)
        for name in (*instruction.writes, *instruction.frees):
            writer[name], readers[name] = place, []
        result.append(replace(instruction, waits=waits))
    return tuple(result)
