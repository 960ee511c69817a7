"""Whether programs are well-formed: every field of the right type and in its range, and the same world for all ranks.

All other checks rely on this. Each fault names the rank, and the instruction by its index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainplan.execution.instruction_spec import STREAMS
from trainplan.execution.instructions import Op
from trainplan.execution.program import AGAIN, Instruction, Program, draws
from trainplan.formulations.plan.strategy import Strategy
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.optimizers import OPTIMIZERS
from trainplan.profiling.models.precision import Precision

Test = Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    """Whether a value is an integer of at least 0."""
    return type(value) is int and value >= 0


def _numbers(value: Any) -> bool:
    """Whether a value is a tuple of integers of at least 0."""
    return type(value) is tuple and (not value or (set(map(type, value)) == {int} and min(value) >= 0))


def _names(value: Any) -> bool:
    """Whether a value is a tuple of texts."""
    return type(value) is tuple and (not value or set(map(type, value)) == {str})


def _instructions(value: Any) -> bool:
    """Whether a value is a tuple of instructions."""
    return type(value) is tuple and (not value or set(map(type, value)) == {Instruction})


def _blocks(value: Any) -> bool:
    """Whether a value is a tuple of tuples of integers of at least 0."""
    return type(value) is tuple and all(map(_numbers, value))


def _units(value: Any) -> bool:
    """Whether a value is a range of one sub-layer or more."""
    return type(value) is range and value.step == 1 and len(value) > 0


def _number_or_none(value: Any) -> bool:
    """Whether a value is None or an integer of at least 0."""
    return value is None or (type(value) is int and value >= 0)


_INSTRUCTION: dict[str, tuple[Test, str]] = {
    "op": (lambda value: type(value) is Op, "an operation"),
    "unit": (_number_or_none, "a unit"),
    "micro_batch": (_number_or_none, "a micro-batch"),
    "half": (lambda value: value is None or (type(value) is int and value in (0, 1)), "0, 1 or None"),
    **dict.fromkeys(("reads", "writes", "frees", "after", "marks"), (_names, "a tuple of names")),
    "group": (_numbers, "a tuple of ranks"),
    "args": (lambda value: type(value) is dict, "a dict"),
    **dict.fromkeys(("message_bytes", "workspace_bytes"), (_is_number, "a number of bytes")),
    "waits": (_numbers, "a tuple of instructions' numbers"),
    "grouped": (
        lambda value: value == () or (type(value) is tuple and set(map(type, value)) == {Instruction}),
        "a tuple of instructions",
    ),
    "lane": (lambda value: value is None or value in STREAMS, "a stream"),
}
_PROGRAM: dict[str, tuple[Test, str]] = {
    **dict.fromkeys(("rank", "index_in_stage"), (_is_number, "a rank")),
    **dict.fromkeys(("world", "samples", "micro_batches"), (lambda value: _is_number(value) and value > 0, "a number above 0")),
    "stages": (
        lambda value: type(value) is tuple and len(value) > 0 and all(map(_units, value)),
        "ranges of sub-layers",
    ),
    "groups": (lambda value: _blocks(value) and len(value) > 0 and all(value), "a tuple of tuples of ranks"),
    "units": (lambda value: _units(value) or (_numbers(value) and len(value) > 0), "units"),
    "model": (lambda value: isinstance(value, Model), "a model"),
    "strategies": (
        lambda value: type(value) is tuple and len(value) > 0 and all(type(strategy) is Strategy for strategy in value),
        "a tuple of strategies",
    ),
    "buffers": (
        lambda value: isinstance(value, Mapping) and all(type(n) is str and _is_number(size) for n, size in value.items()),
        "bytes by name",
    ),
    "persistent": (lambda value: type(value) is frozenset and all(type(name) is str for name in value), "a set of names"),
    "instructions": (_instructions, "a tuple of instructions"),
    "precision": (lambda value: type(value) is Precision, "a precision"),
    "optimizer": (lambda value: value in OPTIMIZERS, "an optimizer"),
}
_ARGUMENTS: dict[str, tuple[Test, str]] = {
    "rows": (_numbers, "a tuple of samples"),
    "blocks": (_blocks, "a tuple of tuples of samples"),
    "tokens": (lambda value: _numbers(value) or _blocks(value), "numbers of tokens"),
    "scale": (lambda value: type(value) is float, "a number"),
    AGAIN: (lambda value: value is True, "true"),
}


def misplaced(programs: Sequence[Program], every_rank: bool = True) -> list[str]:
    """Faults of the programs' own fields (types, ranges, stages), and of how their ranks relate to each other, as lines of
    text; empty if there are none. A program is one rank's instructions for a training step.

    every_rank: whether the programs are those of all ranks, in order; if not, they are of at least one rank of each stage.
    """
    if not programs:
        return ["there is no program"]
    for index, program in enumerate(programs):
        if (fault := _wrong_field(program, _PROGRAM)) is not None:
            return [f"rank {index}: {fault}"]
    first, faults = programs[0], []
    for index, program in enumerate(programs):
        fault = _misplaced(program, first)
        if every_rank and (program.rank != index or program.world != len(programs)):
            fault = f"says that it is rank {program.rank} of {program.world}; there are {len(programs)}"
        if fault is not None:
            faults.append(f"rank {index if every_rank else program.rank}: {fault}")
    return faults


def malformed(program: Program) -> list[str]:
    """The first malformed instruction of a program, as a list of one line of text; empty if all instructions are
    well-formed."""
    micro_batches, gathered = set[int | None](), set[str]()
    for index, instruction in enumerate(program.instructions):
        fault = _wrong_field(instruction, _INSTRUCTION)
        if fault is None and instruction.grouped:
            fault = next(filter(None, map(_wrong_message, instruction.grouped)), None)
        for i in () if fault else instruction.messages:
            micro_batches.add(i.micro_batch)
            fault = fault or _wrong_label(i, program) or _wrong_arguments(i, program, gathered)
        if fault is not None:
            return [f"rank {program.rank}: instruction {index}: {fault}"]
    if (numbers := micro_batches - {None}) != set(range(program.micro_batches)):
        return [f"rank {program.rank}: micro_batches is {program.micro_batches}, and instructions are of {len(numbers)}"]
    return []


def _wrong_field(record: Program | Instruction, tests: Mapping[str, tuple[Test, str]]) -> str | None:
    """The first field of a program or instruction that fails its test, as text; None if all pass. tests: by the field's name,
    (the test of its value, words for what it should be)."""
    fields = record.__dict__
    for name, (test, wanted) in tests.items():
        if not test(fields[name]):
            return f"{name} is {_shown(fields[name])}, not {wanted}"
    return None


def _shown(value: Any) -> str:
    """A value's `repr` on one line, of at most 40 characters, for a message."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 40 else text[:37] + "..."


