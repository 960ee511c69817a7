"""What a sub-layer costs where tensor-parallel ranks share its tokens, from what it costs where each works on all of them.

Bytes follow from the pieces (see `sublayers.token_share`), times from proportions: those that were profiled times what the
roofline estimates of the shared sub-layer over what it estimates of the whole one. Completed numbers are `estimated`.
"""

from __future__ import annotations

from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.cluster import DeviceKind
from trainplan.profiling.estimate import kind_of, operators_ns
from trainplan.profiling.models.sublayers import Operator, Sublayer, TokenShare
from trainplan.profiling.profiles import Number, Profile, UnitCost, slowest


def shared_cost(profile: Profile, sublayer: str, tp: int, rows: int, device: str | None = None) -> UnitCost:
    """Costs of one shape whose ranks share the tokens, as of `Profile.cost`: kept bytes are beside the input on the rank's own
    tokens; workspaces, of all pieces and what is gathered between them, beyond input, kept and output of these. Raises
    InputError where the profile lacks the shape, or describes no model."""
    model = profile.described_model
    if model is None:
        problem, fix = "describes no model", "give a profile of a model, or a plan without sequence parallelism"
        raise InputError("profile", "model", problem, fix)
    entries = [entry for entry in profile.entries(sublayer, tp, rows) if device in (None, entry.device)]
    if not entries:
        return profile.cost(sublayer, tp, rows, device)  # which says what is missing
    part = model.sublayers[sublayer]
    return slowest([_shared(entry, part, kind_of(profile, entry.device)) for entry in entries])


def _proportions(part: Sublayer, kind: DeviceKind, tp: int, rows: int) -> tuple[float, float]:
    """Of the forward and the backward pass, what the shared sub-layer takes of the time of the whole one."""
    whole, shared = (
        operators_ns(operators, kind, part.dtype, part.element_bytes)
        for operators in (part.operators(rows, tp), shared_operators(TokenShare(part, tp), rows))
    )
    return shared[0] / whole[0], shared[1] / whole[1]


def shared_operators(share: TokenShare, rows: int) -> list[Operator]:
    """The kernels of a forward pass whose first and last ones work on the rank's own tokens."""
    all_tokens, own = (part.operators(rows, share.tp) for part in (share.part, share.own))
    first, last = share.operators_before, len(all_tokens) - share.adds_residual
    return own[:first] + all_tokens[first:last] + own[last:]


def _shared(entry: UnitCost, part: Sublayer, kind: DeviceKind) -> UnitCost:
    share, rows = TokenShare(part, entry.tp), entry.rows
    forward, backward = _proportions(part, kind, entry.tp, rows)
    times = {
        "forward_ns": entry.forward_ns.value * forward,
        "forward_without_graph_ns": entry.forward_without_graph_ns.value * forward,
        "backward_ns": entry.backward_ns.value * backward,
    }
    numbers = times | share.costs_bytes(rows)
    return entry.changed(
        **{
            name: Number(value=round(value), origin="estimated", spread=entry.numbers[name].spread)
            for name, value in numbers.items()
        }
    )
