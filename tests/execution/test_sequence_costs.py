"""The costs of sequence parallelism: the cost model `executed` against the simulations, in time and memory."""

import random

import numpy as np
import pytest
from trainplan.execution.analysis.memory.peak import memory_walk
from trainplan.execution.analysis.verify.checks import check
from trainplan.execution.analysis.verify.rank_class_checks import check_classes
from trainplan.execution.compile.compiler import compile_classes, compile_plan
from trainplan.execution.compile.reduced_plan import fold
from trainplan.execution.prediction.evaluate_plan import judge, predict_from_saved_costs
from trainplan.formulations.costs.sequential.communication import moved_bytes, shares_table
from trainplan.formulations.costs.sequential.cost_models import COST_MODELS, transition_ns, unit_costs
from trainplan.formulations.costs.sequential.primitives import collective
from trainplan.formulations.costs.sequential.stage_work import planned_work, samples_of
from trainplan.formulations.costs.sequential.sublayer_memory import unit_bytes
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy import parse_strategy
from trainplan.formulations.schedule.stage_memory import stage_peak
from trainplan.profiling.derived_costs import cost_of_pieces, shared_operators
from trainplan.profiling.models.sublayers import TokenShare

from tests.execution.test_classes import WIDE
from tests.execution.test_time_walk import layered_plan, passes_of, profile_of, simulated
from tests.helpers.mutations import KINDS, OF_ORDER, mutants, sharing_programs
from tests.helpers.plans import BERT, DROPPING, GPT2, LLAMA, UNTIED, plan_of, random_plan, random_sliced_plan, sharing_tokens
from tests.helpers.refusals import refused
from tests.helpers.sizes import some_and_all


def _alike_at_cuts(plan: Plan) -> Plan:
    """With both units at a cut laid out alike, as a message has one time for both ways."""
    units = list(plan.units)
    for stage in plan.stages[1:]:
        units[stage.first_unit] = units[stage.first_unit].laid_out(units[stage.first_unit - 1].strategy)
    return plan.changed(units=units)


@pytest.mark.parametrize("world", [2, 4, 8])
def test_steps_are_those_of_the_simulated_pipeline(world: int) -> None:
    """To the nanosecond, by the profile and by the costs that the plan carries."""
    rng, shared = random.Random(world), 0
    for _ in range(15):
        plan = _alike_at_cuts(sharing_tokens(rng, layered_plan(rng, world)))
        profile = profile_of(plan)
        judged = judge(plan, profile)
        known, step = simulated(plan, profile)
        assert judged.step_ns == step
        assert passes_of(judged, len(plan.stages)) == [[(e.task, e.start_ns) for e in events] for events in known.devices]
        assert predict_from_saved_costs(plan, judged.carried()).step_ns == step
        shared += any(unit.strategy.sequence_parallel for unit in plan.units)
    assert shared > 2


@pytest.mark.parametrize("world", [2, 4])
def test_one_stage_takes_the_sum_of_its_work(world: int) -> None:
    rng = random.Random(3)
    for _ in range(20):
        plan = sharing_tokens(rng, random_plan(rng, world, stages=1))
        profile, m = profile_of(plan), plan.batch.micro_batches
        planned = planned_work(plan, [profile])
        whole = m * (planned.work.forward_ns[0] + planned.work.backward_ns[0]) + planned.syncs_ns[0]
        assert judge(plan, profile).step_ns == whole


