"""pipeline-partition by the planners that AutoPipe is compared with: Megatron-LM's, Piper's and DAPPLE's (Section IV).

They cut between layers only (`Instance.layers` gives each sub-layer's layer); here all have p stages of one device each, and
their answers are simulated. `trainplan.papers.replicated` has the same planners for stages that several devices share. f and b
are the passes of a layer, F_s and B_s those of a stage, c_x the message between stages x - 1 and x.

    Megatron   even numbers of Transformer layers (those of two sub-layers or more; all where there are none). It refuses where
        p does not divide them; here the first stages then have one more. Layers between two Transformer layers belong to the
        stage of the one before, those before the first of all to the first stage.
    Piper      the least largest time per sample (Tarnawski et al., NeurIPS 2021, and their program, msr-fiddle/piper),
                   TPS_x = sum (f + b) + 2 (c_x + c_{x+1}),     the messages in and out, forward and back,
               with the memory of p - x micro-batches in flight on stage x. The number of stages costs nothing.
    DAPPLE     the least latency L = T_w + T_s + T_e of M micro-batches (Fan et al., PPoPP 2021); messages are stages of their
        own; for the pivot stage Q, without gradients to reduce (HPGO, the authors' first program, states the same),
                   L(Q) = sum_{s<=Q} F_s + (M - 1) (F_Q + B_Q) + sum_{s<=Q} B_s.

DAPPLE's pivot is the stage with the fewest bubbles. L(Q) is the length of a path through its step, so the stage is meant whose
path is longest, and L = max_Q L(Q). (The paper finds it from the last stage on, by a comparison that leaves out F_Q + B_Q.)
DAPPLE and Megatron do not consider memory.

Both objectives are least by a dynamic program from the last layer on: with t and c of a stage i .. e-1 and its message,

    Piper      V_x(i) = min over e of max(TPS_x, V_{x+1}(e))
    DAPPLE     V_x(i) = min over e of max(M t, t + M 2c, t + 2c + V_{x+1}(e)),     what L is when the chain begins there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from trainplan.formulations.layer_strategies.problem import Integers
from trainplan.formulations.pipeline_partition.problem import Instance, Solution
from trainplan.solvers.core.search import Outcome, Search, Unsupported, first_fitting

MOST_STEPS = 10**10
FAR = np.int64(2**60)  # more than any time


def megatron(instance: Instance, search: Search) -> Outcome:
    """The method `megatron`: cut the model into pipeline stages of equal numbers of Transformer layers, Megatron-LM's rule. The
    outcome has these cuts if they fit the memory, and no lower bound. Raises Unsupported if there are fewer layers than stages.

    instance: the sub-layers' pass times, the number of pipeline stages and of micro-batches, and memory limits. search: the
    run's limits and options, and its best solution so far, to which better ones are reported."""
    starts, sizes = np.unique(instance.layers, return_index=True, return_counts=True)[1:]
    blocks = starts[sizes > 1] if (sizes > 1).any() else starts
    _check_layers(instance, len(blocks))
    share, more = divmod(len(blocks), instance.stages)
    firsts = [x * share + min(x, more) for x in range(1, instance.stages)]
    return first_fitting(instance, search, [Solution(tuple(int(blocks[first]) for first in firsts))], "Megatron's rule")


def piper(instance: Instance, search: Search) -> Outcome:
    """The method `piper`: cut the model between layers such that the slowest stage takes the least time per sample within the
    memory, which is Piper's objective. The outcome has no lower bound on the simulated iteration. Raises Unsupported for too
    many layers or stages, or fewer layers than stages.

    instance: the sub-layers' pass times, the number of pipeline stages and of micro-batches, and memory limits. search: the
    run's limits and options, and its best solution so far, to which better ones are reported."""
    layers, _ = instance.between_layers()
    before, moves, windows = passes_before(layers), messages(layers), layers.windows

    def extended(first: int, later: Integers) -> Integers:
        """The largest time per sample in ns of the stages from one that begins at layer `first`, by that stage and its end;
        FAR where the memory forbids it. later: the least such time of the stages after it."""
        tps = before[first + 1 :] - before[first] + 2 * (moves[first] + moves[first + 1 :])
        largest = np.maximum(tps, later)
        return largest if windows is None else np.where(windows[:, first:] <= first, largest, FAR)

    return _planned(instance, extended, search, "Piper's search")


