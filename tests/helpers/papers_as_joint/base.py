"""What a problem's restriction is, and the pieces of joint instances that all of them need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from trainplan.formulations.joint.problem import (
    Configuration,
    DeviceClass,
    DeviceGroup,
    Instance,
    Schedule,
    Solution,
    Step,
    Unit,
)
from trainplan.formulations.joint.tables import Boundary, Tables
from trainplan.formulations.numbers import Integers

Value = TypeVar("Value")


@dataclass(frozen=True)
class Restriction:
    """A problem's instance as one of the joint problem. lift: a solution of the problem as a joint one; lower: back again."""

    instance: Instance
    lift: Callable[[Any], Solution]
    lower: Callable[[Solution], Any]


def joint_instance(
    source: Any,
    units: Sequence[tuple[str, int]],
    boundary_kinds: Sequence[int],
    configurations: Sequence[Configuration],
    classes: Sequence[DeviceClass],
    step: Step,
    batch: int = 1,
) -> Instance:
    """The joint instance in a problem's place. source: the problem's; units: name and kind of each."""
    return Instance(
        classes=tuple(classes),
        batch=batch,
        units=tuple(Unit(name, kind, l, l) for l, (name, kind) in enumerate(units)),
        boundary_kinds=tuple(boundary_kinds),
        cuttable=(True,) * (len(units) - 1),
        configurations=tuple(configurations),
        step=step,
        name=source.name,
        provenance=source.provenance,
    )


def free_boundary(
    relayout_ns: Integers, message_ns: Integers | None = None, back_ns: Integers | None = None, **more: Any
) -> Boundary:
    """Of one kind: re-layouts forward, and messages by kind of link, of which there is one where none are given."""
    none = np.zeros((1, *relayout_ns.shape), np.int64)
    return Boundary(
        relayout_forward_ns=relayout_ns,
        relayout_backward_ns=np.zeros_like(relayout_ns),
        message_forward_ns=none if message_ns is None else message_ns,
        message_backward_ns=np.zeros_like(none if message_ns is None else message_ns) if back_ns is None else back_ns,
        **more,
    )


def one_stage(tables: Tables, micro_batches: int = 1) -> Configuration:
    """One stage on one device, and its tables."""
    return Configuration(
        schedule=Schedule(),
        micro_batches=micro_batches,
        device_groups=(DeviceGroup((1,)),),
        links=(),
        make_tables=constant((tables,)),
    )


def constant(value: Value) -> Callable[[], Value]:
    """A function that gives the value, for `Configuration.make_tables` and `make_tied`."""
    return lambda: value
