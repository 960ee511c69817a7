"""The judge of every plan: its programs are compiled, checked and walked, and the walks say what a step takes and needs.

Of plans for more than FEW_RANKS devices, one rank of each class of equal ranks is compiled and walked, and its checks stand
for all (see `walk.class_checks`): where all ranks of a class have equal devices and links, so that this is exact; and where
the plan is for more than MOST_PROCESSES, which do not run on one machine, at the pace of the slowest kind of device and link
of each class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from trainplan.execution.ahead import classes_of, programs_of
from trainplan.execution.program import Program
from trainplan.execution.rounds import Rounds
from trainplan.execution.run.processes import MOST_PROCESSES
from trainplan.execution.walk.checks import check
from trainplan.execution.walk.class_checks import check_classes
from trainplan.execution.walk.costs import Carried, CarriedCosts, ProfiledCosts, carried
from trainplan.execution.walk.memory import Backend, Walk, memory_walk
from trainplan.execution.walk.time import Durations, TimeWalk, time_walk
from trainplan.formulations.plan import Plan
from trainplan.profiling.profiles import Profile

Classes = Mapping[int, Sequence[int]]  # ranks that do the same, by the one that is compiled
FEW_RANKS = 8


@dataclass(frozen=True, eq=False)
class Judged:
    """What the walks over a plan's programs say.

    classes: of each rank that is walked, all that it stands for. memory: the walks of these ranks, on the back-end of the time
    walk or on the serial one, whichever needs more. durations: what instructions were said to take.
    """

    plan: Plan
    classes: Classes
    memory: tuple[Walk, ...]
    time: TimeWalk
    durations: Durations

    @property
    def step_ns(self) -> int:
        """Until the last instruction of any rank is done."""
        return self.time.step_ns

    @cached_property
    def peak_bytes(self) -> tuple[int, ...]:
        """The most that each rank's device holds, by rank."""
        return self._by_rank([walk.peak_bytes for walk in self.memory])

    @cached_property
    def host_bytes(self) -> tuple[int, ...]:
        """What each rank sets aside on its host, by rank."""
        return self._by_rank([walk.host_bytes for walk in self.memory])

    @cached_property
    def serial_bytes(self) -> int:
        """The most that any rank's device holds on the serial back-end, which needs the least."""
        return max(memory_walk(rounds.few).peak_bytes for rounds in self.time.rounds)

    def carried(self) -> Carried:
        """The durations as a table that a plan can carry, from which `judge_carried` walks it again. For judgements by a
        profile."""
        assert isinstance(self.durations, ProfiledCosts)
        by_class = len(self.classes) < self.plan.world
        return carried([rounds.few for rounds in self.time.rounds], self.durations) | ({"by_class": True} if by_class else {})

    def _by_rank(self, values: Sequence[int]) -> tuple[int, ...]:
        pairs = zip(self.classes.values(), values, strict=True)
        by_rank = {rank: value for ranks, value in pairs for rank in ranks}
        return tuple(by_rank[rank] for rank in range(self.plan.world))


def judge(plan: Plan, profile: Profile, kinds: Sequence[str] | None = None, backend: Backend | None = None) -> Judged:
    """Compile, check and walk a plan by the times of a profile, which has the costs of all its shapes.

    kinds: of every device, by number; None where no cluster is named. backend: whose lanes count (default: `serial`; `streams`
    for plans with memory switches, whose point is what lanes do beside each other). Raises InputError where the profile lacks
    a shape.
    """
    alike = plan.placement is None and profile.network.uniform and len(set(kinds or ())) < 2
    return judge_by(plan, lambda classes: ProfiledCosts(plan, profile, kinds, classes), backend, by_class=alike)


def judge_carried(plan: Plan, table: Carried, backend: Backend | None = None) -> Judged:
    """Walk a plan by the durations that it carries (see `Judged.carried`). Raises InputError where they do not suffice."""
    return judge_by(plan, lambda _: CarriedCosts(table), backend, by_class="by_class" in table)


def judge_by(
    plan: Plan, costs: Callable[[Classes], Durations], backend: Backend | None = None, by_class: bool = False
) -> Judged:
    """Compile, check and walk a plan. costs: what instructions take, for these classes of ranks. by_class: walk one rank of
    each class already where there are more than FEW_RANKS."""
    backend = backend or ("serial" if plan.switches() is None else "streams")
    backends: set[Backend] = {"serial", backend}
    programs: Sequence[Program | Rounds]
    if plan.world <= (FEW_RANKS if by_class else MOST_PROCESSES):
        classes: Classes = {rank: (rank,) for rank in range(plan.world)}
        programs = walked = programs_of(plan, backend)
        faults = check(walked)
    else:
        ranks = classes_of(plan, backend)
        classes = {each.ranks[0]: each.ranks for each in ranks}
        programs = [each.rounds for each in ranks]
        walked = [each.walked for each in ranks]
        faults = check_classes(ranks)
    assert not faults, faults[0]
    memory = [max((memory_walk(p, b) for b in backends), key=lambda walk: walk.peak_bytes) for p in walked]
    stands_for = {other: rank for rank, others in classes.items() for other in others if other != rank}
    durations = costs(classes)
    time = time_walk(programs, durations, backend, stands_for)
    return Judged(plan, classes, tuple(memory), time, durations)