def _misplaced(program: Program, first: Program) -> str | None:
    """The fault of a program's own fields, of their agreement with `first`, another program of the plan, or of its rank's
    index in the stage, as text; None if there is none. A program is one rank's instructions for a training step."""
    for name in ("world", "model", "strategies", "samples", "stages", "groups", "precision", "optimizer"):
        value, other = getattr(program, name), getattr(first, name)
        if value is not other and value != other:
            return f"{name} is {_shown(value)}, of rank {first.rank} {_shown(other)}"
    if program.precision.for_model(program.model) != program.precision:
        return f"precision is {_shown(program.precision)}, with a model in {program.model.dtype}"
    if len(program.strategies) != len(program.model.units):
        return f"has {len(program.strategies)} strategies for {len(program.model.units)} units"
    if (fault := _wrong_stages(program)) is not None:
        return fault
    if not program.chunks:
        return f"is in none of the stages' groups {_shown(program.groups)}"
    if (index := program.stage_ranks.index(program.rank)) != program.index_in_stage:
        return f"index_in_stage is {program.index_in_stage}, not {index}, of {len(program.stage_ranks)} ranks of a stage"
    if (units := tuple(unit for chunk in program.chunks for unit in chunk)) != tuple(program.units):
        return f"has units {_shown(program.units)}, not {_shown(units)}, those of its stages"
    return None


