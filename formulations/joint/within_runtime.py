"""Cuts a request down to what one runtime can run (`plan --for NAME`), so that `export --to NAME` accepts the plan.

The capabilities of each runtime are its `CAPABILITIES` (`formulations.runtimes`). An option of the joint problem loses the
values that its runtime lacks; where none is left, the request is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from trainplan.formulations.joint.options import CP, CP_EXCHANGE, GRADIENTS, OPTIMIZER, PRECISION
from trainplan.formulations.joint.recompute_first import RECOMPUTE_FIRST
from trainplan.formulations.joint.search_space import ZERO_STAGES
from trainplan.formulations.joint.tables import HOST_PARTS
from trainplan.formulations.parameters import Parameter
from trainplan.formulations.plan.request import Request
from trainplan.formulations.runtimes import RUNTIMES, Runtime
from trainplan.profiling.base.errors import COMMAND_LINE, InputError
from trainplan.profiling.models.model import Model

FOR = Parameter("for_", str, "plan within what a runtime runs, for `export --to` it", None, tuple(RUNTIMES))


def with_gradients(request: Request) -> Request:
    """The request with gradients in float32 if its runtime (training framework) keeps them so by default for the model's
    dtype, unless the user chose another dtype that the runtime supports; the request unchanged if it names no runtime.
    request: the user's model, cluster, batch and options.
    """
    name, model = request.options.get(FOR.name), request.described_model
    if name is None or model is None or request.precision.master is None:
        return request
    runtime, requested = RUNTIMES[name], request.options.get(GRADIENTS.name)
    if model.dtype not in runtime.wide_gradients or (requested is not None and runtime.narrow_gradients):
        return request
    return replace(request, options={**request.options, GRADIENTS.name: "float32"})


def within_runtime(request: Request) -> Request:
    """The request whose options keep only the values that its runtime (`--for`) supports; the request itself if it names no
    runtime. request: the user's model, cluster, batch and options. Raises InputError if the runtime supports none of the
    values that the user allows.
    """
    name = request.options[FOR.name]
    if name is None:
        return request
    request = with_gradients(request)
    runtime, options = RUNTIMES[name], request.options
    _check_model(name, request.model)
    _check_schedule(name, options)
    zero = _zero_stages(name, options)
    _check_context_parallelism(name, options)
    _check_precision(name, options)
    _check_exchange(name, options, request.model)
    _check_first_layers(name, options)
    kept = {
        "zero": zero,
        "one_strategy": runtime.one_strategy or options["one_strategy"],
        "by_unit": runtime.cuts_layers and options["by_unit"],
        "sliced": options["sliced"] if runtime.sliced else 0,
        "host": _host(name, options["host"]),
    }
    if runtime.one_stage:
        _check_one_stage(name, options)
        kept |= {"pipeline": 1, "schedule": "1f1b"}
    within = replace(request, options={**options, **kept})
    if runtime.shards_masters:
        within = _with_sharded_masters(within)
    return _under_fsdp(within) if runtime.by_torch else within


def _able(supports: Callable[[Runtime], Any]) -> str:
    """The names of the runtimes (training frameworks) that support something, as a text such as `megatron or torch`; empty if
    none does. supports: takes a runtime's capabilities and returns whether it does.
    """
    return " or ".join(name for name, runtime in RUNTIMES.items() if supports(runtime))


def _check_model(name: str, model: Model | None) -> None:
    """Raise InputError if a runtime lacks a feature that the model needs. name: the runtime's name. model: the described
    model, None if there is none, which is accepted."""
    if model is None or (missing := RUNTIMES[name].lacks(model)) is None:
        return
    able = _able(lambda runtime: runtime.lacks(model) is None)
    fix = f"give {able}, or leave it out" if able else "leave it out"
    raise InputError(COMMAND_LINE, "--for", f"is {name}, which has no {missing}", fix)


def _check_schedule(name: str, options: Mapping[str, Any]) -> None:
    """Raise InputError if the options name a schedule that a runtime does not have. name: the runtime's name. options: the
    request's options, by parameter name.
    """
    schedule, schedules = options["schedule"], RUNTIMES[name].schedules
    if schedule != "all" and schedule not in schedules:
        fix = f"give {' or '.join(schedules)}: {name} runs no other"
        raise InputError(COMMAND_LINE, "--schedule", f"is {schedule}", fix)


def _zero_stages(name: str, options: Mapping[str, Any]) -> str:
    """The ZeRO stages, as a text such as `0,3`, that the options name and that a runtime supports with the optimizer of the
    options. name: the runtime's name. options: the request's options, by parameter name. Raises InputError if the
    runtime does not have the optimizer, or none of the stages.
    """
    runtime, optimizer = RUNTIMES[name], options[OPTIMIZER.name]
    stages = runtime.zero if optimizer == OPTIMIZER.default else runtime.optimizers.get(optimizer, ())
    if not stages:
        fix = f"leave it out, or give --for {_able(lambda other: optimizer in other.optimizers)}"
        raise InputError(COMMAND_LINE, OPTIMIZER.flag, f"is {optimizer}, which {name} does not run", fix)
    requested = {word.strip() for word in options["zero"].split(",")}
    zero = [str(stage) for stage in ZERO_STAGES if stage in stages and str(stage) in requested]
    if not zero:
        fix = f"give some of {','.join(map(str, stages))}: {name} runs no other"
        raise InputError(COMMAND_LINE, "--zero", f"is {options['zero']}", fix)
    return ",".join(zero)


def _check_context_parallelism(name: str, options: Mapping[str, Any]) -> None:
    """Raise InputError if the options request context parallelism and a runtime has none. name: the runtime's name.
    options: the request's options, by parameter name.
    """
    if options[CP.name] != CP.default and not RUNTIMES[name].exchanges:
        fix = f"leave it out: {name} is given no plans with it"
        raise InputError(COMMAND_LINE, CP.flag, f"is {options[CP.name]}", fix)


def _check_precision(name: str, options: Mapping[str, Any]) -> None:
    """Raise InputError if the options name a low-precision recipe that a runtime does not have. name: the runtime's name.
    options: the request's options, by parameter name.
    """
    allowed = [PRECISION.default, *RUNTIMES[name].recipes]
    if options[PRECISION.name] not in allowed:
        fix = f"give {' or '.join(allowed)}: {name} is given no plans with another"
        raise InputError(COMMAND_LINE, PRECISION.flag, f"is {options[PRECISION.name]}", fix)


def _check_exchange(name: str, options: Mapping[str, Any], model: Model | None) -> None:
    """Raise InputError if a runtime has no context parallelism for the model's family, or where its context-parallel ranks
    cannot exchange what the options name (keys or heads). name: the runtime's name. options: the request's options, by
    parameter name.
    """
    families, exchanges, exchange = RUNTIMES[name].cut_families, RUNTIMES[name].exchanges, options[CP_EXCHANGE.name]
    if options[CP.name] != CP.default and families is not None and model is not None and model.family not in families:
        fix = f"leave it out: {name} is given no plans with it for {model.family} models"
        raise InputError(COMMAND_LINE, CP.flag, f"is {options[CP.name]}", fix)
    if exchanges and exchange not in (*exchanges, "any"):
        fix = f"give {' or '.join(exchanges)}: {name} is given no plans with it"
        raise InputError(COMMAND_LINE, CP_EXCHANGE.flag, f"is {exchange}", fix)


def _check_first_layers(name: str, options: Mapping[str, Any]) -> None:
    """Raise InputError if the options request that every stage recomputes its first layers only, and a runtime cannot do
    that. name: the runtime's name. options: the request's options, by parameter name.
    """
    if options[RECOMPUTE_FIRST.name] is not None and not RUNTIMES[name].first_layers:
        problem = f"is {options[RECOMPUTE_FIRST.name]}, which {name} does not run"
        fix = f"leave it out, or give --for {_able(lambda runtime: runtime.first_layers)}"
        raise InputError(COMMAND_LINE, RECOMPUTE_FIRST.flag, problem, fix)


def _check_one_stage(name: str, options: Mapping[str, Any]) -> None:
    """Raise InputError if the options request pipeline or tensor parallelism of a runtime that has neither. name: the
    runtime's name. options: the request's options, by parameter name.
    """
    for option in ("pipeline", "tp"):
        if options[option] not in (None, 1):
            raise InputError(COMMAND_LINE, f"--{option}", f"is {options[option]}", f"give 1: {name} runs no other")


def _with_sharded_masters(request: Request) -> Request:
    """The request without ZeRO stage 0 where states have float32 master weights, unless it allows no other stage: a runtime
    that shards them all the same runs it as stage 1. request: the user's model, cluster, batch and options.
    """
    model, options = request.described_model, request.options
    sharded = ",".join(word for word in options["zero"].split(",") if word != "0")
    if model is None or not sharded or request.precision.for_model(model).master is None:
        return request
    return replace(request, options={**options, "zero": sharded})


def _under_fsdp(request: Request) -> Request:
    """The request restricted to ZeRO stages 0 and 3, under which FSDP2 keeps no second copy of the parameters: without float32
    master weights, a rank under stages 1 and 2 would keep its shard of the parameters in addition to the whole ones.
    request: the user's model, cluster, batch and options. Raises InputError if the user allows neither 0 nor 3.
    """
    model, options = request.described_model, request.options
    if model is not None and request.precision.for_model(model).master is not None:
        return request
    zero = ",".join(word for word in options["zero"].split(",") if word in ("0", "3"))
    if not zero:
        problem, fix = (
            f"is {options['zero']} without master weights",
            "give 0,3: torch keeps shards and whole parameters",
        )
        raise InputError(COMMAND_LINE, "--zero", problem, fix)
    return replace(request, options={**options, "zero": zero})


def _host(name: str, requested: str) -> str:
    """The parts of units (sub-layers or layers) that a runtime keeps on the host, as a text such as `hidden,optimizer` or
    `none`, among those that the user allows. name: the runtime's name. requested: the user's text, `all`, `none` or parts with
    commas. Raises InputError if the user names a part that the runtime lacks."""
    has, words = RUNTIMES[name].host, {word.strip() for word in requested.split(",")} - {"none"}
    if words == {"all"}:
        return ",".join(sorted(has)) or "none"
    if missing := words - set(has):
        able = _able(lambda runtime: words <= set(runtime.host))
        fix = f"leave it out, or give --for {able}" if able else f"give some of {', '.join(HOST_PARTS)}"
        raise InputError(COMMAND_LINE, "--host", f"is {requested}, and {name} has no {', '.join(sorted(missing))} there", fix)
    return ",".join(sorted(words)) or "none"
