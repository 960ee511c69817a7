"""Export of plans to a training script of torch and transformers alone: the code of `execution.lowering`, printed for one plan.

The script builds the Hugging Face model of config.json on the meta device, cuts it into the plan's stages at sub-layers, and
uses only those parts of torch that the plan needs: `parallelize_module` for tp, with or without sequence parallelism;
`fully_shard` for ZeRO stages 1 to 3, hybrid sharding and parameters in two precisions; hooks that sum gradients for copies
alone (dp); checkpointing of units and of modules; a schedule of `torch.distributed.pipelining`. The template
torch_script.py.jinja is the script for all plans; `source_text` gives the texts of its parts.

Refused: what `refusals` says that torch cannot do, except for sliced forward passes, which are left out; units with different
levels, ZeRO stages or sharing of tokens; tensor parallelism of models that `torch_sharding.why_not_split` rejects.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from trainplan.execution.runtimes.export_common import (
    Export,
    check_pipeline,
    common_strategy,
    left_out_of_all,
    micro_batch_samples,
    modules_kept,
    predict_exported,
)
from trainplan.execution.runtimes.launch_scripts import PER_NODE, here, page, slurm, torchrun
from trainplan.execution.runtimes.torch.capabilities import CAPABILITIES
from trainplan.execution.runtimes.torch.refusals import refusals
from trainplan.execution.runtimes.torch.source_text import (
    MIDDLES,
    TORCH_DTYPES,
    imports,
    mesh_of,
    numbers,
    order_rows,
    part_of,
)
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy import Strategy
from trainplan.formulations.plan.torch_sharding import why_not_split
from trainplan.formulations.schedule.orders import SCHEDULES, in_flight, orders
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import format_bytes, plural
from trainplan.profiling.models.sublayers import Attention

RUNTIME, VERSION = "torch", "torch 2.13 and transformers 5 (2026)"
DECIDES = (
    "tokens are read in order, one sample after the other, whatever ranks there are; the optimizer's numbers are in train.py",
    "FSDP2 gathers parameters one layer ahead and reduces gradients during the backward pass: faster than without overlap",
    "the script keeps no checkpoints: add torch.distributed.checkpoint where it prints",
)


def export(plan: Plan, where: str) -> Export:
    """Exports a plan as the files train.py, config.json, launch.sh, slurm.sh and README.md. where: the plan's file, for errors.
    Raises InputError if the script cannot run the plan."""
    strategy = _carried(plan, where)
    names = CAPABILITIES.modules
    dropped = {module for unit_strategy in plan.strategies() for module in unit_strategy.modules if module not in names}
    left_out = [*left_out_of_all(plan, RUNTIME), *modules_kept(dropped, RUNTIME)]
    model = plan.planned_model()
    if "attn_implementation" in model.config:
        left_out.append("model.config.attn_implementation: attention is fused here; faster, and less memory")
    exported = _as_exported(plan)
    extra_bytes = held_alongside(exported)
    left_out += [f"{what}: {format_bytes(number)} on a rank" for what, number in extra_bytes.items() if number]
    prediction = predict_exported(plan, exported, where, RUNTIME, sum(extra_bytes.values()))
    script = _script(exported, strategy)
    config = {name: value for name, value in model.config.items() if name != "attn_implementation"}
    decides = [line for line in DECIDES if "FSDP2" not in line or "fully_shard" in script]
    texts = {
        "train.py": script,
        "config.json": json.dumps(config, indent=1) + "\n",
        "launch.sh": torchrun(plan.world, f'{here("train.py")} "$@"'),
        "slurm.sh": slurm(plan.world),
        "README.md": page(plan, RUNTIME, VERSION, prediction, left_out, decides),
    }
    settings = {"strategy": str(strategy), "schedule": plan.schedule, "config": config, "peak_bytes": prediction.peak_bytes}
    return Export("torch", settings, texts, tuple(left_out), exported)


def _carried(plan: Plan, where: str) -> Strategy:
    """The strategy (levels of parallelism) of all units of a plan, without recomputation, after checks that the torch script
    can run the plan. where: the plan's file. Raises InputError for features of the plan that the script does not have."""
    check_pipeline(plan, CAPABILITIES, RUNTIME, where)
    strategy, model = common_strategy(plan, RUNTIME, where), plan.planned_model()
    for refusal in refusals(plan):
        if refusal.field != "sliced":
            raise InputError(where, refusal.field, f"{refusal.problem}, which torch cannot carry", refusal.fix)
    if strategy.degree("tp") > 1 and (reason := why_not_split(model)):
        field = f"units[0].{plan.units[0].field}"
        raise InputError(where, field, f"is {str(plan.units[0].strategy)!r}, and {reason}", "plan with --for torch")
    if model.dtype == "float16":
        problem = "is 'float16', which needs a loss that is scaled"
        raise InputError(
            where, "model.dtype", problem, "plan in bfloat16 or float32, or export it --to accelerate or deepspeed"
        )
    if model.dtype not in TORCH_DTYPES:
        raise InputError(where, "model.dtype", f"is {model.dtype!r}", f"plan in one of {', '.join(TORCH_DTYPES)}")
    for position, unit in enumerate(plan.units[1:-1], 1):
        first = 2 - position % 2  # of its kind
        if set(unit.strategy.modules) != set(alike := plan.units[first].strategy.modules):
            problem = f"is {list(unit.strategy.modules)}, and {list(alike)} of units[{first}]"
            fix = "give all layers the same modules"
            raise InputError(where, f"units[{position}].activations.recompute", problem, fix)
    for position, unit in enumerate(plan.units):
        if unit.states.kept_whole != plan.units[0].states.kept_whole:
            problem = f"is {str(unit.states.kept_whole).lower()}, unlike units[0]'s"
            raise InputError(where, f"units[{position}].states.kept_whole", problem, "plan with --for torch")
    return strategy


