"""Arguments and environment variables of Megatron-LM that bear on the model, the batch, memory or precision.

Each is read, or named, and never passed over; those that Megatron-LM's own assertions do not let start are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trainplan.execution.launch_files.run_configuration import RunConfiguration, UserSettings
from trainplan.execution.runtimes.megatron.reader import KNOWN
from trainplan.execution.runtimes.megatron.refused import DEALT, NOTED, REFUSED, TENSOR_NOTED
from trainplan.formulations.costs.overlapped.layout import RecomputePolicy

import trainplan as tp
from tests.helpers.refusals import Facts, refused
from trainplan.imported_runs.to_plan import read_text
from trainplan.validation.recomputation import recompute_of_words
from trainplan.validation.rows import Run

GIB = 2**30
LLAMA = """torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 4096 --ffn-hidden-size 14336
--num-attention-heads 32 --seq-length 8192 --max-position-embeddings 8192 --swiglu --normalization RMSNorm
--disable-bias-linear --position-embedding-type rope --untie-embeddings-and-output-weights --attention-dropout 0
--hidden-dropout 0 --vocab-size 32000 --micro-batch-size 1 --global-batch-size 64 --use-distributed-optimizer""".replace(
    "\n", " "
)
BF16 = f"{LLAMA} --bf16"
TWO = "--tensor-model-parallel-size 2"
AGAIN = "--recompute-granularity full --recompute-method"


def peak_gib(words: str, **stated: Any) -> float:
    run = tp.import_run(line=f"{BF16} {words}", cluster="h100:8", search=False, **stated)
    assert not isinstance(run.framework, str), run.framework
    return max(run.peak_bytes) / GIB


def test_layers_that_are_recomputed_together_are_all_held_at_once() -> None:
    """One group of all 24 layers holds what a run without recomputation does; groups of five the inputs of five groups."""
    plain = peak_gib("")
    one_layer, five, twelve, all_ = (peak_gib(f"{AGAIN} uniform --recompute-num-layers {count}") for count in (1, 5, 12, 24))
    entry = 8192 * 4096 * 2 / GIB
    assert one_layer + 2 < five < one_layer + 5
    assert plain - 2 < all_ < plain
    layer = (all_ - twelve + entry) / 12  # what is held of one: 12 more of them, and one input instead of two
    assert all_ - five == pytest.approx(19 * layer - 4 * entry)


def test_groups_of_layers_end_with_their_stage() -> None:
    """In stages of six layers, groups of eight are groups of six."""
    stages = "--pipeline-model-parallel-size 4"
    eight, six = (peak_gib(f"{stages} {AGAIN} uniform --recompute-num-layers {count}") for count in (8, 6))
    assert eight == six


def test_groups_of_layers_without_the_runtime_s_prediction_are_refused() -> None:
    """The analyses of programs recompute each layer by itself."""
    line = f"{BF16} {AGAIN} uniform --recompute-num-layers 4".replace("torchrun", "torchrun --nnodes 2")
    with refused("recompute_num_layers", problem="4", fix="1"):
        tp.import_run(line=line, cluster="a100-16", search=False)


def test_groups_of_layers_are_exported_as_they_were_read(tmp_path: Path) -> None:
    run = tp.import_run(line=f"{BF16} {AGAIN} uniform --recompute-num-layers 4", cluster="h100:8", search=False)
    for name, text in tp.export(run.plan, "megatron").files.items():
        (tmp_path / name).write_text(text)
    back = tp.import_run(tmp_path / "launch.sh", cluster="h100:8", search=False)
    assert max(back.peak_bytes) == max(run.peak_bytes)


@pytest.mark.parametrize("words", ["uniform 4", "full (uniform, 4 layers)", "full uniform num-layers 4"])
def test_rows_of_measured_runs_say_groups_of_layers(words: str) -> None:
    assert recompute_of_words(Run(id="row", model="llama3-8b", gpu="h100", gpus=8, recompute=words), {}) == RecomputePolicy(
        layers=1.0, group=4
    )


def configuration(words: str, model: str | None = None, line: str = BF16) -> RunConfiguration:
    return read_text(f"{line} {words}", "run.sh", UserSettings(model=model))


@pytest.mark.parametrize(
    ("words", "field", "problem", "fix"),
    [
        ("--heterogeneous-layers-config-path /x", "--heterogeneous-layers-config-path", "/x", "none"),
        ("--heterogeneous-layers-config-encoded-json {}", "--heterogeneous-layers-config-encoded-json", "{}", "none"),
        ("--spec my.module my_spec", "--spec", "my.module my_spec", ()),
        ("--freeze-LM", "--freeze-LM", ("pretrain_gpt.py", "images"), "decoder"),
        ("--freeze-bottom-layers-path /x", "--freeze-bottom-layers-path", ("/x", "part"), ()),
        ("--teacher-load-dir /x", "--teacher-load-dir", "/x", "--ignore --teacher-load-dir"),
        ("--logits-load-dir /x", "--logits-load-dir", "/x", ("none", "distillation")),
        ("--yaml-cfg /x/run.yaml", "--yaml-cfg", "/x/run.yaml", "none"),
        ("--fp32-residual-connection", "--fp32-residual-connection", (), "dtype"),
        ("--embedding-weights-in-fp32", "--embedding-weights-in-fp32", (), "dtype"),
        ("--fp16-lm-cross-entropy", "--fp16-lm-cross-entropy", (), "float32"),
        ("--checkpoint-in-cpu", "--checkpoint-in-cpu", (), "device"),
        (f"--distribute-saved-activations {TWO}", "--distribute-saved-activations", (), "--sequence-parallel"),
        (f"--partition-activations {TWO}", "--partition-activations", (), "--sequence-parallel"),
        ("--exp-avg-dtype bf16", "--exp-avg-dtype", "bf16", "fp32"),
        ("--main-params-dtype fp16", "--main-params-dtype", "fp16", "fp32"),
        ("--optimizer sgd", "--optimizer", "sgd", ("adam", "muon", "dist_muon")),
        ("--optimizer lion", "--optimizer", "lion", ("adam", "muon", "dist_muon")),
        (
            "--recompute-granularity selective --recompute-modules core_attn mlp", "--recompute-modules", "mlp",
            ("core_attn", "layernorm", "--recompute-granularity full"),
        ),
        ("--fp16", "--bf16", "--fp16", ()),
        ("--mlp-chunks-for-training 4", "--mlp-chunks-for-training", 4, 1),
        ("--use-tp-pp-dp-mapping --pipeline-model-parallel-size 2", "--use-tp-pp-dp-mapping", (), ()),
        (
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 6 "
            "--microbatch-group-size-per-virtual-pipeline-stage 4",
            "--microbatch-group-size-per-virtual-pipeline-stage", 4, 2,
        ),
        (
            "--pipeline-model-parallel-size 4 --decoder-pipeline-manual-split-list [6,6,6]",
            "--decoder-pipeline-manual-split-list", "[6,6,6]", 4,
        ),
        (
            "--pipeline-model-parallel-size 4 --decoder-pipeline-manual-split-list [6,6,6,7]",
            "--decoder-pipeline-manual-split-list", (4, "[13, 12, 12, 15]"), 50,
        ),
    ],
)  # fmt: skip
def test_what_no_plan_has_is_refused_with_what_to_give(words: str, field: str, problem: Facts, fix: Facts) -> None:
    with refused(field, problem=problem, fix=fix):
        configuration(words)


@pytest.mark.parametrize("words", [
    "--exp-avg-dtype fp32 --exp-avg-sq-dtype fp32 --main-params-dtype fp32", "--mlp-chunks-for-training 1",
    "--partition-activations --distribute-saved-activations --no-async-tensor-model-parallel-allreduce",
    "--use-tp-pp-dp-mapping",
    "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 6 "
    "--microbatch-group-size-per-virtual-pipeline-stage 2",
    "--spec megatron.core.models.gpt.gpt_layer_specs get_gpt_layer_with_transformer_engine_spec",
])  # fmt: skip
def test_values_that_plans_have_are_read(words: str) -> None:
    assert not configuration(words).unread


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--use-precision-aware-optimizer", "it has more memory (--use-precision-aware-optimizer)"),
        ("--defer-embedding-wgrad-compute", "it has less memory"),
        ("--no-bias-swiglu-fusion", "it has less memory"),
        (f"--no-async-tensor-model-parallel-allreduce {TWO}", "it has less time"),
        ("--recompute-granularity selective --recompute-modules core_attn moe", "recomputation of moe"),
    ],
)
def test_what_differs_a_little_is_noted(words: str, says: str) -> None:
    assert any(says in note for note in configuration(words).notes)


def test_what_is_refused_or_noted_is_not_reported_to_change_no_plan() -> None:
    assert not KNOWN.names & {*REFUSED, *NOTED, *TENSOR_NOTED, *DEALT}


def test_a_list_of_layers_says_the_stages_of_each_rank_in_turn() -> None:
    """As Primus documents it: the stages of the first rank, then those of the next one."""
    made = configuration("--pipeline-model-parallel-size 2 --decoder-pipeline-manual-split-list [7,6,6,5]")
    assert (made.chunks, made.cuts) == (2, (15, 27, 39))  # 7, 6, 6 and 5 layers, by the chain: first stages of both ranks


@pytest.mark.parametrize(("words", "stage"), [("", 3), ("--torch-fsdp2-no-reshard-after-forward", 2)])
def test_fsdp2_that_keeps_parameters_after_forward_passes_is_stage_2(words: str, stage: int) -> None:
    made = configuration(f"--use-torch-fsdp2 {words}", line=BF16.replace("--use-distributed-optimizer", ""))
    assert made.zero == stage


def test_sizes_that_a_checkpoint_has_are_those_of_the_model_that_is_named() -> None:
    line = "torchrun --nproc_per_node 8 pretrain_gpt.py --use-checkpoint-args --load /x --tensor-model-parallel-size 2 "
    line += "--micro-batch-size 1 --global-batch-size 64 --seq-length 4096 --bf16 --use-distributed-optimizer"
    run = tp.import_run(line=line, cluster="h100:8", model="llama3-8b", search=False)
    assert run.plan.planned_model().layers == 32
    with refused("num_layers", fix="--model"):
        tp.import_run(line=line, cluster="h100:8", search=False)


def test_the_tokenizer_of_pretrain_gpt_is_gpt2_s_where_its_words_are_given() -> None:
    """As `args_defaults` of `pretrain_gpt.py` has it; a file that is not known, such as $3, is one of it, too."""
    plain = BF16.replace("--vocab-size 32000", "")
    made = read_text(f"{plain} --vocab-file $3 --merge-file $4", "run.sh")
    assert made.config is not None and made.config["vocab_size"] == 50257
    assert any(setting.key == "--tokenizer-type" and setting.source == "default of pretrain_gpt.py" for setting in made.taken)
    for words in (plain, f"{plain} --vocab-file $3 --tokenizer-type HuggingFaceTokenizer"):
        other = read_text(words, "run.sh")
        assert other.config is not None and "vocab_size" not in other.config
    renamed = read_text(f"{plain} --vocab-file $3".replace("pretrain_gpt.py", "my_pretrain.py"), "run.sh")
    assert renamed.config is not None and "vocab_size" not in renamed.config


@pytest.mark.parametrize("key", ["--use-nccl-ub", "--nccl-ub"])
def test_buffers_that_are_registered_with_nccl_are_noted_with_fsdp_alone(key: str) -> None:
    plain, sharded = (read_text(f"{BF16} {words} {key}", "run.sh") for words in ("", "--use-megatron-fsdp"))
    assert plain.unknown == sharded.unknown == () and not any(key in note for note in plain.notes)
    assert any("registered with NCCL" in note and key in note for note in sharded.notes)


def test_losses_per_token_are_documented() -> None:
    made = read_text(f"{BF16} --calculate-per-token-loss", "run.sh")
    assert made.unknown == () and "--calculate-per-token-loss" in made.unread


OFF = "NVTE_FLASH_ATTN=0 NVTE_FUSED_ATTN=0"
FLASH = "export NVTE_FLASH_ATTN=1 NVTE_FUSED_ATTN=0\n"
AUTO = "--attention-backend auto"


def peak_gib_of_script(folder: Path, script: str, *ignored: str, attention: str | None = None) -> float:
    """The predicted peak of a script on eight H100."""
    path = folder / "run.sh"
    path.write_text(script)
    run = tp.import_run(path, cluster="h100:8", search=False, ignored=ignored, attention=attention)
    return max(run.peak_bytes) / GIB


@pytest.mark.parametrize(
    ("script", "field", "problem", "fix"),
    [
        (f"export {OFF}\n{BF16}", "NVTE_FLASH_ATTN", (0, AUTO), ("--attention-backend unfused", "--attention eager")),
        (f"{OFF} {BF16}", "NVTE_FLASH_ATTN", (0, AUTO), ("--attention-backend unfused", "--attention eager")),
        (f"env {OFF} {BF16}", "NVTE_FLASH_ATTN", (0, AUTO), ("--attention-backend unfused", "--attention eager")),
        (
            f"export NVTE_FUSED_ATTN=0\n{BF16}", "NVTE_FUSED_ATTN", (0, AUTO),
            ("--attention-backend flash", "--ignore NVTE_FUSED_ATTN", "--attention flash"),
        ),
        (
            f"export NVTE_FLASH_ATTN=0\n{BF16}", "NVTE_FLASH_ATTN", (0, AUTO),
            ("--attention-backend fused", "--ignore NVTE_FLASH_ATTN", "--attention flash"),
        ),
        (
            f"{FLASH}{BF16} --attention-backend fused", "NVTE_FLASH_ATTN", (1, "--attention-backend fused", 0),
            ("--attention-backend flash", "--ignore NVTE_FLASH_ATTN", "--ignore NVTE_FUSED_ATTN", "--attention flash"),
        ),
        (f"export NVTE_FUSED_ATTN=$X\n{BF16}", "NVTE_FUSED_ATTN", "$X", "--set X=8"),
        (f"export NVTE_OTHER_ATTN=1\n{BF16}", "NVTE_OTHER_ATTN", 1, "--ignore NVTE_OTHER_ATTN"),
        (
            "export NVTE_FUSED_ATTN=0\npython run_recipe.py --recipe llama3_8b_pretrain_config", "NVTE_FUSED_ATTN",
            (0, "model.attention_backend auto"), ("model.attention_backend flash", "--attention flash"),
        ),
    ],
)  # fmt: skip
def test_variables_that_the_backend_does_not_go_with_are_refused(
    tmp_path: Path, script: str, field: str, problem: Facts, fix: Facts
) -> None:
    with refused(field, problem=problem, fix=fix):
        peak_gib_of_script(tmp_path, script)


def test_variables_that_the_backend_goes_with_are_read(tmp_path: Path) -> None:
    plain, eager = peak_gib_of_script(tmp_path, BF16), peak_gib_of_script(tmp_path, f"{BF16} --attention-backend unfused")
    assert eager > plain + 50  # scores of 32 heads over 8192 positions
    assert peak_gib_of_script(tmp_path, f"export {OFF}\n{BF16} --attention-backend unfused") == eager
    assert peak_gib_of_script(tmp_path, f"{FLASH}{BF16} --attention-backend flash") == plain
    assert peak_gib_of_script(tmp_path, f"export NVTE_ALLOW_NONDETERMINISTIC_ALGO=0\n{BF16}") == plain
    assert peak_gib_of_script(tmp_path, f"NVTE_FUSED_ATTN=0\n{BF16}") == plain, "an unexported one is the script's"


def test_earlier_cores_run_as_the_variables_say(tmp_path: Path) -> None:
    """Nothing in a script tells core 0.10 from later ones: the user says it, by the attention that runs."""
    script, names = f"export {OFF}\n{BF16}", ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN")
    eager = peak_gib_of_script(tmp_path, f"{BF16} --attention-backend unfused")
    assert peak_gib_of_script(tmp_path, script, *names, attention="eager") == eager
    older = f"{BF16} --use-flash-attn --DDP-impl local"
    flash = peak_gib_of_script(tmp_path, older)
    assert peak_gib_of_script(tmp_path, f"export {OFF}\n{older}") > flash + 50


PLAIN = BF16.replace("--global-batch-size 64", "")


def made(words: str) -> RunConfiguration:
    return read_text(f"{PLAIN} {words}", "run.sh")


@pytest.mark.parametrize(
    ("words", "field", "problem", "fix"),
    [
        (
            "--rampup-batch-size 16 32 100 --global-batch-size 64",
            "--rampup-batch-size",
            ("16 32 100", "64"),
            "--global-batch-size 48",
        ),
        (
            "--rampup-batch-size 64 32 100 --global-batch-size 64",
            "--rampup-batch-size",
            "64 32 100",
            "--global-batch-size 96",
        ),
        (
            "--rampup-batch-size 96 32 100 --global-batch-size 64",
            "--rampup-batch-size",
            ("96 32 100", "64"),
            "--global-batch-size 128",
        ),
        ("--rampup-batch-size 16 0 100 --global-batch-size 64", "--rampup-batch-size", "16 0 100", ("32", "100000")),
        (
            "--rampup-batch-size 16 16 100 --global-batch-size 64 --train-iters 10",
            "--rampup-batch-size",
            ("16 16 100", "--train-iters"),
            "--train-samples",
        ),
        (
            '--step-batch-size-schedule "0:16 1B:64" --global-batch-size 128',
            "--global-batch-size",
            ("128", "--step-batch-size-schedule", "64"),
            ("--step-batch-size-schedule", 64),
        ),
        ('--step-batch-size-schedule "1B:64"', "--step-batch-size-schedule", ("1B:64", "0"), "0"),
        ('--step-batch-size-schedule "0:16 0:64"', "--step-batch-size-schedule", ("0:16 0:64", "two sizes"), 0),
        # tokens of one sample
        ('--step-batch-size-schedule "0:16 8191:64"', "--step-batch-size-schedule", ("0:16 8191:64", "two sizes"), 0),
        ('--step-batch-size-schedule "0:16 1B"', "--step-batch-size-schedule", "0:16 1B", '"0:64 1B:256"'),
    ],
)
def test_batches_that_do_not_start_are_refused(words: str, field: str, problem: Facts, fix: Facts) -> None:
    with refused(field, problem=problem, fix=fix):
        made(words)


@pytest.mark.parametrize(
    ("words", "samples", "says"),
    [
        ("--rampup-batch-size 16 16 100 --global-batch-size 64 --train-samples 1000", 64, "grow from 16 by 16"),
        ('--step-batch-size-schedule "0:16,1B:64"', 64, "batches of 16, 64 in turn"),
        ('--step-batch-size-schedule "1.5B:1K 0:16"', 1000, "batches of 16, 1000 in turn"),
        ('--step-batch-size-schedule "0:16 1B:64" --global-batch-size 64', 64, "read as without it"),
        ('--step-batch-size-schedule "0:16 1B:64" --rampup-batch-size 8 8 100', 64, "the first has no effect"),
    ],
)
def test_batches_that_grow_are_read_at_their_end(words: str, samples: int, says: str) -> None:
    configuration = made(words)
    assert configuration.samples == samples
    assert any(says in note for note in configuration.notes), configuration.notes
