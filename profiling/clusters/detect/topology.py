"""How each pair of a machine's GPUs is joined, as `nvidia-smi topo -m` shows it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.clusters.detect.links import PCIE_SHARES

TOPOLOGY = ("nvidia-smi", "topo", "-m")


@dataclass(frozen=True)
class Topology:
    """The links between the N GPUs of a machine. pairs: (N, N) names of links as in `nvidia-smi topo -m` (NV4, PIX, ...; X on
    the diagonal). origin: the source of this description, as text. Rates are None if the source does not state them.
    """

    pairs: list[list[str]]
    origin: str
    pcie_bytes_per_s: float | None = None
    network_bytes_per_s: float | None = None


def parse_topology(text: str) -> Topology:
    """Read the links between GPUs from the matrix that `nvidia-smi topo -m` prints.

    Raises InputError if the matrix is cut short or has a link of an unknown kind.
    """
    where, fix = " ".join(TOPOLOGY), "give NCCL's topology as an XML file (NCCL_TOPO_DUMP_FILE writes it)"
    lines = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    head = next((line for line in lines if "GPU0" in line), [])
    columns = [cell for cell in head if re.fullmatch(r"GPU\d+", cell)]
    if not columns:
        raise InputError(where, "", "shows no GPU", fix)
    rows = {line[0]: line[1 : len(columns) + 1] for line in lines if len(line) > 1 and line[0] in columns and "X" in line}
    for name in columns:
        links = rows.get(name, [])
        if len(links) != len(columns):
            raise InputError(where, name, f"has {len(links)} of {len(columns)} links", fix)
        for other, link in zip(columns, links, strict=True):
            if link not in PCIE_SHARES and not re.fullmatch(r"NV\d+", link) and (other, link) != (name, "X"):
                raise InputError(where, name, f"has the link {shown(link)}", fix)
    return Topology([rows[name] for name in columns], f"`{where}`")
