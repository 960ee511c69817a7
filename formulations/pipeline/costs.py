"""From a profile to a pipeline instance: what every layer costs for each number of stages and micro-batches of one batch.

Costs of a layer under a strategy are those of `formulations.work`, by cost model. A stage on g devices stands for all
stages of that size: links of a group are those of the cluster's first g devices. The hidden states that enter a stage cross
the slowest link between neighbouring stages; a device sends the rows that it works on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
from trainplan.formulations.costs.sequential.communication import moved_bytes
from trainplan.formulations.costs.sequential.cost_models import COST_MODELS, CostModel, layer_costs, transition_ns, unit_costs
from trainplan.formulations.costs.sequential.sublayer_time import grouped_units, layer_name
from trainplan.formulations.numbers import Integers
from trainplan.formulations.pipeline.problem import COLUMNS, Configuration, Instance, PassOrder, Tables
from trainplan.formulations.plan.strategy import Strategy
from trainplan.formulations.strategy_spaces import SPACES, Space, stage_depths
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import divisors
from trainplan.profiling.costs import collective_ns
from trainplan.profiling.profiles import Profile


class PipelineCosts:
    """Tables of one profile in one space, made when first asked for and kept: many batches share sizes of micro-batch."""

    def __init__(
        self,
        profile: Profile,
        *,
        costs: CostModel = COST_MODELS["paper"],
        space: Space = SPACES["full"],
        by_unit: bool = False,
    ) -> None:
        """profile: of all devices, with the costs of every shape that will be asked for. by_unit: every sub-layer is a layer
        of its own."""
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

    @cached_property
    def stages(self) -> list[int]:
        """Numbers of stages that the space, the devices and the model allow."""
        possible = [count for count in stage_depths(self.profile.devices) if count <= len(self.layer_kinds)]
        return [count for count in self.space.stages(self.profile.devices) if count in possible]

    def strategies(self, group: int, samples: int) -> list[Strategy]:
        """Strategies of the space by which the model can be split, and which divide the samples of a micro-batch."""
        if group not in self._strategies:
            degrees = set(self.profile.tp_degrees(group))
            self._strategies[group] = [s for s in self.space.strategies(group) if s.degree("tp") in degrees]
        return [s for s in self._strategies[group] if samples % s.data_degree == 0]

    def tables(self, group: int, samples: int) -> Tables | None:
        """Costs of stages of `group` devices with `samples` a micro-batch; None where no strategy is possible."""
        key = (group, samples)
        if key not in self._tables:
            strategies = self.strategies(group, samples)
            self._tables[key] = self._made(group, samples, strategies) if strategies else None
        return self._tables[key]

    def _made(self, group: int, samples: int, strategies: Sequence[Strategy]) -> Tables:
        # All units of the one stage are laid out alike then, and so a table that embedding and head share is there once.
        once = group == self.profile.devices and len({(s.levels, s.zero_stage) for s in strategies}) == 1
        columns: dict[str, Integers] = {name: np.zeros((len(self.kinds), len(strategies)), np.int64) for name in COLUMNS}
        for kind, parts in enumerate(self.kinds):
            for s, strategy in enumerate(strategies):
                costs = layer_costs([self._unit(part, strategy, samples, once) for part in parts])
                for name, column in columns.items():
                    column[kind, s] = round(getattr(costs, name))
        columns["sync_ns"] = np.minimum(columns["sync_ns"], columns["time_ns"])
        layouts = {strategy.layout: strategy for strategy in strategies}
        moves = np.zeros((len(self.boundaries), len(strategies), len(strategies)), np.int64)
        for boundary, size in enumerate(self.boundaries):
            between = {
                (a, b): transition_ns(self.profile, self.costs, layouts[a], layouts[b], samples, size)
                for a in layouts
                for b in layouts
            }
            moves[boundary] = [[between[a.layout, b.layout] for b in strategies] for a in strategies]
        entries = [[self._entry_ns(group, samples // s.data_degree * size) for s in strategies] for size in self.boundaries]
        return Tables(
            strategies=tuple(map(str, strategies)),
            transitions_ns=moves,
            entries_ns=np.array(entries, np.int64).reshape(len(self.boundaries), len(strategies)),
            **columns,
        )

    def _entry_ns(self, group: int, message_bytes: int) -> int:
        """Hidden states to a stage and their gradients back, over the slowest of the links between neighbouring stages."""
        devices, network = self.profile.devices, self.profile.network
        starts = range(0, devices - group, group)
        slowest = max((collective_ns(network, "p2p", message_bytes, (a, a + group)) for a in starts), default=0.0)
        return round(2 * slowest)

    def instance(
        self,
        batch: int,
        memory_bytes: int,
        *,
        schedule: PassOrder = "1f1b",
        stages: Sequence[int] | None = None,
        micro_batches: Callable[[int], Sequence[int]] | Sequence[int] | None = None,
        name: str | None = None,
        provenance: dict[str, Any] | None = None,
    ) -> Instance:
        """The instance of one batch, in samples of a step.

        stages, micro_batches: only these numbers (default: all possible), the latter also by the number of stages. Raises
        InputError.
        """
        profile, configurations = self.profile, []
        if not self.stages:
            problem = f"is {self.space.name!r}, which has no stages of a power of two of the {profile.devices} devices"
            raise InputError("command line", "--space", problem, "give full, a cluster of a power of two, or use `place`")
        counts = [count for count in self.stages if stages is None or count in stages]
        if not counts:
            possible = f"{', '.join(map(str, self.stages)) or 'none'} for {len(self.layer_kinds)} layers"
            fix = f"give another: {self.space.name} has {possible}"
            raise InputError("command line", "--pipeline", f"is {', '.join(map(str, stages or []))}", fix)
        for count in counts:
            group = profile.devices // count
            numbers = micro_batches(count) if callable(micro_batches) else micro_batches
            for m in divisors(batch) if numbers is None else numbers:
                tables = self.tables(group, batch // m) if batch % m == 0 else None
                if tables is not None:
                    configurations.append(Configuration(count, m, tables, schedule))
        if not configurations:
            fix = f"give a multiple of {profile.devices}"
            raise InputError("command line", "--batch", f"is {batch}, which no strategy of {self.space.name} divides", fix)
        return Instance(
            devices=profile.devices,
            memory_bytes=memory_bytes,
            batch=batch,
            layer_names=self.layer_names,
            layer_kinds=self.layer_kinds,
            boundary_kinds=self.boundary_kinds,
            configurations=tuple(configurations),
            name=name or f"{profile.name} on {profile.devices} x {' and '.join(profile.kinds)}",
            provenance={
                "model": profile.model or {"name": profile.name},
                "cost_model": self.costs.name,
                "profile": profile.origin,
                "space": self.space.name,
                **(provenance or {}),
            },
        )
