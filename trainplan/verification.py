"""Checks, without any solver, of plans, of the lower bounds that they claim, and of solutions of instances; and their loading.

A violated constraint or a refuted claim is a finding, listed in the answer; only malformed files raise InputError.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainplan.execution.executable_models import EXECUTED_FAMILIES
from trainplan.execution.prediction.surrogate import memory_of, stood_in_for
from trainplan.formulations.plan.plan import Plan, PlanEvidence, load_plan
from trainplan.formulations.plan.request import Request
from trainplan.formulations.problem import InstanceLike, Problem, problem, problem_names, problem_of, solution_of
from trainplan.formulations.runtimes import devices_of, predict
from trainplan.inputs import compiles, profile_of
from trainplan.profiling.base.display import in_one_line
from trainplan.profiling.base.errors import InputError, one_of, shown
from trainplan.profiling.base.files import FilePath, Source, name_of_source, read_data
from trainplan.profiling.base.quantities import format_bytes, format_gap
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.profiles import Profile
from trainplan.solvers.core.result import Result, relative_gap

SOLVED = ("optimal", "feasible")  # statuses of a search that has found a plan
GAP_ROUNDING = 1e-9  # by which a gap in a file may differ from the gap of its own numbers


@in_one_line
@dataclass(frozen=True)
class Checked:
    """The answer of `check` for a solution: its time and memory, and every constraint that it breaks.

    Attributes:
        problem: the name of the instance's problem.
        objective: the solution's objective (a step in ns); None if it cannot be evaluated.
        peak_bytes: its peak memory in bytes, if the problem counts memory; else None.
        peak_layer_name: the layer of the model at which the peak is, if the problem states it.
        peak_ns: the time in the step at which the peak is, if the problem states it.
        memory_bytes: the memory limit of a device, if all devices have the same limit.
        violations: a text for each broken constraint.
    """

    problem: str
    objective: int | None
    peak_bytes: int | None
    peak_layer_name: str | None
    peak_ns: int | None
    memory_bytes: int | None
    violations: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The answer as a JSON-ready dict. Keys: `problem` (name), `objective` (step in ns), `peak_bytes`, `peak_layer_name`,
        `peak_ns` (time of the peak in the step), `memory_bytes` (the limit), each None if unknown, and `violations` (a text for
        each broken constraint)."""
        return asdict(self)


@dataclass(frozen=True)
class CheckedClaim:
    """The answer of `check` on the lower bound of the step that a plan's file claims, checked without any solver.

    Attributes:
        problem: the name of the optimization problem that the claim is about.
        claimed_bound_ns: the bound that the solver stated, which is not checked here.
        claimed_source: how the bound was obtained, such as the name of the method that proved it; None if it is not stated.
        objective_ns: the plan's objective, evaluated again; None if it cannot be evaluated.
        bound_ns: the bound that the claim's evidence proves in whole numbers; None if it proves nothing.
        weak_bound_ns: the bound that follows from the instance alone, without evidence.
        evidence: whether the claim has evidence beyond the instance.
        memory_bytes: the memory limit of a device that the plan was made for.
        restrictions: the restrictions that the request set on the search, as the command's options state them, such as `--tp
            2`.
        faults: texts on statements of the claim that do not hold.
        unchecked: why nothing was checked; None if the claim was checked.
    """

    problem: str
    claimed_bound_ns: int | None
    claimed_source: str | None
    objective_ns: int | None = None
    bound_ns: int | None = None
    weak_bound_ns: int | None = None
    evidence: bool = False
    memory_bytes: int | None = None
    restrictions: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    unchecked: str | None = None

    @property
    def verdict(self) -> str:
        """The finding as a text: how much faster than the plan any plan can be at most, or "refuted", or why nothing was
        checked."""
        if self.unchecked is not None:
            return f"not checked: {self.unchecked}"
        if self.faults or self.objective_ns is None or self.bound_ns is None:
            return "refuted"
        gap = format_gap(1 - self.bound_ns / self.objective_ns)
        under = f" under {', '.join(self.restrictions)}" if self.restrictions else ""
        within = f" within {format_bytes(self.memory_bytes)} a device" if self.memory_bytes else ""
        return f"no plan of the problem{under}{within} is more than {gap} faster, checked without any solver"


