"""Checks for authors of problems and solution methods that these keep trainplan's protocols, to be called from their own tests.

    check_problem(PROBLEM, instances)             files, costs, memory and texts of tiny instances, with all of their solutions
    check_request(PROBLEM, request)               from a request to instances, and to a plan whose programs are sound
    check_method(PROBLEM, "exact", instances)     a method's answers and bounds, compared with brute force

Every check raises AssertionError where the subject does not do what the protocol in `formulations.problem` promises.
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
from trainplan.profiling.base.errors import InputError, Unsupported
from trainplan.profiling.base.files import Record
from trainplan.solvers.core.heuristic import at_least_memory, explain
from trainplan.solvers.core.result import Result
from trainplan.solvers.core.solve import solve

MOST_SOLUTIONS = 200_000  # solutions that an instance may have at most, where all of them are checked
AMPLE_BYTES = 2**48  # a memory limit that no solution exceeds
FEW = 50  # solutions of an instance that the more expensive checks look at


def check_problem(problem: Problem, instances: Iterable[Any]) -> None:
    """Check everything that the protocol `formulations.problem.Problem` requires of a problem.

    problem: the problem, written by the caller. instances: instances of it that have at most MOST_SOLUTIONS solutions, since
    all of them are enumerated. Raises AssertionError if the problem breaks the protocol.
    """
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
    """Check that a problem's parameters have distinct names, help texts and valid defaults, and that its two file formats (of
    instances and of solutions) have JSON Schemas. Raises AssertionError."""
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
    """Check that an instance of a problem is unchanged after it is written as JSON and loaded again. Raises AssertionError."""
    content = json.loads(json.dumps(instance.to_dict()))
    again = problem.load(content)
    assert content["problem"] == problem.name and (again.problem, again.name) == (instance.problem, instance.name)
    assert again.digest == instance.digest and json.loads(json.dumps(again.to_dict())) == content


def check_solution(problem: Problem, instance: Any, solution: Any) -> None:
    """Check one solution of an instance, feasible or not. Raises AssertionError unless all of this holds:

    The solution and its objective are the same after the solution is written as JSON and loaded again. `problem.describe`
    returns the objective, a whole number, as `time_ns`. If the instance has a memory limit and `problem.describe` returns
    `peak_bytes`, then `problem.violations` lists a broken constraint exactly if that peak exceeds the limit. Violations are
    nonempty texts. Tables for the screen (`problem.tables`) have a title and rows of as many cells as columns, all of them
    texts.
    """
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
    """Check that an instance has an explanation of infeasibility exactly if no solution fits, and that something fits into the
    least memory that the explanation names.

    fits: whether any solution of the instance keeps all constraints. Raises AssertionError.
    """
    reason = explain(instance)
    assert (reason is None) == fits, reason
    if reason is not None and instance.common_memory_bytes is not None:
        assert str(reason) and reason.least_memory_bytes > instance.common_memory_bytes
        assert explain(instance.with_memory(reason.least_memory_bytes)) is None


def check_memory(problem: Problem, instance: Any, solutions: Iterable[Any]) -> None:
    """Check that changing an instance's memory limit changes nothing else: objectives stay, everything fits into ample memory,
    and the old limit gives the old instance again.

    solutions: some solutions of the instance to evaluate. An instance without a memory limit may refuse the change with
    InputError. Raises AssertionError.
    """
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
    """Check that the problem's MILP and CP-SAT models divide an instance into Subproblem objects, or return None or refuse it
    (Unsupported) with a message of one line. Raises AssertionError."""
    try:
        parts = problem.models.subproblems(instance, lambda: False)
    except Unsupported as error:
        assert "\n" not in str(error)
        return
    assert parts is None or all(isinstance(part, Subproblem) for part in parts)


def check_single_strategy(problem: Problem, instance: Any) -> None:
    """Check that a solution with one strategy for all layers costs as much in the instance that is restricted to that strategy
    as its counterpart in the whole instance.

    Nothing is checked if the problem has no such restrictions (`single_strategy` is None). Raises AssertionError.
    """
    if (single := problem.single_strategy) is None:
        return
    for narrowed in single.instances(instance)[:1]:
        for solution in islice(enumerated(problem, narrowed), FEW):
            if (widened := single.widened(instance, solution)) is not None:
                there, here = problem.evaluate(narrowed, solution), problem.evaluate(instance, widened)
                assert there.objective == here.objective, (there.objective, here.objective)


def check_refinement(problem: Problem, instance: Any, solutions: Iterable[Any]) -> None:
    """Check a problem's `refinement`, its object that restricts an instance to single configurations and improves solutions;
    nothing if the problem has none.

    It describes every configuration of the instance, restricting the instance to one configuration keeps the objectives of
    solutions, and removing needless recomputation keeps a solution feasible and makes it no slower. solutions: some solutions
    of the instance; the first FEW are checked. Raises AssertionError."""
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
    """Check a problem's `certificate`, its object that proves lower bounds without a solver; nothing if the problem has none.

    No solution of the instance has an objective below the bound that is proven without evidence, nor below the bound that is
    proven for that solution over all orders of forward and backward passes. solutions: some solutions of the instance. Raises
    AssertionError."""
    if (certificate := problem.certificate) is None:
        return
    bound = certificate.checked_bound_ns(instance, None)
    for solution in solutions:
        objective = problem.evaluate(instance, solution).objective
        any_schedule = certificate.any_schedule_bound_ns(instance, solution)
        assert bound <= objective and (any_schedule is None or any_schedule <= objective), (bound, any_schedule, objective)


def check_method(problem: Problem | str, method: str, instances: Iterable[Any], **options: Any) -> list[Result]:
    """Check a method's answers and lower bounds against brute force, and that an answer with the status "optimal" is optimal.

    Args:
        problem: a Problem or its name.
        method: the method's name.
        instances: instances of the problem that are small enough to enumerate all solutions.
        **options: the method's own options, and `time_limit`, `gap` and `seed`.

    Returns:
        The method's result for each instance.

    Raises:
        AssertionError: for a wrong answer or bound.
        Unsupported: for an instance that the method does not support.
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
    """Check that a request becomes instances that can be written and loaded again, and that a good solution of the first one
    becomes a plan whose compiled programs have no faults.

    Returns the plan; None for a problem whose solutions are not plans. Raises AssertionError.
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
    """All solutions of an instance, feasible or not, in the order in which brute force enumerates them.

    The problem's enumeration also yields None, at which a search may look at the clock; these are left out.
    """
    return (solution for solution in problem.enumeration.solutions(instance) if solution is not None)


def optimum(problem: Problem, instance: Any) -> int | None:
    """The least objective of the solutions of an instance that keep all constraints, by brute force; None if no solution
    does."""
    fitting = _fitting(problem, instance)
    return min((problem.evaluate(instance, solution).objective for solution in fitting), default=None)


def _fitting(problem: Problem, instance: Any) -> Iterator[Any]:
    """The solutions of an instance that keep all constraints, in the order in which brute force enumerates them."""
    return (solution for solution in enumerated(problem, instance) if not problem.violations(instance, solution))


def _good_solution(problem: Problem, instance: Any) -> Any:
    """A feasible solution of an instance: the optimum by enumeration if it has at most MOST_SOLUTIONS solutions, else the
    answer of the problem's exact method within 30 seconds."""
    if problem.enumeration.count(instance) <= MOST_SOLUTIONS:
        return min(_fitting(problem, instance), key=lambda solution: problem.evaluate(instance, solution).objective)
    result = solve(instance, time_limit=30.0)
    assert result.solution is not None, result.status
    return problem.load_solution(result.solution)
