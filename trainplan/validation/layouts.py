"""A row of measured runs as a model, devices with their links, and a layout; with what it leaves open taken from defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainplan.formulations.streams.layout import Framework, RunLayout
from trainplan.formulations.streams.units import splittable
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import read_data
from trainplan.profiling.clusters.efficiencies import Precision
from trainplan.profiling.clusters.sheets import DeviceSheet, likely_kind, sheet
from trainplan.profiling.models.model import Model, model_from_config
from trainplan.profiling.shipped import locate, shipped
from trainplan.validation.frameworks import framework_of
from trainplan.validation.rows import Run
from trainplan.validation.words import degrees, network_bytes_per_s, precisions, recompute_of_words, shares_tokens, sharing

# Shipped configurations whose architecture other sizes of a family have, by how their names begin.
FAMILIES = {
    "llama3.2-1": "llama3.2-1b",
    "llama3.1": "llama3.1-8b",
    "llama3": "llama3-8b",
    "llama": "llama2-7b",
    "internlm": "llama2-7b",
    "mistral": "mistral-7b",
    "qwen3": "qwen3-8b",
    "qwen": "qwen2.5-7b",
    "gemma3": "gemma3-12b",
    "gemma": "gemma2-9b",
    "phi": "phi3-mini",
    "mpt": "mpt-7b",
    "nemotron": "nemotron4-15b",
    "falcon": "falcon-40b",
    "opt": "opt-6.7b",
    "gpt-neox": "gpt-neox-20b",
    "pythia": "gpt-neox-20b",
    "neox": "gpt-neox-20b",
    "glm": "glm-4-9b",
    "bert": "bert-large",
    "t5": "t5-3b",
    "yi": "llama2-7b",
    "deepseek-llm": "llama2-7b",
    "baichuan": "llama2-7b",
    "olmo": "llama2-7b",
    "gpt": "gpt3-175b",
    "megatron": "gpt3-175b",
    "mt-nlg": "gpt3-175b",
    "bloom": "gpt3-175b",
    "turing": "gpt3-175b",
}
FIELDS: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num"),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "seq": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
}
RELATED = {"h800": "h100", "a800": "a100"}  # kinds without a sheet that differ in links alone
MEGATRON_VOCABULARY = 50257  # GPT-2's, of Megatron-LM's own data
LORA = re.compile(r"lora|peft", re.IGNORECASE)


@dataclass(frozen=True)
class LaidRun:
    """A row, laid out. network_bytes_per_s: of a device's share of the network, where the row's note says it. assumed: what the
    row leaves open, and what is taken."""

    run: Run
    model: Model
    name: str
    sheet: DeviceSheet
    layout: RunLayout
    network_bytes_per_s: float | None
    assumed: Mapping[str, str]


def laid_run(run: Run) -> LaidRun:
    """The row, laid out. Raises InputError where it cannot be, with what it cannot in its problem."""
    if run.unread is not None:
        raise run.unread
    if run.experts or (run.ep or 1) > 1:
        raise InputError(run.id, "experts", "is a mixture of experts", "leave the row out: dense models are predicted")
    assumed: dict[str, str] = {}
    framework = framework_of(run)
    if not run.framework:
        assumed["framework"] = framework.name
    name = _kind(run.gpu, assumed)
    described = sheet(name)
    base, _ = precisions(run.precision or "", usual_dtype(described))
    model = _model(run, run.tp or 1, framework, base, assumed)
    return laid_out(run, model, name, framework, assumed)


def laid_out(run: Run, model: Model, name: str, framework: Framework, assumed: dict[str, str]) -> LaidRun:
    """A row of this model on devices of a data sheet's name, laid out; what the row leaves open goes into `assumed`. Raises
    InputError."""

    def taken(name: str, value: Any, default: Any) -> Any:
        if value is None:
            assumed[name] = str(default)
            return default
        return value

    tp, pp, cp = (int(taken(name, degree, 1)) for name, degree in degrees(run).items())
    chunks = int(taken("vpp", run.vpp, 1))
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
    described = sheet(name)
    base, precision = precisions(str(taken("precision", run.precision, usual_dtype(described))), usual_dtype(described))
    if not all(splittable(part, tp).runs_on(tp) for part in model.sublayers.values()):
        problem = f"is {tp}, into which not all parts of this {model.family} can be split"
        raise InputError(run.id, "tp", problem, f"give a degree that divides heads, ffn and vocabulary of {run.model}")
    zero, shard = sharing(run, dp, framework, assumed)
    for each in (base, precision):
        if each not in described.flops_per_s:
            fix = f"give one of {', '.join(described.flops_per_s)}"
            raise InputError(run.id, "precision", f"is {run.precision!r}, which {described.name} has no rate for", fix)
    recompute, shared = recompute_of_words(run, model.layers, assumed), shares_tokens(run, tp, framework, assumed)
    count = pp * chunks
    layout = RunLayout(
        dp, tp, pp, cp, chunks, zero, shard, shared, recompute, base, precision, micro, batch, framework,
        reserved=model.layers % count > 0 and (model.layers + 2) % count == 0,
        frozen=LORA.search(run.task or "") is not None,
    )  # fmt: skip
    if model.layers + 2 * layout.reserved < count:
        problem = f"is {chunks}, which with pp {pp} makes {count} stages of {model.layers} layers"
        raise InputError(run.id, "vpp", problem, f"give at most {model.layers} stages, one for each layer")
    return LaidRun(run, model, name, described, layout, network_bytes_per_s(run), assumed)


def usual_dtype(described: DeviceSheet) -> Precision:
    """In which a device trains where nobody says: bfloat16 where it has that."""
    return "bfloat16" if "bfloat16" in described.flops_per_s else "float16"


def _kind(gpu: str, assumed: dict[str, str]) -> str:
    """The data sheet of a device, or of one that differs from it in links or memory alone."""
    word = next((each for each in RELATED if re.search(rf"\b{each}\b", gpu.lower())), None)
    if word is not None:
        assumed["gpu"] = f"as {RELATED[word]}"
        return RELATED[word]
    name, taken = likely_kind(gpu)
    if taken:
        assumed["gpu"] = f"as {name}"
    return name


def _model(run: Run, tp: int, framework: Framework, dtype: str, assumed: dict[str, str]) -> Model:
    """The shipped configuration that the row names, with its sizes, in the run's dtype."""
    folded = _folded(run.model.split("/")[-1])
    base = next((each for each in shipped("models") if _folded(each) == folded), None)
    if base is None:
        base = next((each for start, each in FAMILIES.items() if folded.startswith(_folded(start))), "llama2-7b")
        assumed["model"] = f"of the architecture of {base}"
    if base == "gpt3-175b" and run.kv_heads not in (None, run.heads):
        base = "nemotron4-15b"
        assumed["model"] = f"of the architecture of {base}"
    config: dict[str, Any] = dict(read_data(locate("models", base, "model", "a shipped model")))
    if "word_embed_proj_dim" in config and run.hidden:
        config["word_embed_proj_dim"] = run.hidden
    sizes = {name: getattr(run, name) for name in FIELDS}
    vocabulary = run.vocab
    if vocabulary is None and framework.pads > 1:
        vocabulary = MEGATRON_VOCABULARY
    elif vocabulary is None:
        vocabulary = next((int(config[field]) for field in FIELDS["vocab"] if field in config), 0)
    multiple = framework.pads * tp
    padded = -(-vocabulary // multiple) * multiple
    if padded not in (0, run.vocab):
        assumed["vocab"] = f"{padded}, padded"
    sizes["vocab"] = padded
    for size, value in sizes.items():
        field = next((each for each in FIELDS[size] if each in config), None)
        if value is None:
            if size in ("layers", "hidden", "heads") and "model" in assumed:
                raise InputError(run.id, size, "is missing", f"give it: no shipped model is named {run.model!r}")
            assumed.setdefault(size, f"of {base}")
        elif size == "seq" and "vocab_size" not in config:  # an image gives the tokens
            continue
        elif size == "seq":
            field = field or "max_position_embeddings"
            config[field] = max(int(config.get(field, value)), value)
        elif field is not None:
            config[field] = value
        elif size in ("ffn", "kv_heads") and config["model_type"] == "gpt2":
            config |= {"n_inner": value} if size == "ffn" else {}
        elif size == "kv_heads" and config["model_type"] in ("llama", "mistral", "qwen2", "qwen3"):
            config["num_key_value_heads"] = value
    if run.hidden and run.heads and "head_dim" in config and "model" in assumed and config["model_type"] != "qwen3":
        config["head_dim"] = run.hidden // run.heads
    if framework.pads > 1 and config.get("tie_word_embeddings") and "untie-embeddings" in (run.note or ""):
        config["tie_word_embeddings"] = False
    if run.layers and "num_decoder_layers" in config:
        config["num_decoder_layers"] = run.layers
    if (config.get("pad_token_id") or 0) >= padded:
        config["pad_token_id"] = None
    for field in [name for name in config if "drop" in name and isinstance(config[name], float)]:
        config[field] = config[field] if framework.drops else 0.0
    if not framework.fused_attention:
        config["attn_implementation"] = "eager"
    return model_from_config(config, base, run.seq if "vocab_size" in config else None, dtype, run.model)


def _folded(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "", name.lower())
