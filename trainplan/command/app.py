"""The verbs as commands. Exit codes: 0 fine, 1 infeasible or violated, 2 bad input, 3 stopped without an answer."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from pydantic import ValidationError
from typer import Argument, Option

from trainplan import api
from trainplan.command import catalogue, exporting, partition, pipelines, placing, profiles, render, switches
from trainplan.command import switch as switching
from trainplan.command.options import (
    BAD_INPUT,
    FINE,
    INFEASIBLE,
    STOPPED,
    BatchSize,
    ClusterName,
    Dtype,
    EngineFiles,
    Gap,
    Granularity,
    IgnoreMemory,
    Json,
    Memory,
    Method,
    MethodOptions,
    MicroBatches,
    ModelName,
    OptionalCluster,
    OptionalModel,
    PictureFile,
    Pipeline,
    ProfileFile,
    Recompute,
    RunBackend,
    RunDevice,
    ScheduleName,
    Seed,
    Sequence,
    Space,
    Synchronisation,
    TimeLimit,
    UnevenShares,
    by_unit_of,
    check_picture,
    exit_code,
    method_options,
    print_json,
    schedule_of,
    write_picture,
)
from trainplan.command.throughput import EXAMPLE, throughput
from trainplan.formulations.cluster_strategy import problem as cluster_strategy
from trainplan.formulations.memory_switches import problem as memory_switches
from trainplan.formulations.pipeline_partition.problem import Instance as PartitionInstance
from trainplan.formulations.plan import load_plan
from trainplan.profiling.base.errors import InputError, MissingExtra
from trainplan.profiling.base.files import as_input_error, check_different, check_writable, write_whole
from trainplan.profiling.base.processes import WorkerError
from trainplan.solvers.core.registry import PROBLEMS

DRAWN: dict[str, Callable[..., Any]] = {memory_switches.NAME: api.draw_switches, cluster_strategy.NAME: api.draw_placement}
INTERRUPTED = 130  # what typer makes of Ctrl-C

app = typer.Typer(
    name="trainplan",
    help="Plan distributed Transformer training, prove how good the plan is, and run it.\n\n"
    "Exit codes: 0 fine, 1 infeasible or violated, 2 bad input, 3 stopped without an answer.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(profiles.app)
app.add_typer(catalogue.models)
app.add_typer(catalogue.clusters)
app.command(epilog=EXAMPLE)(throughput)
app.command(epilog=placing.PLACE_EXAMPLE)(placing.place)
app.command(epilog=placing.TRIAL_EXAMPLE)(placing.trial)
app.command(epilog=partition.PARTITION_EXAMPLE)(partition.partition)
app.command(epilog=partition.SIMULATE_EXAMPLE)(partition.simulate)
app.command(epilog=switching.EXAMPLE)(switching.switch)
app.command(epilog=exporting.EXAMPLE)(exporting.export)


@app.command(epilog="Example: trainplan plan --model gpt2 --cluster cpu-4 --batch 8 --sequence 256 --memory 2GiB -o plan.json")
def plan(
    model: ModelName,
    cluster: ClusterName,
    batch: BatchSize,
    memory: Memory = None,
    output: Annotated[Path | None, Option("--output", "-o", help="Write the plan here.")] = None,
    sequence: Sequence = None,
    dtype: Dtype = None,
    profile: ProfileFile = None,
    measure: Annotated[bool, Option("--measure", help="Measure the model on this machine, on as many processes.")] = False,
    save_profile: Annotated[Path | None, Option("--save-profile", help="Write the profile used here.")] = None,
    method: Method = "exact",
    pipeline: Pipeline = None,
    micro_batches: MicroBatches = None,
    schedule: ScheduleName = "1f1b",
    space: Space = "full",
    granularity: Granularity = "layer",
    time_limit: TimeLimit = None,
    gap: Gap = 0.0,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Find the fastest plan for a model on a cluster, with its certificate."""
    check_different(output, save_profile)
    for target in (output, save_profile):
        if target:
            check_writable(target)
    with render.working("measuring") as measuring:
        found = api.plan(
            model=model,
            cluster=cluster,
            batch=batch,
            memory=memory,
            sequence=sequence,
            dtype=dtype,
            profile=profile,
            measure=measure,
            method=method,
            pipeline=pipeline,
            micro_batches=micro_batches,
            schedule=schedule_of(schedule),
            space_name=space,
            by_unit=by_unit_of(granularity),
            time_limit=time_limit,
            gap=gap,
            seed=seed,
            measuring=measuring,
        )
    if output and found.plan:
        write_whole(output, found.plan.model_dump_json(indent=2) + "\n")
    if save_profile:
        write_whole(save_profile, found.profile.model_dump_json(indent=1) + "\n")
    if as_json:
        print_json(found.to_dict())
    else:
        render.planned(found, cluster)
        if output and found.plan:
            render.pairs([("written", str(output))])
    raise typer.Exit(exit_code(found.result))


