"""A simulated step in the compact form in which the report's page draws it: lanes, blocks on them, and patterns of blocks.

A *block* is a series of operations of one lane for one micro-batch in one direction, with nothing else between. Blocks whose
operations are equal and equally far apart share a *pattern*, so a step of many micro-batches takes few numbers. Where there are
still too many blocks, neighbours of one lane are merged into one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainplan.execution.analysis.timing.simulate import lane_of
from trainplan.execution.instructions import Op
from trainplan.execution.prediction.evaluate_plan import PlanPrediction
from trainplan.execution.program import Instruction
from trainplan.execution.steady_state import Rounds
from trainplan.formulations.plan.plan import Plan
from trainplan.pictures.plans import KINDS, kind_of
from trainplan.prediction.metrics import last_programs

NAMES = tuple(KINDS)
MOST_BLOCKS = 40_000
MOST_OPERATIONS = 40_000  # of all patterns

Key = tuple[int | None, int | None, bool]  # micro-batch, half of it, whether it is a backward pass
Operations = tuple[tuple[int, int, int, int, int], ...]  # index of kind, start and duration in ns, index of name, unit or -1


@dataclass
class _Block:
    """Consecutive operations of one lane (a stream of a rank) for one micro-batch in one direction, forward or backward.

    key: micro-batch, which half of it, and whether it is a backward pass. operations: for each operation the index of its
    kind, start and duration in ns, index of its name, and index of its unit (sub-layer), or -1 without a unit.
    """

    key: Key
    operations: list[tuple[int, int, int, int, int]] = field(default_factory=list)


def drawn_step(plan: Plan, prediction: PlanPrediction) -> dict[str, Any]:
    """The simulated step of one rank of each stage as JSON-ready values, which the page's script draws.

    "step_ns": time of the whole step. "kinds", "names", "units": texts that other values refer to by index. "lanes": one dict
    per stream of a rank with "stage", "rank", "lane" (the stream's name) and "blocks". A block is a series of operations for
    one micro-batch: [start_ns, index of its pattern, first and last micro-batch (-1 for none), whether it is backward].
    "patterns": dicts with "end" (duration), "sums" (ns by kind) and "parts" (operations), times in ns from the block's start;
    equal blocks share a pattern. Raises InputError for a step with more micro-batches than are simulated one by one. plan: a
    training plan, with its stages and strategies. prediction: the simulation of the plan's programs (instruction lists of
    ranks).
    """
    prediction.time.assure_whole()
    patterns: dict[Operations, int] = {}
    names: dict[str, int] = {}
    lanes: list[tuple[dict[str, Any], list[_Block]]] = []
    for stage, index in enumerate(last_programs(plan, prediction)):
        rank = prediction.time.rounds[index].few.rank
        blocks = _blocks(prediction, index, names)
        for lane in sorted(blocks):
            lanes.append(({"stage": stage, "rank": rank, "lane": lane}, blocks[lane]))
    count = sum(len(blocks) for _, blocks in lanes)
    together = -(-count // MOST_BLOCKS)
    rows = [{**about, "blocks": _packed(blocks, together, patterns)} for about, blocks in lanes]
    remaining = MOST_OPERATIONS
    written = []
    for operations in patterns:
        remaining -= len(operations)
        written.append(_pattern(operations, whole=remaining >= 0))
    texts = {"kinds": NAMES, "names": list(names), "units": [unit.name for unit in plan.units]}
    return {"step_ns": prediction.step_ns, **texts, "lanes": rows, "patterns": written}


def _blocks(prediction: PlanPrediction, index: int, names: dict[str, int]) -> dict[str, list[_Block]]:
    """Group the operations of one program (the instruction list of a rank) into blocks, each for one micro-batch in one
    direction; returns them by lane (stream), in order of time.

    prediction: the simulated programs. index: index of the program among them. names: indices of the names of operations,
    written to: gets names that are new.
    """
    simulated = prediction.time
    lane_of_instruction = lane_of(simulated.backend, simulated.rounds[index].few)
    turned: set[int | None] = set()  # micro-batches whose backward pass has begun
    blocks: dict[str, list[_Block]] = {}
    rounds, starts, ends = simulated.rounds[index], simulated.start_ns[index], simulated.end_ns[index]
    for (instruction, later), start, end in zip(_issued(rounds), starts, ends, strict=True):
        micro_batch = None if instruction.micro_batch is None else instruction.micro_batch + later
        op = instruction.op
        if micro_batch is not None and (op is Op.LOSS or op.spec.kind in ("backward", "recompute")):
            turned.add(micro_batch)
        if end <= start:
            continue
        key = (micro_batch, instruction.half, micro_batch in turned)
        row = blocks.setdefault(lane_of_instruction(instruction), [])
        if not row or row[-1].key != key:
            row.append(_Block(key))
        unit = -1 if instruction.unit is None else instruction.unit
        number = names.setdefault(_name(instruction), len(names))
        row[-1].operations.append((NAMES.index(kind_of(instruction.op)), start, end - start, number, unit))
    return blocks


def _issued(rounds: Rounds) -> Iterator[tuple[Instruction, int]]:
    """Yield all instructions of a program, in order. The program is stored in compact form: rounds, the parts of it that
    repeat for the next micro-batches, are stored only once.

    Instructions come as pairs (stored instruction, number to add to its micro-batch).
    """
    few = rounds.few.instructions
    yield from ((instruction, 0) for instruction in few[: rounds.end])
    for number in range(1, rounds.count + 1):
        yield from ((instruction, number * rounds.size) for instruction in few[rounds.begin : rounds.end])
    yield from ((instruction, rounds.count * rounds.size) for instruction in few[rounds.end :])


def _name(instruction: Instruction) -> str:
    """The name of an instruction for users; if the instruction groups several messages, the names of all of them, such as
    "send and receive".
    """
    return " and ".join(dict.fromkeys(str(message.op) for message in instruction.messages))


def _packed(blocks: Sequence[_Block], together: int, patterns: dict[Operations, int]) -> list[list[int]]:
    """Convert the blocks (operations of one micro-batch in one direction) of one lane to rows of numbers: [start_ns, index of
    the pattern, first and last micro-batch (-1 for none), whether it is backward].

    together: the number of neighbouring blocks that are merged into one row. patterns: indices of patterns, which are
    distinct sequences of operations; written to: gets patterns that are new.
    """
    rows = []
    for begin in range(0, len(blocks), together):
        merged = blocks[begin : begin + together]
        start = merged[0].operations[0][1]
        operations = tuple((k, s - start, d, n, u) for block in merged for k, s, d, n, u in block.operations)
        numbers = [block.key[0] for block in merged if block.key[0] is not None]
        first, last = (min(numbers), max(numbers)) if numbers else (-1, -1)
        rows.append([start, patterns.setdefault(operations, len(patterns)), first, last, int(merged[0].key[2])])
    return rows


def _pattern(operations: Operations, whole: bool) -> dict[str, Any]:
    """Describe a pattern (sequence of operations) as the page's script reads it: a dict with its duration, its time by kind of
    work and, if `whole`, its operations; times in ns.
    """
    sums = [0] * len(NAMES)
    for kind, _, duration, _, _ in operations:
        sums[kind] += duration
    end = max(start + duration for _, start, duration, _, _ in operations)
    return {"end": end, "sums": sums, "parts": operations if whole else []}
