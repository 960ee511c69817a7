"""The names of buffers, and the bytes that each must have by the rank's model, strategies and samples.

Checked are the sizes of every buffer, of what operations move, and of what they need in addition to their buffers. The
predictions of memory and time rest on these numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from trainplan.execution.instructions import Op
from trainplan.execution.program import HOST_STATES, STATES, Instruction, MicroBatchPart, Program, layout_unit, sender_name
from trainplan.profiling.base.dtypes import STATISTIC_BYTES
from trainplan.profiling.models.optimizers import moments_of, ranks_sharing_states
from trainplan.profiling.models.sublayers import HeadPieces, shard_bounds

INDEX_BYTES = 8
LOSS_BYTES = 8
STATISTICS = 3  # of each token
MASTER = "master"  # a wider copy of parameters, on which the optimizer then works
SHARED_FROM = {"parameter": 3, "gradient": 2, "host-parameter": 3, "host-gradient": 2}  # ZeRO stages in which they are shards
WHOLE_FROM = {"gathered": 3, "whole-gradient": 2}  # ZeRO stages in which the whole of them is a temporary
OF_STEP = frozenset({"loss", "host-tied"})
OF_UNIT = frozenset({*STATES, MASTER, *HOST_STATES, "gathered", "whole-gradient"})
OF_PART = frozenset({"targets", "statistics", "all-statistics"})
SHARED = frozenset({"entry", "entry-graph", "entry-whole", "entry-gradient", "entry-gradient-partial", "leave-gradient"})
BETWEEN = frozenset({"hidden-whole", "hidden-laid", "input-gradient-whole", "input-gradient-laid"})  # steps of a re-layout
KEYS = frozenset({"keys", "keys-graph", "keys-whole", "keys-gradient", "keys-gradient-whole"})
HEADS = frozenset({"heads", "heads-gradient", "mixed", "mixed-gradient", "core-graph", "results", "results-gradient"})
OF_UNIT_AND_PART = (
    frozenset({"hidden", "input", "graph", "input-gradient", "output-gradient", "host-hidden", "prefetched"})
    | frozenset({"hidden-partial", "output-gradient-whole"})
    | SHARED
    | BETWEEN
    | KEYS
    | HEADS
)
_WITH_UNIT, _WITH_PART = OF_UNIT | OF_UNIT_AND_PART, OF_PART | OF_UNIT_AND_PART


class Name(NamedTuple):
    """A buffer's name in parts. kind: what the buffer holds, such as 'hidden' or 'parameter'. unit: index of the unit
    (sub-layer) that it is about, None if none. part: the micro-batch or half of one that it is about, None if none.
    'hidden.4.0' is Name('hidden', 4, MicroBatchPart(0))."""

    kind: str
    unit: int | None = None
    part: MicroBatchPart | None = None

    def __str__(self) -> str:
        return ".".join(str(item) for item in self if item is not None)


@lru_cache(maxsize=2**16)
def parsed(name: str) -> Name | None:
    """The parts of a buffer's name: 'hidden.4.0' -> Name('hidden', 4, MicroBatchPart(0)). None if the text is not a name that
    a buffer can have."""
    kind, *texts = name.split(".")
    if not all(text.isdecimal() and len(text) < 10 for text in texts):
        return None
    numbers = list(map(int, texts))
    if any(text != str(number) for text, number in zip(texts, numbers, strict=True)):
        return None
    unit = numbers.pop(0) if kind in _WITH_UNIT and numbers else None
    part = MicroBatchPart(*numbers) if kind in _WITH_PART and len(numbers) in (1, 2) else None
    complete = part is not None if kind in _WITH_PART else not numbers and (kind in OF_STEP or unit is not None)
    return Name(kind, unit, part) if complete else None


def partitioned(program: Program, unit: int) -> bool:
    """Whether this rank keeps only a shard of the parameters of the unit (sub-layer) with index `unit` (ZeRO stage 3), so that
    the whole parameters exist only while they are gathered."""
    return f"gathered.{unit}" in program.buffers


def zero_stage(program: Program, unit: int) -> int:
    """The ZeRO stage of the unit (sub-layer) with index `unit`: 0 if the rank shards none of its states, 1 if it keeps only a
    shard of the optimizer's moments, 2 of gradients too, 3 of parameters too. Stage 3 is found from the program's buffers, the
    others from the unit's strategy. A program is one rank's instructions for a training step."""
    return 3 if partitioned(program, unit) else program.strategies[unit].zero_stage


class Sizes:
    """Bytes that the buffers and temporaries of one rank's program must have, computed from its model, strategies (parallel
    layouts) and samples independently of the compiler, to check the program's own numbers. A unit is a sub-layer of the model;
    rows are samples."""

    def __init__(self, program: Program) -> None:
        self.program, self.model, self.units = program, program.model, program.units
        self._sizes: dict[tuple[str, int | None, int], int | None] = {}
        self._shards: dict[int, int] = {}
        self._workspaces: dict[tuple[Op, int, int], int] = {}

    def of(self, name: str, rows: int) -> int | None:
        """Bytes that the buffer called `name` must have if it holds `rows` samples; None if the rank must not have such a
        buffer."""
        parts = parsed(sender_name(name))
        if parts is None:
            return None
        key = (parts.kind, parts.unit, rows)
        if key not in self._sizes:
            unit = parts.unit
            self._sizes[key] = self._of_step(*key[::2]) if unit is None else self._of_unit(parts.kind, unit, rows)
        return self._sizes[key]

    def shard_elements(self, unit: int) -> int:
        """Elements in the rank's shard of the parameters of the unit with this index, padding included: its tensor-parallel
        part divided by the degree of sharded data parallelism, rounded up."""
        if unit not in self._shards:
            strategy, sublayer = self.program.strategies[unit], self.model.units[unit].sublayer
            tp, index = strategy.degree("tp"), strategy.index(self.program.index_in_stage, "tp")
            elements = sublayer.parameter_count(tp, index)
            if self.program.shares_table and unit == len(self.model.units) - 1:  # the head's table is the embedding's
                low, high = shard_bounds(self.model.vocabulary, tp, index)
                elements -= (high - low) * sublayer.hidden
            self._shards[unit] = -(-elements // strategy.degree("sdp"))
        return self._shards[unit]

    def stepped_elements(self, unit: int) -> int:
        """Elements of the parameters of the unit with this index for which the rank has master copies and optimizer moments."""
        sharing = self.program.strategies[unit].degree("sdp")
        return self.shard_elements(unit) * sharing // ranks_sharing_states(self.program.optimizer, self.sublayer(unit), sharing)

    def workspace(self, op: Op, unit: int, rows: int) -> int:
        """Bytes of temporaries that a computation `op` on `rows` samples of the unit with this index needs in addition to its
        buffers."""
        key = (op, unit, rows)
        if key not in self._workspaces:
            sublayer, tp = self.program.selective(unit), self.tp(unit)
            if op.spec.piece in ("keys", "core"):
                size = self._keys_workspace(op, unit, rows)
            elif self.program.shares_tokens(unit):
                size = self._shared_workspace(op, unit, rows)
            elif op.spec.kind == "backward":
                size = sublayer.backward_workspace_bytes(rows, tp)
            else:
                size = sublayer.forward_workspace_bytes(rows, tp)
                if op.spec.graph == "discarded":
                    size += sublayer.kept_bytes(rows, tp)
                if op.spec.graph == "rebuilt":
                    size += sublayer.sublayer.output_bytes(rows, tp)
            self._workspaces[key] = size
        return self._workspaces[key]

    def _shared_workspace(self, op: Op, unit: int, rows: int) -> int:
        """Bytes of temporaries that a computation `op` on `rows` samples needs in addition to its buffers, for a unit with
        sequence parallelism."""
        share, piece, graph = self.program.token_share(unit), op.spec.piece, op.spec.graph
        if piece == "exit":
            return share.leave_workspace_bytes(rows)
        entering = piece == "entry"
        if op.spec.kind == "backward":
            return (share.enter_backward_workspace_bytes if entering else share.backward_workspace_bytes)(rows)
        size = (share.enter_workspace_bytes if entering else share.forward_workspace_bytes)(rows)
        if graph == "discarded":
            size += (share.entry_graph_bytes if entering else share.graph_bytes)(rows)
        if graph == "rebuilt":
            head = unit == len(self.model.units) - 1
            size += share.sublayer.output_bytes(rows, share.tp) if head else share.whole_bytes(rows)
        return size

    def _keys_workspace(self, op: Op, unit: int, rows: int) -> int:
        """Bytes of temporaries that a computation of keys and values, or of attention's core, on `rows` samples needs in
        addition to its buffers, for an attention under context parallelism; 0 for any other unit."""
        share = self.program.key_share(unit)
        if share is None:
            return 0
        backward, discarded = op.spec.kind == "backward", op.spec.graph == "discarded"
        if isinstance(share, HeadPieces) and op.spec.piece == "core":
            if backward:
                return share.core_backward_workspace_bytes(rows)
            return share.core_workspace_bytes(rows) + (share.core_graph_bytes(rows) if discarded else 0)
        if backward:
            return share.backward_workspace_bytes(rows)
        return share.forward_workspace_bytes(rows) + (share.graph_bytes(rows) if discarded else 0)

    def tp(self, unit: int) -> int:
        """The tensor-parallel degree of a unit."""
        return self.program.strategies[unit].degree("tp")

    def sublayer(self, unit: int) -> Any:
        """The sub-layer of a unit."""
        return self.model.units[unit].sublayer

    def _of_step(self, kind: str, rows: int) -> int | None:
        """Bytes that a buffer of this kind must have, if the kind belongs to no unit or to the model's last one ('loss',
        'targets', 'statistics', ...); None if the rank must not have such a buffer. rows: number of samples."""
        model, last = self.model, len(self.model.units) - 1
        if kind == "loss":
            return LOSS_BYTES
        if kind == "host-tied":
            return model.tied_elements * model.element_bytes if model.tied else None
        if last not in self.units:
            return None
        tokens = rows * model.tokens
        if kind == "targets":
            return tokens * INDEX_BYTES
        copies = 1 if kind == "statistics" else self.tp(last)
        size = STATISTICS * copies * tokens * STATISTIC_BYTES[model.dtype]
        return size if copies > 1 or kind == "statistics" else None

    def _of_unit(self, kind: str, unit: int, rows: int) -> int | None:
        """Bytes that a buffer of this kind must have, for a kind that belongs to a unit (such as 'hidden' or 'parameter');
        None if the rank must not have such a buffer. rows: number of samples."""
        chunk = next(
            (stage_units for stage_units in self.program.chunks if stage_units.start <= unit <= stage_units.stop), range(0)
        )
        first, after = chunk.start, chunk.stop
        if kind in ("hidden", "host-hidden", "input", "prefetched", "hidden-partial", "hidden-whole", "hidden-laid"):
            if not first <= unit <= after:
                return None
            if unit == 0:
                arrives = kind in ("hidden", "host-hidden", "input", "prefetched")
                return int(self.sublayer(0).input_bytes(rows)) if arrives else None
            sublayer = self.sublayer(unit - 1)
            size = int(sublayer.output_bytes(rows, self.tp(unit - 1)) if unit > first else sublayer.boundary_bytes(rows))
            if kind == "hidden-partial":
                return size if unit > first and self.program.shares_tokens(unit - 1) else None
            return size // self._parts(kind, unit)
        if kind in ("input-gradient", "input-gradient-whole", "input-gradient-laid"):
            if not max(first, 1) <= unit <= after or unit == len(self.model.units):
                return None
            size = int(self.sublayer(unit).input_bytes(rows) if unit < after else self.sublayer(unit - 1).boundary_bytes(rows))
            return size // self._parts(kind, unit)
        if unit not in self.units:
            return None
        if kind in HEADS:
            return self._of_heads(kind, unit, rows)
        if kind in KEYS:
            if (keys := self.program.key_share(unit)) is None:
                return None
            return (
                keys.graph_bytes(rows)
                if kind == "keys-graph"
                else (keys.whole_bytes if "whole" in kind else keys.own_bytes)(rows)
            )
        if kind in SHARED or kind == "output-gradient-whole" or (kind == "graph" and self.program.shares_tokens(unit)):
            return self._of_share(kind, unit, rows)
        if kind == "graph":
            return self.program.selective(unit).kept_bytes(rows, self.tp(unit))
        if kind == "output-gradient":
            return (
                int(self.sublayer(unit).boundary_bytes(rows))
                // self.program.strategies[unit].share(self.program.index_in_stage)[1]
            )
        return self._of_state(kind, unit)

    def _of_heads(self, kind: str, unit: int, rows: int) -> int | None:
        """Bytes that a buffer of this kind must have in an attention whose context-parallel ranks exchange heads; None if the
        unit is no such attention. rows: number of samples."""
        share = self.program.key_share(unit)
        if not isinstance(share, HeadPieces):
            return None
        sizes = {"heads": share.whole_bytes, "mixed": share.mixed_bytes, "results": share.results_bytes}
        sizes["core-graph"] = share.core_graph_bytes
        return sizes[kind.removesuffix("-gradient")](rows)

    def _parts(self, kind: str, unit: int) -> int:
        """The number of parts into which the tokens of a sample are split (by sequence parallelism) in a buffer of this kind,
        which holds hidden states or their gradients at the boundary before the unit with this index. 1: not split."""
        strategies, last = self.program.strategies, len(self.model.units)
        if kind.endswith(("-whole", "-laid")) or unit == last:
            return 1
        if kind != "input" and unit > 0 and strategies[unit - 1].group != strategies[unit].group:
            producer = unit - 1 if kind == "hidden" else unit
            if producer not in self.units:  # it came from a stage of another size
                return 1
        layout = unit if kind in ("input", "host-hidden", "prefetched") else layout_unit(f"{kind}.{unit}")
        return strategies[layout].share(self.program.index_in_stage)[1]

    def _of_share(self, kind: str, unit: int, rows: int) -> int | None:
        """Bytes that a buffer of this kind must have in a unit with sequence parallelism; None if the unit is without it, or
        lacks the piece of computation that has such a buffer. rows: number of samples."""
        if not self.program.shares_tokens(unit):
            return None
        share = self.program.token_share(unit)
        if kind == "graph":
            return share.graph_bytes(rows)
        if kind == "entry-graph":
            return share.entry_graph_bytes(rows) if share.enters else None
        if kind.startswith("entry") and not share.enters:
            return None
        whole = kind in ("entry-whole", "entry-gradient-partial", "output-gradient-whole")
        return share.whole_bytes(rows) if whole else share.own_bytes(rows)

    def _of_state(self, kind: str, unit: int) -> int | None:
        """Bytes that a buffer of this kind must have, for a unit's parameters, gradients, moments or master copies; None if
        the rank must not have such a buffer."""
        program, zero = self.program, zero_stage(self.program, unit)
        if kind in (("moments",) if program.steps_on_host(unit) else HOST_STATES):
            return None
        stepped = self.stepped_elements(unit) * program.stepped_bytes
        if kind == MASTER:
            return None if program.precision.master is None else stepped
        if kind.endswith("moments"):
            kept = moments_of(program.optimizer, self.stepped_elements(unit), program.muon_parameter_count(unit))
            return kept * program.stepped_bytes
        shard = self.shard_elements(unit) * (program.gradient_bytes if "gradient" in kind else self.model.element_bytes)
        whole = shard * program.strategies[unit].degree("sdp")
        if kind in SHARED_FROM:
            return shard if zero >= SHARED_FROM[kind] else whole
        return whole if zero >= WHOLE_FROM[kind] else None


def states(program: Program) -> list[str]:
    """Faults of a program's persistent buffers (those that live from step to step), as lines of text, empty if there are none:
    names that should be persistent and are not, or the other way round, and sizes other than the model gives. A program is one
    rank's instructions for a training step."""
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
    """Faults of a program's numbers of bytes, as lines of text, empty if there are none: buffers, messages and workspaces
    whose bytes are not what their samples require, and buffers that nothing writes. A program is one rank's instructions for a
    training step."""
    expected, rows, faults = Sizes(program), dict[str, int](), list[str]()
    for instruction in program.instructions:
        for i in instruction.messages:
            count = _rows(i, rows)
            for name in () if i.op is Op.POST_RECEIVE else i.writes:  # of as many samples as its receive has
                rows[name] = count
                faults += _another_size(program, expected, name, count)
            needed = (_moved(expected, i), _workspace(expected, i, rows))
            if not faults and (i.message_bytes, i.workspace_bytes) != needed:
                numbers = f"{i.message_bytes} bytes and takes {i.workspace_bytes} of workspace"
                faults.append(f"rank {program.rank}: {i} moves {numbers}, not {needed[0]} and {needed[1]}")
    unused = program.buffers.keys() - rows.keys() - program.persistent
    return faults + [f"rank {program.rank}: nothing writes {name}" for name in sorted(unused)]


