"""For authors of problems and methods: checks that they keep trainplan's protocols, to be called from their own tests.

    check_problem(PROBLEM, instances)             files, costs, memory and words of tiny instances, by all of their solutions
    check_request(PROBLEM, request)               from a request to instances, and to a plan whose programs are sound
    check_method(PROBLEM, "exact", instances)     answers and bounds of a method, held against brute force

Each raises AssertionError where something is not as `formulations.problem` says it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from trainplan.execution.analysis.verify.checks import check
from trainplan.execution.compile.compiler import compile_plan
from trainplan.formulations.parameters import chosen
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.request import Request
from trainplan.formulations.problem import Problem, Subproblem, Table, counts_overlap
from trainplan.formulations.problem import problem as problem_named
from trainplan.profiling.base.dataclass_records import DataclassRecord
from trainplan.profiling.base.errors import InputError, Unsuited
from trainplan.profiling.base.files import Record
from trainplan.solvers.core.heuristic import at_least_memory, explain
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.solve import solve

MOST_SOLUTIONS = 200_000  # of an instance that all solutions are looked at
AMPLE_BYTES = 2**48
FEW = 50  # solutions of an instance that more expensive checks look at


def check_problem(problem: Problem, instances: Iterable[Any]) -> None:
    """All that the protocol asks of a problem, on instances of at most MOST_SOLUTIONS solutions."""
    check_parameters(problem)
    for instance in instances:
        assert instance.problem == problem.name
        assert problem.enumeration.count(instance) <= MOST_SOLUTIONS, "give smaller instances"
        check_files(problem, instance)
        solutions = list(enumerated(problem, instance))
        for solution in solutions:
            check_solution(problem, instance, solution)
        fits = any(not problem.violations(instance, solution) for solution in solutions)
        check_reason(instance, fits)
        check_memory(problem, instance, solutions[:1])
        check_subproblems(problem, instance)
        check_single_strategy(problem, instance)
        check_refinement(problem, instance, solutions)
        check_certificate(problem, instance, solutions)
        size = problem.size(instance)
        assert size and all(isinstance(name, str) and type(value) is int for name, value in size.items()), size
        assert problem.cost_model(instance)


def check_parameters(problem: Problem) -> None:
    """Whether the parameters have names of their own, words, and defaults that they take themselves; and the formats exist."""
    parameters = problem.parameters
    assert problem.name and len({parameter.name for parameter in parameters}) == len(parameters)
    for parameter in parameters:
        assert parameter.about and parameter.flag.startswith("--") and parameter.name.isidentifier(), parameter
        parameter.check(parameter.default)
    defaults = chosen(parameters, {}, problem.name)
    assert defaults == {parameter.name: parameter.default for parameter in parameters}
    for record in (problem.record, problem.solution_record):
        assert issubclass(record, Record | DataclassRecord) and record.model_json_schema()


def check_files(problem: Problem, instance: Any) -> None:
    """Whether an instance comes back from its file as it was."""
    content = json.loads(json.dumps(instance.to_dict()))
    again = problem.load(content)
    assert content["problem"] == problem.name and (again.problem, again.name) == (instance.problem, instance.name)
    assert again.digest == instance.digest and json.loads(json.dumps(again.to_dict())) == content


def check_solution(problem: Problem, instance: Any, solution: Any) -> None:
    """Whether a solution comes back from its file, and what is said of its costs agrees."""
    content = json.loads(json.dumps(problem.solution_dict(solution)))
    assert json.loads(json.dumps(problem.solution_dict(problem.load_solution(content)))) == content
    objective = problem.evaluate(instance, solution).objective
    assert problem.evaluate(instance, problem.load_solution(content)).objective == objective
    costs = json.loads(json.dumps(problem.describe(instance, solution)))
    assert type(costs["time_ns"]) is int and costs["time_ns"] == objective, costs
    limit, broken = instance.common_memory_bytes, problem.violations(instance, solution)
    assert all(isinstance(text, str) and text for text in broken), broken
    if limit is not None and "peak_bytes" in costs:
        assert bool(broken) == (costs["peak_bytes"] > limit), (broken, costs["peak_bytes"], limit)
    for table in problem.tables(instance, solution):
        assert isinstance(table, Table) and isinstance(table.title, str)
        for row in table.rows:
            assert len(row) == len(table.columns) and all(isinstance(text, str) for text in row), (table.title, row)


def check_reason(instance: Any, fits: bool) -> None:
    """Whether the problem's solvers say why nothing fits exactly where nothing does, and name a memory that does."""
    reason = explain(instance)
    assert (reason is None) == fits, reason
    if reason is not None and instance.common_memory_bytes is not None:
        assert str(reason) and reason.least_memory_bytes > instance.common_memory_bytes
        assert explain(instance.with_memory(reason.least_memory_bytes)) is None


def check_memory(problem: Problem, instance: Any, solutions: Iterable[Any]) -> None:
    """Whether another limit changes nothing but the limit. InputError is for instances that know nothing of memory."""
    limit = instance.common_memory_bytes
    try:
        ample = instance.with_memory(AMPLE_BYTES)
    except InputError:
        assert limit is None
        return
    assert ample.common_memory_bytes in (AMPLE_BYTES, None)
    tight = at_least_memory(instance)
    assert tight is None or explain(tight) is None, "something fits into the least memory"
    for solution in solutions:
        assert problem.evaluate(ample, solution).objective == problem.evaluate(instance, solution).objective
        assert not problem.violations(ample, solution)
    if limit is not None:
        assert ample.common_memory_bytes == AMPLE_BYTES
        assert ample.with_memory(limit).digest == instance.digest
        assert problem.size(instance).get("memory_bytes") == limit, "size tells the one limit"


