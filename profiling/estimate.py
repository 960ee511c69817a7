"""Estimated profiles: a roofline of every operator (Williams, Waterman and Patterson, 2009), from shapes and data sheets.

A product of (m, k) by (k, n) takes the longer of

    2 m n k / (peak x efficiency x m/(m+d) x n/(n+d) x k/(k+d))     d = half_size, of the curve of achieved efficiency
    bytes of the three matrices / memory bandwidth

and every other operator (norms, activations, softmax, residuals) takes the bytes that it touches over the memory bandwidth; a
kernel takes at least `kernel_ns`. If a kind of device has efficiencies by class of kernels and precision, these replace
`efficiency`: the memory reaches its own share of its bandwidth, and a fused attention core, whose tiles fill the device and
whose scores are never in memory, has a curve by its queries and keys, and one by the width of its heads. The many small
products of a scan by chunks are one kernel, so that the rows of all of them fill the device together. A backward pass
repeats the products twice (fused attention two and a half times, since it recomputes). AdamW reads four and writes three
numbers for each parameter, in half precision with fp32 copies and moments; Muon has no second moment, and makes its momentum
orthogonal by matrix products in bfloat16 (`orthogonal_ns`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from trainplan.profiling.base.dtypes import DTYPE_BYTES
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.clusters.cluster import Cluster, DeviceKind
from trainplan.profiling.clusters.efficiencies import Precision
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.optimizers import HALF_BYTES, ITERATIONS, Matrix, newton_schulz
from trainplan.profiling.models.sublayers import Operator, Sublayer
from trainplan.profiling.profiles import (
    LONGEST_NS,
    MOST_BYTES,
    HostCosts,
    Number,
    Profile,
    Rate,
    UnitCost,
    chain_of,
    shapes_of,
)

STATE_COPIES = 4
MOST_ROWS = 2**20  # samples of a micro-batch on one device
MUON_TRAFFIC = 5 / 7  # of the bytes that AdamW's step moves: all but the second moment, in and out


def operator_ns(
    operator: Operator, kind: DeviceKind, precision: Precision, element_bytes: float, backward: bool = False
) -> float:
    """Estimated time in ns of one kernel's forward pass, or of its backward pass: the maximum of the time of its computation,
    the time of its memory traffic, and the minimum time of a kernel.

    operator: the kernel, with its matrix sizes. kind: the kind of device, with its rates. precision: the dtype of its
    computation. element_bytes: bytes of an element in memory. backward: whether the backward pass is estimated. Raises
    KeyError if the kind of device has no rate for this precision.
    """
    work = operator.backward if backward else 1.0
    kernels = 2 if backward and operator.m else 1
    streaming = kind.reached("memory", precision)
    memory_bytes_per_s = kind.memory_bytes_per_s * (streaming.value if streaming else 1.0)
    if not operator.m:
        return max(kind.kernel_ns, operator.touched_bytes * work / memory_bytes_per_s * 1e9)
    m, n, k = operator.m, operator.n, operator.k
    core = kind.reached("attention", precision) if operator.core in ("scores", "values") else None
    if core is None:
        product = kind.reached("matrix-product", precision)
        value, d = (product.value, product.half_size) if product else (kind.efficiency, kind.half_size)
        elements = m * k + k * n + m * n
        if operator.core == "chunk":  # products of one kernel, which fill the device together
            m, n = min(m, n) * operator.count, max(m, n)
        share = value * m / (m + d) * n / (n + d) * k / (k + d)
    else:
        keys, width, d = (n, k, core.half_size) if operator.core == "scores" else (k, n, core.half_size)
        share = core.value * core.of_width(width) * m / (m + d) * keys / (keys + d)
        elements = (m + keys) * width
    compute = operator.flops * work / (kind.flops_per_s[precision] * share) * 1e9
    moved = elements * operator.count * element_bytes * work / memory_bytes_per_s * 1e9
    return max(kind.kernel_ns * kernels, compute, moved)


def orthogonal_ns(matrices: Iterable[Matrix], kind: DeviceKind, base: str) -> float:
    """Estimated time in ns of Muon's Newton-Schulz iterations, which make these matrices orthogonal one after the other, in
    bfloat16, or in the dtype `base` if the device has no rate for bfloat16. Raises KeyError if it has neither. kind: the kind
    of device, with its rates.
    """
    precision = cast(Precision, "bfloat16" if "bfloat16" in kind.flops_per_s else base)
    products = (operator for matrix in matrices for operator in newton_schulz(matrix))
    return ITERATIONS * sum(operator_ns(operator, kind, precision, HALF_BYTES) for operator in products)


def sublayer_ns(part: Sublayer, kind: DeviceKind, rows: int, tp: int) -> tuple[float, float]:
    """Estimated (forward, backward) time in ns of a sub-layer on one device, with `rows` samples and tensor-parallel degree
    `tp`. part: the sub-layer. kind: the kind of device, with its rates.
    """
    return operators_ns(part.operators(rows, tp), kind, part.dtype, part.element_bytes)


def operators_ns(operators: Sequence[Operator], kind: DeviceKind, dtype: str, element_bytes: int) -> tuple[float, float]:
    """Estimated (forward, backward) time in ns of kernels that run one after the other on a device. kind: the kind of device,
    with its rates. dtype: the dtype of their computation. element_bytes: bytes of an element in memory.
    """
    precision = cast(Precision, dtype)
    times = [
        sum(operator_ns(operator, kind, precision, element_bytes, backward) for operator in operators)
        for backward in (False, True)
    ]
    return times[0], times[1]


def estimated_cost(name: str, part: Sublayer, kind: DeviceKind, tp: int, rows: int) -> UnitCost:
    """Estimate the costs (times and bytes) of one sub-layer on one kind of device, as an entry of a profile.

    name: the sub-layer's name. part: the sub-layer. tp: tensor-parallel degree. rows: samples per micro-batch on one device.
    Raises InputError if the device has no rate for the dtype, or if rows, times or sizes are beyond the limits of profiles.
    """
    if part.dtype not in kind.flops_per_s:
        fix = f"add its rate, or use --dtype of {', '.join(kind.flops_per_s)}"
        raise InputError("cluster", f"{kind.name}.flops_per_s", f"has no {part.dtype}", fix)
    if rows > MOST_ROWS:
        problem = f"has {rows} samples of a micro-batch on one device"
        raise InputError("profile", name, problem, f"give a smaller batch, with at most {MOST_ROWS}")
    split = part.degree(tp)
    forward, backward = (max(1, ns) for ns in sublayer_ns(part, kind, rows, split))
    times = {"forward_ns": forward, "forward_without_graph_ns": forward, "backward_ns": backward}
    sizes = {
        "kept_bytes": part.kept_bytes(rows, split),
        "forward_workspace_bytes": part.forward_workspace_bytes(rows, split),
        "backward_workspace_bytes": part.backward_workspace_bytes(rows, split),
    }
    if max(times.values()) > LONGEST_NS or max(sizes.values()) > MOST_BYTES:
        problem = f"with {rows} rows takes {max(times.values()):.3g} ns and {max(sizes.values()):.3g} bytes"
        raise InputError("profile", name, problem, "give fewer rows (a smaller batch), or a faster device")
    numbers = {field: Number(value=round(value), origin="estimated") for field, value in (times | sizes).items()}
    return UnitCost(sublayer=name, device=kind.name, tp=tp, rows=rows, **numbers)


def estimate_shapes(model: Model, cluster: Cluster, shapes: Iterable[tuple[int, int]], group: int | None = None) -> Profile:
    """Estimate a profile of a model, with costs on every kind of device of a cluster.

    shapes: pairs of a tensor-parallel degree and a number of rows (samples on one device) for which it has costs. group:
    number of devices that the profile is for; None for all of the cluster. Raises InputError if an entry cannot be estimated.
    """
    shapes = list(shapes)
    slow = min(cluster.used_kinds, key=lambda kind: kind.memory_bytes_per_s)
    costs = [
        estimated_cost(name, part, kind, tp, rows)
        for kind in cluster.used_kinds
        for tp, rows in shapes
        for name, part in model.sublayers.items()
    ]
    return Profile(
        name=model.name,
        model=model.shape(),
        dtype=model.dtype,  # type: ignore[arg-type]
        parameter_bytes=model.element_bytes,
        state_bytes_per_parameter=state_bytes(model.element_bytes),
        tied_parameters=model.tied_elements,
        units=chain_of(model),
        sublayers=shapes_of(model, sorted({tp for tp, _ in shapes})),
        cluster=cluster.name,
        devices=group or cluster.devices,
        memory_bytes=cluster.smallest_kind.memory_bytes,
        reserve_bytes=cluster.smallest_kind.reserve_bytes,
        device_kinds=list(cluster.used_kinds),
        network=cluster.network,
        optimizer_ns_per_parameter=_rate(optimizer_bytes(model.element_bytes) / slow.memory_bytes_per_s * 1e9),
        host=estimated_host(cluster, model.element_bytes),
        compute_slowdown=_rate(cluster.overlap_slowdown),
        communication_slowdown=_rate(cluster.overlap_slowdown),
        costs=costs,
    )


def kind_of(profile: Profile, device: str) -> DeviceKind:
    """The description (memory, rates) of the kind of device named `device` that a profile contains; if it contains none, a
    substitute with typical proportions between its rates.
    """
    for kind in profile.device_kinds:
        if kind.name == device:
            return kind
    rates: Any = dict.fromkeys(DTYPE_BYTES, 1e13)
    return DeviceKind(name=device, memory_bytes=profile.memory_bytes, flops_per_s=rates, memory_bytes_per_s=5e11)


def state_bytes(element_bytes: int) -> int:
    """Bytes of model states per parameter: the parameter, its gradient and AdamW's two moments; at least 16, since training in
    half precision also keeps fp32 copies. element_bytes: bytes of an element of the model.
    """
    return max(16, STATE_COPIES * element_bytes)


def optimizer_bytes(element_bytes: int) -> int:
    """Bytes that AdamW's step reads and writes per parameter: it reads the parameter, its gradient and two moments, and writes
    all of them except for the gradient.

    element_bytes: bytes of an element of the model. In half precision the gradient is read and the parameter is written in 2
    bytes, everything else is an fp32 copy.
    """
    return 7 * element_bytes if element_bytes >= 4 else 2 + 3 * (4 + 4) + 2


def estimated_host(cluster: Cluster, element_bytes: int) -> HostCosts | None:
    """Estimated costs of copies to and from the slowest host of the cluster, and of the optimizer on that host; None if no node
    describes its host.

    element_bytes: bytes of an element of the model.
    """
    hosts = [node.host for node in cluster.nodes if node.host is not None]
    if not hosts:
        return None
    slow = min(hosts, key=lambda host: host.link.bandwidth_bytes_per_s)
    copies = _rate(slow.link.bandwidth_bytes_per_s)
    sharing = max(node.devices for node in cluster.nodes if node.host is not None)  # its devices step at the same time
    return HostCosts(
        to_device_bytes_per_s=copies,
        to_host_bytes_per_s=copies,
        latency_ns=Number(value=slow.link.latency_ns, origin="estimated"),
        optimizer_ns_per_parameter=_rate(optimizer_bytes(element_bytes) * sharing / slow.memory_bytes_per_s * 1e9),
        shares_bus=slow.shares_bus,
    )


def _rate(value: float) -> Rate:
    """Make a profile's entry for an estimated rate or ratio: the value with the origin `estimated`."""
    return Rate(value=value, origin="estimated")
