"""Bytes: those of every buffer, of what operations move and of what they need beside their buffers, against what a rank's
model, strategies and samples make of them. What the memory walk and the time walk predict rests on these numbers."""

from __future__ import annotations

from collections.abc import Mapping

from trainplan.execution.analysis.verify.buffer_sizes import MASTER, Sizes
from trainplan.execution.instructions import Op
from trainplan.execution.program import HOST_STATES, STATES, Instruction, Program


def states(program: Program) -> list[str]:
    """What lives from step to step and should not, or the other way round, and states of other sizes than the model's."""
    sizes, wanted = Sizes(program), {"loss"} | {"host-tied"} & program.buffers.keys()
    for unit in program.units:
        on_host = program.steps_on_host(unit)
        wanted |= {f"{kind}.{unit}" for kind in (HOST_STATES if on_host else STATES)}
        wanted |= {f"parameter.{unit}"} & program.persistent  # else prefetched
        wanted |= {f"{MASTER}.{unit}"} if program.precision.master is not None else set()
    faults = [f"rank {program.rank}: {name} does not live from step to step" for name in sorted(wanted - program.persistent)]
    faults += [f"rank {program.rank}: {name} lives from step to step" for name in sorted(program.persistent - wanted)]
    for name in sorted(wanted & program.persistent):
        faults += _another_size(program, sizes, name, 0)
    return faults


def sizes(program: Program) -> list[str]:
    """Buffers, messages and workspaces of other bytes than the program's own samples make them."""
    expected, rows, faults = Sizes(program), dict[str, int](), list[str]()
    for instruction in program.instructions:
        for i in instruction.messages:
            count = _rows(i, rows)
            for name in () if i.op is Op.POST_RECEIVE else i.writes:  # of so many samples as its receive says
                rows[name] = count
                faults += _another_size(program, expected, name, count)
            needed = (_moved(expected, i), _workspace(expected, i, rows))
            if not faults and (i.message_bytes, i.workspace_bytes) != needed:
                numbers = f"{i.message_bytes} bytes and takes {i.workspace_bytes} of workspace"
                faults.append(f"rank {program.rank}: {i} moves {numbers}, not {needed[0]} and {needed[1]}")
    unused = program.buffers.keys() - rows.keys() - program.persistent
    return faults + [f"rank {program.rank}: nothing writes {name}" for name in sorted(unused)]


def _another_size(program: Program, expected: Sizes, name: str, rows: int) -> list[str]:
    size, wanted = program.buffers.get(name), expected.of(name, rows)
    if size is not None and size == wanted:
        return []
    has = "no bytes" if size is None else f"{size} bytes"
    return [f"rank {program.rank}: {name} has {has}, not {'any' if wanted is None else wanted}"]


def _rows(i: Instruction, rows: Mapping[str, int]) -> int:
    """Samples in the buffers that an instruction writes."""
    if "rows" in i.args:
        return len(i.args["rows"])
    if i.op is Op.JOIN:
        return sum(rows.get(name, 0) for name in i.reads)
    return rows.get(i.reads[0], 0) if i.reads else 0


def _moved(expected: Sizes, i: Instruction) -> int:
    """Bytes that an operation gathers, sums, sends, receives or copies."""
    buffers, moved = expected.program.buffers, i.op.spec.moved
    if moved == "nothing":
        return 0
    if moved == "written":
        return buffers.get(i.writes[0], 0)
    if moved == "sent" and "rows" in i.args:
        assert i.unit is not None
        return int(expected.sublayer(i.unit - 1).boundary_bytes(len(i.args["rows"])))
    if moved in ("read", "sent"):
        return buffers.get(i.reads[0], 0)
    if moved == "tied":
        return expected.model.tied_elements * expected.program.gradient_bytes
    assert i.unit is not None
    if moved == "shard":
        return expected.shard_elements(i.unit) * expected.program.gradient_bytes
    if moved == "replicated":
        return int(expected.sublayer(i.unit).replicated_count) * expected.program.gradient_bytes
    boundary = i.unit - 1 if i.reads[0].startswith("hidden") else i.unit
    return int(expected.sublayer(boundary).boundary_bytes(sum(map(len, i.args["blocks"]))))


def _workspace(expected: Sizes, i: Instruction, rows: Mapping[str, int]) -> int:
    """Bytes that an instruction needs while it runs, in addition to its buffers."""
    needed = i.op.spec.workspace
    if needed == "piece":
        assert i.unit is not None
        return expected.workspace(i.op, i.unit, rows.get(i.reads[0], 0))
    if needed == "message":
        return 0 if i.by_processor else i.message_bytes
    if needed == "exchange":  # by rank and as it comes, next to what is put in order of it
        return 2 * i.message_bytes - expected.program.buffers.get(i.writes[0], 0)
    if needed == "shard" and len(i.reads) > 1:
        return i.message_bytes // len(i.group)
    if needed == "step":
        assert i.unit is not None
        widened = expected.stepped_elements(i.unit) * expected.program.precision.widened_bytes(expected.model.element_bytes)
        return widened + expected.program.step_workspace_bytes(i.unit)
    return 0
