"""Plans for torchtitan: settings of its pipeline, in the words of both of its generations.

torchtitan.toml has the sections and keys of `torchtitan/config/job_config.py` (2025). torchtitan_config.py sets the fields of
`torchtitan/config/parallelism.py` and of the training configuration (2026, where configurations are Python): batches are
counted in tokens there, micro-batches are given by number, and the head is `lm_head`, not `output`. The model itself is a
flavour of Llama 3 or Qwen3, named where one has its sizes, and the user's to choose elsewhere.

torchtitan keeps whole layers in a stage (`layers.N`), so cuts within layers are refused, as are tied heads, units with
different strategies, and uneven shares. Left out: sliced forward passes, recomputation of single units, the order of levels,
placement. Where units are replicated (dp alone) their parameters are sharded between steps and gathered once a step: its DDP
does not go with pipelines in all versions, and what is computed is the same. Where they are sharded (sdp), torch's stages
reduce gradients and let go of gathered parameters at the step's last backward pass alone (torch 2.13,
torch/distributed/pipelining/stage.py), which is said.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from trainplan.execution.exports.common import (
    Export,
    as_exported,
    check_pipeline,
    common_strategy,
    fitting_bytes,
    layers_of,
    left_out_of_all,
    left_out_order,
    micro_batch_samples,
    modules_kept,
    recomputation,
    refuse_half_cut,
)
from trainplan.execution.exports.launching import page, slurm, torchrun
from trainplan.execution.exports.torch_pipelining import schedule_csv
from trainplan.formulations.plan import Plan
from trainplan.formulations.strategies import Paradigm
from trainplan.profiling.base.errors import InputError

RUNTIME, FAMILIES = "torchtitan", ("llama", "qwen3")
ABLE = ("master weights", "ZeRO stage 2", "sequence parallelism")
CSV = "schedule.csv"
VERSION = "torchtitan of 2025 (torchtitan.toml) and of 2026 (torchtitan_config.py)"
SHARDS: dict[Paradigm, Paradigm] = {"dp": "sdp"}  # what replicated ranks become
FLAVOURS = {  # of its models, by shipped name
    **{f"llama{version}-{size}".lower(): ("llama3", size) for version in ("3", "3.1") for size in ("8B", "70B", "405B")},
    **{f"qwen3-{size}".lower(): ("qwen3", size) for size in ("8B", "14B", "32B")},
}
DECIDES = (
    "the model is the flavour that [model] names; the tokenizer is yours, as model.hf_assets_path",
    "parameters are gathered ahead and gradients reduced behind the backward pass: faster than predicted",
    "the vocabulary is split over tensor-parallel ranks in the loss, too (loss parallel)",
)
# The field of the modules of each stage has had two names in 2026.
MODULE_FIELDS = ("pipeline_parallel_module_fqns_per_model_part", "module_fqns_per_model_part")


def modules(plan: Plan, head: str) -> list[list[str]]:
    """Names of the modules of each stage; head: that of the output matrix."""
    stages, layer = [], 0
    for stage in layers_of(plan):
        names = ["tok_embeddings"] if "E" in stage else []
        names += [f"layers.{layer + i}" for i in range(stage.count("t"))]
        layer += stage.count("t")
        stages.append(names + (["norm", head] if "L" in stage else []))
    return stages


def export(plan: Plan, where: str) -> Export:
    """Files torchtitan.toml and torchtitan_config.py, and schedule.csv where no schedule of torchtitan's is the plan's.

    Raises InputError.
    """
    check_pipeline(plan, FAMILIES, RUNTIME, where, able=ABLE, one_stage=True)
    refuse_half_cut(plan, RUNTIME, "export it --to torch or megatron", where)
    model, strategy = plan.planned_model(), common_strategy(plan, RUNTIME, where)
    if model.tied:
        fix = "plan a model with an output matrix of its own: torchtitan ties none across stages"
        raise InputError(where, "model.config.tie_word_embeddings", "is true", fix)
    stages, parts, samples = len(plan.stages), plan.batch.micro_batches, micro_batch_samples(plan, strategy.data_degree)
    dp, sdp, tp = (strategy.degree(paradigm) for paradigm in ("dp", "sdp", "tp"))
    left_out = [*left_out_of_all(plan, RUNTIME), *left_out_order(strategy)]
    if dp > 1 and sdp == 1:
        left_out.append(f"{strategy}: parameters are sharded between steps and gathered once a step; less memory, more time")
        dp, sdp = sdp, dp
        strategy = replace(strategy, levels=tuple((SHARDS.get(name, name), degree) for name, degree in strategy.levels), zero=2)
    elif sdp > 1 and stages > 1:
        left_out.append(f"{strategy}: gradients, and parameters once they are gathered for backward, stay whole; more memory")
    if tp > 1 and not strategy.sequence_parallel:
        left_out.append("tokens: tensor-parallel ranks share them here; less memory")
    again, partly = recomputation(plan)
    left_out += partly
    left_out += modules_kept((module for each in plan.strategies() for module in each.modules), RUNTIME)
    precision = plan.precision
    if precision.master is not None and precision.gradients == "model":
        left_out.append("gradients are reduced in float32 here, and so kept; more time and memory")
        precision = precision.changed(gradients="float32")
    laid = replace(strategy, sequence_parallel=tp > 1)
    exported = as_exported(plan, laid, precision=precision)
    peak_bytes = fitting_bytes(plan, exported, where, RUNTIME)
    pipelined = {"pipeline_parallel_schedule": {"1f1b": "1F1B", "gpipe": "GPipe"}[plan.schedule]} if stages > 1 else {}
    common: dict[str, Any] = {
        "pipeline_parallel_degree": stages,
        **pipelined,
        "data_parallel_replicate_degree": dp,
        "data_parallel_shard_degree": sdp,
        "fsdp_reshard_after_forward": "always" if strategy.shares_parameters else "never",
        "tensor_parallel_degree": tp,
    }
    split = {"module_fqns_per_model_part": modules(plan, "output")}
    dtypes = {"mixed_precision_param": model.dtype} if plan.precision.master is not None else {}
    files: dict[str, str] = {}
    if (
        plan.schedule == "1f1b" and parts < stages and stages > 1
    ):  # torch's 1F1B wants as many micro-batches as stages; the order does not
        common["pipeline_parallel_schedule_csv"] = CSV
        files[CSV] = schedule_csv(plan)
    flavour = {"model": dict(zip(("name", "flavor"), FLAVOURS[model.name], strict=True))} if model.name in FLAVOURS else {}
    if not flavour:
        left_out.append(f"the model {model.name}: name a flavour of its sizes in [model]")
    toml: dict[str, dict[str, Any]] = {
        **flavour,
        "training": {
            "local_batch_size": samples * parts if stages > 1 else samples,  # of one stage gradients are accumulated
            "global_batch_size": plan.batch.global_samples,
            "seq_len": model.tokens,
            **dtypes,
        },
        "parallelism": {
            **common,
            **({"pipeline_parallel_microbatch_size": samples, **split} if stages > 1 else {}),
        },
        "activation_checkpoint": {"mode": "full" if again else "none"},
    }
    python = {
        "training": {
            "num_tokens_per_microbatch_per_dp_rank": samples * model.tokens,
            "num_tokens_per_train_step": plan.batch.global_samples * model.tokens,
            "max_context_length": model.tokens,
            **dtypes,
        },
        "parallelism": {**common, **({"num_pp_microbatches": parts} if stages > 1 else {})},
        "modules": modules(plan, "lm_head") if stages > 1 else [],
        "activation_checkpoint": toml["activation_checkpoint"]["mode"],
    }
    command = '-m torchtitan.train --job.config_file torchtitan.toml "$@"'
    files = {
        "torchtitan.toml": _toml(toml),
        "torchtitan_config.py": _script(python),
        **files,
        "launch.sh": torchrun(plan.world, command),
        "slurm.sh": slurm(plan.world),
        "README.md": page(plan, RUNTIME, VERSION, peak_bytes, left_out, DECIDES),
    }
    settings = {"toml": toml, "python": python, "peak_bytes": peak_bytes}
    return Export("torchtitan", settings, files, tuple(left_out), exported)


def _toml(sections: dict[str, dict[str, Any]]) -> str:
    """JSON spells these values as TOML does."""
    return "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items())
        for name, fields in sections.items()
    )


def _script(python: dict[str, Any]) -> str:
    checkpointing = {
        "none": "# No layer is recomputed: config.activation_checkpoint = None",
        "full": "# Every layer is recomputed: set config.activation_checkpoint to the configuration of full checkpointing.",
    }[python["activation_checkpoint"]]
    lines = [
        '"""The pipeline of a plan: `apply(config)` on a Trainer.Config of its model."""',
        "",
        "MODULES = [",
        *(f"    {json.dumps(part)}," for part in python["modules"]),
        "]",
        "",
        "",
        "def apply(config):",
        '    """Set the fields that the plan decides, and return the configuration."""',
    ]
    for section in ("parallelism", "training"):
        lines += [f"    config.{section}.{key} = {json.dumps(value)}" for key, value in python[section].items()]
    new, old = MODULE_FIELDS
    if python["modules"]:
        lines += [
            f'    field = "{new}"',
            f'    setattr(config.parallelism, field if hasattr(config.parallelism, field) else "{old}", MODULES)',
        ]
    lines += [f"    {checkpointing}", "    return config"]
    return "\n".join(lines) + "\n"
