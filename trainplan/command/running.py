"""`trainplan simulate`, `run`, `trial`, `export` and `throughput`: plans simulated, run and handed on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from typer import Exit

from trainplan import api
from trainplan.command import render
from trainplan.command.options import (
    FINE,
    INFEASIBLE,
    JSON,
    PICTURE,
    REQUEST,
    REQUIRED,
    RUN_BACKEND,
    RUN_DEVICE,
    SEARCH,
    STOPPED,
    check_targets,
    exit_code,
    flag,
    flags_of,
    method_options,
    output,
    print_json,
    takes,
    value_of,
    word,
    write_picture,
)
from trainplan.execution.exports.common import write_export
from trainplan.execution.exports.registry import export_names
from trainplan.formulations.pipeline.batches import LARGEST_BATCH, MOST_MICRO_BATCHES
from trainplan.formulations.plan import load_plan
from trainplan.presets import OPTIMUM, PLANNERS, preset
from trainplan.profiling.base.files import write_whole

EXAMPLES = {
    "simulate": "trainplan simulate plan.json --trace trace.json --picture timeline.png",
    "run": "trainplan run plan.json --steps 3 --scale-down 8 --dtype float64",
    "trial": "trainplan trial --model gpt2 --cluster cpu-4 --batch 8 --sequence 64 --scale-down 8 --top 3 -o plan.json",
    "export": "trainplan export plan.json --to megatron -o megatron_args.sh",
    "throughput": "trainplan throughput --model bert-huge-32 --cluster rtx-titan-8 --memory 12GiB --planner galvatron-bmw "
    "--planner optimum",
}
TRIED = "place"  # whose plans are tried where none are given


def command(name: str, words: Sequence[str]) -> tuple[Callable[..., None], str]:
    """The command of that name, and its example."""
    functions = {"simulate": simulate, "run": run, "export": export, "throughput": throughput}
    return (_trial(words) if name == "trial" else functions[name]), f"Example: {EXAMPLES[name]}"


@takes(
    [
        word("source", Path, "A plan file, or a pipeline-partition instance."),
        flag("solution", Path | None, "Of an instance: a solution file. [default: solve it]"),
        flag("schedule", str | None, "1f1b, gpipe or interleaved-1f1b. [default: the plan's; 1f1b]"),
        flag("chunks", int, "interleaved-1f1b: stages on each device of an instance.", 1),
        flag("sliced", str | None, "Micro-batches cut in two: a number, least, or algorithm-2. [default: the plan's; none]"),
        flag("cluster", str | None, "Of a plan: times estimated anew on this cluster. [default: the plan's own]"),
        flag("profile", Path | None, "Of a plan: a profile with its times."),
        flag("measure", bool, "Of a plan: measure the model on this machine.", False),
        flag("method", str | None, "Without --solution. [default: exact; algorithm-1 for --chunks]"),
        flag("option", list[str] | None, "NAME=VALUE, an option of the method; may be repeated."),
        flag("time_limit", float | None, "Seconds of the method."),
        flag("trace", Path | None, "Write a Chrome trace here, which Perfetto opens."),
        PICTURE,
        JSON,
    ]
)
def simulate(**values: Any) -> None:
    """Simulate one training step pass by pass: its time, start-up, bubble, critical path and master stage.

    A plan's step is what the time walk over its programs says; of data-parallel pipelines one is drawn.
    """
    as_json, trace, picture = (values.pop(name) for name in ("as_json", "trace", "picture"))
    check_targets(trace, picture=picture)
    options = method_options(values.pop("option"))
    with render.working("measuring") as measuring:
        report = measuring if values["measure"] else None
        simulation = api.simulate(values.pop("source"), measuring=report, **values, **options)
    if trace:
        write_whole(trace, json.dumps(simulation.trace()) + "\n")
    if picture:
        write_picture(api.draw_simulation(simulation), picture)
    if as_json:
        print_json(simulation.to_dict())
    else:
        render.simulated(simulation)
        render.pairs([("written", str(target)) for target in (trace, picture) if target])


@takes(
    [
        word("plan", Path, "A plan file."),
        flag("model", str | None, "A config.json that the plan must be for."),
        flag("steps", int, "Training steps.", 3),
        flag("scale_down", int, "Run the same chain about this many times smaller.", 1),
        flag("dtype", str | None, "float32 or float64. [default: the plan's]"),
        RUN_BACKEND,
        flag("compare", bool, "Also run on one process and compare gradients.", True, names=("--compare/--no-compare",)),
        flag("measure_memory", bool, "Measure what each rank allocates in a step.", False),
        flag("record", bool, "Walk the step by the measured times of its instructions, too.", False),
        RUN_DEVICE,
        flag("seed", int, "Seed of parameters and samples.", 0),
        JSON,
    ]
)
def run(**values: Any) -> None:
    """Run a plan: training steps on local processes, compared with one process."""
    path, as_json = values.pop("plan"), values.pop("as_json")
    plan = load_plan(path)
    with render.working("running") as progress:
        report = api.run(path, progress=progress, **values)
    if as_json:
        print_json({"predicted": plan.predicted.model_dump() if plan.predicted else None, **asdict(report)})
    else:
        render.run_report(plan, report, values["scale_down"])


def _trial(words: Sequence[str]) -> Callable[..., None]:
    like = value_of("--like", words, TRIED)

    @takes(
        [
            word("plans", list[Path] | None, "Plan files. [default: the best of a request]", None),
            flag("like", str, "Without plan files: the preset whose best plans are tried.", TRIED),
        ],
        REQUEST,
        flags_of(preset(like).parameters),
        [
            flag("top", int, "Plans to run: the best predicted ones.", 5),
            flag("steps", int, "Timed training steps of each.", 10),
            flag("warmup", int, "Steps before those that are timed.", 3),
            flag("scale_down", int, "Run the same chain about this many times smaller.", 1),
            flag("run_dtype", str | None, "float32 or float64. [default: that of --dtype]"),
            RUN_BACKEND,
            RUN_DEVICE,
            flag("timeout", float, "Seconds for each plan, without the start of processes.", 600.0),
        ],
        SEARCH,
        [output("Write the fastest plan here."), JSON],
    )
    def trial(**values: Any) -> None:
        """Run plans for a few steps on this machine, and pick the fastest (AMP, Algorithm 1).

        One that fails, runs out of memory or out of time is a result like others.
        """
        target, as_json, options = values.pop("output"), values.pop("as_json"), method_options(values.pop("option"))
        check_targets(target)
        plans = values.pop("plans") or None
        if plans is not None:
            names = ("steps", "warmup", "scale_down", "run_dtype", "backend", "device", "timeout", "seed")
            values = {name: values[name] for name in names}
        with render.trials("running") as running:
            trials = api.trial(plans, running=running, **values, **options)
        best = trials.best
        if target and best is not None:
            write_whole(target, trials.plans[best].model_dump_json(indent=2) + "\n")
        if as_json:
            print_json(trials.to_dict())
        else:
            render.tried(trials, values["scale_down"])
            render.pairs([("written", str(target))] if target and best is not None else [])
        failed = STOPPED if trials.planned is None else exit_code(trials.planned.result.status) or STOPPED
        raise Exit(FINE if best is not None else failed)

    return trial


@takes(
    [
        word("plan", Path, "A plan file."),
        flag("to", str, f"The runtime: {', '.join(export_names())}.", REQUIRED),
        output("Write here: a folder, or a file if there is but one. [default: standard output]"),
        JSON,
    ]
)
def export(**values: Any) -> None:
    """Write a plan's pipeline for another runtime.

    torch (torch.distributed.pipelining): names of each stage's modules, split points, the schedule as CSV, and a script that
    trains GPT-2, BERT or Llama so; cuts within layers, data parallelism and recomputation too. Refused: tensor parallelism.

    torchtitan (Llama): its settings as TOML and as Python. Refused: cuts within layers, tied heads.

    megatron (Megatron-LM; GPT-2, Llama, BERT): arguments with the stages as a layout; cuts within layers as the pattern of its
    HybridModel. Refused: GPipe, cuts within BERT's layers.

    Both of these also refuse units with different strategies, and all three uneven shares and plans without a pipeline. What
    costs only time or memory is left out, and named: sliced forward passes, data that would be sharded or recomputed
    otherwise, the order of ranks, and the devices' placement.
    """
    exported, target = api.export(values["plan"], values["to"]), values["output"]
    written = [str(path) for path in write_export(exported, target)] if target else []
    if values["as_json"]:
        print_json({**exported.to_dict(), "written": written})
        return
    if target is None:
        for name, text in exported.files.items():
            if len(exported.files) > 1:
                print(f"==> {name} <==")
            print(text, end="")
        for line in exported.left_out:
            render.err.print(f"left out  {line}", markup=False)
    else:
        render.pairs([*(("written", path) for path in written), *(("left out", line) for line in exported.left_out)])


PLANNER_HELP = f"{', '.join([*PLANNERS, OPTIMUM])}; may be repeated. [default: all]"


@takes(
    [
        word("plans", list[Path] | None, "Plan files: their predicted throughput. [default: search batch sizes]", None),
        *(argument for argument in REQUEST if argument.name in ("model", "cluster", "memory", "sequence", "dtype")),
        flag("planner", list[str] | None, PLANNER_HELP),
        flag("space", str, "Of the planner optimum: its search space, as for `plan`.", "full"),
        flag("schedule", str, "Of the planner optimum: '1f1b' (1F1B-Flush) or 'gpipe'.", "1f1b"),
        flag("step", int, "Samples between two batch sizes.", 8),
        flag("largest_batch", int, "Stop here if all still fits.", LARGEST_BATCH),
        flag("most_micro_batches", int, "Of one step.", MOST_MICRO_BATCHES),
        PICTURE,
        JSON,
    ]
)
def throughput(**values: Any) -> None:
    """Find the batch size with the largest throughput, for the paper's planners and for the proven optimum; or that of plans.

    Planners have the paper's costs, from estimates; plans have what the time walk predicts.
    """
    as_json, picture, plans = (values.pop(name) for name in ("as_json", "picture", "plans"))
    check_targets(picture=picture)
    if plans:
        rows = api.compare_plans(plans)
        if as_json:
            print_json(rows)
        else:
            render.plan_rows(rows)
        return
    with render.trying() as progress:
        found = api.throughput(planners=values.pop("planner"), progress=progress, **values)
    if picture:
        write_picture(api.draw_throughput(found), picture)
    if as_json:
        print_json([each.to_dict() for each in found])
    else:
        render.throughputs(found)
    raise Exit(FINE if any(each.best for each in found) else INFEASIBLE)
