"""Exported files as each export target's own classes read them, compared with the plans: every value equal, no key unknown.

    python -m venv targets
    targets/bin/pip install torch==2.13.0 numpy packaging pyyaml psutil py-cpuinfo einops hjson msgpack tqdm safetensors \\
        omegaconf 'hydra-core<=1.3.2' 'transformers<5' tyro rich pydantic setuptools wheel
    targets/bin/pip install --no-deps megatron-core==0.16.1 megatron-bridge==0.3.1 accelerate==1.15.0 torchtitan==0.3.0 \\
        spmd_types==0.2.3
    DS_BUILD_OPS=0 targets/bin/pip install --no-deps --no-build-isolation deepspeed==0.19.8
    targets/bin/pip install --no-deps --target targets/torchtitan-0.2 torchtitan==0.2.2
    python -m benchmarks.read_back --python targets/bin/python --torchtitan targets/torchtitan-0.2 [--markdown table.md]

For each model and number of H100 the best plan of `plan --for`, and where the target has pipelines one of four stages, are
exported. Read are: Megatron-LM's arguments, as launch.sh starts them, by megatron-core's TransformerConfig (its argument
parser is in no package: FIELDS of exports/megatron_bridge_fields.py say which field an argument sets, and the table of
documented arguments finds unknown ones); the script of Megatron-Bridge by its ConfigContainer, with its checks, and stand-ins
for Transformer Engine; torchtitan's TOML by 0.2's JobConfig and its Python file by 0.3's classes (made-up packages where one
needs triton); DeepSpeed's and Accelerate's files by their own. Each value is held against the plan's, unknown keys are looked
for in trainplan's tables of documented keys, since some parsers pass misspelt ones. Exit status 1 where anything differs; a
target that cannot be imported is reported, and is no fault.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trainplan.execution.runtimes.export_common import Export, layers_of, write_export
from trainplan.execution.runtimes.megatron_bridge.export import argument_values, sections_of
from trainplan.execution.runtimes.megatron_bridge.reader import SECTIONS
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.runtimes import RUNTIMES
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.models.sublayers import Attention

import trainplan as tp
from benchmarks.launch import FILES, MODELS, SAMPLES
from trainplan.imported_runs.to_plan import read

READER = Path(__file__).with_name("target_reader.py")
READ_BY = {  # what an export is read by
    "megatron": ("megatron",),
    "megatron-bridge": ("megatron-bridge",),
    "torchtitan": ("torchtitan", "torchtitan-python"),
    "deepspeed": ("deepspeed",),
    "accelerate": ("accelerate",),
}
PIPELINE = {"pipeline": 4}


@dataclass(frozen=True)
class Exported:
    """An export that lies in a folder. label: model, devices and layout."""

    label: str
    made: Export
    folder: Path


def exports_of(target: str, models: list[str], devices: list[int], seconds: float, folder: Path) -> list[Exported]:
    """Exports of the best plans for a target, and of those with a pipeline where it has one."""
    found = []
    shapes: list[dict[str, int]] = [{}] if RUNTIMES[target].one_stage else [{}, PIPELINE]
    for model in models:
        for count in devices:
            cluster = f"h100:8x{count // 8}" if count > 8 else f"h100:{count}"
            for shape in shapes:
                requested: dict[str, Any] = {"model": model, "cluster": cluster, "batch": SAMPLES * count, **shape}
                requested |= {"sequence": MODELS[model], "dtype": "bfloat16", "time_limit": seconds, "gap": 1e-2}
                try:
                    plan = tp.plan(**requested, for_=target, comparisons=False).plan
                    if plan is None:
                        continue
                    made = tp.export(plan, target)
                except InputError as error:
                    print(f"{target}: {model} on {count}: {error.command_text}", flush=True)
                    continue
                index = folder / f"{model}-{count}-{len(shape)}"
                write_export(made, index)
                label = f"{model} on {count}, {plan.one_strategy or 'several'}, {len(plan.stages)} stages"
                found.append(Exported(label, made, index))
    return found


def sections_told(exported: Exported) -> dict[str, dict[str, Any]]:
    """The arguments that launch.sh starts Megatron-LM's script with, as sections: a torchrun that writes them down runs it."""
    assert exported.made.plan is not None
    folder, plan = exported.folder, exported.made.plan
    (folder / "torchrun").write_text('#!/usr/bin/env bash\nprintf "%s\\0" "$@" > arguments\n')
    (folder / "torchrun").chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "MEGATRON": "/megatron"}
    subprocess.run(["bash", folder / "launch.sh"], env=environment, check=True, capture_output=True)
    words = (folder / "arguments").read_text().split("\0")[:-1]
    script = next(index for index, word in enumerate(words) if word.startswith("/megatron/"))
    sections = sections_of(plan.planned_model(), argument_values(words[script + 1 :]), plan.chunks)
    fused = ("bias_activation_fusion", "bias_dropout_fusion", "apply_rope_fusion")  # which no argument says
    sections["model"] = {name: value for name, value in sections["model"].items() if name not in fused}
    return sections


