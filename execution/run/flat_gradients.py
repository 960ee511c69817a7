"""Gradients of a unit's parameters in one flat buffer: the first backward pass writes them there, later ones add to them.

A parameter that has no gradient takes over the tensor that the backward pass made. So what is to be written is taken from the
parameters first; and as soon as one has got its gradient, that is copied to its place in the buffer, and let go of.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

Layout = list[tuple[str, int, int, tuple[int, ...]]]  # name, start, end and shape of each parameter


class FlatGradients:
    """Where the gradients of parameters go. layout: of the flat buffer; views: the parameters, by name."""

    def __init__(self, layout: Layout, views: dict[str, Tensor]) -> None:
        self._layout, self._views = layout, views
        self._places: dict[str, Tensor] = {}
        for name, *_ in layout:
            views[name].register_post_accumulate_grad_hook(partial(self._keep, name))

    def write(self, flat: Tensor) -> None:
        """From now on gradients go to this buffer: the first of each parameter is written, in the place of what is there."""
        flat[self._layout[-1][2] :].zero_()
        for name, start, end, shape in self._layout:
            self._views[name].grad = None
            self._places[name] = flat[start:end].view(shape)

    def complete(self) -> None:
        """Zero for the parameters that have got no gradient since the buffer was begun."""
        for name, place in self._places.items():
            if self._views[name].grad is None:
                self._views[name].grad = place.zero_()

    def drop(self) -> None:
        """Let go of the buffer."""
        self._places.clear()
        for name, *_ in self._layout:
            self._views[name].grad = None

    def _keep(self, name: str, parameter: Tensor) -> None:
        place = self._places[name]
        if parameter.grad is not None and parameter.grad is not place:
            parameter.grad = place.copy_(parameter.grad)
