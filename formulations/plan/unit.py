"""The records of one unit in a plan: its layout, its model states, its activations, and the order of its copies.

The printed form, `dp2-tp4-ckpt`, is that of `plan.strategy`; files may give it in place of layout, zero and recomputation.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from trainplan.formulations.plan.strategy import Exchange, Module, Paradigm, Strategy, parse_strategy
from trainplan.formulations.plan.switches import SWITCHES, Switches
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.base.files import Record
from trainplan.profiling.clusters.recipes import RecipeName

Residence = Literal["device", "host"]
# H3T's memory switches but one: recomputation is part of a strategy, as `-ckpt`.
UnitSwitch = Literal["offload_hidden", "partition", "lazy_prefetch", "eco_forward", "eco_backward", "segment_sync"]
UNIT_SWITCHES: tuple[UnitSwitch, ...] = get_args(UnitSwitch)
assert ("ckpt", *UNIT_SWITCHES) == SWITCHES


class Brief(Record):
    """A record whose JSON file leaves out fields that have their default values."""

    @model_serializer(mode="wrap")
    def _briefly(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Serialize the record to a dict that omits the fields with default values. handler: pydantic's own serializer."""
        fields = type(self).model_fields
        return {name: value for name, value in handler(self).items() if getattr(self, name) != fields[name].default}


class Level(Record):
    """An axis of parallelism, and the number of ranks that it spans."""

    axis: Paradigm
    degree: Annotated[int, Field(ge=2)]


class Layout(Brief):
    """How the ranks of a stage share the work of a unit (sub-layer).

    Attributes:
        levels: axis and degree, from the slowest links to the fastest; ranks are numbered in mixed radix, the first level
            outermost. dp and sdp split the samples, cp the tokens of each, tp the weights, ep the experts of a layer that has
            some.
        sequence_parallel: whether tensor-parallel ranks also share the tokens of what lies between their matrices.
        exchange: what the ranks of a cp level exchange for attention's core: `keys` and values of all tokens, or `heads`, of
            which each rank then has a part with all tokens (all-to-all, as DeepSpeed-Ulysses).
    """

    levels: list[Level] = Field(default=[])
    sequence_parallel: bool = False
    exchange: Exchange = "keys"


class States(Brief):
    """Where a unit's (sub-layer's) model states are kept: parameters, gradients and optimizer states.

    Attributes:
        zero: which states the ranks of the sdp level shard: 1 optimizer states; 2 gradients, too; 3 parameters, too. 0
            without an sdp level. Ranks of a dp level hold copies, so that dp2-sdp4 is hybrid sharding.
        parameters, gradients, optimizer: `device` or `host`. An optimizer on the host works there, with its parameters and
            gradients on the host, too: the device sums the gradients of all micro-batches and copies the sum out after the
            last backward pass. Parameters on the `device` are then a copy, renewed after the optimizer's step; parameters
            on the host are copied in before each pass of the unit and freed after it. An optimizer on the device requires
            parameters and gradients on the device.
        kept_whole: whether parameters that were gathered, or copied in, are kept whole from the first micro-batch's forward
            pass to the last one's backward pass; otherwise they are freed after each pass and fetched again for the next.
            No effect on parameters that are always whole on the device.
    """

    zero: Literal[0, 1, 2, 3] = 0
    parameters: Residence = "device"
    gradients: Residence = "device"
    optimizer: Residence = "device"
    kept_whole: bool = False

    @property
    def on_host(self) -> bool:
        """Whether some of the unit's parameters, gradients or optimizer states are on the host."""
        return "host" in (self.parameters, self.gradients, self.optimizer)


class Activations(Brief):
    """How a unit keeps its activations until its backward pass.

    Attributes:
        recompute: what is computed again in the backward pass: nothing, everything, or what the listed modules keep.
        hidden: where the unit's input is kept until then, `device` or `host`. On the host, the input of each micro-batch is
            copied out in parallel with its forward pass and back before its backward pass; the whole unit is then
            recomputed, since an autograd graph would hold the input.
    """

    recompute: Literal["none", "full"] | list[Module] = "none"
    hidden: Residence = "device"


class Order(Brief):
    """The order of a unit's copies to and from the host, as the memory switches of the paper H3T define it. H3T's step is a
    chain of segments: a segment is a unit's forward or backward pass with its communication and copies.

    Attributes:
        eco_forward: whether a forward segment first copies out what is no longer needed.
        eco_backward: whether a backward segment fetches only after its computation has begun.
        synchronised: whether a segment begins only when computation, communication and copies of the segment before it are
            done.

    They can be set only in H3T's step: one stage and one micro-batch with all states on the host. In any other step, each
    pass fetches what its unit needs, or one unit in advance if that fits, and the host's optimizer steps each unit as soon
    as its gradient has arrived.
    """

    eco_forward: bool = False
    eco_backward: bool = False
    synchronised: bool = False


