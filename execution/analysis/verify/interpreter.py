"""Runs the programs of all ranks together, each in issue order, on what their values mean; rules define what each operation
means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from trainplan.execution.instructions import Op
from trainplan.execution.program import Instruction, Program


class Fault(Exception):
    """An exception: the meaning of a buffer (which samples, which partial sums, whole or shard) does not fit the operation
    that uses it. Its text becomes a line of the report."""


def fault_at(rank: int, instruction: Instruction, text: str) -> Fault:
    """A Fault about an instruction of a rank; its text is "rank R: INSTRUCTION" followed by `text`."""
    return Fault(f"rank {rank}: {instruction} {text}")


class Hidden(NamedTuple):
    """The meaning of a buffer of hidden states, logits or their gradients. The unit is a sub-layer of the model; the boundary
    is the point between two units.

    boundary: index of the unit that reads the hidden states. rows: ids of samples, in order. parts: tensor-parallel indices
    whose partial results are in the sum. of: the number of partial results of a whole sum. stage: distinguishes hidden states,
    logits, gradients, and values between the pieces of a unit. tokens: (first, end) of the tokens of each sample; None for
    all.
    """

    boundary: int
    rows: tuple[int, ...]
    parts: frozenset[int]
    of: int
    stage: str = "hidden"
    tokens: tuple[int, int] | None = None

    def whole(self) -> bool:
        """Whether the partial results of all tensor-parallel ranks are in the sum."""
        return len(self.parts) == self.of

    def complete(self) -> bool:
        """Whether the partial results of all tensor-parallel ranks are in the sum, and all tokens of each sample are there."""
        return self.whole() and self.tokens is None


class Weights(NamedTuple):
    """The meaning of a buffer of parameters. unit: index of the unit (sub-layer) whose parameters they are. whole: True for
    all of them, False for the rank's shard (also if the shard is everything since no ranks share them). stepped: whether the
    optimizer's step of this training step has been done on them."""

    unit: int
    whole: bool = False
    stepped: bool = False


class Shard(NamedTuple):
    """How a rank holds the parameters of a unit (sub-layer). tp_index, tp: the rank's index among the tensor-parallel ranks,
    and their number. sdp: number of ranks of sharded data parallelism. gathers_updates: whether those ranks each step a slice
    of parameters that all of them keep whole (ZeRO stages 1 and 2)."""

    tp_index: int
    tp: int
    sdp: int
    gathers_updates: bool


