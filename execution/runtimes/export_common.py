"""What all exports share: the pieces of a plan in another runtime's words, and what is refused or left out.

A feature that a runtime lacks is refused where leaving it out would change what is computed or where work lies (another
order of passes, cuts within a layer, tensor parallelism, layouts that change from unit to unit, uneven shares). It is left
out, and said so, where only time or memory differ (sliced forward passes, sharded or recomputed data, ranks' order, devices).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainplan.execution.prediction.surrogate import memory_of, recipe_of
from trainplan.execution.support import refuse_others
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy import Module, Strategy
from trainplan.formulations.runtimes import Runtime
from trainplan.formulations.schedule.orders import orders
from trainplan.profiling.base.display import in_one_line
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.base.files import check_writable, unwritable, write_whole
from trainplan.profiling.base.quantities import format_bytes
from trainplan.profiling.clusters.recipes import Recipe
from trainplan.profiling.models.sublayers import modules_of

# A chain of sub-layers in letters: E embedding, a attention, f feed-forward, L head with the loss.
ENDS = ("embedding", "head")
LETTERS = {"embedding": "E", "attention": "a", "ffn": "f", "head": "L"}


@in_one_line
@dataclass(frozen=True)
class Training:
    """What a run needs that no plan says; None where it is not said. tokenizer: of Hugging Face, a folder; data: a folder;
    steps; learning_rate: the largest."""

    tokenizer: str | None = None
    data: str | None = None
    steps: int | None = None
    learning_rate: float | None = None


UNSAID = Training()


@dataclass(frozen=True)
class Export:
    """A plan for another runtime.

    files: text by name. settings: what they say, as data. left_out: what of the plan they do not say, one line each: it costs
    time or memory and changes nothing that is computed. plan: the plan as the runtime runs it, without that.
    """

    target: str
    settings: dict[str, Any]
    files: dict[str, str]
    left_out: tuple[str, ...]
    plan: Plan | None = None

    def __repr__(self) -> str:
        return f"<Export to {self.target}: {', '.join(self.files)}; left out: {len(self.left_out)}>"

    def to_dict(self) -> dict[str, Any]:
        """The export as data, for JSON."""
        return {
            "target": self.target,
            "settings": self.settings,
            "files": self.files,
            "left_out": list(self.left_out),
        }


def check_pipeline(
    plan: Plan,
    capabilities: Runtime,
    runtime: str,
    where: str,
) -> None:
    """Raises InputError where the plan is no pipeline of equal replicas of a model that a runtime has, or asks for a feature
    that it has not. runtime: its name, for messages."""
    family, families = plan.planned_model().family, capabilities.families
    if families is not None and family not in families:
        fix = f"give a plan of one of: {', '.join(families)}"
        raise InputError(where, "model.config.model_type", f"is {family!r}, which is not exported to {runtime}", fix)
    if plan.chunks > 1 and not (capabilities.one_stage or "interleaved" in capabilities.schedules):
        fix = f"give 1f1b or gpipe: interleaved stages are not exported to {runtime}"
        raise InputError(where, "schedule", f"is {plan.schedule!r}", fix)
    ranks = [rank for stage in plan.stages[: plan.depth] for rank in stage.ranks]
    if len(set(plan.stage_sizes)) > 1 or ranks != list(range(plan.world)):
        fix = f"give stages of equal size on ranks in order, as {runtime} has them"
        raise InputError(where, "stages", f"are of {shown(plan.stage_sizes)} ranks", fix)
    if plan.batch.shares is not None:
        fix = f"plan without uneven shares: all replicas run the same number of micro-batches in {runtime}"
        raise InputError(where, "batch.shares", f"is {shown(plan.batch.shares)}", fix)
    refuse_others(plan, capabilities.features, f"the export to {runtime}", where)


def as_exported(
    plan: Plan, strategy: Strategy, modules: Collection[Module] = (), first: int | None = None, **fields: Any
) -> Plan:
    """The plan as a runtime runs it: all units under one strategy, those but embedding and head recomputed where any is, or
    these modules of them; no forward pass in halves. first: the runtime recomputes so many layers of each stage, and no others.
    fields: others that differ."""
    again, _ = recomputation(plan)
    units = []
    for unit, described, index in zip(plan.units, plan.planned_model().units, _layers_in_stages(plan), strict=True):
        inner = unit.name not in ENDS
        ckpt = again and inner and (first is None or index < first)
        some = tuple(sorted(set(modules) & set(modules_of(described.sublayer)))) if inner and not again else ()
        units.append(unit.laid_out(replace(strategy, ckpt=ckpt, modules=some)))
    return plan.changed(units=units, sliced=0, predicted=None, claim=None, **fields)


def fitting_bytes(plan: Plan, exported: Plan, where: str, runtime: str, beside: int = 0) -> int:
    """The most that any device holds of a plan as exported: as is predicted of the runtime that the plan is for, where it is
    exported as it is, else by the walks. beside: bytes that the runtime keeps and programs do not. Raises InputError where that
    is more than the plan may take."""
    if predicted_for(plan, runtime) and plan.predicted is not None and _same(plan, exported):
        peak_bytes = plan.predicted.most_bytes
    else:
        _, walks = memory_of(exported)
        peak_bytes = max(walk.peak_bytes for walk in walks) + beside
    if peak_bytes > plan.memory_bytes:
        problem = f"is {format_bytes(plan.memory_bytes)}; as {runtime} runs it the plan takes {format_bytes(peak_bytes)}"
        raise InputError(where, "memory_bytes", problem, "plan with --for, or more --reserve, so that nothing is left out")
    return peak_bytes


def predicted_for(plan: Plan, runtime: str) -> bool:
    """Whether a plan's prediction is that of this runtime."""
    by, predicted = plan.runs_by, plan.predicted
    name = "megatron" if runtime == "Megatron-LM" else runtime.lower()
    return by is not None and by.name == name and predicted is not None and bool(predicted.software)


