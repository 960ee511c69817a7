"""From a plan to one program per rank: pipeline stages; data, sharded-data and tensor parallelism and recomputation per unit.

Where states and inputs are on the host, `host_offload` issues what brings them to the device and back. H3T's step, of one stage
and one micro-batch, is issued in an order of its own, `switch_passes`; here are pipelines of any number of micro-batches.

Between stages of one size a rank exchanges messages with the rank of its own index in the next or previous stage. Hidden states
and gradients alike travel in the sender's layout, and the receiver changes their layout as it would after a unit of its own.
Between stages of unlike sizes every rank is sent the rows of its own layout, by each rank that serves it.

Where the schedule slices micro-batches, the halves of one travel as messages of their own up to the first stage that runs it
whole; there the stage before joins them, and sends one. Gradients always travel whole: on a stage that ran halves, the last
unit reads the rows of each out of what was received, and the first unit's are joined before they are sent.

Ranks of a stage run the same instructions on buffers of the same bytes if they work on equal numbers of micro-batches and hold
equally large shards; they differ in the members of their groups, and in the samples they work on. Such ranks form a class, of
which one rank is compiled for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile, zip_longest
from typing import Any, NamedTuple

from trainplan.execution.compile.host_offload import Residences
from trainplan.execution.compile.ranks import by_kind, planned_ranks
from trainplan.execution.compile.switch_passes import SwitchCompiler
from trainplan.execution.gc_paused import gc_paused
from trainplan.execution.instructions import Op
from trainplan.execution.program import FROM, Instruction, MicroBatchPart, Program, grouped
from trainplan.execution.steady_state import Rounds, few_micro_batches, in_rounds, micro_batches_of_round
from trainplan.execution.support import COMPILED, refuse_others
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.schedule.message_order import Item, with_messages
from trainplan.formulations.schedule.orders import Pass, orders
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.models.model import Model


@gc_paused()
def compile_plan(
    plan: Plan,
    model: Model | None = None,
    ranks: Sequence[int] | None = None,
    most_micro_batches: int | None = None,
    ahead: bool = False,
) -> list[Program]:
    """Compile the programs of all ranks of a plan, or of those in `ranks` (rank numbers), in that order. A program is one
    rank's instructions for a training step.

    model: the model to run instead of the plan's own: a smaller one with the same units (sub-layers); None for the plan's own.
    most_micro_batches: compile only this many first micro-batches of each rank; None for all. ahead: gather parameters one
    unit ahead, and post receives one pass ahead; in H3T's step (one micro-batch, states on the host) the memory switches
    decide that. Raises InputError for features of plans that programs do not have.
    """
    refuse_others(plan, COMPILED, "the compiler")
    model = model or plan.planned_model()
    switches, stages, own_lane = plan.switches(), len(plan.stages), bool(plan.nvlink)
    counts = {min(count, most_micro_batches or count) for count in plan.batch.shares or [plan.batch.micro_batches]}
    by_count = {count: orders(plan.schedule, stages, count, plan.sliced, plan.chunks) for count in counts}
    interleaved = with_messages(by_count[counts.pop()], stages) if plan.chunks > 1 else None
    programs = dict[int, Program]()
    placed = planned_ranks(plan, model, ranks, most_micro_batches)
    digits = plan.digits
    for first, *others in by_kind(placed) if digits is not None else [[rank] for rank in placed]:
        if switches is not None:
            compiler: Residences = SwitchCompiler.at(first, switches=tuple(switches), own_lane=own_lane)
        else:
            compiler = _Compiler.at(first, orders=by_count, interleaved=interleaved, ahead=ahead, own_lane=own_lane)
        programs[first.rank] = compiler.program()
        if digits is not None:
            programs.update({other.rank: other.translated(programs[first.rank], digits) for other in others})
    return [programs[rank] for rank in (range(plan.world) if ranks is None else ranks)]


class Arrival(NamedTuple):
    """A message that a rank receives: hidden states or their gradient, at the boundary between two pipeline stages. kind: the
    beginning of the buffer's name, such as `hidden.4`. unit: index of the unit (sub-layer) after the boundary. part: the
    micro-batch or half of one. step: 1 if it comes from the next stage, -1 from the previous one."""

    kind: str
    unit: int
    part: MicroBatchPart
    step: int


@dataclass
class _Compiler(Residences):
    """Builds the program of one rank of a pipeline. To issue an instruction is to append it to the program.

    A unit is a sub-layer of the model, known by its index; the boundary before a unit is the point where hidden states pass
    into it; a part is a whole micro-batch or half of one; rows are samples; the rank runs one stage, or several under the
    interleaved schedule. `kind` is the beginning of a buffer's name, such as 'hidden.4' or 'input-gradient.4'; the part is its
    end. `step` is 1 for the next stage of the pipeline, -1 for the previous one.

    orders: by number of micro-batches, the order of passes on every device. interleaved: the order of passes and messages on
    every device, if devices have several stages each; else None.
    """

    orders: Mapping[int, Sequence[Sequence[Pass]]] = field(kw_only=True)
    interleaved: Sequence[Sequence[Item]] | None = field(kw_only=True, default=None)
    _posted: set[str] = field(default_factory=set)

    def program(self) -> Program:
        """Issue the whole step, from the declaration of the states' buffers over passes, reductions and the optimizer to the
        sum of the loss, and return it as a program."""
        for unit in self.units:
            self.place_states(unit)
        if self.interleaved is None:
            self._in_turn(self.orders[self.micro_batches][self.stage])
        else:
            self._interleave(self.interleaved[self.stage])
        if self.model.tied and not self.shares_table and {0, self.last} & set(self.units):
            self._reduce_tied()
        for unit in self.units:
            if self.reduces_tied(unit):
                self.step_on_host(unit)
            if not self.steps_on_host(unit):
                self.step(unit)
        self.copy_back()
        self.reduce(Op.REDUCE_LOSS, None, None, "loss", tuple(range(self.world)))
        return self.finished()

    def _in_turn(self, passes: Sequence[Pass]) -> None:
        """Issue these passes of the rank's one stage, in order, each with the message that it needs and the message of its
        result."""
        for this, following in zip_longest(passes, passes[1:]):
            if (arrival := self._arrival(this)) is not None:
                self._receive(*arrival)
            if following is not None and (arrival := self._arrival(following)) is not None:
                self._post(*arrival)
            if this.kind == "forward":
                self._forward_pass(MicroBatchPart(this.micro_batch, this.half))
            else:
                self._backward_pass(MicroBatchPart(this.micro_batch))

    def _arrival(self, task: Pass) -> Arrival | None:
        """The message that a pass of the rank's one stage needs before it begins: hidden states for a forward pass, their
        gradient for a backward pass. None for forward passes of the first stage and backward passes of the last."""
        units = self.stages[self.stage]
        if task.kind == "forward":
            part = MicroBatchPart(task.micro_batch, task.half)
            return Arrival(f"hidden.{units.start}", units.start, part, -1) if units.start > 0 else None
        after = units.stop
        return Arrival(f"input-gradient.{after}", after, MicroBatchPart(task.micro_batch), 1) if after <= self.last else None

    def _interleave(self, items: Sequence[Item]) -> None:
        """Issue `items`, this rank's list of passes and messages under the interleaved schedule, in order; messages that follow
        one another directly become one operation."""
        for index, (item_kind, (kind, micro_batch, stage, _)) in enumerate(items):
            units, part = self.stages[stage], MicroBatchPart(micro_batch)
            after, first = units.stop, units.start
            if item_kind == "pass":
                for item in takewhile(lambda item: item.what != "pass", items[index + 1 :]):
                    if item.what == "receive":
                        self._post(*self._arrival_of(item))
            if item_kind == "pass" and kind == "forward":
                self._forward(units, part)
            elif item_kind == "pass":
                for unit in reversed(units):
                    self.backward(unit, micro_batch)
            elif item_kind == "receive":
                self._receive(*self._arrival_of(items[index]))
            elif kind == "forward":
                self._send(f"hidden.{after}", after, part, 1)
            else:
                self._send(f"input-gradient.{first}", first, part, -1)
        for unit in reversed(self.units):
            self.reduce_gradients(unit)

    def _arrival_of(self, item: Item) -> Arrival:
        """The message in which this rank receives the result of a pass of another rank. item: a receive in the order of the
        interleaved schedule."""
        kind, micro_batch, stage, _ = item.task
        units, part = self.stages[stage], MicroBatchPart(micro_batch)
        if kind == "forward":
            return Arrival(f"hidden.{units.stop}", units.stop, part, -1)
        return Arrival(f"input-gradient.{units.start}", units.start, part, 1)

    def _forward(self, units: range, part: MicroBatchPart) -> None:
        """Issue the forward pass of a stage's units on a part, and the loss if the stage has the model's last unit."""
        for unit in units:
            self.forward(unit, part)
        if units.stop > self.last:
            self.loss(part)

    def _forward_pass(self, part: MicroBatchPart) -> None:
        """Issue the forward pass of the rank's one stage on a part, and the message of its output to the next stage, if there
        is one. If the next stage runs the micro-batch as a whole, both halves are joined and sent after the second."""
        units = self.stages[self.stage]
        after = units.stop
        self._forward(units, part)
        if after > self.last:
            return
        if part.half is None or self.runs_in_halves(self.stage + 1, part.micro_batch):
            self._send(f"hidden.{after}", after, part, 1)
        elif part.half == 1:
            whole = self._join(f"hidden.{after}", after, part)
            self._send(f"hidden.{after}", after, whole, 1)

    def _backward_pass(self, part: MicroBatchPart) -> None:
        """Issue the backward pass of the rank's one stage on a micro-batch, and the message to the previous stage, if there is
        one; after the last micro-batch also the reductions of gradients."""
        units = self.stages[self.stage]
        first = units.start
        last = part.micro_batch == self.micro_batches - 1
        for unit in reversed(units):
            self.backward(unit, part.micro_batch)
            if last and first == 0:
                self.reduce_gradients(unit)
        if first > 0:
            if self.runs_in_halves(self.stage, part.micro_batch):
                self._join(f"input-gradient.{first}", first, part)
            self._send(f"input-gradient.{first}", first, part, -1)
            for unit in reversed(units if last else ()):
                self.reduce_gradients(unit)

    def _send(self, kind: str, unit: int, part: MicroBatchPart, step: int) -> None:
        """Issue the sends of the rows at the boundary before a unit to the next or previous stage (`step`). If both stages
        have equally many ranks, all rows go to the rank of the same index there; else every rank there gets the rows that it
        needs from this one. kind: the beginning of the buffer's name."""
        name = f"{kind}.{part}"
        before, after = (unit - 1, unit) if step > 0 else (unit, unit - 1)
        there = self.neighbours(after)
        if self._alike(unit):
            peers: list[tuple[int, dict[str, Any], int]] = [(there[self.index_in_stage], {}, self.buffers[name])]
        else:
            if self.strategies[before].sequence_parallel:  # receivers may need all tokens of some of its rows
                name = self.gather_tokens(before, part, name, f"{kind.replace('.', '-whole.')}.{part}", before, (name,))
            block = self.rows(before, part)
            peers = [
                (there[receiver], {"blocks": (block,), "rows": rows}, self.boundary_bytes(unit - 1, len(rows)))
                for (sender, receiver), rows in self.transfers(before, after, part).items()
                if sender == self.index_in_stage
            ]
        sends = [
            self.instruction(Op.SEND, unit, part, reads=(name,), group=self.lane(peer), args=args, message_bytes=size)
            for peer, args, size in peers
        ]
        if sends:
            self._messages([*sends[:-1], sends[-1].changed(frees=(name,))], there)
        else:  # nobody is sent its rows: it goes with the last instruction that touches it
            last = max(receiver for receiver, i in enumerate(self.issued) if name in (*i.reads, *i.writes))
            self.issued[last] = self.issued[last].changed(frees=(*self.issued[last].frees, name))

    def _post(self, kind: str, unit: int, part: MicroBatchPart, step: int) -> None:
        """Declare the buffers that the receives at the boundary before a unit (sub-layer) are going to fill, and issue the
        posting of these receives, from which on their messages may arrive. Does nothing unless the program posts receives
        ahead.

        kind: the beginning of the buffers' names. part: the micro-batch, or half of one. step: 1 for messages from the next
        stage, -1 for messages from the previous one."""
        for _, name, rows in self._senders(kind, unit, part, step) if self.ahead else ():
            self.buffer(name, self._received_bytes(unit, step, len(rows)))
            self.issue(Op.POST_RECEIVE, unit, part, writes=(name,))
            self._posted.add(name)

    def _receive(self, kind: str, unit: int, part: MicroBatchPart, step: int) -> None:
        """Issue the receives of the rows at the boundary before a unit from the next or previous stage (`step`). If both
        stages have equally many ranks, the rows come from one sender, in its layout; else in this rank's layout, joined from
        what all senders send. kind: the beginning of the buffer's name."""
        name, after = f"{kind}.{part}", unit - 1 if step > 0 else unit
        sources = self._senders(kind, unit, part, step)
        receives = []
        for peer, buffer, rows in sources:
            size = self._received_bytes(unit, step, len(rows))
            args: dict[str, Any] = {} if self._alike(unit) else {"rows": rows}
            fields: dict[str, Any] = {"writes": (self.buffer(buffer, size),), "group": self.lane(peer), "args": args}
            fields["reads"] = (buffer,) if buffer in self._posted else ()
            receives.append(self.instruction(Op.RECEIVE, unit, part, **fields, message_bytes=size))
        self._messages(receives, self.neighbours(unit if step > 0 else unit - 1))
        if len(sources) > 1:
            wanted, parts = self.rows(after, part), tuple(buffer for _, buffer, _ in sources)
            self.buffer(name, self.boundary_bytes(unit - 1, len(wanted)))
            args = {"blocks": tuple(rows for _, _, rows in sources), "rows": wanted}
            self.issue(Op.JOIN, unit, part, reads=parts, writes=(name,), frees=parts, args=args)

    def _senders(self, kind: str, unit: int, part: MicroBatchPart, step: int) -> list[tuple[int, str, tuple[int, ...]]]:
        """The ranks that send this rank the rows at the boundary before a unit, as a list of (sender's rank, name of the
        buffer that receives its message, ids of its rows)."""
        name = f"{kind}.{part}"
        before, after = (unit, unit - 1) if step > 0 else (unit - 1, unit)
        there = self.neighbours(before)
        if self._alike(unit):
            return [(there[self.index_in_stage], name, self.rows(before, part))]
        pairs = self.transfers(before, after, part).items()
        those = [(there[sender], rows) for (sender, receiver), rows in pairs if receiver == self.index_in_stage]
        names = [name if len(those) == 1 else name.replace(".", f"{FROM}{peer}.", 1) for peer, _ in those]
        return [(peer, buffer, rows) for buffer, (peer, rows) in zip(names, those, strict=True)]

    def _received_bytes(self, unit: int, step: int, rows: int) -> int:
        """Bytes of `rows` rows at the boundary before a unit, in the layout in which they arrive from the next or previous
        stage (`step`)."""
        before = unit if step > 0 else unit - 1
        return self.laid_bytes(unit - 1, before, rows) if self._alike(unit) else self.boundary_bytes(unit - 1, rows)

    def _messages(self, messages: Sequence[Instruction], there: Sequence[int]) -> None:
        """Issue these sends or receives with the ranks `there` of another stage as one operation. Sends to the same ranks that
        come right before receives are put in the same operation, so that two neighbouring stages cannot deadlock; under the
        interleaved schedule so are all messages that come right before."""
        last = self.issued[-1] if self.issued else None
        answers = last is not None and last.op is Op.SEND and messages[0].op is Op.RECEIVE
        together = answers and last is not None and set(last.group) <= {self.rank, *there}
        if last is not None and last.op.spec.kind == "message" and (together or self.interleaved is not None):
            self.issued.pop()
            messages = [*last.messages, *messages]
        self.issued.append(grouped(*messages))

    def _alike(self, unit: int) -> bool:
        """Whether the stage of this unit and the stage of the unit before it have the same number of ranks."""
        return self.strategies[unit - 1].group == self.strategies[unit].group

    def _join(self, kind: str, unit: int, part: MicroBatchPart) -> MicroBatchPart:
        """Issue the join of the buffers of both halves of the part's micro-batch in one buffer; returns the whole micro-batch.
        kind: the beginning of the buffers' names."""
        whole = MicroBatchPart(part.micro_batch)
        names, name = tuple(f"{kind}.{half}" for half in whole.halves), f"{kind}.{whole}"
        self.buffer(name, sum(self.buffers[half] for half in names))
        self.issue(Op.JOIN, unit, whole, reads=names, writes=(name,), frees=names)
        return whole

    def _reduce_tied(self) -> None:
        """Issue the all-reduce of the gradients of a tied matrix, of which embedding and head have separate copies."""
        both = tuple(f"gradient.{unit}" for unit in (0, self.last) if unit in self.units)
        size = self.model.tied_elements * self.gradient_bytes
        group = tuple(sorted({*self.groups[0], *self.groups[-1]}))
        self.issue(Op.REDUCE_TIED, reads=both, writes=both, group=group, message_bytes=size, workspace_bytes=size)


