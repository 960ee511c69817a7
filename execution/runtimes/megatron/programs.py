"""Programs and arguments of Megatron-LM and related tools that train something other than a decoder of text, or train it
differently from plans.

An unknown program is taken for a renamed `pretrain_gpt.py`, unless its arguments say otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainplan.execution.launch_files.run_configuration import KeyReader, UndecidedValue
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.models.families.fields import names

# What is trained, by the path of the program; the first that is found.
PROGRAMS = {
    r"vlm|llava|[_-]vl(?=[_./-]|$)|vision[_-]language|omni|multimodal/|mimo/": "a model of images and text",
    r"vision|[_-]vit(?=[_.]|$)|dino|inpaint|[_-]clip(?=[_.]|$)": "a model of images",
    r"bert": "BERT",
    r"(?:^|[/_-])(?:m?t5|ul2)(?=[_.-])": "T5",
    r"retro(?=[_./]|$)": "RETRO, which reads what it retrieves",
    r"[_-]ict(?=[_.]|$)|realm|biencoder|retriever": "a retriever",
    r"prefix_lm": "a model of prefixes, whose attention is not causal",
    r"rlhf|[_-](?:ppo|grpo|rl|dpo|reward)(?=[_.]|$)|reward_model": "a model by reinforcement, by preferences or for rewards",
    r"distill": "a model that learns from another one",
    r"(?:^|/)tasks/": "a task of evaluation or classification",
}
# What trains nothing, by the name of the program.
IDLE = {
    r"generat|inference|[_-]serv(?:er|ing)?(?=[_.]|$)": "generates text",
    r"quanti[sz]|ptq|calibrat": "quantizes a model",
    r"convert|export|checkpoint_util|hf2|2hf": "converts a checkpoint",
    r"preprocess|tokenize|merge_datasets": "prepares data",
    r"(?:^|[/_-])eval(?:uate|uation)?(?=[_.]|$)": "evaluates a model",
}
ANYTHING = ("train.py", "main.py", "run.py", "pretrain.py", "finetune.py")  # names that only folders tell apart
MAMBA = re.compile(r"mamba|hybrid")
SEEN = re.compile(r"--(?:[\w-]+-)?(?:vision|image|images|img|vit|video|audio)(?:-|$)", re.IGNORECASE)
TOKENIZERS = re.compile(r"VL|LLaVA|multimodal", re.IGNORECASE)
PATTERNS = ("--hybrid-layer-pattern", "--hybrid-override-pattern")
# The same by keys that no decoder of text has.
KEYS = {
    "a model of images and text": "--vision-model-type --language-model-type --freeze-ViT --freeze-LM --max-num-tiles",
    "a model of images": "--img-h --img-w --patch-dim --num-classes",
    "an encoder and a decoder": "--decoder-num-layers --decoder-seq-length",
    "RETRO, which reads what it retrieves": "--retro-add-retriever --retro-workdir",
    "a retriever": "--ict-head-size --biencoder-projection-dim --titles-data-path --evidence-data-path",
    "a task of evaluation or classification": "--task",
    "a model that learns from another one": "--kd --mos --load-teacher --export-kd-teacher-load",
    "a hybrid with Mamba or linear attention": "--is-hybrid-model --hybrid-attention-ratio --mamba-state-dim",
}
# How it is trained, by keys, where that changes a step.
OTHERWISE = {
    "--enable-zbh1-pipeline": "runs the zero-bubble schedule ZB-H1",
    "--enable-zero-bubble": "runs a zero-bubble schedule",
    "--curriculum-learning-legacy": "lets sequences grow from step to step",
    "--random-ltd": "drops tokens in layers (random-LTD)",
    "--compression-training": "trains compressed layers",
    "--rl-prompts-per-step": "trains by reinforcement",
    "--perform-rl-step": "trains by reinforcement",
    "--bitfit": "trains biases alone",
}
DENSE = "give the command that trains a dense decoder of text"


def refuse_others(program: str, values: Mapping[str, Any], where: str, undecided: Mapping[str, UndecidedValue]) -> None:
    """Check that a program, by its name and arguments, trains all of a dense decoder of text, the only kind of model whose
    runs are read here. program: the script that is started. values: its arguments by name. where: the file, for errors.
    undecided: arguments whose values nobody has given. Raises InputError if it trains another model, or trains differently."""
    given = KeyReader(where, values, undecided=undecided).get
    parts = program.split("/")
    name = "/".join(parts[-3:]) if parts[-1] in ANYTHING else parts[-1]
    for pattern, what in PROGRAMS.items():
        if re.search(pattern, name, re.IGNORECASE):
            raise InputError(where, "", f"starts {program}, which trains {what}", DENSE)
    layers = next((str(values[key]) for key in PATTERNS if isinstance(values.get(key), str)), None)
    for pattern, what in IDLE.items():
        if re.search(pattern, parts[-1], re.IGNORECASE) and not re.search("train|tune|sft", parts[-1]):
            raise InputError(where, "", f"starts {program}, which trains nothing: it {what}", DENSE)
    if MAMBA.search(name) and (layers is None or set(layers) - set("*-|")):
        raise InputError(where, "", f"starts {program}, which trains Mamba", DENSE)
    for what, keys in KEYS.items():
        for key in names(keys):
            if (value := given(key)) not in (None, False, "0"):
                raise InputError(where, key, f"is {_shown(value)}: what {parts[-1] or 'it'} trains is {what}", DENSE)
    for key, value in values.items():
        if SEEN.match(key) and value not in (None, False):
            raise InputError(where, key, f"is {_shown(value)}: what {parts[-1] or 'it'} trains is a model of images", DENSE)
        if key.endswith("tokenizer-type") and TOKENIZERS.search(str(value)):
            raise InputError(where, key, f"is {_shown(value)}, of a model of images and text", DENSE)
    spec = str(values.get("--spec", ""))
    if "mamba" in spec and layers is None:
        raise InputError(where, "--spec", f"is {shown(spec)}: layers of Mamba", DENSE)
    frozen = {key: "trains a part of the model alone" for key in values if key.startswith("--freeze")}
    for key, what in (OTHERWISE | frozen).items():
        if (value := given(key)) not in (None, False):
            raise InputError(where, key, f"is {_shown(value)}: the run {what}", "leave it out: plans have no such thing")


def _shown(value: Any) -> str:
    """The value of an argument as error messages show it: "given" for an argument without a value (True), otherwise the
    value in quotes."""
    return "given" if value is True else shown(value)
