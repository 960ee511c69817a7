"""Plans of the joint problem in milliseconds, and a bound in closed form.

Plans have stages that are even in units, and even in time. Each stage takes, of a few choices for all of its units that fit it,
the one with the least m u + g: m micro-batches, u both passes of one, g the work after the last one. All units of a choice have
one interface state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from trainplan.formulations.joint.lower_bounds import least_ns
from trainplan.formulations.joint.problem import Configuration, Instance, Solution
from trainplan.formulations.numbers import Integers
from trainplan.solvers.joint.closed_form_bound import holds_states, least_u_ns, quick_bound_ns
from trainplan.solvers.joint.fixed_cuts.uniform_choices import agreeing_choices, best_agreeing
from trainplan.solvers.joint.free_cuts.pipeline_columns import Passes, steps_ns
from trainplan.solvers.joint.stages.option_tables import Floats, KindOptions, StageTables, stage_tables

SOURCE = "every sub-layer at its cheapest, stages as even as they can be"
PRICES = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 1e9)  # of memory, as multiples of its mean cost
ENOUGH = 3  # configurations with a plan that fits
FINER = 3  # configurations of the best rough plans
LEANEST = 3  # choices by which stages are made even in memory
FINE = 64  # parts of the memory to which they are even
ROUNDS = 4  # of cuts even in the time that the plan before took


def cheap_bound(instance: Instance) -> tuple[int, str]:
    """A lower bound in ns of every plan's step, whatever the memory, and its reason in words.

    Proof: see `quick_bound_ns`, for each configuration; a plan has one of them. For steps that are not simulated, and for
    unequal device groups, `formulations.joint.lower_bounds.least_ns`.
    """
    return int(min(_quick_bound_ns(instance, index) for index in range(len(instance.configurations)))), SOURCE


def _quick_bound_ns(instance: Instance, configuration_index: int) -> float:
    """The lower bound in ns of one configuration."""
    configuration = instance.configurations[configuration_index]
    if instance.step != "simulated" or len({group.kind for group in configuration.device_groups}) > 1:
        return least_ns(instance.only([configuration_index]))
    return quick_bound_ns(instance, configuration)


def first_plan(instance: Instance) -> Solution | None:
    """The best plan of the first few configurations for which `quick_plan` finds one; None where it finds none.

    The tables of a configuration may take longer than its plan, so depths are tried from the middle outwards, with numbers of
    micro-batches from the middle upwards, until some have plans.
    """
    by_depth: dict[int, list[int]] = {}
    for configuration_index, configuration in sorted(
        enumerate(instance.configurations), key=lambda pair: pair[1].micro_batches
    ):
        by_depth.setdefault(configuration.stages, []).append(configuration_index)
    sorted_depths = sorted(by_depth)
    depths = sorted(sorted_depths, key=lambda depth: abs(sorted_depths.index(depth) - len(by_depth) // 2))
    turns = max(map(len, by_depth.values()))
    best: tuple[int, Solution] | None = None
    plans = 0
    for turn in range(turns):
        for depth in depths:
            indices = by_depth[depth]
            if turn >= len(indices) or plans == ENOUGH:
                continue
            planned = quick_plan(instance, indices[(len(indices) // 2 + turn) % len(indices)], rounds=1)
            plans += planned is not None
            if planned is not None and (best is None or planned[0] < best[0]):
                best = planned
    return None if best is None else best[1]


def best_quick_plan(instance: Instance, bounds: Sequence[float], most: float) -> Solution | None:
    """The best plan of all configurations with a step below `most`; None where there is none. bounds: a lower bound of each
    configuration's step."""
    rough: list[tuple[int, int, Solution]] = []
    for bound, configuration_index in sorted(zip(bounds, range(len(bounds)), strict=True)):
        if bound >= most:
            break
        planned = quick_plan(instance, configuration_index, rounds=0)
        if planned is not None:
            rough.append((planned[0], configuration_index, planned[1]))
            most = min(most, planned[0])
    best: tuple[int, Solution] | None = None
    for step, configuration_index, plan in sorted(rough, key=lambda rough_plan: rough_plan[:2])[:FINER]:
        finer = quick_plan(instance, configuration_index) or (step, plan)
        if best is None or finer[0] < best[0]:
            best = finer
    return None if best is None else best[1]


