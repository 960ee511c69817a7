"""memory-switches whose segments need not be synchronised: local search over the simulated step, and a bound beside it.

    minimise    Runtime(s)    subject to    Memory(s) <= M         over all choices s of switches, segments free (H3T, Eq. 3)

Segments run into each other, so that no chain of costs gives the step. What is proven comes from the relaxation that
`free_bounds` states, a chain whose segments are easier than those of the step by little; or, of few layers, from all choices.
What is found comes from walks over choices, each simulated as a whole step.

Walks start from the answer of the paper's dynamic program and from the proven optimum, both of the synchronised step, with
its synchronisation and without; from the best that manual and greedy planning find; and from the choices that attain bounds.
From the most promising starts, one after the other, a walk looks at a batch of changes at a time (see `Walks._change`),
and at what several changes that help give together. A choice is better by its key: first the one that needs less memory where
too much is needed, then the one that takes less time, then the one that leaves more memory. A walk that finds nothing better
for a while is thrown off its place, and returns to it unless it ends better.

A walk is repeatable by its seed, time limit apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.memory_switches.problem import Instance, Solution, matrix
from trainplan.formulations.memory_switches.simulation import simulate
from trainplan.formulations.plan.switches import ALL_ON, SWITCHES
from trainplan.solvers.core.brute_force import brute_force
from trainplan.solvers.core.search import Outcome, Search
from trainplan.solvers.switches.exact import synchronised
from trainplan.solvers.switches.free_bounds import SOURCE, NothingFits, Relaxation, free_bound
from trainplan.solvers.switches.free_segments import different
from trainplan.solvers.switches.h3t import at_once, h3t_greedy, manual
from trainplan.solvers.switches.h3t_dp import LEVELS, filled_grid
from trainplan.solvers.switches.quick import cheap_bound

FORCED, BOUND, PLANNED = 0.2, 0.5, 0.6  # shares of the time limit, until these are done
FORCED_S, MOST_FORCED = 2.0, 0.7  # planning the synchronised step gets these seconds, up to that share, where its own is less
FEW = 1_000_000  # choices that are all looked at
AT_ONCE = 256  # choices of one batch, fewer where there are many layers
BATCHES, LAYERS = 240, 48  # of all walks, where there is no limit; fewer in proportion for more layers
WALKS = 6
PATIENCE = 6  # batches without success before a walk is thrown off
THROWS = 3  # changes at once
RUN = 6  # layers of a run, in the mean

Key = tuple[int, int, int]  # bytes too many, time in ns, peak in bytes


class _Place(NamedTuple):
    """A choice, the place of every layer's option in `Walks.options`, and its key: the less the better."""

    key: Key
    choice: Integers


_key = itemgetter(0)


def unsynchronised(instance: Instance, search: Search) -> Outcome:
    """The best choice found and the bound; optimal where they meet. Option: none."""
    quick, source = cheap_bound(instance)
    search.report(bound=quick)
    walks = Walks(instance, search)
    forced = replace(instance, synchronisation="forced")
    share = FORCED if search.time_limit is None else max(FORCED, min(MOST_FORCED, FORCED_S / search.time_limit))
    all_on = Solution((ALL_ON,) * instance.layers)
    if search.best is None:
        search.report(all_on)
    walks.begin(all_on)
    for planner in (_paper, synchronised):
        walks.begin(_planned(planner, forced, search, share))
    try:
        relaxation = Relaxation(instance, search.check_time)
        free_bound(relaxation, search, _seconds(search, BOUND), walks.candidate(relaxation))
    except NothingFits:
        return Outcome(infeasible=True, bound_source="least memory that is certain, over all choices")
    except TimeoutError:
        pass  # what is reported by then stays
    if search.bound is not None and search.bound > quick:
        source = SOURCE
    if not search.closed() and len(instance.options) ** instance.layers <= FEW:
        outcome = brute_force(instance, search)
        if outcome.bound is not None or outcome.infeasible:
            return outcome
    elif not search.closed():
        for planner in (manual, h3t_greedy):
            walks.begin(_planned(planner, instance, search, PLANNED))
        return Outcome(bound=search.bound, bound_source=source, statistics=walks.run())
    return Outcome(bound=search.bound, bound_source=source)


def _paper(instance: Instance, search: Search) -> Outcome:
    """What the paper's dynamic program finds, of an instance whose synchronisation is forced."""
    search.report(filled_grid(instance, LEVELS, False, search.check_time).solution(instance))
    return Outcome()


def _planned(
    planner: Callable[[Instance, Search], Outcome], instance: Instance, search: Search, share: float
) -> Solution | None:
    """What a planner finds until a share of the time limit is over; it is reported, too."""
    if search.out_of_time():
        return None
    inner = search.within(_seconds(search, share))
    with suppress(TimeoutError):
        planner(instance, inner)
    return inner.best


def _seconds(search: Search, share: float) -> float | None:
    """Until a share of the time limit is over."""
    return None if search.time_limit is None else max(1e-3, share * search.time_limit - search.elapsed())


