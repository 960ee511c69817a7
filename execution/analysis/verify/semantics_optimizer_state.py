"""Rules for shards of parameters, for gradients and for the optimizer's steps: which samples a gradient is the sum of. The
arguments of rules are as in `semantics`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain
from typing import Any, NamedTuple

from trainplan.execution.analysis.verify.interpreter import Interpreter, JointRule, Rule, Weights, fault_at
from trainplan.execution.instructions import Op
from trainplan.execution.program import Instruction, Program


class Sum:
    """A sum over samples, as a multiset of terms; stored as it was added up: terms of its own, and other sums. Terms are only
    counted when the sum is used, so that adding a micro-batch costs the same however many came before."""

    __slots__ = ("_counts", "_parts", "_terms")

    def __init__(self, terms: Iterable[Any] = (), parts: tuple[Sum, ...] = ()) -> None:
        self._terms, self._parts = terms, parts
        self._counts: Mapping[Any, int] | None = None

    def __add__(self, other: Sum) -> Sum:
        """Both sums added, in constant time."""
        return Sum((), (self, other))

    def counts(self) -> Mapping[Any, int]:
        """How often each term (a sample's id, or a pair of id and tensor-parallel index) is in the sum; cached."""
        if self._counts is None:
            terms, sums, pending = list[Iterable[Any]](), list[Mapping[Any, int]](), [self]
            while pending:
                part = pending.pop()
                if part._counts is None:
                    pending += part._parts
                    terms.append(part._terms)
                else:
                    sums.append(part._counts)
            counts = Counter(chain.from_iterable(terms))
            for known in sums:
                for term, count in known.items():
                    counts[term] += count
            self._counts = dict(counts)
        return self._counts


class Gradient(NamedTuple):
    """The samples that the gradient of a unit (sub-layer) holds. split: those in the gradient of its split parameters.
    replicated: pairs (sample, tensor-parallel index) in the gradient of its replicated parameters. head: samples in the head's
    part of the gradient of an embedding's table that the head uses too. tied: whether it has been summed with the gradient of
    the other copy of a tied matrix."""

    split: Sum
    replicated: Sum
    head: Sum
    tied: bool = False

    def plus(self, other: Gradient) -> Gradient:
        """The gradient that holds the samples of both."""
        return Gradient(self.split + other.split, self.replicated + other.replicated, self.head + other.head, self.tied)


EMPTY = Gradient(Sum(), Sum(), Sum())


@lru_cache(maxsize=2**14)
def contribution_of(rows: tuple[int, ...], tp_index: int) -> Gradient:
    """The gradient that a backward pass of the samples `rows` adds to its sub-layer's gradient on one tensor-parallel rank,
    the one with index `tp_index`."""
    return Gradient(Sum(rows), Sum([(row, tp_index) for row in rows]), Sum())


def _gradient(run: Interpreter, rank: int, head: Instruction, name: str) -> Gradient:
    """The meaning of the gradient buffer called `name`, which `head`, an instruction of `rank`, adds to or sums. Raises Fault
    if the buffer still is of the step before, since nothing has been written to it in this step."""
    gradient = run.value(rank, name)
    if not isinstance(gradient, Gradient):
        raise fault_at(rank, head, f"adds to {name}, which is of the step before")
    return gradient


def _has_replicated(program: Program, unit: int) -> bool:
    """Whether the unit (sub-layer) with index `unit` has parameters of which every tensor-parallel rank holds all, not a shard,
    such as a norm's."""
    return bool(program.model.units[unit].sublayer.replicated_count)


def contribute(run: Interpreter, rank: int, head: Instruction, name: str, contribution: Gradient) -> None:
    """Add `contribution` to the meaning of the gradient buffer called `name` on `rank`. If `head`, the instruction, does not
    also read the buffer, the contribution replaces what it held."""
    before = _gradient(run, rank, head, name) if name in head.reads else EMPTY
    run.values[rank][name] = before.plus(contribution)


def _gather_parameters(run: Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    """Symbolic execution of the all-gather of a sub-layer's sharded parameters (ZeRO stage 3): every rank then has all of them.
    heads: the instruction of each of `ranks`. Raises Fault unless each reads its shard, not yet stepped. run: the interpreter,
    whose table `values` of what each buffer means is read and updated."""
    for rank, head in zip(ranks, heads, strict=True):
        assert head.unit is not None
        if run.value(rank, head.reads[0]) != Weights(head.unit):
            raise fault_at(rank, head, f"gathers {head.reads[0]}, which is not this step's shard of its unit")
        run.values[rank][head.writes[0]] = Weights(head.unit, True)


def _gather_updated(run: Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    """Symbolic execution of the all-gather of parameters after the optimizer's step (ZeRO stages 1 and 2): every rank then has
    them whole again. heads: the instruction of each of `ranks`. Raises Fault unless each has stepped its shard. run: the
    interpreter, whose table `values` of what each buffer means is read and updated."""
    for rank, head in zip(ranks, heads, strict=True):
        assert head.unit is not None
        if run.value(rank, head.reads[0]) != Weights(head.unit, stepped=True):
            raise fault_at(rank, head, f"gathers {head.reads[0]}, of which the rank has not stepped its shard")
        run.values[rank][head.writes[0]] = Weights(head.unit, whole=True, stepped=True)


def _reduce_replicated(run: Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    """Symbolic execution of the all-reduce, over tensor-parallel ranks, of the gradients of parameters that all of them hold
    whole. heads: the instruction of each of `ranks`. run: the interpreter, whose table `values` of what each buffer means is
    read and updated."""
    gradients = [_gradient(run, rank, head, head.reads[0]) for rank, head in zip(ranks, heads, strict=True)]
    total = Sum((), tuple(value.replicated for value in gradients))
    for rank, head, value in zip(ranks, heads, gradients, strict=True):
        run.values[rank][head.writes[0]] = value._replace(replicated=total)


def _reduce_gradients(run: Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    """Symbolic execution of an all-reduce or reduce-scatter of gradients: each rank's gradient, or shard of it, becomes the sum
    over the group, added to what its shard held before if the instruction reads that. heads: the instruction of each of
    `ranks`. run: the interpreter, whose table `values` of what each buffer means is read and updated."""
    gradients = [_gradient(run, rank, head, head.reads[0]) for rank, head in zip(ranks, heads, strict=True)]
    split, replicated, of_head = (Sum((), parts) for parts in list(zip(*gradients, strict=True))[:3])
    total = Gradient(split, replicated, of_head, gradients[0].tied)
    for rank, head in zip(ranks, heads, strict=True):
        before = _gradient(run, rank, head, head.writes[0]) if head.writes[0] in head.reads[1:] else EMPTY
        run.values[rank][head.writes[0]] = total if before is EMPTY else before.plus(total)


@cache
def every_sample(samples: int) -> dict[int, int]:
    """The counts of a sum in which every sample is exactly once: 2 -> {0: 1, 1: 1}."""
    return dict.fromkeys(range(samples), 1)


@cache
def every_pair(samples: int, tp: int) -> dict[tuple[int, int], int]:
    """The counts of a sum in which every pair (sample, tensor-parallel index) is exactly once. samples, tp: how many of each
    there are."""
    return {(row, index): 1 for row in range(samples) for index in range(tp)}


def _reduce_tied(run: Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    """Symbolic execution of the all-reduce of the gradients of both copies of a tied matrix (embedding and head): marks them as
    summed. heads: the instruction of each of `ranks`. Raises Fault unless each already holds every sample exactly once. run:
    the interpreter, whose table `values` of what each buffer means is read and updated."""
    for rank, head in zip(ranks, heads, strict=True):
        for name in head.reads:
            value = run.value(rank, name)
            if value is None or value.split.counts() != every_sample(run.programs[rank].samples):
                raise fault_at(rank, head, f"ties {name} before it is summed")
            run.values[rank][name] = value._replace(tied=True)


def _optimizer_step(run: Interpreter, rank: int, head: Instruction) -> None:
    """Symbolic execution of `head`, the optimizer's step on a sub-layer's parameters on `rank`. Raises Fault unless the
    gradient holds every sample exactly once, the parameters are not yet stepped, and a tied matrix has been reduced. run: the
    interpreter, whose table `values` of what each buffer means is read and updated."""
    assert head.unit is not None
    program, value, weights = run.programs[rank], run.value(rank, head.reads[0]), head.writes[0]
    if value is None:
        raise fault_at(rank, head, f"uses {head.reads[0]}, which is of the step before")
    if run.value(rank, weights) != Weights(head.unit, whole=run.shard(rank, head).gathers_updates):
        raise fault_at(rank, head, f"changes {weights}, which has been stepped")
    run.values[rank][weights] = Weights(head.unit, stepped=True)
    pairs = every_pair(program.samples, run.shard(rank, head).tp) if _has_replicated(program, head.unit) else None
    if value.split.counts() != every_sample(program.samples) or (pairs is not None and value.replicated.counts() != pairs):
        raise fault_at(rank, head, f"uses {head.reads[0]}, which does not hold each sample once")
    if program.shares_table:
        if head.unit == 0 and value.head.counts() != every_sample(program.samples):
            raise fault_at(rank, head, f"uses {head.reads[0]}, which does not hold the head's part of each sample once")
    elif program.model.tied and head.unit in (0, len(run.programs[rank].strategies) - 1) and not value.tied:
        raise fault_at(rank, head, "comes before the tied matrix is reduced")


def _reduce_loss(run: Interpreter, ranks: Sequence[int], heads: list[Instruction]) -> None:
    """Symbolic execution of the sum of the loss over all ranks. heads: the instruction of each of `ranks`. Raises Fault unless
    the sum counts every sample exactly once. run: the interpreter, whose table `values` of what each buffer means is read and
    updated."""
    total = Sum((), tuple(run.value(rank, "loss") for rank in ranks))
    if total.counts() != every_sample(run.programs[0].samples):
        raise fault_at(ranks[0], heads[0], "does not count each sample once")


STEPPED: dict[Op, Rule] = dict.fromkeys((Op.OPTIMIZER_STEP, Op.HOST_OPTIMIZER_STEP), _optimizer_step)
REDUCED: dict[Op, JointRule] = {
    Op.GATHER_PARAMETERS: _gather_parameters,
    Op.GATHER_UPDATED: _gather_updated,
    Op.REDUCE_REPLICATED: _reduce_replicated,
    Op.REDUCE_SCATTER_GRADIENTS: _reduce_gradients,
    Op.ALL_REDUCE_GRADIENTS: _reduce_gradients,
    Op.REDUCE_TIED: _reduce_tied,
    Op.REDUCE_LOSS: _reduce_loss,
}
