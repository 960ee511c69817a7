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
from trainplan.profiling.base.errors import Unsuited
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
    """The best plan and bound; optimal within the search's gap unless time runs out.

    Option `cutoff_ns`: only plans faster than this are of interest, and nothing is proven beyond it.
    """
    return _Run(instance, search).outcome()


@dataclass
class _Entry:
    """The state of a configuration in the search. configuration_index: in the instance. stage: the step that comes next. path:
    the least path by its bounds. states_distinguished: whether interface states at cuts are distinguished. whole: whether paths
    follow whole partitions. share: the part of the gap that is settled next (`PARTS`). labels: the most labels for that.
    stalled: rounds of a path since the bound last rose."""

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
    """The value, or None where it is infinite."""
    return None if value == inf else value


Waiting = tuple[float, int, _Entry]  # a configuration's bound, its index in the instance, and its entry


class _Run:
    """One search: its statistics, and the least bound of the configurations that are abandoned, which the final bound cannot
    exceed."""

    def __init__(self, instance: Instance, search: Search) -> None:
        self.instance, self.search = instance, search
        check_supported(instance)
        self.statistics: dict[str, Any] = dict.fromkeys((*STEPS, "stages_solved"), 0)
        self.abandoned_bound_ns = inf  # the least bound of configurations that are abandoned
        self.abandoned = False  # whether some were for the number of their labels
        self.source = SOURCE
        self.tolerance, self.loosest = search.gap / SHARE, 0.0

    def outcome(self) -> Outcome:
        """Search until the gap is closed or time is up, and return what was found and proven."""
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
        """Whether device groups of a configuration have several stages."""
        return self.instance.configurations[configuration_index].schedule.chunks > 1

    def _settle(self, waiting: list[Waiting], others: Sequence[Waiting], jobs: Ahead, until: float = inf) -> None:
        """Advance the configurations of a heap until none of them can improve the best plan, or time is up. others: the entries
        that wait meanwhile. until: seconds from the start of the search after which no step begins."""
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
        """Report a lower bound of all configurations, once there is a plan."""
        if self.search.objective is not None and bound < inf:
            self.search.report(bound=int(min(bound, self.search.objective)), source=self.source)

    def _ended(self, bound: float) -> Outcome:
        """The outcome of the search, with `bound` as the lower bound of all configurations."""
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
        """The lower bound in ns of a configuration after its next step; None once it cannot improve the best plan. Raises
        TimeoutError."""
        if agreeing_choices(self.instance.configurations[entry.configuration_index]) is not None:
            self.statistics["agreeing"] += 1
            found = best_agreeing(self.instance, entry.configuration_index, self.search.target(), self.search)
            if found is not None:
                self.search.report(found[1])
            return None
        if self._is_interleaved(entry.configuration_index):
            self.statistics["interleaved"] += 1
            self.abandoned_bound_ns = min(
                self.abandoned_bound_ns, interleaved(self.instance, entry.configuration_index, bound, self.search)
            )
            return None
        if entry.candidate is None:
            single = self.instance.configurations[entry.configuration_index].stages == 1
            entry.candidate = (Single if single else Candidate)(self.instance, entry.configuration_index, self.search)
        candidate = entry.candidate
        if isinstance(candidate, Single):
            self.statistics["stages_solved"] += 1
            value = candidate.run(self.search.target, self.tolerance)
            self.abandoned_bound_ns = min(self.abandoned_bound_ns, value)
            return None
        fineness = self.search.gap / FINENESS
        if entry.stage == QUICK:
            self.statistics["coarse"] += 1
            candidate.prepare(self.search.target(), coarse=True)
            value, entry.path = candidate.path_search.bound(self.search.target(), max(fineness, 1e-2), bound)
            entry.stage = COARSE
        elif entry.stage == COARSE:
            self.statistics["fine"] += 1
            candidate.prepare(self.search.target(), coarse=False)
            value, entry.path = candidate.path_search.bound(self.search.target(), fineness, bound)
            entry.stage = PRICED if candidate.filling else FINE
        elif entry.stage in (FINE, PATHS):
            self.statistics["paths"] += 1
            assert entry.path is not None
            rose = candidate.refine(entry.path, self.tolerance)
            if entry.whole:
                rose |= candidate.refine_first(entry.path, self.search.target(), self.tolerance)
            candidate.report(entry.path)
            self.statistics["stages_solved"] += candidate.take_count()
            self.loosest = max(self.loosest, candidate.exact.loosest)
            value, path = candidate.path_search.bound(self.search.target(), fineness, bound, entry.whole)
            entry.stalled = 0 if value > bound else entry.stalled + 1
            if (rose or path != entry.path) and entry.stalled < MOST_STALLED:
                entry.stage = PATHS
            elif not entry.states_distinguished and candidate.classes > 1:
                entry.stage = CLASSES
            elif not entry.whole:
                entry.whole = True
                value, path = candidate.path_search.bound(self.search.target(), fineness, bound, whole=True)
            else:
                entry.stage = PRICED
            entry.path = path
        elif entry.stage == CLASSES:
            self.statistics["classes"] += 1
            candidate.prepare(self.search.target(), coarse=False, groups=GROUPS)
            value, entry.path = candidate.path_search.bound(self.search.target(), fineness, bound)
            entry.stage, entry.states_distinguished, entry.stalled = PATHS, True, 0
        elif entry.stage == PRICED:
            entry.stage = SUFFIXES
            if candidate.schedule == "sliced":
                return bound
            self.statistics["priced"] += 1
            return _or_none(candidate.priced(bound))
        else:
            return self._settled(candidate, bound, entry)
        if value == inf or entry.path is None:
            return None
        return value

    def _settled(self, candidate: Candidate, bound: float, entry: _Entry) -> float | None:
        """As `advanced`, by all pipelines with a step up to a limit between the bound and the best plan."""
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
        """As `advanced`, where there are too many labels: bounds by the linear program of each partition that the bounds on
        spans allow, where these are few. A configuration that these do not settle gets more labels next, up to MOST_LABELS, and
        is then abandoned. Raises TimeoutError."""
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
    """Raises Unsuited where the instance has a feature that this method does not bound."""
    if instance.step != "simulated":
        raise Unsuited("instance", "step", f"is {instance.step!r}", "give 'simulated', or take another method")
    if why := uncounted(instance):
        raise Unsuited("instance", "configurations", f"have {why}", "take milp, cpsat or brute-force")
    for index, configuration in enumerate(instance.configurations):
        if (
            len({group.kind for group in configuration.device_groups}) > 1
            or len({instance.limit_bytes(group) for group in configuration.device_groups}) > 1
        ):
            problem = "has sites of several kinds or memories"
            raise Unsuited("instance", f"configurations[{index}]", problem, "give equal sites, or take another method")


