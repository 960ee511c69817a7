"""`trainplan simulate`, `data`, `run`, `trial`, `export` and `throughput`: plans simulated, run and exported."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from trainplan import api
from trainplan.api.requests import PlanRequest, SearchOptions
from trainplan.api.run_verbs import RunSettings, TrainingSettings
from trainplan.command import bars, options, render, render_plans, render_runs
from trainplan.command.ending import tell
from trainplan.command.options import (
    Command,
    Outcome,
    command_with,
    exit_code,
    flag,
    flags_of,
    options_of,
    output,
    value_of,
    word,
)
from trainplan.execution.runtimes.export_common import write_export
from trainplan.execution.runtimes.registry import export_names
from trainplan.formulations.plan.plan import load_plan
from trainplan.planning.presets import OPTIMUM, PLANNERS, preset
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.torchrun_worker import launched
from trainplan.solvers.core.limits import TIME_LIMIT_S

TRIED = "place"  # the preset whose plans are tried where no plans are given


def command(name: str, words: Sequence[str]) -> Command:
    """Return the function that typer runs for one of the commands `simulate`, `data`, `run`, `trial`, `export` and
    `throughput`.

    name: the command's name. words: the command line, without the program's name; `trial` has the options of the preset that it
    names.
    """
    functions = {"simulate": simulate, "data": data, "run": run, "export": export, "throughput": throughput}
    return _trial(words) if name == "trial" else functions[name]


@command_with(
    [
        word("source", Path, "A plan file, or a pipeline-partition instance."),
        flag("solution", Path | None, "Of an instance: a solution file. [default: solve it]"),
        *options_of(
            api.simulate, "schedule", "chunks", "sliced", "cluster", "cost_model", "for_", "profile", "measure", "method"
        ),
        options.OPTION,
        flag("time_limit", float | None, f"Seconds of the method. [default: {TIME_LIMIT_S}]"),
        flag("trace", Path | None, "Write a Chrome trace here, which Perfetto opens."),
        options.PICTURE,
    ]
)
def simulate(source: Path, **values: Any) -> Outcome:
    """Simulate one training step pass by pass: its time, start-up, bubble, critical path and master stage.

    A plan's step is that of the runtime that it is for (--for), or else as its programs are simulated; of data-parallel
    pipelines one is drawn.
    """
    with bars.measuring(values["measure"]) as values["measuring"]:
        simulation = api.simulate(source, **values)
    draw = partial(api.draw_simulation, simulation)
    files: dict[str, Callable[[], Any]] = {"trace": lambda: json.dumps(simulation.trace()) + "\n", "picture": draw}
    return Outcome(simulation.to_dict(), partial(render_runs.simulated, simulation), files)


@command_with(
    [word("plan", Path, "A plan file.")],
    options_of(RunSettings, others=[TrainingSettings]),
    [output("With --measure: write the profile with the measured times here.")],
    options.panel("Training, by torch", options_of(TrainingSettings, others=[RunSettings])),
)
def run(plan: Path, output: Path | None, **values: Any) -> Outcome:
    """Run a plan: training steps on local processes, compared with one process.

    By torch the plan becomes a model under fully_shard, parallelize_module, checkpoint and torch.distributed.pipelining; by
    program its own instructions run. --measure, --measure-memory, --backend and --transport are of programs.

    With --checkpoint, SIGTERM ends the run after its step, with a checkpoint of it, and the exit code is 4; a second SIGTERM
    ends it at once. `torchrun --nproc-per-node 4 -m trainplan run plan.json ...`, on one node or several, runs its processes as
    the plan's ranks; only rank 0 prints.

    With --measure and -o, what its instructions take goes into a profile, and `plan --profile` and `simulate --profile` then
    count with that.
    """
    if output is not None and (not values["measure"] or values["cluster"] is values["profile"] is None):
        fix = "give it with --measure and a --profile, or a --cluster, which has the other numbers"
        raise InputError("command line", "--output", "has no profile to write", fix)
    if (process := launched()) is not None and process.rank:  # of torchrun; its first process prints
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    loaded = load_plan(plan)
    with bars.working("running") as progress:
        report = api.run(plan, progress=progress, **values)
    content = {
        "predicted": loaded.predicted.model_dump() if loaded.predicted else None,
        **asdict(replace(report, profile=None)),
    }
    del content["profile"]  # it is a file of its own
    show, profile = partial(render_runs.run_report, loaded, report, values["scale_down"]), report.profile
    files = {"output": lambda: profile.model_dump_json(indent=1) + "\n"} if profile else {}
    return Outcome(content, show, files, options.ENDED if report.ended else options.FINE)


@command_with(
    [
        word("texts", list[Path], "UTF-8 files, and folders, of which all .txt, .md, .py and .rst files are read."),
        flag("tokenizer", str, "byte, or a Hugging Face tokenizer.json, or a folder with one.", "byte"),
        flag("output", Path, "The file of tokens.", options.REQUIRED, names=("--output", "-o")),
    ]
)
def data(texts: list[Path], tokenizer: str, output: Path) -> Outcome:
    """Write a file of tokens for `run --data` from texts, and a JSON file that describes it.

    Tokens are numbers of 16 or 32 bits, as many ids need; each text ends with the tokenizer's end of text.
    """
    about = api.tokenize(texts, output, tokenizer=tokenizer)
    rows = [("tokens", f"{about.tokens:,}"), ("ids", f"{about.vocabulary:,} of {about.tokenizer}, {about.dtype}")]
    return Outcome(about.model_dump(), partial(render.pairs, [*rows, ("written", str(output))]))


def _trial(words: Sequence[str]) -> Command:
    """Return the function that typer runs for the command `trial`, with the options of the preset that its command line
    (`words`) names by `--like`."""
    like = value_of("--like", words, TRIED)

    @command_with(
        [
            word("plans", list[Path] | None, "Plan files. [default: the best of a request]", None),
            flag("like", str, "Without plan files: the preset whose best plans are tried.", TRIED),
        ],
        options.REQUEST,
        flags_of(preset(like).parameters),
        options_of(api.trial, "top", "steps", "warmup", "scale_down", "run_dtype", others=[PlanRequest]),
        options_of(RunSettings, "backend", "device"),
        options_of(api.trial, "timeout"),
        options_of(RunSettings, "stall_timeout"),
        options.SEARCH,
        [output("Write the fastest plan here.")],
    )
    def trial(plans: list[Path] | None, **values: Any) -> Outcome:
        """Run plans for a few steps on this machine, and pick the fastest (AMP, Algorithm 1).

        One that fails, runs out of memory or out of time is a result like others.
        """
        if plans:
            names = ("steps", "warmup", "scale_down", "run_dtype", "backend", "device", "timeout", "stall_timeout", "seed")
            values = {name: values[name] for name in names}
        with bars.trials("running") as running:
            trials = api.trial(plans or None, running=running, **values)
        show, best = partial(render_runs.tried, trials, values["scale_down"]), trials.best
        if best is None:
            failed = options.STOPPED if trials.planned is None else exit_code(trials.planned.result) or options.STOPPED
            return Outcome(trials.to_dict(), show, {}, failed)
        files = {"output": lambda: trials.plans[best].model_dump_json(indent=2) + "\n"}
        return Outcome(trials.to_dict(), show, files)

    return trial


@command_with(
    [
        word("plan", Path, "A plan file."),
        flag("to", str, f"The runtime: {', '.join(export_names())}.", options.REQUIRED),
        *options_of(api.export, "nearest", "tokenizer", "data", "steps", "learning_rate"),
        output("Write here: a folder, or a file if there is but one. [default: standard output]", "target"),
    ]
)
def export(plan: Path, to: str, nearest: bool, target: Path | None, **training: Any) -> Outcome:
    """Write a plan's pipeline for another runtime.

    torch (GPT-2, Llama, Mistral, Qwen, Phi-3, GLM, Nemotron): a training script of torch and transformers alone, with what the
    plan uses of stages cut at any sub-layer, all schedules, ZeRO stages, copies of shards, tensor and sequence parallelism, and
    recomputation. Refused: tensor parallelism of models whose matrices transformers packs into one (GPT-2, Phi-3, GLM).

    torchtitan (Llama, Qwen3): its settings as TOML and as Python; one stage, too, sharded by FSDP2 (ZeRO stages 2 and 3), with
    tensor-parallel ranks that share the tokens. Refused: cuts within layers, tied heads, ZeRO stage 1.

    megatron (Megatron-LM; GPT-2, Llama, Mistral, Qwen, Nemotron and others that its GPTModel has, BERT): a folder with all
    arguments, what starts them by torchrun or Slurm, and a page on what was left out; one stage too, interleaved stages, ZeRO
    stage 1 (2 and 3 become 1, if that fits), sequence parallelism, recomputation of modules; cuts within layers as the
    pattern of its HybridModel. Refused: GPipe, cuts within BERT's layers. megatron-bridge: the same of Megatron-Bridge, as the
    sections of its ConfigContainer and a script that trains with them. Refused, too: BERT, cuts within layers.

    deepspeed (ZeRO stages 1 to 3, optimizer and parameters on the host) and accelerate (FSDP2, hybrid sharding): a folder with
    their configuration, a script that trains a Hugging Face model with it, and what starts that. Refused: pipelines, tensor
    parallelism.

    `plan --for` each of them finds the best plan that can be exported, and what that costs. For a plan that one of them
    refuses, the fastest that it runs for the same model, devices, batch and memory is named, and exported by --nearest.

    All refuse units with different strategies and uneven shares. What costs only time or memory is left out, and named: sliced
    forward passes, data that would be sharded or recomputed otherwise, the order of ranks, and the devices' placement.
    """
    exported = api.export(plan, to, nearest=nearest, **training)
    written = [str(path) for path in write_export(exported, target)] if target else []

    def show() -> None:
        if target is not None:
            render.pairs([*(("written", path) for path in written), *(("left out", line) for line in exported.left_out)])
            return
        for name, text in exported.files.items():
            if len(exported.files) > 1:
                print(f"==> {name} <==")
            print(text, end="")
        for line in exported.left_out:
            tell(f"left out  {line}")

    return Outcome({**exported.to_dict(), "written": written}, show)


PLANNER_HELP = f"{', '.join([*PLANNERS, OPTIMUM])}; may be repeated. [default: all]"


@command_with(
    [
        word("plans", list[Path] | None, "Plan files: their predicted throughput. [default: search batch sizes]", None),
        *options.REQUEST[:2],
        *options_of(PlanRequest, "memory", "reserve", "sequence", "dtype"),
        flag("planner", list[str] | None, PLANNER_HELP),
        *options_of(api.throughput, "space", "schedule", "step", "largest_batch", "most_micro_batches"),
        options.EACH_LIMIT,
        *options_of(SearchOptions, "gap"),
        options.PICTURE,
    ]
)
def throughput(plans: list[Path] | None, planner: list[str] | None, **values: Any) -> Outcome:
    """Find the batch size with the largest throughput, for the paper's planners and for the proven optimum; or that of plans.

    Planners have the paper's costs, from estimates; plans have their predicted step.
    """
    if plans:
        rows = api.compare_plans(plans)
        return Outcome(rows, partial(render_plans.side_by_side, rows))
    with bars.trying() as progress:
        searches = api.throughput(planners=planner, progress=progress, **values)
    code = options.FINE if any(search.best for search in searches) else options.INFEASIBLE
    code = options.STOPPED if any(search.interrupted for search in searches) else code
    files = {"picture": partial(api.draw_throughput, searches)}
    return Outcome([search.to_dict() for search in searches], partial(render_runs.throughputs, searches), files, code)
