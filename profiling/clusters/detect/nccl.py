"""NCCL's topology file: the tree of a machine's PCIe switches and sockets, with GPUs, NVLinks and network cards, in XML."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.clusters.detect.links import pcie_bytes_per_s
from trainplan.profiling.clusters.detect.topology import Topology

LARGEST_XML_CHARACTERS = 10 * 2**20
DEEPEST = 100  # elements within each other
SWITCH_CLASS = "0x068000"  # PCI's class of bridges that NVSwitch has
FIX = "give a file that NCCL_TOPO_DUMP_FILE made"

LinkPath = tuple[ElementTree.Element, ...]  # elements of the tree from the root to one of them


def parse_nccl(text: str, where: str) -> Topology:
    """Read the links between GPUs from NCCL's topology file, from its XML elements `gpu`, `nvlink`, `pci` and `net`.

    A file without `gpu` elements gives no pairs. text: the XML. where: the file's name, for errors. Raises InputError for a
    file that is not of this form.
    """
    gpus: dict[int, LinkPath] = {}
    speeds_mb_per_s = [0]
    waiting: list[LinkPath] = [(_root(text, where),)]
    while waiting:
        *_, element = path = waiting.pop()
        if len(path) > DEEPEST:
            raise InputError(where, "", "is nested too deeply", FIX)
        if element.tag == "gpu":
            dev = _count(element, "dev", where)
            if dev in gpus:
                raise InputError(where, "gpu", f"has dev {dev} twice", "give the file of one node")
            gpus[dev] = path
        elif element.tag == "net":
            speeds_mb_per_s.append(_count(element, "speed", where))
        waiting += [(*path, child) for child in element]
    paths = [gpus[dev] for dev in sorted(gpus)]
    rates = [rate for path in paths if (rate := _slowest_pcie(path)) is not None]
    pairs = [["X" if a is b else _joined(a, b, where) for b in paths] for a in paths]
    return Topology(pairs, "NCCL's topology file", min(rates, default=None), max(speeds_mb_per_s) * 1e6 / 8 or None)


def _root(text: str, where: str) -> ElementTree.Element:
    """Parse the text of NCCL's topology file (XML) and return its root element, `system`. where: the file's name, for errors.

    Raises InputError if the text is too large, is not plain XML or has another root.
    """
    if len(text) > LARGEST_XML_CHARACTERS:
        raise InputError(where, "", f"has {len(text):,} characters", FIX)
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise InputError(where, "", "has a document type or entities", "remove them: NCCL writes none")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        line, column = error.position
        raise InputError(where, f"line {line} column {column + 1}", f"is not XML ({error.msg.split(':')[0]})", FIX) from None
    if root.tag != "system":
        raise InputError(where, root.tag[:40], "is not NCCL's element `system`", FIX)
    return root


def _count(element: ElementTree.Element, attribute: str, where: str) -> int:
    """The whole number in an attribute of an element of NCCL's topology file in XML. where: the file's name, for errors.
    Raises InputError if the attribute is missing or no whole number.
    """
    text = element.get(attribute, "")
    if not re.fullmatch(r"\d{1,9}", text):
        raise InputError(where, f"{element.tag}.{attribute}", f"is {shown(text)}", "give a whole number")
    return int(text)


def _slowest_pcie(path: LinkPath) -> float | None:
    """The least peak, in bytes per second, of the PCIe links on the path from the root of NCCL's XML to a GPU (the elements on
    it); None if no element states a speed.
    """
    rates = []
    for element in path:
        speed = re.match(r"(\d{1,3}(?:\.\d)?) ?GT/s", element.get("link_speed", ""))
        lanes = element.get("link_width", "")
        if element.tag == "pci" and speed and re.fullmatch(r"[1-9]\d?", lanes):
            rates.append(pcie_bytes_per_s(float(speed[1]), int(lanes)))
    return min(rates, default=None)


def _joined(a: LinkPath, b: LinkPath, where: str) -> str:
    """The connection of two GPUs in NCCL's topology file, by its name in `nvidia-smi topo -m`: NV4 or the like for NVLinks,
    direct or through switches, else PIX, PXB, PHB or SYS for PCIe.

    a, b: the XML elements on the path from the root to each GPU. where: the file's name, for errors.
    """
    if links := min(_nvlinks(a, b, where), _nvlinks(b, a, where)):
        return f"NV{links}"
    shared = [element for element, twin in zip(a, b, strict=False) if element is twin]
    if shared[-1].tag == "pci":
        return "PIX" if max(len(a), len(b)) - len(shared) <= 2 else "PXB"
    return "PHB" if shared[-1].tag == "cpu" else "SYS"


def _nvlinks(this: LinkPath, other: LinkPath, where: str) -> int:
    """The number of NVLinks that one GPU has to another GPU directly, or to switches, whichever is more.

    this, other: the XML elements on the path from the root of NCCL's topology file to each GPU. where: the file's name, for
    errors.
    """
    links, bus = this[-1].findall("nvlink"), other[-2].get("busid")
    direct = sum(_count(link, "count", where) for link in links if bus and link.get("target") == bus)
    switched = sum(_count(link, "count", where) for link in links if link.get("tclass") == SWITCH_CLASS)
    return max(direct, switched)
