"""Plans that differ from a run's in one decision and that the same runtime can run: micro-batches, recomputation, ZeRO stage,
tensor and context parallelism, the exchange of context-parallel ranks, pipeline stages, schedule, sharing of tokens.

The batch and a rank's samples per micro-batch stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trainplan.execution.runtimes.export_common import ENDS
from trainplan.formulations.plan.plan import Plan, Stage
from trainplan.formulations.plan.strategy import Exchange, Strategy
from trainplan.formulations.runtimes import RUNTIMES
from trainplan.formulations.schedule.orders import SCHEDULES, SIMULATED
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import divisors, plural
from trainplan.profiling.models.sublayers import modules_of


def neighbours(runtime: str, plan: Plan) -> Iterator[tuple[str, Plan]]:
    """All plans that differ from a plan in one decision and that a runtime can run, as pairs: the decision in words, and the
    changed plan. runtime: the runtime's name.
    """
    rules, strategy, model = RUNTIMES[runtime], plan.units[0].strategy, plan.planned_model()
    for what, other in (
        *_other_micro_batches(plan),
        *_other_recomputation(plan, tuple(rules.modules)),
        *_other_sharding(plan, strategy, rules.zero),
        *_other_degrees(plan, strategy, pipelines=not rules.one_stage and plan.chunks == 1),
        *_other_schedules(plan, rules.schedules),
        *_other_residence(plan),
    ):
        if all(rules.carries(unit.strategy, model) for unit in other.units):
            yield what, other


def _changed(what: str, plan: Plan, **fields: Any) -> Iterator[tuple[str, Plan]]:
    """A plan with some fields replaced, yielded as one pair of text and plan; nothing is yielded if the result is not a valid
    plan, or if it does not differ. what: the change in words. fields: the new values by field name.
    """
    try:
        other = plan.changed(**fields, predicted=None, claim=None)
    except InputError:
        return
    if other.content != plan.content:
        yield what, other


def _other_micro_batches(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Plans with other numbers of micro-batches per step, as pairs of the change in words and the plan."""
    data, samples = plan.units[0].strategy.data_degree, plan.batch.global_samples
    for count in divisors(samples // data):
        what = f"micro-batches of {plural(samples // data // count, 'sample')} on a rank, {count} a step"
        yield from _changed(what, plan, batch=plan.batch.changed(micro_batches=count))


def _other_recomputation(plan: Plan, modules: tuple[str, ...]) -> Iterator[tuple[str, Plan]]:
    """Plans with other recomputation, as pairs of the change in words and the plan: none, all layers, or some modules in all
    layers. modules: the names of modules, such as attention, that the runtime can recompute without the rest of their layer."""
    choices: list[tuple[str, bool, tuple[str, ...]]] = [("no recomputation", False, ()), ("all layers recomputed", True, ())]
    choices += [(f"{' and '.join(sorted(modules))} of all layers recomputed", False, tuple(sorted(modules)))] * bool(modules)
    parts = {unit.name: unit.sublayer for unit in plan.planned_model().units}
    for what, ckpt, names in choices:
        units = []
        for unit in plan.units:
            inner = unit.name not in ENDS
            recomputed = tuple(name for name in names if inner and name in modules_of(parts[unit.name]))
            units.append(unit.laid_out(replace(unit.strategy, ckpt=ckpt and inner, modules=recomputed)))  # type: ignore[arg-type]
        yield from _changed(what, plan, units=units)


def _other_sharding(plan: Plan, strategy: Strategy, zero: tuple[int, ...]) -> Iterator[tuple[str, Plan]]:
    """Plans with another ZeRO stage, or with sequence parallelism switched, as pairs of the change in words and the plan.

    strategy: the strategy of the plan's first unit. zero: the ZeRO stages to try (0: none).
    """
    data, cp, tp = strategy.data_degree, strategy.degree("cp"), strategy.degree("tp")
    names = {0: "copies of all states (no ZeRO)", 1: "ZeRO stage 1", 2: "ZeRO stage 2", 3: "ZeRO stage 3"}
    for stage in zero:
        levels = Strategy.of(("sdp" if stage else "dp", data), ("cp", cp), ("tp", tp)).levels
        yield from _relaid(
            names[stage], plan, lambda old, levels=levels, stage=stage: replace(old, levels=levels, zero=stage or 3)
        )
    if tp > 1:
        what = "tokens not shared" if strategy.sequence_parallel else "tokens shared between tensor-parallel ranks"
        yield from _relaid(what, plan, lambda old: replace(old, sequence_parallel=not old.sequence_parallel))


def _relaid(what: str, plan: Plan, change: Any) -> Iterator[tuple[str, Plan]]:
    """A plan in which every unit (sub-layer) has another strategy, yielded as one pair of text and plan; nothing is yielded if
    the result is not a valid plan, or if it does not differ.

    what: the change in words. change: takes a strategy and returns the new one.
    """
    try:
        units = [unit.laid_out(change(unit.strategy)) for unit in plan.units]
    except InputError:
        return
    yield from _changed(what, plan, units=units)


def _other_degrees(plan: Plan, strategy: Strategy, *, pipelines: bool) -> Iterator[tuple[str, Plan]]:
    """Plans with another degree of tensor or context parallelism, another exchange of context-parallel ranks or another number
    of stages, as pairs of the change in words and the plan. Data parallelism takes the remaining ranks.

    strategy: the strategy of the plan's first unit. pipelines: whether to try other numbers of stages.
    """
    world, depth, tp, cp = plan.world, plan.depth, strategy.degree("tp"), strategy.degree("cp")
    micro = plan.batch.global_samples // plan.batch.micro_batches // strategy.data_degree
    shared = "sdp" if strategy.degree("sdp") > 1 else "dp"
    kinds = [(t, cp, depth, f"tensor parallelism over {t}") for t in plan.planned_model().tp_degrees(min(8, world // depth))]
    if cp > 1:
        words = ((c, f"context parallelism over {c}" if c > 1 else "no context parallelism") for c in (1, 2, 4, 8, 16))
        kinds += [(tp, c, depth, what) for c, what in words]
        what = "keys and values exchanged, around a ring" if strategy.exchanges_heads else "heads exchanged, by all-to-alls"
        exchange: Exchange = "keys" if strategy.exchanges_heads else "heads"
        yield from _relaid(what, plan, lambda old: replace(old, exchange=exchange))
    if pipelines:
        kinds += [(tp, cp, p, f"{p} pipeline stages" if p > 1 else "no pipeline") for p in divisors(world // tp)]
    for t, c, p, what in kinds:
        if (t, c, p) == (tp, cp, depth) or world % (t * c * p):
            continue
        data = world // (t * c * p)
        count, rest = divmod(plan.batch.global_samples, data * micro)
        stages = plan.stages if p == depth else _even(plan, p)
        if rest or stages is None:
            continue
        levels = Strategy.of((shared, data), ("cp", c), ("tp", t)).levels  # type: ignore[arg-type]

        def relaid(old: Strategy, levels: Any = levels, t: int = t, c: int = c, data: int = data) -> Strategy:
            """A unit's strategy with the new degrees."""
            zero = old.zero if data > 1 and shared == "sdp" else 3
            tokens = t > 1 and (old.sequence_parallel or tp == 1)
            return replace(old, levels=levels, zero=zero, sequence_parallel=tokens, exchange=old.exchange if c > 1 else "keys")

        try:
            units = [unit.laid_out(relaid(unit.strategy)) for unit in plan.units]
        except InputError:
            continue
        yield from _changed(what, plan, units=units, stages=stages, batch=plan.batch.changed(micro_batches=count))


def _even(plan: Plan, depth: int, chunks: int = 1) -> list[Stage] | None:
    """Pipeline stages with numbers of layers as equal as possible, on ranks in order; None if there are too few layers, or if
    the ranks do not divide equally.

    plan: gives the layers and the ranks. depth: the number of groups of ranks in the pipeline. chunks: the number of stages
    on each group.
    """
    layers, count, size = len(plan.units) // 2 - 1, depth * chunks, plan.world // depth
    if layers < count or plan.world % depth:
        return None
    first_units = [0, *(1 + 2 * (layers * x // count) for x in range(1, count)), len(plan.units)]
    return [
        Stage(
            ranks=list(range(x % depth * size, (x % depth + 1) * size)),
            first_unit=first_units[x],
            last_unit=first_units[x + 1] - 1,
        )
        for x in range(count)
    ]


def _other_schedules(plan: Plan, schedules: Any) -> Iterator[tuple[str, Plan]]:
    """Plans with another pipeline schedule that the runtime has, as pairs of the change in words and the plan. schedules: the
    names of the runtime's schedules."""
    if plan.depth == 1:
        return
    if plan.chunks == 1:
        for name in SIMULATED:
            if name in schedules and not SCHEDULES[name].chunked:
                yield from _changed(f"schedule {name}", plan, schedule=name)
    for chunks in (1, 2, 4):
        stages = _even(plan, plan.depth, chunks)
        if stages is None or chunks == plan.chunks or ("1f1b" if chunks == 1 else "interleaved") not in schedules:
            continue
        what = "schedule 1f1b" if chunks == 1 else f"{chunks} interleaved stages on each rank"
        yield from _changed(what, plan, schedule="1f1b" if chunks == 1 else "interleaved-1f1b", stages=stages)


def _other_residence(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """The plan with all states on the device, as one pair of text and plan; nothing if it keeps none on the host."""
    if not plan.uses_host:
        return
    units = [
        unit.changed(
            states=unit.states.changed(optimizer="device", gradients="device", parameters="device", kept_whole=False),
            order=None,
        )
        for unit in plan.units
    ]
    yield from _changed("states on the device", plan, units=units, nvlink=None, backend=None)
