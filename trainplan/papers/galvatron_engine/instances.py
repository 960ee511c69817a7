"""Instances of galvatron-engine: a profile, under the engine's cost model, as the problem that Hetu-Galvatron v2.4.0 searches.

There is one configuration for every pass of the engine's loops, in their order (GalvatronSearchEngine.parallelism_optimization,
DpOnModel.fit): micro-batches m, least and most tp of a layer, sequence parallelism of the vocabulary, sharding of embedding and
head, stages P, tp of the vocabulary. `choices` in an instance's provenance lists them.

Covered: PP, DP as DDP or ZeRO-2, SDP (ZeRO-3), TP, its order (optional), CKPT; 1F1B; vocabulary tp and sp; the switches of
`EngineOptions`; those of `costs`; layers in whole MiB rounded up; 1024 MiB of context and the buffer of all-gathers
in every stage, here as `backward_bytes`; a fifth of the memory held back above 20 GiB; R (re-laying between layers) in the
tables, though not in the final cost.

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
    """Build the instance (costs of all strategies) of the problem galvatron-engine for a profile, on the devices that the
    profile was measured on.

    memory_bytes: memory of one device. batch: samples per step. options: options of the engine; None for its defaults. Raises
    InputError if the number of micro-batches does not divide the batch, or if the engine finds nothing to search for this
    batch.
    """
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
        """The costs of one pass of the loops around the engine's search."""
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
    """Yield the configurations (cost tables of layers) that an instance has for one pass of the engine's loops (numbers of
    stages and micro-batches, parallelism of embedding and head): `configuration` itself or, with the engine's option
    `uniform`, one configuration per strategy that all layers may share.

    With `uniform`, only strategies with the tensor-parallel degree of embedding and head (`choice.vocabulary_tp`) are used,
    as in the engine's DPAlg.fit. options: the engine's options.
    """
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
    """The bytes of a device's memory that Galvatron's engine plans with: whole MiB minus, on large devices, a reserve for
    PyTorch's cache.

    memory_bytes: the device's memory. Source: DpOnModel.__init__ in the engine.
    """
    whole = memory_bytes // MIB
    reserve = int(whole * RESERVED) if whole // 1024 > RESERVED_ABOVE_GIB else 0
    return (whole - reserve) * MIB


def _choices(costs: EngineCosts) -> Iterator[LoopPass]:
    """Yield the passes of the nested loops around the search of Galvatron's engine, in the engine's order. A pass fixes
    numbers of stages and micro-batches, the range of the layers' tensor-parallel degrees, and the parallelism of embedding and
    head.

    Passes without `buffer` represent the engine's search with Ulysses sequence parallelism only, of which trainplan models
    only the layers without tensor parallelism. costs: the engine's cost model for one profile and batch.
    """
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
    """Cost tables of layers, without embedding and head, for the strategies whose tensor-parallel degree is from `least_tp` to
    `most_tp`.

    stages, micro_batches: number of pipeline stages, and of micro-batches per step. Tables are (3, S), for three kinds of
    layer (first, middle, last), which have equal costs here, by S strategies; times of redistributing activations are (1, S,
    S), by the strategies of two neighbouring layers.
    """
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
    """Build the configuration for one pass of the loops around the engine's search: cost tables of layers, with the costs of
    embedding and head added to the first and last layer, and the reserved memory.

    choice: the pass (numbers of stages and micro-batches, parallelism of embedding and head). layer: cost tables of layers
    alone.
    """
    ends_ns, ends_mib = costs.ends_ns(choice), costs.ends_mib(choice)

    def by_kind(ends: tuple[int, int]) -> Integers:
        """(3, 1): amounts of embedding and head, for the first, middle and last layers."""
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
    """Bytes of one layer under a strategy, as an instance has them: O_ms for its model states, and O_f for its activations of
    one micro-batch.

    The engine rounds a layer's memory up to whole MiB. O_ms is the largest number such that O_ms + n O_f never exceeds the
    engine's memory, for every number n of micro-batches that some stage has in flight. costs: the engine's cost model for one
    profile and batch. stages, micro_batches: number of pipeline stages, and of micro-batches per step.
    """
    states, kept = costs.layer_bytes(strategy, micro_batches)
    counts = {min(micro_batches, stages - stage) for stage in range(stages)}
    return min(-(-(states + n * kept) // MIB) * MIB - n * kept for n in counts), kept
