"""Time of one sub-layer of one micro-batch under one strategy, piece by piece, in ns.

Each piece is one instruction of trainplan's programs. Re-layouts, messages, copies and the host's optimizer are charged by
`communication` and `primitives`; all other instructions are free (`execution.analysis.timing`):

    piece              instruction                                when
    forward_ns         forward, or forward without graph (CKPT)   every micro-batch
    partial_ns         all-reduce of the partial outputs;         every micro-batch, tp > 1
                       the head gathers the loss's statistics
    gather_ns          gather parameters                          every micro-batch, before either pass, ZeRO's stage 3
    recompute_ns       recompute                                  every micro-batch, CKPT
    backward_ns        backward                                   every micro-batch
    partial_back_ns    all-reduce of the partial input gradients  every micro-batch, tp > 1
    tokens_in_ns       gather tokens in front of the matrices     every micro-batch, sequence parallelism, in place of
    tokens_out_ns      reduce-scatter tokens after them             all-reduces
    tokens_again_ns    the first of them again, backward          every micro-batch, sequence parallelism
    gradient_in_ns     gather tokens of the output's gradient     every micro-batch, sequence parallelism
    gradient_out_ns    reduce-scatter tokens of the input's       every micro-batch, sequence parallelism
    replicated_ns      reduce replicated                          every micro-batch in stages 2 and 3, else the last; tp > 1
    scatter_ns         reduce-scatter gradients                   every micro-batch in stages 2 and 3, the last in stage 1
    reduce_ns          all-reduce gradients                       the last micro-batch, dp > 1
    tied_ns            reduce tied                                once a step, the embedding of a pipeline of one stage,
                                                                  where the head is laid out differently
    optimizer_ns       optimizer step                             once a step
    update_ns          gather updated                             once a step, stages 1 and 2

Collectives are those of the first device's groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any, Generic, TypeVar

from trainplan.formulations.costs.sequential.communication import tied_ns
from trainplan.formulations.costs.sequential.primitives import stepped_ns
from trainplan.formulations.plan.strategy import Paradigm, Strategy
from trainplan.profiling.base.dtypes import DTYPE_BYTES, STATISTIC_BYTES
from trainplan.profiling.clusters.network import Operation
from trainplan.profiling.costs import collective_ns
from trainplan.profiling.derived_costs import cost_of_pieces
from trainplan.profiling.estimate import kind_of, orthogonal_ns
from trainplan.profiling.models.optimizers import OptimizerName, muon_matrices, states_sharing, stepped_by_muon
from trainplan.profiling.models.precision import Precision
from trainplan.profiling.profiles import ChainUnit, Profile, SublayerShape, UnitCost

Ns = TypeVar("Ns", int, float)
_TOKEN_COLLECTIVES: tuple[Operation, ...] = ("all-gather", "reduce-scatter")


@dataclass(frozen=True)
class UnitWork(Generic[Ns]):
    """The pieces of a sub-layer's time in ns, as in the table at the head of this file: whole numbers, or with their
    fractions."""

    forward_ns: int
    partial_ns: Ns
    gather_ns: Ns
    recompute_ns: int
    backward_ns: int
    partial_back_ns: Ns
    tokens_in_ns: Ns
    tokens_out_ns: Ns
    tokens_again_ns: Ns
    gradient_in_ns: Ns
    gradient_out_ns: Ns
    replicated_ns: Ns
    scatter_ns: Ns
    reduce_ns: Ns
    tied_ns: Ns
    optimizer_ns: Ns
    update_ns: Ns

    @property
    def compute_ns(self) -> int:
        """All computations of a micro-batch."""
        return self.forward_ns + self.recompute_ns + self.backward_ns

    @property
    def forward_tokens_ns(self) -> Ns:
        """Collectives that move tokens in a forward pass, with sequence parallelism."""
        return self.tokens_in_ns + self.tokens_out_ns

    @property
    def backward_tokens_ns(self) -> Ns:
        """Collectives that move tokens in a backward pass, with sequence parallelism."""
        return self.tokens_again_ns + self.gradient_in_ns + self.gradient_out_ns


def computed_cost(profile: Profile, sublayer: str, strategy: Strategy, rows: int, kind: str | None = None) -> UnitCost:
    """A profile's costs of a sub-layer as a strategy computes it, with `rows` samples on a device. kind: of the device
    (default: the slowest). Raises InputError where the profile lacks the shape."""
    shared, modules, tp = strategy.sequence_parallel, strategy.modules, strategy.degree("tp")
    if not shared and not modules:
        return profile.cost(sublayer, tp, rows, kind)
    return cost_of_pieces(profile, sublayer, tp, rows, kind, shared=shared, modules=modules)


def table_part(profile: Profile, tp: int) -> int:
    """The number of parameters of the largest part that a rank has of a table that embedding and head share; 0 where there is
    none."""
    if not profile.tied_parameters:
        return 0
    head = profile.shapes[profile.units[-1].sublayer]
    hidden = head.input_bytes // (head.tokens * profile.parameter_bytes)
    return -(-profile.tied_parameters // hidden // tp) * hidden


def statistic_bytes(profile: Profile) -> int:
    """Bytes of one number for each token that the shards of a head exchange for the loss."""
    return profile.parameter_bytes if DTYPE_BYTES[profile.dtype] >= 4 else STATISTIC_BYTES[profile.dtype]


def reductions(shape: SublayerShape, tp: int | None = None) -> tuple[int, int]:
    """The number of all-reduces under tensor parallelism: of a sub-layer's output forward, and of its input's gradient
    backward.

    A head's output stays in parts, and an embedding's input has no gradient. tp: the degree; where all ranks compute the whole
    sub-layer at that degree there is nothing to add up (default: a degree at which it is split).
    """
    if tp is not None and shape.shard(tp).whole:
        return 0, 0
    forward, back = (0 if shape.kind == kind else shape.reductions for kind in ("head", "embedding"))
    return forward, back


def unit_work(
    profile: Profile,
    sublayer: str,
    strategy: Strategy,
    samples: int,
    kind: str | None = None,
    *,
    left_out: int = 0,
    precision: Precision | None = None,
    optimizer: OptimizerName = "adamw",
) -> UnitWork[int]:
    """The pieces of a sub-layer's time, each rounded, as instructions of trainplan's programs are charged.

    Args:
        samples: of a micro-batch, over all devices of the strategy.
        kind: of the device that computes (default: the slowest of the profile's).
        left_out: parameters of a rank's part that belong to another unit.
        precision: of gradients, where it is not the profile's.
        optimizer: what steps the parameters, for a profile that describes its model where that is not AdamW.

    Raises InputError where the profile lacks the shape.
    """
    of_states = precision or profile.precision, optimizer
    moves = _moves_ns(profile, sublayer, strategy, samples, True, left_out, *of_states, whole=True)
    forward_ns, recompute_ns, backward_ns = map(round, _passes_ns(profile, sublayer, strategy, samples, kind))
    return UnitWork(forward_ns=forward_ns, recompute_ns=recompute_ns, backward_ns=backward_ns, **moves)


def exact_work(profile: Profile, sublayer: str, strategy: Strategy, samples: int) -> UnitWork[float]:
    """The pieces of a sub-layer's time with their fractions, for models that let them overlap. Parameters are moved as they
    are, not as the equal shards that programs cut them into. Otherwise as `unit_work`."""
    moves = _moves_ns(profile, sublayer, strategy, samples, False, 0, profile.precision, "adamw", whole=False)
    forward_ns, recompute_ns, backward_ns = _passes_ns(profile, sublayer, strategy, samples)
    return UnitWork(forward_ns=forward_ns, recompute_ns=recompute_ns, backward_ns=backward_ns, **moves)


def _passes_ns(
    profile: Profile, sublayer: str, strategy: Strategy, samples: int, kind: str | None = None
) -> tuple[int, int, int]:
    """Times of the computations of a micro-batch: forward pass, recomputation and backward pass."""
    entry = computed_cost(profile, sublayer, strategy, samples // strategy.data_degree, kind)
    forward_ns = (entry.forward_without_graph_ns if strategy.ckpt else entry.forward_ns).value
    return forward_ns, entry.forward_ns.value if strategy.ckpt else 0, entry.backward_ns.value


def _moves_ns(
    profile: Profile,
    sublayer: str,
    strategy: Strategy,
    samples: int,
    padded: bool,
    left_out: int,
    precision: Precision,
    optimizer: OptimizerName,
    whole: bool,
) -> dict[str, Any]:
    """Times of the pieces of a sub-layer, by name, that are no computations of a micro-batch, which do not depend on what is
    recomputed; kept with the profile. padded: as in `_parameter_moves_ns`; whole: whether each is rounded."""
    layout = strategy.levels, strategy.zero, strategy.sequence_parallel
    key = "moves", sublayer, *layout, samples, padded, left_out, precision, optimizer, whole
    if key not in profile.derived:
        of_layout = "moves of parameters", *key[1:5], *key[6:]
        if of_layout not in profile.derived:
            of_parameters = _parameter_moves_ns(profile, sublayer, strategy, padded, left_out, precision, optimizer)
            profile.derived[of_layout] = {name: round(ns) for name, ns in of_parameters.items()} if whole else of_parameters
        of_tokens = _token_moves_ns(profile, sublayer, strategy, samples)
        rounded = {name: round(ns) for name, ns in of_tokens.items()} if whole else of_tokens
        profile.derived[key] = {**profile.derived[of_layout], **rounded}
    moves: dict[str, Any] = profile.derived[key]
    return moves


def _token_moves_ns(profile: Profile, sublayer: str, strategy: Strategy, samples: int) -> dict[str, float]:
    """Times of moving hidden states and their gradients, by piece, not rounded."""
    tp, rows, shape = strategy.degree("tp"), samples // strategy.data_degree, profile.shapes[sublayer]
    partial, partial_back = partial_sums_ns(profile, shape, strategy, rows)
    names = ("tokens_in_ns", "tokens_out_ns", "tokens_again_ns", "gradient_in_ns", "gradient_out_ns")
    times = dict.fromkeys(names, 0.0)
    if strategy.sequence_parallel:
        forward, back = reductions(shape, tp)
        hidden, ranks = rows * (shape.output_bytes if forward else shape.input_bytes), _peers(strategy, "tp")
        gather, scatter = (collective_ns(profile.network, operation, hidden, ranks) for operation in _TOKEN_COLLECTIVES)
        pieces = (back * gather, forward * scatter, back * gather, forward * gather, back * scatter)
        times = dict(zip(names, pieces, strict=True))
    return {"partial_ns": partial, "partial_back_ns": partial_back, **times}


def _parameter_moves_ns(
    profile: Profile,
    sublayer: str,
    strategy: Strategy,
    padded: bool,
    left_out: int,
    precision: Precision,
    optimizer: OptimizerName,
) -> dict[str, float]:
    """Times of moving parameters and their gradients, and of the optimizer, by piece, not rounded. padded: whether shards are
    equal parts, the last one padded."""
    element, shape, sdp = profile.parameter_bytes, profile.shapes[sublayer], strategy.degree("sdp")
    shard, gradient = shape.shard(strategy.degree("tp")), precision.gradient_bytes(element)
    parameters = shard.parameters - left_out
    part = -(-parameters // sdp)
    whole, stepped = sdp * part if padded else parameters, sdp * part // sharing_of(profile, sublayer, strategy, optimizer)

    def among(paradigm: Paradigm, operation: Operation, message_bytes: int) -> float:
        """Time of a collective over the first device's group of a paradigm."""
        return collective_ns(profile.network, operation, message_bytes, _peers(strategy, paradigm))

    replicated = shard.replicated_parameters * gradient
    return {
        "gather_ns": among("sdp", "all-gather", whole * element) if strategy.shares_parameters else 0.0,
        "replicated_ns": among("tp", "all-reduce", replicated) if replicated else 0.0,
        "scatter_ns": among("sdp", "all-reduce" if optimizer == "muon" else "reduce-scatter", whole * gradient),
        "reduce_ns": among("dp", "all-reduce", part * gradient),
        "tied_ns": tied_ns(profile, strategy.group, precision=precision) if shape.kind == "embedding" else 0.0,
        "optimizer_ns": stepped_ns(profile, stepped, *muon_part(profile, sublayer, strategy, optimizer)),
        "update_ns": among("sdp", "all-gather", whole * element) if strategy.gathers_updates else 0.0,
    }


def sharing_of(profile: Profile, sublayer: str, strategy: Strategy, optimizer: OptimizerName) -> int:
    """The number of ranks among which a sub-layer's master copy and moments are divided."""
    sharing = strategy.degree("sdp")
    return sharing if optimizer == "adamw" else states_sharing(optimizer, profile.sublayer(sublayer), sharing)


def muon_parameters(profile: Profile, sublayer: str, strategy: Strategy, optimizer: OptimizerName) -> int:
    """The number of a sub-layer's parameters that a rank steps by Muon; 0 under AdamW."""
    if optimizer == "adamw":
        return 0
    tp, sharing = strategy.degree("tp"), strategy.degree("sdp")
    return stepped_by_muon(optimizer, profile.sublayer(sublayer), tp, tp - 1, sharing)


def muon_part(profile: Profile, sublayer: str, strategy: Strategy, optimizer: OptimizerName) -> tuple[int, float]:
    """The number of a sub-layer's parameters that a rank steps by Muon, and the time to make their momentum orthogonal on the
    slowest kind of device, in ns."""
    if not (count := muon_parameters(profile, sublayer, strategy, optimizer)):
        return 0, 0.0
    tp, kinds = strategy.degree("tp"), [kind_of(profile, name) for name in profile.kinds]
    matrices = muon_matrices(profile.sublayer(sublayer), tp, tp - 1)
    return count, max(orthogonal_ns(matrices, kind, profile.dtype) for kind in kinds) / strategy.degree("sdp")


def partial_sums_ns(profile: Profile, shape: SublayerShape, strategy: Strategy, rows: int) -> tuple[float, float]:
    """Times, not rounded, of what tensor-parallel ranks add up for `rows` samples on each: outputs, or the gather of a head's
    statistics; and gradients of inputs. Ranks that share the tokens add up none of the hidden states."""
    tp, (forward, back) = strategy.degree("tp"), reductions(shape, strategy.degree("tp"))
    summed = not strategy.sequence_parallel

    def among(operation: Operation, message_bytes: int) -> float:
        """Time of a collective over the first device's tensor-parallel group."""
        return collective_ns(profile.network, operation, message_bytes, _peers(strategy, "tp"))

    if shape.kind == "head" and not shape.shard(tp).whole:
        there = among("all-gather", 3 * tp * rows * shape.tokens * statistic_bytes(profile))
    else:
        there = forward * among("all-reduce", rows * shape.output_bytes) if forward and summed else 0.0
    return there, back * among("all-reduce", rows * shape.input_bytes) if back and summed else 0.0


def grouped_units(profile: Profile, by_unit: bool = False) -> list[list[ChainUnit]]:
    """The chain's units by planner's layer; by_unit: every sub-layer is a layer of its own."""
    if by_unit:
        return [[unit] for unit in profile.units]
    return [list(layer) for _, layer in groupby(profile.units, key=lambda unit: unit.layer)]


def layer_name(layer: Sequence[ChainUnit]) -> str:
    """The name of a layer: its unit's name, or the part that the names of several units begin with."""
    return layer[0].name if len(layer) == 1 else layer[0].name.split(".")[0]


@cache
def _peers(strategy: Strategy, paradigm: Paradigm) -> tuple[int, ...]:
    """The first device's group of a paradigm."""
    return strategy.peers(0, paradigm)
