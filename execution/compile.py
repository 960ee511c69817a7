"""From a plan to one program per rank: pipeline stages; data, sharded-data and tensor parallelism and recomputation per unit.

Two rules hold throughout. Sum, never average: the loss is divided by the tokens of the whole step once, and every gradient is
a sum over ranks, each of which may have had another number of micro-batches. A unit's output is a sum of partial outputs, so
tensor parallelism is one all-reduce forward and one back.

Between stages a rank talks to the one of its own place in the next or previous stage. Hidden states and gradients alike travel
in the sender's layout, and the receiver re-lays them as it would those of a unit of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trainplan.execution.placement import Placement
from trainplan.execution.program import Instruction, Op, Program, grouped, with_waits
from trainplan.execution.schedules import passes
from trainplan.formulations.plan import Plan, Schedule
from trainplan.formulations.strategies import gather_ranks
from trainplan.profiling.models import Model

OPTIMIZER_MOMENTS = 2


def compile_plan(plan: Plan, model: Model | None = None, ranks: Sequence[int] | None = None) -> list[Program]:
    """The programs of all ranks, or of some. model: run this one in the plan's place, scaled down, with the same units."""
    model = model or plan.planned_model()
    stages = tuple(range(stage.first_unit, stage.last_unit + 1) for stage in plan.stages)
    return [
        _Compiler(model, tuple(plan.strategies()), stages, plan.batch, rank, plan.schedule).program()
        for rank in (range(plan.world) if ranks is None else ranks)
    ]


