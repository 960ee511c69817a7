"""Reader of torchtitan's TOML files, with sections, keys and defaults as of `torchtitan/config/job_config.py` (0.2, 2025); keys
of earlier versions are translated to those of 0.2 (`torchtitan.versions`)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from trainplan.execution.launch_files.documents import written as spelt
from trainplan.execution.launch_files.experts import RunOfExperts
from trainplan.execution.launch_files.known_keys import known_keys
from trainplan.execution.launch_files.lines import sources_of
from trainplan.execution.launch_files.run_configuration import (
    DECLARED,
    KeyReader,
    RecomputedLayers,
    RunConfiguration,
    UserSettings,
    flattened,
)
from trainplan.execution.launch_files.settings import with_settings
from trainplan.execution.runtimes.torchtitan.experts import mixture_of_experts, refuse_experts
from trainplan.execution.runtimes.torchtitan.fields import CONVERTERS, FIELDS, SCHEDULES
from trainplan.execution.runtimes.torchtitan.versions import (
    NORMS,
    OTHERS,
    as_today,
    before_parallelism,
    model_of,
    version_of,
)
from trainplan.formulations.schedule.orders import PlanSchedule
from trainplan.profiling.base.errors import InputError, one_of, shown
from trainplan.profiling.clusters.recipes import RecipeName
from trainplan.profiling.models.model import load_model
from trainplan.profiling.models.precision import PLAIN, Precision

KNOWN = known_keys(__file__)
# Of experts alone, which a dense model has none of.
EXPERTS = tuple(f"quantize.{part}.{kind}" for part in ("grouped_mm", "moe") for kind in ("float8", "mx"))
ROWS = ("rowwise", "rowwise_with_gw_hp")  # scalings of Float8 by rows
ALL_GATHER = "quantize.linear.float8.enable_fsdp_float8_all_gather"
BLOCKS = ("mxfp8", "mxfp8_cublas", "mxfp8_cublas_rceil")
HEADS = {"output", "lm_head", "router.gate"}  # modules that plans compute in the model's dtype anyway, or do not have
LAYER = re.compile(r"layers\.(\d+)")


# Keys that no other tool's TOML has, and sections of what is no run.
OWN = re.compile(
    r"model\.flavor|job\.(config_file|dump_folder|description)|(parallelism|experimental)\.\w*(degree|parallel\w*)"
    r"|training\.(seq_len|(local_|global_)?batch_size|compile|dataset|steps|dtype|mixed_precision_\w+|\w+_degree|\w*fp8_\w+"
    r"|data_parallel_type)|activation_checkpoint\.(mode|\w+_ac_option)|quantize\..*"
)
NO_RUN = {"project", "build-system", "tool", "package", "workspace", "dependencies", "dependency-groups", "lint"}
LATEST = "0.3"
SINGLE = "mixed precision is off without data-parallel ranks that share states: torchtitan computes in training.dtype then"


def read(path: Path, user: UserSettings) -> RunConfiguration:
    """The run configuration of torchtitan's TOML file. user: the settings that the user gives in addition to the file. Raises
    InputError, also for a file of another tool."""
    where = str(path)
    try:
        tables = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(where, "", f"cannot be read ({error})", "give a TOML file of torchtitan") from None
    if not is_one(tables):
        problem = f"has no key that tells torchtitan's files ({', '.join(list(tables)[:4]) or 'it is empty'})"
        fix = "give a file of torchtitan, with keys such as training.seq_len and model.flavor, or the command by --command"
        raise InputError(where, "", problem, fix)
    tables, sources = with_settings(tables, where, user, sources_of(path))
    return of_tables(tables, where, replace(user, variables={}), sources)


def is_one(tables: Mapping[str, Any]) -> bool:
    """Whether the tables of a TOML file are torchtitan's: whether they have a key that no other tool has."""
    return NO_RUN.isdisjoint(tables) and any(OWN.fullmatch(key) for key in flattened(tables))


