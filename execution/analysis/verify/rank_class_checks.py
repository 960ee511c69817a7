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
    """Check the programs of all ranks of a plan by one rank of each class (ranks of one stage whose programs are equal up to
    samples and groups) and by a smaller plan that computes the same. Returns the faults as lines of text that name rank and
    instruction; empty if the programs are sound."""
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
    """Compare a rank's program with the program of the corresponding rank of the folded plan, a smaller plan that computes the
    same. The folded plan has smaller degrees of parallelism. Returns the first difference, other than sizes and samples, as
    text; None if there is none. digits, folded_digits: how ranks of a stage are numbered in each plan, one digit per level of
    parallelism. A program is one rank's instructions for a training step."""
    if len(program.instructions) != len(folded.instructions):
        return f"rank {program.rank}: has {len(program.instructions)} instructions, folded {len(folded.instructions)}"
    reach, folded_reach = reaches(program, digits), reaches(folded, folded_digits)
    for a, b in zip(program.instructions, folded.instructions, strict=True):
        if _what(a, reach) != _what(b, folded_reach):
            return f"rank {program.rank}: {a} is not what it is with fewer ranks"
    return None


Reach = tuple[tuple[int, ...], tuple[int, ...] | None]


def reaches(program: Program, digits: Digits) -> Callable[[tuple[int, ...]], Reach]:
    """A function that describes a group of ranks such that corresponding groups of a plan and of its folded (smaller) plan
    compare equal: it maps a tuple of ranks to (the stages that they belong to; the digits in which the members' indices in
    their stage vary, None if the members are not all ranks that vary in these digits or this program's rank is not among them).
    digits: how ranks of a stage are numbered, one digit per level of parallelism. program: one rank's instructions for a
    training step."""
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
    """The fields of an instruction that must be equal in a rank's program and in that of the folded (smaller) plan. reach:
    gives the stages and digits that a group of ranks spans (see `reaches`)."""
    grouped = tuple(_what(message, reach) for message in i.grouped)
    names = (i.reads, i.writes, i.frees, i.after, i.marks)
    return i.op, i.unit, i.micro_batch, i.half, i.lane, i.waits, names, reach(i.group), grouped
