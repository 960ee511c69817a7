"""Screens of `import-run` and `validate` for runs that keep model states on the host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import trainplan as tp
from tests.helpers.calls import call

ASKED = ("--cluster", "a100:8", "--model", "llama2-7b", "--sequence", 4096, "--recompute", "full", "--no-search")


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_optimizer_on_the_host_leaves_zero_s_stage_as_the_file_has_it(stage: int, tmp_path: Path) -> None:
    sharing = {"stage": stage, "offload_optimizer": {"device": "cpu"}}
    content = {
        "bf16": {"enabled": True},
        "zero_optimization": sharing,
        "train_micro_batch_size_per_gpu": 1,
        "train_batch_size": 32,
    }
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(content))
    shown = call("import-run", path, *ASKED, "--details").stdout
    assert f"dp8 ZeRO-{stage}, recomputed" in shown
    assert "on the host" in shown and "optimizer states" in shown
    row = {"id": "one", "model": "llama2-7b", "gpu": "A100 80GB", "gpus": 8, "mbs": 1, "gbs": 32, "seq": 4096, "zero": stage}
    [run] = tp.validate([{**row, "recompute": "full", "framework": "DeepSpeed", "note": "optimizer offload"}]).rows()
    assert f"zero{stage}" in run["layout"] and run["layout"].endswith("optimizer on host")
