"""The time walk as a page draws it: lanes, passes on them, and what a pass is made of, each kind of pass once.

A *block* is what one lane does for one micro-batch in one direction without anything else between; blocks that do the same at
the same distances have one *pattern*. A step of many micro-batches so takes few numbers. Where there are still too many blocks,
neighbours of one lane become one, which says what they do together, and no longer when.
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
from trainplan.prediction.metrics import first_places

NAMES = tuple(KINDS)
MOST_BLOCKS = 40_000
MOST_OPERATIONS = 40_000  # of all patterns

Key = tuple[int | None, int | None, bool]
Operations = tuple[tuple[int, int, int, int, int], ...]


@dataclass
class _Block:
    """What a lane does without a break for one micro-batch. operations: kind, start, duration, number of its name, unit (or
    -1)."""

    key: Key
    operations: list[tuple[int, int, int, int, int]] = field(default_factory=list)


def drawn_step(plan: Plan, judged: PlanPrediction) -> dict[str, Any]:
    """The step of one rank of each stage, as plain values for the page.

    lanes: {"stage", "rank", "lane", "blocks"}; a block is [start_ns, number of its pattern, first micro-batch or -1, last one,
    whether it is backward]. patterns: {"end": duration, "sums": ns by kind, "parts": [kind, start, duration, name, unit]} with
    times from the block's start. step_ns: the whole step's. Raises InputError for more micro-batches than can be shown.
    """
    judged.time.assure_whole()
    patterns: dict[Operations, int] = {}
    names: dict[str, int] = {}
    lanes: list[tuple[dict[str, Any], list[_Block]]] = []
    for stage, index in enumerate(first_places(plan, judged)):
        rank = judged.time.rounds[index].few.rank
        blocks = _blocks(judged, index, names)
        for lane in sorted(blocks):
            lanes.append(({"stage": stage, "rank": rank, "lane": lane}, blocks[lane]))
    count = sum(len(blocks) for _, blocks in lanes)
    together = -(-count // MOST_BLOCKS)
    rows = [{**about, "blocks": _packed(blocks, together, patterns)} for about, blocks in lanes]
    left = MOST_OPERATIONS
    written = []
    for operations in patterns:
        left -= len(operations)
        written.append(_pattern(operations, left >= 0))
    units = [unit.name for unit in plan.units]
    return {"step_ns": judged.step_ns, "kinds": NAMES, "names": list(names), "units": units, "lanes": rows, "patterns": written}


def _blocks(judged: PlanPrediction, index: int, names: dict[str, int]) -> dict[str, list[_Block]]:
    """Of one program, the blocks of each lane in order of time. names: of operations, which get numbers as they come."""
    walk = judged.time
    of = lane_of(walk.backend, walk.rounds[index].few)
    turned: set[int | None] = set()
    blocks: dict[str, list[_Block]] = {}
    moments = zip(_issued(walk.rounds[index]), walk.start_ns[index], walk.end_ns[index], strict=True)
    for (instruction, later), start, end in moments:
        micro_batch = None if instruction.micro_batch is None else instruction.micro_batch + later
        op = instruction.op  # the loss, or what comes first after it, turns from a micro-batch's forward to its backward pass
        if micro_batch is not None and (op is Op.LOSS or op.spec.kind in ("backward", "recompute")):
            turned.add(micro_batch)
        if end <= start:
            continue
        key = (micro_batch, instruction.half, micro_batch in turned)
        row = blocks.setdefault(of(instruction), [])
        if not row or row[-1].key != key:
            row.append(_Block(key))
        unit = -1 if instruction.unit is None else instruction.unit
        number = names.setdefault(_name(instruction), len(names))
        row[-1].operations.append((NAMES.index(kind_of(instruction.op)), start, end - start, number, unit))
    return blocks


def _issued(rounds: Rounds) -> Iterator[tuple[Instruction, int]]:
    """The instructions of a whole program, as the short one has them, and how many micro-batches later each comes."""
    few = rounds.few.instructions
    yield from ((instruction, 0) for instruction in few[: rounds.end])
    for number in range(1, rounds.count + 1):
        yield from ((instruction, number * rounds.size) for instruction in few[rounds.begin : rounds.end])
    yield from ((instruction, rounds.count * rounds.size) for instruction in few[rounds.end :])


def _name(instruction: Instruction) -> str:
    return " and ".join(dict.fromkeys(str(message.op) for message in instruction.messages))


def _packed(blocks: Sequence[_Block], together: int, patterns: dict[Operations, int]) -> list[list[int]]:
    """Rows of blocks, `together` neighbours as one; patterns get numbers as they come."""
    rows = []
    for at in range(0, len(blocks), together):
        some = blocks[at : at + together]
        start = some[0].operations[0][1]
        operations = tuple((k, s - start, d, n, u) for block in some for k, s, d, n, u in block.operations)
        numbers = [block.key[0] for block in some if block.key[0] is not None]
        first, last = (min(numbers), max(numbers)) if numbers else (-1, -1)
        rows.append([start, patterns.setdefault(operations, len(patterns)), first, last, int(some[0].key[2])])
    return rows


def _pattern(operations: Operations, whole: bool) -> dict[str, Any]:
    sums = [0] * len(NAMES)
    for kind, _, duration, _, _ in operations:
        sums[kind] += duration
    end = max(start + duration for _, start, duration, _, _ in operations)
    return {"end": end, "sums": sums, "parts": operations if whole else []}
