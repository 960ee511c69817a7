"""What users may ask of the joint problem: parameters, and the search space that their values stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainplan.formulations import parameters
from trainplan.formulations.joint.space import SCHEDULES, ZERO_STAGES, Space, ZeroStage
from trainplan.formulations.joint.tables import HOST_PARTS, HostPart
from trainplan.formulations.parameters import MICRO_BATCHES, PIPELINE, Parameter
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, shown

SCHEDULE = Parameter("schedule", str, "orders of passes to choose from: one of them, or all", "1f1b", (*SCHEDULES, "all"))
SLICED = Parameter("sliced", int, "micro-batches that 1F1B may begin in two halves, at most", 0, least=0)
CHUNKS = Parameter("chunks", int, "stages that the interleaved schedule may have on each group of devices, at most", 2, least=2)
BY_UNIT = replace(parameters.BY_UNIT, about="choose for every sub-layer, not for every layer", default=True)
ZERO = Parameter("zero", str, "ZeRO stages to choose from, 0 for copies (dp), such as 0,3", ",".join(map(str, ZERO_STAGES)))
HYBRID = Parameter("hybrid", bool, "let ranks hold copies of shards, too: dp outside sdp (HSDP)", False)
SEQUENCE_PARALLEL = Parameter("sequence_parallel", bool, "let tensor-parallel ranks share the tokens, too", True)
MODULES = Parameter("modules", bool, "let modules be recomputed by themselves, too: attention, activation, norms, loss", False)
HOST = Parameter("host", str, "what units may keep on the host, of optimizer,parameters,hidden; all, or none", "none")
PARAMETERS = (PIPELINE, MICRO_BATCHES, SCHEDULE, SLICED, CHUNKS, BY_UNIT, ZERO, HYBRID, SEQUENCE_PARALLEL, MODULES, HOST)


def space_of(options: Mapping[str, Any]) -> Space:
    """The space of the parameters' values. Raises InputError."""
    return Space(
        depths=None if options["pipeline"] is None else [options["pipeline"]],
        micro_batches=None if options["micro_batches"] is None else [options["micro_batches"]],
        schedules=SCHEDULES if options["schedule"] == "all" else (options["schedule"],),
        most_sliced=options["sliced"],
        most_chunks=options["chunks"],
        even_chunks=True,
        by_unit=options["by_unit"],
        zero=_zero_stages(options["zero"]),
        hybrid=options["hybrid"],
        sequence_parallel=options["sequence_parallel"],
        recompute=("none", "modules", "full") if options["modules"] else ("none", "full"),
        host=_host_parts(options["host"]),
    )


def _zero_stages(text: str) -> tuple[ZeroStage, ...]:
    words = {word.strip() for word in text.split(",")}
    if not words <= set(map(str, ZERO_STAGES)):
        fix = f"give some of {', '.join(map(str, ZERO_STAGES))}, such as 0,3"
        raise InputError(COMMAND_LINE, ZERO.flag, f"is {shown(text)}", fix)
    return tuple(stage for stage in ZERO_STAGES if str(stage) in words)


def _host_parts(text: str) -> tuple[HostPart, ...]:
    words = {word.strip() for word in text.split(",")}
    words = {"all": set[str](HOST_PARTS), "none": set[str]()}.get(text.strip(), words)
    if not words <= set(HOST_PARTS):
        raise InputError(COMMAND_LINE, HOST.flag, f"is {shown(text)}", f"give some of {', '.join(HOST_PARTS)}; all, or none")
    if "parameters" in words and "optimizer" not in words:
        fix = "give optimizer,parameters: only parameters whose optimizer works on the host may be there"
        raise InputError(COMMAND_LINE, HOST.flag, f"is {shown(text)}", fix)
    return tuple(part for part in HOST_PARTS if part in words)