MOST_INSTRUCTIONS = 2**20  # of a rank's program that has no steady state


@dataclass(frozen=True)
class RankClass:
    """The ranks of one stage that run the same program up to samples and groups, and the program of the first of them. A
    program is one rank's instructions for a training step.

    plan, model: what was compiled. ranks: ascending. few: the program with its first few micro-batches alone. rounds: the
    whole program, in compact form if it reaches a steady state, in which a group of micro-batches repeats (see
    `execution.steady_state`). ahead: whether it gathers parameters one unit (sub-layer) ahead.
    """

    plan: Plan
    model: Model
    ranks: tuple[int, ...]
    few: Program
    rounds: Rounds
    ahead: bool = False

    @property
    def program(self) -> Program:
        """The whole program of the class's first rank, with all of its micro-batches; built when it is first needed."""
        return self.rounds.whole

    @property
    def walked(self) -> Program:
        """A program with the same peak memory as the whole program of the class's first rank, for memory analysis: of fewer
        micro-batches if the program reaches a steady state."""
        return self.rounds.few


def assure_compiled(plan: Plan, instructions: int, most: int = MOST_INSTRUCTIONS) -> None:
    """Raises InputError if a rank's program that reaches no steady state (so that it cannot be stored in compact form) would
    have more than `most` instructions. instructions: number of instructions per micro-batch."""
    if plan.batch.micro_batches * instructions > most:
        problem = f"is {plan.batch.micro_batches}, each with instructions of its own"
        fix = f"give at most {most // instructions}, or equal stages under 1f1b"
        raise InputError("plan", "batch.micro_batches", problem, fix)


