"""Reads the configuration of a run from its file, and makes it a plan for the runtime that runs it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from trainplan.execution.launch_files.documents import read_document
from trainplan.execution.launch_files.logs.text import text_of_log
from trainplan.execution.launch_files.run_configuration import SET, RecomputedLayers, RunConfiguration, TakenValue, UserSettings
from trainplan.execution.launch_files.settings import ACCELERATE
from trainplan.execution.launch_files.shell import command_of_text
from trainplan.execution.runtimes.accelerate import reader as accelerate_reader
from trainplan.execution.runtimes.axolotl import reader as axolotl_reader
from trainplan.execution.runtimes.deepspeed import reader as deepspeed_reader
from trainplan.execution.runtimes.export_common import ENDS
from trainplan.execution.runtimes.llama_factory import reader as llama_factory_reader
from trainplan.execution.runtimes.megatron_bridge import reader as megatron_bridge_reader
from trainplan.execution.runtimes.nemo import reader as nemo_reader
from trainplan.execution.runtimes.torchtitan import reader as torchtitan_reader
from trainplan.execution.runtimes.transformers import reader as transformers_reader
from trainplan.formulations.joint.options import streams_refusal
from trainplan.formulations.plan.plan import Batch, Plan, RunBy, Stage
from trainplan.formulations.plan.request import MOST_SAMPLES, Request
from trainplan.formulations.plan.strategy import Strategy
from trainplan.formulations.plan.unit import Order, PlannedUnit, planned_unit
from trainplan.imported_runs import commands, logs, python_files, wandb
from trainplan.imported_runs.detect import READ, by_name, reader_of
from trainplan.imported_runs.device_support import refuse_what_devices_lack
from trainplan.imported_runs.long_samples import model_on_samples
from trainplan.profiling.base.dtypes import parse_dtype
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, one_of
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.models.model import Model, load_model, model_from_config
from trainplan.profiling.models.sublayers import modules_of
from trainplan.profiling.shipped import mixture

DOCUMENTS = (".json", ".yaml", ".yml")
SCRIPTS = (".toml", ".py", ".sh", ".bash", ".sbatch", ".slurm")  # which may show logs, and are none
READERS = {
    "megatron": commands.read,
    "megatron-bridge": megatron_bridge_reader.read,
    "torchtitan": torchtitan_reader.read,
    "deepspeed": deepspeed_reader.read,
    "accelerate": accelerate_reader.read,
    "axolotl": axolotl_reader.read,
    "llama-factory": llama_factory_reader.read,
    "transformers": transformers_reader.read,
    "nemo": nemo_reader.read,
}
RUNTIMES = tuple(READERS)
NOTHING = UserSettings()
SIZES = {  # by their names in configurations of models
    "layers": ("num_hidden_layers", "n_layer"),
    "hidden units": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "groups of queries": ("num_key_value_heads",),
    "inner units": ("intermediate_size", "n_inner"),
    "entries of the vocabulary": ("vocab_size",),
}
PADDED = 0.02  # of a vocabulary, at most, which tools add so that ranks can share it
LOSSES, ATTENTIONS = ("full", "chunked", "fused"), ("eager", "flash")
FUSED_LOSS, LIGER = "cross-entropy fusion", "Liger"  # as notes of rows say it
LIGER_KEYS = ("use_liger_kernel", "use_liger", "enable_liger_kernel")  # of all its kernels
VOCABULARIES = {  # keys that say its size, of tools whose files describe the model; NeMo's have none
    "megatron": "--vocab-size, or --padded-vocab-size with what is added to it,",
    "megatron-bridge": "model.vocab_size, with what is added to it,",
}
ONE = ("deepspeed", "accelerate")  # where micro-batches are one unless the file says more


def read(path: Path, runtime: str | None = None, user: UserSettings = NOTHING) -> RunConfiguration:
    """The run configuration of a file.

    runtime: the tool that the file belongs to; by default torchtitan for .toml, for .json and .yaml the tool whose keys the
    file has, for .py the tool that it imports, and otherwise Megatron-LM. user: settings in addition to the file. Raises
    InputError.
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
    """The run configuration of a log, a script or a command line that is not in a file. where: its name, for errors. Raises
    InputError."""
    if logs.is_log(text):
        return _of_log(text, where, user)
    return commands.of_command(command_of_text(text, user.variables, where, Path(".")), where, user, Path("."))