def quick_plan(instance: Instance, configuration_index: int, rounds: int = ROUNDS) -> tuple[int, Solution] | None:
    """The step in ns and the plan of one configuration with one stage on each of equal device groups; None where none that was
    tried fits. rounds: how often cuts are made even in the time that units took in the plan before."""
    configuration = instance.configurations[configuration_index]
    if agreeing_choices(configuration) is not None:
        return best_agreeing(instance, configuration_index, np.inf)
    if configuration.schedule.chunks > 1 or len({group.kind for group in configuration.device_groups}) > 1:
        return None
    if not holds_states(instance, configuration):
        return None
    planner = _Planner(instance, configuration)
    if not len(planner.choices):
        return None
    best: tuple[int, Solution] | None = None
    loads = [np.ones(instance.length)] * (rounds > 0) + [least_u_ns(instance, configuration)]
    tried: set[tuple[int, ...]] = set()
    while loads:
        cuts = planner.balanced(loads.pop())
        if cuts is None or cuts in tried:
            continue
        tried.add(cuts)
        planned = planner.planned(cuts)
        if planned is None:
            continue
        step, choice, load = planned
        if best is None or step < best[0]:
            best = step, Solution(configuration_index, cuts, choice)
            if len(tried) <= rounds:
                loads.append(load)
    if best is None and rounds and configuration.cuts is None:
        for cuts in planner.even_in_memory():
            if (planned := planner.planned(cuts)) is not None:
                best = planned[0], Solution(configuration_index, cuts, planned[1])
                break
    return best


def even_plans(instance: Instance, configuration_index: int) -> Iterator[Solution]:
    """Plans of one configuration, of any schedule, with stages even in time and all units in one interface state: the cheapest
    options at a few prices of memory, whether they fit or not."""
    configuration = instance.configurations[configuration_index]
    planner = _Planner(instance, configuration)
    cuts = planner.balanced(least_u_ns(instance, configuration)) if len(planner.choices) else None
    if cuts is not None:
        for options in planner.option_indices():
            yield Solution(configuration_index, cuts, tuple(options.tolist()))


