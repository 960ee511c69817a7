"""Random plans lowered onto torch's own pieces, against the same plans by program and one process.

`--plans` plans of worlds 1, 2, 3 and 4, all within what is lowered: any cuts, 1F1B, GPipe and interleaved stages, each unit
with any levels of dp, sdp and tp, ZeRO stage, sequence parallelism and recomputation, some with dropout, some with gathered
parameters kept whole. Each takes two steps in float64 by program and lowered, in the same processes. Losses, and the first
step's gradients relative to the largest of their unit, have to be within 1e-12 of each other and of one process. Then `--drawn`
plans over all that a plan can say are drawn, and their refusals counted by field. Last, of `--memory` plans of a wider GPT-2 in
float32 the peaks of lowered ranks, by the dispatch tracker, are compared with their dry runs. Exit
status 1 where a plan is apart, or a regular one is refused that has no residence on the host, no halves and no shares.

    python -m benchmarks.lowered --plans 300 --drawn 1000 --memory 60 --seed 0
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from trainplan.execution.launch.processes import run_plans, sound_programs
from trainplan.execution.run.ranks import make_executor, start_rank
from trainplan.execution.runtimes.torch.refusals import refusals
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.processes import Report, run_workers
from trainplan.profiling.models.model import Model

from tests.helpers.any_plan import any_plan, features_of
from tests.helpers.plans import (
    DROPPING,
    GPT2,
    UNTIED,
    random_plan,
    recomputing_modules,
    sharing_tokens,
    with_zero,
)

ROOT = Path(__file__).parent.parent
WORLDS = (1, 2, 3, 4)
POWERS = (1, 2, 4)
REGULAR = ("regular", "interleaved, regular")  # kinds of plans that are all within what is lowered
OTHERS = ("unlike", "interleaved")  # kinds of which some are: those with stages of one size
LARGEST_DIFFERENCE = 1e-12
STEPS = 2
NAMES = ("gradients, lowered and by program", "losses, lowered and by program", "gradients, lowered and one process")


def lowered_plan(rng: random.Random, world: int) -> Plan:
    """A random plan within what is lowered, or a regular one, which has to be. Each third drops numbers, and each third keeps
    gathered parameters."""
    while True:
        name, plan = any_plan(rng, world)
        if name in REGULAR or (name in OTHERS and not refusals(plan)):
            break
    if rng.random() < 1 / 3:
        dropping = {model.digest: model for model in DROPPING}
        plan = plan.changed(model=dropping.get(plan.model_digest, plan.planned_model()).shape())
    if rng.random() < 1 / 3:
        plan = plan.changed(units=[unit.changed(states=unit.states.changed(kept_whole=True)) for unit in plan.units])
    return plan


def run_rank(rank: int, world: int, job: dict[str, Any], report: Report) -> list[dict[str, float]]:
    """Body of one rank: each plan by program, then lowered. Of each, the largest differences, from one process on rank 0."""
    from trainplan.execution.lowering.ranks import flat_values
    from trainplan.execution.lowering.trainer import Trainer
    from trainplan.execution.run.compare_with_single_process import Outcome, compare

    device, groups, everyone = start_rank(rank, world, job)
    results = []
    for entry in job["jobs"]:
        program = entry["programs"][rank]
        executor = make_executor(program, groups, job["seed"], device)
        losses = [executor.step()]
        gradients = {unit: state.gradient.clone() for unit, state in executor.units.items()}
        losses += [executor.step() for _ in range(STEPS - 1)]
        trainer = Trainer(entry["plan"], program.model, rank, job["seed"], device)
        again = [trainer.step()]
        lowered = flat_values(trainer, program, True)
        again += [trainer.step() for _ in range(STEPS - 1)]
        apart = max(_apart(lowered[unit], gradients[unit]) for unit in gradients)
        outcome = Outcome(lowered, flat_values(trainer, program, False), again)
        whole = compare(entry["programs"], outcome, job["seed"], everyone)
        between = max(abs(one - other) for one, other in zip(again, losses, strict=True))
        results.append(dict(zip(NAMES, (apart, between, whole.gradient_difference if whole else 0.0), strict=True)))
    return results


def _apart(one: Any, other: Any) -> float:
    """The largest difference relative to the largest number of a unit's shard; where that is nothing, itself."""
    return float((one - other).abs().max() / (other.abs().max() or 1.0)) if len(other) else 0.0