@in_one_line
@dataclass(frozen=True)
class CheckedPlan:
    """The answer of `check` for a plan: faults of its compiled programs, their peak memory, and the check of its claimed bound.

    Attributes:
        model: the model's name.
        ranks: the number of ranks of the plan.
        programs: the number of programs that were checked: one for each rank, or one for each class of ranks with equal
            programs.
        instructions: the number of instructions of these programs.
        peak_bytes: peak device memory of the fullest rank: as the runtime that the plan is for holds it, or else by analysis of
            the programs; None if the programs have faults.
        peak_rank: the fullest rank.
        host_bytes: host memory of that rank.
        memory_bytes: the memory of a device that the plan was made for.
        faults: a text for each fault of the programs.
        stood_in_for: features of the plan that programs do not carry out yet, so that the checked programs are a surrogate's.
        claim: the check of the claimed bound; None if the claim has no evidence.
        software: the name of the runtime's framework that `peak_bytes` is predicted for; empty for the plan's own programs.
        programs_bytes: the peak by analysis of the programs, which no other runtime runs.
        step_ns: the step that the plan's file states as predicted; None if it states none. It is not what the claim is about.
    """

    model: str
    ranks: int
    programs: int
    instructions: int
    peak_bytes: int | None
    peak_rank: int | None
    host_bytes: int | None
    memory_bytes: int
    faults: tuple[str, ...]
    stood_in_for: tuple[str, ...] = ()
    claim: CheckedClaim | None = None
    software: str = ""
    programs_bytes: int | None = None
    step_ns: int | None = None

    @property
    def violations(self) -> tuple[str, ...]:
        """Everything that is wrong with the plan, as texts: faults of its programs, faults of its claimed bound, and a peak
        above the memory limit. Empty if nothing is wrong."""
        faults = self.faults + (() if self.claim is None else self.claim.faults)
        if self.peak_bytes is None or self.peak_bytes <= self.memory_bytes:
            return faults
        over = f"rank {self.peak_rank} needs {self.peak_bytes} bytes, more than memory_bytes = {self.memory_bytes}"
        return (*faults, over)

    def to_dict(self) -> dict[str, Any]:
        """The answer as a JSON-ready dict. Its keys are the names of this class's attributes, such as `peak_bytes` and `faults`
        (`claim` is a dict, too, or None), and `violations`, a list of texts: everything that is wrong with the plan."""
        return {**asdict(self), "violations": self.violations}


def load(source: InstanceLike | Source) -> Any:
    """The problem instance in a file or a dict.

    Args:
        source: the file's path or the dict; an instance is returned as it is.

    Returns:
        The instance.

    Raises:
        InputError: for content that is no instance, naming the field.
    """
    if not isinstance(source, str | os.PathLike | Mapping):
        return source
    value = source if isinstance(source, Mapping) else read_data(source)
    where = name_of_source(source, "instance")
    if not isinstance(value, Mapping):
        raise InputError(where, "", f"holds {shown(value)}", "give a JSON object")
    name = value.get("problem")
    if not isinstance(name, str) or name not in problem_names():
        problem_text = f"is {shown(name)}" if "problem" in value else "is missing"
        raise InputError(where, "problem", problem_text, one_of(name, problem_names()))
    return problem(name).load(value, where)


def plan_or_instance(source: Plan | Any | Source) -> Plan | Any:
    """The plan or the problem instance in a file or a dict; an object of either kind is returned as it is.

    Raises InputError for a file or a dict that is neither.
    """
    if not isinstance(source, str | os.PathLike | Mapping):
        return source
    content = source if isinstance(source, Mapping) else read_data(source)
    if isinstance(content, Mapping) and "problem" in content:
        return load(source)
    if isinstance(content, Mapping) and "format" not in content:
        raise InputError(
            name_of_source(source, "source"), "", "is neither a plan nor an instance", "give a plan's file, or an instance's"
        )
    return load_plan(source)


def check(
    source: Plan | InstanceLike | Source,
    solution: Result | Source | Sequence[int] | None = None,
    *,
    profile: FilePath | Profile | None = None,
) -> Checked | CheckedPlan:
    """Check a plan's programs and its lower bound, or a solution against an instance.

    A plan's programs are compiled, checked, and simulated for memory; the evidence of its bound is followed in whole numbers,
    without any solver.

    Args:
        source: a plan or an instance: a file, a dict or the object.
        solution: the solution of an instance: a file, a dict, or a Result.
        profile: the profile that the plan was made from, if it was; its bound is checked with that.

    Returns:
        The faults, if there are any, and the time and the memory of the plan or the solution.

    Raises:
        InputError: for malformed files.
    """
    if solution is not None and not isinstance(source, Plan) and not _is_plan(source):
        return check_solution(source, solution)
    subject = plan_or_instance(source)
    if not isinstance(subject, Plan):
        raise InputError("command line", "solution", "is missing", "give one: only a plan is checked by itself")
    if solution is not None:
        raise InputError("command line", "solution", "is given", "leave it out: a plan is checked by itself")
    return check_plan(subject, name_of_source(source, "plan"), profile_of(profile))


