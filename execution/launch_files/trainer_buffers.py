"""Memory that trainers hold in addition to states and activations, as their configurations say: buckets, and what optimizer
steps and losses take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Buffers:
    """Sizes of what a trainer holds in addition to states and activations. A field is None if nothing of the kind is held, or
    if the configuration does not specify it.

    reduce_elements, gather_elements: size of the buckets in which gradients are reduced and parameters gathered, in elements of
    the model's dtype. prefetch_elements: parameters that are gathered ahead. live_elements: a parameter stays gathered if it is
    used again within this number of parameters. step_elements: elements that the optimizer steps at once, whose gradients are
    copied to float32; None for the whole shard. copies_gradients: whether the optimizer's step makes such a copy. loss: full if
    logits and their gradients are held in float32, chunked or fused if never all of them are; None if unknown. attention: eager
    if scores are kept, flash if not; None if unknown. by_hidden: fields that depend on the model, each with its size in squares
    of the hidden size.
    """

    reduce_elements: int | None = None
    gather_elements: int | None = None
    prefetch_elements: int | None = None
    live_elements: int | None = None
    step_elements: int | None = None
    copies_gradients: bool = False
    loss: Literal["full", "chunked", "fused"] | None = None
    attention: Literal["eager", "flash"] | None = None
    by_hidden: tuple[tuple[str, float], ...] = ()

    def for_hidden(self, hidden: int) -> Buffers:
        """A copy of the buffers for a model of this hidden size: the fields in `by_hidden`, whose sizes are given in squares
        of the hidden size, are set to numbers of elements."""
        sizes = {name: int(squares * hidden * hidden) for name, squares in self.by_hidden}
        return replace(self, by_hidden=(), **sizes)  # type: ignore[arg-type]


NO_BUFFERS = Buffers()
