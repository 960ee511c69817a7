"""The last sub-layer of a chain: logits over a vocabulary with their loss, or values of pooled or single tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from trainplan.profiling.models.sublayers.base import Activation, Kind, Operator, Parameter, Sublayer


@dataclass(frozen=True, kw_only=True)
class LanguageHead(Sublayer):
    """Norm, BERT's transform with its activation where there is one, logits over the vocabulary; and the cross-entropy on them.

    scale: factor on the hidden states (T5 with tied embeddings).
    """

    kind: ClassVar[Kind] = "head"
    vocabulary: int
    transform: Activation | None = None
    bias: bool = False
    scale: float = 1.0

    def splits_into(self, tp: int) -> bool:
        return tp <= self.vocabulary

    def parameters(self) -> tuple[Parameter, ...]:
        h, v = self.hidden, self.vocabulary
        found = [Parameter("logits.weight", (v, h), 0)]
        found += [Parameter("logits.bias", (v,), 0)] * self.bias
        found += self._norm_parameters()
        if self.transform:
            found += [Parameter("dense.weight", (h, h)), Parameter("dense.bias", (h,))]
            found += self._norm_parameters(name="dense_norm")
        return tuple(found)

    def operators(self, rows: int, tp: int) -> list[Operator]:
        n, h, v = rows * self.tokens, self.hidden, -(-self.vocabulary // tp)
        found = [self._stream(n * h)]
        if self.transform:
            found += [Operator(m=n, n=h, k=h), self._stream(n * h), self._stream(n * h)]
        loss = [self._stream(n * v, 4, 0.5)]  # largest, exponentials, their sum; backward one pass
        return [*found, Operator(m=n, n=v, k=h), *loss]

    def output_bytes(self, rows: int, tp: int) -> int:
        return rows * self.tokens * -(-self.vocabulary // tp) * self.element_bytes

    def boundary_bytes(self, rows: int) -> int:
        return 0

    def kept_bytes(self, rows: int, tp: int) -> int:
        n, h = rows * self.tokens, self.hidden
        norm = self._norm_elements(n)
        kept = 2 * norm + 2 * n * h if self.transform else norm
        if self.scale != 1:
            kept += 0 if self.norm == "rms" else n * h
        logits = 2 * n * -(-self.vocabulary // tp) if self.unfused else 0  # logits and their log-softmax
        return (kept + logits) * self.element_bytes

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        weight = -(-self.vocabulary // tp) * self.hidden * self.element_bytes
        return max(weight, self._norm_moment(self.kept_bytes(rows, tp), rows))


@dataclass(frozen=True, kw_only=True)
class ValueHead(Sublayer):
    """Norm, then one product: of a pooled token with (classes, hidden) (ViT, Swin), or of every token with its colours.

    pool: `first` token, `mean` of all, or `none`.
    """

    kind: ClassVar[Kind] = "head"
    values: int
    pool: Literal["first", "mean", "none"] = "first"

    def splits_into(self, tp: int) -> bool:
        return tp <= self.values

    def _outputs(self, rows: int) -> int:
        return rows * (self.tokens if self.pool == "none" else 1)

    def parameters(self) -> tuple[Parameter, ...]:
        v = self.values
        weight, bias = Parameter("values.weight", (v, self.hidden), 0), Parameter("values.bias", (v,), 0)
        return (weight, bias, *self._norm_parameters())

    def operators(self, rows: int, tp: int) -> list[Operator]:
        norm = self._stream(rows * self.tokens * self.hidden)
        return [norm, Operator(m=self._outputs(rows), n=-(-self.values // tp), k=self.hidden)]

    def output_bytes(self, rows: int, tp: int) -> int:
        return self._outputs(rows) * -(-self.values // tp) * self.element_bytes

    def boundary_bytes(self, rows: int) -> int:
        return 0

    def kept_bytes(self, rows: int, tp: int) -> int:
        n = rows * self.tokens
        pooled = self._outputs(rows) * self.hidden
        whole = 0 if self.pool == "mean" else n * self.hidden
        return (2 * n + max(pooled, whole)) * self.element_bytes

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        spread = rows * self.tokens * self.hidden if self.pool == "mean" else 0
        return (spread + -(-self.values // tp) * self.hidden) * self.element_bytes

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        return rows * self.tokens * self.hidden * self.element_bytes if self.pool == "mean" else 0
