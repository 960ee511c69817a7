"""Instructions that one rank issues between two units of a stage whose layouts differ: rows and tokens move to the ranks that
need them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainplan.execution.compile.instruction_builder import InstructionBuilder
from trainplan.execution.instructions import Op
from trainplan.execution.program import AGAIN, MicroBatchPart


@dataclass
class UnitBoundaries(InstructionBuilder):
    """Issues (appends to the rank's program) the changes of layout of hidden states and of their gradients between a unit and
    the next. A unit is a sub-layer of the model, known by its index; its layout says which samples (rows) and which tokens of
    them a rank holds; a part is a micro-batch or half of one; buffers are known by name."""

    def relaid(self, name: str, result: str, before: int, after: int, part: MicroBatchPart) -> str:
        """Issue the change of the hidden states (or gradients) in the buffer `name` from the layout of unit `before` to that
        of unit `after`, into the buffer `result`: all tokens are gathered, rows are moved, and the rank's tokens are sliced,
        as far as needed. Returns `result`, or `name` if both layouts are equal."""
        a, b = self.strategies[before], self.strategies[after]
        unlike = a.group != b.group  # messages then bring every rank all tokens of its own rows
        moves, shared, sharing = not unlike and a.layout != b.layout, None if unlike else a.token_digit, b.token_digit
        if not moves and shared == sharing:
            return name
        kind, _, suffix = name.partition(".")
        if shared is not None:
            whole = f"{kind}-whole.{suffix}" if moves or sharing is not None else result
            name = self.gather_tokens(after, part, name, whole, before, (name,))
        if moves:
            name = self._moved_rows(name, f"{kind}-laid.{suffix}" if sharing is not None else result, before, after, part)
        if sharing is not None:
            size = self.laid_bytes(min(before, after), after, len(self.rows(after, part)))
            self.issue(Op.SLICE_TOKENS, after, part, reads=(name,), writes=(self.buffer(result, size),), frees=(name,))
        return result

    def _moved_rows(self, name: str, result: str, before: int, after: int, part: MicroBatchPart) -> str:
        """Issue the move of rows, each with all tokens, from the buffer `name` in the layout of unit `before` to the buffer
        `result` in the layout of unit `after`; returns `result`."""
        indices = self.gathered_indices(before, after)
        local, boundary = len(indices) == 1, min(before, after)
        self.buffer(result, self.boundary_bytes(boundary, len(self.rows(after, part))))
        gathered = self.boundary_bytes(boundary, len(self.rows(before, part)) * len(indices))
        self.issue(
            Op.SLICE if local else Op.GATHER_SLICE,
            after,
            part,
            reads=(name,),
            writes=(result,),
            frees=(name,),
            group=() if local else self.ranks(indices),
            message_bytes=0 if local else gathered,
            workspace_bytes=0 if local else gathered,
        )
        return result

    def gather_tokens(
        self, unit: int, part: MicroBatchPart, name: str, result: str, before: int, frees: tuple[str, ...], again: bool = False
    ) -> str:
        """Issue the all-gather of the tokens of the buffer `name`, which is split along them in the layout of unit `before`,
        into the buffer `result`, whose name is returned. unit: the unit that the instruction is about. frees: buffers to free
        after it. again: whether it repeats a forward pass's gather for the backward pass."""
        group = self.ranks(self.strategies[before].peers(self.index_in_stage, "tp"))
        size = self.buffers[name] * len(group)
        fields: dict[str, Any] = {"reads": (name,), "writes": (self.buffer(result, size),), "frees": frees, "group": group}
        fields["args"] = {AGAIN: True} if again else {}
        # The workspace is for bringing what comes in the order of ranks into that of samples.
        self.issue(Op.GATHER_TOKENS, unit, part, **fields, message_bytes=size, workspace_bytes=size)
        return result

    def scatter_tokens(self, unit: int, part: MicroBatchPart, name: str, result: str) -> str:
        """Issue the reduce-scatter of partial results on all tokens (the buffer `name`, freed after it) over tensor-parallel
        ranks; the rank gets the sum for its own tokens in the buffer `result`, whose name is returned."""
        group, size = self.peers(unit, "tp"), self.buffers[name]
        writes = (self.buffer(result, size // len(group)),)
        fields: dict[str, Any] = {"reads": (name,), "writes": writes, "frees": (name,), "group": group}
        self.issue(Op.REDUCE_SCATTER_TOKENS, unit, part, **fields, message_bytes=size, workspace_bytes=size)
        return result

    def input_of(self, unit: int, part: MicroBatchPart) -> str:
        """The name of the buffer that holds a unit's input, with the samples and tokens that the rank has in the unit's own
        layout."""
        relaid = f"input.{unit}.{part}"
        return relaid if relaid in self.buffers else f"hidden.{unit}.{part}"

    def backward_reads(self, unit: int, part: MicroBatchPart) -> tuple[str, str]:
        """The buffers of (autograd's graph, the unit's input) for a part; the backward pass is the last to read them."""
        return f"graph.{unit}.{part}", self.input_of(unit, part)

    def output_gradient(self, unit: int, part: MicroBatchPart) -> str:
        """The buffer of the gradient of a unit's output in this unit's layout: the gradient of the logits for the last unit,
        else the next unit's input gradient, which is brought into this unit's layout first (the instructions are issued) if the
        two units' layouts differ.
        """
        if unit == self.last:
            return f"hidden.{unit + 1}.{part}"
        name = f"input-gradient.{unit + 1}.{part}"
        return self.relaid(name, f"output-gradient.{unit}.{part}", unit + 1, unit, part)
