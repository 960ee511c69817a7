"""Static checks: what can be wrong with a set of programs, found without starting a process.

- races: two accesses of one buffer, at least one a change, that no chain of stream order and waits puts in order;
- lifetimes: a buffer read before it is written, used after it is freed, or never freed;
- meanings: all ranks are run together on what the values *mean*: which samples, which partial sums, which shards. On the way
  every collective must find the same operation, message and group at the head of every member's queue, so that the order in
  which each rank issues its communication ends; and at each optimizer step every gradient must hold each sample once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trainplan.execution.program import Instruction, Op, Program, handles_all
from trainplan.formulations.strategies import Strategy


def check(programs: Sequence[Program]) -> list[str]:
    """Every fault found, in words that name rank and instruction; empty for sound programs."""
    faults = [fault for program in programs for fault in (*races(program), *lifetimes(program))]
    return faults or meanings(programs)


def races(program: Program) -> list[str]:
    """Pairs of conflicting accesses that are not ordered by stream order and waits."""
    faults = []
    clocks: list[dict[str, int]] = []
    current: dict[str, dict[str, int]] = {"compute": {}, "collective": {}}
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    for place, instruction in enumerate(program.instructions):
        clock = current[instruction.stream]
        for index in instruction.waits:
            if index >= place:
                faults.append(f"rank {program.rank}: {instruction} waits for a later instruction")
                continue
            for stream, value in clocks[index].items():
                clock[stream] = max(clock.get(stream, -1), value)
        clock[instruction.stream] = place
        clocks.append(dict(clock))
        changed = {*instruction.writes, *instruction.frees}
        for name in {*instruction.reads, *changed}:
            before = [writer[name]] if name in writer else []
            before += readers.get(name, []) if name in changed else []
            for index in before:
                if clock.get(program.instructions[index].stream, -1) < index:
                    other = program.instructions[index]
                    faults.append(f"rank {program.rank}: {instruction} and {other} race for {name}")
        for name in instruction.reads:
            readers.setdefault(name, []).append(place)
        for name in changed:
            writer[name], readers[name] = place, []
    return faults


def lifetimes(program: Program) -> list[str]:
    """Reads of what is not there, and buffers that outlive the step."""
    faults, live = [], set(program.persistent)
    for instruction in program.instructions:
        for name in instruction.reads:
            if name not in live:
                faults.append(f"rank {program.rank}: {instruction} reads {name}, which is not there")
        for name in instruction.writes:
            if name in live and name not in program.persistent and name not in instruction.reads:
                faults.append(f"rank {program.rank}: {instruction} writes {name}, which is still held")
        live.update(instruction.writes)
        for name in instruction.frees:
            if name not in live or name in program.persistent:
                faults.append(f"rank {program.rank}: {instruction} frees {name}, which is not there to free")
            live.discard(name)
    return faults + [f"rank {program.rank}: {name} is never freed" for name in sorted(live - program.persistent)]


class Fault(Exception):
    """A meaning that does not fit; becomes a line of the report."""


def _some(rows: Sequence[int]) -> str:
    """Samples, the first few of them."""
    return ", ".join(map(str, rows[:6])) + (", ..." if len(rows) > 6 else "")


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
class Gradient:
    """How often each (sample, tensor-parallel index) is in the gradient of the split and of the replicated parameters."""

    split: Counter[int]
    replicated: Counter[tuple[int, int]]
    tied: bool = False

    def __add__(self, other: Gradient) -> Gradient:
        return Gradient(self.split + other.split, self.replicated + other.replicated, self.tied)


EMPTY = Gradient(Counter(), Counter())


def meanings(programs: Sequence[Program]) -> list[str]:
    """Faults of what the programs compute together."""
    try:
        _Interpreter(programs).run()
    except Fault as fault:
        return [str(fault)]
    return []


class _Interpreter:
    """All ranks in step: each runs its instructions in issue order; a collective runs when all its members have come to it."""

    def __init__(self, programs: Sequence[Program]) -> None:
        self.programs = programs
        self.values: list[dict[str, Any]] = [{} for _ in programs]
        for program, values in zip(programs, self.values, strict=True):
            for unit in range(len(program.strategies)):
                values[f"parameter.{unit}"] = "shard"
                values[f"gradient.{unit}"] = None
                values[f"moments.{unit}"] = "moments"
            values["loss"] = Counter()

    def run(self) -> None:
        at = [0] * len(self.programs)
        while True:
            moved = False
            for rank, program in enumerate(self.programs):
                while at[rank] < len(program.instructions):
                    instruction = program.instructions[at[rank]]
                    if len(instruction.group) > 1:
                        break
                    self._local(rank, instruction)
                    at[rank] += 1
                    moved = True
                if at[rank] < len(program.instructions):
                    group = program.instructions[at[rank]].group
                    heads = [
                        self.programs[r].instructions[at[r]] if at[r] < len(self.programs[r].instructions) else None
                        for r in group
                    ]
                    if rank == group[0] and all(head is not None and head.group == group for head in heads):
                        self._together(group, [head for head in heads if head is not None])
                        for member in group:
                            at[member] += 1
                        moved = True
            if not moved:
                break
        for rank, program in enumerate(self.programs):
            if at[rank] < len(program.instructions):
                raise Fault(f"rank {rank}: {program.instructions[at[rank]]} waits for ever: its group never comes together")
            units = range(len(program.strategies))
            once = (
                [(Op.OPTIMIZER_STEP, unit) for unit in units]
                + [(Op.ZERO_GRADIENTS, unit) for unit in units]
                + [(Op.REDUCE_LOSS, None)]
            )
            once += [(Op.REDUCE_TIED, None)] if program.model.tied else []
            counts = Counter((instruction.op, instruction.unit) for instruction in program.instructions)
            for key in once:
                if counts[key] != 1:
                    raise Fault(f"rank {rank}: {key[0]} of unit {key[1]} comes {counts[key]} times, not once")

    def _local(self, rank: int, instruction: Instruction) -> None:
        _RULES[instruction.op](self, (rank,), [instruction])
        self._free(rank, instruction)

    def _together(self, group: tuple[int, ...], heads: list[Instruction]) -> None:
        first = heads[0]
        for rank, head in zip(group, heads, strict=True):
            if (head.op, head.unit, head.micro_batch) != (first.op, first.unit, first.micro_batch):
                raise Fault(f"rank {rank}: {head} meets {first} of rank {group[0]}")
            if head.message_bytes != first.message_bytes:
                raise Fault(f"rank {rank}: {head} has {head.message_bytes} bytes, rank {group[0]} has {first.message_bytes}")
        _RULES[first.op](self, group, heads)
        for rank, head in zip(group, heads, strict=True):
            self._free(rank, head)

    def _free(self, rank: int, instruction: Instruction) -> None:
        for name in instruction.frees:
            self.values[rank].pop(name, None)

    def value(self, rank: int, name: str) -> Any:
        if name not in self.values[rank]:
            raise Fault(f"rank {rank}: {name} is not there")
        return self.values[rank][name]

    def strategy(self, rank: int, instruction: Instruction) -> Strategy:
        assert instruction.unit is not None
        return self.programs[rank].strategies[instruction.unit]

    def last(self, rank: int) -> int:
        return len(self.programs[rank].strategies) - 1


Rule = Callable[[_Interpreter, Sequence[int], list[Instruction]], None]


def _fault(rank: int, instruction: Instruction, text: str) -> Fault:
    return Fault(f"rank {rank}: {instruction} {text}")


def _input(run: _Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    (rank,), (head,) = ranks, heads
    run.values[rank][head.writes[0]] = Hidden(0, head.args["rows"], frozenset([0]), 1)


def _targets(run: _Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    (rank,), (head,) = ranks, heads
    run.values[rank][head.writes[0]] = head.args["rows"]


def _unit_input(run: _Interpreter, rank: int, head: Instruction) -> Hidden:
    """The input of a forward computation, and whether its parameters are all there."""
    source, weights = head.reads[0], head.reads[1]
    x = run.value(rank, source)
    if not isinstance(x, Hidden) or x.stage != "hidden" or x.boundary != head.unit or not x.whole():
        raise _fault(rank, head, f"reads {source}, which is not the whole input of its unit")
    _need_parameters(run, rank, head, weights)
    return x


def _need_parameters(run: _Interpreter, rank: int, head: Instruction, name: str) -> None:
    sharded = run.strategy(rank, head).degree("sdp") > 1
    if run.value(rank, name) != ("whole" if sharded else "shard"):
        raise _fault(rank, head, f"uses {name}, which is not whole")


def _forward(run: _Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    (rank,), (head,) = ranks, heads
    x, strategy = _unit_input(run, rank, head), run.strategy(rank, head)
    assert head.unit is not None
    head_unit = head.unit == run.last(rank)
    parts, of = frozenset([strategy.index(rank, "tp")]), strategy.degree("tp")
    run.values[rank][head.writes[0]] = Hidden(head.unit + 1, x.rows, parts, of, "logits" if head_unit else "hidden")
    for graph in head.writes[1:]:
        run.values[rank][graph] = x


def _recompute(run: _Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    (rank,), (head,) = ranks, heads
    run.values[rank][head.writes[0]] = _unit_input(run, rank, head)


def _statistics(run: _Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    (rank,), (head,) = ranks, heads
    logits, targets = run.value(rank, head.reads[0]), run.value(rank, head.reads[1])
    if logits.stage != "logits" or logits.rows != targets:
        raise _fault(rank, head, f"has logits of samples {_some(logits.rows)} and targets of {_some(targets)}")
    run.values[rank][head.writes[0]] = Hidden(logits.boundary, logits.rows, logits.parts, logits.of, "exponentials")
    run.values[rank][head.writes[1]] = Hidden(logits.boundary, logits.rows, logits.parts, logits.of, "statistics")


def _gather_statistics(run: _Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    found = [run.value(rank, head.reads[0]) for rank, head in zip(ranks, heads, strict=True)]
    parts = _disjoint(ranks, heads, found)
    for rank, head in zip(ranks, heads, strict=True):
        run.values[rank][head.writes[0]] = Hidden(found[0].boundary, found[0].rows, parts, found[0].of, "statistics")


def _disjoint(ranks: Sequence[int], heads: list[Instruction], found: list[Hidden]) -> frozenset[int]:
    """Union of the partial results' indices; each must come once, and all must speak of the same rows."""
    parts: set[int] = set()
    for rank, head, value in zip(ranks, heads, found, strict=True):
        if (value.rows, value.boundary, value.stage) != (found[0].rows, found[0].boundary, found[0].stage):
            raise _fault(rank, head, f"sums samples {_some(value.rows)} with samples {_some(found[0].rows)}")
        if parts & value.parts:
            raise _fault(rank, head, "sums the same partial result twice")
        parts |= value.parts
    return frozenset(parts)


