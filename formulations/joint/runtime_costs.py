"""Predictions of a runtime (training framework) for the plans of a joint instance: step and peak memory of each, and lower
bounds over all cuts into stages.

`plan --for NAME` searches with these numbers in place of those of trainplan's own programs: a plan is limited by the memory
that the runtime is predicted to hold, and is better than another if the runtime is predicted to run it faster. The prediction
is the one of `formulations.runtimes.predict`; plans of one configuration and choice of options differ in their stages alone, so
they are laid out once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from trainplan.formulations.costs.overlapped.analytic_bounds import LayoutBounds, ModelRows, rank_bytes
from trainplan.formulations.costs.overlapped.analytic_step import Chunk
from trainplan.formulations.costs.overlapped.layout import RunLayout
from trainplan.formulations.costs.overlapped.links import Links
from trainplan.formulations.joint.options import OPTIMIZER, PRECISION
from trainplan.formulations.joint.problem import Configuration, Instance, Solution
from trainplan.formulations.joint.solution_to_plan import unit_of
from trainplan.formulations.joint.tables import Option
from trainplan.formulations.joint.within_runtime import FOR, with_gradients
from trainplan.formulations.plan.plan import Batch, Plan, Stage
from trainplan.formulations.plan.request import Request
from trainplan.formulations.plan.unit import PlannedUnit
from trainplan.formulations.runtimes import RUNTIMES
from trainplan.profiling.base.plugins import attribute
from trainplan.profiling.clusters.cluster import Cluster, DeviceKind
from trainplan.profiling.models.model import Model, Unit

LAID = "trainplan.validation.plans:laid_for"  # which imports this module
UNPREDICTED = "trainplan.validation.plans:unpredicted"


@dataclass(frozen=True)
class LaidPlan:
    """A plan laid out as a runtime runs it, from which plans with other stages are predicted, too.

    Attributes:
        model: the model as the runtime runs it.
        layout: degrees, batch, recomputation, precision and the framework's settings.
        kind: the kind of all devices.
        links: their links.
        predicted: takes the layout, in which `stage_layers` may be others; returns the step in ns and the peak bytes of one
            device of each pipeline rank.
    """

    model: Model
    layout: RunLayout
    kind: DeviceKind
    links: Links
    predicted: Callable[[RunLayout], tuple[int, tuple[int, ...]]]


@dataclass(frozen=True, eq=False)
class RuntimeCosts:
    """The predictions of a runtime for the plans of a joint instance, which are kept once they are made.

    Attributes:
        request: the user's model, cluster, batch and options, one of which names the runtime.
        model: the model.
        cluster: the devices.
    """

    request: Request
    model: Model
    cluster: Cluster
    _laid: dict[Any, LaidPlan | str] = field(default_factory=dict, repr=False)
    _predicted: dict[Any, tuple[int, tuple[int, ...]] | str] = field(default_factory=dict, repr=False)
    _units: dict[Any, PlannedUnit] = field(default_factory=dict, repr=False)
    _bounds: dict[Any, LayoutBounds] = field(default_factory=dict, repr=False)
    _rows: list[tuple[Model, ModelRows]] = field(default_factory=list, repr=False)
    _bytes: dict[Any, dict[Any, float]] = field(default_factory=dict, repr=False)

    @property
    def runtime(self) -> str:
        """The name of the runtime, as `--for` takes it."""
        return str(self.request.options[FOR.name])

    # Plans

    def plan(self, instance: Instance, solution: Solution) -> Plan:
        """The plan of a solution, whose fields are not checked, and which has only those that a prediction needs."""
        configuration = instance.configurations[solution.configuration]
        options = [
            instance.table(configuration, x, l).options[solution.choice[l]]
            for x, (first, last) in enumerate(solution.spans())
            for l in range(first, last + 1)
        ]
        products = self.request.options[PRECISION.name]
        units = []
        for unit, option in zip(instance.units, options, strict=True):
            for index in range(unit.first, unit.last + 1):
                if (key := (index, option.name)) not in self._units:
                    self._units[key] = self._unit(self.model.units[index], option, products)
                units.append(self._units[key])
        groups = configuration.device_groups
        begins = [0, *accumulate(group.size for group in groups)]
        stages = [
            Stage.model_construct(
                ranks=list(range(begins[x % len(groups)], begins[x % len(groups) + 1])),
                first_unit=instance.units[first].first,
                last_unit=instance.units[last].last,
            )
            for x, (first, last) in enumerate(solution.spans())
        ]
        plan = Plan.model_construct(
            model={},
            model_digest="",
            world=sum(group.size for group in groups),
            memory_bytes=1,
            batch=Batch(global_samples=instance.batch, micro_batches=configuration.micro_batches),
            schedule=configuration.schedule.planned,
            sliced=configuration.schedule.sliced,
            stages=stages,
            units=units,
            precision=with_gradients(self.request).precision,
            optimizer=self.request.options[OPTIMIZER.name],
        )
        plan._described = self.model
        return plan

    def _unit(self, unit: Unit, option: Option, products: str) -> PlannedUnit:
        """One sub-layer of a plan, made from another one of its kind with equal choices. option: the choices. products: the
        precision of matrix multiplications of transformer layers."""
        if (alike := (unit.kind, option.name)) not in self._units:
            self._units[alike] = unit_of(unit, option, products)
            _ = self._units[alike].strategy  # is kept by the record, and copied with it
        return self._units[alike].model_copy(update={"name": unit.name})

    def laid(self, instance: Instance, configuration: int, choice: Sequence[int]) -> LaidPlan | str:
        """A configuration's plans with some choice of options as the runtime lays them out, with some of its stages; the reason
        as a text if the runtime cannot be predicted for them. configuration: its index. choice: for every unit, the index of
        its option."""
        chosen = instance.configurations[configuration]
        key = chosen, tuple(choice)
        if key not in self._laid:
            solution = Solution(configuration, some_cuts(instance, chosen), tuple(choice))
            self._laid[key] = attribute(LAID)(self.plan(instance, solution), self.cluster, self.runtime)
        return self._laid[key]

    # Predictions

    def predicted(self, instance: Instance, solution: Solution) -> tuple[int, tuple[int, ...]] | str:
        """The predicted step in ns of a solution's plan, and the peak bytes of one device of each device group, in pipeline
        order; the reason as a text if the runtime cannot be predicted for it."""
        configuration = instance.configurations[solution.configuration]
        key = configuration, solution.choice, solution.cuts
        if key not in self._predicted:
            laid = self.laid(instance, solution.configuration, solution.choice)
            self._predicted[key] = laid if isinstance(laid, str) else laid.predicted(self.layout(instance, laid, solution))
        return self._predicted[key]

    def layout(self, instance: Instance, laid: LaidPlan, solution: Solution) -> RunLayout:
        """The layout of a solution's plan. laid: a plan that differs from it in its stages alone."""
        units = self.model.units
        spans = [(instance.units[first].first, instance.units[last].last + 1) for first, last in solution.spans()]
        return replace(laid.layout, stage_layers=tuple(Chunk(tuple(units[a:b])).layers for a, b in spans))

    # Bounds over all cuts

    def bounds(self, instance: Instance, configuration: int, choice: Sequence[int]) -> LayoutBounds | None:
        """Lower bounds of the predicted step of all plans of a configuration with some choice of options; None if the runtime
        cannot be predicted for them. configuration: its index."""
        key = instance.configurations[configuration], tuple(choice)
        if key in self._bounds:
            return self._bounds[key]
        laid = self.laid(instance, configuration, choice)
        if isinstance(laid, str):
            return None
        if not self._rows or self._rows[0][0] is not laid.model:
            self._rows.insert(0, (laid.model, ModelRows.of(laid.model)))
        cuttable = (0, *(l for l in range(1, instance.length) if instance.cuttable[l - 1]))
        ends = (*(instance.units[l].first for l in cuttable), len(self.model.units))
        self._bounds[key] = LayoutBounds(laid.model, laid.layout, laid.kind, laid.links, ends, self._rows[0][1])
        return self._bounds[key]

    def fitting(self, instance: Instance, configuration: int, choice: Sequence[int]) -> list[list[int]] | None:
        """For each stage of a configuration, and each of the places where it may begin (`LayoutBounds.ends`), the last place at
        which it may end so that it fits into its devices' memory as the runtime is predicted to hold it; None if no cuts fit.
        configuration: its index."""
        chosen, laid = instance.configurations[configuration], self.laid(instance, configuration, choice)
        bounds = self.bounds(instance, configuration, choice)
        assert bounds is not None and not isinstance(laid, str)
        limits = [instance.limit_bytes(chosen.device_group(x)) for x in range(chosen.stages)]
        spans = Spans(laid, bounds.ends, limits, self._bytes.setdefault((chosen, tuple(choice)), {}))
        return spans.by_layers() if _alike(laid.model) else spans.one_by_one()

    def digest(self) -> str:
        """A text that names what the predictions depend on besides the instance's arrays."""
        return f"{self.runtime} {self.model.digest} {self.cluster.name} {sorted(map(str, self.request.options.items()))}"


