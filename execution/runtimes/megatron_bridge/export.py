"""Export of plans to Megatron-Bridge: the sections of its ConfigContainer, a training script that reads them, and files that
start it.

The fields correspond to arguments of Megatron-LM and are made from these (see `megatron.export`) by the tables of
`megatron_bridge.fields`; what is refused or left out is the same. In addition, cuts within a layer and BERT are refused, which
GPTModelProvider does not have. A model with learned positions gets as many as the sequence has tokens.
"""

from __future__ import annotations

from typing import Any

import yaml
from trainplan.execution.runtimes.export_common import Export, refuse_half_cut
from trainplan.execution.runtimes.export_sharded import script
from trainplan.execution.runtimes.launch_scripts import here, page, slurm, torchrun
from trainplan.execution.runtimes.megatron import export as megatron_export
from trainplan.execution.runtimes.megatron_bridge.capabilities import CAPABILITIES
from trainplan.execution.runtimes.megatron_bridge.fields import ACTIVATIONS, CONTRARY, FIELDS
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.sublayers import TokenEmbedding

RUNTIME, VERSION = "Megatron-Bridge", "Megatron-Bridge 0.3.1 with megatron-core 0.16.1 (2026)"
FILE = "bridge.yaml"
OPTIMIZER = {"optimizer": "adam", "lr": 3e-4, "min_lr": 3e-5, "weight_decay": 0.1, "adam_beta1": 0.9, "adam_beta2": 0.95}
DECIDES = (
    "gradients are reduced during the backward pass, and parameters gathered ahead (ddp.overlap_*): hidden where plans overlap",
    megatron_export.DECIDES[1],
    "gradients are kept in one buffer",
    "the vocabulary is padded to a multiple of the tensor-parallel degree, as model.vocab_size says",
    "the optimizer's numbers are in bridge.yaml: yours to change",
)


def export(plan: Plan, where: str) -> Export:
    """Exports a plan as the files bridge.yaml, train.py, launch.sh, slurm.sh and README.md. where: the plan's file, for errors.
    Raises InputError if Megatron-Bridge cannot run the plan."""
    arguments = megatron_export.arguments_of(plan, where, RUNTIME, CAPABILITIES)
    refuse_half_cut(plan, RUNTIME, "export it --to megatron", where)
    model, left_out = plan.planned_model(), list(arguments.left_out)
    sections = sections_of(
        model, argument_values([*arguments.model, *arguments.parallel, *arguments.precision, *arguments.optimizer]), plan.chunks
    )
    embedding = next(part for part in model.sublayers.values() if isinstance(part, TokenEmbedding))
    if (positions := embedding.positions) not in (0, model.tokens):
        left_out.append(f"learned positions: {model.tokens} of them, as tokens (model.seq_length), not {positions}")
    files = {
        FILE: f"# For {VERSION}.\n{yaml.safe_dump(sections, sort_keys=False)}",
        "train.py": script("trainplan.execution.runtimes.megatron_bridge.script"),
        "launch.sh": torchrun(plan.world, f'{here("train.py")} "$@"', megatron_export.connections(plan)),
        "slurm.sh": slurm(plan.world),
        "README.md": page(
            plan,
            RUNTIME,
            VERSION,
            arguments.prediction,
            left_out,
            (*megatron_export.decides(plan, DECIDES), *arguments.gathered),
        ),
    }
    settings = {"config": sections, "peak_bytes": arguments.prediction.peak_bytes}
    return Export("megatron-bridge", settings, files, tuple(left_out), arguments.plan)


def argument_values(arguments: list[str]) -> dict[str, Any]:
    """The values of Megatron-LM's arguments by name: a number, a text, a list of them, or True for an argument without a
    value: ["--bf16", "--seq-length", "4096"] -> {"--bf16": True, "--seq-length": 4096}. arguments: the words of a command."""
    values: dict[str, Any] = {}
    name = ""
    for word in arguments:
        if word.startswith("--"):
            name = word
            values[name] = []
        else:
            values[name].append(word)
    for name, words in values.items():
        parsed = [int(word) for word in words[0].split(",")] if name == "--window-size" else [_parsed(word) for word in words]
        several = name in ("--recompute-modules", "--window-size")
        values[name] = parsed if several else parsed[0] if parsed else True
    return values


def _parsed(word: str) -> int | float | str:
    """A word of a command as a number, if it is one ("8" -> 8, "1e-5" -> 1e-05); otherwise the word itself."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def sections_of(model: Model, values: dict[str, Any], chunks: int) -> dict[str, dict[str, Any]]:
    """The sections of Megatron-Bridge's ConfigContainer, each as a dict from field to value, by name. values: the equivalent
    arguments of Megatron-LM by name. chunks: pipeline stages per rank."""
    sections: dict[str, dict[str, Any]] = {name: {} for name in ("model", "train", "ddp", "optimizer", "mixed_precision")}
    for name, value in values.items():
        for field in FIELDS.get(name, ()):
            section, _, key = field.partition(".")
            sections.setdefault(section, {})[key] = value
    for name, field in CONTRARY.items():
        section, _, key = field.partition(".")
        sections[section][key] = name not in values
    described, tp = sections["model"], values["--tensor-model-parallel-size"]
    activation = next((word for name, word in ACTIVATIONS.items() if name in values), "gelu")
    described |= {"activation_func": activation, "vocab_size": -(-model.vocabulary // tp) * tp}
    # Megatron-LM's scripts fuse these by default; GPTModelProvider fuses them on request.
    fused = activation == "silu" or (activation == "gelu" and described["add_bias_linear"])
    described |= {"bias_activation_fusion": fused, "bias_dropout_fusion": True}
    described |= {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"}  # as in its recipes of Llama 3
    described["apply_rope_fusion"] = described["position_embedding_type"] == "rope"
    if chunks > 1:
        described["virtual_pipeline_model_parallel_size"] = chunks
    half = model.dtype in ("bfloat16", "float16")
    precision = sections["mixed_precision"]
    precision |= {"params_dtype": model.dtype, "pipeline_dtype": model.dtype, "autocast_enabled": False}
    precision["grad_reduce_in_fp32"] = "--accumulate-allreduce-grads-in-fp32" in values
    if not half:
        del sections["mixed_precision"]
    if "--optimizer" in values and "--use-distributed-optimizer" not in values:  # on by default
        for name in ("ddp", "optimizer"):
            sections[name]["use_distributed_optimizer"] = False
    sections["optimizer"] |= {name: value for name, value in OPTIMIZER.items() if name not in sections["optimizer"]}
    sections["tokenizer"] = {"tokenizer_type": "NullTokenizer", "vocab_size": model.vocabulary - 1}  # it adds a token
    return sections
