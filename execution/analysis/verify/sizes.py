"""Bytes: those of every buffer, of what operations move and of what they need beside their buffers, against what a rank's
model, strategies and samples make of them. What the memory walk and the time walk predict rests on these numbers."""

from __future__ import annotations

from collections.abc import Mapping

from trainplan.execution.analysis.verify.buffer_sizes import MASTER, Sizes
from trainplan.execution.program import (
    CORES,
    DRAWING,
    HEADS_EXCHANGED,
    HOST_STATES,
    KEYS_MADE,
    STATES,
    Instruction,
    Op,
    Program,
    handles_all,
)

# The buffer whose bytes an operation moves: the first that it writes, or reads.
WRITTEN = frozenset(
    {
        Op.ALL_REDUCE,
        Op.GATHER_TOKENS,
        Op.GATHER_KEYS,
        Op.EXCHANGE_HEADS,
        Op.GATHER_STATISTICS,
        Op.GATHER_PARAMETERS,
        Op.GATHER_UPDATED,
        Op.REDUCE_LOSS,
        Op.RECEIVE,
        Op.PREFETCH_SHARD,
        Op.OFFLOAD_HIDDEN,
        Op.PREFETCH_HIDDEN,
        Op.OFFLOAD_GRADIENT,
    }
)
READ = frozenset({Op.SEND, Op.REDUCE_SCATTER_GRADIENTS, Op.REDUCE_SCATTER_TOKENS, Op.SCATTER_KEYS, Op.EXCHANGE_TOKENS})
APART = frozenset(  # see `_moved`
    {Op.GATHER_SLICE, Op.ALL_REDUCE_GRADIENTS, Op.REDUCE_REPLICATED, Op.REDUCE_TIED, Op.SEND_RECEIVE}
)
COMPUTING = DRAWING | KEYS_MADE | CORES | {Op.BACKWARD, Op.ENTER_BACKWARD, Op.KEYS_BACKWARD}
MOVING_NOTHING = COMPUTING | {
    Op.INPUT,
    Op.TARGETS,
    Op.LOSS_STATISTICS,
    Op.LOSS,
    Op.OPTIMIZER_STEP,
    Op.HOST_OPTIMIZER_STEP,
    Op.SLICE,
    Op.SLICE_TOKENS,
    Op.JOIN,
    Op.POST_RECEIVE,
    Op.RESHARD,
    Op.DROP_HIDDEN,
    Op.SYNCHRONISE,
    Op.MARK,
}
handles_all({*WRITTEN, *READ, *APART, *MOVING_NOTHING})


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
    buffers, model = expected.program.buffers, expected.model
    if i.op in MOVING_NOTHING:
        return 0
    if i.op in WRITTEN:
        return buffers.get(i.writes[0], 0)
    if i.op is Op.SEND and "rows" in i.args:
        assert i.unit is not None
        return int(expected.sublayer(i.unit - 1).boundary_bytes(len(i.args["rows"])))
    if i.op in READ:
        return buffers.get(i.reads[0], 0)
    if i.op is Op.REDUCE_TIED:
        return model.tied_elements * expected.program.gradient_bytes
    assert i.unit is not None
    if i.op is Op.ALL_REDUCE_GRADIENTS:
        return expected.shard_elements(i.unit) * expected.program.gradient_bytes
    if i.op is Op.REDUCE_REPLICATED:
        return int(expected.sublayer(i.unit).replicated_count) * expected.program.gradient_bytes
    boundary = i.unit - 1 if i.reads[0].startswith("hidden") else i.unit
    return int(expected.sublayer(boundary).boundary_bytes(sum(map(len, i.args["blocks"]))))


def _workspace(expected: Sizes, i: Instruction, rows: Mapping[str, int]) -> int:
    """Bytes that an operation needs while it runs, beside its buffers."""
    if i.op in COMPUTING:
        assert i.unit is not None
        count = rows.get(i.reads[0], 0)
        return expected.workspace(i.op, i.unit, count)
    if i.op in (
        Op.GATHER_TOKENS,
        Op.REDUCE_SCATTER_TOKENS,
        Op.GATHER_KEYS,
        Op.SCATTER_KEYS,
    ):  # order of ranks to order of samples, or back
        return i.message_bytes
    if i.op in HEADS_EXCHANGED:  # by rank and as it comes, beside what is put in order of it
        return 2 * i.message_bytes - expected.program.buffers.get(i.writes[0], 0)
    if i.op is Op.GATHER_SLICE or (i.op is Op.REDUCE_TIED and not i.by_processor):
        return i.message_bytes
    if i.op is Op.REDUCE_SCATTER_GRADIENTS and len(i.reads) > 1:
        return i.message_bytes // len(i.group)
    if i.op is Op.OPTIMIZER_STEP:
        assert i.unit is not None
        widened = expected.stepped_elements(i.unit) * expected.program.precision.widened_bytes(expected.model.element_bytes)
        return widened + expected.program.step_workspace_bytes(i.unit)
    return 0
