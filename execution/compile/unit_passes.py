"""What one rank issues for a unit: forward and backward pass on a micro-batch or a half of it, the loss, the reductions.

Two rules hold throughout. Sum, never average: the loss is divided by the tokens of the whole step once, and every gradient is
a sum over ranks, each of which may have had another number of micro-batches. A unit's output is a sum of partial outputs, so
tensor parallelism is one all-reduce forward and one back.

A micro-batch whose forward pass ran in halves has two graphs, and each has a backward pass of its own, one half right after
the other. Parameters are gathered, and gradients reduced, once for both.

Parameters are gathered once the unit's input is there, or one unit ahead: beside the computation of the unit before it in the
pass, once that one's input is there. Two units are then whole at a time.

The first micro-batch of a step writes its gradients, in the place of those of the step before; all others add to them.

What the ranks of a sharded-data group share of a unit's states is said by its ZeRO stage. Of all three, parameters are gathered
for every pass, and gradients scattered in every micro-batch. Where parameters are whole on every rank (stages 1 and 2), each
steps its slice of them, and gathers the others' once, behind the optimizer. Where gradients are whole, too (stage 1), they are
scattered once, after the last micro-batch: the rank's slice of them then holds the sum.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from trainplan.execution.compile import sequence_passes
from trainplan.execution.compile.ranks import SAMPLED, PlannedRank
from trainplan.execution.program import MARK, Instruction, Op, Part, Program, with_waits
from trainplan.profiling.base.dtypes import STATISTIC_BYTES

OPTIMIZER_MOMENTS = 2


def needing(name: str, after: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """What an instruction reads that needs a buffer, and begins once what is in `after` is there, buffers and marks."""
    marks = tuple(each for each in after if each.startswith(MARK))
    return {"reads": (name, *(each for each in after if each not in marks)), "after": marks}


@dataclass
class UnitPasses(PlannedRank):
    """The buffers and instructions of a rank, as they are issued. ahead: whether parameters are gathered one unit ahead."""

    buffers: dict[str, int] = field(default_factory=dict)
    persistent: set[str] = field(default_factory=set)
    issued: list[Instruction] = field(default_factory=list)
    ahead: bool = field(default=False, kw_only=True)
    _ready: tuple[int, tuple[str, ...]] | None = None  # a unit, and the parameters that have been gathered for it ahead

    @classmethod
    def at(cls, rank: PlannedRank, **fields: Any) -> Self:
        """The compiler of a rank. fields: those of the compiler alone."""
        placed = (rank.model, rank.strategies, rank.stages, rank.groups, rank.batch, rank.rank, rank.sliced)
        fields |= {"most_micro_batches": rank.most_micro_batches, "planned": rank.planned, "precision": rank.precision}
        return cls(*placed, **fields)

    def program(self) -> Program:
        """Issue all that the rank does in one step."""
        raise NotImplementedError

    def issue(self, op: Op, unit: int | None = None, part: Part | None = None, **fields: Any) -> None:
        """The next instruction."""
        self.issued.append(self.instruction(op, unit, part, **fields))

    def instruction(self, op: Op, unit: int | None = None, part: Part | None = None, **fields: Any) -> Instruction:
        """An instruction with the samples that it speaks of, unless its arguments tell them."""
        micro_batch, half = part or (None, None)
        made = Instruction(op, unit, micro_batch, half, **fields)
        if op in SAMPLED and not made.args:
            made.args.update(self.samples_of(made))
        return made

    def buffer(self, name: str, size: int, persistent: bool = False) -> str:
        """Declare a buffer of so many bytes, and give its name back. persistent: it lives from step to step."""
        self.buffers[name] = size
        if persistent:
            self.persistent.add(name)
        return name

    def finished(self) -> Program:
        """What has been issued, as the rank's program."""
        return Program(
            self.rank,
            self.world,
            self.stages,
            self.groups,
            self.place,
            self.units,
            self.model,
            self.strategies,
            self.batch.global_samples,
            self.micro_batches,
            self.buffers,
            frozenset(self.persistent),
            with_waits(self.issued),
            self.precision,
        )

    def place_states(self, unit: int, on: str = "") -> None:
        """Declare a unit's parameters, gradients, moments and master copy, or the rank's shards of them, which live from step
        to step. on: "host-" for those that lie there."""
        strategy, element, shard = self.strategies[unit], self.model.element_bytes, self.shard_elements(unit)
        whole, stepped = shard * strategy.degree("sdp"), self.precision.stepped_bytes(element)
        sizes = {
            "parameter": (shard if strategy.shares_parameters else whole) * element,
            "gradient": (shard if strategy.shares_gradients else whole) * self.gradient_bytes,
            "moments": OPTIMIZER_MOMENTS * shard * stepped,
        }
        if self.precision.master is not None:
            sizes["master"] = shard * stepped
        for name, size in sizes.items():
            self.buffer(f"{on}{name}.{unit}", size, persistent=True)
        self.buffer("loss", 8, persistent=True)

    def reduce(
        self, op: Op, unit: int | None, part: Part | None, name: str, group: tuple[int, ...], size: int | None = None
    ) -> None:
        """The sum of a buffer over a group in its place, or what else a collective makes of it there. size: bytes that take
        part, where that is not all of it."""
        size = self.buffers[name] if size is None else size
        self.issue(op, unit, part, reads=(name,), writes=(name,), group=group, message_bytes=size)

    def forward(self, unit: int, part: Part) -> None:
        """The forward pass of a unit on a part: input in the unit's layout, whole parameters, computation, sum over tp."""
        layer, tp = self.model.units[unit].sublayer, self.strategies[unit].degree("tp")
        if unit == 0:
            source = self.input(part)
        else:
            source = self._relaid(f"hidden.{unit}.{part}", f"input.{unit}.{part}", unit - 1, unit, part)
        weights = self._weights(unit, part, after=source)
        self._gather_ahead(unit, unit + 1, part, after=source)
        self.begin_forward(unit, part, source)
        if self.strategies[unit].sequence_parallel:
            sequence_passes.forward(self, unit, part, source, weights, self._freed_after_use(unit, part))
            self.end_forward(unit, part, source)
            return
        result = self.compute_forward(unit, part, source, weights, self._freed_after_use(unit, part))
        self.end_forward(unit, part, source)
        if tp > 1 and layer.kind != "head":
            self.reduce(Op.ALL_REDUCE, unit, part, result, self.peers(unit, "tp"))

    def compute_forward(self, unit: int, part: Part, source: str, weights: tuple[str, ...], freed: tuple[str, ...] = ()) -> str:
        """The computation, with graph or without; the buffer of its output."""
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

    def input(self, part: Part) -> str:
        """The buffer of the first unit's input."""
        rows = self.rows(0, part)
        source = self.buffer(f"hidden.0.{part}", self.model.units[0].sublayer.input_bytes(len(rows)))
        self.issue(Op.INPUT, 0, part, writes=(source,))
        return source

    def loss(self, part: Part) -> None:
        """The loss of a part and the gradient of its logits, each rank from its shard of the vocabulary."""
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
        again = self.selective(unit).has("loss")  # then the backward pass makes the logits anew, and keeps what else it needs
        self.issue(
            Op.LOSS,
            unit,
            part,
            reads=(*reads, "loss"),
            writes=("loss",) if again else (logits, "loss"),
            frees=reads[:1] if again else reads[1:],
            args={"scale": scale},
        )

    def backward(self, unit: int, micro_batch: int) -> None:
        """The backward pass of a unit on a micro-batch, in halves where its forward pass ran in halves, and its reductions."""
        whole, parts = Part(micro_batch), self.parts(micro_batch)
        apart = unit == self.last or unit + 1 in self.units  # else the output's gradient has come in one message
        arrived = [self._arrived(unit, part) for part in (parts if apart else (whole,))]
        weights = self._weights(unit, whole, after=arrived[0][-1])
        self.bring_input(unit, micro_batch, after=arrived[0][-1])
        self._gather_ahead(unit, unit - 1, whole, after=arrived[0][-1])
        scatters, sources = self.strategies[unit].shares_gradients, (0, unit) if self.uses_table(unit) else (unit,)
        gradients = tuple(self._gradient(each) for each in sources)
        shared, spread = self.strategies[unit].sequence_parallel, tuple[str, ...]()
        first = micro_batch == 0 and (unit > 0 or not self.table_once)  # else the head's part of it is there already
        for place, part in enumerate(parts):
            final = place == len(parts) - 1
            incoming = arrived[place if apart else 0]
            adds = gradients if place or not (first or scatters) else ()  # to a gradient that is there already
            freed = self._freed_after_use(unit, whole, backward=True) if final else ()
            if shared:
                if apart or place == 0:
                    spread = sequence_passes.incoming(self, unit, part if apart else whole, incoming)
                done = dict.fromkeys((*incoming, *spread)) if apart or final else {}
                freed = (*(name for name in done if self.token_share(unit).adds_residual or name in spread), *freed)
                sequence_passes.backward(self, unit, part, incoming[0], spread, weights, adds, gradients, freed)
                continue
            freed = (*(incoming if apart or final else ()), *freed)
            self.recompute(unit, part, weights)
            self.compute_backward(unit, part, (*incoming, *weights, *adds), gradients, freed)
            if unit > 0 and self.strategies[unit].degree("tp") > 1:
                self.reduce(Op.ALL_REDUCE, unit, part, f"input-gradient.{unit}.{part}", self.peers(unit, "tp"))
        if scatters:
            self._reduce_replicated(unit, whole, gradients[-1])
            for each in sources:
                self.scatter_gradient(each, whole, adds=not first)

    def parts(self, micro_batch: int) -> tuple[Part, ...]:
        """Those in which this stage ran the forward pass of a micro-batch: both halves, or all of it."""
        whole = Part(micro_batch)
        return whole.halves if self.runs_in_halves(self.stage, micro_batch) else (whole,)

    def recompute(self, unit: int, part: Part, weights: tuple[str, ...]) -> None:
        """The graph again, from the kept input, where the unit's strategy says so."""
        layer, strategy = self.model.units[unit].sublayer, self.strategies[unit]
        if strategy.ckpt:
            tp, rows = strategy.degree("tp"), len(self.rows(unit, part))
            output = layer.output_bytes(rows, tp) + layer.forward_workspace_bytes(rows, tp)
            reads, graph = (self.input_of(unit, part), *weights), f"graph.{unit}.{part}"
            self.issue(Op.RECOMPUTE, unit, part, reads=reads, writes=(graph,), workspace_bytes=output)

    def backward_reads(self, unit: int, part: Part) -> tuple[str, str]:
        """Graph and input: what a part's backward pass reads, and is the last to need."""
        return f"graph.{unit}.{part}", self.input_of(unit, part)

    def compute_backward(
        self, unit: int, part: Part, reads: tuple[str, ...], gradients: tuple[str, ...], freed: tuple[str, ...]
    ) -> None:
        """A part's backward pass, once its graph is there. reads, freed: besides graph and input. gradients: of the unit's
        parameters; before it that of the embedding, whose table a head uses."""
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
            frees=(*kept, *freed),
            workspace_bytes=self.selective(unit).backward_workspace_bytes(rows, tp),
        )

    def _weights(self, unit: int, part: Part, after: str) -> tuple[str, ...]:
        """The buffers of the parameters that a unit computes with: its own, and the embedding's where a head uses its table."""
        sources, ready = (unit, 0) if self.uses_table(unit) else (unit,), self._ready
        self._ready = None
        if ready is not None and ready[0] == unit:
            return ready[1]
        return tuple(self.gathered(each, part, after) for each in sources)

    def _gather_ahead(self, unit: int, following: int, part: Part, after: str) -> None:
        """Gather what the unit that comes next in a pass computes with. (Not where that is of the unit at hand, too.)"""
        same = self.uses_table(max(unit, following)) and 0 in (unit, following)
        if not self.ahead or following not in self.units:
            return
        gathers, brings = self.gathers(following) and not same, following < unit and self.offloads(following)
        if following < unit and (gathers or brings):
            after = self._marked(after)  # which the unit's backward pass lets go of: to read it would hold that up
        if gathers:
            self._ready = following, self._weights(following, part, after)
        if brings:
            self.bring_input(following, part.micro_batch, after)

    def _marked(self, name: str) -> str:
        """A mark that is set once a buffer is written, by the latest instruction that does so."""
        mark = f"{MARK}{name}"
        place = next(place for place in reversed(range(len(self.issued))) if name in self.issued[place].writes)
        if mark not in self.issued[place].marks:
            self.issued[place] = self.issued[place].changed(marks=(*self.issued[place].marks, mark))
        return mark

    def _gradient(self, unit: int) -> str:
        """The buffer to which a backward pass leaves a unit's gradient: whole for a while, where a rank keeps a shard of it."""
        strategy = self.strategies[unit]
        if not strategy.shares_gradients:
            return f"gradient.{unit}"
        return self.buffer(f"whole-gradient.{unit}", self.gradient_shard_bytes(unit) * strategy.degree("sdp"))

    def gathers(self, unit: int) -> bool:
        """Whether a unit's parameters are not whole before a pass."""
        return self.strategies[unit].shares_parameters

    def gathered(self, unit: int, part: Part, after: str) -> str:
        """The buffer of a unit's whole parameters; gathered first where they are sharded, once `after` is there."""
        return self.gather_parameters(unit, part, after=(after,)) if self.gathers(unit) else f"parameter.{unit}"

    def begin_forward(self, unit: int, part: Part, source: str) -> None:
        """What goes before a unit's forward computation. source: the buffer of its input."""

    def end_forward(self, unit: int, part: Part, source: str) -> None:
        """What goes right behind a unit's forward computation."""

    def offloads(self, unit: int) -> bool:
        """Whether a unit's input is on the host until its backward pass."""
        return False

    def bring_input(self, unit: int, micro_batch: int, after: str) -> None:
        """Have the unit's input there for a backward pass, once `after` is there."""

    def gather_parameters(self, unit: int, part: Part, after: tuple[str, ...] = (), freed: tuple[str, ...] = ()) -> str:
        """Gather a unit's sharded parameters, once what is in `after` is there, buffers and marks; the buffer of the whole."""
        shard, group = f"parameter.{unit}", self.peers(unit, "sdp")
        size = self.buffers[shard] * len(group)
        name = self.buffer(f"gathered.{unit}", size)
        fields: dict[str, Any] = {**needing(shard, after), "writes": (name,), "frees": freed}
        self.issue(Op.GATHER_PARAMETERS, unit, part, **fields, group=group, message_bytes=size)
        return name

    def scatter_gradient(self, unit: int, part: Part, adds: bool) -> None:
        """The sum of a unit's gradients, whole for a while, each rank's shard to that rank. adds: to what its shard holds
        already."""
        whole, shard, group = f"whole-gradient.{unit}", f"gradient.{unit}", self.peers(unit, "sdp")
        size = self.buffers[whole]
        self.issue(
            Op.REDUCE_SCATTER_GRADIENTS,
            unit,
            part,
            reads=(whole, shard) if adds else (whole,),
            writes=(shard,),
            frees=(whole,),
            group=group,
            message_bytes=size,
            workspace_bytes=size // len(group) if adds else 0,
        )

    def _freed_after_use(self, unit: int, part: Part, backward: bool = False) -> tuple[str, ...]:
        """What goes once a unit has computed: the parameters that it was the last to use."""
        sources = (unit, 0) if self.uses_table(unit) else (unit,)
        last = backward and part.micro_batch == self.micro_batches - 1
        return tuple(name for each in sources for name in self.freed_parameters(each, last and each == unit))

    def freed_parameters(self, unit: int, last: bool) -> tuple[str, ...]:
        """What goes of a unit's parameters once they have been used. last: for the last time in the step."""
        return (f"gathered.{unit}",) if self.strategies[unit].shares_parameters else ()

    def _relaid(self, name: str, result: str, before: int, after: int, part: Part) -> str:
        """The buffer with a boundary's rows and tokens under the layout of unit `after`, re-laid from that of `before` if need
        be: all tokens are gathered, rows moved, and the rank's tokens sliced, whatever of this is to be done."""
        a, b = self.strategies[before], self.strategies[after]
        unlike = a.group != b.group  # then messages bring each rank all tokens of its own rows
        moves, shared, sharing = not unlike and a.layout != b.layout, None if unlike else a.token_digit, b.token_digit
        if not moves and shared == sharing:
            return name
        kind, _, place = name.partition(".")
        if shared is not None:
            whole = f"{kind}-whole.{place}" if moves or sharing is not None else result
            name = self.gather_tokens(after, part, name, whole, before, (name,))
        if moves:
            name = self._moved_rows(name, f"{kind}-laid.{place}" if sharing is not None else result, before, after, part)
        if sharing is not None:
            size = self.laid_bytes(min(before, after), after, len(self.rows(after, part)))
            self.issue(Op.SLICE_TOKENS, after, part, reads=(name,), writes=(self.buffer(result, size),), frees=(name,))
        return result

    def _moved_rows(self, name: str, result: str, before: int, after: int, part: Part) -> str:
        """The buffer with a boundary's rows under the layout of unit `after`, each with all tokens."""
        places = self.gathered_places(before, after)
        local, boundary = len(places) == 1, min(before, after)
        self.buffer(result, self.boundary_bytes(boundary, len(self.rows(after, part))))
        gathered = self.boundary_bytes(boundary, len(self.rows(before, part)) * len(places))
        self.issue(
            Op.SLICE if local else Op.GATHER_SLICE,
            after,
            part,
            reads=(name,),
            writes=(result,),
            frees=(name,),
            group=() if local else self.ranks(places),
            message_bytes=0 if local else gathered,
            workspace_bytes=0 if local else gathered,
        )
        return result

    def gather_tokens(self, unit: int, part: Part, name: str, result: str, before: int, frees: tuple[str, ...]) -> str:
        """All tokens of a buffer that lies split along them under the layout of unit `before`."""
        group = self.ranks(self.strategies[before].peers(self.place, "tp"))
        size = self.buffers[name] * len(group)
        fields: dict[str, Any] = {"reads": (name,), "writes": (self.buffer(result, size),), "frees": frees, "group": group}
        # What comes in order of ranks is put in order of samples.
        self.issue(Op.GATHER_TOKENS, unit, part, **fields, message_bytes=size, workspace_bytes=size)
        return result

    def scatter_tokens(self, unit: int, part: Part, name: str, result: str) -> str:
        """The rank's tokens of the sum of partial results of all tokens, which go."""
        group, size = self.peers(unit, "tp"), self.buffers[name]
        writes = (self.buffer(result, size // len(group)),)
        fields: dict[str, Any] = {"reads": (name,), "writes": writes, "frees": (name,), "group": group}
        self.issue(Op.REDUCE_SCATTER_TOKENS, unit, part, **fields, message_bytes=size, workspace_bytes=size)
        return result

    def input_of(self, unit: int, part: Part) -> str:
        """The buffer of a unit's input."""
        relaid = f"input.{unit}.{part}"
        return relaid if relaid in self.buffers else f"hidden.{unit}.{part}"

    def output_gradient(self, unit: int, part: Part) -> str:
        """The gradient of a unit's output: the logits', or the next one's input gradient, under this unit's layout."""
        if unit == self.last:
            return f"hidden.{unit + 1}.{part}"
        name = f"input-gradient.{unit + 1}.{part}"
        return self._relaid(name, f"output-gradient.{unit}.{part}", unit + 1, unit, part)

    def _arrived(self, unit: int, part: Part) -> tuple[str, ...]:
        """What a backward pass needs of what comes behind the unit: the gradient of its output; of a head whose logits are made
        anew, what makes it of them."""
        if unit < self.last or not self.selective(unit).has("loss"):
            return (self.output_gradient(unit, part),)
        everyone = (f"all-statistics.{part}",) if self.strategies[unit].degree("tp") > 1 else ()
        return (f"targets.{part}", f"statistics.{part}", *everyone)

    def reduce_gradients(self, unit: int) -> None:
        """What is reduced once a step, after the last micro-batch: replicated parts, whole gradients whose shards the optimizer
        works on, and the sum over data-parallel ranks."""
        strategy, gradient, last = self.strategies[unit], f"gradient.{unit}", Part(self.micro_batches - 1)
        if not strategy.shares_gradients:
            self._reduce_replicated(unit, last, gradient)
            if strategy.gathers_updates:
                self.reduce(Op.REDUCE_SCATTER_GRADIENTS, unit, last, gradient, self.peers(unit, "sdp"))
        if strategy.degree("dp") > 1:
            self.reduce(Op.ALL_REDUCE_GRADIENTS, unit, None, gradient, self.peers(unit, "dp"), self.gradient_shard_bytes(unit))

    def step(self, unit: int) -> None:
        """The optimizer's step on a unit's shard, and the other ranks' new parameters where each keeps the whole."""
        parameter, element = f"parameter.{unit}", self.model.element_bytes
        master = (f"master.{unit}",) if self.precision.master is not None else ()
        self.issue(
            Op.OPTIMIZER_STEP,
            unit,
            reads=(f"gradient.{unit}",),
            writes=(parameter, f"moments.{unit}", *master),
            workspace_bytes=self.shard_elements(unit) * self.precision.widened_bytes(element),
        )
        if self.strategies[unit].gathers_updates:
            self.reduce(Op.GATHER_UPDATED, unit, None, parameter, self.peers(unit, "sdp"))

    def _reduce_replicated(self, unit: int, part: Part, gradient: str) -> None:
        """Gradients of parameters that all tensor-parallel ranks hold."""
        size = self.model.units[unit].sublayer.replicated_count * self.gradient_bytes
        if self.strategies[unit].degree("tp") > 1 and size:
            self.reduce(Op.REDUCE_REPLICATED, unit, part, gradient, self.peers(unit, "tp"), size)
