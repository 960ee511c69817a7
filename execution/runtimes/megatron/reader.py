"""Reader of the arguments of Megatron-LM's training scripts, from a script that starts one or from a list of arguments.

Names and defaults as of `megatron/training/arguments.py` (core 0.15, 2025; for Muon core 0.16, 2026). Ranks are numbered
tensor-parallel first, then context-parallel, data-parallel and pipeline-parallel; copies of the distributed optimizer are
outside its shards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from trainplan.execution.launch_files.foreign import foreign, shares_keys
from trainplan.execution.launch_files.known_keys import known_keys
from trainplan.execution.launch_files.run_configuration import (
    KeyReader,
    RecomputedLayers,
    RunConfiguration,
    UndecidedValue,
    UserSettings,
)
from trainplan.execution.launch_files.shell import Command, command_of, values_of
from trainplan.execution.runtimes.megatron import layouts
from trainplan.execution.runtimes.megatron.capabilities import FUSED_LOSS, TE_LOSS
from trainplan.execution.runtimes.megatron.fields import ARGUMENTS, EXCHANGES, MODULES, STEPPED
from trainplan.execution.runtimes.megatron.older_versions import (
    CORE,
    buffers_of,
    engine_of,
    refuse_disagreement,
    stage_of,
    tool_of,
    with_todays_names,
)
from trainplan.execution.runtimes.megatron.programs import refuse_others
from trainplan.execution.runtimes.megatron.read_batch import batch_of
from trainplan.execution.runtimes.megatron.read_model import (
    Unlike,
    differences_from_model,
    model_fields,
    vocabulary,
    with_tokenizer,
)
from trainplan.execution.runtimes.megatron.refused import refuse, refuse_mapping, small_differences
from trainplan.formulations.plan.strategy import Exchange
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.base.quantities import plural
from trainplan.profiling.clusters.recipes import RECIPES, RecipeName
from trainplan.profiling.models.model import load_model
from trainplan.profiling.models.optimizers import ITERATIONS, OPTIMIZERS, OptimizerName
from trainplan.profiling.models.precision import PLAIN, Precision

KNOWN = known_keys(__file__)
OF_EXPERTS = ("moe", "moe_act", "shared_experts", "mla_up_proj", "gdn_norm_out", "gdp_in_proj", "gdp_qkv", "mhc")
SHARDED_STAGES: tuple[Literal[0, 1, 2, 3], ...] = (0, 1, 2, 3)
DEALT = "--decoder-pipeline-manual-split-list"  # of Primus
SETTINGS = (
    *("--overlap-grad-reduce", "--overlap-param-gather", "--tp-comm-overlap", "--fp8-param-gather"),
    "--untie-embeddings-and-output-weights",
)
OF_ENGINE = re.compile(r"(?:no )?(?:overlap_comm|contiguous_gradients)")  # words on how DeepSpeed reduces gradients
LAYOUT, VIRTUAL = "--pipeline-model-parallel-layout", "--num-virtual-stages-per-pipeline-rank"
ENDS = ("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers")
COUNTED = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")


def read(path: Path, user: UserSettings) -> RunConfiguration:
    """The run configuration of a script that starts Megatron-LM, or of a list of its arguments. user: the settings that the
    user gives in addition to the file. Raises InputError for a key or value that is invalid or that no plan can have."""
    return of_command(command_of(path, user.variables), str(path), user)


def of_command(command: Command, where: str, user: UserSettings) -> RunConfiguration:
    """The run configuration of a training command that was found in a script. where: the script, for errors. user: the settings
    that the user gives in addition to the file. Raises InputError, also for commands of other tools than Megatron-LM."""
    if command.tool not in ("megatron", ""):
        raise foreign(command, where)
    refuse_others(command.program, command.values, where, command.open)
    if command.program and not command.tool and not shares_keys(command):
        raise foreign(command, where)
    engine = engine_of(command, where, user)
    values, sources = with_tokenizer(command.program, command.values, command.sources)
    return of_values(values, where, user, command.devices, sources, command.open, engine)


def of_arguments(words: Sequence[str], where: str, user: UserSettings, devices: int | None = None) -> RunConfiguration:
    """The run configuration of a list of Megatron-LM's arguments. words: the arguments as words of a command. devices: number
    of devices that the launcher starts, if known. where: the file, for errors. user: the settings that the user gives in
    addition to the file. Raises InputError for a key or value that is invalid or that no plan can have."""
    return of_values(values_of(words), where, user, devices)


def of_values(
    values: Mapping[str, Any],
    where: str,
    user: UserSettings,
    devices: int | None = None,
    sources: Mapping[str, str] | None = None,
    undecided: Mapping[str, UndecidedValue] | None = None,
    engine: RunConfiguration | None = None,
) -> RunConfiguration:
    """The run configuration of Megatron-LM's arguments by name.

    values: each argument's value: a text (several values joined by blanks), or True for an argument without a value. where: the
    file, for errors. devices: number of devices, as the launcher states it; None if it does not. sources: file and line of each
    argument; None to state the file alone. undecided: arguments whose values nobody has given, by name; None for none. engine:
    for Megatron-DeepSpeed, the run that DeepSpeed's file describes; None for other runs. user: the settings that the user gives
    in addition to the file. Raises InputError for a key or value that is invalid or that no plan can have.
    """
    tool = tool_of(values)
    values, sources, undecided = with_todays_names(values, sources or {}, undecided or {})
    keys = KeyReader(
        where,
        values,
        sources=sources,
        defaults=f"default of {tool}",
        ignored=user.ignored,
        undecided=undecided,
        fields=ARGUMENTS,
    )
    refuse(keys, devices)
    keys.flag("--no-pipeline-parallel")
    tp, pp = (keys.whole(f"--{name}-model-parallel-size") or 1 for name in ("tensor", "pipeline"))
    notes = small_differences(keys, tp)
    copies = keys.whole("--num-distributed-optimizer-instances") or 1
    zero, software = _sharding(keys, engine, notes)
    cp = keys.whole("--context-parallel-size") or 1
    exchange = _exchange(keys, cp, notes)
    optimizer, dealt = _optimizer(keys, notes)
    if dealt:
        zero = max(zero, 1)
    if OPTIMIZERS[optimizer].whole_matrices:
        _refuse_sharded_muon(keys, copies, zero)
    layers = _layers(keys, user.model)
    cuts, chunks = _stages(keys, layers, pp)
    refuse_mapping(keys, tp, pp, chunks)
    model = _model(keys, layers, user, notes)
    multiple = (keys.whole("--make-vocab-size-divisible-by") or 1) * tp
    dtype, precision = _precision(keys)
    recipe = _recipe(keys, dtype, zero > 0, notes)
    shared = keys.flag("--sequence-parallel") and tp > 1
    recomputed = _recomputed(keys, notes)
    flags = " ".join([*_settings(keys), optimizer])
    if engine is not None:
        flags = ", ".join([flags, *OF_ENGINE.findall(engine.flags)])
    keyed = {field.says: name for name, field in ARGUMENTS.items() if field.says}
    keyed |= {"recipe": "--fp4-recipe" if recipe == "nvfp4" else "--fp8-recipe"}
    keyed |= {"dtype": "--bf16" if dtype == "bfloat16" else "--fp16"}
    fields: dict[str, Any] = {
        "sequence": keys.whole("--seq-length"),
        "samples": batch_of(keys, notes),
        "micro_samples": keys.whole("--micro-batch-size"),
        "config": None if model is None else {**model, **vocabulary(keys)},
    }
    buffers = buffers_of(keys, engine, tool != CORE)
    if engine is not None:
        refuse_disagreement(keys, engine, {**fields, "dtype": dtype})
        fields |= {"host": engine.host}
        notes += engine.notes
    unread, unknown = keys.left(KNOWN)
    return RunConfiguration(
        where=where, runtime="megatron", software=software, flags=flags, vocabulary_multiple=multiple, dtype=dtype,
        precision=precision, optimizer=optimizer, devices=devices, tp=tp, pp=pp, chunks=chunks,
        copies=copies if zero else None, zero=zero, cp=cp, exchange=exchange, sequence_parallel=shared,
        schedule="interleaved-1f1b" if chunks > 1 else "1f1b", cuts=cuts, recomputed=recomputed, keys=keyed,
        notes=tuple(notes), unread=unread, unknown=unknown, recipe=recipe,
        buffers=buffers, taken=(*keys.taken, *(() if engine is None else engine.taken)), **fields,
    )  # fmt: skip


def _settings(keys: KeyReader) -> Iterator[str]:
    """Words for the settings that are on, as rows of measured runs name them: overlap of communication, parameters gathered in
    8 bits, and a fused loss with the kernels that compute it. keys: gives the values of the file's keys, and records which keys
    have been read. Raises InputError for kernels that there are not."""
    yield from (flag.removeprefix("--") for flag in SETTINGS if keys.flag(flag))
    kernels = keys.text("--cross-entropy-fusion-impl")
    if keys.flag(f"--{FUSED_LOSS}"):
        yield from (FUSED_LOSS, *[TE_LOSS] * (kernels == "te"))


def _sharding(
    keys: KeyReader, engine: RunConfiguration | None, notes: list[str]
) -> tuple[Literal[0, 1, 2, 3], Literal["megatron-core", "megatron-deepspeed"]]:
    """The ZeRO stage that corresponds to how data-parallel ranks shard states, and the software that shards them. engine: for
    Megatron-DeepSpeed, the run that DeepSpeed's file describes; None for other runs. notes: a list to which lines on how the
    plan differs from the run are appended. keys: gives the values of the file's keys, and records which keys have been read.
    Raises InputError for a key or value that is invalid or that no plan can have."""
    distributed = keys.flag("--use-distributed-optimizer")
    fsdp_stage: Literal[0, 1, 2, 3] = keys.word("--data-parallel-sharding-strategy")
    reshards = not keys.flag("--torch-fsdp2-no-reshard-after-forward")
    zero: Literal[0, 1, 2, 3] = 0
    if keys.flag("--use-torch-fsdp2"):
        zero = 3 if reshards else 2
    elif keys.flag("--use-megatron-fsdp") or keys.flag("--use-custom-fsdp"):
        zero = fsdp_stage
    elif distributed:
        zero = 1
    deepspeed_stage = stage_of(keys, engine, notes)
    return (zero, "megatron-core") if deepspeed_stage is None else (SHARDED_STAGES[deepspeed_stage], "megatron-deepspeed")


def _refuse_sharded_muon(keys: KeyReader, copies: int, zero: int) -> None:
    """Check that the optimizer Muon is not combined with what Megatron-LM or plans lack. copies: number of copies of the
    distributed optimizer's states. zero: the ZeRO stage; above 1, gradients are sharded. keys: gives the values of the file's
    keys, and records which keys have been read. Raises InputError if there are several copies or sharded gradients."""
    if copies > 1:
        fix = "leave it out: Muon's tensors are dealt to all data-parallel ranks"
        raise keys.error("--num-distributed-optimizer-instances", f"is {copies}, with Muon", fix)
    if zero > 1:
        problem = f"is {shown(keys.get('--optimizer'))}, with sharded gradients"
        raise keys.error("--optimizer", problem, "leave FSDP out, or give adam")


def _precision(keys: KeyReader) -> tuple[str, Precision]:
    """The dtype of matrix multiplications, and the dtypes of master weights and gradients. keys: gives the values of the file's
    keys, and records which keys have been read."""
    dtype = "bfloat16" if keys.flag("--bf16") else "float16" if keys.flag("--fp16") else "float32"
    narrow = keys.flag("--grad-reduce-in-bf16") or dtype == "float16"
    if keys.flag("--accumulate-allreduce-grads-in-fp32"):
        narrow = False
    if dtype == "float32":
        return dtype, PLAIN
    return dtype, Precision(master="float32", gradients="model" if narrow else "float32")


def _model(keys: KeyReader, layers: int, user: UserSettings, notes: list[str]) -> dict[str, Any] | None:
    """The fields of a Hugging Face configuration of the model that the arguments describe; None if they leave it to a
    checkpoint. layers: number of layers. notes: lines are appended on how the model differs from one that the user names. keys:
    gives the values of the file's keys, and records which keys have been read. user: the settings that the user gives in
    addition to the file. Raises InputError if these are different models."""
    try:
        fields = model_fields(keys, layers)
    except Unlike as error:
        if user.model is None:
            raise
        fields = {"num_hidden_layers": layers}
        biased = error.field == "--disable-bias-linear"
        what = "linear layers with biases (--disable-bias-linear is not given)" if biased else f"{error.field} {error.problem}"
        notes.append(f"{what}: the plan's layers are those of {user.model}" + ", without biases" * biased)
    normed = keys.flag("--embed-layernorm")
    if normed != (fields is not None and fields.get("model_type") == "bloom"):
        notes.append(
            "a norm after the embedding (--embed-layernorm): the plan has none" if normed else
            "no norm after the embedding (--embed-layernorm is not given): the plan's BLOOM has one"
        )  # fmt: skip
    if user.model is not None:
        notes += differences_from_model(keys, layers, user.model, fields)
    return fields


def _recipe(keys: KeyReader, dtype: str, shared: bool, notes: list[str]) -> RecipeName | None:
    """The low-precision recipe of matrix multiplications; None if there is none. dtype: the dtype of other matrix
    multiplications. shared: whether data-parallel ranks shard states. notes: a list to which lines on how the plan differs from
    the run are appended. keys: gives the values of the file's keys, and records which keys have been read. Raises InputError
    for a key or value that is invalid or that no plan can have."""
    eight, four = keys.get("--fp8-format"), keys.get("--fp4-format")
    scaling = keys.word("--fp8-recipe")
    keys.text("--fp4-recipe")
    gathered = keys.flag("--fp8-param-gather")
    ends = keys.flag("--first-last-layers-bf16")
    if eight is None and four is None:
        return None
    if eight is not None and four is not None:
        raise keys.error("--fp4-format", f"is {shown(four)}, with --fp8-format", "give one of the two")
    if ends:
        text = f"first and last layers in {dtype} (--first-last-layers-bf16): the plan has all layers alike; less time"
        notes.append(text)
    if eight is not None and shared and not gathered and not RECIPES[scaling].keeps_weights:
        notes.append(f"weights in {dtype}, too, without --fp8-param-gather: the plan has those in 8 bits alone; less memory")
    return "nvfp4" if four is not None else scaling


def _exchange(keys: KeyReader, cp: int, notes: list[str]) -> Exchange:
    """The data that context-parallel ranks exchange during attention: keys (and values), or heads. cp: number of
    context-parallel ranks. notes: a line is appended if the plan predicts another way of exchange. keys: gives the values of
    the file's keys, and records which keys have been read. Raises InputError if the exchange differs by layer, or is of both
    kinds."""
    name, words_given = "--cp-comm-type", str(keys.get("--cp-comm-type") or "p2p").split()
    words = {word.replace("_", "") for word in words_given}
    if cp == 1:
        return "keys"
    if len(words) > 1 or not words <= set(EXCHANGES):
        fix = f"give one of {', '.join(EXCHANGES)} for all layers: plans have no other exchange"
        raise keys.error(name, f"is {shown(' '.join(words_given))}", fix)
    (word,) = words
    if word == "allgather":
        notes.append("keys and values gathered before attention: predicted as sent around a ring during attention; less time")
    return EXCHANGES[word]


def _layers(keys: KeyReader, model: str | None) -> int:
    """Number of transformer layers: from the arguments or the layer pattern, otherwise from the model that the user names.
    model: the name of that model, if any. keys: gives the values of the file's keys, and records which keys have been read.
    Raises InputError if nothing states the number."""
    if (pattern := keys.get("--hybrid-layer-pattern")) is not None:
        odd = set(str(pattern)) - set("*-|")
        if odd or str(pattern).count("*") != str(pattern).count("-"):
            fix = "give as many * (attention) as - (feed-forward), in turn: other layers have no programs"
            raise keys.error("--hybrid-layer-pattern", f"is {shown(pattern)}", fix)
        return str(pattern).count("*")
    layers = keys.whole("--num-layers")
    if layers is None and model is not None:
        layers = load_model(model).layers
        keys.take("--num-layers", layers, f"--model {model}")
    if layers is None:
        fix = "give it: how many transformer layers the model has, or say which model it is by --model"
        raise keys.error("--num-layers", "is missing", fix)
    return layers


def _stages(keys: KeyReader, layers: int, pp: int) -> tuple[tuple[int, ...] | None, int]:
    """Two values on the pipeline's stages: the index of the first unit of every stage but the first (None if no argument states
    it), and the number of stages per rank. A unit is the embedding, a sub-layer (attention or feed-forward network) or the
    head. layers: number of layers. pp: pipeline-parallel ranks. keys: gives the values of the file's keys, and records which
    keys have been read. Raises InputError if the layers cannot be divided in this way."""
    pattern, layout = keys.get("--hybrid-layer-pattern"), keys.get(LAYOUT)
    dealt = keys.get(DEALT)
    per_chunk, virtual = keys.whole("--num-layers-per-virtual-pipeline-stage"), keys.whole(VIRTUAL)
    first, last = map(keys.whole, ENDS)
    ends = list(map(keys.flag, COUNTED))
    ends = _partitioned(keys) or ends
    if pattern is not None:
        counts = [len(stage) for stage in str(pattern).split("|")]
        counts[0] += 1
        counts[-1] += 1
        return _cuts(keys, "--hybrid-layer-pattern", counts, pp, 2 * layers + 2)
    if layout is not None:
        return _of_layout(keys, str(layout), layers, pp)
    if pp == 1:
        return (), 1
    if dealt is not None:
        return _cuts(keys, DEALT, _dealt(keys, str(dealt), pp), pp, 2 * layers + 2)
    chunks = virtual or (1 if per_chunk is None else layers // (pp * per_chunk))
    if per_chunk is not None and layers % (pp * per_chunk):
        fix = f"give a divisor of {layers // pp}: {layers} layers on {pp} stages"
        raise keys.error("--num-layers-per-virtual-pipeline-stage", f"is {per_chunk}", fix)
    count, less = pp * chunks, [int(counted) for counted in ends]
    if first is not None or last is not None:
        rest, others = layers - (first or 0) - (last or 0), count - (first is not None) - (last is not None)
        if chunks > 1 or others < 1 or rest % others or rest < others:
            name = ENDS[first is None]
            fix = f"leave a multiple of {max(1, others)} layers for the other stages, or give {LAYOUT}"
            raise keys.error(name, f"is {first if first is not None else last}, of {layers} layers", fix)
        layer_counts = [rest // others] * others
        layer_counts = ([first] if first is not None else []) + layer_counts + ([last] if last is not None else [])
    else:
        if (layers + sum(less)) % count:
            fix = f"give a multiple of {count} stages, or {LAYOUT}"
            raise keys.error("--num-layers", f"is {layers}", fix)
        layer_counts = [(layers + sum(less)) // count] * count
        layer_counts[0] -= less[0]
        layer_counts[-1] -= less[1]
    counts = [2 * size for size in layer_counts]
    counts[0] += 1
    counts[-1] += 1
    return _cuts(keys, "--pipeline-model-parallel-size", counts, pp, 2 * layers + 2)


def _partitioned(keys: KeyReader) -> list[bool] | None:
    """Whether the embedding and the head count as layers when DeepSpeed divides layers into stages, as two values; None if no
    argument says it. keys: gives the values of the file's keys, and records which keys have been read. Raises InputError for
    division by another measure."""
    name = "--pp-partition-method"
    method = keys.get(name)
    if method is None:
        return None
    counted = set(str(method).strip("'\"").lower().removeprefix("type:").split("|"))
    if not str(method).strip("'\"").lower().startswith("type:") or not {"transformer"} <= counted <= {
        "transformer",
        "embedding",
    }:
        fix = "give type:transformer, or type:transformer|embedding"
        raise keys.error(name, f"is {shown(method)}: stages by another measure than layers", fix)
    return ["embedding" in counted] * 2


def _of_layout(keys: KeyReader, layout: str, layers: int, pp: int) -> tuple[tuple[int, ...], int]:
    """Two values on the stages of a pipeline layout such as `Et*3|(tt|)*2tL`: the index of the first unit (embedding, sub-layer
    or head) of every stage but the first, and the number of stages per rank. layers: number of layers. pp: pipeline-parallel
    ranks. keys: gives the values of the file's keys, and records which keys have been read. Raises InputError for layouts that
    Megatron-Core refuses, or that no plan has, and for further arguments on stages that contradict the layout."""
    stages, predicted = layouts.parsed(layout), keys.whole("--mtp-num-layers", 0, least=0) or 0
    if problem := layouts.fault(stages, pp, layers, predicted):
        works = layouts.example(len(stages), pp, layers, predicted)
        fix = f"give one such as {works}" if works else f"give at most {layers + 2} pipeline-parallel ranks"
        raise keys.error(LAYOUT, f"is {shown(layout)}: it {problem}", fix)
    chunks = len(stages) // pp
    for name, other in (*((name, keys.whole(name)) for name in ENDS), *((name, keys.flag(name)) for name in COUNTED)):
        if other:
            raise keys.error(name, f"is {'given' if other is True else other}, with {LAYOUT}", "leave one of the two out")
    if (virtual := keys.whole(VIRTUAL)) not in (None, chunks):
        fix = f"leave it out, or give {chunks}"
        raise keys.error(VIRTUAL, f"is {virtual}, and {LAYOUT} has {plural(chunks, 'stage')} on each rank", fix)
    counts = [stage.count("E") + 2 * stage.count("t") + stage.count("L") for stage in stages]
    return tuple(accumulate(counts[:-1])), chunks


def _dealt(keys: KeyReader, text: str, pp: int) -> list[int]:
    """Number of units (embedding, two sub-layers per layer, head) of each stage, in stage order. text: a list such as
    `[2,3,2,2]`, which has the numbers of layers of the first rank's stages, then those of the next rank's stages. pp:
    pipeline-parallel ranks. keys: gives the values of the file's keys, and records which keys have been read. Raises InputError
    for a key or value that is invalid or that no plan can have."""
    sizes = [int(number) for number in re.findall(r"\d{1,6}", text)]
    if re.search(r"[^\d\[\],\s]", text) or not sizes or len(sizes) % pp:
        raise keys.error(
            DEALT, f"is {shown(text)}", f"give layers of each stage, a multiple of {pp} of them, such as [2,3,2,2]"
        )
    chunks = len(sizes) // pp
    counts = [2 * sizes[rank * chunks + chunk] for chunk in range(chunks) for rank in range(pp)]
    counts[0] += 1
    counts[-1] += 1
    return counts


def _cuts(keys: KeyReader, name: str, counts: Sequence[int], pp: int, units: int) -> tuple[tuple[int, ...], int]:
    """Two values on the pipeline's stages: the index of the first unit of every stage but the first, and the number of stages
    per rank. name: the argument, for errors. counts: the number of units (embedding, sub-layers, head) of each stage. pp:
    pipeline-parallel ranks. units: number of units of the whole model. keys: gives the values of the file's keys, and records
    which keys have been read. Raises InputError if they do not match."""
    if len(counts) % pp or min(counts) < 1 or sum(counts) != units:
        problem = f"has {len(counts)} stages of {shown(list(counts))} sub-layers"
        fix = f"give a multiple of {pp} stages, none of them empty, with {units} sub-layers in all, embedding and head counted"
        raise keys.error(name, problem, fix)
    return tuple(accumulate(counts[:-1])), len(counts) // pp


def _optimizer(keys: KeyReader, notes: list[str]) -> tuple[OptimizerName, bool]:
    """The optimizer (adamw or muon), and whether Muon distributes whole tensors among data-parallel ranks (`dist_muon`). notes:
    a list to which lines on how the plan differs from the run are appended. keys: gives the values of the file's keys, and
    records which keys have been read. Raises InputError for other optimizers."""
    name = keys.text("--optimizer")
    if name not in STEPPED:
        others = ", ".join(word for word, (plans, _) in STEPPED.items() if plans != "adamw")
        raise keys.error("--optimizer", f"is {shown(name)}", f"give adam, or one of {others}: plans have no other states")
    if STEPPED[name][0] != "muon":
        return STEPPED[name]
    mode, steps = keys.text("--muon-tp-mode"), keys.whole("--muon-num-ns-steps")
    if mode != "blockwise":
        notes.append(f"Muon's {mode} matrices: the plan's ranks of tp make their own parts orthogonal; less time")
    if steps != ITERATIONS:
        notes.append(f"{steps} iterations of Newton and Schulz: the plan has {ITERATIONS}")
    return STEPPED[name]


def _recomputed(keys: KeyReader, notes: list[str]) -> RecomputedLayers:
    """The layers or modules that are recomputed in backward passes, by Megatron-LM's arguments. notes: lines on modules that
    the plan's model lacks are appended. keys: gives the values of the file's keys, and records which keys have been read.
    Raises InputError for modules that plans cannot recompute."""
    granularity = keys.text("--recompute-granularity")
    if keys.flag("--recompute-activations") and granularity == "none":
        granularity = "selective"
    method, count = keys.text("--recompute-method"), keys.whole("--recompute-num-layers")
    names = str(keys.get("--recompute-modules") or "core_attn").replace(",", " ").split()
    if granularity == "none":
        return RecomputedLayers()
    if granularity == "full":
        return RecomputedLayers("full", first=count) if method == "block" else RecomputedLayers("full", group=count or 1)
    for name in names:
        if name not in (*MODULES, *OF_EXPERTS):
            fix = f"give some of {', '.join(MODULES)}, or --recompute-granularity full: plans keep what other modules make"
            raise keys.error("--recompute-modules", f"has {shown(name)}", fix)
    notes += [f"recomputation of {name}: the plan's model has no such module" for name in names if name in OF_EXPERTS]
    modules = tuple(sorted(MODULES[name] for name in names if name in MODULES))
    return RecomputedLayers("modules", modules) if modules else RecomputedLayers()


def in_fields(error: InputError, fields: Mapping[str, str]) -> InputError:
    """An error about Megatron-LM's arguments, restated with the names of another tool's fields. fields: the tool's field by
    Megatron-LM's argument."""
    fix = error.fix
    for name in sorted(fields, key=len, reverse=True):
        fix = fix.replace(name, fields[name])
    return InputError(error.where, fields.get(error.command_field, error.command_field), error.problem, fix)
