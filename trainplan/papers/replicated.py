"""Evidence: pipelines whose stages several devices share, as AutoPipe compares planners (Section IV-D).

G equal devices, M micro-batches. tests/papers/test_autopipe_tables.py holds the results against the paper's tables.

A stage on d devices gives each device a share of the rows (samples) of every micro-batch, as DAPPLE does; or, where all stages
have the same d, d pipelines run in parallel with M / d micro-batches each, as in Megatron-LM and AutoPipe. Gradients of a stage
are all-reduced after its last backward pass, in 2 (d-1)/d times the time of sending them once.

    Piper      least largest time per sample over all cuts and numbers of devices d that divide M, sum d <= min(G, M),
                   TPS = (sum (f + b) + 2 (c_in + c_out) + 4 (d-1) g / M) / d,      g: sending its gradients once
               with ceil(s / d) micro-batches in flight, s the devices of this stage and all later ones. From the last layer on:
                   V_s(i) = min over e, d of max(TPS, V_{s-d}(e));    the fewest devices that reach the least
               (the state of Tarnawski et al. without tensor parallelism, where devices and replicas are one number).
    DAPPLE     L = T_w + T_s + T_e with the pivot stage Q (see `solvers.partition.planners`; T_e has the all-reduce AR_s here),
                   T_e = max over s of AR_s + (sum_{a=s..Q} B_a where s <= Q, else -sum_{a=Q+1..s-1} B_a)
               by its search: the first j layers on m devices are planned, the rest is one stage on the other G - m; the rest is
               split in two in all ways, and for each (j, m) the plan of least L stays. One stage on all devices is a plan, too.
               (The paper prints -sum_{a=Q..s} for s >= Q; the bounds here are those of the chain of backward passes.) It knows
               no memory.
    AutoPipe   for each number of stages p that divides G, d = G / p for all, its heuristic's best partition that fits; of
               these the one of least simulated time, all-reduces included. (A depth whose least largest stage takes too
               long for M / d micro-batches is passed over.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from math import ceil

import numpy as np

from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.pipeline_partition.problem import Instance, Solution, violations
from trainplan.formulations.schedule.autopipe_recurrences import pass_ends
from trainplan.formulations.schedule.orders import most_in_flight
from trainplan.formulations.schedule.simulate import Work
from trainplan.formulations.schedule.stage_memory import Memory
from trainplan.solvers.partition.autopipe import Planner

FAR = np.int64(2**60)  # more than any time


@dataclass(frozen=True, eq=False)
class ReplicatedChain:
    """Costs of a chain of n layers (or sub-layers) on one device, from which stages that run on several devices (replicas) are
    computed.

    forward_ns, backward_ns: (n,), time in ns of a layer's forward and backward pass of one micro-batch. transfer_ns: (n-1,),
    time in ns of the message of one micro-batch from a layer to the next. gradient_ns: (n,), time in ns of sending a layer's
    gradients once. memory: bytes of the layers, with one limit for all devices; None to ignore memory.
    """

    forward_ns: Integers
    backward_ns: Integers
    transfer_ns: Integers
    gradient_ns: Integers
    memory: Memory | None = None

    @classmethod
    def of(cls, instance: Instance, gradient_ns: Integers | None = None, by_layer: bool = True) -> ReplicatedChain:
        """Build the chain from an instance of the problem pipeline-partition (cut sub-layers into pipeline stages).

        gradient_ns: time in ns of sending each sub-layer's gradients once; None for 0. by_layer: whether the chain consists
        of whole layers; otherwise of sub-layers.
        """
        gradients = np.zeros(instance.sublayers, np.int64) if gradient_ns is None else gradient_ns
        if by_layer:
            instance, starts = instance.between_layers()
            gradients = np.add.reduceat(gradients, starts)
        return cls(instance.forward_ns, instance.backward_ns, instance.transfer_ns, gradients, instance.memory)

    @property
    def layers(self) -> int:
        """The number of layers, n."""
        return len(self.forward_ns)

    @cached_property
    def before(self) -> Integers:
        """(n+1,): prefix sums: for i from 0 to n, the time in ns of the forward and backward passes of the first i layers."""
        return np.concatenate([[0], np.cumsum(self.forward_ns + self.backward_ns)])

    @cached_property
    def moves(self) -> Integers:
        """(n+1,): time in ns of the message that enters layer i, for i from 0 to n; 0 at both ends of the chain."""
        return np.concatenate([[0], self.transfer_ns, [0]])


@dataclass(frozen=True)
class Replicated:
    """A pipeline in which each stage may run on several devices (replicas).

    cuts: the index of the first layer of every stage except for the first stage. replicas: the number of devices of every
    stage.
    """

    cuts: tuple[int, ...]
    replicas: tuple[int, ...]

    def spans(self, layers: int) -> list[tuple[int, int]]:
        """The layers of every stage, as pairs (index of the first layer, index after the last layer). layers: number of layers
        of the chain.
        """
        return list(pairwise((0, *self.cuts, layers)))


@dataclass(frozen=True)
class ReplicatedRun:
    """The simulated step of a pipeline in which each stage may run on several devices.

    time_ns: time of the step, including all-reduces of gradients. work: times of one micro-batch's passes and messages, after
    they are divided among the devices of a stage. peak_bytes: peak memory of one device per stage; None for a chain without
    memory. fits: whether all peaks are within the limit.
    """

    time_ns: int
    work: Work
    peak_bytes: tuple[int, ...] | None
    fits: bool


def run(chain: ReplicatedChain, plan: Replicated, micro_batches: int, rows: int) -> ReplicatedRun:
    """Simulate one step of a pipeline in which each stage may run on several devices, under the schedule 1F1B.

    chain: costs of the layers on one device. plan: the cuts and the number of devices of each stage. micro_batches: number
    per step. rows: samples per micro-batch. If all stages have equally many devices, that number of pipelines run in parallel
    and divide the micro-batches among themselves; otherwise the devices of a stage divide the samples of every micro-batch.
    Raises ValueError if a stage then has more devices than samples.
    """
    spans, replicas = plan.spans(chain.layers), plan.replicas
    if len(set(replicas)) == 1:  # whole pipelines in parallel
        micro_batches, shares = -(-micro_batches // replicas[0]), [rows] * len(replicas)
    elif max(replicas) > rows:
        raise ValueError(f"a stage has {max(replicas)} devices for the {rows} rows of a micro-batch")
    else:
        shares = [ceil(rows / d) for d in replicas]

    def of_stage(values: Integers, x: int) -> int:
        """The sum of the values (n,) of all layers over those of stage x."""
        return int(values[slice(*spans[x])].sum())

    def shared(times: Integers) -> tuple[int, ...]:
        """Times of all stages in ns: of the rows that a device of the stage has, from times (n,) of whole micro-batches."""
        return tuple(ceil(of_stage(times, x) * share / rows) for x, share in enumerate(shares))

    moved = zip(plan.cuts, pairwise(shares), strict=True)
    moves = tuple(ceil(int(chain.transfer_ns[cut - 1]) * max(both) / rows) for cut, both in moved)
    work = Work(shared(chain.forward_ns), shared(chain.backward_ns), moves)
    backward = pass_ends(work, micro_batches).backward
    ends = (backward[x][-1] + reduced_ns(of_stage(chain.gradient_ns, x), d) for x, d in enumerate(replicas))
    peaks, fits = None, True
    if (memory := chain.memory) is not None:
        in_flight = [most_in_flight("1f1b", len(spans), micro_batches, x) for x in range(len(spans))]
        peaks = tuple(
            of_stage(memory.state_bytes, x)
            + in_flight[x] * ceil(of_stage(memory.kept_bytes, x) * share / rows)
            + ceil(int(memory.workspace_bytes[slice(*spans[x])].max()) * share / rows)
            for x, share in enumerate(shares)
        )
        fits = max(peaks) <= memory.limit_bytes[0]
    return ReplicatedRun(max(ends), work, peaks, fits)


def reduced_ns(gradient_ns: int, replicas: int) -> int:
    """Time in ns, rounded up, of a ring all-reduce of a stage's gradients among d devices (`replicas`): 2 (d-1)/d times
    `gradient_ns`, the time of sending the gradients once.
    """
    return -(-2 * (replicas - 1) * gradient_ns // replicas)


def piper_plan(chain: ReplicatedChain, devices: int, micro_batches: int) -> Replicated | None:
    """The pipeline that the planner Piper (Tarnawski et al.) chooses for a chain: over all cuts and all numbers of devices per
    stage, the one whose slowest stage takes the least time per sample; None if nothing fits.

    chain: costs of the layers. devices: number of equal devices. micro_batches: number of micro-batches per step. Times per
    sample are whole ns, rounded up.
    """
    layers, most = chain.layers, min(devices, micro_batches)
    gradients = np.concatenate([[0], np.cumsum(chain.gradient_ns)])
    degrees = [d for d in range(1, most + 1) if micro_batches % d == 0]
    least = np.full((most + 1, layers + 1), FAR)  # V_s(i)
    least[0, layers] = 0
    choice = np.zeros((most + 1, layers, 2), np.int64)  # end and devices of the stage that begins at i
    for first in reversed(range(layers)):
        passes = chain.before[first + 1 :] - chain.before[first] + 2 * (chain.moves[first] + chain.moves[first + 1 :])
        reductions = 4 * (gradients[first + 1 :] - gradients[first])
        for d in degrees:
            tps = -(-(micro_batches * passes + (d - 1) * reductions) // (micro_batches * d))
            largest = np.maximum(tps, least[: most + 1 - d, first + 1 :])
            if chain.memory is not None:
                in_flight = -(-np.arange(d, most + 1)[:, None] // d)
                largest[peaks_bytes(chain.memory, first, in_flight) > chain.memory.limit_bytes[0]] = FAR
            ends, best = first + 1 + largest.argmin(axis=1), largest.min(axis=1)
            better = np.flatnonzero(best < least[d:, first])
            least[d + better, first] = best[better]
            choice[d + better, first] = np.stack([ends[better], np.full(len(better), d)], axis=1)
    if (s := int(least[:, 0].argmin())) == 0:
        return None
    cuts, replicas, first = [], [], 0
    while first < layers:
        first, d = map(int, choice[s, first])
        s -= d
        cuts.append(first)
        replicas.append(d)
    return Replicated(tuple(cuts[:-1]), tuple(replicas))


def peaks_bytes(memory: Memory, first: int, in_flight: Integers) -> Integers:
    """Peak memory in bytes of one device, for all stages that begin at layer `first`: (s, number of layers from `first` on),
    by number of micro-batches in flight and by the stage's last layer.

    memory: bytes of the layers. in_flight: (s, 1), s numbers of micro-batches in flight.
    """
    state, kept = np.cumsum(memory.state_bytes[first:]), np.cumsum(memory.kept_bytes[first:])
    return state + in_flight * kept + np.maximum.accumulate(memory.workspace_bytes[first:])


@dataclass(frozen=True)
class LatencyPart:
    """A stage, or a message between two stages, in DAPPLE's formula of latency: times in ns of the forward and backward pass
    (or message) of one micro-batch, and of the all-reduce of the stage's gradients.
    """

    forward_ns: int
    backward_ns: int
    reduced_ns: int = 0


def latency_ns(parts: Sequence[LatencyPart], micro_batches: int) -> int:
    """The latency in ns of one step of a pipeline by the formula of the paper DAPPLE: warm-up, then the steady phase at the
    pivot (the last part with the longest path), then the remaining backward passes and all-reduces.

    parts: the stages and, between them, their messages, in order. micro_batches: number of micro-batches per step.
    """
    longest, pivot, passes = -1, 0, 0
    for index, part in enumerate(parts):
        both = part.forward_ns + part.backward_ns
        passes += both
        if passes + (micro_batches - 1) * both >= longest:
            longest, pivot = passes + (micro_batches - 1) * both, index
    steady = (micro_batches - 1) * (parts[pivot].forward_ns + parts[pivot].backward_ns)
    ends, after = [], 0
    for part in reversed(parts[: pivot + 1]):
        after += part.backward_ns
        ends.append(after + part.reduced_ns)
    after = 0
    for part in parts[pivot + 1 :]:
        ends.append(after + part.reduced_ns)
        after -= part.backward_ns
    return sum(part.forward_ns for part in parts[: pivot + 1]) + steady + max(ends)


def dapple_plan(chain: ReplicatedChain, devices: int, micro_batches: int) -> Replicated:
    """The pipeline that the planner DAPPLE chooses for a chain of layers: the one with the least latency among those that its
    search considers. It ignores memory.

    chain: costs of the layers. devices: number of equal devices. micro_batches: number of micro-batches per step.
    """
    layers = chain.layers
    sums = [np.concatenate([[0], np.cumsum(of)]).tolist() for of in (chain.forward_ns, chain.backward_ns, chain.gradient_ns)]
    moves = chain.moves.tolist()

    def stage(first: int, end: int, d: int) -> LatencyPart:
        """The layers from `first` to `end` (exclusive) as one stage on d devices."""
        forward, backward, gradient = (before[end] - before[first] for before in sums)
        return LatencyPart(-(-forward // d), -(-backward // d), reduced_ns(gradient, d))

    def parts_of(plan: Replicated) -> list[LatencyPart]:
        """The stages of a pipeline and the messages between them, in order."""
        parts: list[LatencyPart] = []
        for (first, end), d, before in zip(plan.spans(layers), plan.replicas, (0, *plan.replicas), strict=False):
            if first:
                message = -(-moves[first] // min(before, d))
                parts.append(LatencyPart(message, message))
            parts.append(stage(first, end, d))
        return parts

    whole = Replicated((), (devices,))
    best, answer = latency_ns(parts_of(whole), micro_batches), whole
    planned = {(0, 0): (best, whole)}  # by layers and devices before the last stage
    for j in range(layers - 1):
        for m in range(devices - 1):
            if (j, m) not in planned:
                continue
            plan = planned[j, m][1]
            # Try every layer to split the last stage at, and every number of devices for its first part.
            for further, d in product(range(j + 1, layers), range(1, devices - m)):
                split = Replicated((*plan.cuts, further), (*plan.replicas[:-1], d, devices - m - d))
                time = latency_ns(parts_of(split), micro_batches)
                if (further, m + d) not in planned or time < planned[further, m + d][0]:
                    planned[further, m + d] = time, split
                if time < best:
                    best, answer = time, split
    return answer


def autopipe_plan(chain: ReplicatedChain, devices: int, micro_batches: int) -> Replicated | None:
    """The pipeline that the planner AutoPipe chooses for a chain of layers, with the same number of devices for all stages;
    None if nothing fits.

    chain: costs of the layers. devices: number of equal devices. micro_batches: number of micro-batches per step.
    """
    best: tuple[int, Replicated] | None = None
    for stages in range(1, min(devices, chain.layers) + 1):
        if devices % stages:
            continue
        replicas = devices // stages
        memory, m = chain.memory, -(-micro_batches // replicas)
        if memory is not None:
            memory = memory.with_limits(np.broadcast_to(memory.limit_bytes[:1], (stages,)))
        times = (chain.forward_ns, chain.backward_ns, chain.transfer_ns)
        numbers, nothing = np.arange(chain.layers), np.zeros(chain.layers, np.int64)
        instance = Instance(*times, layers=numbers, sync_ns=nothing, stages=stages, micro_batches=m, memory=memory)
        planner = Planner(instance)
        if best is not None and m * planner.table.least[stages][chain.layers] >= best[0]:
            continue
        planner.run()
        for cuts in planner.by_time():
            if not violations(instance, Solution(cuts)):
                plan = Replicated(cuts, (replicas,) * stages)
                time = run(chain, plan, micro_batches, 1).time_ns  # pipelines in parallel share no rows
                if best is None or time < best[0]:
                    best = time, plan
                break
    return None if best is None else best[1]
