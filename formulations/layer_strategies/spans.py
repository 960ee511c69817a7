"""A layer-strategies instance of consecutive layers of a model, from tables of what kinds of layer cost."""

from __future__ import annotations

from typing import Any, Protocol

from trainplan.formulations.layer_strategies.problem import Instance
from trainplan.formulations.strategy_tables import Tables


class KindedLayers(Protocol):
    """The L layers of a model, whose costs are in tables with one row for each kind of layer and of boundary.

    Layers of one kind are made of the same sub-layers, and so cost the same under every strategy; boundaries (between a layer
    and the next one) of one kind hand on hidden states of the same number of bytes. Kinds are numbered from 0.
    """

    @property
    def layer_names(self) -> tuple[str, ...]:
        """The name of each of the L layers."""
        ...

    @property
    def layer_kinds(self) -> tuple[int, ...]:
        """For each of the L layers, the number of its kind: its row in the tables of costs of a layer."""
        ...

    @property
    def boundary_kinds(self) -> tuple[int, ...]:
        """For each of the L - 1 boundaries between two neighbouring layers, the number of its kind: its row in the tables of
        costs of crossing a boundary (`transitions_ns` and `entries_ns`).
        """
        ...


def span_instance(
    layers: KindedLayers,
    tables: Tables,
    first: int,
    last: int,
    *,
    memory_bytes: int,
    in_flight: int = 1,
    weights: tuple[int, int] = (1, 1),
    name: str = "",
    provenance: dict[str, Any] | None = None,
) -> Instance:
    """The layers `first` to `last`, both included, as one pipeline stage: an instance of the problem `layer-strategies`, which
    chooses a strategy for each of them.

    Its objective is p (T - G) + q G, where T is the stage's time for one micro-batch and G the synchronisation within it,
    which only the last micro-batch has. If the span does not begin with the model's first layer, T includes receiving its
    input.

    Args:
        layers: all layers of the model.
        tables: the costs of all kinds of layers.
        memory_bytes: the memory of one device.
        in_flight: the number of micro-batches whose activations the stage holds at the same time.
        weights: (p, q).
        name, provenance: the instance's name, and where its numbers come from.
    """
    p, q = weights
    kinds = layers.layer_kinds[first : last + 1]
    times = list(p * (tables.time_ns - tables.sync_ns) + q * tables.sync_ns)
    states = list(tables.state_bytes + (in_flight - 1) * tables.forward_bytes)
    moves = list(p * tables.transitions_ns)  # one object for each kind, so that equal ones are known to be equal
    layers_ns = [times[kind] for kind in kinds]
    if first:
        layers_ns[0] = layers_ns[0] + p * tables.entries_ns[layers.boundary_kinds[first - 1]]
    return Instance(
        memory_bytes=memory_bytes,
        time_ns=tuple(layers_ns),
        forward_bytes=tuple(tables.forward_bytes[kind] for kind in kinds),
        backward_bytes=tuple(tables.backward_bytes[kind] for kind in kinds),
        state_bytes=tuple(states[kind] for kind in kinds),
        transitions_ns=tuple(moves[kind] for kind in layers.boundary_kinds[first:last]),
        strategies=(tables.strategies,) * len(kinds),
        layer_names=layers.layer_names[first : last + 1],
        name=name,
        provenance=provenance or {},
    )
