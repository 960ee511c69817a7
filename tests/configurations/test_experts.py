"""Runs of mixtures of experts: every setting is read with its source, illegal ones are refused by the tool's key, and none is
ever judged as a run of a dense model."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from trainplan.execution.launch_files.experts import ExpertSettings, RunOfExperts, layers_in_words, pattern

import trainplan as tp
from tests.helpers.refusals import Facts, refused
from trainplan.command.import_experts import outcome_of_experts
from trainplan.imported_runs.to_plan import read

MODEL = """--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --seq-length 4096 --swiglu
--normalization RMSNorm --disable-bias-linear --position-embedding-type rope --vocab-size 129280 --bf16 --micro-batch-size 1
--global-batch-size 8192 --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --mtp-num-layers 1"""
EXPERTS = """--num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048
--moe-layer-freq "([0]*3+[1]*58)" --moe-router-num-groups 8 --moe-router-group-topk 4 --moe-router-score-function sigmoid
--moe-grouped-gemm --moe-token-dispatcher-type flex --moe-enable-deepep --overlap-moe-expert-parallel-comm
--delay-wgrad-compute --recompute-granularity selective --recompute-modules mla_up_proj moe_act layernorm"""
LAYOUT = """--pipeline-model-parallel-size 8 --expert-model-parallel-size 32 --expert-tensor-parallel-size 1
--pipeline-model-parallel-layout "Et*4|(t*4|)*14tmL" --use-distributed-optimizer"""
FILES: dict[str, str] = {
    "megatron.sh": f"""torchrun --nproc_per_node=8 --nnodes 64 pretrain_gpt.py \\
    {MODEL.replace(chr(10), " ")} \\
    {EXPERTS.replace(chr(10), " ")} \\
    {LAYOUT.replace(chr(10), " ")}
""",
    "bridge.yaml": """model:
  num_layers: 48
  hidden_size: 2048
  ffn_hidden_size: 6144
  num_attention_heads: 32
  num_moe_experts: 128
  moe_router_topk: 8
  moe_ffn_hidden_size: 768
  moe_token_dispatcher_type: flex
  moe_flex_dispatcher_backend: hybridep
  expert_model_parallel_size: 8
  expert_tensor_parallel_size: 1
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: 3
  recompute_granularity: selective
  recompute_modules: [moe_act, layernorm]
train: {micro_batch_size: 1, global_batch_size: 512}
comm_overlap: {overlap_moe_expert_parallel_comm: true}
""",
    "titan.toml": """[model]