def _wrong_stages(program: Program) -> str | None:
    """The fault of a program's stages, as text: they do not cover the units (sub-layers) in order, their numbers of ranks do
    not fit the strategies, or a rank is in no group or in several; None if there is none. A program is one rank's instructions
    for a training step."""
    if len(program.stages) != len(program.groups) or len(program.stages) > len(program.strategies):
        return f"has {len(program.stages)} stages on {len(program.groups)} groups of ranks"
    begin = 0
    for stage, group in zip(program.stages, program.groups, strict=True):
        if stage.start != begin:
            return f"has stages {_shown(program.stages)}, where units go on from unit {begin}"
        begin = stage.stop
        strategies = program.strategies[stage.start : stage.stop]
        if any(strategy.group != len(group) for strategy in strategies) or list(group) != sorted(set(group)):
            return f"has strategies of other groups than the {len(group)} ranks {_shown(group)} of a stage"
    if begin != len(program.strategies):
        return f"has stages {_shown(program.stages)} for {len(program.strategies)} units"
    ranks = [rank for group in dict.fromkeys(program.groups) for rank in group]
    if sorted(ranks) != list(range(program.world)):
        return f"has groups of ranks {_shown(program.groups)}, not each of the {program.world} ranks in one"
    return None


def _wrong_message(message: Instruction) -> str | None:
    """The fault of one message of a point-to-point operation, as text: it has messages of its own, or a wrong field; None if
    there is none."""
    return "a message is grouped itself" if message.grouped else _wrong_field(message, _INSTRUCTION)


def _wrong_arguments(i: Instruction, program: Program, gathered: set[str]) -> str | None:
    """The fault of the arguments of instruction `i`, as text; None if there is none. gathered: names of those inputs of
    matrices that have been gathered so far (a second gather needs another argument); the function adds this instruction's to
    it."""
    spec = i.op.spec
    names = spec.args
    if (
        i.unit is not None
        and i.unit in program.units
        and draws(program.model.units[i.unit].sublayer, program.strategies[i.unit], i.op)
    ):
        names = ("rows",)
    if not names and not i.args:
        return None
    if i.op is Op.SEND or not i.args.keys().isdisjoint(spec.optional_args):
        names = (*names, *spec.optional_args)
    if i.op is Op.GATHER_TOKENS and i.reads and i.reads[0].startswith("entry."):
        names = ("tokens", AGAIN) if i.reads[0] in gathered else names
        gathered.add(i.reads[0])
    if set(i.args) != {*names}:
        return f"{i} has arguments {_shown(sorted(map(str, i.args)))}, not {_shown(sorted(names))}"
    for name in names:
        test, wanted = _ARGUMENTS[name]
        if not test(i.args[name]):
            return f"{i}: {name} is {_shown(i.args[name])}, not {wanted}"
    in_halves = spec.kind == "backward" and "blocks" in names
    if i.op is Op.JOIN or in_halves:
        count = len(i.reads) if "rows" in names else 2
    else:
        count = 1 if i.op is Op.SEND else max(1, len(i.group))
    if "blocks" in names and len(i.args["blocks"]) != count:
        return f"{i} has {len(i.args['blocks'])} blocks of samples"
    if in_halves and i.half is None:
        return f"{i} has blocks of halves, and is of none"
    return None


def _wrong_label(i: Instruction, program: Program) -> str | None:
    """The fault of the unit (sub-layer), micro-batch or half that instruction `i` names, as text; None if its operation can be
    about these."""
    spec = i.op.spec
    if spec.of_unit == "none":
        units: Sequence[int | None] = (None,)
    elif spec.of_unit == "last":
        units = (len(program.strategies) - 1,)
    elif spec.of_unit == "boundary" and i.reads + i.writes:
        joined = i.op is Op.JOIN and "rows" in i.args  # what several ranks have sent
        before = (i.op in (Op.RECEIVE, Op.POST_RECEIVE) or joined) == (i.reads + i.writes)[0].startswith("hidden")
        units = tuple(chunk.start if before else chunk.stop for chunk in program.chunks)
    else:
        units = program.units
    if i.unit not in units:
        return f"{i.op} is of unit {i.unit}, not of {units[0] if len(units) == 1 else _shown(units)}"
    if (i.micro_batch is None) != (spec.smallest_part == "step"):
        return f"{i.op} is of micro-batch {i.micro_batch}"
    if i.micro_batch is not None and i.micro_batch >= program.micro_batches:
        return f"{i.op} is of micro-batch {i.micro_batch} of {program.micro_batches}"
    return f"{i.op} is of half {i.half}" if i.half is not None and spec.smallest_part != "half" else None
