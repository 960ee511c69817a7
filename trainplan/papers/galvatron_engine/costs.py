"""The `code` cost model: what a layer, and embedding and head, cost in Galvatron's published engine (Hetu-Galvatron v2.4.0).

core/search_engine/cost_model.py, for 1F1B (`pipedream_flush`), 16-bit training, ring all-reduces. b samples of a micro-batch on
g devices, tp x dp = g; ms, MiB and ms for each MiB inside.

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
CONTEXT_MIB = 1024
STATE_COPIES = 4
BACKWARD = 2
ALL_REDUCES = 4
MOVE_NS = 100  # 1e-7 s for each byte and ms/MiB, as in the code
BIAS = 0.003  # zero2_ratio, zero3_ratio


@dataclass(frozen=True)
class EngineOptions:
    """The engine's own switches. measured_messages: sp_space tp+sp, which also tries vocabulary sp; zero2: default_dp_type
    zero2; both_orders: tensor-parallel ranks that are not consecutive as well (disable_tp_consec 0); micro_batches:
    settle_chunk; most_tp, most_stages: max_tp_deg, max_pp_deg; async_grad_reduce, sequence_parallel: of the same names;
    uniform: one strategy for all layers (fine_grained_mode 0)."""

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
    """What the engine's outer loops fix: P, m, the tp degrees that layers may take, and how embedding and head are split.

    vocabulary_sp: whole parameters, sequence-parallel. sharded: as ZeRO-3 (embed_sdp). buffer: keep one for the all-gathers.
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
    """Costs of one profile and one batch."""

    def __init__(self, profile: EngineProfile, batch: int, options: EngineOptions) -> None:
        self.profile, self.batch, self.options = profile, batch, options
        self.hidden_bytes = profile.sequence * profile.hidden_size * profile.element_bytes
        if options.measured_messages and not profile.measured:
            raise InputError("command line", "files", "come without sp_time_*.json", "give that file as well")

    def strategies(self, stages: int) -> list[Strategy]:
        """The engine's, in its order (generate_dp_tp_pp_sdp); sdp is its fsdp."""
        group = self.profile.devices // stages
        degrees = [tp for tp in powers(group, self.options.most_tp) if tp in self.profile.kept_mib]
        strategies = [strategy for tp in degrees for strategy in self._orders(tp, group // tp)]
        return strategies + [Strategy(s.levels, True) for s in strategies]

    def _orders(self, tp: int, dp: int) -> list[Strategy]:
        if dp == 1:
            return [Strategy((("tp", tp),) if tp > 1 else ())]
        if tp == 1:
            return [Strategy((("dp", dp),)), Strategy((("sdp", dp),))]
        apart = [Strategy((("tp", tp), (data, dp))) for data in ("dp", "sdp")]
        near = [Strategy(((data, dp), ("tp", tp))) for data in ("dp", "sdp")]
        return (apart if self.options.both_orders else []) + near

    def layer_ns(self, strategy: Strategy, stages: int, micro_batches: int) -> tuple[int, int]:
        """One micro-batch with and without gradient synchronisation."""
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
        tp, count = strategy.degree("tp"), ALL_REDUCES * (1.5 if strategy.ckpt else 1)
        if tp == 1:
            return 0.0
        if self.options.measured_messages:
            return count * self._measured_ms(tp, local * self.hidden_bytes)
        coefficient = self.profile.all_reduce_ms_per_mib(tp, consecutive(strategy))
        return count * 2 * (tp - 1) / tp * local * self.hidden_bytes / MIB * coefficient

    def _measured_ms(self, ranks: int, message_bytes: float, *, table: bool = True) -> float:
        if ranks not in self.profile.measured:
            raise InputError("sp_time_*.json", f"allreduce_size_{ranks}", "is missing", "measure it")
        times = self.profile.measured[ranks]
        return times.ms(message_bytes) if table else _at(times.line, message_bytes / MIB)

    def layer_bytes(self, strategy: Strategy, micro_batches: int) -> tuple[int, int]:
        """Model states, and activation of one micro-batch; not rounded."""
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
        """Embedding and head for one micro-batch without gradient synchronisation; without a pipeline both are the first."""
        profile, stages, tp = self.profile, choice.stages, choice.vocabulary_tp
        forward = _at(profile.ends_ms, self._samples(choice.stages, choice.micro_batches)) / min(stages, 2)
        gathered = self._ends_gather_ms(choice) if choice.sharded else 0.0
        tensor = 0.0 if choice.vocabulary_sp else self._ends_tensor_ms(choice, tp)
        time = sum(_hidden(gathered, ms, profile.overlap) for ms in (forward, BACKWARD * forward))
        if stages == 1:
            return round(NS_PER_MS * (time + 2 * tensor)), 0
        return (round(NS_PER_MS * (time + tensor)),) * 2

    def _samples(self, stages: int, micro_batches: int) -> float:
        """Of a micro-batch on one device."""
        return self.batch * stages / micro_batches / self.profile.devices

    def _ends_gather_ms(self, choice: LoopPass) -> float:
        group = self.profile.devices // choice.stages
        tp = 1 if choice.vocabulary_sp else choice.vocabulary_tp
        dp = group // tp
        end = OFF if choice.stages == 1 else LAST if choice.vocabulary_sp else FIRST
        coefficient = self.profile.all_reduce_ms_per_mib(dp, tp == 1 or dp == 1)
        return self.profile.ends[end].state_bytes[tp] / MIB / STATE_COPIES * coefficient * (dp - 1) / dp / 2

    def _ends_tensor_ms(self, choice: LoopPass, tp: int) -> float:
        """The message is of all samples that the smallest tp gives a rank, whatever the vocabulary's is, as in the code."""
        message = self._samples(choice.stages, choice.micro_batches) * choice.least_tp * self.hidden_bytes
        if tp == 1:
            return 0.0
        if self.options.measured_messages:
            return self._measured_ms(tp, message, table=False)
        alone = tp * choice.stages == self.profile.devices
        return (tp - 1) / tp * message / MIB * self.profile.all_reduce_ms_per_mib(tp, alone)

    def ends_mib(self, choice: LoopPass) -> tuple[int, int]:
        """Whole MiB of embedding and head, rounded up; without a pipeline both are the first. Context is not in it."""
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
            end = self.profile.ends[name]
            return ceil((end.state_bytes[parameters] * ratio + end.activation_bytes[tp] * samples * in_flight) / MIB)

        return (whole(OFF, 1), 0) if stages == 1 else (whole(FIRST, stages), whole(LAST, 1))

    def reserve_mib(self, choice: LoopPass) -> int:
        """Whole MiB that every stage holds besides: context and the buffer of sequence parallelism's all-gathers."""
        if not (choice.buffer and self.options.sequence_parallel):
            return CONTEXT_MIB
        tokens = self._samples(choice.stages, choice.micro_batches) * choice.most_tp * self.profile.sequence
        return CONTEXT_MIB + int(tokens * self.profile.hidden_size * 2 / MIB)

    def _zero2(self, degree: int, micro_batches: int) -> float:
        """What of the model states stays on a rank; without async_grad_reduce fp32 gradients come on top (MemoryCostModel)."""
        share = 6 / 8 if micro_batches > 1 and self.options.async_grad_reduce else 7 / 8
        return (share * (1 / degree + BIAS) + 1 - share) * self._fp32_gradients(micro_batches)

    def _zero3(self, degree: int, micro_batches: int) -> float:
        share = 7 / 8 if micro_batches > 1 and self.options.async_grad_reduce else 1.0
        return (share * (1 / degree + BIAS) + 1 - share) * self._fp32_gradients(micro_batches)

    def _fp32_gradients(self, micro_batches: int) -> float:
        return 1.0 if micro_batches == 1 or self.options.async_grad_reduce else 5 / 4

    def transition_ns(self, before: Strategy, after: Strategy, stages: int, micro_batches: int) -> int:
        """R of the search, in no final cost."""
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
    """The powers of two up to both, ascending."""
    return [1 << i for i in range(most.bit_length()) if limit is None or 1 << i <= limit]


def consecutive(strategy: Strategy) -> bool:
    """Whether tensor-parallel ranks are neighbours."""
    return strategy.degree("tp") == 1 or strategy.levels[-1][0] == "tp"


def _at(line: Line, x: float) -> float:
    return line[0] * x + line[1]


def _hidden(communication: float, computation: float, slowdown: float) -> float:
    """get_overlap_time: computation alone slows down while communication runs."""
    return max(communication, computation + communication * (1 - 1 / slowdown))
