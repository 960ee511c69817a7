"""A program: what one rank does in one training step, instruction by instruction, in issue order.

What is checked, walked and executed is this same object. Every instruction belongs to a lane, and each lane runs its own in
issue order:

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

A send and its receive name their buffer alike (but for the sender's rank, see `sender_name`). Sends to the ranks of another
stage are one operation, as are receives; sends that are followed by receives from the same stage are grouped with them, so that two
neighbours that both have something to send do not wait for each other for ever. A receive may be posted before: its buffer is
there from then on, and its sender need not wait until the receiver comes to it. Whether a transport makes use of that is its
own matter: programs end without.
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
from trainplan.profiling.models.optimizers import OptimizerName, step_workspace_bytes, stepped_by_muon
from trainplan.profiling.models.precision import PLAIN, Precision
from trainplan.profiling.models.sublayers import Attention, HeadPieces, KeyShare, Selective, Sublayer, TokenShare


class MicroBatchPart(NamedTuple):
    """What a pass is about: a micro-batch, or half 0 or 1 of its samples. Its buffers end in its name."""

    micro_batch: int
    half: int | None = None

    @property
    def halves(self) -> tuple[MicroBatchPart, MicroBatchPart]:
        """Both halves of a whole micro-batch."""
        return MicroBatchPart(self.micro_batch, 0), MicroBatchPart(self.micro_batch, 1)

    def __str__(self) -> str:
        return f"{self.micro_batch}" if self.half is None else f"{self.micro_batch}.{self.half}"


AGAIN = "again"  # the argument of a gather of tokens that a backward pass needs once more
FROM = "-from-"  # in the name of a buffer for what one of several senders sends, before the sender's rank
MARK = "mark."  # begins the name of a mark
STATES = ("parameter", "gradient", "moments")
HOST_STATES = ("host-parameter", "host-gradient", "host-moments")
UNIT_BUFFERS = frozenset({*STATES, *HOST_STATES, "master", "gathered", "whole-gradient"})  # named by their unit alone


def on_host(name: str) -> bool:
    """Whether a buffer lies in the host's memory."""
    return name.startswith("host-")


