"""The last sub-layer of a model: logits over a vocabulary with their loss, or values for an image or its pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from trainplan.profiling.models.sublayers.base import Activation, Kind, Operator, Parameter, Sublayer


@dataclass(frozen=True, kw_only=True)
class LanguageHead(Sublayer):
    """Head of a language model: norm, logits over the vocabulary, and the cross-entropy loss.

    vocabulary: number of tokens in the vocabulary. transform: activation of a dense layer with a norm before the logits, as
    in BERT; None without such a layer. bias: whether logits have a bias. scale: factor on the hidden states (T5 with tied
    embeddings). softcap: the bound c of soft-capping, by which a logit becomes c tanh(logit / c); 0 for none. predictions:
    number of modules before it that predict further tokens, each of which gives it as many hidden states, already normed, for a
    set of logits and a loss of their own.
    """

    kind: ClassVar[Kind] = "head"
    vocabulary: int
    transform: Activation | None = None
    bias: bool = False
    scale: float = 1.0
    softcap: float = 0.0
    predictions: int = 0

    @property
    def sets(self) -> int:
        """Number of sets of logits: one, and one for each module that predicts further tokens."""
        return 1 + self.predictions

    def input_shape(self, rows: int) -> tuple[int, ...]:
        """Shape of the input tensor for `rows` samples: the hidden states of the model and of modules that predict further
        tokens."""
        return (rows, self.tokens * self.sets, self.hidden)

    @property
    def unexecuted_feature(self) -> str:
        """Name, for users, of a feature that can be planned but not yet executed; empty if there is none."""
        return "predictions of further tokens" if self.predictions else super().unexecuted_feature

    def parameters(self) -> tuple[Parameter, ...]:
        """The logits' matrix and bias, which tensor parallelism splits over the vocabulary; norm and dense layer, whole on
        every rank."""
        h, v = self.hidden, self.vocabulary
        parameters = [Parameter("logits.weight", (v, h), 0)]
        parameters += [Parameter("logits.bias", (v,), 0)] * self.bias
        parameters += self._norm_parameters()
        if self.transform:
            parameters += [Parameter("dense.weight", (h, h)), Parameter("dense.bias", (h,))]
            parameters += self._norm_parameters(name="dense_norm")
        return tuple(parameters)

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """Kernels of the forward pass of `rows` samples on one of `tp` tensor-parallel ranks: norm, dense layer, logits, and
        the passes of the loss over them."""
        n, h, v = rows * self.tokens, self.hidden, -(-self.vocabulary // tp)
        transform = [self._stream(n * h)]
        if self.transform:
            transform += [Operator(m=n, n=h, k=h), self._stream(n * h), self._stream(n * h)]
        n *= self.sets
        loss = [self._stream(n * v, 4, 0.5)]  # largest, exponentials, their sum; backward one pass
        capped = [self._stream(n * v)] * (self.softcap > 0)
        return [*transform, Operator(m=n, n=v, k=h), *capped, *loss]

    def output_bytes(self, rows: int, tp: int) -> int:
        """Bytes of the logits of `rows` samples on one of `tp` tensor-parallel ranks, each of which computes an equal part of
        the vocabulary.
        """
        return rows * self.tokens * self.sets * -(-self.vocabulary // tp) * self.element_bytes

    def kept_bytes(self, rows: int, tp: int) -> int:
        """Bytes that `rows` samples keep for the backward pass on one of `tp` tensor-parallel ranks, in addition to the input:
        results that norm, dense layer and soft-capping keep; an unfused head also keeps the logits and their log-softmax.
        """
        n, h = rows * self.tokens, self.hidden
        norm = self.norm_elements(n)
        elements = 2 * norm + 2 * n * h if self.transform else norm
        logits = 2 * n * self.sets * -(-self.vocabulary // tp) if self.unfused else 0  # logits and their log-softmax
        return (elements + logits) * self.element_bytes + self.capped_bytes(rows, tp)

    def capped_bytes(self, rows: int, tp: int) -> int:
        """Bytes that soft-capping keeps for the backward pass of `rows` samples on one of `tp` tensor-parallel ranks: the
        rank's logits.

        0 without soft-capping.
        """
        return self.output_bytes(rows, tp) * (self.softcap > 0)

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the backward pass of `rows` samples on one of `tp` tensor-parallel ranks: the
        gradients of matrix and logits, or the temporaries of an RMS norm's gradient."""
        return max(self.matrices_backward_bytes(rows, tp)[1], self._norm_peak_bytes(self.kept_bytes(rows, tp), rows))

    def matrices_backward_bytes(self, rows: int, tp: int) -> tuple[int, int]:
        """Peak bytes of temporaries of the backward pass of the logits' matrix, for `rows` samples on one of `tp`
        tensor-parallel ranks.

        Two numbers, of which the first, for operations after this matrix, is always 0. The second is the gradient of the rank's
        part of the matrix and, with soft-capping, one or two gradients of the logits.
        """
        v, n = -(-self.vocabulary // tp), rows * self.tokens
        weight = v * self.hidden
        most = max(weight + n * v, 2 * n * v - n * self.hidden) if self.softcap else weight
        return 0, most * self.element_bytes

    @property
    def operators_before(self) -> int:
        """Number of kernels at the beginning of `operators` that come before the logits' matrix: norm and dense layer."""
        return 4 if self.transform else 1


@dataclass(frozen=True, kw_only=True)
class ValueHead(Sublayer):
    """Head of an image model: norm, then a linear map to `values` numbers, such as scores of classes or colours of a pixel.

    pool: the vectors that are mapped: the `first` token, the `mean` of all tokens, or with `none` every token. The map is
    small: if there are more tensor-parallel ranks than values, every rank computes all values.
    """

    kind: ClassVar[Kind] = "head"
    replicable: ClassVar[bool] = True
    values: int
    pool: Literal["first", "mean", "none"] = "first"

    def _outputs(self, rows: int) -> int:
        """Number of vectors that the linear map is applied to for `rows` samples: one per sample, or one per token without
        pooling."""
        return rows * (self.tokens if self.pool == "none" else 1)

    def parameters(self) -> tuple[Parameter, ...]:
        """The linear map with its bias, whose outputs tensor parallelism splits, and the norm, of which every rank holds a full
        copy."""
        v = self.values
        weight, bias = Parameter("values.weight", (v, self.hidden), 0), Parameter("values.bias", (v,), 0)
        return (weight, bias, *self._norm_parameters())

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """Kernels of the forward pass of `rows` samples on one of `tp` tensor-parallel ranks: norm, and the linear map of
        pooled or of all tokens."""
        norm = self._stream(rows * self.tokens * self.hidden)
        return [norm, Operator(m=self._outputs(rows), n=-(-self.values // tp), k=self.hidden)]

    def output_bytes(self, rows: int, tp: int) -> int:
        """Bytes of the values of `rows` samples on one of `tp` tensor-parallel ranks."""
        return self._outputs(rows) * -(-self.values // tp) * self.element_bytes

    def kept_bytes(self, rows: int, tp: int) -> int:
        """Bytes that `rows` samples keep for the backward pass on one of `tp` tensor-parallel ranks: the norm's statistics per
        token, and the input of the linear map."""
        n = rows * self.tokens
        pooled = self._outputs(rows) * self.hidden
        whole = 0 if self.pool == "mean" else n * self.hidden
        return (2 * n + max(pooled, whole)) * self.element_bytes

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the backward pass of `rows` samples on one of `tp` tensor-parallel ranks.

        They are the gradient of the rank's part of the linear map and, if it maps the mean of the tokens, the gradient of all
        tokens.
        """
        spread = rows * self.tokens * self.hidden if self.pool == "mean" else 0
        return (spread + -(-self.values // tp) * self.hidden) * self.element_bytes

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the forward pass of `rows` samples on one of `tp` tensor-parallel ranks: all normed
        tokens, until their mean replaces them; else 0."""
        return rows * self.tokens * self.hidden * self.element_bytes if self.pool == "mean" else 0
