"""What one layer costs under one strategy, and the re-layout between two: a profile and a model become an instance.

Two cost models, by name:

- `paper` (Galvatron-BMW, Section V): forward = compute + collectives in sequence; gradient communication of DP and SDP
  overlaps backward compute, each slowed down as the profile says (1.3 in the paper); CKPT adds one forward pass with its
  all-reduces. What only the last micro-batch pays, C(M, 0) of Eq. 8, is the part of its gradient communication that the
  backward pass does not hide: taken out whole, as the text has it, earlier micro-batches would cost less than their compute.
  Memory as in Section III-A: O_b = intermediates under CKPT, else 0; no temporaries, no gathered parameters.
- `executed`: what trainplan's own programs do. Everything in sequence, as the serial back-end issues it; a recomputation
  repeats no collective (a unit's partial output is not needed again); temporaries, gathered parameters, full gradients
  before they are scattered, re-layout buffers, the optimizer step and the reduction of tied weights count.

Model states are 16 bytes a parameter in fp32: parameter, gradient and AdamW's two moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice, product
from typing import Any

from trainplan.formulations.layer_strategies.problem import NAME, Instance, load
from trainplan.formulations.strategies import Strategy, decision_tree, gather_groups
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.network import Operation
from trainplan.profiling.costs import collective_ns, overlapped_ns
from trainplan.profiling.profiles import ChainUnit, Profile


@dataclass(frozen=True)
class CostModel:
    """executed: what trainplan's programs do, one thing after the other; else the paper's model, with overlap."""

    name: str
    executed: bool


COST_MODELS = {model.name: model for model in (CostModel("paper", False), CostModel("executed", True))}
LOSS_BYTES = 8  # the program's one scalar


@dataclass(frozen=True)
class UnitCosts:
    """One sub-layer under one strategy. forward_ns: the forward pass alone; sync_ns: the part that only the last micro-batch of
    a step pays. Both are part of time_ns."""

    time_ns: float
    forward_ns: float
    sync_ns: float
    forward_bytes: int
    backward_bytes: int
    state_bytes: int


@dataclass(frozen=True)
class Stage:
    """Which part of the model an instance covers: stage `index` of `count`, split evenly by blocks, and its micro-batches."""

    count: int = 1
    index: int = 0
    micro_batches: int = 1

    @property
    def in_flight(self) -> int:
        """Micro-batches whose activations 1F1B-Flush holds at once."""
        return min(self.micro_batches, self.count - self.index)

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


def unit_costs(profile: Profile, costs: CostModel, sublayer: str, strategy: Strategy, samples: int) -> UnitCosts:
    """Cost of one micro-batch of `samples` samples. Raises InputError where the profile lacks the shape."""
    tp, rows = strategy.degree("tp"), samples // strategy.data_degree
    entry, shape, element = profile.cost(sublayer, tp, rows), profile.shapes[sublayer], profile.parameter_bytes
    shard, collective = shape.shard(tp), partial(_collective_ns, profile, strategy)
    sharded = -(-shard.parameters // strategy.degree("sdp"))
    weights = shard.parameters * element

    forward_ns, backward_ns = entry.forward_ns.value, entry.backward_ns.value
    if strategy.ckpt:
        forward_ns, backward_ns = entry.forward_without_graph_ns.value, backward_ns + forward_ns
    if shape.kind == "head":
        across = collective("tp", "all-gather", 3 * tp * rows * shape.tokens * element)  # the loss's statistics
    else:
        across = shape.reductions * collective("tp", "all-reduce", rows * shape.output_bytes)
    gather = collective("sdp", "all-gather", weights)
    back = shape.reductions * collective("tp", "all-reduce", rows * shape.input_bytes) if shape.kind != "embedding" else 0.0
    again = across if strategy.ckpt and not costs.executed else 0.0
    scatter = collective("sdp", "reduce-scatter", weights)
    reduce = collective("dp", "all-reduce", sharded * element)
    forward = forward_ns + across + gather
    if not costs.executed:
        slowdowns = profile.compute_slowdown.value, profile.communication_slowdown.value
        overlapped = overlapped_ns(backward_ns, gather + scatter + reduce, *slowdowns)
        backward = overlapped + back + again
        sync = min(scatter + reduce, overlapped - overlapped_ns(backward_ns, gather, *slowdowns))
    else:
        sync = reduce
        backward = backward_ns + back + again + gather + scatter + reduce
        replicated = collective("tp", "all-reduce", shard.replicated_parameters * element)
        backward += replicated
        # Sharded gradients are scattered in every micro-batch, and made whole over the tensor-parallel group before.
        sync += 0.0 if strategy.degree("sdp") > 1 else replicated
        once = sharded * profile.optimizer_ns_per_parameter.value
        if shape.kind == "embedding" and profile.tied_parameters:
            table = profile.tied_parameters * element
            once += collective_ns(profile.network, "all-reduce", table, range(strategy.group))
        sync, backward = sync + once, backward + once

    kept, incoming = entry.kept_bytes.value, rows * shape.input_bytes
    checkpoint = incoming if entry.checkpoint_bytes is None else entry.checkpoint_bytes.value
    forward_bytes = checkpoint if strategy.ckpt else incoming + kept
    backward_bytes = _backward_bytes(profile, costs, sublayer, strategy, samples)
    state_bytes = profile.state_bytes_per_parameter * sharded
    if costs.executed:
        state_bytes += LOSS_BYTES  # of any unit: each may be all that a stage has
    if costs.executed and shape.kind == "head":
        # Logits wait for their backward pass, also those of other micro-batches in flight.
        logits = rows * shard.output_bytes
        forward_bytes, backward_bytes = forward_bytes + logits, backward_bytes - logits
        backward_bytes = max(backward_bytes, profile.tied_parameters * element - forward_bytes)
    return UnitCosts(forward + backward, forward, sync, forward_bytes, backward_bytes, state_bytes)


@cache
def _peers(strategy: Strategy, paradigm: Any) -> tuple[int, ...]:
    """The first device's group of a paradigm."""
    return strategy.peers(0, paradigm)


