"""What `plan` is asked, as types: an editor completes their fields, and they are passed on, kept and changed as one thing.

    request = tp.PlanRequest(model="llama-3.1-70b", cluster="h100:8x8", batch=512, sequence=8192, for_="megatron")
    planned = tp.plan(request, search=tp.SearchOptions(time_limit=60, gap=0.001))
    larger = tp.plan(dataclasses.replace(request, batch=1024))

A request and keywords are the same: `tp.plan(model=..., cluster=..., batch=512)`; a keyword beside a request takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec, TypedDict, TypeVar, cast

from trainplan.formulations.plan.plan import Plan
from trainplan.inputs import FilePath
from trainplan.profiling.base.arguments import check_value
from trainplan.profiling.base.display import in_one_line
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.models.model import Model
from trainplan.profiling.profiles import Profile

Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")


class Choices(TypedDict, total=False):
    """Keywords of `plan` that fix or widen what a plan may be; see `PlanRequest`."""

    for_: str | None
    pipeline: int | None
    micro_batches: int | None
    schedule: str | None
    chunks: int | None
    sliced: int | None
    tp: int | None
    dp: int | None
    sdp: int | None
    cp: str | int | None
    cp_exchange: str | None
    zero: str | int | None
    hybrid: bool | None
    sequence_parallel: bool | None
    precision: str | None
    gradients: str | None
    optimizer: str | None
    modules: bool | None
    recompute_first: str | int | None
    recompute: bool | None
    host: str | None
    cost_model: str | None
    memory_tables: str | None
    by_unit: bool | None
    one_strategy: bool | None
    forbid: Sequence[str] | None
    tp_in_node: bool | None
    cuts: Sequence[str] | None
    space: str | None
    takeaway3: bool | None
    uneven_shares: bool | None
    tied: bool | None
    ignore_memory: bool | None
    objective: str | None


CHOICES = Choices.__annotations__


class MethodOptions(TypedDict, total=False):
    """Keywords of `plan` that one method takes for itself, as `methods` lists them with it."""

    workers: int
    cutoff_ns: int
    stage_time: str
    granularity_bytes: int
    partition: str
    layer_times: str
    assignment: str
    top: int
    iterations: int
    reading: str
    version: str
    levels: int
    samples: int
    answer: str


class Keywords(Choices, MethodOptions, total=False):
    """Keywords of `plan` beside those that it names."""


@in_one_line
@dataclass(frozen=True)
class PlanRequest:
    """What to plan for, and what is asked of the plan. What is None is open: the planner chooses, or the default is taken.

    Attributes:
        model: a name, a config.json or a Model.
        cluster: a name, such as h100:8x8, a file or a Cluster.
        batch: samples of one step, over all devices.
        memory: of one device, such as "8GiB", or bytes (default: what is usable of the cluster's).
        reserve: what stays free of it, in place of the cluster's own.
        sequence: tokens of a sample (default: the longest that the model allows).
        dtype: of the model, such as "bf16" (default: the config's, else half precision).
        profile: numbers made earlier, which may stand in for model and cluster.
        measure: measure the model on this machine, rather than estimate it from shapes.
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
@dataclass(frozen=True)
class SearchOptions:
    """How to look for a plan; nothing of it changes what a plan is worth.

    Attributes:
        method: a name of `methods`; `exact` is the best proven one.
        backend: of `run`, on which the plan must fit, too.
        time_limit: seconds until searches end.
        gap: relative gap at which to stop.
        seed: of the method.
        cold: MILP and CP-SAT do not begin from the plan of a fast method.
        solver_memory: what the method may take, such as "8GiB".
        jobs: processes that search, which change nothing in the answer (default: 1).
        beside: look for the best plan with one strategy, and for the prices of constraints, too.
        incumbents: plans, of whatever preset, that the search begins from (joint).
        progress: called with a text that names what is begun, and with a `Point` for each better plan or bound.
        measuring: called with the reports of measuring.
        options: of the method itself, by name, as `methods` lists them.
    """

    method: str = "exact"
    backend: str | None = None
    time_limit: float | None = None
    gap: float = 0.0
    seed: int = 0
    cold: bool = False
    solver_memory: str | int | None = None
    jobs: int | None = None
    beside: bool = True
    incumbents: Sequence[Plan] = ()
    progress: Callable[[Any], None] | None = None
    measuring: Callable[[dict[str, Any]], None] | None = None
    options: Mapping[str, Any] | None = None


def keywords_of(request: PlanRequest | None, search: SearchOptions | None) -> dict[str, Any]:
    """The fields that are set, as keywords of `plan`. Raises InputError for objects of other types."""
    check_value("request", request, PlanRequest | None)
    check_value("search", search, SearchOptions | None)
    given = [(each, field) for each in (request, search) if each is not None for field in fields(each)]
    named = {field.name: value for each, field in given if (value := getattr(each, field.name)) != field.default}
    return {**(named.pop("options", None) or {}), **named}


def asked_at_once(verb: Callable[Parameters, Answer]) -> Callable[Parameters, Answer]:
    """The verb, whose `request` and `search` come in as the keywords that they stand for, and whose signature names all
    choices, for those who look at it when it runs, as notebooks do to complete what is typed."""

    @wraps(verb)
    def asking(request: Any = None, *, search: Any = None, **keywords: Any) -> Answer:
        whole = cast("Callable[..., Answer]", verb)
        return whole(**{**keywords_of(request, search), **keywords})

    *named, others = signature(verb).parameters.values()
    chosen = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind) for name, kind in CHOICES.items()]
    asking.__signature__ = signature(verb).replace(parameters=[*named, *chosen, others])  # type: ignore[attr-defined]
    return cast("Callable[Parameters, Answer]", asking)
