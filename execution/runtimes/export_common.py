"""Code that the exports to all runtimes share: the pieces of a plan in a runtime's terms, and checks of what the runtime lacks.

A feature that a runtime lacks is refused (InputError) where leaving it out would change the result of the computation or which
device does the work: another order of passes, cuts within a layer, tensor parallelism, layouts that change from unit to unit,
uneven shares. It is left out, with a line for the export's README, where only time or memory differ: sliced forward passes,
sharded or recomputed data, the order of ranks, the choice of devices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainplan.execution.prediction.surrogate import memory_of, recipe_of
from trainplan.execution.support import refuse_others, supported
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy import Module, Strategy
from trainplan.formulations.runtimes import Runtime, StepAndPeaks, devices_of, exported_settings, named, predict, title
from trainplan.formulations.schedule.orders import SIMULATED, orders
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
    """Settings of a training run that a plan does not hold; None where the user has not given one.

    tokenizer: a folder with a Hugging Face tokenizer. data: a folder with the data set. steps: number of training steps.
    learning_rate: the largest learning rate of the schedule.
    """

    tokenizer: str | None = None
    data: str | None = None
    steps: int | None = None
    learning_rate: float | None = None


UNSAID = Training()


@dataclass(frozen=True)
class Export:
    """The files that run a plan in another runtime. target: the runtime's name. settings: the settings that the files contain,
    as a JSON-ready dict. files: texts by file name. left_out: features of the plan that the files do not have, one line per
    feature; they cost time or memory and do not change what is computed. plan: the plan as the runtime runs it, without those
    features."""

    target: str
    settings: dict[str, Any]
    files: dict[str, str]
    left_out: tuple[str, ...]
    plan: Plan | None = None

    def __repr__(self) -> str:
        return f"<Export to {self.target}: {', '.join(self.files)}; left out: {len(self.left_out)}>"

    def to_dict(self) -> dict[str, Any]:
        """The export as a JSON-ready dict: `target` (the runtime's name), `settings`, `files` (texts by file name) and
        `left_out` (lines on features of the plan that the files do not have); without the plan."""
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
    optimizers: Collection[str] = ("adamw",),
) -> None:
    """Check that a runtime can run the pipeline of a plan. Raises InputError if the plan is not a pipeline of equal replicas of
    a model that the runtime has, or needs a feature outside `capabilities` or another optimizer.

    runtime: the runtime's name in messages. where: the plan's file, for errors. capabilities: the features, schedules and
    optimizers that the runtime supports. optimizers: names of the plans' optimizers that the export can write, such as 'adamw'
    and 'muon'.
    """
    family, families = plan.planned_model().family, capabilities.families
    if families is not None and family not in families:
        fix = f"give a plan of one of: {', '.join(families)}"
        raise InputError(where, "model.config.model_type", f"is {family!r}, which is not exported to {runtime}", fix)
    if plan.chunks > 1 and not (capabilities.one_stage or "interleaved" in capabilities.schedules):
        fix = f"give 1f1b or gpipe: interleaved stages are not exported to {runtime}"
        raise InputError(where, "schedule", f"is {plan.schedule!r}", fix)
    if plan.depth > 1 and plan.chunks == 1 and plan.schedule in SIMULATED and plan.schedule not in capabilities.schedules:
        others = " or ".join(name for name in capabilities.schedules if name in SIMULATED)
        raise InputError(where, "schedule", f"is {plan.schedule!r}", f"plan with --schedule {others}: {runtime} runs no other")
    ranks = [rank for stage in plan.stages[: plan.depth] for rank in stage.ranks]
    if len(set(plan.stage_sizes)) > 1 or ranks != list(range(plan.world)):
        fix = f"give stages of equal size on ranks in order, as {runtime} has them"
        raise InputError(where, "stages", f"are of {shown(plan.stage_sizes)} ranks", fix)
    if plan.batch.shares is not None:
        fix = f"plan without uneven shares: all replicas run the same number of micro-batches in {runtime}"
        raise InputError(where, "batch.shares", f"is {shown(plan.batch.shares)}", fix)
    refuse_others(plan, supported(capabilities), f"the export to {runtime}", where)
    _check_optimizer(plan, capabilities, runtime, where, optimizers)


def _check_optimizer(plan: Plan, capabilities: Runtime, runtime: str, where: str, optimizers: Collection[str]) -> None:
    """Raises InputError if a plan has an optimizer that the export to a runtime cannot write, or a ZeRO stage that the runtime
    does not support with it. optimizers: the names of the optimizers that the export can write. runtime, where: the runtime's
    name and the plan's file, for messages."""
    if plan.optimizer not in optimizers:
        fix = f"give {' or '.join(map(repr, optimizers))}: the export to {runtime} has no word for others"
        raise InputError(where, "optimizer", f"is {plan.optimizer!r}", fix)
    if plan.optimizer == "adamw":
        return
    stages = capabilities.optimizers[plan.optimizer]
    for position, unit in enumerate(plan.units):
        if unit.strategy.zero_stage not in stages:
            problem = f"is {unit.strategy.zero_stage}, with the optimizer {plan.optimizer!r}"
            fix = f"give {' or '.join(map(str, stages))}, or 'adamw' as optimizer: {runtime} runs no other"
            raise InputError(where, f"units[{position}].states.zero", problem, fix)


def as_exported(
    plan: Plan, strategy: Strategy, modules: Collection[Module] = (), first: int | None = None, **fields: Any
) -> Plan:
    """A copy of the plan as a runtime runs it: with one strategy for all units, no micro-batches that run in two halves
    (sliced), and recomputation of all layers if the plan recomputes any (never of embedding and head), otherwise of some
    modules.

    strategy: the levels of parallelism of all units (embedding, sub-layers and head). modules: the modules, such as
    "attention", that each layer recomputes without the rest of the layer, if no layer is recomputed as a whole. first: if
    given, the runtime recomputes this number of layers at the start of every stage and no others. fields: further fields of the
    plan to replace."""
    recomputes, _ = recomputation(plan)
    units = []
    for unit, described, index in zip(plan.units, plan.planned_model().units, _layers_in_stages(plan), strict=True):
        inner = unit.name not in ENDS
        ckpt = recomputes and inner and (first is None or index < first)
        some = tuple(sorted(set(modules) & set(modules_of(described.sublayer)))) if inner and not recomputes else ()
        units.append(unit.laid_out(replace(strategy, ckpt=ckpt, modules=some)))
    return plan.changed(units=units, sliced=0, predicted=None, claim=None, **fields)


@dataclass(frozen=True)
class ExportPrediction:
    """The prediction of a plan as a runtime runs what was exported of it.

    Attributes:
        peak_bytes: the peak memory of the fullest device.
        step_ns: the time of the step; None if none is known.
        software: the name of the runtime's framework whose step it is; empty if it is that of the plan's own programs.
        exported: whether the step is that of the exported plan; if not, it is that of the plan that was given.
    """

    peak_bytes: int
    step_ns: int | None
    software: str = ""
    exported: bool = True


def predict_exported(plan: Plan, exported: Plan, where: str, runtime: str, extra_bytes: int = 0) -> ExportPrediction:
    """Predict a plan as a runtime runs what was exported of it. where: the plan's file, for errors. Raises InputError if the
    peak is more than the plan's memory limit.

    plan: the plan. exported: the plan as the runtime runs it. runtime: the runtime's title. The prediction is that of the
    runtime (`runtimes.predict`), which `import-run` of the exported files gives, too. Where there is none, or the plan does not
    state its devices, it is the plan's own prediction, if that was made for this runtime and nothing was left out; otherwise
    the step is that of the given plan, and the peak is that of simulated memory over all ranks plus `extra_bytes`, which the
    runtime keeps in addition to what the plan's programs hold.
    """
    name, predicted, cluster = named(runtime), plan.predicted, devices_of(plan)
    settings = exported_settings(name, exported)
    found: StepAndPeaks | str = "no devices"
    if settings is not None and cluster is not None:
        group = 1 if plan.runs_by is None else plan.runs_by.group  # which exports keep
        found = predict(exported.changed(runs_by=settings.changed(group=group)), cluster)
    if isinstance(found, StepAndPeaks):
        prediction = ExportPrediction(found.most_bytes, found.step_ns, found.software)
    elif predicted_for(plan, runtime) and predicted is not None and _same(plan, exported):
        prediction = ExportPrediction(predicted.most_bytes, predicted.step_ns, predicted.software)
    else:
        _, walks = memory_of(exported)
        step_ns, software = (None, "") if predicted is None else (predicted.step_ns, predicted.software)
        prediction = ExportPrediction(max(walk.peak_bytes for walk in walks) + extra_bytes, step_ns, software, False)
    if prediction.peak_bytes > plan.memory_bytes:
        peak = format_bytes(prediction.peak_bytes)
        problem = f"is {format_bytes(plan.memory_bytes)}; as {runtime} runs it the plan takes {peak}"
        raise InputError(where, "memory_bytes", problem, "plan with --for, or more --reserve, so that nothing is left out")
    return prediction


def predicted_for(plan: Plan, runtime: str) -> bool:
    """Whether a plan carries a prediction made for a runtime, given its title as in its capabilities."""
    by, predicted = plan.runs_by, plan.predicted
    return by is not None and title(by.name) == runtime and predicted is not None and bool(predicted.software)


def _same(plan: Plan, exported: Plan) -> bool:
    """Whether a plan and its exported form are equal apart from their predictions and claims (what a solver states about
    them)."""
    return plan.changed(predicted=None, claim=None).content == exported.changed(predicted=None, claim=None).content


def letters(plan: Plan) -> list[str]:
    """The sub-layers of each stage as a string with one letter per sub-layer, such as `['Eafa', 'fafL']`: E for the
    embedding, a for attention, f for a feed-forward network, L for the head."""
    chain = "".join(LETTERS[unit.name.rpartition(".")[2]] for unit in plan.units)
    return [chain[stage.first_unit : stage.last_unit + 1] for stage in plan.stages]


def layers_of(plan: Plan) -> list[str]:
    """The layers of each stage as a string with one letter per layer, such as `['Et', 'ttL']`: `E` for the embedding, `L`
    for the head, `t` for a whole layer. If a stage begins within a layer, the layer's sub-layers are `a` (attention) and `f`
    (feed-forward network)."""
    return [stage.replace("af", "t") for stage in letters(plan)]


def half_cut(plan: Plan) -> int | None:
    """The index of the first stage that begins within a layer; None if all stages begin with whole layers."""
    return next((i for i, stage in enumerate(letters(plan)) if stage.startswith("f")), None)


def refuse_half_cut(plan: Plan, runtime: str, other: str, where: str) -> None:
    """Check that every stage begins with a whole layer. runtime: the runtime's name, for the message. other: advice on
    another way to run such a plan. where: the plan's file. Raises InputError if a stage begins within a layer."""
    if (index := half_cut(plan)) is not None:
        unit = plan.stages[index].first_unit
        problem = f"is {unit} ({plan.units[unit].name}), within a layer"
        fix = f"cut between layers (`plan --like partition --no-by-unit`): {runtime} keeps them whole; or {other}"
        raise InputError(where, f"stages[{index}].first_unit", problem, fix)


def common_strategy(plan: Plan, runtime: str, where: str) -> Strategy:
    """The strategy (levels of parallelism) that all units of the plan have, without recomputation. runtime: the runtime's
    name, for messages. where: the plan's file. Raises InputError if units differ."""
    first, *others = [replace(strategy, ckpt=False, modules=()) for strategy in plan.strategies()]
    for position, strategy in enumerate(others, 1):
        if strategy != first:
            problem = f"is {str(plan.units[position].strategy)!r}, where units[0] has {str(plan.units[0].strategy)!r}"
            fix = f"plan with --one-strategy: {runtime} changes no layout between layers"
            raise InputError(where, f"units[{position}].{plan.units[position].field}", problem, fix)
    return first


def common_recipe(plan: Plan, runtime: str, where: str) -> Recipe | None:
    """The low-precision recipe of the matrix multiplications of all layers; None if they are in the model's dtype. runtime:
    the runtime's name, for messages. where: the plan's file. Raises InputError if layers differ, or if the embedding or the
    head has a recipe."""
    recipe = recipe_of(plan)
    for position, unit in enumerate(plan.units):
        wanted = "model" if recipe is None or unit.name in ENDS else recipe.name
        if unit.precision != wanted:
            fix = f"give {wanted!r}: {runtime} computes all layers alike, embedding and head in the model's dtype"
            raise InputError(where, f"units[{position}].precision", f"is {unit.precision!r}", fix)
    return recipe


def micro_batch_samples(plan: Plan, data_degree: int) -> int:
    """Samples per micro-batch on one rank. data_degree: number of data-parallel ranks, which share the samples of a
    micro-batch."""
    return plan.batch.global_samples // plan.batch.micro_batches // data_degree


def recomputation(plan: Plan) -> tuple[bool, list[str]]:
    """Whether the plan recomputes layers, which other runtimes do for all layers or for none; and lines for the exported
    README if the plan recomputes only some layers, or embedding and head, which no other runtime recomputes."""
    ends = [s.ckpt for unit, s in zip(plan.units, plan.strategies(), strict=True) if unit.name in ENDS]
    kept = "recomputation of embedding and head: here what they compute is kept; less time"
    inner = [s.ckpt for unit, s in zip(plan.units, plan.strategies(), strict=True) if unit.name not in ENDS]
    some = f"recomputation of single sub-layers: the plan has {sum(inner)} of {len(inner)}, here all layers are; more time"
    return any(inner), [some] * (any(inner) and not all(inner)) + [kept] * any(ends)


def first_recomputed(plan: Plan) -> int | None:
    """The number n such that every stage of the plan recomputes exactly its first n layers, as whole layers, while some
    stage has further layers that are not recomputed. None if the plan recomputes nothing, everything, or another set of
    layers."""
    inner = [
        (index, strategy.ckpt)
        for unit, strategy, index in zip(plan.units, plan.strategies(), _layers_in_stages(plan), strict=True)
        if unit.name not in ENDS
    ]
    n = max((index + 1 for index, ckpt in inner if ckpt), default=0)
    kept = any(not ckpt for _, ckpt in inner)
    return n if n and kept and half_cut(plan) is None and all(ckpt == (index < n) for index, ckpt in inner) else None


def _layers_in_stages(plan: Plan) -> list[int]:
    """For every unit (embedding, sub-layers, head) in order, the number of layers of its stage that come before the unit's
    own layer; 0 for the embedding."""
    layer_indices = []
    for stage in plan.stages:
        layers: dict[str, int] = {}
        for unit in plan.units[stage.first_unit : stage.last_unit + 1]:
            layer = unit.name.rpartition(".")[0]
            layer_indices.append(layers.setdefault(layer, len(layers)) if layer else 0)
    return layer_indices


def recomputed_modules(plan: Plan, names: Mapping[str, str], runtime: str) -> tuple[list[str], list[str]]:
    """The modules, such as attention, that layers of the plan recompute without the rest of the layer, sorted and under the
    runtime's names; and lines for the exported README on modules that the runtime cannot recompute, or that only some layers
    recompute. names: the runtime's name by module. runtime: its name, for the lines."""
    by_unit = {strategy.modules for unit, strategy in zip(plan.units, plan.strategies(), strict=True) if unit.name not in ENDS}
    modules = sorted({module for names in by_unit for module in names})
    lines = modules_kept((module for module in modules if module not in names), runtime)
    if len(by_unit) > 1 and modules:
        lines.append("recomputation of modules of single sub-layers: here all layers have the same; more time or memory")
    return [names[module] for module in modules if module in names], lines


def modules_kept(modules: Iterable[Module], runtime: str) -> list[str]:
    """Lines for the exported README on modules, such as attention, that the plan recomputes without the rest of their layer
    while the runtime keeps their results. modules: their names. runtime: the runtime's name."""
    return [f"recomputation of {module}: {runtime} keeps it; more memory" for module in sorted(set(modules))]


def left_out_of_all(plan: Plan, runtime: str) -> list[str]:
    """Lines for the exported README on features of a plan that no other runtime has: sliced forward passes, and a placement
    of ranks on devices. runtime: the runtime's name, for the lines."""
    lines = []
    if plan.sliced:
        lines.append(f"sliced: {runtime} runs all forward passes whole, so that its start-up takes longer")
    if plan.placement is not None and plan.placement != sorted(plan.placement):
        lines.append("placement: launch rank r on the device placement[r] of the plan yourself")
    return lines


def left_out_order(strategy: Strategy) -> list[str]:
    """Lines for the exported README if tensor parallelism is not the innermost level of the strategy, because torchtitan and
    Megatron-LM always put tensor-parallel ranks next to each other. Empty otherwise."""
    names = [name for name, _ in strategy.levels]
    if "tp" in names[:-1]:
        return [f"order of {strategy}: ranks of tp are neighbours here, so that other links carry the traffic"]
    return []


def pass_names(plan: Plan) -> list[list[str]]:
    """The order of passes of each stage as torch.distributed.pipelining writes it: a list such as `["0F0", "0F1", "0B0",
    "0B1"]` per stage, where each text has the stage, the kind of pass (F or B) and the micro-batch."""
    return [
        [f"{one.stage}{'F' if one.kind == 'forward' else 'B'}{one.micro_batch}" for one in order]
        for order in orders(plan.schedule, len(plan.stages), plan.batch.micro_batches)
    ]


def export_targets(export: Export, output: Path) -> dict[Path, str]:
    """The text to write by path. output: a folder into which the files go, or the path of the file itself if the export is
    only one file and `output` is no folder."""
    if len(export.files) == 1 and not output.is_dir():
        return dict(zip([output], export.files.values(), strict=True))
    return {output / name: text for name, text in export.files.items()}


def write_export(export: Export, output: Path) -> list[Path]:
    """Write the files of an export, each completely or not at all, and return their paths. output: a folder, which is
    created if needed, or the path of the file itself if the export is only one file. Raises InputError if a file cannot be
    written."""
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
