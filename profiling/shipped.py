"""Models, clusters and kinds of devices that come with the package, found by name.

Models of which plans are made are apart from mixtures of experts, which are read and shown alone: the kinds "models" and
"mixtures"."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import PurePath
from typing import Any, Literal

import yaml
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, named, one_of

SUFFIXES = (".yaml", ".json")
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser is tens of times faster
Shipped = Literal["models", "mixtures", "clusters", "devices"]
SIZES: dict[Shipped, str] = {"models": "sizes.yaml", "mixtures": "mixture_sizes.yaml"}
HUB_ID = r"[\w.-]+/([\w.-]+)"
# Beginnings and endings of model names that do not concern their sizes, such as months of publication (2407, 1124).
_TRAINED = re.compile(
    r"^meta-|-(hf|chat|instruct|q?lora|sft|dpo|it|base|pt|code|coder|math|deduped|(un)?cased"
    r"|v0\.[^23]|v01|v1\.0|gqa|mha|4k|8k|16k|32k|128k|200k|1m|tokens|bf16|fp16|thinking|reasoning(-plus)?"
    r"|(patch1[46]|patch4-window7)-224(-in2?1k)?|(intermediate-)?step-\d+k(-3t)?|2\d(0[1-9]|1[0-2])|(0[1-9]|1[0-2])2\d)(?=-|$)"
)
# Kinds of models that are not planned, recognised by their names where no configuration is given.
_OTHERS = {
    r"mamba|rwkv|zamba|recurrentgemma|falcon-?h1|nemotron-?h(?![a-z])|(^|-)lfm2": (
        "a model with state-space layers, which is not planned"
    ),
    r"(^|[-/.\d])(vl|vlm|vision|omni|audio)(?![a-z])|llava|pixtral|paligemma|internvl|idefics|(^|/)fuyu": (
        "a model of several kinds of input, whose language model alone is planned, by its config.json"
    ),
}
# Publishers of the models that are known by name; models of others may have other sizes by the same name.
_PUBLISHERS = """
    meta-llama facebook google google-bert google-t5 openai openai-community facebookai mistralai qwen microsoft eleutherai
    bigscience tiiuae mosaicml stabilityai bigcode ibm-granite internlm baichuan-inc 01-ai deepseek-ai allenai huggingfacetb
    thudm zai-org nvidia lmsys openlm-research codellama tinyllama huggyllama nousresearch unsloth databricks togethercomputer
    cohereforai coherelabs bsc-lt openbmb swiss-ai lgai-exaone huggingfaceh4 distilbert decapoda-research moonshotai minimaxai
    baidu tencent rednote-hilab ai21labs
    """
PUBLISHERS = frozenset(_PUBLISHERS.split())
# Marks of an unlisted mixture of experts in its name (8x7b, a3b, moe), and endings of second names of the same model.
_MIXED = re.compile(r"(?<![a-z0-9])(\d+x\d+(\.\d+)?b|a\d+(\.\d+)?[bm]|moe)(?![a-z0-9])")
_SAME = re.compile(r"(original|fp8|fp4|nvfp4|mxfp4|int4|int8|bf16|awq|gptq|exp|preview|thinking|think|zero|terminus|0905)+$")


def _files(kind: Shipped) -> dict[str, Traversable]:
    """The files of one kind, such as models or clusters, that are shipped with the package, by name without suffix."""
    files = (resources.files("trainplan.data") / kind).iterdir()
    return {PurePath(file.name).stem: file for file in files if file.name.endswith(SUFFIXES)}


def shipped(kind: Shipped) -> list[str]:
    """Names of the models, mixtures, clusters or devices that are shipped with the package, sorted."""
    return sorted(_files(kind))


def folded(name: str) -> str:
    """Reduce a model's name to a form in which all spellings of it are equal: lower case, without separators, publisher, and
    words about training. "meta-llama/Llama-3.1-8B-Instruct" and "llama3.1-8b" give the same text.
    """
    plain = re.sub(r"(?<=\d)_(?=\d(?:[-_\s]|$))", ".", re.sub(r"^.*/(?=.*[a-z])", "", name.lower()))
    plain = re.sub(r"[\s_()]+", "-", plain.strip()).strip("-")
    return re.sub(r"[^a-z0-9.]+", "", _TRAINED.sub("", plain))


@cache
def _entries(kind: Shipped = "models") -> dict[str, dict[str, Any]]:
    """Read sizes.yaml, or mixture_sizes.yaml: for each well-known model that is not shipped as a file of its own, the name of
    the model that it is based on, and the configuration fields in which it differs from that model.

    kind: models or mixtures.
    """
    path = resources.files("trainplan.data") / SIZES[kind]
    content: dict[str, dict[str, Any]] = yaml.load(path.read_text(encoding="utf-8"), LOADER)
    return content


@cache
def _sizes(kind: Shipped = "models") -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Every model that is known by name, by its folded name (lower case, without separators and publisher): the name itself,
    the name of the shipped configuration that it is based on, and the fields in which it differs from that configuration.

    kind: models or mixtures.
    """
    content = _entries(kind)
    known: dict[str, tuple[str, str, dict[str, Any]]] = {}
    for name in content:
        base = name
        fields: dict[str, Any] = {}
        while base in content:
            fields = {**content[base], **fields}
            base = fields.pop("base")
        known[folded(name)] = name, base, fields
    return known | {folded(name): (name, name, {}) for name in shipped(kind)}


