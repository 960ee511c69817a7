"""Selective recomputation: modules of a sub-layer that keep nothing, and are computed again in its backward pass.

As Korthikanti et al. (2022, Section 5) recompute the core of attention, whose memory is large for the work that it takes:

    attention    scores, softmax and their use, from queries, keys and values (fused kernels keep one number a query and head)
    activation   of the feed-forward network, with its gate, from the products before it
    norms        what comes before the matrices, from the sub-layer's input (of a head its transform, too)
    loss         a head's logits, from what its matrix works on

What a sub-layer does not have is not recomputed. `torch_units` computes so; `loss` is of programs, whose logits lie in buffers.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainplan.profiling.models.sublayers.attention import Attention
from trainplan.profiling.models.sublayers.base import Operator, Sublayer
from trainplan.profiling.models.sublayers.feed_forward import FeedForward
from trainplan.profiling.models.sublayers.heads import LanguageHead


def modules_of(part: Sublayer) -> tuple[str, ...]:
    """The modules that a sub-layer can compute again."""
    if isinstance(part, Attention):
        return () if part.window or part.memory_tokens or part.relative else ("attention", "norms")
    if isinstance(part, FeedForward):
        return ("activation", "norms")
    if isinstance(part, LanguageHead):
        return ("norms",) if part.softcap else ("loss", "norms")
    return ()


def _by_heads(part: Sublayer) -> bool:
    """Whether norm and core of a sub-layer are computations of their own (see `sublayers.head_share`)."""
    return isinstance(part, Attention) and part.by_heads


@dataclass(frozen=True)
class Selective:
    """Bytes and kernels of a sub-layer of which some modules are recomputed. rows: samples of a rank, split over tp ranks."""

    part: Sublayer
    modules: tuple[str, ...] = ()

    def has(self, module: str) -> bool:
        """Whether a module of the sub-layer is recomputed."""
        return module in self.modules and module in modules_of(self.part)

    @property
    def effective(self) -> bool:
        """Whether any module that the sub-layer has is recomputed."""
        return any(map(self.has, self.modules))

    def costs_bytes(self, rows: int, tp: int) -> dict[str, int]:
        """What the graph keeps, and both workspaces, by their names in profiles."""
        names = ("kept_bytes", "forward_workspace_bytes", "backward_workspace_bytes")
        return {name: getattr(self, name)(rows, tp) for name in names}

    def kept_bytes(self, rows: int, tp: int) -> int:
        """What the graph holds from forward to backward, besides the unit's input."""
        return self.part.kept_bytes(rows, tp) - self.dropped_inside(rows, tp) - self.dropped_before(rows, tp)

    def dropped_before(self, rows: int, tp: int) -> int:
        """What is not kept of what comes before the matrices."""
        part = self.part
        if not self.has("norms") or _by_heads(part):
            return 0
        if isinstance(part, LanguageHead):
            return part.kept_bytes(rows, tp) - part.capped_bytes(rows, tp)
        return part.entry_elements(rows * part.tokens) * part.element_bytes

    def dropped_inside(self, rows: int, tp: int) -> int:
        """What is not kept of what lies between the matrices."""
        part = self.part
        if isinstance(part, FeedForward) and self.has("activation"):
            copies = 0 if part.activation == "relu" and not part.gated else 1  # a relu keeps its result, or what it is of
            return copies * self._inner_bytes(rows, tp)
        if isinstance(part, Attention) and self.has("attention") and not part.by_heads:
            return part.core_bytes(rows, tp)
        return 0

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Most bytes alive during the forward pass beyond input, kept and output: beside those of the sub-layer the results
        that are not kept, until what works on them is done."""
        part, before = self.part, 0
        output = rows * part.tokens * part.hidden * part.element_bytes
        if self.has("norms"):
            before = min(output, self.dropped_before(rows, tp))
        return before + self.inside_workspace_bytes(rows, tp)

    def inside_workspace_bytes(self, rows: int, tp: int) -> int:
        """The same of what works on what comes before the matrices."""
        part, workspace = self.part, self.part.forward_workspace_bytes(rows, tp)
        output = rows * part.tokens * part.hidden * part.element_bytes
        if isinstance(part, FeedForward) and self.has("activation"):
            inner = self._inner_bytes(rows, tp)
            return max(workspace, inner, (2 * inner if part.gated else 0) - output)
        return workspace + max(0, self.dropped_inside(rows, tp) - output)

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Most bytes alive during the backward pass beyond input, kept and gradients: what was not kept is there again, a
        norm's result from when the first products need it."""
        if not self.effective:
            return self.part.backward_workspace_bytes(rows, tp)
        if self.has("loss"):
            logits, others = self.part.output_bytes(rows, tp), tuple(name for name in self.modules if name != "loss")
            before = self.part.kept_bytes(rows, tp)  # what comes before its matrix, again
            return logits + max(before, Selective(self.part, others).backward_workspace_bytes(rows, tp))
        part, most = self.part, self.inside_backward_bytes(rows, tp, self.dropped_before(rows, tp))
        if _by_heads(part):
            return part.backward_workspace_bytes(rows, tp)
        outer = part.outer_backward_bytes(rows, self.kept_bytes(rows, tp))
        if self.has("norms") and part.norm == "rms":  # the gradient of its result stays until that of its input is there
            outer += rows * part.tokens * part.hidden * part.element_bytes
        return max(most, outer)

    def inside_backward_bytes(self, rows: int, tp: int, before: int = 0) -> int:
        """The same of the matrices alone. before: what is made again as the first products' gradients need it."""
        behind, first = self.part.matrices_backward_bytes(rows, tp)
        return max(0, self.dropped_inside(rows, tp) + max(behind, first + before))

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """What is computed again in the backward pass, kernel by kernel."""
        part, again = self.part, list[Operator]()
        operators = part.operators(rows, tp)
        if self.has("norms"):
            again += operators[: part.operators_before]
        if self.has("activation") and isinstance(part, FeedForward):
            again += part.activation_operators(rows, tp)
        if self.has("attention") and isinstance(part, Attention):
            again += part.core_operators(rows, tp)
        if self.has("loss"):
            again += operators[part.operators_before :]
        return again

    def _inner_bytes(self, rows: int, tp: int) -> int:
        assert isinstance(self.part, FeedForward)
        return rows * self.part.tokens * (self.part.inner // tp) * self.part.element_bytes
