"""Reads the settings of a mixture of experts from arguments of Megatron-LM, or from another tool's fields that say the same.

Arguments and defaults as of `megatron/training/arguments.py` and `TransformerConfig` (core 0.20, 2026). Experts are folded
(`initialize_model_parallel`): on the devices of a pipeline stage, ranks of etp are neighbours, then those of ep; what is left
are copies or shards of experts (edp).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainplan.execution.launch_files.experts import (
    ExpertReader,
    ExpertSettings,
    pattern,
    refusal,
    refuse_illegal,
)
from trainplan.execution.launch_files.run_configuration import KeyReader
from trainplan.execution.runtimes.megatron import layouts
from trainplan.profiling.base.errors import shown

NAMES: dict[str, str] = {  # the argument of each setting
    "experts": "--num-experts",
    "chosen": "--moe-router-topk",
    "groups": "--moe-router-num-groups",
    "chosen_groups": "--moe-router-group-topk",
    "score": "--moe-router-score-function",
    "router_dtype": "--moe-router-dtype",
    "balancing": "--moe-router-load-balancing-type",
    "forced_balance": "--moe-router-force-load-balancing",
    "capacity": "--moe-expert-capacity-factor",
    "padded": "--moe-pad-expert-input-to-capacity",
    "layers": "--num-layers",
    "layers_of_experts": "--moe-layer-freq",
    "hidden": "--hidden-size",
    "dense_inner": "--ffn-hidden-size",
    "expert_inner": "--moe-ffn-hidden-size",
    "shared_inner": "--moe-shared-expert-intermediate-size",
    "latent": "--multi-latent-attention",
    "query_rank": "--q-lora-rank",
    "key_value_rank": "--kv-lora-rank",
    "head": "--qk-head-dim",
    "rotary_head": "--qk-pos-emb-head-dim",
    "value_head": "--v-head-dim",
    "predicted": "--mtp-num-layers",
    "tp": "--tensor-model-parallel-size",
    "cp": "--context-parallel-size",
    "pp": "--pipeline-model-parallel-size",
    "chunks": "--num-virtual-stages-per-pipeline-rank",
    "stages": "--pipeline-model-parallel-layout",
    "ep": "--expert-model-parallel-size",
    "etp": "--expert-tensor-parallel-size",
    "sequence_parallel": "--sequence-parallel",
    "zero": "--use-distributed-optimizer",
    "dispatcher": "--moe-token-dispatcher-type",
    "backend": "--moe-flex-dispatcher-backend",
    "deepep": "--moe-enable-deepep",
    "grouped": "--moe-grouped-gemm",
    "shared_overlap": "--moe-shared-expert-overlap",
    "exchange_overlap": "--overlap-moe-expert-parallel-comm",
    "delayed_weights": "--delay-wgrad-compute",
    "granularity": "--recompute-granularity",
    "recomputed": "--recompute-modules",
    "layer_recomputed": "--moe-layer-recompute",
}
# Megatron-DeepSpeed's (2024), under today's names where there are some: it has experts of its own, with DeepSpeed's exchange.
OF_DEEPSPEED: dict[str, str] = {
    **{name: NAMES[name] for name in ("experts", "layers", "hidden", "dense_inner", "tp", "pp", "ep", "sequence_parallel")},
    "chosen": "--topk",
    "capacity": "--moe-train-capacity-factor",
}
WITH_TP = "--enable-expert-tensor-parallelism"  # of Megatron-DeepSpeed
PER_CHUNK = "--num-layers-per-virtual-pipeline-stage"
DEFAULTS: dict[str, Any] = {
    "chosen": 2, "score": "softmax", "balancing": "aux_loss", "layers_of_experts": 1, "dispatcher": "allgather",
    "backend": "deepep", "tp": 1, "cp": 1, "pp": 1, "ep": 1,
}  # fmt: skip
# Defaults of latent attention where it is on.
LATENT = {"query_rank": None, "key_value_rank": 32, "head": 128, "rotary_head": 64, "value_head": 128}
BACKENDS = ("deepep", "hybridep", "ncclep")
DISPATCHERS = ("allgather", "alltoall", "flex", "alltoall_seq")
NO_EXPERTS = (None, "None", "0", "1", 0, 1)  # numbers of experts of a dense model


def refuse_experts(
    keys: KeyReader,
    devices: int | None = None,
    tool: str = "Megatron-LM",
    names: Mapping[str, str] = NAMES,
    defaults: Mapping[str, Any] = DEFAULTS,
) -> None:
    """Raise `RunOfExperts`, with all that was read of it, if the run's model is a mixture of experts; do nothing for a dense
    model. devices: number of devices that the launcher starts, if known. tool: the tool's name. names: the tool's key by
    setting. defaults: its defaults by setting. keys: gives the values of the file's keys, and records which keys have been
    read. Raises InputError for a setting that the tool refuses."""
    if (written := keys.get(names["experts"])) in NO_EXPERTS:
        return
    if "--deepspeed" in keys.values:
        names, defaults = OF_DEEPSPEED, {"chosen": 1, "tp": 1, "pp": 1, "ep": 1}
    if len(set(str(written).split())) > 1:
        problem = f"is {shown(written)}: a mixture of experts, as many in each layer as there say"
        raise keys.error(names["experts"], problem, "give a dense model: such mixtures are not planned")
    settings = settings_of(ExpertReader(keys, names, defaults), devices, tool)
    raise refusal(settings, names["experts"])


def settings_of(reader: ExpertReader, devices: int | None, tool: str) -> ExpertSettings:
    """The settings of a run of a mixture of experts. reader: reads them by the tool's own keys. devices: number of devices that
    the launcher starts, if known. tool: the tool's name. Raises InputError for settings that Megatron-Core refuses."""
    experts, layers, dense_inner = (reader.whole(name) for name in ("experts", "layers", "dense_inner"))
    assert experts is not None
    latent = reader.flag("latent")
    if latent:
        reader.defaults = {**LATENT, **reader.defaults}
    heads: dict[str, Any] = {name: reader.whole(name) if latent else None for name in LATENT}
    tp, cp, pp, ep = (reader.whole(name) or 1 for name in ("tp", "cp", "pp", "ep"))
    settings = ExpertSettings(
        where=reader.keys.where, tool=tool, experts=experts, chosen=reader.whole("chosen"), groups=reader.whole("groups"),
        chosen_groups=reader.whole("chosen_groups"), score=reader.text("score"), router_dtype=reader.text("router_dtype"),
        balancing=reader.text("balancing"), forced_balance=reader.flag("forced_balance"), capacity=reader.number("capacity"),
        padded=reader.flag("padded"), layers=layers, hidden=reader.whole("hidden"), dense_inner=dense_inner,
        expert_inner=reader.whole("expert_inner") or dense_inner, shared_inner=reader.whole("shared_inner"), latent=latent,
        predicted=reader.whole("predicted", 0) or 0, **heads,
        world=devices, tp=tp, cp=cp, pp=pp, ep=ep, etp=_tensor_parallel(reader, tp),
        sequence_parallel=reader.flag("sequence_parallel"), dispatcher=_dispatcher(reader),
        zero=int(reader.flag("zero")) if "zero" in reader.names else None,
        grouped=reader.flag("grouped"), shared_overlap=reader.flag("shared_overlap"),
        exchange_overlap=reader.flag("exchange_overlap"), delayed_weights=reader.flag("delayed_weights"),
        recomputed=_recomputed(reader),
    )  # fmt: skip
    settings = replace(settings, layers_of_experts=_layers_of_experts(reader, layers), **_stages(reader, settings))
    settings = replace(settings, taken=reader.taken())
    refuse_illegal(settings, reader)
    _refuse_overlap(settings, reader)
    return settings


