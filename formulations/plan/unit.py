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
    """A record whose file leaves out fields that have their default value."""

    @model_serializer(mode="wrap")
    def _briefly(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The fields that differ from their default."""
        fields = type(self).model_fields
        return {name: value for name, value in handler(self).items() if getattr(self, name) != fields[name].default}


class Level(Record):
    """An axis of parallelism, and the number of ranks that it spans."""

    axis: Paradigm
    degree: Annotated[int, Field(ge=2)]


class Layout(Brief):
    """How the ranks of a stage share a unit's work.

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
    """Where a unit's model states are.

    Attributes:
        zero: what the ranks of the sdp level share: 1 the optimizer's states, 2 gradients, too, 3 parameters, too; 0 without
            such a level. Ranks of a dp level hold copies, so that dp2-sdp4 is hybrid sharding.
        parameters, gradients, optimizer: on the device or the host. An optimizer on the host works there, on all three, and
            gradients are on the host, too: the device sums those of all micro-batches, and copies the sum out once, after the
            last backward pass. Parameters on the device are then a copy, which gets the new ones after the optimizer's step;
            parameters on the host are copied in before each pass of the unit, and freed after it. With the optimizer on the
            device, so are parameters and gradients.
        kept_whole: whether parameters that are gathered, or copied in, stay whole from the first micro-batch's forward pass to
            the last one's backward pass; else they are freed, and come again, in each pass of each micro-batch. It changes
            nothing for parameters that are always whole on the device.
    """

    zero: Literal[0, 1, 2, 3] = 0
    parameters: Residence = "device"
    gradients: Residence = "device"
    optimizer: Residence = "device"
    kept_whole: bool = False

    @property
    def on_host(self) -> bool:
        """Whether some of the states are on the host."""
        return "host" in (self.parameters, self.gradients, self.optimizer)


class Activations(Brief):
    """How a unit keeps its activations until its backward pass.

    Attributes:
        recompute: nothing is computed again, everything is, or what the listed modules keep.
        hidden: where its input is until then. On the host, the input of each micro-batch is copied out in parallel with its
            forward pass and back before its backward pass, for all micro-batches in flight; all of the unit is then computed
            again, since a graph would hold the input.
    """

    recompute: Literal["none", "full"] | list[Module] = "none"
    hidden: Residence = "device"


class Order(Brief):
    """The order of a unit's copies to and from the host, as H3T's switches have it.

    Attributes:
        eco_forward: whether a segment first copies out what is no longer needed.
        eco_backward: whether it fetches only after the backward computation has begun.
        synchronised: whether it begins when all lanes are done.

    Only H3T's step goes by segments: one stage and one micro-batch with all states on the host. In any other step, where none
    of these can be set, each pass brings in what its unit needs, or one unit in advance where that fits, and the host steps
    each unit as soon as it has its gradient.
    """

    eco_forward: bool = False
    eco_backward: bool = False
    synchronised: bool = False


def _with_printed_form(schema: dict[str, Any]) -> None:
    """Add the two fields that a file may have in place of records to the schema of the format."""
    schema["properties"]["strategy"] = {"type": "string", "title": "Strategy"}
    schema["properties"]["switches"] = {"type": "array", "items": {"enum": list(UNIT_SWITCHES)}, "title": "Switches"}


class PlannedUnit(Brief):
    """One sub-layer and how it is trained over the ranks of its stage.

    Attributes:
        name: of the sub-layer.
        layout, states, activations: how its work, its model states and its activations are placed.
        order: of copies; only for a unit with states or hidden states on the host.
        precision: of its matrix products: the model's, or a recipe of fewer bits (`profiling.clusters.recipes`).

    A file may give `strategy`, such as "dp2-tp4-ckpt", for layout, zero and recompute, and `switches`, a list of H3T's memory
    switches except ckpt, for residences and order; parameters, gradients and optimizer are then on the host.
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
        """The unit of a file in either form."""
        if not isinstance(value, Mapping) or "strategy" not in value:
            return handler(value)
        unit = handler(_records(value))
        unit.__dict__["field"] = "strategy"  # as the cached property below; no part of what makes units equal
        return unit

    @model_validator(mode="after")
    def _consistent(self) -> PlannedUnit:
        """Raise InputError where fields contradict each other."""
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
        """Layout, ZeRO stage and recomputation as the strategy of a planner."""
        levels, recompute = tuple((level.axis, level.degree) for level in self.layout.levels), self.activations.recompute
        modules = tuple(recompute) if isinstance(recompute, list) else ()
        layout, zero = self.layout, self.states.zero or 3
        return Strategy(levels, recompute == "full", zero, layout.sequence_parallel, modules, layout.exchange)

    @cached_property
    def field(self) -> str:
        """The field that names the layout in the file that the unit came from: `layout`, or `strategy` for its printed form."""
        return "layout"

    @property
    def uses_host(self) -> bool:
        """Whether states or hidden states of the unit are on the host."""
        return self.states.on_host or self.activations.hidden == "host"

    @property
    def switches(self) -> Switches | None:
        """H3T's memory switches of the unit, `ckpt` included; None where its optimizer works on the device."""
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
        """The unit with another strategy."""
        return self.changed(
            **_of_strategy(strategy, self.states.changed(zero=strategy.zero_stage), self.activations.hidden), order=self.order
        )

    def __str__(self) -> str:
        if self.switches is not None:
            return ", ".join([str(self.strategy), *(name for name in self.switches.names if name != "ckpt")])
        words = ["input on the host"] * (self.activations.hidden == "host") + ["kept whole"] * self.states.kept_whole
        return ", ".join([str(self.strategy), *words])


def planned_unit(name: str, strategy: Strategy, switches: Switches | None = None) -> PlannedUnit:
    """A unit with a strategy; with H3T's switches, all of its states are on the host. Raises InputError."""
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
    """The fields layout, states and activations of a unit with a strategy. hidden: where its input is until the backward
    pass."""
    recompute: Any = "full" if strategy.ckpt else list(strategy.modules) or "none"
    levels = [Level(axis=axis, degree=degree) for axis, degree in strategy.levels]
    return {
        "layout": Layout(levels=levels, sequence_parallel=strategy.sequence_parallel, exchange=strategy.exchange),
        "states": states,
        "activations": Activations(recompute=recompute, hidden=hidden),
    }


def _records(value: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a unit whose file has `strategy`, and may have `switches`. value: the fields of the file."""
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
