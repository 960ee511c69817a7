"""Gradients of a unit's parameters in one flat buffer: the first backward pass writes them there, later ones add to them.

A parameter without a gradient adopts the tensor that the backward pass produces. So to write gradients, those of the parameters
are removed first; and as soon as a parameter has got one, it is copied into the buffer, and freed. Where the buffer has a wider
dtype than the parameters, that happens in every backward pass, and later gradients are added to the buffer here.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

Layout = list[tuple[str, int, int, tuple[int, ...]]]  # name, start, end and shape of each parameter
BLOCK = 2**18  # elements that are widened at a time on the CPU, which copies them


class FlatGradients:
    """Keeps the gradients of a unit's parameters in one flat buffer. layout: (name, start, end, shape) of each parameter in
    the buffer. views: the parameters, by name, as views of a flat buffer of parameters."""

    def __init__(self, layout: Layout, views: dict[str, Tensor]) -> None:
        self._layout, self._views = layout, views
        self._targets: dict[str, Tensor] = {}
        self._awaited: set[str] = set()  # names without a gradient since `write`
        for name, *_ in layout:
            views[name].register_post_accumulate_grad_hook(partial(self._keep, name))

    def write(self, flat: Tensor) -> None:
        """From now on collect gradients in `flat`: the first gradient of each parameter overwrites its part, later ones are
        added."""
        flat[self._layout[-1][2] :].zero_()
        for name, start, end, shape in self._layout:
            self._views[name].grad = None
            self._targets[name] = flat[start:end].view(shape)
            self._awaited.add(name)

    def complete(self) -> None:
        """Zero the parts of the flat buffer of parameters that have got no gradient since `write`."""
        for name in self._awaited:
            self._set(name, self._targets[name].zero_())
        self._awaited.clear()

    def drop(self) -> None:
        """Release the flat buffer, and the parameters' gradients, which are views of it."""
        self._targets.clear()
        for name, *_ in self._layout:
            self._views[name].grad = None

    def _keep(self, name: str, parameter: Tensor) -> None:
        """Move the new gradient of the parameter called `name` to the flat buffer, or add it there; torch calls this after
        each accumulation."""
        target, produced = self._targets[name], parameter.grad
        if produced is None or produced is target:
            return
        if name in self._awaited:
            self._awaited.remove(name)
            target.copy_(produced)
        else:
            _add(target, produced)
        self._set(name, target)

    def _set(self, name: str, target: Tensor) -> None:
        """Let torch add later gradients of the parameter called `name` to `target`, its part of the flat buffer, if both have
        the same dtype. Otherwise the parameter is left without a gradient, and a hook that torch calls after each accumulation
        adds later gradients to `target`."""
        view = self._views[name]
        view.grad = target if target.dtype is view.dtype else None


def _add(wide: Tensor, narrow: Tensor) -> None:
    """Add `narrow` to `wide`, a tensor of a wider dtype, in place and, on the CPU, block by block, since torch copies what it
    widens."""
    if wide.is_cuda:
        wide += narrow
        return
    for sums, terms in zip(wide.view(-1).split(BLOCK), narrow.reshape(-1).split(BLOCK), strict=True):
        sums += terms
