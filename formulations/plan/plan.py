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
from trainplan.formulations.schedule.orders import SCHEDULES, PlanSchedule
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

    Under the interleaved schedule it is one of several stages (chunks) of its ranks.
    """

    ranks: Annotated[list[int], Field(min_length=1)]
    first_unit: Annotated[int, Field(ge=0)]
    last_unit: Annotated[int, Field(ge=0)]


class Batch(Record):
    """The samples of one step, and the number of micro-batches that they are cut into.

    shares: for each data-parallel replica, the number of its micro-batches; given where replicas are pipelines of their own
    that may do unequal work (a slow one gets fewer), else None. micro_batches is then the largest share. A micro-batch
    belongs to one replica, all micro-batches have equal numbers of samples, and replicas take consecutive samples in their
    order.
    """

    global_samples: Annotated[int, Field(ge=1, le=10**9)]
    micro_batches: Annotated[int, Field(ge=1)] = 1
    shares: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=2)] | None = None


class StageTimes(Record):
    """The times in ns that the planner expects of one stage: forward_ns and backward_ns, its passes of one micro-batch;
    transfer_ns, a message to the next stage, in either direction (0 for the last stage); and sync_ns, its work at the end
    of the step (gradients, optimizer).
    """

    forward_ns: TimeNs
    backward_ns: TimeNs
    transfer_ns: TimeNs
    sync_ns: TimeNs


class RunBy(Record):
    """The runtime (training framework) that a plan is for, if that is not trainplan's own. The plan is predicted as this
    runtime would run it.

    Attributes:
        name: the runtime's name, as the command option `plan --for` takes it.
        software: the framework's name in tables of measured runs.
        flags: the overlap features of the framework that are switched on or off, by their names there, such as
            `overlap-grad-reduce`.
        zero: the ZeRO stage of the run, if it differs from the one in the plan's units; else None.
        buffers: sizes of buffers that the framework holds in addition, by name (see `launch_files.trainer_buffers`).
        group: the number of consecutive layers that are recomputed together, so that only the first one's input is kept.
        cluster: the devices that it runs on, as in a cluster file, if the plan has no evidence that states them.
        date: the date of the framework's version, such as "2022-05", where it is not a current one.
    """

    name: Annotated[str, Field(min_length=1)]
    software: str
    flags: str = ""
    zero: Annotated[int, Field(ge=0, le=3)] | None = None
    buffers: dict[str, Any] = Field(default_factory=dict)
    group: Annotated[int, Field(ge=1)] = 1
    cluster: dict[str, Any] | None = None
    date: str | None = None


@in_one_line
class Predicted(Record):
    """The one prediction of a plan's step: equal plans have equal predictions, whichever planner they come from. For a plan
    that another runtime runs (`runs_by`) it predicts that runtime; otherwise it is the simulation of the plan's programs
    (the instructions of every rank).

    Attributes:
        step_ns: the time of the step.
        peak_bytes: for every rank, the peak memory of its device.
        cost_model: the name of the cost model that gives the instructions' times.
        backend: the name of the executor's back-end whose overlap is simulated.
        profile_origin: where the costs come from, such as a measurement or an estimate.
        durations: the time of each instruction, and stages: the times of each stage's passes. With them the plan can be
            simulated and drawn again without its profile.
        software: the name of the runtime whose step is predicted, if it is not trainplan's own; else empty.
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
        """The peak memory of the fullest rank's device, in bytes."""
        return max(self.peak_bytes)


