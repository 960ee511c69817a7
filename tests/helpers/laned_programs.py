"""Random programs on all lanes (streams), with buffers without a meaning: tests of the order that back-ends must keep."""

from __future__ import annotations

import random
from dataclasses import replace

from trainplan.execution.instruction_spec import STREAMS
from trainplan.execution.instructions import Op
from trainplan.execution.program import Instruction, Program, with_waits

from tests.helpers.plans import GPT2


def random_program(rng: random.Random, length: int = 60) -> Program:
    """A program of `length` instructions on random lanes, which read, change, allocate and free buffers at random.

    The host's lane uses the host's buffers, copy lanes those of host and device, and other lanes the device's.
    """
    held = {"device": ["a", "b", "c"], "host": ["host-a", "host-b"]}
    persistent = frozenset(name for names in held.values() for name in names)
    issued: list[Instruction] = []
    allocated = 0
    for number in range(length):
        lane = rng.choice(STREAMS)
        both = [*held["host"], *held["device"]]
        usable = {"host": held["host"], "copy": both, "copy-out": both}.get(lane, held["device"])
        reads = tuple(rng.sample(usable, rng.randint(1, 2)))
        writes = tuple(rng.sample(reads, rng.randint(0, 1)))
        frees: tuple[str, ...] = ()
        if lane != "host" and rng.random() < 0.5:
            writes = (*writes, f"t{allocated}")
            allocated += 1
        temporary = [name for name in (*reads, *writes) if name in held["device"] and name not in persistent]
        if temporary and rng.random() < 0.6:
            frees = (rng.choice(temporary),)
        held["device"] = [name for name in held["device"] if name not in frees]
        held["device"] += [name for name in writes if name.startswith("t") and name not in (*held["device"], *frees)]
        op = Op.HOST_OPTIMIZER_STEP if lane == "host" else Op.MARK
        issued.append(Instruction(op, unit=number, reads=reads, writes=writes, frees=frees, lane=lane))
    last = tuple(name for name in held["device"] if name not in persistent)
    issued.append(Instruction(Op.MARK, unit=length, reads=last, frees=last, lane="compute"))
    names = {name for i in issued for name in (*i.reads, *i.writes)} | persistent
    buffers = {name: 8 * rng.randint(1, 9) for name in sorted(names)}
    return Program(0, 1, (range(1),), ((0,),), 0, range(1), GPT2, (), 1, 1, buffers, persistent, with_waits(issued))


def without_wait(program: Program, waiting: int, awaited: int) -> Program:
    """The program in which the instruction at index `waiting` does not wait for the one at index `awaited`."""
    rest = list(program.instructions)
    rest[waiting] = replace(rest[waiting], waits=tuple(other for other in rest[waiting].waits if other != awaited))
    return replace(program, instructions=tuple(rest))


def all_waits(program: Program) -> list[tuple[int, int]]:
    """Pairs of indices of instructions: one that waits, and the one that it waits for."""
    return [(waiting, awaited) for waiting, instruction in enumerate(program.instructions) for awaited in instruction.waits]