def of_tables(
    tables: Mapping[str, Any], where: str, user: UserSettings, sources: Mapping[str, str] | None = None, latest: bool = False
) -> RunConfiguration:
    """The run configuration of torchtitan's tables, from a file or as a job prints them. tables: values by table and key.
    sources: file and line by dotted key; None to state the file alone. latest: whether the tables are of version 0.3. where:
    the file, for errors. user: the settings that the user gives in addition to the file. Raises InputError for a key or value
    that is invalid or that no plan can have."""
    written_sources = sources or {}
    if "model_spec" in tables:  # as 0.3 prints it, without the classes of its parts
        problem = "is printed by torchtitan 0.3, which does not say what is recomputed, nor which converters there are"
        raise InputError(where, "model_spec", problem, "give its config_registry.py, with --set config=NAME")
    settings = {key: spelt(text) for key, text in user.variables.items() if "." in key}
    written_sources = {**written_sources, **dict.fromkeys(settings, "--set")}
    own = {**flattened(tables), **settings}
    values, written = as_today(own, where)
    names = {key: written.get(key, key) for key in values}
    keys = KeyReader(
        where,
        values,
        sources={key: written_sources[old] for key, old in names.items() if old in written_sources},
        defaults=f"default of torchtitan {LATEST if latest else version_of(own, written)}",
        ignored=user.ignored,
        fields=FIELDS,
    )
    try:
        run = _of_keys(keys, before_parallelism(values, written), latest)
    except RunOfExperts:
        raise
    except InputError as error:
        raise InputError(error.where, names.get(error.command_field, error.command_field), error.problem, error.fix) from None
    keyed = {name: names.get(key, key) for name, key in run.keys.items()}
    as_written = ((value, names.get(value.key, value.key)) for value in run.taken)
    taken = tuple(replace(value, key=old, value=own.get(old, value.value)) for value, old in as_written)
    return replace(run, keys=keyed, taken=taken)


