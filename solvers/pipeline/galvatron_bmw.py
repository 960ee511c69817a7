"""Galvatron-Base and Galvatron-BMW for one batch size: the inner loops of the paper's Algorithms 1 and 2, exactly.

Both search every stage of a partition by Algorithm 3 and cost the pipeline by Eq. 8. Base takes one partition for each number
of stages P; BMW starts at the memory-balanced one, p_m, and moves layers away from the slowest stage (Section IV-B). p is a
partition searched, p' one derived from it, p_t the time-balanced one; C(M_i, B_m) is the time of stage i for a micro-batch.

Where the paper is silent:
- Strategy_Init, PP_Partition_Init: see `partitions`. Init_Microbatch_Num: see `pipeline.batches.micro_batch_rule`.
- PP_Partition_Adjust moves a boundary block of the slowest stage (the first such) to either neighbour; both are tried.
- `validate` costs p' under the strategies found on p, each layer keeping its own; p_t, whose largest stage is the third limit,
  is found one time, with Strategy_Init, and costed under the same strategies. Where a search finds nothing, nothing is
  adjusted.
- Algorithm 3 minimises C(M_i, B_m), the last micro-batch with all its gradient synchronisation, as line 24 of Algorithm 1 has
  it. Option `stage_time` = iteration minimises the stage's part of Eq. 8: m micro-batches and one synchronisation.
- Algorithm 2 begins at P = 2, but the paper's BMW equals Base where one stage is best: P = 1 is taken from Base.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from trainplan.formulations.pipeline.batches import ruled_micro_batches
from trainplan.formulations.pipeline.instance import Instance
from trainplan.formulations.pipeline.problem import Evaluation, Solution, evaluate
from trainplan.solvers.chain.galvatron_dp import LayerOptions, LayoutMoves, PrefixTable, granularity
from trainplan.solvers.core.search import Outcome, Search
from trainplan.solvers.pipeline.partitions import BALANCES, Balance, Partition, blocks, initial_partition, uniform_choice


def galvatron_base(instance: Instance, search: Search) -> Outcome:
    """The best plan of Galvatron-Base for one batch size (Algorithm 1).

    Options: `partition` (layers, parameters, memory or time), `micro_batches` (rule or all), `stage_time` (micro-batch or
    iteration), `granularity_bytes`.
    """
    balance: Balance = search.options.get("partition") or BALANCES[0]

    def alone(stages: StageSearch) -> Iterator[SearchedPartition]:
        """Search the configuration's initial partition only."""
        yield _searched(stages, initial_partition(instance, stages.configuration, balance, check_time=stages.check_time))

    return _run(instance, search, alone)


def galvatron_bmw(instance: Instance, search: Search) -> Outcome:
    """The best plan of Galvatron-BMW for one batch size (Algorithm 2).

    Options: `micro_batches`, `stage_time` and `granularity_bytes`, as in Galvatron-Base.
    """
    return _run(instance, search, adjustments)


def _run(instance: Instance, search: Search, steps: Callable[[StageSearch], Iterator[SearchedPartition]]) -> Outcome:
    """Search all configurations; statistics name every partition searched, in blocks, and its time in ns.

    steps: yields the partitions searched in one configuration.
    """
    step_bytes = granularity(search, instance.memory_bytes, instance.layers)
    whole = search.options.get("stage_time") == "iteration"
    searched: list[dict[str, Any]] = []
    for index in _configurations(instance, search):
        if search.out_of_time():
            break
        configuration = instance.configurations[index]
        times: list[int | None] = []
        partitions: list[list[int]] = []
        searched.append({"configuration": str(configuration), "partitions": partitions, "times_ns": times})
        weight = configuration.micro_batches if whole else 1
        with suppress(TimeoutError):
            for step in steps(StageSearch(instance, index, step_bytes, weight, search.check_time)):
                time_ns = None if step.evaluation is None else step.evaluation.time_ns
                partitions.append(list(step.partition))
                times.append(time_ns)
                if time_ns is not None and search.betters(time_ns):
                    search.report(step.solution)
                search.check_time()
    statistics = {"granularity_bytes": step_bytes, "searched": searched}
    if search.out_of_time():
        return Outcome(message="time ran out before every partition was searched", statistics=statistics)
    message = f"Algorithm 3 found nothing at a granularity of {step_bytes} bytes; that proves nothing"
    return Outcome(message=message if search.objective is None else None, statistics=statistics)


