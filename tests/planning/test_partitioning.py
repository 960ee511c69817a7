"""From a model and a cluster to a pipeline-partition instance and a plan, and from a plan back to the same times."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from trainplan.formulations.costs.sequential.communication import shares_table
from trainplan.formulations.costs.sequential.cost_models import COST_MODELS, unit_costs
from trainplan.formulations.costs.sequential.stage_work import planned_work, samples_of
from trainplan.formulations.pipeline_partition.degrees import PipelineDegrees, degrees_of, possible_degrees
from trainplan.formulations.pipeline_partition.problem import Solution, evaluate, load_solution, violations
from trainplan.formulations.plan.plan import Plan, load_plan
from trainplan.formulations.plan.strategy import Strategy
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.costs import collective_ns
from trainplan.profiling.models.model import load_model
from trainplan.profiling.profile_sources import obtain_profile
from trainplan.profiling.profiles import Profile

import trainplan as tp
from tests.helpers.refusals import refused

PAPER: dict[str, Any] = {"model": "gpt2-345m", "cluster": "autopipe-3090-16", "dtype": "float32"}
SMALL: dict[str, Any] = {"model": "gpt2", "cluster": "cpu-4", "sequence": 64}


def profile_of(rows: int, degree: int = 1) -> Profile:
    cluster = load_cluster(PAPER["cluster"])
    return obtain_profile(
        load_model(PAPER["model"], dtype=PAPER["dtype"]).fused(), cluster, [rows], [degree], devices=cluster.devices
    )


def built(**options: Any) -> Any:
    return tp.build("pipeline-partition", **(PAPER | {"batch": 64, "pipeline": 4, "micro_batches": 8} | options))


def test_sub_layers_and_their_names() -> None:
    instance = built()
    assert (instance.sublayers, instance.stages, instance.micro_batches) == (50, 4, 8)
    assert instance.names[:4] == ("embedding", "block0.attention", "block0.ffn", "block1.attention")
    assert instance.layers.tolist() == [0, *(layer for layer in range(1, 25) for _ in range(2)), 25]
    assert instance.provenance["dp"] == 4 and instance.provenance["mbs"] == 2


def test_times_are_those_of_one_micro_batch_without_the_end_of_the_step() -> None:
    instance, profile = built(), profile_of(2)
    for index, unit in enumerate(profile.units):
        found = unit_costs(profile, COST_MODELS["executed"], unit.sublayer, Strategy((("dp", 4),)), 8)
        entry = profile.cost(unit.sublayer, 1, 2)
        assert instance.forward_ns[index] == entry.forward_ns.value
        assert instance.backward_ns[index] == entry.backward_ns.value
        whole = instance.forward_ns[index] + instance.backward_ns[index]
        assert whole == pytest.approx(found.time_ns - found.sync_ns, abs=2)


def test_a_message_is_one_way_over_the_slowest_link_between_stages() -> None:
    network, message = load_cluster(PAPER["cluster"]).network, 2 * 1024 * 1024 * 4
    apart, near = (round(collective_ns(network, "p2p", message, pair)) for pair in ((0, 4), (0, 1)))
    assert near < apart
    assert set(built().transfer_ns.tolist()) == {apart}
    assert set(built(pipeline=4, dp=1, batch=16).transfer_ns.tolist()) == {near}
    assert set(built(pipeline=12, dp=1, batch=16).transfer_ns.tolist()) == {apart}, "12 devices are on three nodes"


def test_recomputation_moves_time_to_the_backward_pass_and_keeps_inputs_only() -> None:
    kept, again = built(), built(recompute=True)
    profile = profile_of(2)
    for index, unit in enumerate(profile.units):
        entry = profile.cost(unit.sublayer, 1, 2)
        assert again.forward_ns[index] == entry.forward_without_graph_ns.value
        assert again.backward_ns[index] == kept.backward_ns[index] + entry.forward_ns.value
    inputs = 2 * 1024 * 1024 * 4
    assert set(again.memory.kept_bytes[1:-1].tolist()) == {inputs}
    assert (kept.memory.kept_bytes[1:-1] > inputs).all()
    assert again.memory.state_bytes.tolist() == kept.memory.state_bytes.tolist()


def test_tensor_parallelism_divides_states_and_adds_collectives() -> None:
    one, two = built(), built(tp=2)
    assert two.provenance["dp"] == 2 and two.provenance["mbs"] == 4
    assert (two.memory.state_bytes < 0.6 * one.memory.state_bytes).all()
    alone = built(tp=2, dp=1, batch=16)
    profile = profile_of(2, 2)
    for index in (1, 2):
        entry = profile.cost(profile.units[index].sublayer, 2, 2)
        moved = collective_ns(profile.network, "all-reduce", 2 * 1024 * 1024 * 4, (0, 1))
        assert alone.forward_ns[index] == pytest.approx(entry.forward_ns.value + moved, abs=2)
        assert alone.backward_ns[index] >= round(entry.backward_ns.value + moved) - 2


def test_a_profile_stands_in_for_model_and_cluster() -> None:
    found = tp.build("pipeline-partition", profile=profile_of(2), batch=64, pipeline=4, micro_batches=8)
    assert found.digest == built().digest


def test_memory_is_the_clusters_unless_given_or_ignored() -> None:
    assert set(built().memory.limit_bytes.tolist()) == {24 * 2**30}
    assert set(built(memory="8GiB").memory.limit_bytes.tolist()) == {8 * 2**30}
    assert built(ignore_memory=True).memory is None


def test_models_that_do_not_run_are_cut_all_the_same() -> None:
    instance = built(model="t5-large-32", dtype="float16")
    assert instance.stages == 4 and tp.solve(instance, "algorithm-1").status == "feasible"


def test_models_that_do_not_run_are_planned_without_what_programs_say() -> None:
    options: dict[str, Any] = {"cluster": PAPER["cluster"], "batch": 64, "pipeline": 4, "method": "algorithm-1"}
    found = tp.partition(model="t5-large-32", **options)
    assert found.plan is not None and found.plan.claim is not None
    assert (found.plan.predicted, found.walk_bytes) == (None, ())
    half = tp.partition(model=PAPER["model"], dtype="float16", **options).plan
    assert half is not None and half.predicted is not None
    for plan, refusal in (
        (found.plan, ("model.config.model_type", "t5", ("gpt2", "bert", "llama"))),
        (half, ("model.dtype", "float16", "--dtype float32")),
    ):
        with refused(*refusal, where="plan"):
            tp.run(plan)


@pytest.mark.parametrize(
    "options",
    [
        {"pipeline": 4, "micro_batches": 8},
        {"pipeline": 4, "micro_batches": 8, "sliced": 0},
        {"pipeline": 2, "micro_batches": 4, "tp": 2, "recompute": True},
        {"pipeline": 4, "micro_batches": 8, "dp": 1, "tp": 4},
    ],
)
def test_a_plan_takes_what_its_instance_says(options: dict[str, Any]) -> None:
    found = tp.partition(**PAPER, batch=128, method="autopipe", **options)
    plan, instance = found.plan, found.instance
    assert plan is not None and found.result.solution is not None
    cuts = load_solution(found.result.solution).cuts
    claimed = evaluate(instance, Solution(cuts, plan.sliced))
    [profile] = found.request.obtained
    planned = planned_work(plan, [profile] * len(plan.stages))
    assert planned.work == instance.work(cuts)
    assert planned.syncs_ns == instance.syncs_ns(cuts)
    again = tp.simulate(plan, cluster=PAPER["cluster"])
    assert again.timeline == claimed.timeline and again.sliced == found.answer.solution.sliced
    assert again.timeline.step_ns(again.syncs_ns) == claimed.step_ns == plan.claim.objective_ns
    assert again.step_ns == plan.predicted.step_ns
    assert [(s.first_unit, s.last_unit) for s in plan.stages] == Solution(cuts).spans(50)
    peaks = [stage.peak_bytes or 0 for stage in claimed.stages]
    assert max(found.walk_bytes) == plan.predicted.most_bytes <= max(peaks) <= plan.memory_bytes
    if options.get("sliced") == 0:
        assert (plan.sliced, claimed.time_ns) == (0, found.result.objective)
    else:
        assert plan.sliced > 0 and claimed.time_ns < found.result.objective


@pytest.mark.parametrize("options", [{"space": "full"}, {"space": "dp+tp", "by_unit": True}, {"memory": "850MiB"}])
def test_one_stage_takes_what_the_plan_was_costed_at(options: dict[str, Any]) -> None:
    """Re-layouts, sharding and recomputation included: m micro-batches one after the other, and the end of the step.

    Where strategies differ, costs of units count a tied table twice; a plan whose two ends are alike has it once, and takes
    less."""
    untied = load_model(SMALL["model"], SMALL["sequence"], "float32").with_fields(tie_word_embeddings=False)
    for model in (SMALL["model"], untied):
        planned = tp.plan(**(SMALL | {"model": model}), batch=16, pipeline=1, micro_batches=2, **options)
        assert planned.plan is not None
        found = tp.simulate(planned.plan, cluster=SMALL["cluster"])
        step, claimed = found.timeline.step_ns(found.syncs_ns), planned.plan.claim.objective_ns
        once = model is not untied and shares_table(planned.plan.strategies(), range(len(planned.plan.units)))
        assert 0.9 * claimed < step <= claimed if once else step == pytest.approx(claimed, abs=4 * len(planned.plan.units))
        assert found.step_ns == planned.plan.predicted.step_ns


def test_uneven_shares_take_the_busiest_pipeline_and_placement_its_kinds() -> None:
    mixed: dict[str, Any] = {"model": "gpt2-345m", "dtype": "float32", "cluster": "amp-heterogeneous-16"}
    found = tp.place(**mixed, batch=32, method="amp", uneven_shares=True, ignore_memory=True)
    assert found.plan is not None and samples_of(found.plan) == found.plan.batch.global_samples // sum(
        found.plan.batch.shares or [found.plan.batch.micro_batches]
    ) * len(found.plan.batch.shares or [0])
    step = tp.simulate(found.plan, cluster=mixed["cluster"])
    assert step.micro_batches == max(found.plan.batch.shares or [found.plan.batch.micro_batches])
    kinds = [node.kind for node in load_cluster(mixed["cluster"]).nodes for _ in range(node.count * node.devices)]
    slow = found.plan.changed(placement=list(reversed(range(16))))
    other = tp.simulate(slow, cluster=mixed["cluster"])
    assert len(set(kinds)) == 2 and other.timeline.work != step.timeline.work


def test_all_depths_are_tried_and_the_shortest_step_wins() -> None:
    found = tp.partition(**PAPER, batch=64, micro_batches=4, method="algorithm-1").answer
    depths = [row["pipeline"] for row in found.alternatives]
    assert sorted(depths) == [1, 2, 4, 8, 16]
    steps = [row["step_ns"] for row in found.alternatives]
    assert steps == sorted(steps) and found.objective_ns == steps[0]
    alone = [tp.partition(**PAPER, batch=64, micro_batches=4, pipeline=p, method="algorithm-1").answer for p in depths]
    assert found.objective_ns == min(answer.objective_ns for answer in alone if answer.objective_ns is not None)
    for answer, row in zip(alone, found.alternatives, strict=True):
        sliced, longer = answer.solution.sliced, row["step_ns"]
        assert answer.objective_ns == longer or (row["sliced"] == 0 < sliced and answer.objective_ns < longer)
    numbers = tp.partition(**PAPER, batch=64, pipeline=8, method="algorithm-1").answer.alternatives
    assert sorted(row["micro_batches"] for row in numbers) == [1, 2, 4, 8, 16, 32]


def test_the_step_ends_with_its_slowest_stage() -> None:
    found = tp.partition(**PAPER, batch=64, pipeline=4, micro_batches=4, method="algorithm-1")
    timeline = evaluate(found.instance, found.answer.solution).timeline
    syncs = found.instance.syncs_ns((10, 20, 30))
    assert len(syncs) == 4 and min(syncs) > 0
    ends = [events[-1].end_ns + sync for events, sync in zip(timeline.devices, syncs, strict=True)]
    assert timeline.step_ns(syncs) == max(ends) > timeline.time_ns


def test_exact_cuts_are_certified() -> None:
    found = tp.partition(**PAPER, batch=128, pipeline=4, micro_batches=8, sliced=0)
    assert found.result.status == "optimal" and found.plan is not None and found.plan.claim is not None
    claim = found.plan.claim
    assert claim.bound_ns is not None and found.result.bound < claim.bound_ns <= claim.objective_ns
    heuristic = tp.partition(**PAPER, batch=128, pipeline=4, micro_batches=8, sliced=0, method="autopipe")
    assert claim.bound_ns <= heuristic.answer.objective_ns
    sliced = tp.partition(**PAPER, batch=128, pipeline=4, micro_batches=8)
    assert sliced.answer.bound_ns <= sliced.answer.objective_ns < claim.objective_ns


def test_what_does_not_fit_says_what_would_do() -> None:
    found = tp.partition(**PAPER, batch=64, pipeline=4, micro_batches=8, memory="1GiB")
    assert found.plan is None and found.result.status == "infeasible" and found.result.reason is not None
    enough = found.result.reason.least_memory_bytes
    assert tp.partition(**PAPER, batch=64, pipeline=4, micro_batches=8, memory=enough).plan is not None
    free = tp.partition(**PAPER, batch=64, pipeline=4, micro_batches=8, memory="1GiB", ignore_memory=True)
    assert free.plan is not None and free.result.status == "optimal"


def test_depths_and_numbers_to_try() -> None:
    assert degrees_of(16, 4, 8) == PipelineDegrees(4, 4, 1, 8)
    assert degrees_of(16, 12, None, 1) == PipelineDegrees(12, 1, 1, 1)
    assert [one.pp for one in possible_degrees(12, 50, 12, None, 1, None, None)] == [3, 6, 12], "dp 12, 6 and 3 are no powers"
    assert [one.pp for one in possible_degrees(8, 50, 8, None, 1, 2, None)] == [1, 2, 3, 4]
    for devices, options in ((16, (3,)), (16, (17,)), (16, (0,)), (16, (4, 0)), (16, (4, 1, 5)), (16, (1, 1, None, 3))):
        with pytest.raises(InputError):
            degrees_of(devices, *options)


def instance_of(stages: int = 4, micro_batches: int = 8) -> Any:
    times = {"forward_ns": [3, 4, 5, 6, 7, 8, 9, 10], "backward_ns": [8, 7, 9, 11, 12, 13, 14, 15], "transfer_ns": 2}
    shape = {"stages": stages, "micro_batches": micro_batches}
    return tp.load({"problem": "pipeline-partition", "version": 1, **times, **shape})


def test_simulating_an_instance() -> None:
    instance = instance_of()
    result = tp.solve(instance, "algorithm-1")
    found = tp.simulate(instance, solution=result)
    assert found.timeline.time_ns == found.step_ns == result.objective
    assert found.to_dict()["iteration_ns"] == result.objective
    assert tp.simulate(instance, solution=result.solution["cuts"]).timeline == found.timeline
    assert tp.simulate(instance, method="algorithm-1").timeline == found.timeline
    assert tp.simulate(instance, solution=result, schedule="gpipe").in_flight == (8, 8, 8, 8)
    assert found.in_flight == (4, 3, 2, 1)
    assert tp.simulate(instance, solution=result, sliced=2).timeline.startup_ns < found.timeline.startup_ns
    chunked = tp.simulate(instance, schedule="interleaved-1f1b", chunks=2)
    assert chunked.timeline.work.stages == 8 and len(chunked.timeline.devices) == 4
    assert chunked.stages == tuple(f"sub-layer {index}" for index in range(8))
    assert tp.simulate(instance, schedule="interleaved-1f1b").timeline.work.stages == 4


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"schedule": "zigzag"}, ("schedule", "zigzag", ("1f1b", "gpipe", "interleaved-1f1b"))),
        ({"chunks": 0}, ("chunks", 0, 1)),
        ({"chunks": 2}, ("chunks", 2, "--schedule interleaved-1f1b")),
        ({"chunks": 3, "schedule": "interleaved-1f1b"}, ("chunks", 3, 2)),
        ({"sliced": 4}, ("sliced", 4, (0, 3))),
        ({"sliced": -1}, ("sliced", -1, (0, 3))),
        ({"sliced": 1, "schedule": "gpipe"}, ("sliced", 1, "gpipe")),
        ({"solution": [1, 2]}, ("cuts", "[1, 2]", (3, 1, 7))),
        ({"solution": [3, 2, 1]}, ("cuts", "[3, 2, 1]", (3, 1, 7))),
        ({"solution": [1, 2, 3], "method": "exact"}, ("method", "exact")),
        ({"cluster": "cpu-4"}, ("cluster", (), "instance")),
    ],
)
def test_bad_input_of_simulate(options: dict[str, Any], refusal: tuple[Any, ...]) -> None:
    with refused(*refusal):
        tp.simulate(instance_of(), **({} if "solution" in options else {"solution": [2, 4, 6]}) | options)


def test_cuts_between_layers_only() -> None:
    options = {**PAPER, "batch": 64, "micro_batches": 8, "sliced": 0, "objective": "iteration"}
    free, whole = (tp.partition(**options, pipeline=6, dp=2, by_unit=by_unit) for by_unit in (True, False))
    assert free.plan is not None and whole.plan is not None
    layers = [unit.layer for unit in whole.plan.planned_model().units]
    within = [[layers[s.first_unit - 1] == layers[s.first_unit] for s in found.plan.stages[1:]] for found in (free, whole)]
    assert any(within[0]) and not any(within[1])
    cuts = tuple(stage.first_unit for stage in whole.plan.stages[1:])
    claimed = evaluate(built(pipeline=6, dp=2), Solution(cuts))
    assert free.result.objective < whole.result.objective == claimed.time_ns
    timeline = tp.simulate(whole.plan).timeline  # its messages go over the links between its own stages
    assert (timeline.work.forward_ns, timeline.work.backward_ns) == (claimed.work.forward_ns, claimed.work.backward_ns)
    assert timeline.time_ns <= claimed.time_ns
    whole = tp.partition(**options, pipeline=4, by_unit=False)
    instance = built()
    least = min(
        evaluate(instance, Solution(cuts)).time_ns
        for cuts in combinations(instance.layer_starts[1:].tolist(), 3)
        if not violations(instance, Solution(cuts))
    )
    assert whole.result.objective == least


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({"batch": -4}, ("batch", -4, (1, 1048576))),
        ({"batch": 0}, ("batch", 0, (1, 1048576))),
        ({"time_limit": -1}, ("time_limit", -1, 10)),
        ({"dp": 5}, ("dp", 5, (4, 16))),
        ({"dp": 3}, ("dp", 3, 2)),
        ({"batch": 6}, ("batch", 6, 4)),
        ({"pipeline": 30, "by_unit": False, "dp": 1}, ("pipeline", 30, 16)),
    ],
)
def test_what_cannot_be_partitioned_is_reported(changed: dict[str, Any], refusal: tuple[Any, ...]) -> None:
    with refused(*refusal):
        tp.partition(**{**PAPER, "batch": 64, "pipeline": 4, **changed})


def test_the_slicer_says_how_many() -> None:
    instance = instance_of(micro_batches=8)
    least, whole = tp.simulate(instance, sliced="least"), tp.simulate(instance)
    most = tp.simulate(instance, sliced=instance.stages - 1)
    assert least.sliced > 0 and least.timeline.time_ns == most.timeline.time_ns < whole.timeline.time_ns
    assert least.timeline.time_ns < tp.simulate(instance, sliced=least.sliced - 1).timeline.time_ns
    assert tp.simulate(instance, sliced="algorithm-2").sliced >= least.sliced
    assert tp.simulate(instance, sliced="2").sliced == 2
    with refused("sliced", problem="some", fix="algorithm-2"):
        tp.simulate(instance, sliced="some")


def test_interleaving_needs_groups_of_micro_batches() -> None:
    with refused("schedule", problem=("interleaved-1f1b", 6), fix=4):
        tp.simulate(instance_of(micro_batches=6), schedule="interleaved-1f1b", chunks=2)


def plan_of(**options: Any) -> Plan:
    found = tp.partition(**SMALL, batch=16, method="autopipe", **({"pipeline": 2, "micro_batches": 4} | options)).plan
    assert found is not None
    return found


def test_plans_carry_their_stages_times() -> None:
    """For every command that makes plans: simulated without a cluster, they take what was planned."""
    made = plan_of()
    assert made.predicted is not None
    assert tp.simulate(made).step_ns == tp.simulate(made, cluster=SMALL["cluster"]).step_ns == made.predicted.step_ns
    placed = tp.place(model="gpt2", dtype="float32", cluster="amp-heterogeneous-16", batch=16).plan
    assert placed is not None
    alone, anew = tp.simulate(placed), tp.simulate(placed, cluster="amp-heterogeneous-16")
    assert alone.timeline == anew.timeline and alone.syncs_ns == anew.syncs_ns
    planned = tp.plan(model="gpt2", cluster="cpu-4", batch=8, sequence=64, pipeline=2, micro_batches=4).plan
    assert planned is not None
    assert tp.simulate(planned).timeline == tp.simulate(planned, cluster="cpu-4").timeline


def test_bad_input_of_simulating_a_plan() -> None:
    plan = plan_of()
    assert plan.predicted is not None
    old = plan.changed(predicted=plan.predicted.changed(stages=None, durations=None))
    with refused("cluster", fix="--profile"):
        tp.simulate(old)
    with refused("predicted.stages", problem=1, fix=2):
        load_plan(plan.model_dump() | {"predicted": plan.predicted.model_dump() | {"stages": plan.predicted.stages[:1]}})
    for options, refusal in (
        ({"cluster": "cpu-4", "solution": [3]}, ("solution",)),
        ({"cluster": "cpu-4", "method": "exact"}, ("method",)),
        ({"cluster": "cpu-4", "schedule": "interleaved-1f1b"}, ("schedule", "interleaved-1f1b", ("1f1b", "gpipe"))),
    ):
        with refused(*refusal):
            tp.simulate(plan, **options)
    wide = tp.partition(**PAPER, batch=16, pipeline=8, micro_batches=1, method="autopipe").plan
    with refused("cluster", problem=4, fix=16):
        tp.simulate(wide, cluster="cpu-4")


def test_a_plan_keeps_its_schedule_unless_another_is_requested() -> None:
    plan = plan_of()
    assert plan.sliced == 1
    assert tp.simulate(plan, cluster="cpu-4").sliced == 1
    assert tp.simulate(plan, cluster="cpu-4", sliced=0).sliced == 0
    other = tp.simulate(plan, cluster="cpu-4", schedule="gpipe")
    assert (other.schedule, other.sliced, other.in_flight) == ("gpipe", 0, (4, 4))


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"pipeline": 3}, ("pipeline", 3, (1, 2, 4, 8, 16, "--dp"))),
        ({"pipeline": 40}, ("pipeline", 40, 16)),
        ({"batch": 63}, ("batch", 63, 4)),
        ({"micro_batches": 3}, ("micro_batches", 3, 16)),
        ({"tp": 3}, ("tp", 3, 16)),
        ({"sliced": 9}, ("sliced", 9, 3)),
        ({"sliced": 1, "micro_batches": 16}, ("sliced", 1, "stage")),
        ({"batch": 0}, ("batch", 0, (1, 1048576))),
    ],
)
def test_bad_input_of_partition(options: dict[str, Any], refusal: tuple[Any, ...]) -> None:
    with refused(*refusal):
        tp.partition(**(PAPER | {"batch": 64, "pipeline": 4, "micro_batches": 8} | options))
