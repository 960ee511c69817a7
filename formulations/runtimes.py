"""Capabilities of training runtimes: the record of what a runtime can run, and where each runtime's own record stands.

A runtime declares its description once, as `CAPABILITIES` of its module `capabilities`. `plan --for NAME` searches only plans
that fit it (`joint.runtimes`), exports refuse other plans, and suggestions of `import-run` stay within it. The modules are
named as texts and imported on request, since they belong to the package execution.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from trainplan.formulations.plan.strategy import Exchange, Strategy
from trainplan.formulations.plan.torch_sharding import split_by_torch
from trainplan.profiling.base.plugins import attribute
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.sublayers import HeadShare, attention_of

DECODERS = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "phi3", "glm", "nemotron")
BUILT_IN = {
    "megatron": "trainplan.execution.runtimes.megatron.capabilities:CAPABILITIES",
    "megatron-bridge": "trainplan.execution.runtimes.megatron_bridge.capabilities:CAPABILITIES",
    "torchtitan": "trainplan.execution.runtimes.torchtitan.capabilities:CAPABILITIES",
    "deepspeed": "trainplan.execution.runtimes.deepspeed.capabilities:CAPABILITIES",
    "accelerate": "trainplan.execution.runtimes.accelerate.capabilities:CAPABILITIES",
    "torch": "trainplan.execution.runtimes.torch.capabilities:CAPABILITIES",
    "trainplan": "trainplan.execution.runtimes.trainplan.capabilities:CAPABILITIES",
}


@dataclass(frozen=True)
class Runtime:
    """The plans that a runtime can run.

    schedules: names of pipeline schedules. zero: ZeRO stages. modules: those that it can recompute by themselves.
    shares_tokens: whether tensor-parallel ranks always share tokens (sequence parallelism). one_stage: whether it has neither
    pipelines nor tensor parallelism. hybrid: whether ranks may hold copies of shards. host: states that may be on the host.
    neighbours: whether tensor-parallel ranks are always next to each other. one_strategy: whether all units have the same
    strategy. cuts_layers: whether stages may begin within a layer. sliced: whether forward passes may be sliced in halves.
    exchanges: what context-parallel ranks may exchange; empty without context parallelism. copies_keys: whether ranks that
    exchange heads may hold copies of keys. cut_families: model families with context parallelism; None for all. by_torch:
    whether it uses DTensor and FSDP2, on models as transformers builds them. families: its model families; None for all. tied:
    whether the head may share the embedding's matrix. first_layers: whether a stage can recompute its first layers only.
    wide_gradients: dtypes of models whose gradients are in float32 by default. narrow_gradients: whether that can be turned
    off. muon: ZeRO stages with Muon. recipes: low-precision recipes. features: names of `execution.support` that plans may
    need, because the runtime has the feature or its export says that it is left out.
    """

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
    features: Collection[str] = ("master weights",)

    def lacks(self, model: Model) -> str | None:
        """The first feature that the runtime lacks to train a model, in words; None where it lacks nothing."""
        if self.families is not None and model.family not in self.families:
            return f"{model.family} models"
        return "heads tied to the embedding" if model.tied and not self.tied else None

    def carries(self, strategy: Strategy, model: Model | None = None) -> bool:
        """Whether the runtime supports a strategy, for units of this model if it is given."""
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


class Runtimes(Mapping[str, Runtime]):
    """All runtimes by name; a runtime's module is imported when its entry is first used."""

    def __getitem__(self, name: str) -> Runtime:
        return _loaded(BUILT_IN[name])

    def __iter__(self) -> Iterator[str]:
        return iter(BUILT_IN)

    def __len__(self) -> int:
        return len(BUILT_IN)


RUNTIMES = Runtimes()


@cache
def _loaded(target: str) -> Runtime:
    """The capabilities that a text of the form "module:attribute" refers to."""
    runtime: Runtime = attribute(target)
    return runtime


def copies_keys(strategy: Strategy, model: Model) -> bool:
    """Whether context-parallel ranks that exchange heads hold copies of keys under a strategy."""
    attentions = [part for sublayer in model.sublayers.values() if (part := attention_of(sublayer)) is not None]
    tp, ranks = strategy.degree("tp"), strategy.degree("cp")
    return strategy.exchanges_heads and any(HeadShare(part, tp, ranks).copies for part in attentions)
