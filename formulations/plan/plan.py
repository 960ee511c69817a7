"""The plan: the contract between planning and execution, a versioned public file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, PrivateAttr, ValidationError, model_validator
from trainplan.formulations.numbers import TimeNs
from trainplan.formulations.plan.rank_grid import Digits, alike_over, common_digits
from trainplan.formulations.plan.request import Request
from trainplan.formulations.plan.strategy import Strategy, parse_strategy
from trainplan.formulations.plan.switches import Switches
from trainplan.formulations.plan.unit import PlannedUnit, planned_unit
from trainplan.formulations.plan.validation import check_plan
from trainplan.formulations.schedule.orders import PlanSchedule
from trainplan.profiling.base.display import in_one_line
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Record, as_input_error, name_of_source, only, parse
from trainplan.profiling.base.quantities import plural
from trainplan.profiling.clusters.network import Network
from trainplan.profiling.models.model import Model, model_from_shape
from trainplan.profiling.models.optimizers import OptimizerName
from trainplan.profiling.models.precision import PLAIN, Precision


class Stage(Record):
    """A pipeline stage of a plan.

    Attributes:
        ranks: the ranks that run it, ascending; strategies number them in this order.
        first_unit, last_unit: indices of its first and last sub-layer, both included. It may begin at any sub-layer.

    Under the interleaved schedule it is one of several chunks of its ranks.
    """

    ranks: Annotated[list[int], Field(min_length=1)]
    first_unit: Annotated[int, Field(ge=0)]
    last_unit: Annotated[int, Field(ge=0)]


class Batch(Record):
    """Samples of one step, and the number of micro-batches that they are cut into.

    shares: micro-batches of each data-parallel replica, where replicas are pipelines of their own that need not do the same
    work (a slow one gets fewer). micro_batches is then the largest share, and a micro-batch belongs to one replica: all have
    equal numbers of samples, and the samples of a replica follow those of the replica before it.
    """

    global_samples: Annotated[int, Field(ge=1, le=10**9)]
    micro_batches: Annotated[int, Field(ge=1)] = 1
    shares: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=2)] | None = None


class StageTimes(Record):
    """Times that the planner expects of one stage: its passes of one micro-batch, a message to the next stage (in either
    direction; 0 for the last stage), and what it adds to the end of the step (gradients, optimizer)."""

    forward_ns: TimeNs
    backward_ns: TimeNs
    transfer_ns: TimeNs
    sync_ns: TimeNs


class RunBy(Record):
    """The runtime that a plan is for, where that is not trainplan's own. The plan is predicted as this runtime would run it.

    Attributes:
        name: as in `plan --for`.
        software: the framework, as rows of measured runs name it.
        flags: what is switched on or off of what the framework overlaps, in its words, such as `overlap-grad-reduce`.
        zero: ZeRO's stage, where the plan's states state it differently.
        buffers: sizes of what it holds in addition, by name (see `validation.buffers`).
        group: consecutive layers of a stage that it recomputes together, of which it keeps only the input of the first one.
    """

    name: Annotated[str, Field(min_length=1)]
    software: str
    flags: str = ""
    zero: Annotated[int, Field(ge=0, le=3)] | None = None
    buffers: dict[str, Any] = Field(default_factory=dict)
    group: Annotated[int, Field(ge=1)] = 1


@in_one_line
class Predicted(Record):
    """The one prediction of a step, the same for equal plans whichever planner they come from. For a plan that another runtime
    runs (`runs_by`) it is a prediction of that runtime, else of the simulation of the plan's programs.

    Attributes:
        step_ns: the time of the step.
        peak_bytes: the peak memory of every rank's device.
        cost_model: whose costs the instructions have; backend: on whose lanes they run; profile_origin: where the costs come
            from.
        durations: the time of each instruction; stages: the times of the passes of each stage. With these the plan can be
            simulated and drawn again without its profile.
        software: the runtime that the step is of, where it is another one; empty for the simulation of programs.
    """

    step_ns: int
    peak_bytes: list[int]
    cost_model: str
    backend: str
    profile_origin: str
    durations: dict[str, Any] | None = None
    stages: list[StageTimes] | None = None
    software: str = ""

    @property
    def most_bytes(self) -> int:
        """The peak of the fullest rank, in bytes."""
        return max(self.peak_bytes)


class PlanEvidence(Record):
    """Evidence from which `check` recomputes a claim, without any solver.

    Attributes:
        cluster, options, memory_bytes: those of the request, from which the problem's instance is built again (with the plan's
            own model and batch); cluster is None where a profile stood for it, which the check then needs.
        solution: the plan in the problem's form.
        proof: evidence of a bound, in the problem's form; None where the bound needs no evidence.
        bound_ns: the bound that it shows.
    """

    cluster: dict[str, Any] | None
    options: dict[str, Any]
    memory_bytes: Annotated[int, Field(gt=0)]
    solution: dict[str, Any]
    proof: dict[str, Any] | None
    bound_ns: TimeNs


@in_one_line
class Claim(Record):
    """A solver's claim about the plan, in the terms of the problem that it solved; not a prediction.

    Attributes:
        problem: the problem; cost_model: whose costs and objective.
        objective_ns: the value of the objective; bound_ns: no solution of the problem is below it; gap: (objective - bound) /
            objective.
        status, method: how the search ended, and which method found the plan.
        bound_source: how the bound was obtained.
        versions: of software that may have influenced the answer.
        evidence: by which the claim can be checked without trusting the solver.
        stopped: what ended the search before it was done, such as an interrupt; None where nothing did.
    """

    problem: str
    cost_model: str
    objective_ns: int
    bound_ns: int | None
    gap: float | None
    status: str
    method: str
    bound_source: str | None = None
    versions: Annotated[dict[str, str], Field(default_factory=dict)]
    evidence: PlanEvidence | None = None
    stopped: str | None = None


class Version1Prediction(Record):
    """The prediction in plans of version 1: in fact an objective of a problem and cost model that they do not name."""

    model_config = ConfigDict(extra="ignore")

    step_ns: int
    lower_bound_ns: int | None = None
    gap: float | None = None
    status: str
    method: str
    versions: Annotated[dict[str, str], Field(default_factory=dict)]

    @classmethod
    def claim(cls, predicted: Any) -> dict[str, Any]:
        """The claim that a prediction of version 1 becomes. Raises InputError naming the fields of the file."""
        try:
            first = cls.model_validate(predicted)
        except ValidationError as error:
            wrong = as_input_error(error, "")
            field = ".".join(part for part in ("predicted", wrong.field) if part)
            raise InputError("", field, wrong.problem, wrong.fix) from None
        names = {"objective_ns": first.step_ns, "bound_ns": first.lower_bound_ns, "gap": first.gap}
        about = {"status": first.status, "method": first.method, "versions": first.versions}
        return {"problem": "unknown", "cost_model": "version 1", **names, **about}


class Plan(Record):
    """A whole training plan.

    Attributes:
        model, model_digest: the shape of the model, and the digest of its architecture.
        world: the number of ranks; memory_bytes: the memory of one device.
        batch: samples and micro-batches of a step.
        schedule: the order of forward and backward passes.
        sliced: with 1F1B, how many micro-batches begin in halves (see `schedule.orders`); with batch.shares, for each replica.
        placement: the cluster's device of each rank, for whoever launches the plan; by default rank r goes on device r. A rank
            does the same on every device.
        backend: of the executor, on which the plan fits and is predicted; by default serial, or streams with states or hidden
            states on the host.
        nvlink: whether collectives have a lane of their own, apart from copies to the host; given where something is on the
            host.
        precision: dtypes of model states, where they are not the model's.
        optimizer: what steps the parameters (see `profiling.models.optimizers`).
        runs_by: the runtime that the plan is for, unless it is trainplan's own.
        stages: in pipeline order, each on ranks of its own, of any number. A unit's strategy is over the ranks of its stage.
        units: how each sub-layer is trained.
        predicted, claim: the prediction of the step, and what a solver claims.

    Any units may have states or hidden states on the host. Where all ranks are one stage and one sharded-data group (`sdpN`, or
    `single`), the step has one micro-batch, and all units have their states on the host, it is H3T's step, which goes segment
    by segment (see `Order`).

    A file of version 1 is read, too: what it calls `predicted` becomes the claim, and is not trusted.
    """

    noun: ClassVar[str] = "plan"

    format: Literal["trainplan-plan"] = "trainplan-plan"
    version: Annotated[Literal[2], only(2)] = 2
    model: dict[str, Any]
    model_digest: str
    world: Annotated[int, Field(ge=1, le=2**20)]
    memory_bytes: Annotated[int, Field(gt=0)]
    batch: Batch
    schedule: PlanSchedule = "1f1b"
    sliced: Annotated[int, Field(ge=0)] = 0
    placement: list[int] | None = None
    backend: Literal["serial", "fused", "threads", "streams"] | None = None
    nvlink: bool | None = None
    precision: Precision = PLAIN
    optimizer: OptimizerName = "adamw"
    runs_by: RunBy | None = None
    stages: Annotated[list[Stage], Field(min_length=1)]
    units: Annotated[list[PlannedUnit], Field(min_length=1)]
    predicted: Predicted | None = None
    claim: Claim | None = None
    _described: Model = PrivateAttr()

    def __repr__(self) -> str:
        sizes = [
            plural(self.world, "device"),
            plural(len(self.stages), "stage"),
            plural(self.batch.micro_batches, "micro-batch"),
        ]
        return f"<Plan of {self.model.get('name')!r}: {', '.join(sizes)}>"

    __str__ = __repr__

    @model_validator(mode="before")
    @classmethod
    def _from_version_1(cls, value: Any) -> Any:
        """The fields of a plan of version 1 as those of version 2; other values as they are."""
        if not isinstance(value, Mapping) or value.get("version") != 1 or isinstance(value["version"], bool | float):
            return value
        predicted = value.get("predicted")
        claim = None if predicted is None else Version1Prediction.claim(predicted)
        return {**value, "version": 2, "predicted": None, "claim": claim}

    @model_validator(mode="after")
    def _consistent(self) -> Plan:
        """Raise InputError where fields contradict each other."""
        self._described = model_from_shape(self.model, "")
        check_plan(self, self._described)
        return self

    @property
    def stage_times(self) -> list[StageTimes] | None:
        """Times of the passes of each stage, where the plan carries them."""
        return None if self.predicted is None else self.predicted.stages

    @property
    def depth(self) -> int:
        """The number of stages that are on ranks of their own: all stages, unless they are interleaved; those after them are on
        these ranks again, in turn."""
        if self.schedule != "interleaved-1f1b":
            return len(self.stages)
        first = self.stages[0].ranks
        return next((index for index, stage in enumerate(self.stages) if index and stage.ranks == first), len(self.stages))

    def in_model_dtype(self) -> Plan:
        """The plan with all products in the model's dtype, as solutions of the joint problem have them."""
        return self.changed(units=[unit.changed(precision="model") for unit in self.units])

    @property
    def chunks(self) -> int:
        """The number of stages on each rank."""
        return len(self.stages) // self.depth

    @property
    def stage_sizes(self) -> list[int]:
        """The number of ranks of each stage."""
        return [len(stage.ranks) for stage in self.stages]

    @cached_property
    def digits(self) -> Digits | None:
        """The digits in which all strategies write the ranks of a stage, for a plan whose ranks fall into kinds of which one
        rank represents all: stages are of one size, on ranks in order, those of interleaved stages again and again. None for
        other plans."""
        size, *others = self.stage_sizes
        ranks = [rank for stage in self.stages[: self.depth] for rank in stage.ranks]
        return common_digits(self.strategies()) if {size, *others} == {size} and ranks == list(range(self.world)) else None

    @property
    def regular(self) -> bool:
        """Whether ranks fall into kinds of which one rank represents all (see `digits`)."""
        return self.digits is not None

    def alike_on(self, network: Network) -> bool:
        """Whether the ranks of each kind also communicate over equal links of a network."""
        return self.regular and self.placement is None and alike_over(network, self.world, *self.strategies())

    def planned_model(self) -> Model:
        """The model that the plan is for, as it was read when the plan was checked."""
        return self._described

    @property
    def content(self) -> dict[str, Any]:
        """All fields that decide what the plan does, without runtime, prediction and claim: equal for plans that do the
        same."""
        return self.model_dump(exclude={"runs_by", "predicted", "claim"})

    def strategies(self) -> list[Strategy]:
        """The strategy of each unit over the ranks of its stage."""
        return [unit.strategy for unit in self.units]

    @property
    def pieces(self) -> int:
        """The number of pieces into which some unit's ranks cut each sample (context parallelism); 1 where none does."""
        return max(unit.strategy.degree("cp") for unit in self.units)

    @property
    def one_strategy(self) -> str | None:
        """The strategy of all units, with their switches, as a text, where they have the same; None where they differ."""
        distinct = {str(unit) for unit in self.units}
        return None if len(distinct) > 1 else distinct.pop()

    @cached_property
    def uses_host(self) -> bool:
        """Whether some unit has states or hidden states on the host."""
        return any(unit.uses_host for unit in self.units)

    def switches(self) -> list[Switches] | None:
        """H3T's switches of each unit, `ckpt` included, for a plan whose step is H3T's; None for any other plan."""
        levels = Strategy.of(("sdp", self.world)).levels
        alike = all(u.states.optimizer == "host" and u.strategy.levels == levels and u.strategy.zero == 3 for u in self.units)
        if not alike or len(self.stages) > 1 or self.batch.micro_batches > 1 or self.batch.shares is not None:
            return None
        return [switches for unit in self.units if (switches := unit.switches) is not None]


