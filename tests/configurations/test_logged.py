"""Logs of runs: the configuration that a tool prints, read as it resolved it.

`logs/megatron-2026-08.log` is what Megatron-LM's own parser and checks (main, 22 August 2026) print for the command `WORDS` on
16 ranks; TrainingArguments are printed by the installed transformers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trainplan.execution.launch_files.run_configuration import RunConfiguration, UserSettings
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.models.model import model_from_config

import trainplan as tp
from tests.helpers.refusals import Facts, refused
from trainplan.imported_runs.to_plan import read

HERE = Path(__file__).parent / "logs"
WORDS = """
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention
    --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope --rotary-base 500000
    --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights --attention-dropout 0
    --hidden-dropout 0 --micro-batch-size 1 --global-batch-size 128 --tokenizer-type NullTokenizer --vocab-size 128255 --bf16
    --train-iters 10 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4
    --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
    --recompute-granularity selective --transformer-impl local --no-persist-layer-norm
"""
STEPS = "".join(
    f" iteration {n:8d}/      10 | consumed samples: {128 * n:12d} | elapsed time per iteration (ms): {ms} | "
    "learning rate: 9.150E-06 | global batch size:   128 | lm loss: 2.504220E+00 |\n"
    for n, ms in enumerate((20000.0, 9100.0, 9100.0, 9000.0, 9200.0), 1)
)
FIELDS = (
    "runtime", "devices", "samples", "micro_samples", "tp", "cp", "pp", "chunks", "zero", "sequence_parallel", "schedule",
    "cuts", "recomputed", "dtype", "precision", "optimizer", "sequence", "copies", "exchange", "recipe",
)  # fmt: skip


def fields_of(configuration: RunConfiguration) -> dict[str, object]:
    return {name: getattr(configuration, name) for name in FIELDS}


def megatron(folder: Path, *more: str, prefix: str = "") -> Path:
    """A log with Megatron-LM's arguments and some steps."""
    path = folder / "train.log"
    lines = [*(HERE / "megatron-2026-08.log").read_text().splitlines(), *more]
    path.write_text("".join(f"{prefix}{line}\n" for line in ["using world size: 16", *lines]))
    return path


@pytest.mark.parametrize("prefix", ["", "[default0]:", "0: ", "[rank0]: ", "[2026-08-22 10:00:00] ", "\x1b[36m(pid=1)\x1b[0m "])
def test_a_log_of_megatron_says_what_its_command_does(tmp_path: Path, prefix: str) -> None:
    command = tmp_path / "arguments.txt"
    command.write_text(WORDS)
    expected = read(command)
    configuration = read(megatron(tmp_path, prefix=prefix))
    assert fields_of(configuration) == {**fields_of(expected), "devices": 16}
    assert configuration.config == expected.config and configuration.vocabulary_multiple == expected.vocabulary_multiple
    assert not configuration.unknown
    source = next(setting.source for setting in configuration.taken if setting.key == "--num-layers")
    line = (tmp_path / "train.log").read_text().splitlines()[int(source.rpartition(":")[2]) - 1]
    assert "num_layers ." in line and source.startswith(str(tmp_path / "train.log"))


def test_the_padded_vocabulary_of_a_log_is_taken(tmp_path: Path) -> None:
    path = megatron(tmp_path, " > padded vocab (size: 128256) with 256 dummy tokens (new size: 128512)")
    configuration = read(path)
    assert configuration.config is not None and configuration.config["vocab_size"] == 128512


def test_measured_steps_of_a_log_stand_with_its_prediction(tmp_path: Path) -> None:
    path = megatron(tmp_path, *STEPS.splitlines())
    judged = tp.import_run(path, cluster="h100:8x2", search=False)
    assert judged.logged is not None and judged.logged.step_s == 9.1
    assert judged.to_dict()["measured"]["step_error"] == judged.logged.predicted_s / 9.1 - 1