class PlanEvidence(Record):
    """Evidence from which the command `check` recomputes a solver's claim, without any solver.

    Attributes:
        cluster, options, memory_bytes: cluster, options and memory limit of the user's request, from which the problem's
            instance (its costs and limits) is built again together with the plan's own model and batch. cluster is None if
            the request had a profile instead, which `check` must then be given.
        solution: the plan as a solution of the problem, in its JSON file format.
        proof: the evidence of the lower bound, in the problem's JSON file format; None if the bound needs no evidence.
        bound_ns: the lower bound, in ns, that the evidence proves.
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
        problem: the problem's name.
        cost_model: the name of the cost model, and of the objective's formula where the problem has several.
        objective_ns: the plan's objective in ns.
        bound_ns: a lower bound in ns: no solution of the problem has a smaller objective.
        gap: (objective - bound) / objective.
        status: how the search ended.
        method: the name of the solution method that found the plan.
        bound_source: how the lower bound was obtained.
        versions: version numbers, by name, of the software that may have influenced the answer.
        evidence: what the claim can be checked with, without trusting the solver.
        stopped: what ended the search early, such as an interrupt; None if it ran to its end.
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
    """The field `predicted` of plan files of version 1. It holds the objective of a problem and cost model that the file does
    not name, and not a prediction.
    """

    model_config = ConfigDict(extra="ignore")

    step_ns: int
    lower_bound_ns: int | None = None
    gap: float | None = None
    status: str
    method: str
    versions: Annotated[dict[str, str], Field(default_factory=dict)]

    @classmethod
    def claim(cls, predicted: Any) -> dict[str, Any]:
        """Turn the field `predicted` of a plan file of version 1 into a solver's claim of version 2: a dict with the fields of
        `Claim`. Raises InputError, which names the field, if a value is missing or wrong.
        """
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
    """A whole training plan: how each rank trains each sub-layer (unit) of a model.

    Attributes:
        model, model_digest: the shape of the model, and the digest of its architecture.
        world: the number of ranks.
        memory_bytes: the memory of one device.
        batch: samples and micro-batches of a step.
        schedule: the order of forward and backward passes.
        sliced: with 1F1B, the number of first micro-batches that run in two halves (see `schedule.orders`); with
            batch.shares, one number per replica.
        placement: for each rank, the cluster's device that it runs on, for whoever launches the plan; by default rank r
            runs on device r. It does not change what a rank does.
        backend: the executor's back-end on which the plan fits and is predicted; by default `serial`, or `streams` if model
            states or hidden states are on the host.
        nvlink: whether collectives overlap with copies to the host; given only if something is on the host.
        precision: dtypes of the model states, if they differ from the model's dtype.
        optimizer: the optimizer that updates the parameters (see `profiling.models.optimizers`).
        runs_by: the runtime that the plan is for; None for trainplan's own.
        stages: the stages in pipeline order, each on ranks of its own, of any number. Under the interleaved schedule, later
            stages run on the first stages' ranks again, in turn. A unit's strategy is over the ranks of its stage.
        units: how each sub-layer is trained.
        predicted: the prediction of the step. claim: what a solver claims about the plan.

    Any unit may have model states or its saved input (hidden states) on the host. If all ranks are one stage and one
    sharded-data group (`sdpN`, or `single`), the step has one micro-batch, and all units have their states on the host, the
    step is run as in the paper H3T, segment by segment (see `Order`).

    Files of version 1 are read, too: their field `predicted` becomes the claim, and is not trusted.
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
        """Turn the fields of a plan file of version 1 into those of version 2, before they are checked; any other value is
        returned unchanged. value: the file's content.
        """
        if not isinstance(value, Mapping) or value.get("version") != 1 or isinstance(value["version"], bool | float):
            return value
        predicted = value.get("predicted")
        claim = None if predicted is None else Version1Prediction.claim(predicted)
        return {**value, "version": 2, "predicted": None, "claim": claim}

    @model_validator(mode="after")
    def _consistent(self) -> Plan:
        """Raise InputError if fields contradict each other or the model; otherwise return the plan."""
        self._described = model_from_shape(self.model, "")
        check_plan(self, self._described)
        return self

    @property
    def stage_times(self) -> list[StageTimes] | None:
        """The times that the prediction expects of each stage's passes, in pipeline order; None if the plan does not have
        them."""
        return None if self.predicted is None else self.predicted.stages

    @property
    def depth(self) -> int:
        """The number of groups of ranks in the pipeline: the number of stages, unless the schedule is interleaved; then later
        stages are on the same groups of ranks again, in turn."""
        if not SCHEDULES[self.schedule].chunked:
            return len(self.stages)
        first = self.stages[0].ranks
        return next((index for index, stage in enumerate(self.stages) if index and stage.ranks == first), len(self.stages))

    def in_model_dtype(self) -> Plan:
        """A copy of the plan in which no unit has a low-precision recipe (such as FP8): all matrix products are in the model's
        dtype. Solutions of the joint problem have no recipes, so the copy can be compared with them.
        """
        return self.changed(units=[unit.changed(precision="model") for unit in self.units])

    @property
    def chunks(self) -> int:
        """The number of stages on each rank: 1 unless the schedule is interleaved."""
        return len(self.stages) // self.depth

    @property
    def stage_sizes(self) -> list[int]:
        """The number of ranks of each stage, in pipeline order."""
        return [len(stage.ranks) for stage in self.stages]

    @cached_property
    def digits(self) -> Digits | None:
        """A mixed-radix form of the rank numbers of a stage in which every level of parallelism of every unit's strategy (such
        as dp or tp) covers one or more whole digits. With it, ranks fall into few classes whose members do equal work, so
        that one rank per class represents the others.

        None if the strategies have no such form in common, as dp2-tp3 and dp3-tp2; if stages differ in size; if stages do
        not take the ranks in order; or if interleaved stages do not take the groups of ranks in turn.
        """
        size, *others = self.stage_sizes
        ranks = [rank for stage in self.stages[: self.depth] for rank in stage.ranks]
        return common_digits(self.strategies()) if {size, *others} == {size} and ranks == list(range(self.world)) else None

    @property
    def regular(self) -> bool:
        """Whether ranks fall into classes of equal work, so that one rank per class represents the others: all stages have one
        size and take the ranks in order, and the strategies of all units write rank numbers in common digits (`digits`).
        """
        return self.digits is not None

    def alike_on(self, network: Network) -> bool:
        """Whether one rank can represent all ranks that do equal work also when links are considered: on the given network,
        all groups that communicate under the plan's strategies have equal links. False for plans with a placement.
        """
        return self.regular and self.placement is None and alike_over(network, self.world, *self.strategies())

    def planned_model(self) -> Model:
        """The plan's model as a `Model`, which was built from the field `model` when the plan was checked."""
        return self._described

    @property
    def content(self) -> dict[str, Any]:
        """The plan's fields by name without `runs_by`, `predicted` and `claim`: equal for two plans exactly if they train in
        the same manner.
        """
        return self.model_dump(exclude={"runs_by", "predicted", "claim"})

    def strategies(self) -> list[Strategy]:
        """The strategy of each unit (sub-layer), in the model's order, over the ranks of its stage."""
        return [unit.strategy for unit in self.units]

    @property
    def pieces(self) -> int:
        """The largest context-parallel degree of any unit, that is, the number of pieces that each sample's tokens are cut
        into; 1 without context parallelism.
        """
        return max(unit.strategy.degree("cp") for unit in self.units)

    @property
    def one_strategy(self) -> str | None:
        """The strategy that all units have, as a text with what is on the host, such as `sdp8-ckpt`; None if units differ."""
        distinct = {str(unit) for unit in self.units}
        return None if len(distinct) > 1 else distinct.pop()

    @cached_property
    def uses_host(self) -> bool:
        """Whether some unit keeps model states or its input on the host."""
        return any(unit.uses_host for unit in self.units)

    def switches(self) -> list[Switches] | None:
        """H3T's memory switches (such as `ckpt` and offloading of the input) of each unit, in order, if the plan runs the step
        of the paper H3T: one stage, one micro-batch, fully sharded states (ZeRO-3 over all ranks), and the optimizer on the
        host. None for any other plan.
        """
        levels = Strategy.of(("sdp", self.world)).levels
        alike = all(u.states.optimizer == "host" and u.strategy.levels == levels and u.strategy.zero == 3 for u in self.units)
        if not alike or len(self.stages) > 1 or self.batch.micro_batches > 1 or self.batch.shares is not None:
            return None
        return [switches for unit in self.units if (switches := unit.switches) is not None]


def plan_text(plan: Plan) -> str:
    """The text of a plan's JSON file, as the command `plan -o` writes it and `load_plan` reads it."""
    return plan.model_dump_json(indent=2) + "\n"


def load_plan(source: Plan | str | os.PathLike[str] | Mapping[str, Any]) -> Plan:
    """Read a plan from its JSON file, or from a dict of that format, and check it; a `Plan` is returned unchanged. Raises
    InputError if the file cannot be read or its fields contradict each other.
    """
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
    """The plan of the request's model with stages of equal size, each on the next ranks in order, without prediction and claim.

    Args:
        request: gives the model, the devices, their memory and the precision.
        spans: indices of the first and last layer of every stage, both included.
        strategies: for every layer, the text of its strategy. A layer is a sub-layer, or all sub-layers of one model layer.
        batch: samples and micro-batches of a step.
        world: the number of ranks of all stages (default: all devices).
        switches: for every layer, H3T's memory switches; None if states stay on the device.
        fields: further fields of the plan.

    Raises InputError if the request describes no model.
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
