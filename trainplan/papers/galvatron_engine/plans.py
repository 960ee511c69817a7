"""Plan files that Galvatron's engine writes, read as solutions of galvatron-engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from trainplan.formulations.pipeline.problem import Solution
from trainplan.formulations.plan.strategy import Strategy
from trainplan.papers.galvatron_engine.problem import Instance, even_partition, violations
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Source, name_of_source, parse, read_data
from trainplan.profiling.imports.source import Foreign


class PlanRecord(Foreign):
    """The plan file that Galvatron's engine writes (save_results, strategy2config). Its lists are texts with commas, with one
    entry for each layer."""

    pp_deg: Annotated[int, Field(ge=1)]
    tp_sizes_enc: str
    tp_consecutive_flags: str
    dp_types_enc: str
    use_sp: str | None = None
    checkpoint: str | None = None
    global_bsz: int
    chunks: Annotated[int, Field(ge=1)]
    pp_division: str | None = None
    default_dp_type: str = "ddp"
    vtp: int = 1
    vsp: int = 0
    embed_sdp: int = 0


def read_if_plan(source: Source, instance: Instance) -> Solution | None:
    """Read a plan file (or dict) of Galvatron's engine as a solution of an instance (the costs that the engine searches); None
    if the source is no such plan. Raises InputError if it is one and is invalid.
    """
    content = source if isinstance(source, Mapping) else read_data(source)
    return read_plan(source, instance) if isinstance(content, Mapping) and "pp_deg" in content else None


def read_plan(source: Source, instance: Instance) -> Solution:
    """Read a plan file (or dict) of Galvatron's engine as a solution of an instance that `instances.build` returned. Raises
    InputError if the plan is invalid or not in the instance's search space.

    Several configurations of the instance (such as with and without sharded embeddings) may contain the plan: the first in
    which it fits into memory is used, or the first of all if it fits in none.
    """
    where = name_of_source(source, "plan")
    record = parse(source, PlanRecord, where)
    try:
        zero2, choices = instance.provenance["options"]["zero2"], instance.provenance["choices"]
        passes = [tuple(choice[name] for name in ("vocabulary_tp", "vocabulary_sp", "sharded")) for choice in choices]
        pairs = list(zip(instance.configurations, passes, strict=True))
    except (KeyError, TypeError, ValueError):
        problem = "lacks what the engine was told"
        raise InputError("instance", "provenance", problem, "build the instance again") from None
    if record.global_bsz != instance.batch:
        raise InputError(where, "global_bsz", f"is {record.global_bsz}", f"give a plan for {instance.batch} samples")
    if (record.default_dp_type == "zero2") != zero2:
        raise InputError(where, "default_dp_type", f"is {record.default_dp_type!r}", "build the instance with the same")
    if instance.devices % record.pp_deg:
        raise InputError(where, "pp_deg", f"is {record.pp_deg}", f"give a divisor of {instance.devices} devices")
    strategies, stages = _strategies(record, where, instance), _stages(record, where, instance.layers)
    wanted = (record.pp_deg, record.chunks, record.vtp, bool(record.vsp), bool(record.embed_sdp))
    candidates = []
    for index, (configuration, ends) in enumerate(pairs):
        options = {name: s for s, name in enumerate(configuration.tables.strategies)}
        if (configuration.stages, configuration.micro_batches, *ends) == wanted and set(strategies) <= set(options):
            candidates.append(Solution(index, stages, tuple(options[name] for name in strategies)))
    if not candidates:
        problem = f"asks for {record.pp_deg} stages, {record.chunks} micro-batches, vtp {record.vtp}, vsp {record.vsp}"
        fix = "give a plan of the instance's space"
        raise InputError(where, "", f"{problem} with {', '.join(sorted(set(strategies)))}", fix)
    return next((candidate for candidate in candidates if not violations(instance, candidate)), candidates[0])


def _strategies(record: PlanRecord, where: str, instance: Instance) -> list[str]:
    """The name of each layer's strategy in a plan file of Galvatron's engine, in the order of the layers. record: the content
    of the plan file. where: the file's name, for errors. Raises InputError if the file's lists do not match the instance.
    """
    layers, group = instance.layers, instance.devices // record.pp_deg
    none = ",".join(["0"] * layers)
    names = ("tp_sizes_enc", "tp_consecutive_flags", "dp_types_enc", "use_sp", "checkpoint")
    columns = [_numbers(where, name, getattr(record, name) or none, layers) for name in names]
    if wrong := [tp for tp in columns[0] if tp < 1 or group % tp]:
        raise InputError(where, "tp_sizes_enc", f"has {wrong[0]}", f"give divisors of a stage's {group} devices")
    if any(columns[3]):
        raise InputError(where, "use_sp", "has Ulysses layers", "give a plan without: this model has none")
    return [_strategy(group, *layer) for layer in zip(*columns, strict=True)]


def _stages(record: PlanRecord, where: str, layers: int) -> tuple[int, ...]:
    """The number of layers of each stage in a plan file of Galvatron's engine; an even split if the file states none. record:
    the content of the plan file. where: the file's name, for errors. layers: the number of all layers. Raises InputError if
    they do not add up.
    """
    if record.pp_division is None:
        return even_partition(layers, record.pp_deg)
    stages = tuple(_numbers(where, "pp_division", record.pp_division, record.pp_deg))
    if sum(stages) != layers or min(stages) < 1:
        fix = f"split {layers} layers, at least one a stage"
        raise InputError(where, "pp_division", f"is {record.pp_division!r}", fix)
    return stages


def _strategy(group: int, tp: int, consecutive: int, sharded: int, _: int, ckpt: int) -> str:
    """The name of the strategy of one layer in a plan file of Galvatron's engine.

    group: number of devices of a stage. tp: the tensor-parallel degree. consecutive, sharded, ckpt: flags of the plan file, 0
    or 1: whether tensor-parallel ranks are consecutive, whether data parallelism is ZeRO-3, whether the layer is recomputed.
    `_` is the flag of Ulysses sequence parallelism, which is 0.
    """
    data = [(("sdp" if sharded else "dp"), group // tp)] if tp < group else []
    tensor = [("tp", tp)] if tp > 1 else []
    levels = data + tensor if consecutive else tensor + data
    return str(Strategy(tuple(levels), bool(ckpt)))  # type: ignore[arg-type]


def _numbers(where: str, field: str, text: str, count: int) -> list[int]:
    """Parse a text of integers such as "2,2,4". Raises InputError unless there are exactly `count` integers. where, field: the
    names of the file and of its field, for errors.
    """
    parts = text.split(",")
    if len(parts) != count or not all(part.strip().isdecimal() for part in parts):
        raise InputError(where, field, f"is {text[:40]!r}", f"give {count} numbers with commas between them")
    return [int(part) for part in parts]
