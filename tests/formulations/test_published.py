"""The `code` cost model against the engine's own numbers, and the plan that its authors shipped."""

import json
from dataclasses import replace
from typing import Any

import pytest
from trainplan.formulations.pipeline import instance_file
from trainplan.formulations.pipeline import problem as pipeline
from trainplan.formulations.pipeline.problem import Solution
from trainplan.formulations.plan.strategy import parse_strategy
from trainplan.profiling.imports.galvatron_memory import Ends

from tests.helpers.published import GIB, MIB, NUMBERS, Json, bert, engine_options, invented, large, llama, llama_plan
from tests.helpers.refusals import refused
from trainplan.papers.galvatron_engine.costs import EngineCosts, EngineOptions, LoopPass
from trainplan.papers.galvatron_engine.instances import build, usable_bytes
from trainplan.papers.galvatron_engine.plans import read_plan
from trainplan.papers.galvatron_engine.problem import Instance, evaluate, even_partition, iteration_ns, load, violations

NAMES = ("stages", "micro_batches", "least_tp", "most_tp", "vocabulary_tp", "vocabulary_sp", "sharded")
PLAN: Json = {
    "pp_deg": 2,
    "tp_sizes_enc": "2,2,1,1,4,1",
    "tp_consecutive_flags": "1,1,1,1,1,1",
    "dp_types_enc": "0,1,1,0,0,1",
    "checkpoint": "0,1,0,0,0,1",
    "global_bsz": 16,
    "chunks": 2,
    "pp_division": "3,3",
    "default_dp_type": "zero2",
    "vtp": 2,
    "vsp": 0,
    "embed_sdp": 1,
}


def planned(case: Json) -> tuple[Instance, Solution]:
    instance = large(case["batch"], engine_options(case))
    choice = {name: case[name] for name in NAMES} | {"buffer": True}
    index = instance.provenance["choices"].index(choice)
    names = instance.configurations[index].tables.strategies
    partition = even_partition(instance.layers, case["stages"])
    return instance, Solution(index, partition, tuple(names.index(name) for name in case["layers"]))


@pytest.mark.parametrize("case", NUMBERS["costs"])
def test_costs_are_the_engines(case: Json) -> None:
    costs = EngineCosts(invented(), case["batch"], engine_options(case))
    for name, wanted in zip(case["layers"], case["layer_ns"], strict=True):
        assert costs.layer_ns(parse_strategy(name), case["stages"], case["micro_batches"]) == pytest.approx(wanted, abs=0.51)
    choice = LoopPass(**{name: case[name] for name in NAMES})
    assert costs.ends_ns(choice) == pytest.approx(case["ends_ns"], abs=0.51)


@pytest.mark.parametrize("case", NUMBERS["costs"])
def test_iteration_and_memory_of_random_plans_are_the_engines(case: Json) -> None:
    instance, solution = planned(case)
    found = evaluate(instance, solution)
    rounding = case["micro_batches"] * (instance.layers + 2)
    assert found.time_ns == pytest.approx(case["iteration_ns"], abs=rounding)
    for stage, wanted in zip(found.stages, case["stage_mib"], strict=True):
        below = wanted - stage.peak_bytes / MIB
        most = 0 if case["stages"] == 1 else stage.last - stage.first + 1
        assert 0 <= below <= most


