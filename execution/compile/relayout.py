"""What one rank issues between two units of a stage with unlike layouts: rows and tokens go to where they are needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainplan.execution.compile.instruction_builder import InstructionBuilder
from trainplan.execution.instructions import Op
from trainplan.execution.program import AGAIN, MicroBatchPart


@dataclass
class UnitBoundaries(InstructionBuilder):
    """Hidden states and their gradients, re-laid from one unit's layout to the next one's."""

    def relaid(self, name: str, result: str, before: int, after: int, part: MicroBatchPart) -> str:
        """The buffer with a boundary's rows and tokens under the layout of unit `after`, re-laid from that of `before` if need
        be: all tokens are gathered, rows moved, and the rank's tokens sliced, whatever of this is to be done."""
        a, b = self.strategies[before], self.strategies[after]
        unlike = a.group != b.group  # then messages bring each rank all tokens of its own rows
        moves, shared, sharing = not unlike and a.layout != b.layout, None if unlike else a.token_digit, b.token_digit
        if not moves and shared == sharing:
            return name
        kind, _, place = name.partition(".")
        if shared is not None:
            whole = f"{kind}-whole.{place}" if moves or sharing is not None else result
            name = self.gather_tokens(after, part, name, whole, before, (name,))
        if moves:
            name = self._moved_rows(name, f"{kind}-laid.{place}" if sharing is not None else result, before, after, part)
        if sharing is not None:
            size = self.laid_bytes(min(before, after), after, len(self.rows(after, part)))
            self.issue(Op.SLICE_TOKENS, after, part, reads=(name,), writes=(self.buffer(result, size),), frees=(name,))
        return result

    def _moved_rows(self, name: str, result: str, before: int, after: int, part: MicroBatchPart) -> str:
        """The buffer with a boundary's rows under the layout of unit `after`, each with all tokens."""
        indices = self.gathered_places(before, after)
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
        """All tokens of a buffer that lies split along them under the layout of unit `before`. again: for a backward pass."""
        group = self.ranks(self.strategies[before].peers(self.place, "tp"))
        size = self.buffers[name] * len(group)
        fields: dict[str, Any] = {"reads": (name,), "writes": (self.buffer(result, size),), "frees": frees, "group": group}
        fields["args"] = {AGAIN: True} if again else {}
        # What comes in order of ranks is put in order of samples.
        self.issue(Op.GATHER_TOKENS, unit, part, **fields, message_bytes=size, workspace_bytes=size)
        return result

    def scatter_tokens(self, unit: int, part: MicroBatchPart, name: str, result: str) -> str:
        """The rank's tokens of the sum of partial results of all tokens, which go."""
        group, size = self.peers(unit, "tp"), self.buffers[name]
        writes = (self.buffer(result, size // len(group)),)
        fields: dict[str, Any] = {"reads": (name,), "writes": writes, "frees": (name,), "group": group}
        self.issue(Op.REDUCE_SCATTER_TOKENS, unit, part, **fields, message_bytes=size, workspace_bytes=size)
        return result

    def input_of(self, unit: int, part: MicroBatchPart) -> str:
        """The buffer of a unit's input."""
        relaid = f"input.{unit}.{part}"
        return relaid if relaid in self.buffers else f"hidden.{unit}.{part}"

    def backward_reads(self, unit: int, part: MicroBatchPart) -> tuple[str, str]:
        """Graph and input: what a part's backward pass reads, and is the last to need."""
        return f"graph.{unit}.{part}", self.input_of(unit, part)

    def output_gradient(self, unit: int, part: MicroBatchPart) -> str:
        """The gradient of a unit's output: the logits', or the next one's input gradient, under this unit's layout."""
        if unit == self.last:
            return f"hidden.{unit + 1}.{part}"
        name = f"input-gradient.{unit + 1}.{part}"
        return self.relaid(name, f"output-gradient.{unit}.{part}", unit + 1, unit, part)
