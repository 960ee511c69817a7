"""What other runtimes run of the joint problem: `plan --for NAME` plans within it, so that `export --to NAME` takes the plan.

megatron: Megatron-LM's GPTModel. One strategy for all units, copies or its distributed optimizer (ZeRO stage 1), sequence
parallelism, recomputation of whole layers or of attention and norms, 1F1B and interleaved stages of whole layers; ranks of
tensor parallelism are neighbours. The first n layers of every stage may be those that are recomputed (see `first_layers`).
Context parallelism of GPTModel exchanges keys or heads; Transformer Engine has no copies of keys for the latter.
megatron-bridge: the same, by Megatron-Bridge's GPTModelProvider.

torchtitan: one strategy for all units, sharded by FSDP2 (ZeRO stage 3, or 2 where parameters stay gathered) or copied, tensor
parallelism with the tokens shared, recomputation of whole layers, 1F1B and GPipe with stages of whole layers, context
parallelism that exchanges keys. Gradients are in float32, as its mixed precision reduces and keeps them.

deepspeed: one stage, one strategy for all units, ZeRO stages 1 to 3 among all ranks or copies, recomputation of whole layers,
the optimizer's states or all on the host (`--host`). accelerate: one stage, shards of FSDP2 (ZeRO stages 2 and 3), copies of
shards (`--hybrid`) or copies alone, recomputation of whole layers. Both without tensor parallelism.

torch: a script of torch and transformers alone. One strategy for all units, any ZeRO stage, any order of levels, recomputation
of whole layers, of attention, activations and the loss, all schedules, stages that begin at any sub-layer; tensor parallelism
of models of which `why_not_split` says nothing, and with it sequence parallelism where units are recomputed.

trainplan: what `trainplan run` runs: all that the problem knows, context parallelism too, but products in fewer bits than the
model's dtype. Of these megatron and megatron-bridge have all recipes, by Transformer Engine; torchtitan those of torchao that
its configurations name.

Muon is of Megatron-LM, Megatron-Bridge and trainplan, whose executor has it for copies alone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from trainplan.formulations.joint.options import CP, CP_EXCHANGE, GRADIENTS, OPTIMIZER, PRECISION
from trainplan.formulations.joint.recompute_first import RECOMPUTE_FIRST
from trainplan.formulations.joint.search_space import SCHEDULES, ZERO_STAGES
from trainplan.formulations.joint.tables import HOST_PARTS
from trainplan.formulations.parameters import Parameter
from trainplan.formulations.plan.request import Request
from trainplan.formulations.plan.strategy import EXCHANGES, MODULES, Exchange, Strategy
from trainplan.formulations.plan.torch_sharding import split_by_torch
from trainplan.profiling.base.errors import COMMAND_LINE, InputError
from trainplan.profiling.clusters.recipes import RECIPES
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.sublayers import HeadShare, attention_of


@dataclass(frozen=True)
class Runtime:
    """What a runtime runs. zero: ZeRO stages; modules: those that it can recompute by themselves; shares_tokens: whether
    tensor-parallel ranks always share the tokens, neighbours: whether they are next to each other. one_stage: whether it has no
    pipeline and no tensor parallelism; hybrid: whether ranks may hold copies of shards; host: what may be kept there.
    one_strategy: whether all units have one; cuts_layers: whether stages may begin within a layer; sliced: whether forward
    passes may begin in halves; exchanges: what context-parallel ranks may exchange, nothing without context parallelism;
    copies_keys: whether ranks that exchange heads may have copies of keys; cut_families: the models that have that, all where
    it is None; by_torch: whether it is DTensor and FSDP2, of models as transformers builds them (see `_under_fsdp`). families:
    of the models that it has, all of them where it is None; tied: whether their head may be the embedding's matrix;
    first_layers: whether stages can recompute their first layers alone; wide_gradients: of models in which dtypes gradients are
    in float32 unless it is told otherwise, narrow_gradients: whether it can be told so. muon: the ZeRO stages in which it has
    Muon, none where it does not. recipes: of products in fewer bits."""

    schedules: tuple[str, ...]
    zero: tuple[int, ...]
    modules: Collection[str] = ()
    shares_tokens: bool = False
    one_stage: bool = False
    hybrid: bool = True
    host: Collection[str] = ()
    neighbours: bool = True
    one_strategy: bool = True
    cuts_layers: bool = False
    sliced: bool = False
    exchanges: tuple[Exchange, ...] = ()
    copies_keys: bool = True
    cut_families: Collection[str] | None = None
    by_torch: bool = False
    families: Collection[str] | None = None
    tied: bool = True
    first_layers: bool = False
    wide_gradients: Collection[str] = ()
    narrow_gradients: bool = True
    muon: tuple[int, ...] = ()
    recipes: Collection[str] = ()

    def lacks(self, model: Model) -> str | None:
        """What of a model it does not have, in words; None where it has all."""
        if self.families is not None and model.family not in self.families:
            return f"{model.family} models"
        return "heads tied to the embedding" if model.tied and not self.tied else None

    def carries(self, strategy: Strategy, model: Model | None = None) -> bool:
        """Whether it runs units of a model, where that is known, under a strategy."""
        names = [name for name, _ in strategy.levels]
        neighbours = not self.neighbours or "tp" not in names[:-1]
        if self.by_torch and (not split_by_torch(model, strategy) or (strategy.sequence_parallel and not strategy.ckpt)):
            return False  # tokens gathered in front of matrices are kept unless a unit is recomputed
        if model is not None and not self.copies_keys and copies_keys(strategy, model):
            return False
        tokens = strategy.sequence_parallel or not self.shares_tokens or strategy.degree("tp") == 1
        if (self.one_stage and "tp" in names) or (not self.hybrid and {"dp", "sdp"} <= set(names)):
            return False
        if strategy.group == 1:
            return set(strategy.modules) <= set(self.modules)
        return neighbours and tokens and set(strategy.modules) <= set(self.modules) and strategy.zero_stage in self.zero


DECODERS = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "phi3", "glm", "nemotron")
# Gradients: megatron/training/arguments.py adds them up in float32 for bfloat16 models unless --grad-reduce-in-bf16 is given.
MEGATRON = Runtime(
    ("1f1b", "interleaved"),
    (0, 1),
    ("attention", "norms"),
    exchanges=EXCHANGES,
    copies_keys=False,
    cut_families=DECODERS,
    families=(*DECODERS, "bert"),
    first_layers=True,
    wide_gradients=("bfloat16",),
    muon=(0, 1),
    recipes=tuple(RECIPES),
)
RUNTIMES = {
    "megatron": MEGATRON,
    "megatron-bridge": replace(MEGATRON, families=DECODERS),
    "torchtitan": Runtime(
        ("1f1b", "gpipe"),
        (0, 2, 3),
        shares_tokens=True,
        exchanges=("keys",),
        families=("llama", "qwen3"),
        tied=False,
        wide_gradients=("bfloat16", "float16"),
        narrow_gradients=False,
        recipes=("fp8-current", "mxfp8"),
    ),
    "deepspeed": Runtime(
        ("1f1b",), (0, 1, 2, 3), one_stage=True, hybrid=False, host=("optimizer", "parameters"), families=DECODERS
    ),
    "accelerate": Runtime(("1f1b",), (0, 2, 3), one_stage=True, families=DECODERS),
    "torch": Runtime(
        SCHEDULES,
        ZERO_STAGES,
        ("activation", "attention", "loss"),
        neighbours=False,
        cuts_layers=True,
        by_torch=True,
        families=DECODERS,
    ),
    "trainplan": Runtime(
        SCHEDULES,
        ZERO_STAGES,
        MODULES,
        host=HOST_PARTS,
        neighbours=False,
        one_strategy=False,
        cuts_layers=True,
        sliced=True,
        exchanges=EXCHANGES,
        first_layers=True,
        muon=(0,),
    ),
}
FOR = Parameter("for_", str, "plan within what a runtime runs, for `export --to` it", None, tuple(RUNTIMES))


def with_gradients(request: Request) -> Request:
    """The request with gradients in the dtype in which its runtime keeps them, unless another is asked for that it takes."""
    name, model = request.options.get(FOR.name), request.described_model
    if name is None or model is None or request.precision.master is None:
        return request
    runtime, asked = RUNTIMES[name], request.options.get(GRADIENTS.name)
    if model.dtype not in runtime.wide_gradients or (asked is not None and runtime.narrow_gradients):
        return request
    return replace(request, options={**request.options, GRADIENTS.name: "float32"})


def within_runtime(request: Request) -> Request:
    """The request with the options that its runtime leaves. Raises InputError where there is nothing left of one."""
    name = request.options[FOR.name]
    if name is None:
        return request
    request = with_gradients(request)
    runtime, options = RUNTIMES[name], dict(request.options)
    model = request.model
    if model is not None and (missing := runtime.lacks(model)) is not None:
        able = [each for each, other in RUNTIMES.items() if other.lacks(model) is None]
        fix = f"give {' or '.join(able)}, or leave it out" if able else "leave it out"
        raise InputError(COMMAND_LINE, "--for", f"is {name}, which has no {missing}", fix)
    schedule = options["schedule"]
    if schedule != "all" and schedule not in runtime.schedules:
        fix = f"give {' or '.join(runtime.schedules)}: {name} runs no other"
        raise InputError(COMMAND_LINE, "--schedule", f"is {schedule}", fix)
    asked = {word.strip() for word in options["zero"].split(",")}
    stages = runtime.zero if options[OPTIMIZER.name] == OPTIMIZER.default else runtime.muon
    if not stages:
        runs = [each for each, other in RUNTIMES.items() if other.muon]
        problem = f"is {options[OPTIMIZER.name]}, which {name} does not run"
        raise InputError(COMMAND_LINE, OPTIMIZER.flag, problem, f"leave it out, or give --for {' or '.join(runs)}")
    zero = [str(stage) for stage in ZERO_STAGES if stage in stages and str(stage) in asked]
    if not zero:
        fix = f"give some of {','.join(map(str, stages))}: {name} runs no other"
        raise InputError(COMMAND_LINE, "--zero", f"is {options['zero']}", fix)
    if options[CP.name] != CP.default and not runtime.exchanges:
        fix = f"leave it out: {name} is given no plans with it"
        raise InputError(COMMAND_LINE, CP.flag, f"is {options[CP.name]}", fix)
    if options[PRECISION.name] not in (PRECISION.default, *runtime.recipes):
        fix = f"give {' or '.join([PRECISION.default, *runtime.recipes])}: {name} is given no plans with another"
        raise InputError(COMMAND_LINE, PRECISION.flag, f"is {options[PRECISION.name]}", fix)
    exchange, cut = options[CP_EXCHANGE.name], runtime.cut_families
    if options[CP.name] != CP.default and cut is not None and model is not None and model.family not in cut:
        fix = f"leave it out: {name} is given no plans with it for {model.family} models"
        raise InputError(COMMAND_LINE, CP.flag, f"is {options[CP.name]}", fix)
    if runtime.exchanges and exchange not in (*runtime.exchanges, "any"):
        fix = f"give {' or '.join(runtime.exchanges)}: {name} is given no plans with it"
        raise InputError(COMMAND_LINE, CP_EXCHANGE.flag, f"is {exchange}", fix)
    if options[RECOMPUTE_FIRST.name] is not None and not runtime.first_layers:
        able = [each for each, other in RUNTIMES.items() if other.first_layers]
        problem = f"is {options[RECOMPUTE_FIRST.name]}, which {name} does not run"
        raise InputError(COMMAND_LINE, RECOMPUTE_FIRST.flag, problem, f"leave it out, or give --for {' or '.join(able)}")
    kept = {
        "zero": ",".join(zero),
        "one_strategy": runtime.one_strategy or options["one_strategy"],
        "by_unit": runtime.cuts_layers and options["by_unit"],
        "sliced": options["sliced"] if runtime.sliced else 0,
        "host": _host(name, options["host"]),
    }
    if runtime.one_stage:
        if options["pipeline"] not in (None, 1):
            raise InputError(COMMAND_LINE, "--pipeline", f"is {options['pipeline']}", f"give 1: {name} runs no other")
        if options["tp"] not in (None, 1):
            raise InputError(COMMAND_LINE, "--tp", f"is {options['tp']}", f"give 1: {name} runs no other")
        kept |= {"pipeline": 1, "schedule": "1f1b"}
    within = replace(request, options={**options, **kept})
    return _under_fsdp(within) if runtime.by_torch else within


def copies_keys(strategy: Strategy, model: Model) -> bool:
    """Whether context-parallel ranks that exchange heads have copies of keys."""
    attentions = [part for sublayer in model.sublayers.values() if (part := attention_of(sublayer)) is not None]
    tp, ranks = strategy.degree("tp"), strategy.degree("cp")
    return strategy.exchanges_heads and any(HeadShare(part, tp, ranks).copies for part in attentions)


def _under_fsdp(request: Request) -> Request:
    """The request with what FSDP2 takes beside the plan's states. Without float32 masters a rank has its shard of the
    parameters beside all of them under ZeRO-1 and 2: these are left out. What the script holds besides is counted of plans
    (`planning`). Raises InputError."""
    model, options = request.described_model, request.options
    if model is not None and request.precision.of(model).master is not None:
        return request
    zero = ",".join(word for word in options["zero"].split(",") if word in ("0", "3"))
    if not zero:
        problem, fix = (
            f"is {options['zero']} without master weights",
            "give 0,3: torch keeps shards and whole parameters",
        )
        raise InputError(COMMAND_LINE, "--zero", problem, fix)
    return replace(request, options={**options, "zero": zero})


def _host(name: str, asked: str) -> str:
    """What units may keep on the host, of what is asked for. Raises InputError where the runtime does not have that."""
    has, words = RUNTIMES[name].host, {word.strip() for word in asked.split(",")} - {"none"}
    if words == {"all"}:
        return ",".join(sorted(has)) or "none"
    if missing := words - set(has):
        able = [each for each, other in RUNTIMES.items() if words <= set(other.host)]
        fix = f"leave it out, or give --for {' or '.join(able)}" if able else f"give some of {', '.join(HOST_PARTS)}"
        raise InputError(COMMAND_LINE, "--host", f"is {asked}, and {name} has no {', '.join(sorted(missing))} there", fix)
    return ",".join(sorted(words)) or "none"
