"""Tables of models, clusters and profiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from trainplan.command.render import out, pairs
from trainplan.profiling.base.quantities import format_bytes, format_count, format_rate, format_time, plural
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.clusters.network import Island
from trainplan.profiling.models.model import Model
from trainplan.profiling.profiles import Profile, Rate
from trainplan.profiling.summary import LayerSummary, profiled_shapes, runs

BAR = 12


def _table(*columns: str, left: Sequence[str] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    return table


def models(found: Sequence[Model]) -> None:
    """The shipped models, a row each."""
    table = _table("model", "family", "layers", "hidden", "tokens", "parameters", left=("model", "family"))
    for model in found:
        hidden = list(dict.fromkeys(unit.sublayer.hidden for unit in model.units))
        tokens = list(dict.fromkeys(unit.sublayer.tokens for unit in model.units if unit.kind == "attention"))
        table.add_row(
            model.name,
            model.family,
            str(model.layers),
            "/".join(map(str, hidden)),
            "/".join(map(str, tokens)),
            format_count(model.total_parameters),
        )
    out.print(table)


def sublayer_rows(model: Model, rows: int, tp: int) -> list[dict[str, Any]]:
    """Every distinct sub-layer and how often it stands in the chain."""
    counts = Counter(model.key_of(unit) for unit in model.units)
    found = []
    for name, part in model.sublayers.items():
        degree = tp if part.splits_into(tp) else 1
        found.append(
            {
                "sublayer": name,
                "count": counts[name],
                "tp": degree,
                "tokens": part.tokens,
                "hidden": part.hidden,
                "parameters": part.parameter_count(degree),
                "forward_flops": part.forward_flops(rows, degree),
                "input_bytes": part.input_bytes(rows),
                "kept_bytes": part.kept_bytes(rows, degree),
                "boundary_bytes": part.boundary_bytes(rows),
            }
        )
    return found


def model(found: Model, rows: int, tp: int) -> None:
    """A model's sub-layers: parameters, flops, bytes."""
    pairs(
        [
            ("model", f"{found.name} ({found.family}), {found.layers} layers, {len(found.units)} sub-layers, {found.dtype}"),
            ("parameters", f"{found.total_parameters:,}" + (", tied" if found.tied else "")),
            ("shown for", f"{plural(rows, 'row')}, tp {tp}; flops of a forward pass, bytes of one device"),
        ]
    )
    table = _table(
        "sub-layer", "count", "tokens", "hidden", "parameters", "flops", "input", "kept", "boundary", left=("sub-layer",)
    )
    for row in sublayer_rows(found, rows, tp):
        table.add_row(
            row["sublayer"] + ("" if row["tp"] == tp else " (tp 1)"),
            str(row["count"]),
            str(row["tokens"]),
            str(row["hidden"]),
            format_count(row["parameters"]),
            format_count(row["forward_flops"]),
            *(format_bytes(row[name]) for name in ("input_bytes", "kept_bytes", "boundary_bytes")),
        )
    out.print(table)


def clusters(found: Sequence[Cluster]) -> None:
    """The shipped clusters, a row each."""
    table = _table("cluster", "devices", "nodes", "kinds", "memory", left=("cluster", "kinds"))
    for item in found:
        kinds = ", ".join(kind.name for kind in item.used_kinds)
        nodes = sum(node.count for node in item.nodes)
        table.add_row(item.name, str(item.devices), str(nodes), kinds, format_bytes(item.memory_bytes))
    out.print(table)


def cluster(found: Cluster) -> None:
    """A cluster's nodes, devices and links."""
    pairs([("cluster", f"{found.name}, {plural(found.devices, 'device')}"), ("source", found.source or "not stated")])
    table = _table("nodes", "devices each", "kind", "memory", "peak flops/s", "memory/s", left=("kind", "peak flops/s"))
    kinds = {kind.name: kind for kind in found.kinds}
    for node in found.nodes:
        kind = kinds[node.kind]
        peaks = ", ".join(f"{dtype} {format_count(rate)}" for dtype, rate in kind.flops_per_s.items())
        memory, rate = format_bytes(kind.memory_bytes), format_rate(kind.memory_bytes_per_s)
        table.add_row(str(node.count), str(node.devices), kind.name, memory, peaks, rate)
    out.print(table)
    if found.matrix is not None:
        pairs([("links", f"a full matrix of {found.devices} x {found.devices}")])
    else:
        links(found.network.islands)


