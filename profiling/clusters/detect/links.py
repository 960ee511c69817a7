"""Rates of links within and between machines: peaks of PCIe, and assumptions on the share of a peak that is reached."""

from __future__ import annotations

# Shares of a link's peak that a ring reaches, on PCIe by the length of the path: assumptions.
NVLINK_SHARE = 0.8
NVLINK_BYTES_PER_S = 25e9  # of one link in one direction, without a data sheet
PCIE_SHARES = {"PIX": 0.8, "PXB": 0.8, "PHB": 0.7, "NODE": 0.6, "SYS": 0.4}
PCIE_GT_PER_S = (2.5, 5, 8, 16, 32, 64)  # by generation
PCIE_3_X16_BYTES_PER_S = 15.75e9
GLOO_BYTES_PER_S = 1e9  # between processes of one machine
NVLINK_LATENCY_NS, PCIE_LATENCY_NS, NETWORK_LATENCY_NS, SOCKET_LATENCY_NS = 5_000, 20_000, 10_000, 200_000


def pcie_bytes_per_s(gt_per_s: float, lanes: int) -> float:
    """Peak of a PCIe link in one direction, in bytes per second.

    gt_per_s: billions of transfers per second and lane. lanes: number of lanes. Of the bits sent, 8 of 10 are data up to 5
    GT/s, 128 of 130 above.
    """
    return gt_per_s * 1e9 / 8 * lanes * (0.8 if gt_per_s <= 5 else 128 / 130)


def generation_bytes_per_s(generation: int | None, lanes: int | None) -> float | None:
    """Peak of a PCIe link in one direction in bytes per second, by its generation and lanes; None if either is unknown."""
    if not generation or not lanes:
        return None
    return pcie_bytes_per_s(PCIE_GT_PER_S[min(generation, len(PCIE_GT_PER_S)) - 1], lanes)
