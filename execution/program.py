"""A program: what one rank does in one training step, instruction by instruction, in issue order.

The object that is checked, simulated for memory and time, and executed is one and the same. Every instruction belongs to a
lane, and each lane runs its own instructions in issue order:

| lane | what runs there |
|---|---|
| compute | all computations, and what they read |
| communication | collectives and messages between devices |
| copy | copies from the host to the device; in H3T's step those to the host, too |
| copy-out | copies to the host in any other step |
| host | the optimizer, where it works on the host |

Where devices and host share one link, all copies are on the communication lane.

Dependencies between lanes follow from the buffers: an instruction that reads a buffer comes after its last writer, one that
writes or frees it after all its readers too. Where order alone is wanted, an instruction comes `after` marks that earlier ones
set: a mark is a buffer of no bytes. `waits` is the transitive reduction of all this.

Buffers whose names begin in `host-` lie in the host's memory, all others in the device's.

A send and its receive name their buffer alike (except for the sender's rank, see `sender_name`). Sends to the ranks of another
stage are one operation, as are receives; sends that are followed by receives from the same stage are grouped with them, so that
two neighbours that both have something to send do not wait for each other for ever. A receive may be posted ahead of time: its
buffer exists from then on, and its sender need not wait until the receiver comes to it. A transport may ignore this: programs
end without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from trainplan.execution.instruction_spec import STREAMS, Stream
from trainplan.execution.instructions import Op
from trainplan.formulations.costs.sequential.communication import shares_table
from trainplan.formulations.plan.strategy import Strategy
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.optimizers import OptimizerName, muon_parameter_count, step_workspace_bytes
from trainplan.profiling.models.precision import PLAIN, Precision
from trainplan.profiling.models.sublayers import Attention, HeadPieces, KeyShare, SelectiveRecomputation, Sublayer, TokenShare


class MicroBatchPart(NamedTuple):
    """The samples that a forward or backward pass works on: a whole micro-batch (half is None), or half 0 or 1 of its samples.
    `str` of it is the suffix of the names of its buffers: "3" for micro-batch 3, "3.0" for its first half."""

    micro_batch: int
    half: int | None = None

    @property
    def halves(self) -> tuple[MicroBatchPart, MicroBatchPart]:
        """The first and the second half of this whole micro-batch."""
        return MicroBatchPart(self.micro_batch, 0), MicroBatchPart(self.micro_batch, 1)

    def __str__(self) -> str:
        return f"{self.micro_batch}" if self.half is None else f"{self.micro_batch}.{self.half}"


AGAIN = "again"  # the argument of a gather of tokens that is repeated for a backward pass
FROM = "-from-"  # in the name of a buffer for what one of several senders sends, before the sender's rank
MARK = "mark."  # begins the name of a mark
STATES = ("parameter", "gradient", "moments")
HOST_STATES = ("host-parameter", "host-gradient", "host-moments")
UNIT_BUFFERS = frozenset({*STATES, *HOST_STATES, "master", "gathered", "whole-gradient"})  # named by kind and unit alone


def on_host(name: str) -> bool:
    """Whether the buffer called `name` lies in the host's memory: its name then begins with "host-"."""
    return name.startswith("host-")


@dataclass(frozen=True)
class Instruction:
    """One instruction of a rank's program.

    A unit is a sub-layer of the model (embedding, attention, MLP, head). A buffer is a named piece of memory. A lane is a
    queue of instructions that run in order, in parallel with other lanes (compute, communication, copy, copy-out, host). A
    mark is a name that stands for "this has happened": a buffer of no bytes, used for order alone.

    op: the operation, an entry of the table of instructions. unit: index of the unit of the model that it is about; for hidden
    states that pass between stages, the unit that reads them. micro_batch: index of its micro-batch. half: 0 or 1 if it is
    about half of its micro-batch. reads, writes: names of buffers, in the order in which the executor takes them. frees: names
    of buffers that are gone once it is done. group: ranks that take part, ascending. args: arguments, such as ids of samples
    (`rows`). message_bytes: all bytes that a collective gathers or reduces, or that are sent, received or copied.
    workspace_bytes: temporaries while it runs. waits: indices of instructions of other lanes that must be done before it
    begins. grouped: the sends and receives that a point-to-point operation consists of. lane: the lane it runs on, if that is
    not its operation's default. after: marks of earlier instructions, which come first. marks: marks that it sets once it is
    done.
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
    lane: Stream | None = None
    after: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()

    def changed(self, **fields: Any) -> Instruction:
        """A copy of this instruction with the given fields replaced: as `dataclasses.replace`, but several times as fast,
        since the fields are not checked again."""
        copy = object.__new__(Instruction)
        copy.__dict__.update(self.__dict__, **fields)
        return copy

    @property
    def stream(self) -> Stream:
        """The lane on which the instruction runs: its own, if it names one, else the default of its operation."""
        return self.lane or self.op.spec.lane

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of buffers that the instruction reads, and of marks that it comes after; the last writer of each must come
        first."""
        return (*self.reads, *self.after)

    @property
    def changes(self) -> tuple[str, ...]:
        """Names of buffers and marks that the instruction writes, sets or frees; the last writer of each of them, and all its
        readers since then, must come before the instruction."""
        return (*self.writes, *self.marks, *self.frees)

    @property
    def by_processor(self) -> bool:
        """Whether the host's processor itself works on host buffers in this instruction, so that copies to these buffers must
        be finished before it, not merely issued."""
        return self.op.spec.lane == "host" or (self.op is Op.REDUCE_TIED and any(map(on_host, self.reads)))

    @property
    def messages(self) -> tuple[Instruction, ...]:
        """The sends and receives that a point-to-point operation consists of; for any other instruction a tuple of itself
        alone."""
        return self.grouped or (self,)

    def __str__(self) -> str:
        label = "" if self.unit is None else f" unit {self.unit}"
        label += "" if self.micro_batch is None else f" micro-batch {self.micro_batch}"
        label += "" if self.half is None else f" half {self.half}"
        return " with ".join(map(str, self.grouped)) or f"{self.op}{label}"


