"""Plans for Megatron-LM: arguments of its training scripts.

Cuts between layers: `--pipeline-model-parallel-layout` (megatron/core/transformer/pipeline_parallel_layer_layout.py, 2025):
stages in a string with `|` between them, `E` embedding, `t` layer, `L` final norm, head and loss; `t*3` is `ttt`. Where the
middle stages are equal, `--decoder-first-pipeline-num-layers` and `--decoder-last-pipeline-num-layers` say the same to
versions before it. Cuts within a layer: HybridModel's `--hybrid-layer-pattern`
(megatron/core/models/hybrid/hybrid_layer_allocation.py, 2026), where `*` is an attention layer, `-` a feed-forward layer and
`|` the end of a stage; the embedding is on the first stage, the head on the last. It is another model class: checkpoints of
GPTModel are converted (tools/checkpoint/gpt_hybrid_conversion.py).

Without virtual stages Megatron-LM runs 1F1B-Flush, and data-parallel ranks are those that are left. Refused: GPipe, units with
different strategies, uneven shares, cuts within BERT's layers. Left out: sliced forward passes, recomputation of single units,
sharded parameters (its distributed optimizer shards the optimizer's state alone), the order of levels, placement.
"""

from __future__ import annotations

import re
import shlex
from itertools import pairwise

from trainplan.execution.exports.common import (
    Export,
    check_pipeline,
    common_strategy,
    half_cut,
    layers_of,
    left_out_of_all,
    left_out_order,
    letters,
    micro_batch_samples,
    recomputation,
    refuse_half_cut,
)
from trainplan.formulations.plan import Plan
from trainplan.profiling.base.errors import InputError

RUNTIME = "Megatron-LM"
FAMILIES = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "nemotron", "bert")  # whose layers GPTModel and BertModel have
HYBRID_SPEC = "megatron.core.models.hybrid.hybrid_layer_specs"


def layout(plan: Plan) -> str:
    """Stages of whole layers as `--pipeline-model-parallel-layout`."""
    return re.sub(r"t{3,}", lambda run: f"t*{len(run[0])}", "|".join(layers_of(plan)))


def hybrid_pattern(plan: Plan) -> str:
    """Stages of sub-layers as `--hybrid-layer-pattern`."""
    return "|".join(letters(plan)).translate({ord("E"): None, ord("L"): None, ord("a"): "*", ord("f"): "-"})


def end_counts(plan: Plan) -> list[str] | None:
    """The same cuts by the layers of the first and last stage, with as few arguments as say it; None where none do."""
    counts = [stage.count("t") for stage in layers_of(plan)]
    if min(counts) == 0:
        return None
    first = ["--decoder-first-pipeline-num-layers", str(counts[0])]
    last = ["--decoder-last-pipeline-num-layers", str(counts[-1])]
    for arguments, rest in (([], counts), (first, counts[1:]), (last, counts[:-1]), (first + last, counts[1:-1])):
        if all(one == other for one, other in pairwise(rest)):
            return arguments
    return None


def export(plan: Plan, where: str) -> Export:
    """File megatron_args.sh, a bash array of arguments. Raises InputError."""
    check_pipeline(plan, FAMILIES, RUNTIME, where)
    if plan.schedule != "1f1b":
        raise InputError(where, "schedule", f"is {plan.schedule!r}", f"plan with --schedule 1f1b: {RUNTIME} runs no other")
    model, strategy = plan.planned_model(), common_strategy(plan, RUNTIME, where)
    if model.family == "bert":
        refuse_half_cut(plan, f"{RUNTIME}'s BertModel", "export it --to torch", where)
    blocks, stages = len(plan.units) // 2 - 1, len(plan.stages)
    head = [
        *("--pipeline-model-parallel-size", str(stages)),
        *("--tensor-model-parallel-size", str(strategy.degree("tp"))),
        *("--micro-batch-size", str(micro_batch_samples(plan, strategy.data_degree))),
        *("--global-batch-size", str(plan.batch.global_samples)),
    ]
    if not model.tied:
        head.append("--untie-embeddings-and-output-weights")
    left_out = [*left_out_of_all(plan, RUNTIME), *left_out_order(strategy)]
    if strategy.degree("sdp") > 1:
        head.append("--use-distributed-optimizer")
        left_out.append(f"{strategy}: parameters and gradients are not sharded, the optimizer's state is; more memory")
    again, partly = recomputation(plan)
    if again:
        head += ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"]
    left_out += partly
    same = None
    if half_cut(plan) is None:
        script = "pretrain_bert.py" if model.family == "bert" else "pretrain_gpt.py"
        same = end_counts(plan)
        split = ["--num-layers", str(blocks), "--pipeline-model-parallel-layout", layout(plan)]
    else:
        script = "pretrain_hybrid.py"
        split = ["--spec", HYBRID_SPEC, "hybrid_stack_spec", "--hybrid-layer-pattern", hybrid_pattern(plan)]
    arguments = head + split
    other = None if same is None else [*head, "--num-layers", str(blocks), *same]
    settings = {"script": script, "arguments": arguments, "world": plan.world, "without_layout": other}
    lines = [f"# {script} on {plan.world} ranks: source this file, then give the script" + ' "${PIPELINE_ARGS[@]}".']
    lines += _array("PIPELINE_ARGS", arguments)
    if other is not None:
        lines += ["", "# The same split for versions without --pipeline-model-parallel-layout."]
        lines += _array("END_COUNT_ARGS", other)
    return Export("megatron", settings, {"megatron_args.sh": "\n".join(lines) + "\n"}, tuple(left_out))


def _array(name: str, arguments: list[str]) -> list[str]:
    rows: list[list[str]] = []
    for argument in arguments:
        if argument.startswith("--") or not rows:
            rows.append([])
        rows[-1].append(shlex.quote(argument))
    return [f"{name}=(", *(f"    {' '.join(row)}" for row in rows), ")"]