class Interpreter:
    """Symbolic execution of the programs of all ranks together: it follows what buffers mean (which samples, which partial
    sums), not their numbers. Each rank runs its instructions in issue order; a collective runs when all its members have come
    to it. A unit is a sub-layer of the model.

    programs: of all ranks, in order. rules: by operation, a function that runs an instruction of one rank. together: by
    operation, a function that runs a collective or message of several ranks. values: [rank][buffer's name] -> the buffer's
    meaning. at: index of each rank's next instruction.
    """

    def __init__(self, programs: Sequence[Program], rules: Mapping[Op, Rule], together: Mapping[Op, JointRule]) -> None:
        self.programs, self.rules, self.together = programs, rules, together
        self.at = [0] * len(programs)
        self.open: list[list[Instruction]] = [[] for _ in programs]  # messages of the instruction at hand not yet passed
        self.values: list[dict[str, Any]] = [{} for _ in programs]
        self._shards: list[dict[int | None, Shard]] = [{} for _ in programs]
        self._arrived: dict[tuple[int, ...], int] = {}  # members at each collective that some are still to come to
        self._ready = list(reversed(range(len(programs))))
        for program, values in zip(programs, self.values, strict=True):
            for name in program.persistent - {"loss"}:
                kind, _, number = name.partition(".")
                if kind in ("parameter", "host-parameter"):
                    unit = int(number)
                    values[name] = Weights(unit, program.strategies[unit].gathers_updates)
                else:
                    values[name] = None

    def run(self) -> None:
        """Run all programs to their ends. Raises Fault if an operation reads a buffer that does not mean what it must, if
        ranks wait for each other for ever, or if parameters end without the optimizer's step."""
        while self._ready:
            self._advance(self._ready.pop())
        for rank, program in enumerate(self.programs):
            if head := self._head(rank):
                raise Fault(f"rank {rank}: {head} waits for ever: ranks {', '.join(map(str, head.group))} never come together")
            _check_done_once(program)
            for name in sorted(program.persistent):
                if not isinstance(weights := self.value(rank, name), Weights):
                    continue
                if not weights.stepped:
                    raise Fault(f"rank {rank}: {name} ends without the optimizer's step")
                if program.strategies[weights.unit].gathers_updates and not weights.whole:
                    raise Fault(f"rank {rank}: {name} ends without what other ranks have stepped")

    def _head(self, rank: int) -> Instruction | None:
        """The next instruction of a rank; None if its program has ended."""
        instructions = self.programs[rank].instructions
        return instructions[self.at[rank]] if self.at[rank] < len(instructions) else None

    def _done(self, rank: int, instruction: Instruction) -> None:
        """End an instruction of a rank: remove the buffers that it frees from `values`, and move on to the rank's next
        instruction."""
        for name in instruction.frees:
            self.values[rank].pop(name, None)
        self.at[rank] += 1

    def _advance(self, rank: int) -> None:
        """Run a rank's instructions up to the next one that involves other ranks. A message is delivered if its other side is
        there, too; a collective runs if this rank is the last member to come to it."""
        instructions, values, rules = self.programs[rank].instructions, self.values[rank], self.rules
        position, end = self.at[rank], len(instructions)
        while position < end and len((head := instructions[position]).group) <= 1:
            if head.op in rules:
                rules[head.op](self, rank, head)
            else:
                self.together[head.op](self, (rank,), [head])
            for name in head.frees:
                values.pop(name, None)
            position += 1
        self.at[rank] = position
        if position == end:
            return
        if head.op.spec.kind == "message":
            self.open[rank] = list(head.messages)
            for sender in dict.fromkeys((rank, *head.group)):
                self._pass_on(sender)
            return
        group = head.group
        self._arrived[group] = self._arrived.get(group, 0) + 1
        if self._arrived[group] == len(group):
            del self._arrived[group]
            self._together(group, [self.programs[member].instructions[self.at[member]] for member in group])

    def _pass_on(self, rank: int) -> None:
        """Deliver every pending send of `rank` whose receiver has also come to the matching receive, and put ranks whose
        messages are all delivered back into the queue."""
        for send in [message for message in self.open[rank] if message.op is Op.SEND]:
            (peer,) = set(send.group) - {rank}
            receive = next((m for m in self.open[peer] if m.op is Op.RECEIVE and m.group == send.group), None)
            if receive is not None:
                self.together[Op.SEND_RECEIVE](self, (rank, peer), [send, receive])
                for end, message in ((rank, send), (peer, receive)):
                    self.open[end].remove(message)
                    head = self._head(end)
                    if head and not self.open[end]:
                        self._done(end, head)
                        self._ready.append(end)

    def _together(self, group: tuple[int, ...], heads: list[Instruction]) -> None:
        """Run a collective to which all members of `group` have come. heads: the instruction of each member. Raises Fault if
        the members disagree on operation, unit, micro-batch or bytes."""
        first = heads[0]
        agreed = _what(first)
        for rank, head in zip(group, heads, strict=True):
            if _what(head) != agreed:
                raise Fault(f"rank {rank}: {head} meets {first} of rank {group[0]}")
            if head.message_bytes != first.message_bytes:
                raise Fault(f"rank {rank}: {head} has {head.message_bytes} bytes, rank {group[0]} has {first.message_bytes}")
        self.together[first.op](self, group, heads)
        for rank, head in zip(group, heads, strict=True):
            self._done(rank, head)
        self._ready.extend(reversed(group))

    def value(self, rank: int, name: str) -> Any:
        """The meaning of the buffer called `name` on a rank: Hidden, Weights, Gradient or None (from the step before). Raises
        Fault if the rank has no such buffer."""
        try:
            return self.values[rank][name]
        except KeyError:
            raise Fault(f"rank {rank}: {name} is not there") from None

    def shard(self, rank: int, instruction: Instruction) -> Shard:
        """How a rank holds the parameters of the unit (sub-layer) that an instruction is about. Cached."""
        shards, unit = self._shards[rank], instruction.unit
        if unit not in shards:
            assert unit is not None
            program = self.programs[rank]
            strategy = program.strategies[unit]
            degrees = strategy.degree("tp"), strategy.degree("sdp")
            shards[unit] = Shard(strategy.index(program.index_in_stage, "tp"), *degrees, strategy.gathers_updates)
        return shards[unit]