def _tensor_parallel(reader: ExpertReader, tp: int) -> int:
    """Ranks of tensor parallelism of experts: as many as of other units unless the file says another number; one in
    Megatron-DeepSpeed, which has them by an argument alone. tp: ranks of tensor parallelism of other units."""
    if "etp" in reader.names:
        return reader.whole("etp") or tp
    return tp if reader.keys.flag(WITH_TP, False) else 1


def _dispatcher(reader: ExpertReader) -> str | None:
    """The way in which tokens are exchanged, in Megatron-Core's words; for `flex`, with what it exchanges by: "flex (deepep)".
    Raises InputError for another word."""
    word = reader.text("dispatcher")
    if word is None:
        return None
    if word not in DISPATCHERS:
        raise reader.error("dispatcher", f"is {shown(word)}", f"give one of {', '.join(DISPATCHERS[:3])}")
    by, deepep = reader.text("backend") if word == "flex" else None, reader.flag("deepep")
    if by is not None and by not in BACKENDS:
        raise reader.error("backend", f"is {shown(by)}", f"give one of {', '.join(BACKENDS)}")
    return f"{word} ({'deepep' if deepep else by})" if word == "flex" else word


def _recomputed(reader: ExpertReader) -> tuple[str, ...]:
    """The modules that backward passes recompute, in Megatron-Core's words; "full" for whole layers."""
    granularity, modules = reader.text("granularity"), reader.text("recomputed")
    names = tuple(str(modules or "core_attn").replace(",", " ").split()) if granularity == "selective" else ()
    names += ("moe",) * (reader.flag("layer_recomputed") and "moe" not in names)
    return ("full",) if granularity == "full" else names


