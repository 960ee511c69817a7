"""Compares the memory that runs of plans measured with the memory that analysis of their programs predicts."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat

import torch
from trainplan.execution.launch.report import RunReport
from trainplan.execution.lowering.memory import StorageTracker
from trainplan.profiling.measure.allocations import PeakMemory

MEDIAN = 0.01


def kernel_bytes(shape: tuple[int, int], threads: int) -> int:
    """The bytes that kernels of a step of torch's Muon on a float32 matrix of this shape allocate for themselves at its peak.

    They depend on this CPU and on the number of threads: nothing, packed copies of a product's matrices, or copies in float32.
    """
    matrix = torch.ones(shape, requires_grad=True)
    matrix.grad = torch.ones(shape)
    optimizer, before = torch.optim.Muon([matrix]), torch.get_num_threads()
    optimizer.step()
    torch.set_num_threads(threads)
    with PeakMemory() as allocated:
        optimizer.step()
    with StorageTracker() as tensors:
        tensors.count([matrix, matrix.grad, optimizer.state[matrix]["momentum_buffer"]])
        held = tensors.alive_bytes
        optimizer.step()
    torch.set_num_threads(before)
    return allocated.peak_bytes - (tensors.peak_bytes - held)


def memory_follows_the_walk(
    reports: Iterable[RunReport], worst: float = 0.05, kernels_bytes: Iterable[int] = repeat(0)
) -> None:
    """Fails where the memory that ranks allocated differs from the predicted by more than 1 % in the median, or by more than
    `worst` for any rank.

    kernels_bytes: for each report, the bytes that a kernel allocates for itself at the peak, which are not predicted.
    """
    errors = []
    for report, kernel in zip(reports, kernels_bytes, strict=False):
        assert report.peak_bytes is not None
        peaks = zip(report.predicted_peak_bytes, report.peak_bytes, strict=True)
        errors += [abs(predicted / (measured - kernel) - 1) for predicted, measured in peaks]
    errors.sort()
    print(f"memory walk against torch: median error {errors[len(errors) // 2]:.2%}, worst {errors[-1]:.2%}")
    assert errors[len(errors) // 2] < MEDIAN
    assert errors[-1] < worst