@dataclass(frozen=True)
class Instruction:
    """One step. `frees`: buffers gone once it is done. `waits`: indices of instructions of other lanes to wait for.

    message_bytes: what a collective gathers or reduces, whole, or what is sent, received or copied. workspace_bytes:
    temporaries while it runs. unit: of what passes between stages, the unit that reads the hidden states. grouped: the send and
    the receive. half: 0 or 1 where it is about a half of its micro-batch. lane: where it is not its operation's own. after:
    marks of earlier instructions, which come first. marks: set once it is done.
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
        """A copy with some fields replaced: as `dataclasses.replace`, several times as fast."""
        copy = object.__new__(Instruction)
        copy.__dict__.update(self.__dict__, **fields)
        return copy

    @property
    def stream(self) -> Stream:
        """The lane that it runs on."""
        return self.lane or self.op.spec.lane

    @property
    def needs(self) -> tuple[str, ...]:
        """Buffers and marks whose last writer comes before it."""
        return (*self.reads, *self.after)

    @property
    def changes(self) -> tuple[str, ...]:
        """Buffers and marks whose last writer and readers since come before it."""
        return (*self.writes, *self.marks, *self.frees)

    @property
    def by_processor(self) -> bool:
        """Whether the host's processor itself works on host buffers, so that copies to them must be done, not just issued."""
        return self.op.spec.lane == "host" or (self.op is Op.REDUCE_TIED and any(map(on_host, self.reads)))

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
    """One rank's program. buffers: bytes by name; persistent: those that live from step to step, on device and host.

    stages: the units of each stage of the plan, and groups: its ranks, ascending. units: those of the rank's stages, of
    which it has several where they are interleaved; place: the rank's number among the ranks of its stage, from 0, of which
    strategies speak. samples: of the whole step. micro_batches: those that the rank works on. precision: of model states.
    optimizer: what steps the parameters.

    With context parallelism the model is in pieces (`Model.in_pieces`), and what is said of samples is said of pieces: piece k
    of c of sample s has number s c + k. In strategies the ranks that have pieces of one sample are among those of the innermost
    level of data parallelism (see `compile.pieces`).
    """

    rank: int
    world: int
    stages: tuple[range, ...]
    groups: tuple[tuple[int, ...], ...]
    place: int
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
        """Whether the head works with the embedding's own matrix (see `work.moves.shares_table`). Where the states of either
        are on the host, whose shards are copied and gathered by themselves, it has one of its own."""
        on_host = any(map(self.steps_on_host, (0, len(self.strategies) - 1)))
        return self.model.tied and shares_table(self.strategies, self.units) and not on_host

    def steps_on_host(self, unit: int) -> bool:
        """Whether the optimizer works on a unit's parameters, gradients and moments on the host; the device then has what the
        unit's residences leave on it."""
        return f"host-parameter.{unit}" in self.buffers

    @property
    def gradient_bytes(self) -> int:
        """Bytes of one number of a gradient."""
        return self.precision.gradient_bytes(self.model.element_bytes)

    @property
    def stepped_bytes(self) -> int:
        """Bytes of one number of what the optimizer steps."""
        return self.precision.stepped_bytes(self.model.element_bytes)

    def stepped_by_muon(self, unit: int) -> int:
        """Parameters of a unit that the rank steps by Muon."""
        strategy = self.strategies[unit]
        tp, index = strategy.degree("tp"), strategy.index(self.place, "tp")
        return stepped_by_muon(self.optimizer, self.model.units[unit].sublayer, tp, index, strategy.degree("sdp"))

    def step_workspace_bytes(self, unit: int) -> int:
        """What Muon's step on a unit needs beside states and gradients; 0 under AdamW."""
        strategy, part = self.strategies[unit], self.model.units[unit].sublayer
        tp, index = strategy.degree("tp"), strategy.index(self.place, "tp")
        return step_workspace_bytes(self.optimizer, part, self.stepped_bytes, tp, index)

    def within(self, message: Instruction) -> tuple[int, ...]:
        """The ranks in whose process group a message travels: its sender and its receiver, so that each way has a group of its
        own; where a rank may have several messages at once, since stages of unlike sizes meet or stages are interleaved, all
        ranks."""
        if not self.has_own_channel(message):
            return tuple(range(self.world))
        (peer,) = set(message.group) - {self.rank}
        return (self.rank, peer) if message.op is Op.SEND else (peer, self.rank)

    def has_own_channel(self, message: Instruction) -> bool:
        """Whether a rank has one message at a time with the stage that this one is from or for, and one the other way."""
        unit = message.unit
        assert unit is not None
        return self.strategies[unit - 1].group == self.strategies[unit].group and len(self.chunks) == 1

    @cached_property
    def chunks(self) -> tuple[range, ...]:
        """The units of each of the rank's stages."""
        return tuple(stage for stage, group in zip(self.stages, self.groups, strict=True) if self.rank in group)

    @cached_property
    def stage_ranks(self) -> tuple[int, ...]:
        """The ranks of the rank's stage, ascending."""
        return next(group for group in self.groups if self.rank in group)

    def ranks_of(self, unit: int) -> tuple[int, ...]:
        """The ranks of the stage of a unit, ascending."""
        return next(group for stage, group in zip(self.stages, self.groups, strict=True) if unit in stage)

    def shares_tokens(self, unit: int) -> bool:
        """Whether tensor-parallel ranks share the tokens between the matrices of a unit."""
        return self.strategies[unit].sequence_parallel

    def token_share(self, unit: int) -> TokenShare:
        """The bytes and pieces of a unit whose ranks share its tokens."""
        if unit not in self._token_shares:
            self._token_shares[unit] = token_share(self.model, self.strategies, unit)
        return self._token_shares[unit]

    @cached_property
    def _token_shares(self) -> dict[int, TokenShare]:
        return {}

    def key_share(self, unit: int) -> KeyShare | None:
        """The bytes of keys and values of an attention whose samples are cut; None of any other unit."""
        return key_share(self.model, self.strategies, unit)

    def selective(self, unit: int) -> Selective:
        """The bytes of a unit, without the modules of it that are recomputed."""
        return Selective(self.model.units[unit].sublayer, self.strategies[unit].modules)

    @property
    def persistent_bytes(self) -> int:
        """Bytes of the device that live from step to step."""
        return sum(self.buffers[name] for name in self.persistent if not on_host(name))


