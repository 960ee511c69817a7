"""Static checks of plans of any number of ranks and micro-batches.

1. One rank of each class is checked by itself, with its first few micro-batches (see `execution.rounds`): all that
   `walk.checks` says of a rank alone, its groups and its bytes among it.
2. The folded plan (see `compile.folding`) is compiled for all of its ranks, and these are run together on what values mean.
3. The programs of 1 and of 2 are compared, instruction by instruction: the same operations on buffers of the same names in the
   same order, held back by the same waits, with peers along the same digits of ranks. So 2 is about what 1
   does, with groups of other sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trainplan.execution.analysis.verify.checks import program_faults
from trainplan.execution.analysis.verify.semantics import meanings
from trainplan.execution.analysis.verify.structure import misplaced
from trainplan.execution.compile.classes import RankClass
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.compile.reduced_plan import fold
from trainplan.execution.gc_paused import gc_paused
from trainplan.execution.program import Instruction, Program
from trainplan.formulations.plan.rank_grid import Digits


@gc_paused()
def check_classes(classes: Sequence[RankClass]) -> list[str]:
    """Every fault found in the programs of all classes of a plan, as `check`; empty for sound programs."""
    few = [each.few for each in classes]
    faults = misplaced(few, every_rank=False) or program_faults(few)
    if faults:
        return faults
    folding = fold(classes[0].plan, classes[0].model)
    programs = compile_plan(folding.folded, classes[0].model, ahead=classes[0].ahead)
    by_kind = {(program.units, program.micro_batches): program for program in programs}
    for each in classes:
        other = by_kind[each.few.units, each.few.micro_batches]
        fault = unlike(each.few, folding.digits, other, folding.folded_digits)
        if fault is not None:
            return [fault]
    return meanings(programs)


def unlike(program: Program, digits: Digits, folded: Program, folded_digits: Digits) -> str | None:
    """Where a rank's program first differs from that of a rank of the folded plan by more than sizes and samples."""
    if len(program.instructions) != len(folded.instructions):
        return f"rank {program.rank}: has {len(program.instructions)} instructions, folded {len(folded.instructions)}"
    one, other = reaches(program, digits), reaches(folded, folded_digits)
    for a, b in zip(program.instructions, folded.instructions, strict=True):
        if _what(a, one) != _what(b, other):
            return f"rank {program.rank}: {a} is not what it is with fewer ranks"
    return None


Reach = tuple[tuple[int, ...], tuple[int, ...] | None]


def reaches(program: Program, digits: Digits) -> Callable[[tuple[int, ...]], Reach]:
    """By a group: the stages that it spans, and the digits in which its members and the rank differ in each of them."""
    size, by_group = digits.size, dict[tuple[int, ...], Reach]()

    def reach(group: tuple[int, ...]) -> Reach:
        if group not in by_group:
            stages, indices = sorted({member // size for member in group}), {member % size for member in group}
            whole = len(group) == len(stages) * len(indices) and program.index_in_stage in indices
            by_group[group] = (tuple(stages), digits.reach(indices) if whole else None)
        return by_group[group]

    return reach


def _what(i: Instruction, reach: Callable[[tuple[int, ...]], Reach]) -> tuple[Any, ...]:
    grouped = tuple(_what(message, reach) for message in i.grouped)
    names = (i.reads, i.writes, i.frees, i.after, i.marks)
    return i.op, i.unit, i.micro_batch, i.half, i.lane, i.waits, names, reach(i.group), grouped
