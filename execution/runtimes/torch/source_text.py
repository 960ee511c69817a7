"""Texts of the torch training script that depend on the plan: its imports, its device mesh, and lists of numbers, in the form
in which a formatter would print them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from trainplan.execution.runtimes.export_common import pass_names
from trainplan.formulations.plan.plan import Plan
from trainplan.formulations.plan.strategy import Strategy

WIDTH = 100  # of a list on one line
TORCH_DTYPES = {name: f"torch.{name}" for name in ("bfloat16", "float16", "float32", "float64")}


class Middle(NamedTuple):
    """Python code, for the torch script, of a feed-forward network of transformers between its input y and its output. into:
    the paths of its first matrices without the ending "_proj", whose columns tensor-parallel ranks divide; empty if it has none
    of that form. inner: code that computes the results of the first matrices. names: variables for these results. out: code
    that computes the network's output from them."""

    into: tuple[str, ...]
    inner: str
    names: str
    out: str


GATED = Middle(
    ("network.gate", "network.up"),
    "network.gate_proj(y), network.up_proj(y)",
    "gate, up",
    "network.down_proj(network.act_fn(gate) * up)",
)
PACKED = Middle(
    (),
    "network.gate_up_proj(y).chunk(2, dim=-1)",
    "gate, up",
    "network.down_proj(network.activation_fn(gate) * up)",
)
MIDDLES = {
    "gpt2": Middle((), "(network.c_fc(y),)", "up", "network.dropout(network.c_proj(network.act(up)))"),
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), GATED),
    **dict.fromkeys(("phi3", "glm"), PACKED),
    "nemotron": Middle(("network.up",), "(network.up_proj(y),)", "up", "network.down_proj(network.act_fn(up))"),
}


def numbers(values: Sequence[int], brackets: str = "{}") -> str:
    """Python source of a set or a list of increasing numbers, with runs of equal steps as ranges, such as `{1, *range(4, 20,
    2)}`. brackets: "{}" for a set, "[]" for a list."""
    pieces, rest = list[str](), list(values)
    while rest:
        step, count = (rest[1] - rest[0] if len(rest) > 1 else 1), 1
        while count < len(rest) and rest[count] - rest[count - 1] == step:
            count += 1
        if count < 3:
            pieces.append(str(rest.pop(0)))
            continue
        by = f", {step}" if step > 1 else ""
        pieces.append(f"*range({rest[0]}, {rest[count - 1] + 1}{by})")
        del rest[:count]
    if len(pieces) == 1 and pieces[0].startswith("*"):
        return pieces[0][1:]
    text = brackets[0] + ", ".join(pieces) + brackets[1]
    if len(text) <= WIDTH:
        return text
    words, lines = list(map(str, values)), [""]
    for word in words:
        if len(lines[-1]) + len(word) > WIDTH:
            lines.append("")
        lines[-1] += f"{word} "
    kind = "set" if brackets == "{}" else "list"
    return f'{kind}(\n    map(\n        int,\n        """\n' + "\n".join(map(str.rstrip, lines)) + '\n""".split(),\n    )\n)'


def mesh_of(strategy: Strategy, *, stages: int, sharded: bool) -> tuple[str | None, str | None]:
    """Python source, for the torch script, of the device mesh of all ranks, with only the dimensions that the plan needs of pp,
    dp, sdp and tp; and, if the strategy's levels are in another order than these, the source of the tensor of ranks on the mesh
    (otherwise None). Both are None if no dimension is needed. stages: number of pipeline-parallel ranks. sharded: whether FSDP
    needs a dimension of its own, of one rank if no states are sharded."""
    degrees: dict[str, int] = {"pp": stages} if stages > 1 else {}
    degrees.update(strategy.levels)
    degrees |= {"sdp": 1} if sharded and "sdp" not in degrees else {}
    names = [name for name in ("pp", "dp", "sdp", "tp") if name in degrees]
    if not names:
        return None, None
    quoted = ", ".join(f'"{name}"' for name in names) + "," * (len(names) == 1)
    if [name for name in names if degrees[name] > 1] == [name for name in degrees if degrees[name] > 1]:
        sizes = tuple(degrees[name] for name in names)
        return f"dist.init_device_mesh(device.type, {sizes}, mesh_dim_names=({quoted}))", None
    order = tuple(list(degrees).index(name) for name in names)
    ranks = f"torch.arange({prod(degrees.values())}).view{tuple(degrees.values())}.permute{order}"
    return f"dist.DeviceMesh(device.type, ranks, mesh_dim_names=({quoted}))", ranks


