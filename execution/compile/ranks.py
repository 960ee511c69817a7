"""Where a rank stands in a plan: its stage, its peers, its samples and its shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from trainplan.execution.compile.pieces import in_pieces
from trainplan.execution.instructions import Op
from trainplan.execution.program import AGAIN, Instruction, MicroBatchPart, Program, draws, key_share, layout_unit, token_share
from trainplan.formulations.costs.sequential.communication import shares_table
from trainplan.formulations.plan.plan import Batch, Plan
from trainplan.formulations.plan.rank_grid import Digits
from trainplan.formulations.plan.strategy import Paradigm, Strategy, gather_ranks, piece_peers, rows_of
from trainplan.formulations.plan.unit import PlannedUnit
from trainplan.formulations.schedule.orders import is_sliced
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.optimizers import OptimizerName, states_sharing, step_workspace_bytes, stepped_by_muon
from trainplan.profiling.models.precision import PLAIN, Precision
from trainplan.profiling.models.sublayers import KeyShare, Selective, TokenShare, shard_bounds

MOST_SAMPLES = 2**15  # of a micro-batch on one rank: programs name every one of them


class StageGroups(tuple[tuple[int, ...], ...]):
    """The ranks of every stage, ascending, with where each rank is."""

    @cached_property
    def stages_of(self) -> dict[int, list[int]]:
        """By rank, its stages in order."""
        stages: dict[int, list[int]] = {}
        for stage, group in enumerate(self):
            for rank in group:
                stages.setdefault(rank, []).append(stage)
        return stages


@dataclass
class PlannedRank:
    """A rank of a plan. stages: the units of each; groups: its ranks, ascending. stage: the first one of this rank, which has
    several where they are interleaved; units: of all of them. place: the
    rank's number in its stage, from 0; strategies speak of these.

    micro_batches: those that the rank works on in one step, cut to the first `most_micro_batches` of them where that is given.
    sliced: how many of them begin in halves. A half is laid out over the data-parallel ranks as a small micro-batch of its own,
    so the samples of a rank are then not consecutive. precision: of model states. optimizer: what steps the parameters.

    planned: the plan's units, which say where their states and their inputs are.
    """

    model: Model
    strategies: tuple[Strategy, ...]
    stages: tuple[range, ...]
    groups: StageGroups
    batch: Batch
    rank: int
    sliced: int
    most_micro_batches: int | None = field(default=None, kw_only=True)
    planned: Sequence[PlannedUnit] = field(kw_only=True)
    precision: Precision = field(default=PLAIN, kw_only=True)
    optimizer: OptimizerName = field(default="adamw", kw_only=True)

    def __post_init__(self) -> None:
        self.world = len(self.groups.stages_of)
        self.stage, *more = self.groups.stages_of[self.rank]
        self.place = self.groups[self.stage].index(self.rank)
        chunks = [self.stages[stage] for stage in (self.stage, *more)]
        self.units: Sequence[int] = chunks[0] if not more else tuple(unit for chunk in chunks for unit in chunk)
        self.last = len(self.model.units) - 1
        on_host = any(self.planned[unit].states.on_host for unit in (0, self.last))  # shards are then copied unit by unit
        self.shares_table = self.model.tied and shares_table(self.strategies, self.units) and not on_host
        self.gradient_bytes = self.precision.gradient_bytes(self.model.element_bytes)
        shares = self.batch.shares
        of_rank = self.batch.micro_batches if shares is None else shares[self._replica(self.place)]
        self.micro_batches = min(of_rank, self.most_micro_batches or of_rank)
        self._rows: dict[tuple[int, int, MicroBatchPart], tuple[int, ...]] = {}
        self._peers: dict[tuple[int, Paradigm], tuple[int, ...]] = {}
        self._sources: dict[tuple[int, int], tuple[int, ...]] = {}
        self._tokens: dict[tuple[int, int], tuple[int, int]] = {}
        self._gathered_tokens: dict[int, tuple[tuple[int, int], ...]] = {}
        self._drawing: dict[tuple[Op, int], bool] = {}
        self._token_shares: dict[int, TokenShare] = {}

    def _replica(self, place: int) -> int:
        """Of uneven shares: which data-parallel replica a place belongs to. All units are laid out alike then."""
        return self.strategies[0].index(place, "dp")

    def shard_elements(self, unit: int) -> int:
        """Elements of a rank's flat shard: its tensor-parallel part, cut over the sharded-data group, the end padded."""
        return -(-self.flat_elements(unit) // self.strategies[unit].degree("sdp"))

    def stepped_elements(self, unit: int) -> int:
        """Elements of a unit whose master copy and moments the rank has: its shard; of what is dealt whole, all of it."""
        sharing = self.strategies[unit].degree("sdp")
        return self.shard_elements(unit) * sharing // states_sharing(self.optimizer, self.model.units[unit].sublayer, sharing)

    def gradient_shard_bytes(self, unit: int) -> int:
        """Bytes of a rank's flat shard of a unit's gradients."""
        return self.shard_elements(unit) * self.gradient_bytes

    def flat_elements(self, unit: int) -> int:
        """Elements of a rank's tensor-parallel part of a unit's parameters; a head's without a table of the embedding's."""
        strategy, sublayer = self.strategies[unit], self.model.units[unit].sublayer
        tp, index = strategy.degree("tp"), strategy.index(self.place, "tp")
        count = sublayer.parameter_count(tp, index)
        if self.uses_table(unit):
            low, high = shard_bounds(self.model.vocabulary, tp, index)
            count -= (high - low) * sublayer.hidden
        return count

    def stepped_by_muon(self, unit: int) -> int:
        """Parameters of a unit that the rank steps by Muon."""
        strategy = self.strategies[unit]
        tp, index = strategy.degree("tp"), strategy.index(self.place, "tp")
        return stepped_by_muon(self.optimizer, self.model.units[unit].sublayer, tp, index, strategy.degree("sdp"))

    def step_workspace_bytes(self, unit: int) -> int:
        """Bytes that the optimizer's step on a unit needs for a while: its gradient as wide as the master copy, and what Muon
        computes."""
        strategy, part, precision = self.strategies[unit], self.model.units[unit].sublayer, self.precision
        tp, index = strategy.degree("tp"), strategy.index(self.place, "tp")
        widened = self.stepped_elements(unit) * precision.widened_bytes(self.model.element_bytes)
        stepped = precision.stepped_bytes(self.model.element_bytes)
        return widened + step_workspace_bytes(self.optimizer, part, stepped, tp, index)

    def uses_table(self, unit: int) -> bool:
        """Whether a unit is a head that works with the embedding's own matrix."""
        return unit == self.last and self.shares_table

    def rows(self, unit: int, part: MicroBatchPart) -> tuple[int, ...]:
        """Sample ids that this rank works on in a unit: the compiler carries them, so that nothing is permuted silently."""
        return self.rows_at(self.place, unit, part)

    def rows_at(self, place: int, unit: int, part: MicroBatchPart) -> tuple[int, ...]:
        """Sample ids that the rank at a place of this stage works on in a unit, in their order."""
        key = (place, unit, part)
        if key not in self._rows:
            self._rows[key] = self._laid_rows(place, unit, part)
        return self._rows[key]

    def _laid_rows(self, place: int, unit: int, part: MicroBatchPart) -> tuple[int, ...]:
        if part.half is None and part.micro_batch < self.sliced:
            first, second = part.halves  # its order of samples is theirs, also on stages that run it whole
            return self.rows_at(place, unit, first) + self.rows_at(place, unit, second)
        shares = self.batch.shares
        count = self.batch.global_samples // (self.batch.micro_batches if shares is None else sum(shares))
        before = 0 if shares is None else sum(shares[: self._replica(place)])
        begin = (before + part.micro_batch) * count
        if part.half is not None:
            count //= 2
            begin += part.half * count
        if shares is not None:
            return tuple(range(begin, begin + count))
        return tuple(rows_of(self.strategies[unit], place, begin, count, self.model.pieces))

    def runs_in_halves(self, stage: int, micro_batch: int) -> bool:
        """Whether a stage runs the forward pass of a micro-batch in halves."""
        return is_sliced(stage, micro_batch, len(self.stages), self.sliced)

    def piece_peers(self, unit: int) -> tuple[int, ...]:
        """Ranks that work on the other pieces of this rank's samples, and itself, by piece."""
        return self.ranks(piece_peers(self.strategies[unit], self.place, self.model.pieces))

    def peers(self, unit: int, paradigm: Paradigm) -> tuple[int, ...]:
        """Ranks, ascending, that differ from this one only along one level of a unit's strategy."""
        key = (unit, paradigm)
        if key not in self._peers:
            self._peers[key] = self.ranks(self.strategies[unit].peers(self.place, paradigm))
        return self._peers[key]

    def gathered_places(self, before: int, after: int) -> tuple[int, ...]:
        """Places of this stage whose rows under unit `before` hold all that this rank needs under unit `after`."""
        key = (before, after)
        if key not in self._sources:
            self._sources[key] = gather_ranks(self.strategies[before], self.strategies[after], self.place)
        return self._sources[key]

    def ranks(self, places: Iterable[int]) -> tuple[int, ...]:
        """Ranks of places in this stage."""
        group = self.groups[self.stage]
        return tuple([group[index] for index in places])

    def samples_of(self, instruction: Instruction) -> dict[str, Any]:
        """The samples that an instruction speaks of, as its arguments, if it names any (`OpSpec.names_samples`).

        rows: the ids in the buffer that it writes, in order; of a computation only where it drops numbers. blocks: the ids in
        each of those that it reads, or in each half of what it reads. tokens: where they are shared, the first one and the end
        of those that a rank has of each sample: of what it writes, or of what each rank gathers.
        """
        i = instruction
        assert i.unit is not None and i.micro_batch is not None
        part, spec = MicroBatchPart(i.micro_batch, i.half), i.op.spec
        if spec.draws:
            return {"rows": self.rows(i.unit, part)} if self._draws(i.op, i.unit) else {}
        if i.op is Op.GATHER_TOKENS:
            again = {AGAIN: True} if AGAIN in i.args else {}
            return {"tokens": self._tokens_of_peers(layout_unit(i.reads[0])), **again}
        if "tokens" in spec.args:
            return {"tokens": self.tokens_at(self.place, i.unit)}
        forward = (*i.reads, *i.writes)[0].startswith("hidden")
        if i.op is Op.RECEIVE:
            sender = i.unit - 1 if forward else i.unit
            args: dict[str, Any] = {"rows": self.rows(sender, part)}
            if self.strategies[sender].sequence_parallel:
                args["tokens"] = self.tokens_at(self.place, sender)
            return args
        if spec.args == ("rows",):
            return {"rows": self.rows(i.unit, part)}
        if i.op is Op.JOIN:
            under = i.unit - 1 if forward else i.unit
            return {"blocks": tuple(self.rows(under, half) for half in part.halves)}
        if spec.kind == "backward":
            in_one_message = i.half is not None and i.unit == self.units[-1] < self.last
            return {"blocks": tuple(self.rows(i.unit, half) for half in part.halves)} if in_one_message else {}
        before = i.unit - 1 if forward else i.unit + 1
        blocks = (self.rows_at(place, before, part) for place in self.gathered_places(before, i.unit))
        return {"blocks": tuple(blocks), "rows": self.rows(i.unit, part)}

    def translated(self, program: Program, digits: Digits) -> Program:
        """This rank's program, from that of another rank of its kind: as far as this rank is from that one, digit by digit of
        its place, are the members of its groups from those of the other's."""
        groups = dict[tuple[int, ...], tuple[int, ...]]()

        def moved(member: int) -> int:
            index = member % digits.size
            return member - index + digits.moved(index, program.place, self.place)

        def translated(i: Instruction) -> Instruction:
            names_samples = i.op.spec.names_samples
            if not i.group and not names_samples:
                return i
            if i.group not in groups:
                groups[i.group] = tuple(sorted(map(moved, i.group)))
            fields: dict[str, Any] = {"group": groups[i.group], "grouped": tuple(map(translated, i.grouped))}
            return i.changed(**fields, args=self.samples_of(i)) if names_samples and not i.grouped else i.changed(**fields)

        return replace(program, rank=self.rank, place=self.place, instructions=tuple(map(translated, program.instructions)))

    def token_share(self, unit: int) -> TokenShare:
        """The bytes and pieces of a unit whose ranks share its tokens."""
        if unit not in self._token_shares:
            self._token_shares[unit] = token_share(self.model, self.strategies, unit)
        return self._token_shares[unit]

    def key_share(self, unit: int) -> KeyShare | None:
        """As of `Program`."""
        return key_share(self.model, self.strategies, unit)

    def selective(self, unit: int) -> Selective:
        """The bytes of a unit, without the modules of it that are recomputed."""
        return Selective(self.model.units[unit].sublayer, self.strategies[unit].modules)

    def _draws(self, op: Op, unit: int) -> bool:
        """Whether an operation on a unit drops numbers."""
        key = (op, unit)
        if key not in self._drawing:
            self._drawing[key] = draws(self.model.units[unit].sublayer, self.strategies[unit], op)
        return self._drawing[key]

    def tokens_at(self, place: int, unit: int) -> tuple[int, int]:
        """The first one and the end of the tokens that the rank at a place has of each sample, in a unit's layout."""
        key = (place, unit)
        if key not in self._tokens:
            part, parts = self.strategies[unit].share(place)
            self._tokens[key] = shard_bounds(self.model.units[unit].sublayer.tokens, parts, part)
        return self._tokens[key]

    def _tokens_of_peers(self, unit: int) -> tuple[tuple[int, int], ...]:
        """The tokens of each rank of a tensor-parallel group, in a unit's layout."""
        if unit not in self._gathered_tokens:
            indices = self.strategies[unit].peers(self.place, "tp")
            self._gathered_tokens[unit] = tuple(self.tokens_at(index, unit) for index in indices)
        return self._gathered_tokens[unit]

    def laid_bytes(self, boundary: int, unit: int, rows: int) -> int:
        """Bytes of the hidden states of some samples that a unit passes on, of the tokens of a rank under another's layout."""
        return self.boundary_bytes(boundary, rows) // self.strategies[unit].share(self.place)[1]

    def boundary_bytes(self, unit: int, rows: int) -> int:
        """Bytes of the hidden states of some samples that a unit passes to the next one."""
        return self.model.units[unit].sublayer.boundary_bytes(rows)

    def transfers(self, before: int, after: int, part: MicroBatchPart) -> dict[tuple[int, int], tuple[int, ...]]:
        """The rows that places of the stage of one unit send to places of the stage of another (see `row_transfers`)."""
        rows = ([self.rows_at(index, unit, part) for index in range(self.strategies[unit].group)] for unit in (before, after))
        return row_transfers(*rows)

    def neighbours(self, unit: int) -> tuple[int, ...]:
        """The ranks of the stage of a unit."""
        return next(group for group, stage in zip(self.groups, self.stages, strict=True) if unit in stage)

    def lane(self, neighbour: int) -> tuple[int, ...]:
        """This rank and another, ascending."""
        return tuple(sorted((self.rank, neighbour)))


def row_transfers(before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]) -> dict[tuple[int, int], tuple[int, ...]]:
    """Which rows go from each place of one group to each place of another, by (sender, receiver), in the receiver's order.

    before, after: the rows of each place. Where several senders have a row, each serves its part of the receivers.
    """
    holders: dict[int, list[int]] = {}
    for index, rows in enumerate(before):
        for row in rows:
            holders.setdefault(row, []).append(index)
    sent: dict[tuple[int, int], list[int]] = {}
    for index, rows in enumerate(after):
        for row in rows:
            senders = holders[row]
            sent.setdefault((senders[index * len(senders) // len(after)], index), []).append(row)
    return {pair: tuple(rows) for pair, rows in sent.items()}


def planned_ranks(
    plan: Plan, model: Model, ranks: Iterable[int] | None = None, most_micro_batches: int | None = None
) -> list[PlannedRank]:
    """Where all ranks of a plan stand, or some. model, most_micro_batches: as of `compile_plan`. Raises InputError for samples
    that cannot be cut as the plan says."""
    strategies, batch, model = in_pieces(plan, model)
    stages = tuple(range(stage.first_unit, stage.last_unit + 1) for stage in plan.stages)
    groups = StageGroups(tuple(stage.ranks) for stage in plan.stages)
    count = batch.global_samples // (batch.micro_batches if batch.shares is None else sum(batch.shares))
    if (samples := count // (1 if batch.shares else min(strategy.data_degree for strategy in strategies))) > MOST_SAMPLES:
        problem, fix = f"is {batch.micro_batches}, each of {samples} samples on a rank", f"give more, of at most {MOST_SAMPLES}"
        raise InputError("plan", "batch.micro_batches", problem, fix)
    fields: dict[str, Any] = {"most_micro_batches": most_micro_batches, "planned": plan.units}
    fields |= {"precision": plan.precision.of(model), "optimizer": plan.optimizer}
    return [
        PlannedRank(model, strategies, stages, groups, batch, rank, plan.sliced, **fields)
        for rank in (range(plan.world) if ranks is None else ranks)
    ]


def by_kind(ranks: Sequence[PlannedRank]) -> list[list[PlannedRank]]:
    """Ranks of one plan in classes: of one stage, with the same instructions on buffers of the same bytes.

    Ranks of a class work on equally many micro-batches, and their shards of each unit are equally large. All else is the same,
    or other names of the same: ranks of groups, and samples.
    """
    classes: dict[tuple[int, ...], list[PlannedRank]] = {}
    uneven: dict[int, list[tuple[Strategy, tuple[int, ...]]]] = {}
    for rank in ranks:
        if rank.stage not in uneven:
            uneven[rank.stage] = _uneven_parts(rank)
        parts = (sizes[strategy.index(rank.place, "tp")] for strategy, sizes in uneven[rank.stage])
        classes.setdefault((rank.stage, rank.micro_batches, *parts), []).append(rank)
    return list(classes.values())


def _uneven_parts(rank: PlannedRank) -> list[tuple[Strategy, tuple[int, ...]]]:
    """Strategies of the units of a rank's stage whose tensor-parallel parts are of unequal sizes, and elements of each part."""
    parts = {}
    for unit in rank.units:
        strategy, sublayer = rank.strategies[unit], rank.model.units[unit].sublayer
        tp = strategy.degree("tp")
        sizes = tuple(sublayer.parameter_count(tp, index) for index in range(tp))
        if len(set(sizes)) > 1:
            parts[strategy.levels, sizes] = strategy
    return [(strategy, sizes) for (_, sizes), strategy in parts.items()]
