"""Classes of spans of consecutive layers: spans with equal kinds of layers and boundaries cost the same, and are solved
together.

Classes form a forest: a class is its parent, one layer shorter, and the kinds of the boundary and layer that follow. A root is
a first layer and the boundary at which the stage is entered (none for the model's first layer).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
Path = tuple[tuple[int, int], ...]  # first and last layer of every stage


@dataclass(frozen=True)
class SpanLevel:
    """All classes of spans of one length in parallel arrays, one entry per class. parent: the class of the span without its
    last layer. boundary: the kind of the boundary before the last layer. kind: the kind of the last layer."""

    parent: Indices
    boundary: Indices
    kind: Indices


@dataclass(frozen=True, eq=False)
class SpanClasses:
    """The classes of all spans of consecutive layers of a chain of L layers; spans with equal kinds of layers and boundaries
    are one class.

    number: (L, L), the class of layers a..b, -1 if b < a. levels[n]: the classes of n + 1 layers, numbered in order; at the
    first level `parent` is -1 and `boundary` is the kind at which the stage is entered, or -1 at the model's first layer. span:
    for each class, first and last layer of one of its spans.
    """

    number: Indices
    levels: tuple[SpanLevel, ...]
    span: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.span)

    def cheapest(self, costs: Floats, joined: np.ufunc, check_time: Callable[[], None] = lambda: None) -> tuple[float, Path]:
        """The cheapest partition of all layers into stages: its cost, and first and last layer of each stage; infinite and
        empty if there is none.

        costs: (stages, classes), the cost of a class of spans as each stage, infinite if impossible. joined: how the costs of
        stages are combined, np.add or np.maximum. check_time: called for every stage; an exception that it raises is passed on.
        """
        layers = len(self.number)
        longest = int(self._lengths[np.isfinite(costs).any(axis=0)].max(initial=1))  # of a span that some stage can hold
        longest = min(longest, layers - len(costs) + 1)
        ends = np.arange(layers)[:, None]
        before = ends - np.arange(longest)  # [last, n]: the first layer of a span of n + 1 layers; negative where there is none
        classes, blocked = np.where(before >= 0, self.number[before, ends], 0), before < 0
        reach = np.full(layers + 1, np.inf)
        reach[0], origins = 0.0, []
        for of_stage in costs:
            check_time()
            through = joined(reach[before], of_stage[classes])
            through[blocked] = np.inf
            origins.append(through.argmin(axis=1))
            reach = np.concatenate(([np.inf], through[ends[:, 0], origins[-1]]))
        if reach[-1] == np.inf:
            return np.inf, ()
        path, last = [], layers - 1
        for origin in reversed(origins):
            path.append((last - int(origin[last]), last))
            last = path[-1][0] - 1
        return float(reach[-1]), tuple(reversed(path))

    @cached_property
    def _lengths(self) -> Indices:
        """For each class of spans, the number of layers that its spans have, (classes,)."""
        return np.repeat(np.arange(1, len(self.levels) + 1), [len(level.kind) for level in self.levels])


@lru_cache(maxsize=16)
def spans_of(layer_kinds: tuple[int, ...], boundary_kinds: tuple[int, ...]) -> SpanClasses:
    """The classes of all spans of consecutive layers of a model. layer_kinds: for each layer the number of its kind; layers of
    one kind have equal costs. boundary_kinds: for each boundary between neighbouring layers the number of its kind; boundaries
    of one kind have equal costs.
    """
    layers = len(layer_kinds)
    number = np.full((layers, layers), -1, np.intp)
    kinds, boundaries = np.array(layer_kinds, np.intp), np.array((-1, *boundary_kinds), np.intp)  # of and before each layer
    _, added = np.unique(np.stack((boundaries, kinds)), axis=1, return_inverse=True)  # a number for each such pair
    added, parent = added.reshape(-1), np.full(layers, -1, np.intp)  # parent: by first layer
    levels, span = [], list[tuple[int, int]]()
    for length in range(layers):
        parent = parent[: layers - length]
        _, firsts, classes = np.unique(parent * layers + added[length:], return_index=True, return_inverse=True)
        order = np.argsort(firsts)  # classes are numbered in the order of their first spans
        firsts = firsts[order]
        levels.append(SpanLevel(parent[firsts], boundaries[firsts + length], kinds[firsts + length]))
        parent = np.argsort(order)[classes.reshape(-1)] + len(span)
        number[np.arange(len(parent)), np.arange(length, layers)] = parent
        span += [(first, first + length) for first in firsts.tolist()]
    return SpanClasses(number, tuple(levels), tuple(span))
