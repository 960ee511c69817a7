"""Instances, solutions and plans from files, and what is wrong with them."""

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
from trainplan.inputs import compiles, profile_of
from trainplan.profiling.base.display import in_one_line
from trainplan.profiling.base.errors import InputError, one_of, shown
from trainplan.profiling.base.files import FilePath, Source, name_of_source, read_data
from trainplan.profiling.base.quantities import format_bytes, format_gap
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.profiles import Profile
from trainplan.solvers.core.result import Result, relative_gap

SOLVED = ("optimal", "feasible")
GAP_ROUNDING = 1e-9


@in_one_line
@dataclass(frozen=True)
class Checked:
    """What `check` found: time and memory of a solution, and every constraint that it breaks, in words.

    peak_layer_name, peak_ns: where in the model, or when in the step, the peak is, whichever the problem tells.
    """

    problem: str
    objective: int | None
    peak_bytes: int | None
    peak_layer_name: str | None
    peak_ns: int | None
    memory_bytes: int | None
    violations: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return asdict(self)


@dataclass(frozen=True)
class CheckedClaim:
    """What `check` says of a plan's claim, without any solver.

    claimed_bound_ns, claimed_source: what the solver says, which nothing here has checked. objective_ns: the plan's, evaluated
    again. bound_ns: what the claim's evidence proves in whole numbers; weak_bound_ns: what needs no evidence; evidence: whether
    there is some beyond that. restrictions: what the request left out, as the command's options say it. faults: what is claimed
    and does not hold. unchecked: why nothing was checked.
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
        """What is proven, in a sentence."""
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
    """What `check` says of a plan: what is wrong with its programs, and what its fullest device needs; and of its claim, where
    that has evidence.

    programs: those that were checked, of every rank, or of one of each class of equal ranks where there are many;
    instructions: of these. stood_in_for: what of the plan no program carries out yet, where others stand for its own.
    peak_bytes, host_bytes: of rank `peak_rank`, by the memory walk (None where there are faults).
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

    @property
    def violations(self) -> tuple[str, ...]:
        """What is wrong, in words: faults of the programs or the claim, or more memory than the plan was made for."""
        faults = self.faults + (() if self.claim is None else self.claim.faults)
        if self.peak_bytes is None or self.peak_bytes <= self.memory_bytes:
            return faults
        over = f"rank {self.peak_rank} needs {self.peak_bytes} bytes, more than memory_bytes = {self.memory_bytes}"
        return (*faults, over)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {**asdict(self), "violations": self.violations}


