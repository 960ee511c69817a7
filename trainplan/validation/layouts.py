"""A row of measured runs as a model, devices with their links, and a layout; with what it leaves open taken from defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainplan.execution.launch_files.trainer_buffers import Buffers
from trainplan.formulations.costs.overlapped.layout import Framework, RunLayout
from trainplan.formulations.costs.overlapped.links import Links
from trainplan.formulations.costs.overlapped.sublayer_time import splittable
from trainplan.formulations.plan.strategy import Exchange
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.efficiencies import Precision
from trainplan.profiling.clusters.sheets import DeviceSheet, likely_kind, sheet
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.optimizers import MUON_ZERO
from trainplan.profiling.models.sublayers import why_no_head_share
from trainplan.validation.alongside import held_by, with_attention, words_of
from trainplan.validation.fitting import fitted, in_words
from trainplan.validation.frameworks import attention_said, framework_of
from trainplan.validation.offloading import hosted
from trainplan.validation.recomputation import recompute_of_words
from trainplan.validation.row_models import row_model
from trainplan.validation.rows import Run
from trainplan.validation.words import (
    EXCHANGED,
    HALVES,
    OTHER_PRECISIONS,
    PRECISIONS,
    degrees,
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

LORA = re.compile(r"lora|peft", re.IGNORECASE)
# What is trained otherwise than as a whole, by AdamW or with adapters, by words of notes.
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
    """A row, laid out. network_bytes_per_s: of a device's share of the network, where the row's note says it. assumed: what the
    row leaves open, and what is taken. links: of the cluster that it runs on, where that is known; else the data sheet's."""

    run: Run
    model: Model
    name: str
    sheet: DeviceSheet
    layout: RunLayout
    network_bytes_per_s: float | None
    assumed: Mapping[str, str]
    links: Links | None = None

    @property
    def products(self) -> str:
        """What the products of layers are in: a recipe's name, or a dtype."""
        return self.layout.precision if self.layout.recipe is None else self.layout.recipe.name


def laid_run(run: Run) -> LaidRun:
    """The row, laid out. Raises InputError where it cannot be, with what it cannot in its problem."""
    if run.unread is not None:
        raise run.unread
    if run.experts or (run.ep or 1) > 1:
        raise InputError(run.id, "experts", "is a mixture of experts", "leave the row out: dense models are predicted")
    words = f"{run.note or ''} {run.task or ''} {run.model}".lower()
    if (what := next((what for what, pattern in OTHERS.items() if flag(words, pattern)), None)) is not None:
        raise InputError(run.id, "note", f"{what}, which is not predicted", "leave the row out")
    assumed: dict[str, str] = {}
    framework = framework_of(run)
    if not run.framework:
        assumed["framework"] = framework.name
    name = _kind(run.gpu, assumed)
    described = sheet(name)
    if attention_said((run.note or "").lower()) is None:
        framework = with_attention(framework, described, None, assumed)
    base, _ = _precisions(run, described, assumed)
    model = row_model(run, run.tp or 1, framework, base, assumed)
    if run.seq is None and model.vocabulary:
        assumed["seq"] = f"{model.tokens}, the most that {model.name} has positions for"
    laid = laid_out(run, model, name, framework, assumed)
    return laid if run.oom else _fitted(laid, assumed)


def _fitted(laid: LaidRun, assumed: dict[str, str]) -> LaidRun:
    """The run with what its row leaves open of ZeRO's stage and recomputation as it fits, which is named."""
    open_stage, open_recompute = "zero" in assumed, laid.run.recompute is None and "recompute" in assumed
    if not (open_stage or open_recompute):
        return laid
    run, model, said = laid.run, laid.model, words_of(laid.run)
    zero, recompute = fitted(
        model, laid.layout, laid.sheet, open_stage, open_recompute, lambda layout: held_by(run, model, layout, said, {})
    )
    if zero != laid.layout.zero:
        assumed["zero"] = f"{zero}, with which it fits"
    if recompute != laid.layout.recompute:
        assumed["recompute"] = f"{in_words(recompute)}, with which it fits"
    layout = replace(laid.layout, zero=zero, recompute=recompute)
    return replace(laid, layout=replace(layout, held=held_by(run, model, layout, said, assumed)))


