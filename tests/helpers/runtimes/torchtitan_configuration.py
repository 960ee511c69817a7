"""Prints, as JSON, the settings that torchtitan's own manager and `Trainer.Config` read from an exported torchtitan_config.py.

    python torchtitan_configuration.py FOLDER

Triton, which only kernels for GPUs need, may be missing: a module that has every name then replaces it.
"""

import importlib.machinery
import importlib.util
import json
import sys
import types
from unittest.mock import MagicMock


class Anything(types.ModuleType):
    """A module with every name."""

    __path__ = ()

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


if importlib.util.find_spec("triton") is None:
    for name in ("triton", "triton.language"):
        sys.modules[name] = Anything(name)
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
sys.path.insert(0, sys.argv[1])
from torchtitan.config.manager import ConfigManager  # noqa: E402

config = ConfigManager().parse_args(["--module", "torchtitan_config", "--config", "planned"])
config._validate_cuda_graphs()
result = {
    "stages": config.parallelism.pipeline_parallel_degree,
    "steps": config.training.steps,
    "tokenizer": config.hf_assets_path,
}
result |= {"dataset": config.dataloader.dataset, "rate": config.optimizer.param_groups[0].optimizer_kwargs["lr"]}
print(json.dumps(result))