@app.command(
    epilog="Example: trainplan build layer-strategies --model gpt2 --cluster cpu-4 --batch 8 --memory 2GiB -o instance.json"
)
def build(
    problem: Annotated[str, Argument(help=f"The problem: {', '.join(PROBLEMS)}.")],
    batch: Annotated[
        int | None, Option("--batch", help="Samples of one step, over all devices; only H3T's files have their own.")
    ] = None,
    model: OptionalModel = None,
    cluster: OptionalCluster = None,
    memory: Memory = None,
    output: Annotated[Path | None, Option("--output", "-o", help="Write the instance here. [default: standard output]")] = None,
    sequence: Sequence = None,
    dtype: Dtype = None,
    profile: ProfileFile = None,
    cost_model: Annotated[
        str | None,
        Option(
            "--cost-model",
            help="'paper' (Galvatron-BMW) or 'executed' (trainplan's programs); --engine-files: 'code'. [default: paper]",
        ),
    ] = None,
    pipeline: Annotated[
        int | None, Option("--pipeline", help="Pipeline stages. [default: layer-strategies 1, pipeline all possible numbers]")
    ] = None,
    stage: Annotated[int, Option("--stage", help="layer-strategies: which stage, from 0.")] = 0,
    micro_batches: Annotated[
        int | None, Option("--micro-batches", help="Micro-batches of a step. [default: as for --pipeline]")
    ] = None,
    schedule: ScheduleName = "1f1b",
    space: Annotated[str | None, Option("--space", help="pipeline: search space, as for `plan`. [default: full]")] = None,
    granularity: Granularity = "layer",
    takeaway3: Annotated[bool, Option("--takeaway3/--no-takeaway3", help="Leave out strategies that mix dp with sdp.")] = True,
    engine_files: EngineFiles = None,
    layers: Annotated[int | None, Option("--layers", help="--engine-files: Transformer layers, where left open.")] = None,
    hidden_size: Annotated[int | None, Option("--hidden-size", help="--engine-files: hidden size, where left open.")] = None,
    default_dp_type: Annotated[
        str, Option("--default-dp-type", help="--engine-files: plain dp is 'zero2' or 'ddp'.")
    ] = "zero2",
    both_orders: Annotated[bool, Option("--both-orders", help="--engine-files: also tp over ranks that are apart.")] = False,
    tp: Annotated[
        int | None, Option("--tp", help="stage-assignment, pipeline-partition: devices of a group. [default: 1]")
    ] = None,
    dp: Annotated[int | None, Option("--dp", help="pipeline-partition: pipelines side by side. [default: all devices]")] = None,
    uneven_shares: UnevenShares = False,
    recompute: Recompute = False,
    ignore_memory: IgnoreMemory = False,
    synchronisation: Synchronisation = "forced",
    paper_combinations: Annotated[
        bool, Option("--paper-combinations", help="memory-switches: offloading without recomputation, too.")
    ] = False,
    measure: Annotated[bool, Option("--measure", help="memory-switches: measure the model on this machine.")] = False,
    as_json: Json = False,
) -> None:
    """Make an instance of a problem from a model and a cluster, from a profile alone, or as Galvatron's engine sees it."""
    if output:
        check_writable(output)
    with render.working("measuring") as measuring:
        instance = api.build(
            problem,
            model=model,
            cluster=cluster,
            batch=batch,
            memory=memory,
            sequence=sequence,
            dtype=dtype,
            cost_model=cost_model,
            pipeline=pipeline,
            stage=stage,
            micro_batches=micro_batches,
            schedule=schedule_of(schedule),
            space=space,
            by_unit=by_unit_of(granularity),
            takeaway3=takeaway3,
            profile=profile,
            engine_files=engine_files,
            layers=layers,
            hidden_size=hidden_size,
            default_dp_type=default_dp_type,
            both_orders=both_orders,
            tp=tp,
            dp=dp,
            uneven_shares=uneven_shares,
            recompute=recompute,
            ignore_memory=ignore_memory,
            synchronisation=synchronisation,
            paper_combinations=paper_combinations,
            measure=measure,
            measuring=measuring if measure else None,
        )
    text = json.dumps(instance.to_dict(), indent=None if output is None or as_json else 1)
    if output is None:
        print(text)
        return
    write_whole(output, text + "\n")
    found: dict[str, Any] = {
        "output": str(output),
        **render.size_of(instance),
        "instance_hash": instance.digest,
    }
    if isinstance(instance, memory_switches.Instance) and (lifted := instance.provenance.get("lifted")):
        found["lifted"] = lifted if as_json else switches.lifted(lifted)
    if as_json:
        print_json(found)
    else:
        render.pairs([(name, str(value)) for name, value in found.items()])


