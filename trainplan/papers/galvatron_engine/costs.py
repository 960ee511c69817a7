"""The cost model `code`: time and memory of a layer, and of embedding and head, in Galvatron's published engine.

Source: Hetu-Galvatron v2.4.0, core/search_engine/cost_model.py, for 1F1B (`pipedream_flush`), 16-bit training and ring
all-reduces. A micro-batch of b samples is on g devices, tp x dp = g. The engine's units are ms, MiB and ms for each MiB.

Layer (TimeCostModel): forward = f(b / dp / tp) of the profiled line, backward = 2 forward, with CKPT 3; tensor parallelism
adds 4 all-reduces, with CKPT 6; gradient all-reduce of dp and sdp overlaps all of the backward pass, or half of it where
tp >= g // 2; sdp adds one all-gather; in a pipeline, 2 P messages spread over all layers of the model. Without gradient
synchronisation that all-reduce is left out, sdp's all-gather stays. All-reduces: bandwidth by size and by whether the ranks
are consecutive, or, with `measured_messages` (the engine's sp_space tp+sp), for tensor parallelism half the measured time.
Memory (MemoryCostModel): four times the parameters, under dp by the ratio of ZeRO-2, under sdp by that of ZeRO-3, both with
a bias of 0.003; activation by tp; what CKPT keeps is divided by tp.
Embedding and head (OtherTimeCostModel, estimate_other_memory_cost): see `ends_ns` and `ends_mib`.
Transition (DpOnModel._build_dp_and_run_multi_layer_type): one all-gather where tp or its order differ, else up to 3 ns,
which sort options that are otherwise equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from trainplan.formulations.plan.strategy import Strategy
from trainplan.papers.galvatron_engine.profile import EngineProfile, Line
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.costs import overlapped_ns
from trainplan.profiling.imports.galvatron_blocks import FIRST, LAST, OFF
from trainplan.profiling.imports.source import MIB

NS_PER_MS = 1e6
CONTEXT_MIB = 1024  # of CUDA, on every device
STATE_COPIES = 4  # memory of a layer's model states, in times of its parameters
BACKWARD = 2  # time of a backward pass, in times of the forward pass
ALL_REDUCES = 4  # tensor-parallel ones of a layer and micro-batch
MOVE_NS = 100  # 1e-7 s for each byte and ms/MiB, as in the code
BIAS = 0.003  # of the shares of states in zero2_ratio and zero3_ratio


@dataclass(frozen=True)
class EngineOptions:
    """Options of Galvatron's search engine, the paper's published code (the engine's own name in brackets).

    measured_messages: use measured message times, and also try sequence parallelism for embedding and head (sp_space tp+sp).
    zero2: whether plain data parallelism is ZeRO-2 (default_dp_type zero2) and not DDP. both_orders: also try tensor-parallel
    ranks that are not consecutive (disable_tp_consec 0). micro_batches: number of micro-batches (settle_chunk), None to try
    all. most_tp, most_stages: the largest tensor-parallel degree and number of stages (max_tp_deg, max_pp_deg).
    async_grad_reduce: gradients are reduced once per step. sequence_parallel: sequence parallelism together with tensor
    parallelism. uniform: one strategy for all layers (fine_grained_mode 0).
    """

    measured_messages: bool = False
    zero2: bool = True
    both_orders: bool = False
    micro_batches: int | None = None
    most_tp: int | None = None
    most_stages: int | None = None
    async_grad_reduce: bool = True
    sequence_parallel: bool = True
    uniform: bool = False


@dataclass(frozen=True)
class LoopPass:
    """One pass of the nested loops around the search of Galvatron's engine: one value for every setting that the loops vary.

    stages, micro_batches: number of pipeline stages, and of micro-batches per step. least_tp, most_tp: the range of
    tensor-parallel degrees that layers may have. vocabulary_tp: the tensor-parallel degree of embedding and head.
    vocabulary_sp: whether, instead, embedding and head have whole parameters and sequence parallelism. sharded: whether the
    states of embedding and head are sharded as in ZeRO-3 (embed_sdp). buffer: whether memory is reserved for the all-gathers
    of sequence parallelism.
    """

    stages: int
    micro_batches: int
    least_tp: int
    most_tp: int
    vocabulary_tp: int
    vocabulary_sp: bool
    sharded: bool
    buffer: bool = True


class EngineCosts:
    """Time and memory by the cost model of Galvatron's search engine, for one profile and one batch.

    profile: measured times and memory of a model on its hardware. batch: samples per step. options: the engine's options.
    Strategies are named as in the engine: dp (plain data parallelism), sdp (sharded data parallelism, ZeRO-3), tp (tensor
    parallelism), ckpt (activation recomputation). A pass of the engine's loops (`LoopPass`) fixes numbers of stages and
    micro-batches, and the parallelism of embedding and head.
    """

    def __init__(self, profile: EngineProfile, batch: int, options: EngineOptions) -> None:
        self.profile, self.batch, self.options = profile, batch, options
        self.hidden_bytes = profile.sequence * profile.hidden_size * profile.element_bytes
        if options.measured_messages and not profile.measured:
            raise InputError("command line", "files", "come without sp_time_*.json", "give that file as well")

    def strategies(self, stages: int) -> list[Strategy]:
        """The strategies for one layer that Galvatron's engine tries in a pipeline of `stages` stages, in the engine's order
        (its function generate_dp_tp_pp_sdp). Strategies with recomputation come after those without.
        """
        group = self.profile.devices // stages
        degrees = [tp for tp in powers(group, self.options.most_tp) if tp in self.profile.kept_mib]
        strategies = [strategy for tp in degrees for strategy in self._orders(tp, group // tp)]
        return strategies + [Strategy(s.levels, True) for s in strategies]

    def _orders(self, tp: int, dp: int) -> list[Strategy]:
        """The strategies for one layer with tensor-parallel degree `tp` and data-parallel degree `dp`: with plain and with
        sharded (ZeRO-3) data parallelism. Tensor-parallel ranks have consecutive numbers; if the option `both_orders` is set,
        strategies whose tensor-parallel ranks are not consecutive come first.
        """
        if dp == 1:
            return [Strategy((("tp", tp),) if tp > 1 else ())]
        if tp == 1:
            return [Strategy((("dp", dp),)), Strategy((("sdp", dp),))]
        apart = [Strategy((("tp", tp), (data, dp))) for data in ("dp", "sdp")]
        near = [Strategy(((data, dp), ("tp", tp))) for data in ("dp", "sdp")]
        return (apart if self.options.both_orders else []) + near

    def layer_ns(self, strategy: Strategy, stages: int, micro_batches: int) -> tuple[int, int]:
        """Time in ns of one layer's forward and backward pass together, for one micro-batch, as a pair: with gradient
        synchronisation, and without it.

        strategy: the layer's strategy. stages, micro_batches: number of pipeline stages, and of micro-batches per step.
        Raises InputError if the profile lacks a measurement.
        """
        profile, tp, dp = self.profile, strategy.degree("tp"), strategy.data_degree
        local = self.batch / micro_batches / dp
        near = consecutive(strategy)
        mixed = tp > 1 and dp > 1
        dp_coefficient = profile.all_reduce_ms_per_mib(dp, not near if mixed else True)
        forward = _at(profile.layer_ms, local / tp)
        backward = (BACKWARD + strategy.ckpt) * forward
        gradient_mib = 2 * (dp - 1) / dp * profile.parameter_mib / tp * profile.element_bytes / 4
        gradient = gradient_mib * dp_coefficient
        hidden = backward / 2 if mixed and tp >= tp * dp // 2 else backward
        rest = forward + backward - hidden + self._tensor_ms(strategy, local)
        if strategy.degree("sdp") > 1:
            rest += gradient / 2
        if stages > 1:
            if stages not in profile.p2p:
                raise InputError("p2p_bandwidth_*.json", f"pp_size_{stages}", "is missing", "measure it")
            rest += stages * 2 * local * self.hidden_bytes / MIB * profile.p2p[stages] / profile.layers
        both = overlapped_ns(hidden, gradient, profile.overlap)
        return round(NS_PER_MS * (rest + both)), round(NS_PER_MS * (rest + hidden))

    def _tensor_ms(self, strategy: Strategy, local: float) -> float:
        """Milliseconds that one layer's tensor-parallel all-reduces take for one micro-batch, forward and backward together.
        strategy: the layer's strategy. local: samples per micro-batch on one data-parallel rank.
        """
        tp, count = strategy.degree("tp"), ALL_REDUCES * (1.5 if strategy.ckpt else 1)
        if tp == 1:
            return 0.0
        if self.options.measured_messages:
            return count * self._measured_ms(tp, local * self.hidden_bytes)
        coefficient = self.profile.all_reduce_ms_per_mib(tp, consecutive(strategy))
        return count * 2 * (tp - 1) / tp * local * self.hidden_bytes / MIB * coefficient

    def _measured_ms(self, ranks: int, message_bytes: float, *, table: bool = True) -> float:
        """Milliseconds of an all-gather or a reduce-scatter of a message of `message_bytes` among `ranks` ranks, from measured
        message times.

        table: whether a message size that was measured has its measured time; if False, every size has the time on the
        straight line fitted through the measured times. Raises InputError if nothing was measured for this number of ranks.
        """
        if ranks not in self.profile.measured:
            raise InputError("sp_time_*.json", f"allreduce_size_{ranks}", "is missing", "measure it")
        times = self.profile.measured[ranks]
        return times.ms(message_bytes) if table else _at(times.line, message_bytes / MIB)

    def layer_bytes(self, strategy: Strategy, micro_batches: int) -> tuple[int, int]:
        """Bytes that one layer takes on one rank under a strategy, as a pair: its model states, and its activations kept for
        one micro-batch. micro_batches: number of micro-batches per step.
        """
        profile, tp = self.profile, strategy.degree("tp")
        states = STATE_COPIES * profile.parameter_mib / tp
        if strategy.degree("sdp") > 1:
            states *= self._zero3(strategy.degree("sdp"), micro_batches)
        elif strategy.degree("dp") > 1 and self.options.zero2:
            states *= self._zero2(strategy.degree("dp"), micro_batches)
        checkpoint = profile.checkpoint_mib / (tp if self.options.sequence_parallel else 1)
        kept = checkpoint if strategy.ckpt else profile.kept_mib[tp]
        return round(states * MIB), round(kept * self.batch / micro_batches / strategy.data_degree * MIB)

    def ends_ns(self, choice: LoopPass) -> tuple[int, int]:
        """Time in ns of the forward and backward pass together of embedding and of head, for one micro-batch and without
        gradient synchronisation, as a pair (embedding, head).

        choice: numbers of stages and micro-batches, and the parallelism of embedding and head. Without a pipeline the first
        number is the sum of embedding and head, and the second is 0.
        """
        profile, stages, tp = self.profile, choice.stages, choice.vocabulary_tp
        forward = _at(profile.ends_ms, self._samples(choice.stages, choice.micro_batches)) / min(stages, 2)
        gathered = self._ends_gather_ms(choice) if choice.sharded else 0.0
        tensor = 0.0 if choice.vocabulary_sp else self._ends_tensor_ms(choice, tp)
        time = sum(_hidden(gathered, ms, profile.overlap) for ms in (forward, BACKWARD * forward))
        if stages == 1:
            return round(NS_PER_MS * (time + 2 * tensor)), 0
        return (round(NS_PER_MS * (time + tensor)),) * 2

    def _samples(self, stages: int, micro_batches: int) -> float:
        """Samples per micro-batch on one device of a pipeline stage, if the samples are divided among all devices of the
        stage; may be a fraction. stages, micro_batches: number of stages, and of micro-batches per step.
        """
        return self.batch * stages / micro_batches / self.profile.devices

    def _ends_gather_ms(self, choice: LoopPass) -> float:
        """Milliseconds of the all-gather of the parameters of embedding or head, which ZeRO-3 shards. choice: numbers of
        stages and micro-batches, and the parallelism of embedding and head.
        """
        group = self.profile.devices // choice.stages
        tp = 1 if choice.vocabulary_sp else choice.vocabulary_tp
        dp = group // tp
        end = OFF if choice.stages == 1 else LAST if choice.vocabulary_sp else FIRST
        coefficient = self.profile.all_reduce_ms_per_mib(dp, tp == 1 or dp == 1)
        return self.profile.ends[end].state_bytes[tp] / MIB / STATE_COPIES * coefficient * (dp - 1) / dp / 2

    def _ends_tensor_ms(self, choice: LoopPass, tp: int) -> float:
        """Milliseconds of the tensor-parallel communication of embedding or head for one micro-batch. choice: numbers of
        stages and micro-batches, and the range of the layers' tensor-parallel degrees. tp: the tensor-parallel degree of
        embedding and head; with 1 the result is 0.

        As in the engine's code, the message has the samples that a rank has under the smallest tensor-parallel degree of the
        layers, whatever `tp` is.
        """
        message = self._samples(choice.stages, choice.micro_batches) * choice.least_tp * self.hidden_bytes
        if tp == 1:
            return 0.0
        if self.options.measured_messages:
            return self._measured_ms(tp, message, table=False)
        alone = tp * choice.stages == self.profile.devices
        return (tp - 1) / tp * message / MIB * self.profile.all_reduce_ms_per_mib(tp, alone)

    def ends_mib(self, choice: LoopPass) -> tuple[int, int]:
        """Memory in whole MiB, rounded up, that the embedding takes on one device of the first stage, and the head on one
        device of the last stage, as a pair, without the CUDA context.

        choice: numbers of stages and micro-batches, and the parallelism of embedding and head. Without a pipeline the first
        number is the sum of embedding and head, and the second is 0.
        """
        stages, m, tp = choice.stages, choice.micro_batches, choice.vocabulary_tp
        group = self.profile.devices // stages
        parameters = 1 if choice.vocabulary_sp else tp
        ratio = 1.0
        if choice.sharded:
            ratio = self._zero3(group // parameters, m)
        elif self.options.zero2:
            ratio = self._zero2(group // parameters, m)
        samples = self.batch * tp / group / m

        def whole(name: str, in_flight: int) -> int:
            """Whole MiB of embedding (FIRST), head (LAST) or both (OFF), with a number of micro-batches in flight."""
            end = self.profile.ends[name]
            return ceil((end.state_bytes[parameters] * ratio + end.activation_bytes[tp] * samples * in_flight) / MIB)

        return (whole(OFF, 1), 0) if stages == 1 else (whole(FIRST, stages), whole(LAST, 1))

    def reserve_mib(self, choice: LoopPass) -> int:
        """Whole MiB that every stage needs in addition to layers, embedding and head: the CUDA context and, in passes of the
        loops with `buffer`, the buffer for the all-gathers of sequence parallelism. choice: the pass of the engine's loops.
        """
        if not (choice.buffer and self.options.sequence_parallel):
            return CONTEXT_MIB
        tokens = self._samples(choice.stages, choice.micro_batches) * choice.most_tp * self.profile.sequence
        return CONTEXT_MIB + int(tokens * self.profile.hidden_size * 2 / MIB)

    def _zero2(self, degree: int, micro_batches: int) -> float:
        """The share of the model states that a rank holds under ZeRO-2 among `degree` ranks (MemoryCostModel.zero2_ratio in
        the engine). micro_batches: number of micro-batches per step.

        With several micro-batches, gradients accumulated in fp32 are added, unless gradients are reduced once per step
        (async_grad_reduce).
        """
        share = 6 / 8 if micro_batches > 1 and self.options.async_grad_reduce else 7 / 8
        return (share * (1 / degree + BIAS) + 1 - share) * self._fp32_gradients(micro_batches)

    def _zero3(self, degree: int, micro_batches: int) -> float:
        """The share of the model states that a rank holds under ZeRO-3 among `degree` ranks (MemoryCostModel.zero3_ratio in
        the engine). micro_batches: number of micro-batches per step.

        With several micro-batches, gradients accumulated in fp32 are added, unless gradients are reduced once per step
        (async_grad_reduce).
        """
        share = 7 / 8 if micro_batches > 1 and self.options.async_grad_reduce else 1.0
        return (share * (1 / degree + BIAS) + 1 - share) * self._fp32_gradients(micro_batches)

    def _fp32_gradients(self, micro_batches: int) -> float:
        """The factor by which model states grow because gradients are accumulated in fp32: 5/4 with several micro-batches per
        step (`micro_batches`), unless gradients are reduced once per step (async_grad_reduce); else 1.
        """
        return 1.0 if micro_batches == 1 or self.options.async_grad_reduce else 5 / 4

    def transition_ns(self, before: Strategy, after: Strategy, stages: int, micro_batches: int) -> int:
        """Time in ns of redistributing the activations of one micro-batch between two neighbouring layers with the strategies
        `before` and `after`; 0 if the strategies are equal.

        stages, micro_batches: number of pipeline stages, and of micro-batches per step. If tensor-parallel degree and order
        of ranks are equal, the result is 0 to 3 ns, with which the engine ranks options that are otherwise equal. The
        engine's search includes this time; its final cost of a plan does not.
        """
        if before == after:
            return 0
        here, there = before.degree("tp"), after.degree("tp")
        tp, group = max(here, there), self.profile.devices // stages
        other_order = consecutive(before) != consecutive(after)
        if here > there and not self.options.sequence_parallel and not (other_order and (group, here, there) == (8, 4, 2)):
            return 0
        if here != there or other_order:
            leading = after if there > here else before
            near = tp == group or consecutive(leading)
            gathered = (tp - 1) * self._samples(stages, micro_batches) * self.hidden_bytes
            return round(gathered * self.profile.all_reduce_ms_per_mib(tp, near) * MOVE_NS)
        sharded = after.degree("sdp") > 1
        if not after.ckpt:
            return 1 if sharded and not before.ckpt else 0
        if sharded:
            return 3
        if before.ckpt:
            return 0
        return 1 if before.degree("sdp") > 1 else 2


def powers(most: int, limit: int | None = None) -> list[int]:
    """The powers of two up to `most` and, if `limit` is not None, up to `limit`, ascending."""
    return [1 << i for i in range(most.bit_length()) if limit is None or 1 << i <= limit]


def consecutive(strategy: Strategy) -> bool:
    """Whether the tensor-parallel ranks of a strategy are consecutive numbers; True also for a strategy without tensor
    parallelism.
    """
    return strategy.degree("tp") == 1 or strategy.levels[-1][0] == "tp"


def _at(line: Line, x: float) -> float:
    """The value at x of a straight line, which is given as (slope, value at 0)."""
    return line[0] * x + line[1]


def _hidden(communication: float, computation: float, slowdown: float) -> float:
    """Time in which communication and computation that start together are both done, if only the computation slows down by
    their overlap (the engine's get_overlap_time), in the unit of the two given times.

    slowdown: the factor, at least 1, by which computation takes longer while communication runs.
    """
    return max(communication, computation + communication * (1 - 1 / slowdown))
