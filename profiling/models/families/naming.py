"""Names of a configuration's fields: those that every family may have, other names of some, and names that nobody knows."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from trainplan.profiling.base.errors import caution, shown
from trainplan.profiling.models.families.fields import Family, Fields, names

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
    begin_suppress_tokens unsloth_fixed unsloth_version transformers.js_config
    """
)


def check_names(fields: Fields, family: str, described: Family) -> None:
    """Refuse a field whose name is near a known one, and warn once of all others that nobody knows. Raises InputError."""
    if described.fields is None:
        return
    wanted = described.fields | described.aliases.keys() | READ
    unknown = [name for name in fields.config if name not in wanted | COMMON]
    for name in unknown:
        if near := get_close_matches(name, sorted(wanted), n=1, cutoff=NEAR):
            problem = f"is {shown(fields.config[name])}, but a {family} has no such field"
            raise fields.fail(name, problem, f"did you mean {near[0]}?")
    if unknown:
        several = len(unknown) > 1
        problem = f"{'are no fields' if several else 'is no field'} of a {family} that trainplan knows"
        fix = f"{'they are' if several else 'it is'} left out of account"
        caution(fields.where, ", ".join(fields.part + name for name in unknown), problem, fix)


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