@app.command(epilog="Example: trainplan solve instance.json --method milp --time-limit 10 -o solution.json")
def solve(
    instance: Annotated[Path, Argument(help="An instance file.")],
    method: Method = "exact",
    time_limit: TimeLimit = None,
    gap: Gap = 0.0,
    seed: Seed = 0,
    option: MethodOptions = None,
    output: Annotated[Path | None, Option("--output", "-o", help="Write the solution here.")] = None,
    picture: PictureFile = None,
    as_json: Json = False,
) -> None:
    """Solve an instance with one method; the answer is checked and its bound named.

    --picture draws solutions of memory-switches and of cluster-strategy.
    """
    check_different(output, picture)
    if output:
        check_writable(output)
    if picture:
        check_picture(picture)
    loaded = api.load(instance)
    if picture and loaded.problem not in DRAWN:
        fix = f"give an instance of {' or '.join(DRAWN)}; `simulate` draws pipelines"
        raise InputError("command line", "--picture", f"is of a {loaded.problem} instance", fix)
    with render.searching(method) as progress:
        found = api.solve(
            loaded, method, time_limit=time_limit, gap=gap, seed=seed, progress=progress, **method_options(option)
        )
    if output and found.solution is not None:
        write_whole(output, json.dumps(found.solution) + "\n")
    if picture and found.solution is not None:
        write_picture(DRAWN[loaded.problem](loaded, found.solution), picture)
    if as_json:
        print_json(found.to_dict())
    elif isinstance(loaded, PartitionInstance):
        pipelines.solved(loaded, found)
    elif isinstance(loaded, memory_switches.Instance):
        switches.solved(loaded, found)
    else:
        render.result(found)
    raise typer.Exit(exit_code(found))


@app.command(epilog="Example: trainplan check instance.json solution.json")
def check(
    instance: Annotated[Path, Argument(help="An instance file.")],
    solution: Annotated[Path, Argument(help="A solution file, or a plan file of Galvatron's engine.")],
    as_json: Json = False,
) -> None:
    """Check a solution against an instance: its time, its peak memory, and what it violates."""
    found = api.check(instance, solution)
    if as_json:
        print_json(found.to_dict())
    else:
        render.checked(found)
    raise typer.Exit(INFEASIBLE if found.violations else FINE)


