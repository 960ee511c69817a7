"""Every TOML file of dense models in torchtitan's history, as its own JobConfig of that commit resolves it and as we read it.

    git clone https://github.com/pytorch/torchtitan
    python -m benchmarks.torchtitan_history torchtitan [--write tests/configurations/torchtitan]

`torchtitan/config_manager.py` (by its argparse, then by its classes) and `torchtitan/config/` are taken from the commit of the
file; of the packages that they import, the logger and tyro are stand-ins, since files alone are read and no command line.
Exit status 1 where a value differs, or a file is refused; those of before April
2024, whose recomputation no key says, may be. --write: copies the first file of each model and year, and what
JobConfig made of it, which tests hold the reader against.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

from trainplan.execution.launch_files.run_configuration import RunConfiguration
from trainplan.profiling.base.errors import InputError

from trainplan.imported_runs.to_plan import read

REVERTED = "a09cde350"  # soon after, with keys that no other commit has
DENSE = ("llama", "llama2", "llama3", "qwen3")
OLD, NEW = "torchtitan/config_manager.py", "torchtitan/config/"
# What is held against each other: our name, and where versions have it.
PLACES = {
    "tp": ("parallelism.tensor_parallel_degree", "training.tensor_parallel_degree", "training.sequence_parallel_degree"),
    "pp": (
        "parallelism.pipeline_parallel_degree",
        "experimental.pipeline_parallel_degree",
        "training.pipeline_parallel_degree",
    ),
    "cp": ("parallelism.context_parallel_degree", "experimental.context_parallel_degree"),
    "copies": ("parallelism.data_parallel_replicate_degree", "training.data_parallel_replicate_degree"),
    "shard": (
        "parallelism.data_parallel_shard_degree",
        "training.data_parallel_shard_degree",
        "training.data_parallel_degree",
    ),
    "local": ("training.local_batch_size", "training.batch_size"),
    "samples": ("training.global_batch_size",),
    "sequence": ("training.seq_len",),
    "compiled": ("compile.enable", "training.compile"),
    "eight_bits": (
        "float8.enable_float8_linear",
        "training.enable_float8_linear",
        "training.enable_fp8_linear",
        "training.fp8_linear",
    ),
    "converters": ("model.converters",),
    "again": ("activation_checkpoint.mode",),
    "option": ("activation_checkpoint.selective_ac_option",),
    "reduced": ("training.mixed_precision_reduce",),
    "param": ("training.mixed_precision_param",),
}  # fmt: skip
DEFAULTS = {
    "cp": 1,
    "copies": 1,
    "samples": -1,
    "reduced": "float32",
    "param": "bfloat16",
    "converters": [],
    "eight_bits": False,
}


def git(clone: Path, *words: str) -> str:
    """The output of a command of git; empty where it fails."""
    return subprocess.run(["git", "-C", str(clone), *words], capture_output=True, text=True, check=False).stdout


def files(clone: Path) -> Iterator[tuple[str, str, str]]:
    """Commit, path and text of each distinct file, the oldest first."""
    seen, commit = set[str](), ""
    log = git(clone, "log", "--reverse", "--format=@ %h", "--name-only", "--diff-filter=AM", "--", "*train_configs/*.toml")
    for line in filter(None, log.splitlines()):
        if line.startswith("@ "):
            commit = line[2:]
        elif (text := git(clone, "show", f"{commit}:{line}")) and text not in seen:
            seen.add(text)
            dense = tomllib.loads(text).get("model", {}).get("name") in DENSE and "moe" not in line
            if dense and "llama3_ft" not in line and commit != REVERTED:
                yield commit, line, text


def module(name: str, text: str) -> ModuleType:
    """A module of a text, known by its name to those that import it."""
    made = ModuleType(name)
    sys.modules[name] = made
    exec(compile(text, name, "exec", dont_inherit=True), made.__dict__)
    return made


def resolved(clone: Path, commit: str, path: Path) -> Any:
    """The settings that torchtitan at a commit reads from a file."""
    for name in [name for name in sys.modules if name.startswith(("torchtitan", "torchtrain"))]:
        del sys.modules[name]
    for name in ("torchtitan", "torchtitan.tools", "torchtitan.tools.utils", "torchtitan.config", "torchtitan.config.manager"):
        sys.modules[name] = ModuleType(name)
    for name in (
        "torchtitan.logging",
        "torchtitan.logging_utils",
        "torchtitan.tools.logging",
        "torchtrain.logging_utils",
        "tyro",
    ):
        sys.modules[name] = MagicMock()
    sys.modules["torchtitan.config"].__path__ = []  # a package
    words, old = ["--job.config_file", str(path)], git(clone, "show", f"{commit}:{OLD}")
    old = old or git(clone, "show", f"{commit}:torchtrain/config_manager.py")
    if old and "add_argument" in old:
        config = module("torchtitan.config_manager", old).JobConfig()
        config.parse_args(words)
        return config
    if old:
        found = module("torchtitan.config_manager", old)
    else:
        module("torchtitan.config.job_config", git(clone, "show", f"{commit}:{NEW}job_config.py"))
        text = git(clone, "show", f"{commit}:{NEW}manager.py").replace("from .job_config", "from torchtitan.config.job_config")
        found = module("torchtitan.config.manager", text)
    manager = found.ConfigManager()
    return manager._dict_to_dataclass(found.JobConfig, manager._maybe_load_toml(words))


def theirs(config: Any) -> dict[str, Any]:
    """Values of a resolved configuration, by our names."""
    made = dict[str, Any]()
    for name, indices in PLACES.items():
        sections = (location.split(".") for location in indices)
        found = [getattr(getattr(config, first, None), second, None) for first, second in sections]
        made[name] = next((value for value in found if value is not None), DEFAULTS.get(name))
    converters = made.pop("converters") or []
    made["eight_bits"] = bool(made["eight_bits"]) or "float8" in converters
    made["again"] = str(made["option"]) if made["again"] == "selective" else made["again"]
    del made["option"]
    return made


def ours(configuration: RunConfiguration) -> dict[str, Any]:
    """The settings of a file as trainplan reads them, in the same form."""
    again = configuration.recomputed
    words = {"modules": "op", "none": "none", "full": "full" if again.every == 1 else str(again.every)}
    micro, count = configuration.micro_samples or 0, configuration.accumulation or configuration.flushed or 1
    return {
        "tp": configuration.tp,
        "pp": configuration.pp,
        "cp": configuration.cp,
        "copies": configuration.copies,
        "shard": configuration.shard or -1,
        "local": micro * count,
        "samples": configuration.samples or -1,
        "sequence": configuration.sequence,
        "compiled": "compile" in configuration.flags.split(),
        "eight_bits": configuration.recipe == "fp8-current",
        "again": words[again.of],
        "reduced": configuration.precision.gradients.replace("model", "bfloat16"),
        "param": configuration.dtype,
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path)
    parser.add_argument("--write", type=Path)
    requested = parser.parse_args()
    count, wrong, kept = 0, 0, dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder:
        for commit, name, text in files(requested.clone):
            path = Path(folder) / Path(name).name
            path.write_text(text)
            year = git(requested.clone, "show", "-s", "--format=%ad", "--date=format:%Y-%m", commit).strip()
            count += 1
            expected = theirs(resolved(requested.clone, commit, path))
            try:
                got: Any = ours(read(path))
            except InputError as error:
                got = str(error)
            if year < "2024-04":  # the code alone stated what is recomputed
                wrong += not isinstance(got, str) and got != expected
            elif got != expected:
                wrong += 1
                print(f"{commit} {year} {name}: {got if isinstance(got, str) else differing(got, expected)}")
            stem = f"{path.stem}-{year[:4]}-{'1' if int(year[5:]) < 7 else '2'}.toml"
            if requested.write is not None and stem not in kept and "debug" not in stem and got == expected:
                (requested.write / stem).write_text(text)
                kept[stem] = {"commit": commit, "path": name, "resolved": expected}
    if requested.write is not None:
        (requested.write / "resolved.json").write_text(json.dumps(kept, indent=1) + "\n")
    print(f"{count} files, {wrong} read otherwise")
    return int(wrong > 0)


def differing(got: dict[str, Any], expected: dict[str, Any]) -> str:
    """Differences, in words."""
    return ", ".join(f"{name} {got[name]} for {value}" for name, value in expected.items() if got[name] != value)


if __name__ == "__main__":
    sys.exit(main())
