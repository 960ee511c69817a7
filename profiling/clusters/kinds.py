"""Builds kinds of devices from data sheets: the memory that plans may use, and the shares of the peaks that kernels reach.

A kind without an efficiency at a precision takes that of the nearest kind that has one: of its own architecture if there is
any, else of its vendor, then of about its year. Its error is then wider. Among several kinds that are equally near, or several
efficiencies of one kind, a fitted one is preferred to an assumed one. An efficiency fitted to bfloat16 is also used for
float16, where a device has both at one rate and nothing is fitted to float16. A device with r times the power per FLOP/s of a
sibling of its architecture, r below 1, reaches r^(1/3) of the sibling's share, since a circuit's dynamic power grows with the
cube of its clock (Mudge, 2001); and no device reaches more than its vendor states.
"""

from __future__ import annotations

from math import ceil, log
from typing import Literal, get_args

from trainplan.profiling.clusters.cluster import DeviceKind
from trainplan.profiling.clusters.efficiencies import Efficiency, EfficiencyTable, Kernel, KernelFit, Precision
from trainplan.profiling.clusters.sheets import DeviceSheet, sheet, sheets

GIB = 2**30
VISIBLE = 79.1 / 80  # share of the memory as sold that torch can use on an H100 (huggingface/trl issue 2688)
CONTEXT_BYTES = GIB // 2  # of the driver's context and libraries, assumed
COMMUNICATORS_BYTES = round(4 * 0.67 * GIB)  # four of 0.67 GiB (NVIDIA/nccl issue 964, A100 with NVLink)
WITHOUT_LINKS = 0.25  # share of that over PCIe, whose rings have fewer channels, assumed
FRAGMENTED = 0.02  # share of the visible memory, assumed
SAME_ARCHITECTURE_ERROR, OTHER_ERROR = 0.05, 0.15  # added to that of the kind that an efficiency is borrowed from, assumed


def device_kind(name: str, table: EfficiencyTable) -> DeviceKind:
    """Build the kind of device that the data sheet with this name describes, such as `h100`. Raises InputError if there is no
    such sheet.

    table: efficiencies; gives the shares of its peak rates that kernels reach on this kind.
    """
    described = sheet(name)
    return DeviceKind(
        name=described.name,
        memory_bytes=described.memory_bytes,
        reserve_bytes=reserve_bytes(described),
        flops_per_s=described.flops_per_s,
        recipes=described.recipes,
        memory_bytes_per_s=described.memory_bytes_per_s,
        kernel_ns=described.kernel_ns,
        efficiencies=[efficiency for kernel in get_args(Kernel) for efficiency in _efficiencies(name, kernel, table)],
    )


def reserve_bytes(described: DeviceSheet) -> int:
    """The memory of a device that plans may not use, in bytes, rounded up to GiB: the part that programs do not see, the
    driver's context, the buffers of four communicators, and the loss to fragmentation.

    described: the device's data sheet.
    """
    visible = described.visible_bytes or described.memory_bytes * VISIBLE
    buffers = COMMUNICATORS_BYTES if described.joined else COMMUNICATORS_BYTES * WITHOUT_LINKS
    taken = described.memory_bytes - visible + CONTEXT_BYTES + buffers + FRAGMENTED * visible
    return ceil(taken / GIB) * GIB


def _efficiencies(name: str, kernel: Kernel, table: EfficiencyTable) -> list[Efficiency]:
    """The efficiencies (shares of peak rates) of a class of kernels on a device, one for each precision that it has (a single
    one for kernels that only move memory).

    name: the name of the device's data sheet. table: the efficiencies to choose from; one of another device may be used. A
    precision for which there is none is omitted.
    """
    precisions: list[Precision | None] = [None] if kernel == "memory" else [*sheet(name).flops_per_s]
    nearest = [(precision, _nearest(name, kernel, precision, table)) for precision in precisions]
    return [_borrowed(name, fit, precision) for precision, fit in nearest if fit is not None]


def _nearest(name: str, kernel: Kernel, precision: Precision | None, table: EfficiencyTable) -> KernelFit | None:
    """Choose the entry of a table of efficiencies to use for a class of kernels on a device: the device's own, else one of the
    same architecture, else of the same vendor, else of the nearest kind of device.

    Among equally near ones, a fitted one comes first, then one of exactly this precision. name: the name of the device's data
    sheet. precision: None for kernels that only move memory. Returns None if the table has no entry that can be used.
    """
    fits = [fit for fit in table.kernels if fit.kernel == kernel and _counts(fit, precision)]
    return min(
        fits,
        key=lambda fit: (
            distance(name, fit.device, precision)[:3],
            fit.origin != "fitted",
            distance(name, fit.device, precision),
            fit.precision != precision,
        ),
        default=None,
    )


