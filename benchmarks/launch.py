"""Plans for each runtime, exported, and read back: `python -m benchmarks.launch [MODEL ...] [--devices 8,64] [--seconds 60]`.

For each model, number of H100 and runtime: the best plan within the runtime (`plan --for`), its step against that of the best
plan without the runtime's limits, the export, and the plan that `import-run` makes of the exported files: its layout, and its
step over that of the plan as exported. --markdown: write the steps and what each runtime costs here, too. Exit status 1 where a
plan is not exported or comes back otherwise.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trainplan.execution.runtimes.export_common import write_export
from trainplan.formulations.plan.request import Request
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.quantities import format_time
from trainplan.profiling.clusters.cluster import load_cluster

import trainplan as tp
from trainplan.prediction.predict import predicted_plan

MODELS = {"llama3-8b": 4096, "llama3-70b": 4096, "qwen3-8b": 4096, "gpt2": 1024}
FILES = {
    "megatron": "launch.sh",
    "megatron-bridge": "bridge.yaml",
    "torchtitan": "torchtitan.toml",
    "deepspeed": "ds_config.json",
    "accelerate": "accelerate.yaml",
}
SAMPLES = 8  # of a step, for each device


def row(model: str, devices: int, runtime: str, seconds: float, free_ns: int | None) -> tuple[str, str, bool]:
    """One line of the table; what the runtime costs; and whether the export came back as it was."""
    cluster = f"h100:8x{devices // 8}" if devices > 8 else f"h100:{devices}"
    requested: dict[str, Any] = {"model": model, "cluster": cluster, "batch": SAMPLES * devices, "sequence": MODELS[model]}
    requested |= {"dtype": "bfloat16", "time_limit": seconds, "comparisons": False, "gap": 1e-3}
    began = time.perf_counter()
    answer = tp.plan(**requested, for_=runtime)
    took = time.perf_counter() - began
    label = f"{model:11} {devices:5} {runtime:15}"
    if answer.plan is None or answer.plan.predicted is None:
        return f"{label} no plan: {answer.result.status}, {took:.0f} s", "none", True
    plan, step = answer.plan, answer.judged.step_ns
    price = "" if not free_ns else f"{step / free_ns - 1:+7.2%}"
    text = f"{label} {format_time(step):>9} {price} {answer.answer.status:9} {took:4.0f} s  {plan.one_strategy or 'several'}"
    try:
        exported = tp.export(plan, runtime)
    except InputError as error:
        return f"{text}: not exported: {error.command_text}", price, False
    assert exported.plan is not None
    with TemporaryDirectory() as folder:
        write_export(exported, Path(folder))
        options: dict[str, Any] = {"model": model, "sequence": MODELS[model]} if runtime in ("deepspeed", "accelerate") else {}
        data = exported.plan.units[1].strategy.data_degree
        if runtime == "accelerate":
            options |= {"batch": requested["batch"], "micro_batch": requested["batch"] // plan.batch.micro_batches // data}
        if options and exported.plan.units[1].strategy.ckpt and "FSDP" not in str(exported.settings):
            options["recompute"] = "full"
        back = tp.import_run(Path(folder) / FILES[runtime], cluster=cluster, search=False, **options)
    request = Request(plan.planned_model(), load_cluster(cluster), requested["batch"])
    as_exported = predicted_plan(exported.plan, request)[0].predicted
    assert as_exported is not None
    same = [unit.strategy for unit in back.plan.units] == [unit.strategy for unit in exported.plan.units]
    same = same and (back.plan.stages, back.plan.batch) == (exported.plan.stages, exported.plan.batch)
    ratio = back.judged.step_ns / as_exported.step_ns - 1
    unknown = f", unknown {', '.join(back.configuration.unknown)}" if back.configuration.unknown else ""
    text = f"{text}; read back: layout {'equal' if same else 'DIFFERS'}, step {ratio:+.3%}{unknown}"
    return text, price if answer.answer.status == "optimal" else f"{price} (not proven)", same and not ratio and not unknown


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--devices", default="8,64,1024")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--markdown", type=Path)
    requested = parser.parse_args()
    rows = [f"| model | H100 | any | {' | '.join(FILES)} |", f"|---|---|---|{'---|' * len(FILES)}"]
    failed = False
    for model in requested.models:
        for devices in map(int, requested.devices.split(",")):
            cluster = f"h100:8x{devices // 8}" if devices > 8 else f"h100:{devices}"
            request: dict[str, Any] = {
                "model": model,
                "cluster": cluster,
                "batch": SAMPLES * devices,
                "sequence": MODELS[model],
            }
            free = tp.plan(**request, dtype="bfloat16", time_limit=requested.seconds, comparisons=False, gap=1e-3)
            step, cells = format_time(free.step_ns) if free.step_ns else "no plan", list[str]()
            print(f"{model:11} {devices:5} {'any':15} {step:>9} {'':7} {free.answer.status}", flush=True)
            for runtime in FILES:
                try:
                    text, cell, same = row(model, devices, runtime, requested.seconds, free.step_ns)
                except InputError as error:
                    text, cell, same = f"{model:11} {devices:5} {runtime:15} {error.command_text}", "refused", True
                print(text, flush=True)
                cells.append(cell)
                failed |= not same
            if free.step_ns:
                proven = "" if free.answer.status == "optimal" else " (not proven)"
                rows.append(f"| {model} | {devices} | {step}{proven} | {' | '.join(cells)} |")
    if requested.markdown:
        requested.markdown.write_text("\n".join(rows) + "\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
