"""Plans that recompute the first n layers of every stage, with the same n everywhere (option `--recompute-first`).

Megatron-LM calls it `--recompute-method block --recompute-num-layers n`: every stage, and every chunk where stages are
interleaved, recomputes its first n layers whole, or all where it has fewer; embedding and head recompute nothing. All units
have one layout, and all stages equally many layers, unless `--cuts` fixes where they begin.

A configuration of such an instance is one of the usual instance in one layout, with its cuts. Every unit is a kind of its own
and has an option for each n: the i-th is the usual table's for the i-th n. Units agree where they have the same n: it is the
interface state, and boundaries forbid all pairs of different ones, within stages and between them. So a configuration has one
choice for each n, whose times and bytes are those of the usual instance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from trainplan.formulations.joint.overlap_lower_bounds import layout_of
from trainplan.formulations.joint.problem import Configuration, Instance
from trainplan.formulations.joint.tables import FORBIDDEN, Boundary, Option, OptionTable, Tables
from trainplan.formulations.numbers import Integers
from trainplan.formulations.parameters import Parameter
from trainplan.formulations.plan.strategy import Strategy
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, shown
from trainplan.profiling.models.model import Model

RECOMPUTE_FIRST = Parameter(
    "recompute_first",
    str,
    "recompute whole layers, the first n of each stage, and nothing else: n, several such as 0,4,8, or any; one strategy for "
    "all sub-layers, stages of as many layers each",
)
ANY = "any"
ENDS = ("embedding", "head")


def whole_layers(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a request for plans that recompute the first layers of every stage; options that then have no choice
    (recomputed modules, sliced micro-batches, parts on the host) are set to nothing. options: the request's options, by
    parameter name. Raises InputError if the user requests sliced micro-batches or parts on the host.
    """
    for name, without in (("host", ("none", "all")), ("sliced", (0,))):
        if options[name] not in without:
            problem, fix = f"is {options[name]}, with {RECOMPUTE_FIRST.flag}", f"leave it or {RECOMPUTE_FIRST.flag} out"
            raise InputError(COMMAND_LINE, f"--{name}", problem, fix)
    return {**options, "modules": False, "sliced": 0, "host": "none"}


def with_first_layers(instance: Instance, model: Model, requested: str) -> Instance:
    """The instance of plans that recompute the first n layers of every stage and nothing else. instance: an instance whose
    configurations (schedule, number of micro-batches and device groups) all have fixed cuts. requested: the user's text for n:
    a number, several such as `0,4,8`, or `any`. Raises InputError if the text is not understood, or no plan remains."""
    units = [model.units[unit.first] for unit in instance.units]
    layers = [None if unit.kind in ENDS else unit.layer for unit in units]
    numbers, configurations = _numbers(requested, len(set(layers) - {None})), list[Configuration]()
    for configuration in instance.configurations:
        indices = _layers_before(layers, configuration.cuts or ())
        most = max((index + 1 for index in indices if index is not None), default=0)
        of_stages = list(dict.fromkeys(min(n, most) for n in numbers))
        for layout in _layouts(configuration):
            if (one := _in_layout(instance, configuration, layout, indices, of_stages)) is not None:
                configurations.append(one)
    if not configurations:
        problem, fix = (
            f"is {requested}, of which no sub-layer may be",
            "allow recomputation, and strategies that all sub-layers can have",
        )
        raise InputError(COMMAND_LINE, RECOMPUTE_FIRST.flag, problem, fix)
    own = tuple(replace(unit, kind=l) for l, unit in enumerate(instance.units))
    provenance = {**instance.provenance, RECOMPUTE_FIRST.name: requested}
    name = f"{instance.name}, the first layers of each stage recomputed"
    return replace(instance, units=own, configurations=tuple(configurations), provenance=provenance, name=name)


def _numbers(requested: str, layers: int) -> list[int]:
    """The numbers of first layers to recompute that a user's text names, ascending: `0,4` -> [0, 4]; `any` -> 0 up to `layers`.
    layers: the number of the model's layers. requested: the text. Raises InputError for other texts."""
    words = {word.strip() for word in requested.split(",")}
    if words == {ANY}:
        return list(range(layers + 1))
    if not all(word.isdecimal() and int(word) <= layers for word in words):
        fix = f"give numbers of layers, 0 to {layers}, such as 4 or 0,4,8, or {ANY}"
        raise InputError(COMMAND_LINE, RECOMPUTE_FIRST.flag, f"is {shown(requested)}", fix)
    return sorted(map(int, words))


def _layers_before(layers: Sequence[int | None], cuts: Sequence[int]) -> list[int | None]:
    """For each unit (sub-layer), the number of layers of its stage that precede its own layer; None for embedding and head.
    layers: the layer of each unit, None for embedding and head. cuts: the first unit of every stage but the first. Raises
    InputError if a stage begins within a layer."""
    layers_before, before = list[int | None](), dict[int, int]()
    for l, layer in enumerate(layers):
        if l in cuts:
            before = {}
            if layer is not None and layer == layers[l - 1]:
                problem, fix = "begin a stage within a layer", "give sub-layers that begin layers, which are recomputed whole"
                raise InputError(COMMAND_LINE, "--cuts", problem, fix)
        layers_before.append(None if layer is None else before.setdefault(layer, len(before)))
    return layers_before