def test_a_script_and_the_log_of_its_run_are_read_together(tmp_path: Path) -> None:
    """The layout is the script's, also where the log begins after the arguments; the measured step and peak are the log's."""
    log, command = megatron(tmp_path, *STEPS.splitlines()), tmp_path / "launch.sh"
    command.write_text(f"torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {' '.join(WORDS.split())}")
    given: dict[str, Any] = {"cluster": "h100:8x2", "search": False}
    whole = tp.import_run(log, **given)
    log.write_text(STEPS)
    run = tp.import_run(command, log=log, **given)
    assert run.logged is not None and run.logged == whole.logged and run.logged.step_s == 9.1
    assert run.configuration.where == str(command)
    out = tmp_path / "out.log"
    out.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total of 79.1 GiB")
    ended = tp.import_run(command, log=out, **given)
    assert ended.logged is None and ended.configuration.ran_out is not None and ended.configuration.ran_out.tried_bytes == 2**31
    log.write_text(f"{(HERE / 'megatron-2026-08.log').read_text()}{STEPS}")
    with refused("--log", problem="itself", fix="leave it out"):
        tp.import_run(megatron(tmp_path, *STEPS.splitlines()), log=out, **given)
    out.write_text("[rank0]: step: 10  loss: 8.1  memory: 40.12GiB(50.68%)  tps: 7,123  tflops: 400.1  mfu: 40.2%\n")
    with refused("--log", problem=("torchtitan", "megatron"), fix="the run that the file starts"):
        tp.import_run(command, log=out, **given)


def test_a_mixture_of_experts_in_a_log_is_refused(tmp_path: Path) -> None:
    path = megatron(tmp_path)
    text = path.read_text().replace(
        "  num_experts ..................................... None", "  num_experts ..................................... 8"
    )
    path.write_text(text)
    with refused("--num-experts", problem=("8", "experts", "2"), fix="dense"):
        read(path)


def test_a_new_argument_that_bears_is_refused_by_its_line(tmp_path: Path) -> None:
    path = megatron(tmp_path)
    number = next(n for n, line in enumerate(path.read_text().splitlines(), 1) if "num_layers ." in line)
    lines = path.read_text().splitlines()
    lines.insert(number, "  attention_head_share_degree ..................... 3")
    path.write_text("\n".join(lines))
    with pytest.raises(InputError) as error:
        read(path)
    assert error.value.field == "--attention-head-share-degree"
    assert read(path, user=UserSettings(ignored=frozenset({"--attention-head-share-degree"}))).tp == 2


DEEPSPEED = """\
[2026-01-15 06:31:35,632] [INFO] [config.py:960:print] DeepSpeedEngine configuration:
[2026-01-15 06:31:35,632] [INFO] [config.py:964:print]   activation_checkpointing_config  {
    "partition_activations": false,
    "cpu_checkpointing": false
}
[2026-01-15 06:31:35,632] [INFO] [config.py:964:print]   bfloat16_enabled ............. True
[2026-01-15 06:31:35,632] [INFO] [config.py:964:print]   fp16_enabled ................. False
[2026-01-15 06:31:35,633] [INFO] [config.py:964:print]   gradient_accumulation_steps .. 4
[2026-01-15 06:31:35,633] [INFO] [config.py:964:print]   train_batch_size ............. 64
[2026-01-15 06:31:35,633] [INFO] [config.py:964:print]   train_micro_batch_size_per_gpu  2
[2026-01-15 06:31:35,633] [INFO] [config.py:964:print]   world_size ................... 8
[2026-01-15 06:31:35,634] [INFO] [config.py:950:print_user_config]   json = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": 2,
    "bf16": {
        "enabled": true
    },
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": true
    }
}
[2026-01-15 06:31:45,936] [INFO] [timer.py:215:stop] epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=12.0, \
CurrSamplesPerSec=12.8, MemAllocated=0.07GB, MaxMemAllocated=40.0GB
"""


