"""From a plan to one program per rank: pipeline stages; data, sharded-data and tensor parallelism and recomputation per unit.

Plans with memory switches have a compiler of their own, `switch_passes`; this is that of all others.

Between stages a rank talks to the one of its own place in the next or previous stage. Hidden states and gradients alike travel
in the sender's layout, and the receiver re-lays them as it would those of a unit of its own.

Where the schedule slices micro-batches, the halves of one travel as messages of their own up to the first stage that runs it
whole; there the stage before joins them, and sends one. Gradients always travel whole: on a stage that ran halves, the last
unit reads the rows of each out of what was received, and the first unit's are joined before they are sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainplan.execution.compile.ranks import by_kind, planned_ranks
from trainplan.execution.compile.switch_passes import SwitchCompiler
from trainplan.execution.compile.unit_passes import UnitPasses
from trainplan.execution.program import Op, Part, Program, grouped
from trainplan.execution.uncollected import uncollected
from trainplan.formulations.plan import Plan
from trainplan.formulations.step.schedules import Pass, orders
from trainplan.profiling.models.model import Model


@uncollected()
def compile_plan(
    plan: Plan,
    model: Model | None = None,
    ranks: Sequence[int] | None = None,
    most_micro_batches: int | None = None,
    ahead: bool = False,
) -> list[Program]:
    """The programs of all ranks, or of some.

    model: run this one in the plan's place, scaled down, with the same units. most_micro_batches: leave out all micro-batches
    of a rank but the first so many. ahead: gather parameters one unit ahead; with memory switches, these say when.
    """
    model = model or plan.planned_model()
    switches, stages = plan.switches(), len(plan.stages)
    counts = {min(count, most_micro_batches or count) for count in plan.batch.shares or [plan.batch.micro_batches]}
    by_count = {count: orders(plan.schedule, stages, count, plan.sliced) for count in counts}
    programs = dict[int, Program]()
    for first, *others in by_kind(planned_ranks(plan, model, ranks, most_micro_batches)):
        if switches is not None:
            compiler: UnitPasses = SwitchCompiler.at(first, switches=tuple(switches), nvlink=bool(plan.nvlink))
        else:
            compiler = _Compiler.at(first, orders=by_count, ahead=ahead)
        programs[first.rank] = compiler.program()
        programs.update({other.rank: other.translated(programs[first.rank]) for other in others})
    return [programs[rank] for rank in (range(plan.world) if ranks is None else ranks)]


@dataclass
class _Compiler(UnitPasses):
    """orders: of the passes on all stages, by the number of micro-batches."""

    orders: Mapping[int, Sequence[Sequence[Pass]]] = field(kw_only=True)

    def program(self) -> Program:
        for unit in self.units:
            self.place_states(unit)
        for kind, micro_batch, _, half in self.orders[self.micro_batches][self.stage]:
            if kind == "forward":
                self._forward_pass(Part(micro_batch, half))
            else:
                self._backward_pass(Part(micro_batch))
        if self.model.tied and not self.table_once and self.stage in (0, len(self.stages) - 1):
            self._reduce_tied()
        for unit in self.units:
            self.issue(
                Op.OPTIMIZER_STEP,
                unit,
                reads=(f"gradient.{unit}",),
                writes=(f"parameter.{unit}", f"moments.{unit}"),
            )
        self.reduce(Op.REDUCE_LOSS, None, None, "loss", tuple(range(self.world)))
        return self.finished()

    def _forward_pass(self, part: Part) -> None:
        first, after = self.units.start, self.units.stop
        if first > 0:
            self._receive(f"hidden.{first}", first, part, laid_as=first - 1, neighbour=-1)
        for unit in self.units:
            self.forward(unit, part)
        if after > self.last:
            self.loss(part)
        elif part.half is None or self.runs_in_halves(self.stage + 1, part.micro_batch):
            self._send(f"hidden.{after}", after, part, neighbour=1)
        elif part.half == 1:
            whole = self._join(f"hidden.{after}", after, part)
            self._send(f"hidden.{after}", after, whole, neighbour=1)

    def _backward_pass(self, part: Part) -> None:
        first, after = self.units.start, self.units.stop
        if after <= self.last:
            self._receive(f"input-gradient.{after}", after, part, laid_as=after, neighbour=1)
        last = part.micro_batch == self.micro_batches - 1
        for unit in reversed(self.units):
            self.backward(unit, part.micro_batch)
            if last and first == 0:
                self.reduce_gradients(unit)
        if first > 0:
            if self.runs_in_halves(self.stage, part.micro_batch):
                self._join(f"input-gradient.{first}", first, part)
            self._send(f"input-gradient.{first}", first, part, neighbour=-1)
            for unit in reversed(self.units if last else ()):
                self.reduce_gradients(unit)

    def _send(self, kind: str, unit: int, part: Part, neighbour: int) -> None:
        name = f"{kind}.{part}"
        size = self.buffers[name]
        self.issue(Op.SEND, unit, part, reads=(name,), frees=(name,), group=self.lane(neighbour), message_bytes=size)

    def _receive(self, kind: str, unit: int, part: Part, laid_as: int, neighbour: int) -> None:
        name, lane = f"{kind}.{part}", self.lane(neighbour)
        size = self.boundary_bytes(unit - 1, len(self.rows(laid_as, part)))
        self.buffer(name, size)
        self.issue(Op.RECEIVE, unit, part, writes=(name,), group=lane, message_bytes=size)
        if [(i.op, i.group) for i in self.issued[-2:]] == [(Op.SEND, lane), (Op.RECEIVE, lane)]:
            self.issued[-2:] = [grouped(*self.issued[-2:])]

    def _join(self, kind: str, unit: int, part: Part) -> Part:
        """The halves of the part's micro-batch become one buffer."""
        whole = Part(part.micro_batch)
        names, name = tuple(f"{kind}.{half}" for half in whole.halves), f"{kind}.{whole}"
        self.buffer(name, sum(self.buffers[half] for half in names))
        self.issue(Op.JOIN, unit, whole, reads=names, writes=(name,), frees=names)
        return whole

    def _reduce_tied(self) -> None:
        both = tuple(f"gradient.{unit}" for unit in (0, self.last) if unit in self.units)
        size, last = self.model.tied_elements * self.model.element_bytes, self.world - self.size
        group = tuple(sorted({*range(self.size), *range(last, self.world)}))
        self.issue(Op.REDUCE_TIED, reads=both, writes=both, group=group, message_bytes=size, workspace_bytes=size)