def _as_exported(plan: Plan) -> Plan:
    """A copy of the plan, changed to what the exported torch script does: every micro-batch runs as a whole, where the plan may
    run some in two halves (a sliced schedule), and a unit (sub-layer) recomputes only those modules of its list, such as
    "attention", that the script can recompute without the rest of the sub-layer. The plan's prediction and claim are removed.
    """
    units = []
    for unit in plan.units:
        modules = tuple(module for module in unit.strategy.modules if module in CAPABILITIES.modules)
        recompute = unit.activations.recompute if modules == unit.strategy.modules else list(modules) or "none"
        units.append(unit.changed(activations=unit.activations.changed(recompute=recompute)))
    return plan.changed(units=units, sliced=0, predicted=None, claim=None)


def held_alongside(plan: Plan) -> dict[str, int]:
    """Bytes that the torch script holds on the fullest rank in addition to what the plan's own programs hold, by a text for
    the README that says what they are for. plan: the plan as the script runs it."""
    return {
        "gradients of shards are in float32, as FSDP2 has them with float32 parameters": _widened_bytes(plan),
        "a rank has its shard of the parameters and, for a while, all of them": _doubled_bytes(plan),
        "tokens that ranks gather in front of matrices are kept for the backward pass": _gathered_bytes(plan),
    }


