"""What one rank issues between two units of a stage with unlike layouts: rows and tokens move to the ranks that need them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainplan.execution.compile.instruction_builder import InstructionBuilder
from trainplan.execution.instructions import Op
from trainplan.execution.program import AGAIN, MicroBatchPart


@dataclass
class UnitBoundaries(InstructionBuilder):
    """Issues changes of layout of hidden states and of their gradients between one unit and the next."""

    def relaid(self, name: str, result: str, before: int, after: int, part: MicroBatchPart) -> str:
        """Issue the change from the layout of unit `before` to that of unit `after` for the buffer `name`, where these differ;
        returns the buffer of the result. In order: all tokens are gathered, rows are moved, and the rank's tokens are sliced,
        as far as needed."""
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
        """Issue the move of a boundary's rows, each with all tokens, to the layout of unit `after`; returns the buffer
        `result`."""
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
        """Issue the gather of all tokens of a buffer that is split along them in the layout of unit `before`; returns the
        buffer `result`. again: whether this is the repeated gather of a backward pass. frees: buffers to free after it."""
        group = self.ranks(self.strategies[before].peers(self.index_in_stage, "tp"))
        size = self.buffers[name] * len(group)
        fields: dict[str, Any] = {"reads": (name,), "writes": (self.buffer(result, size),), "frees": frees, "group": group}
        fields["args"] = {AGAIN: True} if again else {}
        # The workspace is for bringing what comes in the order of ranks into that of samples.
        self.issue(Op.GATHER_TOKENS, unit, part, **fields, message_bytes=size, workspace_bytes=size)
        return result

    def scatter_tokens(self, unit: int, part: MicroBatchPart, name: str, result: str) -> str:
        """Issue the sum over tensor-parallel ranks of partial results on all tokens, of which the rank gets its own tokens;
        returns the buffer `result`. The partial results are freed."""
        group, size = self.peers(unit, "tp"), self.buffers[name]
        writes = (self.buffer(result, size // len(group)),)
        fields: dict[str, Any] = {"reads": (name,), "writes": writes, "frees": (name,), "group": group}
        self.issue(Op.REDUCE_SCATTER_TOKENS, unit, part, **fields, message_bytes=size, workspace_bytes=size)
        return result

    def input_of(self, unit: int, part: MicroBatchPart) -> str:
        """The buffer of a unit's input in the unit's own layout."""
        relaid = f"input.{unit}.{part}"
        return relaid if relaid in self.buffers else f"hidden.{unit}.{part}"

    def backward_reads(self, unit: int, part: MicroBatchPart) -> tuple[str, str]:
        """The buffers of graph and input, which a part's backward pass is the last to read."""
        return f"graph.{unit}.{part}", self.input_of(unit, part)

    def output_gradient(self, unit: int, part: MicroBatchPart) -> str:
        """The buffer of the gradient of a unit's output in this unit's layout: that of the logits, or the next unit's input
        gradient, whose layout is changed where needed."""
        if unit == self.last:
            return f"hidden.{unit + 1}.{part}"
        name = f"input-gradient.{unit + 1}.{part}"
        return self.relaid(name, f"output-gradient.{unit}.{part}", unit + 1, unit, part)