def sized(name: str, kind: Shipped = "models") -> tuple[str, str, dict[str, Any]] | None:
    """Look up a well-known model by its name in any spelling. Returns its usual name, the name of the shipped configuration
    that it is based on, and the fields in which it differs from that configuration; None if the name is unknown.

    kind: models or mixtures, whose names are also known by their other endings, such as -thinking.
    """
    known = _sizes(kind)
    return known.get(folded(name)) or (known.get(_SAME.sub("", folded(name))) if kind == "mixtures" else None)


def mixture(name: str) -> str | None:
    """A phrase such as "a mixture of experts (8, 2 a token)" if the name is that of a mixture of experts; None if it is not,
    or if it is the name of a known dense model.
    """
    experts = _mixtures().get(folded(name)) or _mixtures().get(_SAME.sub("", folded(name)))
    if experts is None and (sized(name) is not None or not _MIXED.search(name.lower())):
        return None
    return mixture_of(*(experts or ()))


def mixture_of(experts: int = 0, chosen: int = 0) -> str:
    """Format a phrase such as "a mixture of experts (8, 2 a token)". experts: number of experts. chosen: number of experts
    that process a token. A number that is 0 is omitted.
    """
    counts = f" ({experts}{f', {chosen} a token' if chosen else ''})" if experts else ""
    return f"a mixture of experts{counts}"


@cache
def _mixtures() -> dict[str, tuple[int, int]]:
    """For each well-known mixture of experts, by its folded name (lower case, without separators and publisher): the number of
    experts, and the number of experts that process a token.
    """
    content = yaml.load((resources.files("trainplan.data") / "mixtures.yaml").read_text(encoding="utf-8"), LOADER)
    return {folded(name): (experts, chosen) for name, (experts, chosen) in content.items()}


def known_configs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every model that is known by name, as its name and its configuration: the fields of a config.json."""
    bases = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in _files("models").items()}
    yield from bases.items()
    for name, base, fields in _sizes().values():
        yield name, {**bases[base], **fields}


def sized_names(kind: Shipped = "models") -> list[str]:
    """Names of the well-known models that are described by their differences from a shipped one, sorted; aliases of a listed
    model are omitted. kind: models or mixtures.
    """
    return sorted(name for name, entry in _entries(kind).items() if len(entry) > 1)


def locate(kind: Shipped, name: str, option: str, otherwise: str) -> Any:
    """Find the file that a user means by `name`: the shipped file of that name, or else the user's own file, whose path is
    returned. Raises InputError if `name` is neither.

    kind: models, clusters or devices. option: the command's option that the name was given to, for errors. otherwise: a
    phrase for the file that may be given instead, for errors.
    """
    files, listing = _files(kind), f"trainplan {kind.removesuffix('s')} list"
    if name in files:
        return files[name]
    if os.path.exists(name):
        return name
    if chosen := named(name, files):
        return files[chosen]
    if name.lower().endswith((*SUFFIXES, ".yml")) or name.startswith((".", "/", "~")):
        fix = f"give the path of {otherwise}, or a name from `{listing}`"
        raise InputError(COMMAND_LINE, option, f"is {name!r}: no such file", fix)
    if kind == "models" and (what := mixture(name)) is not None:
        fix = (
            f"give a dense model; `trainplan model show {name}` has its sizes"
            if sized(name, "mixtures")
            else "give a dense model"
        )
        raise InputError(COMMAND_LINE, option, f"is {name!r}: {what} is not planned yet", fix)
    other = next((what for words, what in _OTHERS.items() if re.search(words, name.lower())), None)
    if kind == "models" and other is not None:
        raise InputError(COMMAND_LINE, option, f"is {name!r}: {other}", "give a dense decoder's name or config.json")
    if kind == "models" and (hub := re.fullmatch(HUB_ID, name)):
        fix = f"download its config.json: `hf download {name} config.json --local-dir {hub[1]}`, and give {hub[1]}/config.json"
        raise InputError(COMMAND_LINE, option, f"is {name!r}, an id of the Hugging Face hub", fix)
    if kind == "clusters" and (device := named(name, _files("devices"))):
        fix = f"say how many in a node, and how many nodes: {device}:8 or {device}:8x16; `plan --devices any` finds how many"
        raise InputError(COMMAND_LINE, option, f"is {name!r}, a kind of device", fix)
    names = sorted([*files, *(sized_names() if kind == "models" else ())])
    raise InputError(COMMAND_LINE, option, f"is {name!r}", f"{one_of(name, names, listing)}; or give {otherwise}")
