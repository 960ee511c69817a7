"""The shares of their peaks that kernels and links reach: assumed, or fitted to measured runs; kept in one data file.

There are three classes of kernels. A matrix product of m x k by k x n reaches `value` of the peak of its precision times d / (d
+ half_size) for each of its three sizes d. A fused attention core reaches the same for its queries and its keys, with heads of
WIDE numbers, and less with narrower ones. Kernels that only read and write memory (norms, activations, softmax, residuals)
reach `value` of the memory's bandwidth.

A core also takes one exponential per score, whatever the width w of its heads, on separate units: an NVIDIA multiprocessor
computes 16 in a clock (CUDA's programming guide, arithmetic instructions), in which its matrix units compute 2,048 operations
(A100; 4,096 of an H100, 8,192 of a B200). The exponentials then take as long as a head's two products, of 4 w operations per
score, at a w of 32, 64 and 128. Half of them are taken to overlap with products, so that `half_width` is half of that w.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from math import log1p
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Record, parse
from trainplan.profiling.clusters.own_runs import OwnRun
from trainplan.profiling.clusters.step_errors import Choices, FittedRun, StepErrors, as_relative, in_common, newness

Kernel = Literal["matrix-product", "attention", "memory"]
Precision = Literal["float64", "float32", "tfloat32", "bfloat16", "float16", "float8", "float4"]
# fmt: off
Level = Literal[
    "nvlink-1", "nvlink-2", "nvlink-3", "nvlink-4", "nvlink-5", "xgmi-3", "xgmi-4", "pcie-3", "pcie-4", "pcie-5", "network",
    "host-pcie-3", "host-pcie-4", "host-pcie-5", "host-c2c",
]
# fmt: on
WIDE = 128  # numbers of a head
Ratio = Annotated[float, Field(gt=0, le=1)]
RelativeError = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]


class Efficiency(Record):
    """The share of a device's peak rate that kernels of one class reach.

    kernel: the class: matrix multiplications, fused attention, or kernels that only read and write memory. precision: the
    precision of the peak; if omitted, all precisions that have no efficiency of their own. value: the share, from 0 to 1.
    half_size: the size of a matrix, or the number of queries or keys, at which half of `value` is reached; without meaning
    for `memory`. half_width: for `attention`, the width of heads at which exponentials that do not overlap with matrix
    multiplications take as long as these. error: relative half-width of the interval around an estimated time that is meant
    to hold 80 % of measured times. device: the kind of device that it was fitted to or assumed for, which may differ from the
    kind that it is used for; limited_by: why the value is then lower than for the kind `device`.
    """

    kernel: Kernel
    precision: Precision | None = None
    value: Ratio
    half_size: Annotated[int, Field(ge=0, le=2**20)] = 0
    half_width: Annotated[int, Field(ge=0, le=2**10)] = 0
    error: RelativeError
    origin: Literal["fitted", "assumed"]
    device: Annotated[str, Field(min_length=1)]
    limited_by: Literal["power", "vendor"] | None = None

    def of_width(self, width: int) -> float:
        """The factor on `value` for attention with heads of this width (numbers per head); 1 from `WIDE` numbers on."""
        width = min(width, WIDE)
        return width / (width + self.half_width) * (WIDE + self.half_width) / WIDE

    def origin_for(self, kind: str) -> str:
        """The origin of the efficiency as text, for use on the kind of device with this name: "assumed" or "fitted", or
        "fitted, of H100-SXM5 80 GB" if it was taken from another kind.
        """
        limit = {"power": ", less for its power", "vendor": ", no more than its vendor reaches", None: ""}[self.limited_by]
        return self.origin if self.device == kind else f"{self.origin}, of {self.device}{limit}"


class Fit(Record):
    """The origin of a number: fitted to measured runs, or assumed.

    date: the day of the fit, as 2026-01-31. rows: ids of the measured runs that it was fitted to. residuals: for each run in
    `rows`, predicted over measured step time, minus 1; empty where the table has them in `runs`. left_out: the same ratios, if
    the number is fitted without any run of that run's source (publication). source: the reason for an assumed number.
    """

    origin: Literal["fitted", "assumed"]
    date: Annotated[str, Field(pattern=r"^(\d{4}-\d{2}-\d{2})?$")] = ""
    rows: list[str] = Field(default_factory=list)
    residuals: list[Annotated[float, Field(ge=-1, allow_inf_nan=False)]] = Field(default_factory=list)
    left_out: list[Annotated[float, Field(ge=-1, allow_inf_nan=False)]] = Field(default_factory=list)
    source: str = ""

    @model_validator(mode="after")
    def _says_where_from(self) -> Fit:
        """Validate the record when it is constructed; return it unchanged. Raises InputError unless a fitted number has its
        rows and its date, and an assumed number has its source.
        """
        for name in ("residuals", "left_out"):
            if (count := len(getattr(self, name))) not in (len(self.rows), 0):
                raise InputError("", name, f"are {count} of {len(self.rows)} rows", "give one for each row")
        if self.origin == "fitted" and not (self.rows and self.date):
            raise InputError("", "rows", "or date is missing", "say when it was fitted, and to which rows")
        if self.origin == "assumed" and not self.source:
            raise InputError("", "source", "is missing", "say why it is assumed")
        return self


class KernelFit(Fit, Efficiency):
    """An efficiency of a class of kernels, and how it was obtained."""

    @property
    def efficiency(self) -> Efficiency:
        """The efficiency (share of a peak) alone, without the record of how it was fitted."""
        return Efficiency(**{name: getattr(self, name) for name in Efficiency.model_fields})


class LinkFit(Fit):
    """The share of the peak bandwidth that ring collectives, or copies between host and device, reach on one level of links,
    and how the number was obtained. For the level `network` it is a share of a port's line rate.
    """

    level: Level
    value: Ratio
    error: RelativeError


class EfficiencyTable(Record):
    """All efficiencies (shares of peaks) of kernels and links. For a device, precision and class of kernels, and for a level
    of links, there is at most one fitted and one assumed efficiency; the fitted one is preferred.

    runs: the measured runs that the fitted numbers are of, with the errors of their predictions. step_errors: the widths of
    intervals around predicted steps. choices: what choosing by predictions costs. corrected_for: the name of the user's file of
    own runs that the numbers are corrected by; empty for numbers of published runs only. own_runs: these runs.
    """

    noun: ClassVar[str] = "table of efficiencies"

    format: Literal["trainplan-efficiencies"] = "trainplan-efficiencies"
    kernels: list[KernelFit]
    links: list[LinkFit]
    corrected_for: str = ""
    step_errors: StepErrors | None = None
    choices: Choices | None = None
    runs: list[FittedRun] = Field(default_factory=list)
    own_runs: list[OwnRun] = Field(default_factory=list)

    @model_validator(mode="after")
    def _has_no_duplicates(self) -> EfficiencyTable:
        """Validate the table when it is constructed; return it unchanged. Raises InputError if two efficiencies are for the
        same kernels or links and both are fitted, or both assumed.
        """
        known: set[Any] = set()
        for i, fit in enumerate(self.kernels):
            if (key := (fit.device, fit.precision, fit.kernel, fit.origin)) in known:
                raise InputError("", f"kernels[{i}]", f"is the second {fit.origin} one of {fit.device}", "give one of them")
            known.add(key)
        for i, link in enumerate(self.links):
            if (link.level, link.origin) in known:
                raise InputError("", f"links[{i}].level", f"is {link.level!r} again", f"give one {link.origin} value of it")
            known.add((link.level, link.origin))
        return self

    def link(self, level: Level) -> LinkFit:
        """The efficiency of a level of links, such as "nvlink-4": the fitted one, or the assumed one if there is none. Raises
        KeyError if there is neither.
        """
        fits = [fit for fit in self.links if fit.level == level]
        if not fits:
            raise KeyError(level)
        return min(fits, key=lambda fit: fit.origin != "fitted")

    def step_error(self, device: str, devices: int, precision: str, framework: str, left_open: float = 0.0) -> float | None:
        """The relative half-width r of the interval around a predicted step, from step / (1 + r) to step * (1 + r), that is
        meant to hold 80 % of measured steps; None if the table does not have the widths.

        device: name of the kind's data sheet; devices: their number. precision: the dtype of the layers' matrix
        multiplications. framework: the cost model's name of the framework. left_open: a relative half-width that is added, in
        squares, for what is not known of the run.
        """
        if self.step_errors is None:
            return None
        shares = newness(in_common(self.runs, device, devices, precision, framework))
        return as_relative(self.step_errors.half_width(shares, log1p(left_open)))


@cache
def shipped_efficiencies() -> EfficiencyTable:
    """The table of efficiencies of kernels and links that comes with the package; read once."""
    path: Any = resources.files("trainplan.data") / "efficiencies.yaml"
    return parse(path, EfficiencyTable, "efficiencies.yaml")
