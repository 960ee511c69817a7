"""The parameters by which users narrow the joint problem, and the search space for which their values stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainplan.formulations import parameters
from trainplan.formulations.joint.search_space import BOUNDED, SCHEDULES, ZERO_STAGES, Space, ZeroStage
from trainplan.formulations.joint.tables import HOST_PARTS, HostPart
from trainplan.formulations.parameters import MICRO_BATCHES, PIPELINE, Parameter
from trainplan.formulations.plan.request import Request
from trainplan.formulations.plan.strategy import EXCHANGES, Exchange
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, shown
from trainplan.profiling.clusters.recipes import RECIPES
from trainplan.profiling.models.optimizers import OPTIMIZERS

SCHEDULE = Parameter("schedule", str, "orders of passes to choose from: one of them, or all", "1f1b", (*SCHEDULES, "all"))
SLICED = Parameter("sliced", int, "micro-batches that 1F1B may begin in two halves, at most", 0, least=0)
CHUNKS = Parameter("chunks", int, "stages that the interleaved schedule may have on each group of devices, at most", 2, least=2)
BY_UNIT = replace(parameters.BY_UNIT, about="choose for every sub-layer, not for every layer", default=True)
ZERO = Parameter("zero", str, "ZeRO stages to choose from, 0 for copies (dp), such as 0,3", ",".join(map(str, ZERO_STAGES)))
HYBRID = Parameter("hybrid", bool, "allow HSDP: shards within groups of ranks, copies between them (dp outside sdp)", False)
SEQUENCE_PARALLEL = Parameter(
    "sequence_parallel", bool, "allow sequence parallelism: tensor-parallel ranks split the tokens between matrices", True
)
MODULES = Parameter("modules", bool, "allow recomputing single modules: attention, activation, norms, loss", False)
HOST = Parameter(
    "host",
    str,
    "what may be kept on the host, of optimizer,parameters,hidden (inputs of recomputed sub-layers, the one that the cost "
    "model streams has); all, or none",
    "none",
)
COST_MODEL = Parameter(
    "cost_model",
    str,
    "executed: without overlap, as trainplan's programs run; streams: with the overlap of frameworks, of one strategy for "
    "all sub-layers; auto: streams on nodes of a kind such as h100:8x16, where it takes what is asked for",
    "auto",
    ("auto", "streams", "executed"),
)
LAYOUTS = Parameter(
    "layouts",
    str,
    "with overlap (streams): one layout (degrees, ZeRO stage) for all sub-layers, as frameworks run; unit: each may have its "
    "own, as trainplan's executor runs",
    "one",
    ("one", "unit"),
)
COSTS = {"streams": "with overlap", "executed": "without overlap"}  # in words
CP = Parameter("cp", str, "context-parallel degrees to choose from, with overlap (streams), such as 1,2,4", "1")
CP_EXCHANGE = Parameter(
    "cp_exchange",
    str,
    "what context-parallel ranks exchange for attention: keys (and values, around a ring); heads, by all-to-alls, as "
    "DeepSpeed-Ulysses; any: both are tried",
    "keys",
    (*EXCHANGES, "any"),
)
PRECISION = Parameter(
    "precision",
    str,
    "precision of the layers' matrix multiplications: the model's dtype, or a recipe in fewer bits, with overlap (streams)",
    "model",
    ("model", *RECIPES),
)
GRADIENTS = Parameter(
    "gradients",
    str,
    "dtype that gradients are added up and reduced in: the model's, or float32. [default: the runtime's own; the model's]",
    None,
    ("model", "float32"),
)
OPTIMIZER = Parameter(
    "optimizer",
    str,
    f"the optimizer: {', or '.join(spec.about for spec in OPTIMIZERS.values())}",
    "adamw",
    tuple(OPTIMIZERS),
)
MEMORY_TABLES = Parameter(
    "memory_tables",
    str,
    "memory that the search counts: most, with which plans fit; least, with which the bound holds for every plan that fits",
    "most",
    ("most", "least"),
)
PARAMETERS = (
    PIPELINE, MICRO_BATCHES, SCHEDULE, SLICED, CHUNKS, BY_UNIT, ZERO, HYBRID, SEQUENCE_PARALLEL, MODULES, HOST,
    COST_MODEL, LAYOUTS, CP, CP_EXCHANGE, PRECISION, GRADIENTS, OPTIMIZER, MEMORY_TABLES,
)  # fmt: skip


def cost_words(cost_model: str) -> str:
    """The description of a cost model for users: `streams` -> `with overlap`, `executed` -> `without overlap`; other names
    stay. Text that follows the name after a comma is kept: `executed, Eq. 8` -> `without overlap, Eq. 8`."""
    name, comma, rest = cost_model.partition(",")
    return COSTS.get(name, name) + comma + rest


def space_of(options: Mapping[str, Any]) -> Space:
    """The search space that the options of a request describe. options: the value of each of the parameters in `PARAMETERS` by
    name. Raises InputError if the text of `zero` or of `host` is not understood."""
    return Space(
        depths=None if options["pipeline"] is None else [options["pipeline"]],
        micro_batches=None if options["micro_batches"] is None else [options["micro_batches"]],
        schedules=BOUNDED if options["schedule"] == "all" else (options["schedule"],),
        most_sliced=options["sliced"],
        most_chunks=options["chunks"],
        even_chunks=True,
        by_unit=options["by_unit"],
        zero=_zero_stages(options["zero"]),
        hybrid=options["hybrid"],
        sequence_parallel=options["sequence_parallel"],
        recompute=("none", "modules", "full") if options["modules"] else ("none", "full"),
        host=_host_parts(options["host"]),
        optimizer=options[OPTIMIZER.name],
        least_memory=options[MEMORY_TABLES.name] == "least",
        unit_layouts=options[LAYOUTS.name] == "unit",
    )


def with_tables(request: Request, tables: str) -> Request:
    """The request in which the option `memory_tables` is set to `tables`, if its problem has that parameter; otherwise the
    request unchanged. tables: `most` for memory tables whose bytes are an upper bound of what programs hold, `least` for a
    lower bound. request: the user's model, cluster, batch and options.
    """
    if MEMORY_TABLES.name not in request.options:
        return request
    return replace(request, options={**request.options, MEMORY_TABLES.name: tables})


def streams_refusal(request: Request) -> str | None:
    """The reason, in words, why the cost model `streams`, which counts overlap of communication and computation, does not
    apply to a request; None if it applies. It needs a described cluster of equal nodes, devices with known kernel
    efficiencies, and a described model. request: the user's model, cluster, batch and options.
    """
    cluster, model, options = request.cluster, request.model, request.options
    if cluster is None or request.profile is not None or request.measured or model is None:
        return "the numbers are those of a profile"
    kinds = cluster.used_kinds
    if len(kinds) > 1 or len({node.devices for node in cluster.nodes}) > 1 or cluster.matrix is not None:
        return "nodes or devices are unlike"
    if not kinds[0].efficiencies:
        return f"what kernels of {kinds[0].name} reach is not known by their classes"
    if model.dtype not in kinds[0].flops_per_s:
        return f"{kinds[0].name} has no rate in {model.dtype}"
    if options["sliced"] or not set(_host_parts(options["host"])) <= {"hidden"}:
        return "--sliced, and --host of more than hidden, are of the cost model executed"
    return None


def unusual_costs_reason(request: Request) -> str | None:
    """The reason, in words, why a request is planned with the cost model `executed` (without overlap) although its devices
    have known kernel efficiencies, so that `streams` (with overlap) is usual for them. None if the user chose the cost
    model, if the devices have no kernel efficiencies, or if `streams` applies. request: the user's model, cluster, batch
    and options.
    """
    kinds = () if request.cluster is None else request.cluster.used_kinds
    if not any(kind.efficiencies for kind in kinds) or request.options[COST_MODEL.name] != COST_MODEL.default:
        return None
    refusal = streams_refusal(request)
    return None if refusal is None else f"executed, whose steps do not compare with those of streams: {refusal}"


def cost_model_of(request: Request) -> str:
    """The name of the cost model with which a request is planned: `streams` (with overlap) or `executed` (without). request:
    the user's model, cluster, batch and options. Raises InputError if the user requests `streams` and it does not apply,
    or requests an option of `streams` (context parallelism, low precision) and it is not used.
    """
    requested, refusal = request.options["cost_model"], streams_refusal(request)
    chosen = requested if requested != "auto" else "executed" if refusal else "streams"
    if chosen == "streams":
        if refusal:
            raise InputError(COMMAND_LINE, COST_MODEL.flag, "is streams", f"give executed: {refusal}")
        return chosen
    for parameter in (CP, CP_EXCHANGE, PRECISION, LAYOUTS):
        if request.options[parameter.name] != parameter.default:
            why = refusal or "leave --cost-model out"
            problem = f"is {request.options[parameter.name]}, which the cost model executed does not have"
            raise InputError(COMMAND_LINE, parameter.flag, problem, f"leave it out, or plan under streams: {why}")
    return chosen


def within_optimizer(request: Request) -> Request:
    """The request whose option `zero` is narrowed to the ZeRO stages that its optimizer supports; the request itself for an
    optimizer that works on single elements. request: the user's model, cluster, batch and options. Raises InputError if
    no ZeRO stage remains, where no model is described, or where an optimizer of whole matrices is combined with host
    offload or hybrid sharding.
    """
    options, optimizer = request.options, request.options[OPTIMIZER.name]
    spec = OPTIMIZERS[optimizer]
    with_optimizer = f"with {OPTIMIZER.flag} {optimizer}"
    if spec.whole_matrices:
        _check_whole_matrices(request, with_optimizer)
    elif set(spec.zero) == set(ZERO_STAGES):
        return request
    requested = _zero_stages(options["zero"])
    zero = [stage for stage in requested if stage in spec.zero]
    if not zero:
        why = ": no rank has the gradient of a whole matrix in others" if spec.whole_matrices else ""
        fix = f"give {' or '.join(map(str, spec.zero))}{why}"
        raise InputError(COMMAND_LINE, ZERO.flag, f"is {options['zero']}, {with_optimizer}", fix)
    return replace(request, options={**options, "zero": ",".join(map(str, zero))})


def _check_whole_matrices(request: Request, with_optimizer: str) -> None:
    """Raises InputError where a request does not go with an optimizer of whole matrices, such as Muon. with_optimizer: words on
    the optimizer, for the message."""
    options = request.options
    if request.described_model is None:
        problem = f"is {options[OPTIMIZER.name]}, of a profile without a described model"
        raise InputError(COMMAND_LINE, OPTIMIZER.flag, problem, "leave it out, or give --model")
    if options["host"] != HOST.default:
        fix = "give none: matrices are stepped on the device"
        raise InputError(COMMAND_LINE, HOST.flag, f"is {options['host']}, {with_optimizer}", fix)
    if options["hybrid"]:
        fix = "leave it out: whole matrices are dealt to all data-parallel ranks, or to none"
        raise InputError(COMMAND_LINE, HYBRID.flag, f"is given, {with_optimizer}", fix)


def cp_degrees(options: Mapping[str, Any]) -> tuple[int, ...]:
    """The context-parallel degrees that the options allow, in ascending order; one plan has one of them in all of its units
    (sub-layers or layers). options: the values of the parameters by name, of which `cp` is read, such as `1,2,4`. Raises
    InputError if it is no list of degrees of at least 1."""
    words = {word.strip() for word in options[CP.name].split(",")}
    if not all(word.isdecimal() and int(word) for word in words):
        raise InputError(COMMAND_LINE, CP.flag, f"is {shown(options[CP.name])}", "give degrees of at least 1, such as 1,2,4")
    return tuple(sorted(map(int, words)))


def cp_choices(options: Mapping[str, Any]) -> list[tuple[int, Exchange]]:
    """The pairs (context-parallel degree, exchange) that the options allow, by ascending degree; the exchange is what
    context-parallel ranks send each other for attention, `keys` or `heads`. One plan has one pair in all of its units
    (sub-layers or layers). options: the values of the parameters by name. Raises InputError if the degrees are not
    understood, or an exchange is given with degree 1 alone."""
    degrees, requested = cp_degrees(options), options[CP_EXCHANGE.name]
    if requested != CP_EXCHANGE.default and degrees == (1,):
        fix = f"give {CP.flag} of at least 2, or leave it out: one rank exchanges nothing"
        raise InputError(COMMAND_LINE, CP_EXCHANGE.flag, f"is {requested}, with {CP.flag} 1", fix)
    exchanges = EXCHANGES if requested == "any" else (requested,)
    return [(degree, exchange) for degree in degrees for exchange in (exchanges if degree > 1 else EXCHANGES[:1])]


def cp_choice(options: Mapping[str, Any]) -> tuple[int, Exchange]:
    """The context-parallel degree of all units (sub-layers or layers), and what context-parallel ranks send each other for
    attention (`keys` or `heads`). options: the values of the parameters by name. Raises InputError if the options allow
    several such pairs."""
    (degree, exchange), *others = cp_choices(options)
    if others:
        parameter, noun, example = (CP, "degree", degree) if "," in options[CP.name] else (CP_EXCHANGE, "exchange", exchange)
        fix = f"give one {noun} for an instance, such as {example}"
        raise InputError(COMMAND_LINE, parameter.flag, f"is {options[parameter.name]}", fix)
    return degree, exchange


def _zero_stages(text: str) -> tuple[ZeroStage, ...]:
    """The ZeRO stages that a text such as `0,3` names, in ascending order. Raises InputError for a text with anything else."""
    words = {word.strip() for word in text.split(",")}
    if not words <= set(map(str, ZERO_STAGES)):
        fix = f"give some of {', '.join(map(str, ZERO_STAGES))}, such as 0,3"
        raise InputError(COMMAND_LINE, ZERO.flag, f"is {shown(text)}", fix)
    return tuple(stage for stage in ZERO_STAGES if str(stage) in words)


def _host_parts(text: str) -> tuple[HostPart, ...]:
    """The parts of a unit (sub-layer or layer) that may be kept on the host, from a text such as `optimizer,hidden`, `all` or
    `none`, in the order of HOST_PARTS. Raises InputError for unknown words, and for `parameters` without `optimizer`."""
    words = {word.strip() for word in text.split(",")}
    words = {"all": set[str](HOST_PARTS), "none": set[str]()}.get(text.strip(), words)
    if not words <= set(HOST_PARTS):
        raise InputError(COMMAND_LINE, HOST.flag, f"is {shown(text)}", f"give some of {', '.join(HOST_PARTS)}; all, or none")
    if "parameters" in words and "optimizer" not in words:
        fix = "give optimizer,parameters: only parameters whose optimizer works on the host may be there"
        raise InputError(COMMAND_LINE, HOST.flag, f"is {shown(text)}", fix)
    return tuple(part for part in HOST_PARTS if part in words)