def test_a_log_of_deepspeed_has_its_file_and_what_the_engine_made_of_it(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(DEEPSPEED)
    configuration = read(path)
    assert configuration.runtime == "deepspeed" and configuration.zero == 3 and configuration.devices == 8
    assert (configuration.samples, configuration.micro_samples, configuration.accumulation) == (64, 2, 4)
    assert configuration.dtype == "bfloat16" and configuration.precision.master == "float32"
    judged = tp.import_run(path, cluster="h100:8", model="llama3-8b", sequence=2048, recompute="full", search=False)
    assert judged.logged is not None and judged.logged.step_s == pytest.approx(5.0)


@pytest.mark.parametrize(("version", "differs"), [("0.14.2", True), ("0.1", True), ("0.190.0", True), ("0.19.3", False)])
def test_a_log_of_another_version_than_the_defaults_says_both(tmp_path: Path, version: str, differs: bool) -> None:
    path = tmp_path / "train.log"
    begun = (
        f"[2026-01-15 06:31:20,000] [INFO] [logging.py:96:log_dist] [Rank 0] DeepSpeed info: version={version}, git-hash=x\n"
    )
    path.write_text(begun + DEEPSPEED)
    stated_notes = [
        note for note in read(path).notes if f"by the defaults of DeepSpeed 0.19, and the log is of {version}:" in note
    ]
    assert len(stated_notes) == differs


def config_parameters(config: Any) -> int:
    """The parameters that transformers counts in a model that is trained whole."""
    return model_from_config(config.to_dict(), "config", 1024, "bfloat16").total_parameters


@pytest.mark.parametrize("front", ["", "01/15/2026 09:08:04 - INFO - __main__ - "])
def test_training_arguments_are_read_as_transformers_prints_them(
    tmp_path: Path, front: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8)
    monkeypatch.setattr(transformers.TrainingArguments, "_setup_devices", "cpu")  # which needs accelerate
    printed = transformers.TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=8, report_to=[], use_cpu=True
    )
    text = f"{front}Training/evaluation parameters {printed}\n".replace("bf16=False", "bf16=True").replace(
        "checkpointing=False", "checkpointing=True"
    )
    text = text.replace("use_cpu=True", "use_cpu=False")
    text += f"{front}Model config LlamaConfig {config.to_json_string()}\n"
    text += f"{front}  Total train batch size (w. parallel, distributed & accumulation) = 128\n"
    text += f"{front}  Number of trainable parameters = {config_parameters(config):,}\n"
    text += "{'train_runtime': 100.0, 'train_samples_per_second': 64.0, 'train_steps_per_second': 0.5, 'epoch': 1.0}\n"
    path = tmp_path / "train.log"
    path.write_text(text)
    configuration = read(path)
    assert configuration.devices == 8 and configuration.samples == 128 and configuration.micro_samples == 2
    assert configuration.dtype == "bfloat16" and configuration.recomputed.of == "full" and configuration.zero == 0
    judged = tp.import_run(path, cluster="h100:8", sequence=2048, search=False)
    assert judged.plan.planned_model().layers == 16 and judged.logged is not None and judged.logged.step_s == 2.0


@pytest.mark.parametrize("printer", [json.dumps, lambda value: json.dumps(value, indent=2), str])
def test_a_log_of_torchtitan_has_the_configuration_of_its_job(tmp_path: Path, printer: object) -> None:
    tables = {
        "model": {"name": "llama3", "flavor": "8B"},
        "training": {"local_batch_size": 2, "seq_len": 8192},
        "parallelism": {"tensor_parallel_degree": 2},
        "activation_checkpoint": {"mode": "full"},
    }
    path = tmp_path / "train.log"
    assert callable(printer)
    path.write_text(f"[rank0]:2026-01-15 06:31:35,632 - root - INFO - Running with args: {printer(tables)}\n")
    configuration = read(path)
    assert (configuration.runtime, configuration.tp, configuration.sequence) == ("torchtitan", 2, 8192)


STATE = """
04/02/2026 08:00:01 - INFO - __main__ - Distributed environment: {kind}  Backend: nccl
Num processes: 16
Process index: 0
Local process index: 0
Device: cuda:0

Mixed precision type: bf16
{more}
04/02/2026 08:01:02 - INFO - __main__ - ***** Running training *****
04/02/2026 08:01:02 - INFO - __main__ -   Num examples = 51,760
04/02/2026 08:01:02 - INFO - __main__ -   Instantaneous batch size per device = 2
04/02/2026 08:01:02 - INFO - __main__ -   Total train batch size (w. parallel, distributed & accumulation) = 128
04/02/2026 08:01:02 - INFO - __main__ -   Gradient Accumulation steps = 4
"""  # as `logger.info(accelerator.state)` prints it (accelerate 1.15, src/accelerate/state.py)


