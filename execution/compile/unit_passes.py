"""Instructions that one rank issues for a unit: its passes on a micro-batch or a half of it, the loss, the reductions.

Two rules hold throughout. Sum, never average: the loss is divided by the tokens of the whole step once, and every gradient is a
sum over ranks, each of which may have had another number of micro-batches. A unit's output is a sum of partial outputs, so
tensor parallelism is one all-reduce forward and one backward.

A micro-batch whose forward pass ran in halves has two graphs, and each has a backward pass of its own, one half right after the
other. Parameters are gathered, and gradients reduced, once for both.

Parameters are gathered when the unit's input is available, or one unit ahead: in parallel with the computation of the unit
before it in the pass, when that one's input is available. Two units are then whole at a time.

The first micro-batch of a step overwrites the gradients of the step before; all others add to them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trainplan.execution.compile import context_parallel_keys, sequence_parallel
from trainplan.execution.compile.relayout import UnitBoundaries
from trainplan.execution.compile.unit_states import UnitStates
from trainplan.execution.instructions import Op
from trainplan.execution.program import MicroBatchPart
from trainplan.profiling.base.dtypes import STATISTIC_BYTES


@dataclass
class UnitPasses(UnitStates, UnitBoundaries):
    """Issues (appends to the rank's program) the forward and backward passes of a rank's units. A unit is a sub-layer of the
    model, known by its index; a part is a micro-batch or half of one; buffers are known by name. Subclasses override the hooks
    `begin_forward`, `end_forward`, `offloads` and `bring_input` to keep inputs on the host.

    ahead: whether parameters are gathered one unit ahead.
    """

    ahead: bool = field(default=False, kw_only=True)
    _ready: tuple[int, tuple[str, ...]] | None = None  # a unit, and the parameters that have been gathered for it ahead

    def forward(self, unit: int, part: MicroBatchPart) -> None:
        """Issue the forward pass of a unit on a part: change of layout of its input, all-gather of parameters, computation,
        and the sum over tensor-parallel ranks, as far as needed."""
        layer, tp = self.model.units[unit].sublayer, self.strategies[unit].degree("tp")
        if unit == 0:
            source = self.input(part)
        else:
            source = self.relaid(f"hidden.{unit}.{part}", f"input.{unit}.{part}", unit - 1, unit, part)
        weights = self._weights(unit, part, after=source)
        self._gather_ahead(unit, unit + 1, part, after=source)
        self.begin_forward(unit, part, source)
        if self.strategies[unit].sequence_parallel:
            sequence_parallel.forward(self, unit, part, source, weights, self._freed_after_use(unit, part))
            self.end_forward(unit, part, source)
            return
        keys = context_parallel_keys.forward(self, unit, part, source, weights)
        freed = (*self._freed_after_use(unit, part), *context_parallel_keys.done_with(self, unit, keys))
        result = self.compute_forward(unit, part, source, (*weights, *keys), freed)
        self.end_forward(unit, part, source)
        if tp > 1 and layer.kind != "head":
            self.reduce(Op.ALL_REDUCE, unit, part, result, self.peers(unit, "tp"))

    def compute_forward(
        self, unit: int, part: MicroBatchPart, source: str, weights: tuple[str, ...], freed: tuple[str, ...] = ()
    ) -> str:
        """Issue the forward computation of a unit, with autograd's graph or, if the unit is recomputed, without; returns the
        buffer of its output. source: the buffer of its input. weights: buffers of parameters, and of keys and values. freed:
        buffers to free after it."""
        layer, strategy = self.model.units[unit].sublayer, self.strategies[unit]
        tp, rows = strategy.degree("tp"), len(self.rows(unit, part))
        result = self.buffer(f"hidden.{unit + 1}.{part}", layer.output_bytes(rows, tp))
        selective = self.selective(unit)
        kept, workspace = selective.kept_bytes(rows, tp), selective.forward_workspace_bytes(rows, tp)
        graph = self.buffer(f"graph.{unit}.{part}", kept)
        op = Op.FORWARD
        writes: tuple[str, ...] = (result, graph)
        if strategy.ckpt:
            op, writes, workspace = Op.FORWARD_WITHOUT_GRAPH, (result,), workspace + kept
        self.issue(op, unit, part, reads=(source, *weights), writes=writes, frees=freed, workspace_bytes=workspace)
        return result

    def input(self, part: MicroBatchPart) -> str:
        """Issue the copy of a part's token ids into the first unit's input; returns its buffer."""
        rows = self.rows(0, part)
        source = self.buffer(f"hidden.0.{part}", self.model.units[0].sublayer.input_bytes(len(rows)))
        self.issue(Op.INPUT, 0, part, writes=(source,))
        return source

    def loss(self, part: MicroBatchPart) -> None:
        """Issue the loss of a part and the gradient of its logits; each tensor-parallel rank computes them for its shard of
        the vocabulary."""
        model, strategy, unit = self.model, self.strategies[self.last], self.last
        tp, rows = strategy.degree("tp"), self.rows(unit, part)
        tokens = len(rows) * model.tokens
        logits = f"hidden.{unit + 1}.{part}"
        targets = self.buffer(f"targets.{part}", tokens * 8)
        statistics = self.buffer(f"statistics.{part}", 3 * tokens * STATISTIC_BYTES[model.dtype])
        self.issue(Op.TARGETS, unit, part, writes=(targets,))
        self.issue(Op.LOSS_STATISTICS, unit, part, reads=(logits, targets), writes=(logits, statistics))
        reads: tuple[str, ...] = (logits, targets, statistics)
        if tp > 1:
            everyone = self.buffer(f"all-statistics.{part}", 3 * tp * tokens * STATISTIC_BYTES[model.dtype])
            size, group = self.buffers[everyone], self.peers(unit, "tp")
            self.issue(
                Op.GATHER_STATISTICS,
                unit,
                part,
                reads=(statistics,),
                writes=(everyone,),
                group=group,
                message_bytes=size,
            )
            reads = (*reads, everyone)
        scale = 1.0 / (self.batch.global_samples * model.tokens)
        recomputes_logits = self.selective(unit).has("loss")  # the backward pass then needs the rest
        self.issue(
            Op.LOSS,
            unit,
            part,
            reads=(*reads, "loss"),
            writes=("loss",) if recomputes_logits else (logits, "loss"),
            frees=reads[:1] if recomputes_logits else reads[1:],
            args={"scale": scale},
        )

    def backward(self, unit: int, micro_batch: int) -> None:
        """Issue the backward pass of a unit on a micro-batch (in halves if its forward pass ran in halves), and those
        reductions of its gradients that come in every micro-batch."""
        whole, parts = MicroBatchPart(micro_batch), self.parts(micro_batch)
        apart = unit == self.last or unit + 1 in self.units  # else the output's gradient came in one message
        arrived = [self._arrived(unit, part) for part in (parts if apart else (whole,))]
        weights = self._weights(unit, whole, after=arrived[0][-1])
        self.bring_input(unit, micro_batch, after=arrived[0][-1])
        self._gather_ahead(unit, unit - 1, whole, after=arrived[0][-1])
        scatters, sources = self.strategies[unit].shares_gradients, (0, unit) if self.uses_table(unit) else (unit,)
        gradients = tuple(self.gradient_buffer(source_unit) for source_unit in sources)
        shares_tokens, on_all_tokens = self.strategies[unit].sequence_parallel, tuple[str, ...]()
        first = micro_batch == 0 and (unit > 0 or not self.shares_table)  # else it already holds the head's part
        for index, part in enumerate(parts):
            final = index == len(parts) - 1
            incoming = arrived[index if apart else 0]
            used_up = apart or final  # no later part reads what arrived
            adds = gradients if index or not (first or scatters) else ()  # to a gradient of earlier parts
            freed = self._freed_after_use(unit, whole, backward=True) if final else ()
            if shares_tokens:
                if apart or index == 0:
                    on_all_tokens = sequence_parallel.incoming(self, unit, part if apart else whole, incoming)
                done = dict.fromkeys((*incoming, *on_all_tokens)) if used_up else {}
                freed = (*(name for name in done if self.token_share(unit).adds_residual or name in on_all_tokens), *freed)
                sequence_parallel.backward(self, unit, part, incoming[0], on_all_tokens, weights, adds, gradients, freed)
            else:
                self._backward_part(unit, part, incoming, weights, adds, gradients, (*(incoming if used_up else ()), *freed))
        if scatters:
            self._reduce_replicated(unit, whole, gradients[-1])
            for source_unit in sources:
                self.scatter_gradient(source_unit, whole, adds=not first)

    def _backward_part(
        self,
        unit: int,
        part: MicroBatchPart,
        incoming: tuple[str, ...],
        weights: tuple[str, ...],
        adds: tuple[str, ...],
        gradients: tuple[str, ...],
        freed: tuple[str, ...],
    ) -> None:
        """Issue the backward pass of a unit without sequence parallelism on a part: recomputation, computation, and the sum of
        the input's gradient over tensor-parallel ranks. incoming: buffers of the output's gradient. weights: buffers of the
        parameters. adds: gradients of parameters that are read because this pass adds to them. gradients: buffers of the
        gradients of parameters that it writes. freed: buffers to free after their last use here."""
        source, into = self.input_of(unit, part), f"input-gradient.{unit}.{part}"
        keys = context_parallel_keys.before_backward(self, unit, part, source, weights)
        self.recompute(unit, part, (*weights, *keys))
        of_keys = context_parallel_keys.gradient_of(self, unit, part, keys)
        later = (source, *weights) if keys else ()
        reads = (*incoming, *weights, *keys, *adds)
        self.compute_backward(unit, part, reads, (*of_keys, *gradients), (*freed, *keys), later)
        if keys:
            frees = (source, *(name for name in freed if name in later))
            context_parallel_keys.after_backward(self, unit, part, source, into, weights, gradients[-1], frees)
        if unit > 0 and self.strategies[unit].degree("tp") > 1:
            self.reduce(Op.ALL_REDUCE, unit, part, into, self.peers(unit, "tp"))

    def parts(self, micro_batch: int) -> tuple[MicroBatchPart, ...]:
        """The parts in which this rank's stage ran the forward pass of a micro-batch: both halves, or the whole micro-batch."""
        whole = MicroBatchPart(micro_batch)
        return whole.halves if self.runs_in_halves(self.stage, micro_batch) else (whole,)

    def recompute(self, unit: int, part: MicroBatchPart, weights: tuple[str, ...]) -> None:
        """Issue the recomputation of a unit's graph from its kept input on a part; nothing unless the unit is recomputed as a
        whole. weights: buffers of parameters, and of keys and values."""
        layer, strategy = self.model.units[unit].sublayer, self.strategies[unit]
        if strategy.ckpt:
            tp, rows = strategy.degree("tp"), len(self.rows(unit, part))
            output = layer.output_bytes(rows, tp) + layer.forward_workspace_bytes(rows, tp)
            reads, graph = (self.input_of(unit, part), *weights), f"graph.{unit}.{part}"
            self.issue(Op.RECOMPUTE, unit, part, reads=reads, writes=(graph,), workspace_bytes=output)

    def compute_backward(
        self,
        unit: int,
        part: MicroBatchPart,
        reads: tuple[str, ...],
        gradients: tuple[str, ...],
        freed: tuple[str, ...],
        later: tuple[str, ...] = (),
    ) -> None:
        """Issue the backward computation of a unit on a part. reads, freed: buffers to read and to free in addition to the
        part's graph and input. gradients: buffers of the gradients that it writes: of the unit's parameters, preceded by that
        of keys and values (context parallelism) or of the embedding whose table a head uses. later: buffers that are not freed
        here, since a later instruction needs them."""
        layer, tp = self.model.units[unit].sublayer, self.strategies[unit].degree("tp")
        rows, kept = len(self.rows(unit, part)), self.backward_reads(unit, part)
        writes: tuple[str, ...] = ()
        if unit > 0:
            writes = (self.buffer(f"input-gradient.{unit}.{part}", layer.input_bytes(rows)),)
        self.issue(
            Op.BACKWARD,
            unit,
            part,
            reads=(*kept, *reads),
            writes=(*writes, *gradients),
            frees=tuple(name for name in (*kept, *freed) if name not in later),
            workspace_bytes=self.selective(unit).backward_workspace_bytes(rows, tp),
        )

    def _weights(self, unit: int, part: MicroBatchPart, after: str) -> tuple[str, ...]:
        """The buffers of the whole parameters that a unit computes with: its own and, for a head that uses the embedding's
        table, the embedding's. Their all-gathers are issued, to begin once the buffer `after` is available, unless that was
        done ahead."""
        sources, ready = (unit, 0) if self.uses_table(unit) else (unit,), self._ready
        self._ready = None
        if ready is not None and ready[0] == unit:
            return ready[1]
        return tuple(self.gathered(source, part, after) for source in sources)

    def _gather_ahead(self, unit: int, following: int, part: MicroBatchPart, after: str) -> None:
        """Issue the all-gather of the parameters of unit `following`, which comes next in a pass, and the copy of its
        offloaded input, once the buffer `after` is available. Does nothing unless programs go ahead; parameters that the
        current unit uses, too, are left out."""
        same = self.uses_table(max(unit, following)) and 0 in (unit, following)
        if not self.ahead or following not in self.units:
            return
        gathers, brings = self.gathers(following) and not same, following < unit and self.offloads(following)
        if following < unit and (gathers or brings):
            after = self.marked(after)  # which the unit's backward pass lets go of: to read it would hold that up
        if gathers:
            self._ready = following, self._weights(following, part, after)
        if brings:
            self.bring_input(following, part.micro_batch, after)

    def begin_forward(self, unit: int, part: MicroBatchPart, source: str) -> None:
        """Hook before a unit's forward computation on a part; does nothing here. source: the buffer of its input."""

    def end_forward(self, unit: int, part: MicroBatchPart, source: str) -> None:
        """Hook after a unit's forward computation on a part; does nothing here. source: the buffer of its input."""

    def offloads(self, unit: int) -> bool:
        """Hook: whether a unit's input is on the host until its backward pass; False here."""
        return False

    def bring_input(self, unit: int, micro_batch: int, after: str) -> None:
        """Hook that issues the copy of a unit's offloaded input of a micro-batch back to the device, once the buffer `after`
        is available; does nothing here."""

    def _freed_after_use(self, unit: int, part: MicroBatchPart, backward: bool = False) -> tuple[str, ...]:
        """Buffers of parameters to free after a computation of a unit on a part, because no later one uses them. backward:
        whether it is the backward computation."""
        sources = (unit, 0) if self.uses_table(unit) else (unit,)
        last = backward and part.micro_batch == self.micro_batches - 1
        return tuple(name for source in sources for name in self.freed_parameters(source, last and source == unit))

    def _arrived(self, unit: int, part: MicroBatchPart) -> tuple[str, ...]:
        """The buffers that a unit's backward pass on a part needs from what comes after the unit: the gradient of its output;
        for a head whose logits are recomputed, the targets and statistics from which that gradient follows."""
        if unit < self.last or not self.selective(unit).has("loss"):
            return (self.output_gradient(unit, part),)
        everyone = (f"all-statistics.{part}",) if self.strategies[unit].degree("tp") > 1 else ()
        return (f"targets.{part}", f"statistics.{part}", *everyone)
