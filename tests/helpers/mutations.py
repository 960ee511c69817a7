"""Random mutations of compiled programs: each changes one field or the order of one instruction, on one rank or on all."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.instruction_spec import STREAMS
from trainplan.execution.instructions import Op
from trainplan.execution.program import AGAIN, Instruction, Program, with_waits
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy import parse_strategy
from trainplan.profiling.models.optimizers import OPTIMIZERS

from tests.helpers.plans import (
    LLAMA,
    PRECISIONS,
    plan_of,
    random_interleaved_plan,
    random_plan,
    random_sliced_plan,
    random_uneven_plan,
    random_unlike_plan,
    random_zero_plan,
    sharing_tokens,
)
from tests.helpers.residence_plans import random_residence_plan
from tests.helpers.switch_plans import random_switch_plan

Programs = list[Program]
Change = Callable[[random.Random, Program, int], "list[Instruction] | None"]
ALIKE = {  # by operation, others that it is easily mistaken for: they have similar buffers, or stand next to it
    Op.FORWARD: (Op.FORWARD_WITHOUT_GRAPH, Op.RECOMPUTE),
    Op.FORWARD_WITHOUT_GRAPH: (Op.FORWARD, Op.RECOMPUTE),
    Op.RECOMPUTE: (Op.FORWARD_WITHOUT_GRAPH, Op.FORWARD),
    Op.ENTER: (Op.ENTER_WITHOUT_GRAPH, Op.FORWARD),
    Op.ENTER_WITHOUT_GRAPH: (Op.ENTER, Op.FORWARD_WITHOUT_GRAPH),
    Op.LEAVE: (Op.LEAVE_BACKWARD, Op.MARK),
    Op.LEAVE_BACKWARD: (Op.LEAVE, Op.MARK),
    Op.ENTER_BACKWARD: (Op.BACKWARD, Op.ENTER),
    Op.KEYS: (Op.KEYS_WITHOUT_GRAPH, Op.CORE),
    Op.KEYS_WITHOUT_GRAPH: (Op.KEYS, Op.CORE_WITHOUT_GRAPH),
    Op.KEYS_BACKWARD: (Op.CORE_BACKWARD, Op.ENTER_BACKWARD),
    Op.CORE: (Op.CORE_WITHOUT_GRAPH, Op.KEYS),
    Op.CORE_WITHOUT_GRAPH: (Op.CORE, Op.KEYS_WITHOUT_GRAPH),
    Op.CORE_BACKWARD: (Op.KEYS_BACKWARD, Op.BACKWARD),
    Op.GATHER_KEYS: (Op.EXCHANGE_HEADS, Op.GATHER_TOKENS),
    Op.SCATTER_KEYS: (Op.EXCHANGE_TOKENS, Op.REDUCE_SCATTER_TOKENS),
    Op.EXCHANGE_HEADS: (Op.EXCHANGE_TOKENS, Op.GATHER_KEYS),
    Op.EXCHANGE_TOKENS: (Op.EXCHANGE_HEADS, Op.SCATTER_KEYS),
    Op.GATHER_TOKENS: (Op.GATHER_SLICE, Op.ALL_REDUCE),
    Op.REDUCE_SCATTER_TOKENS: (Op.ALL_REDUCE, Op.GATHER_TOKENS),
    Op.SLICE_TOKENS: (Op.SLICE, Op.GATHER_TOKENS),
    Op.ALL_REDUCE: (Op.ALL_REDUCE_GRADIENTS, Op.REDUCE_LOSS),
    Op.ALL_REDUCE_GRADIENTS: (Op.REDUCE_REPLICATED, Op.ALL_REDUCE),
    Op.REDUCE_REPLICATED: (Op.ALL_REDUCE_GRADIENTS, Op.ALL_REDUCE),
    Op.SLICE: (Op.GATHER_SLICE,),
    Op.GATHER_SLICE: (Op.SLICE,),
    Op.SEND: (Op.RECEIVE,),
    Op.RECEIVE: (Op.SEND, Op.POST_RECEIVE),
    Op.POST_RECEIVE: (Op.RECEIVE, Op.MARK),
    Op.INPUT: (Op.TARGETS,),
    Op.TARGETS: (Op.INPUT,),
    Op.GATHER_PARAMETERS: (Op.GATHER_UPDATED,),
    Op.GATHER_UPDATED: (Op.GATHER_PARAMETERS, Op.REDUCE_SCATTER_GRADIENTS, Op.ALL_REDUCE_GRADIENTS),
    Op.REDUCE_SCATTER_GRADIENTS: (Op.ALL_REDUCE_GRADIENTS, Op.GATHER_UPDATED),
    Op.OPTIMIZER_STEP: (Op.HOST_OPTIMIZER_STEP, Op.ALL_REDUCE_GRADIENTS),
    Op.HOST_OPTIMIZER_STEP: (Op.OPTIMIZER_STEP,),
    Op.RESHARD: (Op.SYNCHRONISE, Op.MARK),
    Op.SYNCHRONISE: (Op.MARK,),
    Op.MARK: (Op.SYNCHRONISE,),
}
EVERYWHERE = (
    *("op", "unit", "micro_batch", "half", "reads", "writes", "group", "args", "message_bytes", "workspace_bytes", "lane"),
)
OF_ALL_PROGRAMS = (
    "world",
    "units",
    "model",
    "strategies",
    "samples",
    "micro_batches",
    "buffers",
    "persistent",
    "precision",
    "optimizer",
)


class Mutant(NamedTuple):
    """Programs with one change.

    Attributes:
        kind: the kind of the change, a key of KINDS.
        what: the change, in words.
        plan: the plan whose programs they are.
        programs: the changed programs.
        sound: the programs before the change.
    """

    kind: str
    what: str
    plan: Plan
    programs: Programs
    sound: Programs


def random_programs(rng: random.Random) -> tuple[Plan, Programs]:
    """A random plan on 2 or 4 ranks, and its programs.

    Plans are plain, sliced or interleaved, with any ZeRO stages, stages of different sizes, uneven shares, memory switches or
    states on the host; some programs gather parameters and post receives ahead.
    """
    plain = [random_plan, random_plan, random_sliced_plan, random_zero_plan, random_unlike_plan, random_interleaved_plan]
    make = rng.choice([*plain, random_uneven_plan, random_switch_plan, *[random_residence_plan] * 2])
    plan = make(rng, rng.choice([2, 4]))
    return plan, compile_plan(plan, ahead=rng.random() < 0.4)


def sharing_programs(rng: random.Random) -> tuple[Plan, Programs]:
    """A random plan on 2 or 4 ranks in which some units have sequence parallelism, and its programs."""
    plan = sharing_tokens(rng, rng.choice([random_plan, random_sliced_plan])(rng, rng.choice([2, 4])))
    return plan, compile_plan(plan)


def cut_programs(rng: random.Random) -> tuple[Plan, Programs]:
    """A random plan on 2 or 4 ranks with context parallelism, whose ranks exchange keys or heads, and its programs."""
    model = LLAMA.with_fields(num_key_value_heads=rng.choice([2, 4]))
    words = rng.choice(["cp2", "dp2-cp2", "sdp2-cp2", "cp2-tp2", "cp2-tp2-sp"])
    words = words.replace("cp2", rng.choice(["cp2", "cp2h", "cp2h"])) + rng.choice(
        ["", "-ckpt", "-ckpt:attention", "-ckpt:norms"]
    )
    plan = plan_of(model, [words] * len(model.units), parse_strategy(words).group, 8, rng.choice([1, 2]))
    return plan, compile_plan(plan)


def mutants(
    rng: random.Random,
    count: int,
    kinds: Sequence[str] = (),
    make: Callable[[random.Random], tuple[Plan, Programs]] = random_programs,
) -> list[Mutant]:
    """`count` random mutants, a few of each plan that `make` draws, of these kinds in turn (default: all of KINDS)."""
    names, found, missed = list(kinds or KINDS), list[Mutant](), 0
    while len(found) < count:
        plan, programs = make(rng)
        for _ in range(5):
            kind = names[(len(found) + missed) % len(names)]
            changed = KINDS[kind](rng, programs)
            if changed is None or changed[1] == programs:
                missed += 1
            elif len(found) < count:
                found.append(Mutant(kind, changed[0], plan, changed[1], programs))
    return found


def _other(rng: random.Random, values: Sequence[Any], value: Any) -> Any:
    """One of these values that is not the given one, if there is one."""
    return rng.choice([other for other in values if other != value] or [value])


def _names(program: Program) -> list[str]:
    return sorted(program.buffers)


def _swapped(values: tuple[Any, ...], rng: random.Random) -> tuple[Any, ...]:
    a, b = rng.sample(range(len(values)), 2)
    changed = list(values)
    changed[a], changed[b] = changed[b], changed[a]
    return tuple(changed)


def _edited(rng: random.Random, program: Program, names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of buffers with two of them exchanged, or one left out, replaced or added."""
    choices = ["add"] + (["drop", "replace"] if names else []) + (["swap", "swap"] if len(names) > 1 else [])
    change_kind, index = rng.choice(choices), rng.randrange(max(1, len(names)))
    if change_kind == "swap":
        return _swapped(names, rng)
    kept = [] if change_kind == "add" else list(names)
    if change_kind == "add":
        return (*names, rng.choice(_names(program)))
    if change_kind == "drop":
        return tuple(kept[:index] + kept[index + 1 :])
    kept[index] = _other(rng, _names(program), kept[index])
    return tuple(kept)


