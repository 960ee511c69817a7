"""The parts of a Hugging Face `config.json` that all families share: which part is a language model, and the training dtype."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainplan.profiling.base.dtypes import ALIASES, DTYPE_BYTES
from trainplan.profiling.base.errors import InputError, caution, named, shown
from trainplan.profiling.models.families import READABLE, family_names
from trainplan.profiling.models.families.class_defaults import class_sizes
from trainplan.profiling.models.families.classes import warn_of_own_classes, with_family

TEXTS = ("text_config", "llm_config", "language_config")  # of transformers, InternVL and DeepSeek-VL
# Multimodal families whose older files have the language model's fields at the top level, and the family of these fields.
FLAT = {"qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text"}
SIZE_FIELDS = {"hidden_size", "n_embd", "d_model"}
OTHER_INPUT = re.compile(r"^(vision|visual|audio|image|video|speech)(_\w+)?$")
OF_IMAGES = re.compile(r"^(vision|image|video)_")
DTYPE_FIELDS = ("dtype", "torch_dtype")  # as transformers 5 writes it, and as it did before
UNSTATED = (None, "auto")  # values of these fields that name no dtype
HEADS = {"bert": "MaskedLM", "t5": "ConditionalGeneration"}  # class names' endings of models that are not causal
LANGUAGE = re.compile(r"CausalLM|LMHead|ConditionalGeneration|MaskedLM|PreTraining|Seq2Seq")
DRAFT = r"Eagle|Medusa|Speculator"
OTHER_HEADS = {  # words in the names of classes with other heads, and what such a model is
    r"Reward|ForScore": "a reward model",
    r"Classif|MultipleChoice|NextSentence": "a classifier",
    r"QuestionAnswering": "a model that marks answers in texts",
    r"Embedding|Retrieval|Rerank": "a model of embeddings",
    r"DoubleHeads": "a model of two heads",
    DRAFT: "a draft, from which another model decodes",
}
BARE = re.compile(r"(?<!ChatGLM)(Model|Encoder|Decoder)$")  # ChatGLM's files call the class with the head so


def language_part(config: Mapping[str, Any], where: str) -> tuple[Mapping[str, Any], str]:
    """Find the language model in a Hugging Face configuration. Returns its fields, and the prefix of their names in the file.

    config: all fields of the file. The prefix is "text_config." or the like for multimodal files, else "". Fields that a
    multimodal file omits get the defaults of the model's class in transformers; `tie_word_embeddings` may also be at the top
    level. Warns of such defaults, and that the other parts of the model, such as its vision encoder, are not planned. where:
    name of the file, for warnings.
    """
    part, prefix = _language_part(config)
    if part is config:
        return with_family(part, where, prefix, READABLE), prefix
    sizes, part = class_sizes(str(part.get("model_type"))), with_family(part, where, prefix, READABLE)
    text = prefix.removesuffix(".")
    others = ", ".join(
        name for name in config if name != text and (name.endswith("_config") or _of_other_input(name, config[name]))
    )
    problem = f"is the language model of a {shown(config.get('model_type'))}"
    caution(where, text or "this", problem, f"it is planned alone, without {others or 'what else there is'}")
    if not prefix:
        return part, prefix
    tied = [fields.get("tie_word_embeddings") for fields in (part, config)]
    tied = [value for value in tied if isinstance(value, bool)]
    if tied:
        part = {**part, "tie_word_embeddings": any(tied)}
    if missing := [name for name in sizes if name not in part]:
        problem = "are left out" if len(missing) > 1 else "is left out"
        taken = ", ".join(f"{name} = {sizes[name]}" for name in missing)
        fix = f"taken as of transformers' class of a {part['model_type']}: {taken}"
        caution(where, ", ".join(prefix + name for name in missing), problem, fix)
    return {**{name: sizes[name] for name in missing}, **part}, prefix


def _language_part(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Find the fields of the language model in a configuration, unchanged, and the prefix of their names in the file.

    The fields are one of three things: an object of their own in the file, with a prefix such as "text_config."; the file's
    fields without those that describe another part, such as `vision_config`, with the prefix ""; or the whole file, with "".
    """
    kind = config.get("model_type")
    name = next((name for name in TEXTS if isinstance(config.get(name), Mapping)), None)
    if name is not None and (kind not in family_names() or not SIZE_FIELDS & set(config)):
        return config[name], f"{name}."
    if isinstance(kind, str) and kind in FLAT:
        own = {name: value for name, value in config.items() if not OF_IMAGES.search(name)}
        return {**own, "model_type": FLAT[kind]}, ""
    if isinstance(kind, str) and kind in READABLE and any(_of_other_input(*item) for item in config.items()):
        return {name: value for name, value in config.items() if not _of_other_input(name, value)}, ""
    return config, ""


def _of_other_input(name: str, value: Any) -> bool:
    """Whether a field of a multimodal model's file describes a part for inputs other than text, such as `vision_config`.

    name: the field's name. value: its value; only a non-empty object describes a part.
    """
    return bool(OTHER_INPUT.search(name)) and isinstance(value, Mapping) and bool(value)


