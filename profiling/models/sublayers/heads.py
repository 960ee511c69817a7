"""The last sub-layer of a chain: logits over a vocabulary with their loss, or values of pooled or single tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from trainplan.profiling.models.sublayers.base import Activation, Kind, Operator, Parameter, Sublayer


@dataclass(frozen=True, kw_only=True)
class LanguageHead(Sublayer):
    """Norm, BERT's transform with its activation where there is one, logits over the vocabulary; and the cross-entropy on them.

    scale: factor on the hidden states (T5 with tied embeddings). softcap: logits are c tanh(logit / c) (0: as they are).
    """

    kind: ClassVar[Kind] = "head"
    vocabulary: int
    transform: Activation | None = None
    bias: bool = False
    scale: float = 1.0
    softcap: float = 0.0

    def parameters(self) -> tuple[Parameter, ...]:
        """The matrix of the logits, split over the vocabulary, its bias, the norm, and the transform."""
        h, v = self.hidden, self.vocabulary
        parameters = [Parameter("logits.weight", (v, h), 0)]
        parameters += [Parameter("logits.bias", (v,), 0)] * self.bias
        parameters += self._norm_parameters()
        if self.transform:
            parameters += [Parameter("dense.weight", (h, h)), Parameter("dense.bias", (h,))]
            parameters += self._norm_parameters(name="dense_norm")
        return tuple(parameters)

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """Norm, transform, logits, and the passes of the loss over them."""
        n, h, v = rows * self.tokens, self.hidden, -(-self.vocabulary // tp)
        transform = [self._stream(n * h)]
        if self.transform:
            transform += [Operator(m=n, n=h, k=h), self._stream(n * h), self._stream(n * h)]
        loss = [self._stream(n * v, 4, 0.5)]  # largest, exponentials, their sum; backward one pass
        capped = [self._stream(n * v)] * (self.softcap > 0)
        return [*transform, Operator(m=n, n=v, k=h), *capped, *loss]

    def output_bytes(self, rows: int, tp: int) -> int:
        """One rank's logits."""
        return rows * self.tokens * -(-self.vocabulary // tp) * self.element_bytes

    def kept_bytes(self, rows: int, tp: int) -> int:
        """What norm, transform, scaling and capping need for their gradients; unfused, the logits and their log-softmax."""
        n, h = rows * self.tokens, self.hidden
        norm = self.norm_elements(n)
        elements = 2 * norm + 2 * n * h if self.transform else norm
        logits = 2 * n * -(-self.vocabulary // tp) if self.unfused else 0  # logits and their log-softmax
        return (elements + logits) * self.element_bytes + self.capped_bytes(rows, tp)

    def capped_bytes(self, rows: int, tp: int) -> int:
        """What the capping of one rank's logits keeps."""
        return self.output_bytes(rows, tp) * (self.softcap > 0)

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """The gradient of one rank's matrix, or an RMS norm's moment."""
        return max(self.matrices_backward_bytes(rows, tp)[1], self._norm_moment(self.kept_bytes(rows, tp), rows))

    def matrices_backward_bytes(self, rows: int, tp: int) -> tuple[int, int]:
        """The gradient of one rank's matrix, beside that of the logits before they are capped; or two gradients of these."""
        v, n = -(-self.vocabulary // tp), rows * self.tokens
        weight = v * self.hidden
        most = max(weight + n * v, 2 * n * v - n * self.hidden) if self.softcap else weight
        return 0, most * self.element_bytes

    @property
    def operators_before(self) -> int:
        """Norm and transform."""
        return 4 if self.transform else 1


@dataclass(frozen=True, kw_only=True)
class ValueHead(Sublayer):
    """Norm, then one product: of a pooled token with (classes, hidden) (ViT, Swin), or of every token with its colours.

    pool: `first` token, `mean` of all, or `none`. It is small: more ranks than there are values each compute all of them.
    """

    kind: ClassVar[Kind] = "head"
    replicable: ClassVar[bool] = True
    values: int
    pool: Literal["first", "mean", "none"] = "first"

    def _outputs(self, rows: int) -> int:
        return rows * (self.tokens if self.pool == "none" else 1)

    def parameters(self) -> tuple[Parameter, ...]:
        """The projection with its bias, split by its outputs, and the norm."""
        v = self.values
        weight, bias = Parameter("values.weight", (v, self.hidden), 0), Parameter("values.bias", (v,), 0)
        return (weight, bias, *self._norm_parameters())

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """Norm, and the projection of the pooled tokens or of all."""
        norm = self._stream(rows * self.tokens * self.hidden)
        return [norm, Operator(m=self._outputs(rows), n=-(-self.values // tp), k=self.hidden)]

    def output_bytes(self, rows: int, tp: int) -> int:
        """One rank's values."""
        return self._outputs(rows) * -(-self.values // tp) * self.element_bytes

    def kept_bytes(self, rows: int, tp: int) -> int:
        """Mean and inverse deviation of each token, and what the projection reads."""
        n = rows * self.tokens
        pooled = self._outputs(rows) * self.hidden
        whole = 0 if self.pool == "mean" else n * self.hidden
        return (2 * n + max(pooled, whole)) * self.element_bytes

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """The gradient of one rank's matrix, and that of a mean spread over all tokens."""
        spread = rows * self.tokens * self.hidden if self.pool == "mean" else 0
        return (spread + -(-self.values // tp) * self.hidden) * self.element_bytes

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        """All normed tokens, until their mean replaces them."""
        return rows * self.tokens * self.hidden * self.element_bytes if self.pool == "mean" else 0
