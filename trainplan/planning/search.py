"""The search for the plan of the least objective whose programs fit into the memory, round by round.

The first round counts what programs surely hold, where a problem can tell that from what they hold at most: so its bound holds
for every plan whose programs fit. Where its plan's programs need more memory than the limit, the request is solved again with
what programs hold at most, roughly, and from there with what simulations have beyond the tables (`memory_beyond_tables`). Where
a problem does not tell the two apart, and where nothing fits, it is solved with as much less memory as the plan before was
short of, at most ROUNDS times. The bound stays that of the first round. If no plan fits even so, `shortage` answers.
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
    """The plan of the least objective whose programs fit, or why there is none."""
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
    """The best plan that fits of those that are simulated; None where there is none.

    beyond: notes of what programs held beyond the tables, which every simulation here adds to. first: the plan of the least
    objective of all, which does not fit, and took so many seconds. best: a plan that fits, where one is known.
    """
    instances = {each.name: each for each, _ in first.answer.tried}
    count, until = Count.ALIKE, run.elapsed() + max(BEYOND_SECONDS, took)
    beyond.note(first.instance, first, run.over_bytes(first))
    run.begin("solving again, with what programs hold beyond the tables")
    try:
        for _ in range(BEYOND_ROUNDS):
            left = None if best is None else until - run.elapsed()  # what fits is looked for until the time is up
            if run.deadline_passed or (left is not None and left <= 0):
                break
            corrected = [beyond.corrected(instance, count) for instance in instances.values()]
            below_ns = None if best is None else best.walked_ns
            answer = run.search_below(corrected, below_ns, left)
            if answer.objective_ns is None or (below_ns is not None and answer.objective_ns >= below_ns):
                if count == Count.REFUSED or answer.result.stopped == "interrupt":
                    break
                count = Count(count + 1)
                continue
            made = run.plan_as_of_first(first, answer)
            over = run.over_bytes(made)
            beyond.note(instances[made.instance.name], made, over)
            if max(over) <= 0 and (best is None or made.walked_ns < best.walked_ns):
                best = made
            if answer.result.stopped == "interrupt":
                break
    except KeyboardInterrupt:
        return None if best is None else best.as_interrupted()
    return best