def _same(plan: Plan, exported: Plan) -> bool:
    return plan.changed(predicted=None, claim=None).content == exported.changed(predicted=None, claim=None).content


def letters(plan: Plan) -> list[str]:
    """The sub-layers of each stage, a letter each (see LETTERS): `['Eafa', 'fafL']`."""
    chain = "".join(LETTERS[unit.name.rpartition(".")[2]] for unit in plan.units)
    return [chain[stage.first_unit : stage.last_unit + 1] for stage in plan.stages]


def layers_of(plan: Plan) -> list[str]:
    """As `letters`, with `t` for a whole layer: `['Et', 'ttL']`; an `a` or `f` is left where a cut is within a layer."""
    return [stage.replace("af", "t") for stage in letters(plan)]


def half_cut(plan: Plan) -> int | None:
    """The first stage that begins within a layer."""
    return next((i for i, stage in enumerate(letters(plan)) if stage.startswith("f")), None)


def refuse_half_cut(plan: Plan, runtime: str, other: str, where: str) -> None:
    """Raises InputError at the first stage that begins within a layer. other: what could take it."""
    if (index := half_cut(plan)) is not None:
        unit = plan.stages[index].first_unit
        problem = f"is {unit} ({plan.units[unit].name}), within a layer"
        fix = f"cut between layers (`plan --like partition --no-by-unit`): {runtime} keeps them whole; or {other}"
        raise InputError(where, f"stages[{index}].first_unit", problem, fix)


def common_strategy(plan: Plan, runtime: str, where: str) -> Strategy:
    """The strategy of all units, recomputation aside. Raises InputError where they differ."""
    first, *others = [replace(strategy, ckpt=False, modules=()) for strategy in plan.strategies()]
    for position, strategy in enumerate(others, 1):
        if strategy != first:
            problem = f"is {str(plan.units[position].strategy)!r}, where units[0] has {str(plan.units[0].strategy)!r}"
            fix = f"plan with --one-strategy: {runtime} changes no layout between layers"
            raise InputError(where, f"units[{position}].{plan.units[position].field}", problem, fix)
    return first


def common_recipe(plan: Plan, runtime: str, where: str) -> Recipe | None:
    """The recipe of the products of all units between embedding and head, None where they are in the model's dtype. Raises
    InputError where they differ, or an end has one."""
    recipe = recipe_of(plan)
    for position, unit in enumerate(plan.units):
        wanted = "model" if recipe is None or unit.name in ENDS else recipe.name
        if unit.precision != wanted:
            fix = f"give {wanted!r}: {runtime} computes all layers alike, embedding and head in the model's dtype"
            raise InputError(where, f"units[{position}].precision", f"is {unit.precision!r}", fix)
    return recipe


def micro_batch_samples(plan: Plan, data_degree: int) -> int:
    """Samples of one micro-batch on one rank."""
    return plan.batch.global_samples // plan.batch.micro_batches // data_degree


def recomputation(plan: Plan) -> tuple[bool, list[str]]:
    """Whether layers are recomputed, which is all or none in other runtimes; and what is to be said where the plan has some,
    or recomputes its ends, which no other runtime does."""
    ends = [s.ckpt for unit, s in zip(plan.units, plan.strategies(), strict=True) if unit.name in ENDS]
    kept = "recomputation of embedding and head: here what they compute is kept; less time"
    inner = [s.ckpt for unit, s in zip(plan.units, plan.strategies(), strict=True) if unit.name not in ENDS]
    some = f"recomputation of single sub-layers: the plan has {sum(inner)} of {len(inner)}, here all layers are; more time"
    return any(inner), [some] * (any(inner) and not all(inner)) + [kept] * any(ends)


