"""The problem itself: its costs and memory against a direct transcription, its files and errors, its bounds and models."""

import random
from collections.abc import Callable
from itertools import combinations, pairwise
from typing import Any

import pyomo.environ as pyo
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyomo.contrib.solver.common.factory import SolverFactory
from trainplan.formulations.pipeline_partition import milp
from trainplan.formulations.pipeline_partition.bounds import extra_ns, least_ns, left_over, most_ns
from trainplan.formulations.pipeline_partition.definition import PROBLEM
from trainplan.formulations.pipeline_partition.problem import (
    Instance,
    Solution,
    describe,
    evaluate,
    load,
    load_solution,
    solution_dict,
    violations,
)
from trainplan.formulations.schedule.orders import one_f_one_b
from trainplan.formulations.schedule.simulate import Work, simulate
from trainplan.solvers.core.heuristic import explain

from tests.helpers.partition_instances import random_partition, random_partition_dict
from tests.helpers.refusals import refused


@st.composite
def solved(draw: st.DrawFn) -> tuple[dict[str, Any], Solution]:
    """An instance's file, and any solution of it."""
    given = random_partition_dict(random.Random(draw(st.integers(0, 10**6))), memory=draw(st.booleans()))
    cuts = sorted(draw(st.permutations(range(1, len(given["forward_ns"]))))[: given["stages"] - 1])
    return given, Solution(tuple(cuts))


def stages_of(given: dict[str, Any], solution: Solution) -> list[list[int]]:
    bounds = [0, *solution.cuts, len(given["forward_ns"])]
    return [list(range(a, b)) for a, b in pairwise(bounds)]


def work_by_hand(given: dict[str, Any], solution: Solution) -> Work:
    own, moves = stages_of(given, solution), given["transfer_ns"]
    forward, backward = (tuple(sum(given[f"{kind}_ns"][l] for l in ls) for ls in own) for kind in ("forward", "backward"))
    return Work(forward, backward, tuple(moves[ls[-1]] if isinstance(moves, list) else moves for ls in own[:-1]))


def peaks_by_hand(given: dict[str, Any], solution: Solution) -> list[tuple[int, int]]:
    """Peak and limit of every stage."""
    if "memory" not in given:
        return []
    memory, p, m = given["memory"], given["stages"], given["micro_batches"]
    limits = memory["limit_bytes"] if isinstance(memory["limit_bytes"], list) else [memory["limit_bytes"]] * p
    found = []
    for x, ls in enumerate(stages_of(given, solution)):
        state, kept, work = ([memory[f"{name}_bytes"][l] for l in ls] for name in ("state", "kept", "workspace"))
        found.append((sum(state) + min(m, p - x) * sum(kept) + max(work), limits[x]))
    return found


def step_by_hand(work: Work, m: int) -> int:
    """1F1B from the last pass back, each pass asking for the two that it waits for."""
    p, f, b, c = work.stages, work.forward_ns, work.backward_ns, work.transfer_ns
    orders = []
    for x in range(p):
        ahead = min(m, p - 1 - x)
        order = [("f", q) for q in range(ahead)]
        for q in range(m):
            order += [("f", ahead + q)] * (ahead + q < m) + [("b", q)]
        orders.append(order)
    ends: dict[tuple[int, str, int], int] = {}

    def end(x: int, index: int) -> int:
        kind, q = orders[x][index]
        if (x, kind, q) not in ends:
            ready = end(x, index - 1) if index else 0
            other = x - 1 if kind == "f" else x + 1
            if 0 <= other < p:
                ready = max(ready, end(other, orders[other].index((kind, q)))) + c[min(x, other)]
            ends[x, kind, q] = ready + (f if kind == "f" else b)[x]
        return ends[x, kind, q]

    return end(0, 2 * m - 1)