def gap_parts(instance: Instance, solution: Solution, gap_ns: int, loosest: float) -> dict[str, int]:
    """The parts of a gap, in ns, which add up to it. loosest: the largest relative gap of a stage that was solved.

    `tolerance of stages`: the most that such a stage may be off, of the whole step. `step above its longest path`: by how much
    the plan's simulated step exceeds the bounds of single paths, with its own stages' times. `left to search`: the rest, which
    other cuts, or stages between the weights that they were solved at, might gain, or for which there was no time.
    """
    evaluation, configuration = evaluate(instance, solution), instance.configurations[solution.configuration]
    tolerance = min(gap_ns, int(loosest * evaluation.time_ns))
    path = 0
    if configuration.schedule.chunks == 1 and not configuration.schedule.sliced and configuration.stages > 1:
        path = min(gap_ns - tolerance, evaluation.time_ns - _by_paths_ns(instance, solution))
    return {"tolerance of stages": tolerance, "step above its longest path": path, "left to search": gap_ns - tolerance - path}


def _by_paths_ns(instance: Instance, solution: Solution) -> int:
    """The longest, in ns, of the paths that `critical_path_bounds` knows through the stages of a plan, with the work at the end
    of stage 0."""
    configuration, evaluation = instance.configurations[solution.configuration], evaluate(instance, solution)
    times, m = [stage.times for stage in evaluation.stages], configuration.micro_batches
    u = [time.micro_batch_ns + time.message_forward_ns + time.message_backward_ns for time in times]
    extra = times[0].last_ns + times[0].reduce_ns + times[0].optimizer_ns + evaluation.tied_ns
    longest = 0
    for x, mine in enumerate(u):
        w, after = len(u) - 1 - x, sum(u[x + 1 :])
        path = gpipe_ns if configuration.schedule.name == "gpipe" else one_f_one_b_ns
        longest = max(longest, sum(u[:x]) + int(path(mine, after, w, m)) + extra)
    return min(longest, evaluation.time_ns)