def test_accelerates_state_is_read_with_the_batch_that_its_trainers_print(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(STATE.format(kind="MULTI_GPU", more=""))
    configuration = read(path)
    assert (configuration.devices, configuration.samples, configuration.micro_samples, configuration.accumulation) == (
        16,
        128,
        2,
        4,
    )
    assert configuration.zero == 0 and configuration.precision.master == "float32" and configuration.dtype == "bfloat16"
    file = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}, "train_batch_size": "auto", "steps_per_print": 10}
    path.write_text(STATE.format(kind="DEEPSPEED", more=f"ds_config: {file}"))
    configuration = read(path)
    assert (configuration.runtime, configuration.zero, configuration.samples) == ("deepspeed", 3, 128)
    assert any(setting.key == "processes" and setting.source.endswith("train.log:3") for setting in configuration.taken)
    path.write_text(STATE.format(kind="FSDP", more=""))
    with refused("Distributed environment", problem="FSDP", fix="`accelerate config`"):
        read(path)


NEMO = """
[NeMo I 2024-03-05 08:15:59 megatron_gpt_pretraining:34] {blank}

    ************** Experiment configuration ***********
[NeMo I 2024-03-05 08:15:59 megatron_gpt_pretraining:35] {blank}
    name: megatron_llama
    trainer:
      devices: 8
      num_nodes: 2
      precision: bf16-mixed
      accumulate_grad_batches: 1
    exp_manager:
      exp_dir: null
    model:
      mcore_gpt: true
      micro_batch_size: 1
      global_batch_size: 128
      rampup_batch_size: null
      tensor_model_parallel_size: 4
      pipeline_model_parallel_size: 2
      virtual_pipeline_model_parallel_size: null
      context_parallel_size: 1
      sequence_parallel: true
      encoder_seq_length: 4096
      max_position_embeddings: ${{.encoder_seq_length}}
      num_layers: 32
      hidden_size: 4096
      ffn_hidden_size: 11008
      num_attention_heads: 32
      num_query_groups: null
      hidden_dropout: 0.0
      attention_dropout: 0.0
      normalization: rmsnorm
      layernorm_epsilon: 1.0e-05
      make_vocab_size_divisible_by: 128
      bias: false
      activation: fast-swiglu
      position_embedding_type: rope
      rotary_percentage: 1.0
      share_embeddings_and_output_weights: false
      tokenizer:
        library: sentencepiece
        model: /models/tokenizer.model
      megatron_amp_O2: true
      activations_checkpoint_granularity: selective
      transformer_engine: true
      fp8: false
      optim:
        name: distributed_fused_adam
        lr: 2.0e-04
        sched:
          name: CosineAnnealing

[NeMo W 2024-03-05 08:15:59 nemo_logging:349] a warning
[NeMo I 2024-03-05 08:16:14 megatron_base_model:264] Padded vocab_size: 32256, original vocab_size: 32000, dummy tokens: 256.
Epoch 0: :   1%|          | 9/1000 [01:42<55:37, v_num=, reduced_train_loss=9.1, global_step=9.0, train_step_timing in s=4.615]
"""  # as `hydra_runner` scripts of NeMo 1.23 print it


def test_a_log_of_nemo_has_its_configuration_and_the_padded_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(NEMO.format(blank=""))
    configuration = read(path)
    assert (configuration.runtime, configuration.tool, configuration.devices) == ("megatron", "NeMo", 16)
    assert (configuration.tp, configuration.pp, configuration.zero, configuration.samples) == (4, 2, 1, 128)
    assert configuration.sequence == 4096 and configuration.sequence_parallel and configuration.dtype == "bfloat16"
    assert configuration.precision.gradients == "model"  # the distributed optimizer sums them in its parameters' dtype
    judged = tp.import_run(path, cluster="a100:8x2", search=False)
    assert judged.plan.planned_model().total_parameters == 6_738_415_616 + 256 * 4096 * 2
    assert judged.logged is not None and judged.logged.step_s == pytest.approx(4.615)


