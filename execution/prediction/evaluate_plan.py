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
    """The step and the memory of a plan, as predicted from its programs.

    plan: the plan that was simulated. classes: by rank that is simulated, all ranks that it stands for. memory: of each of
    these, on the back-end of the time simulation or on the serial one, whichever needs more. time: the simulation of the step.
    durations: the costs of instructions, in ns. unchecked: the programs, where their checks are put off until `checked`.
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
        """(label, text) of the step's time and of the peak memory of the fullest rank."""
        peak = f"peak {format_bytes(max(self.peak_bytes))} of {format_bytes(self.plan.memory_bytes)} a device"
        return [("step", f"{format_time(self.step_ns)} a step"), ("memory", peak)]

    def checked(self) -> PlanPrediction:
        """This prediction, after its programs have been checked. Raises AssertionError for a fault."""
        if self.unchecked is None:
            return self
        self.unchecked.assure()
        return replace(self, unchecked=None)

    @property
    def step_ns(self) -> int:
        """Time of the step: until the last instruction of any rank is done."""
        return self.time.step_ns

    @cached_property
    def peak_bytes(self) -> tuple[int, ...]:
        """Peak memory in bytes of each rank's device, by rank."""
        return self._by_rank([walk.peak_bytes for walk in self.memory])

    @cached_property
    def host_bytes(self) -> tuple[int, ...]:
        """Bytes that each rank sets aside on its host, by rank."""
        return self._by_rank([walk.host_bytes for walk in self.memory])

    @cached_property
    def serial_bytes(self) -> int:
        """Peak memory in bytes of the fullest rank's device on the serial back-end, which needs the least."""
        pairs = zip(self.time.rounds, self.memory, strict=True)
        return max(memory_walk(rounds.few).peak_bytes + walk.outside_program_bytes for rounds, walk in pairs)

    def carried(self) -> Carried:
        """The durations as a table that a plan can carry, from which `predict_from_saved_costs` simulates it again."""
        table = carried([rounds.few for rounds in self.time.rounds], self.durations)
        table |= {"by_class": True} if len(self.classes) < self.plan.world else {}
        return table | ({"lanes": self.time.backend} if self.time.backend in OTHERS else {})

    def _by_rank(self, values: Sequence[int]) -> tuple[int, ...]:
        """Values of the ranks that were simulated, as values of all ranks, by rank."""
        pairs = zip(self.classes.values(), values, strict=True)
        by_rank = {rank: value for ranks, value in pairs for rank in ranks}
        return tuple(by_rank[rank] for rank in range(self.plan.world))


def judge(plan: Plan, profile: Profile, kinds: Sequence[str] | None = None, backend: Backend | None = None) -> PlanPrediction:
    """Predict a plan by the times of a profile, which has the costs of all its shapes.

    kinds: the kind of every device, by number; None where no cluster is named. backend: the back-end whose lanes count
    (default: the plan's; else `serial`, and `streams` for plans that copy to the host, whose purpose is what lanes do in
    parallel). Raises InputError where the profile lacks a shape.
    """
    alike = plan.alike_on(profile.network) and len(set(kinds or ())) < 2
    return predict_from_costs(plan, lambda classes: ProfiledCosts(plan, profile, kinds, classes), backend, by_class=alike)


def predict_from_saved_costs(plan: Plan, table: Carried, backend: Backend | None = None) -> PlanPrediction:
    """Predict a plan by the durations that it carries (`table`, see `PlanPrediction.carried`). Raises InputError where they do
    not suffice."""
    lanes: Overlap | None = table.get("lanes") if backend is None else None
    walked = plan if lanes is None else surrogate_of(plan)
    backend = backend if lanes is None else backend_for_order(walked)
    return predict_from_costs(walked, lambda _: CarriedCosts(table), backend, "by_class" in table, lanes, weight_copies(plan))


def backend_for_order(plan: Plan) -> Backend:
    """The back-end in whose order a plan's programs are simulated on the lanes of other frameworks, and whose memory they need:
    the plan's; else `streams`, with what is gathered or copied in ahead, and, for pipelines, which wait for messages when they
    need them, `serial`."""
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

    costs: gives the durations of instructions, for these classes of ranks. backend: as of `judge`. by_class: as of `compiled`.
    lanes: those of other frameworks, on which its programs are simulated for time instead of those of the back-end.
    outside_program_bytes: by rank, bytes that its device holds all the time in addition to the buffers of its program. checked:
    whether to check the programs now; else their checks are put off.
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
