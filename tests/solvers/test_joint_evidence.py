"""Evidence of bounds on the joint problem, checked in whole numbers by what shares no code with the solver."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from trainplan.formulations.joint.certificates.check import checked_bound_ns, possible
from trainplan.formulations.joint.certificates.file import ConfigurationEvidence, Evidence, WeightedPath
from trainplan.formulations.joint.certificates.path_bound import least_by_paths_ns, path_counts
from trainplan.formulations.joint.evaluation import evaluate
from trainplan.formulations.joint.lower_bounds import any_schedule_ns, closed_form_ns
from trainplan.formulations.joint.problem import Configuration, Instance
from trainplan.formulations.joint.tables import OptionTable
from trainplan.formulations.schedule.orders import Pass
from trainplan.solvers.core.search import Search
from trainplan.solvers.joint.certificate_search import by_paths, evidence, weighted
from trainplan.solvers.joint.fixed_cuts.critical_path import longest_path
from trainplan.solvers.joint.fixed_cuts.priced_chain import NAMES

import trainplan as tp
from tests.solvers.test_joint import least_step_ns, some_solutions, tiny_instance


@pytest.mark.parametrize("seed", range(40))
def test_checked_bounds_are_never_above_brute_force(seed: int) -> None:
    instance = tiny_instance(3000 + seed)
    least = least_step_ns(instance)
    rests_on = evidence(instance, 10**12 if least is None else least)
    read = Evidence.from_dict(rests_on.to_dict())
    assert read == rests_on
    if least is not None:
        assert checked_bound_ns(instance, read) <= least
        for index, configuration in enumerate(instance.configurations):
            alone = least_step_ns(instance.only([index]))
            claim = read.configurations[index]
            assert alone is None or closed_form_ns(instance, configuration) <= alone
            # A step that some plan has is never shown to be impossible, whatever the prices.
            if alone is not None and claim.prices:
                assert possible(instance, configuration, replace(claim, impossible_ns=alone))
                assert possible(instance, configuration, replace(claim, impossible_ns=alone, prices=(0, 1, 10**6)))


def test_evidence_of_a_model_proves_most_of_the_bound() -> None:
    instance = tp.build("joint", model="bert-huge-32", cluster="rtx-titan-8", batch=32, memory="8GiB")
    result = tp.solve(instance, gap=1e-4)
    assert result.objective is not None and result.bound is not None
    checked = checked_bound_ns(instance, evidence(instance, result.objective))
    assert 0.95 * result.objective <= checked <= result.objective


def slowed(instance: Instance, factor: int, least: int) -> Instance:
    """The instance with `factor` times the passes of those options that are numbered `least` or higher."""

    def times(table: OptionTable) -> OptionTable:
        factors = np.where(np.arange(len(table.options)) < least, 1, factor)
        return replace(table, forward_ns=table.forward_ns * factors, backward_ns=table.backward_ns * factors)

    configurations = []
    for configuration in instance.configurations:
        made = tuple(replace(tables, units=tuple(map(times, tables.units))) for tables in configuration.tables)
        configurations.append(replace(configuration, make_tables=partial(tuple, made)))
    return replace(instance, configurations=tuple(configurations))


@pytest.mark.parametrize("seed", range(8))
def test_options_whose_times_fit_no_64_bits_leave_the_evidence_of_others(seed: int) -> None:
    instance = tiny_instance(3000 + seed)
    least = least_step_ns(instance)
    if least is None:
        return
    first, all_of_them = slowed(instance, 2**22, 1), slowed(instance, 2**22, 0)
    step = least_step_ns(first)
    if step is not None:
        assert least <= step and 0 < checked_bound_ns(first, evidence(first, step)) <= step
    rests_on = evidence(all_of_them, least * 2**22)
    assert 0 < checked_bound_ns(all_of_them, rests_on) <= least * 2**22


def test_evidence_that_claims_too_much_is_refused() -> None:
    instance = tp.build("joint", model="bert-huge-32", cluster="rtx-titan-8", batch=32, memory="8GiB")
    objective = tp.solve(instance, gap=1e-2).objective
    assert objective is not None
    rests_on = evidence(instance, objective)
    index = max(range(len(rests_on.configurations)), key=lambda at: len(rests_on.configurations[at].prices))
    rows = list(rests_on.configurations)
    rows[index] = replace(rows[index], impossible_ns=10 * objective)
    with pytest.raises(ValueError, match=f"configurations.{index}. may have a step"):
        checked_bound_ns(instance, replace(rests_on, configurations=tuple(rows)))
    with pytest.raises(ValueError, match="another instance"):
        checked_bound_ns(instance, replace(rests_on, instance="0"))
    with pytest.raises(ValueError, match="one entry"):
        checked_bound_ns(instance, replace(rests_on, configurations=rests_on.configurations[1:]))


# Any schedule


@pytest.mark.parametrize("seed", range(40))
def test_no_step_is_below_the_bound_of_any_schedule(seed: int) -> None:
    instance = tiny_instance(4000 + seed)
    for solution, evaluation in some_solutions(random.Random(seed), instance, 20):
        assert any_schedule_ns(instance.configurations[solution.configuration], evaluation) <= evaluation.time_ns


def test_no_order_of_passes_is_below_the_bound_of_any_schedule() -> None:
    """All orders of two micro-batches on each of two stages, those that get stuck aside."""
    tried = 0
    for seed in range(60):
        instance = tiny_instance(5000 + seed, plain=True)
        for solution, evaluation in some_solutions(random.Random(seed), instance, 5):
            configuration = instance.configurations[solution.configuration]
            if configuration.stages != 2:
                continue
            two = replace(configuration, micro_batches=2)
            bound = any_schedule_ns(two, evaluate(replace(instance, configurations=(two,)), replace(solution, configuration=0)))
            times = [stage.times for stage in evaluation.stages]
            for orders in product(*(permutations(_passes(x)) for x in range(2))):
                step = _step_ns(orders, times)
                if step is not None:
                    tried += 1
                    assert bound <= step
        if tried > 20_000:
            break
    assert tried > 1000


def _passes(stage: int) -> list[Pass]:
    return [Pass(kind, number, stage) for kind in ("forward", "backward") for number in range(2)]  # type: ignore[arg-type]


def _step_ns(orders, times) -> int | None:  # type: ignore[no-untyped-def]
    """When both stages have ended, each pass after what it needs; None where they wait for each other."""
    ended: dict[Pass, int] = {}
    at, free = [0, 0], [0, 0]
    going = True
    while going:
        going = False
        for x in range(2):
            while at[x] < 4:
                task = orders[x][at[x]]
                if task.kind == "forward":
                    needed = [Pass("forward", task.micro_batch, 0)] if x else []
                    length = times[x].forward_ns + times[x].message_forward_ns
                else:
                    needed = [Pass("forward", task.micro_batch, x)] + ([Pass("backward", task.micro_batch, 1)] if not x else [])
                    length = times[x].backward_ns + times[x].message_backward_ns
                if any(entry not in ended for entry in needed):
                    break
                free[x] = max([free[x], *(ended[entry] for entry in needed)]) + length
                ended[task] = free[x]
                at[x] += 1
                going = True
    if at != [4, 4]:
        return None
    return max(end + time.reduce_ns + time.optimizer_ns for end, time in zip(free, times, strict=True))


# Weighted paths


def whole_pipelines(seed: int) -> Iterator[tuple[Instance, int]]:
    """Instances of one configuration of several stages without halves and chunks, and the least step of each by brute force."""
    instance = tiny_instance(seed)
    for index, configuration in enumerate(instance.configurations):
        schedule, alone = configuration.schedule, instance.only([index])
        if configuration.stages > 1 and not schedule.sliced and schedule.chunks == 1:
            least = least_step_ns(alone)
            if least is not None:
                yield alone, least


def random_paths(rng: random.Random, configuration: Configuration) -> tuple[WeightedPath, ...]:
    """Paths that any turns make, which end with any group."""
    groups = [rng.randrange(configuration.stages) for _ in range(rng.randint(1, 4))]
    return tuple(WeightedPath(rng.randint(1, 50), group, group, 1 << 400 | rng.getrandbits(400)) for group in groups)


def assert_paths_are_below(seed: int) -> int:
    """No paths and prices, those of the solver among them, show more than brute force; how often the solver has some."""
    rng, solved = random.Random(seed), 0
    for instance, least in whole_pipelines(seed):
        (configuration,) = instance.configurations
        for _ in range(10):
            memory, host = (tuple(rng.choice((0, 1, 10, 1000)) for _ in range(configuration.stages)) for _ in range(2))
            claim = ConfigurationEvidence(least, paths=random_paths(rng, configuration), memory=memory, host=host)
            if instance.host_limit_bytes(configuration.device_groups[0]) is None and any(host):
                with pytest.raises(ValueError, match="hosts have prices, and their memory is not limited"):
                    least_by_paths_ns(instance, configuration, claim)
                claim = replace(claim, host=())
            assert least_by_paths_ns(instance, configuration, claim) <= least
            assert possible(instance, configuration, claim)
        claim = by_paths(instance, 0, 10**12, Search(lambda _: None))
        if claim is not None:
            solved += 1
            assert claim.impossible_ns < least and not possible(instance, configuration, claim)
            assert possible(instance, configuration, replace(claim, impossible_ns=claim.impossible_ns + 1))
            for changed in ({"memory": tuple(10 * price for price in claim.memory)}, {"paths": claim.paths[:1]}):
                assert least_by_paths_ns(instance, configuration, replace(claim, **changed)) <= least
    return solved


def test_weighted_paths_never_show_more_than_brute_force() -> None:
    assert sum(assert_paths_are_below(6000 + seed) for seed in range(10)) > 5


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_weighted_paths_never_show_more_than_brute_force_on_1000_more(part: int) -> None:
    for seed in range(7000 + 100 * part, 7100 + 100 * part):
        assert_paths_are_below(seed)


def test_the_longest_path_of_a_solution_is_its_step() -> None:
    """As the solver traces it, and as the check follows it."""
    followed = 0
    for seed in range(30):
        for instance, _ in whole_pipelines(8000 + seed):
            (configuration,) = instance.configurations
            for _, evaluation in some_solutions(random.Random(seed), instance, 5):
                times = {name: np.array([getattr(one_stage.times, name) for one_stage in evaluation.stages]) for name in NAMES}
                path = longest_path(configuration, times, evaluation.tied_ns)
                counts, constant = path_counts(instance, configuration, (weighted(path, 3),))
                assert {name: [3 * int(count) for count in path.counts[name]] for name in NAMES} == counts
                assert 3 * evaluation.time_ns == constant + sum(
                    count * getattr(stage.times, name)
                    for name in NAMES
                    for count, stage in zip(counts[name], evaluation.stages, strict=True)
                )
                followed += 1
    assert followed > 50


def test_paths_that_are_none_are_refused() -> None:
    instance, _ = next(pair for seed in range(20) for pair in whole_pipelines(6000 + seed))
    (configuration,) = instance.configurations
    claim, stages = by_paths(instance, 0, 10**12, Search(lambda _: None)), configuration.stages
    assert claim is not None
    path = claim.paths[0]

    def shown(**changed: Any) -> int:
        return least_by_paths_ns(instance, configuration, replace(claim, **changed))

    other_end = {"end": 1, "last_pass_group": 0} if stages > 2 else {"end": -1}
    for wrong in ({"last_pass_group": stages}, {"last_pass_group": -1}, other_end, {"turns": 0}):
        with pytest.raises(ValueError, match="ends nowhere"):
            shown(paths=(replace(path, **wrong),))
    with pytest.raises(ValueError, match="breaks off"):
        shown(paths=(replace(path, turns=1),))
    with pytest.raises(ValueError, match="not one for each stage, or below 0"):
        shown(memory=claim.memory[1:])
    for below in ({"memory": (-1,) * stages}, {"host": (-1,) * stages}, {"paths": (replace(path, weight=-1),)}):
        with pytest.raises(ValueError, match="below 0"):
            shown(**below)
    with pytest.raises(ValueError, match="weigh nothing"):
        shown(paths=())
    for large in ({"paths": (replace(path, weight=2**70),)}, {"memory": (2**58,) * stages}):
        with pytest.raises(ValueError, match="too large"):
            shown(**large)


@pytest.mark.long
@pytest.mark.parametrize("model", ["gpt2-345m", "gpt2-1.3b"])
def test_few_micro_batches_are_checked_to_a_percent(model: str) -> None:
    """Prices alone show 96 %: no path through one stage is the longest where pipelines fill and empty."""
    answer = tp.plan(model=model, dtype="float32", cluster="autopipe-3090-16", batch=16, gap=1e-3, comparisons=False)
    bound, objective = answer.answer.bound_ns, answer.answer.objective_ns
    assert bound is not None and objective is not None
    rests_on = evidence(answer.instance, objective)
    assert bound * 0.99 <= checked_bound_ns(answer.instance, rests_on) <= objective
    assert any(claim.paths for claim in rests_on.configurations)