@dataclass(frozen=True)
class Program:
    """One rank's instructions for one training step, with the parts of the plan that they refer to.

    A unit is a sub-layer of the model (embedding, attention, MLP, head), known by its index; a stage is a range of units that
    one group of ranks holds; a strategy is the parallel layout, ZeRO stage and recomputation of one unit; a buffer is a named
    piece of memory on the device or host.

    rank, world: the rank's number, and the number of ranks. stages: the range of units of each pipeline stage. groups: the
    ranks of each stage, ascending. index_in_stage: the rank's index among the ranks of its stage, to which strategies refer.
    units: indices of the rank's units, over all of its stages (it has several under interleaved schedules). strategies: one
    per unit of the model. samples: number of samples in the whole step. micro_batches: number of micro-batches that the rank
    works on. buffers: bytes of each buffer by name. persistent: names of buffers that live from step to step, on device and
    host. instructions: in issue order. precision: dtypes of model states. optimizer: the name of the optimizer.

    With context parallelism the model is in pieces (`Model.in_pieces`), and samples are counted in pieces: piece k of c of
    sample s has number s c + k. In strategies the ranks that have pieces of one sample are among those of the innermost level
    of data parallelism (see `compile.pieces`).
    """

    rank: int
    world: int
    stages: tuple[range, ...]
    groups: tuple[tuple[int, ...], ...]
    index_in_stage: int
    units: Sequence[int]
    model: Model
    strategies: tuple[Strategy, ...]
    samples: int
    micro_batches: int
    buffers: dict[str, int]
    persistent: frozenset[str]
    instructions: tuple[Instruction, ...]
    precision: Precision = PLAIN
    optimizer: OptimizerName = "adamw"

    @property
    def shares_table(self) -> bool:
        """Whether this rank's head multiplies by the embedding's own matrix, kept in one buffer, instead of a second copy of
        the tied matrix. False if the model's matrices are not tied, if the rank does not hold both units in one layout, or if
        the states of either unit are on the host, whose shards are copied and gathered separately."""
        on_host = any(map(self.steps_on_host, (0, len(self.strategies) - 1)))
        return self.model.tied and shares_table(self.strategies, self.units) and not on_host

    def steps_on_host(self, unit: int) -> bool:
        """Whether the optimizer works on the host for the unit with this index, whose parameters, gradients and moments then
        live in the host's memory; the device holds only the copies of them that the plan states."""
        return f"host-parameter.{unit}" in self.buffers

    @property
    def gradient_bytes(self) -> int:
        """Bytes per element of a gradient, by the program's precision."""
        return self.precision.gradient_bytes(self.model.element_bytes)

    @property
    def stepped_bytes(self) -> int:
        """Bytes per element of the parameters and moments that the optimizer works on (the master copies' dtype, if there are
        master copies)."""
        return self.precision.stepped_bytes(self.model.element_bytes)

    def muon_parameter_count(self, unit: int) -> int:
        """Number of parameters of the unit with this index that the rank steps with Muon; 0 if the optimizer is AdamW."""
        strategy = self.strategies[unit]
        tp, index = strategy.degree("tp"), strategy.index(self.index_in_stage, "tp")
        return muon_parameter_count(self.optimizer, self.model.units[unit].sublayer, tp, index, strategy.degree("sdp"))

    def step_workspace_bytes(self, unit: int) -> int:
        """Bytes of temporaries that Muon's step on the unit with this index needs in addition to parameters, gradients and
        moments; 0 if the optimizer is AdamW."""
        strategy, part = self.strategies[unit], self.model.units[unit].sublayer
        tp, index = strategy.degree("tp"), strategy.index(self.index_in_stage, "tp")
        return step_workspace_bytes(self.optimizer, part, self.stepped_bytes, tp, index)

    def within(self, message: Instruction) -> tuple[int, ...]:
        """The ranks of the process group in which a send or receive (`message`) travels: (sender, receiver), in that order, so
        that each direction has a group of its own. If a rank may have several messages in flight at once, because stages have
        different numbers of ranks or are interleaved, the group is all ranks of the job."""
        if not self.has_own_channel(message):
            return tuple(range(self.world))
        (peer,) = set(message.group) - {self.rank}
        return (self.rank, peer) if message.op is Op.SEND else (peer, self.rank)

    def has_own_channel(self, message: Instruction) -> bool:
        """Whether a rank has at most one message in flight at a time in each direction with the neighbouring stage that
        `message`, a send or receive, comes from or goes to."""
        unit = message.unit
        assert unit is not None
        return self.strategies[unit - 1].group == self.strategies[unit].group and len(self.chunks) == 1

    @cached_property
    def chunks(self) -> tuple[range, ...]:
        """The range of units of each stage that the rank belongs to, in order: one range, or several under interleaved
        schedules."""
        return tuple(stage for stage, group in zip(self.stages, self.groups, strict=True) if self.rank in group)

    @cached_property
    def stage_ranks(self) -> tuple[int, ...]:
        """The ranks, ascending, of the pipeline stage that this rank belongs to, itself included."""
        return next(group for group in self.groups if self.rank in group)

    def ranks_of(self, unit: int) -> tuple[int, ...]:
        """The ranks, ascending, of the pipeline stage that holds the unit with this index."""
        return next(group for stage, group in zip(self.stages, self.groups, strict=True) if unit in stage)

    def shares_tokens(self, unit: int) -> bool:
        """Whether the unit with this index has sequence parallelism: outside its matrix multiplications, its tensor-parallel
        ranks split the tokens of each sample among them."""
        return self.strategies[unit].sequence_parallel

    def token_share(self, unit: int) -> TokenShare:
        """Buffer sizes in bytes of the unit with this index, which has sequence parallelism, and the pieces of computation
        that it consists of. Cached per unit."""
        if unit not in self._token_shares:
            self._token_shares[unit] = token_share(self.model, self.strategies, unit)
        return self._token_shares[unit]

    @cached_property
    def _token_shares(self) -> dict[int, TokenShare]:
        """The cache of `token_share`: by index of a unit, its buffer sizes and pieces under sequence parallelism. Empty at
        first; the caller adds to it."""
        return {}

    def key_share(self, unit: int) -> KeyShare | None:
        """Buffer sizes in bytes of the keys and values of the unit with this index, if it is an attention under context
        parallelism; None for any other unit."""
        return key_share(self.model, self.strategies, unit)

    def selective(self, unit: int) -> SelectiveRecomputation:
        """The bytes of autograd's graph and of workspaces of the unit with this index, less the bytes of those of its modules
        that are recomputed in the backward pass."""
        return SelectiveRecomputation(self.model.units[unit].sublayer, self.strategies[unit].modules)

    @property
    def persistent_bytes(self) -> int:
        """Bytes of the device's memory that hold buffers which live from step to step (parameters, optimizer states)."""
        return sum(self.buffers[name] for name in self.persistent if not on_host(name))


