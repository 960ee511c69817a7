"""The numbers of a unit that keeps states or inputs on the host, as trainplan's programs copy them (`execution`).

    optimizer    it works on the host, on the rank's shards there. The device sums the gradients of all micro-batches, copies
                 the sum out after their reductions (of a shared table after the sum of both gradients), and the host steps;
                 new parameters come back last
    parameters   none of them stays on the device: the rank's shard is copied in before every pass
    hidden       the input of a recomputed unit is copied out in its forward pass, and back before its backward pass

Copies follow computations one by one, as on one lane; overlapping lanes save some of that time.
"""

from __future__ import annotations

from trainplan.formulations.costs.sequential.primitives import host_copy, host_step
from trainplan.formulations.costs.sequential.sublayer_memory import LOSS_BYTES
from trainplan.formulations.joint.tables import Option
from trainplan.formulations.plan.strategy import Strategy
from trainplan.profiling.profiles import Profile


def with_host(
    profile: Profile, sublayer: str, option: Option, samples: int, numbers: dict[str, int], in_flight: int, least: bool = False
) -> dict[str, int]:
    """The costs of a sub-layer under an option that keeps a part of it on the host, by column names of `OptionTable` (such as
    `forward_ns`).

    profile: measured or estimated costs of the model's sub-layers and of the devices' links. sublayer: the sub-layer's name
    in the profile. option: a strategy, and the parts that are on the host. samples: samples per micro-batch. numbers: the
    costs of the option's strategy with nothing on the host. in_flight: the largest number of micro-batches on a stage at
    the same time, each of which may have an input on the host. least: for a lower bound of memory, leave out the sum of
    gradients, which is on the device during a part of the step only. Raises InputError if the profile does not describe the
    host.
    """
    strategy, result = option.strategy, dict(numbers)
    assert strategy is not None
    if "optimizer" in option.host:
        part = -(-profile.shapes[sublayer].shard(strategy.degree("tp")).parameters // strategy.degree("sdp"))
        shard, lazily = part * profile.parameter_bytes, "parameters" in option.host
        gone = host_copy(profile, "to_host", shard) + host_step(profile, part)
        shared = bool(profile.tied_parameters) and profile.shapes[sublayer].kind in ("embedding", "head")
        result["reduce_ns"] += 0 if shared else gone
        result["optimizer_ns"] = (gone if shared else 0) + (0 if lazily else host_copy(profile, "to_device", shard))
        result["host_bytes"] += numbers["state_bytes"] - (0 if least else LOSS_BYTES)
        parameters = 0 if lazily else shard
        result["state_bytes"] = parameters if least else parameters + shard + LOSS_BYTES
        if lazily:
            brought = host_copy(profile, "to_device", shard)
            result["forward_ns"] += brought
            result["backward_ns"] += brought
            result["work_backward_bytes"] += shard
    if "hidden" in option.host:
        size = input_bytes(profile, sublayer, strategy, samples)
        result["forward_ns"] += host_copy(profile, "to_host", size)
        result["backward_ns"] += host_copy(profile, "to_device", size)
        result = with_input_away(result, size, in_flight)
    return result


def with_input_away(numbers: dict[str, int], size: int, in_flight: int) -> dict[str, int]:
    """The costs of a sub-layer, by the names of columns of `OptionTable`, when its input is on the host between its forward and
    its backward pass. numbers: the costs with the input on the device. size: the bytes of the input. in_flight: the largest
    number of micro-batches that have an input on the host at the same time."""
    return numbers | {
        "kept_bytes": numbers["kept_bytes"] - size,
        "work_backward_bytes": numbers["work_backward_bytes"] + size,
        "host_bytes": numbers["host_bytes"] + in_flight * size,
    }


def input_bytes(profile: Profile, sublayer: str, strategy: Strategy, samples: int) -> int:
    """The bytes of one rank's input of a sub-layer for a micro-batch of `samples` samples: all tokens for an embedding, and
    else only the rank's own tokens where ranks share them (sequence parallelism). sublayer: the sub-layer's name in the
    profile. profile: measured or estimated costs of the model's sub-layers and of the devices' links.
    """
    shape, rows = profile.shapes[sublayer], samples // strategy.data_degree
    return rows * shape.input_bytes // (1 if shape.kind == "embedding" else strategy.share(0)[1])
