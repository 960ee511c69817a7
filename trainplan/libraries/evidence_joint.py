"""Evidence of lower bounds of the joint problem, which the library's checker follows.

The bound is the least of all configurations', so the configuration that has the least at the time gets the next of its methods,
the cheapest first:

    solver        the evidence that `solvers.joint.certificate_search` finds for it: prices of memory, or weighted paths
    exact         prices of memory, and exact stages by labels, of which there are few, then many
    even paths    of any schedule, a path through each device group, and one price of memory for all
    paths         of fixed cuts, weighted paths and prices of moments (`joint_paths`), whatever the schedule
    enumeration   of the solutions that are left

The search ends where the configuration of the least bound has no method left, its bound reaches the best known value, or time
is up. Every claim is checked by the library's checker as it is made.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trainplan.formulations.joint.problem import NAME, Configuration, Instance
from trainplan.libraries.checking import checker
from trainplan.libraries.joint_paths import WHOLE, even_paths, fullest_moments, weighted_paths
from trainplan.solvers.core.search import Search
from trainplan.solvers.joint import certificate_search
from trainplan.solvers.joint.stages.option_tables import stage_tables
from trainplan.solvers.joint.stages.span_bounds import prices_of

SECONDS = 120.0  # for all of an instance's evidence
LABELS = (200, 1500)  # of exact stages, the first number before the second
TRIES = 7  # steps between the known bound and the best known value that are tried for exact stages
LISTED = 20_000  # partial solutions of one configuration that may be enumerated
GRID, PRICES = 1.5, 28  # between neighbouring prices of memory along even paths, and how many there are on each side of 1
PRICE_SCALE = 2**16  # parts of a nanosecond in which prices are counted
FACTORS = (0.5, 1, 2)  # of prices, for one stage


def evidence(instance: Instance, value: int, seconds: float = SECONDS) -> dict[str, Any] | None:
    """The best lower bound of a joint instance for which evidence is found, as a dict with `value` (ns), `kind` and `evidence`.

    value: the best known objective in ns, which the bound cannot exceed. seconds: the time after which no further method is
    begun.
    """
    content = instance.to_dict()
    closed = _closed_form(content)
    if closed >= value:
        return {"value": closed, "kind": "closed-form", "evidence": {}}
    if instance.step != "simulated" or any(configuration.reduction for configuration in instance.configurations):
        return {"value": closed, "kind": "closed-form", "evidence": {}}
    claims = _Claims(instance, content, value, Search(lambda _: None, time_limit=seconds), checker())
    claims.find()
    bound = min(claims.bounds)
    if bound <= closed:
        return {"value": closed, "kind": "closed-form", "evidence": {}}
    return {"value": bound, "kind": "certificate", "evidence": {"configurations": claims.claims}}


def _closed_form(content: dict[str, Any]) -> int:
    """The bound in ns that follows from an instance alone. content: the instance in its JSON file format."""
    bound: int = checker().PROBLEMS[NAME].bounds["closed-form"](content, {}, 0)
    return bound


@dataclass(eq=False)
class _Claims:
    """The claims about all configurations of an instance, and the search for better ones.

    instance: the configurations to choose from, with costs and memory limits. content: the instance in its JSON file format.
    value: the best known objective in ns. search: has the time limit. checker: the library's checker. claims: for each
    configuration, its claim as evidence has it. bounds: for each configuration, the bound in ns that is proven."""

    instance: Instance
    content: dict[str, Any]
    value: int
    search: Search
    checker: Any
    claims: list[dict[str, Any]] = field(default_factory=list)
    bounds: list[int] = field(default_factory=list)

    def find(self) -> None:
        """Raise the bounds of configurations, the least first, until the least has no method left, reaches the value, or time
        is up."""
        count = len(self.instance.configurations)
        self.pipelines = [self.checker.Pipeline(self.content, index) for index in range(count)]
        self.bounds = [self.checker.closed_form_joint(pipeline) for pipeline in self.pipelines]
        self.claims = [{"impossible_ns": -1} for _ in range(count)]
        waiting = [
            (bound, index, _methods(configuration))
            for index, (bound, configuration) in enumerate(zip(self.bounds, self.instance.configurations, strict=True))
        ]
        heapq.heapify(waiting)
        while not self.search.out_of_time():
            bound, index, methods = waiting[0]
            if bound >= self.value or not methods:
                break
            methods[0](self, index)
            heapq.heapreplace(waiting, (self.bounds[index], index, methods[1:]))

    def take(self, index: int, proof: dict[str, Any], impossible_ns: int) -> bool:
        """Keep a proof that a configuration has no step of at most `impossible_ns`, if the checker follows it and it shows more
        than what is known; returns whether the checker does."""
        try:
            holds: bool = self.checker.holds_joint(self.pipelines[index], index, proof, impossible_ns)
        except self.checker.Wrong:
            return False
        if holds and impossible_ns >= self.bounds[index]:
            self.claims[index], self.bounds[index] = {"impossible_ns": impossible_ns, **proof}, impossible_ns + 1
        return holds

    def by_solver(self, index: int) -> None:
        """Prices or paths that the solver's search for certificates finds."""
        search = Search(lambda _: None, time_limit=max(0.0, self.search.remaining()))
        [claim] = certificate_search.evidence(self.instance.only([index]), self.value, search).configurations
        proof = claim.to_dict()
        if (impossible_ns := proof.pop("impossible_ns")) >= self.bounds[index]:
            self.take(index, proof, impossible_ns)

    def by_exact_stages(self, index: int, labels: int) -> None:
        """Prices with exact stages: the largest step that they show to be impossible, to a part of the gap. labels: how many
        are kept at a time."""
        configuration, claim = self.instance.configurations[index], self.claims[index]
        in_flight = sorted({configuration.in_flight(stage) for stage in range(configuration.stages)})
        tables = stage_tables(configuration.tables[configuration.device_groups[0].kind])
        floats = prices_of(tables, [in_flight[0], in_flight[-1]]).tolist()
        prices = claim.get("prices") or [round(price * PRICE_SCALE) for price in floats]
        if configuration.stages == 1:
            prices = [round(price * factor) for price in prices for factor in FACTORS]
        proof = {"prices": sorted(set(prices)), "depths": claim.get("depths") or in_flight[:1], "exact": labels}
        low, high = self.bounds[index] - 1, self.value  # shown already, and not to be shown
        for number in range(TRIES):
            middle = high - 1 if number == 0 else (low + high) // 2
            if middle <= low or self.search.out_of_time():
                break
            low, high = (middle, high) if self.take(index, proof, middle) else (low, middle)

    def by_few_labels(self, index: int) -> None:
        """Exact stages with few labels."""
        self.by_exact_stages(index, LABELS[0])

    def by_many_labels(self, index: int) -> None:
        """Exact stages with many labels."""
        self.by_exact_stages(index, LABELS[1])

    def by_paths(self, index: int) -> None:
        """Weighted paths and prices of moments, of a configuration with fixed cuts."""
        proof = weighted_paths(self.instance, index, self.value - 1, self.search.out_of_time)
        if proof is not None:
            chain, limits, total = self.checker.bound_by_paths(self.pipelines[index], proof)
            shown = self.value - 1 if chain.least is None else (chain.least - limits - 1) // total
            self.take(index, proof, min(shown, self.value - 1))

    def by_even_paths(self, index: int) -> None:
        """A path through each device group, and one price of the memory of all groups: of a grid, the best, since the bound
        rises up to it and falls after it."""
        pipeline, shown = self.pipelines[index], dict[int, int]()
        paths = even_paths(pipeline)

        def proof(number: int) -> dict[str, Any]:
            """The paths with the price of that number in the grid."""
            return {"paths": paths, "moments": fullest_moments(pipeline, round(WHOLE * GRID**number))}

        def value(number: int) -> int:
            """The step that these show to be impossible."""
            if number not in shown:
                chain, limits, total = self.checker.bound_by_paths(pipeline, proof(number))
                shown[number] = self.value - 1 if chain.least is None else (chain.least - limits - 1) // total
            return shown[number]

        low, high = -PRICES, PRICES
        while low < high and max(shown.values(), default=-1) < self.value - 1 and not self.search.out_of_time():
            middle = (low + high) // 2
            low, high = (middle + 1, high) if value(middle) < value(middle + 1) else (low, middle)
        best = max(shown, key=shown.__getitem__, default=low)
        if value(best) >= self.bounds[index]:
            self.take(index, proof(best), min(value(best), self.value - 1))

    def by_enumeration(self, index: int) -> None:
        """All solutions that the present paths leave, or those of each device group's own passes, are evaluated."""
        paths = {
            name: self.claims[index][name] for name in ("paths", "memory", "host", "moments") if name in self.claims[index]
        }
        left, proof = [LISTED], paths | {"enumerate": True}
        try:
            if self.checker.enumerated(self.pipelines[index], index, proof, self.value - 1, left):
                self.claims[index], self.bounds[index] = {"impossible_ns": self.value - 1, **proof}, self.value
        except self.checker.Wrong:
            return


Method = Callable[[_Claims, int], None]


def _methods(configuration: Configuration) -> tuple[Method, ...]:
    """The methods for a configuration, in the order in which they are tried."""
    groups = configuration.device_groups
    alike = len({(group.kind, group.devices) for group in groups}) == 1
    methods: tuple[Method, ...] = (_Claims.by_even_paths, _Claims.by_enumeration)
    if alike and configuration.cuts is not None and not configuration.schedule.sliced:
        methods = (_Claims.by_even_paths, _Claims.by_paths, _Claims.by_enumeration)
    if alike and configuration.schedule.has_closed_forms:
        methods = (_Claims.by_solver, _Claims.by_few_labels, _Claims.by_many_labels, *methods)
    return methods
