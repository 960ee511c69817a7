"""The method `decomposition`: the joint problem solved to a proven gap.

The configuration with the least lower bound is bounded more sharply by its next step, until no configuration is left below the
best plan less the requested gap:

    quick       every unit at its cheapest, stages even                                  `closed_form_bound`, `heuristics`
    coarse      rough bounds on all spans: is a better step possible?                    `span_bounds`, `path_bound_search`
    fine        the same with all prices and depths: the least step by these bounds
    paths       stages that the least path uses are solved exactly, its pipeline is simulated, and the path is searched again,
                until its bounds are exact, or have not risen for some rounds (not of pipelines that mostly fill and empty,
                which are priced at once)
    classes     the same with interface states at cuts distinguished, where stages do not know what their neighbours send
    whole       the same along one whole partition at a time                              `path_relaxation`
    priced      weighted paths and prices of memory along all pipelines at once, and plans from these    `free_cuts.lp_bound`
    suffixes    all columns of the spans that remain, and all pipelines of them          `pareto_fronts`, `suffix_enumeration`

Configurations whose units must all choose the same option are enumerated (`uniform_choices`). Interleaved ones come after all
others, or after a share of the time: each takes long (`interleaved`), and the best plan of the others excludes most of them at
once.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
from trainplan.formulations.joint.evaluation import evaluate
from trainplan.formulations.joint.problem import Instance, Solution, uncounted
from trainplan.formulations.schedule.orders import by_order
from trainplan.profiling.base.errors import Unsupported
from trainplan.solvers.core.incumbents import FIRST_PLAN
from trainplan.solvers.core.search import CUTOFF, Outcome, Search
from trainplan.solvers.joint.closed_form_bound import holds_states, quick_bound_ns
from trainplan.solvers.joint.fixed_cuts.search import fixed_cuts
from trainplan.solvers.joint.fixed_cuts.uniform_choices import agreeing_choices, best_agreeing
from trainplan.solvers.joint.free_cuts.configuration_bounds import EXACT_FLOATS, GROUPS
from trainplan.solvers.joint.free_cuts.configuration_search import Candidate
from trainplan.solvers.joint.free_cuts.critical_path_bounds import gpipe_ns, one_f_one_b_ns
from trainplan.solvers.joint.free_cuts.pareto_fronts import TooMany
from trainplan.solvers.joint.free_cuts.path_relaxation import Step
from trainplan.solvers.joint.heuristics import best_quick_plan, first_plan
from trainplan.solvers.joint.interleaved import interleaved
from trainplan.solvers.joint.runtime_search import runtime_search
from trainplan.solvers.joint.speculative_workers import JOBS, Ahead, ahead
from trainplan.solvers.joint.stages.single_stage import Single

SOURCE = "bounds on all spans, a master over suffixes, exact on the stages used"
SEARCHED = "bounds on all spans, exact on the stages used, the rest simulated"
MEMORY = "least memory over all stages"
STEPS = ("coarse", "fine", "paths", "classes", "priced", "suffixes", "interleaved", "agreeing")
QUICK, COARSE, FINE, PATHS, CLASSES, PRICED, SUFFIXES = range(7)
STRAIGHT = 0.5  # the share of the time after which interleaved configurations have their turn
SHARE = 16  # parts of the requested gap, of which one stage may be off by one
FINENESS = 16  # parts of the requested gap, of which bisection may be off by one
LABELS, MORE, MOST_LABELS = 20_000, 4, 320_000  # of one unit in a front: at first, the factor of the next try, and at most
PARTS = 4  # of the gap between bound and target, of which one is settled first, and then twice as much
MOST_STALLED = 5  # rounds of a path that do not raise the bound, before the next step
MOST_PARTITIONS = 40  # that are bounded one by one where fronts are larger


def decomposition(instance: Instance, search: Search) -> Outcome:
    """The method `decomposition` of the joint problem: find the best plan (number of stages, cuts, and an option for every
    sub-layer) and a lower bound on all plans. The plan is optimal within the search's relative gap unless time runs out.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from. search: the run's limits and options, and its
    best solution so far, to which better ones are reported. The search's option `cutoff_ns`: only plans with a shorter step
    time than this are of interest; nothing is proven about slower plans."""
    if instance.runtime is not None:
        return runtime_search(instance, search)
    return _Run(instance, search).outcome()


@dataclass
class _Entry:
    """The state of one configuration (number of stages and micro-batches, with a schedule) in the search.

    configuration_index: the configuration's index in the instance. candidate: the object that searches it and has all of its
    tables, None before its first step. stage: the step of the method that comes next, such as QUICK. path: the cheapest
    sequence of pipeline stages by its bounds. states_distinguished: whether interface states (layouts of activations) at cuts
    are distinguished. whole: whether the bounds follow whole partitions into stages, which is sharper and slower. share: the
    fraction of the gap between the configuration's bound and the best plan that is searched next. labels: the most labels
    (partial stages) that may be kept for that. stalled: steps taken since the bound last rose."""

    configuration_index: int
    candidate: Candidate | Single | None = None
    stage: int = QUICK
    path: tuple[Step, ...] | None = None
    states_distinguished: bool = False
    whole: bool = False
    share: float = 1 / PARTS
    labels: int = LABELS
    stalled: int = 0


def _or_none(value: float) -> float | None:
    """A lower bound for a report: the value itself, or None if it is infinite, which means that no plan remains."""
    return None if value == inf else value


Waiting = tuple[float, int, _Entry]  # a configuration's bound, its index in the instance, and its entry


class _Run:
    """One search over the configurations of an instance (numbers of stages and micro-batches, with a schedule), which are
    advanced step by step in the order of their lower bounds.

    statistics: counts of the steps taken. abandoned_bound_ns: the least bound in ns of the configurations that are not searched
    further; the final bound cannot exceed it. abandoned: whether some configurations were given up because they had too many
    labels (partial stages). source: the name of what proves the bound, for users. tolerance: the relative gap to which a single
    stage is solved; loosest: the largest relative gap with which a stage's solution ended."""

    def __init__(self, instance: Instance, search: Search) -> None:
        self.instance, self.search = instance, search
        check_supported(instance)
        self.statistics: dict[str, Any] = dict.fromkeys((*STEPS, "stages_solved"), 0)
        self.abandoned_bound_ns = inf  # the least bound of configurations that are abandoned
        self.abandoned = False  # whether some were for the number of their labels
        self.source = SOURCE
        self.tolerance, self.loosest = search.gap / SHARE, 0.0

    def outcome(self) -> Outcome:
        """Run the whole search, until the gap is closed or time is up; return the outcome, with the lower bound that is proven.
        Plans are reported to the search on the way."""
        waiting: list[Waiting] = []
        try:
            if self.search.objective is None:
                self.search.report(first_plan(self.instance), source=FIRST_PLAN)
            bounds = []
            for configuration in self.instance.configurations:
                possible = holds_states(self.instance, configuration)
                bounds.append(quick_bound_ns(self.instance, configuration) if possible else inf)
                self.search.check_time()
            waiting = [
                (bound, configuration_index, _Entry(configuration_index))
                for configuration_index, bound in enumerate(bounds)
                if bound < inf
            ]
            plan = best_quick_plan(self.instance, bounds, self.search.target())
            self.search.report(plan, source=FIRST_PLAN)
        except TimeoutError:
            return Outcome(bound_source=self.source, message="time ran out before all configurations were bounded")
        straight = sorted(item for item in waiting if not self._is_interleaved(item[1]))
        chunked = sorted(item for item in waiting if self._is_interleaved(item[1]))
        with ahead(
            self,
            self.search.options.get(JOBS),
            (QUICK, COARSE),
            lambda configuration_index, stage: _Entry(configuration_index, stage=stage),
        ) as jobs:
            self._settle(straight, chunked, jobs, self.search.elapsed() + STRAIGHT * self.search.remaining())
            self._settle(chunked, straight, jobs)
            self._settle(straight, chunked, jobs)
        return self._ended(min([self.abandoned_bound_ns, *(item[0] for item in straight + chunked)]))

    def _is_interleaved(self, configuration_index: int) -> bool:
        """Whether the schedule of a configuration is interleaved: each device group runs several stages.

        configuration_index: the configuration's index in the instance."""
        return self.instance.configurations[configuration_index].schedule.chunks > 1

    def _settle(self, waiting: list[Waiting], others: Sequence[Waiting], jobs: Ahead, until: float = inf) -> None:
        """Advance the configurations of a heap until none of them can improve the best plan, or time is up.

        waiting: the heap (bound, index, entry), which is changed. others: entries (bound, index, entry) that are not advanced
        here, whose bounds count for the lower bound on all configurations. jobs: processes that may take steps in advance.
        until: seconds from the start of the search after which no step begins."""
        least = min((other[0] for other in others), default=inf)
        while waiting and waiting[0][0] <= self.search.target():
            bound, configuration_index, entry = waiting[0]
            self._note(min(bound, least, self.abandoned_bound_ns))
            if self.search.out_of_time() or self.search.elapsed() >= until:
                return
            try:
                following = jobs.advanced(bound, entry, waiting)
            except TimeoutError:
                return
            if following is None:
                heapq.heappop(waiting)
            else:
                heapq.heapreplace(waiting, (max(bound, following), configuration_index, entry))

    def _note(self, bound: float) -> None:
        """Report a lower bound in ns on all configurations to the search, if it is finite and a plan is known. bound: in ns."""
        if self.search.objective is not None and bound < inf:
            self.search.report(bound=int(min(bound, self.search.objective)), source=self.source)

    def _ended(self, bound: float) -> Outcome:
        """Build the outcome of the whole search. bound: a lower bound in ns on all configurations, infinite if no plan of any
        of them fits the memory or improves the best plan."""
        search, target = self.search, self.search.target()
        proven = min(bound, target + 1)
        if search.objective is None:
            if proven == inf:
                return Outcome(infeasible=True, bound_source=MEMORY, statistics=self.statistics)
            message = "time ran out before a plan was found" if search.out_of_time() else "no plan was found"
            message += f" below {CUTOFF}" * (CUTOFF in search.options)
            return Outcome(bound=int(proven), bound_source=self.source, message=message, statistics=self.statistics)
        whole = int(min(proven, search.objective))
        search.report(bound=whole, source=self.source)
        if search.bound is not None and search.bound < search.objective:
            self.statistics["gap_ns"] = gap_parts(self.instance, search.best, search.objective - search.bound, self.loosest)
        ended: str | None = None
        if self.abandoned and not search.closed() and not search.out_of_time():
            ended = f"given up above the gap where the columns of a stage are more than {MOST_LABELS} labels"
        return Outcome(bound=search.bound, bound_source=search.bound_source, message=ended, statistics=self.statistics)

    def advanced(self, bound: float, entry: _Entry) -> float | None:
        """Take the next step of one configuration: bound it more sharply, or search it. Returns its lower bound in ns
        afterwards; None once it cannot improve the best plan or is recorded in `abandoned_bound_ns`.

        bound: the configuration's lower bound in ns so far. entry: the configuration's record in the search (its next step and
        what it has found), which is changed. Raises TimeoutError.
        """
        index = entry.configuration_index
        configuration = self.instance.configurations[index]
        if agreeing_choices(configuration) is not None:
            self._solve_agreeing(index)
            return None
        if self._is_interleaved(index):
            self.statistics["interleaved"] += 1
            self._abandon(interleaved(self.instance, index, bound, self.search))
            return None
        if entry.candidate is None:
            entry.candidate = (Single if configuration.stages == 1 else Candidate)(self.instance, index, self.search)
        candidate = entry.candidate
        if isinstance(candidate, Single):
            self.statistics["stages_solved"] += 1
            self._abandon(candidate.run(self.search.target, self.tolerance))
            return None
        if entry.stage == PRICED:
            entry.stage = SUFFIXES
            if candidate.schedule == "sliced":
                return bound
            self.statistics["priced"] += 1
            return _or_none(candidate.priced(bound))
        if entry.stage == SUFFIXES:
            return self._settled(candidate, bound, entry)
        refining = entry.stage in (FINE, PATHS)
        value = self._refined(candidate, bound, entry) if refining else self._prepared(candidate, bound, entry)
        return None if value == inf or entry.path is None else value

    def _abandon(self, bound_ns: float) -> None:
        """Record the lower bound in ns of a configuration that is not searched further; the final bound cannot exceed it.
        bound_ns: that bound."""
        self.abandoned_bound_ns = min(self.abandoned_bound_ns, bound_ns)

    def _solve_agreeing(self, configuration_index: int) -> None:
        """Solve a configuration with fixed cuts whose sub-layers must all choose the same option, by evaluating every option;
        its best plan is reported to the search if it is better than the best known.

        configuration_index: the configuration's index in the instance."""
        self.statistics["agreeing"] += 1
        found = best_agreeing(self.instance, configuration_index, self.search.target(), self.search)
        if found is not None:
            self.search.report(found[1])

    @property
    def _fineness(self) -> float:
        """The relative precision of the bisection by which the least possible step of a configuration is found: a fraction of
        the search's gap."""
        return self.search.gap / FINENESS

    def _prepared(self, candidate: Candidate, bound: float, entry: _Entry) -> float:
        """Bound a configuration's step time by computing new bounds on all spans (consecutive sub-layers): rough ones, finer
        ones, or ones that distinguish interface states (layouts of activations) at cuts. Returns the configuration's lower
        bound in ns.

        candidate: the configuration's tables. bound: the lower bound in ns so far. entry: the configuration's record in the
        search (its next step and what it has found), whose path and next step are set.
        """
        target, fineness = self.search.target(), self._fineness
        if entry.stage == QUICK:
            self.statistics["coarse"] += 1
            candidate.prepare(target, coarse=True)
            following, fineness = COARSE, max(fineness, 1e-2)
        elif entry.stage == COARSE:
            self.statistics["fine"] += 1
            candidate.prepare(target, coarse=False)
            following = PRICED if candidate.filling else FINE
        else:
            self.statistics["classes"] += 1
            candidate.prepare(target, coarse=False, groups=GROUPS)
            following = PATHS
        value, entry.path = candidate.path_search.bound(self.search.target(), fineness, bound)
        if entry.stage == CLASSES:
            entry.states_distinguished, entry.stalled = True, 0
        entry.stage = following
        return value

    def _refined(self, candidate: Candidate, bound: float, entry: _Entry) -> float:
        """Bound a configuration by solving the pipeline stages that its cheapest path uses exactly, and searching the cheapest
        path again. Returns the configuration's lower bound in ns.

        candidate: the configuration's tables. bound: the lower bound in ns so far. entry: the configuration's record in the
        search (its next step and what it has found), whose path is set, and, once this step no longer helps, whose next step is
        set.
        """
        self.statistics["paths"] += 1
        assert entry.path is not None
        rose = candidate.refine(entry.path, self.tolerance)
        if entry.whole:
            rose |= candidate.refine_first(entry.path, self.search.target(), self.tolerance)
        candidate.report(entry.path)
        self.statistics["stages_solved"] += candidate.take_count()
        self.loosest = max(self.loosest, candidate.exact.loosest)
        value, path = candidate.path_search.bound(self.search.target(), self._fineness, bound, entry.whole)
        entry.stalled = 0 if value > bound else entry.stalled + 1
        if (rose or path != entry.path) and entry.stalled < MOST_STALLED:
            entry.stage = PATHS
        elif not entry.states_distinguished and candidate.classes > 1:
            entry.stage = CLASSES
        elif not entry.whole:
            entry.whole = True
            value, path = candidate.path_search.bound(self.search.target(), self._fineness, bound, whole=True)
        else:
            entry.stage = PRICED
        entry.path = path
        return value

    def _settled(self, candidate: Candidate, bound: float, entry: _Entry) -> float | None:
        """Evaluate all pipelines of a configuration whose step time is at most a limit; the limit lies between the
        configuration's lower bound and the best plan's step time. Returns its lower bound in ns afterwards; None if it cannot
        improve the best plan.

        candidate: the configuration's tables. bound: the lower bound in ns so far. entry: the configuration's record in the
        search (its next step and what it has found), in which the next limit is set.
        """
        self.statistics["suffixes"] += 1
        self.source, target = SEARCHED, self.search.target()
        limit = 2 * bound if target == inf else min(target, bound + np.ceil((target - bound) * entry.share))
        try:
            value = candidate.enumerated(limit, self.search.target, entry.labels)
        except TooMany:
            return self._by_partitions(candidate, bound, entry)
        if value < inf:
            self.abandoned_bound_ns = min(self.abandoned_bound_ns, value)
            return None
        entry.share = min(1.0, 2 * entry.share)
        return None if limit >= min(self.search.target(), EXACT_FLOATS) else limit + 1

    def _by_partitions(self, candidate: Candidate, bound: float, entry: _Entry) -> float | None:
        """Bound a configuration that has too many labels (partial stages) to enumerate, by the linear program of every
        partition that the bounds on spans allow, if these are few.

        candidate: the configuration's tables. bound: the lower bound in ns so far. entry: the configuration's record in the
        search (its next step and what it has found). Returns the configuration's lower bound in ns afterwards; None if it
        cannot improve the best plan. A configuration that this does not settle gets more labels next, up to MOST_LABELS, and is
        then abandoned. Raises TimeoutError.
        """
        configuration_index, limit = candidate.configuration_index, self.search.target()
        configuration = self.instance.configurations[configuration_index]
        few = None
        if not configuration.schedule.sliced and limit < inf and entry.labels == LABELS:
            few = candidate.partitions(limit, MOST_PARTITIONS)
        least = bound
        if few is not None:
            configurations, least = list(self.instance.configurations), inf
            for cuts in few:
                configurations[configuration_index] = replace(configuration, cuts=cuts)
                part = replace(self.instance, configurations=tuple(configurations))
                least = min(least, fixed_cuts(part, configuration_index, bound, self.search))
        if least > self.search.target():
            self.abandoned_bound_ns = min(self.abandoned_bound_ns, least)
            return None
        if entry.labels < MOST_LABELS:
            entry.labels *= MORE
            return max(bound, least)
        self.abandoned, self.abandoned_bound_ns = True, min(self.abandoned_bound_ns, least)
        return None


