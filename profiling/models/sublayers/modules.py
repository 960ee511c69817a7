"""Selective recomputation: modules of a sub-layer that keep nothing and are computed again in its backward pass.

Korthikanti et al. (2022, Section 5) recompute the core of attention, whose memory is large for the work that it takes. The
modules that can be recomputed here are, with the tensors that they are computed from:

    attention    scores, softmax and weighted values, from queries, keys and values
    activation   activation and gate of a feed-forward network, from the results of the up-projections
    norms        the norm before the matrices, in a head also its dense layer, from the sub-layer's input
    loss         the logits of a head, from the input of its matrix

A module that a sub-layer does not have is ignored. The first three are recomputed by `models.torch_units`, the logits by the
programs that run a head.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainplan.profiling.models.sublayers.attention import Attention
from trainplan.profiling.models.sublayers.base import Operator, Sublayer
from trainplan.profiling.models.sublayers.feed_forward import FeedForward
from trainplan.profiling.models.sublayers.heads import LanguageHead
from trainplan.profiling.models.sublayers.mixers import TokenMixer


def modules_of(sublayer: Sublayer) -> tuple[str, ...]:
    """Names of the modules of a sub-layer that selective recomputation can compute again in the backward pass; empty for kinds
    of sub-layer that have none.

    "attention": scores, softmax and weighted values. "activation": activation and gate of a feed-forward network. "norms":
    the norm before the matrix multiplications. "loss": the logits of a head.
    """
    if isinstance(sublayer, Attention):
        return () if sublayer.window or sublayer.memory_tokens or sublayer.relative else ("attention", "norms")
    if isinstance(sublayer, FeedForward):
        return ("activation", "norms")
    if isinstance(sublayer, LanguageHead):
        return ("norms",) if sublayer.softcap else ("loss", "norms")
    if isinstance(sublayer, TokenMixer):
        return ("norms",)
    return ()


def _by_heads(sublayer: Sublayer) -> bool:
    """Whether a sub-layer is an attention whose context-parallel ranks exchange heads. Its norm and its core (scores, softmax,
    weighted values) are then separate computations, whose memory `HeadPieces` counts.
    """
    return isinstance(sublayer, Attention) and sublayer.by_heads


@dataclass(frozen=True)
class SelectiveRecomputation:
    """Memory and recomputed kernels of a sub-layer whose `modules` are recomputed in its backward pass.

    modules: names such as "attention", "activation", "norms" and "loss"; those that the sub-layer does not have are ignored.
    The sub-layer's matrices are its matrix multiplications, with what is computed between them. All methods that return bytes
    or kernels count them for `rows` samples on one of `tp` tensor-parallel ranks.
    """

    sublayer: Sublayer
    modules: tuple[str, ...] = ()

    def has(self, module: str) -> bool:
        """Whether the sub-layer has the module of this name and recomputes it."""
        return module in self.modules and module in modules_of(self.sublayer)

    @property
    def effective(self) -> bool:
        """Whether the sub-layer recomputes any of its modules."""
        return any(map(self.has, self.modules))

    def costs_bytes(self, rows: int, tp: int) -> dict[str, int]:
        """Bytes kept for the backward pass, and peak bytes of temporaries of both passes, by the names of these fields in
        profiles.

        The keys are kept_bytes, forward_workspace_bytes and backward_workspace_bytes. rows: samples on the rank. tp:
        tensor-parallel degree.
        """
        names = ("kept_bytes", "forward_workspace_bytes", "backward_workspace_bytes")
        return {name: getattr(self, name)(rows, tp) for name in names}

    def kept_bytes(self, rows: int, tp: int) -> int:
        """Bytes of activations kept from the forward to the backward pass, in addition to the sub-layer's input.

        rows: samples on the rank. tp: tensor-parallel degree.
        """
        return self.sublayer.kept_bytes(rows, tp) - self.unkept_inside_bytes(rows, tp) - self.unkept_before_bytes(rows, tp)

    def unkept_before_bytes(self, rows: int, tp: int) -> int:
        """Bytes that recomputation of the module "norms" saves, which the sub-layer would otherwise keep of the computation
        before its matrices; 0 if the module is not recomputed.

        rows: samples on the rank. tp: tensor-parallel degree.
        """
        sublayer = self.sublayer
        if not self.has("norms") or _by_heads(sublayer):
            return 0
        if isinstance(sublayer, LanguageHead):
            return sublayer.kept_bytes(rows, tp) - sublayer.capped_bytes(rows, tp)
        return sublayer.entry_elements(rows * sublayer.tokens) * sublayer.element_bytes

    def unkept_inside_bytes(self, rows: int, tp: int) -> int:
        """Bytes that recomputation of the module "attention" or "activation" saves, which the sub-layer would otherwise keep
        between its matrix multiplications; 0 if neither is recomputed.

        rows: samples on the rank. tp: tensor-parallel degree.
        """
        sublayer = self.sublayer
        if isinstance(sublayer, FeedForward) and self.has("activation"):
            # A relu keeps one tensor in either case: its result, or when it is recomputed its input.
            saves_nothing = sublayer.activation == "relu" and not sublayer.gated
            return 0 if saves_nothing else self._inner_bytes(rows, tp)
        if isinstance(sublayer, Attention) and self.has("attention") and not sublayer.by_heads:
            return sublayer.core_bytes(rows, tp)
        return 0

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the forward pass of `rows` samples on one of `tp` tensor-parallel ranks.

        They come in addition to the input, the output, and the bytes kept for the backward pass, and include results that are
        not kept, until the operations that read them are done.
        """
        sublayer, before = self.sublayer, 0
        output = rows * sublayer.tokens * sublayer.hidden * sublayer.element_bytes
        if self.has("norms"):
            before = min(output, self.unkept_before_bytes(rows, tp))
        return before + self.inside_workspace_bytes(rows, tp)

    def inside_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the forward pass of the sub-layer's matrices alone, without the norm before them.

        rows: samples on the rank. tp: tensor-parallel degree.
        """
        sublayer, workspace = self.sublayer, self.sublayer.forward_workspace_bytes(rows, tp)
        output = rows * sublayer.tokens * sublayer.hidden * sublayer.element_bytes
        if isinstance(sublayer, FeedForward) and self.has("activation"):
            inner = self._inner_bytes(rows, tp)
            return max(workspace, inner, (2 * inner if sublayer.gated else 0) - output)
        return workspace + max(0, self.unkept_inside_bytes(rows, tp) - output)

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the backward pass of `rows` samples on one of `tp` tensor-parallel ranks.

        They come in addition to the input, the bytes kept for the backward pass, and gradients, and include recomputed
        results; the result of a recomputed norm is in memory from when the gradients of the first projections need it.
        """
        if not self.effective:
            return self.sublayer.backward_workspace_bytes(rows, tp)
        if self.has("loss"):
            logits, others = self.sublayer.output_bytes(rows, tp), tuple(name for name in self.modules if name != "loss")
            before = self.sublayer.kept_bytes(rows, tp)  # norm and dense layer, computed again
            return logits + max(before, SelectiveRecomputation(self.sublayer, others).backward_workspace_bytes(rows, tp))
        sublayer, most = self.sublayer, self.inside_backward_bytes(rows, tp, self.unkept_before_bytes(rows, tp))
        if _by_heads(sublayer):
            return sublayer.backward_workspace_bytes(rows, tp)
        outer = sublayer.outer_backward_bytes(rows, self.kept_bytes(rows, tp))
        if self.has("norms") and sublayer.norm == "rms":  # the gradient of its result stays until that of its input is there
            outer += rows * sublayer.tokens * sublayer.hidden * sublayer.element_bytes
        return max(most, outer)

    def inside_backward_bytes(self, rows: int, tp: int, before: int = 0) -> int:
        """Peak bytes of temporaries of the backward pass of the sub-layer's matrices alone, including their recomputed
        results.

        rows: samples on the rank. tp: tensor-parallel degree. before: bytes of the norm before the matrices if it is
        recomputed, which happens when the gradients of the first projections need its result; else 0.
        """
        later, first = self.sublayer.matrices_backward_bytes(rows, tp)
        return max(0, self.unkept_inside_bytes(rows, tp) + max(later, first + before))

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """Kernels of the forward pass of `rows` samples that the backward pass runs again, because their modules are
        recomputed.

        rows: samples on the rank. tp: tensor-parallel degree.
        """
        sublayer, again = self.sublayer, list[Operator]()
        operators = sublayer.operators(rows, tp)
        if self.has("norms"):
            again += operators[: sublayer.operators_before]
        if self.has("activation") and isinstance(sublayer, FeedForward):
            again += sublayer.activation_operators(rows, tp)
        if self.has("attention") and isinstance(sublayer, Attention):
            again += sublayer.core_operators(rows, tp)
        if self.has("loss"):
            again += operators[sublayer.operators_before :]
        return again

    def _inner_bytes(self, rows: int, tp: int) -> int:
        """Bytes of one up-projection's result; the sub-layer must be a feed-forward network.

        rows: samples on the rank. tp: tensor-parallel degree.
        """
        assert isinstance(self.sublayer, FeedForward)
        return rows * self.sublayer.tokens * (self.sublayer.inner // tp) * self.sublayer.element_bytes