name = "deepseek_v3"
flavor = "671B"
[training]
seq_len = 4096
[parallelism]
tensor_parallel_degree = 8
expert_parallel_degree = 32
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "Interleaved1F1B"
""",
    "deepspeed.json": json.dumps(
        {
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 2},
            "train_micro_batch_size_per_gpu": 1,
            "expert_parallel": {"enabled": True, "autoep_size": 8, "preset_model": "mixtral"},
        }
    ),
}


def found(path: Path, **given: Any) -> ExpertSettings:
    """The settings with which a run of experts is refused, whatever else the user gives."""
    with pytest.raises(RunOfExperts) as caught:
        tp.import_run(path, cluster="h100:8x64", search=False, **given)
    assert "\n" not in caught.value.command_text and "dense" in caught.value.fix
    assert caught.value.settings is not None
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (copied.settings, copied.command_text) == (caught.value.settings, caught.value.command_text)
    return caught.value.settings


def written(folder: Path, name: str, *changes: tuple[str, str]) -> Path:
    text = FILES[name]
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / name).write_text(text)
    return folder / name


def test_every_argument_of_megatron_is_read_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, "megatron.sh")
    read_of = found(path)
    assert (read_of.experts, read_of.chosen, read_of.groups, read_of.chosen_groups) == (256, 8, 8, 4)
    assert (read_of.hidden, read_of.dense_inner, read_of.expert_inner, read_of.shared_inner) == (7168, 18432, 2048, 2048)
    assert read_of.layers_of_experts == (False,) * 3 + (True,) * 58 and read_of.predicted == 1
    assert (read_of.latent, read_of.query_rank, read_of.key_value_rank) == (True, 1536, 512)
    assert (read_of.head, read_of.rotary_head, read_of.value_head) == (128, 64, 128)  # MLATransformerConfig's
    assert (read_of.world, read_of.ep, read_of.etp, read_of.edp, read_of.dp) == (512, 32, 1, 2, 64)
    assert (read_of.pp, read_of.chunks, read_of.stages) == (8, 2, ("Etttt", *["tttt"] * 14, "tmL"))
    assert (read_of.dispatcher, read_of.score, read_of.balancing) == ("flex (deepep)", "sigmoid", "aux_loss")
    assert read_of.grouped and read_of.exchange_overlap and read_of.delayed_weights and not read_of.shared_overlap
    assert read_of.recomputed == ("mla_up_proj", "moe_act", "layernorm") and read_of.zero == 1
    rows = {row["field"]: row for row in read_of.rows()}
    assert (rows["ep"]["key"], rows["ep"]["source"]) == ("--expert-model-parallel-size", f"{path}:4")
    assert (rows["edp"]["value"], rows["edp"]["unit"], rows["edp"]["key"]) == (2, "rank", "")
    assert rows["balancing"]["source"].startswith("default of Megatron-LM")
    assert json.loads(json.dumps(read_of.rows()))[0]["value"] == 256


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        (
            "bridge.yaml",
            {"experts": 128, "chosen": 8, "expert_inner": 768, "tp": 2, "ep": 8, "etp": 1, "chunks": 3,
             "exchange_overlap": True, "dispatcher": "flex (hybridep)", "recomputed": ("moe_act", "layernorm"),
             "layers_of_experts": (True,) * 48},
        ),
        (
            "titan.toml",
            {"experts": 256, "chosen": 8, "expert_inner": 2048, "tp": 8, "ep": 32, "etp": 1, "pp": 4, "dispatcher": "standard",
             "layers_of_experts": (False,) * 3 + (True,) * 58},
        ),
        ("deepspeed.json", {"experts": None, "ep": 8, "etp": 1, "zero": 2, "grouped": True}),
    ],
)  # fmt: skip
def test_files_of_other_tools_are_read(tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    """A dense model that the user names changes nothing."""
    path = written(tmp_path, name)
    assert {key: getattr(found(path), key) for key in settings} == settings
    assert found(path, model="llama3-8b") == found(path)


@pytest.mark.parametrize(
    ("name", "old", "new", "field", "problem", "fix"),
    [
        ("megatron.sh", "parallel-size 32", "parallel-size 24", "--expert-model-parallel-size", (24, 256), (8, 32)),
        ("megatron.sh", "tensor-parallel-size 1", "tensor-parallel-size 3", "--expert-tensor-parallel-size", (3, 2048), 1),
        ("megatron.sh", "--nnodes 64", "--nnodes 2", "--expert-model-parallel-size", (32, "2 devices"), 2),
        ("megatron.sh", "topk 8", "topk 512", "--moe-router-topk", (512, 256), 256),
        ("megatron.sh", "num-groups 8", "num-groups 7", "--moe-router-num-groups", (7, 256), (4, 8)),
        ("megatron.sh", "group-topk 4", "group-topk 9", "--moe-router-group-topk", 9, 8),
        ("megatron.sh", "[1]*58", "[1]*57", "--moe-layer-freq", ("57", "61 layers"), "[1]*60"),
        ("megatron.sh", "tmL", "tL", "--pipeline-model-parallel-layout", "multi-token", "t*3mL"),
        ("megatron.sh", "type flex", "type allgather", "--moe-token-dispatcher-type", "allgather", ("alltoall", "flex")),
        ("megatron.sh", "mla_up_proj", "moe", "--recompute-granularity", "moe", "moe_act"),
        ("megatron.sh", "--overlap-moe-expert-parallel-comm", "", "--delay-wgrad-compute", "without", "leave"),
        ("megatron.sh", "-layers 1 ", "-layers 2 ", "--pipeline-model-parallel-layout", (1, 2), "Et*3|(t*4|)*13t*3|t*3mmL"),
        ("bridge.yaml", "parallel_size: 8", "parallel_size: 3", "model.expert_model_parallel_size", (3, 128), (4, 8)),
        ("bridge.yaml", "flex\n", "flexible\n", "model.moe_token_dispatcher_type", "flexible", "flex"),
        ("titan.toml", "= 32", "= 48", "parallelism.expert_parallel_degree", (48, 256), 32),
        ("titan.toml", "expert_parallel", "expert_tensor_parallel_degree = 4\nexpert_parallel",
         "parallelism.expert_tensor_parallel_degree", (4, 8), (1, 8)),
    ],
)  # fmt: skip
def test_what_the_tool_refuses_is_refused_by_its_key(
    tmp_path: Path, name: str, old: str, new: str, field: str, problem: Facts, fix: Facts
) -> None:
    path = written(tmp_path, name, (old, new))
    with refused(field, where=path, problem=problem, fix=fix):
        read(path)


def test_overrides_of_a_recipe_with_experts_are_none_of_a_dense_model(tmp_path: Path) -> None:
    path = tmp_path / "overrides.yaml"
    path.write_text(
        "model: {seq_length: 4096, moe_permute_fusion: true}\ntrain: {micro_batch_size: 1, global_batch_size: 64}\n"
    )
    with refused("model.moe_permute_fusion", problem=("true", "experts"), fix="--ignore model.moe_permute_fusion"):
        tp.import_run(path, cluster="h100:8", search=False, model="llama3-8b")
    run = tp.import_run(path, cluster="h100:8", search=False, model="llama3-8b", ignored=["model.moe_permute_fusion"])
    assert run.plan.planned_model().name == "llama3-8b"


def test_ranks_of_experts_are_those_of_other_units_unless_given(tmp_path: Path) -> None:
    other = ("--expert-tensor-parallel-size 1", "--tensor-model-parallel-size 4")
    read_of = found(written(tmp_path, "megatron.sh", other, ("parallel-size 32", "parallel-size 16")))
    assert (read_of.tp, read_of.etp, read_of.dp, read_of.edp) == (4, 4, 16, 1)
    read_of = found(written(tmp_path, "titan.toml", ("expert_parallel_degree = 32", "expert_parallel_degree = 1")))
    assert (read_of.tp, read_of.etp) == (8, 8)


@pytest.mark.parametrize(
    ("written_as", "layers", "expected"),  # those of moe_freq_type's own description first
    [
        ("([1]*3+[0]*1)*3", 12, [1, 1, 1, 0] * 3),
        ("([0]+[1]*23)", 24, [0] + [1] * 23),
        ("([1]*3+[0]*2)*2", 10, [1, 1, 1, 0, 0] * 2),
        ("2", 5, [1, 0, 1, 0, 1]),
        (1, 3, [1, 1, 1]),
        ([0, 1], 2, [0, 1]),
        ("0 1 1", 3, [0, 1, 1]),  # as logs have a list
        ("[0, 1, 1]", 3, [0, 1, 1]),
        ("[2, 1, 1]", 3, None),
        ("[1]*4", 3, None),
        ("__import__('os').getcwd()", 3, None),
        ("[1]*99999999999", 3, None),
        ("[1]*3 - 1", 3, None),
        (0, 3, None),
    ],
)
def test_layers_of_experts(written_as: Any, layers: int, expected: list[int] | None) -> None:
    assert pattern(written_as, layers) == (None if expected is None else tuple(map(bool, expected)))


def test_layers_of_experts_in_words() -> None:
    assert layers_in_words((True,) * 32) == "all 32"
    assert layers_in_words((False, *(True,) * 60)) == "all but 0, of 61"
    assert layers_in_words((False, True) * 24) == "1, 3, 5, .. (24 of 48)"


@pytest.mark.parametrize("values", [False, True])
def test_the_command_prints_what_was_read_and_why_it_is_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], values: bool
) -> None:
    with pytest.raises(RunOfExperts) as caught:
        read(written(tmp_path, "megatron.sh"))
    outcome = outcome_of_experts(caught.value, values)
    assert outcome.code == 2 and not outcome.files
    assert outcome.content["error"]["field"] == "--num-experts" and outcome.content["exit_code"] == 2
    outcome.show()
    printed = capsys.readouterr()
    assert "do not lay out experts" in printed.err and printed.err.count("\n") == 1
    for text in ("256 experts", "Et*4|(t*4|)*14tmL", "all but 0 to 2, of 61", "--moe-router-topk", "2 ranks"):
        assert values or text in printed.out  # with the defaults, a table whose cells are wrapped
    assert ("default of" in printed.out) == values
