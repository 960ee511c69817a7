"""Costs of every kind of layer under every strategy of a search space, as tables for one size of stage and of micro-batch.

The problems layer-strategies and pipeline choose from these tables. A *kind* of layer stands for all layers that are made of
the same sub-layers, and a kind of boundary for all boundaries between two layers that hand on hidden states of one size, so a
model of many equal layers has small tables. Times and bytes come from a profile by one of the two cost models of
`formulations.costs.sequential.cost_models`. A stage on g devices stands for all stages of that size: its collectives use the
links of the cluster's first g devices. The hidden states that enter a stage cross the slowest link between neighbouring stages,
and each device sends the rows that it works on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
from trainplan.formulations.costs.sequential.communication import moved_bytes
from trainplan.formulations.costs.sequential.cost_models import COST_MODELS, CostModel, layer_costs, transition_ns, unit_costs
from trainplan.formulations.costs.sequential.sublayer_time import grouped_units, layer_name
from trainplan.formulations.numbers import Integers
from trainplan.formulations.plan.strategy import Strategy
from trainplan.formulations.strategy_spaces import SPACES, Space
from trainplan.profiling.costs import collective_ns
from trainplan.profiling.profiles import Profile

COLUMNS = ("time_ns", "sync_ns", "forward_bytes", "backward_bytes", "state_bytes")  # numbers of a layer under a strategy


@dataclass(frozen=True, eq=False)
class Tables:
    """Costs of K kinds of layer under S strategies, and of Q kinds of boundary between layers, for one micro-batch. Layers of
    one kind are made of the same sub-layers; boundaries of one kind hand on hidden states of equal size.

    Attributes:
        strategies: the names of the S strategies.
        time_ns: (K, S), forward and backward pass of the last micro-batch of a step, synchronisation included.
        sync_ns: (K, S), the part of time_ns that only the last micro-batch has: gradient reduction and optimizer.
        forward_bytes: (K, S), O_f of the papers: bytes that the layer keeps from its forward pass to its backward pass.
        backward_bytes: (K, S), O_b: bytes that the layer's backward pass needs in addition.
        state_bytes: (K, S), O_ms: parameters, gradients and optimizer states.
        transitions_ns: (Q, S, S), re-layout of hidden states from the strategy before a boundary (first S) to the one after
            it.
        entries_ns: (Q, S), for a stage that begins after the boundary: receiving hidden states, and sending their gradients
            back.
    """

    strategies: tuple[str, ...]
    time_ns: Integers
    sync_ns: Integers
    forward_bytes: Integers
    backward_bytes: Integers
    state_bytes: Integers
    transitions_ns: Integers
    entries_ns: Integers

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the strategies' names and of all numbers, so that equal tables can be recognised."""
        digest = hashlib.sha256(json.dumps(self.strategies).encode())
        for name in (*COLUMNS, "transitions_ns", "entries_ns"):
            digest.update(np.ascontiguousarray(getattr(self, name), "<i8").tobytes())
        return digest.digest()

    def keep(self, options: Sequence[int]) -> Tables:
        """A copy of the tables with only some strategies. options: their indices in `strategies`, in the wanted order."""
        o = list(options)
        columns = {name: getattr(self, name)[:, o] for name in (*COLUMNS, "entries_ns")}
        names = tuple(self.strategies[s] for s in o)
        return Tables(strategies=names, transitions_ns=self.transitions_ns[:, o][:, :, o], **columns)


