"""Capabilities of training runtimes: the record of what a runtime can run, and where each runtime's own record stands.

A runtime declares its description once, as `CAPABILITIES` of its module `capabilities`. `plan --for NAME` searches only plans
that fit it (`joint.within_runtime`), exports refuse other plans, and suggestions of `import-run` stay within it. The modules
are named as texts and imported on request, since they belong to the package execution.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from trainplan.formulations.plan.plan import Plan, RunBy
from trainplan.formulations.plan.strategy import LEVELS, Exchange, Strategy
from trainplan.formulations.plan.torch_sharding import split_by_torch
from trainplan.profiling.base.plugins import attribute
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.sublayers import HeadShare, attention_of

DECODERS = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "phi3", "glm", "nemotron")
FOLDERS = {  # under execution/runtimes, of each runtime: its capabilities, and its export and its reader where it has them
    "megatron": "megatron",
    "megatron-bridge": "megatron_bridge",
    "torchtitan": "torchtitan",
    "deepspeed": "deepspeed",
    "accelerate": "accelerate",
    "torch": "torch",
    "trainplan": "trainplan",
}


@dataclass(frozen=True)
class StepAndPeaks:
    """The prediction of one training step of a plan, by the runtime that runs it.

    Attributes:
        runtime: the runtime's name as people write it, such as Megatron-LM.
        software: the framework's name in tables of measured runs, such as megatron-core.
        step_ns: the time of the step.
        peak_bytes: for every rank, the peak memory of its device, in rank order.
        details: the whole prediction, a `validation.predict.Prediction` (interval of the step, its parts, memory by category).
    """

    runtime: str
    software: str
    step_ns: int
    peak_bytes: tuple[int, ...]
    details: Any = None

    @property
    def most_bytes(self) -> int:
        """The peak memory of the fullest device."""
        return max(self.peak_bytes)


@dataclass(frozen=True)
class Runtime:
    """The plans that a runtime (a training framework) can run.

    schedules: names of its pipeline schedules. zero: its ZeRO stages. modules: the modules that it can recompute one by one.
    shares_tokens: whether tensor-parallel ranks always split tokens (sequence parallelism). one_stage: whether it has neither
    pipelines nor tensor parallelism. hybrid: whether sharded states may be copied over several groups of ranks (HSDP). host:
    the model states that may be on the host. neighbours: whether tensor-parallel ranks are always next to each other.
    one_strategy: whether all units have one strategy. shards_masters: whether states with float32 master weights are sharded
    even where copies of them are asked for (ZeRO stage 0 becomes 1). cuts_layers: whether stages may begin within a layer.
    sliced: whether forward passes may be sliced in halves.

    exchanges: what context-parallel ranks may exchange (`keys`, `heads`); empty without context parallelism. copies_keys:
    whether ranks that exchange heads may hold copies of key heads. cut_families: the model families for which it has
    context parallelism; None for all. by_torch: whether it shards with DTensor and FSDP2, on models as transformers builds
    them. families: the model families that it trains; None for all. tied: whether the head may share the embedding's
    matrix. first_layers: whether a stage can recompute its first layers only. wide_gradients: the model dtypes for which
    gradients are in float32 by default. narrow_gradients: whether float32 gradients can be turned off. optimizers: for each
    optimizer other than AdamW, by name, its ZeRO stages. recipes: names of its low-precision recipes. features: names of
    `execution.support` that a plan may need, and that the runtime has or its export reports as left out.
    """

    schedules: tuple[str, ...]
    zero: tuple[int, ...]
    modules: Collection[str] = ()
    shares_tokens: bool = False
    one_stage: bool = False
    shards_masters: bool = False
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
    optimizers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    recipes: Collection[str] = ()
    features: Collection[str] = ("master weights",)
    title: str = ""
    short: str = ""
    run_by: Callable[[Plan], RunBy] | None = None
    by_programs: bool = False
    runs_as: str = ""
    layout_file: str = ""
    one_micro_batch: bool = False
    vocabulary_keys: str = ""
    states_training: bool = False

    @property
    def unpredicted(self) -> bool:
        """Whether nothing predicts the runtime itself, so that its plans have step and memory of trainplan's own programs."""
        return self.run_by is None and not self.by_programs

    def lacks(self, model: Model) -> str | None:
        """The first feature that training a model needs and this runtime does not have, as a text such as "gpt2 models"; None
        if it has everything.
        """
        if self.families is not None and model.family not in self.families:
            return f"{model.family} models"
        return "heads tied to the embedding" if model.tied and not self.tied else None

    def carries(self, strategy: Strategy, model: Model | None = None) -> bool:
        """Whether the runtime can train sub-layers under a strategy: sub-layers of any model or, if a model is given, all
        sub-layers of that model. Levels that planners do not choose by themselves (cp, ep) are not judged here: planning checks
        cp by `exchanges`, and exports refuse plans with a level whose feature the runtime lacks."""
        names = [name for name, _ in strategy.levels]
        neighbours = not self.neighbours or "tp" not in names[:-1]
        if self.by_torch and (not split_by_torch(model, strategy) or (strategy.sequence_parallel and not strategy.ckpt)):
            return False  # tokens gathered in front of matrices are kept unless a unit is recomputed
        if model is not None and not self.copies_keys and copies_keys(strategy, model):
            return False
        special = {LEVELS[name].feature for name in names if LEVELS[name].in_trees} - {""}
        if not special <= set(self.features):
            return False
        tokens = strategy.sequence_parallel or not self.shares_tokens or strategy.degree("tp") == 1
        if (self.one_stage and "tp" in names) or (not self.hybrid and strategy.copies > 1 and "sdp" in names):
            return False
        if strategy.group == 1:
            return set(strategy.modules) <= set(self.modules)
        return neighbours and tokens and set(strategy.modules) <= set(self.modules) and strategy.zero_stage in self.zero


