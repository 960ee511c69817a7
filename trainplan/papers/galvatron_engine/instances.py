"""The `code` cost model as a pipeline problem: what Galvatron's published engine (Hetu-Galvatron v2.4.0) searches.

One configuration for every pass of the engine's loops, in their order (GalvatronSearchEngine.parallelism_optimization,
DpOnModel.fit): m, least and most tp of a layer, vocabulary sp, embedding sharded, P, vocabulary tp. `choices` tells them.

Taken: PP, DP as DDP or ZeRO-2, SDP (ZeRO-3), TP, its order (optional), CKPT; 1F1B; vocabulary tp and sp; the switches of
`EngineOptions`; those of `costs`; layers in whole MiB rounded up; 1024 MiB of context and the buffer of all-gathers
in every stage, here as `backward_bytes`; a fifth of the memory held back above 20 GiB; R in the tables, though not in the
final cost.

Left out: layers under Ulysses sp; GPipe; several types of layers; micro-batches of unequal size, which the engine allows where
the devices of a stage do not divide a micro-batch. Not carried exactly: of a layer that different stages could hold for
different numbers n of micro-batches, ceil(O_ms + n O_f) is no line in n, so O_ms is the largest that is never above the
engine's: exact without a pipeline, else less than 1 MiB a layer too low. Times are rounded to nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache, partial
from itertools import product

import numpy as np

from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.plan.strategy import Strategy, parse_strategy
from trainplan.formulations.strategy_tables import Tables
from trainplan.papers.galvatron_engine.costs import EngineCosts, EngineOptions, LoopPass, powers
from trainplan.papers.galvatron_engine.problem import Configuration, Instance
from trainplan.papers.galvatron_engine.profile import EngineProfile
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import divisors
from trainplan.profiling.imports.source import MIB

COST_MODEL = "code"
RESERVED, RESERVED_ABOVE_GIB = 0.2, 20
FIRST, MIDDLE, LAST = range(3)
COLUMNS = ("time_ns", "sync_ns", "forward_bytes", "backward_bytes", "state_bytes", "entries_ns")  # by strategy


def build(profile: EngineProfile, memory_bytes: int, batch: int, options: EngineOptions | None = None) -> Instance:
    """The instance of one profile on its devices of `memory_bytes`, for `batch` samples a step. Raises InputError."""
    options = options or EngineOptions()
    costs = EngineCosts(profile, batch, options)
    if options.micro_batches is not None and batch % options.micro_batches:
        fix = f"give a divisor of --batch {batch}"
        raise InputError("command line", "--micro-batches", f"is {options.micro_batches}", fix)
    choices = list(_choices(costs))
    if not choices:
        raise InputError("command line", "--batch", f"is {batch}", f"give a multiple of {profile.devices}")
    layer = cache(partial(_layer, costs))

    def configuration(choice: LoopPass) -> Configuration:
        most_tp = choice.most_tp if choice.buffer else 1
        return _configuration(costs, choice, layer(choice.stages, choice.micro_batches, choice.least_tp, most_tp))

    indices = [(choice, part) for choice in choices for part in _parts(configuration(choice), choice, options)]
    return Instance(
        devices=profile.devices,
        memory_bytes=usable_bytes(memory_bytes),
        batch=batch,
        layer_names=tuple(f"layer-{l}" for l in range(profile.layers)),
        layer_kinds=(FIRST, *[MIDDLE] * (profile.layers - 2), LAST)[: profile.layers],
        boundary_kinds=(0,) * (profile.layers - 1),
        configurations=tuple(part for _, part in indices),
        name=f"{profile.name} on {profile.devices} devices, published cost model",
        provenance={
            "cost_model": COST_MODEL,
            "profile": profile.name,
            "sequence": profile.sequence,
            "options": asdict(options),
            "choices": [asdict(choice) for choice, _ in indices],
        },
    )


def _parts(configuration: Configuration, choice: LoopPass, options: EngineOptions) -> Iterator[Configuration]:
    """The configuration, or, where all layers have one strategy, one for each with the tp of embedding and head (DPAlg.fit)."""
    if not options.uniform:
        yield configuration
        return
    tables = configuration.tables
    for s, name in enumerate(tables.strategies):
        if parse_strategy(name).degree("tp") == choice.vocabulary_tp:
            columns = {field: getattr(tables, field)[..., s : s + 1] for field in COLUMNS}
            moves = tables.transitions_ns[..., s : s + 1, s : s + 1]
            yield replace(configuration, tables=Tables(strategies=(name,), transitions_ns=moves, **columns))


def usable_bytes(memory_bytes: int) -> int:
    """What the engine plans with (DpOnModel.__init__): whole MiB, without what it holds back for PyTorch's cache."""
    whole = memory_bytes // MIB
    reserve = int(whole * RESERVED) if whole // 1024 > RESERVED_ABOVE_GIB else 0
    return (whole - reserve) * MIB