SUMMARY = """
======================================================================
RunConfiguration Summary (Non-Default Values vs Megatron Core)
======================================================================

[optimizer] Non-default values (vs Mcore OptimizerConfig):
  bf16: True  (Mcore default: False)
  use_distributed_optimizer: True  (Mcore default: False)

[ddp] Non-default values (vs Mcore DistributedDataParallelConfig):
  grad_reduce_in_fp32: True  (Mcore default: False)
  overlap_grad_reduce: True  (Mcore default: False)
  overlap_param_gather: True  (Mcore default: False)
  use_distributed_optimizer: True  (Mcore default: False)

[model] Non-default values (vs Mcore TransformerConfig):
  add_bias_linear: False  (Mcore default: True)
  attention_dropout: 0.0  (Mcore default: 0.1)
  autocast_dtype: torch.bfloat16  (Mcore default: None)
  bf16: True  (Mcore default: False)
  ffn_hidden_size: 14336  (Mcore default: None)
  gated_linear_unit: True  (Mcore default: False)
  hidden_dropout: 0.0  (Mcore default: 0.1)
  hidden_size: 4096  (Mcore default: 0)
  kv_channels: 128  (Mcore default: None)
  normalization: 'RMSNorm'  (Mcore default: 'LayerNorm')
  num_attention_heads: 32  (Mcore default: 0)
  num_layers: 32  (Mcore default: 0)
  num_query_groups: 8  (Mcore default: None)
  pipeline_dtype: torch.bfloat16  (Mcore default: None)
  sequence_parallel: True  (Mcore default: False)
  tensor_model_parallel_size: 2  (Mcore default: 1)

----------------------------------------------------------------------
Other RunConfiguration Values:
----------------------------------------------------------------------

[train]:
  global_batch_size: 128
  micro_batch_size: 1
  train_iters: 50

[dataset]:
  random_seed: 1234
  seq_length: 8192

======================================================================
"""  # as `log_non_default_values` of Megatron-Bridge 0.4 prints it


def test_the_summary_of_megatron_bridge_is_read_with_the_model_that_it_leaves_open(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(SUMMARY)
    with refused("--model", where=f"{path}:3", problem=("vocabulary", "embeddings", "positions")):
        read(path)
    configuration = read(path, user=UserSettings(model="llama3-8b"))
    assert configuration.runtime == "megatron-bridge" and configuration.zero == 1 and configuration.sequence == 8192
    assert (configuration.tp, configuration.samples, configuration.dtype) == (2, 128, "bfloat16")
    assert configuration.precision.gradients == "float32" and configuration.sequence_parallel
    assert any(
        setting.key == "model.tensor_model_parallel_size" and setting.source.endswith(":32") for setting in configuration.taken
    )
    with refused("model.num_layers", problem=("32", "llama3-70b", "80"), fix="--model"):
        tp.import_run(path, cluster="h100:8", model="llama3-70b", search=False)


def test_of_several_runs_in_a_log_the_last_is_read_and_measured(tmp_path: Path) -> None:
    """The second run has other arguments, and steps of its own; the first one's are not compared with its plan."""
    whole, path = (HERE / "megatron-2026-08.log").read_text() + STEPS, tmp_path / "train.log"
    second = whole.replace("9100.0", "17000.0").replace("9000.0", "17000.0").replace("9200.0", "17000.0")
    path.write_text(whole + second)
    judged = tp.import_run(path, cluster="h100:8x2", model="llama3-8b", search=False)
    assert judged.logged is not None and judged.logged.step_s == pytest.approx(17.0)


def test_steps_of_a_batch_that_still_grows_are_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(
        (HERE / "megatron-2026-08.log").read_text() + STEPS.replace("global batch size:   128", "global batch size:    64")
    )
    judged = tp.import_run(path, cluster="h100:8x2", model="llama3-8b", search=False)
    assert judged.logged is None and any("64 samples of 128" in note for note in judged.configuration.notes)


@pytest.mark.parametrize(
    ("line", "tool", "fix"),
    [
        ("***** Running training *****", "transformers", ("TrainingArguments", "YAML")),
        (
            "[rank0]:[titan] step: 10  loss: 8.1  memory: 40.12GiB(50%)  tps: 7,123",
            "torchtitan",
            ("TOML", "config_registry.py"),
        ),
    ],
)
def test_a_log_without_a_configuration_is_no_script(tmp_path: Path, line: str, tool: str, fix: Facts) -> None:
    path = tmp_path / "train.log"
    path.write_text(f"{line}\n(w. parallel, distributed & accumulation) = 16\n")
    with refused("", where=path, problem=("log", tool), fix=fix):
        read(path)


def test_logs_of_other_tools_and_cut_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("[NeMo I 2026-01-15 06:31:35 exp_manager:400] ExpManager schema\n")
    with refused("", problem="NeMo", fix=("Megatron-LM", "--command", "NeMo 1")):
        read(path)
    path.write_text(DEEPSPEED.partition('"zero_optimization"')[0])
    with refused("", where=f"{path}:12", problem="configuration", fix="whole log"):
        read(path)