@dataclass
class _Compiler(Placement):
    schedule: Schedule
    buffers: dict[str, int] = field(default_factory=dict)
    persistent: set[str] = field(default_factory=set)
    issued: list[Instruction] = field(default_factory=list)

    def program(self) -> Program:
        for unit in self.units:
            self._place_states(unit)
        for unit in self.units:
            self._issue(Op.ZERO_GRADIENTS, unit, writes=(f"gradient.{unit}",))
        for kind, micro_batch in passes(self.stage, len(self.stages), self.micro_batches, self.schedule):
            if kind == "forward":
                self._forward_pass(micro_batch)
            else:
                self._backward_pass(micro_batch)
        if self.model.tied and self.stage in (0, len(self.stages) - 1):
            self._reduce_tied()
        for unit in self.units:
            self._issue(
                Op.OPTIMIZER_STEP,
                unit,
                reads=(f"gradient.{unit}",),
                writes=(f"parameter.{unit}", f"moments.{unit}"),
            )
        everyone = tuple(range(self.world))
        self._issue(Op.REDUCE_LOSS, reads=("loss",), writes=("loss",), group=everyone, message_bytes=8)
        return Program(
            self.rank,
            self.world,
            self.place,
            self.units,
            self.model,
            self.strategies,
            self.batch.global_samples,
            self.micro_batches,
            self.buffers,
            frozenset(self.persistent),
            with_waits(self.issued),
        )

    def _forward_pass(self, micro_batch: int) -> None:
        first, after = self.units.start, self.units.stop
        if first > 0:
            self._receive(f"hidden.{first}.{micro_batch}", first, micro_batch, laid_as=first - 1, neighbour=-1)
        for unit in self.units:
            self._forward(unit, micro_batch)
        if after > self.last:
            self._loss(micro_batch)
        else:
            self._send(f"hidden.{after}.{micro_batch}", after, micro_batch, neighbour=1)

    def _backward_pass(self, micro_batch: int) -> None:
        first, after = self.units.start, self.units.stop
        if after <= self.last:
            self._receive(f"input-gradient.{after}.{micro_batch}", after, micro_batch, laid_as=after, neighbour=1)
        for unit in reversed(self.units):
            self._backward(unit, micro_batch)
        if first > 0:
            self._send(f"input-gradient.{first}.{micro_batch}", first, micro_batch, neighbour=-1)

    def _send(self, name: str, unit: int, micro_batch: int, neighbour: int) -> None:
        size = self.buffers[name]
        self._issue(Op.SEND, unit, micro_batch, reads=(name,), frees=(name,), group=self.lane(neighbour), message_bytes=size)

    def _receive(self, name: str, unit: int, micro_batch: int, laid_as: int, neighbour: int) -> None:
        rows = self.rows(laid_as, micro_batch)
        size, lane = self.boundary_bytes(unit - 1, len(rows)), self.lane(neighbour)
        self._buffer(name, size)
        self._issue(Op.RECEIVE, unit, micro_batch, writes=(name,), group=lane, args={"rows": rows}, message_bytes=size)
        if [(i.op, i.group) for i in self.issued[-2:]] == [(Op.SEND, lane), (Op.RECEIVE, lane)]:
            self.issued[-2:] = [grouped(*self.issued[-2:])]

    def _reduce_tied(self) -> None:
        own = tuple(f"gradient.{unit}" for unit in (0, self.last) if unit in self.units)
        size, last = self.model.tied_elements * self.model.element_bytes, self.world - self.size
        group = tuple(sorted({*range(self.size), *range(last, self.world)}))
        self._issue(Op.REDUCE_TIED, reads=own, writes=own, group=group, message_bytes=size, workspace_bytes=size)

    def _place_states(self, unit: int) -> None:
        size = self.shard_elements(unit) * self.model.element_bytes
        for name, copies in (("parameter", 1), ("gradient", 1), ("moments", OPTIMIZER_MOMENTS)):
            self._buffer(f"{name}.{unit}", copies * size, persistent=True)
        self._buffer("loss", 8, persistent=True)

    def _buffer(self, name: str, size: int, persistent: bool = False) -> str:
        self.buffers[name] = size
        if persistent:
            self.persistent.add(name)
        return name

    def _issue(self, op: Op, unit: int | None = None, micro_batch: int | None = None, **fields: Any) -> None:
        self.issued.append(Instruction(op, unit, micro_batch, **fields))

    def _forward(self, unit: int, micro_batch: int) -> None:
        part, strategy = self.model.units[unit].sublayer, self.strategies[unit]
        tp = strategy.degree("tp")
        rows = self.rows(unit, micro_batch)
        source = f"hidden.{unit}.{micro_batch}"
        if unit == 0:
            self._buffer(source, part.input_bytes(len(rows)))
            self._issue(Op.INPUT, unit, micro_batch, writes=(source,), args={"rows": rows})
        else:
            source = self._relaid(source, f"input.{unit}.{micro_batch}", unit - 1, unit, micro_batch)
        weights = self._gathered(unit, micro_batch, after=source)
        result = self._buffer(f"hidden.{unit + 1}.{micro_batch}", part.output_bytes(len(rows), tp))
        graph = f"graph.{unit}.{micro_batch}"
        kept = part.kept_bytes(len(rows), tp)
        workspace = part.forward_workspace_bytes(len(rows), tp)
        freed = self._freed_after_use(unit)
        self._buffer(graph, kept)
        if strategy.ckpt:
            reads, workspace = (source, weights), workspace + kept
            self._issue(
                Op.FORWARD_WITHOUT_GRAPH,
                unit,
                micro_batch,
                reads=reads,
                writes=(result,),
                frees=freed,
                workspace_bytes=workspace,
            )
        else:
            reads, writes = (source, weights), (result, graph)
            self._issue(Op.FORWARD, unit, micro_batch, reads=reads, writes=writes, frees=freed, workspace_bytes=workspace)
        if tp > 1 and part.kind != "head":
            self._sum_partial(unit, micro_batch, result)

    def _gathered(self, unit: int, micro_batch: int, after: str) -> str:
        """The buffer of a unit's whole parameters; gathered first where they are sharded, once `after` is there."""
        strategy = self.strategies[unit]
        if strategy.degree("sdp") == 1:
            return f"parameter.{unit}"
        size = self.shard_elements(unit) * strategy.degree("sdp") * self.model.element_bytes
        name = self._buffer(f"gathered.{unit}", size)
        self._issue(
            Op.GATHER_PARAMETERS,
            unit,
            micro_batch,
            reads=(f"parameter.{unit}", after),
            writes=(name,),
            group=self.peers(unit, "sdp"),
            message_bytes=size,
        )
        return name

    def _freed_after_use(self, unit: int) -> tuple[str, ...]:
        return (f"gathered.{unit}",) if self.strategies[unit].degree("sdp") > 1 else ()

    def _sum_partial(self, unit: int, micro_batch: int, name: str) -> None:
        group = self.peers(unit, "tp")
        size = self.buffers[name]
        self._issue(Op.ALL_REDUCE, unit, micro_batch, reads=(name,), writes=(name,), group=group, message_bytes=size)

    def _relaid(self, name: str, result: str, before: int, after: int, micro_batch: int) -> str:
        """The buffer with a boundary's rows under the layout of unit `after`, re-laid from that of `before` if need be."""
        a, b = self.strategies[before], self.strategies[after]
        if a.layout == b.layout:
            return name
        places = gather_ranks(a, b, self.place)
        held, wanted = self.rows(before, micro_batch), self.rows(after, micro_batch)
        self._buffer(result, self.boundary_bytes(min(before, after), len(wanted)))
        gathered = self.boundary_bytes(min(before, after), len(held) * len(places))
        local = len(places) == 1
        blocks = tuple(self.rows_at(place, before, micro_batch) for place in places)
        self._issue(
            Op.SLICE if local else Op.GATHER_SLICE,
            after,
            micro_batch,
            reads=(name,),
            writes=(result,),
            frees=(name,),
            group=() if local else self.ranks(places),
            args={"blocks": blocks, "rows": wanted},
            message_bytes=0 if local else gathered,
            workspace_bytes=0 if local else gathered,
        )
        return result

    def _input_of(self, unit: int, micro_batch: int) -> str:
        relaid = f"input.{unit}.{micro_batch}"
        return relaid if relaid in self.buffers else f"hidden.{unit}.{micro_batch}"

    def _loss(self, micro_batch: int) -> None:
        model, strategy, unit = self.model, self.strategies[self.last], self.last
        tp, rows = strategy.degree("tp"), self.rows(unit, micro_batch)
        tokens = len(rows) * model.tokens
        logits = f"hidden.{unit + 1}.{micro_batch}"
        targets = self._buffer(f"targets.{micro_batch}", tokens * 8)
        statistics = self._buffer(f"statistics.{micro_batch}", 3 * tokens * model.element_bytes)
        self._issue(Op.TARGETS, unit, micro_batch, writes=(targets,), args={"rows": rows})
        self._issue(Op.LOSS_STATISTICS, unit, micro_batch, reads=(logits, targets), writes=(logits, statistics))
        reads: tuple[str, ...] = (logits, targets, statistics)
        if tp > 1:
            everyone = self._buffer(f"all-statistics.{micro_batch}", 3 * tp * tokens * model.element_bytes)
            size, group = self.buffers[everyone], self.peers(unit, "tp")
            self._issue(
                Op.GATHER_STATISTICS,
                unit,
                micro_batch,
                reads=(statistics,),
                writes=(everyone,),
                group=group,
                message_bytes=size,
            )
            reads = (*reads, everyone)
        scale = 1.0 / (self.batch.global_samples * model.tokens)
        self._issue(
            Op.LOSS,
            unit,
            micro_batch,
            reads=(*reads, "loss"),
            writes=(logits, "loss"),
            frees=reads[1:],
            args={"scale": scale},
        )

    def _backward(self, unit: int, micro_batch: int) -> None:
        model, strategy = self.model, self.strategies[unit]
        part, tp, sdp = model.units[unit].sublayer, strategy.degree("tp"), strategy.degree("sdp")
        rows, source, graph = (
            self.rows(unit, micro_batch),
            self._input_of(unit, micro_batch),
            f"graph.{unit}.{micro_batch}",
        )
        incoming = f"hidden.{unit + 1}.{micro_batch}" if unit == self.last else self._output_gradient(unit, micro_batch)
        weights = self._gathered(unit, micro_batch, after=incoming)
        if strategy.ckpt:
            output = part.output_bytes(len(rows), tp) + part.forward_workspace_bytes(len(rows), tp)
            self._issue(Op.RECOMPUTE, unit, micro_batch, reads=(source, weights), writes=(graph,), workspace_bytes=output)
        writes: tuple[str, ...] = ()
        if unit > 0:
            writes = (self._buffer(f"input-gradient.{unit}.{micro_batch}", part.input_bytes(len(rows))),)
        if sdp > 1:
            size = self.shard_elements(unit) * sdp * model.element_bytes
            gradient = self._buffer(f"whole-gradient.{unit}", size)
            reads: tuple[str, ...] = (graph, source, incoming, weights)
        else:
            gradient = f"gradient.{unit}"
            reads = (graph, source, incoming, weights, gradient)
        self._issue(
            Op.BACKWARD,
            unit,
            micro_batch,
            reads=reads,
            writes=(*writes, gradient),
            frees=(graph, source, incoming, *self._freed_after_use(unit)),
            workspace_bytes=part.backward_workspace_bytes(len(rows), tp),
        )
        if unit > 0 and tp > 1:
            self._sum_partial(unit, micro_batch, writes[0])
        self._reduce_gradients(unit, micro_batch, gradient)

    def _output_gradient(self, unit: int, micro_batch: int) -> str:
        """The gradient of a unit's output: the next one's input gradient, under this unit's layout."""
        name = f"input-gradient.{unit + 1}.{micro_batch}"
        return self._relaid(name, f"output-gradient.{unit}.{micro_batch}", unit + 1, unit, micro_batch)

    def _reduce_gradients(self, unit: int, micro_batch: int, gradient: str) -> None:
        strategy, model = self.strategies[unit], self.model
        last = micro_batch == self.micro_batches - 1
        tp, sdp, dp = (strategy.degree(p) for p in ("tp", "sdp", "dp"))
        if tp > 1 and (sdp > 1 or last):
            size = model.units[unit].sublayer.replicated_count * model.element_bytes
            if size:
                group = self.peers(unit, "tp")
                self._issue(
                    Op.REDUCE_REPLICATED,
                    unit,
                    micro_batch,
                    reads=(gradient,),
                    writes=(gradient,),
                    group=group,
                    message_bytes=size,
                )
        own = f"gradient.{unit}"
        if sdp > 1:
            group, size = self.peers(unit, "sdp"), self.buffers[gradient]
            self._issue(
                Op.REDUCE_SCATTER_GRADIENTS,
                unit,
                micro_batch,
                reads=(gradient, own),
                writes=(own,),
                frees=(gradient,),
                group=group,
                message_bytes=size,
                workspace_bytes=size // sdp,
            )
        if dp > 1 and last:
            group, size = self.peers(unit, "dp"), self.buffers[own]
            self._issue(Op.ALL_REDUCE_GRADIENTS, unit, reads=(own,), writes=(own,), group=group, message_bytes=size)
