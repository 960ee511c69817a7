"""Costs of a sub-layer whose tokens are split over tensor-parallel ranks, or whose modules are partly recomputed, derived from
its costs as a whole.

Bytes follow from the sub-layer's pieces (see `sublayers.token_share` and `sublayers.modules`). Times are the profiled ones,
times the roofline's estimate of the pieces over its estimate of the whole. Such numbers have the origin `estimated`.
"""

from __future__ import annotations

from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.cluster import DeviceKind
from trainplan.profiling.estimate import kind_of, operators_ns
from trainplan.profiling.models.sublayers import Operator, SelectiveRecomputation, Sublayer, TokenShare
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
    """Costs (times and bytes) of a sub-layer with `rows` samples and tensor-parallel degree `tp`, under sequence parallelism
    or with recomputation of some modules, derived from the profiled costs of the whole sub-layer. Results are cached in the
    profile.

    sublayer: its name in the profile. device: the kind of device; None for the slowest of all kinds. shared: whether
    tensor-parallel ranks divide the tokens among themselves (sequence parallelism); kept bytes then exclude the input of the
    rank's own tokens, and workspaces exclude this input, the kept bytes and the output. modules: names of the modules that
    are recomputed in the backward pass. Raises InputError if the profile lacks this degree and number of rows, or describes
    no model.
    """
    key = "cost of pieces", sublayer, tp, rows, device, shared, modules
    if key not in profile.derived:
        profile.derived[key] = _cost_of_pieces(profile, *key[1:])
    cost: UnitCost = profile.derived[key]
    return cost


def _cost_of_pieces(
    profile: Profile, sublayer: str, tp: int, rows: int, device: str | None, shared: bool, modules: tuple[str, ...]
) -> UnitCost:
    """Compute, without the cache, the costs of a sub-layer with `rows` samples and tensor-parallel degree `tp` under sequence
    parallelism (`shared`) or with recomputation of `modules` in the backward pass, on the slowest kind of device, or on the
    kind `device` if it is given. Raises InputError if the profile lacks this degree and number of rows. sublayer: the
    sub-layer's name in the profile.
    """
    model = profile.described_model
    if model is None:
        fix = "give a profile of a model, or a plan without sequence parallelism and recomputation of modules"
        raise InputError("profile", "model", "describes no model", fix)
    entries = [entry for entry in profile.entries(sublayer, tp, rows) if device in (None, entry.device)]
    if not entries:
        return profile.cost(sublayer, tp, rows, device)  # which says what is missing
    part = model.sublayers[sublayer]
    if not shared and not SelectiveRecomputation(part, modules).effective:
        return slowest(entries)
    return slowest([_of_pieces(entry, part, kind_of(profile, entry.device), shared, modules) for entry in entries])


def shared_operators(share: TokenShare, rows: int) -> list[Operator]:
    """List the kernels that one tensor-parallel rank runs in a sub-layer's forward pass under sequence parallelism: the first
    and last kernels process the rank's own tokens only, the kernels between them all tokens.

    share: the sub-layer with its tensor-parallel degree. rows: samples on one device.
    """
    all_tokens, own = (part.operators(rows, share.tp) for part in (share.sublayer, share.own))
    first, last = share.sublayer.operators_before, len(all_tokens) - share.adds_residual
    return own[:first] + all_tokens[first:last] + own[last:]


def _of_pieces(entry: UnitCost, part: Sublayer, kind: DeviceKind, shared: bool, modules: tuple[str, ...]) -> UnitCost:
    """Convert a profile's costs of a sub-layer to its costs under sequence parallelism (`shared`) or with recomputation of
    `modules`: profiled times are scaled by the ratio of estimated times, bytes follow from the sub-layer's shapes.

    entry: the profiled costs. part: the sub-layer. kind: the kind of device that the costs are for.
    """
    tp, rows = part.degree(entry.tp), entry.rows
    share, selective = TokenShare(part, tp, modules), SelectiveRecomputation(part, modules)

    def estimated_ns(operators: list[Operator]) -> tuple[float, float]:
        """The roofline's forward and backward time in ns of these kernels."""
        return operators_ns(operators, kind, part.dtype, part.element_bytes)

    whole = estimated_ns(part.operators(rows, tp))
    pieces = estimated_ns(shared_operators(share, rows)) if shared else whole
    recomputed = estimated_ns(share.recomputed_operators(rows) if shared else selective.operators(rows, tp))[0]
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
