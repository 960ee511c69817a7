"""What kernels and links reach of their peaks: assumed, or fitted to measured runs; kept in one data file.

A kernel is of one of three classes. A matrix product of m x k by k x n reaches `value` of the peak of its precision times
d / (d + half_size) for each of its three sizes d; a fused attention core the same for its queries and its keys, with heads of
WIDE numbers, and less with narrower ones; what only reads and writes memory (norms, activations, softmax, residuals) `value` of
the memory's bandwidth.

A core also takes an exponential for each score, whatever the width w of its heads, on units of their own: 16 in each clock of
an NVIDIA multiprocessor (CUDA's programming guide, arithmetic instructions), whose products are of 2,048 operations then (A100;
4,096 of an H100, 8,192 of a B200). That is as long as a head's two products, of 4 w operations for each score, at a w of 32, 64
and 128. Half of it is taken to run beside products, so that `half_width` is half of that w.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Record, parse

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
    """What kernels of one class reach of a device's peak.

    precision: of the peak; left out, all that have no efficiency of their own. half_size: the size of a matrix, or the number
    of queries or keys, at which half of `value` is left; without meaning for `memory`. half_width: of `attention`, the width of
    heads at which what runs of exponentials by itself takes as long as products. error: half-width of the interval around
    an estimated time, relative to it, that is meant to hold 80 % of measured times. device: the kind that it was fitted to or
    assumed for, which may be another one than it stands for; limited_by: why it is then less than that one's.
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
        """The part of `value` that attention with heads of this width reaches."""
        width = min(width, WIDE)
        return width / (width + self.half_width) * (WIDE + self.half_width) / WIDE

    def origin_for(self, kind: str) -> str:
        """Where it is from, for a kind of device of this name: ``assumed``, or ``fitted, of H100-SXM5 80 GB``."""
        limit = {"power": ", less for its power", "vendor": ", no more than its vendor reaches", None: ""}[self.limited_by]
        return self.origin if self.device == kind else f"{self.origin}, of {self.device}{limit}"


class Fit(Record):
    """How a number came about. date: of the fit, as 2026-01-31; rows: ids of the measured runs that it was fitted to;
    residuals: of each row the predicted over the measured step, less 1; left_out: the same by a fit without any row of its
    source; source: of what is assumed."""

    origin: Literal["fitted", "assumed"]
    date: Annotated[str, Field(pattern=r"^(\d{4}-\d{2}-\d{2})?$")] = ""
    rows: list[str] = Field(default_factory=list)
    residuals: list[Annotated[float, Field(ge=-1, allow_inf_nan=False)]] = Field(default_factory=list)
    left_out: list[Annotated[float, Field(ge=-1, allow_inf_nan=False)]] = Field(default_factory=list)
    source: str = ""

    @model_validator(mode="after")
    def _says_where_from(self) -> Fit:
        for name in ("residuals", "left_out"):
            if (count := len(getattr(self, name))) not in (len(self.rows), 0 if name == "left_out" else len(self.rows)):
                raise InputError("", name, f"are {count} of {len(self.rows)} rows", "give one for each row")
        if self.origin == "fitted" and not (self.rows and self.date):
            raise InputError("", "rows", "or date is missing", "say when it was fitted, and to which rows")
        if self.origin == "assumed" and not self.source:
            raise InputError("", "source", "is missing", "say why it is assumed")
        return self


class KernelFit(Fit, Efficiency):
    """An efficiency of kernels, and how it came about."""

    @property
    def efficiency(self) -> Efficiency:
        """The efficiency alone."""
        return Efficiency(**{name: getattr(self, name) for name in Efficiency.model_fields})


class LinkFit(Fit):
    """What rings, or copies between host and device, reach of one level of links; `network`: of a port's line rate."""

    level: Level
    value: Ratio
    error: RelativeError


class EfficiencyTable(Record):
    """All efficiencies. Of each (device, precision, kernel) there is at most one that is fitted and one that is assumed; so
    of each level of links, of which the fitted one counts."""

    noun: ClassVar[str] = "table of efficiencies"

    format: Literal["trainplan-efficiencies"] = "trainplan-efficiencies"
    kernels: list[KernelFit]
    links: list[LinkFit]

    @model_validator(mode="after")
    def _has_each_once(self) -> EfficiencyTable:
        seen: set[Any] = set()
        for i, fit in enumerate(self.kernels):
            if (key := (fit.device, fit.precision, fit.kernel, fit.origin)) in seen:
                raise InputError("", f"kernels[{i}]", f"is the second {fit.origin} one of {fit.device}", "give each once")
            seen.add(key)
        for i, link in enumerate(self.links):
            if (link.level, link.origin) in seen:
                raise InputError("", f"links[{i}].level", f"is {link.level!r} again", f"give each {link.origin} level once")
            seen.add((link.level, link.origin))
        return self

    def link(self, level: Level) -> LinkFit:
        """The efficiency of a level of links. Raises KeyError where the table has none."""
        fits = [fit for fit in self.links if fit.level == level]
        if not fits:
            raise KeyError(level)
        return min(fits, key=lambda fit: fit.origin != "fitted")


@cache
def shipped_efficiencies() -> EfficiencyTable:
    """The table that comes with the package."""
    path: Any = resources.files("trainplan.data") / "efficiencies.yaml"
    return parse(path, EfficiencyTable, "efficiencies.yaml")
