"""Check the names of a model configuration's fields: which every family may have, which are other names of a family's own
fields, and which no family knows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from trainplan.profiling.base.errors import caution, shown
from trainplan.profiling.models.families.fields import Family, Fields, names

LAYER_FIELDS = re.compile(
    r"bias|qk_norm|layer_types|sliding_window|nextn|mtp|multiplier|scale|residual|sparse|head_type|attn_type|attention_type"
    r"|parallel|alibi|norm_type|emb_norm|normali[sz]ation|(num|n)_\w*(heads|layers|groups)$|lora_rank|share|mup|glu|softcap|_per_layer"
)
NEAR = 0.85  # the ratio of `difflib` from which on an unknown name counts as misspelt

# Fields of any family: READ matter here, and may be misspelt; the others change neither shapes nor results of training.
READ = names("model_type dtype torch_dtype tie_word_embeddings attn_implementation text_config mtp_num_layers")
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

# Names of the same size or setting in different formats and libraries. A file with one of them in place of its family's own
# would silently be planned as another model. Where a family has several of a line, it takes its size from the first.
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
    """Check the names of all fields of a model configuration against the names that its family reads.

    fields: the configuration. family: its `model_type`. described: the family. own_code: whether the published files of the
    family come with code of their own, which may read more fields than `described` lists.

    Raises InputError for an unknown name that resembles a known one, that is a synonym of a known field which is absent, or
    that the files' own code may read. All other unknown names are ignored with one warning.
    """
    if described.fields is None:
        return
    if (quantized := fields.config.get("quantization_config")) is not None:
        fix = "planned with whole weights in the dtype"
        caution(fields.where, f"{fields.part}quantization_config", f"is {shown(quantized)}, which is not planned", fix)
    wanted = described.fields | described.aliases.keys() | READ
    unknown = [name for name in fields.config if name not in wanted | COMMON]
    for name in [field for field in unknown if fields.config[field] is not None]:  # null states nothing
        if (meant := _meant(name, fields.config, wanted, described.aliases)) is not None:
            problem = f"is {shown(fields.config[name])}, but a {family} has no such field"
            raise fields.fail(name, problem, f"did you mean {meant}?")
    bearing = (
        name
        for name in unknown
        if _changes_layers(name, fields.config[name]) and not _repeats_known(name, fields.config, wanted)
    )
    if (own_code or fields.config.get("auto_map")) and (read := next(bearing, None)) is not None:
        problem = f"is {shown(fields.config[read])}, which the code that comes with its file may read, and a {family} does not"
        raise fields.fail(read, problem, "leave it out where it changes no layer")
    if unknown:
        several = len(unknown) > 1
        problem = f"{'are no fields' if several else 'is no field'} of a {family} that trainplan knows"
        fix = f"{'they are' if several else 'it is'} left out of account"
        caution(fields.where, ", ".join(fields.part + name for name in unknown), problem, fix)


def _changes_layers(name: str, value: Any) -> bool:
    """Whether a field with this unknown name and this value may change a layer of a model whose files come with code of their
    own.
    """
    return bool(LAYER_FIELDS.search(name)) and value not in (None, False, 0, [], {})


def _repeats_known(name: str, config: Mapping[str, Any], wanted: frozenset[str]) -> bool:
    """Whether the unknown field `name` is a synonym of a field that the family reads, and has the same value.

    config: the configuration's fields, including `name`. wanted: names that the family reads.
    """
    roles = (role for role in SYNONYMS if name in role)
    return any(config.get(synonym) == config[name] for role in roles for synonym in role if synonym in wanted)


def _meant(name: str, config: Mapping[str, Any], wanted: frozenset[str], aliases: Mapping[str, str]) -> str | None:
    """The name of the field that an unknown field name probably means, such as num_hidden_layers for n_layer; None if it
    resembles none.

    config: the configuration's fields. wanted: the names that its family reads. aliases: other names of the family's fields,
    mapped to the names that it reads.
    """
    alike = {_folded(known): known for known in sorted(wanted)}
    if _folded(name) in alike:
        return alike[_folded(name)]
    if near := get_close_matches(name, sorted(wanted), n=1, cutoff=NEAR):
        return near[0]
    for role in SYNONYMS:
        fields = [known for known in role if known in wanted]
        if name in role and fields and all(config.get(field) is None for field in fields):
            return aliases.get(fields[0], fields[0])
    return None


def _folded(name: str) -> str:
    """A field name in lower case without underscores and hyphens, so that different spellings compare equal."""
    return name.lower().replace("_", "").replace("-", "")


def without_aliases(fields: Fields, aliases: Mapping[str, str]) -> dict[str, Any]:
    """Rename the fields of a configuration to the names that its family reads; returns a new dict.

    aliases: other names of fields, mapped to the names that the family reads. Raises InputError if a field is given under two
    names with different values.
    """
    config = {name: value for name, value in fields.config.items() if name not in aliases}
    for alias, name in aliases.items():
        if (value := fields.config.get(alias)) is None:
            continue
        if config.setdefault(name, value) not in (None, value):
            raise fields.fail(alias, f"is {shown(value)}", f"give {shown(config[name])}, as {name} has it, or leave it out")
        config[name] = value
    return config
