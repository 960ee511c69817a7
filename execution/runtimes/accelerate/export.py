"""Export of plans to Accelerate: its YAML file with FSDP2, a training script, and files that start it.

Keys as of `accelerate config` (1.15, 2026). Shards (sdp) are FSDP2's: ZeRO stage 3 reshards parameters after the forward pass,
stage 2 does not; copies of shards (hybrid sharding) are `parallelism_config_dp_replicate_size`. Copies alone (dp) are DDP. The
file cannot say the number of samples and micro-batches: the script reads them from run.json. Refused: pipelines, tensor
parallelism, ZeRO stage 1, units with different strategies, uneven shares, states on the host.
"""

from __future__ import annotations

import yaml
from trainplan.execution.launch_files.fields import nested, values_of
from trainplan.execution.runtimes.accelerate.capabilities import CAPABILITIES
from trainplan.execution.runtimes.accelerate.fields import KEYS, ExportedValues
from trainplan.execution.runtimes.export_common import Export, as_exported, predict_exported
from trainplan.execution.runtimes.export_sharded import left_out, one_stage, run_file, script
from trainplan.execution.runtimes.launch_scripts import accelerate_launch, here, page, slurm
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.errors import InputError

RUNTIME, VERSION = "Accelerate", "Accelerate 1.15 (2026)"
DECIDES = (
    "FSDP2 gathers parameters ahead and reduces gradients during the backward pass: hidden in plans with overlap",
    "a layer is gathered, and recomputed, as one: attention and feed-forward network together",
    "parameters are kept in float32, as masters, and computed with in the precision of the file",
    "the optimizer's numbers are in train.py: yours to change",
)


def export(plan: Plan, where: str) -> Export:
    """Exports a plan as the files accelerate.yaml, run.json, train.py, launch.sh, slurm.sh and README.md. where: the plan's
    file, for errors. Raises InputError if Accelerate cannot run the plan."""
    strategy, model = one_stage(plan, CAPABILITIES, RUNTIME, where), plan.planned_model()
    lines, (copies, shard) = left_out(plan, RUNTIME), (strategy.degree("dp"), strategy.degree("sdp"))
    precision = plan.precision
    if shard == 1 and precision.master is not None and precision.gradients == "model":
        lines.append("gradients are in float32 where ranks hold copies alone (DDP); more time and memory")
        precision = precision.changed(gradients="float32")
    elif shard > 1 and precision.gradients == "float32":
        lines.append(f"gradients are reduced in {model.dtype} where ranks share states, and kept in float32; less time")
    exported = as_exported(plan, strategy, precision=precision)
    prediction = predict_exported(plan, exported, where, RUNTIME)
    recomputes = any(unit.strategy.ckpt for unit in exported.units)
    if strategy.zero_stage == 1:
        fix = "plan with --for accelerate: FSDP2 shards gradients, too"
        raise InputError(where, "units[0].states.zero", "is 1", fix)
    settings = nested(values_of(KEYS, ExportedValues(plan, copies, shard, strategy.zero_stage == 3, recomputes)))
    files = {
        "accelerate.yaml": f"# For {VERSION}.\n{yaml.safe_dump(settings, sort_keys=False)}",
        "run.json": run_file(plan, strategy),
        "train.py": script("trainplan.execution.runtimes.accelerate.script"),
        "launch.sh": accelerate_launch(plan.world, "accelerate.yaml", f'{here("train.py")} "$@"'),
        "slurm.sh": slurm(plan.world),
        "README.md": page(plan, RUNTIME, VERSION, prediction, lines, DECIDES),
    }
    return Export("accelerate", {"config": settings, "peak_bytes": prediction.peak_bytes}, files, tuple(lines), exported)
