"""Runs a rank's program with torch.distributed, instruction by instruction, on one of several back-ends.

- serial: one thread; each instruction is done before the next begins.
- fused: compute on the calling thread, everything else of the rank as one FIFO on a second one (NCCL's order), held together
  by the program's waits alone.
- threads: a thread for each lane, and pauses at random, so that an order that the waits do not force will break in tests.
- streams: on a GPU, a CUDA stream for each lane, and events for the waits.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from trainplan.execution.analysis.memory.peak import Backend
from trainplan.execution.analysis.timing.measured_costs import Span
from trainplan.execution.instructions import Op
from trainplan.execution.program import Instruction, Program
from trainplan.execution.run.cuda_streams import CudaStreams
from trainplan.execution.run.head_sharing import HeadSharing
from trainplan.execution.run.rank_state import Groups
from trainplan.execution.run.sharding import Sharding
from trainplan.execution.run.threads import Lanes, PausingLanes, fused_lanes
from trainplan.execution.run.token_sharing import TokenSharing
from trainplan.execution.run.transport import Message
from trainplan.execution.run.unit_state import fill_storage
from trainplan.profiling.models import torch_units


def make_groups(programs: list[Program], device: torch.device) -> Groups:
    """Create and warm up the process group of every set of ranks that communicate in the programs: ranks -> group. Called on
    all ranks, which do it in the same order. A program is one rank's instructions for a training step.

    A group's first collective sets up its connections, which no step should pay for; the common order makes sure that two
    ranks cannot deadlock by setting up two groups in opposite order. device: where the warm-up tensors are.
    """
    wanted = {
        program.within(message) if message.op.spec.kind == "message" else message.group
        for program in programs
        for instruction in program.instructions
        for message in instruction.messages
        if len(message.group) > 1
    }
    groups = {ranks: dist.new_group(list(ranks)) for ranks in sorted(wanted)}
    for ranks, group in groups.items():
        if dist.get_rank() in ranks:
            dist.all_reduce(torch.zeros(1, device=device), group=group)
    return groups


def _nobody(index: int) -> None:
    """The report of progress of an executor that nobody watches: ignores that instruction number `index` begins."""


@dataclass
class Executor(Sharding, HeadSharing, TokenSharing):
    """Runs a rank's program with torch.distributed, step after step. Each operation has a method of its own name, which takes
    its instruction, reads the tensors in `values` by the names of buffers, and stores in `values` the tensors of the buffers
    that it writes. A unit is a sub-layer of the model; rows are samples; a rank's partial output is its summand of a
    tensor-parallel sum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.begins: Callable[[int], None] = _nobody  # called with the index of each instruction that begins
        self.indices = {id(instruction): index for index, instruction in enumerate(self.program.instructions)}
        self.streams: CudaStreams | None = None
        self.lanes: dict[Backend, Lanes] = {}
        messages = [message for instruction in self.program.instructions for message in instruction.messages]
        self.receives = {message.writes[0]: message for message in messages if message.op is Op.RECEIVE}
        self.posted: dict[str, list[Any]] = {}  # torch's handles of receives that have begun, by buffer

    def step(self, backend: Backend = "serial", spans: list[Span] | None = None) -> float:
        """Run one training step; returns the loss of the whole batch. backend: how the program's lanes run: one instruction
        after the other (`serial`), on threads (`fused`, `threads`) or on CUDA streams (`streams`). spans: a list to which, on
        `serial`, (begin, end) in ns of each instruction is appended; None to leave times unrecorded."""
        self.loss.zero_()
        if backend == "serial":
            for instruction in self.program.instructions:
                if instruction.by_processor and self.device.type == "cuda":
                    torch.cuda.synchronize()  # copies to the host that it reads are issued, not done
                started = time.perf_counter_ns()
                self.run(instruction)
                if spans is not None:
                    spans.append((started, time.perf_counter_ns()))
        elif backend == "streams":
            self.streams = self.streams or CudaStreams(self.program, self.device)
            self.streams.step(self.execute, self.free)
        else:
            if backend not in self.lanes:
                self.lanes[backend] = self._make_lanes(backend)
            self.lanes[backend].step(lambda index: self.run(self.program.instructions[index]))
        assert not self.values, f"left over: {sorted(self.values)}"
        self.steps += 1
        return float(self.loss)

    def _make_lanes(self, backend: Backend) -> Lanes:
        """The threads that run the program's lanes (queues of instructions) on a back-end. backend: `fused` (two lanes) or
        `threads` (all lanes, with random pauses)."""
        if backend == "fused":
            return fused_lanes(self.program.instructions)
        return PausingLanes(self.program.instructions, random.Random(self.seed * 1009 + self.rank))

    def run(self, instruction: Instruction) -> None:
        """Run an instruction, and release the buffers that it frees."""
        self.execute(instruction)
        for name in instruction.frees:
            self.free(name)

    def execute(self, instruction: Instruction) -> None:
        """Run an instruction without releasing the buffers that it frees, which is left to the caller. The progress that is
        reported on an error is that of the failed instruction."""
        index = self.indices[id(instruction)]
        self.begins(index)
        try:
            _METHODS[instruction.op](self, instruction)
        except BaseException:
            begins, self.begins = self.begins, _nobody  # other lanes may still begin something: report the one that failed
            begins(index)
            raise

    def _point_to_point(self, instruction: Instruction) -> None:
        """Run a send, a receive, or several of both: begin all at once, then wait for all, so that two ranks cannot deadlock
        on each other's messages."""
        messages, works = list[Message](), list[Any]()
        for message in instruction.messages:
            name = (*message.writes, *message.reads)[0]
            if message.op is Op.SEND:
                sent = self.values[name]
                messages.append(self._message(message, self.rows.of(message, sent) if message.args else sent))
            elif name in self.posted:
                works += self.posted.pop(name)
            else:
                if not message.reads:
                    self.values[name] = self._arriving(message)
                messages.append(self._message(message, self.values[name]))
        self.finish([*(self.transport.exchange(messages) if messages else ()), *works])

    def _post_receive(self, instruction: Instruction) -> None:
        """Begin to receive a message ahead of its receive instruction, if the transport can; allocates the buffer."""
        (name,) = instruction.writes
        message = self.receives[name]
        self.values[name] = self._arriving(message)
        if (works := self.transport.post(self._message(message, self.values[name]))) is not None:
            self.posted[name] = works

    def _message(self, message: Instruction, tensor: Tensor) -> Message:
        """A send or receive as the transport takes it: with the other rank, the process group, and the tensor that travels."""
        (peer,) = set(message.group) - {self.rank}
        return Message(message.op is Op.SEND, tensor, peer, self.groups[self.program.within(message)])

    def _arriving(self, message: Instruction) -> Tensor:
        """Uninitialised memory for the hidden states that a receive gets: (rows, tokens, hidden)."""
        rows, tokens, hidden = self.sublayer(message).input_shape(len(message.args["rows"]))
        first, end = message.args.get("tokens", (0, tokens))
        return torch.empty((rows, end - first, hidden), dtype=torch_units.DTYPES[self.model.dtype], device=self.device)

    _send = _receive = _send_receive = _point_to_point

    def _input(self, instruction: Instruction) -> None:
        """Store the ids of the rank's input tokens, (rows, tokens), for the samples that the instruction names."""
        self.values[instruction.writes[0]] = self.rows.of(instruction, self.by_piece(self.tokens[:, :-1]))

    def _targets(self, instruction: Instruction) -> None:
        """Store the ids of the tokens to predict, (rows, tokens), for the samples that the instruction names."""
        self.values[instruction.writes[0]] = self.rows.of(instruction, self.by_piece(self.tokens[:, 1:]))

    def _compute(self, instruction: Instruction) -> tuple[Tensor, Tensor, Tensor | None]:
        """Compute a unit's partial output. Returns (output, input, keys): the input, and the keys and values under context
        parallelism (else None), are leaves of the autograd graph, so that the backward pass ends there."""
        assert instruction.unit is not None
        unit = self.units[instruction.unit]
        x = self.values[instruction.reads[0]]
        if instruction.unit > 0:
            x = x.detach().requires_grad_()
        part, keys = self.sublayer(instruction), self.whole_keys(instruction)
        options: dict[str, Any] = {"draw": self.draw(instruction), "modules": self.program.selective(instruction.unit).modules}
        if self.program.shares_tokens(instruction.unit):
            y = torch_units.matrices(part, unit.views, x, unit.shard, keys=keys, **options)
            return y.view(*x.shape[:2], -1), x, keys
        return torch_units.forward(part, unit.views, x, unit.shard, keys=keys, **options), x, keys

    def _forward(self, instruction: Instruction) -> None:
        """Compute a unit's partial output, and keep its autograd graph."""
        y, *leaves = self._compute(instruction)
        result, graph = instruction.writes
        self.values[graph] = (get_gradient_edge(y), *leaves)
        self.values[result] = y.detach()

    def _forward_without_graph(self, instruction: Instruction) -> None:
        """Compute a unit's partial output without keeping an autograd graph, for units that are recomputed."""
        with torch.no_grad():
            self.values[instruction.writes[0]] = self._compute(instruction)[0]

    def _recompute(self, instruction: Instruction) -> None:
        """Compute a unit's forward pass again, for its autograd graph alone."""
        y, *leaves = self._compute(instruction)
        self.values[instruction.writes[0]] = (get_gradient_edge(y), *leaves)

    def _backward(self, instruction: Instruction) -> None:
        """Compute the gradients of a unit's input and parameters, from the autograd graph of its forward pass and the gradient
        of its output. The parameters' gradients are added to those of earlier micro-batches, if the instruction reads them."""
        graph, _, incoming = instruction.reads[:3]
        edge: GradientEdge
        edge, x, keys = self.values.pop(graph)
        of_leaves = ("input-gradient", "entry-gradient", "keys-gradient", "results-gradient")
        of_parameters = [name for name in instruction.writes if not name.startswith(of_leaves)]
        units = [self.units[int(name.split(".")[1])] for name in of_parameters]
        for name, unit in zip(of_parameters, units, strict=True):
            if name not in instruction.reads:
                if name not in self.program.persistent:
                    self.values[name] = torch.empty_like(unit.whole, dtype=unit.summed.dtype)
                unit.gradients.write(self._gradient_buffer(name))
        if incoming.startswith("targets"):
            gradient_of_output = self._gradient_of_logits(instruction, x)
        else:
            gradient_of_output = self._of_half(instruction, self.values[incoming])
        torch.autograd.backward([edge], [gradient_of_output])
        for unit in units:
            unit.gradients.complete()
        for name, leaf in zip(instruction.writes, (x, keys), strict=False):
            if name not in of_parameters:
                self.values[name] = _apart(leaf, gradient_of_output)

    def _gradient_of_logits(self, instruction: Instruction, x: Tensor) -> Tensor:
        """The gradient of the logits, which are recomputed from x: the head's input or, under sequence parallelism, the input
        of its matrix. The result has the shape of this rank's logits."""
        part, unit = self.sublayer(instruction), self.unit(instruction)
        function = torch_units.matrices if self.program.shares_tokens(self.program.units[-1]) else torch_units.forward
        with torch.no_grad():
            logits = function(part, unit.views, x, unit.shard)
            targets, statistics = (self.values[name] for name in instruction.reads[2:4])
            everyone, name = statistics.unsqueeze(0), instruction.reads[4]
            if name.startswith("all-statistics"):
                everyone = self.values[name]
            logits.sub_(statistics[0].unsqueeze(-1)).exp_()
            scale = 1.0 / (self.program.samples * self.model.tokens)
            torch_units.loss_gradient(logits, targets, everyone, self.model.vocabulary, unit.shard, scale)
        return logits

    def _loss_statistics(self, instruction: Instruction) -> None:
        """Compute, for each token, the loss's statistics over the rank's shard of the vocabulary: largest logit, sum of
        exponentials and, if it is in the shard, the target's logit."""
        logits, targets = (self.values[name] for name in instruction.reads)
        shard = self.unit(instruction).shard
        self.values[instruction.writes[1]] = torch_units.loss_statistics(logits, targets, self.model.vocabulary, shard)

    def _gather_statistics(self, instruction: Instruction) -> None:
        """Gather the loss's statistics of all vocabulary shards over tensor-parallel ranks."""
        part = self.values[instruction.reads[0]]
        everyone = part.new_empty((len(instruction.group), *part.shape))
        self.collective(dist.all_gather_into_tensor, instruction, everyone.view(-1), part.view(-1))
        self.values[instruction.writes[0]] = everyone

    def _loss(self, instruction: Instruction) -> None:
        """Add the loss of the rank's samples to `loss`, and replace their logits by the logits' gradient, in place (unless the
        backward pass recomputes them)."""
        names, scale = instruction.reads, instruction.args["scale"]
        logits, targets, statistics = (self.values[name] for name in names[:3])
        everyone = self.values[names[3]] if len(names) > 4 else statistics.unsqueeze(0)
        shard = self.unit(instruction).shard
        if instruction.writes == ("loss",):  # the backward pass makes logits anew, and then their gradient
            loss = torch_units.loss_value(everyone, scale)
        else:
            loss = torch_units.loss_gradient(logits, targets, everyone, self.model.vocabulary, shard, scale)
        if shard.first:
            self.loss += loss

    def _optimizer_step(self, instruction: Instruction) -> None:
        """Run the optimizer's step on a unit's parameters, on the device or the host."""
        self.unit(instruction).step()

    _host_optimizer_step = _optimizer_step

    # Copies between device and host: on a GPU they are only issued here, and waits of the program hold back what reads them.

    def _prefetch_shard(self, instruction: Instruction) -> None:
        """Copy a unit's shard of the parameters from the host to the device; on a GPU the copy is only issued."""
        unit = self.unit(instruction)
        fill_storage(unit.flat_shard)
        unit.flat_shard.data.copy_(unit.master.detach(), non_blocking=True)  # as a gathered buffer is filled

    def _offload_hidden(self, instruction: Instruction) -> None:
        """Copy a unit's input from the device to the host memory that is set aside for it; on a GPU the copy is only issued."""
        (name,), (copy,) = instruction.reads, instruction.writes
        hidden = self.values[name]
        kept = self.host[copy].view(hidden.dtype).view(hidden.shape)
        kept.copy_(hidden, non_blocking=True)
        self.values[copy] = kept

    def _prefetch_hidden(self, instruction: Instruction) -> None:
        """Copy a unit's input from the host to new memory of the device; on a GPU the copy is only issued."""
        kept = self.values[instruction.reads[0]]
        hidden = torch.empty(kept.shape, dtype=kept.dtype, device=self.device)
        hidden.copy_(kept, non_blocking=True)
        self.values[instruction.writes[0]] = hidden

    def _offload_gradient(self, instruction: Instruction) -> None:
        """Copy a unit's gradient from the device to the host; on a GPU the copy is only issued."""
        self.unit(instruction).gradient.copy_(self.values[instruction.reads[0]], non_blocking=True)

    # Sums and changes of layout

    def _all_reduce(self, instruction: Instruction) -> None:
        """Sum partial results over tensor-parallel ranks, in place."""
        self.collective(dist.all_reduce, instruction, self.values[instruction.writes[0]])

    def _slice(self, instruction: Instruction) -> None:
        """Copy the samples that the rank has in another unit's layout out of a buffer of its own."""
        self.values[instruction.writes[0]] = self.rows.of(instruction, self.values[instruction.reads[0]])

    def _gather_slice(self, instruction: Instruction) -> None:
        """Gather the samples of all ranks of the group, and keep those that the rank has in another unit's layout."""
        block = self.values[instruction.reads[0]].contiguous()
        everyone = block.new_empty((len(instruction.group) * block.shape[0], *block.shape[1:]))
        self.collective(dist.all_gather_into_tensor, instruction, everyone, block)
        self.values[instruction.writes[0]] = self.rows.of(instruction, everyone)

    def _join(self, instruction: Instruction) -> None:
        """Concatenate several buffers of samples, and bring the samples into the order that the instruction states."""
        joined = torch.cat([self.values[name] for name in instruction.reads])
        self.values[instruction.writes[0]] = self.rows.of(instruction, joined) if "rows" in instruction.args else joined

    def _reduce_loss(self, instruction: Instruction) -> None:
        """All-reduce the step's loss over all ranks, in place."""
        if len(instruction.group) > 1:
            self.collective(dist.all_reduce, instruction, self.loss)

    def _nothing(self, instruction: Instruction) -> None:
        """Do nothing: for instructions that only fix an order or only free buffers."""

    _reshard = _drop_hidden = _synchronise = _mark = _nothing


def _apart(leaf: Tensor, other: Tensor) -> Tensor:
    """The gradient of a leaf tensor, in memory of its own; zeros if it has none. other: the output's gradient, whose memory
    torch shares with the leaf's gradient if the leaf is merely added to the output; it is copied then."""
    if leaf.grad is None:
        return torch.zeros_like(leaf)
    shared = leaf.grad.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    return leaf.grad.clone() if shared else leaf.grad


_METHODS = {op: getattr(Executor, f"_{op.name.lower()}") for op in Op}
