"""The baselines that AMP is compared with: Megatron's heuristic (Section 4.1), and strategies at random (Section 4.5)."""

from __future__ import annotations

from itertools import groupby

import numpy as np
from trainplan.formulations.cluster_strategy.instance import Degrees, Instance
from trainplan.formulations.cluster_strategy.problem import Solution
from trainplan.solvers.cluster.amp import TOP, assigned, estimated, outcome, report
from trainplan.solvers.cluster.placements import node_order, smallest_node
from trainplan.solvers.core.search import Outcome, Search

DRAWS = 50


def megatron(instance: Instance, search: Search) -> Outcome:
    """For each micro-batch size the degrees with the smallest tmp x pp that fit, tmp at most the smallest node's devices (the
    paper has "smaller than", which on nodes of one device no degree is).

    tmp and pp are the degrees of tensor and pipeline parallelism. All of those are its choice, ties included, of which the
    fastest by our estimate is the answer. Candidates stand in the order of Tables 6 and 8, by micro-batch size and tmp; then,
    up to `top`, come those with the next larger tmp x pp of each micro-batch size. Strategies that do not fit are no
    candidates, as in the paper, unless the instance has no memory limit. Options: `top`, `assignment`, uniform-layers (see
    `amp.assigned`) or uniform-parameters.
    """
    rule = search.options.get("assignment") or "uniform-layers"
    largest, count, ranked = smallest_node(instance), 0, []
    possible = sorted(
        (degrees for degrees in instance.degrees() if degrees.tmp <= largest),
        key=lambda degrees: (degrees.mbs, degrees.tmp * degrees.pp, degrees.tmp),
    )
    for _, group in groupby(possible, key=lambda degrees: degrees.mbs):
        index = 0
        for _, equal in groupby(group, key=lambda degrees: degrees.tmp * degrees.pp):
            if search.out_of_time():
                break
            tied = []
            for degrees in equal:
                if not search.out_of_time():
                    tied.append(estimated(instance, assigned(instance, degrees, node_order(instance), rule)))
            count += len(tied)
            usable = [candidate for candidate in tied if candidate.fits or not instance.within_memory]
            for candidate in usable:
                ranked.append((index, candidate))
                if index == 0:
                    report(instance, search, candidate)
            index += bool(usable)
    ranked.sort(key=lambda item: item[0])
    listed = [candidate for _, candidate in ranked][: search.options.get("top") or TOP]
    return outcome(instance, search, listed, count)


def random(instance: Instance, search: Search) -> Outcome:
    """The paper's RS: degrees, micro-batch size, placement and cuts uniformly at random, `iterations` (50) times; candidates as
    drawn.

    All degrees with all their micro-batch sizes are one population. The answer is the best by our estimate; draws do not depend
    on it.
    """
    generator = np.random.default_rng(search.seed)
    population, drawn = list(instance.degrees()), []
    for _ in range(search.options.get("iterations") or DRAWS):
        if search.out_of_time() or not population:
            break
        drawn.append(estimated(instance, _drawn(instance, population[generator.integers(len(population))], generator)))
        report(instance, search, drawn[-1])
    return outcome(instance, search, drawn, len(drawn))


def _drawn(instance: Instance, degrees: Degrees, generator: np.random.Generator) -> Solution:
    """A strategy with these degrees, whose placement and cuts are drawn at random."""
    shares = instance.even_shares(degrees.dp, degrees.mbs)
    assert shares is not None
    cuts = np.sort(generator.permutation(instance.layers - 1)[: degrees.pp - 1]) + 1
    return Solution(degrees, tuple(generator.permutation(instance.devices).tolist()), tuple(cuts.tolist()), shares)
