"""Names of a configuration's fields: those that every family may have, other names of some, and names that nobody knows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from trainplan.profiling.base.errors import caution, shown
from trainplan.profiling.models.families.fields import Family, Fields, names

BEARS = re.compile(
    r"bias|qk_norm|layer_types|sliding_window|nextn|mtp|multiplier|scale|residual|sparse|head_type|attn_type|attention_type"
    r"|parallel|alibi|norm_type|emb_norm|normali[sz]ation|(num|n)_\w*(heads|layers|groups)$|lora_rank|share|mup|glu|softcap|_per_layer"
)
NEAR = 0.85  # from which likeness on an unknown name passes for a misspelt one, as `difflib` measures it

# Of any family: names that matter here, and may be misspelt; and names that change neither shapes nor results of training.
READ = names("model_type dtype torch_dtype tie_word_embeddings attn_implementation text_config")
COMMON = READ | names(
    """
    architectures transformers_version name_or_path _name_or_path _commit_hash _attn_implementation
    _attn_implementation_autoset _attn_implementation_internal _flash_attn_2_enabled _from_model_config _num_labels
    _out_features _out_indices auto_map return_dict output_hidden_states output_attentions torchscript use_bfloat16
    tf_legacy_loss chunk_size_feed_forward is_encoder_decoder is_decoder cross_attention_hidden_size add_cross_attention
    tie_encoder_decoder pruned_heads finetuning_task id2label label2id num_labels problem_type task_specific_params
    tokenizer_class prefix vocab_file per_layer_config tie_last_hidden_states initializer_range initializer_factor use_cache
    gradient_checkpointing bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id mask_token_id unk_token_id
    decoder_start_token_id max_length min_length max_new_tokens do_sample early_stopping num_beams num_beam_groups
    diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores return_dict_in_generate
    forced_bos_token_id forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens
    begin_suppress_tokens quantization_config unsloth_fixed unsloth_version transformers.js_config
    """
)

# Names of other formats and libraries by what they stand for: where a file has one of them in place of its family's own, it
# would be planned as another model in silence. Of several that a family has, the first is the one that its size comes from.
SYNONYMS = [
    role.split()
    for role in (
        "embed_dim n_embd d_model hidden_size hidden_dim model_dim emb_dim dim",
        "num_attention_heads n_head num_heads n_heads num_attn_heads attention_heads heads",
        "num_key_value_heads num_kv_heads n_kv_heads kv_heads n_head_kv num_query_groups",
        "num_hidden_layers n_layer num_layers n_layers num_blocks layers depth",
        "intermediate_size n_inner d_ff ffn_dim ffn_hidden_size inner_dim mlp_dim",
        "vocab_size vocabulary_size padded_vocab_size n_vocab vocab",
        "max_position_embeddings n_positions n_ctx max_seq_len max_seq_length max_sequence_length seq_length context_length",
        "head_dim d_kv d_head kv_channels attention_head_dim",
        "attention_bias qkv_bias attn_bias",
        "hidden_act activation_function hidden_activation act_fn",
        "rms_norm_eps layer_norm_eps layer_norm_epsilon norm_eps norm_epsilon",
        "rope_theta rope_base rotary_base rotary_emb_base",
        "tie_word_embeddings tie_embeddings tied_embeddings share_embeddings",
    )
]


def check_names(fields: Fields, family: str, described: Family, own_code: bool) -> None:
    """Refuse a field whose name is near a known one, or stands for one that is absent; warn once of all others that nobody
    knows. own_code: the family's files come with code of their own, which may read more. Raises InputError."""
    if described.fields is None:
        return
    if (quantized := fields.config.get("quantization_config")) is not None:
        fix = "planned with whole weights in the dtype"
        caution(fields.where, f"{fields.part}quantization_config", f"is {shown(quantized)}, which is not planned", fix)
    wanted = described.fields | described.aliases.keys() | READ
    unknown = [name for name in fields.config if name not in wanted | COMMON]
    for name in [each for each in unknown if fields.config[each] is not None]:  # null says nothing
        if (meant := _meant(name, fields.config, wanted, described.aliases)) is not None:
            problem = f"is {shown(fields.config[name])}, but a {family} has no such field"
            raise fields.fail(name, problem, f"did you mean {meant}?")
    bearing = (name for name in unknown if _bears(name, fields.config[name]) and not _said(name, fields.config, wanted))
    if (own_code or fields.config.get("auto_map")) and (read := next(bearing, None)) is not None:
        problem = f"is {shown(fields.config[read])}, which the code that comes with its file may read, and a {family} does not"
        raise fields.fail(read, problem, "leave it out where it changes no layer")
    if unknown:
        several = len(unknown) > 1
        problem = f"{'are no fields' if several else 'is no field'} of a {family} that trainplan knows"
        fix = f"{'they are' if several else 'it is'} left out of account"
        caution(fields.where, ", ".join(fields.part + name for name in unknown), problem, fix)


def _bears(name: str, value: Any) -> bool:
    """Whether a field that no family knows would change a layer of a model with code of its own."""
    return bool(BEARS.search(name)) and value not in (None, False, 0, [], {})


def _said(name: str, config: Mapping[str, Any], wanted: frozenset[str]) -> bool:
    """Whether the family's own name of what an unknown field stands for says the same."""
    roles = (role for role in SYNONYMS if name in role)
    return any(config.get(each) == config[name] for role in roles for each in role if each in wanted)


def _meant(name: str, config: Mapping[str, Any], wanted: frozenset[str], aliases: Mapping[str, str]) -> str | None:
    """The field that an unknown name is meant for; None where it may be none of this family's."""
    alike = {_folded(each): each for each in sorted(wanted)}
    if _folded(name) in alike:
        return alike[_folded(name)]
    if near := get_close_matches(name, sorted(wanted), n=1, cutoff=NEAR):
        return near[0]
    for role in SYNONYMS:
        fields = [each for each in role if each in wanted]
        if name in role and fields and all(config.get(field) is None for field in fields):
            return aliases.get(fields[0], fields[0])
    return None


def _folded(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def without_aliases(fields: Fields, aliases: Mapping[str, str]) -> dict[str, Any]:
    """The configuration with every field by the name that its family reads. Raises InputError where two names differ."""
    config = {name: value for name, value in fields.config.items() if name not in aliases}
    for alias, name in aliases.items():
        if (value := fields.config.get(alias)) is None:
            continue
        if config.setdefault(name, value) not in (None, value):
            raise fields.fail(alias, f"is {shown(value)}", f"give {shown(config[name])}, as {name} has it, or leave it out")
        config[name] = value
    return config
