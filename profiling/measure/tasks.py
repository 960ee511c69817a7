"""The body of a measuring process: it runs the tasks of a job in order and reports each result as soon as it has it.

All processes work on the same task at the same time, since they also share the machine in training.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from trainplan.profiling.base.processes import Reporter
from trainplan.profiling.measure.allocations import PeakMemory
from trainplan.profiling.measure.outliers import doubtful, seconds
from trainplan.profiling.measure.timing import Clock, OutOfMemory, Timed, attempted, repeat, slowest, timed
from trainplan.profiling.models import torch_units
from trainplan.profiling.models.dropout import Draw
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.sublayers import Attention, FeedForward, LanguageHead, Sublayer, TokenEmbedding

OPTIMIZER_PARAMETERS = 8_000_000
OVERLAP_SIDE = 512
OVERLAP_BYTES = 2**22

Task = dict[str, Any]
T = TypeVar("T")


def measure_rank(rank: int, world: int, job: dict[str, Any], report: Reporter) -> None:
    """Run the measuring tasks of a job in one of several processes that measure together; report an event when a task starts,
    and one with its result.

    rank, world: this process's number, and the number of processes. job: a dict with the model, device, memory, seed, budget
    in seconds, spread and the (number, task) pairs. report: sends events to the process that started this one. The result of
    a task that did not fit in memory is {"out_of_memory": True}. Tasks whose results contradict others are measured again,
    and the shorter time is kept.
    """
    device = torch.device("cuda", rank) if job["device"] == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.set_per_process_memory_fraction(min(1.0, job["memory_bytes"] / torch.cuda.mem_get_info()[1]))
    measuring = _Measuring(rank, world, job["model"], device, job["seed"], job["spread"])
    measuring.warm_up()
    used_bytes = _data_bytes() if device.type == "cpu" else None
    started = time.perf_counter()
    results = dict[int, Any]()

    def measured(number: int, task: Task, waiting: int) -> Any:
        """The result of one task. number: its index. waiting: the number of tasks that share the rest of the budget."""
        report.position.set(0, 1, number + 1)
        report({"started": number, "of": job["of"], "shape": task["title"]})
        # The rest of the budget is shared evenly among the tasks to come, by the same number on all processes.
        remaining = job["budget"] - slowest(world, [time.perf_counter() - started])[0]
        measuring.seconds = max(0.0, remaining) / waiting
        limit = None if used_bytes is None or task["kind"] != "sublayer" else used_bytes + job["memory_bytes"]
        try:
            with _limited(limit):
                return getattr(measuring, task["kind"])(task)
        except OutOfMemory:
            return {"out_of_memory": True}

    for index, (number, task) in enumerate(job["tasks"]):
        results[number] = measured(number, task, len(job["tasks"]) - index)
        report({"finished": number, "result": results[number]})
    tasks = dict(job["tasks"])
    for number in doubtful(tasks, results):
        second = measured(number, tasks[number], 1)
        if seconds(second) < seconds(results[number]):
            report({"finished": number, "result": second})


def _data_bytes() -> int | None:
    """Bytes of data that this process has mapped, after its allocator has returned freed blocks to the system; None if the
    system does not report the number.
    """
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError), open("/proc/self/status", encoding="ascii") as stream:
        return next((int(line.split()[1]) * 1024 for line in stream if line.startswith("VmData:")), None)
    return None


@contextmanager
def _limited(data_bytes: int | None) -> Iterator[None]:
    """Context manager in which allocations fail once this process has mapped more than `data_bytes` bytes of data; None sets
    no limit. With it, a process on a CPU has no more memory than the device that it represents.
    """
    if data_bytes is None:
        yield
        return
    _data_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


class _Measuring:
    """Measures tasks in one of several processes; the kind of a task is the name of the method that measures it.

    model: the model whose sub-layers are measured. spread: the relative spread to reach (half the width of the middle half of
    the repeats, over their median). seconds: time budget of the next task. groups: process groups of torch.distributed by
    number of ranks; None if this process is in no group of that size.
    """

    def __init__(self, rank: int, world: int, model: Model, device: torch.device, seed: int, spread: float) -> None:
        """Prepare a process. rank, world: its number among the processes, and theirs. device: to measure on. seed: of
        parameters and inputs. spread: the relative spread to reach."""
        self.rank, self.world, self.model, self.device = rank, world, model, device
        self.seed, self.spread, self.seconds = seed, spread, 0.0
        self.groups: dict[int, Any] = {}

    def warm_up(self) -> None:
        """Run a tiny sub-layer once through everything that a measuring task does, since torch loads libraries and allocates
        memory at first use.
        """
        part = FeedForward(tokens=8, hidden=8, inner=8)
        trial = SublayerTrial(part, 1, torch_units.Shard(), self.device, self.seed)
        trial.forward_and_backward()
        trial.without_graph()
        trial.memory()

    def repeat(self, parts: int, run: Any) -> list[Timed]:
        """Call `run` repeatedly within half of the task's time budget, until the spread of each part is small enough.

        run: returns the seconds of its parts (such as forward and backward pass); parts: the number of these. Returns the
        median and the spread of each part; in every repeat the slowest process counts. Raises OutOfMemory on all processes if
        one of them has too little memory.
        """
        return repeat(self.world, self.spread, self.seconds / 2, parts, run)

    def _together(self, make: Callable[[], T]) -> T:
        """Call `make` on this process and return its result. Raises OutOfMemory on all processes if any of them has too little
        memory, so that none waits for another.
        """
        result, failed = attempted(make)
        if slowest(self.world, [failed])[0]:
            raise OutOfMemory
        assert result is not None
        return result

    def sublayer(self, task: Task) -> dict[str, Any]:
        """Measure one sub-layer. Returns a dict of [value, relative spread] by field of a profile's costs: times in ns, such
        as "forward_ns", and memory in bytes, such as "kept_bytes".

        task: has the sub-layer's name, the tensor-parallel degree (tp) and the number of samples (rows).
        """
        part = self.model.sublayers[task["sublayer"]]
        shard = torch_units.Shard(part.degree(task["tp"]), 0)
        trial = self._together(lambda: SublayerTrial(part, task["rows"], shard, self.device, self.seed))
        times = [*self.repeat(2, trial.forward_and_backward), *self.repeat(1, trial.without_graph)]
        peaks = self._together(trial.memory)
        names = ("forward_ns", "backward_ns", "forward_without_graph_ns")
        return {
            **{name: [time.seconds * 1e9, time.spread] for name, time in zip(names, times, strict=True)},
            **{name: [value, 0.0] for name, value in peaks.items()},
        }

    def collective(self, task: Task) -> dict[str, Any]:
        """Measure a collective or a point-to-point message; all groups of consecutive ranks of the given size communicate at
        the same time.

        task: has the operation, the number of devices of a group, and the message's bytes. Returns a dict: `seconds`,
        `spread` (relative) and `message_bytes`, the bytes that were really sent.
        """
        size, message, operation = task["devices"], task["message_bytes"], task["operation"]
        if size not in self.groups:
            starts = range(0, self.world - size + 1, size)
            groups = [dist.new_group(list(range(start, start + size))) for start in starts]  # on all ranks, alike
            self.groups[size] = groups[self.rank // size] if self.rank // size < len(groups) else None
        group = self.groups[size]
        count = max(1, message // 4 // size)
        whole, piece = torch.zeros(count * size, device=self.device), torch.zeros(count, device=self.device)
        index = self.rank % size

        def communicate() -> None:
            """Take part in the collective of this rank's group, if it is in one."""
            if group is not None:
                _communicate(operation, whole, piece, group, index, self.rank)

        (communicating,) = self.repeat(1, lambda: timed(self.device, communicate))
        return {**communicating._asdict(), "message_bytes": count * size * 4}

    def copies(self, task: Task) -> dict[str, Any]:
        """Measure copies between host and device. Returns a dict: `to_device` and `to_host`, the seconds of a copy in each
        direction, and `spread`, the larger of their relative spreads.

        task: has the message's bytes.
        """
        pinned = self.device.type == "cuda"
        count = task["message_bytes"] // 4
        host, device = torch.zeros(count, pin_memory=pinned), torch.zeros(count, device=self.device)

        def there() -> None:
            """Copy from host to device."""
            device.copy_(host, non_blocking=pinned)

        def back() -> None:
            """Copy from device to host."""
            host.copy_(device, non_blocking=pinned)

        to_device, to_host = self.repeat(2, lambda: timed(self.device, there, back))
        spread = max(to_device.spread, to_host.spread)
        return {"to_device": to_device.seconds, "to_host": to_host.seconds, "spread": spread}

    def optimizer(self, task: Task) -> dict[str, Any]:
        """Measure an AdamW step. Returns a dict: `ns_per_parameter`, and `spread`, its relative spread.

        task: has where to run the step: "device" or "host".
        """
        device = self.device if task["where"] == "device" else torch.device("cpu")
        dtype = torch_units.DTYPES[self.model.dtype]
        half = dtype.itemsize < 4  # then the optimizer works on fp32 copies: the gradient is cast in, the parameter out
        value = torch.zeros(OPTIMIZER_PARAMETERS, device=device, dtype=torch.float32 if half else dtype, requires_grad=True)
        value.grad = torch.ones_like(value)
        used = torch.ones(OPTIMIZER_PARAMETERS, device=device, dtype=dtype) if half else None
        adam = torch.optim.AdamW([value], fused=True)

        def step() -> None:
            """One step of the optimizer, with the casts that half precision needs."""
            if used is not None:
                value.grad.copy_(used)
            adam.step()
            if used is not None:
                used.copy_(value.detach())

        (stepping,) = self.repeat(1, lambda: timed(device, step))
        return {"ns_per_parameter": stepping.seconds / OPTIMIZER_PARAMETERS * 1e9, "spread": stepping.spread}

    def overlap(self, task: Task) -> dict[str, Any]:
        """Measure the factors, at least 1, by which matrix multiplications and all-reduces slow each other down when they run
        at the same time. Returns a dict: the factors `compute` and `communication`, and `spread`, the larger of their relative
        spreads.

        task: unused; part of the signature that all kinds of tasks share.
        """
        a = torch.randn(OVERLAP_SIDE, OVERLAP_SIDE, device=self.device)
        message = torch.zeros(OVERLAP_BYTES // 4, device=self.device)

        def seconds(products: int, reduces: int) -> tuple[float, float]:
            """Seconds until all products, and until all all-reduces are done, if both start together."""
            self._wait()
            started = time.perf_counter()
            works = [dist.all_reduce(message, async_op=True) for _ in range(reduces)]
            communicated = 0.0
            for _ in range(products):
                torch.mm(a, a)
                if works and not communicated and works[-1].is_completed():
                    communicated = time.perf_counter() - started
            if self.device.type == "cuda":
                torch.cuda.current_stream().synchronize()
            computed = time.perf_counter() - started
            for work in works:
                work.wait()
            self._wait()
            return computed, communicated or time.perf_counter() - started

        reduces = 4
        product = self.repeat(1, lambda: [seconds(8, 0)[0] / 8])[0].seconds
        reduce = self.repeat(1, lambda: [seconds(0, reduces)[1] / reduces])[0].seconds
        products = max(8, round(4 * reduce / product))
        around = round(3 * products * product / reduce) + 1, round(3 * reduces * reduce / product) + 1
        (computing,) = self.repeat(1, lambda: [seconds(products, around[0])[0] / products])
        (communicating,) = self.repeat(1, lambda: [seconds(around[1], reduces)[1] / reduces])
        return {
            "compute": max(1.0, computing.seconds / product),
            "communication": max(1.0, communicating.seconds / reduce),
            "spread": max(computing.spread, communicating.spread),
        }

    def _wait(self) -> None:
        """Wait until the device has finished all work that was given to it; returns at once on a CPU."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def _communicate(operation: str, whole: Tensor, piece: Tensor, group: Any, index: int, rank: int) -> None:
    """Take part in one collective of a process group, or in a message from the group's first rank to its last rank ("p2p").

    whole: the full buffer, and piece: one rank's part of it; which of the two is read and which is written depends on the
    operation. index: this rank's index in the group. rank: its number among all processes.
    """
    if operation == "all-reduce":
        dist.all_reduce(whole, group=group)
    elif operation == "all-gather":
        dist.all_gather_into_tensor(whole, piece, group=group)
    elif operation == "reduce-scatter":
        dist.reduce_scatter_tensor(piece, whole, group=group)
    elif operation == "all-to-all":
        dist.all_to_all_single(torch.empty_like(whole), whole, group=group)
    elif index == 0:  # p2p: the first to the last of its group
        dist.send(whole, dst=rank + dist.get_world_size(group) - 1, group=group)
    elif index == dist.get_world_size(group) - 1:
        dist.recv(whole, src=rank - index, group=group)


class SublayerTrial:
    """A sub-layer on a device, with parameters (the part of one tensor-parallel rank) and a random input, ready to be run and
    measured.

    draw: random numbers for the dropout masks, None without dropout. x: the input. memory_states: hidden states that a
    cross-attention reads, None for other sub-layers. targets: token ids for the loss of a language head, None for other
    sub-layers. gradient: a random gradient of the output.
    """

    def __init__(self, part: Sublayer, rows: int, shard: torch_units.Shard, device: torch.device, seed: int) -> None:
        """Create parameters, input and gradient. part: the sub-layer. rows: samples. shard: the tensor-parallel rank. seed:
        of all of them."""
        self.part, self.shard, self.device = part, shard, device
        self.draw = Draw(seed, 0, 0, tuple(range(rows))) if part.draws else None
        whole = torch_units.whole_parameters(part, seed)
        self.parameters = {
            p.name: torch_units.sharded(p, whole[p.name], shard).to(device).clone().requires_grad_() for p in part.parameters()
        }
        del whole
        for value in self.parameters.values():
            value.grad = torch.zeros_like(value)
        generator = torch.Generator().manual_seed(seed)
        self.x = input_of(part, rows, generator).to(device)
        self.memory_states: Tensor | None = None
        if isinstance(part, Attention) and part.memory_tokens:
            shape = (rows, part.memory_tokens, part.hidden)
            self.memory_states = torch.randn(shape, generator=generator).to(device, torch_units.DTYPES[part.dtype])
        self.targets: Tensor | None = None
        if isinstance(part, LanguageHead):
            self.targets = torch.randint(part.vocabulary, (rows, part.tokens), generator=generator).to(device)
        with torch.no_grad():
            self.gradient = torch.randn_like(self._forward(*self._inputs()))

    def _inputs(self) -> tuple[Tensor, Tensor | None]:
        """Copies of the input, and of the hidden states that a cross-attention reads (None for other sub-layers), as new leaf
        tensors that autograd computes gradients for.
        """
        indices = isinstance(self.part, TokenEmbedding)
        leaf = self.x if indices else self.x.detach().requires_grad_(self.part.kind != "embedding")
        memory = self.memory_states
        return leaf, None if memory is None else memory.detach().requires_grad_()

    def _forward(self, x: Tensor, memory: Tensor | None) -> Tensor:
        """Compute the sub-layer's output for an input x. memory: the hidden states that a cross-attention reads, None for
        other sub-layers.
        """
        return torch_units.forward(self.part, self.parameters, x, self.shard, memory, self.draw)

    def forward_and_backward(self) -> list[float]:
        """Run the sub-layer once and return the seconds of its forward pass and of its backward pass, in this order.

        A language head's times include the loss, whose gradient overwrites the logits.
        """
        clock, inputs = Clock(self.device), self._inputs()
        clock.mark()
        y = self._forward(*inputs)
        if self.targets is None:
            clock.mark()
            y.backward(self.gradient)
        else:
            assert isinstance(self.part, LanguageHead)
            edge, logits = torch.autograd.graph.get_gradient_edge(y), y.detach()
            del y
            statistics = torch_units.loss_statistics(logits, self.targets, self.part.vocabulary, self.shard)
            clock.mark()
            everyone = statistics.unsqueeze(0).expand(self.shard.tp, *statistics.shape)
            torch_units.loss_gradient(logits, self.targets, everyone, self.part.vocabulary, self.shard, 1e-6)
            torch.autograd.backward([edge], [logits])
        clock.mark()
        return clock.parts()

    def without_graph(self) -> list[float]:
        """Run the forward pass without keeping anything for a backward pass, and return its seconds as a list with one number.
        A language head's time includes the loss.
        """
        clock = Clock(self.device)
        with torch.no_grad():
            x, memory = self._inputs()
            clock.mark()
            y = self._forward(x, memory)
            if self.targets is not None:
                assert isinstance(self.part, LanguageHead)
                torch_units.loss_statistics(y, self.targets, self.part.vocabulary, self.shard)
            clock.mark()
        return clock.parts()

    def memory(self) -> dict[str, int]:
        """Measure the sub-layer's memory in bytes: kept_bytes, forward_workspace_bytes and backward_workspace_bytes, as a dict
        with these keys.

        kept_bytes is the memory that autograd's graph keeps for the backward pass in addition to the input; the workspaces
        are the peaks of temporary memory in the two passes.
        """
        kept, output = self._kept()
        forward, backward = self._peaks()
        return {
            "kept_bytes": kept,
            "forward_workspace_bytes": max(0, forward - kept - output),
            "backward_workspace_bytes": max(0, backward - kept - self.incoming_bytes),
        }

    @property
    def incoming_bytes(self) -> int:
        """Bytes of the gradients that the backward pass computes for the inputs."""
        return sum(t.nbytes for t in self._inputs() if t is not None and t.requires_grad)

    def _kept(self) -> tuple[int, int]:
        """Returns the bytes that autograd's graph keeps for the backward pass in addition to parameters and inputs, and the
        bytes of the output.
        """
        inputs = self._inputs()
        saved: dict[int, int] = {}
        outside = {t.untyped_storage().data_ptr() for t in (*self.parameters.values(), *inputs) if t is not None}

        def keep(tensor: Tensor) -> Tensor:
            """Count the storage of a tensor that autograd saves, unless it is a parameter's or an input's; returns the
            tensor."""
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in outside:
                saved[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            y = self._forward(*inputs)
        return sum(saved.values()), y.nbytes

    def _peaks(self) -> tuple[int, int]:
        """Returns the peak bytes allocated in the forward pass, and the peak bytes allocated in the backward pass together
        with everything that the forward pass has kept in memory.
        """
        inputs = self._inputs()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            y = self._forward(*inputs)
            forward = torch.cuda.max_memory_allocated() - before
            edge = torch.autograd.graph.get_gradient_edge(y)
            del y
            torch.cuda.reset_peak_memory_stats()
            torch.autograd.backward([edge], [self.gradient])
            return forward, torch.cuda.max_memory_allocated() - before
        with PeakMemory() as memory:
            with memory.phase("forward"):
                y = self._forward(*inputs)
            edge = torch.autograd.graph.get_gradient_edge(y)
            del y
            with memory.phase("backward"):
                torch.autograd.backward([edge], [self.gradient])
        return memory.phase_peak_bytes.get("forward", 0), memory.phase_peak_bytes.get("backward", 0)


def input_of(part: Sublayer, rows: int, generator: torch.Generator) -> Tensor:
    """A random input of a sub-layer with `rows` samples, on the CPU: token ids for a token embedding, else normal numbers.
    part: the sub-layer.
    """
    if isinstance(part, TokenEmbedding):
        return torch.randint(part.vocabulary, (rows, part.tokens), generator=generator)
    shape = part.input_shape(rows)
    return torch.randn(shape, generator=generator).to(torch_units.DTYPES[part.dtype])
