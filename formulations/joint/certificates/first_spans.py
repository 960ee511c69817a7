"""The least that spans take which begin the model, by prices of memory, in Python's integers: whole pipelines of one stage, and
first stages with what they add once."""

from __future__ import annotations

from collections.abc import Sequence

from trainplan.formulations.joint.certificates.file import FAR, SCALE
from trainplan.formulations.joint.problem import Configuration, Instance
from trainplan.formulations.joint.tables import FORBIDDEN, Boundary


def least_single_ns(instance: Instance, configuration: Configuration, prices: Sequence[int]) -> int:
    """No plan of a configuration of one stage has a shorter step: the least m u + g by the best of these prices, whatever the
    last unit's options allow of a table that both ends share."""
    depth, none = configuration.in_flight(0), [[0]] * len(configuration.tables[configuration.sites[0].kind].boundaries)
    return least_from_first_ns(instance, configuration, prices, configuration.micro_batches, depth, instance.length, none)[-1]


def least_from_first_ns(
    instance: Instance,
    configuration: Configuration,
    prices: Sequence[int],
    p: int,
    depth: int,
    longest: int,
    out: Sequence[Sequence[int]],
) -> list[int]:
    """The least p u + g of the spans that begin the model, by length less one, by the best of these prices, along the units by
    interface states, in Python's integers. out: by kind of boundary, what a span that ends there receives backward at least, by
    how it is left (the last state's, where there are fewer)."""
    kinds, tied = configuration.tables[configuration.sites[0].kind], configuration.tied
    shared = 0 if tied is None else tied.reduce_ns
    limit = min(instance.limit_bytes(site) for site in configuration.sites)
    best = [0] * longest
    for price in prices:
        left: dict[int, int] = {}
        for l in range(longest):
            tables = [(kinds.units[instance.units[l].kind], shared)]
            if l == instance.length - 1 and tied is not None and tied.once is not None:
                tables.append((tied.once, 0))
            final = l == instance.length - 1
            entered = _entered_single(kinds.boundaries[instance.boundary_kinds[l - 1]], left, p) if l else None
            behind, left, ends = [0] if final else out[instance.boundary_kinds[l]], {}, list[int]()
            for table, more in tables:
                time = p * (table.forward_ns + table.backward_ns) + table.last_ns + table.reduce_ns + table.optimizer_ns
                time = time + (p * (table.head_ns + table.tail_ns) if not l else 0)
                memory = table.state_bytes + depth * (table.kept_bytes + table.held_bytes)
                for s in range(len(table.options)):
                    before = 0 if entered is None else entered.get(int(table.enter[s]))
                    if before is None:
                        continue
                    cost, state = before + SCALE * int(time[s]) + p * price * int(memory[s]), int(table.leave[s])
                    left[state] = min(cost, left.get(state, cost))
                    work = max(int(table.work_forward_bytes[s]), int(table.work_backward_bytes[s]))
                    crossing = behind[min(state, len(behind) - 1)]
                    if crossing < FAR:
                        ending = SCALE * (p * (int(table.turn_ns[s]) + int(crossing)) + more)
                        ends.append(cost + ending + p * price * work)
            least = min(ends, default=None)
            best[l] = int(FAR) if least is None else max(best[l], -(-(least - p * price * limit) // SCALE))
    return best


def _entered_single(boundary: Boundary, left: dict[int, int], m: int) -> dict[int, int]:
    """The least up to and into a unit, by how it is entered, from the least by how the unit before is left."""
    entered: dict[int, int] = {}
    ahead, back = boundary.relayout_forward_ns, boundary.relayout_backward_ns
    for state, cost in left.items():
        for into in range(ahead.shape[1]):
            there, again = int(ahead[state, into]), int(back[state, into])
            if there < FORBIDDEN and again < FORBIDDEN:
                value = cost + SCALE * m * (there + again)
                entered[into] = min(value, entered.get(into, value))
    return entered