def load(source: InstanceLike | Source) -> Any:
    """An instance from a file's path or a dict in its format.

    Args:
        source: the file or the dict; an instance is given back.

    Returns:
        The instance.

    Raises:
        InputError: for what is no instance, naming the field.
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
    """A plan or an instance: itself, or from its file or a dict in its format. Raises InputError."""
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
        solution: of an instance: a file, a dict, or a Result's.
        profile: that the plan was made from, which its bound is checked with.

    Returns:
        What is wrong, if anything, and what the plan or the solution needs and takes.

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
    content = read_data(source) if isinstance(source, str | os.PathLike) else source
    return isinstance(content, Mapping) and "format" in content and "problem" not in content


def check_plan(plan: Plan, where: str = "plan", profile: Profile | None = None) -> CheckedPlan:
    """Compile a plan's programs, check them, and walk them for memory; and check its claim. where: what errors call it. Raises
    InputError."""
    model = plan.planned_model()
    if not compiles(model):
        fix = f"give a plan of a model that becomes programs: {', '.join(EXECUTED_FAMILIES)}"
        raise InputError(where, "model.config.model_type", f"is {model.family!r}", fix)
    made, walks = memory_of(plan)
    fullest = max(zip(made.classes, walks, strict=True), key=lambda each: each[1].peak_bytes) if walks else None
    return CheckedPlan(
        model=model.name,
        ranks=plan.world,
        programs=len(made.programs),
        instructions=made.instructions,
        peak_bytes=None if fullest is None else fullest[1].peak_bytes,
        peak_rank=None if fullest is None else fullest[0],
        host_bytes=None if fullest is None else fullest[1].host_bytes,
        memory_bytes=plan.memory_bytes,
        faults=tuple(made.faults),
        stood_in_for=stood_in_for(plan),
        claim=check_claim(plan, profile),
    )


def check_claim(plan: Plan, profile: Profile | None = None) -> CheckedClaim | None:
    """Make the instance that a plan's claim speaks of again, evaluate the plan in it, and follow the evidence of the bound.

    profile: that the plan was made from. None where the claim has no evidence. Raises InputError where no instance can be made.
    """
    claim = plan.claim
    if claim is None or claim.evidence is None:
        return None
    said, evidence, stated = (claim.problem, claim.bound_ns, claim.bound_source), claim.evidence, problem(claim.problem)
    if evidence.cluster is None and profile is None:
        return CheckedClaim(*said, unchecked="the plan was made from a profile; give it as --profile")
    request = request_of_claim(plan, evidence, profile)
    faults, restrictions, objective, bound, weak = contradictions(plan, request), tuple[str, ...](), None, None, None
    try:
        scope, certificate = stated.scope, stated.certificate
        restrictions = () if scope is None else tuple(scope.restrictions(request, claim.cost_model))
        instance = stated.instance(request)
        if claim.cost_model != (costs := stated.cost_model(instance)):
            faults.append(f"the plan's bound is of the cost model {claim.cost_model!r}, and its evidence of {costs!r}")
        if certificate is None:
            raise ValueError(f"bounds of {stated.name} have no evidence")
        bound = weak = certificate.checked_bound_ns(instance, None)
        solution = stated.load_solution(evidence.solution)
        faults += stated.violations(instance, solution)
        objective = stated.evaluate(instance, solution).objective
        if objective != claim.objective_ns:
            faults.append(f"the plan's objective is {objective} ns, not {claim.objective_ns}")
        if not _same(stated.plan(instance, solution, request), plan):
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
    return CheckedClaim(*said, objective, bound, weak, *proven, tuple(faults))


def contradictions(plan: Plan, request: Request) -> list[str]:
    """What a claim says that its own numbers, or the request of its evidence, refute, in words."""
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


LATER = (
    "recompute_first",
    "precision",
    "gradients",
    "cp_exchange",
    "optimizer",
)  # options that evidence of earlier plans does not have


def request_of_claim(plan: Plan, evidence: PlanEvidence, profile: Profile | None) -> Request:
    """The request that a plan is the answer to, as the evidence of its claim has it: of options that were not there
    yet, the default; --fp8 is the recipe that it was before there were others. Raises InputError."""
    assert plan.claim is not None
    asked = {parameter.name: parameter for parameter in problem(plan.claim.problem).parameters}
    given = dict(evidence.options)
    if "fp8" not in asked and isinstance(fp8 := given.pop("fp8", None), bool):
        given.setdefault("precision", "fp8" if fp8 else "model")
    options = {name: asked[name].default for name in LATER if name in asked}
    options |= {name: asked[name].value(value) if name in asked else value for name, value in given.items()}
    return Request(
        plan.planned_model() if profile is None or profile.described_model is not None else None,
        None if evidence.cluster is None else Cluster.model_validate(evidence.cluster),
        plan.batch.global_samples,
        evidence.memory_bytes,
        profile=profile,
        options=options,
    )


def _same(one: Plan, other: Plan) -> bool:
    """Whether two plans do the same, whatever memory and back-end they are for."""
    apart = {"memory_bytes", "backend"}
    contents = [{name: value for name, value in plan.content.items() if name not in apart} for plan in (one, other)]
    return contents[0] == contents[1]


def check_solution(instance: InstanceLike | Source, solution: Result | Source | Sequence[int]) -> Checked:
    """Check a solution (a file, a dict, or a Result's) against an instance. Raises InputError for malformed files."""
    loaded = load(instance)
    stated = problem_of(loaded)
    answer = solution_of(loaded, solution_source(stated, solution))
    broken, limit = tuple(stated.violations(loaded, answer)), loaded.common_memory_bytes
    try:
        costs = stated.describe(loaded, answer)
    except ValueError:
        return Checked(loaded.problem, None, None, None, None, limit, broken)
    peak = {name: costs.get(name) for name in ("peak_bytes", "peak_layer_name", "peak_ns")}
    return Checked(loaded.problem, costs["time_ns"], **peak, memory_bytes=limit, violations=broken)


def solution_source(stated: Problem, solution: Result | Source | Sequence[int]) -> Source:
    """A solution as the problem reads it: a Result's, a bare sequence of numbers as its one list. Raises InputError."""
    if isinstance(solution, Result):
        if solution.solution is None:
            raise InputError("solution", "", f"is a result without one ({solution.status})", "solve the instance first")
        return solution.solution
    return solution if isinstance(solution, str | os.PathLike | Mapping) else {stated.solution_field: list(solution)}
