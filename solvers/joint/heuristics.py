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
    """A lower bound in ns on every plan's step time, in closed form, ignoring memory, and the text that says why it holds:
    every sub-layer at its cheapest, stages as even as possible; the least bound over all configurations (numbers of stages and
    micro-batches, with a schedule).

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from."""
    return int(min(_quick_bound_ns(instance, index) for index in range(len(instance.configurations)))), SOURCE


def _quick_bound_ns(instance: Instance, configuration_index: int) -> float:
    """A lower bound in ns, in closed form, on the step times of all plans of one configuration (number of stages and
    micro-batches, with a schedule), given by its index.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from. configuration_index: the configuration's index
    in the instance."""
    configuration = instance.configurations[configuration_index]
    if instance.step != "simulated" or len({group.kind for group in configuration.device_groups}) > 1:
        return least_ns(instance.only([configuration_index]))
    return quick_bound_ns(instance, configuration)


def first_plan(instance: Instance) -> Solution | None:
    """A plan that fits the memory, found quickly: a few choices of options and cuts are tried in one configuration (number of
    stages and micro-batches, with a schedule) after another, until a few configurations have a plan; the best of these plans is
    returned, None if no configuration has one, and for plans that a runtime is predicted for.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from.

    Numbers of stages are tried from the middle outwards, with numbers of micro-batches from the middle upwards."""
    if instance.runtime is not None:
        return None  # the search begins with the plans that its bounds suggest
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
    """Compute a quick plan (a few choices of options and cuts are tried) for each configuration (number of stages and
    micro-batches, with a schedule), and return the best one if its step time is below `most` ns; else None. bounds: for each
    configuration, a lower bound in ns on its plans' step times, by which configurations that cannot be better are skipped.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from."""
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
    """A quick plan, found by trying a few choices of options and cuts, of one configuration (number of stages and
    micro-batches, with a schedule) with one stage on each of equal device groups: the step time in ns, and the plan; None if no
    plan that was tried fits. None is also returned for configurations without one stage on each of equal groups, unless their
    units must all choose the same option.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from. configuration_index: the configuration's index
    in the instance. rounds: how often the cuts are balanced anew, by the times that the units (sub-layers) have in the plan
    found last."""
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
    """Yield plans of one configuration (number of stages and micro-batches, with a schedule), whatever its schedule. Each plan
    has stages that are even in time, one layout of activations between all units (sub-layers), and for each unit the option of
    least time plus priced memory, at one price of memory. Plans are yielded even if they do not fit the memory.

    instance: the units (sub-layers) of a model, their options (parallel strategies) with times and memory, and the
    configurations (number of stages and micro-batches, schedule) to choose from. configuration_index: the configuration's index
    in the instance."""
    configuration = instance.configurations[configuration_index]
    planner = _Planner(instance, configuration)
    cuts = planner.balanced(least_u_ns(instance, configuration)) if len(planner.choices) else None
    if cuts is not None:
        for options in planner.option_indices():
            yield Solution(configuration_index, cuts, tuple(options.tolist()))


class _Planner:
    """Quick plans of one configuration (number of stages and micro-batches, with a schedule), from a few choices of options for
    all L units (sub-layers). An interface state is the layout of the activations between two units.

    choices: (choices, L), for each choice the option of every unit, as an index in `tables`, the tables of options that are not
    dominated. kinds: the kind of each unit. memory, host: limits in bytes of a device, and of its share of the host (None for
    no limit)."""

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
        """The options of all choices as indices in the instance's own tables, (choices, L)."""
        return self._spread([kind.indices for kind in self.tables.kinds])

    def _column(self, of: str) -> Integers:
        """One number of every unit's option under each choice, (choices, L), from the tables of options that are not dominated.
        of: the name of the tables' field, such as `u_ns`."""
        return self._spread([np.asarray(getattr(kind, of)) for kind in self.tables.kinds])

    def _of_table(self, of: str) -> Integers:
        """One number of every unit's option under each choice, (choices, L), from the instance's own tables, which have all
        options. of: the name of the field of the tables, such as `forward_ns`.
        """
        return self._spread([getattr(kind.table, of)[kind.indices] for kind in self.tables.kinds])

    def _spread(self, by_kind: list[Integers]) -> Integers:
        """Look up a value for every unit's option under each choice: (choices, L). by_kind: for each kind of unit, one value
        per option."""
        begins = np.cumsum([0, *map(len, by_kind[:-1])])
        spread: Integers = np.concatenate(by_kind)[begins[self.kinds] + self.choices]
        return spread

    def balanced(self, load: Floats) -> tuple[int, ...] | None:
        """Cuts (first unit of every stage but the first) into stages of about equal load, at boundaries that the instance
        allows to be cut; None if some stage would have no unit. load: (L,), each unit's load, such as a time. Fixed cuts of the
        configuration are returned as they are."""
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
        """Yield cuts (first unit of every stage but the first) into stages that need about equal memory, one result for each of
        the few choices that need the least memory, left out if the stages do not fit."""
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
        """Cuts (first unit of every stage but the first) that fill each stage with as many units as a memory limit holds; None
        if units remain. columns: four lists with one number of bytes per unit: model states, bytes held for each micro-batch in
        flight, bytes kept until the backward pass, and work bytes of a running pass. limit: in bytes."""
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
        """The plan for given cuts, with the best choice that fits in each stage: the step time in ns, the option of every unit,
        and the time in ns of every unit's passes, (L,); None if some stage has no choice that fits, or if the interface states
        disagree at a cut. cuts: the first unit of every stage but the first."""
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
        """The pass times in ns of the P stages of one pipeline, (P, 1); None if interface states disagree between units.

        chosen: two vectors over units: the index of the choice from which each unit's option is taken, and the unit's own
        index. starts: (P,), the first unit of every stage.
        """
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
    """A few choices of options by kind of unit (sub-layer), (choices, kinds): for each interface cell (the pair of activation
    layouts in which a unit is entered and left) in which all kinds have an option, the options of least time plus priced
    memory, at a few prices. tables: the options of all kinds of units. in_flight: micro-batches in flight, by which memory is
    counted."""
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
    """For each price of memory, (prices,), the index of the option whose time plus price times memory is least.

    kind: the options of a kind of unit (sub-layer). memory: (all options of the kind,), bytes. options: the indices to choose
    from. prices: (prices,), in ns per byte.
    """
    cheapest: Integers = options[(kind.u_ns[options] + prices[:, None] * memory[options]).argmin(axis=1)]
    return cheapest
