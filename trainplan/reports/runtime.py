"""Step and memory of a plan as the runtime runs it that the plan is for, by parts, for the plan's report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainplan.formulations.costs.overlapped.analytic_memory import run_memory
from trainplan.formulations.costs.overlapped.analytic_step import StreamsStep
from trainplan.formulations.plan.plan import Plan
from trainplan.plan_words import whose_numbers
from trainplan.prediction.simulation import Simulation
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.validation.plans import predict

COLOURS = {"model states": "optimizer", "activations": "activations", "whole gradients": "gradients"}  # as of which part


@dataclass(frozen=True)
class StagePeak:
    """The peak memory of a pipeline stage's fullest device under a runtime, in bytes.

    stage: its index. parts: by name, such as "activations", the bytes that add up to the peak; empty if they are not known.
    """

    stage: int
    peak_bytes: int
    parts: dict[str, float]


@dataclass(frozen=True)
class ByRuntime:
    """The prediction of a plan as its runtime runs it.

    whose: the phrase that names the runtime, such as "as Megatron-LM runs it". stages: the peaks of the stages, in order.
    step: the parts that add up to the step, as pairs of a text and a time in ns; empty if they are not known.
    """

    whose: str
    stages: tuple[StagePeak, ...]
    step: tuple[tuple[str, float], ...]

    @property
    def shares(self) -> str:
        """The shares of the step's parts, as one text; empty if the parts are not known."""
        whole = sum(ns for _, ns in self.step)
        return "; ".join(f"{name} {ns / whole:.1%}" for name, ns in self.step)

    @property
    def parts(self) -> list[tuple[str, str]]:
        """The parts of memory that any stage has, as pairs of the name and the part of trainplan's own programs whose colour
        it is drawn in."""
        names = dict.fromkeys(name for stage in self.stages for name, size in stage.parts.items() if round(size))
        return [(name, COLOURS.get(name, "buffers")) for name in names]


def by_runtime(plan: Plan, simulation: Simulation, cluster: Cluster | None) -> ByRuntime | None:
    """The prediction of a plan by the runtime that the plan is for, with its parts; None for a plan whose numbers are of
    trainplan's own programs.

    simulation: the plan's simulation, which has the runtime's step and peaks. cluster: the devices, from which the parts
    follow; if it is None, or if the prediction on it is not that of the plan, step and peaks have no parts.
    """
    if not simulation.software:
        return None
    peaks = [max(simulation.peak_bytes[rank] for rank in stage.ranks) for stage in plan.stages[: plan.depth]]
    parts: list[dict[str, float]] = [{} for _ in peaks]
    step: tuple[tuple[str, float], ...] = ()
    found = "" if cluster is None else predict(plan, cluster)
    if not isinstance(found, str) and found.step_ns == simulation.step_ns and [*found.peak_bytes] == [*simulation.peak_bytes]:
        laid = found.details.laid
        parts = [memory.parts for memory in run_memory(laid.model, laid.layout)]
        step = tuple((name, ns) for name, ns in _parts_of_step(found.details.step) if round(ns) > 0)
    rows = tuple(StagePeak(stage, peak, parts[stage]) for stage, peak in enumerate(peaks))
    return ByRuntime(whose_numbers(simulation.plan or plan), rows, step)


def _parts_of_step(step: StreamsStep) -> Iterable[tuple[str, float]]:
    """The parts of a step, as pairs of a text and a time in ns, which add up to it; a part that is 0 may be a rounding error
    below. step: the step as a runtime is predicted to run it."""
    yield "computing on the busiest rank", step.computing_ns - step.collectives_ns
    yield "collectives in its passes that no kernel hides", step.collectives_ns
    yield "waiting and other exposed communication", step.passes_ns - step.computing_ns
    yield "exposed reduction of gradients", step.reduce_ns
    yield "optimizer", step.optimizer_ns
    yield "exposed gathering of parameters", step.gather_ns
    yield "exposed copies to and from the host", step.copies_ns
    yield "what the framework does once a step", step.ends_ns
    yield "slower ranks of several nodes", step.step_ns * (1 - 1 / step.jitter)
