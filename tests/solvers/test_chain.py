"""Label-setting and least memory on chains whose neighbours agree on a state, against every choice and against Algorithm 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainplan.solvers.chain.bounds import Cap
from trainplan.solvers.chain.chain import Integers, Link, MemoryChain, cost_table
from trainplan.solvers.chain.dominance import staircase
from trainplan.solvers.chain.label_setting import label_setting
from trainplan.solvers.chain.least_memory import least_memory
from trainplan.solvers.core.search import Outcome, Search


def random_chain(rng: np.random.Generator, layers: int, options: int, scale: int = 100, tables: float = 0.0) -> MemoryChain:
    """Ties, negative f and b, one state or several, and sometimes a layer that repeats the one before. tables: share of links
    that are tables."""
    states = int(rng.integers(1, 5))

    def column(count: int, low: int, high: int) -> Integers:
        return rng.integers(low, high + 1, count) * int(rng.choice([0, 1, 1]))

    counts = [int(rng.integers(1, options + 1)) for _ in range(layers)]
    signed = int(rng.choice([0, 0, 1]))
    rows = [
        (column(n, 0, scale), *(column(n, -signed * scale // 3, scale) for _ in range(2)), column(n, 0, scale)) for n in counts
    ]
    for l in range(1, layers):
        if rng.random() < 0.3:
            rows[l], counts[l] = rows[l - 1], counts[l - 1]
    links: list[Link] = []
    for n, following in pairwise(counts):
        if rng.random() < tables:
            links.append(cost_table(rng.integers(0, scale // 3 + 1, (n, following))))
            continue
        shared = rng.choice(states, min(n, following, states), replace=False)  # that both sides know
        links.append(Link(*(rng.permutation(np.resize(shared, size)) for size in (n, following))))
    chain = MemoryChain(0, *(tuple(columns) for columns in zip(*rows, strict=True)), links=tuple(links))
    peaks = chain.peaks(np.array([chain.fastest()[1], least_memory(chain)[1]]))
    return replace(chain, memory_bytes=int(rng.integers(peaks[1] - 5, max(peaks) + 5)))


def searching(chain: MemoryChain, gap: float = 0.0) -> Search:
    def objective(choice: Sequence[int]) -> int | None:
        taken = np.array([choice])
        assert chain.allows(taken)[0]
        return int(chain.times(taken)[0]) if chain.peaks(taken)[0] <= chain.memory_bytes else None

    return Search(objective, gap=gap)


def solved(chain: MemoryChain, gap: float = 0.0) -> tuple[Outcome, Search]:
    search = searching(chain, gap)
    return label_setting(chain, search), search


def all_choices(chain: MemoryChain) -> Integers:
    choices = np.array(list(product(*map(range, chain.options))))
    return choices[chain.allows(choices)]


@settings(max_examples=400)
@given(st.integers(0, 10**9), st.integers(1, 4), st.sampled_from([0.0, 0.5, 1.0]))
def test_label_setting_is_exact(seed: int, layers: int, tables: float) -> None:
    chain = random_chain(np.random.default_rng(seed), layers, 8, tables=tables)
    choices = all_choices(chain)
    fits = chain.peaks(choices) <= chain.memory_bytes
    outcome, search = solved(chain)
    assert outcome.infeasible == (not fits.any())
    if fits.any():
        best = int(chain.times(choices)[fits].min())
        assert (search.objective, outcome.bound) == (best, best)


@given(st.integers(0, 10**9), st.integers(1, 4), st.sampled_from([0.0, 0.5]))
def test_least_memory_is_the_least_of_all_choices(seed: int, layers: int, tables: float) -> None:
    chain = random_chain(np.random.default_rng(seed), layers, 8, tables=tables)
    choices = all_choices(chain)
    least, choice = least_memory(chain)
    assert least == chain.peaks(choices).min() == chain.peaks(np.array([choice]))[0]
    assert chain.allows(np.array([choice]))[0]
    assert chain.fastest()[0] == chain.times(choices).min() == chain.times(np.array([chain.fastest()[1]]))[0]


def by_algorithm_4(chain: MemoryChain) -> int | None:
    """The optimum from the first layer to the last, on all (state, mem_curr, mem_peak) that there are: no bounds, no grid."""
    known = {(None, 0, None): 0}
    for l in range(chain.layers):
        columns = (chain.time_ns, chain.forward_bytes, chain.backward_bytes, chain.state_bytes)
        options = list(zip(*(column[l].tolist() for column in columns), strict=True))
        enters = chain.links[l - 1].kinds if l else [None] * len(options)
        leaves = chain.links[l].leaves if l + 1 < chain.layers else [None] * len(options)
        found: dict[tuple[int | None, int, int | None], int] = {}
        for (state, current, peak), time in known.items():
            for s, (own, delta, more, resident) in enumerate(options):
                if enters[s] == state:
                    high = current + delta + more
                    key = (leaves[s], current + resident + delta, (high if peak is None else max(peak, high)) + resident)
                    found[key] = min(found.get(key, time + own), time + own)
        known = found
    fitting = [time for (_, _, peak), time in known.items() if peak is not None and peak <= chain.memory_bytes]
    return min(fitting, default=None)


@pytest.mark.parametrize("seed", range(20))
def test_longer_chains_against_algorithm_4_without_a_grid(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chain = random_chain(rng, 14, 10, scale=6)
    chain = replace(chain, time_ns=tuple(rng.integers(0, 10**6, len(times)) for times in chain.time_ns))
    least, _ = least_memory(chain)
    most = int(chain.peaks(np.array([chain.fastest()[1]]))[0])
    chain = replace(chain, memory_bytes=int(least + rng.uniform(0, 0.7) * (most - least)))
    outcome, search = solved(chain)
    assert search.objective == outcome.bound == by_algorithm_4(chain) is not None


@given(st.integers(0, 10**9), st.floats(1e-4, 0.3))
def test_a_gap_is_a_certificate(seed: int, gap: float) -> None:
    chain = random_chain(np.random.default_rng(seed), 5, 8, scale=10**6)
    (loose, found), (exact, best) = solved(chain, gap), solved(chain)
    assert loose.infeasible == exact.infeasible
    if best.objective is not None:
        assert found.objective is not None and loose.bound is not None
        assert loose.bound <= best.objective <= found.objective
        assert found.objective - loose.bound <= gap * found.objective


@given(st.integers(0, 10**9), st.integers(1, 4), st.sampled_from([0.0, 0.5]))
def test_a_second_time_is_capped(seed: int, layers: int, tables: float) -> None:
    rng = np.random.default_rng(seed)
    chain = random_chain(rng, layers, 6, tables=tables)
    other = replace(
        chain,
        time_ns=tuple(rng.integers(0, 100, len(times)) for times in chain.time_ns),
        links=tuple(link if link.costs is None else cost_table(link.costs // 2) for link in chain.links),
    )
    choices = all_choices(chain)
    times, seconds = chain.times(choices), other.times(choices)
    fits = np.flatnonzero(chain.peaks(choices) <= chain.memory_bytes)
    if fits.size:
        limit = int(rng.choice(seconds[fits]))
        within = fits[seconds[fits] <= limit]
        search = searching(chain)
        inner = search.evaluate
        search.evaluate = lambda choice: inner(choice) if other.times(np.array([choice]))[0] <= limit else None
        search.report(choices[within[0]].tolist())
        outcome = label_setting(chain, search, Cap(limit, other, (0.0, 1.0)))
        assert search.objective == outcome.bound == times[within].min()


@given(st.integers(0, 10**9), st.integers(1, 3), st.integers(1, 60), st.integers(1, 20))
def test_a_staircase_is_what_no_earlier_point_is_below(seed: int, entries: int, points: int, block: int) -> None:
    rng = np.random.default_rng(seed)
    given = rng.integers(0, rng.integers(2, 30), (entries, points))
    wanted = [i for i in range(points) if not any((given[:, j] <= given[:, i]).all() for j in range(i))]
    assert sorted(staircase(given, block)) == wanted
