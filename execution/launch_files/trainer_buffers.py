"""What trainers hold alongside states and activations, as their configurations say: buckets, and what steps and losses take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Buffers:
    """Sizes of what a trainer holds alongside states and activations. Where a field is None, nothing of the kind is held, or
    the trainer's configuration leaves it open.

    reduce_elements, gather_elements: of the buckets in which gradients are reduced and parameters gathered, in elements of the
    model's dtype. prefetch_elements: of parameters that are gathered ahead. live_elements: within how many parameters one is
    used again that stays gathered until then. step_elements: of a shard that the optimizer steps at once, whose gradients are
    copied to float32 (None: the whole shard). copies_gradients: whether the optimizer's step makes such a copy. loss: full
    where logits and their gradients are held in float32, chunked or fused where never all of them are; None where nobody says
    it. attention: eager where scores are kept, flash where none are; None where nobody says it. by_hidden: fields that depend
    on the model, and how many squares of its hidden size they are."""

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
        """The same of a model of this hidden size, with no field that depends on it."""
        sizes = {name: int(squares * hidden * hidden) for name, squares in self.by_hidden}
        return replace(self, by_hidden=(), **sizes)  # type: ignore[arg-type]


NO_BUFFERS = Buffers()
