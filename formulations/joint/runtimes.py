"""What other runtimes run of the joint problem: `plan --for NAME` plans within it, so that `export --to NAME` takes the plan.

megatron: Megatron-LM's GPTModel. One strategy for all units, copies or its distributed optimizer (ZeRO stage 1), sequence
parallelism, recomputation of whole layers or of attention and norms, 1F1B and interleaved stages of whole layers; ranks of
tensor parallelism are neighbours. megatron-bridge: the same, by Megatron-Bridge's GPTModelProvider.

torchtitan: one strategy for all units, sharded by FSDP2 (ZeRO stage 3, or 2 where parameters stay gathered) or copied, tensor
parallelism with the tokens shared, recomputation of whole layers, 1F1B and GPipe with stages of whole layers.

deepspeed: one stage, one strategy for all units, ZeRO stages 1 to 3 among all ranks or copies, recomputation of whole layers,
the optimizer's states or all on the host (`--host`). accelerate: one stage, shards of FSDP2 (ZeRO stages 2 and 3), copies of
shards (`--hybrid`) or copies alone, recomputation of whole layers. Both without tensor parallelism.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from trainplan.formulations.joint.space import ZERO_STAGES
from trainplan.formulations.parameters import Parameter
from trainplan.formulations.request import Request
from trainplan.formulations.strategies import Strategy
from trainplan.profiling.base.errors import COMMAND_LINE, InputError
from trainplan.profiling.models.model import Model


@dataclass(frozen=True)
class Runtime:
    """What a runtime runs. zero: ZeRO stages; modules: those that it can recompute by themselves; shares_tokens: whether
    tensor-parallel ranks always share the tokens. one_stage: whether it has no pipeline and no tensor parallelism; hybrid:
    whether ranks may hold copies of shards; host: what may be kept there. families: of the models that it has, all of them
    where it is None; tied: whether their head may be the embedding's matrix."""

    schedules: tuple[str, ...]
    zero: tuple[int, ...]
    modules: Collection[str] = ()
    shares_tokens: bool = False
    one_stage: bool = False
    hybrid: bool = True
    host: Collection[str] = ()
    families: Collection[str] | None = None
    tied: bool = True

    def lacks(self, model: Model) -> str | None:
        """What of a model it does not have, in words; None where it has all."""
        if self.families is not None and model.family not in self.families:
            return f"{model.family} models"
        return "heads tied to the embedding" if model.tied and not self.tied else None

    def carries(self, strategy: Strategy) -> bool:
        """Whether it runs units under a strategy."""
        names = [name for name, _ in strategy.levels]
        neighbours = "tp" not in names[:-1]
        tokens = strategy.sequence_parallel or not self.shares_tokens or strategy.degree("tp") == 1
        if (self.one_stage and "tp" in names) or (not self.hybrid and {"dp", "sdp"} <= set(names)):
            return False
        if strategy.group == 1:
            return set(strategy.modules) <= set(self.modules)
        return neighbours and tokens and set(strategy.modules) <= set(self.modules) and strategy.zero_stage in self.zero


DECODERS = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "phi3", "glm", "nemotron")
MEGATRON = Runtime(("1f1b", "interleaved"), (0, 1), ("attention", "norms"), families=(*DECODERS, "bert"))
RUNTIMES = {
    "megatron": MEGATRON,
    "megatron-bridge": replace(MEGATRON, families=DECODERS),
    "torchtitan": Runtime(("1f1b", "gpipe"), (0, 2, 3), shares_tokens=True, families=("llama", "qwen3"), tied=False),
    "deepspeed": Runtime(
        ("1f1b",), (0, 1, 2, 3), one_stage=True, hybrid=False, host=("optimizer", "parameters"), families=DECODERS
    ),
    "accelerate": Runtime(("1f1b",), (0, 2, 3), one_stage=True, families=DECODERS),
}
FOR = Parameter("for_", str, "plan within what a runtime runs, for `export --to` it", None, tuple(RUNTIMES))


def within_runtime(request: Request) -> Request:
    """The request with the options that its runtime leaves. Raises InputError where there is nothing left of one."""
    name = request.options[FOR.name]
    if name is None:
        return request
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
    zero = [str(stage) for stage in ZERO_STAGES if stage in runtime.zero and str(stage) in asked]
    if not zero:
        fix = f"give some of {','.join(map(str, runtime.zero))}: {name} runs no other"
        raise InputError(COMMAND_LINE, "--zero", f"is {options['zero']}", fix)
    kept = {
        "zero": ",".join(zero),
        "one_strategy": True,
        "by_unit": False,
        "sliced": 0,
        "host": _host(runtime, options["host"]),
    }
    if runtime.one_stage:
        if options["pipeline"] not in (None, 1):
            raise InputError(COMMAND_LINE, "--pipeline", f"is {options['pipeline']}", f"give 1: {name} runs no other")
        if options["tp"] not in (None, 1):
            raise InputError(COMMAND_LINE, "--tp", f"is {options['tp']}", f"give 1: {name} runs no other")
        kept |= {"pipeline": 1, "schedule": "1f1b"}
    return replace(request, options={**options, **kept})


def _host(runtime: Runtime, asked: str) -> str:
    """What units may keep on the host, of what is asked for."""
    words = set(runtime.host) if asked.strip() == "all" else {word.strip() for word in asked.split(",")} & set(runtime.host)
    return ",".join(sorted(words)) or "none"
