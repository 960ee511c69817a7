"""Data sheets: the vendors' statements on each kind of device, and on the nodes that it is sold in, one file per kind."""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, one_of, shown
from trainplan.profiling.base.files import Record, parse
from trainplan.profiling.clusters.efficiencies import Level, Precision
from trainplan.profiling.clusters.network import Latency, Positive
from trainplan.profiling.clusters.recipes import RecipeName, check_rates
from trainplan.profiling.shipped import locate, shipped

PCIE_LANE_BYTES_PER_S = {3: 8e9 / 8 * 128 / 130, 4: 16e9 / 8 * 128 / 130, 5: 32e9 / 8 * 128 / 130}  # one lane, one way
LISTING = "trainplan cluster kinds"
Count = Annotated[int, Field(ge=1, le=2**20)]
Bytes = Annotated[int, Field(gt=0, le=2**60)]


class ScaleUp(Record):
    """The links between the devices of a node, NVLink or xGMI.

    links: number of links of one device; link_bytes_per_s: the rate of one link in one direction. domain: the largest number
    of devices that they join. meshed: whether every device has links to every other one, because there are no switches.
    optional: whether they are sold separately, such as bridges.
    """

    level: Level
    links: Count
    link_bytes_per_s: Positive
    domain: Annotated[int, Field(ge=2, le=2**12)]
    meshed: bool = False
    optional: bool = False
    latency_ns: Latency = 5_000


class Pcie(Record):
    """The PCIe link to the host, and between devices that have no other link."""

    generation: Literal[3, 4, 5]
    lanes: Literal[1, 2, 4, 8, 16] = 16

    @property
    def bytes_per_s(self) -> float:
        """The link's peak in one direction, in bytes per second: 128 of 130 bits are data."""
        return PCIE_LANE_BYTES_PER_S[self.generation] * self.lanes


class CoherentLink(Record):
    """A link between CPU and device that replaces PCIe (such as NVLink-C2C): its peak rate in one direction, for one device."""

    level: Level
    bytes_per_s: Positive


class HostSheet(Record):
    """The CPU of a node that has `devices` devices; its memory is divided in proportion for a node with fewer devices."""

    devices: Count
    memory_bytes: Bytes
    memory_bytes_per_s: Positive
    link: CoherentLink | None = None


class Ports(Record):
    """Network ports of a node: the line rate of one port in one direction, and how many consecutive devices share it."""

    bytes_per_s: Positive
    devices_per_port: Count = 1


class Source(Record):
    """The source of the numbers in the fields that `of` names: a vendor's document with its date or revision, or a statement
    that they are assumed.
    """

    of: Annotated[list[str], Field(min_length=1)]
    source: Annotated[str, Field(min_length=10)]