@pytest.mark.parametrize("count", some_and_all(40, 300, 120))
def test_stages_never_need_more_than_the_model_says(count: int) -> None:
    ratios = []
    for seed in range(count):
        rng = random.Random(seed)
        model = rng.choice([GPT2, UNTIED, BERT, LLAMA, *DROPPING]).with_fields(vocab_size=rng.choice([64, 400]))
        plan = sharing_tokens(rng, random_plan(rng, rng.choice([2, 4, 8]), model))
        profile, strategies, samples, count = profile_of(plan), plan.strategies(), samples_of(plan), len(plan.stages)
        for number, stage in enumerate(plan.stages):
            units = range(stage.first_unit, stage.last_unit + 1)
            once = shares_table(strategies, units)
            sizes = [unit_bytes(profile, True, profile.units[u].sublayer, strategies[u], samples, once) for u in units]
            kept, work, states = np.array(sizes).T
            parts = plan.batch.micro_batches
            in_flight = parts if plan.schedule == "gpipe" else min(parts, count - number)
            peak, _ = stage_peak(states, kept, work, in_flight)
            for program in compile_plan(plan, ranks=stage.ranks):
                ratios.append(peak / memory_walk(program).peak_bytes)
                assert ratios[-1] >= 1, (seed, program.rank)
    assert sorted(ratios)[len(ratios) // 2] < 1.1


def test_shared_tokens_take_less_time_and_memory_and_move_as_much() -> None:
    """A reduce-scatter and an all-gather move what an all-reduce does; what entered is gathered once more."""
    profile = profile_of(plan_of(GPT2, ["tp2"] * len(GPT2.units), 2, 8))
    whole, shared = parse_strategy("tp2"), parse_strategy("tp2-sp")
    executed = COST_MODELS["executed"]
    for kind in ("attention", "ffn"):
        a, b = (unit_costs(profile, executed, kind, s, 8) for s in (whole, shared))
        assert b.forward_bytes < a.forward_bytes
        size = 8 * profile.shapes[kind].output_bytes
        again = collective(profile, "all-gather", size, (0, 1))
        reduced, scattered = (collective(profile, way, size, (0, 1)) for way in ("all-reduce", "reduce-scatter"))
        entry, spread = profile.cost(kind, 2, 8), cost_of_pieces(profile, kind, 2, 8, shared=True)
        computed = sum(e.forward_ns.value + e.backward_ns.value for e in (spread,))
        assert computed < entry.forward_ns.value + entry.backward_ns.value
        before = entry.forward_ns.value + entry.backward_ns.value + 2 * reduced
        assert b.time_ns - a.time_ns == computed + 3 * again + 2 * scattered - before
    size = moved_bytes(profile, "ffn")[1]
    assert transition_ns(profile, executed, shared, shared, 8, size) == 0
    gathered = collective(profile, "all-gather", 8 * size, (0, 1))
    assert transition_ns(profile, executed, shared, whole, 8, size) == gathered
    assert transition_ns(profile, executed, whole, shared, 8, size) == gathered
    with refused("model"):
        cost_of_pieces(profile.changed(model=None), "ffn", 2, 8, shared=True)


def test_kernels_of_the_pieces_are_those_of_the_whole() -> None:
    for model in (GPT2, BERT, LLAMA):
        for part in model.sublayers.values():
            share = TokenShare(part, 2)
            whole, pieces = part.operators(4, 2), shared_operators(share, 4)
            products = [[o.flops for o in operators if o.m] for operators in (whole, pieces)]
            assert products[0] == products[1] or (part.kind == "head" and model is BERT), "but a transform's"
            assert len(pieces) == len(whole)
            apart = sum(o.touched_bytes for o in whole) - sum(o.touched_bytes for o in pieces)
            assert (apart > 0) == (part.kind != "embedding")


@pytest.mark.parametrize("world", [8, 32])
def test_classes_of_equal_ranks_are_sound_and_stand_for_all(world: int) -> None:
    rng = random.Random(world)
    for number in range(12):
        make = (random_plan, random_sliced_plan)[number % 2]
        plan = sharing_tokens(rng, make(rng, world, WIDE if world > 8 else None))
        classes = compile_classes(plan)
        assert check_classes(classes) == []
        if world == 8:
            whole = compile_plan(plan)
            assert all(device_class.program == whole[device_class.ranks[0]] for device_class in classes)
            assert whole == [compile_plan(plan, ranks=[rank])[0] for rank in range(world)]


def test_plans_are_folded_to_smaller_ones_with_the_same_re_layouts_of_tokens() -> None:
    """Between units that share tokens along levels of other places, and along the same one under other samples."""
    for texts in (["dp8-tp2-sp", "tp2-dp8-sp"], ["dp8-tp2-sp", "dp8-tp2"], ["dp4-tp4-sp", "dp8-tp2-sp", "sdp4-tp4-sp"]):
        strategies = [texts[index % len(texts)] for index in range(len(GPT2.units))]
        plan = plan_of(GPT2, strategies, 16, 16, 2)
        assert fold(plan, plan.planned_model()).folded.world < 16
        assert check_classes(compile_classes(plan)) == []


def test_100_mutations_that_must_be_seen() -> None:
    kinds = [kind for kind in KINDS if kind.split(",")[0] not in OF_ORDER]
    for mutant in mutants(random.Random(100), 100, kinds, sharing_programs):
        faults = check(mutant.programs)
        assert faults and faults[0].startswith("rank "), mutant[:3]
