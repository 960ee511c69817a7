"""A measured run as a model, devices with their links, and a configuration: what the run leaves open is taken from
defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainplan.execution.launch_files.trainer_buffers import Buffers
from trainplan.formulations.costs.overlapped.folding import NO_EXPERTS
from trainplan.formulations.costs.overlapped.layout import Framework, RunLayout
from trainplan.formulations.costs.overlapped.links import Links
from trainplan.formulations.costs.overlapped.sublayer_time import splittable
from trainplan.formulations.plan.strategy import Exchange
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.cluster import DeviceKind
from trainplan.profiling.clusters.efficiencies import Efficiency, EfficiencyTable, Precision
from trainplan.profiling.clusters.kinds import device_kind
from trainplan.profiling.clusters.recipes import Recipe
from trainplan.profiling.clusters.sheets import DeviceSheet, likely_kind, sheet
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.optimizers import OPTIMIZERS, OptimizerName
from trainplan.profiling.models.sublayers import why_no_head_share
from trainplan.validation.alongside import held_by, stated_buffers, with_attention
from trainplan.validation.fitting import fitted, in_words
from trainplan.validation.frameworks import captured, framework_of, overlap_left_open, stated_attention, taken_for
from trainplan.validation.memory_words import optimizer_instances
from trainplan.validation.mixture_words import is_mixture, mixture_stages, string_stages
from trainplan.validation.offloading import hosted, hosted_layers
from trainplan.validation.recomputation import recompute_of_words
from trainplan.validation.row_mixtures import experts_layout
from trainplan.validation.row_models import row_model
from trainplan.validation.rows import Run
from trainplan.validation.stages import default_stages, stated_stages, with_ends
from trainplan.validation.words import (
    EXCHANGED,
    HALVES,
    OTHER_PRECISIONS,
    PRECISIONS,
    degrees,
    denied,
    exchange,
    flag,
    network_bytes_per_s,
    optimizer_of,
    precisions,
    recipe_of_words,
    schedule_of,
    shares_tokens,
    sharing,
    stages_of_devices,
    unknown,
)

# Since when torchtitan's pipelines have micro-batches of one sample by default, before as many as stages; before that, as many
# as pipeline ranks (`build_pipeline_schedule`; pull requests 1073 and 781).
SIZED_SINCE, BY_STAGES_SINCE = "2025-04-07", "2025-01-07"
LORA = re.compile(r"lora|peft", re.IGNORECASE)
# Patterns of runs that are not predicted, in notes: those that train neither the whole model nor adapters, by AdamW or Muon.
OTHERS = {
    "has its weights in few bits": (
        r"(?:q[_ -]?lora|load[_ -]in[_ -][48][_ -]?bit|bnb[_ -]4[_ -]?bit\w*|nf4|gptq|[48]-?bits? (?:base|weights|lora))"
    ),
    "trains parts of the model that its words do not say": (
        r"(?:dora|ada[_ -]?lora|ia3|(?:prefix|prompt)[_ -]tuning|bitfit|lisa|badam|freez\w+|frozen [a-z]\w*)"
    ),
    "has an optimizer whose states are not known": (
        r"(?:q?galore\w*|(?:ada)?lomo|apollo[_ -]adamw?\w*|soap|shampoo|adam[_ -]?mini|ademamix\w*|\w*any[_ -]?precision\w*)"
    ),
}


@dataclass(frozen=True)
class LaidRun:
    """A measured training run (a row of a table of published or own runs), with assumed values for everything that it does not
    specify, so that it can be predicted.

    Attributes:
        run: the run, as read from its file.
        model: the model that the run trains.
        name: the name of the device's data sheet.
        sheet: the data sheet.
        layout: degrees of parallelism, batch, sharding of model states, recomputation and framework.
        network_bytes_per_s: a device's share of its node's network bandwidth; None if the run's note does not state it.
        assumed: for each field that the run does not specify, by name, a text with the value that is assumed.
        links: the links of the cluster that it runs on; None for the usual links of the data sheet.
        rates: peak rates of matrix multiplications by dtype of the cluster's devices; None for those of the data sheet.
        efficiencies: the shares of peaks that kernels reach on the cluster's devices, if they were corrected by own runs.
    """

    run: Run
    model: Model
    name: str
    sheet: DeviceSheet
    layout: RunLayout
    network_bytes_per_s: float | None
    assumed: Mapping[str, str]
    links: Links | None = None
    rates: Mapping[Precision, float] | None = None
    efficiencies: tuple[Efficiency, ...] | None = None

    def kind(self, table: EfficiencyTable) -> DeviceKind:
        """The kind of device that it runs on, with the rates and the corrected efficiencies of the run's cluster. table: the
        shares of peaks that kernels reach."""
        kind = device_kind(self.name, table)
        kind = kind if self.efficiencies is None else kind.changed(efficiencies=list(self.efficiencies))
        return kind if self.rates is None else kind.changed(flops_per_s=dict(self.rates))

    @property
    def products(self) -> str:
        """The name of the low-precision recipe (such as mxfp8) of the layers' matrix multiplications; without a recipe, the
        name of their dtype.
        """
        return self.layout.precision if self.layout.recipe is None else self.layout.recipe.name


def laid_run(run: Run) -> LaidRun:
    """Add to a measured run an assumed value, usually a default, for everything that it does not specify, so that it can be
    predicted; the ZeRO stage and the recomputation are assumed such that the run fits into memory, if possible (defaults if its
    file says that it ran out of memory). Raises InputError, with the reason, if the run cannot be predicted.
    """
    if run.unread is not None:
        raise run.unread
    words = f"{run.note or ''} {run.task or ''} {run.model}".lower()
    if (reason := next((reason for reason, pattern in OTHERS.items() if flag(words, pattern)), None)) is not None:
        raise InputError(run.id, "note", f"{reason}, which is not predicted", "leave the row out")
    assumed: dict[str, str] = {}
    framework = framework_of(run)
    if other := framework.name if not run.framework else taken_for(run, framework):
        assumed["framework"] = other
    name = _kind(run.gpu, assumed)
    described = sheet(name)
    framework = with_attention(framework, described, stated_attention((run.note or "").lower()), assumed)
    base, _ = _precisions(run, described, assumed)
    model = row_model(run, run.tp or 1, framework, base, assumed)
    if run.seq is None and model.vocabulary:
        assumed["seq"] = f"{model.tokens}, the most that {model.name} has positions for"
    laid = laid_out(run, model, name, framework, assumed)
    laid = laid if run.oom else _fitted(laid, assumed)
    if laid.layout.dp * laid.layout.cp > 1 and (overlap := overlap_left_open(run, framework, laid.layout.zero)):
        assumed["overlap"] = overlap
    if run.cuda_graph and not denied(run.cuda_graph.lower()):
        hidden = "no launch of a kernel by the host" if captured(run) else "launches as without, for parts are captured"
        assumed["cuda_graph"] = f"{hidden}; what graphs hold of memory is not predicted"
    return laid


def _fitted(laid: LaidRun, assumed: dict[str, str]) -> LaidRun:
    """Choose the ZeRO stage and the recomputation of a measured run, as far as the run does not specify them, so that its
    predicted peak fits into the device's memory. Returns the configuration with the chosen values; the given one if the run
    specifies both.

    The first pair that fits is chosen: first the default recomputation with the default ZeRO stage and then with higher stages
    (with Megatron, not yet ZeRO-3), then selective recomputation with these stages, then full recomputation, and at last, with
    Megatron, ZeRO-3. If no pair fits, the defaults stay.

    laid: a measured run, with assumed values for everything that it does not specify. assumed: assumptions as texts by name,
    written to: for each value chosen other than the default, the entry `zero` or `recompute` is replaced.
    """
    open_stage, open_recompute = "zero" in assumed, laid.run.recompute is None and "recompute" in assumed
    if not (open_stage or open_recompute):
        return laid
    run, model, buffers = laid.run, laid.model, stated_buffers(laid.run)
    zero, recompute = fitted(
        model, laid.layout, laid.sheet, open_stage, open_recompute, lambda layout: held_by(run, model, layout, buffers, {})
    )
    if zero != laid.layout.zero:
        assumed["zero"] = f"{zero}, with which it fits"
    if recompute != laid.layout.recompute:
        assumed["recompute"] = f"{in_words(recompute)}, with which it fits"
    layout = replace(laid.layout, zero=zero, recompute=recompute)
    return replace(laid, layout=replace(layout, held=held_by(run, model, layout, buffers, assumed)))


def laid_out(
    run: Run, model: Model, name: str, framework: Framework, assumed: dict[str, str], buffers: Buffers | None = None
) -> LaidRun:
    """Add to a measured run, whose model and device are known, an assumed value for everything else that it does not specify,
    so that it can be predicted.

    Args:
        run: a measured run, as read from its file.
        model: the model that the run trains.
        name: the name of the device's data sheet.
        framework: the cost model's settings for the run's framework.
        assumed: assumptions as texts by name, written to: gets an entry for each field that the run does not specify.
        buffers: sizes of the trainer's communication buffers, and its kind of loss; None for those that the run's note states.

    Raises:
        InputError: if parts of the run contradict each other, or cannot be predicted.
    """

    def given_or(name: str, value: Any, default: int) -> int:
        """The value, or the default where it is None, which is recorded."""
        if value is None:
            assumed[name] = str(default)
            return default
        return int(value)

    tp, pp, cp = (given_or(name, degree, 1) for name, degree in degrees(run).items())
    chunks = given_or("vpp", run.vpp, stages_of_devices(run, pp, model.layers))
    chunks = chunks if pp > 1 else 1  # stages are interleaved over several devices
    dp = _data_degree(run, tp, pp, cp, assumed)
    micro = given_or("mbs", run.mbs, 1)
    batch = given_or("gbs", run.gbs, micro * dp)
    torchtitan = "torchtitan" in (run.framework or "").lower()
    early = torchtitan and pp > 1 and (run.date or "9") < SIZED_SINCE
    parts = pp * chunks if (run.date or "") >= BY_STAGES_SINCE else pp
    if early and run.mbs in (None, batch / dp) and batch % (dp * parts) == 0:
        micro = batch // (dp * parts)
        assumed["mbs"] = f"{micro}, of {parts} micro-batches, as many as stages, torchtitan's default until April 2025"
    micro, batch = _micro_batches(micro, batch, dp, pp, torchtitan and not early, assumed)
    described = sheet(name)
    base, precision = _precisions(run, described, assumed)
    if not all(splittable(part, tp).runs_on(tp) for part in model.sublayers.values()):
        problem = f"is {tp}, into which not all parts of this {model.family} can be split"
        raise InputError(run.id, "tp", problem, f"give a degree that divides heads, ffn and vocabulary of {run.model}")
    zero, shard = sharing(run, dp, framework, assumed)
    if zero == 1 and dp % (instances := optimizer_instances(run)) == 0:
        shard //= instances
    recipe = _recipe(run, described, base, precision, assumed)
    optimizer = _optimizer(run, zero, tp, assumed)
    recompute, shared = recompute_of_words(run, assumed), shares_tokens(run, tp, framework, assumed)
    count, exchanged = pp * chunks, _exchanged(run, model, tp, cp, framework, assumed)
    cut_by_default = pp > 1 and (torchtitan or framework.costs_stages)
    stages = string_stages(run, model.layers, count) if pp > 1 else None
    if stages is None and cut_by_default:
        stages = default_stages(run, model, count, framework)
    elif stages is None:
        stages = stated_stages(run, model, pp, chunks) or mixture_stages(run, model, count)
    reserved, stages = with_ends(run, model, count, stages)
    experts = experts_layout(run, model, dp * cp * tp, tp, framework, assumed) if is_mixture(run) else NO_EXPERTS
    layout = RunLayout(
        dp, tp, pp, cp, chunks, zero, shard, shared, recompute, base, precision, micro, batch, framework,
        reserved=reserved,
        on_host=hosted(run, framework.pads > 1, assumed), offloaded_layers=hosted_layers(run),
        frozen=_adapters(run), schedule=schedule_of(run, assumed) if pp > 1 else "1f1b",
        exchange=exchanged, optimizer=optimizer, recipe=recipe, experts=experts,
        stage_layers=stages,
    )  # fmt: skip
    if model.layers + 2 * layout.reserved < count:
        problem = f"is {chunks}, which with pp {pp} makes {count} stages of {model.layers} layers"
        raise InputError(run.id, "vpp", problem, f"give at most {model.layers} stages, one for each layer")
    held = held_by(run, model, layout, stated_buffers(run) if buffers is None else buffers, assumed)
    return LaidRun(run, model, name, described, replace(layout, held=held), network_bytes_per_s(run), assumed)


def _data_degree(run: Run, tp: int, pp: int, cp: int, assumed: dict[str, str]) -> int:
    """The number of data-parallel ranks of a measured run: its number of devices divided by its tensor-, pipeline- and
    context-parallel degrees. Raises InputError if these degrees do not divide the number of devices, or if the run states
    another number of data-parallel ranks.

    tp, pp, cp: the degrees. assumed: assumptions as texts by name, written to: gets an entry if the run shards within groups
    of ranks and copies between the groups (hybrid sharding), and states only one of the two degrees.
    """
    if run.gpus % (tp * pp * cp):
        fix = "give degrees whose product divides gpus"
        raise InputError(run.id, "gpus", f"is {run.gpus}, of tp {tp}, pp {pp} and cp {cp}", fix)
    dp = run.gpus // (tp * pp * cp)
    counted = {None, dp, dp * cp}  # some count context-parallel ranks among the data-parallel ones
    if is_mixture(run):  # some count the ranks that hold the same experts
        counted |= {dp // (run.ep or 1), *(dp * cp * tp // ((run.ep or 1) * etp) for etp in (1, run.etp or tp))}
    if run.dp not in counted:
        assert run.dp is not None
        if not re.search(r"hsdp|hybrid|shard|x", (run.fsdp or "").lower()) or dp % run.dp:
            problem = f"is {run.dp}, and {run.gpus} devices with tp {tp}, pp {pp} and cp {cp} leave {dp}"
            raise InputError(run.id, "dp", problem, f"give {dp}, or other degrees")
        assumed["dp"] = f"{dp}, of which {run.dp} are one of its two degrees"
    return dp


def _recipe(run: Run, described: DeviceSheet, base: Precision, precision: Precision, assumed: dict[str, str]) -> Recipe | None:
    """The low-precision recipe (such as mxfp8) of the layers' matrix multiplications; None if they are computed in the dtype
    `precision`. Raises InputError if the data sheet has no rate for a dtype of the run.

    run: a measured run. described: the device's data sheet. base: the dtype of everything except for matrix multiplications.
    assumed: assumptions as texts by name, written to: gets an entry if the recipe is not known for the device.
    """
    recipe = recipe_of_words(run, assumed)
    if recipe is not None and recipe.name not in described.recipes:
        assumed["recipe"] = f"{recipe.name}, which is not known to be one of {described.name}"
    for dtype in (base, precision if recipe is None else recipe.precision):
        if dtype not in described.flops_per_s:
            fix = f"give one of {', '.join(described.flops_per_s)}"
            raise InputError(run.id, "precision", f"is {run.precision!r}, which {described.name} has no rate for", fix)
    return recipe


def _optimizer(run: Run, zero: int, tp: int, assumed: dict[str, str]) -> OptimizerName:
    """The optimizer that a measured run names. Raises InputError if that optimizer does not work with the ZeRO stage `zero`.
    tp: number of tensor-parallel ranks. assumed: assumptions as texts by name, written to: gets an entry if Muon runs on
    several tensor-parallel ranks.
    """
    optimizer = optimizer_of(run)
    spec = OPTIMIZERS[optimizer]
    if zero not in spec.zero:
        why = ", of which no rank has a whole matrix's gradient" if spec.whole_matrices else ""
        problem = f"is of {spec.title}, with states shared as in ZeRO's stage {zero}{why}"
        raise InputError(run.id, "note", problem, f"leave the row out, or give zero {' or '.join(map(str, spec.zero))}")
    if spec.whole_matrices and tp > 1:
        assumed["muon"] = "each tensor-parallel rank makes its own part of a matrix orthogonal"
    return optimizer


def _micro_batches(micro: int, batch: int, dp: int, pp: int, torchtitan: bool, assumed: dict[str, str]) -> tuple[int, int]:
    """Compute the batch of a measured run. Returns the samples per micro-batch on one rank, and the samples per step, which
    are whole micro-batches on all ranks.

    If a rank's samples per step are fewer than a micro-batch, its micro-batch is all of them. torchtitan's `local batch` is a
    rank's samples per step, which its pipelines cut into single samples unless a configuration states otherwise.

    Args:
        micro: samples per micro-batch, as the run states them.
        batch: samples per step, as the run states them.
        dp: number of data-parallel ranks.
        pp: number of pipeline-parallel ranks.
        torchtitan: whether the framework is torchtitan.
        assumed: assumptions as texts by name, written to: the entry `mbs` is set if a micro-batch is made smaller, `gbs` if the
            samples per step are rounded to whole micro-batches.
    """
    share = batch / dp
    if micro > max(1, share):
        assumed["mbs"] = f"{max(1, int(share))}, a rank's share of {batch} samples, of which it cannot have {micro} at a time"
        micro = max(1, int(share))
    if torchtitan and pp > 1 and micro > 1 and share < pp * micro:
        assumed["mbs"] = f"1: {micro} samples are a rank's, and torchtitan's pipelines cut them into single ones"
        micro = 1
    whole_batch = dp * micro * max(1, int(share / micro + 0.5))
    if whole_batch != batch:
        assumed["gbs"] = f"{whole_batch}: whole micro-batches of {micro} on {dp} data-parallel ranks"
    return micro, whole_batch


def _exchanged(run: Run, model: Model, tp: int, cp: int, framework: Framework, assumed: dict[str, str]) -> Exchange:
    """Which data context-parallel ranks exchange in attention, heads (all-to-all) or keys and values (ring or gather): the
    kind that the run states, or else the usual kind of its framework if the heads can be divided among the ranks. Raises
    InputError if the run states heads and they cannot be divided.

    tp, cp: degrees of tensor and context parallelism. assumed: assumptions as texts by name, written to: gets an entry if the
    run does not state the kind.
    """
    if cp == 1 or (stated := exchange(run, framework, assumed)) == "keys":
        return "keys"
    reasons = (why_no_head_share(splittable(part, tp), tp, cp) for part in model.sublayers.values())
    if (why := next(filter(None, reasons), None)) is None:
        return stated
    if EXCHANGED not in assumed:
        raise InputError(run.id, "cp", f"is {cp}, whose ranks exchange heads: {why}", "give another degree, or a ring")
    assumed[EXCHANGED] = f"exchanges keys: {why}"
    return "keys"


def _adapters(run: Run) -> bool:
    """Whether a measured run trains adapters (LoRA) only, according to its task, its note, or the name of its model."""
    task, others = (run.task or "").lower(), f"{run.note or ''} {run.model}".lower()
    return LORA.search(task) is not None or bool(flag(others.replace("_", " "), r"(?:q?lora|peft)"))


def _precisions(run: Run, described: DeviceSheet, assumed: dict[str, str]) -> tuple[Precision, Precision]:
    """Read the precision of a measured run: returns the dtype of the model (base), and the dtype of its matrix multiplications.
    If a run names no precision, both are the dtype that its device usually trains in: bfloat16, or float16 on a device that
    lacks bfloat16. If it names bfloat16 on such a device, both are float16 as well. Raises InputError for words that are
    unknown or contradict each other.

    described: the device's data sheet. assumed: assumptions as texts by name, written to: the entry `precision` is set if the
    run names no precision, or if its bfloat16 is replaced by float16.
    """
    usual = usual_dtype(described)
    base, precision = precisions(run.precision or "", usual)
    if not run.precision:
        assumed["precision"] = usual
    elif not PRECISIONS.search(run.precision.lower()) or OTHER_PRECISIONS.search(run.precision.lower()):
        raise unknown(run, "precision", "bf16, fp16, fp32, tf32, fp8 or nvfp4")
    elif len({"bf" in word for word in HALVES.findall(run.precision.lower())}) > 1:
        raise InputError(run.id, "precision", f"is {run.precision!r}, of both bfloat16 and float16", "give one of them")
    if base == "bfloat16" and usual == "float16":
        assumed["precision"] = f"float16: {described.name} has no rate for bfloat16"
        return usual, usual
    return base, precision


def usual_dtype(described: DeviceSheet) -> Precision:
    """The dtype that a run is assumed to train in if it states none: bfloat16 if the device's data sheet has a rate for it,
    else float16.
    """
    return "bfloat16" if "bfloat16" in described.flops_per_s else "float16"


def _kind(gpu: str, assumed: dict[str, str]) -> str:
    """The name of the data sheet of the device that a run names. If there is no sheet of this device, the name of the sheet of
    a device that differs from it only in its memory.

    gpu: the device in the run's words, such as "A100 80GB". assumed: assumptions as texts by name, written to: gets an entry
    if another device's sheet is used.
    """
    name, similar = likely_kind(gpu)
    if similar:
        assumed["gpu"] = f"as {name}"
    return name