def refuse_other_heads(config: Mapping[str, Any], part: Mapping[str, Any], where: str) -> None:
    """Raise InputError for a text model whose `architectures` name a class with another head than a language model's, such as
    a classifier.

    config: all fields of the configuration. part: the fields of the language model in it. Files of models that come with
    their own code may give any name to the class with the head; their field `auto_map` then states which class it is. where:
    name of the file, for errors.
    """
    warn_of_own_classes(part, where, READABLE)
    family, architectures = part.get("model_type"), config.get("architectures")
    if family not in READABLE or "image_size" in part or not isinstance(architectures, list) or not architectures:
        return
    names = [str(name) for name in architectures]
    if any(map(LANGUAGE.search, names)) and not re.search(DRAFT, names[0]):
        return
    other = next((other for words, other in OTHER_HEADS.items() if re.search(words, names[0])), None)
    own = part is config and not any(LANGUAGE.search(str(name)) for name in (config.get("auto_map") or {}))
    if other is None and own and BARE.search(names[0]):
        other = "a model without a head"
    if other is not None:
        fix = f"give a config with ...For{HEADS.get(str(family), 'CausalLM')}"
        raise InputError(where, "architectures", f"is {shown(architectures)}: {other}", fix)


def trained_dtype(config: Any, where: str, half: str) -> str:
    """Name of the dtype in which a user's model is trained: the dtype that its configuration states, or `half` if it states
    none. Also `half`, with a warning, if the file states float32, because weights are often stored in float32 whatever they
    are trained in.

    config: the fields of the configuration. half: the narrowest dtype in which the devices compute fast, such as "bfloat16".
    where: name of the file, for errors. Raises InputError for an unknown dtype, or for two dtypes that differ.
    """
    if not isinstance(config, Mapping):
        return half
    part, prefix = _language_part(config)
    stated = stated_dtype(part, config, where=where)
    if stated == "float32" and half != "float32":
        name = next(name for fields in (part, config) for name in DTYPE_FIELDS if fields.get(name) not in UNSTATED)
        fix = f"it is planned in {half} with float32 masters, as models are trained; give --dtype float32 for a run in float32"
        caution(where, f"{prefix}{name}" if name in part else name, "is 'float32', in which its weights are stored", fix)
        return half
    automatic = [name for fields in (part, config) for name in DTYPE_FIELDS if fields.get(name) == "auto"]
    if stated is None and automatic:
        caution(
            where, automatic[0], "is 'auto', which is that of the weights", f"{half} is taken; give --dtype for another one"
        )
    return computed_dtype(stated, where, half, ("bfloat16", "float16"))


def shipped_dtype(config: Mapping[str, Any], where: str, half: str) -> str:
    """Name of the dtype in which a model that ships with trainplan is trained: the one that its configuration states, else
    `half`.

    half: the narrowest dtype in which the devices compute fast, such as "bfloat16". where: the model's name, for errors. Raises
    InputError for an unknown dtype.
    """
    return computed_dtype(stated_dtype(config, where=where), where, half)


def computed_dtype(stated: str | None, where: str, half: str, stored: Sequence[str] = ("bfloat16",)) -> str:
    """Name of the dtype in which a model is computed: `stated`, or `half` if that is None or the devices do not compute fast
    in it.

    half: the narrowest dtype in which the devices compute fast, such as "bfloat16". stored: dtypes that a configuration may
    state only because its weights are stored in them. A stated dtype in `stored` is replaced by `half`, with a warning, if
    the devices compute in float16 and the stated dtype is another, or if they compute in float32 and the stated dtype is no
    faster. where: name of the file, for the warning.
    """
    if stated in stored and half == "float16" != stated:
        problem = f"is {stated!r}, in which the devices cannot compute"
        fix = "it is planned in float16 with float32 masters; give --dtype for another one"
    elif stated in stored and half == "float32" != stated:
        problem = f"is {stated!r}, which is no faster on these devices"
        fix = f"it is planned in float32; give --dtype {stated} for a run in that"
    else:
        return stated or half
    caution(where, "torch_dtype", problem, fix)
    return half


def stated_dtype(*configs: Mapping[str, Any], where: str) -> str | None:
    """Name of the dtype that the first of several configurations (dicts of fields) with a dtype states; None if none does.

    where: name of the file, for errors. Raises InputError if one configuration states two dtypes, or an unknown one.
    """
    for config in configs:
        stated = {name: _dtype(where, name, value) for name in DTYPE_FIELDS if (value := config.get(name)) not in UNSTATED}
        if len(set(stated.values())) > 1:
            fix = f"give {shown(stated['dtype'])}, as dtype has it, or leave it out"
            raise InputError(where, "torch_dtype", f"is {shown(config['torch_dtype'])}", fix)
        if stated:
            return next(iter(stated.values()))
    return None


def _dtype(where: str, name: str, value: Any) -> str:
    """Name of the dtype that the value of a configuration's field denotes, such as "bfloat16" for "torch.bfloat16".

    where: name of the file. name: the field's name, for errors. Raises InputError for an unknown dtype.
    """
    dtype = named(value, DTYPE_BYTES, ALIASES)
    if dtype is None:
        raise InputError(where, name, f"is {shown(value)}", f"give --dtype of {', '.join(DTYPE_BYTES)}")
    return dtype
