"""Reads the configuration of a run from its file, and turns it into a plan for the runtime that runs it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from trainplan.execution.launch_files.documents import read_document
from trainplan.execution.launch_files.logs.text import text_of_log
from trainplan.execution.launch_files.run_configuration import SET, RecomputedLayers, RunConfiguration, TakenValue, UserSettings
from trainplan.execution.launch_files.settings import ACCELERATE
from trainplan.execution.launch_files.shell import command_of_text
from trainplan.execution.runtimes.axolotl import reader as axolotl_reader
from trainplan.execution.runtimes.export_common import ENDS
from trainplan.execution.runtimes.llama_factory import reader as llama_factory_reader
from trainplan.execution.runtimes.nemo import reader as nemo_reader
from trainplan.execution.runtimes.registry import Reader, runtime_reader
from trainplan.execution.runtimes.transformers import reader as transformers_reader
from trainplan.formulations.joint.options import streams_refusal
from trainplan.formulations.plan.plan import Batch, Plan, RunBy, Stage
from trainplan.formulations.plan.request import MOST_SAMPLES, Request
from trainplan.formulations.plan.strategy import Strategy
from trainplan.formulations.plan.unit import Order, PlannedUnit, planned_unit
from trainplan.formulations.runtimes import FOLDERS
from trainplan.formulations.runtimes import RUNTIMES as CAPABILITIES
from trainplan.imported_runs import commands, logs, python_files, wandb
from trainplan.imported_runs.detect import READ, by_name, reader_of
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, one_of
from trainplan.profiling.models.model import Model, load_model
from trainplan.profiling.models.sublayers import modules_of

DOCUMENTS = (".json", ".yaml", ".yml")
SCRIPTS = (".toml", ".py", ".sh", ".bash", ".sbatch", ".slurm")  # files that may quote logs, but are not logs
READERS: dict[str, Reader] = {
    "megatron": commands.read,  # of scripts, which may start other tools
    **{name: reader for name in FOLDERS if name != "megatron" and (reader := runtime_reader(name)) is not None},
    "axolotl": axolotl_reader.read,
    "llama-factory": llama_factory_reader.read,
    "transformers": transformers_reader.read,
    "nemo": nemo_reader.read,
}
RUNTIMES = tuple(READERS)
NOTHING = UserSettings()
LOSSES, ATTENTIONS = ("full", "chunked", "fused"), ("eager", "flash")
FUSED_LOSS, LIGER = "cross-entropy fusion", "Liger"  # words of notes of measured runs
LIGER_KEYS = ("use_liger_kernel", "use_liger", "enable_liger_kernel")  # keys that turn all of its kernels on
# Runtimes with one micro-batch a step unless the file has more.
ONE = tuple(name for name, runtime in CAPABILITIES.items() if runtime.one_micro_batch)


def read(path: Path, runtime: str | None = None, user: UserSettings = NOTHING) -> RunConfiguration:
    """Read the run configuration of a file.

    Args:
        path: the file: a log, a script, or a configuration.
        runtime: the tool that the file belongs to. By default it is torchtitan for .toml; for .json and .yaml the tool
            whose keys the file has; for .py the tool that it imports; otherwise Megatron-LM.
        user: settings that the user adds, such as --set values.

    Raises:
        InputError: for files that are not read, and for values that plans cannot have.
    """
    if runtime is not None and runtime not in RUNTIMES:
        raise InputError(COMMAND_LINE, "--runtime", f"is {runtime!r}", one_of(runtime, RUNTIMES))
    if user.recompute not in (None, "full", "none"):
        raise InputError(COMMAND_LINE, "--recompute", f"is {user.recompute!r}", "give full or none")
    if runtime is None and path.suffix.lower() not in (*DOCUMENTS, *SCRIPTS):
        text = text_of_log(path)
        if logs.is_log(text):
            return _of_log(text, str(path), user)
        if not path.is_file():  # a pipe, which is read once
            return read_text(text, str(path), user)
    if path.suffix.lower() in DOCUMENTS and runtime in (None, *READ.values()):
        data = read_document(path)
        if wandb.is_one(data):
            _refuse_settings(str(path), user, ())
            return wandb.of_record(data, path, user)
        chosen = reader_of(path, data)
        if runtime not in (None, chosen):
            problem = f"is {runtime!r}, and the keys of {path} are of {chosen}"
            raise InputError(COMMAND_LINE, "--runtime", problem, "leave it out")
    elif path.suffix.lower() == ".py":
        return python_files.read(path, user)
    else:
        chosen = runtime or by_name(path)
    if user.recompute is not None and chosen not in (*ONE, "transformers", "megatron"):
        fix = f"leave it out: files of {chosen} say what is recomputed"
        raise InputError(COMMAND_LINE, "--recompute", f"is {user.recompute!r}", fix)
    return READERS[chosen](path, user)


def read_text(text: str, where: str, user: UserSettings = NOTHING) -> RunConfiguration:
    """Read the run configuration of a text that is not in a file: a log, a script or a command line.

    where: the text's name, for errors. user: settings that the user adds, such as --set values. Raises InputError for texts
    that are not read, and for values that plans cannot have.
    """
    if logs.is_log(text):
        return _of_log(text, where, user)
    return commands.of_command(command_of_text(text, user.variables, where, Path(".")), where, user, Path("."))


def _of_log(text: str, where: str, user: UserSettings) -> RunConfiguration:
    """Read the run configuration of a log. A log shows what ran, so the user can set nothing, except Accelerate's
    configuration file if the log of a trainer does not show how it was launched.

    text: the log's text. where: its name, for errors. user: settings that the user adds, such as --set values. Raises
    InputError for values that are not read, or that plans cannot have.
    """
    _refuse_settings(where, user, (ACCELERATE,))
    run = logs.of_text(text, where, user)
    _refuse_settings(where, user, (ACCELERATE,) if run.tool == "transformers" else ())
    return run


def _refuse_settings(where: str, user: UserSettings, but: Collection[str]) -> None:
    """Raise InputError if the user sets a value for a log, since the run has already used its own. where: the log's name, for
    errors. user: settings that the user adds, such as --set values. but: names that may be set nevertheless.
    """
    if (name := next((name for name in user.variables if name not in but), None)) is not None:
        fix = "leave it out, or give what starts the run: a log says what ran"
        raise InputError(COMMAND_LINE, SET, f"is {name}, and {where} is the log of a run", fix)


def with_options(configuration: RunConfiguration, batch: int | None, micro_batch: int | None) -> RunConfiguration:
    """The run configuration in which the user's options fill in what the file does not specify: `batch` (--batch, samples per
    step) and `micro_batch` (--micro-batch, samples per micro-batch). configuration: the run's values, as read from its
    file. Raises InputError if the file specifies another value.
    """
    changes: dict[str, Any] = {}
    for name, option, value in (("samples", "--batch", batch), ("micro_samples", "--micro-batch", micro_batch)):
        written = getattr(configuration, name)
        if value is None:
            continue
        if written not in (None, value):
            raise configuration.error(name, f"is {written}, and {option} is {value}", f"leave {option} out, or change the file")
        changes[name] = value
    return replace(configuration, **changes)


def with_kernels(
    configuration: RunConfiguration, loss: str | None, attention: str | None, model: str | None
) -> RunConfiguration:
    """The run configuration with the kernels of loss and attention filled in: by the user's options, otherwise by the file,
    and otherwise, for attention, by the model's configuration.

    Args:
        configuration: the run's values, as read from its file.
        loss: the option's value, one of LOSSES; None if it is not given.
        attention: the option's value, one of ATTENTIONS; None if it is not given.
        model: the name of the model, if given.

    Raises:
        InputError: if option and file differ.
    """
    buffers, taken = configuration.buffers, list(configuration.taken)
    for name, value, choices in (("loss", loss, LOSSES), ("attention", attention, ATTENTIONS)):
        if value is None:
            continue
        if value not in choices:
            raise InputError(COMMAND_LINE, f"--{name}", f"is {value!r}", one_of(value, choices))
        if (written := getattr(buffers, name)) not in (None, value):
            problem = f"is {value}, and {configuration.where} says {written}"
            raise InputError(COMMAND_LINE, f"--{name}", problem, "leave it out, or change the file")
        buffers = replace(buffers, **{name: value})  # type: ignore[arg-type]
        taken.append(TakenValue(name, value, f"--{name}"))
    named = model or configuration.model
    model_config = {} if named is None else load_model(named).config
    if buffers.attention is None and model_config.get("attn_implementation") == "eager":
        buffers = replace(buffers, attention="eager")
        taken.append(TakenValue("attention", "eager", f"attn_implementation of {named}"))
    return replace(configuration, buffers=buffers, taken=tuple(taken))


def _kernels(configuration: RunConfiguration) -> str:
    """A text for the prediction of the run's runtime, made of words joined by blanks: the run's overlap settings, its fused
    loss and Liger's kernels. Rows of measured runs have the same words. configuration: the run's values, as read from its
    file.
    """
    taken = {value.key: value for value in configuration.taken}
    words = [LIGER] * any(str(taken[key].value).lower() == "true" for key in LIGER_KEYS if key in taken)
    words += [FUSED_LOSS] * (configuration.buffers.loss == "fused" and configuration.runtime.startswith("megatron"))
    return " ".join([configuration.flags, *words]).strip()


def with_recipe(configuration: RunConfiguration, request: Request) -> RunConfiguration:
    """The run configuration with its low-precision recipe, if the cost model `streams` has costs for it on the requested
    devices; otherwise without it, and with a note. configuration: the run's values, as read from its file. request: the
    requested devices, model and options. Raises InputError if the devices do not support the recipe.
    """
    name, options = configuration.recipe, {"sliced": 0, "host": ",".join(configuration.host) or "none"}
    if name is None or request.cluster is None or request.model is None:
        return configuration
    kind = request.cluster.used_kinds[0]
    if (why := streams_refusal(replace(request, options=options))) is not None:
        note = f"matrix multiplications in {name}: the plan's are in {request.model.dtype}, which takes longer, since {why}"
        return replace(configuration, recipe=None, notes=(*configuration.notes, note))
    if name not in kind.recipes:
        fix = f"take devices that have it, or one of these: {', '.join(kind.recipes) or 'none'}"
        raise configuration.error("recipe", f"is {name}, which {kind.name} does not have", fix)
    return configuration


def plan_of(configuration: RunConfiguration, model: Model, request: Request) -> Plan:
    """The plan that a run configuration runs on the devices of a request, without a prediction. configuration: the run's
    values, as read from its file. request: the requested devices, model and options. Raises InputError naming the key that
    does not fit.
    """
    _refuse_other_devices(configuration, request)
    devices, tp, cp, pp = request.origin.devices, configuration.tp, configuration.cp, configuration.pp
    if devices > 1 and (fix := configuration.undecided.get("zero")) is not None:
        raise InputError(configuration.where, "", "does not say whether devices share states", fix)
    if devices % (tp * cp * pp):
        name = "pp" if pp > 1 else "cp" if cp > 1 else "tp"
        other_degrees = f", with tp {tp}" + f" and cp {cp}" * (cp > 1)
        raise configuration.error(
            name, f"is {getattr(configuration, name)}{other_degrees}", f"give a divisor of {devices} devices"
        )
    data = devices // (tp * cp * pp)
    if configuration.alone and data * cp == 1 and devices > 1:
        raise configuration.error("shard", f"leaves one data-parallel rank, and {configuration.alone}", "give more devices")
    if configuration.within_nodes and request.cluster is not None:
        configuration = replace(configuration, shard=min(data, request.cluster.nodes[0].devices))
    strategy = _strategy(configuration, data)
    samples, micro_batches = _batch(configuration, strategy.data_degree)
    if configuration.flushed is not None and micro_batches > configuration.flushed:
        problem = f"has {micro_batches} micro-batches, and the pipeline runs empty after every {configuration.flushed}"
        fix = f"give {samples * configuration.flushed // micro_batches}: plans have one pass of the pipeline a step"
        raise configuration.error("samples", problem, fix)
    cuts = _cuts(configuration, model)
    units, size = len(model.units), devices // pp
    first_units = [0, *cuts, units]
    stages = [
        Stage(ranks=list(range(x % pp * size, (x % pp + 1) * size)), first_unit=begin, last_unit=end - 1)
        for x, (begin, end) in enumerate(pairwise(first_units))
    ]
    fields: dict[str, Any] = {}
    if configuration.host:
        fields = {"nvlink": True, "backend": "streams"}
    return Plan(
        model=model.shape(),
        model_digest=model.digest,
        world=devices,
        memory_bytes=request.limit_bytes,
        batch=Batch(global_samples=samples, micro_batches=micro_batches),
        schedule=configuration.schedule if len(stages) > 1 else "1f1b",
        stages=stages,
        units=_units(configuration, model, strategy, first_units),
        precision=configuration.precision.for_model(model),
        optimizer=configuration.optimizer,
        runs_by=RunBy(
            name=configuration.runtime,
            software=configuration.software,
            flags=_kernels(configuration),
            zero=configuration.zero if configuration.host else None,
            buffers=asdict(configuration.buffers),
            group=configuration.recomputed.group,
            cluster=None if request.cluster is None else request.cluster.model_dump(),
        ),
        **fields,
    )


def _refuse_other_devices(configuration: RunConfiguration, request: Request) -> None:
    """Raise InputError if a run is launched on another number of devices or nodes than the request has. configuration: the
    run's values, as read from its file. request: the requested devices, model and options.
    """
    devices = request.origin.devices
    if configuration.devices not in (None, devices):
        problem = f"has {devices} devices, and the file starts {configuration.devices}"
        raise InputError(COMMAND_LINE, "--cluster", problem, f"give one of {configuration.devices}")
    nodes = None if request.cluster is None else sum(node.count for node in request.cluster.nodes)
    if None not in (nodes, configuration.nodes) and nodes != configuration.nodes:
        problem = f"has {nodes} node{'s' * (nodes != 1)}, and the file starts {configuration.nodes}"
        raise InputError(COMMAND_LINE, "--cluster", problem, f"give one of {configuration.nodes}")


def _strategy(configuration: RunConfiguration, data: int) -> Strategy:
    """The parallel layout that all units (sub-layers) of a run have, as a strategy without recomputation: copies of model
    states outermost, then shards, context parallelism and tensor parallelism.

    data: the number of data-parallel ranks. configuration: the run's values, as read from its file. Raises InputError if
    the degrees do not fit.
    """
    copies, shard, zero = configuration.copies, configuration.shard, configuration.zero
    if zero == 0:
        copies, shard = data, 1
    elif shard is None:
        copies = copies or 1
        shard = data // copies
    else:
        copies = data // shard if copies is None else copies
    if copies * shard != data:
        raise _unequal(configuration, copies, shard, data)
    if zero and shard == 1 and configuration.cp > 1:
        ranks = f"with {copies} copies of what its ranks share" if data > 1 else "without data-parallel ranks"
        problem = f"is {configuration.cp}, {ranks}, and states are shared (ZeRO stage {zero})"
        raise configuration.error("cp", problem, _sharing(configuration, copies))
    if configuration.host and zero in (1, 2):
        zero = 3  # whole on the device for the step, and the host has shards of all
    plain = Strategy.of(("dp", copies), ("sdp", shard), ("cp", configuration.cp), ("tp", configuration.tp))
    zero = zero if shard > 1 and zero else 3
    return replace(plain, zero=zero, sequence_parallel=configuration.sequence_parallel, exchange=configuration.exchange)


def _sharing(configuration: RunConfiguration, copies: int) -> str:
    """Advice, as a text for an error, for a run in which only context-parallel ranks shard model states, which plans cannot
    have. copies: the number of copies of the states over data-parallel ranks. configuration: the run's values, as read from
    its file.
    """
    why = "plans share no states among context-parallel ranks alone"
    if copies == 1:
        return f"leave the sharing out, or give more devices: {why}"
    fewest = next(number for number in range(2, copies + 1) if copies % number == 0)
    shard = "" if configuration.shard is None else f" and {configuration.keys.get('shard', 'shard')} = {fewest}"
    return f"give {configuration.keys.get('copies', 'copies')} = {copies // fewest}{shard}: {why}"


def _unequal(configuration: RunConfiguration, copies: int, shard: int, data: int) -> InputError:
    """The error for a run whose number of copies of model states (`copies`) times the number of ranks that shard one copy
    (`shard`) is not its number of data-parallel ranks (`data`). configuration: the run's values, as read from its file.
    """
    name = "shard" if configuration.shard is not None else "copies"
    if configuration.shard is None or configuration.copies is None:
        fix = f"give a divisor of the {data} data-parallel ranks"
        return configuration.error(name, f"is {getattr(configuration, name)}", fix)
    other = configuration.keys.get("copies", "copies")
    works = [str(data // copies)] * (data % copies == 0) + [f"{other} = {data // shard}"] * (data % shard == 0)
    problem = f"is {shard}, with {other} = {copies}: {copies * shard} of {data} data-parallel ranks"
    return configuration.error(name, problem, f"give {' or '.join(works) or f'two numbers whose product is {data}'}")


def _batch(configuration: RunConfiguration, data: int) -> tuple[int, int]:
    """The number of samples per step and the number of micro-batches, from what the run's file specifies of samples,
    micro-batch and gradient accumulation. data: the number of data-parallel ranks. configuration: the run's values, as read
    from its file. Raises InputError if it does not specify enough, or if the numbers do not divide.
    """
    samples, micro, count = configuration.samples, configuration.micro_samples, configuration.accumulation
    if micro is None and None in (samples, count) and (name := configuration.undecided.get("micro_samples")) is not None:
        raise InputError(COMMAND_LINE, "--micro-batch", "is missing", f"give it: {configuration.where} leaves it to {name}")
    if count is None and configuration.runtime in ONE and None in (samples, micro):
        count = 1
    if samples is None and (name := configuration.undecided.get("samples")) is not None:
        raise InputError(COMMAND_LINE, "--batch", "is missing", f"give it: {configuration.where} leaves it to {name}")
    if samples is None and micro is not None:
        samples = micro * data * (count or 1)
    if samples is None:
        fix = "give it, or --micro-batch: the file does not say how large a step is"
        raise InputError(COMMAND_LINE, "--batch", "is missing", fix)
    if micro is None:
        count = count or 1
        micro = samples // (data * count)
    if not micro or samples % (micro * data) or (count is not None and samples != micro * data * count):
        what = f"micro-batches of {micro} on {data} data-parallel ranks" + (f", {count} of them" if count else "")
        works = max(1, micro) * data * (count or max(1, samples // (max(1, micro) * data)))
        raise configuration.error("samples", f"is {samples}, with {what}", f"give {works}, or another multiple")
    if samples > MOST_SAMPLES:
        raise configuration.error("samples", f"is {samples}", f"give at most {MOST_SAMPLES} samples of a step")
    return samples, samples // (micro * data)


def _cuts(configuration: RunConfiguration, model: Model) -> tuple[int, ...]:
    """For each stage of the run's pipeline but the first, the index of its first unit (sub-layer). configuration: the run's
    values, as read from its file. Raises InputError if there are too many stages.
    """
    if configuration.cuts is not None:
        if configuration.cuts and configuration.cuts[-1] >= len(model.units):
            raise configuration.error(
                "pp", f"has stages of more than the {len(model.units)} sub-layers", "give the model that runs"
            )
        return configuration.cuts
    count, (first, last) = configuration.pp * configuration.chunks, configuration.layers_apart
    least, longer = divmod(model.layers + first + last, count)
    layers = [least + (x < longer) for x in range(count)]
    layers[0] -= first
    layers[-1] -= last
    if min(layers) < 0 or any(size == 0 for size in layers[1:-1]):
        fix = f"give at most {model.layers} stages"
        raise configuration.error("pp", f"is {configuration.pp}, with {configuration.chunks} stages on each rank", fix)
    counts = [2 * size for size in layers]
    counts[0] += 1
    return tuple(accumulate(counts[:-1]))


def _units(configuration: RunConfiguration, model: Model, strategy: Strategy, first_units: list[int]) -> list[PlannedUnit]:
    """The units (sub-layers) of a run's plan, each with its recomputation and with its states on the host if the run keeps them
    there.

    strategy: the layout of all units. first_units: index of the first unit of each stage, in which layers are counted for
    recomputation. configuration: the run's values, as read from its file.
    """
    units, layer_of_stage = list[PlannedUnit](), dict[int, int]()
    recomputed, starts = configuration.recomputed, set(first_units)
    for index, unit in enumerate(model.units):
        if index in starts:
            layer_of_stage = {}
        layer_of_stage.setdefault(unit.layer, sum(1 for layer in layer_of_stage if 0 < layer <= model.layers))
        inner = unit.kind not in ENDS
        recomputes = inner and _recomputes(recomputed, unit.layer, layer_of_stage[unit.layer])
        modules = tuple(
            m for m in recomputed.modules if recomputes and recomputed.of == "modules" and m in modules_of(unit.sublayer)
        )
        planned = planned_unit(unit.name, replace(strategy, ckpt=recomputes and recomputed.of == "full", modules=modules))
        if configuration.recipe is not None and inner:
            planned = planned.changed(precision=configuration.recipe)
        if configuration.host:
            parameters = "host" if "parameters" in configuration.host else "device"
            whole = configuration.zero < 3
            states = planned.states.changed(optimizer="host", gradients="host", parameters=parameters, kept_whole=whole)
            planned = planned.changed(states=states, order=Order())
        units.append(planned)
    return units


def _recomputes(recomputed: RecomputedLayers, layer: int, index: int) -> bool:
    """Whether a run recomputes a layer. recomputed: the run's setting. layer: the layer's number in the model, from 1. index:
    its index in its stage, from 0."""
    if recomputed.of == "none" or layer % recomputed.every:
        return False
    return recomputed.first is None or index < recomputed.first
