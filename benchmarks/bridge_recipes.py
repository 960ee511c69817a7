"""The settings of Megatron-Bridge's recipes for pre-training dense models, read from its source, for `trainplan/data/recipes`.

    git clone https://github.com/NVIDIA-NeMo/Megatron-Bridge
    python -m benchmarks.bridge_recipes Megatron-Bridge [--tag v0.3.1] [--write trainplan/data/recipes/megatron-bridge.json]

The functions of `src/megatron/bridge/recipes/*/*.py` are followed without running them. Kept are those whose model is known by
its name on the Hugging Face hub, and of their fields those that bear on model, parallelism, memory or precision; of
`_pretrain_common`, what all have. Exit status 1 where such a field is computed, or the file differs from what is written.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from trainplan.execution.launch_files.python.objects import ConstructedObject, Symbol, UnreadExpression
from trainplan.execution.launch_files.python.program import Program
from trainplan.execution.launch_files.run_configuration import affects_plan
from trainplan.execution.runtimes.megatron_bridge.reader import ARGUMENTS
from trainplan.profiling.shipped import sized

ROOT = "src/megatron/bridge/recipes/"
FILES = ("llama/llama2.py", "llama/llama3.py", "qwen/qwen2.py", "qwen/qwen3.py", "gemma/gemma2.py", "gemma/gemma3.py")
SECTIONS = ("model.", "train.", "ddp.", "optimizer.", "mixed_precision", "comm_overlap.", "dist.")
READ = frozenset(ARGUMENTS.values())


def source(clone: Path, tag: str, name: str) -> str:
    """A file of the recipes."""
    words = ["git", "-C", str(clone), "show", f"{tag}:{ROOT}{name}"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def program(clone: Path, tag: str, name: str) -> Program:
    """A file of recipes, with what all have in common before it."""
    tree = ast.parse(source(clone, tag, name))
    kept = [
        node for node in tree.body if not (isinstance(node, ast.ImportFrom) and (node.module or "").endswith("recipes.common"))
    ]
    text = source(clone, tag, "common.py") + "\n" + ast.unparse(ast.Module(kept, []))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / Path(name).name
        path.write_text(text)
        return Program(path, {})


def fields_of(made: ConstructedObject) -> dict[str, Any]:
    """Fields of a ConfigContainer that bear on the run. Raises ValueError for one that is computed."""
    fields = dict[str, Any]()
    for key, value, _ in made.flattened():
        if key == "mixed_precision" and isinstance(value, ConstructedObject):
            value = value.name.rpartition(".")[2]
        last = key.rpartition(".")[2]
        if (
            not key.startswith(SECTIONS)
            or isinstance(value, ConstructedObject)
            or "." in key.partition(".")[2]
            or last in ("of", "load_weights")
        ):
            continue
        if value is None or not (key in READ or affects_plan(key) or key == "mixed_precision"):
            continue
        if isinstance(value, UnreadExpression):
            raise ValueError(f"{key} is {value.text}")
        fields[key] = str(value) if isinstance(value, Symbol) else value
    return fields


def hub_name(made: ConstructedObject) -> str | None:
    """The model of a recipe, by its name on the hub."""
    found = [
        value for key, value, _ in made.flattened() if key.startswith("model.") and isinstance(value, str) and "/" in value
    ]
    return found[0] if found else None


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path)
    parser.add_argument("--tag", default="v0.3.1")
    parser.add_argument("--write", type=Path)
    requested = parser.parse_args()
    common, recipes, wrong = dict[str, Any](), dict[str, Any](), 0
    for name in FILES:
        read = program(requested.clone, requested.tag, name)
        common = common or fields_of(read.call("_pretrain_common"))
        for function, node in read.functions.items():
            if not function.endswith("_pretrain_config") or function.startswith("_") or node.args.args:
                continue
            made = read.call(function)
            model = hub_name(made) if isinstance(made, ConstructedObject) else None
            if model is None or sized(model) is None:
                print(f"{function}: {model or made}, left out")
                continue
            try:
                fields = fields_of(made)
            except ValueError as error:
                wrong += 1
                print(f"{function}: {error}")
                continue
            own = {key: value for key, value in fields.items() if key not in common or common[key] != value}
            recipes[function] = {"model": model, "fields": own}
    text = json.dumps({"version": requested.tag.lstrip("v"), "common": common, "recipes": recipes}, indent=1) + "\n"
    if requested.write is not None:
        requested.write.parent.mkdir(exist_ok=True)
        requested.write.write_text(text)
    print(f"{len(recipes)} recipes, {len(text)} bytes")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
