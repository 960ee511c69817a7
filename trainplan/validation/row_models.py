"""The model of a measured run: a shipped configuration or a well-known size, with the sizes that the run gives.

Where a run names an unknown model, the architecture of its family is taken, by how the name begins. Things that the run then
leaves open (tied embeddings, the width of a head, the number of key and value heads, the feed-forward width, gating) are chosen
so that the number of parameters is nearest to the run's; where it has none, as in the family.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import log
from typing import Any

from trainplan.formulations.costs.overlapped.layout import Framework
from trainplan.profiling.base.errors import InputError, one_of
from trainplan.profiling.base.files import read_data
from trainplan.profiling.models.families import sized_config
from trainplan.profiling.models.model import Model, model_from_config
from trainplan.profiling.models.sublayers import attention_of
from trainplan.profiling.shipped import locate, mixture, shipped, sized, sized_names
from trainplan.validation.mixture_words import is_mixture
from trainplan.validation.row_mixtures import mixture_model
from trainplan.validation.rows import Run

# The shipped configuration with the architecture of a family, by how names of the family's models begin.
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
    "head_dim": ("head_dim", "d_kv", "kv_channels"),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "seq": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"),
}
OPEN = {"falcon": "ffn_hidden_size", "gpt2": "n_inner"}  # the field for `ffn` of types whose shipped configurations lack it
GROUPED = ("llama", "mistral", "qwen2", "qwen3")  # types with `num_key_value_heads`, even where a configuration lacks it
MEGATRON_VOCABULARY = 50257  # GPT-2's, which Megatron-LM's own data have
USUAL_GROUPS = 8  # key and value heads of most models with grouped attention, whatever their size
OTHERS = ("llama2-7b", "gpt3-175b")  # architectures for unknown names: gated, and not gated
NEAR = 0.03  # relative difference in parameters up to which the family's values are kept


def row_model(run: Run, tp: int, framework: Framework, dtype: str, assumed: dict[str, str]) -> Model:
    """Build the model that a measured run trains, in the given dtype, from the model's name and the sizes that the run states.

    Args:
        run: a measured run, as read from its file.
        tp: tensor-parallel degree, which decides how the vocabulary is padded.
        framework: the cost model's settings for the run's framework.
        dtype: the model's dtype.
        assumed: assumptions as texts by name, written to: gets an entry for each thing that the run does not specify.

    Raises:
        InputError: for a mixture of experts or an unknown model without sizes, and for sizes that no model has.
    """
    if is_mixture(run):
        if run.experts is None and sized(run.model, "mixtures") is None and sized(run.model) is not None:
            fix = "leave ep out, or give experts, topk, moe_ffn and the other sizes"
            raise InputError(run.id, "ep", f"is {run.ep}, and {run.model} has no experts", fix)
        return mixture_model(run, tp, framework, dtype, assumed)
    if (reason := mixture(run.model)) is not None:
        problem = f"is {run.model!r}, {reason}: not predicted"
        raise InputError(run.id, "model", problem, "give experts, topk, moe_ffn and the other sizes")
    known = sized(run.model)
    if known is not None:
        return _Sized(run, known[1], known[2], True, tp, framework, dtype).model(assumed)
    if missing := next((size for size in ("layers", "hidden", "heads") if getattr(run, size) is None), None):
        if all(getattr(run, size) is None for size in ("layers", "hidden", "heads", "ffn", "vocab")):
            advice = one_of(run.model, [*shipped("models"), *sized_names()], "trainplan model list")
            fix = f"{advice}, or give layers, hidden and heads"
            raise InputError(run.id, "model", f"is {run.model!r}, which is no shipped model", fix)
        raise InputError(run.id, missing, "is missing", f"give it: no shipped model is named {run.model!r}")
    bases = dict.fromkeys((_family(run), *(OTHERS if run.params else ())))
    best: tuple[float, str, Model, dict[str, str]] | None = None
    for base in bases:
        open_values: dict[str, str] = {}
        try:
            model = _Sized(run, base, {}, False, tp, framework, dtype).model(open_values)
        except InputError:
            if best is None and base == [*bases][-1]:
                raise
            continue
        difference = distance(run, model)
        if best is None or difference < best[0] - NEAR:
            best = difference, base, model, open_values
        if best[0] <= NEAR:
            break
    assert best is not None
    _, base, model, open_values = best
    assumed["model"] = f"of the architecture of {base}"
    assumed |= open_values
    return model


def distance(run: Run, model: Model) -> float:
    """How far a model's number of parameters is from the number that a measured run states: the absolute natural logarithm of
    their ratio; 0 if the run states none.
    """
    return abs(log(model.total_parameters / run.params)) if run.params else 0.0


def _family(run: Run) -> str:
    """The name of the shipped configuration that has the architecture of a measured run's model, found by the beginning of the
    model's name ("llama2-7b" if no name matches). The beginning of a family's name that ends in a digit does not match if more
    digits follow.
    """
    name = run.model.split("/")[-1].lower()

    def begins(start: str) -> bool:
        """Whether the run's name begins so, whatever separates its parts."""
        letters = "[-_ ]?".join(map(re.escape, re.sub(r"[-_ ]", "", start)))
        return re.match(letters + (r"(?!\d)" if start[-1].isdigit() else ""), name) is not None

    base = next((shipped for start, shipped in FAMILIES.items() if begins(start)), "llama2-7b")
    return "nemotron4-15b" if base == "gpt3-175b" and run.kv_heads not in (None, run.heads) else base


