"""Megatron's, Piper's and DAPPLE's planners against all partitions, by their own objectives."""

import random
import re
from collections.abc import Callable, Iterator
from itertools import combinations, pairwise, product
from math import ceil

import numpy as np
import pytest
from trainplan.formulations.pipeline_partition.problem import Instance, Solution, evaluate, load
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.search import Unsupported
from trainplan.solvers.core.solve import solve
from trainplan.solvers.partition.autopipe import Planner

from tests.helpers.partition_instances import random_partition
from tests.helpers.refusals import refused
from trainplan.papers.replicated import (
    LatencyPart,
    Replicated,
    ReplicatedChain,
    autopipe_plan,
    dapple_plan,
    latency_ns,
    piper_plan,
    reduced_ns,
    run,
)

Cuts = tuple[int, ...]


def layer_cuts(instance: Instance) -> list[Cuts]:
    """All cuts between whole layers."""
    indices = [index for index in range(1, instance.sublayers) if instance.layers[index] != instance.layers[index - 1]]
    return list(combinations(indices, instance.stages - 1))


def cuts_of(result: Result) -> Cuts:
    assert result.solution is not None
    return tuple(result.solution["cuts"])


def largest_tps(instance: Instance, cuts: Cuts) -> int:
    work = instance.work(cuts)
    messages = (0, *work.transfer_ns, 0)
    both = zip(work.forward_ns, work.backward_ns, pairwise(messages), strict=True)
    return max(f + b + 2 * before + 2 * after for f, b, (before, after) in both)


def longest_pivot(instance: Instance, cuts: Cuts) -> int:
    """L = max over Q of sum_{s<=Q} F + (M-1) (F_Q + B_Q) + sum_{s<=Q} B, with messages as stages."""
    work = instance.work(cuts)
    passes = [work.forward_ns[0] + work.backward_ns[0]]
    for x, message in enumerate(work.transfer_ns, 1):
        passes += [2 * message, work.forward_ns[x] + work.backward_ns[x]]
    return max(sum(passes[: q + 1]) + (instance.micro_batches - 1) * passes[q] for q in range(len(passes)))


def least_of(instance: Instance, allowed: list[Cuts], objective: Callable[[Instance, Cuts], int]) -> int:
    return min(objective(instance, cuts) for cuts in allowed)


def fits(instance: Instance, cuts: Cuts) -> bool:
    memory = instance.memory
    assert memory is not None
    stages = zip(Solution(cuts).spans(instance.sublayers), memory.limit_bytes.tolist(), strict=True)
    return all(
        memory.peak_bytes(first, last + 1, min(instance.micro_batches, instance.stages - x)) <= limit
        for x, ((first, last), limit) in enumerate(stages)
    )


def test_both_methods_are_least_by_their_own_objectives() -> None:
    solved = 0
    for seed in range(250):
        instance = random_partition(seed, sublayers=9)
        if not (allowed := layer_cuts(instance)):
            for method in ("piper", "dapple"):
                with refused("layers", re.compile(r"\d+ layers .*\d+ stages"), kind=Unsupported):
                    solve(instance, method)
            continue
        solved += 1
        piper, dapple = solve(instance, "piper"), solve(instance, "dapple")
        assert {piper.status, dapple.status} <= {"feasible", "optimal"}
        assert cuts_of(piper) in allowed and cuts_of(dapple) in allowed
        assert largest_tps(instance, cuts_of(piper)) == least_of(instance, allowed, largest_tps), seed
        assert longest_pivot(instance, cuts_of(dapple)) == least_of(instance, allowed, longest_pivot), seed
    assert solved >= 150


def test_piper_keeps_to_memory_and_the_others_do_not() -> None:
    seen = {"fits": 0, "none": 0, "blind": 0}
    for seed in range(250):
        instance = random_partition(seed, sublayers=9, memory=True)
        if not (allowed := layer_cuts(instance)):
            continue
        within = [cuts for cuts in allowed if fits(instance, cuts)]
        piper, dapple = solve(instance, "piper"), solve(instance, "dapple")
        if within:
            assert largest_tps(instance, cuts_of(piper)) == least_of(instance, within, largest_tps), seed
            seen["fits"] += 1
        else:
            reported = None if piper.status == "infeasible" else "Piper's search finds no stages of whole layers that fit"
            assert piper.objective is None and piper.message == reported
            seen["none"] += 1
        if dapple.objective is None and dapple.status != "infeasible":
            assert dapple.message is not None and "DAPPLE's search knows no memory" in dapple.message
            seen["blind"] += bool(within)
    assert min(seen.values()) >= 5, seen


def test_dapples_latency_is_below_the_simulated_time() -> None:
    """Without transfers L is the length of a path through the step."""
    for seed in range(200):
        instance = random_partition(seed, sublayers=7)
        if not instance.transfer_ns.any() and (allowed := layer_cuts(instance)):
            cuts = random.Random(seed).choice(allowed)
            assert longest_pivot(instance, cuts) <= evaluate(instance, Solution(cuts)).time_ns, seed