def ran(plans: list[Plan]) -> list[dict[str, float]]:
    """The largest differences on any rank, for each plan of one world."""
    job = {
        "jobs": [{"programs": sound_programs(plan, None, "serial"), "plan": plan} for plan in plans],
        "seed": 3,
        "gpus": None,
    }
    ranks = run_workers("benchmarks.lowered:run_rank", plans[0].world, job, timeout=3600.0)
    return [{name: max(rank[number][name] for rank in ranks) for name in NAMES} for number in range(len(plans))]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--plans", type=int, default=300, help="plans that run both ways (default 300)")
    parser.add_argument("--drawn", type=int, default=1000, help="plans whose refusals are counted (default 1000)")
    parser.add_argument("--memory", type=int, default=60, help="plans whose memory is measured (default 60)")
    parser.add_argument("--at-once", type=int, default=20, help="plans of one start of processes (default 20)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # models are small, ranks many
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    console, rng, started = Console(width=160, soft_wrap=True), random.Random(options.seed), time.perf_counter()
    plans = [lowered_plan(rng, WORLDS[number % len(WORLDS)]) for number in range(options.plans)]
    failed = [f"{plan!r} is refused: {refused[0]}" for plan in plans if (refused := refusals(plan))]
    plans = [plan for plan in plans if not refusals(plan)]
    traits = Counter(entry for plan in plans for entry in features_of(plan))
    most = dict.fromkeys(NAMES, 0.0)
    for world in WORLDS:
        of_world = [plan for plan in plans if plan.world == world]
        for begin in range(0, len(of_world), options.at_once):
            some = of_world[begin : begin + options.at_once]
            for plan, apart in zip(some, ran(some), strict=True):
                most = {name: max(most[name], apart[name]) for name in NAMES}
                failed += [
                    f"{plan!r}: {name} are {apart[name]:.2g} apart" for name in NAMES if not apart[name] <= LARGEST_DIFFERENCE
                ]
            took = time.perf_counter() - started
            console.print(
                f"{took:5.0f} s  {begin + len(some)} of {len(of_world)} plans of world {world}; {len(failed)} faults so far"
            )
    table = Table("largest difference", "of all plans", title=f"{len(plans)} plans lowered, {STEPS} steps each")
    for name in NAMES:
        table.add_row(name, f"{most[name]:.2g}")
    console.print(table)
    table = Table("plans", "count", title="what the lowered plans are about")
    for what, count in traits.most_common():
        table.add_row(what, str(count))
    if plans:
        console.print(table)
    if options.drawn:
        _count(console, rng, options.drawn)
    if options.memory:
        _measure(console, rng, options.memory)
    for line in failed:
        console.print(line, markup=False)
    console.print(f"{len(failed)} faults, {time.perf_counter() - started:.0f} s")
    return int(bool(failed))


def _measure(console: Console, rng: random.Random, count: int) -> None:
    """Print how far peaks of lowered ranks are from their dry runs, by what plans do."""
    sizes = {"n_embd": 128, "n_inner": 512, "n_positions": 64, "n_layer": 4, "vocab_size": 512}
    wide = [model.with_fields(sequence=64, **sizes).in_dtype("float32") for model in (GPT2, UNTIED)]
    drawn = [_drawn(rng, rng.choice(wide), POWERS[number % len(POWERS)]) for number in range(count)]
    apart: dict[str, list[float]] = {}
    for world in POWERS:
        plans = [plan for plan in drawn if plan.world == world]
        reports = run_plans(plans, steps=1, compare=False, measure_memory=True, runtime="torch") if plans else []
        for plan, report in zip(plans, reports, strict=True):
            assert report.peak_bytes is not None
            ratios = [peak / dry - 1 for peak, dry in zip(report.peak_bytes, report.predicted_peak_bytes, strict=True)]
            shares = "some" if any(strategy.zero_stage in (1, 2) for strategy in plan.strategies()) else "no"
            for name in ("all", f"{plan.schedule}, {len(plan.stages)} stages", f"{shares} ZeRO-1 or 2"):
                apart.setdefault(name, []).extend(ratios)
    title = f"peaks of {count} lowered plans above their dry runs"
    table = Table("plans", "ranks", "least", "median", "most", "median error", title=title)
    for name, ratios in sorted(apart.items()):
        errors = median(map(abs, ratios))
        spread = (f"{entry:+.1%}" for entry in (min(ratios), median(ratios), max(ratios)))
        table.add_row(name, str(len(ratios)), *spread, f"{errors:.1%}")
    console.print(table)


def _drawn(rng: random.Random, model: Model, world: int) -> Plan:
    """A random plan of a model that is lowered."""
    while True:
        plan = recomputing_modules(rng, sharing_tokens(rng, with_zero(rng, random_plan(rng, world, model))))
        if not refusals(plan):
            return plan


def _count(console: Console, rng: random.Random, drawn: int) -> None:
    """Print the refusals of any plans, by field: of each plan every field once."""
    counts: Counter[str] = Counter()
    lowered = 0
    for _ in range(drawn):
        _, plan = any_plan(rng, rng.choice([1, 2, 3, 4, 6, 8]))
        kinds = {refusal.kind for refusal in refusals(plan)}
        counts.update(kinds)
        lowered += not kinds
    table = Table("refused field", "plans", title=f"{drawn} plans over all that a plan can say: {lowered} are lowered")
    for kind, count in counts.most_common():
        table.add_row(kind, str(count))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
