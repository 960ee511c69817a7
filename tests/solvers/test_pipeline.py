"""The exact pipeline method: against every plan, its parts against every choice, and what it promises of limits and reasons."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from trainplan.formulations.pipeline.costs import PipelineCosts
from trainplan.formulations.pipeline.instance import Instance
from trainplan.formulations.pipeline.instance_file import load
from trainplan.formulations.pipeline.problem import evaluate, evaluate_stage, load_solution
from trainplan.formulations.plan.strategy import parse_strategy
from trainplan.formulations.strategy_spaces import SPACES
from trainplan.profiling.base.quantities import format_bytes
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.estimate import estimate_shapes
from trainplan.profiling.models.model import load_model
from trainplan.profiling.profile_sources import shapes_needed
from trainplan.solvers.pipeline.memory import explain, least_pipeline_memory
from trainplan.solvers.pipeline.span_costs import SolvedSpan, SpanCosts, undominated

import trainplan as tp
from tests.helpers.clock import without_alarms
from tests.helpers.instances import NAMES, random_pipeline, random_pipeline_dict
from tests.helpers.sizes import one_in

REAL = [("bert-huge-32", "8GiB"), ("swin-huge-32", "5GiB")]


def real(model: str, memory: str | int, batch: int = 32, **options: Any) -> Instance:
    instance = tp.build("pipeline", model=model, cluster="rtx-titan-8", batch=batch, memory=memory, **options)
    assert isinstance(instance, Instance)
    return instance


def agrees_with_every_plan(instance: Instance, seed: int) -> tp.api.Result:
    exact, brute = tp.solve(instance), tp.solve(instance, "brute-force")
    answers = [(found.status, found.objective, found.bound) for found in (exact, brute)]
    assert answers[0] == answers[1], (seed, *answers, exact.message)
    return exact


@pytest.mark.long
def test_400_random_instances_are_solved_to_the_nanosecond() -> None:
    """Of 400, one in three; `make test-all` has all."""
    seeds = one_in(3, range(400))
    statuses = Counter(agrees_with_every_plan(random_pipeline(seed), seed).status for seed in seeds)
    assert set(statuses) == {"optimal", "infeasible"}
    assert min(statuses.values()) > len(seeds) / 4


def traded(rng: random.Random, slow: int = 10**6) -> dict[str, Any]:
    """Options that trade time, synchronisation and memory, so that stages have many that none beats: their hull has gaps."""
    length, kinds, longest = rng.randint(4, 7), rng.randint(1, 2), rng.choice([10, 1000, slow])

    def option(name: str) -> dict[str, Any]:
        x, y = rng.random(), rng.random()
        u, sync = int(longest * (0.3 + x + rng.random() / 5)), int(longest * rng.choice([0, 0.5, 3, 50]) * (1 - y))
        sizes = {"forward_bytes": int(60 - 60 * x), "backward_bytes": rng.randint(0, 30), "state_bytes": int(100 * y)}
        return {"strategy": name, "time_ns": u + sync, "sync_ns": sync, **sizes}

    def configuration(stages: int, micro_batches: int) -> dict[str, Any]:
        names = NAMES[4 // stages][: 3 if length < 7 else 2]
        moves = [[0 if a == b else rng.choice([0, longest // 4]) for b in names] for a in names]
        return {
            "stages": stages,
            "micro_batches": micro_batches,
            "schedule": rng.choice(["1f1b", "gpipe"]),
            "options": [[option(name) for name in names] for _ in range(kinds)],
            "transitions_ns": [moves],
            "entries_ns": [[rng.choice([0, longest // 5]) for _ in names]],
        }

    return {
        "problem": "pipeline",
        "version": 1,
        "devices": 4,
        "memory_bytes": rng.randint(60, 50 * length),
        "batch": 8,
        "layer_names": [f"layer {l}" for l in range(length)],
        "layer_kinds": [rng.randrange(kinds) for _ in range(length)],
        "boundary_kinds": [0] * (length - 1),
        "configurations": [configuration(rng.choice([2, 4]), m) for m in rng.sample([2, 4, 8], 2)],
    }


@pytest.mark.long
def test_options_that_trade_time_for_memory() -> None:
    """Where stages are searched below the hull of u and T, too. Of 250, one in three; `make test-all` has all."""
    found = [agrees_with_every_plan(load(traded(random.Random(seed))), seed) for seed in one_in(3, range(250))]
    assert sum(result.statistics["stages_capped"] > 0 for result in found) > len(found) / 25
    assert Counter(result.status for result in found)["optimal"] > 0.4 * len(found)


def extreme(kind: str, rng: random.Random) -> dict[str, Any]:
    given = random_pipeline_dict(rng, 5, 3)
    layers = len(given["layer_names"])
    for configuration in given["configurations"]:
        for option in (option for options in configuration["options"] for option in options):
            time = {"no time": 0, "one time": 5, "longest": 10**14 - rng.randint(0, 3)}.get(kind, option["time_ns"])
            sync = {"no sync": 0, "all sync": time}.get(kind, min(time, option["sync_ns"]))
            option.update(time_ns=time, sync_ns=rng.randint(0, time) if kind == "longest" else sync)
        if kind == "one micro-batch":
            configuration["micro_batches"] = 1
        if kind == "gpipe":
            configuration["schedule"] = "gpipe"
    if kind in ("one time", "equal layers"):
        given.update(layer_kinds=[0] * layers, boundary_kinds=[0] * (layers - 1))
    if kind in ("one layer", "a layer a stage"):
        count = 1 if kind == "one layer" else 4
        given.update(layer_names=["l"] * count, layer_kinds=[0] * count, boundary_kinds=[0] * (count - 1))
        kept = [c for c in given["configurations"] if c["stages"] == count]
        given["configurations"] = kept or [configuration_of(given["configurations"][0], count)]
    return given


def configuration_of(given: dict[str, Any], stages: int) -> dict[str, Any]:
    """One option over any number of stages."""
    options = [[{**kind[0], "strategy": NAMES[4 // stages][0]}] for kind in given["options"]]
    moves = [[[table[0][0]]] for table in given["transitions_ns"]]
    entries = [[row[0]] for row in given["entries_ns"]]
    return {**given, "stages": stages, "options": options, "transitions_ns": moves, "entries_ns": entries}


KINDS = ("no time", "one time", "longest", "no sync", "all sync", "one micro-batch", "gpipe", "equal layers", "one layer")


@pytest.mark.parametrize("kind", [*KINDS, "a layer a stage"])
def test_extremes(kind: str) -> None:
    for seed in range(25):
        agrees_with_every_plan(load(extreme(kind, random.Random(seed))), seed)


def test_steep_hulls_of_long_stages_stay_within_64_bits() -> None:
    """Stages of a day whose options differ by a few nanoseconds of u and seconds of synchronisation."""
    for seed in (*range(20), 67, 171):
        rng = random.Random(seed)
        given = traded(rng)
        for option in (o for c in given["configurations"] for options in c["options"] for o in options):
            u, sync = 6 * 10**13 - rng.randint(0, 10 ** rng.choice([1, 3, 6])), rng.randint(0, 10 ** rng.choice([3, 9, 12]))
            option.update(time_ns=u + sync, sync_ns=sync)
        agrees_with_every_plan(load(given), seed)


def spans(instance: Instance, costs: SpanCosts) -> list[tuple[int, int]]:
    return [(depth, number) for depth in range(len(costs.depths)) for number in range(len(costs.spans))]


def test_bounds_of_all_spans_are_never_above_the_optimum() -> None:
    weights = [(1, 0), (1, 1), (3, 2), (8, 1), (100, 1)]
    close, cases = 0, 0
    for seed in range(40):
        instance = random_pipeline(seed) if seed % 2 else load(traded(random.Random(seed)))
        for index in range(len(instance.configurations)):
            costs = SpanCosts(instance, index)
            bounds = costs.bounds(weights)
            for depth, number in spans(instance, costs):
                for at, weight in enumerate(weights):
                    solved, bound = costs.solve(number, costs.depths[depth], weight), bounds[at, depth, number]
                    assert bound <= solved.bound
                    assert np.isfinite(bound) or solved.choice is None, "infinite only where nothing fits"
                    cases += np.isfinite(solved.bound)
                    close += np.isfinite(solved.bound) and bound >= 0.9 * solved.bound
    assert cases > 3000
    assert close > cases / 2, "bounds that are valid, yet say nothing, would pass the rest"


def cheapest_by_option(costs: SpanCosts, number: int, depth: int, rate: tuple[int, int, float]) -> float:
    """The least p u + q (T - u) + w (memory) of a class of spans, from option to option."""
    (p, q, w), t, instance, (first, last) = rate, costs.tables, costs.instance, costs.spans.span[number]
    own = p * (t.time_ns - t.sync_ns) + q * t.sync_ns + w * (depth * t.forward_bytes + t.state_bytes)
    chain = own[instance.layer_kinds[first]] + (p * t.entries_ns[instance.boundary_kinds[first - 1]] if first else 0)
    for l in range(first, last):
        moves = p * t.transitions_ns[instance.boundary_kinds[l]]
        chain = (chain[:, None] + moves).min(axis=0) + own[instance.layer_kinds[l + 1]]
    return float((chain + w * t.backward_bytes[instance.layer_kinds[last]]).min())


@pytest.mark.long
def test_interface_cells_change_no_bound() -> None:
    """Chains over cells of options against chains over the options themselves; cut short only where nothing fits."""
    rates, cut, fewer = [(1, 0, 0.0), (1, 1, 0.37), (8, 1, 2.5), (0, 0, 1.0)], 0, 0
    instances = [random_pipeline(seed, 7) for seed in range(30)] + [real("swin-huge-32", "5GiB", by_unit=True)]
    for instance in instances:
        for index in list(range(len(instance.configurations)))[-3:]:
            costs = SpanCosts(instance, index)
            fewer += len(costs.cells.enter) < len(costs.options)
            whole, within = costs._cheapest(rates), costs._cheapest(rates, instance.memory_bytes)
            for number in range(0, len(costs.spans), 1 + len(costs.spans) // 40):
                for depth in costs.depths[:: 1 + len(costs.depths) // 3]:
                    wanted = [cheapest_by_option(costs, number, depth, rate) for rate in rates]
                    assert whole[number, costs.depths.index(depth)] == pytest.approx(wanted, rel=1e-14, abs=0)
            kept = np.isfinite(within)
            assert (within[kept] == whole[kept]).all()
            for number in np.flatnonzero(~kept.all(axis=(1, 2))):
                cut += costs.solve(int(number), costs.depths[0], (1, 0)).choice is None
                assert costs.solve(int(number), costs.depths[0], (1, 0)).choice is None
    assert fewer
    assert cut


def every_choice(instance: Instance, costs: SpanCosts, number: int, depth: int) -> list[tuple[int, int, tuple[int, ...]]]:
    """u, T and choice of all that fit, over all options, by the problem's own `evaluate_stage`."""
    given = replace(costs.configuration, stages=1, schedule="gpipe", micro_batches=depth)  # number of micro-batches in flight
    first, last = costs.spans.span[number]
    found = []
    for choice in product(range(len(given.tables.strategies)), repeat=last - first + 1):
        stage = evaluate_stage(instance, given, 0, first, choice)
        if stage.peak_bytes <= instance.memory_bytes:
            found.append((stage.time_ns - stage.sync_ns, stage.time_ns, choice))
    return found