class _Planner:
    """One configuration with a few choices of options for all units, as arrays of shape (choices, L)."""

    def __init__(self, instance: Instance, configuration: Configuration) -> None:
        self.instance, self.configuration = instance, configuration
        group = configuration.device_groups[0]
        self.tables: StageTables = stage_tables(configuration.tables[group.kind], configuration.schedule.sliced > 0)
        self.memory, self.host = instance.limit_bytes(group), instance.host_limit_bytes(group)
        self.kinds = [unit.kind for unit in instance.units]
        group_count = len(configuration.device_groups)
        by_kind = _choices(self.tables, configuration.in_flight(0) if configuration.schedule.chunks == 1 else group_count)
        self.choices: Integers = by_kind[:, self.kinds] if len(by_kind) else np.zeros((0, len(self.kinds)), np.int64)

    def option_indices(self) -> Integers:
        """(choices, L): the indices of the options in the formulation's tables."""
        return self._spread([kind.indices for kind in self.tables.kinds])

    def _column(self, of: str) -> Integers:
        """(choices, L): a field of `KindOptions` for the option of every unit."""
        return self._spread([np.asarray(getattr(kind, of)) for kind in self.tables.kinds])

    def _of_table(self, of: str) -> Integers:
        """(choices, L): a column of the formulation's tables for the option of every unit."""
        return self._spread([getattr(kind.table, of)[kind.indices] for kind in self.tables.kinds])

    def _spread(self, by_kind: list[Integers]) -> Integers:
        """(choices, L): values of options, given by kind of unit, for the option of every unit."""
        begins = np.cumsum([0, *map(len, by_kind[:-1])])
        spread: Integers = np.concatenate(by_kind)[begins[self.kinds] + self.choices]
        return spread

    def balanced(self, load: Floats) -> tuple[int, ...] | None:
        """Cuts into stages of about equal load, where stages may begin; None where that leaves a stage without units. load:
        (L,)."""
        stages, units = self.configuration.stages, self.instance.length
        if self.configuration.cuts is not None:
            return self.configuration.cuts
        possible = np.flatnonzero(self.instance.cuttable) + 1
        if len(possible) < stages - 1:
            return None
        sums = np.concatenate([[0.0], np.cumsum(load)])
        wanted = sums[-1] * np.arange(1, stages) / stages
        indices = np.searchsorted((sums[possible][1:] + sums[possible][:-1]) / 2, wanted)  # the nearest
        order = np.arange(stages - 1)
        indices = np.maximum.accumulate(np.maximum(indices, order) - order) + order
        indices = np.minimum(indices, len(possible) - (stages - 1) + order)
        cuts = possible[indices]
        return tuple(cuts.tolist()) if len(np.unique(cuts)) == stages - 1 and (stages == 1 or cuts[-1] < units) else None

    def even_in_memory(self) -> Iterator[tuple[int, ...]]:
        """Cuts into stages that need about equal memory, as far as they fit, by the choices that need the least."""
        depth = self.configuration.in_flight(0)
        state, held, kept, work = (self._column(name) for name in ("state", "held", "kept", "work"))
        leanest = (state + depth * (held + kept)).sum(axis=1).argsort(kind="stable")[:LEANEST]
        for row in leanest.tolist():
            columns = [column[row].tolist() for column in (state, held, kept, work)]
            low, high = 0, self.memory
            best = self._filled(columns, high)
            while best is not None and high - low > max(1, self.memory // FINE):
                middle = (low + high) // 2
                cuts = self._filled(columns, middle)
                low, high, best = (middle, high, best) if cuts is None else (low, middle, cuts)
            if best is not None:
                yield best

    def _filled(self, columns: list[list[int]], limit: int) -> tuple[int, ...] | None:
        """Cuts with as many units in each stage as a limit of bytes holds; None where units do not fit. columns: state, held,
        kept and work bytes of every unit."""
        state, held, kept, work = columns
        stages, units, cuts, unit = self.configuration.stages, self.instance.length, list[int](), 0
        for x in range(stages):
            n, base, stacked, peak, last = self.configuration.in_flight(x), 0, 0, 0, -1
            first = unit
            while unit < units - (stages - 1 - x):
                base += state[unit] + n * held[unit] + (n - 1) * kept[unit]
                stacked += kept[unit]
                peak = max(peak, stacked + work[unit])
                if base + peak > limit:
                    break
                unit += 1
                last = unit if unit == units or self.instance.cuttable[unit - 1] else last
            unit = last
            if unit <= first:
                return None
            cuts.append(unit)
        return tuple(cuts[:-1]) if unit == units else None

    def planned(self, cuts: tuple[int, ...]) -> tuple[int, tuple[int, ...], Floats] | None:
        """The step in ns, the options of all units, and the time of each unit, (L,), for given cuts; None where some stage has
        no choice that fits."""
        configuration, units = self.configuration, self.instance.length
        starts = np.array([0, *cuts])
        stage_of = np.repeat(np.arange(len(starts)), np.diff([*starts, units]))
        in_flight = np.array([configuration.in_flight(x) for x in range(len(starts))])
        kept, work = self._column("kept"), self._column("work")
        totals = {name: np.add.reduceat(self._column(name), starts, axis=1) for name in ("state", "held", "kept", "host")}
        turns = np.maximum.reduceat(np.cumsum(kept, axis=1) + work, starts, axis=1)
        turns -= np.cumsum(totals["kept"], axis=1) - totals["kept"]
        peaks = totals["state"] + in_flight * totals["held"] + (in_flight - 1) * totals["kept"] + turns
        fits = peaks <= self.memory
        if self.host is not None:
            fits &= totals["host"] <= self.host
        if not fits.any(axis=0).all():
            return None
        u_ns, extra = self._column("u_ns"), self._column("extra_ns")
        rough = np.add.reduceat(configuration.micro_batches * u_ns + extra, starts, axis=1)
        chosen = np.where(fits, rough, np.iinfo(np.int64).max).argmin(axis=0)[stage_of], np.arange(units)
        passes = self._passes(chosen, starts)
        if passes is None:
            return None
        tied = 0 if configuration.tied is None else configuration.tied.reduce_ns
        step = int(steps_ns(passes, configuration, tied)[0])
        options = self.option_indices()[chosen]
        return step, tuple(options.tolist()), u_ns[chosen].astype(np.float64)

    def _passes(self, chosen: tuple[Integers, Integers], starts: Integers) -> Passes | None:
        """The passes of the one pipeline, (P, 1); None where interface states disagree. chosen: the choice and the unit of
        every entry. starts: the first unit of every stage."""
        units = self.instance.length

        def stage(values: Integers) -> Integers:
            return np.add.reduceat(values, starts)

        columns = {
            name: stage(self._of_table(name)[chosen])
            for name in ("forward_ns", "backward_ns", "last_ns", "reduce_ns", "optimizer_ns")
        }
        ends = np.append(starts[1:], units) - 1
        head, tail, turn = (self._of_table(name)[chosen] for name in ("head_ns", "tail_ns", "turn_ns"))
        forward, backward = columns["forward_ns"] + head[starts], columns["backward_ns"] + tail[starts] + turn[ends]
        halves = np.zeros((3, len(starts)), np.int64)
        if self.configuration.schedule.sliced:
            halved = [kind.table.halved for kind in self.tables.kinds]
            for row, number in ((0, 0), (1, 1), (2, None)):
                values = [
                    np.zeros(len(kind.indices), np.int64)
                    if halves_of_kind is None
                    else (halves_of_kind.backward_ns if number is None else halves_of_kind.forward_ns[number])[kind.indices]
                    for kind, halves_of_kind in zip(self.tables.kinds, halved, strict=True)
                ]
                halves[row] = stage(self._spread(values)[chosen])
            halves[:2] += head[starts]
            halves[2] += tail[starts] + turn[ends]
        leave, enter = self._column("leave")[chosen], self._column("enter")[chosen]
        begins, x = set(starts.tolist()), 0
        for l in range(1, units):
            boundary = self.instance.boundary_kinds[l - 1]
            pair = int(leave[l - 1]), int(enter[l])
            if not np.isfinite(self.tables.moves[boundary][pair]):
                return None
            crossing = self.tables.crossings[boundary]
            if l in begins:
                x, link = x + 1, self.configuration.links[x]
                back = int(crossing.backward_ns[pair] + crossing.message_backward_ns[link][pair])
                forward[x] += int(crossing.forward_ns[pair] + crossing.message_forward_ns[link][pair])
                backward[x - 1] += back
                halves[2, x - 1] += back
                halves[:2, x] += int(crossing.halved_forward_ns[pair] + crossing.halved_message_ns[link][pair])
            else:
                forward[x] += int(crossing.forward_ns[pair])
                backward[x] += int(crossing.backward_ns[pair])
                halves[:2, x] += int(crossing.halved_forward_ns[pair])
                halves[2, x] += int(crossing.halved_backward_ns[pair])
        return Passes(
            forward_ns=forward[:, None],
            backward_ns=backward[:, None],
            last_ns=columns["last_ns"][:, None],
            reduce_ns=columns["reduce_ns"][:, None],
            optimizer_ns=columns["optimizer_ns"][:, None],
            halves_ns=halves[:2, :, None],
            halved_backward_ns=halves[2][:, None],
        )


def _choices(tables: StageTables, in_flight: int) -> Integers:
    """(choices, kinds of units): for each interface cell that all kinds have, the cheapest options at a few prices
    of memory."""
    rows = []
    memory = [(kind.state + in_flight * (kind.kept + kind.held)).astype(np.float64) for kind in tables.kinds]
    spread = sum(float(np.ptp(sizes)) for sizes in memory)
    prices = np.array(PRICES) * sum(float(np.ptp(kind.u_ns)) for kind in tables.kinds) / max(1.0, spread)
    for cell in range(len(tables.cell_enter)):
        inside = [np.flatnonzero(cells == cell) for cells in tables.cells_of]
        if all(len(options) for options in inside):
            columns = [_cheapest(*of_kind, prices) for of_kind in zip(tables.kinds, memory, inside, strict=True)]
            rows.append(np.stack(columns, axis=1))
    return np.unique(np.concatenate(rows), axis=0) if rows else np.zeros((0, len(tables.kinds)), np.int64)


def _cheapest(kind: KindOptions, memory: Floats, options: Integers, prices: Floats) -> Integers:
    """Those of some options of a kind that are cheapest at each price of a byte."""
    cheapest: Integers = options[(kind.u_ns[options] + prices[:, None] * memory[options]).argmin(axis=1)]
    return cheapest