def _layouts(configuration: Configuration) -> list[Strategy]:
    """The layouts that all units (sub-layers or layers) of a configuration (schedule, number of micro-batches and device
    groups) can have: strategies without recomputation and with nothing on the host."""
    (tables,) = configuration.tables
    by_kind = [[option.strategy for option in table.options if _plain(option)] for table in tables.units]
    return [layout for layout in by_kind[0] if layout is not None and all(layout in strategies for strategies in by_kind)]


def _plain(option: Option) -> bool:
    """Whether an option is nothing but a layout (a strategy without recomputation): it recomputes nothing and keeps nothing on
    the host. option: a strategy, and what of the unit is kept on the host.
    """
    strategy = option.strategy
    return strategy is not None and not option.host and strategy == layout_of(strategy)


def _in_layout(
    instance: Instance,
    configuration: Configuration,
    layout: Strategy,
    layers_before: Sequence[int | None],
    numbers: Sequence[int],
) -> Configuration | None:
    """The configuration (schedule, number of micro-batches and device groups) whose units (sub-layers or layers) all have one
    layout, with one option for each number n of first layers to recompute; None if units cannot be recomputed as any of
    these numbers requires. layout: a strategy without recomputation. layers_before: for each unit, the number of layers of
    its stage before its own layer, None for embedding and head. numbers: the numbers n to choose from. instance: the
    configurations to choose from, with costs and memory limits.
    """
    (tables,) = configuration.tables
    by_kind = [{option.strategy: s for s, option in enumerate(table.options) if not option.host} for table in tables.units]
    again, kinds = replace(layout, ckpt=True), [unit.kind for unit in instance.units]
    inner = {kind for kind, before in zip(kinds, layers_before, strict=True) if before is not None}
    if not all(again in by_kind[kind] for kind in inner):
        numbers = [n for n in numbers if n == 0]
    if not numbers:
        return None

    def recomputed(table: OptionTable, kind: int, before: int | None) -> OptionTable:
        strategies = [again if before is not None and before < n else layout for n in numbers]
        kept = table.keep([by_kind[kind][strategy] for strategy in strategies])
        named = [Option(f"{strategy} (first {n})", strategy) for n, strategy in zip(numbers, strategies, strict=True)]
        own = np.arange(len(numbers), dtype=np.int64)
        return replace(kept, options=tuple(named), enter=own, leave=own)

    plain = by_kind[kinds[0]][layout]
    state, count = int(tables.units[kinds[0]].leave[plain]), len(numbers)
    by_kind_and_depth = {
        (kind, before): recomputed(tables.units[kind], kind, before)
        for kind, before in set(zip(kinds, layers_before, strict=True))
    }
    own = Tables(
        units=tuple(by_kind_and_depth[key] for key in zip(kinds, layers_before, strict=True)),
        boundaries=tuple(_agreeing(boundary, state, count) for boundary in tables.boundaries),
        states=(str(layout),) * count,
    )
    tied = configuration.tied
    if tied is not None and tied.equal is not None and tied.once is not None:
        alike = bool(tied.equal[plain, by_kind[kinds[-1]][layout]])
        tied = replace(tied, equal=np.full((count, count), alike), once=recomputed(tied.once, kinds[-1], layers_before[-1]))
    return replace(configuration, make_tables=lambda: (own,), make_tied=lambda: tied)


def _agreeing(boundary: Boundary, state: int, count: int) -> Boundary:
    """A copy of a boundary between two units (sub-layers or layers) that forces both units to recompute the same number n of
    first layers: as interface states it has the indices of n in the list of allowed numbers, and it forbids going from one
    state to another.

    boundary: the usual boundary. state: its interface state (how ranks share hidden states) whose costs of re-layouts and
    messages are taken over. count: the number of allowed numbers n.
    """
    same = np.eye(count, dtype=bool)

    def within(matrix: Integers) -> Integers:
        return np.where(same, matrix[state, state], FORBIDDEN)

    def sent(matrix: Integers) -> Integers:
        return np.broadcast_to(matrix[..., state, state][..., None, None], (*matrix.shape[:-2], count, count)).copy()

    ahead, back = boundary.message_forward_bytes, boundary.message_backward_bytes
    return Boundary(
        relayout_forward_ns=within(boundary.relayout_forward_ns),
        relayout_backward_ns=within(boundary.relayout_backward_ns),
        message_forward_ns=sent(boundary.message_forward_ns),
        message_backward_ns=sent(boundary.message_backward_ns),
        message_forward_bytes=None if ahead is None else sent(ahead),
        message_backward_bytes=None if back is None else sent(back),
    )