class StageSearch:
    """Galvatron_Search (Algorithm 1, line 17) in one configuration, given by its index. Equal stages, and equal first layers of
    stages, share their tables."""

    def __init__(
        self, instance: Instance, configuration: int, step: int, weight: int = 1, check_time: Callable[[], None] = lambda: None
    ) -> None:
        """step: granularity of Algorithm 3 in bytes. weight: the number of micro-batches that a stage's time is counted for.
        check_time: called often; an exception that it raises is passed on."""
        self.instance, self.configuration, self.step, self.weight = instance, configuration, step, weight
        self.check_time = check_time
        self.chosen = instance.configurations[configuration]
        self.blocks = blocks(instance, self.chosen.stages)
        self._moves = [LayoutMoves(weight * table) for table in self.chosen.tables.transitions_ns]
        self._options: dict[tuple[int, int | None, int], LayerOptions] = {}
        self._chains: dict[tuple[PrefixTable | int, int | None, int], PrefixTable] = {}

    def solution(self, partition: Sequence[int]) -> Solution | None:
        """The solution of a partition, in blocks per stage, with Algorithm 3's strategies; None where it finds none for some
        stage."""
        layers = self.blocks.layers_of(partition)
        choice: list[int] = []
        for number, count in enumerate(layers):
            options = self.stage(number, len(choice), len(choice) + count - 1)
            if options is None:
                return None
            choice.extend(options)
        return Solution(self.configuration, layers, tuple(choice))

    def stage(self, number: int, first: int, last: int) -> tuple[int, ...] | None:
        """Algorithm 3's options for layers first to last (included) as stage `number`; None where it finds none."""
        instance, in_flight = self.instance, self.chosen.in_flight(number)
        chain: PrefixTable | None = None
        for l in range(first, last + 1):
            boundary, kind = instance.boundary_kinds[l - 1] if l else None, instance.layer_kinds[l]
            key = (chain or in_flight, boundary, kind)
            if key not in self._chains:
                self.check_time()
                moves = self._moves[boundary] if chain and boundary is not None else None
                layer = self._layer(in_flight, None if chain else boundary, kind)
                self._chains[key] = PrefixTable(layer, instance.memory_bytes, chain, moves)
            chain = self._chains[key]
        assert chain
        return chain.optimum

    def _layer(self, in_flight: int, entry: int | None, kind: int) -> LayerOptions:
        """The options of a layer of this kind; activations of earlier micro-batches in flight count as model states.

        entry: the kind of the boundary before it, for a stage's first layer; else None.
        """
        key = (in_flight, entry, kind)
        if key not in self._options:
            tables = self.chosen.tables
            forward, sync = tables.forward_bytes[kind], tables.sync_ns[kind]
            repeated = tables.time_ns[kind] - sync + (0 if entry is None else tables.entries_ns[entry])
            self._options[key] = LayerOptions(
                time_ns=self.weight * repeated + sync,
                forward_bytes=forward,
                backward_bytes=tables.backward_bytes[kind],
                state_bytes=tables.state_bytes[kind] + (in_flight - 1) * forward,
                step=self.step,
            )
        return self._options[key]


@dataclass(frozen=True)
class SearchedPartition:
    """A partition p' that Algorithm 2 takes from its queue, and the solution that the search finds for it.

    partition: blocks per stage. solution, evaluation: None where nothing is found. origin: the partition that it was derived
    from, None for p_m. validated: the evaluation of p' under the origin's strategies. limit_bytes: the largest stage of p_t
    under them (the third limit).
    """

    partition: Partition
    solution: Solution | None
    evaluation: Evaluation | None
    origin: SearchedPartition | None = None
    validated: Evaluation | None = None
    limit_bytes: int | None = None


def adjustments(stages: StageSearch) -> Iterator[SearchedPartition]:
    """Algorithm 2's lines 6 to 17: yields the partitions in the order in which they are searched, none of them twice."""
    instance, index = stages.instance, stages.configuration
    start = uniform_choice(instance, index, stages.check_time)
    first = initial_partition(instance, index, "memory", start, stages.check_time)
    time_balanced = stages.blocks.layers_of(initial_partition(instance, index, "time", start, stages.check_time))
    queue = deque([_searched(stages, first)])
    seen = {first}
    while queue:
        step = queue.popleft()
        yield step
        if step.solution is None or step.evaluation is None:
            continue
        choice = step.solution.choice
        limit = evaluate(instance, Solution(index, time_balanced, choice)).peak_bytes
        for partition in adjusted(step.partition, step.evaluation):
            if partition in seen:
                continue
            moved = evaluate(instance, Solution(index, stages.blocks.layers_of(partition), choice))
            if valid(moved, step.evaluation, instance.memory_bytes, limit):
                seen.add(partition)
                searched = _searched(stages, partition)
                queue.append(replace(searched, origin=step, validated=moved, limit_bytes=limit))


def adjusted(partition: Partition, evaluation: Evaluation) -> Iterator[Partition]:
    """PP_Partition_Adjust: yields the partition with one block of the slowest stage moved to the stage before it, and to the
    one after."""
    times = [stage.time_ns for stage in evaluation.stages]
    slowest = times.index(max(times))
    if partition[slowest] < 2:
        return
    for neighbour in (slowest - 1, slowest + 1):
        if 0 <= neighbour < len(partition):
            moved = list(partition)
            moved[slowest] -= 1
            moved[neighbour] += 1
            yield tuple(moved)


def valid(moved: Evaluation, before: Evaluation, memory_bytes: int, limit_bytes: int) -> bool:
    """The three limits on p' (Section IV-B): no stage slower than the slowest was, none beyond the memory, none larger than the
    largest of p_t.

    moved: the evaluation of p'. before: that of the partition it was derived from. limit_bytes: the largest stage of p_t.
    """
    slowest = max(stage.time_ns for stage in before.stages)
    return max(stage.time_ns for stage in moved.stages) <= slowest and moved.peak_bytes <= min(memory_bytes, limit_bytes)


def _searched(stages: StageSearch, partition: Partition) -> SearchedPartition:
    """Search a partition by Algorithm 3 and evaluate the solution."""
    solution = stages.solution(partition)
    evaluation = None if solution is None else evaluate(stages.instance, solution)
    return SearchedPartition(partition, solution, evaluation)


def _configurations(instance: Instance, search: Search) -> list[int]:
    """Indices of the configurations to search, from few stages to many. By the rule for micro-batches, one configuration for
    each number of stages and schedule; with the option `all`, every one."""
    every = search.options.get("micro_batches") == "all"
    groups: dict[tuple[int, str], list[int]] = {}
    for index, configuration in enumerate(instance.configurations):
        groups.setdefault((configuration.stages, configuration.schedule), []).append(index)

    indices = []
    for key in sorted(groups):
        by_number = {instance.configurations[index].micro_batches: index for index in groups[key]}
        indices += groups[key] if every else [by_number[ruled_micro_batches(instance.batch, key[0], list(by_number))]]
    return indices
