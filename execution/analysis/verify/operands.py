"""Operands of each operation: which buffers it reads, writes and frees, in the order in which the executor takes them.

The operands of each are in its entry of `instructions`. Placeholders in braces depend on where a unit's states are, and on what
its ranks share: LAYOUTS has their values for each such layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import product

from trainplan.execution.analysis.verify.buffer_sizes import MASTER, parsed, zero_stage
from trainplan.execution.instructions import ARRIVED, OUTPUT_GRADIENT, UNIT_INPUT, Op
from trainplan.execution.program import FROM, MARK, Instruction, MicroBatchPart, Program, grouped, layout_unit, sender_name
from trainplan.profiling.models.sublayers import HeadPieces

# The lanes on which copies may be issued, which are one and the same for all of a program.
LANES_OF_COPIES: dict[str, tuple[str, ...]] = {
    "copy-in": ("communication", "copy"),
    "copy-out": ("communication", "copy", "copy-out"),
}

# Placeholders of a unit: the parameters that computations use, the gradient that they add to, and whether they read it first.
# A head that uses the embedding's table has two of each.
WHOLE = {
    "weights": "parameter.u",
    "sum": "gradient.u",
    "sums": "gradient.u",
    "sum_before": "gradient.u?",
    "shard_before": "",
}
SHARDED = {
    "weights": "gathered.u",
    "sum": "whole-gradient.u",
    "sums": "whole-gradient.u",
    "sum_before": "whole-gradient.u?",
    "shard_before": "gradient.u?",
}
LAYOUTS: dict[str, dict[str, str]] = {
    "ZeRO stage 0": {**WHOLE},
    "ZeRO stage 1": {**WHOLE},
    "ZeRO stage 2": SHARDED | {"weights": WHOLE["weights"]},
    "ZeRO stage 3": {**SHARDED},
}
for _layout in LAYOUTS.values():
    _layout |= {
        "own": _layout["weights"],
        "arrived": ARRIVED,
        "source": UNIT_INPUT,
        "incoming": OUTPUT_GRADIENT,
        "source_gradient": "input-gradient.u.p?",
        "output": "hidden.v.p",
        "logits_gradient": "hidden.v.p",
        "residual": "",
        "residual_gradient": "",
        "keys": "",
        "keys_gradient": "",
        "keys_into": "input-gradient.u.p",
    }
for _name in tuple(LAYOUTS):
    _layout = LAYOUTS[_name]
    _both = {key: _layout[key].replace(".u", ".0") for key in ("weights", "sum", "sum_before")}
    LAYOUTS[f"{_name}, with the table"] = _layout | {
        "weights": f"{_layout['weights']} {_both['weights']}",
        "sums": f"{_both['sum']} {_layout['sum']}",
        "sum_before": f"{_both['sum_before']} {_layout['sum_before']}",
    }
SHARED_INCOMING = "output-gradient-whole.u.p|output-gradient-whole.u.w"
# Placeholders that differ under sequence parallelism, by the kind of the sub-layer.
SHARES: dict[str, dict[str, str]] = {
    "embedding": {"output": "hidden-partial.v.p", "incoming": SHARED_INCOMING, "source_gradient": ""},
    "block": {
        "arrived": "entry-whole.u.p",
        "source": "entry-whole.u.p",
        "output": "hidden-partial.v.p",
        "incoming": SHARED_INCOMING,
        "source_gradient": "entry-gradient-partial.u.p",
        "keys_into": "entry-gradient-partial.u.p",
        "residual": UNIT_INPUT,
        "residual_gradient": OUTPUT_GRADIENT,
    },
    "head": {
        "arrived": "entry-whole.u.p",
        "source": "entry-whole.u.p",
        "incoming": "hidden.v.p",
        "source_gradient": "entry-gradient-partial.u.p",
    },
}
SHARES["post-norm block"] = SHARES["block"] | {"residual": "entry.u.p"}
CUT = {"keys": "keys-whole.u.p", "keys_gradient": "keys-gradient-whole.u.p"}
BY_HEADS = {"keys": "results.u.p", "keys_gradient": "results-gradient.u.p"}
LOSS_RECOMPUTED = {"logits_gradient": "", "incoming": "targets.p statistics.p all-statistics.p?"}
for _name in [_name for _name in LAYOUTS if _name.startswith("ZeRO")]:
    LAYOUTS |= {f"{_name}, tokens of a {kind} shared": LAYOUTS[_name] | shares for kind, shares in SHARES.items()}
LAYOUTS |= {
    f"{_name}, {feature}": _layout | other
    for _name, _layout in LAYOUTS.items()
    for feature, other in (("loss made again", LOSS_RECOMPUTED), ("samples cut", CUT), ("heads exchanged", BY_HEADS))
}


def operands(program: Program) -> list[str]:
    """Faults of the operands of a program's instructions, as lines of text, empty if there are none: buffers other than those
    that the operation takes, or in another order; buffers that it frees but must keep; and a lane (queue of instructions) on
    which the operation may not run."""
    faults = []
    for kind, which in (("copy-out", "copies to the host"), ("copy-in", "copies to the device")):
        copying = {i.stream for i in program.instructions if i.op.spec.kind == kind}
        if len(copying) > 1:
            faults.append(f"rank {program.rank}: {which} are on the streams {' and '.join(sorted(copying))}, not on one")
    layouts = [layout_of(program, unit) for unit in range(len(program.strategies))]
    for instruction in program.instructions:
        if (fault := _misused(program, instruction, layouts)) is not None:
            faults.append(f"rank {program.rank}: {instruction} {fault}")
    return faults


def layout_of(program: Program, unit: int) -> str:
    """The name of the way in which the buffers of the unit (sub-layer) with index `unit` are laid out: a key of LAYOUTS, such
    as 'ZeRO stage 3' or 'ZeRO stage 0, tokens of a block shared'."""
    with_table = program.shares_table and unit == len(program.strategies) - 1
    layout = f"ZeRO stage {zero_stage(program, unit)}" + ", with the table" * with_table
    keys = program.key_share(unit)
    cut = "" if keys is None else ", heads exchanged" if isinstance(keys, HeadPieces) else ", samples cut"
    suffix = ", loss made again" * program.selective(unit).has("loss") or cut
    if not program.shares_tokens(unit):
        return layout + suffix
    share = program.token_share(unit)
    kind = share.sublayer.kind if not share.adds_residual else "post-norm block" if share.post_norm else "block"
    return f"{layout}, tokens of a {kind} shared{suffix}"


def _misused(program: Program, i: Instruction, layouts: list[str]) -> str | None:
    """The fault of instruction `i`'s operands or lane (queue), as text; None if there is none. layouts: the key of LAYOUTS of
    every unit (sub-layer)."""
    spec = i.op.spec
    if i.lane is not None and i.lane not in LANES_OF_COPIES.get(spec.kind, ()):
        return f"is on the stream {i.lane}, not on {spec.lane}, as all of its kind are"
    if not all(name.startswith(MARK) for name in (*i.after, *i.marks)):
        return f"comes after {_names(i.after)} and sets {_names(i.marks)}: not marks alone"
    if i.op is Op.SEND_RECEIVE or (i.grouped and spec.kind == "message"):
        return _ungrouped(program, i, layouts)
    if i.grouped:
        return "has messages of its own"
    if i.unit is not None and i.unit < len(layouts) and (fault := _unshared(program, i, i.unit)) is not None:
        return fault
    if i.op is Op.MARK and (not i.reads or getattr(parsed(i.reads[0]), "unit", None) != i.unit):
        return f"waits for {_names(i.reads)}, which is not of its unit"
    if i.op is Op.REDUCE_TIED:
        fits = (i.reads, i.writes, i.frees) == tied_buffers(program)
    else:
        if i.op is Op.JOIN and "rows" in i.args:
            return _unjoined(i)
        layout = layouts[i.unit] if i.unit is not None and i.unit < len(layouts) else "ZeRO stage 0"
        fits = matches_form(i.op, i.unit, i.micro_batch, i.half, i.reads, i.writes, i.frees, layout)
    recomputed = _of_recomputed(i.op)
    if recomputed is not None and i.unit is not None and _is_recomputed(program, i.op, i.unit) != recomputed:
        return f"is of a unit that is {'not ' if recomputed else ''}recomputed"
    if i.op is Op.OPTIMIZER_STEP and (f"{MASTER}.{i.unit}" in i.writes) != (program.precision.master is not None):
        return f"writes {_names(i.writes)}, with master copies in {program.precision.master}"
    if spec.zero_stages and i.unit is not None and (stage := zero_stage(program, i.unit)) not in spec.zero_stages:
        return f"is of a unit of ZeRO stage {stage}"
    if not fits:
        return f"reads {_names(i.reads)}, writes {_names(i.writes)} and frees {_names(i.frees)}: not what its operation does"
    return None


def _of_recomputed(op: Op) -> bool | None:
    """Whether an operation is only for units (sub-layers) that are recomputed in the backward pass (True), only for units that
    are not (False), or for either (None)."""
    graph = op.spec.graph
    if graph in ("discarded", "rebuilt"):
        return True
    return False if graph == "kept" and op.spec.piece == "matrices" else None


def _is_recomputed(program: Program, op: Op, unit: int) -> bool:
    """Whether the backward pass computes again what operation `op` computes for the unit (sub-layer) with index `unit`."""
    piece = op.spec.piece
    if piece == "keys" and (keys := program.key_share(unit)) is not None and keys.recomputes_projections:
        return True
    if piece == "core" and isinstance(keys := program.key_share(unit), HeadPieces) and keys.recomputes_core:
        return True
    entering = piece == "entry" and program.shares_tokens(unit) and program.token_share(unit).recomputes_entry
    return program.strategies[unit].ckpt or entering


def _unshared(program: Program, i: Instruction, unit: int) -> str | None:
    """The fault, as text, that instruction `i` is about a piece of computation that its unit (sub-layer) does not have,
    because the unit is without sequence parallelism or context parallelism; None if there is none."""
    spec = i.op.spec
    if spec.piece in ("keys", "core"):
        if (keys := program.key_share(unit)) is None:
            return "is of a unit that has no keys of cut samples"
        by_heads = spec.piece == "core"
        if (by_heads or spec.kind == "collective") and by_heads != isinstance(keys, HeadPieces):
            return "is of a unit whose ranks exchange something else"
    if spec.needs_shared_tokens and not program.shares_tokens(unit):
        return "is of a unit whose tokens are not shared"
    if i.op is Op.SLICE_TOKENS and not program.shares_tokens(unit):
        return "is for a unit whose tokens are not shared"
    if i.op is Op.GATHER_TOKENS and i.reads and not program.strategies[_layout_of_source(i, program)].sequence_parallel:
        return "is of what is not split along the tokens"
    if spec.piece == "exit":
        share = program.token_share(unit)
        if not (share.drops_output if spec.kind == "backward" else share.leaves):
            return "is of a unit that has no such piece"
    return None


def _layout_of_source(i: Instruction, program: Program) -> int:
    """The index of the unit (sub-layer) in whose layout over ranks the buffer lies that a gather, instruction `i`, reads
    first."""
    name = parsed(i.reads[0])
    unit = layout_unit(i.reads[0]) if name is not None and name.unit is not None else 0
    return min(max(unit, 0), len(program.strategies) - 1)


def _ungrouped(program: Program, i: Instruction, layouts: list[str]) -> str | None:
    """The fault of a point-to-point operation of several messages, as text; None if there is none. layouts: the key of LAYOUTS
    of every unit (sub-layer)."""
    if len(i.grouped) < 2 or not {message.op for message in i.grouped} <= {Op.SEND, Op.RECEIVE}:
        return "is not several sends and receives"
    if all(map(program.has_own_channel, i.grouped)):
        if [message.op for message in i.grouped] != [Op.SEND, Op.RECEIVE]:
            return "is not a send and a receive"
        if i.grouped[0].group != i.grouped[1].group:
            return "groups messages with two ranks"
    together = grouped(*i.grouped)
    if together != i.changed(waits=(), marks=()) or any(message.waits for message in i.grouped):
        return "is not what its messages are together"
    return next((fault for message in i.grouped if (fault := _misused(program, message, layouts))), None)


def _unjoined(i: Instruction) -> str | None:
    """The fault, as text, of instruction `i`, a join: an instruction that concatenates rows (samples) received from several
    ranks, or both halves of a micro-batch, into one buffer. None if what it reads are all parts of the hidden states at one
    boundary between sub-layers."""
    part = MicroBatchPart(i.micro_batch or 0, i.half)
    names = {f"{kind}.{i.unit}.{part}" for kind in ("hidden", "input-gradient")}
    parts = {sender_name(name) for name in i.reads if FROM in name}
    if len(i.writes) == 1 and parts == {*i.writes} <= names and len({*i.reads}) == len(i.reads) and i.frees == i.reads:
        return None
    return f"reads {_names(i.reads)}, writes {_names(i.writes)} and frees {_names(i.frees)}: not the parts of one boundary"


def tied_buffers(program: Program) -> tuple[tuple[str, ...], ...]:
    """The buffers that the reduction of a tied matrix (embedding and head) reads, writes and frees, as three tuples of names:
    the gradients of the matrix's copies on this rank and, if they are on the host, also a table there. All empty if the rank
    has only one copy for both."""
    if program.shares_table:
        return (), (), ()
    on = "host-" if "host-tied" in program.buffers else ""
    both = tuple(f"{on}gradient.{unit}" for unit in (0, len(program.strategies) - 1) if unit in program.units)
    return both, (*both, "host-tied") if on else both, ()


def _names(names: tuple[str, ...]) -> str:
    """Names of buffers as words for a line of text."""
    return ", ".join(names) or "nothing"


@lru_cache(maxsize=2**16)
def matches_form(
    op: Op,
    unit: int | None,
    micro_batch: int | None,
    half: int | None,
    reads: tuple[str, ...],
    writes: tuple[str, ...],
    frees: tuple[str, ...],
    layout: str,
) -> bool:
    """Whether an instruction with operation `op` may read, write and free these buffers, in this order. unit, micro_batch,
    half: indices of the unit (sub-layer), micro-batch and half of it that the instruction is about; None if it is about none.
    layout: how the buffers of its unit (sub-layer) are laid out, a key of LAYOUTS."""
    part = None if micro_batch is None else MicroBatchPart(micro_batch, half)
    if (number := op.spec.own_reads) is not None:
        if not set(frees) <= set(reads[:number]):
            return False
        reads, frees = reads[:number], ()
    if op in (Op.RECEIVE, Op.POST_RECEIVE):
        if reads not in ((), writes):
            return False
        reads, writes = tuple(map(sender_name, reads)), tuple(map(sender_name, writes))
    texts = [[_relative(name, unit, part) for name in names] for names in (reads, writes, frees)]
    if op.spec.lets_go:
        if len(texts[2]) != 1 or texts[2][0] not in op.spec.lets_go:
            return False
    elif not set(frees) <= {*reads, *writes}:
        return False
    return (*texts[0], "->", *texts[1]) in _forms(op, layout)


def _relative(name: str, unit: int | None, part: MicroBatchPart | None) -> str:
    """A buffer's name relative to a unit (sub-layer) and a part of a micro-batch (None if the instruction is about none), as
    the table of instructions writes operands: for unit 4 and micro-batch 0, 'hidden.4.0' -> 'hidden.u.p' and 'hidden.5.0' ->
    'hidden.v.p'."""
    name_parts = parsed(name)
    if name_parts is None:
        return name
    text = name_parts.kind
    if name_parts.unit is not None and unit is not None:
        text += _UNITS.get(name_parts.unit - unit, ".0" if name_parts.unit == 0 else ".?")
    if name_parts.part is not None and part is not None:
        text += ".p" if name_parts.part == part else _other_part(name_parts.part, part)
    return text


_UNITS = {0: ".u", 1: ".v"}  # by how many units after that of the operation


def _other_part(other: MicroBatchPart, part: MicroBatchPart) -> str:
    """The suffix of an operand about another part of a micro-batch than the operation's own `part`: '.w' for the whole of
    which `part` is a half, '.a' or '.b' for a half of it, '.?' for any other."""
    whole = MicroBatchPart(part.micro_batch)
    letters = {whole: ".w"} if part.half is not None else dict(zip(whole.halves, (".a", ".b"), strict=True))
    return letters.get(other, ".?")


@cache
def _forms(op: Op, layout: str) -> frozenset[tuple[str, ...]]:
    """All sequences of operand names that an operation may have, such as ('hidden.u.p', '->', 'input.u.p'), with '->' between
    reads and writes. layout: a key of LAYOUTS, which gives the values of placeholders."""
    return frozenset(form for text in op.spec.operands for form in _expanded(text.format_map(LAYOUTS[layout])))


def _expanded(text: str) -> Iterator[tuple[str, ...]]:
    """All sequences of names that a text of operands stands for; '|' separates alternatives, '?' marks a name that may be
    absent: 'a|b c? -> d' -> ('a', 'c', '->', 'd'), ('a', '->', 'd'), ('b', 'c', '->', 'd'), ('b', '->', 'd')."""
    choices = []
    for word in text.split():
        names = word.removesuffix("?").split("|")
        choices.append([*names, ""] if word.endswith("?") else names)
    for words in product(*choices):
        yield tuple(filter(None, words))