def token_share(model: Model, strategies: Sequence[Strategy], unit: int) -> TokenShare:
    """Buffer sizes in bytes of the unit (sub-layer) with index `unit`, which has sequence parallelism, and the pieces of
    computation that it consists of. strategies: the parallel layout of every unit of the model, by index."""
    return TokenShare(model.units[unit].sublayer, strategies[unit].degree("tp"), strategies[unit].modules)


def key_share(model: Model, strategies: Sequence[Strategy], unit: int) -> KeyShare | None:
    """Buffer sizes in bytes of the keys and values of the unit (sub-layer) with index `unit`, if it is an attention whose
    samples are cut by context parallelism; None for any other unit. strategies: the parallel layout of every unit of the
    model, by index."""
    part, strategy = model.units[unit].sublayer, strategies[unit]
    if not isinstance(part, Attention) or part.pieces == 1:
        return None
    kind = HeadPieces if part.by_heads else KeyShare
    return kind(part, strategy.degree("tp"), strategy.sequence_parallel, strategy.modules)


def grouped(*messages: Instruction) -> Instruction:
    """One point-to-point instruction that consists of the given sends and receives; it reads, writes and frees the buffers of
    all of them. A single message is returned as it is."""
    if len(messages) == 1:
        return messages[0]
    ops = {message.op for message in messages}
    ranks = sorted({rank for message in messages for rank in message.group})
    fields = ("reads", "writes", "frees")
    names = {name: tuple(buffer for message in messages for buffer in getattr(message, name)) for name in fields}
    size = sum(message.message_bytes for message in messages)
    op = ops.pop() if len(ops) == 1 else Op.SEND_RECEIVE
    return Instruction(op, group=tuple(ranks), grouped=messages, message_bytes=size, **names)  # type: ignore[arg-type]