def laid_out(
    run: Run, model: Model, name: str, framework: Framework, assumed: dict[str, str], buffers: Buffers | None = None
) -> LaidRun:
    """A row of this model on devices of a data sheet's name, laid out; what the row leaves open goes into `assumed`. buffers:
    of the trainer, where they are said elsewhere than in the row's note. Raises InputError."""

    def taken(name: str, value: Any, default: Any) -> Any:
        if value is None:
            assumed[name] = str(default)
            return default
        return value

    tp, pp, cp = (int(taken(name, degree, 1)) for name, degree in degrees(run).items())
    chunks = int(taken("vpp", run.vpp, stages_of_devices(run, pp, model.layers)))
    chunks = chunks if pp > 1 else 1  # stages are interleaved over several devices
    if run.gpus % (tp * pp * cp):
        fix = "give degrees whose product divides gpus"
        raise InputError(run.id, "gpus", f"is {run.gpus}, of tp {tp}, pp {pp} and cp {cp}", fix)
    dp = run.gpus // (tp * pp * cp)
    if run.dp not in (None, dp, dp * cp):  # some count context-parallel ranks among the data-parallel ones
        if not re.search(r"hsdp|hybrid|shard|x", (run.fsdp or "").lower()) or dp % run.dp:
            problem = f"is {run.dp}, and {run.gpus} devices with tp {tp}, pp {pp} and cp {cp} leave {dp}"
            raise InputError(run.id, "dp", problem, f"give {dp}, or other degrees")
        assumed["dp"] = f"{dp}, of which {run.dp} are one of its two degrees"
    micro = int(taken("mbs", run.mbs, 1))
    batch = int(taken("gbs", run.gbs, micro * dp))
    torchtitan = "torchtitan" in (run.framework or "").lower()
    micro, batch = _micro_batches(micro, batch, dp, pp, torchtitan, assumed)
    described = sheet(name)
    base, precision = _precisions(run, described, assumed)
    if not all(splittable(part, tp).runs_on(tp) for part in model.sublayers.values()):
        problem = f"is {tp}, into which not all parts of this {model.family} can be split"
        raise InputError(run.id, "tp", problem, f"give a degree that divides heads, ffn and vocabulary of {run.model}")
    zero, shard = sharing(run, dp, framework, assumed)
    recipe = recipe_of_words(run, assumed)
    if recipe is not None and recipe.name not in described.recipes:
        assumed["recipe"] = f"{recipe.name}, which is not known to be one of {described.name}"
    for each in (base, precision if recipe is None else recipe.precision):
        if each not in described.flops_per_s:
            fix = f"give one of {', '.join(described.flops_per_s)}"
            raise InputError(run.id, "precision", f"is {run.precision!r}, which {described.name} has no rate for", fix)
    optimizer = optimizer_of(run)
    if optimizer == "muon" and zero not in MUON_ZERO:
        problem = f"is of Muon, with states shared as in ZeRO's stage {zero}, of which no rank has a whole matrix's gradient"
        raise InputError(run.id, "note", problem, "leave the row out, or give zero 0 or 1")
    if optimizer == "muon" and tp > 1:
        assumed["muon"] = "each tensor-parallel rank makes its own part of a matrix orthogonal"
    recompute, shared = recompute_of_words(run, assumed), shares_tokens(run, tp, framework, assumed)
    count, exchanged = pp * chunks, _exchanged(run, model, tp, cp, framework, assumed)
    layout = RunLayout(
        dp, tp, pp, cp, chunks, zero, shard, shared, recompute, base, precision, micro, batch, framework,
        reserved=model.layers % count > 0 and (model.layers + 2) % count == 0,
        on_host=hosted(run, framework.pads > 1, assumed),
        frozen=_adapters(run), schedule=schedule_of(run, assumed) if pp > 1 else "1f1b",
        exchange=exchanged, optimizer=optimizer, recipe=recipe,
        stage_layers=_stages_of_torchtitan(model, count) if torchtitan and pp > 1 else _stages_said(run, model, pp, chunks),
    )  # fmt: skip
    if model.layers + 2 * layout.reserved < count:
        problem = f"is {chunks}, which with pp {pp} makes {count} stages of {model.layers} layers"
        raise InputError(run.id, "vpp", problem, f"give at most {model.layers} stages, one for each layer")
    held = held_by(run, model, layout, words_of(run) if buffers is None else buffers, assumed)
    return LaidRun(run, model, name, described, replace(layout, held=held), network_bytes_per_s(run), assumed)