def token_share(model: Model, strategies: Sequence[Strategy], unit: int) -> TokenShare:
    """As of `Program.token_share`."""
    return TokenShare(model.units[unit].sublayer, strategies[unit].degree("tp"), strategies[unit].modules)


def key_share(model: Model, strategies: Sequence[Strategy], unit: int) -> KeyShare | None:
    """As of `Program.key_share`."""
    part, strategy = model.units[unit].sublayer, strategies[unit]
    if not isinstance(part, Attention) or part.pieces == 1:
        return None
    kind = HeadPieces if part.by_heads else KeyShare
    return kind(part, strategy.degree("tp"), strategy.sequence_parallel, strategy.modules)


def grouped(*messages: Instruction) -> Instruction:
    """Sends, receives, or both as one operation; one message as it is."""
    if len(messages) == 1:
        return messages[0]
    ops = {message.op for message in messages}
    ranks = sorted({rank for message in messages for rank in message.group})
    names = {
        name: tuple(each for message in messages for each in getattr(message, name)) for name in ("reads", "writes", "frees")
    }
    size = sum(message.message_bytes for message in messages)
    op = ops.pop() if len(ops) == 1 else Op.SEND_RECEIVE
    return Instruction(op, group=tuple(ranks), grouped=messages, message_bytes=size, **names)  # type: ignore[arg-type]


def draws(sublayer: Sublayer, strategy: Strategy, op: Op) -> bool:
    """Whether an operation on a unit drops numbers, whose masks follow from the samples that it works on."""
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
    """The unit under whose layout a buffer's hidden states, or gradients of some, lie: what a unit makes, as it makes it."""
    kind, unit = name.split(".")[:2]
    return int(unit) - 1 if kind.startswith("hidden") else int(unit)


def sender_name(name: str) -> str:
    """The sender's name of a buffer that holds what one of several senders sent."""
    kind, dot, rest = name.partition(".")
    return kind.partition(FROM)[0] + dot + rest


class Clocks:
    """What is surely done before an instruction begins, by lane order and waits: of every lane, its instructions up to one.

    Instructions are issued one by one; each first waits for those that it has to.
    """

    def __init__(self, lanes: Sequence[str] = STREAMS) -> None:
        self._lanes: dict[str, dict[str, int]] = {stream: dict.fromkeys(lanes, -1) for stream in lanes}
        self._issued: list[tuple[str, dict[str, int]]] = []

    def wait(self, stream: str, index: int) -> None:
        """The next instruction of a lane begins once that with this index is done."""
        clock = self._lanes[stream]
        for lane, last in self._issued[index][1].items():
            if last > clock[lane]:
                clock[lane] = last

    def done(self, stream: str, index: int) -> bool:
        """Whether that instruction is surely done before the next one of a lane begins."""
        return self._lanes[stream][self._issued[index][0]] >= index

    def issue(self, stream: str) -> None:
        """The next instruction goes to the end of a lane."""
        clock = self._lanes[stream]
        clock[stream] = len(self._issued)
        self._issued.append((stream, clock.copy()))


def with_waits(
    instructions: Sequence[Instruction], lane_of: Callable[[Instruction], str] | None = None
) -> tuple[Instruction, ...]:
    """The same instructions with their `waits`, from the buffers and marks that they touch. lane_of: the lane of each, where
    that is not its stream."""
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    streams: list[str] = [each.stream if lane_of is None else lane_of(each) for each in instructions]
    clocks, result = Clocks(STREAMS if lane_of is None else sorted(set(streams))), []
    for place, instruction in enumerate(instructions):
        stream, needs, changes = streams[place], instruction.needs, instruction.changes
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
            readers.setdefault(name, []).append(place)
        for name in changes:
            writer[name], readers[name] = place, []
        if waits or instruction.waits:
            instruction = instruction.changed(waits=tuple(waits))
        result.append(instruction)
    return tuple(result)
