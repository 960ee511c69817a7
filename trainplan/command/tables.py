"""Prints models, clusters and profiles for people, as tables on standard output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainplan.command.printing import out, pairs, table
from trainplan.profiling.base.quantities import format_bytes, format_count, format_rate, format_time, plural
from trainplan.profiling.clusters.cluster import Cluster, DeviceKind
from trainplan.profiling.clusters.efficiencies import Precision
from trainplan.profiling.clusters.network import Island
from trainplan.profiling.clusters.sheets import sheet
from trainplan.profiling.layer_summary import LayerSummary, profiled_shapes, reached, runs
from trainplan.profiling.models.model import Model
from trainplan.profiling.profiles import Profile, Rate

BAR, WIDE = 12, 130  # letters of a bar; columns of a terminal that shows all of the table of kinds


def model_row(model: Model) -> dict[str, Any]:
    """A model's sizes by name, a row of `model list`: name, family, parameters, layers, hidden, heads (of queries), kv_heads
    (of keys and values) and context (the most tokens of a sample).

    hidden, heads and kv_heads are lists if layers differ, as in Swin; heads and kv_heads are 0 of models without attention.
    """
    # a unit is an attention alone, or a block that has one
    parts: list[Any] = [getattr(unit.sublayer, "attention", unit.sublayer) for unit in model.units]
    attentions = [part for part in parts if part.kind == "attention"]
    return {
        "name": model.name,
        "family": model.family,
        "parameters": model.total_parameters,
        **active(model),
        "layers": model.layers,
        "hidden": _distinct(part.hidden for part in attentions or parts),
        "heads": _distinct(part.heads for part in attentions),
        "kv_heads": _distinct(part.kv_heads for part in attentions),
        "context": model.sequence_tokens,
    }


def searched(model: Model) -> str:
    """The text of a model that words of `model list` are looked for in: its name, its family, and "experts" if it has them."""
    return " ".join([model.name, model.family, *["experts"] * bool(active(model))])


def active(model: Model) -> dict[str, int]:
    """The number of parameters that one token uses, as the field `active_parameters`; empty for a model that uses all of them
    for every token."""
    used = model.active_parameters
    return {} if used == model.total_parameters else {"active_parameters": used}


def _distinct(values: Iterable[int]) -> int | list[int]:
    """The distinct values in the order in which they first come: (96, 96, 192) gives [96, 192]; if there is only one, the
    number itself, and if there is none, 0."""
    found = list(dict.fromkeys(values))
    return found[0] if len(found) == 1 else found or 0


def models(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print models family by family, in a family the smallest first. rows: a dict of sizes for each model, as `model_row` makes
    it."""
    cells, before = [], None
    for row in sorted(rows, key=lambda row: (row["family"], row["parameters"], row["name"])):
        hidden, heads, kv_heads = (_range(row[name]) for name in ("hidden", "heads", "kv_heads"))
        family = row["family"] if row["family"] != before else ""
        used = f" ({format_count(row['active_parameters'])} active)" if "active_parameters" in row else ""
        sizes = [format_count(row["parameters"]) + used, str(row["layers"]), hidden, heads, kv_heads, f"{row['context']:,}"]
        cells.append([family, row["name"], *sizes])
        before = row["family"]
    names = ("family", "model", "parameters", "layers", "hidden", "heads", "kv heads", "context")
    table(names, cells, left=("family", "model"))


def _range(value: int | list[int]) -> str:
    """A size of a model as a text, such as `4096`; for a list of sizes, since layers differ, the first and the last one, such
    as `96-768`, and "-" for 0."""
    return f"{value[0]}-{value[-1]}" if isinstance(value, list) else str(value or "-")


def sublayer_rows(model: Model, rows: int, tp: int) -> list[dict[str, Any]]:
    """A dict for each distinct sub-layer of a model: `sublayer` (name), `count` (how often the model has it), `tp` (its
    tensor-parallel degree), `tokens` (per sample), `hidden` (hidden size), `parameters`, `active_parameters` (those that one
    token uses, if it does not use all of the model's), `forward_flops`, `input_bytes` (of the input tensor), `kept_bytes` (kept
    for the backward pass) and `boundary_bytes` (of a message if a stage ends there); parameters, flops and bytes are those of
    one device.

    rows: the number of samples on the device. tp: the tensor-parallel degree; a sub-layer that it cannot split has the degree
    1."""
    counts, listed = Counter(model.key_of(unit) for unit in model.units), []
    for name, part in model.sublayers.items():
        degree = part.degree(tp)
        listed.append(
            {
                "sublayer": name,
                "count": counts[name],
                "tp": degree,
                "tokens": part.tokens,
                "hidden": part.hidden,
                "parameters": part.parameter_count(degree),
                **({"active_parameters": part.active_count(degree)} if active(model) else {}),
                "forward_flops": part.forward_flops(rows, degree),
                "input_bytes": part.input_bytes(rows),
                "kept_bytes": part.kept_bytes(rows, degree),
                "boundary_bytes": part.boundary_bytes(rows),
            }
        )
    return listed


