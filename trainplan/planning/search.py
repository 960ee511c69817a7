"""The search for the plan with the least objective whose programs fit into memory, in rounds.

A problem may have two tables of memory: the least that programs surely hold, and the most that they may hold. The first round
counts the least, so its lower bound holds for every plan whose programs fit. Where the programs of its plan need more than the
limit, the request is solved again with the most, and after that with what simulated programs held in addition to the least
(`memory_beyond_tables`). Where a problem has one table only, and where nothing fits, the request is solved with the limit
reduced by what the last plan was short of, at most ROUNDS times. The bound stays that of the first round. If no plan fits at
all, `shortage` answers.
"""

from __future__ import annotations

from trainplan.planning.memory_beyond_tables import BeyondTables, Count
from trainplan.planning.planning_run import PlanningRun
from trainplan.planning.result import PlanningResult
from trainplan.planning.shortage import closest_plan, with_reason

ROUNDS = 8
BEYOND_ROUNDS = 40  # searches at most with what programs hold beyond the tables
BEYOND_SECONDS = 5.0  # for all of them, once a plan fits; as many as the first search took, where these are more


def search_in_rounds(run: PlanningRun) -> PlanningResult:
    """Search the plan with the least objective (the solver's step time) whose compiled programs fit into memory: solve,
    simulate the plan, and solve again with less memory as long as the programs do not fit. Returns a result without a plan,
    which has the reason, if none fits. run: the planning run of the request.
    """
    rounds, took = [first := run.plan_round(0, least=True)], run.elapsed()
    refined = run.beyond is not None and run.excess_bytes(first) > 0 and run.has_least_tables
    refined = refined and not run.deadline_passed and not first.interrupted
    if refined:
        rounds.append(run.plan_round(0, rough=True))
    last = rounds[-1]
    while run.excess_bytes(last) > 0 and len(rounds) < ROUNDS and not (run.deadline_passed or last.interrupted):
        last = run.plan_round(last.margin_bytes + run.excess_bytes(last), first.answer.bound_ns)
        rounds.append(last)
    fits = last.plan is not None and run.excess_bytes(last) <= 0
    if refined and run.beyond is not None:
        best = run.restated(first, last) if fits else None
        best = best if last.interrupted else search_beyond_tables(run, run.beyond, first, best, took)
        return best or closest_plan(run, rounds)
    if fits:
        return last
    return with_reason(run, first) if first.plan is None else closest_plan(run, rounds)


def search_beyond_tables(
    run: PlanningRun, beyond: BeyondTables, first: PlanningResult, best: PlanningResult | None, took: float
) -> PlanningResult | None:
    """Search the fastest plan whose programs fit into memory, by adding to the instances' memory tables the bytes that
    simulated programs held in addition to what these tables said.

    Args:
        run: the planning run of the request, with its time limit.
        beyond: notes of what programs held in addition to the tables; every simulation adds one.
        first: the result with the plan of the least objective, whose programs do not fit.
        best: the result with the best plan known that fits; None if none is known.
        took: seconds that the search for `first` took.

    Returns:
        The result with the shortest simulated step that fits; None if none was found.
    """
    instances = {instance.name: instance for instance, _ in first.answer.tried}
    count, until = Count.ALIKE, run.elapsed() + max(BEYOND_SECONDS, took)
    beyond.note(first.instance, first, run.over_bytes(first))
    run.begin("solving again, with what programs hold beyond the tables")
    try:
        for _ in range(BEYOND_ROUNDS):
            seconds_left = None if best is None else until - run.elapsed()  # what fits is looked for until the time is up
            if run.deadline_passed or (seconds_left is not None and seconds_left <= 0):
                break
            corrected = [beyond.corrected(instance, count) for instance in instances.values()]
            below_ns = None if best is None else best.walked_ns
            answer = run.search_below(corrected, below_ns, seconds_left)
            if answer.objective_ns is None or (below_ns is not None and answer.objective_ns >= below_ns):
                if count == Count.REFUSED or answer.result.stopped == "interrupt":
                    break
                count = Count(count + 1)
                continue
            tried = run.plan_as_of_first(first, answer)
            over = run.over_bytes(tried)
            beyond.note(instances[tried.instance.name], tried, over)
            if max(over) <= 0 and (best is None or tried.walked_ns < best.walked_ns):
                best = tried
            if answer.result.stopped == "interrupt":
                break
    except KeyboardInterrupt:
        return None if best is None else best.as_interrupted()
    return best
