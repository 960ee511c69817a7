"""All ranks' programs run together, each in issue order, on what their values mean; the rules say what each operation means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainplan.execution.program import POINT_TO_POINT, Instruction, Op, Program
from trainplan.formulations.strategies import Paradigm, Strategy


class Fault(Exception):
    """A meaning that does not fit; becomes a line of the report."""


def fault_at(rank: int, instruction: Instruction, text: str) -> Fault:
    return Fault(f"rank {rank}: {instruction} {text}")


@dataclass(frozen=True)
class Hidden:
    """Hidden states, logits or their gradients: at which boundary, of which samples, summed over which tensor-parallel ranks.

    parts: indices whose partial results are in the sum; `of`: how many there are. `stage` tells logits and their forms apart.
    """

    boundary: int
    rows: tuple[int, ...]
    parts: frozenset[int]
    of: int
    stage: str = "hidden"

    def whole(self) -> bool:
        return len(self.parts) == self.of


@dataclass(frozen=True)
class Weights:
    """Parameters of a unit: whole or a rank's shard; before the optimizer's step or after it."""

    unit: int
    whole: bool = False
    stepped: bool = False


class Interpreter:
    """All ranks in step: each runs its instructions in issue order; a collective runs when all its members have come to it."""

    def __init__(self, programs: Sequence[Program], rules: Mapping[Op, Rule]) -> None:
        self.programs, self.rules = programs, rules
        self.at = [0] * len(programs)
        self.open: list[list[Instruction]] = [[] for _ in programs]  # messages of the instruction at hand not yet passed
        self.values: list[dict[str, Any]] = [{} for _ in programs]
        for program, values in zip(programs, self.values, strict=True):
            known: dict[str, Any] = {"parameter": Weights, "host-parameter": Weights}
            for name in program.persistent - {"loss"}:
                kind, _, unit = name.partition(".")
                values[name] = known[kind](int(unit)) if kind in known else None
            values["loss"] = Counter()
        for rank in range(len(programs)):
            self._open(rank)

    def run(self) -> None:
        while sum(map(self._advance, range(len(self.programs)))):
            pass
        for rank, program in enumerate(self.programs):
            if head := self._head(rank):
                raise Fault(f"rank {rank}: {head} waits for ever: ranks {', '.join(map(str, head.group))} never come together")
            _check_done_once(program)
            for name in sorted(program.persistent):
                if isinstance(weights := self.value(rank, name), Weights) and not weights.stepped:
                    raise Fault(f"rank {rank}: {name} ends without the optimizer's step")

    def _head(self, rank: int) -> Instruction | None:
        instructions = self.programs[rank].instructions
        return instructions[self.at[rank]] if self.at[rank] < len(instructions) else None

    def _open(self, rank: int) -> None:
        head = self._head(rank)
        self.open[rank] = list(head.messages) if head and head.op in POINT_TO_POINT else []

    def _done(self, rank: int, instruction: Instruction) -> None:
        for name in instruction.frees:
            self.values[rank].pop(name, None)
        self.at[rank] += 1
        self._open(rank)

    def _advance(self, rank: int) -> bool:
        """Run what this rank can run alone, then what it begins with others, if they are all there. Whether anything ran."""
        moved = False
        while (head := self._head(rank)) and len(head.group) <= 1:
            self.rules[head.op](self, (rank,), [head])
            self._done(rank, head)
            moved = True
        if head and head.op in POINT_TO_POINT:
            return self._pass_on(rank) or moved
        if head and rank == head.group[0]:
            heads = [self._head(member) for member in head.group]
            if all(other is not None and other.group == head.group for other in heads):
                self._together(head.group, [other for other in heads if other is not None])
                return True
        return moved

    def _pass_on(self, rank: int) -> bool:
        """The sends at hand whose receives are at hand on the other side: neither side waits in between for anything else."""
        moved = False
        for send in [message for message in self.open[rank] if message.op is Op.SEND]:
            (peer,) = set(send.group) - {rank}
            receive = next((m for m in self.open[peer] if m.op is Op.RECEIVE and m.group == send.group), None)
            if receive is not None:
                self.rules[Op.SEND_RECEIVE](self, (rank, peer), [send, receive])
                for end, message in ((rank, send), (peer, receive)):
                    self.open[end].remove(message)
                    head = self._head(end)
                    if head and not self.open[end]:
                        self._done(end, head)
                moved = True
        return moved

    def _together(self, group: tuple[int, ...], heads: list[Instruction]) -> None:
        first = heads[0]
        for rank, head in zip(group, heads, strict=True):
            if _what(head) != _what(first):
                raise Fault(f"rank {rank}: {head} meets {first} of rank {group[0]}")
            if head.message_bytes != first.message_bytes:
                raise Fault(f"rank {rank}: {head} has {head.message_bytes} bytes, rank {group[0]} has {first.message_bytes}")
        self.rules[first.op](self, group, heads)
        for rank, head in zip(group, heads, strict=True):
            self._done(rank, head)

    def value(self, rank: int, name: str) -> Any:
        if name not in self.values[rank]:
            raise Fault(f"rank {rank}: {name} is not there")
        return self.values[rank][name]

    def strategy(self, rank: int, instruction: Instruction) -> Strategy:
        assert instruction.unit is not None
        return self.programs[rank].strategies[instruction.unit]

    def peers(self, rank: int, instruction: Instruction, paradigm: Paradigm) -> tuple[int, ...]:
        """Ranks that differ from this one only along a level of the unit's strategy."""
        program = self.programs[rank]
        places = self.strategy(rank, instruction).peers(program.place, paradigm)
        return tuple(rank - program.place + place for place in places)


def _what(instruction: Instruction) -> tuple[Op, int | None, int | None, int | None]:
    """What all members of a collective must agree on."""
    return instruction.op, instruction.unit, instruction.micro_batch, instruction.half


Rule = Callable[[Interpreter, Sequence[int], list[Instruction]], None]


def _check_done_once(program: Program) -> None:
    once: list[tuple[Op, int | None]] = [(Op.REDUCE_LOSS, None)]
    each = (Op.HOST_OPTIMIZER_STEP,) if program.optimizer_on_host else (Op.OPTIMIZER_STEP, Op.ZERO_GRADIENTS)
    once += [(op, unit) for op in each for unit in program.units]
    if program.model.tied and {0, len(program.strategies) - 1} & set(program.units):
        once.append((Op.REDUCE_TIED, None))
    counts = Counter((instruction.op, instruction.unit) for instruction in program.instructions)
    for op, unit in once:
        if counts[op, unit] != 1:
            raise Fault(f"rank {program.rank}: {op} of unit {unit} comes {counts[op, unit]} times, not once")
