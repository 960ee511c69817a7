"""Static checks of plans of any number of ranks and micro-batches.

1. One rank of each class is checked by itself, with its first few micro-batches (see `execution.steady_state`): all that
   `analysis.verify.checks` finds in one rank alone, its groups and its bytes included.
2. The folded plan (see `compile.reduced_plan`) is compiled for all of its ranks, which are run together on what values mean.
3. The programs of 1 and of 2 are compared, instruction by instruction: the same operations on buffers of the same names in the
   same order, with the same waits, and with peers along the same digits of ranks. So the result of 2 holds for the programs of
   1, with groups of other sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trainplan.execution.analysis.verify.checks import program_faults
from trainplan.execution.analysis.verify.semantics import meanings
from trainplan.execution.analysis.verify.structure import misplaced
from trainplan.execution.compile.compiler import RankClass, compile_plan
from trainplan.execution.compile.reduced_plan import fold
from trainplan.execution.gc_paused import gc_paused
from trainplan.execution.program import Instruction, Program
from trainplan.formulations.plan.rank_grid import Digits


@gc_paused()
def check_classes(classes: Sequence[RankClass]) -> list[str]:
    """All faults of the programs of all classes of a plan, as lines of text, as of `check`; empty for sound programs."""
    few = [rank_class.few for rank_class in classes]
    faults = misplaced(few, every_rank=False) or program_faults(few)
    if faults:
        return faults
    folding = fold(classes[0].plan, classes[0].model)
    programs = compile_plan(folding.folded, classes[0].model, ahead=classes[0].ahead)
    by_kind = {(program.units, program.micro_batches): program for program in programs}
    for rank_class in classes:
        other = by_kind[rank_class.few.units, rank_class.few.micro_batches]
        fault = unlike(rank_class.few, folding.digits, other, folding.folded_digits)
        if fault is not None:
            return [fault]
    return meanings(programs)


def unlike(program: Program, digits: Digits, folded: Program, folded_digits: Digits) -> str | None:
    """The first difference between a rank's program and that of a rank of the folded plan, other than sizes and samples, as
    text; None if there is none. digits, folded_digits: the digits of the ranks of both plans."""
    if len(program.instructions) != len(folded.instructions):
        return f"rank {program.rank}: has {len(program.instructions)} instructions, folded {len(folded.instructions)}"
    reach, folded_reach = reaches(program, digits), reaches(folded, folded_digits)
    for a, b in zip(program.instructions, folded.instructions, strict=True):
        if _what(a, reach) != _what(b, folded_reach):
            return f"rank {program.rank}: {a} is not what it is with fewer ranks"
    return None


Reach = tuple[tuple[int, ...], tuple[int, ...] | None]


def reaches(program: Program, digits: Digits) -> Callable[[tuple[int, ...]], Reach]:
    """A function of a group of ranks that gives the stages that it spans, and the digits in which its members and the rank
    differ in each of them."""
    size, by_group = digits.size, dict[tuple[int, ...], Reach]()

    def reach(group: tuple[int, ...]) -> Reach:
        """As of `reaches`, computed once per group."""
        if group not in by_group:
            stages, indices = sorted({member // size for member in group}), {member % size for member in group}
            whole = len(group) == len(stages) * len(indices) and program.index_in_stage in indices
            by_group[group] = (tuple(stages), digits.reach(indices) if whole else None)
        return by_group[group]

    return reach


def _what(i: Instruction, reach: Callable[[tuple[int, ...]], Reach]) -> tuple[Any, ...]:
    """The fields of an instruction in which the folded program must agree."""
    grouped = tuple(_what(message, reach) for message in i.grouped)
    names = (i.reads, i.writes, i.frees, i.after, i.marks)
    return i.op, i.unit, i.micro_batch, i.half, i.lane, i.waits, names, reach(i.group), grouped
