"""The meaning of a run's words on its mixture of experts: dispatch, routing, graphs, overlap, and stages.

Fields of a row count; where they are empty, its note does, and then what recipes of its framework have. Recipes are those of
Megatron-Bridge (`perf_recipes`, August 2026), which measure with forced balance: MXFP8 since release 26.06 with full-iteration
graphs, activations fused into products and the exchange alongside passes (`_enable_hybridep_full_iteration_mxfp8`,
`_enable_deepseek_full_iteration_mxfp8`, `_apply_gpt_oss_120b_full_iter_fp8mx_configs`).
"""

from __future__ import annotations

import re

from trainplan.execution.runtimes.megatron import layouts
from trainplan.formulations.costs.overlapped.folding import Dispatcher
from trainplan.formulations.costs.overlapped.frameworks import BRIDGE
from trainplan.formulations.costs.overlapped.layout import Framework
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.models.model import Model
from trainplan.profiling.shipped import sized
from trainplan.validation.rows import Run
from trainplan.validation.words import flag

# Tokens of the fullest rank over the mean where a router learns: of three published pairs of runs that differ in it alone
# (Qwen3-235B-A22B on 256 H100, twice, and Qwen3-30B-A3B on 8 GB200), whose steps differ by 15 to 24 %. Where a benchmark does
# not say how it routes, its steps are those of balanced routers.
REAL_IMBALANCE, UNSAID_IMBALANCE = 1.3, 1.0
# Host's times of a unit of experts with the attention before it. Where parts are graphs: of two runs of Qwen3-30B-A3B on B200
# with little work for each kernel, with a capacity, and where the host waits for the numbers of rows. Without graphs, for each
# expert of a rank in addition, whose casts and products Transformer Engine issues one by one (`split_quantize`,
# `general_grouped_gemm`): with these two numbers 56 kinds of runs of ten sources are off by 18 % in the mean, by 23 % with the
# first alone; where any one source is left out, they are the best for the others of those tried (but for one).
ISSUED_NS, WAITED_NS = 1_900_000.0, 3_700_000.0
EAGER_NS, EXPERT_NS = 3_500_000.0, 220_000.0
DISPATCHERS: tuple[tuple[str, Dispatcher], ...] = (
    (r"deep[_ -]?ep|hybrid[_ -]?ep|flex|uccl", "deduplicated"),
    (r"all[_ -]?to[_ -]?all|a2a", "all-to-all"),
    (r"all[_ -]?gather", "all-gather"),
)
NOTED_DISPATCHER = re.compile(r"dispatcher[\w ]*?[ :=]+([\w-]+)|\b(deep[_ -]?ep|hybrid[_ -]?ep)\b", re.IGNORECASE)
NOTED_GRAPHS = re.compile(r"cuda[_ -]?graphs?[ :=]+([^;]*)", re.IGNORECASE)
NOTED_LAYOUT = re.compile(r"pipeline[_ -](?:model[_ -]parallel[_ -])?layout[ :=]+([Etm*|()\dL]+)")
BALANCED = re.compile(r"forc\w*[ _-](?:load[_ -])?balanc|fake balanced|balanced (?:gate|routing)|uniform", re.IGNORECASE)
ALONGSIDE = r"(?:overlap[_ -]moe[_ -]expert[_ -]parallel[_ -]comm|ep[ _-]all[_ -]?to[_ -]?all[ _-]overlap|ep[ _-]overlap)"
DROPLESS = re.compile(r"drop-?less", re.IGNORECASE)
FULL_SINCE = (26, 6)  # release of Megatron-Bridge, or year and month, since which MXFP8 has full-iteration graphs


def dispatcher_of(run: Run, framework: Framework, assumed: dict[str, str]) -> Dispatcher:
    """How tokens of a measured run come to their experts: as it states it, or else as recipes of Megatron-Bridge have it
    (DeepEP or HybridEP, `apply_flex_dispatcher_backend`), and by all-to-all in other frameworks.

    framework: the cost model's settings for its framework. assumed: assumptions as texts by name, written to. Raises InputError
    for unknown words.
    """
    words = run.dispatcher
    if words is None and (noted := NOTED_DISPATCHER.search(run.note or "")):
        words = noted[1] or noted[2]
    if words is None:
        usual: Dispatcher = "deduplicated" if framework.name == BRIDGE.name else "all-to-all"
        assumed["dispatcher"] = usual
        return usual
    found = next((name for pattern, name in DISPATCHERS if re.search(pattern, words.lower())), None)
    if found is None:
        raise InputError(run.id, "dispatcher", f"is {words!r}", "give alltoall, allgather, deepep or hybridep")
    return found


def balanced(run: Run) -> bool:
    """Whether a measured run states that its routing is forced to be balanced."""
    return BALANCED.search(run.routing or run.note or "") is not None


def imbalance_of(run: Run, assumed: dict[str, str]) -> float:
    """Tokens of the fullest rank over the mean in a measured run: as it states it, 1 where routing is forced to be balanced or
    not spoken of, or else what routers that learn have. assumed: assumptions as texts by name, written to."""
    if run.imbalance is not None:
        return max(1.0, run.imbalance)
    if balanced(run):
        return 1.0
    real = re.search(r"real|natural|learn|aux", run.routing or "") is not None
    value = REAL_IMBALANCE if real else UNSAID_IMBALANCE
    assumed["imbalance"] = f"{value:g}, of routers that learn" if real else f"{value:g}, as routing is not said"
    return value


