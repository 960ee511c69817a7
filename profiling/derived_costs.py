"""What a sub-layer costs where tensor-parallel ranks share its tokens, or modules of it are recomputed, from what it costs
whole.

Bytes follow from the pieces (see `sublayers.token_share` and `sublayers.modules`), times from proportions: those that were
profiled times what the roofline estimates of the pieces over what it estimates of the whole. Such numbers are `estimated`.
"""

from __future__ import annotations

from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.cluster import DeviceKind
from trainplan.profiling.estimate import kind_of, operators_ns
from trainplan.profiling.models.sublayers import Operator, Selective, Sublayer, TokenShare
from trainplan.profiling.profiles import Number, Profile, UnitCost, slowest


def cost_of_pieces(
    profile: Profile,
    sublayer: str,
    tp: int,
    rows: int,
    device: str | None = None,
    *,
    shared: bool,
    modules: tuple[str, ...] = (),
) -> UnitCost:
    """Costs of one shape, as of `Profile.cost`. shared: whether ranks share the tokens; kept bytes are then beside the input on
    the rank's own tokens, and workspaces, of all pieces and what is gathered between them, beyond input, kept and output of
    these. modules: those that are recomputed. Raises InputError where the profile lacks the shape, or describes no model."""
    key = "cost of pieces", sublayer, tp, rows, device, shared, modules
    if key not in profile.derived:
        profile.derived[key] = _cost_of_pieces(profile, *key[1:])
    cost: UnitCost = profile.derived[key]
    return cost


def _cost_of_pieces(
    profile: Profile, sublayer: str, tp: int, rows: int, device: str | None, shared: bool, modules: tuple[str, ...]
) -> UnitCost:
    model = profile.described_model
    if model is None:
        fix = "give a profile of a model, or a plan without sequence parallelism and recomputation of modules"
        raise InputError("profile", "model", "describes no model", fix)
    entries = [entry for entry in profile.entries(sublayer, tp, rows) if device in (None, entry.device)]
    if not entries:
        return profile.cost(sublayer, tp, rows, device)  # which says what is missing
    part = model.sublayers[sublayer]
    if not shared and not Selective(part, modules).effective:
        return slowest(entries)
    return slowest([_of_pieces(entry, part, kind_of(profile, entry.device), shared, modules) for entry in entries])


def shared_operators(share: TokenShare, rows: int) -> list[Operator]:
    """The kernels of a forward pass whose first and last ones work on the rank's own tokens."""
    all_tokens, own = (part.operators(rows, share.tp) for part in (share.part, share.own))
    first, last = share.part.operators_before, len(all_tokens) - share.adds_residual
    return own[:first] + all_tokens[first:last] + own[last:]


def _of_pieces(entry: UnitCost, part: Sublayer, kind: DeviceKind, shared: bool, modules: tuple[str, ...]) -> UnitCost:
    tp, rows = part.degree(entry.tp), entry.rows
    share, selective = TokenShare(part, tp, modules), Selective(part, modules)

    def estimated_ns(operators: list[Operator]) -> tuple[float, float]:
        return operators_ns(operators, kind, part.dtype, part.element_bytes)

    whole = estimated_ns(part.operators(rows, tp))
    pieces = estimated_ns(shared_operators(share, rows)) if shared else whole
    again = estimated_ns(share.operators_again(rows) if shared else selective.operators(rows, tp))[0]
    forward, backward = (entry.numbers[name].value for name in ("forward_ns", "backward_ns"))
    numbers: dict[str, float] = {
        "forward_ns": forward * pieces[0] / whole[0],
        "forward_without_graph_ns": entry.forward_without_graph_ns.value * pieces[0] / whole[0],
        "backward_ns": backward * pieces[1] / whole[1] + forward * again / whole[0],
    }
    numbers |= share.costs_bytes(rows) if shared else selective.costs_bytes(rows, tp)
    return entry.changed(
        **{
            name: Number(value=round(value), origin="estimated", spread=entry.numbers[name].spread)
            for name, value in numbers.items()
        }
    )
