"""What one layer costs under one strategy, and the re-layout between two: a profile and a model become an instance.

Two cost models, by name:

- `paper` (Galvatron-BMW, Section V): forward = compute + collectives in sequence; gradient communication of DP and SDP
  overlaps backward compute, both slowed down by 1.3; CKPT adds one forward pass with its all-reduces. Memory as in
  Section III-A: O_b = intermediates under CKPT, else 0; no temporaries, no gathered parameters.
- `executed`: what trainplan's own programs do. Everything in sequence, as the serial back-end issues it; a recomputation
  repeats no collective (a unit's partial output is not needed again); temporaries, gathered parameters, full gradients
  before they are scattered, re-layout buffers, the optimizer step and the reduction of tied weights count.

Model states are 16 bytes a parameter in fp32: parameter, gradient and AdamW's two moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

from trainplan.formulations.layer_strategies.problem import NAME, Instance, load
from trainplan.formulations.strategies import Strategy, decision_tree, gather_ranks
from trainplan.profiling.clusters import slowest_link
from trainplan.profiling.costs import overlapped_ns, ring_ns
from trainplan.profiling.errors import InputError
from trainplan.profiling.models import Kind, Model, Unit
from trainplan.profiling.profiles import Profile


@dataclass(frozen=True)
class CostModel:
    """overlap_slowdown: of compute and gradient communication at once; None where they run one after the other."""

    name: str
    overlap_slowdown: float | None
    executed: bool


COST_MODELS = {model.name: model for model in (CostModel("paper", 1.3, False), CostModel("executed", None, True))}
STATE_COPIES = 4
LOSS_BYTES = 8  # the program's one scalar


@dataclass(frozen=True)
class UnitCosts:
    """One sub-layer under one strategy. sync_ns: the part that only the last micro-batch of a step pays."""

    time_ns: float
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

    def layers(self, model: Model) -> list[list[Unit]]:
        """Units of each layer of this stage; the embedding goes with the first block, the head with the last."""
        if not 1 <= self.count <= model.layers:
            raise InputError("command line", "--pipeline", f"is {self.count}", f"give 1 to {model.layers}")
        if not 0 <= self.index < self.count:
            raise InputError("command line", "--stage", f"is {self.index}", f"give a stage from 0 to {self.count - 1}")
        first = self.index * model.layers // self.count + 1
        last = (self.index + 1) * model.layers // self.count
        first, last = (0 if self.index == 0 else first), (last + 1 if self.index == self.count - 1 else last)
        return [[unit for unit in model.units if unit.layer == layer] for layer in range(first, last + 1)]


def unit_costs(model: Model, profile: Profile, costs: CostModel, kind: Kind, strategy: Strategy, samples: int) -> UnitCosts:
    """Cost of one micro-batch of `samples` samples. Raises InputError where the profile lacks the shape."""
    tp, rows = strategy.degree("tp"), samples // strategy.data_degree
    entry, element = profile.cost(kind, tp, rows), model.element_bytes
    collective = partial(_collective_ns, profile, strategy)
    parameters = max(model.parameter_count(kind, tp, index) for index in range(tp))
    sharded = -(-parameters // strategy.degree("sdp"))
    weights, boundary = parameters * element, model.boundary_bytes(rows)

    compute = entry.backward_ns + (entry.forward_ns if strategy.ckpt else 0)
    statistics = 3 * tp * rows * model.sequence * element
    across = collective("tp", "all-gather", statistics) if kind == "head" else collective("tp", "all-reduce", boundary)
    gather = collective("sdp", "all-gather", weights)
    back = 0.0 if kind == "embedding" else collective("tp", "all-reduce", boundary)
    again = across if strategy.ckpt and not costs.executed else 0.0
    scatter = collective("sdp", "reduce-scatter", weights)
    reduce = collective("dp", "all-reduce", sharded * element)
    forward = entry.forward_ns + across + gather
    if costs.overlap_slowdown is None:
        sync = reduce
        backward = compute + back + again + gather + scatter + reduce
    else:
        sync = reduce + scatter
        backward = overlapped_ns(compute, gather + scatter + reduce, costs.overlap_slowdown) + back + again
        sync = min(sync, backward - overlapped_ns(compute, gather, costs.overlap_slowdown) - back - again)
    if costs.executed:
        replicated = collective("tp", "all-reduce", model.replicated_count(kind) * element)
        backward += replicated
        # Sharded gradients are scattered in every micro-batch, and made whole over the tensor-parallel group before.
        sync += 0.0 if strategy.degree("sdp") > 1 else replicated
        once = sharded * profile.optimizer_ns_per_parameter
        if kind == "embedding" and model.tied:
            everyone = tuple(range(strategy.group))
            if len(everyone) > 1:
                table = model.vocabulary * model.hidden * element
                once += ring_ns("all-reduce", table, len(everyone), slowest_link(profile.islands, everyone))
        sync, backward = sync + once, backward + once

    kept, incoming = entry.kept_bytes, model.input_bytes(kind, rows)
    return UnitCosts(
        time_ns=forward + backward,
        sync_ns=sync,
        forward_bytes=incoming if strategy.ckpt else incoming + kept,
        backward_bytes=_backward_bytes(model, profile, costs, kind, strategy, samples),
        state_bytes=STATE_COPIES * sharded * element + (LOSS_BYTES if costs.executed and kind == "embedding" else 0),
    )


def _collective_ns(profile: Profile, strategy: Strategy, paradigm: Any, operation: str, message_bytes: int) -> float:
    ranks = strategy.peers(0, paradigm)
    if len(ranks) == 1:
        return 0.0
    return ring_ns(operation, message_bytes, len(ranks), slowest_link(profile.islands, ranks))


def _backward_bytes(model: Model, profile: Profile, costs: CostModel, kind: Kind, strategy: Strategy, samples: int) -> int:
    """O_b. In the executed model also the forward pass's peak beyond what it keeps, so that Eq. 2 covers it."""
    tp, rows = strategy.degree("tp"), samples // strategy.data_degree
    entry = profile.cost(kind, tp, rows)
    rebuilt = entry.kept_bytes if strategy.ckpt else 0
    if not costs.executed:
        return rebuilt
    element, degree = model.element_bytes, strategy.degree("sdp")
    parameters = max(model.parameter_count(kind, tp, index) for index in range(tp))
    sharded = degree > 1
    gathered = -(-parameters // degree) * degree * element if sharded else 0
    incoming, output = model.input_bytes(kind, rows), model.output_bytes(kind, rows, tp)
    # A re-layout holds the blocks it gathered beside its result; which neighbour asks for one is not known here.
    moved = 0 if strategy.group == 1 else model.boundary_bytes(samples) * 2
    forward = gathered + output + max(entry.forward_workspace_bytes, moved) + (rebuilt if strategy.ckpt else 0)
    gradients = (0 if kind == "embedding" else incoming) + gathered
    recomputed = rebuilt + output + entry.forward_workspace_bytes if strategy.ckpt else 0
    if kind == "head":
        # Beside the logits at the loss: targets, this shard's three statistics, and those of all shards.
        forward = max(forward, output + rows * model.sequence * (8 + 3 * element * (1 + (tp if tp > 1 else 0))))
    backward = gathered + gradients + output + recomputed + max(entry.backward_workspace_bytes, moved)
    if kind == "embedding" and model.tied:
        backward = max(backward, model.vocabulary * model.hidden * model.element_bytes - incoming)
    return max(forward, backward)


def layer_costs(parts: Sequence[UnitCosts]) -> UnitCosts:
    """Consecutive units under one strategy as one layer: Eq. 2 over the units gives the layer's O_b exactly."""
    held, peak = 0, 0
    for part in parts:
        held += part.forward_bytes
        peak = max(peak, held + part.backward_bytes)
    return UnitCosts(
        sum(part.time_ns for part in parts),
        sum(part.sync_ns for part in parts),
        held,
        peak - held,
        sum(part.state_bytes for part in parts),
    )


def transition_ns(model: Model, profile: Profile, before: Strategy, after: Strategy, samples: int) -> float:
    """R: the Slice-Gather of the hidden states forward and of their gradients backward; the slowest rank counts."""
    return _slice_gather_ns(model, profile, before, after, samples) + _slice_gather_ns(model, profile, after, before, samples)


def _slice_gather_ns(model: Model, profile: Profile, before: Strategy, after: Strategy, samples: int) -> float:
    block = model.boundary_bytes(samples // before.data_degree)
    slowest = 0.0
    for rank in range(before.group):
        ranks = gather_ranks(before, after, rank)
        if len(ranks) > 1:
            slowest = max(slowest, ring_ns("all-gather", block * len(ranks), len(ranks), slowest_link(profile.islands, ranks)))
    return slowest


def usable_strategies(model: Model, group: int, samples: int, takeaway3: bool = True) -> list[Strategy]:
    """The decision tree's strategies whose tp degree divides the heads and whose data degree divides the samples."""
    usable = [
        strategy
        for strategy in decision_tree(group, takeaway3=takeaway3)
        if model.heads % strategy.degree("tp") == 0 and samples % strategy.data_degree == 0
    ]
    if not usable:
        raise InputError("command line", "--batch", f"gives {samples} samples a micro-batch", f"give a multiple of {group}")
    return usable


def build(
    model: Model,
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
    strategies = usable_strategies(model, profile.devices, samples, takeaway3)
    layers = stage.layers(model)
    if by_unit:
        layers = [[unit] for layer in layers for unit in layer]
    repeats = stage.micro_batches if stage.count == 1 else 1

    @cache
    def options(kinds: tuple[Kind, ...]) -> list[dict[str, Any]]:
        found = []
        for strategy in strategies:
            part = layer_costs([unit_costs(model, profile, costs, kind, strategy, samples) for kind in kinds])
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

    # A re-layout depends on where the samples lie, which many strategies share.
    moved: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    for a, b in product(strategies, repeat=2):
        if (a.layout, b.layout) not in moved:
            moved[a.layout, b.layout] = round(repeats * transition_ns(model, profile, a, b, samples))
    moves = [[moved[a.layout, b.layout] for b in strategies] for a in strategies]
    return load(
        {
            "problem": NAME,
            "version": 1,
            "name": name or f"{model.name} on {profile.devices} x {profile.device}",
            "provenance": {
                "model": model.shape(),
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
                    "name": layer[0].name if len(layer) == 1 else layer[0].name.split(".")[0],
                    "options": options(tuple(u.kind for u in layer)),
                }
                for layer in layers
            ],
            "transitions_ns": [moves] * (len(layers) - 1),
        }
    )