@dataclass(frozen=True)
class _Sized:
    """A shipped configuration, changed to the sizes that a measured run states. A field is open if the run does not specify
    it; its candidates are the values that models usually have.

    Attributes:
        run: a measured run, as read from its file.
        base: the name of the shipped configuration.
        fields: fields of config.json that replace the configuration's, for a well-known size of the model.
        known: True if the configuration is of the run's model itself, False if it is of another model of its family.
        tp: tensor-parallel degree.
        framework: the cost model's settings for the run's framework.
        dtype: the model's dtype.
    """

    run: Run
    base: str
    fields: dict[str, Any]
    known: bool
    tp: int
    framework: Framework
    dtype: str

    def model(self, assumed: dict[str, str]) -> Model:
        """Build the model whose number of parameters is nearest to the number that the run states, over all candidates for the
        fields that it does not specify. Raises InputError if no candidate gives a model.

        assumed: assumptions as texts by name, written to: gets an entry for each value that was not stated.
        """
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
            stated = _stated_dropout(run, field)
            own = config[field] if framework.drops or framework.composed else 0.0
            config[field] = own if stated is None else stated
        if config["model_type"] in GROUPED and (dropped := _stated_dropout(run, "attention_dropout")) is not None:
            config["attention_dropout"] = dropped
        if not framework.fused_attention:
            config["attn_implementation"] = "eager"
        if config["model_type"] == "mpt" and run.ffn not in (None, 4 * config["d_model"]):
            assumed["ffn"] = f"{4 * config['d_model']}, as every MPT has it, and {run.ffn} stated"
        choices = list(_open_fields(run, config, family, self.known, framework))
        sizes = [] if named is None else [[{named: size} for size in padded]]
        model = self._nearest(config, [*sizes, *choices], assumed)
        self._check_heads(model, config["model_type"])
        if named is None:
            return model
        if model.vocabulary not in (None, run.vocab):
            assumed["vocab"] = f"{model.vocabulary}, padded"
        return model

    def _check_heads(self, model: Model, kind: str) -> None:
        """Raise InputError if the run states a width of heads that models of its kind do not have. kind: `model_type`."""
        parts = (attention_of(part) for part in model.sublayers.values())
        other = next(
            (part.width for part in parts if part is not None and part.width != (self.run.head_dim or part.width)), None
        )
        if other is not None:
            problem = f"is {self.run.head_dim}, and heads of this {kind} have {other}"
            raise InputError(self.run.id, "head_dim", problem, f"give {other}, or leave it out")

    def _made(self, config: dict[str, Any]) -> Model:
        """Build the model of a configuration, given as the fields of a config.json. Raises InputError if it is not a valid
        model.
        """
        sequence = self.run.seq if "vocab_size" in config else None
        return model_from_config(config, self.base, sequence, self.dtype, self.run.model)

    def _nearest(self, config: dict[str, Any], choices: list[list[dict[str, Any]]], assumed: dict[str, str]) -> Model:
        """Build a model for every combination of candidates, and return the first whose number of parameters is near the
        number that the run states, or else the nearest.

        Args:
            config: fields of config.json that are known.
            choices: for each open thing the list of its candidates, which are dicts of fields of config.json, the usual one
                first.
            assumed: assumptions as texts by name, written to: gets an entry if the choice is not the usual one, or if the
                number of parameters differs from the run's.
        """
        usual = {field: value for choice in choices for field, value in choice[0].items()}
        best: tuple[float, dict[str, Any], Model] | None = None
        for combined in product(*choices):
            fields = {field: value for choice in combined for field, value in choice.items()}
            try:
                model = self._made(config | fields)
            except InputError:
                continue
            difference = distance(self.run, model)
            if best is None or difference < best[0]:
                best = difference, fields, model
            if difference <= NEAR:
                break
        if best is None:
            return self._made(config | usual)  # which says what is wrong
        difference, fields, model = best
        if fields != usual:
            assumed["architecture"] = ", ".join(f"{field} {value}" for field, value in fields.items())
        if difference > NEAR:
            count = f"{model.total_parameters / 1e9:.3g} billion by the sizes"
            assumed["params"] = f"{count}, and {(self.run.params or 0) / 1e9:.3g} stated"
        return model


