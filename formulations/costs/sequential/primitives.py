"""Costs of single collectives, copies and optimizer steps by a profile, in whole ns: every number is rounded once, here.

Problems and the simulation of programs both take their numbers from here, so that a sum of them is the same number in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.network import Link, Operation
from trainplan.profiling.costs import collective_ns, copy_ns
from trainplan.profiling.estimate import MUON_TRAFFIC
from trainplan.profiling.profiles import HostCosts, Profile

CopyDirection = Literal["to_device", "to_host"]


def collective(profile: Profile, operation: Operation, message_bytes: int, devices: Sequence[int], times: int = 1) -> int:
    """The time in whole ns of a collective, or of a message between two devices (operation `p2p`), over devices of the
    profile's network; 0 for one device alone. message_bytes: bytes of the whole message. devices: indices in the network.
    times: the number of such collectives."""
    return round(times * collective_ns(profile.network, operation, message_bytes, devices))


def host_costs(profile: Profile) -> HostCosts:
    """The profile's costs of copies to and from the host, and of the optimizer on the host. Raises InputError if the profile
    has none."""
    if profile.host is None:
        fix = "measure the profile, or estimate it on a cluster whose nodes describe their `host`"
        raise InputError("profile", "host", "is missing: parameters and optimizer are on the host", fix)
    return profile.host


def host_copy(profile: Profile, direction: CopyDirection, message_bytes: int) -> int:
    """The time in whole ns of a copy of `message_bytes` bytes between a device and its host. direction: `to_device` or
    `to_host`. profile: measured or estimated costs of the model's sub-layers and of the devices' links. Raises InputError
    if the profile has no costs of the host.
    """
    host = host_costs(profile)
    rate = host.to_device_bytes_per_s if direction == "to_device" else host.to_host_bytes_per_s
    return round(copy_ns(message_bytes, Link(bandwidth_bytes_per_s=rate.value, latency_ns=host.latency_ns.value)))


def host_step(profile: Profile, parameters: int) -> int:
    """The time in whole ns of the optimizer's step on the host. parameters: the number of parameters that are stepped.
    profile: measured or estimated costs of the model's sub-layers and of the devices' links. Raises InputError if the
    profile has no costs of the host.
    """
    return round(parameters * host_costs(profile).optimizer_ns_per_parameter.value)


def device_step(profile: Profile, parameters: int, saved: float = 0, orthogonal_ns: float = 0.0) -> int:
    """The time in whole ns of the optimizer's step on a device. parameters: the number of parameters that are stepped. saved:
    the number of moments that are not read and written, compared with AdamW's two for each parameter. orthogonal_ns: the
    time to make momentum orthogonal (Muon). profile: measured or estimated costs of the model's sub-layers and of the
    devices' links.
    """
    return round(stepped_ns(profile, parameters, saved, orthogonal_ns))


def stepped_ns(profile: Profile, parameters: int, saved: float = 0, orthogonal_ns: float = 0.0) -> float:
    """The time in ns, not rounded, of the optimizer's step on a device. parameters: the number of parameters that are stepped.
    saved: the number of moments that are not read and written, compared with AdamW's two for each parameter. orthogonal_ns:
    the time to make momentum orthogonal (Muon). profile: measured or estimated costs of the model's sub-layers and of the
    devices' links.
    """
    touched = parameters - saved * (1 - MUON_TRAFFIC)
    return touched * profile.optimizer_ns_per_parameter.value + orthogonal_ns