@given(solved())
def test_evaluate_is_the_simulated_step(case: tuple[dict[str, Any], Solution]) -> None:
    given, solution = case
    instance, work = load(given), work_by_hand(*case)
    found, peaks = evaluate(instance, solution), [peak for peak, _ in peaks_by_hand(*case)]
    assert found.work == instance.work(solution.cuts) == work
    assert found.objective == found.time_ns == found.timeline.time_ns == step_by_hand(work, given["micro_batches"])
    assert [stage.peak_bytes for stage in found.stages] == (peaks or [None] * instance.stages)
    assert [(stage.first, stage.last) for stage in found.stages] == [(ls[0], ls[-1]) for ls in stages_of(*case)]
    assert [(stage.forward_ns, stage.backward_ns) for stage in found.stages] == list(
        zip(work.forward_ns, work.backward_ns, strict=True)
    )
    assert [stage.transfer_ns for stage in found.stages] == [*work.transfer_ns, 0]


@given(solved())
def test_what_users_see(case: tuple[dict[str, Any], Solution]) -> None:
    given, solution = case
    instance = load(given | {"names": [f"block {l}" for l in range(len(given["forward_ns"]))]})
    reported, work, m = describe(instance, solution), work_by_hand(*case), given["micro_batches"]
    assert (reported["time_ns"], reported["pipeline"], reported["micro_batches"]) == (step_by_hand(work, m), work.stages, m)
    assert reported["startup_ns"] == sum(work.forward_ns[:-1]) + sum(work.transfer_ns)
    busy = m * sum(work.forward_ns + work.backward_ns)
    assert (1 - reported["bubble"]) * reported["time_ns"] * work.stages == pytest.approx(busy if reported["time_ns"] else 0)
    assert 0 <= reported["master_stage"] < work.stages
    assert len(reported["stages"]) == work.stages
    peaks = peaks_by_hand(*case)
    assert ("peak_bytes" in reported) is bool(peaks)
    if peaks:
        spare = [limit - peak for peak, limit in peaks]
        assert reported["peak_stage"] == spare.index(min(spare))
        assert reported["peak_bytes"] == peaks[reported["peak_stage"]][0]
        work_bytes = {l: given["memory"]["workspace_bytes"][l] for l in stages_of(*case)[reported["peak_stage"]]}
        assert work_bytes[reported["peak_layer"]] == max(work_bytes.values())
        assert reported["peak_layer_name"] == f"block {reported['peak_layer']} in stage {reported['peak_stage']}"
        assert instance.memory is not None
        peaks = [stage.peak_bytes for stage in evaluate(instance, solution).stages]
        assert instance.memory.fullest_stage(peaks) == reported["peak_stage"]


@given(solved())
def test_violations_name_the_stages_that_need_too_much(case: tuple[dict[str, Any], Solution]) -> None:
    wanted = [(x, peak, limit) for x, (peak, limit) in enumerate(peaks_by_hand(*case)) if peak > limit]
    reported = violations(load(case[0]), case[1])
    assert len(reported) == len(wanted)
    for line, (x, peak, limit) in zip(reported, wanted, strict=True):
        first, *_, last = [*stages_of(*case)[x], stages_of(*case)[x][-1]]
        assert line.startswith(f"stage {x}: sub-layer {first} to sub-layer {last} need {peak} bytes")
        assert f"{peak - limit} more than its limit of {limit}" in line


@given(st.lists(st.integers(-2, 12), max_size=6), st.integers(0, 10**6))
def test_malformed_cuts_are_violations(cuts: list[int], seed: int) -> None:
    instance = random_partition(seed)
    whole = len(cuts) == instance.stages - 1 and cuts == sorted(set(cuts)) and set(cuts) <= set(range(1, instance.sublayers))
    reported = violations(instance, Solution(tuple(cuts)))
    assert bool(reported) is not whole
    if reported:
        assert f"give {instance.stages - 1}, strictly increasing" in reported[0]
        with pytest.raises(ValueError, match="strictly increasing"):
            evaluate(instance, Solution(tuple(cuts)))