def _of_log(text: str, where: str, user: UserSettings) -> RunConfiguration:
    """The run configuration of a log. Nothing of it can be set, except for Accelerate's file if a trainer's log leaves open how
    it was launched. Raises InputError."""
    _refuse_settings(where, user, (ACCELERATE,))
    run = logs.of_text(text, where, user)
    _refuse_settings(where, user, (ACCELERATE,) if run.tool == "transformers" else ())
    return run


def _refuse_settings(where: str, user: UserSettings, but: Collection[str]) -> None:
    """Raises InputError if the user sets a value of a run that has already happened. but: names that may be set."""
    if (name := next((name for name in user.variables if name not in but), None)) is not None:
        fix = "leave it out, or give what starts the run: a log says what ran"
        raise InputError(COMMAND_LINE, SET, f"is {name}, and {where} is the log of a run", fix)


def with_options(configuration: RunConfiguration, batch: int | None, micro_batch: int | None) -> RunConfiguration:
    """The configuration with values of --batch and --micro-batch for what it leaves open. Raises InputError if both have a
    value and they differ."""
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
    """The configuration with the kernels of loss and attention: as the options say, or else the file, or else, for attention,
    the configuration of the model. model: the name of the model, if given. Raises InputError if option and file differ."""
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
    """Words on the optimizer, the fused loss and Liger's kernels, for tables of measured runs."""
    taken = {value.key: value for value in configuration.taken}
    words = [LIGER] * any(str(taken[key].value).lower() == "true" for key in LIGER_KEYS if key in taken)
    words += [FUSED_LOSS] * (configuration.buffers.loss == "fused" and configuration.runtime.startswith("megatron"))
    return " ".join([configuration.flags, *words]).strip()


