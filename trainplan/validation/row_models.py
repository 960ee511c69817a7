"""The model of a row of measured runs: a shipped configuration or a well-known size, with the sizes that the row gives.

Where a row names a model that nobody knows, its family's architecture is taken, by how the name begins. What the row leaves
open then (tied tables, the width of a head, heads of keys and values, the feed-forward width, whether that is gated) is what
brings the number of parameters nearest to the one that the row says; without one, as the family has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import log
from typing import Any

from trainplan.formulations.costs.overlapped.layout import Framework
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import read_data
from trainplan.profiling.models.families import sized_config
from trainplan.profiling.models.model import Model, model_from_config
from trainplan.profiling.shipped import locate, mixture, sized
from trainplan.validation.rows import Run

# Shipped configurations whose architecture other sizes of a family have, by how their names begin.
FAMILIES = {
    "llama3.2": "llama3.2-1b",
    "llama3.1": "llama3.1-8b",
    "llama3": "llama3-8b",
    "llama": "llama2-7b",
    "internlm": "llama2-7b",
    "mistral": "mistral-7b",
    "ministral": "mistral-7b",
    "codestral": "mistral-7b",
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
    "chatglm": "glm-4-9b",
    "bert": "bert-large",
    "roberta": "bert-large",
    "t5": "t5-3b",
    "flan-t5": "t5-3b",
    "mt5": "t5-3b",
    "ul2": "t5-3b",
    **dict.fromkeys(("yi", "deepseek-llm", "baichuan", "olmo", "vicuna", "stablelm", "smollm", "tinyllama"), "llama2-7b"),
    **dict.fromkeys(("gpt", "megatron", "mt-nlg", "bloom", "turing", "starcoder", "codegen", "galactica"), "gpt3-175b"),
    **dict.fromkeys(("cerebras-gpt", "metaseq", "santacoder"), "gpt3-175b"),
}
FIELDS: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num"),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "seq": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"),
}
OPEN = {"falcon": "ffn_hidden_size", "gpt2": "n_inner"}  # fields for `ffn` that shipped configurations of a type leave out
GROUPED = ("llama", "mistral", "qwen2", "qwen3")  # types that have `num_key_value_heads` where their configuration has none
MEGATRON_VOCABULARY = 50257  # GPT-2's, of Megatron-LM's own data
USUAL_GROUPS = 8  # heads of keys and values of most grouped models, of whatever size
OTHERS = ("llama2-7b", "gpt3-175b")  # architectures of names that nobody knows: gated, and not
NEAR = 0.03  # of parameters: what is no further from what the row says is left as the family has it


def row_model(run: Run, tp: int, framework: Framework, dtype: str, assumed: dict[str, str]) -> Model:
    """The model of a row, in the run's dtype. Raises InputError."""
    if (what := mixture(run.model)) is not None:
        problem = f"is {run.model!r}, {what}: not predicted"
        raise InputError(run.id, "model", problem, "leave the row out: dense models are predicted")
    known = sized(run.model)
    if known is not None:
        return _Sized(run, known[1], known[2], True, tp, framework, dtype).model(assumed)
    if missing := next((size for size in ("layers", "hidden", "heads") if getattr(run, size) is None), None):
        raise InputError(run.id, missing, "is missing", f"give it: no shipped model is named {run.model!r}")
    bases = dict.fromkeys((_family(run), *(OTHERS if run.params else ())))
    best: tuple[float, str, Model, dict[str, str]] | None = None
    for base in bases:
        said: dict[str, str] = {}
        try:
            model = _Sized(run, base, {}, False, tp, framework, dtype).model(said)
        except InputError:
            if best is None and base == [*bases][-1]:
                raise
            continue
        apart = distance(run, model)
        if best is None or apart < best[0] - NEAR:
            best = apart, base, model, said
        if best[0] <= NEAR:
            break
    assert best is not None
    _, base, model, said = best
    assumed["model"] = f"of the architecture of {base}"
    assumed |= said
    return model


def distance(run: Run, model: Model) -> float:
    """How far the parameters of a model are from those that a row says, as the absolute logarithm of their ratio."""
    return abs(log(model.total_parameters / run.params)) if run.params else 0.0


