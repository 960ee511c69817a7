"""Memory of one sub-layer under one strategy, in bytes of one device: O_f, O_b and O_ms of Eq. 2 (Galvatron-BMW, III-A).

O_ms: model states, 16 bytes a parameter in fp32 (parameter, gradient, AdamW's two moments). O_f: what one micro-batch keeps
from its forward pass to its backward pass. O_b: in the paper the intermediates that CKPT rebuilds; in the cost model `executed`
also what trainplan's programs hold while they compute: temporaries, gathered parameters, whole gradients, re-layout buffers,
logits.

Programs keep a table that embedding and head share only once, where both are in one stage and have one layout. Where the
strategy of the other one is still open, O_ms counts the table for both, and the time its reduction.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainplan.formulations.costs.sequential.communication import moved_bytes
from trainplan.formulations.costs.sequential.sublayer_time import (
    computed_cost,
    muon_parameters,
    sharing_of,
    statistic_bytes,
    table_part,
)
from trainplan.formulations.plan.strategy import Strategy
from trainplan.profiling.models.optimizers import OptimizerName, moments_saved, step_workspace_bytes
from trainplan.profiling.models.precision import Precision
from trainplan.profiling.profiles import Profile

LOSS_BYTES = 8  # the program's one scalar


def unit_bytes(
    profile: Profile,
    executed: bool,
    sublayer: str,
    strategy: Strategy,
    samples: int,
    shares_table: bool = False,
    precision: Precision | None = None,
    relaid: bool = True,
    optimizer: OptimizerName = "adamw",
    least: bool = False,
    pieces: bool = False,
) -> tuple[int, int, int]:
    """The memory of a sub-layer under a strategy, in bytes of one device, as three numbers of Galvatron-BMW's Eq. 2: what a
    micro-batch keeps from its forward to its backward pass (O_f), what the backward pass adds for its duration (O_b), and model
    states (O_ms).

    Args:
        executed: whether to count what trainplan's programs hold; else the paper's numbers.
        sublayer: its name in the profile.
        samples: samples per micro-batch, over all devices of the stage.
        shares_table: whether programs keep a weight table that embedding and head share only once, with the embedding.
        precision: the precision of the states; None for the profile's. Its state_bytes_per_parameter cover the rest.
        relaid: whether neighbours may be laid out differently, so that re-layouts need buffers.
        optimizer: the optimizer of the parameters; other than AdamW only for a profile that describes its model.
        least: whether to count what programs surely hold instead of the most that they may hold: at the end of the forward
            pass, where it is computed again, or when its input has its gradient, whichever is most; without what neighbours or
            other lanes may hold, and without a kernel's workspace of the backward pass, which may begin when some of this is
            gone.
        pieces: whether samples belong to several context-parallel ranks, which have a piece of each sample.
    """
    precision = precision or profile.precision
    tp, rows = strategy.degree("tp"), samples // strategy.data_degree
    entry, shape = computed_cost(profile, sublayer, strategy, rows), profile.shapes[sublayer]
    element, shard, parts = profile.parameter_bytes, shape.shard(tp), strategy.share(0)[1]
    incoming = rows * shape.input_bytes // (1 if shape.kind == "embedding" else parts)
    checkpoint = incoming if entry.checkpoint_bytes is None else entry.checkpoint_bytes.value
    forward = checkpoint if strategy.ckpt else incoming + entry.kept_bytes.value
    rebuilt = incoming + entry.kept_bytes.value - checkpoint if strategy.ckpt else 0
    if not executed:
        return forward, rebuilt, _state_bytes(profile, strategy, shard.parameters, precision)
    left_out = table_part(profile, tp) if shares_table and shape.kind == "head" else 0
    by_muon = muon_parameters(profile, sublayer, strategy, optimizer)
    sharing = sharing_of(profile, sublayer, strategy, optimizer)
    usual = 4 * element if least and precision.master is None else profile.state_bytes_per_parameter
    state = _state_bytes(profile, strategy, shard.parameters - left_out, precision, sharing, optimizer, by_muon, usual)
    degree, is_head = strategy.degree("sdp"), shape.kind == "head"
    parameters = shard.parameters
    if is_head and profile.tied_parameters and (shares_table or not least):  # it may gather all of the embedding's
        parameters += profile.shapes[profile.units[0].sublayer].shard(tp).parameters - table_part(profile, tp) + degree
    padded, of_gradient = -(-parameters // degree) * degree, precision.gradient_bytes(element)
    gradient = padded * of_gradient * strategy.shares_gradients
    held = _Held(
        forward=forward,
        checkpoint=checkpoint,
        incoming=incoming,
        rebuilt=rebuilt,
        output=rows * shard.output_bytes // (1 if is_head else parts),
        workspace=entry.forward_workspace_bytes.value,
        gathered=padded * element * strategy.shares_parameters,
        gradient=gradient,
        gradients=(0 if shape.kind == "embedding" else incoming) + gradient,
        loss=_loss_bytes(profile, rows * shape.tokens, tp),
    )
    if least:
        return *_least_held(held, strategy, is_head, pieces), state
    stepping = padded // sharing * precision.widened_bytes(element)  # at the optimizer's step
    if by_muon:
        described, stepped = profile.sublayer(sublayer), precision.stepped_bytes(element)
        stepping += step_workspace_bytes(optimizer, described, stepped, tp, tp - 1)
    # A re-layout holds the blocks it gathered in addition to its result; which neighbour needs one is not known here.
    moved = 2 * samples * max(moved_bytes(profile, sublayer)) if relaid and strategy.group > 1 else 0
    backward_workspace, table_gradient = entry.backward_workspace_bytes.value, profile.tied_parameters * of_gradient
    most = _most_held(held, strategy, shape.kind, moved, max(backward_workspace, moved), stepping, table_gradient)
    return *most, state + LOSS_BYTES  # the loss of any unit: that unit may be all that a stage has


@dataclass(frozen=True)
class _Held:
    """Bytes on one device that programs hold for one micro-batch of a sub-layer, as parts that add up to its peak at different
    moments.

    Attributes:
        forward: what the forward pass keeps for the backward pass.
        checkpoint: what the forward pass keeps instead if the sub-layer is recomputed.
        incoming: the sub-layer's input.
        output: its output, or a head's logits.
        rebuilt: what a recomputation computes again.
        workspace: temporaries of the forward pass.
        gathered: gathered parameters (ZeRO stage 3).
        gradient: whole gradients of parameters whose states ranks shard.
        gradients: these and the gradient of the input.
        loss: statistics and targets that are held together with the logits at the loss.
    """

    forward: int
    checkpoint: int
    incoming: int
    rebuilt: int
    output: int
    workspace: int
    gathered: int
    gradient: int
    gradients: int
    loss: int


def _least_held(held: _Held, strategy: Strategy, is_head: bool, pieces: bool) -> tuple[int, int]:
    """The least bytes that programs hold on one device for a sub-layer, as two numbers: those kept from its forward to its
    backward pass, and those added in the backward pass. held: the parts that its passes hold. is_head: whether the
    sub-layer is the model's head. pieces: whether its samples belong to several context-parallel ranks. strategy: the
    sub-layer's parallelism and recomputation.
    """
    begun = held.gathered + held.output + held.workspace + (held.rebuilt if strategy.ckpt else 0)
    returned = held.gathered + held.gradients + held.output
    if strategy.modules:  # some of this is freed, and computed again, between these moments
        begun, returned = held.gathered + held.output, held.gathered + held.gradient + held.output
    returned += held.rebuilt
    if not is_head:
        return held.forward, max(begun, returned)
    if strategy.ckpt and not pieces:
        # Logits are computed again while those of the forward pass wait; the input may be on the host still.
        returned = max(returned, held.gathered + 2 * held.output + held.rebuilt - held.incoming)
    waiting = held.loss if "loss" in strategy.modules else held.output
    # What the loss keeps of other micro-batches may be gone, or not be there yet.
    inputs = min(held.forward, held.checkpoint)
    return inputs, max(waiting, begun, returned) + held.forward - inputs


def _most_held(
    held: _Held, strategy: Strategy, kind: str, moved: int, backward_workspace: int, stepping: int, table_gradient: int
) -> tuple[int, int]:
    """The most bytes that programs may hold on one device for a sub-layer, as two numbers: those kept from its forward to its
    backward pass, and those added in the backward pass; the second also covers the forward pass's peak beyond what it keeps.

    Args:
        strategy: the sub-layer's parallelism and recomputation.
        held: the parts that its passes hold.
        kind: the kind of sub-layer, such as `head`.
        moved: bytes of a re-layout before or after it.
        backward_workspace: temporaries of the backward pass, or those of a re-layout in it.
        stepping: bytes that the optimizer's step adds.
        table_gradient: bytes of the gradients of a weight table that embedding and head share.
    """
    first = held.gathered + held.output + max(held.workspace, moved) + held.rebuilt
    recomputed = held.rebuilt + held.output + held.workspace if strategy.ckpt else 0
    if kind == "head":
        first = max(first, held.output + held.loss)
    backward = held.gathered + held.gradients + held.output + recomputed + backward_workspace
    if kind == "embedding":
        backward = max(backward, table_gradient - held.incoming)
    shard = held.gradient // strategy.degree("sdp")  # of the gradients, to be added to their sum at the end
    forward, backward = held.forward, max(first, backward, held.gradients + shard)
    backward = max(backward, stepping - forward)
    if kind != "head":
        return forward, backward
    # Logits wait for their backward pass, also those of other micro-batches in flight; or what they are computed from.
    waiting = held.loss if "loss" in strategy.modules else held.output
    forward, backward = forward + waiting, backward - waiting
    return forward, max(backward, table_gradient - forward)


def _loss_bytes(profile: Profile, tokens: int, tp: int) -> int:
    """Bytes held in addition to the logits at the loss for some tokens: targets, three statistics of this tensor-parallel
    rank's part, and those of all `tp` parts. tokens: the number of tokens. profile: measured or estimated costs of the
    model's sub-layers and of the devices' links.
    """
    return tokens * (8 + 3 * statistic_bytes(profile) * (1 + (tp if tp > 1 else 0)))


def _state_bytes(
    profile: Profile,
    strategy: Strategy,
    parameters: int,
    precision: Precision,
    sharing: int | None = None,
    optimizer: OptimizerName = "adamw",
    by_muon: int = 0,
    usual: int | None = None,
) -> int:
    """Bytes of model states (parameters, gradients, optimizer states) on one device: for what ZeRO's stage shares, the shard of
    one rank, padded at the end; for the rest the whole, padded in the same way. (Profiles in half precision have a master copy
    in addition to the moments.)

        parameters: the number of parameters of a tensor-parallel rank.
        precision: the precision of the states.
        sharing: the number of ranks that master copy and moments are divided among; None for all that share states.
        optimizer, by_muon: the optimizer, and the number of parameters that it steps as whole matrices.
        usual: bytes of all states per parameter; None for the profile's.

    strategy: the sub-layer's parallelism and recomputation.
    """
    element, degree = profile.parameter_bytes, strategy.degree("sdp")
    part = -(-parameters // degree)
    whole = part * degree if strategy.gathers_updates else part
    stepped = precision.stepped_bytes(element) * (3 if precision.master is not None else 0)  # master copy and two moments
    moments = max((usual or profile.state_bytes_per_parameter) - 2 * element, stepped)
    gradients = (part if strategy.shares_gradients else whole) * precision.gradient_bytes(element)
    stepped_parameters = part * degree // (sharing or degree)
    saved = round(moments_saved(optimizer, stepped_parameters, by_muon))
    kept = moments * stepped_parameters - saved * precision.stepped_bytes(element)
    return element * whole + gradients + kept