def model_of(
    configuration: RunConfiguration, name: str | None, sequence: int | None, dtype: str | None, cluster: Cluster | None = None
) -> Model:
    """The model of a run: the named one or else the file's, in a dtype that the devices of `cluster` support, if given. Raises
    InputError."""
    tokens = configuration.sequence
    if sequence is not None and tokens not in (None, sequence):
        whose = f", of {configuration.tool}," if configuration.tool else ""
        problem = f"is {sequence}, and {configuration.where}{whose} has {tokens}"
        raise InputError(COMMAND_LINE, "--sequence", problem, "leave it out, or change the file")
    tokens = tokens or sequence
    if tokens is None:
        name = configuration.undecided.get("sequence")
        problem = "does not say it" if name is None else f"leaves it to {name}"
        raise InputError(COMMAND_LINE, "--sequence", "is missing", f"give it: {configuration.where} {problem}")
    if cluster is not None:
        refuse_what_devices_lack(configuration, cluster)
    if configuration.dtype is not None and dtype is not None and parse_dtype(dtype) != parse_dtype(configuration.dtype):
        problem = f"is {dtype}, and the file has {configuration.dtype}"
        raise InputError(COMMAND_LINE, "--dtype", problem, "leave it out, or change the file")
    dtype = configuration.dtype or dtype
    fields, shipped_name = configuration.config, name or configuration.model
    named = configuration.model
    if named is not None and not Path(named).exists() and (what := mixture(named)) is not None:
        raise configuration.error("model", f"is {named!r}: {what} is not planned yet", "give a dense model")
    if shipped_name is not None:
        half = "bfloat16" if cluster is None else cluster.training_dtype
        model = model_on_samples(configuration, tokens, lambda length: load_model(shipped_name, length, dtype, half)).fused()
        _agreed(configuration, model)
        return model
    if fields is None:
        fix = f"give it, such as llama3-8b or its config.json: {configuration.where} does not describe the model"
        raise InputError(COMMAND_LINE, "--model", "is missing", fix)
    if "vocab_size" not in fields:
        keys = VOCABULARIES.get(configuration.tool or configuration.runtime, "")
        fix = "give it, a name or a config.json of the same sizes" + f", or {keys} in the file" * bool(keys)
        problem = f"is missing, and {configuration.where} leaves the size of the vocabulary to its tokenizer"
        raise InputError(COMMAND_LINE, "--model", problem, fix)
    size, multiple = int(fields["vocab_size"]), configuration.vocabulary_multiple
    multiple = 1 if multiple == configuration.tp else multiple  # shares that differ by a row take what padding to tp does
    fields = {**fields, "vocab_size": -(-size // multiple) * multiple}
    name = f"{fields['model_type']}-{configuration.where.rsplit('/', 1)[-1]}"

    def load(length: int | None) -> Model:
        return model_from_config(fields, configuration.where, length, dtype or "float32", name)

    return (model_on_samples(configuration, tokens, load) if configuration.runtime == "torchtitan" else load(tokens)).fused()


def with_model(configuration: RunConfiguration, model: Model) -> RunConfiguration:
    """The configuration with those buffer sizes filled in that depend on the model's hidden size."""
    sizes = configuration.buffers.by_hidden
    buffers = configuration.buffers.for_hidden(model.units[-1].sublayer.hidden)
    source = "by the model's hidden size, as transformers' Trainer and Accelerate fill in 'auto'"
    taken = tuple(TakenValue(f"buffers.{name}", getattr(buffers, name), source) for name, _ in sizes)
    return replace(configuration, buffers=buffers, taken=(*configuration.taken, *taken))


def _agreed(configuration: RunConfiguration, model: Model) -> None:
    """Raises InputError if the file describes a model with other sizes than the named one."""
    fields: Mapping[str, Any] = configuration.config or {}
    if configuration.config is None and configuration.model is not None:
        try:
            fields = load_model(configuration.model, 128).config
        except InputError:  # a name that is not shipped, whose sizes nobody knows
            return
    for what, names in SIZES.items():
        written, named = (next((sizes[name] for name in names if sizes.get(name)), None) for sizes in (fields, model.config))
        near = "vocab_size" in names and written and named and abs(written - named) <= PADDED * max(written, named)
        if None not in (written, named) and written != named and not near:
            problem = f"has {written} {what}, and {model.name} has {named}"
            raise configuration.error("model", problem, "give the model that runs, or leave --model out")


def with_recipe(configuration: RunConfiguration, request: Request) -> RunConfiguration:
    """The configuration with its low-precision recipe, if the cost model `streams` can price it on the devices of a request;
    otherwise without it and with a note. Raises InputError if the devices do not support the recipe."""
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
    """The plan that a configuration runs on the devices of a request. Raises InputError naming the key that does not fit."""
    devices, tp, cp, pp = request.origin.devices, configuration.tp, configuration.cp, configuration.pp
    if configuration.devices not in (None, devices):
        problem = f"has {devices} devices, and the file starts {configuration.devices}"
        raise InputError(COMMAND_LINE, "--cluster", problem, f"give one of {configuration.devices}")
    nodes = None if request.cluster is None else sum(node.count for node in request.cluster.nodes)
    if None not in (nodes, configuration.nodes) and nodes != configuration.nodes:
        problem = f"has {nodes} node{'s' * (nodes != 1)}, and the file starts {configuration.nodes}"
        raise InputError(COMMAND_LINE, "--cluster", problem, f"give one of {configuration.nodes}")
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
    begins = [0, *cuts, units]
    stages = [
        Stage(ranks=list(range(x % pp * size, (x % pp + 1) * size)), first_unit=begin, last_unit=end - 1)
        for x, (begin, end) in enumerate(pairwise(begins))
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
        units=_units(configuration, model, strategy, begins),
        precision=configuration.precision.of(model),
        optimizer=configuration.optimizer,
        runs_by=RunBy(
            name=configuration.runtime,
            software=configuration.software,
            flags=_kernels(configuration),
            zero=configuration.zero if configuration.host else None,
            buffers=asdict(configuration.buffers),
            group=configuration.recomputed.group,
        ),
        **fields,
    )


def _strategy(configuration: RunConfiguration, data: int) -> Strategy:
    """The layout of all units without recomputation: copies of states outermost, then shards, context and tensor parallelism.
    data: number of data-parallel ranks. Raises InputError if the degrees do not fit."""
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
    """Advice for runs in which only context-parallel ranks share states. copies: number of copies of states."""
    why = "plans share no states among context-parallel ranks alone"
    if copies == 1:
        return f"leave the sharing out, or give more devices: {why}"
    fewest = next(number for number in range(2, copies + 1) if copies % number == 0)
    shard = "" if configuration.shard is None else f" and {configuration.keys.get('shard', 'shard')} = {fewest}"
    return f"give {configuration.keys.get('copies', 'copies')} = {copies // fewest}{shard}: {why}"


def _unequal(configuration: RunConfiguration, copies: int, shard: int, data: int) -> InputError:
    """The error for numbers of copies and of sharing ranks whose product differs from the number of data-parallel ranks
    (`data`)."""
    name = "shard" if configuration.shard is not None else "copies"
    if configuration.shard is None or configuration.copies is None:
        fix = f"give a divisor of the {data} data-parallel ranks"
        return configuration.error(name, f"is {getattr(configuration, name)}", fix)
    other = configuration.keys.get("copies", "copies")
    works = [str(data // copies)] * (data % copies == 0) + [f"{other} = {data // shard}"] * (data % shard == 0)
    problem = f"is {shard}, with {other} = {copies}: {copies * shard} of {data} data-parallel ranks"
    return configuration.error(name, problem, f"give {' or '.join(works) or f'two numbers whose product is {data}'}")


def _batch(configuration: RunConfiguration, data: int) -> tuple[int, int]:
    """Samples of a step, and micro-batches of a step. data: number of data-parallel ranks. Raises InputError."""
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
    """The first unit of each stage but the first. Raises InputError if there are too many stages."""
    if configuration.cuts is not None:
        if configuration.cuts and configuration.cuts[-1] >= len(model.units):
            raise configuration.error(
                "pp", f"has stages of more than the {len(model.units)} sub-layers", "give the model that runs"
            )
        return configuration.cuts
    count, (first, last) = configuration.pp * configuration.chunks, configuration.layers_apart
    whole, more = divmod(model.layers + first + last, count)
    layers = [whole + (x < more) for x in range(count)]
    layers[0] -= first
    layers[-1] -= last
    if min(layers) < 0 or any(size == 0 for size in layers[1:-1]):
        fix = f"give at most {model.layers} stages"
        raise configuration.error("pp", f"is {configuration.pp}, with {configuration.chunks} stages on each rank", fix)
    counts = [2 * size for size in layers]
    counts[0] += 1
    return tuple(accumulate(counts[:-1]))


def _units(configuration: RunConfiguration, model: Model, strategy: Strategy, begins: list[int]) -> list[PlannedUnit]:
    """The plan's units, with what each recomputes and what of it is on the host. begins: first unit of each stage."""
    units, layer_of_stage = list[PlannedUnit](), dict[int, int]()
    recomputed, starts = configuration.recomputed, set(begins)
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
    """Whether a layer is recomputed. layer: its number in the model, from 1. index: its index in its stage."""
    if recomputed.of == "none" or layer % recomputed.every:
        return False
    return recomputed.first is None or index < recomputed.first
