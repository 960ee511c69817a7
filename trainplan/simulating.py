"""A step, simulated pass by pass: of a plan, or of a partition of a pipeline-partition instance, under any schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from trainplan.formulations.pipeline_partition.costs import samples_of
from trainplan.formulations.pipeline_partition.problem import Instance, Solution, violations
from trainplan.formulations.plan import Plan, StageTimes
from trainplan.formulations.step.critical import Critical, critical_path
from trainplan.formulations.step.schedules import Pass, gpipe, in_flight, interleaved, most_sliced, one_f_one_b
from trainplan.formulations.step.timeline import Timeline, Work, simulate
from trainplan.planning import work_of
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.processes import Report
from trainplan.profiling.base.quantities import span
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.obtain import obtain_profile
from trainplan.profiling.profiles import Profile
from trainplan.solvers.partition.slicer import algorithm_2, least_sliced

SLICERS = {"least": least_sliced, "algorithm-2": algorithm_2}
SCHEDULES = ("1f1b", "gpipe", "interleaved-1f1b")


@dataclass(frozen=True)
class Simulation:
    """A simulated step. stages: names of what every stage holds. syncs_ns: what each stage adds to the end of the step (the
    reduction of gradients, the optimizer), which the timeline leaves out; nothing is known of it for an instance."""

    name: str
    schedule: str
    micro_batches: int
    sliced: int
    chunks: int
    stages: tuple[str, ...]
    timeline: Timeline
    syncs_ns: tuple[int, ...]

    @cached_property
    def critical(self) -> Critical:
        """The critical path nearest the last stage, and the master stage."""
        return critical_path(self.timeline)

    @property
    def step_ns(self) -> int:
        """The iteration and what the stages add to its end."""
        return self.timeline.step_ns(self.syncs_ns)

    @property
    def in_flight(self) -> tuple[int, ...]:
        """The most micro-batches that each device holds at once, on one stage each."""
        return tuple(in_flight([event.task for event in events]) for events in self.timeline.devices)

    def to_dict(self) -> dict[str, Any]:
        timeline, work = self.timeline, self.timeline.work
        count = len(timeline.devices)
        return {
            "name": self.name,
            "schedule": self.schedule,
            "micro_batches": self.micro_batches,
            "sliced": self.sliced,
            "chunks": self.chunks,
            "iteration_ns": timeline.time_ns,
            "step_ns": self.step_ns,
            "startup_ns": timeline.startup_ns,
            "bubble": timeline.bubble,
            "master_stage": self.critical.master,
            "devices": [
                {"busy_ns": busy, "idle_ns": timeline.time_ns - busy, "sync_ns": sync, "in_flight": held}
                for busy, sync, held in zip(timeline.busy_ns, self.syncs_ns, self.in_flight, strict=True)
            ],
            "stages": [
                {"name": name, "device": x % count, "forward_ns": f, "backward_ns": b, "transfer_ns": c}
                for x, (name, f, b, c) in enumerate(
                    zip(self.stages, work.forward_ns, work.backward_ns, (*work.transfer_ns, 0), strict=True)
                )
            ],
            "critical_path": [
                {**event.task._asdict(), "device": event.device, "start_ns": event.start_ns, "end_ns": event.end_ns}
                for event in self.critical.path
            ],
        }


def simulated(
    name: str,
    work: Work,
    micro_batches: int,
    stages: Sequence[str],
    syncs_ns: Sequence[int] | None = None,
    *,
    schedule: str = "1f1b",
    sliced: int | str = 0,
    chunks: int = 1,
) -> Simulation:
    """These stages under a schedule. sliced: how many micro-batches, or a name of SLICERS; chunks: stages on each device, for
    interleaved-1f1b. Raises InputError."""
    if isinstance(sliced, str):
        sliced = SLICERS[sliced](work, micro_batches) if sliced in SLICERS else _number(sliced)
    orders = _orders(work.stages // chunks, micro_batches, schedule, sliced, chunks)
    syncs = tuple(syncs_ns or [0] * len(orders))
    return Simulation(name, schedule, micro_batches, sliced, chunks, tuple(stages), simulate(work, orders), syncs)


def _number(sliced: str) -> int:
    if not sliced.isdecimal():
        known = " or ".join(map(repr, SLICERS))
        raise InputError("command line", "--sliced", f"is {sliced!r}", f"give a number, {known}")
    return int(sliced)


def _orders(devices: int, micro_batches: int, schedule: str, sliced: int, chunks: int) -> list[list[Pass]]:
    if sliced and schedule != "1f1b":
        raise InputError("command line", "--sliced", f"is {sliced}", f"leave it out: {schedule} has no halves")
    if schedule == "1f1b":
        most = most_sliced(devices, micro_batches)
        if not 0 <= sliced <= most:
            raise InputError(
                "command line", "--sliced", f"is {sliced}", f"give 0 to {most}, those that run before a backward pass"
            )
        return one_f_one_b(devices, micro_batches, sliced)
    if schedule == "gpipe":
        return gpipe(devices, micro_batches)
    if micro_batches % devices:
        fix = f"give a multiple of the {devices} devices: micro-batches come in groups of as many"
        raise InputError("command line", "--schedule", f"is interleaved-1f1b, with {micro_batches} micro-batches", fix)
    return interleaved(devices, chunks, micro_batches)


def check_schedule(schedule: str, chunks: int) -> None:
    """Raises InputError where there is no such schedule."""
    if schedule not in SCHEDULES:
        raise InputError("command line", "--schedule", f"is {schedule!r}", f"give one of: {', '.join(SCHEDULES)}")
    if chunks < 1:
        raise InputError("command line", "--chunks", f"is {chunks}", "give at least 1")
    if chunks > 1 and schedule != "interleaved-1f1b":
        raise InputError("command line", "--chunks", f"is {chunks}", "give --schedule interleaved-1f1b, too")


def in_chunks(instance: Instance, chunks: int) -> Instance:
    """The instance with `chunks` stages on each device; of several, memory is left out: a limit is that of a device. Raises
    InputError."""
    stages = instance.stages * chunks
    if stages > instance.sublayers:
        fix = f"give at most {instance.sublayers // instance.stages}: every stage needs a sub-layer"
        raise InputError("command line", "--chunks", f"is {chunks}", fix)
    return instance if chunks == 1 else replace(instance, stages=stages, memory=None)


def simulated_instance(instance: Instance, solution: Solution, where: str = "solution", **options: Any) -> Simulation:
    """A partition of an instance, as of `in_chunks`; options as of `simulated`. Raises InputError, which names `where`."""
    bounds = (*solution.cuts, instance.sublayers)
    if broken := [text for text in violations(instance, solution) if text.startswith("cuts")]:
        told, fix = broken[0].removeprefix("cuts ").split("; ", 1)
        raise InputError(where, "cuts", told, fix)
    names = [
        span(instance.name_of(first), instance.name_of(end - 1)) for first, end in zip((0, *solution.cuts), bounds, strict=True)
    ]
    return simulated(instance.name, instance.work(solution.cuts), instance.micro_batches, names, **options)


def simulated_plan(
    plan: Plan,
    cluster: Cluster | None,
    profile: Profile | None,
    *,
    measured: bool = False,
    measuring: Report | None = None,
    schedule: str | None = None,
    sliced: int | str | None = None,
) -> Simulation:
    """A plan by the stage times that it carries, or on a cluster, or by a profile of its model; its own schedule unless another
    is given.

    Of pipelines side by side, one is simulated: they do the same. Raises InputError.
    """
    if schedule == "interleaved-1f1b":
        fix = "give 1f1b or gpipe: a plan has one stage on each device; instances have chunks"
        raise InputError("command line", "--schedule", "is 'interleaved-1f1b'", fix)
    model, stages = plan.planned_model(), plan.stage_times
    chosen = schedule or plan.schedule
    count = sliced if sliced is not None else plan.sliced if chosen == plan.schedule else 0
    options: dict[str, Any] = {"schedule": chosen, "sliced": count}
    if cluster is None and profile is None and not measured and stages is not None:
        forward, backward, moves, syncs = (tuple(getattr(stage, name) for stage in stages) for name in StageTimes.model_fields)
        names = [span(model.units[stage.first_unit].name, model.units[stage.last_unit].name) for stage in plan.stages]
        work = Work(forward, backward, moves[:-1])
        return simulated(f"{model.name}, as planned", work, plan.batch.micro_batches, names, syncs, **options)
    origin = cluster or profile
    if origin is None:
        raise InputError("command line", "--cluster", "is missing", "give it, or a --profile: the plan has no stage times")
    if plan.world > origin.devices:
        raise InputError("command line", "--cluster", f"has {origin.devices} devices", f"give one of at least {plan.world}")
    if profile is not None and profile.model is None:
        raise InputError("profile", "name", f"is {profile.name!r}, imported", f"give a profile of {model.name!r}")
    devices = cluster.devices if cluster else plan.world
    sources: dict[str, Any] = {"earlier": profile, "measured": measured, "progress": measuring}
    found = obtain_profile(model, cluster, [samples_of(plan)], [plan.stage_size], devices=devices, **sources)
    planned = work_of(plan, found, None if cluster is None else cluster.device_kinds)
    name = f"{model.name} on {found.cluster}"
    return simulated(name, planned.work, planned.micro_batches, planned.names, planned.syncs_ns, **options)