def _stated_dropout(run: Run, field: str) -> float | None:
    """The dropout probability that a measured run's note (free text) states for a field of config.json: `dropout 0.1` applies
    to all fields, `attention-dropout 0.1` only to the field for attention scores. None if it states none.
    """
    own = r"(?:att\w*|attn)[_ -]" if field.startswith("att") else r"(?:hidden|resid\w*|embd)[_ -]"
    match = re.search(rf"(?<![\w-])(?:{own})?dropout[\s=:]+(\d?\.?\d+)\b", (run.note or "").lower())
    return float(match[1]) if match and float(match[1]) < 1 else None


def _field(size: str, config: dict[str, Any]) -> str | None:
    """The field of config.json that has a size which measured runs call `size`: "hidden" -> "n_embd" in GPT-2's configuration.
    None if the configuration has no such field.
    """
    return next((name for name in FIELDS[size] if name in config), None)


def _whole(value: Any) -> int:
    """The value of a configuration's field if it is an integer; 0 if it is missing, or is a list, as in image models with one
    value per stage.
    """
    return value if isinstance(value, int) else 0


def _vocabularies(run: Run, config: dict[str, Any], known: bool, framework: Framework, tp: int) -> list[int]:
    """Candidates for the padded size of the vocabulary, the usual one first; [0] for image models.

    If the run does not state the vocabulary, a known model has its own; a model that is only of a known family, in
    Megatron-LM, has the vocabulary of Megatron-LM's data, unless the family's matches the run's number of parameters better.
    run: a measured run. config: fields of config.json. known: whether `config` is of the run's model itself. framework: the
    cost model's settings for its framework. tp: tensor-parallel degree.
    """
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
    """Raise the number of positions in a configuration to the number of tokens per sample of a measured run, if it is smaller.
    config: fields of config.json, written to.
    """
    if run.seq is not None:
        field = _field("seq", config) or "max_position_embeddings"
        config[field] = max(int(config.get(field, run.seq)), run.seq)


def _open_fields(
    run: Run, config: dict[str, Any], family: dict[str, Any], known: bool, framework: Framework
) -> Iterator[list[dict[str, Any]]]:
    """For each thing about a model that a measured run does not specify, yield its candidates: dicts of fields of config.json,
    the usual one first.

    Args:
        run: a measured run, as read from its file.
        config: the shipped configuration with the run's sizes.
        family: the shipped configuration without the run's sizes.
        known: whether the configuration is of the run's model itself, and not of another of its family.
        framework: the cost model's settings for the run's framework.
    """
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
    width = _field("head_dim", config) or ("head_dim" if kind in GROUPED else None)
    if run.head_dim is not None and width is not None:
        yield [{width: run.head_dim}]
    elif "head_dim" in config and heads and shaped and not known:
        wide, even = {"head_dim": config["head_dim"]}, {"head_dim": hidden // heads}
        yield [wide, even] if kind in ("qwen3", "gemma2", "gemma3_text") else [even, wide]
    if "d_kv" in config and heads and shaped and not known and run.head_dim is None:
        yield [{"d_kv": width} for width in dict.fromkeys((config["d_kv"], 64, hidden // heads)) if width]
    if kind == "t5" and not known:
        yield [{"feed_forward_proj": projection} for projection in ("relu", "gated-gelu")]
    if "tie_word_embeddings" in config and shaped and not known and framework.pads == 1:
        yield [{"tie_word_embeddings": tied} for tied in (config["tie_word_embeddings"], not config["tie_word_embeddings"])]


def _widths(run: Run, config: dict[str, Any], family: dict[str, Any], known: bool) -> list[dict[str, Any]]:
    """Candidates for the width of the feed-forward network, as dicts of fields of config.json: the width that the run states,
    or else usual multiples of the hidden size, those closest to the family's ratio first. An empty dict keeps the
    configuration's width.

    run: a measured run. config: the shipped configuration with the run's sizes. family: the configuration without the run's
    sizes. known: whether the configuration is of the run's model itself.
    """
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