def transformer(blocks: int, stages: int, **given: object) -> Instance:
    """An embedding, blocks of attention and feed-forward, a head."""
    times = [1, *[7, 9] * blocks, 20]
    layers = [0, *(1 + block for block in range(blocks) for _ in range(2)), blocks + 1]
    return load(
        {
            "problem": "pipeline-partition",
            "version": 1,
            "forward_ns": times,
            "backward_ns": [3 * time for time in times],
            "transfer_ns": 2,
            "stages": stages,
            "micro_batches": 2 * stages,
            "layers": layers,
            **given,
        }
    )


@pytest.mark.parametrize(
    ("blocks", "stages", "cuts"),
    [(24, 4, (13, 25, 37)), (6, 4, (5, 9, 11)), (4, 1, ()), (5, 5, (3, 5, 7, 9))],
)
def test_megatron_counts_transformer_layers(blocks: int, stages: int, cuts: Cuts) -> None:
    """The embedding is with the first stage, the head with the last; the first stages are the longer ones."""
    assert cuts_of(solve(transformer(blocks, stages), "megatron")) == cuts


def test_megatron_counts_all_layers_where_none_has_two_parts() -> None:
    instance = transformer(3, 3, layers=list(range(8)))
    assert cuts_of(solve(instance, "megatron")) == (3, 6)
    with refused("layers", problem=("3 layers", "5 stages"), kind=Unsupported):
        solve(transformer(3, 5), "megatron")


def random_chain(seed: int, layers: int = 5, memory: bool = False) -> ReplicatedChain:
    instance = random_partition(seed, sublayers=layers, memory=memory)
    rng = random.Random(seed)
    gradients = [rng.randint(0, int(instance.forward_ns.max())) for _ in range(instance.sublayers)]
    return ReplicatedChain.of(instance, np.array(gradients, np.int64), by_layer=False)


def replicated(layers: int, devices: int) -> Iterator[Replicated]:
    """All pipelines on at most a given number of devices."""
    for stages in range(1, min(layers, devices) + 1):
        for replicas in product(range(1, devices + 1), repeat=stages):
            if sum(replicas) <= devices:
                yield from (Replicated(cuts, replicas) for cuts in combinations(range(1, layers), stages - 1))