def _layers_of_experts(reader: ExpertReader, layers: int | None) -> tuple[bool, ...] | None:
    """Which layers have experts; None if the number of layers is not known. Raises InputError for a list of another length."""
    name = reader.names.get("layers_of_experts")
    if name is None or layers is None:
        return None
    value = reader.keys.get(name)
    found = pattern(1 if value is None else value, layers)
    if found is None:
        fix = f"give a number, or a list of {layers} with 1 for a layer of experts, such as ([0]*1+[1]*{max(0, layers - 1)})"
        raise reader.error("layers_of_experts", f"is {shown(value)}, with {layers} layers", fix)
    if value is None:
        reader.keys.take(name, 1)
    return found


def _stages(reader: ExpertReader, settings: ExpertSettings) -> dict[str, Any]:
    """The parts of each pipeline stage, if a layout string or list gives them, and the number of stages of each rank, as fields
    of the settings. Raises InputError for a layout that Megatron-Core refuses."""
    pp, layers, chunks = settings.pp, settings.layers, reader.whole("chunks")
    per_chunk = reader.keys.whole(PER_CHUNK) if PER_CHUNK in reader.keys.values else None
    if per_chunk and layers:
        chunks = max(1, layers // (pp * per_chunk))
    text = reader.keys.get(reader.names["stages"]) if "stages" in reader.names else None
    if text is None:
        return {"chunks": chunks or 1}
    parts = layouts.parsed(layouts.of_lists(text) if isinstance(text, list) else str(text))
    count = "".join(parts).count("t") if layers is None else layers
    if problem := layouts.fault(parts, pp, count, settings.predicted):
        works = layouts.example(len(parts), pp, count, settings.predicted)
        raise reader.error(
            "stages", f"is {shown(text)}: it {problem}", f"give one such as {works}" if works else "give fewer ranks"
        )
    if chunks not in (None, len(parts) // pp):
        raise reader.error("chunks", f"is {chunks}, and the layout has {len(parts) // pp}", "leave one of the two out")
    return {"chunks": len(parts) // pp, "stages": tuple(parts)}


def _refuse_overlap(settings: ExpertSettings, reader: ExpertReader) -> None:
    """Raise InputError if passes are to hide the exchange of another micro-batch where `TransformerConfig` refuses it."""
    if settings.exchange_overlap:
        recomputed = next((name for name in ("full", "moe") if name in settings.recomputed), None)
        wrong = (
            ("ep", settings.ep == 1, "is 1", "give several ranks"),
            ("dispatcher", str(settings.dispatcher).startswith("allgather"), "is allgather", "give alltoall or flex"),
            ("chunks", settings.pp > 1 and settings.chunks == 1, "is 1", "give 2: only interleaved stages overlap so"),
            ("granularity", recomputed is not None, f"recomputes {recomputed}", "recompute other modules, such as moe_act"),
            ("shared_overlap", settings.shared_overlap, "is given", "leave it out"),
            ("predicted", settings.predicted > 1, f"is {settings.predicted}", "give 1 layer of multi-token prediction"),
        )
        for name, refused, problem, fix in wrong:
            if refused:
                raise reader.error(name, f"{problem}, with {reader.names['exchange_overlap']}", fix)
    elif settings.delayed_weights:
        fix = f"leave it out, or give {reader.names['exchange_overlap']}"
        raise reader.error("delayed_weights", f"is given, without {reader.names['exchange_overlap']}", fix)
    if settings.shared_overlap and str(settings.dispatcher).startswith("allgather"):
        raise reader.error("shared_overlap", "is given, with the dispatcher allgather", "give alltoall or flex")
