"""The prediction of every plan: its programs are compiled, checked and simulated, which gives the step's time and memory.

Where one rank stands for a class of equal ones (see `compiled`), it takes the times of the slowest kind of device and link of
its class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from trainplan.execution.analysis.memory.peak import Backend, Walk, memory_walk
from trainplan.execution.analysis.timing.profiled_costs import Carried, CarriedCosts, ProfiledCosts, carried
from trainplan.execution.analysis.timing.simulate import OTHERS, Durations, Overlap, TimeWalk, time_walk
from trainplan.execution.gc_paused import gc_paused
from trainplan.execution.prediction.compiled_plan import Classes, Compiled, compiled, default_backend
from trainplan.execution.prediction.surrogate import surrogate_of, weight_copies
from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.display import html_table
from trainplan.profiling.base.quantities import format_bytes, format_time
from trainplan.profiling.profiles import Profile


@dataclass(frozen=True, eq=False)
class PlanPrediction:
    """The step time and the memory of a plan, as predicted from its programs (each rank's instructions for a training step).

    plan: the plan that was simulated. classes: by simulated rank, all ranks that it stands for (ranks of one stage with equal
    programs). memory: of each simulated rank, on the executor's back-end (way of running a program) of the time simulation or
    on the serial one, whichever needs more. time: the simulation of the step. durations: gives the duration of an instruction
    in ns. unchecked: the programs, if their checks are put off until `checked`; else None.
    """

    plan: Plan
    classes: Classes
    memory: tuple[Walk, ...]
    time: TimeWalk
    durations: Durations
    unchecked: Compiled | None = None

    def __repr__(self) -> str:
        return f"<PlanPrediction {self.plan.model.get('name')!r}: {', '.join(text for _, text in self.summary())}>"

    def _repr_html_(self) -> str:
        """The summary as a table, for notebooks."""
        return html_table(self.summary())

    def summary(self) -> list[tuple[str, str]]:
        """The step's time and the peak memory of the fullest rank, as (label, text) pairs for a screen."""
        peak = f"peak {format_bytes(max(self.peak_bytes))} of {format_bytes(self.plan.memory_bytes)} a device"
        return [("step", f"{format_time(self.step_ns)} a step"), ("memory", peak)]

    def checked(self) -> PlanPrediction:
        """This prediction, after the static checks of its programs, if these were put off. Raises AssertionError for a
        fault."""
        if self.unchecked is None:
            return self
        self.unchecked.assure()
        return replace(self, unchecked=None)

    @property
    def step_ns(self) -> int:
        """The predicted time of the step in ns: until the last instruction of any rank is done."""
        return self.time.step_ns

    @cached_property
    def peak_bytes(self) -> tuple[int, ...]:
        """Peak memory in bytes of each rank's device, in rank order."""
        return self._by_rank([walk.peak_bytes for walk in self.memory])

    @cached_property
    def host_bytes(self) -> tuple[int, ...]:
        """Bytes that each rank sets aside in its host's memory, in rank order."""
        return self._by_rank([walk.host_bytes for walk in self.memory])

    @cached_property
    def serial_bytes(self) -> int:
        """Peak memory in bytes of the fullest rank's device on the serial back-end, which needs the least of all."""
        pairs = zip(self.time.rounds, self.memory, strict=True)
        return max(memory_walk(rounds.few).peak_bytes + walk.outside_program_bytes for rounds, walk in pairs)

    def carried(self) -> Carried:
        """The durations of the instructions as a table that the plan's JSON file can carry; `predict_from_saved_costs`
        predicts the plan from that table without profile and cluster."""
        table = carried([rounds.few for rounds in self.time.rounds], self.durations)
        table |= {"by_class": True} if len(self.classes) < self.plan.world else {}
        return table | ({"lanes": self.time.backend} if self.time.backend in OTHERS else {})

    def _by_rank(self, values: Sequence[int]) -> tuple[int, ...]:
        """One value per rank of the plan, in rank order. values: one per simulated rank, which also holds for the ranks that
        it stands for."""
        pairs = zip(self.classes.values(), values, strict=True)
        by_rank = {rank: value for ranks, value in pairs for rank in ranks}
        return tuple(by_rank[rank] for rank in range(self.plan.world))


def judge(plan: Plan, profile: Profile, kinds: Sequence[str] | None = None, backend: Backend | None = None) -> PlanPrediction:
    """Predict a plan by the times of a profile.

    kinds: the kind of every device, by number; None if no cluster is named. backend: the executor's back-end whose lanes
    (parallel queues of instructions) are simulated; None for the plan's own or, if it names none, `streams` for plans that
    copy to the host and `serial` for others. Raises InputError if the profile lacks a shape that the plan has.
    """
    alike = plan.alike_on(profile.network) and len(set(kinds or ())) < 2
    return predict_from_costs(plan, lambda classes: ProfiledCosts(plan, profile, kinds, classes), backend, by_class=alike)


def predict_from_saved_costs(plan: Plan, table: Carried, backend: Backend | None = None) -> PlanPrediction:
    """Predict a plan from `table`, the durations of instructions that it carries in its file. backend: the executor's back-end
    whose lanes (parallel queues of instructions) are simulated; None for the plan's default. Raises InputError if the table
    lacks an instruction."""
    lanes: Overlap | None = table.get("lanes") if backend is None else None
    walked = plan if lanes is None else surrogate_of(plan)
    backend = backend if lanes is None else backend_for_order(walked)
    return predict_from_costs(walked, lambda _: CarriedCosts(table), backend, "by_class" in table, lanes, weight_copies(plan))


def backend_for_order(plan: Plan) -> Backend:
    """The back-end of the executor in whose issue order, and with whose memory, a plan is simulated if it runs in another
    framework: the plan's own if it names one; else `serial` for pipelines, which wait for messages when they need them, and
    `streams`, which gathers and copies ahead, for plans of one stage."""
    return plan.backend or ("streams" if plan.depth == 1 or plan.uses_host else "serial")


@gc_paused()
def predict_from_costs(
    plan: Plan,
    costs: Callable[[Classes], Durations],
    backend: Backend | None = None,
    by_class: bool = False,
    lanes: Overlap | None = None,
    outside_program_bytes: Sequence[int] = (),
    checked: bool = True,
) -> PlanPrediction:
    """Compile, check and simulate a plan.

    costs: given the classes of equal ranks, returns the durations of instructions. backend: the executor's back-end whose
    lanes (parallel queues of instructions) are simulated; None for the plan's default. by_class: whether one rank of each
    class is enough, if the plan is not small. lanes: the lanes of other frameworks to simulate the time on instead of the
    back-end's; None for the back-end's. outside_program_bytes: one number per rank, bytes that its device holds all the time
    in addition to its program's buffers; empty for none. checked: whether to check the programs now; if not,
    `PlanPrediction.checked` does it later.
    """
    backend = backend or default_backend(plan)
    programs = compiled(plan, backend, by_class)
    if checked:
        programs.assure()
    stands_for = {other: rank for rank, others in programs.classes.items() for other in others if other != rank}
    durations = costs(programs.classes)
    time = time_walk(programs.programs, durations, lanes or backend, stands_for)
    memory = programs.memory(backend)
    if any(outside_program_bytes):
        memory = tuple(
            walk.with_extra(outside_program_bytes[rank]) for rank, walk in zip(programs.classes, memory, strict=True)
        )
    return PlanPrediction(plan, programs.classes, memory, time, durations, None if checked else programs)