@given(solved())
def test_files_give_back_the_same(case: tuple[dict[str, Any], Solution]) -> None:
    given, solution = case
    instance = load(given)
    again = load(instance.to_dict())
    assert again.to_dict() == instance.to_dict()
    named = load(given | {"name": "another", "names": ["one"] * instance.sublayers, "provenance": {"by": "hand"}})
    assert again.digest == instance.digest == named.digest
    assert named.to_dict() != instance.to_dict()
    assert load_solution(solution_dict(solution)) == solution
    for key in ("forward_ns", "backward_ns"):
        assert load({**given, key: [given[key][0] + 1, *given[key][1:]]}).digest != instance.digest
    assert load({**given, "micro_batches": given["micro_batches"] + 1}).digest != instance.digest
    assert load({**given, "layers": [7] * instance.sublayers}).digest != instance.digest
    if "memory" in given:
        assert load({**given, "memory": None}).digest != instance.digest


@given(solved(), st.integers(0, 6))
def test_sliced_solutions_take_the_sliced_iteration(case: tuple[dict[str, Any], Solution], sliced: int) -> None:
    fields, solution = case
    syncs = [7 * l for l in range(len(fields["forward_ns"]))]
    instance, half = load(fields | {"sync_ns": syncs}), Solution(solution.cuts, sliced)
    if sliced > min(instance.stages - 1, instance.micro_batches):
        assert violations(instance, half)[0].startswith(f"sliced is {sliced}; give 0 to ")
        return
    result = evaluate(instance, half)
    timeline = simulate(instance.work(half.cuts), one_f_one_b(instance.stages, instance.micro_batches, sliced))
    assert result.time_ns == timeline.time_ns <= evaluate(instance, solution).time_ns
    by_stage = [sum(syncs[l] for l in stage) for stage in stages_of(fields, solution)]
    assert result.step_ns == describe(instance, half)["step_ns"] == timeline.step_ns(by_stage)
    assert load_solution(solution_dict(half)) == half and load(instance.to_dict()).to_dict() == instance.to_dict()
    odd = load(fields | {"provenance": {"mbs": 3}})
    assert any("which have no halves" in text for text in violations(odd, half)) == (sliced > 0)


def test_the_problem_counts_and_lists_its_partitions() -> None:
    for seed in range(20):
        instance = random_partition(seed, 7, 4, memory=True)
        partitions = list(PROBLEM.enumeration.solutions(instance))
        assert len(partitions) == len(set(partitions)) == PROBLEM.enumeration.count(instance)
        assert not any(
            isinstance(text, str) and text.startswith("cuts") for s in partitions for text in violations(instance, s)
        )
        roomy = instance.with_memory(2**48)
        assert roomy.common_memory_bytes == 2**48 == PROBLEM.size(roomy)["memory_bytes"]
        assert violations(roomy, partitions[0]) == [] and explain(roomy) is None
        stages, step = PROBLEM.tables(roomy, partitions[0])
        assert len(stages.rows) == roomy.stages and all(len(row) == len(stages.columns) for row in stages.rows)
        assert step.columns == ("start-up", "bubble")