class StrategyCosts:
    """Tables of costs for one profile and one search space, each computed on first use and kept, since many batch sizes have
    micro-batches of the same size.

    Attributes:
        layer_names: the name of each of the L layers.
        layer_kinds: for each layer the number of its kind, from 0; layers of one kind are made of the same sub-layers and have
            equal costs.
        boundary_kinds: for each of the L - 1 boundaries between neighbouring layers the number of its kind, from 0; at
            boundaries of one kind, hidden states have the same number of bytes.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        costs: CostModel = COST_MODELS["paper"],
        space: Space = SPACES["full"],
        by_unit: bool = False,
    ) -> None:
        """Group the profile's sub-layers into layers and kinds of layers.

        Args:
            profile: costs of all devices together, with an entry for every shape that will be needed.
            costs: the cost model of the numbers.
            space: the strategies to choose from.
            by_unit: whether every sub-layer is a layer of its own, instead of every Transformer layer.
        """
        self.profile, self.costs, self.space = profile, costs, space
        layers = grouped_units(profile, by_unit)
        self.layer_names = tuple(map(layer_name, layers))
        parts = [tuple(unit.sublayer for unit in layer) for layer in layers]
        self.kinds = list(dict.fromkeys(parts))
        self.layer_kinds = tuple(self.kinds.index(part) for part in parts)
        between = [moved_bytes(profile, layer[-1].sublayer)[1] for layer in layers[:-1]]
        self.boundaries = list(dict.fromkeys(between))
        self.boundary_kinds = tuple(self.boundaries.index(size) for size in between)
        self._strategies: dict[int, list[Strategy]] = {}
        self._tables: dict[tuple[int, int], Tables | None] = {}
        self._unit = cache(partial(unit_costs, profile, costs))

    @property
    def name(self) -> str:
        """The name of instances that are built from these costs: "MODEL on N x DEVICE"."""
        return f"{self.profile.name} on {self.profile.devices} x {' and '.join(self.profile.kinds)}"

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the numbers come from, as instances store it: a dict with the entries model, cost_model and profile."""
        return {
            "model": self.profile.model or {"name": self.profile.name},
            "cost_model": self.costs.name,
            "profile": self.profile.origin,
        }

    def strategies(self, group: int, samples: int) -> list[Strategy]:
        """The strategies of the search space on `group` devices with a tensor-parallel degree that the model supports and a
        data-parallel degree that divides `samples`, the samples per micro-batch of all these devices."""
        if group not in self._strategies:
            degrees = set(self.profile.tp_degrees(group))
            self._strategies[group] = [s for s in self.space.strategies(group) if s.degree("tp") in degrees]
        return [s for s in self._strategies[group] if samples % s.data_degree == 0]

    def tables(self, group: int, samples: int) -> Tables | None:
        """The costs of all kinds of layer in a stage of `group` devices, for micro-batches of `samples` samples over all these
        devices; None if no strategy of the search space is possible. Computed on first use and kept.
        """
        key = (group, samples)
        if key not in self._tables:
            strategies = self.strategies(group, samples)
            self._tables[key] = self._computed(group, samples, strategies) if strategies else None
        return self._tables[key]

    def _computed(self, group: int, samples: int, strategies: Sequence[Strategy]) -> Tables:
        """Compute the tables of costs for some strategies on `group` devices each, with `samples` samples per micro-batch."""
        # All units of the one stage are laid out alike then, so a table that embedding and head share is one parameter.
        table_once = group == self.profile.devices and len({(s.levels, s.zero_stage) for s in strategies}) == 1
        columns: dict[str, Integers] = {name: np.zeros((len(self.kinds), len(strategies)), np.int64) for name in COLUMNS}
        for kind, parts in enumerate(self.kinds):
            for s, strategy in enumerate(strategies):
                costs = layer_costs([self._unit(part, strategy, samples, table_once) for part in parts])
                for name, column in columns.items():
                    column[kind, s] = round(getattr(costs, name))
        columns["sync_ns"] = np.minimum(columns["sync_ns"], columns["time_ns"])
        entries = [[self._entry_ns(group, samples // s.data_degree * size) for s in strategies] for size in self.boundaries]
        return Tables(
            strategies=tuple(map(str, strategies)),
            transitions_ns=self._transitions_ns(samples, strategies),
            entries_ns=np.array(entries, np.int64).reshape(len(self.boundaries), len(strategies)),
            **columns,
        )

    def _transitions_ns(self, samples: int, strategies: Sequence[Strategy]) -> Integers:
        """Times in ns of re-laying out hidden states between two layers, (Q, S, S): Q kinds of boundary, S strategies before it
        by S strategies after it. samples: samples per micro-batch."""
        layouts = {strategy.layout: strategy for strategy in strategies}
        moves = np.zeros((len(self.boundaries), len(strategies), len(strategies)), np.int64)
        for boundary, size in enumerate(self.boundaries):
            between = {
                (a, b): transition_ns(self.profile, self.costs, layouts[a], layouts[b], samples, size)
                for a in layouts
                for b in layouts
            }
            moves[boundary] = [[between[a.layout, b.layout] for b in strategies] for a in strategies]
        return moves

    def _entry_ns(self, group: int, message_bytes: int) -> int:
        """Time in ns to send hidden states to the next stage and to receive their gradients, over the slowest link between
        neighbouring stages. group: devices per stage. message_bytes: bytes of one message."""
        devices, network = self.profile.devices, self.profile.network
        starts = range(0, devices - group, group)
        slowest = max((collective_ns(network, "p2p", message_bytes, (a, a + group)) for a in starts), default=0.0)
        return round(2 * slowest)
