"""Cost models: how the pieces of a sub-layer's work add up to its forward pass, its backward pass and the end of the step.

Two models, by name:

- `paper` (Galvatron-BMW, Section V): forward = compute + collectives in sequence; gradient communication of DP and SDP
  overlaps backward compute, each slowed down as the profile says (1.3 in the paper); CKPT adds one forward pass with its
  all-reduces. What only the last micro-batch pays, C(M, 0) of Eq. 8, is the part of its gradient communication that the
  backward pass does not hide: taken out whole, as the text has it, earlier micro-batches would cost less than their compute.
  (The paper's SDP is ZeRO stage 3. In stages 1 and 2 parameters are gathered only once, after that.)
  Memory as in Section III-A: O_b = intermediates under CKPT, else 0; no temporaries, no gathered parameters.
- `executed`: what trainplan's own programs do. Everything in sequence, as the serial back-end issues it; a recomputation
  repeats no collective (a unit's partial output is not needed again); temporaries, gathered parameters, full gradients
  before they are scattered, re-layout buffers, the optimizer step and the reduction of tied weights count. The simulation of
  programs charges the same pieces instruction by instruction (asserted in tests/execution/test_time_walk.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainplan.formulations.costs.sequential.communication import gather_tokens_ns, slice_gather_ns
from trainplan.formulations.costs.sequential.sublayer_memory import unit_bytes
from trainplan.formulations.costs.sequential.sublayer_time import UnitWork, exact_work, table_part, unit_work
from trainplan.formulations.plan.strategy import Strategy
from trainplan.profiling.costs import overlapped_ns
from trainplan.profiling.models.optimizers import OptimizerName
from trainplan.profiling.models.precision import Precision
from trainplan.profiling.profiles import Profile


@dataclass(frozen=True)
class CostModel:
    """A cost model. name: `executed`, the costs of trainplan's own programs, which do one thing after the other, or `paper`,
    the costs of Galvatron-BMW, in which communication overlaps computation. executed: whether it is the former.
    """

    name: str
    executed: bool


COST_MODELS = {model.name: model for model in (CostModel("paper", False), CostModel("executed", True))}


@dataclass(frozen=True)
class UnitCosts:
    """The cost of one sub-layer under one strategy for one micro-batch.

    Attributes:
        time_ns: forward and backward pass of the last micro-batch of a step.
        forward_ns: the part of time_ns that the forward pass takes.
        sync_ns: the part of time_ns that only the last micro-batch of a step has (reduction of gradients, optimizer).
        forward_bytes: kept from the forward to the backward pass (O_f of Galvatron-BMW's Eq. 2).
        backward_bytes: added by the backward pass (O_b).
        state_bytes: model states (O_ms).
    """

    time_ns: float
    forward_ns: float
    sync_ns: float
    forward_bytes: int
    backward_bytes: int
    state_bytes: int


@dataclass(frozen=True)
class PassTimes:
    """Times of one micro-batch through one sub-layer, in whole ns.

    Attributes:
        forward_ns, backward_ns: its passes.
        reduce_ns: after the last micro-batch, the reduction of gradients over replicas.
        step_ns: after these reductions, including the sum of a shared weight table's gradients, the optimizer's step and
            the gathering of the parameters that it has updated.
        tied_ns: for the embedding in a pipeline of one stage, the reduction of the gradients of a weight table that it
            shares with the head.
    """

    forward_ns: int
    backward_ns: int
    reduce_ns: int
    step_ns: int
    tied_ns: int

    @property
    def sync_ns(self) -> int:
        """The time in ns of all work after the last micro-batch, except the reduction of a shared weight table."""
        return self.reduce_ns + self.step_ns


def unit_costs(
    profile: Profile, costs: CostModel, sublayer: str, strategy: Strategy, samples: int, shares_table: bool = False
) -> UnitCosts:
    """The cost of a sub-layer on one device for one micro-batch. sublayer: its name in the profile. samples: samples per
    micro-batch, over all devices of the stage. shares_table: whether the weight table that embedding and head share is one
    parameter; counts in the cost model `executed` only. costs: the cost model. profile: measured or estimated costs of the
    model's sub-layers and of the devices' links. strategy: the sub-layer's parallelism and recomputation. Raises InputError
    if the profile lacks the shape.
    """
    if costs.executed:
        times = times_of(profile, sublayer, strategy, samples, shares_table)
        sync: float = times.sync_ns + times.tied_ns
        forward, backward = float(times.forward_ns), times.backward_ns + sync
    else:
        forward, backward, sync = _paper_ns(profile, exact_work(profile, sublayer, strategy, samples), strategy)
    sizes = unit_bytes(profile, costs.executed, sublayer, strategy, samples, shares_table)
    return UnitCosts(forward + backward, forward, sync, *sizes)


def times_of(
    profile: Profile,
    sublayer: str,
    strategy: Strategy,
    samples: int,
    shares_table: bool = False,
    precision: Precision | None = None,
    optimizer: OptimizerName = "adamw",
) -> PassTimes:
    """The times of a sub-layer for one micro-batch as trainplan's programs run it, one thing after the other.

    Gradients that ranks share are scattered in every micro-batch, after they are made whole over the tensor-parallel group;
    others are reduced or scattered in the last micro-batch only.

    Args:
        strategy: the sub-layer's parallelism and recomputation.
        sublayer: its name in the profile.
        samples: samples per micro-batch, over all devices of the stage.
        shares_table: whether the weight table that embedding and head share is one parameter, the embedding's; a head then
            gathers and
            scatters all of the embedding's parameters in addition to the rest of its own.
        precision: the precision of gradients; None for the profile's.
        optimizer: the optimizer of the parameters.

    Raises InputError if the profile lacks the shape.
    """
    with_table = shares_table and profile.tied_parameters > 0 and profile.shapes[sublayer].kind == "head"
    left_out = table_part(profile, strategy.degree("tp")) if with_table else 0
    work = unit_work(profile, sublayer, strategy, samples, left_out=left_out, precision=precision, optimizer=optimizer)
    sharded = strategy.shares_gradients
    gather, scatter = work.gather_ns, work.scatter_ns
    if with_table:
        embedding = unit_work(profile, profile.units[0].sublayer, strategy, samples, precision=precision)
        gather, scatter = gather + embedding.gather_ns, scatter + embedding.scatter_ns
    computed, sharing = work.recompute_ns + work.backward_ns + work.partial_back_ns, gather + scatter * sharded
    last = (work.replicated_ns + work.scatter_ns) * (not sharded) + work.reduce_ns
    return PassTimes(
        forward_ns=work.forward_ns + work.partial_ns + work.forward_tokens_ns + gather,
        backward_ns=computed + work.backward_tokens_ns + sharing + work.replicated_ns * sharded,
        reduce_ns=last,
        step_ns=work.optimizer_ns + work.update_ns,
        tied_ns=0 if shares_table else work.tied_ns,
    )


def _paper_ns(profile: Profile, work: UnitWork[float], strategy: Strategy) -> tuple[float, float, float]:
    """Times in ns, not rounded, of a sub-layer's forward pass, its backward pass, and the part of the backward pass that only
    the last micro-batch pays, by Galvatron-BMW's model, in which communication overlaps computation. work: the pieces of
    the sub-layer's time. profile: measured or estimated costs of the model's sub-layers and of the devices' links.
    strategy: the sub-layer's parallelism and recomputation.
    """
    slowdowns = profile.compute_slowdown.value, profile.communication_slowdown.value
    summed, summed_back = work.partial_ns + work.forward_tokens_ns, work.partial_back_ns + work.backward_tokens_ns
    compute, again = work.recompute_ns + work.backward_ns, summed if strategy.ckpt else 0
    reduction = work.scatter_ns + work.reduce_ns
    overlapped = overlapped_ns(compute, work.gather_ns + reduction, *slowdowns)
    sync = min(reduction, overlapped - overlapped_ns(compute, work.gather_ns, *slowdowns))
    backward = overlapped + summed_back + again + work.update_ns
    return work.forward_ns + summed + work.gather_ns, backward, sync + work.update_ns


def transition_ns(
    profile: Profile, costs: CostModel, before: Strategy, after: Strategy, samples: int, sample_bytes: int
) -> int:
    """The time in ns of a re-layout between two neighbouring layers under strategies `before` and `after`: the Slice-Gather of
    samples and tokens of the hidden states forward and of their gradients backward (R in Galvatron-BMW).

    samples: samples per micro-batch. sample_bytes: bytes of one sample's hidden states between the two layers. costs: the
    cost model. profile: measured or estimated costs of the model's sub-layers and of the devices' links.
    """
    pieces = [
        move(profile, *direction, samples, sample_bytes)
        for direction in ((before, after), (after, before))
        for move in (slice_gather_ns, gather_tokens_ns)
    ]
    return sum(map(round, pieces)) if costs.executed else round(sum(pieces))


def layer_costs(parts: Sequence[UnitCosts]) -> UnitCosts:
    """The cost of consecutive sub-layers under one strategy as one layer: sums, except that the bytes added by the backward
    pass are chosen such that the layer's peak memory (Eq. 2 of Galvatron-BMW) is that of its sub-layers one after the other.
    parts: the costs of the sub-layers, in order."""
    stacked, peak = 0, 0
    for part in parts:
        stacked += part.forward_bytes
        peak = max(peak, stacked + part.backward_bytes)
    return UnitCosts(
        sum(part.time_ns for part in parts),
        sum(part.forward_ns for part in parts),
        sum(part.sync_ns for part in parts),
        stacked,
        peak - stacked,
        sum(part.state_bytes for part in parts),
    )