def check_supported(instance: Instance) -> None:
    """Check that the method `decomposition` can prove lower bounds for an instance. Raises Unsupported if the instance's
    objective is not the simulated step time, if the instance counts times or memory that this method does not, or if the device
    groups of a configuration (number of stages and micro-batches, with a schedule) are of several kinds or memories.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from."""
    if instance.step != "simulated":
        raise Unsupported("instance", "step", f"is {instance.step!r}", "give 'simulated', or take another method")
    if why := uncounted(instance):
        raise Unsupported("instance", "configurations", f"have {why}", "take milp, cpsat or brute-force")
    for index, configuration in enumerate(instance.configurations):
        schedule = configuration.schedule
        if not (schedule.has_closed_forms or schedule.sliced or schedule.chunks > 1):
            fix = "take milp, cpsat or brute-force: no lower bounds of its paths are known"
            raise Unsupported("instance", f"configurations[{index}].schedule", f"is {schedule.name!r}", fix)
        if (
            len({group.kind for group in configuration.device_groups}) > 1
            or len({instance.limit_bytes(group) for group in configuration.device_groups}) > 1
        ):
            problem, fix = "has device groups of several kinds or memories", "give equal device groups, or take another method"
            raise Unsupported("instance", f"configurations[{index}]", problem, fix)


