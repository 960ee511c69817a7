"""The papers' problems as restrictions of the joint problem: the result type, and parts of joint instances that all need."""

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
    """An instance of a paper's problem as one of the joint problem.

    Attributes:
        instance: the joint instance.
        lift: makes a joint solution of a solution of the paper's problem.
        lower: makes a solution of the paper's problem of a joint one.
    """

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
    """A joint instance that stands for an instance of a paper's problem (`source`).

    units: the name and the kind of each unit. The other arguments are the joint instance's fields.
    """
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
    """The costs of one kind of boundary between units.

    relayout_ns: of re-layouts in the forward pass, by state of both units; the backward pass has none. message_ns: of messages
    in the forward pass, by kind of link and states (default: one kind of link, without costs). back_ns: of messages in the
    backward pass (default: none). more: further fields of Boundary.
    """
    none = np.zeros((1, *relayout_ns.shape), np.int64)
    return Boundary(
        relayout_forward_ns=relayout_ns,
        relayout_backward_ns=np.zeros_like(relayout_ns),
        message_forward_ns=none if message_ns is None else message_ns,
        message_backward_ns=np.zeros_like(none if message_ns is None else message_ns) if back_ns is None else back_ns,
        **more,
    )


def one_stage(tables: Tables, micro_batches: int = 1) -> Configuration:
    """A configuration of one stage on one device with these tables."""
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
