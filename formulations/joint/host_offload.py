"""What keeping a unit's states or inputs on the host adds to its numbers, as trainplan's programs copy them (`execution`).

    optimizer    it works on the host, on the rank's shards there. The device sums the gradients of all micro-batches, copies
                 the sum out behind their reductions (of a shared table behind the sum of both gradients), and the host steps;
                 new parameters come back last
    parameters   nothing of them stays on the device: the rank's shard is copied in before every pass
    hidden       the input of a recomputed unit is copied out in its forward pass, and back before its backward pass

Copies follow computations one by one, as on one lane; lanes beside each other save some of that.
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
    """The numbers of a sub-layer under an option, by their names in `OptionTable`, from those of its strategy alone. in_flight:
    the most micro-batches on a stage, each of which may have an input on the host. least: without the sum of gradients, which
    is on the device for a part of the step alone. Raises InputError where the profile says nothing of the host."""
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
    """The numbers of a sub-layer whose input, of so many bytes, is on the host between its passes. in_flight: as of
    `with_host`."""
    return numbers | {
        "kept_bytes": numbers["kept_bytes"] - size,
        "work_backward_bytes": numbers["work_backward_bytes"] + size,
        "host_bytes": numbers["host_bytes"] + in_flight * size,
    }


def input_bytes(profile: Profile, sublayer: str, strategy: Strategy, samples: int) -> int:
    """A rank's input of a micro-batch of so many samples: of an embedding, or of its own tokens where they are shared."""
    shape, rows = profile.shapes[sublayer], samples // strategy.data_degree
    return rows * shape.input_bytes // (1 if shape.kind == "embedding" else strategy.share(0)[1])
