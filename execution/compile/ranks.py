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
from trainplan.profiling.models.optimizers import (
    OptimizerName,
    muon_parameter_count,
    ranks_sharing_states,
    step_workspace_bytes,
)
from trainplan.profiling.models.precision import PLAIN, Precision
from trainplan.profiling.models.sublayers import KeyShare, SelectiveRecomputation, TokenShare, shard_bounds

MOST_SAMPLES = 2**15  # of a micro-batch on one rank: programs name every sample


class StageGroups(tuple[tuple[int, ...], ...]):
    """The ranks of every pipeline stage, ascending: a tuple of tuples, indexed by stage."""

    @cached_property
    def stages_of(self) -> dict[int, list[int]]:
        """By rank, the indices of the stages that the rank belongs to, ascending (several under interleaved schedules)."""
        stages: dict[int, list[int]] = {}
        for stage, group in enumerate(self):
            for rank in group:
                stages.setdefault(rank, []).append(stage)
        return stages


@dataclass
class PlannedRank:
    """One rank of a plan, with what follows from the plan for it: peers, samples, shards and bytes.

    A unit is a sub-layer of the model, known by its index. A strategy is the parallel layout of a unit: levels of parallelism
    with their degrees, ZeRO stage, recomputation. A part is a whole micro-batch or half of one. Rows are samples, known by
    their ids. An index in a stage is the position of a rank among the ranks of its stage.

    model: the model that runs. strategies: one per unit. stages: the range of units of each stage. groups: the ranks of each
    stage. batch: the plan's batch. rank: the rank's number. sliced: number of micro-batches whose forward pass begins in
    halves. A half is laid out over the data-parallel ranks as a small micro-batch of its own, so the samples of a rank are
    then not consecutive. most_micro_batches: if given, only this number of first micro-batches is compiled. planned: the
    plan's units, which say where their states and their inputs are. precision: dtypes of model states. optimizer: the
    optimizer's name.

    Derived: world: number of ranks. stage: index of the rank's first stage (it has several under interleaved schedules).
    units: indices of the units of all its stages. index_in_stage: the rank's index among the ranks of its stage, to which
    strategies refer. micro_batches: number of micro-batches that the rank works on in one step.
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
        """Derive the rank's stage, units, index in its stage and number of micro-batches from the other fields."""
        self.world = len(self.groups.stages_of)
        self.stage, *more = self.groups.stages_of[self.rank]
        self.index_in_stage = self.groups[self.stage].index(self.rank)
        chunks = [self.stages[stage] for stage in (self.stage, *more)]
        self.units: Sequence[int] = chunks[0] if not more else tuple(unit for chunk in chunks for unit in chunk)
        self.last = len(self.model.units) - 1
        on_host = any(self.planned[unit].states.on_host for unit in (0, self.last))  # shards are then copied unit by unit
        self.shares_table = self.model.tied and shares_table(self.strategies, self.units) and not on_host
        self.gradient_bytes = self.precision.gradient_bytes(self.model.element_bytes)
        shares = self.batch.shares
        of_rank = self.batch.micro_batches if shares is None else shares[self._replica(self.index_in_stage)]
        self.micro_batches = min(of_rank, self.most_micro_batches or of_rank)
        self._rows: dict[tuple[int, int, MicroBatchPart], tuple[int, ...]] = {}
        self._peers: dict[tuple[int, tuple[Paradigm, ...]], tuple[int, ...]] = {}
        self._sources: dict[tuple[int, int], tuple[int, ...]] = {}
        self._tokens: dict[tuple[int, int], tuple[int, int]] = {}
        self._gathered_tokens: dict[int, tuple[tuple[int, int], ...]] = {}
        self._drawing: dict[tuple[Op, int], bool] = {}
        self._token_shares: dict[int, TokenShare] = {}

    def _replica(self, index: int) -> int:
        """The index of the data-parallel replica that the rank with this index in the stage belongs to. Only for plans whose
        replicas have unequal shares of the batch; all units have one layout then."""
        return self.strategies[0].index(index, "dp")

    def shard_elements(self, unit: int) -> int:
        """Elements of the rank's flat shard of a unit's parameters: its tensor-parallel part, cut over the ranks of sharded
        data parallelism, with the end padded."""
        return -(-self.flat_elements(unit) // self.strategies[unit].degree("sdp"))

    def stepped_elements(self, unit: int) -> int:
        """Elements of a unit for which the rank has master copies and optimizer moments: its shard or, if the optimizer
        assigns whole matrices to ranks (Muon), its matrices."""
        sharing = self.strategies[unit].degree("sdp")
        return (
            self.shard_elements(unit)
            * sharing
            // ranks_sharing_states(self.optimizer, self.model.units[unit].sublayer, sharing)
        )

    def gradient_shard_bytes(self, unit: int) -> int:
        """Bytes of the rank's flat shard of a unit's gradients."""
        return self.shard_elements(unit) * self.gradient_bytes

    def flat_elements(self, unit: int) -> int:
        """Elements of the rank's tensor-parallel part of a unit's parameters, flattened. A head that uses the embedding's
        table counts without the table."""
        strategy, sublayer = self.strategies[unit], self.model.units[unit].sublayer
        tp, index = strategy.degree("tp"), strategy.index(self.index_in_stage, "tp")
        count = sublayer.parameter_count(tp, index)
        if self.uses_table(unit):
            low, high = shard_bounds(self.model.vocabulary, tp, index)
            count -= (high - low) * sublayer.hidden
        return count

    def muon_parameter_count(self, unit: int) -> int:
        """Number of a unit's parameters that the rank steps with Muon; 0 if the optimizer is AdamW."""
        strategy = self.strategies[unit]
        tp, index = strategy.degree("tp"), strategy.index(self.index_in_stage, "tp")
        return muon_parameter_count(self.optimizer, self.model.units[unit].sublayer, tp, index, strategy.degree("sdp"))

    def step_workspace_bytes(self, unit: int) -> int:
        """Bytes of temporaries of the optimizer's step on a unit: the gradient, converted to the dtype of the master copy, and
        what Muon computes."""
        strategy, part, precision = self.strategies[unit], self.model.units[unit].sublayer, self.precision
        tp, index = strategy.degree("tp"), strategy.index(self.index_in_stage, "tp")
        widened = self.stepped_elements(unit) * precision.widened_bytes(self.model.element_bytes)
        stepped = precision.stepped_bytes(self.model.element_bytes)
        return widened + step_workspace_bytes(self.optimizer, part, stepped, tp, index)

    def uses_table(self, unit: int) -> bool:
        """Whether this unit is the model's head and works with the embedding's own matrix instead of a copy."""
        return unit == self.last and self.shares_table

    def rows(self, unit: int, part: MicroBatchPart) -> tuple[int, ...]:
        """Ids of the samples of a part that this rank works on in a unit, in order. Programs carry these ids, so that no
        permutation of samples goes unnoticed."""
        return self.rows_at(self.index_in_stage, unit, part)

    def rows_at(self, index: int, unit: int, part: MicroBatchPart) -> tuple[int, ...]:
        """Ids of the samples of a part that the rank with this index in the stage works on in a unit, in order."""
        key = (index, unit, part)
        if key not in self._rows:
            self._rows[key] = self._laid_rows(index, unit, part)
        return self._rows[key]

    def _laid_rows(self, index: int, unit: int, part: MicroBatchPart) -> tuple[int, ...]:
        """Ids of the samples of a part that the rank with this index in the stage works on in a unit, in order; computed from
        the plan and not cached. A whole micro-batch that begins in halves has the ids of the first half, then those of the
        second."""
        if part.half is None and part.micro_batch < self.sliced:
            first, second = part.halves  # its order of samples is theirs, also on stages that run it whole
            return self.rows_at(index, unit, first) + self.rows_at(index, unit, second)
        shares = self.batch.shares
        count = self.batch.global_samples // (self.batch.micro_batches if shares is None else sum(shares))
        before = 0 if shares is None else sum(shares[: self._replica(index)])
        begin = (before + part.micro_batch) * count
        if part.half is not None:
            count //= 2
            begin += part.half * count
        if shares is not None:
            return tuple(range(begin, begin + count))
        return tuple(rows_of(self.strategies[unit], index, begin, count, self.model.pieces))

    def runs_in_halves(self, stage: int, micro_batch: int) -> bool:
        """Whether the stage with this index runs the forward pass of a micro-batch in halves."""
        return is_sliced(stage, micro_batch, len(self.stages), self.sliced)

    def piece_peers(self, unit: int) -> tuple[int, ...]:
        """The ranks that work on the pieces of this rank's samples in a unit (context parallelism), itself included, in order
        of pieces."""
        return self.ranks(piece_peers(self.strategies[unit], self.index_in_stage, self.model.pieces))

    def peers(self, unit: int, *paradigms: Paradigm) -> tuple[int, ...]:
        """Ranks, ascending, that differ from this one only along the given levels of a unit's strategy; this rank is
        among them."""
        key = (unit, paradigms)
        if key not in self._peers:
            self._peers[key] = self.ranks(self.strategies[unit].peers(self.index_in_stage, *paradigms))
        return self._peers[key]

    def gathered_indices(self, before: int, after: int) -> tuple[int, ...]:
        """Indices in this stage of the ranks whose rows under the layout of unit `before` together hold all rows that this
        rank needs under the layout of unit `after`."""
        key = (before, after)
        if key not in self._sources:
            self._sources[key] = gather_ranks(self.strategies[before], self.strategies[after], self.index_in_stage)
        return self._sources[key]

    def ranks(self, indices: Iterable[int]) -> tuple[int, ...]:
        """The ranks that have these indices in this rank's stage."""
        group = self.groups[self.stage]
        return tuple([group[index] for index in indices])

    def samples_of(self, instruction: Instruction) -> dict[str, Any]:
        """The arguments of an instruction that name samples; empty if its operation names none (`OpSpec.names_samples`).

        rows: the ids of the samples in the buffer that it writes, in order; for a computation only if it applies dropout.
        blocks: the ids in each of the buffers that it reads, or in each half of what it reads. tokens: under sequence
        parallelism, (first, end) of the tokens of each sample that the rank has in what it writes; for a gather, one such pair
        for every rank of the group.
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
            return {"tokens": self.tokens_at(self.index_in_stage, i.unit)}
        forward = (*i.reads, *i.writes)[0].startswith("hidden")
        if i.op is Op.RECEIVE:
            sender = i.unit - 1 if forward else i.unit
            args: dict[str, Any] = {"rows": self.rows(sender, part)}
            if self.strategies[sender].sequence_parallel:
                args["tokens"] = self.tokens_at(self.index_in_stage, sender)
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
        blocks = (self.rows_at(index, before, part) for index in self.gathered_indices(before, i.unit))
        return {"blocks": tuple(blocks), "rows": self.rows(i.unit, part)}

    def translated(self, program: Program, digits: Digits) -> Program:
        """This rank's program, derived from `program`, that of another rank of the same class: the members of its groups are
        shifted by as much as this rank is from the other, and samples are named anew. digits: how ranks of a stage are
        numbered, one digit per level of parallelism; the shift is made digit by digit."""
        groups = dict[tuple[int, ...], tuple[int, ...]]()

        def moved(member: int) -> int:
            """A rank of the other rank's group, as the rank of this one's."""
            index = member % digits.size
            return member - index + digits.moved(index, program.index_in_stage, self.index_in_stage)

        def translated(i: Instruction) -> Instruction:
            """An instruction of the other rank, as this rank's."""
            names_samples = i.op.spec.names_samples
            if not i.group and not names_samples:
                return i
            if i.group not in groups:
                groups[i.group] = tuple(sorted(map(moved, i.group)))
            fields: dict[str, Any] = {"group": groups[i.group], "grouped": tuple(map(translated, i.grouped))}
            return i.changed(**fields, args=self.samples_of(i)) if names_samples and not i.grouped else i.changed(**fields)

        return replace(
            program,
            rank=self.rank,
            index_in_stage=self.index_in_stage,
            instructions=tuple(map(translated, program.instructions)),
        )

    def token_share(self, unit: int) -> TokenShare:
        """Buffer sizes in bytes of a unit with sequence parallelism, and the pieces of computation that it consists of."""
        if unit not in self._token_shares:
            self._token_shares[unit] = token_share(self.model, self.strategies, unit)
        return self._token_shares[unit]

    def key_share(self, unit: int) -> KeyShare | None:
        """Buffer sizes in bytes of the keys and values of an attention unit under context parallelism; None for any other
        unit."""
        return key_share(self.model, self.strategies, unit)

    def selective(self, unit: int) -> SelectiveRecomputation:
        """The bytes of autograd's graph and of workspaces of a unit, less the bytes of those of its modules that are
        recomputed."""
        return SelectiveRecomputation(self.model.units[unit].sublayer, self.strategies[unit].modules)

    def _draws(self, op: Op, unit: int) -> bool:
        """Whether operation `op` on a unit applies dropout."""
        key = (op, unit)
        if key not in self._drawing:
            self._drawing[key] = draws(self.model.units[unit].sublayer, self.strategies[unit], op)
        return self._drawing[key]

    def tokens_at(self, index: int, unit: int) -> tuple[int, int]:
        """(first, end) of the tokens of each sample that the rank with this index in the stage holds in a unit's layout."""
        key = (index, unit)
        if key not in self._tokens:
            part, parts = self.strategies[unit].share(index)
            self._tokens[key] = shard_bounds(self.model.units[unit].sublayer.tokens, parts, part)
        return self._tokens[key]

    def _tokens_of_peers(self, unit: int) -> tuple[tuple[int, int], ...]:
        """For each rank of this rank's tensor-parallel group, (first, end) of the tokens of each sample that it holds in a
        unit's layout."""
        if unit not in self._gathered_tokens:
            indices = self.strategies[unit].peers(self.index_in_stage, "tp")
            self._gathered_tokens[unit] = tuple(self.tokens_at(index, unit) for index in indices)
        return self._gathered_tokens[unit]

    def laid_bytes(self, boundary: int, unit: int, rows: int) -> int:
        """Bytes of the hidden states of `rows` samples at the output of unit `boundary`, counting only the tokens that this
        rank holds in the layout of `unit`."""
        return self.boundary_bytes(boundary, rows) // self.strategies[unit].share(self.index_in_stage)[1]

    def boundary_bytes(self, unit: int, rows: int) -> int:
        """Bytes of the hidden states of `rows` samples, all tokens, that a unit passes to the next one."""
        return self.model.units[unit].sublayer.boundary_bytes(rows)

    def transfers(self, before: int, after: int, part: MicroBatchPart) -> dict[tuple[int, int], tuple[int, ...]]:
        """The rows of a part that ranks of one stage send to ranks of another: (sender's index in its stage, receiver's index
        in its stage) -> ids of samples; pairs without rows are left out. before: a unit of the sending stage. after: a unit of
        the receiving stage."""
        rows = ([self.rows_at(index, unit, part) for index in range(self.strategies[unit].group)] for unit in (before, after))
        return row_transfers(*rows)

    def neighbours(self, unit: int) -> tuple[int, ...]:
        """The ranks, ascending, of the stage that a unit belongs to."""
        return next(group for group, stage in zip(self.groups, self.stages, strict=True) if unit in stage)

    def lane(self, neighbour: int) -> tuple[int, ...]:
        """The two ranks of a channel of messages: this rank and the rank `neighbour`, ascending."""
        return tuple(sorted((self.rank, neighbour)))


def row_transfers(before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]) -> dict[tuple[int, int], tuple[int, ...]]:
    """Divide rows (ids of samples) among senders and receivers: (sender's index, receiver's index) -> the rows that this
    sender sends to this receiver, in the receiver's order; pairs without rows are left out.

    before: the rows that each rank of the sending group holds. after: the rows that each rank of the receiving group needs. If
    several senders hold a row, the receivers are divided among them.
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
    """All ranks of a plan, or those whose numbers are in `ranks`, if it is not None. model: the model that runs, the plan's or
    a smaller one with the same units (sub-layers). most_micro_batches: compile only this number of first micro-batches; None
    for all. Raises InputError for samples that cannot be cut as the plan requires, and for too many samples per micro-batch."""
    strategies, batch, model = in_pieces(plan, model)
    stages = tuple(range(stage.first_unit, stage.last_unit + 1) for stage in plan.stages)
    groups = StageGroups(tuple(stage.ranks) for stage in plan.stages)
    count = batch.global_samples // (batch.micro_batches if batch.shares is None else sum(batch.shares))
    if (samples := count // (1 if batch.shares else min(strategy.data_degree for strategy in strategies))) > MOST_SAMPLES:
        problem, fix = f"is {batch.micro_batches}, each of {samples} samples on a rank", f"give more, of at most {MOST_SAMPLES}"
        raise InputError("plan", "batch.micro_batches", problem, fix)
    fields: dict[str, Any] = {"most_micro_batches": most_micro_batches, "planned": plan.units}
    fields |= {"precision": plan.precision.for_model(model), "optimizer": plan.optimizer}
    return [
        PlannedRank(model, strategies, stages, groups, batch, rank, plan.sliced, **fields)
        for rank in (range(plan.world) if ranks is None else ranks)
    ]


def by_kind(ranks: Sequence[PlannedRank]) -> list[list[PlannedRank]]:
    """Divide ranks of one plan into classes: ranks of one stage that have the same instructions on buffers of the same bytes.

    Ranks of a class work on equally many micro-batches, and their shards of each unit (sub-layer) are equally large. They
    differ only in the ranks of their groups and in their samples.
    """
    classes: dict[tuple[int, ...], list[PlannedRank]] = {}
    uneven: dict[int, list[tuple[Strategy, tuple[int, ...]]]] = {}
    for rank in ranks:
        if rank.stage not in uneven:
            uneven[rank.stage] = _uneven_parts(rank)
        parts = (sizes[strategy.index(rank.index_in_stage, "tp")] for strategy, sizes in uneven[rank.stage])
        classes.setdefault((rank.stage, rank.micro_batches, *parts), []).append(rank)
    return list(classes.values())


def _uneven_parts(rank: PlannedRank) -> list[tuple[Strategy, tuple[int, ...]]]:
    """For those units (sub-layers) of a rank's stage whose tensor-parallel parts are of unequal sizes: (strategy, elements of
    each part), equal pairs only once. Ranks with different parts are of different classes."""
    parts = {}
    for unit in rank.units:
        strategy, sublayer = rank.strategies[unit], rank.model.units[unit].sublayer
        tp = strategy.degree("tp")
        sizes = tuple(sublayer.parameter_count(tp, index) for index in range(tp))
        if len(set(sizes)) > 1:
            parts[strategy.levels, sizes] = strategy
    return [(strategy, sizes) for (_, sizes), strategy in parts.items()]