def part_of(strategy: Strategy) -> str:
    """Python source of a rank's index among data-parallel ranks; the strategy's first level is the most significant. Empty
    without data parallelism."""
    text = ""
    for axis, degree in strategy.levels:
        if axis in ("dp", "sdp"):
            index = f'mesh.get_local_rank("{axis}")'
            text = f"{text} * {degree} + {index}" if text else index
    return text


def order_rows(plan: Plan) -> str:
    """Python source of the order of passes of all stages: a tuple with one text per stage, such as "0F0 0F1 0B0 0B1"."""
    return "(\n" + "".join(f'    "{" ".join(row)}",\n' for row in pass_names(plan)) + ")"


def imports(context: Mapping[str, Any]) -> str:
    """The import lines of the torch script, only those that it uses. context: the values that fill the script's template, by
    name."""
    tp, sharded, stages = context["tp"] > 1, context["sharded"], context["stages"] > 1
    attention, activation = ("attention" in context["recomputed_modules"], "activation" in context["recomputed_modules"])
    shared = context["tokens_shared"]
    recomputes = bool(context["again"] or context["recomputed_modules"])
    tensor = tp and (not sharded or (not shared and (activation or context["tied"] == "table")))
    names: dict[str, list[tuple[str, bool]]] = {
        "pathlib": [("Path", True)],
        "safetensors": [("safe_open", True)],
        "torch": [("nn", True)],
        "torch.distributed.checkpoint.state_dict": [("StateDictOptions", True), ("set_model_state_dict", True)],
        "torch.distributed.fsdp": [("MixedPrecisionPolicy", bool(context["policy"])), ("fully_shard", sharded)],
        "torch.distributed.pipelining": [
            ("PipelineStage", stages),
            (context["schedule"], stages and not context["orders"]),
        ],
        "torch.distributed.pipelining.schedules": [
            ("_Action", bool(context["orders"])),
            ("_PipelineScheduleRuntime", bool(context["orders"])),
        ],
        "torch.distributed.tensor": [("DTensor", tensor), ("Replicate", tp), ("Shard", _uses_shard(context)), ("parallel", tp)],
        "torch.utils.checkpoint": [("checkpoint", recomputes)],
        "transformers": [("AttentionInterface", attention), ("AutoConfig", True), ("AutoModelForCausalLM", True)],
        "transformers.integrations.sdpa_attention": [("sdpa_attention_forward", attention)],
    }
    lines: list[str | None] = ["import argparse", "import os", "import time", "import zlib"]
    standard = ("pathlib",)
    lines += [_line(module, names[module]) for module in standard]
    lines += ["", "import numpy as np", "import torch", "import torch.distributed as dist"]
    lines += [_line(module, names[module]) for module in sorted(names) if module not in standard]
    return "\n".join(line for line in lines if line is not None)


def _uses_shard(context: Mapping[str, Any]) -> bool:
    """Whether the torch script uses `Shard` of torch's DTensor. context: the values that fill the script's template, by
    name."""
    tp = context["tp"] > 1
    return tp and (context["tokens_shared"] or context["tied"] != "table" or (context["sharded"] and context["sdp"] > 1))


def _line(module: str, names: Iterable[tuple[str, bool]]) -> str | None:
    """An import line for the names of a module that the torch script uses; None if it uses none. names: each name, and
    whether it is used."""
    used = [name for name, is_used in names if is_used]
    if not used:
        return None
    line = f"from {module} import {', '.join(used)}"
    return line if len(line) <= 128 else f"from {module} import (\n" + "".join(f"    {name},\n" for name in used) + ")"
