"""What one sub-layer under one strategy holds, in bytes of one device: O_f, O_b and O_ms of Eq. 2 (Galvatron-BMW, III-A).

O_ms: model states, 16 bytes a parameter in fp32 (parameter, gradient, AdamW's two moments). O_f: what one micro-batch keeps
from its forward pass to its backward pass. O_b: in the paper the intermediates that CKPT rebuilds; in the cost model `executed`
also what trainplan's programs hold while they compute: temporaries, gathered parameters, whole gradients, re-layout buffers,
logits.
"""

from __future__ import annotations

from trainplan.formulations.strategies import Strategy
from trainplan.formulations.work.moves import moved_bytes
from trainplan.profiling.profiles import Profile

LOSS_BYTES = 8  # the program's one scalar


def unit_bytes(profile: Profile, executed: bool, sublayer: str, strategy: Strategy, samples: int) -> tuple[int, int, int]:
    """O_f, O_b and O_ms of a sub-layer. samples: of a micro-batch. executed: of trainplan's programs, else the paper's."""
    tp, rows = strategy.degree("tp"), samples // strategy.data_degree
    entry, shape, element = profile.cost(sublayer, tp, rows), profile.shapes[sublayer], profile.parameter_bytes
    shard, incoming = shape.shard(tp), rows * shape.input_bytes
    checkpoint = incoming if entry.checkpoint_bytes is None else entry.checkpoint_bytes.value
    forward = checkpoint if strategy.ckpt else incoming + entry.kept_bytes.value
    rebuilt = incoming + entry.kept_bytes.value - checkpoint if strategy.ckpt else 0
    state = profile.state_bytes_per_parameter * -(-shard.parameters // strategy.degree("sdp"))
    if not executed:
        return forward, rebuilt, state
    # O_b of trainplan's programs, with the forward pass's peak beyond what it keeps, so that Eq. 2 covers it too.
    degree, output, workspace = strategy.degree("sdp"), rows * shard.output_bytes, entry.forward_workspace_bytes.value
    gathered = -(-shard.parameters // degree) * degree * element if degree > 1 else 0
    # A re-layout holds the blocks it gathered beside its result; which neighbour asks for one is not known here.
    moved = 0 if strategy.group == 1 else 2 * samples * max(moved_bytes(profile, sublayer))
    first = gathered + output + max(workspace, moved) + rebuilt
    gradients = (0 if shape.kind == "embedding" else incoming) + gathered
    recomputed = rebuilt + output + workspace if strategy.ckpt else 0
    if shape.kind == "head":
        # Beside the logits at the loss: targets, this shard's three statistics, and those of all shards.
        first = max(first, output + rows * shape.tokens * (8 + 3 * element * (1 + (tp if tp > 1 else 0))))
    backward = gathered + gradients + output + recomputed + max(entry.backward_workspace_bytes.value, moved)
    if shape.kind == "embedding" and profile.tied_parameters:
        backward = max(backward, profile.tied_parameters * element - incoming)
    backward = max(first, backward)
    if shape.kind == "head":
        # Logits wait for their backward pass, also those of other micro-batches in flight.
        forward, backward = forward + output, backward - output
        backward = max(backward, profile.tied_parameters * element - forward)
    return forward, backward, state + LOSS_BYTES  # the loss of any unit: each may be all that a stage has