@app.command(epilog="Example: trainplan compare instance.json --method milp --method cpsat --time-limit 10")
def compare(
    instance: Annotated[Path, Argument(help="An instance file.")],
    method: Annotated[list[str] | None, Option("--method", help="A method; may be repeated. [default: all]")] = None,
    time_limit: Annotated[float, Option("--time-limit", help="Seconds for each method.")] = 30,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Solve an instance with several methods and let each check the others."""
    loaded = api.load(instance)
    with render.searching("comparing") as progress:
        results, contradictions = api.compare(loaded, method, time_limit=time_limit, seed=seed, progress=progress)
    if as_json:
        print_json({"results": [found.to_dict() for found in results], "contradictions": contradictions})
    else:
        render.comparison(results, contradictions)
    if contradictions or any(found.status == "infeasible" for found in results):
        raise typer.Exit(INFEASIBLE)
    raise typer.Exit(FINE if any(found.objective is not None for found in results) else STOPPED)


@app.command(epilog="Example: trainplan methods layer-strategies")
def methods(
    problem: Annotated[str, Argument(help="The problem.")] = "layer-strategies",
    as_json: Json = False,
) -> None:
    """List the methods for a problem."""
    entries = api.methods(problem)
    if as_json:
        rows = [{"name": e.name, "proves": e.proves, "about": e.about, "options": [str(o) for o in e.options]} for e in entries]
        print_json({"problem": problem, "exact": entries[0].name, "methods": rows})
    else:
        render.methods(problem, entries)


@app.command(epilog="Example: trainplan schema layer-strategies > schema.json")
def schema(
    format: Annotated[
        str, Argument(help=f"{', '.join(PROBLEMS)}, each also with -solution; plan, profile or cluster.")
    ] = "layer-strategies",
    as_json: Json = False,
) -> None:
    """Print the JSON Schema of a file format (always JSON)."""
    del as_json
    print_json(api.schema(format))


@app.command(epilog="Example: trainplan run plan.json --steps 3 --scale-down 8 --dtype float64")
def run(
    plan: Annotated[Path, Argument(help="A plan file.")],
    model: Annotated[str | None, Option("--model", help="A config.json that the plan must be for.")] = None,
    steps: Annotated[int, Option("--steps", help="Training steps.")] = 3,
    scale_down: Annotated[int, Option("--scale-down", help="Run the same chain about this many times smaller.")] = 1,
    dtype: Annotated[str | None, Option("--dtype", help="float32 or float64. [default: the plan's]")] = None,
    backend: RunBackend = "serial",
    compare: Annotated[bool, Option("--compare/--no-compare", help="Also run on one process and compare gradients.")] = True,
    measure_memory: Annotated[bool, Option("--measure-memory", help="Measure what each rank allocates in a step.")] = False,
    device: RunDevice = "cpu",
    seed: Annotated[int, Option("--seed", help="Seed of parameters and samples.")] = 0,
    as_json: Json = False,
) -> None:
    """Run a plan: training steps on local processes, compared with one process."""
    loaded = load_plan(plan)
    with render.working("running") as progress:
        report = api.run(
            plan,
            model=model,
            steps=steps,
            scale_down=scale_down,
            dtype=dtype,
            backend=backend,
            device=device,
            seed=seed,
            compare=compare,
            measure_memory=measure_memory,
            progress=progress,
        )
    if as_json:
        from dataclasses import asdict

        predicted = loaded.predicted.model_dump() if loaded.predicted else None
        print_json({"predicted": predicted, **asdict(report)})
    else:
        render.run_report(loaded, report, scale_down)


_UsageError: Any = typer.BadParameter.__base__  # typer has a parser of its own, and does not name its errors


def _stop(text: str, code: int) -> NoReturn:
    print(f"trainplan: {text}", file=sys.stderr)
    raise SystemExit(code)


def main() -> None:
    """Entry point of the `trainplan` command."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends its processes as Ctrl-C does
    try:
        raise SystemExit(app(standalone_mode=False) or FINE)
    except _UsageError as error:
        message = error.format_message()
        helping = error.ctx.command_path if error.ctx else "trainplan"
        # Without any argument the message is the whole help.
        _stop(message if "\n" in message else f"{message} See `{helping} --help`.", BAD_INPUT)
    except typer.Abort:
        _stop("interrupted", STOPPED)
    except (InputError, MissingExtra) as error:
        _stop(str(error), BAD_INPUT)
    except ValidationError as error:
        _stop(str(as_input_error(error, "input")), BAD_INPUT)
    except WorkerError as error:
        _stop(str(error), STOPPED)
    except KeyboardInterrupt:
        _stop("interrupted", STOPPED)
    except SystemExit as error:
        if error.code == INTERRUPTED:
            _stop("interrupted", STOPPED)
        raise
    except BrokenPipeError:
        raise SystemExit(FINE) from None
