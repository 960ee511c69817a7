"""Export of plans to DeepSpeed: its JSON configuration, a training script, and files that start it.

Keys as of DeepSpeed 0.19 (2026; its page on the JSON configuration, `runtime/zero/config.py`). ZeRO stages 1 to 3 are its own.
Copies alone (dp) are stage 0 in float32, and stage 1 in half precision, which is the first stage with float32 gradients. States
on the host are `offload_optimizer` and, in stage 3, `offload_param`. Refused: pipelines, tensor parallelism, units with
different strategies, copies of shards (hybrid sharding), uneven shares, hidden states on the host.
"""

from __future__ import annotations

import json
from dataclasses import replace

from trainplan.execution.launch_files.fields import nested, values_of
from trainplan.execution.runtimes.deepspeed.capabilities import CAPABILITIES
from trainplan.execution.runtimes.deepspeed.fields import KEYS, STEPPED, ExportedValues
from trainplan.execution.runtimes.export_common import Export, as_exported, micro_batch_samples, predict_exported
from trainplan.execution.runtimes.export_sharded import left_out, one_stage, run_file, script
from trainplan.execution.runtimes.launch_scripts import here, page, slurm, torchrun
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy import Strategy
from trainplan.profiling.base.errors import InputError

RUNTIME, VERSION = "DeepSpeed", "DeepSpeed 0.19 (2026)"
DECIDES = (
    "gradients are reduced in buckets during the backward pass (overlap_comm): hidden in plans with overlap",
    "stage 3 gathers parameters ahead, as many as stage3_prefetch_bucket_size has, and keeps small ones whole",
    "buckets for reductions and gathering take memory, which predictions of DeepSpeed count (reduce_bucket_size and others)",
    "the optimizer's numbers are in ds_config.json: yours to change",
)


def export(plan: Plan, where: str) -> Export:
    """Exports a plan as the files ds_config.json, run.json, train.py, launch.sh, slurm.sh and README.md. where: the plan's
    file, for errors. Raises InputError if DeepSpeed cannot run the plan."""
    strategy, model = (
        one_stage(plan, CAPABILITIES, RUNTIME, where, tuple(dict.fromkeys(STEPPED.values()))),
        plan.planned_model(),
    )
    if strategy.degree("dp") > 1 and strategy.degree("sdp") > 1:
        fix = "plan without --hybrid: DeepSpeed shards over all data-parallel ranks"
        raise InputError(where, f"units[0].{plan.units[0].field}", f"is {str(plan.units[0].strategy)!r}", fix)
    offload = _offloads(plan, where)
    lines, precision = left_out(plan, RUNTIME), plan.precision
    stage = strategy.zero_stage
    if offload and stage < 3 and strategy.degree("dp") > 1:
        stage = 2
        lines.append(f"{strategy}: gradients and the optimizer's states are sharded between hosts' parts; less memory and time")
    elif offload and stage == 0:
        stage = 2
    if stage == 0 and precision.master is not None:  # `_do_optimizer_sanity_check`: no float32 gradients of half precision
        stage = 1
        if strategy.degree("dp") > 1:
            lines.append(f"{strategy}: the optimizer's states are sharded (stage 1); less memory, and as much is exchanged")
            strategy = replace(Strategy.of(("sdp", strategy.degree("dp"))), zero=1)
    exported = as_exported(plan, strategy)
    prediction = predict_exported(plan, exported, where, RUNTIME)
    exported_values = ExportedValues(
        plan=plan,
        stage=stage,
        micro_samples=micro_batch_samples(plan, strategy.data_degree),
        gradients=model.dtype if precision.gradients == "model" else "float32",
    )
    config = nested(values_of(KEYS, exported_values))
    files = {
        "ds_config.json": json.dumps(config, indent=1) + "\n",
        "run.json": run_file(plan, strategy),
        "train.py": script("trainplan.execution.runtimes.deepspeed.script"),
        "launch.sh": torchrun(plan.world, f'{here("train.py")} "$@"'),
        "slurm.sh": slurm(plan.world),
        "README.md": page(plan, RUNTIME, VERSION, prediction, lines, DECIDES),
    }
    return Export("deepspeed", {"config": config, "peak_bytes": prediction.peak_bytes}, files, tuple(lines), exported)


def _offloads(plan: Plan, where: str) -> bool:
    """Whether optimizer states or parameters are kept on the host. where: the plan's file, for errors. Raises InputError if
    that differs between units (sub-layers) of the plan, or if DeepSpeed cannot do it."""
    first = plan.units[0].states
    for position, unit in enumerate(plan.units):
        states = unit.states
        if (states.optimizer, states.parameters) != (first.optimizer, first.parameters):
            fix = "plan with --one-strategy: DeepSpeed keeps all layers' states in one place"
            raise InputError(where, f"units[{position}].states", f"are on the {states.optimizer}, unlike units[0]'s", fix)
        if unit.activations.hidden == "host":
            fix = "plan with --host optimizer: DeepSpeed keeps inputs of layers on the device here"
            raise InputError(where, f"units[{position}].activations.hidden", "is 'host'", fix)
    if first.parameters == "host" and plan.units[0].strategy.zero_stage < 3:
        fix = "plan with --host optimizer: DeepSpeed has parameters on the host in stage 3 alone"
        raise InputError(where, "units[0].states.parameters", "is 'host'", fix)
    return "host" in (first.optimizer, first.parameters)