def _is_plan(source: Any) -> bool:
    """Whether a file or a dict has the fields by which a plan's file is recognised: "format", and no "problem". Raises
    InputError for a file that cannot be read."""
    content = read_data(source) if isinstance(source, str | os.PathLike) else source
    return isinstance(content, Mapping) and "format" in content and "problem" not in content


def check_plan(plan: Plan, where: str = "plan", profile: Profile | None = None) -> CheckedPlan:
    """Compile a plan's programs, check them and the memory that they need, and check the lower bound that the plan claims.

    where: the plan's name in errors, such as its file. profile: the profile that the plan was made from, if it was made from
    one. Raises InputError for a plan whose model cannot be compiled.
    """
    model = plan.planned_model()
    if not compiles(model):
        fix = f"give a plan of a model that becomes programs: {', '.join(EXECUTED_FAMILIES)}"
        raise InputError(where, "model.config.model_type", f"is {model.family!r}", fix)
    compiled, memories = memory_of(plan)
    rank, fullest = None, None
    if memories:
        rank, fullest = max(zip(compiled.classes, memories, strict=True), key=lambda ranked: ranked[1].peak_bytes)
    own_bytes = peak_bytes = None if fullest is None else fullest.peak_bytes
    theirs = None if own_bytes is None else _of_runtime(plan)
    if theirs is not None:
        peak_bytes, rank = max(theirs), theirs.index(max(theirs))
    return CheckedPlan(
        model=model.name,
        ranks=plan.world,
        programs=len(compiled.programs),
        instructions=compiled.instructions,
        peak_bytes=peak_bytes,
        peak_rank=rank,
        host_bytes=None if fullest is None else fullest.host_bytes,
        memory_bytes=plan.memory_bytes,
        faults=tuple(compiled.faults),
        stood_in_for=stood_in_for(plan),
        claim=check_claim(plan, profile),
        software="" if theirs is None or plan.runs_by is None else plan.runs_by.software,
        programs_bytes=own_bytes,
        step_ns=None if plan.predicted is None else plan.predicted.step_ns,
    )


def _of_runtime(plan: Plan) -> list[int] | None:
    """The peak memory in bytes of every rank as the runtime that a plan is for holds it: predicted again on the devices that
    the plan states, or else as the plan has it. None if the plan is for no other runtime."""
    devices = devices_of(plan)
    found = "no devices" if plan.runs_by is None or devices is None else predict(plan, devices)
    if not isinstance(found, str):
        return list(found.peak_bytes)
    predicted = plan.predicted
    return predicted.peak_bytes if predicted is not None and predicted.software else None


def check_claim(plan: Plan, profile: Profile | None = None) -> CheckedClaim | None:
    """Check the lower bound that a plan claims: build the claim's problem instance again, evaluate the plan in it, and check
    the evidence of the bound.

    profile: the profile that the plan was made from, if it was made from one. Returns None if the plan claims no bound, or the
    claim has no evidence. Raises InputError if the instance cannot be built.
    """
    claim = plan.claim
    if claim is None or claim.evidence is None:
        return None
    claimed, evidence, the_problem = (claim.problem, claim.bound_ns, claim.bound_source), claim.evidence, problem(claim.problem)
    if evidence.cluster is None and profile is None:
        return CheckedClaim(*claimed, unchecked="the plan was made from a profile; give it as --profile")
    request = request_of_claim(plan, evidence, profile)
    faults, restrictions, objective, bound, weak = contradictions(plan, request), tuple[str, ...](), None, None, None
    try:
        scope, certificate = the_problem.scope, the_problem.certificate
        restrictions = () if scope is None else tuple(scope.restrictions(request, claim.cost_model))
        instance = the_problem.instance(request)
        if claim.cost_model != (costs := the_problem.cost_model(instance)):
            faults.append(f"the plan's bound is of the cost model {claim.cost_model!r}, and its evidence of {costs!r}")
        if certificate is None:
            raise ValueError(f"bounds of {the_problem.name} have no evidence")
        bound = weak = certificate.checked_bound_ns(instance, None)
        solution = the_problem.load_solution(evidence.solution)
        faults += the_problem.violations(instance, solution)
        objective = the_problem.evaluate(instance, solution).objective
        if objective != claim.objective_ns:
            faults.append(f"the plan's objective is {objective} ns, not {claim.objective_ns}")
        if not _same(the_problem.plan(instance, solution, request), plan):
            faults.append("the evidence is of another plan")
        if evidence.proof is not None:
            bound = certificate.checked_bound_ns(instance, evidence.proof)
        if bound < evidence.bound_ns:
            faults.append(f"the evidence shows {bound} ns, not {evidence.bound_ns}")
    except InputError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        missing = f"{error} is missing" if isinstance(error, KeyError) else error
        faults.append(str(error) if isinstance(error, ValueError) else f"the evidence is damaged: {missing}")
    proven = (evidence.proof is not None, plan.memory_bytes, restrictions)
    return CheckedClaim(*claimed, objective, bound, weak, *proven, tuple(faults))


