"""Costs of a sub-layer whose tokens are split over tensor-parallel ranks, or whose modules are partly recomputed, derived from
its costs as a whole.

Bytes follow from the sub-layer's pieces (see `sublayers.token_share` and `sublayers.modules`). Times are the profiled ones,
times the roofline's estimate of the pieces over its estimate of the whole. Such numbers have the origin `estimated`.
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
    """Costs of one shape, as `Profile.cost` gives them, with sequence parallelism or recomputation of modules.

    shared: whether tensor-parallel ranks share the tokens (sequence parallelism). Then kept bytes are those in addition to the
    input of the rank's own tokens, and workspaces, of all pieces and of the tensors gathered between them, are those beyond
    this input, the kept bytes and the output. modules: names of the modules that are recomputed in the backward pass. Raises
    InputError if the profile lacks the shape or describes no model.
    """
    key = "cost of pieces", sublayer, tp, rows, device, shared, modules
    if key not in profile.derived:
        profile.derived[key] = _cost_of_pieces(profile, *key[1:])
    cost: UnitCost = profile.derived[key]
    return cost


def _cost_of_pieces(
    profile: Profile, sublayer: str, tp: int, rows: int, device: str | None, shared: bool, modules: tuple[str, ...]
) -> UnitCost:
    """As `cost_of_pieces`, without the table of results; the slowest of the kinds of device that are meant."""
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
    """The kernels of a forward pass under sequence parallelism: its first and last ones work on the rank's own tokens only."""
    all_tokens, own = (part.operators(rows, share.tp) for part in (share.part, share.own))
    first, last = share.part.operators_before, len(all_tokens) - share.adds_residual
    return own[:first] + all_tokens[first:last] + own[last:]


def _of_pieces(entry: UnitCost, part: Sublayer, kind: DeviceKind, shared: bool, modules: tuple[str, ...]) -> UnitCost:
    """One entry of a profile (on one kind of device), converted as `cost_of_pieces` says."""
    tp, rows = part.degree(entry.tp), entry.rows
    share, selective = TokenShare(part, tp, modules), Selective(part, modules)

    def estimated_ns(operators: list[Operator]) -> tuple[float, float]:
        return operators_ns(operators, kind, part.dtype, part.element_bytes)

    whole = estimated_ns(part.operators(rows, tp))
    pieces = estimated_ns(shared_operators(share, rows)) if shared else whole
    recomputed = estimated_ns(share.operators_again(rows) if shared else selective.operators(rows, tp))[0]
    forward, backward = (entry.numbers[name].value for name in ("forward_ns", "backward_ns"))
    numbers: dict[str, float] = {
        "forward_ns": forward * pieces[0] / whole[0],
        "forward_without_graph_ns": entry.forward_without_graph_ns.value * pieces[0] / whole[0],
        "backward_ns": backward * pieces[1] / whole[1] + forward * recomputed / whole[0],
    }
    numbers |= share.costs_bytes(rows) if shared else selective.costs_bytes(rows, tp)
    return entry.changed(
        **{
            name: Number(value=round(value), origin="estimated", spread=entry.numbers[name].spread)
            for name, value in numbers.items()
        }
    )