def graphs_of(run: Run, framework: Framework, assumed: dict[str, str]) -> str:
    """The work that the host of a measured run issues as graphs, in lower case, such as `full_iteration`; empty if nothing.
    framework: the cost model's settings for its framework. assumed: assumptions as texts by name, written to."""
    if run.cuda_graph is not None:
        return str(run.cuda_graph).lower()
    if noted := NOTED_GRAPHS.search(run.note or ""):
        return noted[1].lower()
    if _has_full_graphs(run, framework):
        assumed["cuda_graph"] = "full_iteration, as recipes have it"
        return "full_iteration"
    return ""


def _has_full_graphs(run: Run, framework: Framework) -> bool:
    """Whether recipes have full-iteration graphs for a measured run: in MXFP8 with forced balance, since FULL_SINCE. framework:
    the cost model's settings for its framework."""
    dated = re.match(r"(?:20)?(\d\d)[.-](\d\d)", run.date or "")
    since = dated is not None and (int(dated[1]), int(dated[2])) >= FULL_SINCE
    micro_scaled = re.search(r"mx[_ -]?fp8|fp8[_ -]mx", (run.precision or "").lower()) is not None
    return framework.name == BRIDGE.name and since and micro_scaled and balanced(run)


def runs_alongside(run: Run, assumed: dict[str, str]) -> bool:
    """Whether the exchange of a micro-batch of a measured run is in parallel with another one's passes: as it states it, and
    where full-iteration graphs are assumed. assumed: assumptions as texts by name."""
    if run.ep_overlap is not None:
        return run.ep_overlap
    return bool(flag((run.note or "").lower(), ALONGSIDE)) or "cuda_graph" in assumed


def drops_tokens(run: Run) -> bool:
    """Whether a measured run has a capacity, so that numbers of rows are known before tokens are sent."""
    words = DROPLESS.sub("", f"{run.routing or ''} {run.note or ''}".lower())
    return run.capacity_factor is not None or re.search(r"token[ _-]drop", words) is not None


def issue_ns(run: Run, graphs: str, experts: float) -> float:
    """The time that the host of a measured run takes to issue the forward pass of a unit of experts and of the attention before
    it. Without a capacity the host waits for the numbers of rows before it can issue their products. graphs: what it issues as
    graphs. experts: the number of experts of a rank."""
    if "full" in graphs:
        return 0.0
    waits = WAITED_NS - ISSUED_NS
    whole = WAITED_NS if graphs and "none" not in graphs else EAGER_NS + experts * EXPERT_NS
    return whole - waits * drops_tokens(run)


def layout_string(run: Run) -> str | None:
    """The layers of a measured run's stages as Megatron-LM's `--pipeline-model-parallel-layout` writes them; None if it states
    none."""
    if run.pp_layout is not None:
        return run.pp_layout
    noted = NOTED_LAYOUT.search(run.note or "")
    return noted[1] if noted else None


def string_stages(run: Run, layers: int, count: int) -> tuple[int, ...] | None:
    """The number of layers of each stage by a measured run's layout string, such as `Et*4|(t*4|)*14tmL`; None if it has none. A
    layer that predicts further tokens (`m`) counts with the last. Raises InputError unless it has `count` stages of `layers`
    layers together.
    """
    text = layout_string(run)
    if text is None:
        return None
    stages = tuple(stage.count("t") + stage.count("m") for stage in layouts.parsed(text))
    missing = layers - sum(stages)
    if len(stages) != count or missing not in (0, 1) or ("m" in text and missing):
        problem = f"has {sum(stages)} layers in {len(stages)} stages"
        raise InputError(run.id, "pp_layout", problem, f"give {layers} layers in {count} stages")
    return (*stages[:-1], stages[-1] + missing)


def mixture_stages(run: Run, model: Model, count: int) -> tuple[int, ...] | None:
    """The number of layers in each of `count` stages of a mixture of experts whose layers they do not divide: equally many in
    each but the last ones, which have what is left, and the last the layers that predict further tokens, as in layouts of
    Megatron-Bridge (`set_deepseek_v3_pipeline_model_parallel_layout`). None where stages are equal, also with embedding and
    head counted as a layer each, and for other models. model: the run's model, layers that predict further tokens included."""
    further = getattr(model.units[-1].sublayer, "predictions", 0)
    layers = model.layers - further
    if not is_mixture(run) or count < 2 or not model.layers % count or not (layers + 2) % count:
        return None
    most = -(-layers // count)
    stages = [max(0, min(most, layers - most * stage)) for stage in range(count)]
    return (*stages[:-1], stages[-1] + further)


def is_mixture(run: Run) -> bool:
    """Whether a measured run's model is a mixture of experts: it states more than one expert, or ranks that divide them, or has
    the name of a mixture that comes with the package and states no number of experts."""
    named = run.experts is None and sized(run.model, "mixtures") is not None
    return (run.experts or 1) > 1 or (run.ep or 1) > 1 or named
