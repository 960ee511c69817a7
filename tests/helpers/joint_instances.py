"""Random joint instances, small enough for brute force."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
from trainplan.formulations.joint.problem import Configuration, DeviceClass, DeviceGroup, Instance, Schedule, Unit
from trainplan.formulations.joint.tables import FORBIDDEN, Boundary, Halved, Option, OptionTable, Tables, Tied

UNITS, OPTIONS, DEVICES = 5, 3, 4


def random_instance(rng: random.Random, units: int = UNITS, options: int = OPTIONS, plain: bool = False) -> Instance:
    """A random joint instance of at most `units` units with at most `options` options each, on DEVICES devices.

    It has one to three configurations of any schedule, with one stage on each device group. plain: without sliced schedules,
    tied tables and forbidden boundaries.
    """
    length = rng.randint(1, units)
    kinds = [rng.randrange(rng.randint(1, 3)) for _ in range(length)]
    kinds = [sorted(set(kinds)).index(kind) for kind in kinds]
    boundaries = [rng.randrange(2) for _ in range(length - 1)]
    scale, memory = rng.choice([4, 30, 1000, 10**8]), rng.choice([5, 40])
    states, sliced = rng.randint(1, 3), 0 if plain else rng.choice([0, 0, 1, 2])
    forbidding = not plain and rng.random() < 0.15
    configurations = []
    tables_of: dict[int, tuple[Tables, ...]] = {}  # by number of micro-batches
    for _ in range(rng.randint(1, 3)):
        stages = rng.randint(1, min(length, DEVICES))
        m = rng.randint(1, 6)
        if sliced and stages > 1 and rng.random() < 0.5:
            schedule = Schedule("1f1b", min(sliced, stages - 1, m))
        else:
            schedule = Schedule(rng.choice(["1f1b", "1f1b", "gpipe"]))
        if m not in tables_of or rng.random() < 0.5:
            tables_of[m] = (_tables(rng, max(kinds) + 1, options, states, scale, memory, sliced, forbidding),)
        tables = tables_of[m]
        tied = None if plain or rng.random() < 0.7 or length == 1 else _tied(rng, tables[0], kinds, stages, scale)
        configurations.append(
            Configuration(
                schedule=schedule,
                micro_batches=m,
                device_groups=tuple(DeviceGroup((1,)) for _ in range(stages)),
                links=tuple(rng.randrange(2) for _ in range(stages - 1)),
                make_tables=lambda tables=tables: tables,
                make_tied=lambda tied=tied: tied,
                cuts=tuple(sorted(rng.sample(range(1, length), stages - 1))) if rng.random() < 0.05 else None,
            )
        )
    hosts = rng.choice([None, None, rng.randint(1, 4 * length)])
    cuttable = tuple(rng.random() < 0.95 for _ in boundaries)
    fewest = sum(cuttable) + 1
    kept = [configuration for configuration in configurations if configuration.stages <= fewest and configuration.cuts is None]
    return (
        Instance(
            classes=(DeviceClass("any", DEVICES, rng.randint(1, memory * 6 * length), hosts),),
            batch=60,
            units=tuple(Unit(f"u{l}", kind, l, l) for l, kind in enumerate(kinds)),
            boundary_kinds=tuple(boundaries),
            cuttable=cuttable,
            configurations=tuple(kept) if kept and fewest < length else tuple(configurations),
            reserve_bytes=0,
        )
        if fewest == length or kept
        else random_instance(rng, units, options, plain)
    )


def any_form(seed: int, units: int = UNITS, options: int = 2) -> Instance:
    """A random joint instance in which interleaved schedules on one or two device groups are as likely as other schedules, with
    and without fixed cuts, and whose memory is mostly too small for any solution."""
    rng = random.Random(seed)
    instance = random_instance(rng, units, options)
    configurations = [
        _interleaved(rng, instance, configuration) if rng.random() < 0.6 else configuration
        for configuration in instance.configurations
    ]
    [devices] = instance.classes
    memory = max(1, round(devices.memory_bytes * rng.choice((0.1, 0.3, 0.6, 1.0))))
    return replace(instance, configurations=tuple(configurations), classes=(replace(devices, memory_bytes=memory),))


def _interleaved(rng: random.Random, instance: Instance, other: Configuration) -> Configuration:
    """A configuration made interleaved, where the instance has enough units for its stages; else the configuration as it is."""
    groups, chunks = rng.randint(1, 2), rng.randint(2, 3)
    stages, possible = groups * chunks, [index for index, free in enumerate(instance.cuttable, 1) if free]
    if other.schedule.sliced or len(possible) < stages - 1:
        return other
    tied = rng.choice((None, Tied(reduce_ns=rng.randint(0, 30))))
    return replace(
        other,
        schedule=Schedule("interleaved", chunks=chunks, overlaps_messages=rng.random() < 0.5),
        micro_batches=groups * rng.randint(1, 3),
        device_groups=(DeviceGroup((1,)),) * groups,
        links=tuple(rng.randrange(2) for _ in range(stages - 1)),
        make_tied=lambda: tied,
        cuts=tuple(sorted(rng.sample(possible, stages - 1))) if rng.random() < 0.5 else None,
    )


def _tables(
    rng: random.Random, kinds: int, options: int, states: int, scale: int, memory: int, sliced: int, forbidding: bool
) -> Tables:
    units = tuple(_options(rng, rng.randint(1, options), states, scale, memory, sliced) for _ in range(kinds))
    return Tables(units=units, boundaries=tuple(_boundary(rng, states, scale, sliced, forbidding) for _ in range(2)))


def _options(rng: random.Random, count: int, states: int, scale: int, memory: int, sliced: int) -> OptionTable:
    def draw(most: int, share: float = 1.0) -> list[int]:
        return [rng.randint(0, most) if rng.random() < share else 0 for _ in range(count)]

    rare = rng.choice([0.0, 0.5])
    columns = {
        "enter": draw(states - 1),
        "leave": draw(states - 1),
        "forward_ns": draw(scale),
        "backward_ns": draw(2 * scale),
        "last_ns": draw(scale, rare),
        "reduce_ns": draw(rng.choice([1, 4]) * scale, 0.7),
        "optimizer_ns": draw(scale, 0.5),
        "head_ns": draw(scale // 4, rare),
        "turn_ns": draw(scale // 4, rare),
        "tail_ns": draw(scale // 4, rare),
        "kept_bytes": draw(memory, 0.7),
        "held_bytes": draw(memory, 0.5),
        "work_forward_bytes": draw(memory, 0.5),
        "work_backward_bytes": draw(memory),
        "state_bytes": draw(2 * memory),
        "host_bytes": draw(4, 0.5),
    }
    halved = None
    if sliced:
        halves = np.array([draw(scale), draw(scale)], np.int64)
        halved = Halved(forward_ns=halves, backward_ns=np.array(draw(2 * scale), np.int64))
    return OptionTable.of([Option(f"s{s}") for s in range(count)], halved, **columns)


def _boundary(rng: random.Random, states: int, scale: int, sliced: int, forbidding: bool) -> Boundary:
    def matrix(*shape: int, most: int = 0) -> np.ndarray:
        flat = [rng.randint(0, most or max(1, scale // 4)) for _ in range(int(np.prod(shape)))]
        return np.array(flat, np.int64).reshape(shape)

    free = rng.random() < 0.3
    ahead, back = matrix(states, states), matrix(states, states)
    if free:
        ahead, back = 0 * ahead, 0 * back
    if forbidding:
        ahead[rng.randrange(states), rng.randrange(states)] = FORBIDDEN
    more = {
        "halved_relayout_forward_ns": matrix(states, states),
        "halved_relayout_backward_ns": matrix(states, states),
        "halved_message_forward_ns": matrix(2, states, states),
    }
    return Boundary(
        relayout_forward_ns=ahead,
        relayout_backward_ns=back,
        message_forward_ns=matrix(2, states, states),
        message_backward_ns=matrix(2, states, states),
        **(more if sliced else {}),
    )


def _tied(rng: random.Random, tables: Tables, kinds: list[int], stages: int, scale: int) -> Tied:
    first, last = tables.units[kinds[0]], tables.units[kinds[-1]]
    if stages > 1:
        return Tied(reduce_ns=rng.randint(0, scale))
    flags = [rng.random() < 0.5 for _ in range(len(first.options) * len(last.options))]
    equal = np.array(flags).reshape(len(first.options), len(last.options))
    columns = {name: getattr(last, name).tolist() for name in ("enter", "leave", "forward_ns", "backward_ns", "state_bytes")}
    columns["backward_ns"] = [rng.randint(0, 2 * scale) for _ in last.options]
    columns["state_bytes"] = [value // 2 for value in columns["state_bytes"]]
    once = OptionTable.of(last.options, last.halved, **columns)
    return Tied(reduce_ns=rng.randint(0, scale), equal=equal, once=once)
