"""Lower bounds on the time of all strategies with given degrees.

T = max_i T_i + max_j D_j, with T_i = (gas_i - 1) M_i + S_i: gas_i is the number of micro-batches of pipeline i, M_i its slowest
stage, S_i the time of one micro-batch through its stages and transfers, D_j the slowest all-reduce of stage j's gradients. From
weaker to stronger bounds:

    even stages     some pipeline has an even share, its layers are at best the fastest, M is no less than an even part   closed
    one pipeline    T >= T_i + D_i of any one pipeline i, D_i being the slowest all-reduce that its own devices take part in:
                    so the least over all walks that a pipeline may take through the cluster (`group_graph`), found by a
                    shortest path under caps (`one_pipeline`), within the memory of the pipeline's own groups
    slow devices    With any weights w of devices, some pipeline has at least its share ceil(sum w / d) of the weight. Weights
                    are the ranks of the kinds by speed, so the one that is followed has to visit slow devices.
    uneven shares   Let n(v) be the most micro-batches with which a pipeline of weight v or more stays below a time T. Where
                    no weights of all d pipelines with the right sum have n of all micro-batches together, no strategy stays
                    below T.

Each is a function here, with its proof, and a test of its name in tests/solvers/test_cluster_search.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from trainplan.formulations.cluster_strategy.group_compositions import DegreeCase
from trainplan.solvers.cluster.one_pipeline import Path, PipelineSearch


def even_stages_ns(case: DegreeCase, tied_ns: int | None = None) -> int:
    """A lower bound in ns on the step time of all strategies with the given degrees of parallelism, in closed form.

    case: the instance with one choice of degrees of parallelism. tied_ns: a lower bound in ns on the gradient reduction of a
    table shared by embedding and head; None takes the least over all groups of devices.

    Proof: some pipeline has no less than an even share of the batch; one of its micro-batches takes no less than all layers at
    their fastest, and its slowest stage no less than an even part of that, or than any one layer. The all-reduce of the first
    stage contains the reduction of a tied table."""
    degrees = case.degrees
    fastest = case.instance.tables[degrees.tmp, degrees.mbs].layer_ns[case.instance.class_kinds].min(axis=0)
    slowest = max(int(fastest.max()), -(-int(fastest.sum()) // degrees.pp))
    return (case.even_share - 1) * slowest + int(fastest.sum()) + (case.least_tied_ns if tied_ns is None else tied_ns)


def one_pipeline_ns(pipelines: PipelineSearch, cutoff: int | None, stop: Callable[[], bool]) -> tuple[int, Path | None]:
    """A lower bound in ns on the step time of all strategies with given degrees of parallelism: the time of the cheapest single
    pipeline through the cluster; and the path of that pipeline, None if no pipeline is below the cutoff, or time ran out.

    pipelines: the search for the cheapest single pipeline with these degrees. cutoff: pipelines that take this many ns or more
    are not of interest, None for no cutoff. stop: returns whether to end early.

    Proof: a step takes no less than any one pipeline with the slowest all-reduce of its own devices. With even shares of the
    batch that is the pipeline of most weight (slow devices weigh more), which has its share of the weight of all devices; with
    uneven ones the pipeline of the largest share, whatever its weight. Pipelines are modelled as walks through a graph of
    device groups, none of which costs more than the pipeline that it stands for."""
    case = pipelines.case
    weight = -(-pipelines.whole_weight // case.degrees.dp) if len(case.share_choices) == 1 else 0
    return pipelines.least(case.even_share, weight, cutoff, stop)


def uneven_shares_leave_none(pipelines: PipelineSearch, time_ns: int, stop: Callable[[], bool]) -> bool:
    """Whether it is proven that no strategy with uneven shares of the batch, for given degrees of parallelism, takes less than
    `time_ns` ns. False if such a strategy may exist, or if time ran out.

    pipelines: the search for the cheapest single pipeline with these degrees. time_ns: a step time. stop: returns whether to
    end early.

    Proof: let n(v) be the most micro-batches with which a pipeline whose devices weigh v or more (slow devices weigh more)
    takes less than time_ns. The pipelines of a faster strategy have weights v_i that add up to the weight of all devices, and
    at most n(v_i) micro-batches; so the most micro-batches that such weights allow together must reach the number in the batch.
    """
    case = pipelines.case
    alone: list[int] = []  # n(v), for v = 0, 1, ..
    for weight in range(pipelines.most_weight + 1):
        low, high = 0, alone[-1] if alone else case.share_choices[-1]
        while low < high:
            middle = (low + high + 1) // 2
            if pipelines.least(middle, weight, time_ns, stop, first=True)[1] is None:
                if stop():
                    return False
                high = middle - 1
            else:
                low = middle
        alone.append(low)
    never = -case.micro_batches * case.degrees.dp
    most = np.full(pipelines.whole_weight + 1, never)  # most micro-batches by the sum of weights, of the pipelines so far
    most[0] = 0
    for _ in range(case.degrees.dp):
        most = np.array(
            [
                max(int(most[max(0, whole - weight)]) + (share or never) for weight, share in enumerate(alone))
                for whole in range(pipelines.whole_weight + 1)
            ]
        )
    return int(most[-1]) < case.micro_batches
