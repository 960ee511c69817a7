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
from trainplan.formulations.plan.strategy import COPIES, Paradigm, Strategy
from trainplan.profiling.base.dtypes import DTYPE_BYTES, STATISTIC_BYTES
from trainplan.profiling.clusters.network import Operation
from trainplan.profiling.costs import collective_ns
from trainplan.profiling.derived_costs import cost_of_pieces
from trainplan.profiling.estimate import kind_of, orthogonal_ns
from trainplan.profiling.models.optimizers import (
    OPTIMIZERS,
    OptimizerName,
    moments_saved,
    muon_matrices,
    muon_parameter_count,
    ranks_sharing_states,
)
from trainplan.profiling.models.precision import Precision
from trainplan.profiling.profiles import ChainUnit, Profile, SublayerShape, UnitCost

Ns = TypeVar("Ns", int, float)
_TOKEN_COLLECTIVES: tuple[Operation, ...] = ("all-gather", "reduce-scatter")


@dataclass(frozen=True)
class UnitWork(Generic[Ns]):
    """The pieces of a sub-layer's time for one micro-batch in ns, one for each kind of computation and communication in
    trainplan's programs; whole numbers, or fractions before rounding.

    partial_ns, partial_back_ns: the all-reduces of partial sums over tensor-parallel ranks in the forward and in the
    backward pass. tokens_..., gradient_...: all-gathers and reduce-scatters of tokens, and of their gradients, under
    sequence parallelism. replicated_ns: the sum of gradients of parameters that all tensor-parallel ranks have. scatter_ns:
    the reduce-scatter of gradients to shards. reduce_ns: the sum of gradients over copies of the states. update_ns: the
    gathering of updated parameters.
    """

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
        """The time in ns of all computations of a micro-batch: forward pass, recomputation and backward pass."""
        return self.forward_ns + self.recompute_ns + self.backward_ns

    @property
    def forward_tokens_ns(self) -> Ns:
        """The time in ns of the collectives that move tokens in a forward pass; 0 without sequence parallelism."""
        return self.tokens_in_ns + self.tokens_out_ns

    @property
    def backward_tokens_ns(self) -> Ns:
        """The time in ns of the collectives that move tokens in a backward pass; 0 without sequence parallelism."""
        return self.tokens_again_ns + self.gradient_in_ns + self.gradient_out_ns


def computed_cost(profile: Profile, sublayer: str, strategy: Strategy, rows: int, kind: str | None = None) -> UnitCost:
    """A profile's costs of a sub-layer's computations under a strategy. sublayer: its name in the profile. rows: the number of
    samples on a device. kind: the kind of device; None for the slowest. Raises InputError if the profile lacks the shape."""
    shared, modules, tp = strategy.sequence_parallel, strategy.modules, strategy.degree("tp")
    if not shared and not modules:
        return profile.cost(sublayer, tp, rows, kind)
    return cost_of_pieces(profile, sublayer, tp, rows, kind, shared=shared, modules=modules)


