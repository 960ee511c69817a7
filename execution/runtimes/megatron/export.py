"""Export of plans to Megatron-LM: all arguments of its training scripts, and files that start them.

Arguments as of `megatron/training/arguments.py` (core 0.15, 2025): those of the model (see `megatron.export_model`), of the
plan and of precision. Data and the optimizer's numbers are the user's, from environment variables whose defaults let it start
on mock data.

Cuts between layers are given by `--pipeline-model-parallel-layout`
(core 0.13, 2025; see `megatron.layouts`): a string of stages separated by `|`, with `E` for the embedding, `t` for a layer and
`L` for final norm, head and loss; `t*3` is `ttt`, `(tt|)*3` is `tt|tt|tt|`. If the middle stages are equal,
`--decoder-first-pipeline-num-layers` and `--decoder-last-pipeline-num-layers` say the same to older versions. For interleaved
stages the layout lists all chunks in order. Cuts within a layer need HybridModel's `--hybrid-layer-pattern`
(megatron/core/models/hybrid/hybrid_layer_allocation.py, 2026), where `*` is an attention layer, `-` a feed-forward layer and
`|` the end of a stage; the embedding is on the first stage, the head on the last. HybridModel is another model class, whose
checkpoints are converted from GPTModel's (tools/checkpoint/gpt_hybrid_conversion.py).

Recomputation is of all layers (`--recompute-method uniform`), or of the first n of every stage or, with interleaving, of every
chunk (`block`; TransformerBlock counts the layers of its own chunk, and one with fewer recomputes them all). Plans that
recompute other layers are exported with all layers recomputed, and the README says so.

Context-parallel ranks are the level right outside tensor-parallel ranks, and share the optimizer's states with data-parallel
ranks, as in plans. `--cp-comm-type` selects the exchange: `p2p` sends keys and values around a ring, `all_gather` gathers them
at once (Transformer Engine has this for sliding windows, and no ring), `a2a` exchanges heads, for which it cannot copy keys.
BERT's script does not split samples.

Gradients are summed and reduced in the plan's dtype: in bf16 by `--grad-reduce-in-bf16`, in fp32 by
`--accumulate-allreduce-grads-in-fp32`. Low-precision matrix multiplications are Transformer Engine's, by `--fp8-recipe` and
`--fp4-recipe`, per tensor with gradients in E5M2 (hybrid), as are its defaults. If the distributed optimizer gathers
parameters, these are kept in 8 bits (`--fp8-param-gather`) as in Megatron-Bridge's recipes, except for scaling in blocks of 128
numbers and for FP4.

Data-parallel ranks are the remaining ones. The distributed optimizer is ZeRO stage 1, with
`--num-distributed-optimizer-instances` copies under hybrid sharding; ZeRO stages 2 and 3 become stage 1, if that fits. Muon is
`--optimizer muon`, in stage 1 `dist_muon`, which works neither with several instances nor with `--overlap-*` (core 0.16, 2026).

Refused: GPipe, units with different strategies, uneven shares, cuts within BERT's layers, states on the host. Left out: sliced
forward passes, recomputation of single units, the order of levels, placement.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from itertools import pairwise

from trainplan.execution.runtimes.export_common import (
    Export,
    ExportPrediction,
    as_exported,
    check_pipeline,
    common_recipe,
    common_strategy,
    first_recomputed,
    half_cut,
    layers_of,
    left_out_of_all,
    left_out_order,
    letters,
    micro_batch_samples,
    predict_exported,
    recomputation,
    recomputed_modules,
    refuse_half_cut,
)
from trainplan.execution.runtimes.launch_scripts import here, page, slurm, torchrun
from trainplan.execution.runtimes.megatron import layouts
from trainplan.execution.runtimes.megatron.capabilities import CAPABILITIES
from trainplan.execution.runtimes.megatron.export_model import model_arguments
from trainplan.execution.runtimes.megatron.fields import (
    MODULES,
    MUON,
    OPTIMIZER,
    PARALLEL,
    PRECISION,
    STAGES,
    STEPPED,
    ExportedValues,
    PrecisionValues,
    StageCuts,
    words_of,
)
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy import Module, Strategy
from trainplan.formulations.runtimes import Runtime, copies_keys
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.sublayers import Attention

RUNTIME, VERSION = "Megatron-LM", "Megatron-LM with megatron-core 0.15 (2025)"
SINCE = "0.13 (2025)"  # `--pipeline-model-parallel-layout`
VERSION_OF_MUON = "Megatron-LM with megatron-core 0.16 (2026)"
NOT_BESIDE = "Muon: Megatron-Core reduces no gradients during the backward pass with it; more time"
MUON_DECIDES = (
    "Muon is of megatron-core 0.16 or later, with the package emerging_optimizers",
    "up-projection and gate of a layer are one matrix to its Muon",
)
CALLED: dict[str, str] = {module: name for name, module in MODULES.items()}
PRECISIONS = ("bfloat16", "float16", "float32")
DATA = """# Yours: TOKENIZER (a Hugging Face folder or name) and DATA_PATH (of preprocess_data.py, without .bin or .idx).
if [ -n "${DATA_PATH:-}" ]; then
    [[ "$DATA_PATH" == /* ]] || DATA_PATH="$PWD/$DATA_PATH"
    DATA_ARGS=(--data-path "$DATA_PATH" --tokenizer-type HuggingFaceTokenizer --tokenizer-model "${TOKENIZER:?is not set}")
else
    DATA_ARGS=(--mock-data --tokenizer-type NullTokenizer --vocab-size %d)
fi
"""
TRAINING = """# Yours: how long, how fast to learn, and where checkpoints are: a start goes on from the last one there.
SAVE="${SAVE:-${HERE:-$PWD}/checkpoints}"
[[ "$SAVE" == /* ]] || SAVE="$PWD/$SAVE"
TRAINING_ARGS=(
    --train-iters "${TRAIN_ITERS:-100}" --lr "${LR:-3e-4}" --min-lr "${MIN_LR:-3e-5}" --lr-decay-style cosine
    --lr-warmup-iters "${WARMUP_ITERS:-0}" --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --clip-grad 1.0
    --log-interval 1 --log-throughput --eval-iters 0 --save "$SAVE" --load "$SAVE"
    --save-interval "${SAVE_INTERVAL:-1000}"
)
"""
DECIDES = (
    "gradients are reduced during backward passes, parameters gathered ahead (--overlap-*): hidden in plans with overlap",
    "attention, norms, activations and the loss run in its own kernels, which keep other activations",
    "gradients are kept in one buffer",
    "the vocabulary is padded to a multiple of the tensor-parallel degree",
)
GATHERED = ("parameters are kept in 8 bits, and gathered so where they are scaled per tensor (--fp8-param-gather)",)


def layout(plan: Plan) -> str:
    """The stages of a plan in the syntax of Megatron-LM's `--pipeline-model-parallel-layout`, such as "Et*3|t*3L"; the
    stages consist of whole layers."""
    return layouts.written(layers_of(plan))


def hybrid_pattern(plan: Plan) -> str:
    """The stages of a plan in the syntax of Megatron-LM's `--hybrid-layer-pattern`, with * for attention and - for a
    feed-forward network, such as "*-*|-*-"; stages may begin within a layer."""
    return "|".join(letters(plan)).translate({ord("E"): None, ord("L"): None, ord("a"): "*", ord("f"): "-"})


def end_counts(plan: Plan) -> StageCuts | None:
    """The stages of a plan as numbers of layers of the first and the last stage, given only where they differ from the other
    stages; None if the other stages are unequal or a stage has no layer."""
    counts = [stage.count("t") for stage in layers_of(plan)]
    if min(counts) == 0:
        return None
    first, last = counts[0], counts[-1]
    candidates = ((StageCuts(), counts), (StageCuts(first=first), counts[1:]), (StageCuts(last=last), counts[:-1]))
    for cut, rest in (*candidates, (StageCuts(first=first, last=last), counts[1:-1])):
        if all(one == other for one, other in pairwise(rest)):
            return cut
    return None


@dataclass(frozen=True)
class MegatronArguments:
    """The arguments that Megatron-LM's training scripts need to run a plan, as words of a command. script: the training
    script. model: arguments of the model. parallel: degrees of parallelism, batch, recomputation and stages. precision:
    dtypes and recipes. optimizer: empty for AdamW. same: the arguments of `parallel` with the stages given by numbers of
    layers, for versions without layouts; None if that is impossible. left_out: lines for the README on features of the plan
    that are left out. plan: the plan as it is run. prediction: its step and memory."""

    script: str
    model: list[str]
    parallel: list[str]
    precision: list[str]
    optimizer: list[str]
    same: list[str] | None
    left_out: list[str]
    plan: Plan
    prediction: ExportPrediction

    @property
    def gathered(self) -> tuple[str, ...]:
        """Lines for the README on what runs differently if parameters are gathered in 8 bits; empty if they are not."""
        return GATHERED if "--fp8-param-gather" in self.precision else ()


def arguments_of(plan: Plan, where: str, runtime: str = RUNTIME, capabilities: Runtime = CAPABILITIES) -> MegatronArguments:
    """All arguments of Megatron-LM that run a plan, and what they leave out. where: the plan's file, for errors. runtime:
    the name of the runtime that uses Megatron Core's GPTModel, for messages. capabilities: what it can run. Raises
    InputError if it cannot run the plan."""
    check_pipeline(plan, capabilities, runtime, where, tuple(dict.fromkeys(name for name, _ in STEPPED.values())))
    if plan.schedule not in ("1f1b", "interleaved-1f1b"):
        raise InputError(where, "schedule", f"is {plan.schedule!r}", f"plan with --schedule 1f1b: {runtime} runs no other")
    model, strategy = plan.planned_model(), common_strategy(plan, runtime, where)
    recipe = common_recipe(plan, runtime, where)
    if model.dtype not in PRECISIONS:
        raise InputError(where, "model.dtype", f"is {model.dtype!r}", f"plan in one of {', '.join(PRECISIONS)}")
    if model.family == "bert":
        refuse_half_cut(plan, f"{runtime}'s BertModel", "run it by trainplan", where)
    if strategy.degree("cp") > 1:
        _refuse_uncut(plan, model, strategy, runtime, where)
    if plan.chunks > 1:
        refuse_half_cut(plan, f"{runtime}'s interleaved schedule", "plan with --schedule 1f1b", where)
    exchange = _exchange(strategy, model) if strategy.degree("cp") > 1 else None
    muon = _steps_by_muon(plan, runtime, where)
    left_out = _left_out(strategy, exchange)
    left_out += [NOT_BESIDE] if muon and strategy.data_degree > 1 else []
    (recomputes, partly), first = recomputation(plan), first_recomputed(plan)
    modules, others = recomputed_modules(plan, CALLED, runtime)
    left_out = [*left_out_of_all(plan, runtime), *left_out, *(partly if first is None else []), *others]
    group = 1 if plan.runs_by is None else plan.runs_by.group
    method = None if not recomputes else ("uniform", group) if first is None else ("block", first)
    exported_values = ExportedValues(plan, strategy, micro_batch_samples(plan, strategy.data_degree), exchange, method, modules)
    stages, script, same = _stages(plan, model)
    head = words_of(PARALLEL, exported_values)
    described = [] if model.family == "bert" else model_arguments(model, runtime, where, counted=stages.pattern is not None)
    if model.family == "bert":
        left_out.append("the model's own arguments: give pretrain_bert.py those of BERT")
    kept: set[Module] = {module for used in plan.strategies() for module in used.modules if module in CALLED}
    exported = as_exported(plan, replace(strategy, zero=1) if strategy.zero_stage > 1 else strategy, kept, first)
    return MegatronArguments(
        script=script,
        model=described,
        parallel=[*head, *words_of(STAGES, stages)],
        precision=words_of(PRECISION, PrecisionValues(plan, model.dtype, recipe, bool(exported.strategies()[0].zero_stage))),
        optimizer=words_of((*OPTIMIZER, *MUON) if muon else OPTIMIZER, exported_values),
        same=None if same is None else [*head, *words_of(STAGES, same)],
        left_out=left_out,
        plan=exported,
        prediction=predict_exported(plan, exported, where, runtime),
    )


def export(plan: Plan, where: str) -> Export:
    """Exports a plan as the files megatron_args.sh (all arguments as bash arrays), launch.sh and slurm.sh, which start it, and
    README.md. where: the plan's file, for errors. Raises InputError if Megatron-LM cannot run the plan."""
    arguments, version = arguments_of(plan, where), VERSION_OF_MUON if plan.optimizer == "muon" else VERSION
    settings = {
        "script": arguments.script,
        "model": arguments.model,
        "arguments": arguments.parallel,
        "precision": arguments.precision,
        "optimizer": arguments.optimizer,
        "world": plan.world,
        "without_layout": arguments.same,
        "peak_bytes": arguments.prediction.peak_bytes,
    }
    lines = [f"# All arguments of {arguments.script} on {plan.world} ranks, for {version}: launch.sh reads this file."]
    lines += _array("MODEL_ARGS", arguments.model) + _array("PIPELINE_ARGS", arguments.parallel)
    lines += _array("PRECISION_ARGS", arguments.precision) + (
        _array("OPTIMIZER_ARGS", arguments.optimizer) if arguments.optimizer else []
    )
    if arguments.same is not None:
        lines += ["", f"# The same stages before megatron-core {SINCE}, without layouts, in place of PIPELINE_ARGS."]
        lines += _array("END_COUNT_ARGS", arguments.same)
    lines += ["", TRAINING + DATA % (plan.planned_model().vocabulary - 1)]  # its null tokenizer adds a token
    arrays = ["MODEL", "PIPELINE", "PRECISION", *["OPTIMIZER"] * bool(arguments.optimizer), "TRAINING", "DATA"]
    every = " ".join(f'"${{{name}_ARGS[@]}}"' for name in arrays)
    before = [*connections(plan), f"source {here('megatron_args.sh')}"]
    before += [f'MEGATRON="${{MEGATRON:?is not set: the folder of {RUNTIME}, with {arguments.script}}}"']
    files = {
        "megatron_args.sh": "\n".join(lines),
        "launch.sh": torchrun(plan.world, f'"$MEGATRON/{arguments.script}" {every} "$@"', before),
        "slurm.sh": slurm(plan.world),
        "README.md": page(
            plan, RUNTIME, version, arguments.prediction, arguments.left_out, (*decides(plan, DECIDES), *arguments.gathered)
        ),
    }
    return Export("megatron", settings, files, tuple(arguments.left_out), arguments.plan)


def connections(plan: Plan) -> list[str]:
    """The line of bash that sets CUDA_DEVICE_MAX_CONNECTIONS to 1, which Megatron-LM requires on devices before Blackwell if
    ranks of tensor or context parallelism share a layer (`validate_args` of megatron/training/arguments.py); otherwise an
    empty list. With one connection to the device, kernels start in the order of issue. Blackwell devices, recognised by
    MXFP8 in the plan's cluster, do so anyway, and copies and collectives profit from more connections."""
    strategy, evidence = plan.strategies()[0], None if plan.claim is None else plan.claim.evidence
    if strategy.degree("tp") * strategy.degree("cp") == 1:
        return []
    if evidence is not None and evidence.cluster is not None:
        cluster = Cluster.model_validate(evidence.cluster)
        if all("mxfp8" in kind.recipes for kind in cluster.used_kinds):
            return []
    return ["export CUDA_DEVICE_MAX_CONNECTIONS=1  # of GPUs before Blackwell; unset it on others"]


def decides(plan: Plan, usual: tuple[str, ...]) -> tuple[str, ...]:
    """README lines on what the runtime decides by itself. usual: the lines without Muon, whose first one is about communication
    overlapping passes, which Muon does not have."""
    return usual if plan.optimizer != "muon" else (*MUON_DECIDES, *usual[1:])


def _left_out(strategy: Strategy, exchange: str | None) -> list[str]:
    """Lines for the README on features of a strategy (levels of parallelism) that Megatron-LM's arguments do not express.
    exchange: the value of `--cp-comm-type`; None without context parallelism."""
    left_out = left_out_order(strategy)
    if exchange == "all_gather":
        left_out.append(f"{strategy}: keys and values are gathered before attention, not sent around a ring; more time")
    if strategy.zero_stage > 1:
        what = "gradients are" if strategy.zero_stage == 2 else "parameters and gradients are"
        left_out.append(f"{strategy}: {what} not sharded, the optimizer's state is; more memory")
    return left_out


def _exchange(strategy: Strategy, model: Model) -> str:
    """The value of Megatron-LM's `--cp-comm-type` for context parallelism: a2a if ranks exchange attention heads, all_gather
    if the model has sliding windows, otherwise p2p (a ring)."""
    slides = any(isinstance(part, Attention) and 0 < part.sliding < part.tokens for part in model.sublayers.values())
    return "a2a" if strategy.exchanges_heads else "all_gather" if slides else "p2p"


def _refuse_uncut(plan: Plan, model: Model, strategy: Strategy, runtime: str, where: str) -> None:
    """Check that Megatron-LM can split the samples of a model between context-parallel ranks without copies of keys on
    ranks. strategy: the plan's levels of parallelism. runtime: its name, for messages. where: the plan's file. Raises
    InputError if it cannot."""
    field, problem = f"units[0].{plan.units[0].field}", f"is {str(strategy)!r}"
    if model.family == "bert":
        raise InputError(where, field, problem, f"give levels of dp, sdp and tp: {runtime}'s BertModel cuts no samples")
    if copies_keys(strategy, model):
        keys = replace(strategy, exchange="keys")
        fix = f"give {str(keys)!r}, or fewer ranks: {runtime} has no copies of keys where ranks exchange heads"
        raise InputError(where, field, problem, fix)


def _steps_by_muon(plan: Plan, runtime: str, where: str) -> bool:
    """Whether Muon updates the matrices of layers. Raises InputError for dtypes that the runtime's Muon does not
    support."""
    if plan.optimizer != "muon":
        return False
    if plan.planned_model().dtype == "float16":
        fix = f"plan in bfloat16: {runtime}'s Muon takes no float16"
        raise InputError(where, "model.dtype", "is 'float16', with Muon", fix)
    return True


def _stages(plan: Plan, model: Model) -> tuple[StageCuts, str, StageCuts | None]:
    """Three values: the plan's stages as values for Megatron-LM's arguments; the training script that supports them; and the
    same stages as numbers of layers of the first and the last stage, or None if that is impossible."""
    if half_cut(plan) is not None:
        return StageCuts(pattern=hybrid_pattern(plan)), "pretrain_hybrid.py", None
    bert = model.family == "bert"
    script, layers = ("pretrain_bert.py", len(plan.units) // 2 - 1) if bert else ("pretrain_gpt.py", None)
    if len(plan.stages) == 1:
        return StageCuts(layers), script, None
    same = end_counts(plan) if plan.chunks == 1 else None
    return StageCuts(layers, layout=layout(plan)), script, None if same is None else replace(same, layers=layers)


def _array(name: str, arguments: list[str]) -> list[str]:
    """The lines of a bash script that define an array of arguments, with one argument and its values per line. name: the
    array's name. arguments: the words."""
    rows: list[list[str]] = []
    for argument in arguments:
        if argument.startswith("--") or not rows:
            rows.append([])
        rows[-1].append(shlex.quote(argument))
    return [f"{name}=(", *(f"    {' '.join(row)}" for row in rows), ")"]