def _choices(costs: EngineCosts) -> Iterator[LoopPass]:
    """The passes of the engine's loops. Unbuffered ones are its sp-only search, of which layers without tp remain."""
    world, batch, layers, options = costs.profile.devices, costs.batch, costs.profile.layers, costs.options
    degrees, depths = powers(world, options.most_tp), powers(world, options.most_stages)
    counts = divisors(batch) if options.micro_batches is None else [options.micro_batches]
    profiled = set.intersection(*(set(end.state_bytes) & set(end.activation_bytes) for end in costs.profile.ends.values()))
    vocabulary_sp = (False, True) if costs.options.measured_messages else (False,)
    for m, least, most, spread, sharded in product(counts, degrees, degrees, vocabulary_sp, (False, True)):
        if least > most:
            continue
        for buffer in (False, True) if spread and least == 1 and not options.uniform else (True,):
            for stages in depths:
                group = world // stages
                if stages > layers or least > group or batch * least % (m * group):
                    continue
                for tp in degrees:
                    if least <= tp <= min(most, group) and tp in profiled:
                        yield LoopPass(stages, m, least, most, tp, spread, sharded, buffer)


def _layer(costs: EngineCosts, stages: int, micro_batches: int, least_tp: int, most_tp: int) -> Tables:
    """First, middle and last layers in one size of stage and of micro-batch: alike, without embedding and head."""
    strategies = [s for s in costs.strategies(stages) if least_tp <= s.degree("tp") <= most_tp]
    times = np.array([costs.layer_ns(s, stages, micro_batches) for s in strategies], np.int64)
    sizes = np.array([_bytes(costs, stages, micro_batches, s) for s in strategies], np.int64)
    moves = [[costs.transition_ns(a, b, stages, micro_batches) for b in strategies] for a in strategies]
    kinds = np.zeros((3, len(strategies)), np.int64)
    return Tables(
        strategies=tuple(map(str, strategies)),
        time_ns=kinds + times[:, 0],
        sync_ns=kinds + times[:, 0] - times[:, 1],
        forward_bytes=kinds + sizes[:, 1],
        backward_bytes=kinds,
        state_bytes=kinds + sizes[:, 0],
        transitions_ns=np.array([moves], np.int64),
        entries_ns=kinds[:1],
    )


def _configuration(costs: EngineCosts, choice: LoopPass, layer: Tables) -> Configuration:
    ends_ns, ends_mib = costs.ends_ns(choice), costs.ends_mib(choice)

    def by_kind(ends: tuple[int, int]) -> Integers:
        alone = costs.profile.layers == 1
        return np.array([[ends[0] + (ends[1] if alone else 0)], [0], [ends[1]]])

    tables = replace(
        layer,
        time_ns=layer.time_ns + by_kind(ends_ns),
        backward_bytes=layer.backward_bytes + costs.reserve_mib(choice) * MIB,
        state_bytes=layer.state_bytes + by_kind(ends_mib) * MIB,
    )
    return Configuration(choice.stages, choice.micro_batches, tables, ends_ns=ends_ns)


def _bytes(costs: EngineCosts, stages: int, micro_batches: int, strategy: Strategy) -> tuple[int, int]:
    """O_ms and O_f: the largest O_ms with O_ms + n O_f at most the engine's whole MiB for every n of a stage."""
    states, kept = costs.layer_bytes(strategy, micro_batches)
    counts = {min(micro_batches, stages - stage) for stage in range(stages)}
    return min(-(-(states + n * kept) // MIB) * MIB - n * kept for n in counts), kept
