"""What a `config.json` says beside its family's fields: which part of it is a language model, and in which dtype it trains."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainplan.profiling.base.dtypes import ALIASES, DTYPE_BYTES
from trainplan.profiling.base.errors import InputError, caution, named, shown
from trainplan.profiling.models.families import BUILT_IN, family_names
from trainplan.profiling.models.families.class_defaults import class_sizes
from trainplan.profiling.models.families.classes import warn_of_own_classes, with_family

TEXTS = ("text_config", "llm_config", "language_config")  # of transformers, InternVL and DeepSeek-VL
FLAT = {"qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text"}  # whose older files have the language model's fields
SIZED = {"hidden_size", "n_embd", "d_model"}
OTHER_INPUT = re.compile(r"^(vision|visual|audio|image|video|speech)(_\w+)?$")
OF_IMAGES = re.compile(r"^(vision|image|video)_")
DTYPE_FIELDS = ("dtype", "torch_dtype")  # as transformers 5 writes it, and as it did before
UNSAID = (None, "auto")
HEADS = {"bert": "MaskedLM", "t5": "ConditionalGeneration"}  # of families that are no causal language models
LANGUAGE = re.compile(r"CausalLM|LMHead|ConditionalGeneration|MaskedLM|PreTraining|Seq2Seq")
DRAFT = r"Eagle|Medusa|Speculator"
OTHERS = {  # what ends in other heads, by words of the names of their classes
    r"Reward|ForScore": "a reward model",
    r"Classif|MultipleChoice|NextSentence": "a classifier",
    r"QuestionAnswering": "a model that marks answers in texts",
    r"Embedding|Retrieval|Rerank": "a model of embeddings",
    r"DoubleHeads": "a model of two heads",
    DRAFT: "a draft, from which another model decodes",
}
BARE = re.compile(r"(?<!ChatGLM)(Model|Encoder|Decoder)$")  # ChatGLM's files call the class with the head so


def language_part(config: Mapping[str, Any], where: str) -> tuple[Mapping[str, Any], str]:
    """The configuration that a chain is built from, and where in its file it lies: `text_config.` of multimodal files, else "".

    A part of a multimodal file is written without the sizes that are as of its class in transformers; whether its head is tied,
    its file may say instead. Warns of sizes so taken, and that the other parts are not planned.
    """
    part, place = _language_part(config)
    if part is config:
        return with_family(part, where, place, BUILT_IN), place
    sizes, part = class_sizes(str(part.get("model_type"))), with_family(part, where, place, BUILT_IN)
    text = place.removesuffix(".")
    others = ", ".join(
        name for name in config if name != text and (name.endswith("_config") or _of_other_input(name, config[name]))
    )
    problem = f"is the language model of a {shown(config.get('model_type'))}"
    caution(where, text or "this", problem, f"it is planned alone, without {others or 'what else there is'}")
    if not place:
        return part, place
    tied = [each["tie_word_embeddings"] for each in (part, config) if isinstance(each.get("tie_word_embeddings"), bool)]
    if tied:
        part = {**part, "tie_word_embeddings": any(tied)}
    if missing := [name for name in sizes if name not in part]:
        problem = "are left out" if len(missing) > 1 else "is left out"
        taken = ", ".join(f"{name} = {sizes[name]}" for name in missing)
        fix = f"taken as of transformers' class of a {part['model_type']}: {taken}"
        caution(where, ", ".join(place + name for name in missing), problem, fix)
    return {**{name: sizes[name] for name in missing}, **part}, place


def _language_part(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    kind = config.get("model_type")
    name = next((each for each in TEXTS if isinstance(config.get(each), Mapping)), None)
    if name is not None and (kind not in family_names() or not SIZED & set(config)):
        return config[name], f"{name}."
    if isinstance(kind, str) and kind in FLAT:
        own = {each: value for each, value in config.items() if not OF_IMAGES.search(each)}
        return {**own, "model_type": FLAT[kind]}, ""
    if isinstance(kind, str) and kind in BUILT_IN and any(_of_other_input(each, value) for each, value in config.items()):
        return {each: value for each, value in config.items() if not _of_other_input(each, value)}, ""
    return config, ""


def _of_other_input(name: str, value: Any) -> bool:
    """Whether a field describes a part of a multimodal model that is not its language model."""
    return bool(OTHER_INPUT.search(name)) and isinstance(value, Mapping) and bool(value)


def refuse_other_heads(config: Mapping[str, Any], part: Mapping[str, Any], where: str) -> None:
    """Refuse a model of text whose `architectures` say that it ends in something else than the head of a language model.

    part: of the configuration, the language model. Files of models that come with code of their own may call the class that
    has the head by any name, which `auto_map` says. Raises InputError.
    """
    warn_of_own_classes(part, where, BUILT_IN)
    family, made = part.get("model_type"), config.get("architectures")
    if family not in BUILT_IN or "image_size" in part or not isinstance(made, list) or not made:
        return
    names = [str(each) for each in made]
    if any(map(LANGUAGE.search, names)) and not re.search(DRAFT, names[0]):
        return
    what = next((what for words, what in OTHERS.items() if re.search(words, names[0])), None)
    own = part is config and not any(LANGUAGE.search(str(each)) for each in (config.get("auto_map") or {}))
    if what is None and own and BARE.search(names[0]):
        what = "a model without a head"
    if what is not None:
        fix = f"give a config with ...For{HEADS.get(str(family), 'CausalLM')}"
        raise InputError(where, "architectures", f"is {shown(made)}: {what}", fix)


def trained_dtype(config: Any, where: str, half: str) -> str:
    """The dtype in which a model of this file is trained: half precision, beside which the optimizer has float32 masters.

    half: the one taken where the file says none; and where its weights are stored in float32, which says nothing of how they
    were trained, and is warned of. Raises InputError.
    """
    if not isinstance(config, Mapping):
        return half
    part, place = _language_part(config)
    stated = stated_dtype(part, config, where=where)
    if stated == "float32" and half != "float32":
        name = next(name for each in (part, config) for name in DTYPE_FIELDS if each.get(name) not in UNSAID)
        fix = f"it is planned in {half} with float32 masters, as models are trained; give --dtype float32 for a run in float32"
        caution(where, f"{place}{name}" if name in part else name, "is 'float32', in which its weights are stored", fix)
        return half
    left = [name for each in (part, config) for name in DTYPE_FIELDS if each.get(name) == "auto"]
    if stated is None and left:
        caution(where, left[0], "is 'auto', which is that of the weights", f"{half} is taken; give --dtype for another one")
    return computed_dtype(stated, where, half, ("bfloat16", "float16"))


def shipped_dtype(config: Mapping[str, Any], where: str, half: str) -> str:
    """The dtype in which a shipped model is trained: that which its configuration says, which may be a paper's, else `half`."""
    return computed_dtype(stated_dtype(config, where=where), where, half)


def computed_dtype(stated: str | None, where: str, half: str, stored: Sequence[str] = ("bfloat16",)) -> str:
    """The dtype that a model is said to have, or `half` where none is; where devices have no such products, or none that are
    faster than float32's, `half`, too, with a warning. stored: dtypes that say in what weights are stored, not a run's."""
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
    """The dtype that the first of these configurations that has one says; None where none does. Raises InputError."""
    for config in configs:
        stated = {name: _dtype(where, name, value) for name in DTYPE_FIELDS if (value := config.get(name)) not in UNSAID}
        if len(set(stated.values())) > 1:
            fix = f"give {shown(stated['dtype'])}, as dtype has it, or leave it out"
            raise InputError(where, "torch_dtype", f"is {shown(config['torch_dtype'])}", fix)
        if stated:
            return next(iter(stated.values()))
    return None


def _dtype(where: str, name: str, value: Any) -> str:
    dtype = named(value, DTYPE_BYTES, ALIASES)
    if dtype is None:
        raise InputError(where, name, f"is {shown(value)}", f"give --dtype of {', '.join(DTYPE_BYTES)}")
    return dtype