def contradictions(plan: Plan, request: Request) -> list[str]:
    """The statements of a plan's claim that its own numbers, or the request in its evidence, refute: a text for each, such as
    that the lower bound is above the objective. Empty if there is none."""
    claim, faults = plan.claim, list[str]()
    assert claim is not None
    if claim.bound_ns is not None and claim.bound_ns > claim.objective_ns:
        faults.append(f"the lower bound of {claim.bound_ns} ns is above the plan's own objective of {claim.objective_ns} ns")
    gap = relative_gap(claim.objective_ns, claim.bound_ns)
    if (gap is None) != (claim.gap is None) or abs((gap or 0.0) - (claim.gap or 0.0)) > GAP_ROUNDING:
        faults.append(f"the gap is written as {claim.gap}, and by its own bound it is {gap}")
    if claim.status not in SOLVED:
        faults.append(f"the status is {claim.status!r}, and there is a plan")
    if plan.memory_bytes != (limit := request.with_margin(0).limit_bytes):
        faults.append(f"the plan is for {plan.memory_bytes} bytes of each device, and the evidence for {limit}")
    known = {parameter.name for parameter in problem(claim.problem).parameters}
    unknown = [name for name in request.options if name not in known]
    faults += [f"the evidence has the option {name!r}, which is none of {claim.problem}" for name in unknown]
    return faults


# Options of the joint problem that the evidence of plans of earlier versions does not have.
LATER = ("recompute_first", "precision", "gradients", "cp_exchange", "optimizer", "layouts")


def request_of_claim(plan: Plan, evidence: PlanEvidence, profile: Profile | None) -> Request:
    """The request that a plan answers, as the evidence of its claimed bound states it.

    profile: the profile that the plan was made from, if it was made from one. Evidence of earlier versions lacks some options,
    which get their defaults, and its option fp8 becomes a precision. Raises InputError for an option with a bad value.
    """
    assert plan.claim is not None
    parameters = {parameter.name: parameter for parameter in problem(plan.claim.problem).parameters}
    given = dict(evidence.options)
    if "fp8" not in parameters and isinstance(fp8 := given.pop("fp8", None), bool):
        given.setdefault("precision", "fp8" if fp8 else "model")
    options = {name: parameters[name].default for name in LATER if name in parameters}
    options |= {name: parameters[name].value(value) if name in parameters else value for name, value in given.items()}
    return Request(
        plan.planned_model() if profile is None or profile.described_model is not None else None,
        None if evidence.cluster is None else Cluster.model_validate(evidence.cluster),
        plan.batch.global_samples,
        evidence.memory_bytes,
        profile=profile,
        options=options,
    )


def _same(one: Plan, other: Plan) -> bool:
    """Whether two plans have equal content, apart from the memory limit and the back-end that they are made for."""
    ignored = {"memory_bytes", "backend"}
    contents = [{name: value for name, value in plan.content.items() if name not in ignored} for plan in (one, other)]
    return contents[0] == contents[1]


def check_solution(instance: InstanceLike | Source, solution: Result | Source | Sequence[int]) -> Checked:
    """Check a solution of a problem instance: its time, its memory, and every constraint that it breaks.

    instance: the instance, its file, or a dict. solution: a Result, a file, a dict, or a sequence of numbers (the problem's one
    field). Raises InputError for a malformed file. A solution that cannot be evaluated has no costs in the answer.
    """
    loaded = load(instance)
    the_problem = problem_of(loaded)
    answer = solution_of(loaded, solution_source(the_problem, solution))
    broken, limit = tuple(the_problem.violations(loaded, answer)), loaded.common_memory_bytes
    try:
        costs = the_problem.describe(loaded, answer)
    except ValueError:
        return Checked(loaded.problem, None, None, None, None, limit, broken)
    peak = {name: costs.get(name) for name in ("peak_bytes", "peak_layer_name", "peak_ns")}
    return Checked(loaded.problem, costs["time_ns"], **peak, memory_bytes=limit, violations=broken)


def solution_source(the_problem: Problem, solution: Result | Source | Sequence[int]) -> Source:
    """A solution as a file or a dict that its problem can load.

    A Result gives its own solution; a bare sequence of numbers becomes a dict with the problem's one field; a file or a dict is
    returned as it is. Raises InputError for a Result without a solution.
    """
    if isinstance(solution, Result):
        if solution.solution is None:
            raise InputError("solution", "", f"is a result without one ({solution.status})", "solve the instance first")
        return solution.solution
    return solution if isinstance(solution, str | os.PathLike | Mapping) else {the_problem.solution_field: list(solution)}