class Walks:
    """Starts, and the walks from them."""

    def __init__(self, instance: Instance, search: Search) -> None:
        self.instance, self.search = instance, search
        self.generator = np.random.default_rng(search.seed)
        self.options = different(instance.options)
        self.place = {switches: number for number, switches in enumerate(self.options)}
        self.on = matrix([Solution(self.options)])[0]
        # Of each option and switch, the option nearest to it with the switch the other way.
        differs = self.on[:, None] != self.on
        self.turned = np.where(differs, differs.sum(axis=2)[..., None], len(SWITCHES) + 1).argmin(axis=1)
        self.at_once = min(AT_ONCE, at_once(instance.layers))
        self.starts: dict[bytes, Integers] = {}
        self.simulated = 0

    def begin(self, solution: Solution | None) -> None:
        """Walk from there, if there is one, and from there without synchronisation."""
        if solution is None:
            return
        for sync in (True, False):
            alike = [replace(s, eco_forward=s.eco_forward and s.offload_hidden) for s in solution.switches]
            self._start(np.array([self.place[replace(s, segment_sync=s.segment_sync and sync)] for s in alike]))

    def candidate(self, relaxation: Relaxation) -> Callable[[Sequence[int]], None]:
        """What notes choices that attain a bound, by their options in the relaxation, as starts."""
        indices = np.array([self.place[switches] for switches in relaxation.segments.options])
        return lambda options: self._start(indices[list(options)])

    def _start(self, choice: Integers) -> None:
        self.starts[choice.tobytes()] = choice

    def run(self) -> dict[str, int]:
        """Walk until the budget or the time is over, or the bound is met. The number of simulated steps, as statistics."""
        unlimited = self.search.time_limit is None
        batches = max(2 * WALKS, BATCHES * LAYERS // max(LAYERS, self.instance.layers))
        with suppress(TimeoutError):
            starts = sorted(self._at(np.array(list(self.starts.values()))), key=_key)[:WALKS]
            best = min((self._walk(place, batches // (2 * WALKS)) for place in starts), key=_key)
            while not self._over():
                best = self._walk(best, batches // 2)
                if unlimited:
                    break
        return {"simulated": self.simulated}

    def _over(self) -> bool:
        return self.search.out_of_time() or self.search.closed()

    def _walk(self, home: _Place, batches: int) -> _Place:
        """The best place on a walk; where it fits and is better than any before, it is reported."""
        here, stalled = home, 0
        together = np.zeros((0, self.instance.layers), np.int64)
        for _ in range(batches):
            if self._over():
                break
            tried = self._at(np.concatenate((together, self._changed(here.choice, 1))))
            helping = sorted((place for place in tried if place.key < here.key), key=_key)
            together = self._together(here.choice, [place.choice for place in helping])
            stalled = 0 if helping else stalled + 1
            here = helping[0] if helping else here
            if here.key < home.key:
                home = here
            if stalled == PATIENCE:
                thrown = self._at(self._changed(home.choice, THROWS))
                here, stalled = min((place for place in thrown if place.key != home.key), key=_key, default=home), 0
        return home

    def _at(self, choices: Integers) -> list[_Place]:
        """Many places, simulated; the best that fits is reported where it is better than any before.

        Where time runs out only the first of them; TimeoutError where there is none.
        """
        indices = list[_Place]()
        for first in range(0, len(choices), self.at_once):
            rows = choices[first : first + self.at_once]
            try:
                times, peaks = simulate(self.instance.columns, self.instance.nvlink, self.on[rows], self.search.check_time)
            except TimeoutError:
                if indices:
                    break
                raise
            over = np.maximum(0, peaks - self.instance.memory_bytes)
            keys = zip(over.tolist(), times.tolist(), peaks.tolist(), strict=True)
            indices += [_Place(key, row) for key, row in zip(keys, rows, strict=True)]
        self.simulated += len(indices)
        best = min(indices, key=_key)
        if not best.key[0] and self.search.betters(best.key[1]):
            self.search.report(Solution(tuple(self.options[option] for option in best.choice)))
        return indices

    def _together(self, choice: Integers, helping: list[Integers]) -> Integers:
        """The first change that helps and those after it, one more at a time, as far as they are of other layers."""
        joint = []
        both, touched = choice.copy(), np.zeros(len(choice), bool)
        for other in helping[: self.at_once // 4]:
            changed = other != choice
            if not (changed & touched).any():
                both[changed], touched = other[changed], touched | changed
                joint.append(both.copy())
        return np.array(joint[1:], np.int64).reshape(-1, len(choice))

    def _changed(self, choice: Integers, times: int) -> Integers:
        """A batch of choices, each so many changes away."""
        rows = np.tile(choice, (self.at_once, 1))
        for row in rows:
            for _ in range(times):
                self._change(row)
        return rows

    def _change(self, choice: Integers) -> None:
        """A change of a random kind, of a random run of layers."""
        below, count = self.generator.integers, len(choice)
        layer, switch, kind = int(below(count)), int(below(len(SWITCHES))), int(below(7))
        end = min(count, layer + 1 + int(self.generator.geometric(1 / RUN)))
        run = choice[layer:end]
        if kind == 0:  # one layer takes any combination
            choice[layer] = below(len(self.options))
        elif kind == 1:  # one layer turns a switch
            choice[layer] = self.turned[choice[layer], switch]
        elif kind == 2:  # two neighbours take any combinations
            choice[layer : layer + 2] = below(len(self.options), size=len(choice[layer : layer + 2]))
        elif kind == 3:  # a run turns a switch on, or off
            run[:] = np.where(self.on[run, switch] == below(2), run, self.turned[run, switch])
        elif kind == 4:  # a run takes the combination of one of its layers
            run[:] = choice[int(below(layer, end))]
        elif kind == 5:  # two layers exchange theirs
            other = int(below(count))
            choice[[layer, other]] = choice[[other, layer]]
        elif below(2):  # a run moves by one, to the end or to the beginning
            run[1:] = run[:-1].copy()
        else:
            run[:-1] = run[1:].copy()
