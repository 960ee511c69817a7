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
    """The method `galvatron-base`: the best plan of Galvatron-Base for one batch size (Algorithm 1 of Galvatron-BMW), without a
    proof of optimality.

    instance: the layers' strategies with times and memory, and the possible configurations (number of stages and micro-batches,
    schedule). search: the run's limits and options, and its best solution so far, to which better ones are reported.

    Options of the search: `partition` (what stages are balanced by: layers, parameters, memory or time), `micro_batches` (the
    number of micro-batches by the paper's rule, or all possible numbers), `stage_time` (which time of a stage its strategies
    minimise: of one micro-batch, or of the whole iteration), `granularity_bytes` (the memory step)."""
    balance: Balance = search.options.get("partition") or BALANCES[0]

    def alone(stages: StageSearch) -> Iterator[SearchedPartition]:
        """Search the configuration's initial partition only."""
        yield _searched(stages, initial_partition(instance, stages.configuration, balance, check_time=stages.check_time))

    return _run(instance, search, alone)


def galvatron_bmw(instance: Instance, search: Search) -> Outcome:
    """The method `galvatron-bmw`: the best plan of Galvatron-BMW for one batch size (Algorithm 2 of the paper), without a proof
    of optimality.

    instance: the layers' strategies with times and memory, and the possible configurations (number of stages and micro-batches,
    schedule). search: the run's limits and options, and its best solution so far, to which better ones are reported.

    Options of the search: `micro_batches` (the number of micro-batches by the paper's rule, or all possible numbers),
    `stage_time` (which time of a stage its strategies minimise: of one micro-batch, or of the whole iteration),
    `granularity_bytes` (the memory step)."""
    return _run(instance, search, adjustments)


def _run(instance: Instance, search: Search, steps: Callable[[StageSearch], Iterator[SearchedPartition]]) -> Outcome:
    """Search the partitions of all configurations (numbers of stages and micro-batches, with a schedule), and report each
    better plan. Returns the outcome, whose statistics list every partition searched (blocks of layers per stage) and its time
    in ns.

    instance: the layers' strategies with times and memory, and the possible configurations (number of stages and micro-batches,
    schedule). search: the run's limits and options, and its best solution so far, to which better ones are reported. steps: for
    one configuration, yields the partitions with the strategies found for them."""
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
    """The search for the strategies of a pipeline's stages, by Galvatron-BMW's Algorithm 3 (Galvatron_Search in Algorithm 1,
    line 17), in one configuration (number of stages and micro-batches), given by its index. Stages that begin with equal layers
    share their tables of the dynamic program."""

    def __init__(
        self, instance: Instance, configuration: int, step: int, weight: int = 1, check_time: Callable[[], None] = lambda: None
    ) -> None:
        """Prepare the search of one configuration. step: granularity of Algorithm 3 in bytes. weight: the number of
        micro-batches that a stage's time is counted for. check_time: called often; an exception that it raises is passed on.

        instance: the layers' strategies with times and memory, and the possible configurations (number of stages and
        micro-batches, schedule)."""
        self.instance, self.configuration, self.step, self.weight = instance, configuration, step, weight
        self.check_time = check_time
        self.chosen = instance.configurations[configuration]
        self.blocks = blocks(instance, self.chosen.stages)
        self._moves = [LayoutMoves(weight * table) for table in self.chosen.tables.transitions_ns]
        self._options: dict[tuple[int, int | None, int], LayerOptions] = {}
        self._chains: dict[tuple[PrefixTable | int, int | None, int], PrefixTable] = {}

    def solution(self, partition: Sequence[int]) -> Solution | None:
        """The plan in which each stage of a partition has the strategies that Galvatron-BMW's Algorithm 3 finds for it; None if
        it finds no strategies for some stage. partition: blocks of layers per stage."""
        layers = self.blocks.layers_of(partition)
        choice: list[int] = []
        for number, count in enumerate(layers):
            options = self.stage(number, len(choice), len(choice) + count - 1)
            if options is None:
                return None
            choice.extend(options)
        return Solution(self.configuration, layers, tuple(choice))

    def stage(self, number: int, first: int, last: int) -> tuple[int, ...] | None:
        """The strategies that Algorithm 3 finds for the layers `first` to `last` (inclusive) as the pipeline stage with index
        `number`, one option index per layer; None if it finds none within the memory."""
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
        """The options of a layer with their times in ns and memory in bytes; the activations of the other micro-batches in
        flight are added to the model states, since they stay during the layer's passes.

        in_flight: micro-batches in flight in the stage. entry: for a stage's first layer, the number of the kind of the
        boundary before it, whose entry time is added; else None. kind: the number of the layer's kind, its row in the tables of
        costs.
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
    """A partition that Algorithm 2 takes from its queue, and the solution that the search finds for it.

    partition: the number of blocks (layers that stay together) of each stage. solution, evaluation: the plan with the
    strategies found and its times and memory, None if none were found. origin: the partition that this one was derived from,
    None for the first, memory-balanced one. validated: the evaluation of this partition under the origin's strategies.
    limit_bytes: the peak memory of the largest stage of the time-balanced partition under these strategies (the paper's third
    limit)."""

    partition: Partition
    solution: Solution | None
    evaluation: Evaluation | None
    origin: SearchedPartition | None = None
    validated: Evaluation | None = None
    limit_bytes: int | None = None


def adjustments(stages: StageSearch) -> Iterator[SearchedPartition]:
    """Lines 6 to 17 of Galvatron-BMW's Algorithm 2 in one configuration: begin with the memory-balanced partition and move
    blocks of layers away from the slowest stage. Yields the partitions with the strategies found, in the order in which they
    are searched, each exactly once. stages: the search for the strategies of a configuration's stages."""
    instance, index = stages.instance, stages.configuration
    start = uniform_choice(instance, index, stages.check_time)
    first = initial_partition(instance, index, "memory", start, stages.check_time)
    time_balanced = stages.blocks.layers_of(initial_partition(instance, index, "time", start, stages.check_time))
    queue = deque([_searched(stages, first)])
    known = {first}
    while queue:
        step = queue.popleft()
        yield step
        if step.solution is None or step.evaluation is None:
            continue
        choice = step.solution.choice
        limit = evaluate(instance, Solution(index, time_balanced, choice)).peak_bytes
        for partition in adjusted(step.partition, step.evaluation):
            if partition in known:
                continue
            moved = evaluate(instance, Solution(index, stages.blocks.layers_of(partition), choice))
            if valid(moved, step.evaluation, instance.memory_bytes, limit):
                known.add(partition)
                searched = _searched(stages, partition)
                queue.append(replace(searched, origin=step, validated=moved, limit_bytes=limit))