def pipers_objective(chain: ReplicatedChain, plan: Replicated, micro_batches: int) -> int | None:
    """The largest TPS, in ns rounded up; None where the plan is outside its space, or its memory."""
    largest = 0
    if sum(plan.replicas) > micro_batches or any(micro_batches % d for d in plan.replicas):
        return None
    for x, ((first, end), d) in enumerate(zip(plan.spans(chain.layers), plan.replicas, strict=True)):
        own = int((chain.forward_ns + chain.backward_ns)[first:end].sum())
        moved = 2 * int(chain.moves[first]) + 2 * int(chain.moves[end])
        synchronised = 4 * (d - 1) * int(chain.gradient_ns[first:end].sum())
        largest = max(largest, -(-(micro_batches * (own + moved) + synchronised) // (micro_batches * d)))
        in_flight = ceil(sum(plan.replicas[x:]) / d)
        if chain.memory and chain.memory.peak_bytes(first, end, in_flight) > chain.memory.limit_bytes[0]:
            return None
    return largest


@pytest.mark.parametrize("memory", [False, True])
def test_piper_with_replicas_is_least_over_all_pipelines(memory: bool) -> None:
    fitting = 0
    for seed in range(80):
        chain = random_chain(seed, memory=memory)
        devices, micro_batches = 1 + seed % 4, (1, 2, 4, 6)[seed // 4 % 4]
        found = piper_plan(chain, devices, micro_batches)
        plans = list(replicated(chain.layers, devices))
        costs = [cost for plan in plans if (cost := pipers_objective(chain, plan, micro_batches)) is not None]
        if found is None:
            assert not costs, seed
            continue
        fitting += 1
        assert pipers_objective(chain, found, micro_batches) == min(costs), seed
        used = [sum(plan.replicas) for plan in plans if pipers_objective(chain, plan, micro_batches) == min(costs)]
        assert sum(found.replicas) == min(used), seed
    assert fitting >= 20


def dapples_parts(chain: ReplicatedChain, plan: Replicated) -> list[LatencyPart]:
    parts = []
    for x, ((first, end), d) in enumerate(zip(plan.spans(chain.layers), plan.replicas, strict=True)):
        if x:
            message = ceil(int(chain.moves[first]) / min(d, plan.replicas[x - 1]))
            parts.append(LatencyPart(message, message))
        forward, backward, gradient = (
            int(times[first:end].sum()) for times in (chain.forward_ns, chain.backward_ns, chain.gradient_ns)
        )
        parts.append(LatencyPart(-(-forward // d), -(-backward // d), reduced_ns(gradient, d)))
    return parts


def test_dapples_latency_by_hand() -> None:
    """Stages 2 + 3, 10 + 20, 4 + 5, 3 micro-batches. Paths: 5 + 10, 35 + 60, 44 + 18: the pivot is stage 1. T_w = 12, T_s = 60;
    all-reduces end at 1 + 3 + 20 after that in stage 0, 2 + 20 in stage 1, 40 in stage 2, whose last backward pass ends by the
    beginning of the pivot's."""
    parts = [LatencyPart(2, 3, 1), LatencyPart(10, 20, 2), LatencyPart(4, 5, 40)]
    assert latency_ns(parts, 3) == 12 + 60 + 40
    assert latency_ns([*parts[:2], LatencyPart(4, 5, 0)], 3) == 12 + 60 + 24
    assert latency_ns([*parts, LatencyPart(1, 1, 44)], 3) == 12 + 60 + 40  # 44 - 5 in stage 3


def test_dapples_search() -> None:
    """It uses all devices, meets every plan of one or two stages, and is never below the best of all plans."""
    exact = 0
    for seed in range(60):
        chain = random_chain(seed)
        devices, micro_batches = 1 + seed % 4, (1, 3, 8)[seed % 3]
        found = dapple_plan(chain, devices, micro_batches)
        assert sum(found.replicas) == devices
        costs = {
            plan: latency_ns(dapples_parts(chain, plan), micro_batches)
            for plan in replicated(chain.layers, devices)
            if sum(plan.replicas) == devices
        }
        assert costs[found] <= min(cost for plan, cost in costs.items() if len(plan.replicas) <= 2), seed
        exact += costs[found] == min(costs.values())
    assert exact >= 50


def test_autopipe_chooses_the_depth_by_simulated_time() -> None:
    depths = set()
    for seed in range(60):
        chain = random_chain(seed, layers=8, memory=seed % 2 == 1)
        devices, micro_batches = (1, 2, 4, 6)[seed % 4], (4, 12)[seed % 3 % 2]
        times = []
        for stages in range(1, min(devices, chain.layers) + 1):
            if devices % stages:
                continue
            d = devices // stages
            memory = chain.memory and chain.memory.with_limits(np.repeat(chain.memory.limit_bytes[:1], stages))
            times_ns = (chain.forward_ns, chain.backward_ns, chain.transfer_ns)
            nothing = np.zeros(chain.layers, np.int64)
            split = {"stages": stages, "micro_batches": ceil(micro_batches / d), "memory": memory}
            instance = Instance(*times_ns, np.arange(chain.layers), nothing, **split)
            planner = Planner(instance)
            planner.run()
            runs = [run(chain, Replicated(cuts, (d,) * stages), micro_batches, 1) for cuts in planner.by_time()]
            times += [next((one.time_ns for one in runs if one.fits), 2**62)]
        found = autopipe_plan(chain, devices, micro_batches)
        if found is None:
            assert min(times) == 2**62, seed
            continue
        assert run(chain, found, micro_batches, 1).time_ns == min(times), seed
        assert run(chain, found, micro_batches, 1).fits
        assert len(set(found.replicas)) == 1 and sum(found.replicas) == devices
        depths.add(len(found.replicas))
    assert depths >= {1, 2, 3}


def two_layers() -> ReplicatedChain:
    instance = load(
        {
            "problem": "pipeline-partition",
            "version": 1,
            "forward_ns": [12, 24],
            "backward_ns": [24, 48],
            "transfer_ns": 6,
            "stages": 1,
            "micro_batches": 1,
            "memory": {"limit_bytes": 100, "state_bytes": [10, 20], "kept_bytes": [4, 8], "workspace_bytes": [3, 9]},
        }
    )
    return ReplicatedChain.of(instance, np.array([5, 9]))


def test_devices_of_a_stage_share_the_rows() -> None:
    """One device and two, 4 rows: the second stage takes 12 and 24, its message 6, for stage 0 sends all rows. Stage 1 ends its
    first backward pass at 54, its second at 96, and its all-reduce of 9 before stage 0 ends."""
    found = run(two_layers(), Replicated((1,), (1, 2)), 2, 4)
    assert (found.work.forward_ns, found.work.backward_ns, found.work.transfer_ns) == ((12, 12), (24, 24), (6,))
    first = 12 + 6 + 12 + 24
    second = first + 6 + 12 + 24  # the message waits for the device
    assert found.time_ns == second + 6 + 24
    assert found.peak_bytes == (10 + 2 * 4 + 3, 20 + 1 * 4 + 5)
    assert found.fits
    # Three devices for four rows: the largest share is two rows.
    assert run(two_layers(), Replicated((1,), (1, 3)), 2, 4).work == found.work
    with pytest.raises(ValueError, match="a stage has 5 devices for the 4 rows"):
        run(two_layers(), Replicated((1,), (1, 5)), 2, 4)


def test_equal_stages_run_side_by_side() -> None:
    """Two pipelines of two stages take two micro-batches each, whole, and reduce half of the gradients twice."""
    found = run(two_layers(), Replicated((1,), (2, 2)), 4, 4)
    whole = run(two_layers(), Replicated((1,), (1, 1)), 2, 4)
    assert found.work == whole.work and found.peak_bytes == whole.peak_bytes == (10 + 2 * 4 + 3, 20 + 8 + 9)
    assert found.time_ns == whole.time_ns + 5
    alone = run(two_layers(), Replicated((), (4,)), 4, 1)
    assert alone.time_ns == 36 + 72 + ceil(2 * 3 * 14 / 4)