def wanted(reader: str, plan: Plan) -> dict[str, Any]:
    """The values that the classes have to hold for an exported plan; None stands for a key that they leave out."""
    model, strategy = plan.planned_model(), plan.units[1].strategy
    degrees = {name: strategy.degree(name) for name in ("dp", "sdp", "tp")}  # type: ignore[arg-type]
    data, stages, again = strategy.data_degree, len(plan.stages), strategy.ckpt
    samples, micro_batches = plan.batch.global_samples, plan.batch.micro_batches
    micro, sharded = samples // micro_batches // data, strategy.zero_stage > 0
    if reader in ("megatron", "megatron-bridge"):
        attention = next(part for part in model.sublayers.values() if isinstance(part, Attention))
        named = {
            "model.num_layers": model.layers,
            "model.hidden_size": attention.hidden,
            "model.num_attention_heads": attention.heads,
            "model.num_query_groups": attention.kv_heads,
            "model.kv_channels": attention.width,
            "model.tensor_model_parallel_size": degrees["tp"],
            "model.pipeline_model_parallel_size": plan.depth,
            "model.virtual_pipeline_model_parallel_size": plan.chunks if plan.chunks > 1 else None,
            "model.pipeline_model_parallel_layout": [part.count("t") for part in layers_of(plan)] if stages > 1 else None,
            "model.sequence_parallel": strategy.sequence_parallel,
            "model.recompute_granularity": "full" if again else "selective" if strategy.modules else None,
            "train.micro_batch_size": micro,
            "train.global_batch_size": samples,
            "ddp.use_distributed_optimizer": sharded,
            "optimizer.use_distributed_optimizer": sharded,
            "ddp.num_distributed_optimizer_instances": degrees["dp"] if sharded else 1,
            "ddp.overlap_grad_reduce": data > 1,
            "ddp.overlap_param_gather": sharded,
        }
        if reader == "megatron":
            return named
        wide = plan.precision.gradients == "float32"
        more = {"model.bf16": True, "optimizer.bf16": True, "ddp.grad_reduce_in_fp32": wide, "data_parallel_size": data}
        vocabulary = -(-model.vocabulary // degrees["tp"]) * degrees["tp"]
        return {**named, **more, "model.vocab_size": vocabulary, "model.seq_length": model.tokens}
    if reader.startswith("torchtitan"):
        named = {
            "training.local_batch_size": micro * micro_batches if stages > 1 else micro,
            "training.global_batch_size": samples,
            "training.seq_len": model.tokens,
            "training.mixed_precision_param": "bfloat16",
            "parallelism.pipeline_parallel_degree": stages,
            "parallelism.data_parallel_replicate_degree": degrees["dp"],
            "parallelism.data_parallel_shard_degree": degrees["sdp"],
            "parallelism.tensor_parallel_degree": degrees["tp"],
            "parallelism.fsdp_reshard_after_forward": "always" if strategy.shares_parameters else "never",
            "activation_checkpoint.mode": "full" if again else "none",
        }
        if stages > 1:
            head, names = "output" if reader == "torchtitan" else "lm_head", iter(range(model.layers))
            parts = [[*["tok_embeddings"] * ("E" in part), *(f"layers.{next(names)}" for _ in range(part.count("t"))),
                      *["norm", head] * ("L" in part)] for part in layers_of(plan)]  # fmt: skip
            named |= {"parallelism.pipeline_parallel_microbatch_size": micro, "parallelism.module_fqns_per_model_part": parts}
            named |= {"parallelism.pipeline_parallel_schedule": {"1f1b": "1F1B", "gpipe": "GPipe"}[plan.schedule]}
        return named
    if reader == "deepspeed":
        states, wide = plan.units[0].states, plan.precision.gradients == "float32"
        offload = {"optimizer": states.optimizer, "param": states.parameters}
        return {
            "train_batch_size": samples,
            "train_micro_batch_size_per_gpu": micro,
            "gradient_accumulation_steps": micro_batches,
            "stage": strategy.zero_stage,
            "bf16": True,
            "fp16": False,
            "gradients": "fp32" if wide else "bf16",
            **{f"offload_{name}": "cpu" if location == "host" else None for name, location in offload.items()},
        }
    named = {"num_processes": plan.world, "num_machines": -(-plan.world // 8), "mixed_precision": "bf16"}
    named |= {"distributed_type": "FSDP" if degrees["sdp"] > 1 else "MULTI_GPU"}
    if degrees["sdp"] > 1:
        named |= {"fsdp_version": 2, "reshard_after_forward": strategy.zero_stage == 3, "activation_checkpointing": again}
        hybrid = degrees["dp"] > 1
        named |= {"dp_replicate_size": degrees["dp"], "dp_shard_size": degrees["sdp"] if hybrid else 1}
    return named


def answers(reader: str, python: Path, titan: Path | None, exports: list[Exported]) -> dict[str, Any]:
    """The parsed output of the reader."""
    folders = [f"{export.folder}:{export.made.plan.world}" for export in exports if export.made.plan is not None]
    given = [sections_told(export) for export in exports] if reader == "megatron" else None
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0"}
    if reader == "torchtitan" and titan is not None:
        environment["PYTHONPATH"] = str(titan.resolve())
    command = [str(python), str(READER), reader, *folders]
    done = subprocess.run(command, input=json.dumps(given), env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return {
            "absent": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}",
            "read": [],
        }
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def differences(reader: str, exported: Exported, answer: dict[str, Any]) -> tuple[int, list[str]]:
    """How many values were compared, and what is wrong."""
    if "error" in answer:
        return 0, [answer["error"]]
    assert exported.made.plan is not None
    values, wrong = answer["values"], []
    expected = wanted(reader, exported.made.plan)
    for key, value in expected.items():
        if values.get(key) != value:
            wrong.append(f"{key} is {values.get(key)!r}, not {value!r}")
    if reader in FILES:
        wrong += [f"unknown key {key}" for key in read(exported.folder / FILES[reader]).unknown]
    return len(expected), wrong


def unlisted(fields: dict[str, list[str]]) -> list[str]:
    """How the fields of Megatron-Bridge's classes differ from those that are recorded."""
    lines = []
    for section, names in fields.items():
        if more := set(names) ^ SECTIONS[section]:
            lines.append(f"{section}: {', '.join(sorted(more))} in one of the classes and the recorded lists alone")
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", type=Path, required=True, help="an interpreter that has the targets")
    parser.add_argument("--torchtitan", type=Path, help="a folder with torchtitan 0.2, in place of the interpreter's own")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--devices", nargs="+", type=int, default=[8, 64, 1024])
    parser.add_argument("--targets", nargs="+", choices=READ_BY, default=list(READ_BY))
    parser.add_argument("--seconds", type=float, default=10, help="of each plan's search")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    requested = parser.parse_args()
    rows, failed = ["| read by | version | exports | values | differ |", "|---|---|---|---|---|"], Counter[str]()
    for target in requested.targets:
        with TemporaryDirectory() as folder:
            exports = exports_of(target, requested.models, requested.devices, requested.seconds, Path(folder))
            for reader in READ_BY[target]:
                answer = answers(reader, requested.python, requested.torchtitan, exports)
                if "absent" in answer:
                    rows.append(f"| {reader} | not read: {answer['absent']} | | | |")
                    print(rows[-1], flush=True)
                    continue
                compared = 0
                for line in unlisted(answer.get("fields", {})):
                    failed[reader] += 1
                    print(f"{reader}: {line}", flush=True)
                for export, one in zip(exports, answer["read"], strict=True):
                    count, wrong = differences(reader, export, one)
                    compared, failed[reader] = compared + count, failed[reader] + bool(wrong)
                    print(f"{reader}: {export.label}: {'; '.join(wrong) or f'{count} values equal'}", flush=True)
                version = answer.get("version", "")
                rows.append(f"| {reader} | {version} | {len(exports)} | {compared} | {failed[reader]} |")
    text = "\n".join([*rows, "", f"Read on {date.today()}.", ""])
    print(text)
    if requested.markdown:
        requested.markdown.write_text(text)
    sys.exit(1 if failed.total() else 0)


if __name__ == "__main__":
    main()