def test_one_number_means_the_same_for_every_cut_and_stage() -> None:
    given = small() | {"transfer_ns": 3}
    given["memory"]["limit_bytes"] = 40
    spread = {**given, "transfer_ns": [3, 3, 3], "layers": [0, 1, 2, 3]}
    spread["memory"] = given["memory"] | {"limit_bytes": [40, 40]}
    assert load(spread).digest == load({**given, "layers": None}).digest
    assert load(spread).to_dict() == load({**given, "layers": None}).to_dict()
    assert load(spread).to_dict()["transfer_ns"] == 3


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], Any], tuple[Any, ...]]] = {
    "problem": (lambda d: d.update(problem="partition"), ("problem", "partition", "pipeline-partition")),
    "version": (lambda d: d.update(version=2), ("version", 2, 1)),
    "nothing to cut": (lambda d: d.update(forward_ns=[]), ("forward_ns", 0, (1, 10000))),
    "a number": (lambda d: d.update(forward_ns=5), ("forward_ns", 5, "[...]")),
    "backward missing": (lambda d: d["backward_ns"].pop(), ("backward_ns", 3, 4)),
    "no backward": (lambda d: d.pop("backward_ns"), ("backward_ns",)),
    "cuts missing": (lambda d: d["transfer_ns"].pop(), ("transfer_ns", 2, 3)),
    "transfer": (lambda d: d.update(transfer_ns="1 us"), ("transfer_ns", "1 us", 1000)),
    "a transfer": (lambda d: d["transfer_ns"].__setitem__(2, -1), ("transfer_ns[2]", -1, 0)),
    "a layer of many digits": (
        lambda d: d.update(layers=[0, 1, 2, 10**30]),
        ("layers[3]", 10**30, 2**53),
    ),
    "float": (lambda d: d["forward_ns"].__setitem__(2, 1.5), ("forward_ns[2]", 1.5, 1000)),
    "negative": (lambda d: d["backward_ns"].__setitem__(0, -1), ("backward_ns[0]", -1, 0)),
    "more stages than sub-layers": (lambda d: d.update(stages=9), ("stages", 9, 4)),
    "no stages": (lambda d: d.update(stages=0), ("stages", 0, 1)),
    "micro-batches": (lambda d: d.update(micro_batches=0), ("micro_batches", 0, 1)),
    "names": (lambda d: d["names"].pop(), ("names", 3, 4)),
    "a name": (lambda d: d["names"].__setitem__(1, 5), ("names[1]", 5, "text")),
    "layers": (lambda d: d["layers"].pop(), ("layers", 3, 4)),
    "too many passes": (lambda d: d.update(micro_batches=10**5), ("micro_batches", (100000, "2 stages"), 50000)),
    "falling layers": (lambda d: d.update(layers=[0, 1, 0, 2]), ("layers[2]", (0, 1), 1)),
    "a layer": (lambda d: d["layers"].__setitem__(0, -1), ("layers[0]", -1, 0)),
    "too long": (
        lambda d: d.update(micro_batches=10**5, backward_ns=[10**12] * 4),
        ("micro_batches", (100000, "4e+17 ns"), "9.01e+15"),
    ),
    "limits": (lambda d: d["memory"].update(limit_bytes=[1, 2, 3]), ("memory.limit_bytes", 3, 2)),
    "no limit": (lambda d: d["memory"].update(limit_bytes=0), ("memory.limit_bytes", 0, 0)),
    "states": (lambda d: d["memory"]["state_bytes"].pop(), ("memory.state_bytes", 3, 4)),
    "kept": (lambda d: d["memory"]["kept_bytes"].append(1), ("memory.kept_bytes", 5, 4)),
    "workspace": (lambda d: d["memory"].pop("workspace_bytes"), ("memory.workspace_bytes",)),
    "unknown field": (lambda d: d["memory"].update(bytes=1), ("memory.bytes",)),
    "unknown": (lambda d: d.update(speed=1), ("speed",)),
}


def small() -> dict[str, Any]:
    return {
        "problem": "pipeline-partition",
        "version": 1,
        "forward_ns": [5, 2, 8, 3],
        "backward_ns": [10, 4, 16, 6],
        "transfer_ns": [1, 7, 2],
        "stages": 2,
        "micro_batches": 4,
        "names": ["embedding", "attention 0", "feed-forward 0", "head"],
        "layers": [0, 1, 1, 2],
        "memory": {
            "limit_bytes": [40, 30],
            "state_bytes": [9, 2, 4, 3],
            "kept_bytes": [5, 3, 3, 3],
            "workspace_bytes": [1, 1, 6, 0],
        },
    }


@pytest.mark.parametrize("name", BROKEN)
def test_malformed_files_are_reported_in_one_line(name: str) -> None:
    given, (break_it, refusal) = small(), BROKEN[name]
    load(given)
    break_it(given)
    with refused(*refusal, where="instance") as caught:
        load(given)
    assert "\n" not in str(caught.value)