def _of_keys(keys: KeyReader, early: bool, latest: bool) -> RunConfiguration:
    """The run configuration of torchtitan's keys, under the names of version 0.2. early: whether the file is of a version
    before April 2025. latest: whether the file is of version 0.3. keys: gives the values of the file's keys, and records which
    keys have been read. Raises InputError for a key or value that is invalid or that no plan can have."""
    _refuse(keys)
    cp = keys.whole("parallelism.context_parallel_degree") or 1  # of either rotation keys go around
    notes = list[str]()
    tp, pp = (keys.whole(f"parallelism.{kind}_parallel_degree") or 1 for kind in ("tensor", "pipeline"))
    model, config = _model(keys, notes)
    copies = keys.whole("parallelism.data_parallel_replicate_degree") or 1
    shard = keys.whole("parallelism.data_parallel_shard_degree", least=-1) or -1
    reshard = keys.text("parallelism.fsdp_reshard_after_forward")
    zero: Any = 3 if reshard == "always" or (reshard == "default" and pp == 1) else 2
    if keys.flag("optimizer.early_step_in_backward"):
        notes.append("the optimizer steps within the backward pass: the plan keeps all gradients until its end; less memory")
    if tp > 1 and keys.flag("parallelism.disable_loss_parallel"):
        fix = "give false: plans share the loss between tensor-parallel ranks"
        raise keys.error("parallelism.disable_loss_parallel", "is true", fix)
    keys.flag("parallelism.disable_loss_parallel")
    if keys.flag("parallelism.enable_async_tensor_parallel") and tp > 1:
        notes.append("asynchronous tensor parallelism: predicted without; less time")
    tokens = keys.flag("parallelism.enable_sequence_parallel") and tp > 1
    reads = keys.text("parallelism.pipeline_parallel_schedule")
    schedule = next((order for name, order in SCHEDULES.items() if name.lower() == reads.lower()), None)
    if schedule is None and pp > 1:
        fix = f"give one of {', '.join(name for name in SCHEDULES if '_' not in name)}: plans have no other order of passes"
        raise keys.error("parallelism.pipeline_parallel_schedule", f"is {shown(reads)}", fix)
    schedule = schedule or "1f1b"
    if keys.get("parallelism.pipeline_parallel_schedule_csv"):
        notes.append(f"the order of passes in the CSV file is taken for {reads}")
    cuts, chunks, apart = _stages(keys, pp, schedule, early)
    local, samples = keys.whole("training.local_batch_size"), keys.whole("training.global_batch_size", least=-1)
    assert local is not None
    micro = _micro(keys, local, pp, chunks, early)
    recipe = _recipe(keys, notes)
    dtype = keys.text("training.mixed_precision_param")
    base = keys.text("training.dtype")
    reduced = keys.text("training.mixed_precision_reduce")
    if shard == 1 and copies == cp == 1 and tp * pp > 1 and dtype != base and not latest:
        notes.append(SINGLE)
        dtype = base
    precision = PLAIN
    if dtype == "bfloat16" and base == "float32":
        precision = Precision(master="float32", gradients="model" if reduced == "bfloat16" else "float32")
    elif base == "bfloat16" and reduced == "float32":
        notes.append("gradients in bfloat16 summed over ranks in float32: predicted in bfloat16; more time")
    components = _listed(keys, "compile.components") or ["model"]
    compiled = keys.flag("compile.enable") and "model" in components
    recomputed = _recomputed(keys, notes)
    sequence = keys.whole("training.seq_len")
    unread, unknown = keys.left(KNOWN)
    names = {field.says: name for name, field in FIELDS.items() if field.says}
    names |= {"dtype": "training.mixed_precision_param" if dtype != base or latest else "training.dtype"}
    if shard == cp == 1 and copies > 1:  # states are shared among context-parallel ranks, too
        zero = 0
    return RunConfiguration(
        where=keys.where, runtime="torchtitan", software="torchtitan", flags=_flags(keys, compiled, recipe), model=model,
        config=config, dtype=dtype, precision=precision, sequence=sequence, samples=None if samples == -1 else samples,
        micro_samples=micro, accumulation=None if samples != -1 else local // micro, flushed=local // micro if pp > 1 else None,
        alone=SINGLE if dtype != base and not latest else "", tp=tp, cp=cp, pp=pp, chunks=chunks, copies=copies,
        shard=None if shard == -1 else shard, zero=zero, sequence_parallel=tokens, schedule=schedule if pp > 1 else "1f1b",
        cuts=cuts, layers_apart=apart, recomputed=recomputed, keys=names, notes=tuple(notes), unread=unread, unknown=unknown,
        recipe=recipe, taken=keys.taken,
    )  # fmt: skip


def _refuse(keys: KeyReader) -> None:
    """Check that no key of torchtitan asks for a feature that plans do not have. keys: gives the values of the file's keys, and
    records which keys have been read. Raises InputError for the first that does."""
    if not mixture_of_experts(keys.text("model.name"), keys.text("model.flavor")):
        for kind in ("expert_parallel", "expert_tensor_parallel"):
            keys.refuse(f"parallelism.{kind}_degree", [1], "no experts of this model are known")
    keys.refuse("training.enable_cpu_offload", ["false"], "states that FSDP2 keeps on the host are no option of plans for it")
    keys.refuse("fault_tolerance.enable", ["false"], "replica groups that come and go are not planned")
    keys.refuse("experimental.torch_spmd", ["false"], "plans shard as FSDP2 does")
    keys.refuse("training.enable_selective_ac", ["false"], "say by [activation_checkpoint] what is recomputed")
    keys.refuse("model.norm_type", NORMS, "plans of its models have RMSNorm")
    keys.refuse(
        "quantize.linear.float8.emulate",
        ["false"],
        "emulated matrix multiplications are in the model's dtype",
    )
    keys.refuse("optimizer.name", ["AdamW", "Adam"], "plans for torchtitan step by AdamW")


