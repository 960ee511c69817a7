"""FSDP under Accelerate with several micro-batches a step: whole gradients on each device until the last one reduces them; and
parameters on the host that are not freed after the forward pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trainplan.formulations.costs.overlapped.analytic_fsdp import Block, sharded_ns
from trainplan.formulations.costs.overlapped.analytic_memory import RunMemory

import trainplan as tp
from tests.validation.test_words import predicted
from trainplan.imported_runs.assess import JudgedRun
from trainplan.validation.alongside import LAST
from trainplan.validation.predict import Prediction

COUNT = 8_030_261_248  # parameters of Llama-3 8B
TRAINED: dict[str, Any] = {
    "model_name_or_path": "llama3-8b",
    "bf16": True,
    "per_device_train_batch_size": 1,
    "max_length": 2048,
    "gradient_checkpointing": True,
    "packing": True,
}
ROW: dict[str, Any] = {
    "model": "llama3-8b", "gpu": "H100-80GB-SXM", "gpus": 8, "mbs": 1, "gbs": 16, "seq": 2048, "recompute": "full",
    "precision": "bf16", "fsdp": "full_shard", "date": "2026-01-01",
}  # fmt: skip


def _trained(folder: Path, cluster: str = "h100:8", **keys: Any) -> JudgedRun:
    path = folder / "train.yaml"
    path.write_text(json.dumps(TRAINED | keys))
    return tp.import_run(path, cluster=cluster, search=False)


def _memory(run: JudgedRun | Prediction) -> RunMemory:
    found = run.framework if isinstance(run, JudgedRun) else run
    assert isinstance(found, Prediction) and found.memory is not None
    return found.memory


def _assumed(run: JudgedRun) -> set[str]:
    assert isinstance(run.framework, Prediction) and run.framework.laid is not None
    return set(run.framework.laid.assumed)


@pytest.mark.parametrize("words", ["full_shard auto_wrap", "shard_grad_op auto_wrap"])
def test_gradients_stay_whole_in_the_products_dtype_until_the_last_micro_batch(words: str, tmp_path: Path) -> None:
    """Two bytes a parameter, in place of a shard in four."""
    one, two = (_trained(tmp_path, fsdp=words, gradient_accumulation_steps=count) for count in (1, 2))
    more = _memory(two).passes_bytes - _memory(one).passes_bytes
    assert more == pytest.approx(COUNT * (2 - 4 / 8), rel=1e-6) and _memory(two).parts["whole gradients"] == more
    assert _memory(two).stepping_bytes == _memory(one).stepping_bytes
    assert LAST in _assumed(two) and LAST not in _assumed(one)


def test_with_parameters_on_the_host_whole_gradients_are_on_the_device(tmp_path: Path) -> None:
    words = "full_shard auto_wrap offload"
    one, two = (_trained(tmp_path, fsdp=words, gradient_accumulation_steps=count) for count in (1, 2))
    assert _memory(two).passes_bytes - _memory(one).passes_bytes == pytest.approx(COUNT * 2, rel=1e-6)


@pytest.mark.parametrize("version", [1, 2])
def test_parameters_of_the_host_that_are_not_freed_after_their_forward_pass_are_all_on_the_device(
    version: int, tmp_path: Path
) -> None:
    """The whole model in the dtype of the products, in place of two blocks of the largest's size, that of the head."""
    says = {1: ("FULL_SHARD", "SHARD_GRAD_OP"), 2: (True, False)}[version]
    freed, kept = (
        _trained(
            tmp_path,
            fsdp=True,
            fsdp_config={"version": version, "cpu_offload": True, "reshard_after_forward": value},
            gradient_accumulation_steps=1,
        )
        for value in says
    )
    more = _memory(kept).passes_bytes - _memory(freed).passes_bytes
    assert more == pytest.approx(2 * (COUNT - 2 * 128_256 * 4096), rel=1e-5) and _memory(kept).states_bytes > 2 * COUNT
    assert _memory(kept).standing_bytes == _memory(freed).standing_bytes


@pytest.mark.parametrize("keys", [{"accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}}}])
def test_gradients_that_each_micro_batch_reduces_are_shards(keys: dict[str, Any], tmp_path: Path) -> None:
    synced = _trained(tmp_path, fsdp="full_shard auto_wrap", gradient_accumulation_steps=4, **keys)
    assert not _memory(synced).unreduced_bytes and LAST not in _assumed(synced)


@pytest.mark.parametrize("framework", ["accelerate", "TRL", "axolotl", "LLaMA-Factory", "HF Transformers"])
def test_rows_of_trainers_on_accelerate_have_whole_gradients_where_they_say_their_micro_batches(framework: str) -> None:
    known = _memory(predicted(**ROW, framework=framework))
    assert known.unreduced_bytes == pytest.approx(COUNT * (2 - 4 / 8), rel=1e-6)
    assert not _memory(predicted(**ROW | {"mbs": None}, framework=framework)).unreduced_bytes
    assert not _memory(predicted(**ROW | {"gbs": 8}, framework=framework)).unreduced_bytes
    assert not _memory(predicted(**ROW, framework=framework, note="sync_each_batch")).unreduced_bytes


@pytest.mark.parametrize("fields", [{"framework": "torchtitan"}, {"framework": "DeepSpeed"}, {"fsdp": "DDP"}])
def test_others_reduce_the_gradients_of_every_micro_batch(fields: dict[str, Any]) -> None:
    assert not _memory(predicted(**ROW | {"framework": "accelerate"} | fields)).unreduced_bytes


def test_a_row_and_a_file_of_one_accumulating_run_say_the_same(tmp_path: Path) -> None:
    run = _trained(tmp_path, fsdp="full_shard auto_wrap", gradient_accumulation_steps=2, use_liger_kernel=False)
    row = predicted(**ROW, framework="PyTorch FSDP (Accelerate)", note="adamw_torch_fused")
    assert _memory(run).parts == _memory(row).parts and row.step is not None
    assert run.step_ns == round(row.step.step_ns)


def test_reductions_of_the_last_micro_batch_alone_take_the_others_no_time() -> None:
    """Where reductions take longer than passes, three of four micro-batches take what their passes and gatherings do."""
    slow = [Block(10, 20, 1, 1000)] * 3
    assert sharded_ns(slow, 4, reduces_last=True) - sharded_ns(slow, 3, reduces_last=True) == 3 * 30
    assert sharded_ns(slow, 1, reduces_last=True) == sharded_ns(slow, 1)