def gap_parts(instance: Instance, solution: Solution, gap_ns: int, loosest: float) -> dict[str, int]:
    """Divide the gap that remains between the best plan and the lower bound into its causes, for users: a dict of three numbers
    of ns that add up to gap_ns.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from. solution: the best plan. gap_ns: the gap.
    loosest: the largest relative gap with which the solution of a single stage ended. The keys are `tolerance of stages`: the
    most by which stages solved inexactly can have lowered the bound; `step above its longest path`: how much longer the plan's
    simulated step is than the longest path through it that the bounds consider; `left to search`: the rest, due to plans that
    were not excluded."""
    evaluation, configuration = evaluate(instance, solution), instance.configurations[solution.configuration]
    tolerance = min(gap_ns, int(loosest * evaluation.time_ns))
    path = 0
    if configuration.schedule.has_closed_forms and configuration.stages > 1:
        path = min(gap_ns - tolerance, evaluation.time_ns - _by_paths_ns(instance, solution))
    return {"tolerance of stages": tolerance, "step above its longest path": path, "left to search": gap_ns - tolerance - path}


def _by_paths_ns(instance: Instance, solution: Solution) -> int:
    """The length in ns of the longest path through a plan's simulated step, among the paths whose length has a closed form. A
    path is a chain of passes that wait for one another, through one stage each, followed by the work at the end of stage 0. The
    result is at most the plan's simulated step time. solution: the plan.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from."""
    configuration, evaluation = instance.configurations[solution.configuration], evaluate(instance, solution)
    times, m = [stage.times for stage in evaluation.stages], configuration.micro_batches
    u = [time.micro_batch_ns + time.message_forward_ns + time.message_backward_ns for time in times]
    extra = times[0].last_ns + times[0].reduce_ns + times[0].optimizer_ns + evaluation.tied_ns
    longest = 0
    for x, mine in enumerate(u):
        w, after = len(u) - 1 - x, sum(u[x + 1 :])
        path = by_order(configuration.schedule.name, gpipe=gpipe_ns, one_f_one_b=one_f_one_b_ns)
        longest = max(longest, sum(u[:x]) + int(path(mine, after, w, m)) + extra)
    return min(longest, evaluation.time_ns)
