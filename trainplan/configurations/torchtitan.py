"""torchtitan: its TOML, with sections and keys as of `torchtitan/config/job_config.py` (2025), and their defaults."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from trainplan.configurations.configuration import Configuration, Keys, Recomputed, Said, flattened
from trainplan.configurations.documented import TORCHTITAN, TORCHTITAN_TABLES
from trainplan.formulations.step.schedules import PlanSchedule
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.clusters.recipes import RecipeName
from trainplan.profiling.models.model import load_model
from trainplan.profiling.models.precision import PLAIN, Precision
from trainplan.profiling.shipped import shipped

SCHEDULES: dict[str, PlanSchedule] = {"1F1B": "1f1b", "GPipe": "gpipe", "Interleaved1F1B": "interleaved-1f1b"}
CONVERTERS: dict[str, RecipeName] = {
    **dict.fromkeys(("float8", "quantize.linear.float8"), "fp8-current"),
    **dict.fromkeys(("mx", "quantize.linear.mx"), "mxfp8"),
}
LAYER = re.compile(r"layers\.(\d+)")


DEFAULTS = "default of torchtitan 0.2"


def read(path: Path, said: Said) -> Configuration:
    """The configuration of a TOML file. Raises InputError."""
    where = str(path)
    try:
        tables = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(where, "", f"cannot be read ({error})", "give a TOML file of torchtitan") from None
    return of_tables(tables, where, said)


def of_tables(tables: Mapping[str, Any], where: str, said: Said) -> Configuration:
    """The configuration of the tables of a file, or of what a job prints of them. Raises InputError."""
    keys = Keys(where, flattened(tables), defaults=DEFAULTS, ignored=said.ignored)
    for kind in ("expert_parallel", "expert_tensor_parallel"):
        keys.refuse(f"parallelism.{kind}_degree", [1], "runs with expert parallelism are not read yet")
    cp = keys.whole("parallelism.context_parallel_degree", 1) or 1  # of either rotation keys go around
    keys.refuse("training.enable_cpu_offload", ["false"], "states that FSDP2 keeps on the host are no option of plans for it")
    notes, model = list[str](), _model(keys)
    tp, pp = (keys.whole(f"parallelism.{kind}_parallel_degree", 1) or 1 for kind in ("tensor", "pipeline"))
    copies = keys.whole("parallelism.data_parallel_replicate_degree", 1) or 1
    shard = keys.whole("parallelism.data_parallel_shard_degree", -1, least=-1) or -1
    reshard = keys.text("parallelism.fsdp_reshard_after_forward", "default", ("default", "always", "never"))
    zero: Any = 3 if reshard == "always" or (reshard == "default" and pp == 1) else 2
    local, old = keys.whole("training.local_batch_size"), keys.whole("training.batch_size")
    local, samples = local or old or 8, keys.whole("training.global_batch_size", -1, least=-1)
    micro = keys.whole("parallelism.pipeline_parallel_microbatch_size", 1) if pp > 1 else local
    assert micro is not None
    if local % micro:
        problem, fix = f"is {local}", f"give a multiple of pipeline_parallel_microbatch_size = {micro}"
        raise keys.error("training.local_batch_size", problem, fix)
    reads = keys.text("parallelism.pipeline_parallel_schedule", "1F1B")
    if pp > 1 and reads not in SCHEDULES:
        fix = f"give one of {', '.join(SCHEDULES)}: plans have no other order of passes"
        raise keys.error("parallelism.pipeline_parallel_schedule", f"is {shown(reads)}", fix)
    schedule = SCHEDULES.get(reads, "1f1b")
    if keys.get("parallelism.pipeline_parallel_schedule_csv"):
        notes.append(f"the order of passes in the CSV file is taken for {reads}")
    cuts, chunks, apart = _stages(keys, pp, schedule)
    recipe = _recipe(keys, notes)
    dtype = keys.text("training.mixed_precision_param", "bfloat16", ("bfloat16", "float32"))
    base = keys.text("training.dtype", "float32", ("bfloat16", "float32"))
    keys.text("training.mixed_precision_reduce", "float32", ("float32",))
    masters = dtype == "bfloat16" and base == "float32"
    compiled = keys.flag("compile.enable") or keys.flag("training.compile")
    recomputed = _recomputed(keys, notes)
    sequence = keys.whole("training.seq_len", 2048)
    unread, unknown = keys.left(TORCHTITAN, TORCHTITAN_TABLES)
    names = {"tp": "parallelism.tensor_parallel_degree", "pp": "parallelism.pipeline_parallel_degree", "model": "model.flavor"}
    names |= {"recipe": "model.converters"}
    names |= {"samples": "training.global_batch_size", "micro_samples": "training.local_batch_size"}
    names |= {"cp": "parallelism.context_parallel_degree"}
    names |= {"shard": "parallelism.data_parallel_shard_degree", "copies": "parallelism.data_parallel_replicate_degree"}
    if shard == 1 and copies > 1:
        zero = 0
    return Configuration(
        where=where, runtime="torchtitan", software="torchtitan", flags="compile" if compiled else "", model=model, dtype=dtype,
        precision=Precision(master="float32", gradients="float32") if masters else PLAIN,
        sequence=sequence, samples=None if samples == -1 else samples, micro_samples=micro,
        accumulation=None if samples != -1 else local // micro, tp=tp, cp=cp, pp=pp, chunks=chunks, copies=copies,
        shard=None if shard == -1 else shard, zero=zero, sequence_parallel=tp > 1, schedule=schedule if pp > 1 else "1f1b",
        cuts=cuts, layers_apart=apart, recomputed=recomputed, keys=names, notes=tuple(notes), unread=unread, unknown=unknown,
        recipe=recipe, taken=keys.taken,
    )  # fmt: skip


def _recipe(keys: Keys, notes: list[str]) -> RecipeName | None:
    """The recipe of the converters of linear layers, by the names of 0.2 and of those before. Raises InputError."""
    converters = [str(each) for each in keys.get("model.converters") or []]
    linear = [each for each in converters if each in CONVERTERS]
    notes += [f"the converter {each}: the plan computes without it" for each in converters if each not in CONVERTERS]
    if not linear:
        return None
    if len(linear) > 1:
        raise keys.error("model.converters", f"is {shown(converters)}", "give one converter of linear layers")
    scaling = keys.get(f"{linear[0]}.recipe_name")
    if CONVERTERS[linear[0]] == "fp8-current" and scaling not in (None, "tensorwise"):
        notes.append(f"rows scaled by their own maxima ({scaling}): the plan's scale whole tensors, which takes as long")
    return CONVERTERS[linear[0]]


def _model(keys: Keys) -> str | None:
    """The shipped model of the name and flavour, such as llama3 and 8B; None where none is shipped."""
    name, flavour = keys.text("model.name", "llama3"), keys.text("model.flavor", "debugmodel")
    wanted = f"{name}-{flavour}".lower()
    return next((each for each in shipped("models") if each.lower() == wanted), None)


def _stages(keys: Keys, pp: int, schedule: PlanSchedule) -> tuple[tuple[int, ...] | None, int, tuple[int, int]]:
    """The first units of the stages after the first, where they are written out; the stages of each rank; and the layers that
    the first and the last stage have less. Raises InputError."""
    lists = [keys.get(f"parallelism.{name}") for name in ("module_fqns_per_model_part",)]
    lists += [keys.get("parallelism.pipeline_parallel_module_fqns_per_model_part")]
    points, per_stage = (keys.get(f"parallelism.pipeline_parallel_{name}") for name in ("split_points", "layers_per_stage"))
    less = tuple(
        keys.whole(f"parallelism.pipeline_parallel_{end}_stage_less_layers", 1, least=0) or 0 for end in ("first", "last")
    )
    if pp == 1:
        return (), 1, (0, 0)
    usual = 2 if schedule == "interleaved-1f1b" else 1
    if (modules := next(filter(None, lists), None)) is not None:
        return _cuts(keys, modules, pp), len(modules) // pp, (0, 0)
    if points:
        matches = [LAYER.fullmatch(str(point)) for point in points]
        if None in matches or (len(points) + 1) % pp:
            fix = f"give names such as layers.4, of {pp * usual - 1} stages after the first"
            raise keys.error("parallelism.pipeline_parallel_split_points", f"is {shown(points)}", fix)
        return tuple(1 + 2 * int(match[1]) for match in matches if match), (len(points) + 1) // pp, (0, 0)
    if per_stage is not None:
        layers = _known_layers(keys)
        stages = -(-(layers + sum(less)) // int(per_stage))
        if stages % pp:
            problem, fix = f"is {per_stage}, which makes {stages} stages", f"give one with a multiple of {pp} stages"
            raise keys.error("parallelism.pipeline_parallel_layers_per_stage", problem, fix)
        return None, stages // pp, (less[0], less[1])
    return None, usual, (less[0], less[1])


def _known_layers(keys: Keys) -> int:
    name = _model(keys)
    if name is None:
        fix = "give parallelism.module_fqns_per_model_part, or a flavour that is shipped"
        raise keys.error("model.flavor", f"is {shown(keys.get('model.flavor'))}, of unknown depth", fix)
    return load_model(name, 128).layers


def _cuts(keys: Keys, modules: Any, pp: int) -> tuple[int, ...]:
    name = "parallelism.module_fqns_per_model_part"
    if not isinstance(modules, list) or len(modules) % pp or not all(isinstance(part, list) and part for part in modules):
        raise keys.error(name, f"is {shown(modules)}", f"give a list of a multiple of {pp} lists of module names")
    counts, layer = [], 0
    for part in modules:
        count = 0
        for module in map(str, part):
            if LAYER.fullmatch(module):
                if module != f"layers.{layer}":
                    raise keys.error(name, f"has {module} in the place of layers.{layer}", "give the layers in order")
                layer, count = layer + 1, count + 2
            elif module in ("tok_embeddings", "norm"):
                count += 1  # the final norm is part of the head
            elif module not in ("output", "lm_head"):
                raise keys.error(name, f"has {shown(module)}", "give tok_embeddings, layers.N, norm and output")
        counts.append(count)
    return tuple(accumulate(counts[:-1]))


def _recomputed(keys: Keys, notes: list[str]) -> Recomputed:
    mode = keys.text("activation_checkpoint.mode", "selective", ("none", "full", "selective", "memory_budget"))
    option = str(keys.get("activation_checkpoint.selective_ac_option") or "2")
    if mode == "memory_budget":
        raise keys.error(
            "activation_checkpoint.mode", "is 'memory_budget'", "give none, full or selective: plans say what is kept"
        )
    if mode != "selective":
        return Recomputed("full" if mode == "full" else "none")
    if option == "op":
        notes.append(
            "selective recomputation by operations: the plan recomputes norms and activations, and keeps every product"
        )
        return Recomputed("modules", ("activation", "norms"))
    if not option.isdecimal() or not int(option):
        raise keys.error("activation_checkpoint.selective_ac_option", f"is {shown(option)}", "give a number of layers, or 'op'")
    return Recomputed("full", every=int(option))
