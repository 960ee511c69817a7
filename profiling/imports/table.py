"""Plain tables of layer times: seconds of a forward and a backward pass together, by layer (rows) and tensor-parallel degree.

A `.npy` file has one or two dimensions; a `.csv` file rows of numbers. Their columns are the degrees 1, 2, 4, ..., or those of
`--tp`. A CSV file with a header names its columns: `tp1`, `tp2`, ... the seconds, and as far as known `layer` a name,
`parameters` their number, and `output_bytes` and `kept_bytes` (in addition to the input) of one sample; or each row is one
time, with the columns `layer`, `tp` and `seconds`. How their numbers are read:
- times are those of `rows` samples on the ranks together, 1 if not given, and split 1 : 2 over the passes;
- with `communication` included they contain what tensor parallelism sends; excluded, each pass all-reduces the output twice,
  after attention and after FFN;
- sequence x hidden size elements of 16 bits go on from a layer, where its output_bytes are not in the table;
- tensor parallelism splits parameters and what is kept evenly. A size that the table lacks is counted as nothing; the
  provenance says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.imports.source import (
    LARGEST_COUNT,
    LONGEST_S,
    MOST_BYTES,
    Options,
    Source,
    chain,
    cost,
    counted,
    finished,
    number,
    shape,
)
from trainplan.profiling.imports.table_files import HEADER
from trainplan.profiling.profiles import Profile

OPTIONS = ("rows", "sequence", "hidden_size", "memory_bytes", "tp", "communication")
SIZES = ("parameters", "output_bytes", "kept_bytes")
ELEMENT_BYTES = 2
STATE_BYTES_PER_PARAMETER = 16
FORWARD_SHARE = 1 / 3
REDUCTIONS = 2  # all-reduces of each pass: after attention and after FFN
SHORTEST_S = 1e-9
DEGREE = re.compile(r"tp\d+")


@dataclass(frozen=True)
class Row:
    """A layer of a table: its name, its seconds by tensor-parallel degree, and its sizes by name (0 for sizes that the table
    lacks).
    """

    name: str
    seconds: dict[int, float]
    sizes: dict[str, float]


def recognises(data: dict[str, Any]) -> bool:
    """Whether an object is the content of a table file: it has the keys columns and cells, and no others."""
    return set(data) == {"columns", "cells"}


def read(sources: Sequence[Source], options: Options) -> Profile:
    """Build the profile from one table of layer times. Raises InputError for several tables, or for one that is invalid or
    does not specify a value.

    options: the user's values for everything that the table does not specify; the cluster is required.
    """
    source, cluster = sources[0], options.cluster
    if len(sources) > 1:
        raise sources[1].fail("", "is a second table", "give one, with a column for each degree")
    if cluster is None:
        raise source.fail("", "says nothing of links", "give --cluster, such as a100-16")
    rows = _rows(source, options)
    missing = [name for name in SIZES if not any(row.sizes[name] for row in rows)]
    contained = _communication(source, options, rows, missing)
    content = {
        **chain(_layer(row, options, 0 if contained else REDUCTIONS) for row in rows),
        "name": source.stem,
        "dtype": "bfloat16",
        "parameter_bytes": ELEMENT_BYTES,
        "state_bytes_per_parameter": STATE_BYTES_PER_PARAMETER,
        "devices": cluster.devices,
        "memory_bytes": options.memory(source),
        "network": cluster.network,
    }
    notes = {"sizes": f"{', '.join(missing)}: not known, counted as nothing"} if missing else {}
    return finished(sources, "a table", options, content, optimizer="not in the file, so 0", **notes)


def _communication(source: Source, options: Options, rows: Sequence[Row], missing: Sequence[str]) -> bool:
    """Whether the times in a table include the communication of tensor parallelism: True only if the user's options say
    "included".

    source: the table, for errors. rows: its layers. missing: names of the sizes that it lacks. Raises InputError if the table
    has several tensor-parallel degrees and the options do not specify it, or if it is excluded and the bytes to send are
    unknown.
    """
    if options.communication not in (None, "included", "excluded"):
        problem = f"is {shown(options.communication)}"
        raise InputError("command line", "--communication", problem, "give included or excluded")
    if max(rows[0].seconds) > 1:
        if options.communication is None:
            problem = "does not say whether its times contain what tensor parallelism sends"
            raise source.fail("", problem, "give --communication included or excluded")
        if options.communication == "excluded" and "output_bytes" in missing:
            fix = "give --sequence and --hidden-size, or a column output_bytes"
            raise source.fail("", "does not say how much tensor parallelism sends", fix)
    return options.communication == "included"


def _rows(source: Source, options: Options) -> list[Row]:
    """Read the layers of a table, in order; if the table has no sizes of outputs, they are computed from the options. Raises
    InputError if the table is invalid.
    """
    columns = source.data["columns"]
    if isinstance(columns[0], int):
        degrees = options.tp or [1 << i for i in range(len(columns))]
        if len(set(degrees)) != len(columns):
            raise InputError(
                "command line", "--tp", f"is {shown(degrees)}", f"give {len(columns)} degrees, one for each column"
            )
        columns = [f"tp{degree}" for degree in degrees]
    elif options.tp is not None:
        raise InputError("command line", "--tp", f"is {shown(options.tp)}", f"leave it out: {source.path} names its degrees")
    times = {"tp", "seconds"} if "seconds" in columns else {name for name in columns if DEGREE.fullmatch(name)}
    unknown = [name for name in columns if name not in (*times, "layer", *SIZES)]
    if unknown or not times or len(set(columns)) < len(columns) or not times <= set(columns):
        problem = f"are {', '.join(columns)[:60]}"
        raise source.fail("columns", problem, f"give {HEADER}, and {', '.join(SIZES)} as far as known")
    if "seconds" not in columns:
        for name in times:
            counted(source, f"column {name}", name.removeprefix("tp"))
    layers: dict[str, Row] = {}
    for line, cells in enumerate(source.data["cells"], start=1):
        row = dict(zip(columns, cells, strict=True))
        name = str(row.pop("layer", line)).removesuffix(".0")
        read = {field: _number(source, f"layer {name} {field}", field, value) for field, value in row.items()}
        sizes = {field: read.get(field, 0.0) for field in SIZES}
        seconds = {int(read["tp"]): read["seconds"]} if "seconds" in times else {int(tp[2:]): read[tp] for tp in times}
        if name in layers and ("seconds" not in times or set(seconds) & set(layers[name].seconds)):
            raise source.fail(f"layer {name}", "stands there twice", "give each layer once, or once for each degree")
        layers[name] = Row(name, layers[name].seconds | seconds if name in layers else seconds, sizes)
    rows = _in_order(source, layers)
    if short := [row for row in rows if set(row.seconds) != set(rows[0].seconds)]:
        problem = f"has the degrees {sorted(short[0].seconds)}, but layer {rows[0].name} {sorted(rows[0].seconds)}"
        raise source.fail(f"layer {short[0].name}", problem, "give every layer the same")
    if options.sequence is not None and options.hidden_size is not None:
        (sequence,), (hidden_size,) = (options.by_type(source, name, 1024, 1) for name in ("sequence", "hidden_size"))
        output = {"output_bytes": float(sequence * hidden_size * ELEMENT_BYTES)}
        rows = [row if row.sizes["output_bytes"] else Row(row.name, row.seconds, row.sizes | output) for row in rows]
    return rows


def _in_order(source: Source, layers: Mapping[str, Row]) -> list[Row]:
    """Sort the layers of a table: by number if all their names are numbers, else as in the table.

    source: the table, for errors. layers: the layers by name. Raises InputError if a number is missing.
    """
    if not all(name.isdecimal() for name in layers):
        return list(layers.values())
    by_number = {int(name): row for name, row in layers.items()}
    first = min(1, *by_number)
    for index in range(first, first + len(by_number)):
        if index not in by_number:
            raise source.fail(f"layer {index}", "is missing", "give every layer a row, or names in place of numbers")
    return [row for _, row in sorted(by_number.items())]


def _number(source: Source, path: str, field: str, value: Any) -> float:
    """Check that the value of a table's cell is a number within its column's limits, and return it; raises InputError
    otherwise.

    source: the table, and path: the cell in it, for errors. field: the name of the cell's column.
    """
    if field not in (*SIZES, "tp"):
        return number(source, path, value, LONGEST_S, SHORTEST_S)
    count = number(source, path, value, MOST_BYTES) if field in SIZES else number(source, path, value, LARGEST_COUNT, 1)
    if not count.is_integer():
        raise source.fail(path, f"is {shown(value)}", f"give a whole number, such as {max(1, round(count))}")
    return count


def _layer(row: Row, options: Options, reductions: int) -> tuple[str, dict[str, Any], list[Any]]:
    """Describe a layer of a table in the form of a profile: returns its name, its sub-layer and its costs, as the function
    `chain` takes them.

    row: the layer. reductions: number of all-reduces per pass that its times do not include.
    """
    parameters, output_bytes, kept_bytes = (round(row.sizes[name]) for name in SIZES)
    rows = options.rows or 1
    costs = []
    for tp, seconds in sorted(row.seconds.items()):
        forward = seconds * 1e9 * FORWARD_SHARE
        costs.append(cost("", options.device, tp, rows, forward, seconds * 1e9 - forward, rows * kept_bytes / tp))
    counts = {tp: round(parameters / tp) for tp in row.seconds}
    return (
        f"layer-{row.name}" if row.name.isdecimal() else row.name,
        shape("layer", output_bytes, output_bytes, counts, reductions=reductions),
        costs,
    )