def test_stages_with_and_without_a_cap_against_every_choice() -> None:
    capped = 0
    for seed in range(60):
        rng = random.Random(seed)
        instance = load(traded(rng))
        costs = SpanCosts(instance, 0)
        for depth, number in rng.choices(spans(instance, costs), k=10):
            in_flight = costs.depths[depth]
            choices = every_choice(instance, costs, number, in_flight)
            for p, q in ((1, 1), (5, 2)):
                solved = costs.solve(number, in_flight, (p, q))
                best = min((p * u + q * (time - u) for u, time, _ in choices), default=np.inf)
                assert solved.bound == best
                assert (solved.choice is None) == (not choices)
            if not choices:
                continue
            limit = sorted(u for u, _, _ in choices)[rng.randrange(1 + len(choices) // 4)]
            within = [(time, u) for u, time, _ in choices if u <= limit]
            kept = set(undominated(costs.configuration.tables)[0])
            starts = [(u, t, c) for u, t, c in choices if u <= limit and set(c) <= kept]
            if not starts:
                continue
            u, time, start = rng.choice(starts)
            known = SolvedSpan(time, start, u, time)
            found = costs.solve_capped(number, in_flight, limit, known, rng.choice([0.0, 0.3, 5.0]), float("inf"))
            assert (found.bound, found.time_ns) == (min(within)[0], min(within)[0])
            assert found.u_ns <= limit
            capped += found.time_ns > min(time for _, time, _ in choices)
    assert capped > 40


def test_the_papers_searches_are_never_below_the_optimum() -> None:
    for seed in range(100):
        instance = random_pipeline(seed)
        exact = tp.solve(instance)
        for method in ("galvatron-base", "galvatron-bmw"):
            found = tp.solve(instance, method, granularity_bytes=max(1, instance.memory_bytes // 1000))
            if exact.objective is None:
                assert found.status == "infeasible"
            elif found.objective is not None:
                assert found.objective >= exact.objective


@pytest.mark.parametrize(("model", "memory"), REAL)
def test_real_models_beat_the_papers_searches_with_proof(model: str, memory: str) -> None:
    instance = real(model, memory)
    exact = tp.solve(instance)
    assert exact.status == "optimal"
    assert exact.objective == exact.bound
    assert exact.solution is not None
    solution = load_solution(exact.solution)
    assert evaluate(instance, solution).objective == exact.objective
    for method in ("galvatron-base", "galvatron-bmw"):
        found = tp.solve(instance, method, micro_batches="all")
        assert found.objective is None or found.objective >= exact.objective


def paper_costs() -> dict[str, PipelineCosts]:
    model = load_model("bert-huge-32")
    shapes = shapes_needed(model.tp_degrees(8), [1, 2, 4, 8], [1, 2, 4, 8, 16, 32])
    profile = estimate_shapes(model, load_cluster("rtx-titan-8"), shapes, 8)
    return {name: PipelineCosts(profile, space=space) for name, space in SPACES.items()}


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_larger_space_is_at_least_as_fast(schedule: Any) -> None:
    found = {}
    for name, costs in paper_costs().items():
        result = tp.solve(costs.instance(32, 24 << 30, schedule=schedule))
        assert result.status in ("optimal", "infeasible")
        found[name] = result.objective or np.inf
    for name in ("dp", "tp", "sdp", "pp", "dp+tp", "dp+pp", "3d"):
        assert found["no-ckpt"] <= found[name], name
    assert found["full"] <= found["no-ckpt"]
    assert found["full-dp-sdp"] <= found["full"]
    assert found["no-ckpt"] < np.inf


@pytest.mark.parametrize("model", ["bert-huge-32", "swin-huge-32"])
def test_more_memory_is_never_slower(model: str) -> None:
    instance = real(model, "24GiB", 16)
    least = evaluate(instance, least_pipeline_memory(instance)).peak_bytes
    times = [tp.solve(instance.with_memory(int(least * factor))).objective for factor in (1.0, 1.05, 1.2, 1.5, 2, 3, 6)]
    assert None not in times
    assert all(later <= earlier for earlier, later in pairwise(times))  # type: ignore[operator]
    assert times[-1] < times[0]  # type: ignore[operator]


def test_a_gap_is_a_certificate() -> None:
    for seed in range(150):
        gap = random.Random(seed).choice([1e-3, 0.05, 0.3])
        instance = random_pipeline(seed) if seed % 2 else load(traded(random.Random(seed)))
        loose, exact = tp.solve(instance, gap=gap), tp.solve(instance)
        assert loose.status == exact.status
        if exact.objective is not None:
            assert loose.bound is not None
            assert loose.objective is not None
            assert loose.bound <= exact.objective <= loose.objective
            assert loose.objective - loose.bound <= gap * loose.objective


@pytest.mark.parametrize("seconds", [1e-9, 0.05])
def test_a_time_limit_gives_a_bound_that_holds(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """For instances that need longer there are a plan and a bound, or a bound, on either side of the optimum."""
    without_alarms(monkeypatch)
    for model, memory in REAL:
        instance = real(model, memory, 64)
        stopped, optimum = tp.solve(instance, time_limit=seconds), tp.solve(instance)
        assert optimum.status == "optimal"
        assert optimum.objective is not None
        assert stopped.status in ("feasible", "unknown", "optimal")
        assert stopped.bound is not None
        assert stopped.bound <= optimum.objective
        assert stopped.objective is None or stopped.objective >= optimum.objective
        if seconds < 1e-6:
            assert stopped.status == "feasible"


def test_the_least_memory_is_exact() -> None:
    refused = 0
    for seed in range(200):
        instance = random_pipeline(seed)
        reason = explain(instance)
        least = evaluate(instance, least_pipeline_memory(instance)).peak_bytes
        assert (reason is None) == (least <= instance.memory_bytes)
        if reason is None:
            continue
        refused += 1
        assert reason.least_memory_bytes == least
        assert format_bytes(least) in str(reason)
        assert tp.solve(instance).reason == reason
        for method in ("exact", "brute-force"):
            assert tp.solve(instance.with_memory(least), method).status == "optimal"
            below = tp.solve(instance.with_memory(least - 1), method)
            assert below.status == "infeasible"
            assert below.reason is not None
            assert below.reason.least_memory_bytes == least
    assert refused > 50


def test_the_least_memory_of_a_real_model() -> None:
    found = tp.solve(real("bert-huge-32", "1GiB", 16))
    assert found.status == "infeasible"
    assert found.reason is not None
    least = found.reason.least_memory_bytes
    assert tp.solve(real("bert-huge-32", least, 16)).status == "optimal"
    assert tp.solve(real("bert-huge-32", least - 1, 16)).status == "infeasible"


@pytest.mark.parametrize("pipeline", [1, 2, 8])
def test_a_fixed_number_of_stages_is_over_all_devices(pipeline: int) -> None:
    """Each configuration alone costs what it costs among all."""
    every = real("bert-huge-32", "8GiB", 16)
    alone = real("bert-huge-32", "8GiB", 16, pipeline=pipeline, micro_batches=8 if pipeline > 1 else 1)
    assert (alone.devices, len(alone.configurations)) == (8, 1)
    strategies = alone.configurations[0].tables.strategies
    assert {parse_strategy(name).group for name in strategies} == {8 // pipeline}
    m = alone.configurations[0].micro_batches
    same = [c for c in every.configurations if (c.stages, c.micro_batches) == (pipeline, m)]
    assert tp.solve(alone).objective == tp.solve(replace(every, configurations=tuple(same))).objective
