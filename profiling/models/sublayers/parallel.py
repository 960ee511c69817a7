"""Attention and feed-forward network side by side in one sub-layer (Wang and Komatsuzaki, 2021)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from trainplan.profiling.models.sublayers.attention import Attention
from trainplan.profiling.models.sublayers.base import Kind, Operator, Parameter, Sublayer
from trainplan.profiling.models.sublayers.feed_forward import FeedForward


@dataclass(frozen=True, kw_only=True)
class ParallelBlock(Sublayer):
    """x + attention(norm(x)) + feed-forward(norm(x)): both read the same hidden states.

    As a chain of two sub-layers it would have to carry the hidden states past the first. As one it is a sum of partial
    functions as they are, and with tensor parallelism one all-reduce each way, not two. shared_norm: both read one norm's
    result; else each has a norm. Parameters are named as those of its parts, the second norm `ffn_norm`.
    """

    kind: ClassVar[Kind] = "block"
    attention: Attention
    feed_forward: FeedForward
    shared_norm: bool = False

    def __post_init__(self) -> None:
        """The parts are in the block's dtype, which `Model.in_dtype` changes."""
        for name, part in (("attention", self.attention), ("feed_forward", self.feed_forward)):
            if part.dtype != self.dtype:
                object.__setattr__(self, name, replace(part, dtype=self.dtype))

    @property
    def draws(self) -> bool:
        """Whether its forward pass drops numbers, and so needs to know the samples that it works on."""
        return self.attention.draws

    def splits_into(self, tp: int) -> bool:
        """As both parts do."""
        return self.attention.splits_into(tp) and self.feed_forward.splits_into(tp)

    def parameters(self) -> tuple[Parameter, ...]:
        """Those of both parts, the norm of the second with a name of its own."""
        second = [
            replace(parameter, name=f"ffn_{parameter.name}") if parameter.name.startswith("norm.") else parameter
            for parameter in self.feed_forward.parameters()
            if not (self.shared_norm and parameter.name.startswith("norm."))
        ]
        return (*self.attention.parameters(), *second)

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """Those of both parts, with one norm where they share it; the first one's residual is the sum of both."""
        second = self.feed_forward.operators(rows, tp)
        return [*self.attention.operators(rows, tp), *(second[1:] if self.shared_norm else second)]

    def kept_bytes(self, rows: int, tp: int) -> int:
        """What both parts keep, with one norm where they share it."""
        shared = self.norm_elements(rows * self.tokens) * self.element_bytes * self.shared_norm
        return self.attention.kept_bytes(rows, tp) + self.feed_forward.kept_bytes(rows, tp) - shared

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        """The attention's, or the network's beside what the attention has given."""
        output = self.output_bytes(rows, tp)
        return max(
            self.attention.forward_workspace_bytes(rows, tp), output + self.feed_forward.forward_workspace_bytes(rows, tp)
        )

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """The network's, which comes first; or the attention's beside the network's input gradient, less what that kept."""
        hidden, shared = self.output_bytes(rows, tp), self.norm_elements(rows * self.tokens) * self.element_bytes
        kept = self.feed_forward.kept_bytes(rows, tp) - shared * self.shared_norm
        second = self.attention.backward_workspace_bytes(rows, tp) + hidden - kept
        return max(0, self.feed_forward.backward_workspace_bytes(rows, tp), second)


def attention_of(part: Sublayer) -> Attention | None:
    """The attention that a sub-layer is or, in a parallel block, has; None of others."""
    attention = part.attention if isinstance(part, ParallelBlock) else part
    return attention if isinstance(attention, Attention) else None