def test_bytes_that_would_leave_64_bits_are_refused() -> None:
    many = 10_000
    times = {"forward_ns": [1] * many, "backward_ns": [1] * many, "transfer_ns": 0, "stages": many, "micro_batches": many}
    sizes = {"state_bytes": [0] * many, "kept_bytes": [2**48] * many, "workspace_bytes": [0] * many}
    with refused("micro_batches", problem=(10000, "bytes"), fix="4.61e+18"):
        load(small() | times | {"names": None, "layers": None, "memory": {"limit_bytes": 2**40, **sizes}})


@pytest.mark.parametrize(
    "cuts, refusal", [([1.5], ("cuts[0]", 1.5, 1000)), ([-1], ("cuts[0]", -1, 0)), (3, ("cuts", 3, "[...]"))]
)
def test_malformed_solutions_are_reported_in_one_line(cuts: Any, refusal: tuple[Any, ...]) -> None:
    with refused(*refusal, where="solution"):
        load_solution({"cuts": cuts})


@given(solved())
def test_bounds_hold_for_every_partition(case: tuple[dict[str, Any], Solution]) -> None:
    instance, work = load(case[0]), work_by_hand(*case)
    trip = sum(work.forward_ns + work.backward_ns) + 2 * sum(work.transfer_ns)
    time, p, m = evaluate(instance, case[1]).time_ns, work.stages, instance.micro_batches
    moves = (0, *work.transfer_ns, 0)
    for x in range(p):
        fewer = left_over(instance, x)
        assert fewer == len([q for q in range(m) if q >= p - x])
        for forward, backward in ((fewer, m - 1), (m - 1, fewer)):
            own = forward * (work.forward_ns[x] + moves[x]) + backward * (work.backward_ns[x] + moves[x + 1])
            assert trip + own <= time
    assert time <= most_ns(instance)


def test_the_least_bound_is_the_least_over_all_partitions_and_often_the_optimum() -> None:
    met = compared = nothing = 0
    for seed in range(300):
        instance, bounds, times = random_partition(seed, memory=True), [], []
        for cuts in combinations(range(1, instance.sublayers), instance.stages - 1):
            if not violations(instance, Solution(cuts)):
                work = instance.work(cuts)
                c = (0, *work.transfer_ns, 0)
                stages = zip(work.forward_ns, work.backward_ns, c[:-1], c[1:], strict=True)
                own = [int(extra_ns(instance, x, f + before, b + after)) for x, (f, b, before, after) in enumerate(stages)]
                bounds.append(max(own))
                times.append(evaluate(instance, Solution(cuts)).time_ns)
        if not bounds:
            nothing += 1
            assert least_ns(instance) >= 2**62
            continue
        once = int(instance.forward_ns.sum() + instance.backward_ns.sum())
        moves = sorted(instance.transfer_ns.tolist())[: instance.stages - 1]
        assert least_ns(instance) == once + 2 * sum(moves) + min(bounds) <= min(times)
        met, compared = met + (least_ns(instance) == min(times)), compared + 1
    assert nothing > 30
    assert met > compared / 2


def relaxed_ns(instance: Instance) -> float:
    model = milp.build(instance)
    for variable in model.Y.values():
        variable.domain = pyo.NonNegativeReals
    found = SolverFactory("highs").solve(model, load_solutions=False, raise_exception_on_nonoptimal_result=False)
    assert found.incumbent_objective is not None
    return found.incumbent_objective * milp.units(instance)[0]


PINNED = {
    (136, False): 7325891322.0,
    (159, True): 30498.027541136653,
    (205, False): 1721676012.5336092,
    (248, False): 21329389889.258186,
}


def test_the_relaxation_of_some_instances_is_pinned() -> None:
    """A loosened formulation shows here, where the optimum alone would not."""
    found = [relaxed_ns(random_partition(seed, memory=memory)) for seed, memory in PINNED]
    assert found == pytest.approx(list(PINNED.values()), rel=1e-6)