def replica_samples(plan: Plan) -> int:
    """Number of samples per micro-batch: of the whole micro-batch or, if the data-parallel replicas have unequal shares of the
    batch, of one replica. Under context parallelism pieces of samples are counted."""
    return plan.batch.global_samples * plan.pieces // sum(plan.batch.shares or [plan.batch.micro_batches])


def compile_classes(plan: Plan, model: Model | None = None, ahead: bool = False) -> list[RankClass]:
    """Compile one program per class of a plan's ranks; ranks of a class run the same program up to samples and groups. model:
    the model to run instead of the plan's own, None for the plan's. ahead: gather parameters one unit (sub-layer) ahead, and
    post receives one pass ahead. A program is one rank's instructions for a training step."""
    model = model or plan.planned_model()
    classes, samples = by_kind(planned_ranks(plan, model)), replica_samples(plan)
    programs = compile_plan(plan, model, [members[0].rank for members in classes], few_micro_batches(plan), ahead)
    rank_classes = []
    for members, few in zip(classes, programs, strict=True):
        ranks, micro_batches = tuple(member.rank for member in members), members[0].micro_batches
        if micro_batches == few.micro_batches:
            rounds = Rounds(few)
        else:
            found = in_rounds(few, micro_batches, samples, micro_batches_of_round(plan))
            if found is None:
                assure_compiled(plan, len(few.instructions) // few.micro_batches)
            rounds = found or Rounds(compile_plan(plan, model, ranks[:1], ahead=ahead)[0])
        rank_classes.append(RankClass(plan, model, ranks, few, rounds, ahead))
    return rank_classes
