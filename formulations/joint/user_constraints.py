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
from trainplan.formulations.joint.options import CHUNKS, CP, CP_EXCHANGE, MEMORY_TABLES, PARAMETERS, SCHEDULE, SLICED, ZERO
from trainplan.formulations.joint.recompute_first import RECOMPUTE_FIRST
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


def narrowed(space: Space, request: Request) -> Space:
    """The space under the constraints of a request, apart from that of one strategy for all sub-layers. Raises InputError."""
    options = request.options
    filters = [space.strategies, *_filters(request, options)]
    cuts = space.cuts
    if options["cuts"]:
        cuts = _first_units(request, options["cuts"], options["by_unit"])
        space = replace(space, depths=_depths(space, len(cuts) + 1, request.origin.devices))
    return replace(space, strategies=lambda strategy: all(allows(strategy) for allows in filters), cuts=cuts)


def restrictions(options: Mapping[str, Any]) -> list[str]:
    """The command's options by which the parameters' values exclude plans that the problem knows, as texts."""
    texts = []
    for parameter in (*PARAMETERS, *CONSTRAINTS):
        value, name = options.get(parameter.name, parameter.default), parameter.name
        if parameter in (CHUNKS, MEMORY_TABLES) or (
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
    """The filters of strategies by which the options of a request narrow the space. Raises InputError."""
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
    """Raises InputError where no unit can have a degree of a paradigm (`tp`, `dp` or `sdp`)."""
    devices = request.origin.devices
    possible = list(tp_degrees(request, devices)) if paradigm == "tp" else divisors(devices)
    if degree not in possible:
        problem = f"is {degree}" + (_unsplit(request, degree) if paradigm == "tp" and devices % degree == 0 else "")
        raise InputError("command line", f"--{paradigm}", problem, f"give one of: {', '.join(map(str, possible))}")


def _unsplit(request: Request, degree: int) -> str:
    """The sub-layer of the model that cannot be split into `degree` parts, as a text that goes on a sentence; empty where there
    is none."""
    for part in () if request.described_model is None else request.described_model.sublayers.values():
        attention = attention_of(part)
        if attention is not None and not attention.splits_into(degree):
            of_keys = f", {attention.kv_heads} of keys and values," * (attention.kv_heads != attention.heads)
            return f", and attention's {attention.heads} heads{of_keys} do not split into as many parts"
    return ""


def _check_together(request: Request, options: Mapping[str, Any]) -> None:
    """Raises InputError where the product of the degrees that the user fixed does not divide the devices."""
    fixed = {flag: options[name] for name in ("tp", "dp", "sdp", "pipeline") if options[name] for flag in [f"--{name}"]}
    if len(fixed) > 1 and request.origin.devices % (together := prod(fixed.values())):
        (flag, degree), *others = reversed(fixed.items())
        others_text = ", ".join(f"{other} {value}" for other, value in reversed(others))
        problem = (
            f"is {degree} with {others_text}: {together} devices for each copy of all, and there are {request.origin.devices}"
        )
        raise InputError("command line", flag, problem, f"give degrees whose product divides {request.origin.devices}")


def _of_degree(paradigm: Any, degree: int) -> Filter:
    """A filter of strategies with one degree of a paradigm."""
    return lambda strategy: strategy.degree(paradigm) == degree


def _without(words: Sequence[str]) -> Filter:
    """A filter of strategies that are none of `words` and contain none of them. Raises InputError for a word that is neither a
    strategy nor a part of one."""
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
    """A filter of strategies whose tensor-parallel groups lie inside nodes of `node` devices, wherever on the `devices` devices
    their stage begins."""

    def inside(strategy: Strategy) -> bool:
        size = strategy.group
        groups = {strategy.peers(rank, "tp") for rank in range(size)}
        starts = range(0, min(devices, lcm(size, node)), size)
        return all((start + group[0]) // node == (start + group[-1]) // node for start in starts for group in groups)

    return inside


def _node_devices(request: Request) -> int:
    """The number of devices of a node. Raises InputError where no cluster is described, or where nodes differ."""
    sizes = {node.devices for node in request.cluster.nodes} if request.cluster else set()
    if len(sizes) != 1:
        problem = "is given without a cluster" if not sizes else "is given for nodes of unlike sizes"
        raise InputError("command line", "--tp-in-node", problem, "give a --cluster of equal nodes, or --tp")
    return sizes.pop()


def _depths(space: Space, stages: int, devices: int) -> list[int]:
    """The numbers of device groups with which a pipeline can have `stages` stages. Raises InputError where there are none."""
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
    """The indices of the named units, in order. Raises InputError where a name is unknown, or the indices do not rise."""
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
