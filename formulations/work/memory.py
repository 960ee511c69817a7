"""What one sub-layer under one strategy holds, in bytes of one device: O_f, O_b and O_ms of Eq. 2 (Galvatron-BMW, III-A).

O_ms: model states, 16 bytes a parameter in fp32 (parameter, gradient, AdamW's two moments). O_f: what one micro-batch keeps
from its forward pass to its backward pass. O_b: in the paper the intermediates that CKPT rebuilds; in the cost model `executed`
also what trainplan's programs hold while they compute: temporaries, gathered parameters, whole gradients, re-layout buffers,
logits.

Programs keep a table that embedding and head share once, where both are in one stage and have one layout. Where the strategy
of the other one is still open, O_ms counts the table for both, and the time its reduction.
"""

from __future__ import annotations

from trainplan.formulations.strategies import Strategy
from trainplan.formulations.work.moves import moved_bytes
from trainplan.formulations.work.units import computed_cost, table_part
from trainplan.profiling.profiles import Profile

LOSS_BYTES = 8  # the program's one scalar


def unit_bytes(
    profile: Profile, executed: bool, sublayer: str, strategy: Strategy, samples: int, table_once: bool = False
) -> tuple[int, int, int]:
    """O_f, O_b and O_ms of a sub-layer. samples: of a micro-batch. executed: of trainplan's programs, else the paper's.
    table_once: whether these keep a table that embedding and head share but once, with the embedding."""
    tp, rows = strategy.degree("tp"), samples // strategy.data_degree
    entry, shape = computed_cost(profile, sublayer, strategy, rows), profile.shapes[sublayer]
    element, shard, parts = profile.parameter_bytes, shape.shard(tp), strategy.share(0)[1]
    incoming = rows * shape.input_bytes // (1 if shape.kind == "embedding" else parts)
    checkpoint = incoming if entry.checkpoint_bytes is None else entry.checkpoint_bytes.value
    forward = checkpoint if strategy.ckpt else incoming + entry.kept_bytes.value
    rebuilt = incoming + entry.kept_bytes.value - checkpoint if strategy.ckpt else 0
    if not executed:
        return forward, rebuilt, profile.state_bytes_per_parameter * -(-shard.parameters // strategy.degree("sdp"))
    left_out = table_part(profile, tp) if table_once and shape.kind == "head" else 0
    state = profile.state_bytes_per_parameter * -(-(shard.parameters - left_out) // strategy.degree("sdp"))
    # O_b of trainplan's programs, with the forward pass's peak beyond what it keeps, so that Eq. 2 covers it too.
    degree, workspace = strategy.degree("sdp"), entry.forward_workspace_bytes.value
    output = rows * shard.output_bytes // (1 if shape.kind == "head" else parts)
    parameters = shard.parameters
    if shape.kind == "head" and profile.tied_parameters:  # it may gather all of the embedding's, for the table
        parameters += profile.shapes[profile.units[0].sublayer].shard(tp).parameters - table_part(profile, tp) + degree
    gathered = -(-parameters // degree) * degree * element if degree > 1 else 0
    # A re-layout holds the blocks it gathered beside its result; which neighbour asks for one is not known here.
    moved = 0 if strategy.group == 1 else 2 * samples * max(moved_bytes(profile, sublayer))
    first = gathered + output + max(workspace, moved) + rebuilt
    gradients = (0 if shape.kind == "embedding" else incoming) + gathered
    recomputed = rebuilt + output + workspace if strategy.ckpt else 0
    beside = rows * shape.tokens * (8 + 3 * element * (1 + (tp if tp > 1 else 0)))
    if shape.kind == "head":
        # Beside the logits at the loss: targets, this shard's three statistics, and those of all shards.
        first = max(first, output + beside)
    backward = gathered + gradients + output + recomputed + max(entry.backward_workspace_bytes.value, moved)
    if shape.kind == "embedding" and profile.tied_parameters:
        backward = max(backward, profile.tied_parameters * element - incoming)
    backward = max(first, backward)
    if shape.kind == "head":
        # Logits wait for their backward pass, also those of other micro-batches in flight; or what makes them anew.
        waiting = beside if "loss" in strategy.modules else output
        forward, backward = forward + waiting, backward - waiting
        backward = max(backward, profile.tied_parameters * element - forward)
    return forward, backward, state + LOSS_BYTES  # the loss of any unit: each may be all that a stage has
