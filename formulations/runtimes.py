"""What each runtime can run: the record of it, and where every runtime's own is.

A runtime says it once, as `CAPABILITIES` of its own module: `plan --for NAME` plans within it (`joint.runtimes`), the export
refuses by it what is not within, and what changes a run of the runtime stays within it. The modules are named here as texts and
imported when a runtime is asked for, since they belong to execution.
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
    """What a runtime runs. zero: ZeRO stages; modules: those that it can recompute by themselves; shares_tokens: whether
    tensor-parallel ranks always share the tokens, neighbours: whether they are next to each other. one_stage: whether it has no
    pipeline and no tensor parallelism; hybrid: whether ranks may hold copies of shards; host: what may be kept there.
    one_strategy: whether all units have one; cuts_layers: whether stages may begin within a layer; sliced: whether forward
    passes may begin in halves; exchanges: what context-parallel ranks may exchange, nothing without context parallelism;
    copies_keys: whether ranks that exchange heads may have copies of keys; cut_families: the models that have that, all where
    it is None; by_torch: whether it is DTensor and FSDP2, of models as transformers builds them. families:
    of the models that it has, all of them where it is None; tied: whether their head may be the embedding's matrix;
    first_layers: whether stages can recompute their first layers alone; wide_gradients: of models in which dtypes gradients are
    in float32 unless it is told otherwise, narrow_gradients: whether it can be told so. muon: the ZeRO stages in which it has
    Muon, none where it does not. recipes: of products in fewer bits. features: what plans may ask for, by the names of
    `execution.features`, since it runs that or its export says that it leaves it out."""

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


class Runtimes(Mapping[str, Runtime]):
    """All runtimes by name, each loaded when it is asked for."""

    def __getitem__(self, name: str) -> Runtime:
        return _loaded(BUILT_IN[name])

    def __iter__(self) -> Iterator[str]:
        return iter(BUILT_IN)

    def __len__(self) -> int:
        return len(BUILT_IN)


RUNTIMES = Runtimes()


@cache
def _loaded(target: str) -> Runtime:
    made: Runtime = attribute(target)
    return made


def copies_keys(strategy: Strategy, model: Model) -> bool:
    """Whether context-parallel ranks that exchange heads have copies of keys."""
    attentions = [part for sublayer in model.sublayers.values() if (part := attention_of(sublayer)) is not None]
    tp, ranks = strategy.degree("tp"), strategy.degree("cp")
    return strategy.exchanges_heads and any(HeadShare(part, tp, ranks).copies for part in attentions)