def draws(sublayer: Sublayer, strategy: Strategy, op: Op) -> bool:
    """Whether operation `op`, run on this sub-layer in this parallel layout (`strategy`), applies dropout. The dropout masks
    follow from the ids of the samples, so an instruction that applies dropout has to name its samples."""
    piece = op.spec.piece
    if not op.spec.draws:
        return False
    if piece == "core":
        return isinstance(sublayer, Attention) and sublayer.attention_dropout > 0
    if not strategy.sequence_parallel:
        return piece == "matrices" and sublayer.draws
    share = TokenShare(sublayer, strategy.degree("tp"))
    return share.draws_inside if piece == "matrices" else share.draws_before if piece == "entry" else share.drops_output


def layout_unit(name: str) -> int:
    """The index of the unit (sub-layer) that produces the hidden states, or the gradients, in the buffer called `name`: they
    are laid out over ranks as its strategy says. Hidden states are named by the unit that reads them, gradients by the unit
    that produces them: 'hidden.4.0' -> 3, 'input-gradient.4.0' -> 4."""
    kind, unit = name.split(".")[:2]
    return int(unit) - 1 if kind.startswith("hidden") else int(unit)


def sender_name(name: str) -> str:
    """The name that the sender has for a buffer that a rank receives: without the suffix by which the receiver tells several
    senders apart: 'hidden-from-2.4.0' -> 'hidden.4.0'. A name without suffix is returned as it is."""
    kind, dot, rest = name.partition(".")
    return kind.partition(FROM)[0] + dot + rest


class Clocks:
    """Vector clocks of a program's lanes (queues of instructions that run in order, in parallel with other lanes). For each
    lane they say which instructions of every other lane are certainly done before the lane's next instruction begins, by the
    order within lanes and by waits. Instructions of a lane end in order, so the index of the latest such instruction per lane
    is enough.

    Use: for each instruction, in issue order, call `wait` for every index in its `waits`, then `issue`. Indices count the
    instructions issued so far, over all lanes.
    """

    def __init__(self, lanes: Sequence[str] = STREAMS) -> None:
        self._lanes: dict[str, dict[str, int]] = {stream: dict.fromkeys(lanes, -1) for stream in lanes}
        self._issued: list[tuple[str, dict[str, int]]] = []

    def wait(self, stream: str, index: int) -> None:
        """Record that the next instruction of the lane `stream` begins only after instruction number `index` is done."""
        clock = self._lanes[stream]
        for lane, last in self._issued[index][1].items():
            if last > clock[lane]:
                clock[lane] = last

    def done(self, stream: str, index: int) -> bool:
        """Whether instruction number `index` is certainly done before the next instruction of the lane `stream` begins."""
        return self._lanes[stream][self._issued[index][0]] >= index

    def issue(self, stream: str) -> None:
        """Append the next instruction to the lane `stream`; its index is the number of instructions issued before."""
        clock = self._lanes[stream]
        clock[stream] = len(self._issued)
        self._issued.append((stream, clock.copy()))


def with_waits(
    instructions: Sequence[Instruction], lane_of: Callable[[Instruction], str] | None = None
) -> tuple[Instruction, ...]:
    """The given instructions, in issue order, with their field `waits` (indices of instructions that must be done first)
    computed from the buffers and marks that they read, write and free; waits that follow from other waits are left out.
    lane_of: the lane of an instruction; None for the instruction's own lane (`stream`). A lane is a queue of instructions that
    run in order."""
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    streams: list[str] = [instruction.stream if lane_of is None else lane_of(instruction) for instruction in instructions]
    clocks, result = Clocks(STREAMS if lane_of is None else sorted(set(streams))), []
    for current, instruction in enumerate(instructions):
        stream, needs, changes = streams[current], instruction.needs, instruction.changes
        before = {writer[name] for name in (*needs, *changes) if name in writer}
        for name in changes:
            before.update(readers.get(name, ()))
        waits = []
        for index in sorted(before, reverse=True):  # the last first: it may have waited for the others
            if not clocks.done(stream, index):
                clocks.wait(stream, index)
                waits.append(index)
        clocks.issue(stream)
        for name in needs:
            readers.setdefault(name, []).append(current)
        for name in changes:
            writer[name], readers[name] = current, []
        if waits or instruction.waits:
            instruction = instruction.changed(waits=tuple(waits))
        result.append(instruction)
    return tuple(result)