def _micro(keys: KeyReader, local: int, pp: int, chunks: int, early: bool) -> int:
    """Samples per micro-batch on one rank. local: samples per step on one rank. pp: pipeline-parallel ranks. chunks: stages per
    pipeline-parallel rank. early: whether the file is of a version before April 2025. keys: gives the values of the file's
    keys, and records which keys have been read. Raises InputError if `local` is no multiple of the result."""
    size, count = "parallelism.pipeline_parallel_microbatch_size", "parallelism.pipeline_parallel_microbatches"
    given_size, number = keys.whole(size, None if early else DECLARED), keys.whole(count)
    if pp == 1:
        return local
    if early:
        parts = number or pp * chunks
        if local % parts:
            reason = (
                "pipeline_parallel_microbatches" if number else "as many micro-batches as stages, by default in this version"
            )
            raise keys.error("training.local_batch_size", f"is {local}", f"give a multiple of {parts}: {reason}")
        return local // parts
    if local % (given_size or 1):
        fix = f"give a multiple of pipeline_parallel_microbatch_size = {given_size}"
        raise keys.error("training.local_batch_size", f"is {local}", fix)
    return given_size or 1


def _recipe(keys: KeyReader, notes: list[str]) -> RecipeName | None:
    """The low-precision recipe of the converters of linear layers, under their names in version 0.2 and earlier ones; None if
    there is none. notes: a list to which lines on how the plan differs from the run are appended. keys: gives the values of the
    file's keys, and records which keys have been read. Raises InputError for a key or value that is invalid or that no plan can
    have."""
    converters = _listed(keys, "model.converters")
    linear = [converter for converter in converters if converter in CONVERTERS]
    for converter in converters:
        if converter not in CONVERTERS and converter not in EXPERTS:
            raise keys.error("model.converters", f"has {shown(converter)}", one_of(converter, CONVERTERS))
    kinds = {kind: f"quantize.linear.{kind}" for kind in ("float8", "mx")}
    read = {kind: (keys.get(f"{table}.recipe_name"), _listed(keys, f"{table}.filter_fqns")) for kind, table in kinds.items()}
    keys.flag(ALL_GATHER)  # which `_flags` passes on
    if not linear:
        return None
    if len(linear) > 1:
        raise keys.error("model.converters", f"is {shown(converters)}", "give one converter of linear layers")
    recipe = CONVERTERS[linear[0]]
    kind = "float8" if recipe == "fp8-current" else "mx"
    scaling, left_out = read[kind]
    name = f"{kinds[kind]}.recipe_name"
    if kind == "float8" and scaling not in (None, "tensorwise"):
        if scaling not in ROWS:
            raise keys.error(name, f"is {shown(scaling)}", one_of(scaling, ("tensorwise", *ROWS)))
        notes.append(f"rows scaled by their own maxima ({scaling}): the plan's scale whole tensors, which takes as long")
    if kind == "mx" and scaling not in (None, *BLOCKS):
        raise keys.error(name, f"is {shown(scaling)}", one_of(scaling, BLOCKS))
    if more := [module for module in left_out if module not in HEADS]:
        notes.append(
            f"matrix multiplications left out of {recipe} ({', '.join(more)}): the plan has all layers in it; more time"
        )
    return recipe


def _flags(keys: KeyReader, compiled: bool, recipe: RecipeName | None) -> str:
    """The words that predictions of the run need to know of it beyond the plan: whether layers are compiled, whether parameters
    are gathered in 8 bits, and whether rows are scaled. compiled: whether layers are. recipe: the recipe of the layers'
    products, None if there is none. keys: gives the values of the file's keys.
    """
    by_float8 = recipe == "fp8-current"
    words = ["compile"] * compiled + ["enable_fsdp_float8_all_gather"] * (by_float8 and keys.flag(ALL_GATHER))
    return " ".join([*words, *["float8 rowwise"] * (by_float8 and keys.get("quantize.linear.float8.recipe_name") in ROWS)])


