"""A simulated step as a record: its timeline, critical path, prediction and trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from trainplan.execution.prediction.evaluate_plan import PlanPrediction
from trainplan.formulations.plan.plan import Plan, Predicted
from trainplan.formulations.schedule.critical_path import Critical, critical_path
from trainplan.formulations.schedule.orders import in_flight
from trainplan.formulations.schedule.simulate import Timeline
from trainplan.prediction.chrome_trace import chrome_trace, operations_trace
from trainplan.prediction.metrics import Performance, last_programs, performance
from trainplan.profiling.base.display import in_one_line
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.validation.fitting import fit_of, fit_probability, software_error
from trainplan.validation.plans import as_run


@in_one_line
@dataclass(frozen=True)
class Simulation:
    """A simulated training step of a plan, or of a solution of an instance of the problem pipeline-partition (cut sub-layers
    into pipeline stages).

    name: name of the model or the instance. sliced: the number of micro-batches whose forward passes are cut in two. chunks:
    number of stages per device. stages: for every stage, the names of its first and last unit (sub-layer). timeline: the
    pipeline's passes; None for plans that are not a plain pipeline (one stage per device, stages of equal size) or have very
    many passes. syncs_ns: time in ns that each stage adds to the end of the step (reduction of gradients, optimizer), which
    the timeline does not include; 0 for an instance. plan, judged: for a plan, the plan itself and the prediction of its
    programs (the lists of instructions that ranks execute). cluster: the cluster that times are for; None if none is named.
    """

    name: str
    schedule: str
    micro_batches: int
    sliced: int
    chunks: int
    stages: tuple[str, ...]
    timeline: Timeline | None
    syncs_ns: tuple[int, ...] = ()
    plan: Plan | None = None
    judged: PlanPrediction | None = None
    cluster: Cluster | None = None

    @cached_property
    def critical(self) -> Critical | None:
        """The critical path (the passes and messages that determine the iteration's time) and its master stage, on which most
        of its passes are. Of several critical paths it is the one nearest to the last stage. None without a timeline.
        """
        return None if self.timeline is None else critical_path(self.timeline)

    @cached_property
    def performance(self) -> Performance | None:
        """A plan's step in an engineer's units (throughput, MFU, shares of the devices' time, memory); None for an instance."""
        return None if self.plan is None or self.judged is None else performance(self.plan, self.judged, self.cluster)

    @property
    def software(self) -> str:
        """The name of the runtime whose step is predicted, if it is not trainplan's own; empty for trainplan's own programs."""
        return "" if self.plan is None or self.plan.predicted is None else self.plan.predicted.software

    def by_own_programs(self) -> Simulation:
        """A copy of this simulation with the prediction of the plan's own programs (instruction lists), even if the plan is
        for another runtime than trainplan's own.
        """
        return self if not self.software or self.plan is None else replace(self, plan=self.plan.changed(predicted=None))

    def as_run(self, cluster: Cluster) -> Simulation:
        """A copy of this simulation with the prediction of the runtime that the plan is for, if trainplan can predict that
        runtime on the cluster; otherwise with the prediction of the plan's own programs (instruction lists).
        """
        if self.plan is None or self.judged is None:
            return self
        judged, origin = self.judged, f"estimated on {cluster.name}"
        own = Predicted(
            step_ns=judged.step_ns,
            peak_bytes=list(judged.peak_bytes),
            cost_model="executed",
            backend=judged.time.backend,
            profile_origin=origin,
        )
        return replace(self, plan=as_run(self.plan.changed(predicted=own), cluster)[0])

    @property
    def peak_bytes(self) -> Sequence[int]:
        """Peak memory in bytes of every rank's device, in rank order; for plans only, not for instances."""
        assert self.judged is not None
        if self.software and self.plan is not None and self.plan.predicted is not None:
            return self.plan.predicted.peak_bytes
        return self.judged.peak_bytes

    @property
    def fit_probability(self) -> float | None:
        """The probability, 0 to 1, that a plan fits on every device, by the error of predicted peaks of the software that is
        predicted, as `plan` states it; None for an instance.
        """
        if self.plan is None or self.judged is None:
            return None
        return fit_probability(max(self.peak_bytes), self.plan.memory_bytes, software_error(self.software))

    @property
    def step_ns(self) -> int:
        """Time in ns of the whole step: for a plan as predicted for its runtime or from its programs, for an instance as in
        its timeline.
        """
        if self.software and self.plan is not None and self.plan.predicted is not None:
            return self.plan.predicted.step_ns
        if self.judged is not None:
            return self.judged.step_ns
        assert self.timeline is not None
        return self.timeline.step_ns(self.syncs_ns)

    @property
    def in_flight(self) -> tuple[int, ...]:
        """The largest number of micro-batches that are in flight on each device at the same time, by device; a micro-batch
        that is in flight on two stages of a device counts twice.
        """
        assert self.timeline is not None
        return tuple(in_flight([event.task for event in events]) for events in self.timeline.devices)

    def trace(self) -> dict[str, Any]:
        """The step in the Trace Event Format, as a dict: the passes of its timeline or, without one, the operations of one rank
        of each stage. Raises InputError for a step with more micro-batches than are simulated one by one.
        """
        if self.timeline is not None:
            return chrome_trace(self.timeline, name=self.name, stages=self.stages)
        assert self.plan is not None and self.judged is not None
        indices = last_programs(self.plan, self.judged)
        return operations_trace(self.judged.time, indices, name=self.name, units=[unit.name for unit in self.plan.units])

    def to_dict(self) -> dict[str, Any]:
        """The whole simulation as a JSON-ready dict. Always: `name`, `schedule`, `micro_batches`, `sliced`, `chunks` and
        `step_ns`. For a plan also `peak_bytes` (for every rank), `software` (the runtime that is predicted), `fit` (yes, tight
        or no: whether it fits, by the error of predicted peaks), `fit_probability`, and `performance` (a dict). With a timeline
        also `iteration_ns` and `startup_ns`, `bubble` (idle fraction of the devices' time), `master_stage` (index), and lists
        of dicts with times in ns: `devices` (`busy_ns`, `idle_ns`, `sync_ns`, `in_flight`), `stages` (`forward_ns`,
        `backward_ns`, `transfer_ns` for a micro-batch) and `critical_path` (the passes that determine the time)."""
        fields = ("name", "schedule", "micro_batches", "sliced", "chunks", "step_ns")
        about: dict[str, Any] = {field: getattr(self, field) for field in fields}
        if self.judged is not None:
            about |= {"peak_bytes": list(self.peak_bytes), "software": self.software}
        if (probability := self.fit_probability) is not None:
            about |= {"fit": fit_of(probability), "fit_probability": probability}
        if self.performance is not None:
            about["performance"] = self.performance.to_dict()
        if self.timeline is None or self.critical is None:
            return about
        timeline, work = self.timeline, self.timeline.work
        count = len(timeline.devices)
        return about | {
            "iteration_ns": timeline.time_ns,
            "startup_ns": timeline.startup_ns,
            "bubble": timeline.bubble,
            "master_stage": self.critical.master,
            "devices": [
                {"busy_ns": busy, "idle_ns": timeline.time_ns - busy, "sync_ns": sync, "in_flight": many}
                for busy, sync, many in zip(timeline.busy_ns, self.syncs_ns, self.in_flight, strict=True)
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