def folder(name: str) -> str:
    """The dotted name of the Python package with one runtime's capabilities, readers and exports: "torch" ->
    "trainplan.execution.runtimes.torch"."""
    return f"trainplan.execution.runtimes.{FOLDERS[name]}"


class Runtimes(Mapping[str, Runtime]):
    """All runtimes by name; a runtime's module is imported when its entry is first used."""

    def __getitem__(self, name: str) -> Runtime:
        return _loaded(f"{folder(name)}.capabilities:CAPABILITIES")

    def __iter__(self) -> Iterator[str]:
        return iter(FOLDERS)

    def __len__(self) -> int:
        return len(FOLDERS)


RUNTIMES = Runtimes()
# Runtimes that plans are neither searched for nor exported to: measured runs of theirs are predicted, and plans as if they ran.
ONLY_PREDICTED: Mapping[str, Runtime] = {
    "nemo": Runtime(("1f1b", "interleaved"), (0, 1), title="NeMo", run_by=lambda _: RunBy(name="nemo", software="NeMo")),
    "nanotron": Runtime(("1f1b", "gpipe"), (0, 1), run_by=lambda _: RunBy(name="nanotron", software="nanotron")),
    "composer": Runtime(
        ("1f1b",), (2, 3), one_stage=True, title="Composer", run_by=lambda _: RunBy(name="composer", software="Composer")
    ),
}
PREDICTION = "trainplan.validation.plans:predict"  # the function that predicts runtimes, which imports this module


def predict(plan: Plan, cluster: Cluster, runtime: str | None = None) -> StepAndPeaks | str:
    """Predict step and peak memory of a plan as a runtime (training framework) runs it on a cluster: the one prediction that
    all commands give, and that searches for this runtime minimise.

    The plan needs no prediction of its own programs. It is not checked whether the runtime can run the plan (see
    `joint.within_runtime`). One call takes about 10 ms.

    Args:
        plan: the plan: its layout, stages, recomputation, optimizer and precision.
        cluster: the devices.
        runtime: the runtime's name, such as "megatron", with the settings that `run_by` gives for the plan; None for the
            runtime and the settings in the plan's field `runs_by`.

    Returns:
        The prediction; or, if the runtime cannot be predicted for such plans or on such devices, the reason as a text.
    """
    found: StepAndPeaks | str = attribute(PREDICTION)(plan, cluster, runtime)
    return found


BY_PROGRAMS = (
    "predicted as trainplan's own programs, since its capabilities name no prediction"  # of runtimes without a prediction
)


def described(name: str | None) -> Runtime | None:
    """The runtime called `name`, of those that plans are made for (`RUNTIMES`) or of those that are only predicted
    (`ONLY_PREDICTED`); None if there is none."""
    if name is None:
        return None
    return RUNTIMES[name] if name in FOLDERS else ONLY_PREDICTED.get(name)


def run_by(name: str | None, plan: Plan) -> RunBy | None:
    """The settings with which the runtime called `name` runs a plan: the plan's own, in its field `runs_by`, if that is for
    this runtime, otherwise those with which the plan is exported to it (`export --to`). None for trainplan's own runtime and
    for torch scripts, whose prediction is the simulation of the plan's own programs.
    """
    own = plan.runs_by
    return own if own is not None and own.name == name else exported_settings(name, plan)


def exported_settings(name: str | None, plan: Plan) -> RunBy | None:
    """The settings with which the runtime called `name` runs a plan that was exported to it (`export --to`), whatever settings
    the plan has itself. None for runtimes whose prediction is the simulation of the plan's own programs.
    """
    runtime = described(name)
    if runtime is None or runtime.run_by is None:
        return None
    return runtime.run_by(plan)


def devices_of(plan: Plan) -> Cluster | None:
    """The cluster that a plan was made for, as the evidence of its claim or the settings of its runtime state it; None if the
    plan does not say."""
    evidence = None if plan.claim is None else plan.claim.evidence
    stated = None if evidence is None else evidence.cluster
    if stated is None and plan.runs_by is not None:
        stated = plan.runs_by.cluster
    return None if stated is None else Cluster.model_validate(stated)


def title(name: str) -> str:
    """The name of a runtime as people write it; the name itself where it is none of the runtimes that are known."""
    runtime = described(name)
    return ("" if runtime is None else runtime.title) or name


def named(runtime: str) -> str | None:
    """The name of the runtime that people write as `runtime`: "Megatron-LM" -> "megatron"; None if there is none."""
    return next((name for name in FOLDERS if title(name) == runtime), None)


def short_title(name: str) -> str:
    """The name of a runtime in tables of plans; the name itself where it is none of these runtimes."""
    runtime = described(name)
    return ("" if runtime is None else runtime.short) or title(name)


@cache
def _loaded(target: str) -> Runtime:
    """The capabilities of one runtime, imported from `target`, a text of the form "module:attribute"; cached."""
    runtime: Runtime = attribute(target)
    return runtime


def copies_keys(strategy: Strategy, model: Model) -> bool:
    """Whether, under a strategy, context-parallel ranks that exchange attention heads hold copies of key heads, because there
    are fewer key heads than ranks."""
    attentions = [part for sublayer in model.sublayers.values() if (part := attention_of(sublayer)) is not None]
    tp, ranks = strategy.degree("tp"), strategy.degree("cp")
    return strategy.exchanges_heads and any(HeadShare(part, tp, ranks).copied_key_heads for part in attentions)
