"""The constraints that users may put on a joint plan, in addition to depth, micro-batches and schedule; each narrows the search
space.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import lcm, prod
from typing import Any

from trainplan.formulations.joint.cost_tables import tp_degrees
from trainplan.formulations.joint.options import (
    CHUNKS,
    CP,
    CP_EXCHANGE,
    LAYOUTS,
    MEMORY_TABLES,
    PARAMETERS,
    SCHEDULE,
    SLICED,
    ZERO,
    cost_model_of,
    cp_choice,
    space_of,
)
from trainplan.formulations.joint.recompute_first import RECOMPUTE_FIRST, whole_layers
from trainplan.formulations.joint.search_space import Filter, Space
from trainplan.formulations.joint.within_runtime import FOR
from trainplan.formulations.parameters import MICRO_BATCHES, PIPELINE, Parameter
from trainplan.formulations.plan.request import Request
from trainplan.formulations.plan.strategy import Strategy, parse_strategy
from trainplan.formulations.runtimes import RUNTIMES
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.base.quantities import divisors, plural
from trainplan.profiling.models.sublayers import attention_of

TP = Parameter("tp", int, "tensor-parallel degree of every sub-layer", least=1)
DP = Parameter("dp", int, "data-parallel degree: copies of every sub-layer's states in a stage", least=1)
SDP = Parameter("sdp", int, "ranks in a stage that shard every sub-layer's states (ZeRO, FSDP)", least=1)
FORBID = Parameter(
    "forbid", str, "strategies that no sub-layer has, whole or by a word of them: ckpt, tp8, sdp; may be repeated", many=True
)
ONE_STRATEGY = Parameter("one_strategy", bool, "one strategy for all sub-layers", False)
TP_IN_NODE = Parameter("tp_in_node", bool, "tensor parallelism inside a node only", False)
CUTS = Parameter("cuts", str, "the sub-layers that begin the stages after the first, by name; may be repeated", many=True)
CONSTRAINTS = (TP, DP, SDP, FORBID, ONE_STRATEGY, TP_IN_NODE, CUTS, RECOMPUTE_FIRST, FOR)
PRICED = (PIPELINE, MICRO_BATCHES, SCHEDULE, ZERO, *CONSTRAINTS)
OF_CONFIGURATIONS = {
    parameter.name for parameter in (PIPELINE, MICRO_BATCHES, SCHEDULE)
}  # which leave their options as they are
WIDEST = {"schedule": "all", "hybrid": True, "modules": True, "host": "all"}  # where a default leaves something out

WORD = re.compile(r"(dp|sdp|tp|cp|ep)(\d*)|single|sp|ckpt(:[a-z+]+)?|zero[12]")


def requested_space(request: Request) -> Space:
    """The search space that a request's options and constraints leave for one instance. The constraint that all sub-layers
    have one strategy is not included, since it is applied later. request: the user's model, cluster, batch and options.
    Raises InputError if constraints contradict each other or leave nothing.
    """
    options = request.options
    if (first := options[RECOMPUTE_FIRST.name]) is not None:
        if request.described_model is None:
            problem = f"is {first}, of a profile without a described model"
            raise InputError("command line", RECOMPUTE_FIRST.flag, problem, "leave it out, or give --model")
        options = whole_layers(options)
        request = replace(request, options=options)
    space = space_of(options)
    filters = [space.strategies, *_filters(request, options)]
    cuts, depths = space.cuts, space.depths
    if options["cuts"]:
        cuts = _first_units(request, options["cuts"], options["by_unit"])
        depths = _depths(space, len(cuts) + 1, request.origin.devices)
    cp, exchange = cp_choice(options)
    return replace(
        space,
        strategies=lambda strategy: all(allows(strategy) for allows in filters),
        cuts=cuts,
        depths=depths,
        even_stages=first is not None,
        overlapped=cost_model_of(request) == "streams",
        cp=cp,
        exchange=exchange,
        first_layers=first,
    )


def restrictions(options: Mapping[str, Any]) -> list[str]:
    """The values of parameters that exclude plans which the problem could choose, as texts of the command's options such as
    `--zero 0,3`; empty if nothing is excluded. options: the values of the parameters by name.
    """
    texts = []
    for parameter in (*PARAMETERS, *CONSTRAINTS):
        value, name = options.get(parameter.name, parameter.default), parameter.name
        if parameter in (CHUNKS, MEMORY_TABLES, LAYOUTS) or (
            value == WIDEST.get(name, parameter.default) and parameter not in (SLICED, CP_EXCHANGE)
        ):
            continue
        if parameter is CP_EXCHANGE and (value == "any" or options.get(CP.name, CP.default) == CP.default):
            continue
        if isinstance(value, bool):
            texts.append(
                parameter.flag if value else f"--no-{parameter.flag[2:]}" if parameter.default else f"no {parameter.flag}"
            )
        else:
            texts.append(f"{parameter.flag} {value if isinstance(value, str | int) else ','.join(map(str, value))}")
    if options.get("schedule") in ("interleaved", "all"):
        texts.append(f"{CHUNKS.flag} {options.get('chunks', CHUNKS.default)}")
    return texts


def _filters(request: Request, options: Mapping[str, Any]) -> Iterator[Filter]:
    """The filters by which a request's options narrow the strategies of the search space; a filter is a function that says
    whether a strategy is allowed. request: the user's model, cluster, batch and options. options: the request's options, by
    parameter name. Raises InputError if the options contradict each other.
    """
    copies, shares = options["dp"] or 1, options["sdp"] or 1
    if copies > 1 and shares > 1 and not options["hybrid"]:
        problem = f"is {shares} with --dp {copies}, and sub-layers have copies or shards, not both"
        raise InputError("command line", "--sdp", problem, "give --hybrid, too, or one of the two")
    for paradigm in ("tp", "dp", "sdp"):
        if (degree := options[paradigm]) is not None:
            _check_degree(request, paradigm, degree)
            yield _of_degree(paradigm, degree)
    _check_together(request, options)
    if words := [word for text in options["forbid"] or () for word in text.split(",")]:
        yield _without(words)
    if options[FOR.name] is not None:
        runtime, model = RUNTIMES[options[FOR.name]], request.described_model or None
        yield lambda strategy: runtime.carries(strategy, model)
    if options["tp_in_node"]:
        yield _inside(_node_devices(request), request.origin.devices)


def _check_degree(request: Request, paradigm: str, degree: int) -> None:
    """Raise InputError if no unit (sub-layer or layer) can have the degree that the user fixed for a paradigm. paradigm:
    `tp`, `dp` or `sdp`. request: the user's model, cluster, batch and options.
    """
    devices = request.origin.devices
    possible = list(tp_degrees(request, devices)) if paradigm == "tp" else divisors(devices)
    if degree not in possible:
        problem = f"is {degree}" + (_unsplit(request, degree) if paradigm == "tp" and devices % degree == 0 else "")
        raise InputError("command line", f"--{paradigm}", problem, f"give one of: {', '.join(map(str, possible))}")


def _unsplit(request: Request, degree: int) -> str:
    """The end of an error's sentence that names the model's attention whose heads cannot be split into `degree` parts; empty
    if all can be split. degree: a tensor-parallel degree. request: the user's model, cluster, batch and options.
    """
    for part in () if request.described_model is None else request.described_model.sublayers.values():
        attention = attention_of(part)
        if attention is not None and not attention.splits_into(degree):
            of_keys = f", {attention.kv_heads} of keys and values," * (attention.kv_heads != attention.heads)
            return f", and attention's {attention.heads} heads{of_keys} do not split into as many parts"
    return ""


def _check_together(request: Request, options: Mapping[str, Any]) -> None:
    """Raise InputError if the product of the degrees that the user fixed (tp, dp, sdp, pipeline) does not divide the number
    of devices. request: the user's model, cluster, batch and options. options: the request's options, by parameter name.
    """
    fixed = {flag: options[name] for name in ("tp", "dp", "sdp", "pipeline") if options[name] for flag in [f"--{name}"]}
    if len(fixed) > 1 and request.origin.devices % (together := prod(fixed.values())):
        (flag, degree), *others = reversed(fixed.items())
        others_text = ", ".join(f"{other} {value}" for other, value in reversed(others))
        problem = (
            f"is {degree} with {others_text}: {together} devices for each copy of all, and there are {request.origin.devices}"
        )
        raise InputError("command line", flag, problem, f"give degrees whose product divides {request.origin.devices}")


def _of_degree(paradigm: Any, degree: int) -> Filter:
    """A filter that allows strategies with exactly this degree of a paradigm, such as `tp`."""
    return lambda strategy: strategy.degree(paradigm) == degree


def _without(words: Sequence[str]) -> Filter:
    """A filter that allows strategies that are none of `words` and contain none of them: with `ckpt` and `dp2-tp4`, neither
    recomputed strategies nor dp2-tp4 itself. Raises InputError for a word that is neither a strategy nor a part of one."""
    for word in words:
        if WORD.fullmatch(word) is None:
            try:
                parse_strategy(word)
            except InputError:
                fix = "give a strategy such as dp2-tp4-ckpt, or a word of one, such as ckpt, tp8 or sdp"
                raise InputError("command line", "--forbid", f"is {shown(word)}", fix) from None
    forbidden = set(words)

    def allowed(strategy: Strategy) -> bool:
        text = str(strategy)
        parts = text.split("-")
        return forbidden.isdisjoint({text, *parts, *(re.sub(r"\d+h?$|:.*$", "", part) for part in parts if part[:4] != "zero")})

    return allowed


def _inside(node: int, devices: int) -> Filter:
    """A filter that allows strategies in which, in every stage of the pipeline, each tensor-parallel group lies inside one
    node. node: the number of devices of a node. devices: the number of devices of the cluster.
    """

    def inside(strategy: Strategy) -> bool:
        size = strategy.group
        groups = {strategy.peers(rank, "tp") for rank in range(size)}
        starts = range(0, min(devices, lcm(size, node)), size)
        return all((start + group[0]) // node == (start + group[-1]) // node for start in starts for group in groups)

    return inside


def _node_devices(request: Request) -> int:
    """The number of devices of a node in the request's cluster. request: the user's model, cluster, batch and options. Raises
    InputError if no cluster is described, or if nodes differ.
    """
    sizes = {node.devices for node in request.cluster.nodes} if request.cluster else set()
    if len(sizes) != 1:
        problem = "is given without a cluster" if not sizes else "is given for nodes of unlike sizes"
        raise InputError("command line", "--tp-in-node", problem, "give a --cluster of equal nodes, or --tp")
    return sizes.pop()


def _depths(space: Space, stages: int, devices: int) -> list[int]:
    """The numbers of device groups with which a pipeline can have `stages` stages: with interleaving, 8 stages may be 4 groups
    of 2 each. devices: the number of devices. space: the search space, which may limit these numbers. Raises InputError if
    there are none."""
    chunks = range(1, space.most_chunks + 1) if "interleaved" in space.schedules else range(1, 2)
    depths = [stages // chunk for chunk in chunks if stages % chunk == 0 and devices % (stages // chunk) == 0]
    if space.depths is not None:
        depths = [depth for depth in depths if depth in space.depths]
    if not depths:
        problem = f"begin {plural(stages, 'stage')}, which {plural(devices, 'device')} or --pipeline do not have"
        raise InputError(
            "command line", "--cuts", problem, "give a number of stages that divides the devices, as --pipeline does"
        )
    return depths


def _first_units(request: Request, names: Sequence[str], by_unit: bool) -> tuple[int, ...]:
    """The indices of the units that the user names as the beginnings of stages. names: the user's texts, each one name or
    several with commas. by_unit: whether every sub-layer is a unit, which named cuts require. request: the user's model,
    cluster, batch and options. Raises InputError if a name is unknown, or the indices do not rise.
    """
    units = [unit.name for unit in request.chain.units]
    wanted = [name for text in names for name in text.split(",")]
    if not by_unit:
        raise InputError("command line", "--cuts", "are given with --no-by-unit", "leave --no-by-unit out")
    indices = [units.index(name) if name in units else -1 for name in wanted]
    if -1 in indices:
        wrong = wanted[indices.index(-1)]
        raise InputError(
            "command line", "--cuts", f"has {shown(wrong)}", f"give names of sub-layers, such as {units[len(units) // 2]}"
        )
    if indices != sorted(set(indices)) or indices[0] == 0:
        raise InputError(
            "command line", "--cuts", f"are {', '.join(wanted)}", "give them in order, each once, none the first sub-layer"
        )
    return tuple(indices)