def _another_size(program: Program, expected: Sizes, name: str, rows: int) -> list[str]:
    """The fault, as a list of one line of text, that the buffer called `name` has not the bytes that `expected` gives for
    `rows` samples; an empty list if it has."""
    size, wanted = program.buffers.get(name), expected.of(name, rows)
    if size is not None and size == wanted:
        return []
    has = "no bytes" if size is None else f"{size} bytes"
    return [f"rank {program.rank}: {name} has {has}, not {'any' if wanted is None else wanted}"]


def _rows(i: Instruction, rows: Mapping[str, int]) -> int:
    """Number of samples in the buffers that instruction `i` writes. rows: the number of samples in each buffer written so far,
    by name."""
    if "rows" in i.args:
        return len(i.args["rows"])
    if i.op is Op.JOIN:
        return sum(rows.get(name, 0) for name in i.reads)
    return rows.get(i.reads[0], 0) if i.reads else 0


def _moved(expected: Sizes, i: Instruction) -> int:
    """Bytes that instruction `i` must gather, sum, send, receive or copy; 0 if it moves nothing. expected: sizes by the
    model."""
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
    """Bytes of temporaries that instruction `i` must need while it runs, in addition to its buffers. expected: sizes by the
    model. rows: the number of samples in each buffer, by name."""
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