def model(model: Model, rows: int, tp: int) -> None:
    """Print a table of a model's distinct sub-layers: parameters, flops of a forward pass, and bytes on one device.

    rows: the number of samples on the device. tp: the tensor-parallel degree.
    """
    pairs(
        [
            ("model", f"{model.name} ({model.family}), {model.layers} layers, {len(model.units)} sub-layers, {model.dtype}"),
            ("parameters", f"{model.total_parameters:,}" + (", tied" if model.tied else "")),
            *_of_a_token(model),
            *([("attention", model.attention)] if model.attention else []),
            ("shown for", f"{plural(rows, 'row')}, tp {tp}; flops of a forward pass, bytes of one device"),
        ]
    )
    texts = [
        [
            row["sublayer"] + ("" if row["tp"] == tp else " (tp 1)"),
            *(str(row[name]) for name in ("count", "tokens", "hidden")),
            *(format_count(row[name]) for name in ("parameters", "forward_flops")),
            *(format_bytes(row[name]) for name in ("input_bytes", "kept_bytes", "boundary_bytes")),
        ]
        for row in sublayer_rows(model, rows, tp)
    ]
    names = ("sub-layer", "count", "tokens", "hidden", "parameters", "flops", "input", "kept", "boundary")
    table(names, texts, left=("sub-layer",))


def _of_a_token(model: Model) -> list[tuple[str, str]]:
    """Lines about one token, as pairs of a label and a text: the parameters that it uses and the operations of a forward pass,
    for a model whose tokens use a part of its parameters; and what of the model is not planned yet. Empty for other models."""
    lines = []
    if used := active(model):
        flops = sum(unit.sublayer.forward_flops(1, 1) for unit in model.units) // model.sequence_tokens
        text = (
            f"{used['active_parameters']:,} parameters, {format_count(flops)} flops forward, of {model.sequence_tokens} tokens"
        )
        lines.append(("a token", text))
    if model.unplanned_feature:
        lines.append(("plans", f"of {model.unplanned_feature}: not yet"))
    return lines


def clusters(listed: Mapping[str, Cluster]) -> None:
    """Print clusters, a row each, with the source of their numbers: data sheets, or the paper that states them. listed:
    clusters by name."""
    rows = []
    for name, item in listed.items():
        kinds = ", ".join(kind.name for kind in item.used_kinds)
        nodes = sum(node.count for node in item.nodes)
        sizes = map(format_bytes, (item.memory_bytes, item.usable_bytes))
        numbers = f"as {item.name}" if item.name != name else f"of the paper {item.paper}" if item.paper else "assumed"
        rows.append([name, str(item.devices), str(nodes), kinds, *sizes, numbers])
    names = ("cluster", "devices", "nodes", "kinds", "memory", "usable", "numbers")
    table(names, rows, left=("cluster", "kinds", "numbers"))


PEAKS: dict[str, tuple[Precision, ...]] = {"16-bit": ("bfloat16", "float16"), "8-bit": ("float8",), "4-bit": ("float4",)}


def kinds(nodes: Mapping[str, Cluster]) -> None:
    """Print kinds of devices, a row each. nodes: for each kind's name, a cluster of one node of that kind.

    The column "ring" has the bandwidth that ring collectives reach within the node, "port" the rated speed of a network port.
    On a narrow terminal the columns links, port and power are left out.
    """
    rows = []
    for name, node in nodes.items():
        described, kind = sheet(name), node.kinds[0]
        peaks = [_teraflops(kind, precisions) for precisions in PEAKS.values()]
        sizes = [format_bytes(kind.memory_bytes), format_bytes(kind.usable_bytes), format_rate(kind.memory_bytes_per_s)]
        island = node.network.islands[0]
        links = f"{island.devices} x {format_rate(island.bandwidth_bytes_per_s)}"
        level = described.joined.level if described.joined else f"pcie-{described.pcie.generation}"
        port, per = described.network.bytes_per_s, min(described.network.devices_per_port, node.devices)
        network = f"{port * 8 / 1e9:.0f} Gb/s" + (f" for {per}" if per > 1 else "")
        watts = "-" if described.power_watts is None else f"{described.power_watts} W"
        rows.append([name, *peaks, *sizes, level, links, network, watts])
    names: Sequence[str] = ("kind", *PEAKS, "memory", "usable", "memory/s", "links", "ring", "port", "power")
    if out.width < WIDE:
        shown = [index for index, name in enumerate(names) if name not in ("links", "port", "power")]
        names, rows = [names[index] for index in shown], [[row[index] for index in shown] for row in rows]
    table(names, rows, "one node of each kind; dense peaks of matrix multiplications in TFLOP/s", left=("kind", "links"))


