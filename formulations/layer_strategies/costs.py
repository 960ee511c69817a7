"""What one layer costs under one strategy, and the re-layout between two: a profile and a model become an instance.

Costs of sub-layers and of re-layouts are those of `formulations.work`, by cost model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

from trainplan.formulations.layer_strategies.problem import NAME, Instance, load
from trainplan.formulations.step.schedules import most_in_flight
from trainplan.formulations.strategies import Strategy, decision_tree
from trainplan.formulations.work.models import COST_MODELS, CostModel, layer_costs, transition_ns, unit_costs
from trainplan.formulations.work.moves import moved_bytes
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.profiles import ChainUnit, Profile


@dataclass(frozen=True)
class EvenStage:
    """Which part of the model an instance covers: stage `index` of `count`, split evenly by blocks, and its micro-batches."""

    count: int = 1
    index: int = 0
    micro_batches: int = 1

    @property
    def in_flight(self) -> int:
        """Micro-batches whose activations 1F1B-Flush holds at once."""
        return most_in_flight("1f1b", self.count, self.micro_batches, self.index)

    def samples(self, batch: int) -> int:
        """Samples of a micro-batch. Raises InputError."""
        if batch < 1 or self.micro_batches < 1 or batch % self.micro_batches:
            problem = f"is {batch} in {self.micro_batches} micro-batches"
            raise InputError("command line", "--batch", problem, "give a multiple of --micro-batches")
        return batch // self.micro_batches

    def layers(self, profile: Profile) -> list[list[ChainUnit]]:
        """Units of each layer of this stage; the embedding goes with the first block, the head with the last."""
        last = profile.units[-1].layer
        blocks = max(1, last - 1)
        if not 1 <= self.count <= blocks:
            raise InputError("command line", "--pipeline", f"is {self.count}", f"give 1 to {blocks}")
        if not 0 <= self.index < self.count:
            raise InputError("command line", "--stage", f"is {self.index}", f"give a stage from 0 to {self.count - 1}")
        begin = 0 if self.index == 0 else self.index * blocks // self.count + 1
        end = last if self.index == self.count - 1 else (self.index + 1) * blocks // self.count
        return [[unit for unit in profile.units if unit.layer == layer] for layer in range(begin, end + 1)]


def grouped_units(profile: Profile, by_unit: bool = False) -> list[list[ChainUnit]]:
    """The chain's units by planner's layer; by_unit: every sub-layer is a layer of its own."""
    layers: list[list[ChainUnit]] = []
    for unit in profile.units:
        if by_unit or not layers or layers[-1][-1].layer != unit.layer:
            layers.append([])
        layers[-1].append(unit)
    return layers


def layer_name(layer: Sequence[ChainUnit]) -> str:
    """The unit's name, or what those of several units begin with."""
    return layer[0].name if len(layer) == 1 else layer[0].name.split(".")[0]


def usable_strategies(profile: Profile, samples: int, takeaway3: bool = True) -> list[Strategy]:
    """The decision tree's strategies whose tp degree every sub-layer can be split into, and that divide the samples."""
    group = profile.devices
    if group & (group - 1):
        raise InputError("profile", "devices", f"is {group}", f"give a power of two, such as {1 << group.bit_length() - 1}")
    degrees = set(profile.tp_degrees(group))
    usable = [
        strategy
        for strategy in decision_tree(group, takeaway3=takeaway3)
        if strategy.degree("tp") in degrees and samples % strategy.data_degree == 0
    ]
    if not usable:
        raise InputError("command line", "--batch", f"gives {samples} samples a micro-batch", f"give a multiple of {group}")
    return usable


def build(
    profile: Profile,
    memory_bytes: int,
    batch: int,
    *,
    costs: CostModel = COST_MODELS["paper"],
    stage: EvenStage | None = None,
    by_unit: bool = False,
    takeaway3: bool = True,
    name: str | None = None,
    provenance: dict[str, Any] | None = None,
) -> Instance:
    """The instance of one pipeline stage on all devices of the profile.

    batch: samples of one step. by_unit: let every sub-layer choose, not every layer. In a pipeline of one stage the time is
    that of the whole step, m micro-batches with synchronisation in the last one only (Eq. 8); in a longer pipeline it is that
    of one micro-batch, and the activations of all micro-batches in flight count. Raises InputError.
    """
    stage = stage or EvenStage()
    samples = stage.samples(batch)
    strategies = usable_strategies(profile, samples, takeaway3)
    layers = stage.layers(profile)
    if by_unit:
        layers = [[unit] for layer in layers for unit in layer]
    repeats = stage.micro_batches if stage.count == 1 else 1

    @cache
    def options(parts: tuple[str, ...]) -> list[dict[str, Any]]:
        options_of_layer = []
        for strategy in strategies:
            part = layer_costs([unit_costs(profile, costs, name, strategy, samples) for name in parts])
            options_of_layer.append(
                {
                    "strategy": str(strategy),
                    "time_ns": round(repeats * part.time_ns - (repeats - 1) * part.sync_ns),
                    "forward_bytes": part.forward_bytes,
                    "backward_bytes": part.backward_bytes,
                    "state_bytes": part.state_bytes + (stage.in_flight - 1) * part.forward_bytes,
                }
            )
        return options_of_layer

    # A re-layout depends on where the samples lie, which many strategies share, and on what passes between the layers.
    @cache
    def moves(sample_bytes: int) -> list[list[int]]:
        moved: dict[tuple[Any, Any], int] = {}
        for a, b in product({s.layout: s for s in strategies}.values(), repeat=2):
            moved[a.layout, b.layout] = repeats * transition_ns(profile, costs, a, b, samples, sample_bytes)
        return [[moved[a.layout, b.layout] for b in strategies] for a in strategies]

    return load(
        {
            "problem": NAME,
            "version": 1,
            "name": name or f"{profile.name} on {profile.devices} x {' and '.join(profile.kinds)}",
            "provenance": {
                "model": profile.model or {"name": profile.name},
                "cost_model": costs.name,
                "profile": profile.origin,
                "batch": batch,
                "stage": [stage.index, stage.count],
                "micro_batches": stage.micro_batches,
                **(provenance or {}),
            },
            "devices": profile.devices,
            "memory_bytes": memory_bytes,
            "layers": [
                {
                    "name": layer_name(layer),
                    "options": options(tuple(unit.sublayer for unit in layer)),
                }
                for layer in layers
            ],
            "transitions_ns": [moves(moved_bytes(profile, layer[-1].sublayer)[1]) for layer in layers[:-1]],
        }
    )