def _what(instruction: Instruction) -> tuple[Op, int | None, int | None, int | None]:
    """The fields of an instruction on which all members of a collective must agree: (operation, sub-layer, micro-batch, half).
    A field is None if the instruction has none."""
    return instruction.op, instruction.unit, instruction.micro_batch, instruction.half


Rule = Callable[[Interpreter, int, Instruction], None]
JointRule = Callable[[Interpreter, Sequence[int], list[Instruction]], None]


def _check_done_once(program: Program) -> None:
    """Raises Fault unless a program issues every operation that belongs exactly once in a step exactly once: the sum of the
    loss, each sub-layer's optimizer step, and so on. A program is one rank's instructions for a training step."""
    wanted: list[tuple[Op, int | None]] = [(Op.REDUCE_LOSS, None)]
    wanted += [(Op.HOST_OPTIMIZER_STEP if program.steps_on_host(unit) else Op.OPTIMIZER_STEP, unit) for unit in program.units]
    wanted += [(Op.GATHER_UPDATED, unit) for unit in program.units if program.strategies[unit].gathers_updates]
    if program.model.tied and not program.shares_table and {0, len(program.strategies) - 1} & set(program.units):
        wanted.append((Op.REDUCE_TIED, None))
    counts = Counter((instruction.op, instruction.unit) for instruction in program.instructions)
    for op, unit in wanted:
        if counts[op, unit] != 1:
            raise Fault(f"rank {program.rank}: {op} of unit {unit} comes {counts[op, unit]} times, not once")


def some(rows: Sequence[int]) -> str:
    """Ids of samples as text, at most the first six: "0, 1, 2, 3, 4, 5, ..."."""
    return ", ".join(map(str, rows[:6])) + (", ..." if len(rows) > 6 else "")


@cache
def only(index: int) -> frozenset[int]:
    """The set of one tensor-parallel index: the partial results of that rank alone."""
    return frozenset([index])


def need_parameters(run: Interpreter, rank: int, head: Instruction, name: str, unit: int | None = None) -> None:
    """Raises Fault unless the buffer called `name` holds whole parameters that have not been stepped. head: the instruction of
    `rank` that reads it. unit: index of the unit (sub-layer) whose parameters are needed; None for the instruction's own."""
    unit = head.unit if unit is None else unit
    weights = run.value(rank, name)
    whole = weights == (unit, True, False) or (weights == (unit, False, False) and run.shard(rank, head).sdp == 1)
    if not whole or not isinstance(weights, Weights):
        raise fault_at(rank, head, f"uses {name}, which is not whole")


def of_half(rank: int, head: Instruction, incoming: Hidden, name: str) -> Hidden:
    """The part of a gradient's meaning that the instruction `head` works on: if the gradient holds both halves of a
    micro-batch and the instruction is about one half, the gradient of that half; else `incoming` as it is. name: the
    gradient's buffer, for the message. Raises Fault if it holds other samples than the instruction states."""
    blocks = head.args.get("blocks")
    if not blocks:
        return incoming
    if incoming.rows != tuple(row for block in blocks for row in block):
        raise fault_at(rank, head, f"takes rows of {name}, which holds other samples than it was compiled for")
    return incoming._replace(rows=blocks[head.half])
