"""The parallel block: attention and feed-forward network that read the same input (Wang and Komatsuzaki, 2021)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from trainplan.profiling.models.sublayers.attention import Attention
from trainplan.profiling.models.sublayers.base import Kind, Operator, Parameter, Sublayer
from trainplan.profiling.models.sublayers.feed_forward import FeedForward


@dataclass(frozen=True, kw_only=True)
class ParallelBlock(Sublayer):
    """A whole transformer layer as one sub-layer, whose attention and feed-forward network run in parallel: x +
    attention(norm(x)) + feed-forward(norm(x)).

    With tensor parallelism it needs one all-reduce in the forward and one in the backward pass, not two. attention,
    feed_forward: its two parts. shared_norm: whether both parts read the result of the same norm; otherwise each has its own
    norm. Parameters have the names that they have in the two parts; the second norm is `ffn_norm`.
    """

    kind: ClassVar[Kind] = "block"
    attention: Attention
    feed_forward: FeedForward
    shared_norm: bool = False

    def __post_init__(self) -> None:
        """Give attention and feed-forward network the dtype of the block."""
        for name, sublayer in (("attention", self.attention), ("feed_forward", self.feed_forward)):
            if sublayer.dtype != self.dtype:
                object.__setattr__(self, name, replace(sublayer, dtype=self.dtype))

    @property
    def draws(self) -> bool:
        """Whether attention has dropout, so that the block must know the ids of its samples to draw dropout masks."""
        return self.attention.draws

    def splits_into(self, tp: int) -> bool:
        """Whether tensor parallelism of degree `tp` can split both attention and feed-forward network."""
        return self.attention.splits_into(tp) and self.feed_forward.splits_into(tp)

    def parameters(self) -> tuple[Parameter, ...]:
        """Parameters of attention and feed-forward network. The network's norm is omitted if it is shared, else named
        `ffn_norm`.
        """
        second = [
            replace(parameter, name=f"ffn_{parameter.name}") if parameter.name.startswith("norm.") else parameter
            for parameter in self.feed_forward.parameters()
            if not (self.shared_norm and parameter.name.startswith("norm."))
        ]
        return (*self.attention.parameters(), *second)

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """Kernels of the forward pass: attention's kernels, then the feed-forward network's, without its norm if it is shared.

        Each of the two ends with a pass that adds its output to the residual. rows: samples on the rank. tp: tensor-parallel
        degree.
        """
        second = self.feed_forward.operators(rows, tp)
        return [*self.attention.operators(rows, tp), *(second[1:] if self.shared_norm else second)]

    def kept_bytes(self, rows: int, tp: int) -> int:
        """Bytes that `rows` samples keep for the backward pass on one of `tp` tensor-parallel ranks: attention's and the
        network's.

        The result of a shared norm is counted once.
        """
        shared = self.norm_elements(rows * self.tokens) * self.element_bytes * self.shared_norm
        return self.attention.kept_bytes(rows, tp) + self.feed_forward.kept_bytes(rows, tp) - shared

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the forward pass of `rows` samples on one of `tp` tensor-parallel ranks: the maximum of
        attention's temporaries, and of the feed-forward network's temporaries plus attention's output.
        """
        output = self.output_bytes(rows, tp)
        return max(
            self.attention.forward_workspace_bytes(rows, tp), output + self.feed_forward.forward_workspace_bytes(rows, tp)
        )

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the backward pass of `rows` samples on one of `tp` tensor-parallel ranks: the maximum
        of the feed-forward network's temporaries, which come first, and of attention's temporaries plus the gradient of the
        network's input minus the bytes that the network kept and that have been freed by then.
        """
        hidden, shared = self.output_bytes(rows, tp), self.norm_elements(rows * self.tokens) * self.element_bytes
        kept = self.feed_forward.kept_bytes(rows, tp) - shared * self.shared_norm
        second = self.attention.backward_workspace_bytes(rows, tp) + hidden - kept
        return max(0, self.feed_forward.backward_workspace_bytes(rows, tp), second)


def attention_of(sublayer: Sublayer) -> Attention | None:
    """The attention that a sub-layer is, or that it contains if it is a parallel block; None for other kinds."""
    attention = sublayer.attention if isinstance(sublayer, ParallelBlock) else sublayer
    return attention if isinstance(attention, Attention) else None