def plan_text(plan: Plan) -> str:
    """The text of a plan's file, as `plan -o` writes it and `load_plan` reads it."""
    return plan.model_dump_json(indent=2) + "\n"


def load_plan(source: Plan | str | os.PathLike[str] | Mapping[str, Any]) -> Plan:
    """Read a plan from its JSON file or a dict, and check it (a plan is returned as it is). Raises InputError."""
    if isinstance(source, Plan):
        return source
    return parse(source, Plan, name_of_source(source, "plan"))


def staged_plan(
    request: Request,
    spans: Sequence[tuple[int, int]],
    strategies: Sequence[str],
    batch: Batch,
    *,
    world: int | None = None,
    switches: Sequence[Switches] | None = None,
    **fields: Any,
) -> Plan:
    """The plan of the request's model with stages of equal size in order of ranks, without prediction and claim.

    Args:
        spans: first and last layer of every stage, both included.
        strategies, switches: of every layer, which is a sub-layer or all sub-layers of one model layer.
        world: ranks of all stages (default: all devices).
        fields: further fields of the plan.

    Raises InputError where the request describes no model.
    """
    model = request.described_model
    if not model:
        raise InputError("command line", "--model", "is missing", "give it: the profile describes no model that can be planned")
    by_layer = len(strategies) == model.units[-1].layer + 1
    layer_of = [unit.layer if by_layer else index for index, unit in enumerate(model.units)]
    world = world or request.origin.devices
    size, stages = world // len(spans), []
    for number, (first, last) in enumerate(spans):
        units = [index for index, layer in enumerate(layer_of) if first <= layer <= last]
        ranks = list(range(number * size, (number + 1) * size))
        stages.append(Stage(ranks=ranks, first_unit=units[0], last_unit=units[-1]))
    return Plan(
        model=model.shape(),
        model_digest=model.digest,
        world=world,
        memory_bytes=request.with_margin(0).limit_bytes,
        batch=batch,
        stages=stages,
        units=[
            planned_unit(unit.name, parse_strategy(strategies[layer]), switches[layer] if switches else None)
            for unit, layer in zip(model.units, layer_of, strict=True)
        ],
        **{"precision": PLAIN if switches else request.precision, **fields},
    )