def links(islands: Sequence[Island]) -> None:
    """Equal islands, which only begin elsewhere, as one row."""
    table = _table("devices", "count", "operation", "bandwidth", "latency", "fit error", "origin", left=("operation", "origin"))
    counts: dict[Island, int] = {}
    for island in islands:
        alike = island.changed(first=None)
        counts[alike] = counts.get(alike, 0) + (island.first is not None)
    for island, count in counts.items():
        table.add_row(
            str(island.devices),
            str(count or "all"),
            island.operation or "any",
            format_rate(island.bandwidth_bytes_per_s),
            format_time(island.latency_ns),
            f"{island.error:.1%}" if island.origin != "estimated" else "-",
            island.origin,
        )
    out.print(table)


def profile(found: Profile) -> None:
    """What a profile holds, besides its layers."""

    def told(rate: Rate, text: str) -> str:
        spread = f", spread {rate.spread:.1%}" if rate.spread else ""
        return f"{text} ({rate.origin}{spread})"

    shapes = profiled_shapes(found)
    degrees = sorted({tp for tp, _ in shapes})
    by_degree = [f"tp {tp}: rows {', '.join(str(rows) for t, rows in shapes if t == tp)}" for tp in degrees]
    optimizer, stepping = found.optimizer_ns_per_parameter, "not known, counted as nothing"
    if optimizer.value:
        stepping = told(optimizer, f"{optimizer.value:.3g} ns a parameter on the device")
    rows = [
        ("profile", f"{found.name}, {found.dtype}, {format_count(found.total_parameters)} parameters"),
        ("cluster", f"{found.cluster}, {plural(found.devices, 'device')} of {format_bytes(found.memory_bytes)}"),
        ("devices", ", ".join(found.kinds)),
        ("times", found.origin),
        ("shapes", "; ".join(by_degree)),
        ("optimizer", stepping),
    ]
    if found.host is not None:
        to, back, step = found.host.to_device_bytes_per_s, found.host.to_host_bytes_per_s, found.host.optimizer_ns_per_parameter
        rows += [
            ("to device", told(to, format_rate(to.value))),
            ("to host", told(back, format_rate(back.value))),
            ("on the host", told(step, f"{step.value:.3g} ns a parameter")),
        ]
    slowdowns = {"compute": found.compute_slowdown, "communication": found.communication_slowdown}
    rows.append(("overlap", "; ".join(told(rate, f"{name} {rate.value:.2f} x slower") for name, rate in slowdowns.items())))
    if found.out_of_memory:
        rows.append(("too large", ", ".join(f"{s.sublayer} tp {s.tp} rows {s.rows}" for s in found.out_of_memory)))
    pairs(rows)
    if found.network.matrix is None:
        links(found.network.islands)


def layers(units: list[LayerSummary], tp: int, rows: int) -> None:
    """Time and memory of every layer, runs of equal ones as one, with bars of their share."""
    whole_ns, whole_bytes = sum(unit.time_ns for unit in units), sum(unit.memory_bytes for unit in units)
    spread, wide = any(unit.spread for unit in units), out.width >= 120
    columns = ["layers", "part", "forward", "backward", *(["spread"] if spread else []), "time", *([""] if wide else [])]
    columns += ["activations", "states", "memory", *([" "] if wide else [])]
    table = _table(*columns, left=("layers", "part", "", " "))
    for layer, count in runs(units):
        first = layer[0].name.split(".")[0]
        name = first if count == 1 else f"{first} and {count - 1} more"
        for place, unit in enumerate(layer):
            share, held = unit.time_ns * count / max(1, whole_ns), unit.memory_bytes * count / max(1, whole_bytes)
            table.add_row(
                name if place == 0 else "",
                unit.name.split(".")[-1] if "." in unit.name else unit.kind,
                format_time(unit.forward_ns),
                format_time(unit.backward_ns),
                *([f"{unit.spread:.1%}"] if spread else []),
                f"{share:.1%}",
                *([_bar(share)] if wide else []),
                format_bytes(unit.activation_bytes),
                format_bytes(unit.state_bytes),
                f"{held:.1%}",
                *([_bar(held)] if wide else []),
            )
    out.print(table)
    pairs(
        [
            ("in all", f"{format_time(whole_ns)} forward and backward, {plural(rows, 'row')}, tp {tp}, no communication"),
            ("", f"{format_bytes(sum(u.activation_bytes for u in units))} activations, "
                 f"{format_bytes(sum(u.state_bytes for u in units))} model states on one device"),
        ]
    )  # fmt: skip


def _bar(share: float) -> str:
    return "█" * round(BAR * share) or ("▏" if share > 0 else "")