@dataclass(frozen=True)
class Spans:
    """Which spans of sub-layers fit into the memory of which stage.

    Attributes:
        laid: a plan, as the runtime lays it out.
        ends: the places where stages may begin and end.
        limits: the bytes of one device of each stage.
        known: bytes by stage and span that are computed already, which is written to.
    """

    laid: LaidPlan
    ends: Sequence[int]
    limits: Sequence[int]
    known: dict[Any, float]

    def fits(self, x: int, i: int, j: int) -> bool:
        """Whether stage x fits where it lies between the ends i and j."""
        return round(self.held_bytes(x, i, j)) <= self.limits[x]

    def held_bytes(self, x: int, i: int, j: int) -> float:
        """The bytes of one device of stage x where it lies between the ends i and j."""
        if (x, i, j) not in self.known:
            self.known[x, i, j] = rank_bytes(self.laid.model, self.laid.layout, x, (self.ends[i], self.ends[j]))
        return self.known[x, i, j]

    def one_by_one(self) -> list[list[int]]:
        """The last end for each stage and each end at which it begins. More sub-layers never need less, so that a later
        beginning never has an earlier end."""
        depth, count = len(self.limits), len(self.ends)
        found = [[count - 1] * count for _ in range(depth)]
        for x in range(depth):
            reach = 0
            for i in range(count if x else 1):
                reach = max(reach, i)
                while reach + 1 < count and self.fits(x, i, reach + 1):
                    reach += 1
                found[x][i] = reach
        return found

    def by_layers(self) -> list[list[int]] | None:
        """As `one_by_one`, for a model whose layers are all alike, between an embedding and a head: the number of layers
        decides whether a stage fits. None if all stages together do not fit all layers."""
        depth, count = len(self.limits), len(self.ends)
        layers = count - 3
        if depth == 1:
            return [[count - 1] * count] if self.fits(0, 0, count - 1) else None
        last, first = self._most(depth - 1, layers), self._most(0, layers)
        if last < 0 or first < 0:
            return None
        most, guess = dict[int, int](), None
        for x in range(depth - 2, 0, -1):
            most[x] = guess = self._most(x, layers, guess)
            if guess < 1:
                return None
        if sum(most.values()) + last + first < layers:
            return None
        found = [[min(count - 2, first + 1)] * count]
        found += [[min(count - 2, max(i, i + most[x])) for i in range(count)] for x in range(1, depth - 1)]
        return [*found, [count - 1 if count - 2 - i <= last else i for i in range(count)]]

    def _most(self, x: int, most: int, guess: int | None = None) -> int:
        """The largest number of layers, at most `most`, with which stage x fits; -1 if none does. Stage 0 has the embedding,
        too, and the last stage the head. guess: a number to try first; None for one from the bytes of a layer."""
        end, last = len(self.ends) - 1, x == len(self.limits) - 1

        def span(number: int) -> tuple[int, int]:
            if last:
                return end - 1 - number, end
            return (0, number + 1) if x == 0 else (1, 1 + number)

        low, high = (1 if x > 0 and not last else 0), most + 1  # the least that it may have; the first known not to fit
        if low > most or not self.fits(x, *span(low)):
            return -1 if low == 0 or low > most else 0
        if low + 1 > most:
            return low
        if guess is None:
            one = self.held_bytes(x, *span(low + 1)) - self.held_bytes(x, *span(low))
            free = self.limits[x] - self.held_bytes(x, *span(low))
            guess = most if one <= 0 else min(most, low + int(free / one))
        while high - low > 1:
            middle = min(max(guess, low + 1), high - 1)
            if self.fits(x, *span(middle)):
                low, guess = middle, middle + 1
            else:
                high, guess = middle, middle - 1
        return low


