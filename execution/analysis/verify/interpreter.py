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
    """Values whose meaning does not fit an operation; its text becomes a line of the report."""


def fault_at(rank: int, instruction: Instruction, text: str) -> Fault:
    """A fault of an instruction of a rank; its text begins with both."""
    return Fault(f"rank {rank}: {instruction} {text}")


class Hidden(NamedTuple):
    """The meaning of hidden states, logits or their gradients: at which boundary, of which samples, summed over which
    tensor-parallel ranks.

    boundary: index of the unit that reads the hidden states. rows: ids of samples, in order. parts: tensor-parallel indices
    whose partial results are in the sum. of: how many of them there are in all. stage: distinguishes hidden states, logits,
    their forms, and values between the pieces of a unit. tokens: (first, end) of the tokens of each sample; None for all.
    """

    boundary: int
    rows: tuple[int, ...]
    parts: frozenset[int]
    of: int
    stage: str = "hidden"
    tokens: tuple[int, int] | None = None

    def whole(self) -> bool:
        """Whether all partial results are in the sum."""
        return len(self.parts) == self.of

    def complete(self) -> bool:
        """Whether all partial results are in the sum, of all tokens."""
        return self.whole() and self.tokens is None


class Weights(NamedTuple):
    """The meaning of a buffer of parameters: of which unit; whole or a rank's shard; before the optimizer's step or after it.
    Parameters that no group of ranks shares count as the rank's shard."""

    unit: int
    whole: bool = False
    stepped: bool = False


class Shard(NamedTuple):
    """How a rank holds a unit: its index and degree along tp, the degree of sdp, and whether the ranks of a group each step a
    slice of parameters of which they all have the whole."""

    tp_index: int
    tp: int
    sdp: int
    gathers_updates: bool


class Interpreter:
    """Runs all ranks in step: each runs its instructions in issue order; a collective runs when all its members have come to
    it.

    programs: of all ranks, in order. rules: what operations of one rank do to the values. together: what operations of a group,
    and messages, do. values: what each rank's buffers mean, by rank and name.
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
        """Run all programs to their ends. Raises Fault."""
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
        """The next instruction of a rank; None at its end."""
        instructions = self.programs[rank].instructions
        return instructions[self.at[rank]] if self.at[rank] < len(instructions) else None

    def _done(self, rank: int, instruction: Instruction) -> None:
        """Free what an instruction frees, and go on to the next one."""
        for name in instruction.frees:
            self.values[rank].pop(name, None)
        self.at[rank] += 1

    def _advance(self, rank: int) -> None:
        """Run the instructions of a rank that it can run alone, then the next one with others, if all of them have come to
        theirs."""
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
        """Deliver the pending sends of a rank whose receives are pending on the other side; neither side waits in between for
        anything else."""
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
        """Run a collective whose members have all come to it. Raises Fault where these do not agree on it."""
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
        """The meaning of the buffer of this name on a rank. Raises Fault where there is none."""
        try:
            return self.values[rank][name]
        except KeyError:
            raise Fault(f"rank {rank}: {name} is not there") from None

    def shard(self, rank: int, instruction: Instruction) -> Shard:
        """How a rank holds the unit of an instruction."""
        shards, unit = self._shards[rank], instruction.unit
        if unit not in shards:
            assert unit is not None
            program = self.programs[rank]
            strategy = program.strategies[unit]
            degrees = strategy.degree("tp"), strategy.degree("sdp")
            shards[unit] = Shard(strategy.index(program.index_in_stage, "tp"), *degrees, strategy.gathers_updates)
        return shards[unit]


def _what(instruction: Instruction) -> tuple[Op, int | None, int | None, int | None]:
    """The fields on which all members of a collective must agree."""
    return instruction.op, instruction.unit, instruction.micro_batch, instruction.half


Rule = Callable[[Interpreter, int, Instruction], None]
JointRule = Callable[[Interpreter, Sequence[int], list[Instruction]], None]


def _check_done_once(program: Program) -> None:
    """Raises Fault unless a program issues every operation that belongs once in a step exactly once."""
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
    """Ids of samples as text, the first few of them."""
    return ", ".join(map(str, rows[:6])) + (", ..." if len(rows) > 6 else "")


@cache
def only(index: int) -> frozenset[int]:
    """The set of this one tensor-parallel index."""
    return frozenset([index])


def need_parameters(run: Interpreter, rank: int, head: Instruction, name: str, unit: int | None = None) -> None:
    """Raises Fault unless a buffer holds whole parameters. unit: whose parameters, if not those of the instruction's own
    unit."""
    unit = head.unit if unit is None else unit
    weights = run.value(rank, name)
    whole = weights == (unit, True, False) or (weights == (unit, False, False) and run.shard(rank, head).sdp == 1)
    if not whole or not isinstance(weights, Weights):
        raise fault_at(rank, head, f"uses {name}, which is not whole")


def of_half(rank: int, head: Instruction, incoming: Hidden, name: str) -> Hidden:
    """The gradient of the instruction's half, where the gradient is of both halves of a micro-batch; any other gradient as it
    is."""
    blocks = head.args.get("blocks")
    if not blocks:
        return incoming
    if incoming.rows != tuple(row for block in blocks for row in block):
        raise fault_at(rank, head, f"takes rows of {name}, which holds other samples than it was compiled for")
    return incoming._replace(rows=blocks[head.half])
