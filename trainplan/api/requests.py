"""The arguments of `plan` as objects: a request can be kept, changed and passed on, and an editor completes its fields.

    request = tp.PlanRequest(model="llama-3.1-70b", cluster="h100:8x8", batch=512, sequence=8192, for_="megatron")
    planned = tp.plan(request, search=tp.SearchOptions(time_limit=60, gap=0.001))
    larger = tp.plan(dataclasses.replace(request, batch=1024))

A request and keywords are the same: `tp.plan(model=..., cluster=..., batch=512)`; a keyword given with a request replaces its
field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any

from trainplan.api.keywords import given
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.arguments import check_value
from trainplan.profiling.base.display import in_one_line
from trainplan.profiling.base.files import FilePath
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.models.model import Model
from trainplan.profiling.profiles import Profile
from trainplan.solvers.core.limits import GAP, TIME_LIMIT_S


@in_one_line
@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """A model, the devices to train it on, and constraints on the plan. A field that is None is open: the planner chooses its
    value, or the default is taken.

    Attributes:
        model: A Hugging Face config.json, or a name from `trainplan model list`. A `profile` may stand in for it.

            Or a `Model`.
        cluster: A YAML or JSON file, a name from `trainplan cluster list`, or nodes of a kind, such as h100:8x16. A `profile`
            may stand in for it.

            Or a `Cluster`.
        batch: Samples of one step, over all devices.
        memory: Memory of each device to plan with, such as 8GiB (default: the device's less its reserve).

            Or a number of bytes.
        reserve: What stays free of each device's memory, such as 4GiB (default: the cluster's; of `memory` 0).

            Or a number of bytes.
        sequence: Tokens of a sample, such as 8192 (default: the most that the model allows).
        dtype: float32 (fp32), float64, bfloat16 (bf16) or float16 (fp16) (default: the profile's; the config's, if in half
            precision; bfloat16 or float16, as the cluster has, with float32 masters).
        profile: A profile made earlier (default: estimate).
        calibrated: Efficiencies corrected by own runs, as `validate --calibrated` writes them.
        measure: Measure the model on this machine, on as many processes.
        like: a preset (joint, galvatron-bmw, amp, autopipe, h3t) or a problem.
        for_: the runtime that is to run it: megatron, megatron-bridge, torchtitan, deepspeed, accelerate, torch or trainplan.
        pipeline: number of stages.
        micro_batches: number of micro-batches of a step.
        schedule: 1f1b, gpipe, interleaved, or all.
        chunks: stages on each group of devices that interleaving may have, at most.
        sliced: micro-batches that 1F1B may begin in two halves, at most.
        tp: tensor-parallel degree.
        dp: data-parallel copies.
        sdp: ranks that share model states.
        cp: context-parallel degrees to choose from, such as "1,2,4".
        cp_exchange: what context-parallel ranks exchange: keys, heads or any.
        zero: ZeRO stages to choose from, such as "0,3".
        hybrid: allow HSDP.
        sequence_parallel: let tensor-parallel ranks share the tokens, too.
        precision: of matrix multiplications: model, fp8, fp8-current, fp8-blockwise, mxfp8 or nvfp4.
        gradients: dtype in which they are added up and reduced: model or float32.
        optimizer: adamw or muon.
        modules: let modules be recomputed by themselves, too.
        recompute_first: layers of each stage that are recomputed, as `plan --recompute-first` takes them.
        recompute: recompute every layer (amp, autopipe).
        host: what units may keep on the host, of optimizer,parameters,hidden; all, or none.
        cost_model: auto, streams or executed.
        layouts: with overlap: one for all sub-layers, or unit, for each its own.
        memory_tables: what tables count of what programs hold: most or least.
        by_unit: choose for every sub-layer, not for every layer.
        one_strategy: one strategy for all sub-layers.
        forbid: strategies that no sub-layer may have.
        tp_in_node: keep tensor-parallel groups within a node.
        cuts: the sub-layers that stages begin with.
        space: strategies to choose from (galvatron-bmw).
        takeaway3: shortcut of its search (galvatron-bmw).
        uneven_shares: pipelines may get unlike numbers of micro-batches (amp).
        tied: the embedding's matrix is the head's (amp).
        ignore_memory: leave the memory limit out (amp, autopipe).
        objective: step or iteration (autopipe).
    """

    model: FilePath | Model | None = None
    cluster: FilePath | Cluster | None = None
    batch: int | None = None
    memory: str | int | None = None
    reserve: str | int | None = None
    sequence: int | None = None
    dtype: str | None = None
    profile: FilePath | Profile | None = None
    calibrated: FilePath | None = None
    measure: bool = False
    like: str | None = None
    for_: str | None = None
    pipeline: int | None = None
    micro_batches: int | None = None
    schedule: str | None = None
    chunks: int | None = None
    sliced: int | None = None
    tp: int | None = None
    dp: int | None = None
    sdp: int | None = None
    cp: str | int | None = None
    cp_exchange: str | None = None
    zero: str | int | None = None
    hybrid: bool | None = None
    sequence_parallel: bool | None = None
    precision: str | None = None
    gradients: str | None = None
    optimizer: str | None = None
    modules: bool | None = None
    recompute_first: str | int | None = None
    recompute: bool | None = None
    host: str | None = None
    cost_model: str | None = None
    layouts: str | None = None
    memory_tables: str | None = None
    by_unit: bool | None = None
    one_strategy: bool | None = None
    forbid: Sequence[str] | None = None
    tp_in_node: bool | None = None
    cuts: Sequence[str] | None = None
    space: str | None = None
    takeaway3: bool | None = None
    uneven_shares: bool | None = None
    tied: bool | None = None
    ignore_memory: bool | None = None
    objective: str | None = None


@in_one_line
@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How to search for a plan: method, limits and reports. None of it changes the prediction of a given plan.

    Attributes:
        method: A name from `trainplan methods PROBLEM`; exact is the best proven one.

            Of the problem that is planned, which a method never changes.
        time_limit: Seconds until the search ends; the best solution and its bound are kept.

            None for no limit.
        solver_memory: Memory that the method may take, such as 8GiB; the best until then is kept.
        gap: Relative gap at which to stop.
        seed: Seed of the method.
        cold: MILP and CP-SAT do not begin from the plan of a fast method.
        jobs: Processes that search, with the same answer (default: 1).
        backend: The back-end of `run` that the plan is for, fits on and is predicted on (default: serial; with switches
            streams).
        comparisons: also look for the best plan with one strategy, and for the prices of constraints.
        incumbents: plans, of whatever preset, that the search begins from (joint).
        progress: called with a text that names what is begun, and with a `Point` (seconds, objective, bound, in ns) for each
            better plan or bound, such as `progress=print`.
        measuring: called with the reports of measuring.
        options: of the method itself, by name, as `methods` lists them.
    """

    method: str = "exact"
    time_limit: float | None = TIME_LIMIT_S
    solver_memory: str | int | None = None
    gap: float = GAP
    seed: int = 0
    cold: bool = False
    jobs: int | None = None
    backend: str | None = None
    comparisons: bool = True
    incumbents: Sequence[Plan] = ()
    progress: Callable[[Any], None] | None = None
    measuring: Callable[[dict[str, Any]], None] | None = None
    options: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """The keywords of `plan` that are options of single solution methods (`methods` lists them), stated for type checkers."""

    workers: int | None = None
    cutoff_ns: int | None = None
    stage_time: str | None = None
    granularity_bytes: int | None = None
    partition: str | None = None
    layer_times: str | None = None
    assignment: str | None = None
    top: int | None = None
    iterations: int | None = None
    reading: str | None = None
    version: str | None = None
    levels: int | None = None
    samples: int | None = None
    answer: str | None = None


@dataclass(frozen=True)
class PlanKeywords(PlanRequest, SearchOptions, MethodOptions):
    """The parameters of `plan`: two objects, or their fields as keywords. Never instantiated; it states `plan`'s signature."""

    request: PlanRequest | None = None
    _: KW_ONLY
    search: SearchOptions | None = None


_NAMES = [field.name for field in fields(PlanRequest)]
CHOICES = tuple(_NAMES[_NAMES.index("like") + 1 :])  # fields that fix or widen the choices of a problem, which checks them


def keywords_of(request: PlanRequest | None, search: SearchOptions | None) -> dict[str, Any]:
    """The fields of a request and of search options that are not at their defaults, as keywords of `plan`; the method's own
    options become keywords, too.

    request, search: None for all defaults. Raises InputError for objects of other types.
    """
    check_value("request", request, PlanRequest | None)
    check_value("search", search, SearchOptions | None)
    named = given(request or PlanRequest()) | given(search or SearchOptions())
    return {**named.pop("options", {}), **named}