def _listed(keys: KeyReader, key: str) -> list[str]:
    """The list of names under a key of torchtitan's file; versions before April 2025 may have it as a text with commas. keys:
    gives the values of the file's keys, and records which keys have been read. Raises InputError for a key or value that is
    invalid or that no plan can have."""
    value = keys.get(key) or []
    if not isinstance(value, str | list | tuple):
        raise keys.error(key, f"is {shown(value)}", "give a list of names")
    return [str(item).strip() for item in (value.split(",") if isinstance(value, str) else value) if str(item).strip()]


def _model(keys: KeyReader, notes: list[str]) -> tuple[str | None, dict[str, Any] | None]:
    """The name of the shipped model that has the file's name and flavour, such as llama3 and 8B, or else the fields of a
    Hugging Face configuration with its sizes; both are None if its sizes are not known. notes: a line is appended if attention
    is masked by document. keys: gives the values of the file's keys, and records which keys have been read. Raises InputError
    for mixtures of experts."""
    name, flavour = keys.text("model.name"), keys.text("model.flavor")
    if keys.flag("model.use_flex_attn") and keys.text("model.attn_mask_type") != "causal":
        notes.append("attention within documents: predicted over whole samples; less time")
    name = "llama2" if name == "llama" else name  # of April 2024
    refuse_experts(keys, name, flavour)
    if name in OTHERS:
        raise keys.error("model.name", f"is {shown(name)}", "give a decoder of text, such as llama3")
    return model_of(name, flavour)