class DeviceSheet(Record):
    """The data sheet of one kind of device as it is sold, and of the nodes that it is usually part of.

    released: the year. words: words that its name may have in lists of machines, such as `sxm` and `80gb`, in lower case; the
    first one names its chip. driver_name: a regular expression for the driver's name of it, without NVIDIA and brands.
    flops_per_s: peaks of dense matrix multiplications (no sparsity) by dtype; float32 on CUDA cores or AMD's matrix cores.
    attainable_flops_per_s: for some of these dtypes, the rate that the vendor states for its own library. recipes: names of
    the low-precision recipes that it supports. memory_bytes: memory as sold; visible_bytes: memory that programs can use.
    scale_up: NVLink or xGMI between devices. kernel_ns: minimum time of one kernel. sources: where the numbers of each field
    come from.
    """

    noun: ClassVar[str] = "device sheet"

    name: Annotated[str, Field(min_length=1)]
    vendor: Literal["NVIDIA", "AMD"]
    architecture: Annotated[str, Field(min_length=1)]
    released: Annotated[int, Field(ge=2000, le=2100)]
    words: Annotated[list[str], Field(min_length=1)]
    driver_name: str | None = None
    flops_per_s: Annotated[dict[Precision, Positive], Field(min_length=1)]
    attainable_flops_per_s: dict[Precision, Positive] = Field(default_factory=dict)
    recipes: list[RecipeName] = Field(default_factory=list)
    memory_bytes: Annotated[int, Field(gt=0, le=2**50)]
    visible_bytes: Annotated[int, Field(gt=0, le=2**50)] | None = None
    memory_bytes_per_s: Positive
    power_watts: Annotated[int, Field(ge=1, le=10_000)] | None = None
    scale_up: ScaleUp | None = None
    pcie: Pcie
    host: HostSheet
    network: Ports
    kernel_ns: Annotated[int, Field(ge=0, le=10**9)] = 5_000
    sources: Annotated[list[Source], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_its_sources(self) -> DeviceSheet:
        """Validate the sheet when it is constructed; return it unchanged. Raises InputError unless every stated field has
        exactly one source, every recipe has a rate, and the visible memory is not larger than the whole memory.
        """
        check_rates(self.recipes, self.flops_per_s)
        stated = set(SOURCED) - {name for name in SOURCED if getattr(self, name) in (None, {}, [])}
        sourced = [name for source in self.sources for name in source.of]
        for name in sorted(stated ^ set(sourced)):
            problem = "has no source" if name in stated else "has a source and no value"
            raise InputError("", name, problem, "name each such field once in sources")
        if len(sourced) > len(set(sourced)):
            raise InputError("", "sources", "name a field twice", "name each field once")
        if self.visible_bytes is not None and self.visible_bytes > self.memory_bytes:
            raise InputError("", "visible_bytes", f"is {self.visible_bytes}", f"give at most {self.memory_bytes}")
        return self

    @property
    def joined(self) -> ScaleUp | None:
        """The links between the devices of a usual node; None if there are none, or if they are sold separately."""
        return None if self.scale_up is None or self.scale_up.optional else self.scale_up


SOURCED = (  # fields that must have a source
    *("flops_per_s", "attainable_flops_per_s", "recipes", "memory_bytes", "visible_bytes", "memory_bytes_per_s", "power_watts"),
    *("scale_up", "pcie", "host", "network"),
)


IGNORED_WORDS = {"nvidia", "amd", "instinct", "geforce", "tesla", "dgx", "hgx", "gpu", "gpus", "tensor", "core", "superchip"}
OTHER_PARTS = {"laptop", "mobile", "mig", "max", "super", "d"}  # words of other parts than the one of a sheet
ALIKE = 0.1  # relative difference allowed between the memory in a name and in a sheet


@cache
def sheet(name: str) -> DeviceSheet:
    """The shipped data sheet of this name, such as `h100`. Raises InputError if there is none."""
    return parse(locate("devices", name, "--cluster", "a device sheet"), DeviceSheet, name)


@cache
def sheets() -> dict[str, DeviceSheet]:
    """All shipped data sheets by name, such as `h100`."""
    return {name: sheet(name) for name in shipped("devices")}


def kind_named(text: str, option: str = "--cluster") -> str:
    """The name of the data sheet that a user's text means, such as `a100` for `A100-80GB-SXM`.

    It is the sheet that is named exactly so, or else the only sheet that has all words of the text; if several have them, the
    sheet whose own name is one of the words. option: the command's option that the text was given to, for errors. Raises
    InputError if there is no such sheet, or several.
    """
    folded = text.strip().lower()
    if folded in shipped("devices"):
        return folded
    words = _words(folded)
    meant = [name for name, described in sheets().items() if words and words <= set(described.words)]
    own = [name for name in meant if name in words]
    if len(meant) == 1 or own:
        return (own or meant)[0]
    if meant:
        raise InputError(
            COMMAND_LINE, option, f"is {shown(text)}, which {len(meant)} kinds are", f"give one of: {', '.join(meant)}"
        )
    raise InputError(COMMAND_LINE, option, f"names the device {shown(text)}", one_of(folded, sheets(), LISTING))


def likely_kind(text: str) -> tuple[str, bool]:
    """The name of the data sheet that a text in a table of measured runs most likely means, and whether that is a guess (True)
    or certain (False).

    Among the sheets of its chip, it is the one that lacks the fewest of the text's other words; among equals the one whose
    own name has most of the words, then one whose usual node has joined devices. Words that no sheet has are ignored, unless
    they state another memory size or part. Raises InputError if no sheet has the chip, or none with this memory size.
    """
    words = _words(text.strip().lower())
    with_chip = [(name, described) for name, described in sheets().items() if name in words or _names_chip(words, described)]
    if not with_chip:
        raise InputError(
            "gpu", "gpu", f"is {shown(text)}, of which there is no data sheet", one_of(text.lower(), sheets(), LISTING)
        )
    known = {word for _, described in with_chip for word in described.words}

    def likelihood(pair: tuple[str, DeviceSheet]) -> tuple[int, int, bool, int]:
        """The key by which sheets with the chip are ordered, the likeliest first."""
        name, described = pair
        missing = len((words & known) - set(described.words))
        return missing, -len(words & set(name.split("-"))), described.joined is None, len(name)

    name, chosen = min(with_chip, key=likelihood)
    sizes_gib = [int(word[:-2]) for word in words if re.fullmatch(r"\d{1,4}gb", word) and word not in chosen.words]
    if words & OTHER_PARTS or any(abs(gib * 2**30 / chosen.memory_bytes - 1) > ALIKE for gib in sizes_gib):
        fix = f"write {name!r} to have it predicted as that, with {chosen.memory_bytes / 2**30:g} GiB"
        raise InputError("gpu", "gpu", f"is {shown(text)}, of which there is no data sheet", fix)
    return name, not words <= {*chosen.words, name}


def _chip(described: DeviceSheet) -> list[str]:
    """The words of a data sheet that name its chip: the first word, or the first two for RTX and Titan."""
    return described.words[: 1 + (described.words[0] in ("rtx", "titan"))]


def _names_chip(words: set[str], described: DeviceSheet) -> bool:
    """Whether the words of a device's name contain the name of a data sheet's chip: all of its words, or only its number of
    four digits, such as 4090 or 2080ti.
    """
    chip = _chip(described)
    return set(chip) <= words or (re.fullmatch(r"\d{4}(ti)?", chip[-1]) is not None and chip[-1] in words)


def _words(text: str) -> set[str]:
    """The words of a device's name in lower case: "8x nvidia a100 sxm 80 gb" -> {a100, sxm, 80gb}.

    An amount of memory is one word; vendors, brands and numbers of devices are omitted.
    """
    counted = re.sub(r"^\d+ *x *|(?<=\w)(?<!rt)x\d+$| x *\d+$", "", text)
    apart = re.sub(r"(?<=\d)(sxm|pcie|nvl(?!\d))|(?<=rtx)(?=\d)", r" \1", counted)
    joined = re.sub(r"(\d+) *(?:gb|gib)\b|(?<![a-z\d])(\d+) *g\b", lambda match: f"{match[1] or match[2]}gb", apart)
    better = (f"{number}ti" for number in re.findall(r"(\d{4})[ -]ti\b", joined))
    return {*re.findall(r"[a-z0-9.]+", joined), *better} - IGNORED_WORDS
