"""Files that start an exported run, for all runtimes: scripts for torchrun, `accelerate launch` and Slurm, and a README on the
export.

The scripts stay in the folder that they are started from, so that relative paths of data and checkpoints are those of the user;
files of the export are found by `$HERE`. The scripts turn on the allocator's expandable segments, which lose less memory
between blocks. These do not work with Megatron's NCCL user buffers and CUDA graphs (`--nccl-ub`, `--enable-cuda-graph`), which
no export uses.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainplan.execution.runtimes.export_common import ExportPrediction
from trainplan.formulations.joint.options import cost_words
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.quantities import format_bytes, format_time, plural

PER_NODE = 8  # devices of a node where there are as many


def torchrun(world: int, command: str, before: Sequence[str] = ()) -> str:
    """A bash script that starts all ranks with torchrun: on one node, or this node's part of several. world: number of
    ranks. command: what every rank runs. before: lines of bash that come first."""
    launcher = [
        "torchrun \\",
        '    --nproc-per-node "$GPUS_PER_NODE" --nnodes "$NODES" --node-rank "${NODE_RANK:-${SLURM_NODEID:-0}}" \\',
        '    --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}" \\',
    ]
    return _script(world, [*before, *launcher, f"    {command}"])


def here(name: str) -> str:
    """Bash code for the path of a file of the export, which works from whichever folder the launch script is started. name:
    the file's name."""
    return f'"$HERE/{name}"'


def accelerate_launch(world: int, file: str, command: str) -> str:
    """A bash script that starts all ranks with `accelerate launch`. world: number of ranks. file: the name of Accelerate's
    configuration file in the export. command: what every rank runs."""
    launcher = [
        f"accelerate launch --config_file {here(file)} \\",
        f'    --num_processes {world} --num_machines "$NODES" --machine_rank "${{NODE_RANK:-${{SLURM_NODEID:-0}}}}" \\',
        '    --main_process_ip "${MASTER_ADDR:-localhost}" --main_process_port "${MASTER_PORT:-29500}" \\',
    ]
    return _script(world, [*launcher, f"    {command}"])


def _script(world: int, rest: Sequence[str]) -> str:
    """A bash script that begins with the lines that all launch scripts have. world: number of ranks. rest: the lines that
    follow."""
    lines = [
        "#!/usr/bin/env bash",
        f"# Starts {world} ranks. On several nodes, on each: NODE_RANK=<0, 1, ..> MASTER_ADDR=<the first node> ./launch.sh",
        "set -euo pipefail",
        'HERE="$(cd "$(dirname "$0")" && pwd)"',
        'export PYTORCH_CUDA_ALLOC_CONF="${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}"  # less is lost between blocks',
        f"GPUS_PER_NODE=${{GPUS_PER_NODE:-{min(PER_NODE, world)}}}",
        f"NODES=$(({world} / GPUS_PER_NODE))",
        *rest,
    ]
    return "\n".join(lines) + "\n"


def slurm(world: int) -> str:
    """A batch file that runs `launch.sh` on all nodes of a Slurm cluster. world: number of ranks."""
    size = min(PER_NODE, world)
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            f"#SBATCH --nodes={-(-world // size)}",
            "#SBATCH --ntasks-per-node=1",
            f"#SBATCH --gpus-per-node={size}",
            "#SBATCH --exclusive",
            "# sbatch slurm.sh, from this folder",
            "set -euo pipefail",
            'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            f"export GPUS_PER_NODE={size}",
            "srun bash launch.sh",
            "",
        ]
    )


def page(
    plan: Plan,
    runtime: str,
    version: str,
    prediction: ExportPrediction,
    left_out: Sequence[str],
    decides: Sequence[str],
) -> str:
    """The text of README.md in an export: what was exported, its predicted step time and memory, what was left out, and what
    the runtime decides by itself. runtime, version: the runtime's name and version. prediction: step and memory of the plan as
    it was exported. left_out: lines on features of the plan that were left out. decides: lines on decisions of the runtime."""
    model = plan.planned_model()
    lines = [
        f"# {model.name} on {plan.world} devices, by {runtime}",
        "",
        f"Written for {version}. `launch.sh` starts it, `slurm.sh` does so under Slurm.",
        "",
        "| | |",
        "|---|---|",
        f"| batch | {plan.batch.global_samples} samples of {model.tokens} tokens |",
        f"| micro-batches | {plan.batch.micro_batches} |",
        f"| pipeline | {plural(plan.depth, 'stage')}, {plural(plan.chunks, 'chunk')} on each device, {plan.schedule} |",
    ]
    if prediction.step_ns is not None:
        what = "step, as exported" if prediction.exported else "step of the plan"
        lines.append(f"| predicted {what} | {format_time(prediction.step_ns)} ({_whose(plan, prediction)}) |")
    memory = f"{format_bytes(prediction.peak_bytes)} of {format_bytes(plan.memory_bytes)} on a device"
    lines += [
        f"| predicted memory, as exported | {memory} |",
        "",
        "## Left out",
        "",
        *([f"- {line}" for line in left_out] or ["Nothing."]),
        "",
        f"## What {runtime} decides by itself",
        "",
        *[f"- {line}" for line in decides],
        "",
    ]
    return "\n".join(lines)


def _whose(plan: Plan, prediction: ExportPrediction) -> str:
    """A phrase on how a predicted step was obtained: the cost model, and whose overlap it has. plan: the plan that was given.
    prediction: step and memory of the plan as it was exported."""
    if prediction.software:
        return f"{cost_words('streams')}, as {prediction.software} overlaps"
    assert plan.predicted is not None
    return f"{cost_words(plan.predicted.cost_model)}, simulated by {plan.predicted.backend}"