def _field(rng: random.Random, program: Program, i: Instruction, name: str) -> Any:
    """Another value for a field of an instruction; None where it has no value that could be changed."""
    value, numbers = getattr(i, name), range(len(program.instructions))
    if name == "op":
        return rng.choice(ALIKE.get(i.op, tuple(Op))) if rng.random() < 0.7 else _other(rng, tuple(Op), i.op)
    if name == "unit":
        return _other(rng, [None, *range(len(program.strategies))], value)
    if name == "micro_batch":
        return _other(rng, [None, *range(program.micro_batches + 1)], value)
    if name == "half":
        return _other(rng, [None, 0, 1], value)
    if name in ("reads", "writes"):
        return _edited(rng, program, value)
    if name == "group":
        return _group(rng, program, value)
    if name == "args":
        return _arguments(rng, value)
    if name in ("message_bytes", "workspace_bytes"):
        return rng.choice([0, value // 2, value + 8, 2 * value, value + 1])
    if name == "waits":
        return rng.choice([value[1:], (*value, rng.choice(numbers)), tuple(index - 1 for index in value)])
    if name == "grouped":
        return rng.choice([value[::-1], value[:1], value[1:], ()]) if value else None
    if name == "lane":
        return _other(rng, STREAMS, i.stream)
    if name in ("after", "marks"):
        return value[1:] if value and rng.random() < 0.7 else (*value, rng.choice(["mark.0", "mark.3", "loss"]))
    return None


def _group(rng: random.Random, program: Program, group: tuple[int, ...]) -> tuple[int, ...] | None:
    if len(group) < 2:
        return rng.choice([(program.rank,), tuple(range(program.world))]) if rng.random() < 0.3 else None
    choices = [group[: len(group) // 2], (program.rank,), group[::-1], tuple(range(program.world))]
    choices.append(tuple(sorted({program.rank, (program.rank + 1) % program.world})))
    return _other(rng, choices, group)


def _arguments(rng: random.Random, args: dict[str, Any]) -> dict[str, Any] | None:
    if not args:
        return {"rows": (0,)} if rng.random() < 0.2 else None
    name = rng.choice(sorted(args))
    value = args[name]
    if name == "scale":
        return {**args, name: value * rng.choice([0.5, 2, -1])}
    if name == AGAIN:
        return {key: arg for key, arg in args.items() if key != AGAIN}
    if name == "tokens":
        choices = [value[::-1], value[:-1], tuple(token + 1 for token in value) if isinstance(value[0], int) else value[:1]]
    elif name == "rows":
        choices = [value[::-1], tuple(row + 1 for row in value), value[:-1]]
    else:
        choices = [value[::-1], tuple(block[::-1] for block in value), value[:-1]]
    return {**args, name: _other(rng, choices, value)}


def _matching(programs: Programs, rank: int, index: int) -> list[tuple[int, int]]:
    """Pairs (rank, index) of the instructions that match the instruction at `index` of `rank`.

    They have its operation, unit, micro-batch and half, and come after as many instructions like it on their rank.
    """
    wanted = programs[rank].instructions[index]

    def same(i: Instruction) -> bool:
        return (i.op, i.unit, i.micro_batch, i.half) == (wanted.op, wanted.unit, wanted.micro_batch, wanted.half)

    number = sum(map(same, programs[rank].instructions[:index]))
    result = []
    for other, program in enumerate(programs):
        matching = [n for n, i in enumerate(program.instructions) if same(i)]
        result += [(other, matching[number])] if number < len(matching) else []
    return result


def _with(programs: Programs, rank: int, instructions: Sequence[Instruction], waits: bool) -> Programs:
    """Programs with other instructions on a rank. waits: whether the instructions' waits are computed anew."""
    changed = with_waits(list(instructions)) if waits else tuple(instructions)
    return [*programs[:rank], replace(programs[rank], instructions=changed), *programs[rank + 1 :]]


def _changing(name: str, *, everywhere: bool = False) -> Callable[[random.Random, Programs], tuple[str, Programs] | None]:
    """A mutation: another value of a field of an instruction, on one rank, or everywhere on all ranks with matching
    instructions. Waits are computed anew where they follow from the field."""

    def change(rng: random.Random, programs: Programs) -> tuple[str, Programs] | None:
        rank = rng.randrange(len(programs))
        program = programs[rank]
        indices = [n for n, i in enumerate(program.instructions) if _worth(name, i)]
        if not indices:
            return None
        index = rng.choice(indices)
        i = program.instructions[index]
        value = _field(rng, program, i, name)
        if (value is None and getattr(i, name) is None) or value == getattr(i, name):
            return None
        result = programs
        for other, there in _matching(programs, rank, index) if everywhere else [(rank, index)]:
            rest = list(result[other].instructions)
            if getattr(rest[there], name) != getattr(i, name) and name == "group":
                return None
            rest[there] = rest[there].changed(**{name: value})
            result = _with(result, other, rest, waits=name in ("reads", "writes", "lane", "after", "marks"))
        where = "all ranks" if everywhere else f"rank {rank}"
        return f"{where}, {index}: {name} of {i} from {getattr(i, name)!r} to {value!r}", result

    return change


def _worth(name: str, i: Instruction) -> bool:
    """Whether a change of this field of an instruction has any effect."""
    worth = {"args": bool(i.args), "group": len(i.group) > 1, "grouped": bool(i.grouped), "waits": bool(i.waits)}
    worth |= {"after": bool(i.after), "marks": bool(i.marks), "message_bytes": i.message_bytes > 0}
    return worth.get(name, True)


def _freeing(later: bool) -> Callable[[random.Random, Programs], tuple[str, Programs] | None]:
    """A mutation: a buffer is freed by a later instruction, or by an earlier one."""

    def change(rng: random.Random, programs: Programs) -> tuple[str, Programs] | None:
        rank = rng.randrange(len(programs))
        rest = list(programs[rank].instructions)
        index = rng.choice([n for n, i in enumerate(rest) if i.frees and not i.grouped] or [0])
        targets = range(index + 1, min(index + 9, len(rest))) if later else range(max(0, index - 8), index)
        if not rest[index].frees or not targets:
            return None
        target, name = rng.choice(targets), rng.choice(rest[index].frees)
        rest[index] = rest[index].changed(frees=tuple(other for other in rest[index].frees if other != name))
        rest[target] = rest[target].changed(frees=(*rest[target].frees, name))
        return f"rank {rank}: {name} freed by {rest[target]}, not by {rest[index]}", _with(programs, rank, rest, True)

    return change


def _ordering(action: str, *, everywhere: bool = False) -> Callable[[random.Random, Programs], tuple[str, Programs] | None]:
    """A mutation: an instruction is left out ("drop"), done twice ("twice"), done earlier ("move"), or exchanged with a later
    one ("swap"). Waits are computed anew."""

    def change(rng: random.Random, programs: Programs) -> tuple[str, Programs] | None:
        rank = rng.randrange(len(programs))
        index = rng.randrange(len(programs[rank].instructions) - 1)
        distance, result = rng.choice([1, 1, 2, 3, 5, 10, 40]), programs
        what = str(programs[rank].instructions[index])
        for other, there in _matching(programs, rank, index) if everywhere else [(rank, index)]:
            rest = list(result[other].instructions)
            if action == "swap":
                target = min(there + distance, len(rest) - 1)
                rest[there], rest[target] = rest[target], rest[there]
            elif action == "move":
                rest.insert(max(0, there - distance), rest.pop(there))
            elif action == "drop":
                del rest[there]
            else:
                rest.insert(there, rest[there].changed(marks=()))
            result = _with(result, other, rest, True)
        return f"{'all ranks' if everywhere else f'rank {rank}'}, {index}: {action} {what} ({distance})", result

    return change


def _ungrouped(rng: random.Random, programs: Programs) -> tuple[str, Programs] | None:
    """A mutation: a send and a receive that were grouped are issued one after the other, or two messages are exchanged."""
    rank = rng.randrange(len(programs))
    rest = list(programs[rank].instructions)
    indices = [n for n, i in enumerate(rest) if i.op.spec.kind == "message"]
    if not indices:
        return None
    if (index := rng.choice(indices)) is not None and rest[index].grouped:
        single = list(rest[index].grouped)
        rest[index : index + 1] = single if rng.random() < 0.5 else single[::-1]
    elif len(indices) > 1:
        a, b = rng.sample(indices, 2)
        rest[a], rest[b] = rest[b], rest[a]
    return f"rank {rank}, {index}: messages in another order", _with(programs, rank, rest, True)


def _of_program(name: str, everywhere: bool = False) -> Callable[[random.Random, Programs], tuple[str, Programs] | None]:
    """A mutation: another value of a field of one rank's program, or everywhere of all programs that have an equal value."""

    def change(rng: random.Random, programs: Programs) -> tuple[str, Programs] | None:
        rank = rng.randrange(len(programs))
        program = programs[rank]
        value = getattr(program, name)
        other: Any = value
        if name == "buffers":
            key = rng.choice(_names(program))
            choices = [{key: rng.choice([0, value[key] // 2, value[key] + 8, 2 * value[key]])}, {"host-hidden.0.7": 64}]
            other = {**value, **(choices[0] if rng.random() < 0.9 else choices[1])}
        elif name == "persistent":
            key = rng.choice(sorted(value) if rng.random() < 0.5 else _names(program))
            other = value ^ {key}
        elif name == "units":
            moved = value[::-1] if isinstance(value, tuple) else range(value.start + 1, value.stop + 1)
            other = rng.choice([value[:-1], moved, range(99)])
        elif name == "stages":
            first = value[0]
            other = rng.choice(
                [value[:-1], (range(first.start, first.stop + 1), *value[1:]), (range(1, first.stop), *value[1:])]
            )
        elif name == "groups":
            first = value[0]
            other = rng.choice([value[:-1], (first[:-1], *value[1:]), ((*first, first[-1] + 1), *value[1:]), (first, *value)])
        elif name == "model":
            other = rng.choice([value.in_dtype("float32"), value.with_fields(sequence=8)])
        elif name == "strategies":
            zero = rng.choice([1, 2, 3])
            other_stage = tuple(replace(old, zero=zero) if old.degree("sdp") > 1 else old for old in value)
            recomputed = tuple(replace(old, ckpt=not old.ckpt) for old in value)
            other = rng.choice([value[::-1], value[:-1], recomputed, other_stage])
        elif name == "precision":
            other = _other(rng, PRECISIONS, value)
        elif name == "optimizer":
            other = _other(rng, OPTIMIZERS, value)
        else:
            other = max(0, value + rng.choice([-1, 1, 2]))
        where = "all ranks" if everywhere else f"rank {rank}"
        return f"{where}: {name} of the program", [
            replace(old, **{name: other}) if old is program or (everywhere and getattr(old, name) == value) else old
            for old in programs
        ]

    return change


def _malformed(rng: random.Random, programs: Programs) -> tuple[str, Programs] | None:
    """A mutation: a field of an instruction gets a value of another type, or far out of its range."""
    rank = rng.randrange(len(programs))
    program, rest = programs[rank], list(programs[rank].instructions)
    index, name = rng.randrange(len(rest)), rng.choice([field.name for field in fields(Instruction)])
    value = rng.choice([None, "x", -1, 10**6, ("x",), (None,), (10**6,), {"x": 1}, 1.5])
    if value is None and getattr(rest[index], name) is None:
        return None
    rest[index] = rest[index].changed(**{name: value})
    changed = replace(program, instructions=tuple(rest))
    return f"rank {rank}, {index}: {name} is {value!r}", [*programs[:rank], changed, *programs[rank + 1 :]]


ACTIONS = ("swap", "move", "drop", "twice")


KINDS: dict[str, Callable[[random.Random, Programs], tuple[str, Programs] | None]] = {
    **{field.name: _changing(field.name) for field in fields(Instruction) if field.name != "frees"},
    **{f"{name}, everywhere": _changing(name, everywhere=True) for name in EVERYWHERE},
    "freed later": _freeing(True),
    "freed earlier": _freeing(False),
    **{action: _ordering(action) for action in ACTIONS},
    **{f"{action}, everywhere": _ordering(action, everywhere=True) for action in ACTIONS},
    "messages": _ungrouped,
    **{f"program's {field.name}": _of_program(field.name) for field in fields(Program) if field.name != "instructions"},
    **{f"program's {name}, everywhere": _of_program(name, True) for name in OF_ALL_PROGRAMS},
    "malformed": _malformed,
}
# Kinds whose changes may leave a sound program: another order of an equal step, or another label that nothing reads.
OF_ORDER = frozenset({"waits", "after", "marks", "reads", "micro_batch", "half", "messages", "swap", "move", "twice"})