def _rank_parameters(plan: Plan) -> int:
    """The largest number of parameters that one rank keeps: its part of its stages' parameters, divided among tensor-parallel
    ranks and the ranks that shard states."""
    model, strategy = plan.planned_model(), plan.units[0].strategy
    counts = [unit.sublayer.parameter_count() for unit in model.units]
    stages = [sum(counts[stage.first_unit : stage.last_unit + 1]) for stage in plan.stages]
    most = max(sum(stages[index :: plan.depth]) for index in range(plan.depth))
    return -(-most // (strategy.degree("tp") * strategy.degree("sdp")))


def _widened_bytes(plan: Plan) -> int:
    """Bytes on the fullest rank by which gradients under FSDP2 exceed the plan's, because FSDP2 has them in the dtype of the
    parameters that are stepped."""
    model = plan.planned_model()
    precision = plan.precision.for_model(model)
    wide = precision.stepped_bytes(model.element_bytes) - precision.gradient_bytes(model.element_bytes)
    return _rank_parameters(plan) * wide


def _doubled_bytes(plan: Plan) -> int:
    """Bytes on the fullest rank of the shards of parameters that FSDP2 holds in addition to the whole parameters; 0 if the
    plan's own programs hold both, too."""
    model = plan.planned_model()
    kept = plan.units[0].strategy.gathers_updates and plan.precision.for_model(model).master is None
    return _rank_parameters(plan) * model.element_bytes if kept else 0


def _gathered_bytes(plan: Plan) -> int:
    """Bytes on the fullest rank of tokens that the script gathers for sequence parallelism and keeps until the backward
    pass; the plan's own programs gather them again instead. 0 without sequence parallelism."""
    if not plan.units[0].strategy.sequence_parallel:
        return 0
    parts, most = plan.planned_model().units, 0
    stages, count = len(plan.stages), plan.batch.micro_batches
    rows = micro_batch_samples(plan, plan.units[0].strategy.data_degree)
    tp = plan.units[0].strategy.degree("tp")
    for device, order in enumerate(orders(plan.schedule, stages, count, chunks=plan.chunks)):
        total = 0
        for stage in plan.stages[device :: plan.depth]:
            for position in range(max(1, stage.first_unit), stage.last_unit + 1):
                if not plan.units[position].strategy.ckpt:
                    total += parts[position].sublayer.input_bytes(rows) * (tp - 1) // tp
        most = max(most, total * in_flight(order) // plan.chunks)
    return most


def _script(plan: Plan, strategy: Strategy) -> str:
    """The text of train.py for a plan. strategy: the levels of parallelism of all units."""
    context = _of_batch_and_stages(plan, strategy) | _of_ranks(plan, strategy) | _of_model(plan) | _of_precision(plan)
    template = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    source = Path(__file__).with_name("torch_script.py.jinja").read_text()
    return template.from_string(source).render(**context, imports=imports(context))


def _of_batch_and_stages(plan: Plan, strategy: Strategy) -> dict[str, Any]:
    """The values that fill the template of the torch script and follow from batch, stages, schedule and recomputation. Returns
    a dict from each variable of the template to its value. strategy: the levels of parallelism of all units."""
    stages, parts = len(plan.stages), plan.batch.micro_batches
    inner = range(1, len(plan.units) - 1)
    recomputes = [n for n, unit in enumerate(plan.units) if unit.strategy.ckpt or "loss" in unit.strategy.modules]
    pipeline_words = f"{plural(stages, 'stage')} ({plan.schedule}), {strategy}" if stages > 1 else str(strategy)
    short = plan.schedule == "1f1b" and stages > 1 and parts < stages
    return {
        "layout": f"{pipeline_words}, {plural(parts, 'micro-batch')} of {plan.batch.global_samples // parts} samples",
        "batch": plan.batch.global_samples,
        "parts": parts,
        "counted": parts > 1 or stages > 1,
        "rows": micro_batch_samples(plan, strategy.data_degree),
        "units": len(plan.units),
        "stages": stages,
        "depth": plan.depth,
        "chunks": plan.chunks,
        "first_units": numbers([stage.first_unit for stage in plan.stages], "[]"),
        "again": numbers(recomputes) if recomputes else None,
        "recomputed_modules": {module for position in inner for module in plan.units[position].strategy.modules},
        "schedule": SCHEDULES[plan.schedule].torch,
        "orders": order_rows(plan) if short else None,
    }


def _of_ranks(plan: Plan, strategy: Strategy) -> dict[str, Any]:
    """The values that fill the template of the torch script and follow from the ranks: their device mesh, and how units and
    states are divided among them. Returns a dict from each variable of the template to its value. strategy: the levels of
    parallelism of all units."""
    dp, sdp, tp = (strategy.degree(axis) for axis in ("dp", "sdp", "tp"))
    sharded = sdp > 1 or plan.precision.for_model(plan.planned_model()).master is not None
    zero = 2 if plan.units[0].states.kept_whole and strategy.zero_stage == 3 else strategy.zero_stage
    calls = {0: ["set_reshard_after_backward", "set_requires_gradient_sync"], 2: ["set_reshard_after_backward"], 3: []}
    calls[1] = calls[0]
    several = sharded and plan.batch.micro_batches > 1
    mesh, ranks = mesh_of(strategy, stages=plan.depth, sharded=sharded)
    return {
        "world": plan.world,
        "per_node": min(PER_NODE, plan.world),
        "size": plan.stage_sizes[0],
        "last_rank": plan.world - plan.stage_sizes[0],
        "mesh": mesh,
        "ranks": ranks,
        "data": strategy.data_degree,
        "part": part_of(strategy),
        "dp": dp,
        "sdp": sdp,
        "tp": tp,
        "copies": dp > 1 and not sharded,
        "sharded": sharded,
        "zero": zero,
        "shard_mesh": '"dp", "sdp"' if dp > 1 else '"sdp"',
        "before_backward": [*calls[zero], *(["set_requires_all_reduce"] if zero > 1 and dp > 1 else [])] if several else [],
        "tokens_shared": strategy.sequence_parallel,
        "outside": "Shard(1)" if strategy.sequence_parallel else "Replicate()",
    }


def _of_model(plan: Plan) -> dict[str, Any]:
    """The values that fill the template of the torch script and follow from the model: its family, attention windows, tied
    embedding table and dropout. Returns a dict from each variable of the template to its value."""
    model = plan.planned_model()
    sublayers = [unit.sublayer for unit in model.units]
    dropout = [getattr(part, "dropout", 0.0) for part in sublayers]
    attentions = {n: part for n, part in enumerate(sublayers) if isinstance(part, Attention)}
    windows = {n: part.sliding for n, part in attentions.items() if 0 < part.sliding < part.tokens}
    return {
        "window": max(windows.values(), default=0),
        "slid": None if list(windows) == list(attentions) else numbers(list(windows)),
        "model": model.name,
        "version": VERSION.removesuffix(" (2026)"),
        "tokens": model.tokens,
        "tied": None if not model.tied else "table" if len(plan.stages) == 1 else "ends",
        "gpt2": model.family == "gpt2",
        "family": model.family,
        "middle": MIDDLES[model.family],
        "into": ", ".join(f'"{name}"' for name in ("attention.q", "attention.k", "attention.v", *MIDDLES[model.family].into)),
        "head_norms": any(getattr(part, "normed_heads", False) for part in sublayers),
        "embedding_dropout": dropout[0] > 0,
        "residual_dropout": max(dropout[1:-1]) > 0 and model.family == "phi3",
        "dropout": max(dropout) > 0 or any(getattr(part, "attention_dropout", 0) for part in sublayers),
        "narrow": model.vocabulary <= 2**16,
    }


def _of_precision(plan: Plan) -> dict[str, Any]:
    """The values that fill the template of the torch script and follow from the dtypes of parameters, gradients and sums.
    Returns a dict from each variable of the template to its value."""
    model = plan.planned_model()
    precision, dtype = plan.precision.for_model(model), TORCH_DTYPES[model.dtype]
    reduced = TORCH_DTYPES["float32" if precision.gradients == "float32" else model.dtype]
    return {
        "policy": f"MixedPrecisionPolicy(param_dtype={dtype}, reduce_dtype={reduced})" if precision.master else None,
        "dtype": dtype,
        "kept": TORCH_DTYPES[precision.master or model.dtype],
        "half": model.dtype in ("bfloat16", "float16"),
        "wide": TORCH_DTYPES["float64" if model.dtype == "float64" else "float32"],
    }