def _family(run: Run) -> str:
    """The shipped configuration of a family, by how the row's name begins: not of `llama3` where more digits follow."""
    name = run.model.split("/")[-1].lower()

    def begins(start: str) -> bool:
        letters = "[-_ ]?".join(map(re.escape, re.sub(r"[-_ ]", "", start)))
        return re.match(letters + (r"(?!\d)" if start[-1].isdigit() else ""), name) is not None

    base = next((each for start, each in FAMILIES.items() if begins(start)), "llama2-7b")
    return "nemotron4-15b" if base == "gpt3-175b" and run.kv_heads not in (None, run.heads) else base


@dataclass(frozen=True)
class _Sized:
    """A shipped configuration with the sizes of a row. fields: in which a well-known size differs from it; known: whether it is
    the model itself, not one of its family."""

    run: Run
    base: str
    fields: dict[str, Any]
    known: bool
    tp: int
    framework: Framework
    dtype: str

    def model(self, assumed: dict[str, str]) -> Model:
        """The model whose open fields bring its parameters nearest to the row's. Raises InputError."""
        run, framework = self.run, self.framework
        config = sized_config(read_data(locate("models", self.base, "model", "a shipped model")), self.fields)
        family = dict(config)
        padded, named = _vocabularies(run, config, self.known, framework, self.tp), _field("vocab", config)
        if framework.pads > 1 and config.get("tie_word_embeddings") and "untie-embeddings" in (run.note or ""):
            config["tie_word_embeddings"] = False
        if run.layers and "num_decoder_layers" in config:
            config["num_decoder_layers"] = run.layers
        if "word_embed_proj_dim" in config and run.hidden:
            config["word_embed_proj_dim"] = run.hidden
        for size in ("layers", "hidden", "heads"):
            if (field := _field(size, config)) is not None and (value := getattr(run, size)) is not None:
                config[field] = value
        if "vocab_size" in config or "padded_vocab_size" in config:
            _take_sequence(run, config)
        if (config.get("pad_token_id") or 0) >= min(padded):
            config["pad_token_id"] = None
        # Models of transformers are trained with the dropout of their configuration.
        for field in [field for field in config if "drop" in field and isinstance(config[field], float)]:
            said = _dropout_said(run, field)
            own = config[field] if framework.drops or framework.composed else 0.0
            config[field] = own if said is None else said
        if config["model_type"] in GROUPED and (dropped := _dropout_said(run, "attention_dropout")) is not None:
            config["attention_dropout"] = dropped
        if not framework.fused_attention:
            config["attn_implementation"] = "eager"
        if config["model_type"] == "mpt" and run.ffn not in (None, 4 * config["d_model"]):
            assumed["ffn"] = f"{4 * config['d_model']}, as every MPT has it, and {run.ffn} said"
        choices = list(_open_fields(run, config, family, self.known, framework))
        if named is None:
            return self._nearest(config, choices, assumed)
        model = self._nearest(config, [[{named: size} for size in padded], *choices], assumed)
        if model.vocabulary not in (None, run.vocab):
            assumed["vocab"] = f"{model.vocabulary}, padded"
        return model

    def _made(self, config: dict[str, Any]) -> Model:
        sequence = self.run.seq if "vocab_size" in config else None
        return model_from_config(config, self.base, sequence, self.dtype, self.run.model)

    def _nearest(self, config: dict[str, Any], choices: list[list[dict[str, Any]]], assumed: dict[str, str]) -> Model:
        """Of all that the open fields may be, the first whose parameters are near the row's, else the nearest."""
        usual = {field: value for choice in choices for field, value in choice[0].items()}
        best: tuple[float, dict[str, Any], Model] | None = None
        for combined in product(*choices):
            fields = {field: value for each in combined for field, value in each.items()}
            try:
                model = self._made(config | fields)
            except InputError:
                continue
            apart = distance(self.run, model)
            if best is None or apart < best[0]:
                best = apart, fields, model
            if apart <= NEAR:
                break
        if best is None:
            return self._made(config | usual)  # which says what is wrong
        apart, fields, model = best
        if fields != usual:
            assumed["architecture"] = ", ".join(f"{field} {value}" for field, value in fields.items())
        if apart > NEAR:
            count = f"{model.total_parameters / 1e9:.3g} billion by the sizes"
            assumed["params"] = f"{count}, and {(self.run.params or 0) / 1e9:.3g} said"
        return model


