"""Cuts a request down to what one runtime can run (`plan --for NAME`), so that `export --to NAME` accepts the plan.

The capabilities of each runtime are its `CAPABILITIES` (`formulations.runtimes`). An option of the joint problem loses the
values that its runtime lacks; where none is left, the request is refused.
"""

from __future__ import annotations

from dataclasses import replace

from trainplan.formulations.joint.options import CP, CP_EXCHANGE, GRADIENTS, OPTIMIZER, PRECISION
from trainplan.formulations.joint.recompute_first import RECOMPUTE_FIRST
from trainplan.formulations.joint.search_space import ZERO_STAGES
from trainplan.formulations.joint.tables import HOST_PARTS
from trainplan.formulations.parameters import Parameter
from trainplan.formulations.plan.request import Request
from trainplan.formulations.runtimes import RUNTIMES
from trainplan.profiling.base.errors import COMMAND_LINE, InputError

FOR = Parameter("for_", str, "plan within what a runtime runs, for `export --to` it", None, tuple(RUNTIMES))


def with_gradients(request: Request) -> Request:
    """The request with gradients in the dtype in which its runtime keeps them, unless the user chose another one that the
    runtime supports."""
    name, model = request.options.get(FOR.name), request.described_model
    if name is None or model is None or request.precision.master is None:
        return request
    runtime, requested = RUNTIMES[name], request.options.get(GRADIENTS.name)
    if model.dtype not in runtime.wide_gradients or (requested is not None and runtime.narrow_gradients):
        return request
    return replace(request, options={**request.options, GRADIENTS.name: "float32"})


def within_runtime(request: Request) -> Request:
    """The request with the values of options that its runtime supports. Raises InputError where an option has none left."""
    name = request.options[FOR.name]
    if name is None:
        return request
    request = with_gradients(request)
    runtime, options = RUNTIMES[name], dict(request.options)
    model = request.model
    if model is not None and (missing := runtime.lacks(model)) is not None:
        able = [runtime_name for runtime_name, other in RUNTIMES.items() if other.lacks(model) is None]
        fix = f"give {' or '.join(able)}, or leave it out" if able else "leave it out"
        raise InputError(COMMAND_LINE, "--for", f"is {name}, which has no {missing}", fix)
    schedule = options["schedule"]
    if schedule != "all" and schedule not in runtime.schedules:
        fix = f"give {' or '.join(runtime.schedules)}: {name} runs no other"
        raise InputError(COMMAND_LINE, "--schedule", f"is {schedule}", fix)
    requested = {word.strip() for word in options["zero"].split(",")}
    stages = runtime.zero if options[OPTIMIZER.name] == OPTIMIZER.default else runtime.muon
    if not stages:
        runs = [runtime_name for runtime_name, other in RUNTIMES.items() if other.muon]
        problem = f"is {options[OPTIMIZER.name]}, which {name} does not run"
        raise InputError(COMMAND_LINE, OPTIMIZER.flag, problem, f"leave it out, or give --for {' or '.join(runs)}")
    zero = [str(stage) for stage in ZERO_STAGES if stage in stages and str(stage) in requested]
    if not zero:
        fix = f"give some of {','.join(map(str, stages))}: {name} runs no other"
        raise InputError(COMMAND_LINE, "--zero", f"is {options['zero']}", fix)
    if options[CP.name] != CP.default and not runtime.exchanges:
        fix = f"leave it out: {name} is given no plans with it"
        raise InputError(COMMAND_LINE, CP.flag, f"is {options[CP.name]}", fix)
    if options[PRECISION.name] not in (PRECISION.default, *runtime.recipes):
        fix = f"give {' or '.join([PRECISION.default, *runtime.recipes])}: {name} is given no plans with another"
        raise InputError(COMMAND_LINE, PRECISION.flag, f"is {options[PRECISION.name]}", fix)
    exchange, cut = options[CP_EXCHANGE.name], runtime.cut_families
    if options[CP.name] != CP.default and cut is not None and model is not None and model.family not in cut:
        fix = f"leave it out: {name} is given no plans with it for {model.family} models"
        raise InputError(COMMAND_LINE, CP.flag, f"is {options[CP.name]}", fix)
    if runtime.exchanges and exchange not in (*runtime.exchanges, "any"):
        fix = f"give {' or '.join(runtime.exchanges)}: {name} is given no plans with it"
        raise InputError(COMMAND_LINE, CP_EXCHANGE.flag, f"is {exchange}", fix)
    if options[RECOMPUTE_FIRST.name] is not None and not runtime.first_layers:
        able = [runtime_name for runtime_name, other in RUNTIMES.items() if other.first_layers]
        problem = f"is {options[RECOMPUTE_FIRST.name]}, which {name} does not run"
        raise InputError(COMMAND_LINE, RECOMPUTE_FIRST.flag, problem, f"leave it out, or give --for {' or '.join(able)}")
    kept = {
        "zero": ",".join(zero),
        "one_strategy": runtime.one_strategy or options["one_strategy"],
        "by_unit": runtime.cuts_layers and options["by_unit"],
        "sliced": options["sliced"] if runtime.sliced else 0,
        "host": _host(name, options["host"]),
    }
    if runtime.one_stage:
        if options["pipeline"] not in (None, 1):
            raise InputError(COMMAND_LINE, "--pipeline", f"is {options['pipeline']}", f"give 1: {name} runs no other")
        if options["tp"] not in (None, 1):
            raise InputError(COMMAND_LINE, "--tp", f"is {options['tp']}", f"give 1: {name} runs no other")
        kept |= {"pipeline": 1, "schedule": "1f1b"}
    within = replace(request, options={**options, **kept})
    return _under_fsdp(within) if runtime.by_torch else within


def _under_fsdp(request: Request) -> Request:
    """The request with the ZeRO stages for which FSDP2 keeps no second copy of the parameters: without float32 master weights,
    a rank keeps its shard of the parameters in addition to whole ones under ZeRO 1 and 2. Other bytes of the training script
    are counted per plan (`planning`). Raises InputError where no stage is left."""
    model, options = request.described_model, request.options
    if model is not None and request.precision.of(model).master is not None:
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
    """The parts of units that the runtime may keep on the host, out of those that the user's text names. name: of the runtime.
    Raises InputError where it lacks one."""
    has, words = RUNTIMES[name].host, {word.strip() for word in requested.split(",")} - {"none"}
    if words == {"all"}:
        return ",".join(sorted(has)) or "none"
    if missing := words - set(has):
        able = [runtime_name for runtime_name, other in RUNTIMES.items() if words <= set(other.host)]
        fix = f"leave it out, or give --for {' or '.join(able)}" if able else f"give some of {', '.join(HOST_PARTS)}"
        raise InputError(COMMAND_LINE, "--host", f"is {requested}, and {name} has no {', '.join(sorted(missing))} there", fix)
    return ",".join(sorted(words)) or "none"