def table_part(profile: Profile, tp: int) -> int:
    """The number of parameters of the largest part that one of `tp` tensor-parallel ranks has of a weight table that embedding
    and head share; 0 if they share none. profile: measured or estimated costs of the model's sub-layers and of the devices'
    links.
    """
    if not profile.tied_parameters:
        return 0
    head = profile.shapes[profile.units[-1].sublayer]
    hidden = head.input_bytes // (head.tokens * profile.parameter_bytes)
    return -(-profile.tied_parameters // hidden // tp) * hidden


def statistic_bytes(profile: Profile) -> int:
    """Bytes per token of one of the statistics (such as the maximum of the logits) that tensor-parallel ranks exchange to
    compute the loss from their parts of the vocabulary. profile: measured or estimated costs of the model's sub-layers and
    of the devices' links.
    """
    return profile.parameter_bytes if DTYPE_BYTES[profile.dtype] >= 4 else STATISTIC_BYTES[profile.dtype]


def reductions(shape: SublayerShape, tp: int | None = None) -> tuple[int, int]:
    """The numbers of all-reduces of a sub-layer under tensor parallelism: of its output in the forward pass, and of its input's
    gradient in the backward pass.

    A head's output stays in parts, and an embedding's input has no gradient. tp: the tensor-parallel degree, or None for a
    degree at which the sub-layer is split; at a degree where all ranks compute the whole sub-layer there is nothing to add up.
    shape: the sub-layer's shape.
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
        sublayer: its name in the profile.
        samples: samples per micro-batch, over all devices of the strategy.
        kind: the kind of device that computes; None for the slowest of the profile's.
        left_out: the number of a rank's parameters that belong to another sub-layer (a shared weight table).
        precision: the precision of gradients; None for the profile's.
        optimizer: the optimizer of the parameters; other than AdamW only for a profile that describes its model.

    Raises InputError if the profile lacks the shape.
    """
    of_states = precision or profile.precision, optimizer
    moves = _moves_ns(profile, sublayer, strategy, samples, True, left_out, *of_states, whole=True)
    forward_ns, recompute_ns, backward_ns = map(round, _passes_ns(profile, sublayer, strategy, samples, kind))
    return UnitWork(forward_ns=forward_ns, recompute_ns=recompute_ns, backward_ns=backward_ns, **moves)


def exact_work(profile: Profile, sublayer: str, strategy: Strategy, samples: int) -> UnitWork[float]:
    """The pieces of a sub-layer's time in ns before rounding, for cost models in which they overlap. Parameters count with
    their true size, not with the padded equal shards that programs cut them into. samples: samples per micro-batch, over
    all devices of the strategy. profile: measured or estimated costs of the model's sub-layers and of the devices' links.
    sublayer: the sub-layer's name in the profile. Raises InputError if the profile lacks the shape.
    """
    moves = _moves_ns(profile, sublayer, strategy, samples, False, 0, profile.precision, "adamw", whole=False)
    forward_ns, recompute_ns, backward_ns = _passes_ns(profile, sublayer, strategy, samples)
    return UnitWork(forward_ns=forward_ns, recompute_ns=recompute_ns, backward_ns=backward_ns, **moves)


def _passes_ns(
    profile: Profile, sublayer: str, strategy: Strategy, samples: int, kind: str | None = None
) -> tuple[int, int, int]:
    """Times in ns of a sub-layer's computations for a micro-batch: forward pass, recomputation (0 without) and backward pass.
    samples: samples per micro-batch, over all devices of the strategy. kind: the kind of device; None for the slowest of
    the profile's. sublayer: the sub-layer's name in the profile.
    """
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
    """Times in ns, by field of `UnitWork`, of the pieces of a sub-layer's time that are communication or the optimizer's step.
    They do not depend on what is recomputed, and are kept with the profile.

    samples: samples per micro-batch. padded: whether shards of parameters are equal parts, the last one padded. left_out:
    the number of a rank's parameters that belong to another sub-layer. precision: the precision of gradients. whole:
    whether every time is rounded. profile: measured or estimated costs of the model's sub-layers and of the devices' links.
    sublayer: the sub-layer's name in the profile. strategy: the sub-layer's parallelism and recomputation.
    """
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
    """Times in ns, by field of `UnitWork` and not rounded, of moving a sub-layer's hidden states and their gradients between
    tensor-parallel ranks. samples: samples per micro-batch, over all devices of the strategy. profile: measured or
    estimated costs of the model's sub-layers and of the devices' links. sublayer: the sub-layer's name in the profile.
    """
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
    """Times in ns, by field of `UnitWork` and not rounded, of moving a sub-layer's parameters and their gradients between
    ranks, and of the optimizer's step.

    padded: whether shards are equal parts, the last one padded. left_out: the number of a rank's parameters that belong to
    another sub-layer. precision: the precision of gradients. profile: measured or estimated costs of the model's sub-layers
    and of the devices' links. sublayer: the sub-layer's name in the profile. strategy: the sub-layer's parallelism and
    recomputation.
    """
    element, shape, sdp = profile.parameter_bytes, profile.shapes[sublayer], strategy.degree("sdp")
    shard, gradient = shape.shard(strategy.degree("tp")), precision.gradient_bytes(element)
    parameters = shard.parameters - left_out
    part = -(-parameters // sdp)
    whole, stepped = sdp * part if padded else parameters, sdp * part // sharing_of(profile, sublayer, strategy, optimizer)

    def among(paradigms: Sequence[Paradigm], operation: Operation, message_bytes: int) -> float:
        """Time in ns of a collective over the first device's group along levels of the strategy."""
        return collective_ns(profile.network, operation, message_bytes, strategy.peers(0, *paradigms))

    replicated, whole_sums = shard.replicated_parameters * gradient, OPTIMIZERS[optimizer].whole_matrices
    return {
        "gather_ns": among(("sdp",), "all-gather", whole * element) if strategy.shares_parameters else 0.0,
        "replicated_ns": among(("tp",), "all-reduce", replicated) if replicated else 0.0,
        "scatter_ns": among(("sdp",), "all-reduce" if whole_sums else "reduce-scatter", whole * gradient),
        "reduce_ns": among(COPIES, "all-reduce", part * gradient),
        "tied_ns": tied_ns(profile, strategy.group, precision=precision) if shape.kind == "embedding" else 0.0,
        "optimizer_ns": stepped_ns(profile, stepped, *step_savings(profile, sublayer, strategy, optimizer, stepped)),
        "update_ns": among(("sdp",), "all-gather", whole * element) if strategy.gathers_updates else 0.0,
    }


def sharing_of(profile: Profile, sublayer: str, strategy: Strategy, optimizer: OptimizerName) -> int:
    """The number of ranks among which the optimizer's master copy of a sub-layer's parameters, and their moments, are divided:
    all ranks that shard states; under an optimizer of whole matrices 1 for embedding and head, whose states one rank has
    whole. profile: measured or estimated costs of the model's sub-layers and of the devices' links. sublayer: the
    sub-layer's name in the profile.
    """
    sharing = strategy.degree("sdp")
    if not OPTIMIZERS[optimizer].whole_matrices:  # which is all that profiles without a described model know
        return sharing
    return ranks_sharing_states(optimizer, profile.sublayer(sublayer), sharing)


def muon_parameters(profile: Profile, sublayer: str, strategy: Strategy, optimizer: OptimizerName) -> int:
    """The number of a sub-layer's parameters that one rank's optimizer updates as whole matrices (Muon); 0 under an optimizer
    of single parameters, such as AdamW. sublayer: the sub-layer's name in the profile. profile: measured or estimated costs
    of the model's sub-layers and of the devices' links.
    """
    if not OPTIMIZERS[optimizer].whole_matrices:
        return 0
    tp, sharing = strategy.degree("tp"), strategy.degree("sdp")
    return muon_parameter_count(optimizer, profile.sublayer(sublayer), tp, tp - 1, sharing)


def step_savings(
    profile: Profile, sublayer: str, strategy: Strategy, optimizer: OptimizerName, parameters: int
) -> tuple[float, float]:
    """Two numbers by which an optimizer's step on `parameters` of a rank's parameters differs from AdamW's: the number of
    moments that it does not read and write, and the time in ns of making momentum orthogonal on the slowest kind of device.
    profile: measured or estimated costs of the model's sub-layers and of the devices' links. sublayer: the sub-layer's name
    in the profile. strategy: the sub-layer's parallelism and recomputation.
    """
    count = muon_parameters(profile, sublayer, strategy, optimizer)
    saved = moments_saved(optimizer, parameters, count)
    if not count:
        return saved, 0.0
    tp, kinds = strategy.degree("tp"), [kind_of(profile, name) for name in profile.kinds]
    matrices = muon_matrices(profile.sublayer(sublayer), tp, tp - 1)
    return saved, max(orthogonal_ns(matrices, kind, profile.dtype) for kind in kinds) / strategy.degree("sdp")


def partial_sums_ns(profile: Profile, shape: SublayerShape, strategy: Strategy, rows: int) -> tuple[float, float]:
    """Two times in ns, not rounded, of the all-reduces of partial results over tensor-parallel ranks: of outputs in the
    forward pass (for a head, instead, the gather of its loss statistics), and of the gradients of inputs in the backward
    pass. Under sequence parallelism no hidden states are added up here.

    shape: the sub-layer's shape. rows: the number of samples on each device. profile: measured or estimated costs of the
    model's sub-layers and of the devices' links. strategy: the sub-layer's parallelism and recomputation.
    """
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
    """The model's sub-layers grouped into the layers that planners choose a strategy for, in model order. by_unit: whether
    every sub-layer is a layer of its own. profile: measured or estimated costs of the model's sub-layers and of the
    devices' links.
    """
    if by_unit:
        return [[unit] for unit in profile.units]
    return [list(layer) for _, layer in groupby(profile.units, key=lambda unit: unit.layer)]


def layer_name(layer: Sequence[ChainUnit]) -> str:
    """The name of a layer: its sub-layer's name or, of several, the part before the first dot: `layer 3.attention` and `layer
    3.mlp` -> `layer 3`."""
    return layer[0].name if len(layer) == 1 else layer[0].name.split(".")[0]


@cache
def _peers(strategy: Strategy, paradigm: Paradigm) -> tuple[int, ...]:
    """The ranks of the first device's group at one level of a strategy's parallelism. paradigm: the level, such as `tp`."""
    return strategy.peers(0, paradigm)