def runtime_costs(request: Request) -> RuntimeCosts | None:
    """The predictions of the runtime that a request names; None if it names none, or one that is predicted as its own programs
    are, or if runtimes cannot be predicted on its devices. request: the user's model, cluster, batch and options."""
    name, model, cluster = request.options.get(FOR.name), request.described_model, request.cluster
    if name is None or model is None or cluster is None or RUNTIMES[name].run_by is None:
        return None
    return None if attribute(UNPREDICTED)(cluster) is not None else RuntimeCosts(request, model, cluster)


def some_cuts(instance: Instance, configuration: Configuration) -> tuple[int, ...]:
    """Cuts of a configuration: its own, or even ones, or the first that are allowed."""
    if configuration.cuts is not None:
        return configuration.cuts
    even = instance.even_cuts(configuration.stages)
    if even is not None:
        return even
    return tuple(l for l in range(1, instance.length) if instance.cuttable[l - 1])[: configuration.stages - 1]


def _alike(model: Model) -> bool:
    """Whether all layers of a model have equal sub-layers, so that a stage's memory depends on how many it has."""

    def of_layer(units: Sequence[Unit]) -> list[str]:
        return [model.key_of(unit) for unit in units]

    layers: dict[int, list[Unit]] = {}
    for unit in model.units:
        if unit.kind not in ("embedding", "head"):
            layers.setdefault(unit.layer, []).append(unit)
    return len({tuple(of_layer(units)) for units in layers.values()}) <= 1
