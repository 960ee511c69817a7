"""The plan: the contract between planning and execution, a versioned public file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import lcm
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import ConfigDict, Field, ValidationError, model_validator
from trainplan.formulations.instances import TimeNs, check_length
from trainplan.formulations.memory_switches.switches import SWITCHES, Switches
from trainplan.formulations.request import Request
from trainplan.formulations.step.schedules import PlanSchedule, most_sliced
from trainplan.formulations.strategies import Strategy, parse_strategy
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.base.files import Record, as_input_error, only, parse
from trainplan.profiling.base.quantities import plural
from trainplan.profiling.models.model import Model, model_from_shape

# H3T's memory switches but one: recomputation is part of a strategy, as `-ckpt`.
UnitSwitch = Literal["offload_hidden", "partition", "lazy_prefetch", "eco_forward", "eco_backward", "segment_sync"]
assert ("ckpt", *get_args(UnitSwitch)) == SWITCHES


class PlannedUnit(Record):
    """One sub-layer and its strategy over the ranks of its stage. switches: those of H3T's memory switches that are on, beside
    `-ckpt` in the strategy; parameters, gradients and optimizer then live on the host (see `Plan`)."""

    name: str
    strategy: str
    switches: list[UnitSwitch] | None = None


class Stage(Record):
    """A pipeline stage: its ranks, ascending, which strategies number in this order, and its first and last unit, both
    included. It may begin at any sub-layer. Under the interleaved schedule it is one of several chunks of its ranks."""

    ranks: Annotated[list[int], Field(min_length=1)]
    first_unit: Annotated[int, Field(ge=0)]
    last_unit: Annotated[int, Field(ge=0)]


class Batch(Record):
    """Samples of one step, and the number of micro-batches that they are cut into.

    shares: micro-batches of each data-parallel replica, where these are pipelines of their own that need not do the same work
    (a slow one gets fewer). micro_batches is then the largest share, and a micro-batch that of one replica: all have equal
    numbers of samples, and the samples of a replica follow those of the replica before it.
    """

    global_samples: Annotated[int, Field(ge=1, le=10**9)]
    micro_batches: Annotated[int, Field(ge=1)] = 1
    shares: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=2)] | None = None


class StageTimes(Record):
    """What the planner expects of one stage: its passes of one micro-batch, a message of it to the next stage (either way; 0 of
    the last stage), and what it adds to the end of the step (gradients, optimizer)."""

    forward_ns: TimeNs
    backward_ns: TimeNs
    transfer_ns: TimeNs
    sync_ns: TimeNs


class Predicted(Record):
    """What the walks over the plan's programs say of a step: the one prediction, the same for equal plans whoever made them.

    step_ns: the time walk's. peak_bytes: the memory walk's, of every rank's device. cost_model: whose costs the instructions
    have; backend: on whose lanes they run; profile_origin: where the costs come from. durations: what each instruction takes,
    and stages: what the passes of each stage take, so that the plan can be walked and drawn again without its profile.
    """

    step_ns: int
    peak_bytes: list[int]
    cost_model: str
    backend: str
    profile_origin: str
    durations: dict[str, Any] | None = None
    stages: list[StageTimes] | None = None

    @property
    def most_bytes(self) -> int:
        """The peak of the fullest rank."""
        return max(self.peak_bytes)


class Claim(Record):
    """What a solver claims of the plan, in the terms of the problem that it solved: no prediction.

    cost_model: whose costs and objective. bound_ns: no solution of the problem is below it; gap: (objective - bound) /
    objective. versions: of what may have had a part in the answer.
    """

    problem: str
    cost_model: str
    objective_ns: int
    bound_ns: int | None
    gap: float | None
    status: str
    method: str
    versions: Annotated[dict[str, str], Field(default_factory=dict)]


class Version1Prediction(Record):
    """What plans of version 1 call their prediction: an objective of a problem and cost model that they do not name."""

    model_config = ConfigDict(extra="ignore")

    step_ns: int
    lower_bound_ns: int | None = None
    gap: float | None = None
    status: str
    method: str
    versions: Annotated[dict[str, str], Field(default_factory=dict)]

    @classmethod
    def claim(cls, predicted: Any) -> dict[str, Any]:
        """The claim that it is. Raises InputError naming the fields of the file."""
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
    """A whole training plan. `model_digest` names the architecture that it was made for.

    stages: in pipeline order, each on ranks of its own, as many as it likes. A unit's strategy is over the ranks of its stage.
    schedule: the order of forward
    and backward passes, 1F1B-Flush or GPipe. sliced: with 1F1B, how many micro-batches begin in halves (see `schedules`); with
    batch.shares, of each replica. placement: the cluster's device of each rank, for who launches it; left out, rank r goes on
    device r. What a rank does is the same on every device. backend: of the executor, on which the plan fits and is predicted;
    left out, serial, and streams with memory switches.

    Memory switches are given for all units or for none. With them all ranks are one stage and one sharded-data group (`sdpN`,
    or `single`), and the step has one micro-batch: that is what the switches' model speaks of. nvlink goes with them: whether
    collectives have a lane of their own, beside the copies to the host.

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
    stages: Annotated[list[Stage], Field(min_length=1)]
    units: Annotated[list[PlannedUnit], Field(min_length=1)]
    predicted: Predicted | None = None
    claim: Claim | None = None

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
        if not isinstance(value, Mapping) or value.get("version") != 1 or isinstance(value["version"], bool | float):
            return value
        predicted = value.get("predicted")
        claim = None if predicted is None else Version1Prediction.claim(predicted)
        return {**value, "version": 2, "predicted": None, "claim": claim}

    @model_validator(mode="after")
    def _consistent(self) -> Plan:
        model = self.planned_model()
        if model.digest != self.model_digest:
            fix = f"the model given here is {model.digest!r}: plan for it"
            raise InputError("", "model_digest", f"is {self.model_digest!r}", fix)
        names = [unit.name for unit in model.units]
        check_length("units", self.units, len(names), "the units of the model", "items")
        self._check_stages(len(names))
        if self.schedule == "interleaved-1f1b":
            self._check_interleaved()
        self._check_placement()
        sizes = [len(stage.ranks) for stage in self.stages for _ in range(stage.first_unit, stage.last_unit + 1)]
        samples, parts, even = self.batch.global_samples, self.batch.micro_batches, self.batch.shares is None
        if even and samples % parts:
            raise InputError("", "batch.micro_batches", f"is {parts}", f"give a divisor of global_samples = {samples}")
        for position, (unit, name) in enumerate(zip(self.units, names, strict=True)):
            if unit.name != name:
                raise InputError("", f"units[{position}].name", f"is {unit.name!r}", f"give {name!r}")
            field, problem = f"units[{position}].strategy", f"is {unit.strategy!r}"
            strategy = parse_strategy(unit.strategy, "", field, sizes[position])
            part, tp = model.units[position].sublayer, strategy.degree("tp")
            if not part.runs_on(tp):
                works = max(t for t in range(1, tp) if part.runs_on(t))
                raise InputError(
                    "", field, problem, f"give a tp degree that this {part.kind} can be split into, such as {works}"
                )
            if even and samples // parts % strategy.data_degree:
                raise InputError("", field, problem, f"give a dp x sdp degree that divides {samples // parts} samples")
        if self.batch.shares is not None:
            self._check_shares(self.batch.shares)
        if self.sliced:
            self._check_sliced()
        self._check_switches()
        if self.stage_times is not None:
            check_length("predicted.stages", self.stage_times, len(self.stages), "one for each stage, or none")
        return self

    @property
    def stage_times(self) -> list[StageTimes] | None:
        """What the passes of each stage take, where the plan carries it."""
        return None if self.predicted is None else self.predicted.stages

    def _check_placement(self) -> None:
        if self.placement is None:
            return
        first: dict[int, int] = {}
        for rank, device in enumerate(self.placement):
            if not 0 <= device < self.world or device in first:
                problem = f"is {device}" + (f", as is placement[{first[device]}]" if device in first else "")
                fix = f"give each of the devices 0 to {self.world - 1} to one rank"
                raise InputError("", f"placement[{rank}]", problem, fix)
            first[device] = rank
        if (items := len(self.placement)) != self.world:
            raise InputError("", "placement", f"has {items} items", f"give a device for each of {self.world} ranks")

    def _check_shares(self, shares: list[int]) -> None:
        """Replicas that work apart until their gradients are summed: all units are laid out alike, dp outermost, no sdp."""
        batch, size, replicas, total = self.batch, len(self.stages[0].ranks), len(shares), sum(shares)
        if len(unlike := {len(stage.ranks) for stage in self.stages}) > 1:
            problem = f"is there, with stages of {' and '.join(map(str, sorted(unlike)))} ranks"
            raise InputError("", "batch.shares", problem, "leave it out, or give stages of equal size")
        if size % replicas:
            fix = (
                f"give 2, or another divisor of the {size} ranks of a stage" if size > 1 else "leave it out: stages have 1 rank"
            )
            raise InputError("", "batch.shares", f"has {replicas} items", fix)
        wanted = Strategy.of(("dp", replicas), ("tp", size // replicas))
        for position, (unit, strategy) in enumerate(zip(self.units, self.strategies(), strict=True)):
            if replace(strategy, ckpt=False) != wanted:
                fix = f"give {wanted} or {wanted}-ckpt: batch.shares has {replicas} replicas of the whole model"
                raise InputError("", f"units[{position}].strategy", f"is {unit.strategy!r}", fix)
        if batch.micro_batches != max(shares):
            fix = f"give {max(shares)}, the largest of batch.shares"
            raise InputError("", "batch.micro_batches", f"is {batch.micro_batches}", fix)
        if batch.global_samples % total:
            works = max(1, batch.global_samples // total) * total
            fix = f"give a multiple of the {total} micro-batches in batch.shares, such as {works}"
            raise InputError("", "batch.global_samples", f"is {batch.global_samples}", fix)

    def _check_sliced(self) -> None:
        """Only what the schedule can slice, and only micro-batches whose halves every unit can lay out over its ranks."""
        problem, shares, parts = f"is {self.sliced}", self.batch.shares, self.batch.micro_batches
        if self.schedule != "1f1b":
            raise InputError("", "sliced", problem, f"leave it out, or give schedule 1f1b in place of {self.schedule}")
        if self.sliced > (most := most_sliced(len(self.stages), parts)):
            fix = f"give at most {most}: {len(self.stages)} stages with {parts} micro-batches can use no more"
            raise InputError("", "sliced", problem, fix)
        samples = self.batch.global_samples // (parts if shares is None else sum(shares))
        apart = 1 if shares else lcm(*(strategy.data_degree for strategy in self.strategies()))
        if samples % (2 * apart):
            works = -(-samples // (2 * apart)) * 2 * apart
            fix = f"leave it out, or give micro-batches of {works} samples: each half is laid out over {apart} ranks by itself"
            raise InputError("", "sliced", f"{problem}, with micro-batches of {samples} samples", fix)

    def _check_switches(self) -> None:
        """All units have memory switches or none has, and only where one sharded-data group works on one micro-batch."""
        if self.units[0].switches is None:
            for position, unit in enumerate(self.units):
                if unit.switches is not None:
                    fix = "leave it out, or give a list for each unit: units[0] has none"
                    raise InputError("", f"units[{position}].switches", f"is {shown(unit.switches)}", fix)
            if self.nvlink is not None:
                raise InputError("", "nvlink", f"is {str(self.nvlink).lower()}", "leave it out: no unit has switches")
            return
        if self.nvlink is None:
            raise InputError("", "nvlink", "is missing", "give true or false, with switches")
        lacking = "or leave all switches out"
        if len(self.stages) > 1:
            raise InputError("", "stages", f"are {len(self.stages)}, with switches", f"give 1, {lacking}")
        if self.batch.micro_batches > 1:
            problem = f"is {self.batch.micro_batches}, with switches"
            raise InputError("", "batch.micro_batches", problem, f"give 1, {lacking}")
        if self.batch.shares is not None:
            raise InputError("", "batch.shares", "is there, with switches", f"leave it out, {lacking}")
        wanted = Strategy.of(("sdp", self.world))
        for position, (unit, strategy) in enumerate(zip(self.units, self.strategies(), strict=True)):
            field = f"units[{position}]"
            if unit.switches is None:
                raise InputError("", f"{field}.switches", "is missing", "give a list, such as []: units[0] has one")
            if len(set(unit.switches)) < len(unit.switches):
                fix = f"give each once: {shown(list(dict.fromkeys(unit.switches)))}"
                raise InputError("", f"{field}.switches", f"is {shown(unit.switches)}", fix)
            if replace(strategy, ckpt=False) != wanted:
                fix = f"give {wanted} or {wanted}-ckpt, {lacking}"
                raise InputError("", f"{field}.strategy", f"is {unit.strategy!r}, with switches", fix)
            if "offload_hidden" in unit.switches and not strategy.ckpt:
                fix = f"leave offload_hidden out, or give strategy {wanted}-ckpt: a graph holds the unit's input"
                raise InputError("", f"{field}.switches", f"is {shown(unit.switches)}", fix)

    def _check_stages(self, units: int) -> None:
        """Units are covered in order, and every rank is in one stage."""
        count, begin = len(self.stages), 0
        if count > units:
            raise InputError("", "stages", f"are {count}", f"give at most {units}: every stage needs a unit")
        stage_of: dict[int, int] = {}
        depth = self.depth
        for index, stage in enumerate(self.stages):
            field = f"stages[{index}]"
            if index >= depth and stage.ranks != (before := self.stages[index - depth].ranks):
                fix = f"give {shown(before)}, as stages[{index - depth}] has"
                raise InputError("", f"{field}.ranks", f"is {shown(stage.ranks)}", fix)
            for place, rank in enumerate(stage.ranks if index < depth else ()):
                if not 0 <= rank < self.world or rank in stage_of:
                    problem = f"is {rank}" + (f", which is in stages[{stage_of[rank]}]" if rank in stage_of else "")
                    raise InputError(
                        "", f"{field}.ranks[{place}]", problem, f"give each of the ranks 0 to {self.world - 1} once"
                    )
                stage_of[rank] = index
            if stage.ranks != sorted(stage.ranks):
                raise InputError("", f"{field}.ranks", f"is {shown(stage.ranks)}", f"give {shown(sorted(stage.ranks))}")
            if stage.first_unit != begin:
                raise InputError("", f"{field}.first_unit", f"is {stage.first_unit}", f"give {begin}, the first unit left")
            end = units - (count - index)  # the stages after this one need a unit each
            if not begin <= stage.last_unit <= end or (index == count - 1 and stage.last_unit != end):
                fix = f"give {end}" if index == count - 1 else f"give {begin} to {end}"
                raise InputError("", f"{field}.last_unit", f"is {stage.last_unit}", fix)
            begin = stage.last_unit + 1
        if len(stage_of) < self.world:
            left = next(rank for rank in range(self.world) if rank not in stage_of)
            raise InputError("", "stages", f"leave rank {left} out", f"give each of the ranks 0 to {self.world - 1} once")

    @property
    def depth(self) -> int:
        """Stages that are each on ranks of their own: all, unless they are interleaved; those after them are on these ranks
        again, in turn."""
        if self.schedule != "interleaved-1f1b":
            return len(self.stages)
        first = self.stages[0].ranks
        return next((index for index, stage in enumerate(self.stages) if index and stage.ranks == first), len(self.stages))

    @property
    def chunks(self) -> int:
        """How many stages each rank has."""
        return len(self.stages) // self.depth

    def _check_interleaved(self) -> None:
        depth, count, problem = self.depth, len(self.stages), "is 'interleaved-1f1b'"
        if depth < 2 or count % depth or count == depth:
            fix = "give 1f1b, or stages of which each rank has as many, at least 2, and the next one always lies on other ranks"
            raise InputError("", "schedule", f"{problem}, with {count} stages on {depth} groups of ranks", fix)
        if self.batch.shares is not None:
            raise InputError("", "batch.shares", "is there, with interleaved stages", "leave it out, or give schedule 1f1b")
        if (parts := self.batch.micro_batches) % depth:
            fix = f"give a multiple of the {depth} groups of ranks, such as {-(-parts // depth) * depth}"
            raise InputError("", "batch.micro_batches", f"is {parts}, with interleaved stages", fix)

    @property
    def stage_sizes(self) -> list[int]:
        """The number of ranks of each stage."""
        return [len(stage.ranks) for stage in self.stages]

    @cached_property
    def regular(self) -> bool:
        """Whether stages are of one size, a power of two, on ranks in order: one rank of each kind then stands for all."""
        size, *others = self.stage_sizes
        ranks = [rank for stage in self.stages for rank in stage.ranks]
        return {size, *others} == {size} and size & (size - 1) == 0 and ranks == list(range(self.world))

    def planned_model(self) -> Model:
        """The model that the plan was made for. Raises InputError where its fields are not those of a model."""
        return model_from_shape(self.model, "")

    @property
    def content(self) -> dict[str, Any]:
        """What the plan says to do, without prediction and claim: equal for plans that do the same."""
        return self.model_dump(exclude={"predicted", "claim"})

    def strategies(self) -> list[Strategy]:
        """The strategy of each unit over the ranks of its stage."""
        return [parse_strategy(unit.strategy) for unit in self.units]

    @property
    def one_strategy(self) -> str | None:
        """The strategy of all units, with their switches, where they have the same; None where they differ."""
        if len({(unit.strategy, tuple(unit.switches or ())) for unit in self.units}) > 1:
            return None
        return ", ".join([self.units[0].strategy, *(self.units[0].switches or [])])

    def switches(self) -> list[Switches] | None:
        """Of each unit, `ckpt` included; None for a plan without."""
        planned = zip(self.units, self.strategies(), strict=True)
        each = [Switches(ckpt=s.ckpt, **dict.fromkeys(unit.switches or (), True)) for unit, s in planned]
        return None if self.units[0].switches is None else each


def load_plan(source: str | os.PathLike[str] | Mapping[str, Any]) -> Plan:
    """A plan from its JSON file or a dict, checked. Raises InputError."""
    return parse(source, Plan, "plan" if isinstance(source, Mapping) else None)


def staged_plan(
    request: Request,
    spans: Sequence[tuple[int, int]],
    strategies: Sequence[str],
    batch: Batch,
    *,
    world: int | None = None,
    switches: Sequence[list[UnitSwitch]] | None = None,
    **fields: Any,
) -> Plan:
    """The plan of the request's model with stages of equal size in order of ranks, without prediction and claim.

    spans: first and last layer of every stage, both included. strategies, switches: of every layer, which is a sub-layer or all
    sub-layers of one model layer; what a layer has, all its sub-layers have. world: ranks of all stages (default: all devices).
    fields: others of the plan. Raises InputError where no model is described.
    """
    model = request.described_model
    if not model:
        raise InputError("command line", "--model", "is missing", "give it: the profile describes no model that can be planned")
    by_layer = len(strategies) == model.units[-1].layer + 1
    layer_of = [unit.layer if by_layer else place for place, unit in enumerate(model.units)]
    world = world or request.origin.devices
    size, stages = world // len(spans), []
    for number, (first, last) in enumerate(spans):
        units = [place for place, layer in enumerate(layer_of) if first <= layer <= last]
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
            PlannedUnit(name=unit.name, strategy=strategies[layer], switches=switches[layer] if switches else None)
            for unit, layer in zip(model.units, layer_of, strict=True)
        ],
        **fields,
    )