def check_subproblems(problem: Problem, instance: Any) -> None:
    """Whether the subproblems of the models are such, or None, or refused in one line."""
    try:
        parts = problem.models.subproblems(instance, lambda: False)
    except Unsuited as error:
        assert "\n" not in str(error)
        return
    assert parts is None or all(isinstance(part, Subproblem) for part in parts)


def check_single_strategy(problem: Problem, instance: Any) -> None:
    """Whether solutions with one strategy, where the problem makes them ones of the instance, cost the same there."""
    single = problem.single_strategy
    for narrowed in () if single is None else single.instances(instance)[:1]:
        for solution in islice(enumerated(problem, narrowed), FEW):
            assert single is not None
            if (widened := single.widened(instance, solution)) is not None:
                there, here = problem.evaluate(narrowed, solution), problem.evaluate(instance, widened)
                assert there.objective == here.objective, (there.objective, here.objective)


def check_refinement(problem: Problem, instance: Any, solutions: Iterable[Any]) -> None:
    """Whether a refinement says something of each configuration, narrows instances to some of them, and betters solutions."""
    if (refinement := problem.refinement) is None:
        return
    indices = range(len(refinement.shapes(instance)))
    assert len(refinement.pass_orders(instance)) == len(indices)
    if counts_overlap(instance):
        assert len(refinement.layouts(instance)) == len(refinement.memory_groups(instance)) == len(indices)
    same = refinement.with_extra_bytes(instance, [(0, 0)] * len(indices))
    assert same.digest == refinement.with_configurations(instance, indices).digest == instance.digest
    for solution in islice(solutions, FEW):
        alone = refinement.with_configurations(instance, [solution.configuration])
        objective = problem.evaluate(instance, solution).objective
        assert problem.evaluate(alone, replace(solution, configuration=0)).objective == objective
        if not problem.violations(instance, solution):
            better = refinement.without_needless_recomputation(instance, solution)
            assert not problem.violations(instance, better) and problem.evaluate(instance, better).objective <= objective
        peak = max(held for held, _ in refinement.group_bytes(instance, solution))
        assert peak == problem.describe(instance, solution)["peak_bytes"]


def check_certificate(problem: Problem, instance: Any, solutions: Iterable[Any]) -> None:
    """Whether no solution is below the bound that a certificate shows without evidence, nor below its own bound over all
    orders of passes."""
    if (certificate := problem.certificate) is None:
        return
    bound = certificate.checked_bound_ns(instance, None)
    for solution in solutions:
        objective = problem.evaluate(instance, solution).objective
        any_schedule = certificate.any_schedule_bound_ns(instance, solution)
        assert bound <= objective and (any_schedule is None or any_schedule <= objective), (bound, any_schedule, objective)


def check_method(problem: Problem | str, method: str, instances: Iterable[Any], **options: Any) -> list[Result]:
    """Whether a method's answers and bounds stand by brute force; an optimum that it claims is one. Its results.

    problem: itself or its name. options: of the method, and `time_limit`, `gap` and `seed`. An instance that the method does
    not take raises Unsuited.
    """
    results = []
    problem = problem_named(problem) if isinstance(problem, str) else problem
    for instance in instances:
        best, result = optimum(problem, instance), solve(instance, method, **options)
        results.append(result)
        assert result.status != "failed", result.message
        assert (result.status == "infeasible") <= (best is None), result.reason
        if result.solution is not None:
            solution = problem.load_solution(result.solution)
            assert not problem.violations(instance, solution)
            assert problem.evaluate(instance, solution).objective == result.objective
            assert best is not None and result.objective is not None and result.objective >= best
            if result.status == "optimal":
                assert result.objective <= best * (1 + 2 * result.tolerance)
        assert result.bound is None or best is None or result.bound <= best, (result.bound, best)
    return results


def check_request(problem: Problem, request: Request) -> Plan | None:
    """Whether a request becomes instances that come back from their files, and the best of one a plan that says its programs.

    The plan, or None of a problem that has none.
    """
    check_files(problem, problem.instance(request))
    instances = problem.instances(request)
    for instance in instances:
        check_files(problem, instance)
    if type(problem).plan is Problem.plan:
        return None
    plan = problem.plan(instances[0], _good_solution(problem, instances[0]), request)
    assert plan.predicted is None, "predictions are added by who plans"
    assert plan.batch.global_samples == request.batch
    assert Plan.model_validate(json.loads(plan.model_dump_json())) == plan
    programs = compile_plan(plan)
    assert len(programs) == plan.world
    faults = check(programs)
    assert not faults, faults
    return plan


def enumerated(problem: Problem, instance: Any) -> Iterator[Any]:
    """The solutions that brute force looks at, without the moments to look at the clock."""
    return (solution for solution in problem.enumeration.solutions(instance) if solution is not None)


def optimum(problem: Problem, instance: Any) -> int | None:
    """The least objective of all solutions that break no constraint; None where there is none."""
    fitting = _fitting(problem, instance)
    return min((problem.evaluate(instance, solution).objective for solution in fitting), default=None)


def _fitting(problem: Problem, instance: Any) -> Iterator[Any]:
    return (solution for solution in enumerated(problem, instance) if not problem.violations(instance, solution))


def _good_solution(problem: Problem, instance: Any) -> Any:
    """The optimum by enumeration of a tiny instance, and the exact method's answer of a larger one."""
    if problem.enumeration.count(instance) <= MOST_SOLUTIONS:
        return min(_fitting(problem, instance), key=lambda solution: problem.evaluate(instance, solution).objective)
    result = solve(instance, time_limit=30.0)
    assert result.solution is not None, result.status
    return problem.load_solution(result.solution)