def _micro_batches(micro: int, batch: int, dp: int, pp: int, torchtitan: bool, assumed: dict[str, str]) -> tuple[int, int]:
    """The samples of a micro-batch on one rank, and of a step in whole micro-batches of all ranks. A rank whose share of the
    step is less than a micro-batch has that share as one; torchtitan's `local batch` is the share of a rank, which its
    pipelines cut into single samples unless they are told otherwise."""
    share = batch / dp
    if micro > max(1, share):
        assumed["mbs"] = f"{max(1, int(share))}, a rank's share of {batch} samples, of which it cannot have {micro} at a time"
        micro = max(1, int(share))
    if torchtitan and pp > 1 and micro > 1 and share < pp * micro:
        assumed["mbs"] = f"1: {micro} samples are a rank's, and torchtitan's pipelines cut them into single ones"
        micro = 1
    whole = dp * micro * max(1, int(share / micro + 0.5))
    if whole != batch:
        assumed["gbs"] = f"{whole}: whole micro-batches of {micro} on {dp} data-parallel ranks"
    return micro, whole


def _stages_of_torchtitan(model: Model, count: int) -> tuple[int, ...] | None:
    """Layers of each of so many stages as torchtitan cuts them: the first and the last have one less, for embedding and head;
    None where there are too few layers for that."""
    whole, more = divmod(model.layers + 2, count)
    layers = [whole + (stage < more) - (stage in (0, count - 1)) for stage in range(count)]
    return tuple(layers) if min(layers) > 0 else None


def _stages_said(run: Run, model: Model, pp: int, chunks: int) -> tuple[int, ...] | None:
    """Layers of each stage where a note says those of the first or the last, as Megatron-Core's arguments do
    (`decoder-first-pipeline-num-layers 7`); None where it does not. Raises InputError where the others would not be alike."""
    note = (run.note or "").lower().replace("_", "-")
    said = [re.search(rf"decoder-{end}-pipeline-num-layers[ =:]+(\d+)", note) for end in ("first", "last")]
    if pp == 1 or not any(said):
        return None
    first, last = (int(each[1]) if each else None for each in said)
    others, left = pp - sum(each is not None for each in said), model.layers - (first or 0) - (last or 0)
    if chunks > 1 or not others or left < others or left % others:
        problem = f"has {left} layers left for {others} stages, of which each device has {chunks}"
        raise InputError(run.id, "note", problem, "give layers that leave as many for each other stage, not interleaved")
    middle = [left // others] * others
    return (*([first] if first is not None else []), *middle, *([last] if last is not None else []))


def _exchanged(run: Run, model: Model, tp: int, cp: int, framework: Framework, assumed: dict[str, str]) -> Exchange:
    """What context-parallel ranks exchange: heads where these can be shared. Raises InputError where they cannot, and the row
    says that they are."""
    if cp == 1 or (said := exchange(run, framework, assumed)) == "keys":
        return "keys"
    reasons = (why_no_head_share(splittable(part, tp), tp, cp) for part in model.sublayers.values())
    if (why := next(filter(None, reasons), None)) is None:
        return said
    if EXCHANGED not in assumed:
        raise InputError(run.id, "cp", f"is {cp}, whose ranks exchange heads: {why}", "give another degree, or a ring")
    assumed[EXCHANGED] = f"exchanges keys: {why}"
    return "keys"


def _adapters(run: Run) -> bool:
    """Whether adapters alone are trained, by a row's task, its note, or the name of its model."""
    task, others = (run.task or "").lower(), f"{run.note or ''} {run.model}".lower()
    return LORA.search(task) is not None or bool(flag(others.replace("_", " "), r"(?:q?lora|peft)"))


def _precisions(run: Run, described: DeviceSheet, assumed: dict[str, str]) -> tuple[Precision, Precision]:
    """The base dtype and that of products: what the device trains in where a row names none, or bfloat16 on one without it.
    Raises InputError of words that nobody knows, and of several."""
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
    """In which a device trains where nobody says: bfloat16 where it has that."""
    return "bfloat16" if "bfloat16" in described.flops_per_s else "float16"


def _kind(gpu: str, assumed: dict[str, str]) -> str:
    """The data sheet of a device, or of one that differs from it in memory alone."""
    name, taken = likely_kind(gpu)
    if taken:
        assumed["gpu"] = f"as {name}"
    return name