def _dropout_said(run: Run, field: str) -> float | None:
    """The dropout that a row's note says of attention's scores, or of what a configuration has other dropout of: `dropout 0.1`
    of both, `attention-dropout 0.1` of the scores alone; None where it says none."""
    own = r"(?:att\w*|attn)[_ -]" if field.startswith("att") else r"(?:hidden|resid\w*|embd)[_ -]"
    said = re.search(rf"(?<![\w-])(?:{own})?dropout[\s=:]+(\d?\.?\d+)\b", (run.note or "").lower())
    return float(said[1]) if said and float(said[1]) < 1 else None


def _field(size: str, config: dict[str, Any]) -> str | None:
    return next((each for each in FIELDS[size] if each in config), None)


def _whole(value: Any) -> int:
    """A number of a configuration; 0 where it has none, or one for each stage of an image's."""
    return value if isinstance(value, int) else 0


def _vocabularies(run: Run, config: dict[str, Any], known: bool, framework: Framework, tp: int) -> list[int]:
    """What the padded vocabulary may be, the usual first; 0 of images. Where a row does not say it, a known model has its own;
    a model of a family that Megatron-LM trains has the one of its data, unless the row's parameters say that of the family."""
    field = _field("vocab", config)
    own = _whole(config[field]) if field else 0
    if run.vocab is not None:
        sizes = [run.vocab]
    elif framework.pads == 1 or not own:
        sizes = [own]
    else:
        sizes = [own, MEGATRON_VOCABULARY] if known else [MEGATRON_VOCABULARY, own]
    multiple = framework.pads * tp
    return [*dict.fromkeys(-(-size // multiple) * multiple for size in (sizes if run.params else sizes[:1]))]


def _take_sequence(run: Run, config: dict[str, Any]) -> None:
    """At least so many positions as the row has tokens."""
    if run.seq is not None:
        field = _field("seq", config) or "max_position_embeddings"
        config[field] = max(int(config.get(field, run.seq)), run.seq)


def _open_fields(
    run: Run, config: dict[str, Any], family: dict[str, Any], known: bool, framework: Framework
) -> Iterator[list[dict[str, Any]]]:
    """For each thing that rows may leave open, what it may be, as fields of a configuration, the usual first. family: the
    configuration without the row's sizes."""
    hidden, heads = (_whole(config.get(_field(size, config) or "")) for size in ("hidden", "heads"))
    shaped = run.hidden is not None or run.heads is not None
    kind = config["model_type"]
    groups = _field("kv_heads", config) or ("num_key_value_heads" if kind in GROUPED else None)
    if groups is not None and run.kv_heads is not None:
        yield [{groups: run.kv_heads}]
    elif groups is not None and shaped and not known:
        before = _whole(family.get(_field("heads", family) or ""))
        own = int(family.get(groups) or before)
        likely = (heads, USUAL_GROUPS) if own == before else (own, USUAL_GROUPS, heads)
        yield [{groups: count} for count in dict.fromkeys(likely) if count <= heads and heads % count == 0]
    yield _widths(run, config, family, known)
    if "head_dim" in config and heads and shaped and not known:
        wide, even = {"head_dim": config["head_dim"]}, {"head_dim": hidden // heads}
        yield [wide, even] if kind in ("qwen3", "gemma2", "gemma3_text") else [even, wide]
    if "d_kv" in config and heads and shaped and not known:
        yield [{"d_kv": width} for width in dict.fromkeys((config["d_kv"], 64, hidden // heads)) if width]
    if kind == "t5" and not known:
        yield [{"feed_forward_proj": way} for way in ("relu", "gated-gelu")]
    if "tie_word_embeddings" in config and shaped and not known and framework.pads == 1:
        yield [{"tie_word_embeddings": tied} for tied in (config["tie_word_embeddings"], not config["tie_word_embeddings"])]


def _widths(run: Run, config: dict[str, Any], family: dict[str, Any], known: bool) -> list[dict[str, Any]]:
    """What the feed-forward width may be: the row's, else as many times the hidden size as the family usually has."""
    field = _field("ffn", config) or OPEN.get(config["model_type"])
    if field is None:
        return [{}]
    if run.ffn is not None:
        return [{field: run.ffn}]
    if known or run.hidden is None or field not in config:
        return [{}]
    hidden = run.hidden
    usual = [4 * hidden, -(-8 * hidden // 3 // 256) * 256, 7 * hidden // 2]
    if config["model_type"] != "t5":  # whose sizes have no ratio in common
        ratio = family[field] / family[_field("hidden", family) or ""]
        usual.sort(key=lambda width: abs(width / hidden - ratio))
    return [{field: width} for width in dict.fromkeys(usual)]
