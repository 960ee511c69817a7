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
    """Time of a collective, or of a message between two devices (`p2p`), over devices of the profile's network; 0 for one
    device alone. times: how many of them."""
    return round(times * collective_ns(profile.network, operation, message_bytes, devices))


def host_costs(profile: Profile) -> HostCosts:
    """Costs of copies and of the optimizer on the host. Raises InputError where the profile has none."""
    if profile.host is None:
        fix = "measure the profile, or estimate it on a cluster whose nodes describe their `host`"
        raise InputError("profile", "host", "is missing: parameters and optimizer are on the host", fix)
    return profile.host


def host_copy(profile: Profile, direction: CopyDirection, message_bytes: int) -> int:
    """Time of a copy between a device and its host. Raises InputError where the profile has no costs of the host."""
    host = host_costs(profile)
    rate = host.to_device_bytes_per_s if direction == "to_device" else host.to_host_bytes_per_s
    return round(copy_ns(message_bytes, Link(bandwidth_bytes_per_s=rate.value, latency_ns=host.latency_ns.value)))


def host_step(profile: Profile, parameters: int) -> int:
    """Time of the optimizer's step on a number of parameters where it works on the host. Raises InputError as `host_copy`."""
    return round(parameters * host_costs(profile).optimizer_ns_per_parameter.value)


def device_step(profile: Profile, parameters: int, by_muon: int = 0, orthogonal_ns: float = 0.0) -> int:
    """Time of the optimizer's step on a number of parameters of a device, in whole ns. by_muon, orthogonal_ns: as of
    `stepped_ns`."""
    return round(stepped_ns(profile, parameters, by_muon, orthogonal_ns))


def stepped_ns(profile: Profile, parameters: int, by_muon: int = 0, orthogonal_ns: float = 0.0) -> float:
    """Time of the optimizer's step on a number of parameters of a device, not rounded. by_muon: of these, those that Muon
    steps; orthogonal_ns: time to make their momentum orthogonal."""
    touched = parameters - by_muon * (1 - MUON_TRAFFIC)
    return touched * profile.optimizer_ns_per_parameter.value + orthogonal_ns