def _stages(
    keys: KeyReader, pp: int, schedule: PlanSchedule, early: bool
) -> tuple[tuple[int, ...] | None, int, tuple[int, int]]:
    """Three values on the pipeline's stages: the index of the first unit of every stage but the first (None if the file does
    not write it out); the number of stages per rank; and by how many layers the first and the last stage are shorter. A unit is
    the embedding, a sub-layer (attention or feed-forward network) or the head. pp: pipeline-parallel ranks. schedule: the
    pipeline schedule, by which a rank has one stage or several. early: whether the file is of a version before April 2025.
    keys: gives the values of the file's keys, and records which keys have been read. Raises InputError for a key or value that
    is invalid or that no plan can have."""
    lists = [keys.get(f"parallelism.{name}") for name in ("module_fqns_per_model_part",)]
    lists += [keys.get("parallelism.pipeline_parallel_module_fqns_per_model_part")]
    points = _listed(keys, "parallelism.pipeline_parallel_split_points")
    per_stage = keys.whole("parallelism.pipeline_parallel_layers_per_stage")
    weight = None if early and per_stage is None else 1  # of embedding and head
    less = tuple(
        keys.whole(f"parallelism.pipeline_parallel_{end}_stage_less_layers", weight, least=0) or 0 for end in ("first", "last")
    )
    if pp == 1:
        return (), 1, (0, 0)
    usual = 2 if schedule == "interleaved-1f1b" else 1
    if (modules := next(filter(None, lists), None)) is not None:
        return _cuts(keys, modules, pp), len(modules) // pp, (0, 0)
    if points:
        matches = [LAYER.fullmatch(point) for point in points]
        if None in matches or (len(points) + 1) % pp:
            fix = f"give names such as layers.4, of {pp * usual - 1} stages after the first"
            raise keys.error("parallelism.pipeline_parallel_split_points", f"is {shown(points)}", fix)
        return tuple(1 + 2 * int(match[1]) for match in matches if match), (len(points) + 1) // pp, (0, 0)
    if per_stage is not None:
        layers = _known_layers(keys)
        stages = -(-(layers + sum(less)) // per_stage)
        if stages % pp:
            problem, fix = f"is {per_stage}, which makes {stages} stages", f"give one with a multiple of {pp} stages"
            raise keys.error("parallelism.pipeline_parallel_layers_per_stage", problem, fix)
        return None, stages // pp, (less[0], less[1])
    if early:
        if pp * usual > (layers := _known_layers(keys)):
            fix = f"give at most {layers} stages, one for each layer"
            raise keys.error("parallelism.pipeline_parallel_degree", f"is {pp}", fix)
        return _early_cuts(_known_layers(keys), pp * usual), usual, (0, 0)
    return None, usual, (less[0], less[1])


def _early_cuts(layers: int, stages: int) -> tuple[int, ...]:
    """The index of the first unit (embedding, two sub-layers per layer, head) of every stage but the first, as torchtitan
    versions before April 2025 divide layers (`generate_split_points`): left-over layers go to the stages after the first,
    one each."""
    per_stage, more = divmod(layers, stages)
    counts = [per_stage + (0 < index <= more) for index in range(stages - 1)]
    return tuple(1 + 2 * ends for ends in accumulate(counts))


def _known_layers(keys: KeyReader) -> int:
    """Number of layers of the model that the file names. keys: gives the values of the file's keys, and records which keys have
    been read. Raises InputError if its sizes are not known."""
    name, config = _model(keys, [])
    if name is None and config is None:
        fix = "give parallelism.module_fqns_per_model_part, or a flavour that is shipped"
        raise keys.error("model.flavor", f"is {shown(keys.get('model.flavor'))}, of unknown depth", fix)
    return int(config["num_hidden_layers"]) if config is not None else load_model(str(name), 128).layers


def _cuts(keys: KeyReader, modules: Any, pp: int) -> tuple[int, ...]:
    """The index of the first unit (embedding, two sub-layers per layer, head) of every stage but the first. modules: the names
    of the modules of each stage, as the file lists them. pp: pipeline-parallel ranks. keys: gives the values of the file's
    keys, and records which keys have been read. Raises InputError if the lists do not match the model."""
    name = "parallelism.module_fqns_per_model_part"
    if not isinstance(modules, list) or len(modules) % pp or not all(isinstance(part, list) and part for part in modules):
        raise keys.error(name, f"is {shown(modules)}", f"give a list of a multiple of {pp} lists of module names")
    counts, layer = [], 0
    for part in modules:
        count = 0
        for module in map(str, part):
            if LAYER.fullmatch(module):
                if module != f"layers.{layer}":
                    raise keys.error(name, f"has {module} where layers.{layer} is expected", "give the layers in order")
                layer, count = layer + 1, count + 2
            elif module in ("tok_embeddings", "norm"):
                count += 1  # the final norm is part of the head
            elif module not in ("output", "lm_head"):
                raise keys.error(name, f"has {shown(module)}", "give tok_embeddings, layers.N, norm and output")
        counts.append(count)
    return tuple(accumulate(counts[:-1]))


def _recomputed(keys: KeyReader, notes: list[str]) -> RecomputedLayers:
    """The layers or modules that are recomputed in backward passes, by torchtitan's keys. notes: a line is appended if the run
    recomputes single operations. keys: gives the values of the file's keys, and records which keys have been read. Raises
    InputError for a key or value that is invalid or that no plan can have."""
    mode = keys.text("activation_checkpoint.mode")
    option = str(keys.get("activation_checkpoint.selective_ac_option") or "2")
    if mode == "memory_budget":
        raise keys.error(
            "activation_checkpoint.mode", "is 'memory_budget'", "give none, full or selective: plans say what is kept"
        )
    if mode != "selective":
        return RecomputedLayers("full" if mode == "full" else "none")
    if option == "op":
        notes.append(
            "selective recomputation by operations: the plan recomputes norms and activations; torchtitan, and so the "
            "prediction, every second matrix multiplication, too"
        )
        return RecomputedLayers("modules", ("activation", "norms"))
    if not option.isdecimal() or not int(option):
        raise keys.error("activation_checkpoint.selective_ac_option", f"is {shown(option)}", "give a number of layers, or 'op'")
    return RecomputedLayers("full", every=int(option))