def _collective_ns(profile: Profile, strategy: Strategy, paradigm: Any, operation: Operation, message_bytes: int) -> float:
    return collective_ns(profile.network, operation, message_bytes, _peers(strategy, paradigm))


def _backward_bytes(profile: Profile, costs: CostModel, sublayer: str, strategy: Strategy, samples: int) -> int:
    """O_b. In the executed model also the forward pass's peak beyond what it keeps, so that Eq. 2 covers it."""
    tp, rows = strategy.degree("tp"), samples // strategy.data_degree
    entry, shape = profile.cost(sublayer, tp, rows), profile.shapes[sublayer]
    incoming, rebuilt = rows * shape.input_bytes, 0
    if strategy.ckpt:
        checkpoint = incoming if entry.checkpoint_bytes is None else entry.checkpoint_bytes.value
        rebuilt = incoming + entry.kept_bytes.value - checkpoint
    if not costs.executed:
        return rebuilt
    element, degree, shard = profile.parameter_bytes, strategy.degree("sdp"), shape.shard(tp)
    sharded = degree > 1
    gathered = -(-shard.parameters // degree) * degree * element if sharded else 0
    output, workspace = rows * shard.output_bytes, entry.forward_workspace_bytes.value
    # A re-layout holds the blocks it gathered beside its result; which neighbour asks for one is not known here.
    moved = 0 if strategy.group == 1 else 2 * samples * max(moved_bytes(profile, sublayer))
    forward = gathered + output + max(workspace, moved) + rebuilt
    gradients = (0 if shape.kind == "embedding" else incoming) + gathered
    recomputed = rebuilt + output + workspace if strategy.ckpt else 0
    if shape.kind == "head":
        # Beside the logits at the loss: targets, this shard's three statistics, and those of all shards.
        forward = max(forward, output + rows * shape.tokens * (8 + 3 * element * (1 + (tp if tp > 1 else 0))))
    backward = gathered + gradients + output + recomputed + max(entry.backward_workspace_bytes.value, moved)
    if shape.kind == "embedding" and profile.tied_parameters:
        backward = max(backward, profile.tied_parameters * element - incoming)
    return max(forward, backward)


def moved_bytes(profile: Profile, sublayer: str) -> tuple[int, int]:
    """Hidden states of one sample that may be re-laid before and after a sub-layer."""
    shape = profile.shapes[sublayer]
    before = 0 if shape.kind == "embedding" else shape.input_bytes + shape.carried_bytes
    return before, 0 if shape.kind == "head" else shape.output_bytes + shape.carried_bytes


def layer_costs(parts: Sequence[UnitCosts]) -> UnitCosts:
    """Consecutive units under one strategy as one layer: Eq. 2 over the units gives the layer's O_b exactly."""
    held, peak = 0, 0
    for part in parts:
        held += part.forward_bytes
        peak = max(peak, held + part.backward_bytes)
    return UnitCosts(
        sum(part.time_ns for part in parts),
        sum(part.forward_ns for part in parts),
        sum(part.sync_ns for part in parts),
        held,
        peak - held,
        sum(part.state_bytes for part in parts),
    )


def transition_ns(profile: Profile, before: Strategy, after: Strategy, samples: int, sample_bytes: int) -> float:
    """R: the Slice-Gather of the hidden states forward and of their gradients backward; the slowest rank counts.

    sample_bytes: hidden states of one sample between the two layers.
    """
    there = slice_gather_ns(profile, before, after, samples, sample_bytes)
    return there + slice_gather_ns(profile, after, before, samples, sample_bytes)


def slice_gather_ns(profile: Profile, before: Strategy, after: Strategy, samples: int, sample_bytes: int) -> float:
    """One way: the rows that a rank works on under `after` and not under `before`, gathered from those that hold them."""
    block = samples // before.data_degree * sample_bytes
    groups = gather_groups(before, after)
    if profile.network.uniform:
        groups = islice(groups, 1)  # all are alike
    return max((collective_ns(profile.network, "all-gather", block * len(ranks), ranks) for ranks in groups), default=0.0)


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
    stage: Stage | None = None,
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
    stage = stage or Stage()
    samples = stage.samples(batch)
    strategies = usable_strategies(profile, samples, takeaway3)
    layers = stage.layers(profile)
    if by_unit:
        layers = [[unit] for layer in layers for unit in layer]
    repeats = stage.micro_batches if stage.count == 1 else 1

    @cache
    def options(parts: tuple[str, ...]) -> list[dict[str, Any]]:
        found = []
        for strategy in strategies:
            part = layer_costs([unit_costs(profile, costs, name, strategy, samples) for name in parts])
            found.append(
                {
                    "strategy": str(strategy),
                    "time_ns": round(repeats * part.time_ns - (repeats - 1) * part.sync_ns),
                    "forward_bytes": part.forward_bytes,
                    "backward_bytes": part.backward_bytes,
                    "state_bytes": part.state_bytes + (stage.in_flight - 1) * part.forward_bytes,
                }
            )
        return found

    # A re-layout depends on where the samples lie, which many strategies share, and on what passes between the layers.
    @cache
    def moves(sample_bytes: int) -> list[list[int]]:
        moved: dict[tuple[Any, Any], int] = {}
        for a, b in product({s.layout: s for s in strategies}.values(), repeat=2):
            moved[a.layout, b.layout] = round(repeats * transition_ns(profile, a, b, samples, sample_bytes))
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