def _loss(run: _Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    (rank,), (head,) = ranks, heads
    logits = run.value(rank, head.reads[0])
    known = [run.value(rank, name) for name in head.reads[2:-1]]
    if logits.stage != "exponentials" or not known[-1].whole():
        raise _fault(rank, head, "lacks the statistics of some vocabulary shards")
    program = run.programs[rank]
    if abs(head.args["scale"] * program.samples * program.model.tokens - 1) > 1e-12:
        raise _fault(rank, head, "is not divided by the tokens of the whole step")
    run.values[rank][head.writes[0]] = Hidden(logits.boundary, logits.rows, frozenset([0]), 1, "gradient")
    if run.strategy(rank, head).index(rank, "tp") == 0:
        run.values[rank]["loss"] = run.values[rank]["loss"] + Counter(logits.rows)


def _backward(run: _Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    (rank,), (head,) = ranks, heads
    graph, _, incoming = (run.value(rank, name) for name in head.reads[:3])
    assert head.unit is not None
    _need_parameters(run, rank, head, head.reads[3])
    if incoming.stage != "gradient" or incoming.boundary != head.unit + 1 or not incoming.whole():
        raise _fault(rank, head, f"reads {head.reads[2]}, which is not the whole gradient of its output")
    if incoming.rows != graph.rows:
        raise _fault(rank, head, f"has a graph of samples {_some(graph.rows)} and a gradient of {_some(incoming.rows)}")
    strategy = run.strategy(rank, head)
    place, of = strategy.index(rank, "tp"), strategy.degree("tp")
    if head.unit > 0:
        run.values[rank][head.writes[0]] = Hidden(head.unit, graph.rows, frozenset([place]), of, "gradient")
    own = Gradient(Counter(graph.rows), Counter((row, place) for row in graph.rows))
    name = head.writes[-1]
    before = run.values[rank].get(name) if name.startswith("gradient.") else EMPTY
    if before is None:
        raise _fault(rank, head, f"adds to {name}, which was not zeroed")
    run.values[rank][name] = before + own


def _zero(run: _Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    (rank,), (head,) = ranks, heads
    run.values[rank][head.writes[0]] = EMPTY


def _relayout(run: _Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    held = [run.value(rank, head.reads[0]) for rank, head in zip(ranks, heads, strict=True)]
    for rank, head in zip(ranks, heads, strict=True):
        blocks, wanted = head.args["blocks"], head.args["rows"]
        if tuple(value.rows for value in held) != tuple(blocks):
            raise _fault(rank, head, "gathers other samples than it was compiled for")
        if any(not value.whole() or value.boundary != held[0].boundary or value.stage != held[0].stage for value in held):
            raise _fault(rank, head, "moves a partial sum")
        if not set(wanted) <= {row for block in blocks for row in block}:
            raise _fault(rank, head, "lacks some of the samples that it needs")
        run.values[rank][head.writes[0]] = Hidden(held[0].boundary, wanted, frozenset([0]), 1, held[0].stage)


def _all_reduce(run: _Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    found = [run.value(rank, head.reads[0]) for rank, head in zip(ranks, heads, strict=True)]
    parts = _disjoint(ranks, heads, found)
    for rank, head in zip(ranks, heads, strict=True):
        value = found[0]
        run.values[rank][head.writes[0]] = Hidden(value.boundary, value.rows, parts, value.of, value.stage)


def _gather_parameters(run: _Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    for rank, head in zip(ranks, heads, strict=True):
        if tuple(ranks) != run.strategy(rank, head).peers(rank, "sdp"):
            raise _fault(rank, head, "gathers over other ranks than hold its shards")
        run.values[rank][head.writes[0]] = "whole"


def _reduce_replicated(run: _Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    total: Counter[Any] = sum(
        (run.value(rank, head.reads[0]).replicated for rank, head in zip(ranks, heads, strict=True)), Counter()
    )
    for rank, head in zip(ranks, heads, strict=True):
        value = run.value(rank, head.reads[0])
        run.values[rank][head.writes[0]] = Gradient(value.split, total, value.tied)


def _reduce_gradients(run: _Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    """All-reduce and reduce-scatter alike: each rank's shard is the sum over the group (added to what the shard held)."""
    found = [run.value(rank, head.reads[0]) for rank, head in zip(ranks, heads, strict=True)]
    total = sum(found[1:], found[0])
    paradigm = "sdp" if heads[0].op is Op.REDUCE_SCATTER_GRADIENTS else "dp"
    for rank, head in zip(ranks, heads, strict=True):
        if tuple(ranks) != run.strategy(rank, head).peers(rank, paradigm):  # type: ignore[arg-type]
            raise _fault(rank, head, "sums over other ranks than share its shard")
        before = EMPTY if head.reads[0] == head.writes[0] else run.value(rank, head.writes[0])
        if before is None:
            raise _fault(rank, head, f"adds to {head.writes[0]}, which was not zeroed")
        run.values[rank][head.writes[0]] = before + total


def _expected(program: Program, unit: int) -> Gradient:
    rows = range(program.samples)
    tp = program.strategies[unit].degree("tp")
    return Gradient(Counter(rows), Counter((row, index) for row in rows for index in range(tp)))


def _reduce_tied(run: _Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    for rank, head in zip(ranks, heads, strict=True):
        for name in head.reads:
            value, expected = run.value(rank, name), _expected(run.programs[rank], int(name.split(".")[1]))
            if value.split != expected.split:
                raise _fault(rank, head, f"ties {name} before it is summed")
            run.values[rank][name] = Gradient(value.split, value.replicated, True)


def _optimizer_step(run: _Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    (rank,), (head,) = ranks, heads
    assert head.unit is not None
    program, value = run.programs[rank], run.value(rank, head.reads[0])
    expected = _expected(program, head.unit)
    part = program.model.units[head.unit].sublayer
    if value.split != expected.split or (part.replicated_count and value.replicated != expected.replicated):
        raise _fault(rank, head, f"uses {head.reads[0]}, which does not hold each sample once")
    if program.model.tied and head.unit in (0, run.last(rank)) and not value.tied:
        raise _fault(rank, head, "comes before the tied matrix is reduced")


def _reduce_loss(run: _Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    total: Counter[int] = sum((run.value(rank, "loss") for rank in ranks), Counter())
    if total != Counter(range(run.programs[0].samples)):
        raise _fault(ranks[0], heads[0], "does not count each sample once")


_RULES: dict[Op, Rule] = {
    Op.INPUT: _input,
    Op.TARGETS: _targets,
    Op.FORWARD: _forward,
    Op.FORWARD_WITHOUT_GRAPH: _forward,
    Op.RECOMPUTE: _recompute,
    Op.BACKWARD: _backward,
    Op.LOSS_STATISTICS: _statistics,
    Op.LOSS: _loss,
    Op.OPTIMIZER_STEP: _optimizer_step,
    Op.ZERO_GRADIENTS: _zero,
    Op.SLICE: _relayout,
    Op.GATHER_SLICE: _relayout,
    Op.ALL_REDUCE: _all_reduce,
    Op.GATHER_STATISTICS: _gather_statistics,
    Op.GATHER_PARAMETERS: _gather_parameters,
    Op.REDUCE_REPLICATED: _reduce_replicated,
    Op.REDUCE_SCATTER_GRADIENTS: _reduce_gradients,
    Op.ALL_REDUCE_GRADIENTS: _reduce_gradients,
    Op.REDUCE_TIED: _reduce_tied,
    Op.REDUCE_LOSS: _reduce_loss,
}
handles_all(_RULES)
