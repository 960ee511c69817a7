"""The time simulation against the closed forms and simulators of the problems, to the nanosecond, and against itself."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from trainplan.execution.analysis.memory.peak import BACKENDS
from trainplan.execution.analysis.timing.measured_costs import MeasuredCosts
from trainplan.execution.analysis.timing.profiled_costs import ProfiledCosts
from trainplan.execution.analysis.timing.simulate import time_walk
from trainplan.execution.compile.compiler import compile_plan
from trainplan.execution.instructions import Op
from trainplan.execution.prediction import compiled_plan
from trainplan.execution.prediction.evaluate_plan import PlanPrediction, judge, predict_from_costs, predict_from_saved_costs
from trainplan.execution.program import Instruction, Program
from trainplan.formulations.costs.sequential.stage_work import planned_work
from trainplan.formulations.costs.sequential.sublayer_time import unit_work
from trainplan.formulations.memory_switches import costs as switch_costs
from trainplan.formulations.memory_switches.problem import Solution
from trainplan.formulations.memory_switches.problem import load as load_switches
from trainplan.formulations.plan.plan import Plan, load_plan
from trainplan.formulations.plan.strategy import decision_tree
from trainplan.formulations.schedule import simulate
from trainplan.formulations.schedule.orders import Pass, Stuck, gpipe, most_sliced, one_f_one_b
from trainplan.formulations.schedule.simulate import Timeline
from trainplan.profiling.clusters.cluster import load_cluster
from trainplan.profiling.clusters.network import Island, Network
from trainplan.profiling.models.model import Model
from trainplan.profiling.profile_sources import obtain_profile
from trainplan.profiling.profiles import Number, Profile

from tests.helpers.plans import (
    BERT,
    GPT2,
    LLAMA,
    UNTIED,
    plan_of,
    random_plan,
    random_sliced_plan,
    random_uneven_plan,
    with_zero,
)
from tests.helpers.refusals import refused
from tests.helpers.sizes import first_and_others
from tests.helpers.switch_instances import simulated_step
from tests.helpers.switch_plans import random_switch_plan

CPU = load_cluster("cpu-4")
# Vocabularies that can be split evenly, so that all ranks of a stage have equal shards; no tied matrix, and one.
EVEN = [model.with_fields(vocab_size=64) for model in (UNTIED, BERT.with_fields(tie_word_embeddings=False), LLAMA)]
TIED = GPT2.with_fields(vocab_size=64)


def profile_of(plan: Plan) -> Profile:
    """Estimated for all shapes of the plan, on 64 devices with one link."""
    samples = plan.batch.global_samples // sum(plan.batch.shares or [plan.batch.micro_batches]) * len(plan.batch.shares or [1])
    found = obtain_profile(plan.planned_model(), CPU, [samples], [plan.stage_sizes[0]], devices=4)
    return found.changed(network=Network(islands=[Island(devices=64, bandwidth_bytes_per_s=3.3e9, latency_ns=977)]))


def layered_plan(rng: random.Random, world: int, sliced: bool = False) -> Plan:
    """Any cuts, schedule and strategies; both units at a cut are laid out alike, for a message has one time for both ways."""
    model = rng.choice(EVEN)
    stages = rng.choice([p for p in (1, 2, 4) if (2 if sliced else 1) <= p <= min(world, len(model.units))])
    size, units = world // stages, len(model.units)
    cuts = sorted(rng.sample(range(1, units), stages - 1))
    tree = [s for s in decision_tree(size, takeaway3=False) if s.degree("tp") in model.tp_degrees(size)]
    # A half gathers a sharded unit's parameters anew, where AutoPipe's model halves the time of the whole pass.
    chosen = [rng.choice([s for s in tree if not sliced or s.degree("sdp") == 1]) for _ in range(units)]
    for cut in cuts:
        chosen[cut] = chosen[cut - 1]
    chosen = [replace(s, zero=rng.choice([1, 2, 3])) if s.degree("sdp") > 1 else s for s in chosen]
    micro_batches = rng.choice([1, 2, 3, 5, 8])
    samples = micro_batches * size * rng.choice([2, 4])
    halves = rng.randint(1, most_sliced(stages, micro_batches)) if sliced else 0
    schedule = "1f1b" if sliced else rng.choice(["1f1b", "gpipe"])
    return plan_of(model, list(map(str, chosen)), world, samples, micro_batches, cuts, schedule, sliced=halves)


def simulated(plan: Plan, profile: Profile) -> tuple[Timeline, int]:
    """The timeline of the plan's stage times, and the step: reductions and optimizers after each stage's last pass."""
    planned, m, count = planned_work(plan, [profile] * len(plan.stages)), plan.batch.micro_batches, len(plan.stages)
    orders = gpipe(count, m) if plan.schedule == "gpipe" else one_f_one_b(count, m, plan.sliced)
    result = simulate.simulate(planned.work, orders)
    return result, result.step_ns(planned.syncs_ns)


def passes_of(judged: PlanPrediction, stages: int) -> list[list[tuple[Pass, int]]]:
    """Times at which the passes begin on the first rank of each stage."""
    by_rank = dict(zip((program.rank for program in judged.time.programs), judged.time.passes(), strict=True))
    size = judged.plan.stage_sizes[0]
    return [[(event.task, event.start_ns) for event in by_rank[stage * size]] for stage in range(stages)]


@pytest.mark.parametrize(("world", "plans"), [(1, 15), (2, 25), (4, 40), (8, 20)])
def test_steps_are_those_of_the_simulated_pipeline(world: int, plans: int) -> None:
    """To the nanosecond, on one lane a rank, for any strategies, ZeRO stages, cuts, schedules and recomputation.

    The models coincide where (1) all groups of one kind have equal links and all ranks of a stage equal shards, since stage
    times are those of its first device; (2) both units at a cut have one data-parallel degree, since a message has one time
    both ways; (3) no table is tied across stages, for which the first and the last stage wait for each other before they end.
    Reductions of gradients once a step come after a stage's last message.
    """
    rng = random.Random(world)
    for _ in range(plans):
        plan = layered_plan(rng, world)
        profile = profile_of(plan)
        judged = judge(plan, profile)
        known, step = simulated(plan, profile)
        assert judged.step_ns == step
        assert passes_of(judged, len(plan.stages)) == [[(e.task, e.start_ns) for e in events] for events in known.devices]


@pytest.mark.parametrize("world", [1, 4])
def test_one_stage_takes_the_sum_of_its_work(world: int) -> None:
    """Whatever the strategies are, tied or not, and shards of unequal size: the slowest rank is what the closed form costs."""
    rng = random.Random(3)
    for _ in range(25):
        plan = with_zero(rng, random_plan(rng, world, stages=1))
        profile, m = profile_of(plan), plan.batch.micro_batches
        planned = planned_work(plan, [profile])
        whole = m * (planned.work.forward_ns[0] + planned.work.backward_ns[0]) + planned.syncs_ns[0]
        assert judge(plan, profile).step_ns == whole


def test_sliced_steps_are_those_of_the_simulated_pipeline() -> None:
    """To the nanosecond where a half costs half: without latencies, with even times, and where no parameters are gathered
    (a half's messages pay the whole latency, and its sharded units gather their parameters anew)."""
    rng = random.Random(5)
    for _ in range(40):
        plan = layered_plan(rng, 4, sliced=True)
        profile = profile_of(plan)
        even = [
            entry.changed(
                **{name: Number(value=number.value // 2 * 2, origin="estimated") for name, number in entry.numbers.items()}
            )
            for entry in profile.costs
        ]
        profile = profile.changed(costs=even, network=Network(islands=[Island(devices=64, bandwidth_bytes_per_s=1e9)]))
        judged = judge(plan, profile)
        known, step = simulated(plan, profile)
        assert judged.step_ns == step
        assert passes_of(judged, len(plan.stages)) == [[(e.task, e.start_ns) for e in events] for events in known.devices]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_lanes_take_as_long_as_the_simulated_step_with_switches(world: int) -> None:
    """To the nanosecond, with NVLink and without, for any switches. A tied matrix's sum is free in both."""
    rng = random.Random(world)
    for _ in range(25):
        plan = random_switch_plan(rng, world)
        profile = obtain_profile(plan.planned_model(), CPU, [plan.batch.global_samples], [world], devices=world)
        instance = switch_costs.build(profile, plan.batch.global_samples, 2**40)
        known = simulated_step(
            load_switches(instance.to_dict() | {"nvlink": plan.nvlink}), Solution(tuple(plan.switches() or ()))
        )
        judged = judge(plan, profile)
        assert judged.step_ns == known.time_ns
        assert judged.time.backend == "streams"
        first = [o for o in judged.time.operations() if o.rank == 0]
        assert [(o.lane, o.instruction.unit, o.start_ns, o.end_ns) for o in first] == [
            (o.lane, o.layer, o.start_ns, o.end_ns) for o in known.timeline if o.end_ns > o.start_ns
        ]


def any_plan(rng: random.Random, worlds: Sequence[int] = (2, 4, 8)) -> Plan:
    kinds = [random_plan, random_sliced_plan, random_uneven_plan, random_switch_plan]
    return with_zero(rng, plan) if (plan := rng.choice(kinds)(rng, rng.choice(worlds))).switches() is None else plan


class RandomCosts:
    """Any durations: all members of a collective take the same."""

    def __init__(self, seed: int, longer: float = 0.0) -> None:
        self.seed, self.longer = seed, longer

    def __call__(self, program: Program, instruction: Instruction) -> int:
        what = (instruction.op, instruction.unit, instruction.micro_batch, instruction.half, instruction.group)
        rng = random.Random(f"{self.seed} {what} {program.rank if len(instruction.group) < 2 else ''}")
        return rng.randint(0, 1000) + rng.randint(0, 500) * (rng.random() < self.longer)


@pytest.mark.parametrize("seed", range(60))
def test_steps_grow_with_durations_and_shrink_with_lanes(seed: int) -> None:
    """Whatever instructions take: sound programs never get stuck; a step is no shorter than what any lane works, with one lane
    no shorter than with lanes, and no shorter where some durations grow."""
    programs = compile_plan(any_plan(random.Random(seed)))
    steps = {}
    for backend in BACKENDS:
        walk, longer = (time_walk(programs, RandomCosts(seed, share), backend) for share in (0.0, 0.3))
        steps[backend] = walk.step_ns
        assert longer.step_ns >= walk.step_ns
        busy = Counter[tuple[int, str]]()
        for operation in walk.operations():
            busy[operation.rank, operation.lane] += operation.end_ns - operation.start_ns
        assert walk.step_ns >= max(busy.values())
        for program, starts, ends in zip(programs, walk.start_ns, walk.end_ns, strict=True):
            for position, instruction in enumerate(program.instructions):
                assert all(ends[index] <= starts[position] for index in instruction.waits)
    assert steps["serial"] >= steps["fused"] >= steps["threads"] == steps["streams"]


def test_programs_that_wait_for_each_other_for_ever_are_reported_to_be_stuck() -> None:
    programs = compile_plan(plan_of(UNTIED, ["single"] * len(UNTIED.units), 2, 2, 1, [3]))
    assert time_walk(programs, RandomCosts(0)).step_ns > 0
    index = next(index for index, i in enumerate(programs[1].instructions) if i.op is Op.SEND)
    silent = replace(programs[1].instructions[index], op=Op.MARK, group=())
    rest = programs[1].instructions
    programs[1] = replace(programs[1], instructions=(*rest[:index], silent, *rest[index + 1 :]))
    with pytest.raises(Stuck):
        time_walk(programs, RandomCosts(0))


@pytest.mark.long
@pytest.mark.parametrize("backend", first_and_others(["streams", "serial"]))
def test_one_rank_of_each_stage_stands_for_all(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where links and shards are equal, the step and every peak are those of all ranks."""
    rng = random.Random(7)
    for _ in range(30):
        plan = with_zero(rng, random_plan(rng, rng.choice([2, 4, 8, 16]), rng.choice([*EVEN, TIED])))
        profile = profile_of(plan)
        judged = []
        for most in (plan.world, 0):
            monkeypatch.setattr(compiled_plan, "FEW_RANKS", most)
            judged.append(judge(plan, profile, backend=backend))  # type: ignore[arg-type]
        known, few = judged
        assert len(few.time.programs) == len(plan.stages)
        assert (few.step_ns, few.peak_bytes, few.host_bytes) == (known.step_ns, known.peak_bytes, known.host_bytes)


def test_one_rank_that_stands_for_others_takes_their_slowest_kind_and_link(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(EVEN[0], ["dp2-tp2"] * len(EVEN[0].units), 4, 4)
    profile = profile_of(plan)
    slow = [entry.changed(device="slow", backward_ns=Number(value=10**6, origin="estimated")) for entry in profile.costs]
    fast = profile.kinds[0]
    # The second tensor-parallel group has the slower link.
    islands = [
        Island(devices=2, first=0, bandwidth_bytes_per_s=1e10),
        Island(devices=2, first=2, bandwidth_bytes_per_s=1e7),
        Island(devices=4, bandwidth_bytes_per_s=1e9),
    ]
    mixed = profile.changed(costs=[*profile.costs, *slow], network=Network(islands=islands))
    known = judge(plan, mixed, [fast, fast, "slow", fast])
    monkeypatch.setattr(compiled_plan, "MOST_PROCESSES", 0)
    assert judge(plan, mixed, [fast, fast, "slow", fast]).step_ns == known.step_ns
    assert judge(plan, mixed, [fast] * 4).step_ns < known.step_ns == judge(plan, mixed, ["slow"] * 4).step_ns


def through_json(judged: PlanPrediction) -> dict[str, object]:
    table: dict[str, object] = json.loads(json.dumps(judged.carried()))
    return table


@pytest.mark.parametrize("seed", range(40))
def test_plans_that_carry_their_costs_take_as_long(seed: int) -> None:
    plan = any_plan(random.Random(seed), (2, 4))
    if plan.switches() is None:
        profile = profile_of(plan)
    else:
        profile = obtain_profile(plan.planned_model(), CPU, [plan.batch.global_samples], [plan.world], devices=plan.world)
    judged = judge(plan, profile)
    anew = predict_from_saved_costs(plan, through_json(judged))
    assert anew.time.start_ns == judged.time.start_ns and anew.step_ns == judged.step_ns


@pytest.mark.long
def test_carried_costs_hold_under_another_schedule_and_slicing() -> None:
    rng = random.Random(11)
    for _ in range(20):
        plan = random_sliced_plan(rng, 4)
        profile, content = profile_of(plan), plan.model_dump()
        others = [plan, *(load_plan(content | {"sliced": 0, "schedule": name}) for name in ("1f1b", "gpipe"))]
        table = through_json(judge(others[rng.randint(1, 2)], profile))
        for other in others:
            assert predict_from_saved_costs(other, table).step_ns == judge(other, profile).step_ns
    more = plan_of(GPT2, ["single"] * len(GPT2.units), 1, 8, 2)
    table = through_json(judge(more, profile_of(more)))
    with refused("predicted", where="plan"):
        predict_from_saved_costs(plan_of(GPT2, ["single"] * len(GPT2.units), 1, 8, 4), table)


@pytest.mark.parametrize("seed", range(8))
def test_measured_times_are_simulated_without_what_was_waiting(seed: int) -> None:
    """Spans of a run in which all ranks do what a simulation states, with the waiting inside instructions as a clock sees
    it."""
    rng = random.Random(seed)
    plan = random_plan(rng, 4)
    profile = profile_of(plan)
    judged = judge(plan, profile)
    programs, costs = judged.time.programs, ProfiledCosts(plan, profile)
    clocked = []
    for ends in judged.time.end_ns:  # each begins when the one before it has ended, and then waits
        clocked.append(list(zip([0, *ends[:-1]], ends, strict=True)))
    if all(i.op.spec.kind != "message" for program in programs for i in program.instructions):
        assert time_walk(programs, MeasuredCosts(programs, [clocked] * 3)).step_ns == judged.step_ns
    measured = MeasuredCosts(programs, [clocked])
    for program, starts, ends in zip(programs, judged.time.start_ns, judged.time.end_ns, strict=True):
        for instruction, start, end in zip(program.instructions, starts, ends, strict=True):
            if instruction.op.spec.kind == "message":
                assert measured(program, instruction) <= end - start == costs(program, instruction)


def test_a_message_counts_from_when_both_sides_have_come() -> None:
    """A receiver comes 70 ns early, and a sender 40 ns early: neither wait is a cost. Whoever sends alone takes the time."""
    two = plan_of(UNTIED, ["single"] * len(UNTIED.units), 2, 4, 2, [3], "gpipe")
    one = two.changed(batch=two.batch.changed(micro_batches=1))  # rank 0 then sends and receives in one
    clocked: dict[tuple[int, Op, int | None], tuple[int, int]] = {
        (0, Op.SEND, 0): (70, 80),
        (1, Op.RECEIVE, 0): (0, 81),
        (1, Op.SEND, 1): (90, 140),
        (0, Op.RECEIVE, 1): (130, 141),
    }
    alone = {(0, Op.SEND_RECEIVE, None): (70, 141), (1, Op.RECEIVE, 0): (0, 81), (1, Op.SEND, 0): (90, 140)}
    expected = [
        {(0, Op.SEND, 0): 10, (1, Op.RECEIVE, 0): 1, (1, Op.SEND, 1): 10, (0, Op.RECEIVE, 1): 1},
        {(0, Op.SEND_RECEIVE, None): 1, (1, Op.RECEIVE, 0): 11, (1, Op.SEND, 0): 50},
    ]
    for plan, spans, times in zip((two, one), (clocked, alone), expected, strict=True):
        programs = compile_plan(plan)
        keyed = [[((program.rank, i.op, i.micro_batch), i) for i in program.instructions] for program in programs]
        costs = MeasuredCosts(programs, [[[spans.get(key, (150, 155)) for key, _ in entry] for entry in keyed]])
        took = {key: costs(p, i) for p, entry in zip(programs, keyed, strict=True) for key, i in entry if key in spans}
        assert took == times


def test_kinds_and_links_are_those_of_the_devices_that_ranks_are_placed_on() -> None:
    """Two stages of one device each: the slow kind has the slow unit, wherever the placement puts it."""
    plan = plan_of(UNTIED, ["single"] * len(UNTIED.units), 2, 2, 1, [3])
    profile = profile_of(plan)
    kind, unit = profile.kinds[0], 4
    slower = [entry.changed(device="slow", forward_ns=Number(value=10**7, origin="estimated")) for entry in profile.costs]
    mixed = profile.changed(costs=[*profile.costs, *slower])
    for placement, rank in (([0, 1], 1), ([1, 0], 0)):
        placed = load_plan(plan.model_dump() | {"placement": placement})
        costs = ProfiledCosts(placed, mixed, [kind, "slow"])
        for program in compile_plan(placed):
            for instruction in program.instructions:
                if instruction.op is Op.FORWARD:
                    assert (costs(program, instruction) == 10**7) == (program.rank == rank), unit


def pieces(model: Model, strategies: Sequence[str], world: int) -> dict[Op, set[int]]:
    plan = plan_of(model, list(strategies), world, 2 * world)
    programs, found = compile_plan(plan), dict[Op, set[int]]()
    costs = ProfiledCosts(plan, profile_of(plan))
    for instruction in programs[0].instructions:
        if instruction.unit == 1:
            found.setdefault(instruction.op, set()).add(costs(programs[0], instruction))
    return found


@pytest.mark.parametrize(
    "strategy", [*map(str, decision_tree(4, takeaway3=False)), "sdp4-zero1", "sdp4-zero2-ckpt", "dp2-sdp2-zero1"]
)
def test_every_instruction_is_one_piece_of_the_unit(strategy: str) -> None:
    plan = plan_of(UNTIED, [strategy] * len(UNTIED.units), 4, 8)
    profile = profile_of(plan)
    work = unit_work(profile, profile.units[1].sublayer, plan.strategies()[1], 8)
    found = pieces(UNTIED, [strategy] * len(UNTIED.units), 4)
    expected = {
        Op.FORWARD: work.forward_ns,
        Op.FORWARD_WITHOUT_GRAPH: work.forward_ns,
        Op.RECOMPUTE: work.recompute_ns,
        Op.BACKWARD: work.backward_ns,
        Op.ALL_REDUCE: work.partial_ns,
        Op.GATHER_PARAMETERS: work.gather_ns,
        Op.GATHER_UPDATED: work.update_ns,
        Op.REDUCE_REPLICATED: work.replicated_ns,
        Op.REDUCE_SCATTER_GRADIENTS: work.scatter_ns,
        Op.ALL_REDUCE_GRADIENTS: work.reduce_ns,
        Op.OPTIMIZER_STEP: work.optimizer_ns,
    }
    assert {op: {expected[op]} for op in found} == found
    assert work.partial_back_ns == work.partial_ns, "as many bytes back"


def test_costs_other_than_a_profile_s_can_judge() -> None:
    plan = random_plan(random.Random(3), 4)
    assert predict_from_costs(plan, lambda _: RandomCosts(1)).step_ns > 0