def _counts(fit: KernelFit, precision: Precision | None) -> bool:
    """Whether an efficiency may be used at a precision (None: for kernels that only move memory): it may if it is of that
    precision, of all precisions, or fitted to another precision that its device computes at the same rate. fit: the
    efficiency, with the precision and device that it was fitted for.
    """
    if precision is None or fit.precision is None:
        return fit.precision is None and (precision is None or precision in sheet(fit.device).flops_per_s)
    if fit.precision == precision:
        return precision in sheet(fit.device).flops_per_s
    return fit.origin == "fitted" and fitted_as(fit.device, precision) == fit.precision


def fitted_as(device: str, precision: Precision) -> Precision:
    """The precision whose fitted efficiency is used for a precision on a device: bfloat16 for float16 if the device computes
    both at the same rate; any other precision is returned unchanged.

    device: the name of its data sheet.
    """
    rates = sheet(device).flops_per_s
    return "bfloat16" if precision == "float16" and rates.get("bfloat16") == rates.get(precision) else precision


def distance(name: str, other: str, precision: Precision | None) -> tuple[bool, bool, bool, float, int, float]:
    """How different two kinds of device are, as a tuple whose lexicographical order ranks kinds by their distance from the
    kind `name`; smaller is nearer.

    name, other: the names of their data sheets. The entries: whether the devices differ, whether the architectures differ,
    whether the vendors differ, the absolute logarithm of the ratio of their power for a FLOP/s (0 if precision is None, or a
    power is not stated), the difference of their years, and the absolute logarithm of the ratio of their peaks at this
    precision (of their memory bandwidths if precision is None).
    """
    mine, theirs, power = sheet(name), sheet(other), 0.0
    rates = (mine.memory_bytes_per_s, theirs.memory_bytes_per_s)
    if precision is not None:
        rates = (mine.flops_per_s[precision], theirs.flops_per_s[precision])
        if mine.power_watts and theirs.power_watts:
            power = abs(log(mine.power_watts / rates[0] / (theirs.power_watts / rates[1])))
    apart = mine.architecture != theirs.architecture, mine.vendor != theirs.vendor
    return name != other, *apart, round(power, 2), abs(mine.released - theirs.released), abs(log(rates[0] / rates[1]))


def _borrowed(name: str, fit: KernelFit, precision: Precision | None) -> Efficiency:
    """The efficiency of a device at one precision, from a fit to this or another device.

    If the fit is of another device, the error is wider, and the value is limited by the device's power and by the share that
    its vendor states to be attainable. name: the name of the device's data sheet. precision: None for kernels that only move
    memory.
    """
    value, error, mine, theirs = fit.value, fit.error, sheet(name), sheet(fit.device)
    limited_by: Literal["power", "vendor"] | None = None
    if name != fit.device:
        alike = mine.architecture == theirs.architecture
        error += SAME_ARCHITECTURE_ERROR if alike else OTHER_ERROR
        if precision is not None:
            slower = _slower_by_power(mine, theirs, precision) if alike else 1.0
            attainable = _attainable(name, precision)
            limited_by = "vendor" if attainable < value * slower else "power" if slower < 1 else None
            value = min(value * slower, attainable)
    return Efficiency(
        kernel=fit.kernel,
        precision=precision,
        value=round(value, 4),
        half_size=fit.half_size,
        half_width=fit.half_width,
        error=round(error, 4),
        origin=fit.origin,
        device=theirs.name,
        limited_by=limited_by,
    )


def _slower_by_power(mine: DeviceSheet, theirs: DeviceSheet, precision: Precision) -> float:
    """The factor, at most 1, on a share of the peak that is taken from another device, if the device that it is used for has
    less power per FLOP/s.

    mine: the data sheet of the device that it is used for; theirs: the data sheet of the other device. Returns 1 if either
    does not state its power.
    """
    if mine.power_watts is None or theirs.power_watts is None:
        return 1.0
    watts = mine.power_watts / mine.flops_per_s[precision], theirs.power_watts / theirs.flops_per_s[precision]
    return min(1.0, watts[0] / watts[1]) ** (1 / 3)


def _attainable(name: str, precision: Precision) -> float:
    """The largest share of a device's peak that any kernel reaches according to its vendor's statements on this device, or
    else on the nearest device with a statement; 1 if there is none.

    name: the name of the device's data sheet.
    """
    mine = sheet(name)
    stating = [
        other
        for other, described in sheets().items()
        if described.vendor == mine.vendor and precision in described.attainable_flops_per_s and precision in mine.flops_per_s
    ]
    if not stating:
        return 1.0
    nearest = min(stating, key=lambda other: distance(name, other, precision))
    theirs = sheet(nearest)
    share = theirs.attainable_flops_per_s[precision] / theirs.flops_per_s[precision]
    return share * _slower_by_power(mine, theirs, precision)