def _with_printed_form(schema: dict[str, Any]) -> None:
    """Add to the JSON schema of a unit, in place, the fields `strategy` and `switches`, which a file may have instead of
    layout, states, activations and order."""
    schema["properties"]["strategy"] = {"type": "string", "title": "Strategy"}
    schema["properties"]["switches"] = {"type": "array", "items": {"enum": list(UNIT_SWITCHES)}, "title": "Switches"}


class PlannedUnit(Brief):
    """One sub-layer (unit) and how it is trained over the ranks of its stage.

    Attributes:
        name: the sub-layer's name.
        layout: how the ranks share its work.
        states: where its parameters, gradients and optimizer states are.
        activations: which activations it keeps, and where.
        order: the order of its copies to and from the host; given only if states or hidden states are on the host.
        precision: the precision of its matrix products: `model` for the model's dtype, or the name of a low-precision recipe
            (`profiling.clusters.recipes`).

    A file may give `strategy`, such as "dp2-tp4-ckpt", instead of layout, ZeRO stage and recomputation; and `switches`, a
    list of H3T's memory switches except ckpt, instead of host residences and order; gradients and optimizer are then on the
    host.
    """

    model_config = ConfigDict(json_schema_extra=_with_printed_form)

    name: str
    layout: Layout = Layout()
    states: States = States()
    activations: Activations = Activations()
    order: Order | None = None
    precision: Literal["model", RecipeName] = "model"

    @model_validator(mode="wrap")
    @classmethod
    def _from_printed(cls, value: Any, handler: ModelWrapValidatorHandler[PlannedUnit]) -> PlannedUnit:
        """Read a unit from a file's value, either with the fields layout, states, activations and order, or in the short form
        with `strategy` and `switches`. value: the file's value. handler: pydantic's reader of the record, which is called
        with the long form.
        """
        if not isinstance(value, Mapping) or "strategy" not in value:
            return handler(value)
        unit = handler(_records(value))
        unit.__dict__["field"] = "strategy"  # as the cached property below; no part of what makes units equal
        return unit

    @model_validator(mode="after")
    def _consistent(self) -> PlannedUnit:
        """Raise InputError if fields contradict each other, such as a ZeRO stage without an sdp level; otherwise return the
        unit."""
        axes = [level.axis for level in self.layout.levels]
        if len(set(axes)) < len(axes):
            raise InputError("", "layout.levels", f"are of {', '.join(axes)}", "name each axis once")
        sharded, zero = "sdp" in axes, self.states.zero
        if sharded != (zero > 0):
            fix = "give 1, 2 or 3: layout.levels has sdp" if sharded else "leave it out, or give layout.levels an sdp level"
            raise InputError("", "states.zero", f"is {zero}", fix)
        if self.layout.sequence_parallel and "tp" not in axes:
            raise InputError("", "layout.sequence_parallel", "is true", "leave it out, or give layout.levels a tp level")
        if self.layout.exchange != "keys" and "cp" not in axes:
            raise InputError(
                "", "layout.exchange", f"is {self.layout.exchange!r}", "leave it out, or give layout.levels a cp level"
            )
        modules = self.activations.recompute
        if isinstance(modules, list) and sorted(set(modules)) != modules:
            fix = f"give {shown(sorted(set(modules)) or 'none')}"
            raise InputError("", "activations.recompute", f"is {shown(modules)}", fix)
        if modules == []:
            raise InputError("", "activations.recompute", "is []", "give 'none'")
        if (self.order is not None) != self.uses_host:
            if self.order is None:
                problem, fix = "is missing, with states or hidden states on the host", "give an object, such as {}"
            else:
                problem, fix = "is there", "leave it out: nothing of the sub-layer is on the host"
            raise InputError("", "order", problem, fix)
        return self

    @cached_property
    def strategy(self) -> Strategy:
        """The unit's layout, ZeRO stage and recomputation as one strategy, such as dp2-tp4-ckpt."""
        levels, recompute = tuple((level.axis, level.degree) for level in self.layout.levels), self.activations.recompute
        modules = tuple(recompute) if isinstance(recompute, list) else ()
        layout, zero = self.layout, self.states.zero or 3
        return Strategy(levels, recompute == "full", zero, layout.sequence_parallel, modules, layout.exchange)

    @cached_property
    def field(self) -> str:
        """The name of the field that gave the unit's layout, for errors: `strategy` if the file had the short form, otherwise
        `layout`.
        """
        return "layout"

    @property
    def uses_host(self) -> bool:
        """Whether some of the unit's model states or its saved input are on the host."""
        return self.states.on_host or self.activations.hidden == "host"

    @property
    def switches(self) -> Switches | None:
        """H3T's seven memory switches (`ckpt`, offloading and the order of copies) that describe the unit; None if its
        optimizer works on the device.
        """
        if self.order is None or self.states.optimizer == "device":
            return None
        return Switches(
            ckpt=self.strategy.ckpt,
            offload_hidden=self.activations.hidden == "host",
            partition=not self.states.kept_whole,
            lazy_prefetch=self.states.parameters == "host",
            eco_forward=self.order.eco_forward,
            eco_backward=self.order.eco_backward,
            segment_sync=self.order.synchronised,
        )

    def laid_out(self, strategy: Strategy) -> PlannedUnit:
        """A copy of the unit with another strategy (parallelism, ZeRO stage and recomputation); what is on the host, and the
        order of copies, stay.
        """
        return self.changed(
            **_of_strategy(strategy, self.states.changed(zero=strategy.zero_stage), self.activations.hidden), order=self.order
        )

    def __str__(self) -> str:
        if self.switches is not None:
            return ", ".join([str(self.strategy), *(name for name in self.switches.names if name != "ckpt")])
        words = ["input on the host"] * (self.activations.hidden == "host") + ["kept whole"] * self.states.kept_whole
        return ", ".join([str(self.strategy), *words])


