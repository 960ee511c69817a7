"""Gradients of a unit's parameters in one flat buffer: the first backward pass writes them there, later ones add to them.

A parameter that has no gradient takes over the tensor that the backward pass made. So what is to be written is taken from the
parameters first; and as soon as one has got its gradient, that is copied to its place in the buffer, and let go of. Where the
buffer is of a wider dtype than the parameters, that is so in every backward pass, and later ones are added there.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

Layout = list[tuple[str, int, int, tuple[int, ...]]]  # name, start, end and shape of each parameter
BLOCK = 2**18  # numbers that are widened at a time on the CPU, which copies them


class FlatGradients:
    """Where the gradients of parameters go. layout: of the flat buffer; views: the parameters, by name."""

    def __init__(self, layout: Layout, views: dict[str, Tensor]) -> None:
        self._layout, self._views = layout, views
        self._places: dict[str, Tensor] = {}
        self._awaited: set[str] = set()  # those that have got no gradient since the buffer was begun
        for name, *_ in layout:
            views[name].register_post_accumulate_grad_hook(partial(self._keep, name))

    def write(self, flat: Tensor) -> None:
        """From now on gradients go to this buffer: the first of each parameter is written, in the place of what is there."""
        flat[self._layout[-1][2] :].zero_()
        for name, start, end, shape in self._layout:
            self._views[name].grad = None
            self._places[name] = flat[start:end].view(shape)
            self._awaited.add(name)

    def complete(self) -> None:
        """Zero for the parameters that have got no gradient since the buffer was begun."""
        for name in self._awaited:
            self._set(name, self._places[name].zero_())
        self._awaited.clear()

    def drop(self) -> None:
        """Let go of the buffer."""
        self._places.clear()
        for name, *_ in self._layout:
            self._views[name].grad = None

    def _keep(self, name: str, parameter: Tensor) -> None:
        place, made = self._places[name], parameter.grad
        if made is None or made is place:
            return
        if name in self._awaited:
            self._awaited.remove(name)
            place.copy_(made)
        else:
            _add(place, made)
        self._set(name, place)

    def _set(self, name: str, place: Tensor) -> None:
        """Later gradients are added to that place: by torch, where parameters have the dtype of the buffer."""
        view = self._views[name]
        view.grad = place if place.dtype is view.dtype else None


def _add(wide: Tensor, narrow: Tensor) -> None:
    if wide.is_cuda:
        wide += narrow
        return
    for sums, terms in zip(wide.view(-1).split(BLOCK), narrow.reshape(-1).split(BLOCK), strict=True):
        sums += terms