def first_recomputed(plan: Plan) -> int | None:
    """The number n, where every stage's recomputed layers are whole and its first n, or all where it has fewer, and some stage
    has others behind them; None where plans recompute nothing, everything, or something else."""
    inner = [
        (place, strategy.ckpt)
        for unit, strategy, place in zip(plan.units, plan.strategies(), _layers_in_stages(plan), strict=True)
        if unit.name not in ENDS
    ]
    n = max((place + 1 for place, ckpt in inner if ckpt), default=0)
    kept = any(not ckpt for _, ckpt in inner)
    return n if n and kept and half_cut(plan) is None and all(ckpt == (place < n) for place, ckpt in inner) else None


def _layers_in_stages(plan: Plan) -> list[int]:
    """Of every unit, how many layers its stage has before its own; the embedding is none."""
    places = []
    for stage in plan.stages:
        layers: dict[str, int] = {}
        for unit in plan.units[stage.first_unit : stage.last_unit + 1]:
            layer = unit.name.rpartition(".")[0]
            places.append(layers.setdefault(layer, len(layers)) if layer else 0)
    return places


def recomputed_modules(plan: Plan, names: Mapping[str, str], runtime: str) -> tuple[list[str], list[str]]:
    """What a runtime calls the modules that any layer recomputes by themselves; and what is to be said of the others."""
    by_unit = {strategy.modules for unit, strategy in zip(plan.units, plan.strategies(), strict=True) if unit.name not in ENDS}
    modules = sorted({module for each in by_unit for module in each})
    lines = modules_kept((module for module in modules if module not in names), runtime)
    if len(by_unit) > 1 and modules:
        lines.append("recomputation of modules of single sub-layers: here all layers have the same; more time or memory")
    return [names[module] for module in modules if module in names], lines


def modules_kept(modules: Iterable[Module], runtime: str) -> list[str]:
    """What is to be said of modules that a plan recomputes by themselves and a runtime does not."""
    return [f"recomputation of {module}: {runtime} keeps it; more memory" for module in sorted(set(modules))]


def left_out_of_all(plan: Plan, runtime: str) -> list[str]:
    """What no runtime has a word for."""
    lines = []
    if plan.sliced:
        lines.append(f"sliced: {runtime} runs all forward passes whole, so that its start-up takes longer")
    if plan.placement is not None and plan.placement != sorted(plan.placement):
        lines.append("placement: launch rank r on the device placement[r] of the plan yourself")
    return lines


def left_out_precision(plan: Plan, runtime: str) -> list[str]:
    """Of runtimes that are told of no precision."""
    if plan.precision.master is None:
        return []
    dtype = plan.planned_model().dtype
    return [f"precision: set {runtime} to {dtype} with {plan.precision.master} masters, as the plan counts its memory"]


def left_out_order(strategy: Strategy) -> list[str]:
    """torchtitan and Megatron-LM put the ranks of tensor parallelism next to each other."""
    names = [name for name, _ in strategy.levels]
    if "tp" in names[:-1]:
        return [f"order of {strategy}: ranks of tp are neighbours here, so that other links carry the traffic"]
    return []


def pass_names(plan: Plan) -> list[list[str]]:
    """The order of passes of each stage in the words of torch.distributed.pipelining: `["0F0", "0F1", "0B0", "0B1"]`."""
    return [
        [f"{one.stage}{'F' if one.kind == 'forward' else 'B'}{one.micro_batch}" for one in order]
        for order in orders(plan.schedule, len(plan.stages), plan.batch.micro_batches)
    ]


def export_targets(export: Export, output: Path) -> dict[Path, str]:
    """Where each file goes: into `output`, a folder that is made, or to `output` itself if there is one file and no folder."""
    if len(export.files) == 1 and not output.is_dir():
        return dict(zip([output], export.files.values(), strict=True))
    return {output / name: text for name, text in export.files.items()}


def write_export(export: Export, output: Path) -> list[Path]:
    """Write the files, each whole or not at all. Raises InputError."""
    targets = export_targets(export, output)
    if output not in targets:
        try:
            output.mkdir(exist_ok=True)
        except OSError as error:
            raise unwritable(output, error.errno) from None
    for path in targets:
        check_writable(path)
    for path, text in targets.items():
        write_whole(path, text)
    return list(targets)
