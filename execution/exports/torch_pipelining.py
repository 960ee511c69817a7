"""Plans for torch.distributed.pipelining: modules of each stage, split points, the schedule, and a script that runs them.

schedule.csv is what `_PipelineScheduleRuntime._load_csv(file, format="compute_only")` reads (torch 2.13,
torch/distributed/pipelining/schedules.py): one row a rank, `<stage>F<micro-batch>` and `<stage>B<micro-batch>` in order.
split_spec in stages.json is the argument of `torch.distributed.pipelining.pipeline`, where every point is a
`SplitPoint.BEGINNING`. All points lie on the residual stream: within a layer, and between BERT's sub-layers, before the norm
that the next sub-layer begins with. Tracing has limits that a plan cannot lift: the model's `use_cache` must be off, a tied
head's gradient is not summed, and transformers 5's Llama is not traced. The script therefore builds its stages by hand.

Refused: tensor parallelism, which torch's stages leave to the model, and uneven shares. Left out: sharded parameters (sdp),
sliced forward passes, placement, unfused attention. Everything else of a plan of GPT-2, BERT, Llama or
a family like it is in it.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from trainplan.execution.exports.common import Export, check_pipeline, left_out_of_all, left_out_precision, micro_batch_samples
from trainplan.formulations.plan import Plan
from trainplan.formulations.step.schedules import orders
from trainplan.profiling.base.errors import InputError

RUNTIME = "torch.distributed.pipelining"
# By family and kind of unit: its modules in the Hugging Face model, the first one where the unit begins. {i}: the block's
# number; {before}: where the norm is that the unit begins with.
MODULES: dict[str, dict[str, tuple[str, ...]]] = {
    "gpt2": {
        "embedding": ("transformer.wte", "transformer.wpe", "transformer.drop"),
        "attention": ("transformer.h.{i}.ln_1", "transformer.h.{i}.attn"),
        "ffn": ("transformer.h.{i}.ln_2", "transformer.h.{i}.mlp"),
        "head": ("transformer.ln_f", "lm_head"),
    },
    "bert": {
        "embedding": (
            "bert.embeddings.word_embeddings",
            "bert.embeddings.position_embeddings",
            "bert.embeddings.token_type_embeddings",
        ),
        "attention": (
            "{before}.LayerNorm",
            "bert.encoder.layer.{i}.attention.self",
            "bert.encoder.layer.{i}.attention.output.dense",
        ),
        "ffn": (
            "bert.encoder.layer.{i}.attention.output.LayerNorm",
            "bert.encoder.layer.{i}.intermediate",
            "bert.encoder.layer.{i}.output.dense",
        ),
        "head": ("{before}.LayerNorm", "cls"),
    },
}
LIKE_LLAMA = {
    "embedding": ("model.embed_tokens",),
    "attention": ("model.layers.{i}.input_layernorm", "model.layers.{i}.self_attn"),
    "ffn": ("model.layers.{i}.post_attention_layernorm", "model.layers.{i}.mlp"),
    "head": ("model.norm", "lm_head"),
}
MODULES |= dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "phi3", "glm", "nemotron"), LIKE_LLAMA)


def modules_of(family: str, unit: str, blocks: int) -> list[str]:
    """Names of a unit's modules in the Hugging Face model of `blocks` layers, in order of use."""
    block, _, kind = unit.rpartition(".")
    i = int(block.removeprefix("block")) if block else blocks
    before = f"bert.encoder.layer.{i - 1}.output" if i else "bert.embeddings"
    return [name.format(i=i, before=before) for name in MODULES[family][kind]]


def split_point(family: str, unit: str, blocks: int) -> str:
    """The module before which the model is cut for a stage that begins with this unit."""
    first = modules_of(family, unit, blocks)[0]
    # A whole layer is cut at the layer: before its first norm is where the residual stream has been read already.
    return first.removesuffix(".ln_1").removesuffix(".input_layernorm")


def schedule_csv(plan: Plan) -> str:
    """The order of passes, a row for each stage."""
    stages, parts = len(plan.stages), plan.batch.micro_batches
    text = io.StringIO()
    rows = [
        [f"{one.stage}{'F' if one.kind == 'forward' else 'B'}{one.micro_batch}" for one in order]
        for order in orders(plan.schedule, stages, parts)
    ]
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def export(plan: Plan, where: str) -> Export:
    """Files stages.json, schedule.csv and pipeline.py. Raises InputError."""
    check_pipeline(plan, tuple(MODULES), RUNTIME, where)
    strategies = plan.strategies()
    for position, strategy in enumerate(strategies):
        if strategy.degree("tp") > 1:
            problem = f"is {str(plan.units[position].strategy)!r}"
            fix = f"plan without tp (`plan --space dp+pp`): a stage of {RUNTIME} holds whole modules"
            raise InputError(where, f"units[{position}].{plan.units[position].field}", problem, fix)
    model, names = plan.planned_model(), [unit.name for unit in plan.units]
    blocks, ckpt = len(names) // 2 - 1, {unit.name for unit, s in zip(plan.units, strategies, strict=True) if s.ckpt}
    stages = []
    for stage in plan.stages:
        units = names[stage.first_unit : stage.last_unit + 1]
        modules = [module for unit in units for module in modules_of(model.family, unit, blocks)]
        again = [unit for unit in units if unit in ckpt]
        stages.append({"ranks": stage.ranks, "units": units, "recomputed": again, "modules": modules})
    points = [split_point(model.family, names[stage.first_unit], blocks) for stage in plan.stages[1:]]
    settings: dict[str, Any] = {
        "model": dict(model.config),
        "dtype": model.dtype,
        "sequence": model.tokens,
        "tied": model.tied,
        "schedule": plan.schedule,
        "micro_batches": plan.batch.micro_batches,
        "micro_batch_samples": micro_batch_samples(plan, plan.stage_sizes[0]),
        "replicas": plan.stage_sizes[0],
        "stages": stages,
        "split_spec": dict.fromkeys(points, "BEGINNING"),
    }
    left_out = [*left_out_of_all(plan, RUNTIME), *left_out_precision(plan, RUNTIME)]
    if sharded := sum(strategy.degree("sdp") > 1 for strategy in strategies):
        left_out.append(f"sdp of {sharded} of {len(names)} units: the script replicates parameters; a rank needs more memory")
    if "attn_implementation" in model.config:
        left_out.append("model.config.attn_implementation: the script's attention is fused; it is faster and needs less memory")
    files = {
        "stages.json": json.dumps(settings, indent=1) + "\n",
        "schedule.csv": schedule_csv(plan),
        "pipeline.py": Path(__file__).with_name("pipeline_script.py").read_text(),
    }
    return Export("torch", settings, files, tuple(left_out))