def dapple(instance: Instance, search: Search) -> Outcome:
    """The method `dapple`: cut the model between layers such that the latency is least by DAPPLE's formula, which follows a
    pivot stage. The outcome has these cuts if they fit the memory, and no lower bound on the simulated iteration. Raises
    Unsupported for too many layers or stages, or fewer layers than stages.

    instance: the sub-layers' pass times, the number of pipeline stages and of micro-batches, and memory limits. search: the
    run's limits and options, and its best solution so far, to which better ones are reported."""
    layers, _ = instance.between_layers()
    before, moves, rounds = passes_before(layers), 2 * messages(layers), instance.micro_batches

    def extended(first: int, later: Integers) -> Integers:
        """The latency in ns of the stages from one that begins at layer `first`, by that stage and its end. later: the least
        latency of the stages after it."""
        stage, message = before[first + 1 :] - before[first], moves[first + 1 :]
        alone = np.maximum(rounds * stage, stage + rounds * message)
        return np.maximum(alone, stage + message + later)

    return _planned(instance, extended, search, "DAPPLE's search")


def passes_before(layers: Instance) -> Integers:
    """The sum of forward and backward times in ns before each of n layers, and of all layers: (n + 1,). layers: an instance in
    which each sub-layer is a whole layer."""
    return np.concatenate([[0], np.cumsum(layers.forward_ns + layers.backward_ns)])


def messages(layers: Instance) -> Integers:
    """For each possible position of a cut between two stages, the time in ns of one message across it, one way: (n + 1,), entry
    i for a cut before layer i of n layers; 0 before the first and after the last layer. layers: an instance in which each
    sub-layer is a whole layer."""
    return np.concatenate([[0], layers.transfer_ns, [0]])


def _planned(instance: Instance, extended: Callable[[int, Integers], Integers], search: Search, who: str) -> Outcome:
    """Find cuts between layers by a planner's own dynamic program from the last layer to the first, and report them if they fit
    the memory; returns the method's outcome.

    instance: the sub-layers' pass times, the number of pipeline stages and of micro-batches, and memory limits. search: the
    run's limits and options, and its best solution so far, to which better ones are reported.

    extended(first, later): the planner's recursion. It returns (stages, ends): the value of stages x to the last one if stage x
    has the layers from `first` up to each possible end (first + 1 ..). later[x]: the least value of the stages after x, by the
    layer where they begin. who: the planner's name, for messages. Raises Unsupported for too many layers or stages, or fewer
    layers than stages."""
    starts, stages = instance.layer_starts, instance.stages
    layers = len(starts)
    _check_layers(instance, layers)
    if stages * layers**2 > MOST_STEPS:
        problem = f"are {layers} layers in {stages} stages"
        raise Unsupported("instance", "layers", problem, f"give 'exact'; {who} takes {MOST_STEPS:.0e} layers x layers x stages")
    least = np.full((stages + 1, layers + 1), FAR)
    least[stages, layers] = 0
    ends = np.zeros((stages, layers), np.int64)
    for first in reversed(range(layers)):
        if search.out_of_time():
            return Outcome(message="time ran out before every layer was looked at")
        values = extended(first, least[1:, first + 1 :])
        ends[:, first] = first + 1 + values.argmin(axis=1)
        least[:-1, first] = values.min(axis=1)
    if least[0, 0] >= FAR:
        return Outcome(message=f"{who} finds no stages of whole layers that fit")
    cuts, first = [], 0
    for x in range(stages - 1):
        first = int(ends[x, first])
        cuts.append(int(starts[first]))
    return first_fitting(instance, search, [Solution(tuple(cuts))], who)


def _check_layers(instance: Instance, layers: int) -> None:
    """Check that a planner that cuts only between layers can divide the model into the instance's pipeline stages: raises
    Unsupported, with advice for users, if there are fewer layers than stages. layers: the number of layers to cut between.

    instance: the sub-layers' pass times, the number of pipeline stages and of micro-batches, and memory limits."""
    if layers < instance.stages:
        problem = f"has {layers} layers to cut between, for {instance.stages} stages"
        raise Unsupported("instance", "layers", problem, "give fewer stages, or take a method that cuts between sub-layers")