def planned_unit(name: str, strategy: Strategy, switches: Switches | None = None) -> PlannedUnit:
    """A unit (sub-layer) of a plan that is trained under a strategy. name: the sub-layer's name. switches: H3T's memory
    switches; if given, gradients and optimizer states are on the host, and parameters and input if the switches say so.
    Raises InputError if strategy and switches contradict each other.
    """
    if switches is None:
        return PlannedUnit(name=name, **_of_strategy(strategy, States(zero=strategy.zero_stage)))
    states = States(
        zero=strategy.zero_stage,
        parameters="host" if switches.lazy_prefetch else "device",
        gradients="host",
        optimizer="host",
        kept_whole=not switches.partition,
    )
    order = Order(eco_forward=switches.eco_forward, eco_backward=switches.eco_backward, synchronised=switches.segment_sync)
    hidden: Residence = "host" if switches.offload_hidden else "device"
    return PlannedUnit(name=name, **_of_strategy(strategy, states, hidden), order=order)


def _of_strategy(strategy: Strategy, states: States, hidden: Residence = "device") -> dict[str, Any]:
    """The fields `layout`, `states` and `activations` that a unit has under a strategy, as keyword arguments for
    `PlannedUnit`.

    states: the unit's model states, of which the ZeRO stage is replaced by the strategy's. hidden: where the unit's input
    is kept until its backward pass, `device` or `host`.
    """
    recompute: Any = "full" if strategy.ckpt else list(strategy.modules) or "none"
    levels = [Level(axis=axis, degree=degree) for axis, degree in strategy.levels]
    return {
        "layout": Layout(levels=levels, sequence_parallel=strategy.sequence_parallel, exchange=strategy.exchange),
        "states": states,
        "activations": Activations(recompute=recompute, hidden=hidden),
    }


def _records(value: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the fields of a unit's file in its short form, with `strategy` and perhaps `switches`, into the fields layout,
    states, activations and order. Raises InputError for values that are not a strategy or switches.
    """
    rest = {name: field for name, field in value.items() if name not in ("strategy", "switches")}
    if twice := [name for name in ("layout", "states", "activations", "order") if name in rest]:
        problem = f"is {shown(value['strategy'])}, with {twice[0]}"
        raise InputError("", "strategy", problem, f"leave strategy or {twice[0]} out")
    if not isinstance(value["strategy"], str):
        raise InputError("", "strategy", f"is {shown(value['strategy'])}", "give a text in quotes, such as 'dp2-tp4'")
    strategy, names = parse_strategy(value["strategy"], "", "strategy"), value.get("switches")
    if names is None:
        return {**rest, **_of_strategy(strategy, States(zero=strategy.zero_stage))}
    if not isinstance(names, list):
        raise InputError("", "switches", f"is {shown(names)}", "give a list [...]")
    for index, name in enumerate(names):
        if name not in UNIT_SWITCHES:
            raise InputError("", f"switches[{index}]", f"is {shown(name)}", f"give one of {', '.join(UNIT_SWITCHES)}")
    if len(set(names)) < len(names):
        raise InputError("", "switches", f"is {shown(names)}", f"give each once: {shown(list(dict.fromkeys(names)))}")
    unit = planned_unit("", strategy, Switches.of(names))
    return {**rest, **{name: getattr(unit, name) for name in ("layout", "states", "activations", "order")}}