def adjusted(partition: Partition, evaluation: Evaluation) -> Iterator[Partition]:
    """PP_Partition_Adjust of Galvatron-BMW: yield the partition with one block of layers moved from the slowest stage to the
    stage before it, and then to the stage after it; nothing if the slowest stage has one block only.

    partition: blocks per stage. evaluation: the times of its stages."""
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
    """Whether a derived partition keeps the three limits of Galvatron-BMW (Section IV-B): no stage slower than the slowest
    stage was before, none beyond the memory, and none larger than the largest stage of the time-balanced partition.

    moved: the evaluation of the derived partition. before: the evaluation of the partition that it was derived from.
    memory_bytes: the memory limit of a device. limit_bytes: peak memory of the largest stage of the time-balanced partition."""
    slowest = max(stage.time_ns for stage in before.stages)
    return max(stage.time_ns for stage in moved.stages) <= slowest and moved.peak_bytes <= min(memory_bytes, limit_bytes)


def _searched(stages: StageSearch, partition: Partition) -> SearchedPartition:
    """Find the strategies of a partition by Algorithm 3 and evaluate them; the record's solution and evaluation are None if
    none were found. stages: the search for the strategies of a configuration's stages. partition: blocks of layers per stage.
    """
    solution = stages.solution(partition)
    evaluation = None if solution is None else evaluate(stages.instance, solution)
    return SearchedPartition(partition, solution, evaluation)


def _configurations(instance: Instance, search: Search) -> list[int]:
    """Indices of the configurations to search, from few stages to many. A configuration is a number of stages and of
    micro-batches with a schedule. The paper's rule gives one number of micro-batches for each number of stages and schedule;
    with the search's option `micro_batches` = all, every configuration is returned.

    instance: the layers' strategies with times and memory, and the possible configurations (number of stages and micro-batches,
    schedule). search: the run's limits and options, and its best solution so far; only read here."""
    every = search.options.get("micro_batches") == "all"
    groups: dict[tuple[int, str], list[int]] = {}
    for index, configuration in enumerate(instance.configurations):
        groups.setdefault((configuration.stages, configuration.schedule), []).append(index)

    indices = []
    for key in sorted(groups):
        by_number = {instance.configurations[index].micro_batches: index for index in groups[key]}
        indices += groups[key] if every else [by_number[ruled_micro_batches(instance.batch, key[0], list(by_number))]]
    return indices