def test_memory_is_held_back_above_20_gib() -> None:
    assert [usable_bytes(gib * GIB) // MIB for gib in (16, 20, 21, 36)] == [16384, 20480, 17204, 29492]


def test_iteration_time_by_hand() -> None:
    """Three stages, own times 10, 20, 30, synchronisation 1, 2, 33; ends 4 and 5."""
    instance = large(16, EngineOptions())
    given = replace(instance.configurations[0], stages=3, micro_batches=2, ends_ns=(4, 5))
    assert iteration_ns(given, [11, 22, 63], [1, 2, 33]) == 60 + 30 + 0
    assert iteration_ns(given, [11, 22, 75], [1, 2, 45]) == 60 + 30 + (45 - 5 - 30)
    assert iteration_ns(replace(given, micro_batches=8), [100, 22, 30], [0, 2, 0]) == max(150 + 7 * 30, 200 + 6 * 100)
    assert pipeline.iteration_ns(given, [11, 22, 63], [1, 2, 33]) == 30 + 96


def test_file_format_keeps_everything() -> None:
    instance, solution = planned(NUMBERS["costs"][0])
    again = load(json.loads(json.dumps(instance.to_dict())))
    assert again.digest == instance.digest
    assert evaluate(again, solution) == evaluate(instance, solution)
    record = instance.to_dict()
    with refused("configurations[0].ends_ns"):
        instance_file.load(record | {"problem": "pipeline"})


def test_transitions_count_in_no_final_cost() -> None:
    instance = large(16, EngineOptions())
    given = instance.configurations[0]
    assert given.tables.transitions_ns.max() > 0
    choice = tuple(l % len(given.tables.strategies) for l in range(instance.layers))
    own = [given.tables.time_ns[kind, s] for kind, s in zip(instance.layer_kinds, choice, strict=True)]
    assert evaluate(instance, Solution(0, (6,), choice)).stages[0].time_ns == sum(own)


def test_reads_a_plan() -> None:
    instance = large(16, EngineOptions())
    solution = read_plan(PLAN, instance)
    names = instance.configurations[solution.configuration].tables.strategies
    wanted = ["dp2-tp2", "sdp2-tp2-ckpt", "sdp4", "dp4", "tp4", "sdp4-ckpt"]
    assert [names[s] for s in solution.choice] == wanted
    assert solution.stages == (3, 3)
    assert not violations(instance, solution)


@pytest.mark.parametrize(
    ("changed", "reported"),
    [
        ({"global_bsz": 8}, ("global_bsz", 8, "16 samples")),
        ({"default_dp_type": "ddp"}, ("default_dp_type", "ddp")),
        ({"use_sp": "0,1,0,0,0,0"}, ("use_sp", "Ulysses")),
        ({"tp_sizes_enc": "2,2"}, ("tp_sizes_enc", "2,2", 6)),
        ({"chunks": 3}, ("", ("2 stages", "3 micro-batches"))),
        ({"pp_division": "6"}, ("pp_division", "'6'", 2)),
        ({"pp_deg": 3}, ("pp_deg", 3, 8)),
        ({"tp_sizes_enc": "3,2,1,1,4,1"}, ("tp_sizes_enc", 3, 4)),
        ({"pp_division": "2,3"}, ("pp_division", "2,3", 6)),
    ],
)
def test_a_plan_that_is_none_of_the_instance(changed: dict[str, Any], reported: tuple[Any, ...]) -> None:
    with refused(*reported, where="plan"):
        read_plan(PLAN | changed, large(16, EngineOptions()))


def test_asks_for_what_is_missing() -> None:
    profile = replace(invented(), measured={})
    with refused("files", "sp_time_*.json"):
        build(profile, 8 * GIB, 16, EngineOptions(measured_messages=True))
    with refused("batch", problem=3, fix=8):
        build(replace(profile, ends={name: Ends({1: 0.0}, {1: 0.0}) for name in profile.ends}), 8 * GIB, 3)


def test_the_shipped_plan_costs_what_the_engine_says() -> None:
    instance = build(llama(), 36 * GIB, 16, EngineOptions(measured_messages=True))
    solution = read_plan(llama_plan(), instance)
    found = evaluate(instance, solution)
    assert found.time_ns == pytest.approx(1_086_372_916.5, abs=40)
    assert found.peak_bytes == 29_385 * MIB
    assert not violations(instance, solution)


def test_real_profiles_are_read_as_the_engine_reads_them() -> None:
    profile = llama()
    assert profile.layer_ms == pytest.approx((3.8590169, 0.83298514))
    assert profile.ends_ms == pytest.approx((2.68032832, 2.35489924))
    assert profile.measured[2].line == pytest.approx((0.00249838, 0.03918276), rel=1e-5)
    assert profile.all_reduce_ms_per_mib(4, False) == pytest.approx(0.006417867342682027)
    assert bert().layer_ms == pytest.approx((1.84288008695, 0))
