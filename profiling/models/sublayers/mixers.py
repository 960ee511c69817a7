"""Base class of the sub-layers that mix tokens in a time linear in their number: state spaces and delta nets.

Such a sub-layer projects its normed input once to everything that it needs, mixes each number with those of the latest tokens
(a causal convolution), carries a state from token to token (its scan), norms the result under a gate, and projects it back. The
scan is computed by chunks: inside a chunk by products of matrices, as attention is, and from chunk to chunk by the state alone.
The products of a scan are many and small, one set a chunk and a head; they stay in the model's dtype where a run's other
products are in 8 or 4 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainplan.profiling.models.sublayers.base import Operator, Parameter, Sublayer

WIDE_BYTES = 4  # of a number of a state and of a decay, which kernels keep in fp32


@dataclass(frozen=True, kw_only=True)
class TokenMixer(Sublayer):
    """Base class of the sub-layers that mix tokens in linear time: norm, input projection, convolution, scan by chunks, gated
    norm, output projection, residual.

    chunk: tokens of a chunk of the scan. taps: tokens that the causal convolution reads for one. Subclasses give the sizes of
    what is projected, and the kernels and memory of their scan.
    """

    chunk: int
    taps: int = 4

    @property
    def projected(self) -> int:
        """Count of numbers of a token that the input projection gives, on all tensor-parallel ranks together."""
        raise NotImplementedError

    @property
    def convolved(self) -> int:
        """Count of numbers of a token that the convolution mixes, on all tensor-parallel ranks together."""
        raise NotImplementedError

    @property
    def inner(self) -> int:
        """Count of numbers of a token that the output projection reads, on all tensor-parallel ranks together."""
        raise NotImplementedError

    def scan_operators(self, rows: int, tp: int) -> list[Operator]:
        """Kernels of the scan's forward pass of `rows` samples on one of `tp` tensor-parallel ranks, in order."""
        raise NotImplementedError

    def inside_bytes(self, tokens: float, tp: int, element_bytes: int) -> float:
        """Bytes kept for the backward pass between the norm and the residual, on one of `tp` tensor-parallel ranks.

        tokens: tokens on the rank. element_bytes: bytes of a number of the activations.
        """
        raise NotImplementedError

    def scan_workspace_bytes(self, rows: int, tp: int, backward: bool) -> int:
        """Peak bytes of temporaries of the convolution and the scan, of `rows` samples on one of `tp` tensor-parallel ranks,
        in addition to what is kept and to gradients of what is projected. backward: whether of the backward pass.
        """
        raise NotImplementedError

    def chunks(self, rows: int) -> int:
        """Number of chunks of `rows` samples; the last chunk of a sample may be shorter, and is computed as a whole one."""
        return rows * -(-self.tokens // self.chunk)

    @property
    def chunk_tokens(self) -> int:
        """Tokens of a chunk; all tokens of a sample that has fewer than one chunk."""
        return min(self.chunk, self.tokens)

    @property
    def unexecuted_feature(self) -> str:
        """Name, for users, of what cannot be executed yet: the scan."""
        return "a scan of a state over tokens"

    @property
    def operators_before(self) -> int:
        """Number of kernels at the beginning of `operators` that come before the input projection: the norm's."""
        return (2 if self.norm == "rms" else 1) * self.pre_norm

    def operators(self, rows: int, tp: int) -> list[Operator]:
        """Kernels of the forward pass of `rows` samples on one of `tp` tensor-parallel ranks: norm, input projection,
        convolution with its activation, scan, gated norm, output projection, residual."""
        n, h = rows * self.tokens, self.hidden
        return [
            *[self._stream(n * h)] * self.operators_before,
            Operator(m=n, n=self.projected // tp, k=h),
            self._stream(n * self.convolved // tp),
            *self.scan_operators(rows, tp),
            self._stream(n * self.inner // tp, 3),
            Operator(m=n, n=h, k=self.inner // tp),
            self._stream(n * h, 3, 1.0),
        ]

    def kept_bytes(self, rows: int, tp: int) -> int:
        """Bytes that `rows` samples keep for the backward pass on one of `tp` tensor-parallel ranks, in addition to the input:
        the norm's result, and what is kept inside (see `inside_bytes`)."""
        n = rows * self.tokens
        return self.entry_elements(n) * self.element_bytes + round(self.inside_bytes(n, tp, self.element_bytes))

    def forward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the forward pass of `rows` samples on one of `tp` tensor-parallel ranks: those of
        convolution and scan, before the output is there."""
        return max(0, self.scan_workspace_bytes(rows, tp, False) - self.output_bytes(rows, tp))

    def backward_workspace_bytes(self, rows: int, tp: int) -> int:
        """Peak bytes of temporaries of the backward pass of `rows` samples on one of `tp` tensor-parallel ranks: the largest
        of those of scan, projections and norm."""
        outer = self.outer_backward_bytes(rows, self.kept_bytes(rows, tp))
        return max(0, outer, *self.matrices_backward_bytes(rows, tp))

    def matrices_backward_bytes(self, rows: int, tp: int) -> tuple[int, int]:
        """Peak bytes of temporaries of the backward pass between norm and residual.

        Two numbers: the peak during output projection (gradients of its input and its weights) and scan (the gradient of all
        that was projected, with the scan's own); and the peak while the gradient of the input projection's weights is computed.
        The gradient of the input is counted by the caller, and not there yet. rows: samples on the rank. tp: tensor-parallel
        degree.
        """
        n, h, e = rows * self.tokens, self.hidden, self.element_bytes
        inner, projected = self.inner // tp, self.projected // tp
        out = (n * inner + h * inner) * e
        scan = (n * inner + n * projected) * e + self.scan_workspace_bytes(rows, tp, True)
        first = (n * projected + projected * h) * e - round(self.inside_bytes(n, tp, e))
        return max(out, scan) - n * h * e, first

    def _pass(self, numbers: int, element_bytes: int, backward: float) -> Operator:
        """A kernel that moves `numbers` numbers of `element_bytes` bytes each. backward: work of its backward pass in
        multiples of the forward pass."""
        return Operator(touched_bytes=numbers * element_bytes, backward=backward)

    def _products(self, projections: bool = False) -> tuple[Parameter, ...]:
        """Weights of input and output projection with their biases, if `projections` says that they have some."""
        h, inner = self.hidden, self.inner
        parameters = [Parameter("in.weight", (self.projected, h), 0)]
        parameters += [Parameter("in.bias", (self.projected,), 0)] * projections
        parameters.append(Parameter("out.weight", (h, inner), 1))
        parameters += [Parameter("out.bias", (h,))] * projections
        return tuple(parameters)


def small_product(m: int, n: int, k: int, count: int, backward: float) -> Operator:
    """`count` products of (m, k) by (k, n) matrices inside a scan. backward: work of their backward pass in multiples of the
    forward pass."""
    return replace(Operator(m=m, n=n, k=k, count=count, core="chunk"), backward=backward)