def _teraflops(kind: DeviceKind, precisions: Sequence[Precision]) -> str:
    """The largest peak rate that a device has in any of the given precisions, in TFLOP/s, as a text; "-" if it has none of
    them."""
    rate = max((kind.flops_per_s.get(precision, 0.0) for precision in precisions), default=0.0)
    return f"{rate / 1e12:.5g}" if rate else "-"


def efficiencies(kind: DeviceKind) -> None:
    """Print the share of a device's peak rate that kernels reach, a row for each kind of kernel; precisions with equal numbers
    share a row. Nothing is printed if no share is known."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for efficiency in kind.efficiencies:
        key = (efficiency.kernel, efficiency.value, efficiency.half_size, efficiency.error, efficiency.origin_for(kind.name))
        groups.setdefault(key, []).append(efficiency.precision or "any")
    rows = [
        [kernel, ", ".join(precisions), f"{value:.1%}", str(half_size or "-"), f"{error:.0%}", origin]
        for (kernel, value, half_size, error, origin), precisions in groups.items()
    ]
    if rows:
        title = f"what kernels reach of the peaks of {kind.name}"
        names = ("kernels", "precisions", "reached", "half size", "error", "from")
        table(names, rows, title, left=("kernels", "precisions", "from"))


def cluster(cluster: Cluster) -> None:
    """Print a cluster: its nodes and devices, its links, and the share of the peak that kernels reach on each kind of
    device."""
    about = ", ".join(filter(None, (cluster.name, plural(cluster.devices, "device"), cluster.whose_numbers)))
    pairs([("cluster", about), ("source", cluster.source or "not stated")])
    kinds, rows = {kind.name: kind for kind in cluster.kinds}, []
    for node in cluster.nodes:
        kind = kinds[node.kind]
        peaks = ", ".join(f"{dtype} {format_count(rate)}" for dtype, rate in kind.flops_per_s.items())
        memory, usable = format_bytes(kind.memory_bytes), format_bytes(kind.usable_bytes)
        rate = format_rate(kind.memory_bytes_per_s)
        rows.append([str(node.count), str(node.devices), kind.name, memory, usable, peaks, rate])
    names = ("nodes", "devices each", "kind", "memory", "usable", "peak flops/s", "memory/s")
    table(names, rows, left=("kind", "peak flops/s"))
    for kind in cluster.used_kinds:
        efficiencies(kind)
    if cluster.matrix is not None:
        pairs([("links", f"a full matrix of {cluster.devices} x {cluster.devices}")])
    else:
        links(cluster.network.islands)


def links(islands: Sequence[Island]) -> None:
    """Print the links of a network's islands (groups of devices with equal links between them), a row for all islands that
    differ only in their first device."""
    counts: dict[Island, int] = {}
    for island in islands:
        alike = island.changed(first=None)
        counts[alike] = counts.get(alike, 0) + (island.first is not None)
    rows = [
        [
            str(island.devices),
            str(count or "all"),
            island.operation or "any",
            format_rate(island.bandwidth_bytes_per_s),
            format_time(island.latency_ns),
            f"{island.error:.1%}" if island.origin != "estimated" else "-",
            island.origin,
        ]
        for island, count in counts.items()
    ]
    names = ("devices", "count", "operation", "bandwidth", "latency", "fit error", "origin")
    table(names, rows, left=("operation", "origin"))


def profile(profile: Profile) -> None:
    """Print a profile without its layers: its model, its cluster, the shapes (tensor-parallel degrees and numbers of samples)
    that it has times for, and its rates (optimizer, host copies, overlap), each with the origin of the number."""

    def with_origin(rate: Rate, text: str) -> str:
        """The text of a rate, with where the rate comes from and the spread of its measurements."""
        spread = f", spread {rate.spread:.1%}" if rate.spread else ""
        return f"{text} ({rate.origin}{spread})"

    shapes = profiled_shapes(profile)
    degrees = sorted({tp for tp, _ in shapes})
    by_degree = [f"tp {tp}: rows {', '.join(str(rows) for degree, rows in shapes if degree == tp)}" for tp in degrees]
    optimizer, stepping = profile.optimizer_ns_per_parameter, "not known, counted as nothing"
    if optimizer.value:
        stepping = with_origin(optimizer, f"{optimizer.value:.3g} ns a parameter on the device")
    rows = [
        ("profile", f"{profile.name}, {profile.dtype}, {format_count(profile.total_parameters)} parameters"),
        (
            "cluster",
            f"{profile.cluster}, {plural(profile.devices, 'device')}, {format_bytes(profile.usable_bytes)} usable of each",
        ),
        ("devices", ", ".join(profile.kinds)),
        ("times", profile.origin),
        ("shapes", "; ".join(by_degree)),
        ("optimizer", stepping),
    ]
    rows += [("reached", text) for text in reached(profile)]
    if sizes := profile.provenance.get("sizes"):
        rows.append(("sizes", sizes))
    if (host := profile.host) is not None:
        to, back, step = host.to_device_bytes_per_s, host.to_host_bytes_per_s, host.optimizer_ns_per_parameter
        rows += [
            ("to device", with_origin(to, format_rate(to.value))),
            ("to host", with_origin(back, format_rate(back.value))),
            ("on the host", with_origin(step, f"{step.value:.3g} ns a parameter")),
        ]
    slowdowns = {"compute": profile.compute_slowdown, "communication": profile.communication_slowdown}
    overlap = (with_origin(rate, f"{name} {rate.value:.2f} x slower") for name, rate in slowdowns.items())
    rows.append(("overlap", "; ".join(overlap)))
    if profile.out_of_memory:
        rows.append(("too large", ", ".join(f"{s.sublayer} tp {s.tp} rows {s.rows}" for s in profile.out_of_memory)))
    pairs(rows)
    if profile.network.matrix is None:
        links(profile.network.islands)


def layers(loaded: Profile, units: list[LayerSummary], tp: int, rows: int) -> None:
    """Print a profile, then a table of the time and memory of every layer; equal consecutive layers share rows, and bars show
    the shares of the whole.

    Args:
        loaded: the profile.
        units: the summary of each layer, or of each sub-layer, in the model's order.
        tp: the tensor-parallel degree that the summaries are of.
        rows: the number of samples on a device that they are of.
    """
    profile(loaded)
    whole_ns, whole_bytes = sum(unit.time_ns for unit in units), sum(unit.memory_bytes for unit in units)
    spread, wide = any(unit.spread for unit in units), out.width >= 120
    columns = ["layers", "part", "forward", "backward", *(["spread"] if spread else []), "time", *([""] if wide else [])]
    columns += ["activations", "states", "memory", *([" "] if wide else [])]
    texts = []
    for layer, count in runs(units):
        first = layer[0].name.split(".")[0]
        name = first if count == 1 else f"{first} and {count - 1} more"
        for index, unit in enumerate(layer):
            time, memory = unit.time_ns * count / max(1, whole_ns), unit.memory_bytes * count / max(1, whole_bytes)
            row = [name if index == 0 else "", unit.name.split(".")[-1] if "." in unit.name else unit.kind]
            row += [format_time(unit.forward_ns), format_time(unit.backward_ns), *([f"{unit.spread:.1%}"] if spread else [])]
            row += [f"{time:.1%}", *([_bar(time)] if wide else [])]
            row += [format_bytes(unit.activation_bytes), format_bytes(unit.state_bytes)]
            texts.append([*row, f"{memory:.1%}", *([_bar(memory)] if wide else [])])
    table(columns, texts, left=("layers", "part", "", " "))
    pairs(
        [
            ("in all", f"{format_time(whole_ns)} forward and backward, {plural(rows, 'row')}, tp {tp}, no communication"),
            ("", f"{format_bytes(sum(u.activation_bytes for u in units))} activations, "
                 f"{format_bytes(sum(u.state_bytes for u in units))} model states on one device"),
        ]
    )  # fmt: skip


def _bar(share: float) -> str:
    """A horizontal bar of block letters for a share between 0 and 1: BAR letters for 1, a thin line for a share that rounds to
    none."""
    return "█" * round(BAR * share) or ("▏" if share > 0 else "")
