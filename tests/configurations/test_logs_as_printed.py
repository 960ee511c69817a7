"""Logs as tools of several years print them, and as launchers, terminals and restarts leave them.

The forms are those of the tools' own sources: DeepSpeed's `config.py` and `utils/timer.py`, Megatron-LM's `arguments.py`,
transformers' `trainer.py` and `training_args.py` 4.57, torchtitan's `parallel_dims.py`, torch's allocator.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
import yaml
from trainplan.execution.launch_files.logs.lines import value_of
from trainplan.execution.launch_files.logs.steps import log_of, ran_out, read_log
from trainplan.execution.launch_files.run_configuration import UserSettings
from trainplan.profiling.base.errors import InputError

import trainplan as tp
from tests.helpers.calls import call
from tests.helpers.refusals import Facts, assert_refusal, refused
from trainplan.imported_runs.logs import is_log
from trainplan.imported_runs.to_plan import read

HERE = Path(__file__).parent / "logs"
ARGUMENTS = (HERE / "megatron-2026-08.log").read_text()


def log(folder: Path, text: str, name: str = "train.log") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def steps(seconds: list[float]) -> str:
    return "".join(
        f" iteration {n:8d}/      10 | consumed samples: {128 * n:12d} | elapsed time per iteration (ms): {1e3 * s:.1f} | "
        "learning rate: 9.150E-06 | global batch size:   128 | lm loss: 2.504220E+00 |\n"
        for n, s in enumerate(seconds, 1)
    )


def refusal(path: Path, settings: UserSettings | None = None) -> InputError:
    with pytest.raises(InputError) as error:
        read(path, user=settings or UserSettings())
    return error.value


ENGINE = """\
{0}[2021-05-26 04:38:20,031] [INFO] [config.py:748:print] DeepSpeedEngine configuration:
{0}[2021-05-26 04:38:20,032] [INFO] [config.py:752:print]   fp16_enabled ................. True
{0}[2021-05-26 04:38:20,032] [INFO] [config.py:752:print]   gradient_accumulation_steps .. 2
{0}[2021-05-26 04:38:20,033] [INFO] [config.py:752:print]   train_batch_size ............. 2048
{0}[2021-05-26 04:38:20,033] [INFO] [config.py:752:print]   train_micro_batch_size_per_gpu  16
{0}[2021-05-26 04:38:20,033] [INFO] [config.py:752:print]   world_size ................... 64
{0}[2021-05-26 04:38:20,033] [INFO] [{1}]   json = {{
{0}    "train_batch_size": 2.048000e+03, 
{0}    "train_micro_batch_size_per_gpu": 16, 
{0}    "fp16": {{
{0}        "enabled": true
{0}    }}, 
{0}    "zero_optimization": {{
{0}        "stage": 2, 
{0}        "reduce_bucket_size": 5.000000e+08
{0}    }}, 
{0}    "steps_per_print": inf
{0}}}
"""


@pytest.mark.parametrize("printer", ["config.py:754:print", "config.py:986:print_user_config"])
@pytest.mark.parametrize(
    "front", ["", "gpu-q-13: ", "[default0]:", " 0: ", "[rank0]: ", "(pid=77) ", "2024-01-01T00:00:01.123Z "]
)
def test_deepspeeds_file_is_read_with_infinite_numbers_exponents_and_prefixes(tmp_path: Path, front: str, printer: str) -> None:
    configuration = read(log(tmp_path, ENGINE.format(front, printer)), user=UserSettings(recompute="none"))
    assert (configuration.runtime, configuration.zero, configuration.devices) == ("deepspeed", 2, 64)
    assert (configuration.samples, configuration.micro_samples, configuration.accumulation) == (2048, 16, 2)
    assert configuration.dtype == "float16" and configuration.buffers.reduce_elements == 500_000_000


def test_layers_that_a_log_says_are_recomputed_are(tmp_path: Path) -> None:
    warned = "`use_cache=True` is incompatible with gradient checkpointing. Setting `use_cache=False`.\n"
    text = ENGINE.format("", "config.py:986:print_user_config")
    assert read(log(tmp_path, text)).recomputed.of == "none"
    configuration = read(log(tmp_path, text + warned))
    assert configuration.recomputed.of == "full" and not any("--recompute" in note for note in configuration.notes)
    error = refusal(log(tmp_path, text + warned), UserSettings(recompute="none"))
    assert_refusal(error, "recompute", problem=("none", "train.log:19"))
    state = read(log(tmp_path, STATE.format("MULTI_GPU", "Mixed precision type: bf16") + warned))
    assert state.recomputed.of == "full" and any(setting.source.endswith("train.log:6") for setting in state.taken)


def test_megatron_deepspeed_has_its_stage_from_the_file_in_the_same_log(tmp_path: Path) -> None:
    older = ARGUMENTS.replace("  num_layers ..", "  deepspeed ....................................... {}\n"
                              "  deepspeed_config ................................ ./ds_config.json\n"
                              "  zero_stage ...................................... 2\n  num_layers ..")  # fmt: skip
    older = older.replace(
        "use_distributed_optimizer ....................... True", "use_distributed_optimizer ....................... False"
    )
    file = (
        '[2021-06-10 20:47:51,887] [INFO] [config.py:906:print]   json = {\n    "train_micro_batch_size_per_gpu": 1, \n'
        '    "zero_optimization": {\n        "stage": 1\n    }, \n    "bf16": {\n        "enabled": true\n    }\n}\n'
    )
    without = refusal(log(tmp_path, older.format(True)))
    assert_refusal(without, "--deepspeed-config", problem="./ds_config.json", fix=("script", "DeepSpeed"))
    configuration = read(log(tmp_path, older.format(True) + file))
    assert configuration.software == "megatron-deepspeed" and configuration.zero == 1
    assert read(log(tmp_path, older.format(False))).zero == 0  # where DeepSpeed is off, its arguments say nothing


def test_arguments_of_gpt_neox_are_not_taken_for_megatrons(tmp_path: Path) -> None:
    text = """\
-------------------- arguments --------------------
  attention_config ................ ['global', 'global']........updated
  batch_size ...................... 4...........................default
  hidden_size ..................... 6144........................updated
  model_parallel_size ............. 2...........................updated
  num_layers ...................... 44..........................updated
  optimizer ....................... {'type': 'Adam', 'params': {'lr': 9.7e-05}}updated
---------------- end of arguments ----------------
"""
    error = refusal(log(tmp_path, text))
    assert_refusal(error, "", where=f"{tmp_path / 'train.log'}:1", problem="GPT-NeoX", fix=("Megatron-LM", "--command"))


def printed(**values: object) -> str:
    """Arguments as Megatron-LM prints them."""
    sizes = {
        "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 16384, "num_attention_heads": 32, "seq_length": 4096,
        "max_position_embeddings": 4096, "micro_batch_size": 1, "global_batch_size": 128, "padded_vocab_size": 32000,
        "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "bf16": True, "world_size": 16,
    }  # fmt: skip
    rows = (f"  {name} {'.' * (48 - len(name))} {value}\n" for name, value in sorted({**sizes, **values}.items()))
    return f"{'-' * 24} arguments {'-' * 24}\n{''.join(rows)}{'-' * 20} end of arguments {'-' * 21}\n"


def test_arguments_of_2022_and_of_forks_are_read_by_todays_names(tmp_path: Path) -> None:
    """Enumerations of positions (BigScience, BigCode), epfLLM's names of a llama, an attention that is fused nowhere."""
    older = {"position_embedding_type": "PositionEmbeddingType.absolute", "rotary_theta": 10000, "DDP_impl": "local"}
    configuration = read(log(tmp_path, printed(**older)))
    assert configuration.config is not None and configuration.config["model_type"] == "gpt2"
    assert configuration.buffers.attention == "eager" and configuration.devices == 16
    llama = {
        "position_embedding_type": "PositionEmbeddingType.rotary", "rope_theta": 1e6, "use_bias": False, "use_rms_norm": True,
        "tie_embed_logits": False, "glu_activation": "swiglu", "num_attention_heads_kv": 8, "ffn_hidden_size": 11008,
    }  # fmt: skip
    fields = read(log(tmp_path, printed(**llama, hidden_dropout=0.0, attention_dropout=0.0))).config
    assert fields is not None and fields["model_type"] == "llama" and fields["rope_theta"] == 1e6
    assert fields["num_key_value_heads"] == 8 and fields["tie_word_embeddings"] is False
    assert_refusal(refusal(log(tmp_path, printed(**older, attention_head_type="multiquery"))), "--attention-head-type")


def test_what_a_switched_off_part_has_is_left_out_and_what_is_on_is_read(tmp_path: Path) -> None:
    """Megatron-LM prints every argument that it has, whether anything uses it or not."""
    off = {
        "attention_output_gate": False,
        "linear_attention_freq": None,
        "linear_conv_kernel_dim": 4,
        "muon_tp_mode": "blockwise",
    }
    assert not read(log(tmp_path, printed(**off, optimizer="adam"))).unknown
    assert_refusal(refusal(log(tmp_path, printed(**{**off, "attention_output_gate": True}))), "--attention-output-gate")
    assert_refusal(refusal(log(tmp_path, printed(**{**off, "linear_attention_freq": 4}))), "--linear-attention-freq", problem=4)
    muon = read(log(tmp_path, printed(**{**off, "muon_tp_mode": "distributed"}, optimizer="dist_muon")))
    assert muon.optimizer == "muon" and any("distributed matrices" in note for note in muon.notes)


def test_a_teachers_sizes_bear_on_nothing_where_nobody_teaches(tmp_path: Path) -> None:
    teacher = {"num_experts_teacher": [1], "num_experts": [1], "mos": False, "kd": False}
    assert read(log(tmp_path, printed(**teacher))).tp == 2
    assert_refusal(refusal(log(tmp_path, printed(**{**teacher, "kd": True}))), "--kd")


@pytest.mark.parametrize(
    ("more", "field", "problem", "fix"),
    [
        ("building BERT model ...\n", "", ("BERT", "decoders"), "log"),
        ("[default0]:building T5 model ...\n", "", ("T5", "decoders"), "log"),
        (printed(perform_rl_step=True), "--perform-rl-step", "reinforcement", ()),
        (printed(retro_add_retriever=True), "--retro-add-retriever", "RETRO", "decoder"),
        (printed(is_hybrid_model=True), "--is-hybrid-model", "Mamba", "decoder"),
    ],
)
def test_logs_of_models_that_are_no_decoders_of_text_are_refused(
    tmp_path: Path, more: str, field: str, problem: Facts, fix: Facts
) -> None:
    assert read(log(tmp_path, printed() + "building GPT2 model ...\n> building GPT2BPETokenizer tokenizer ...\n")).pp == 2
    assert_refusal(refusal(log(tmp_path, printed() + more)), field, problem=problem, fix=fix)


@pytest.mark.parametrize(
    ("begin", "end", "line", "line_of_second", "problem"),
    [(0, 120, 1, 852, "end"), (120, None, 726, 1577, ("end", "beginning"))],
)
def test_arguments_that_are_cut_off_are_refused_by_line(
    tmp_path: Path, begin: int, end: int | None, line: int, line_of_second: int, problem: Facts
) -> None:
    half = "\n".join(ARGUMENTS.splitlines()[begin:end]) + "\n"
    for more in ("", steps([9.0] * 5)):
        error = refusal(log(tmp_path, half + more))
        assert_refusal(error, "", where=f"{tmp_path / 'train.log'}:{line}", problem=problem, fix=("log", "start", "first step"))
    error = refusal(log(tmp_path, ARGUMENTS + steps([9.0] * 5) + half))  # whole runs before it do not count
    assert_refusal(error, "", where=f"{tmp_path / 'train.log'}:{line_of_second}", problem=problem)


def test_a_last_run_without_a_step_is_not_compared_with_the_steps_before_it(tmp_path: Path) -> None:
    second = ARGUMENTS.replace(
        "micro_batch_size ................................ 1", "micro_batch_size ................................ 2"
    )
    path = log(tmp_path, ARGUMENTS + steps([9.0] * 5) + second)
    configuration = read(path)
    assert configuration.micro_samples == 2 and configuration.log is None
    assert any("made no step" in note for note in configuration.notes)
    with refused("", where=path, problem=("step", "last run"), fix="run before"):
        read_log(path)
    measured = read(log(tmp_path, ARGUMENTS + ARGUMENTS + steps([20.0, 8.0, 8.0, 9.0, 9.0]))).log  # a start that made no step
    assert measured is not None and measured.step_s[-1] == 9.0


NEW = (
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity of 79.10 GiB "
    "of which 1.20 GiB is free. Including non-PyTorch memory, this process has 77.89 GiB memory in use. Of the allocated "
    "memory 70.25 GiB is allocated by PyTorch, and 5.01 GiB is reserved by PyTorch but unallocated.\n"
)
OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.50 GiB (GPU 0; 79.10 GiB total capacity; 70.25 GiB already allocated"
    "; 1.20 GiB free; 75.26 GiB reserved in total by PyTorch)\n"
)


@pytest.mark.parametrize("message", [NEW, OLD, NEW.replace("CUDA", "HIP")])
def test_a_run_that_ended_without_memory_is_reported_to(tmp_path: Path, message: str) -> None:
    path = log(tmp_path, ARGUMENTS + steps([9.0] * 2) + message)
    stated = read(path).ran_out
    assert ran_out(message + steps([9.0])) is None  # the run went on
    assert stated is not None
    assert (stated.tried_bytes, stated.allocated_bytes, stated.capacity_bytes) == (
        2.5 * 2**30,
        70.25 * 2**30,
        round(79.1 * 2**30),
    )
    if message != NEW:
        return
    done = call("import-run", path, "--cluster", "h100:8x2", "--no-search")
    assert "out of memory" in done.stdout and "2.5 GiB more than the 70.25 GiB that it had" in " ".join(done.stdout.split())
    assert "the log refutes that it fits" in " ".join(done.stdout.split())


ARGS = """\
{0}Training/evaluation parameters TrainingArguments(
{0}_n_gpu={n_gpu},
{0}adafactor=False,
{0}adam_beta1=0.9,
{0}bf16=True,
{0}deepspeed=None,
{0}fp16=False,
{0}fsdp={fsdp},
{0}fsdp_config={{'min_num_params': 0, 'xla': False, 'xla_fsdp_v2': False, 'xla_fsdp_grad_ckpt': False}},
{0}gradient_accumulation_steps=2,
{0}gradient_checkpointing=True,
{0}logging_dir=out/runs,
{0}mp_parameters=,
{0}optim=adamw_torch,
{0}per_device_train_batch_size=4,
{0}push_to_hub_token=<PUSH_TO_HUB_TOKEN>,
{0}use_liger_kernel=False,
{0})
{0}***** Running training *****
{0}  Total train batch size (w. parallel, distributed & accumulation) = 64
{0}  Gradient Accumulation steps = 2
{0}  Total optimization steps = 1,000
{0}  Number of trainable parameters = {trained}
"""
LLAMA = 8_030_261_248


def arguments(front: str = "", fsdp: str = "[]", trained: int = LLAMA, n_gpu: int = 1) -> str:
    return ARGS.format(front, fsdp=fsdp, trained=f"{trained:,}", n_gpu=n_gpu)


@pytest.mark.parametrize("front", ["", "[rank0]:", " 0: ", "[INFO|train.py:149] 2025-12-31 13:11:34,875 >> ", "    "])
def test_training_arguments_are_read_after_what_launchers_put_in_front(tmp_path: Path, front: str) -> None:
    configuration = read(log(tmp_path, arguments(front)), user=UserSettings(model="llama3-8b"))
    assert (configuration.micro_samples, configuration.accumulation, configuration.samples) == (4, 2, 64)
    assert (configuration.devices, configuration.dtype, configuration.zero) == (8, "bfloat16", 0)
    assert configuration.recomputed.of == "full" and not configuration.undecided


def test_fsdp_of_a_log_is_read_by_its_words(tmp_path: Path) -> None:
    for words, zero in (
        ("[<FSDPOption.AUTO_WRAP: 'auto_wrap'>]", 3),
        ("[<FSDPOption.FULL_SHARD: 'full_shard'>, <FSDPOption.AUTO_WRAP: 'auto_wrap'>]", 3),
        ("[<FSDPOption.SHARD_GRAD_OP: 'shard_grad_op'>, <FSDPOption.AUTO_WRAP: 'auto_wrap'>]", 2),
    ):
        configuration = read(log(tmp_path, arguments(fsdp=words, trained=LLAMA // 8)), user=UserSettings(model="llama3-8b"))
        assert configuration.zero == zero and "FSDP" in configuration.software


def test_what_a_program_was_launched_with_is_reported_by_the_parameters_that_it_trains(tmp_path: Path) -> None:
    settings = UserSettings(model="llama3-8b")
    assert "zero" in read(log(tmp_path, arguments().partition("  Number of trainable")[0]), user=settings).undecided
    shared = refusal(log(tmp_path, arguments(trained=LLAMA // 8)), settings)
    assert_refusal(shared, "fsdp", problem="empty", fix="--set accelerate=FILE")
    part = refusal(log(tmp_path, arguments(trained=20_971_520)), settings)
    trained = ("20,971,520", "llama3-8b", "8,030,261,248")
    assert_refusal(part, "Number of trainable parameters", problem=trained, fix=("adapters", "full fine-tuning"))
    adapters = "trainable params: 41,943,040 || all params: 8,072,204,288 || trainable%: 0.5196\n"
    part = refusal(log(tmp_path, adapters + arguments()), settings)
    assert_refusal(part, "trainable params", problem=("41,943,040", "8,072,204,288"), fix=("adapters", "full fine-tuning"))
    assert_refusal(refusal(log(tmp_path, arguments(n_gpu=4)), settings), "_n_gpu", problem=(4, "DataParallel"), fix="torchrun")


def test_a_program_is_no_log_of_itself(tmp_path: Path) -> None:
    program = (
        "from transformers import Trainer, TrainingArguments\nargs = TrainingArguments(\n    adam_beta1=0.9,\n"
        "    per_device_train_batch_size=2,\n    gradient_accumulation_steps=8,\n    bf16=True,\n)\n"
    )
    fix = ("YAML", "--command", "--model")
    assert_refusal(refusal(log(tmp_path, program, "train.py")), "", problem=("Python", "transformers"), fix=fix)
    shown = f"# iteration 10/ 100 | elapsed time per iteration (ms): 1234.5 |\npython -m llamafactory.launcher\n{ARGUMENTS}"
    with refused("", where=f"{tmp_path / 'shown.sh'}:211", problem=("bash", "<"), fix="--command") as error:
        read(log(tmp_path, shown, "shown.sh"))
    assert "log" not in error.value.problem
    assert not is_log("python -m llamafactory.launcher | grep -E 'train_steps_per_second|SamplesPerSec='\n")
    script = f"cat > train.py <<'EOF'\n{program}EOF\ntorchrun --nproc_per_node 8 train.py\n"
    error_of_script = refusal(log(tmp_path, script, "train.sh"))
    assert_refusal(error_of_script, "", problem=("train.py", "train.sh:10"), fix="log")
    assert "TrainingArguments" not in error_of_script.command_text


def test_the_mean_of_a_trainers_run_is_its_time_over_its_steps(tmp_path: Path) -> None:
    end = "{'train_runtime': 28123.4, 'train_samples_per_second': 2.276, 'train_steps_per_second': 0.036, 'epoch': 1.0}\n"
    measured = log_of(arguments() + end)
    assert measured is not None and measured.mean and measured.step_s == (28.1234,)  # 1 / 0.036 is 27.8
    resumed = log_of(arguments() + "  Continuing training from global step 500\n" + end)
    assert resumed is not None and resumed.step_s == (28123.4 / 500,)
    bars = "".join(
        f"  1%|1  | {n}/1000 [{t // 60:02d}:{t % 60:02d}<44:53,  7.20s/it]\r"
        for n, t in ((1, 27), (2, 30), (4, 40), (104, 740))
    )
    unfinished = log_of(arguments() + bars + "Loading checkpoint shards: | 4/4 [00:10<00:00,  2.5s/it]\n")
    assert unfinished is not None and unfinished.step_s == (7.0,)
    assert log_of(arguments()) is None
    done = call(
        "import-run",
        log(tmp_path, arguments() + end),
        "--cluster",
        "h100:8",
        "--model",
        "llama3-8b",
        "--sequence",
        2048,
        "--no-search",
    )
    assert "the mean of the whole run" in " ".join(done.stdout.split()), done.stderr


TITAN = (
    "[rank0]:[titan] 2025-04-16 00:51:17,646 - root - INFO - Running with args: {{'model': {{'name': 'llama3', 'flavor': '8B'}}"
    ", 'training': {{'local_batch_size': 2, 'seq_len': 8192}}, 'parallelism': {{'tensor_parallel_degree': 2}}, "
    "'activation_checkpoint': {{'mode': 'full'}}}}\n[rank0]:[titan] 2025-04-16 00:51:18,000 - root - INFO - {}\n"
    "[rank0]:2024-05-01 00:51:20,000 - root - INFO - \x1b[31mstep: 10\x1b[32m  loss: 8.1\x1b[33m  memory: 40.12GiB(50.68%)"
    "\x1b[34m  wps: 7,123\x1b[35m  mfu: 40.2%\x1b[39m\n"
)


@pytest.mark.parametrize(
    "mesh",
    [
        "Building 2-D device mesh with ['dp_shard', 'tp'], [12, 2]",
        "Building 2-D device mesh with ('dp', 'tp'), [12, 2]",
        "Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=12, cp=1, tp=2, ep=4",
    ],
)
def test_torchtitans_devices_are_those_of_its_mesh(tmp_path: Path, mesh: str) -> None:
    configuration = read(log(tmp_path, TITAN.format(mesh)))
    assert (configuration.devices, configuration.tp, configuration.sequence) == (24, 2, 8192)
    assert configuration.log is not None and configuration.log.step_s == (1 / 7123,)
    with pytest.raises(InputError, match="24"):
        tp.import_run(log(tmp_path, TITAN.format(mesh)), cluster="h100:8x2", search=False)


def test_torchtitans_memory_is_of_the_ranks_that_print_it(tmp_path: Path) -> None:
    line = "[rank{0}]:[titan] 2026-02-24 19:46:19,145 - root - INFO - step: {1:2}  loss: 7  memory: {2}GiB(37%)  tps: 10,007\n"
    text = "".join(line.format(rank, step, 40 + rank + step) for step in (1, 10) for rank in (0, 3))
    measured = log_of(text)
    assert measured is not None and measured.peak_bytes == {0: 50 * 2**30, 3: 53 * 2**30} and measured.reserved
    assert measured.steps == (1, 1, 10, 10)


def test_a_log_is_read_as_windows_writes_it(tmp_path: Path) -> None:
    expected, path = read(log(tmp_path, ARGUMENTS + steps([9.0] * 5))), tmp_path / "train.log"
    text = path.read_text()
    for data in (
        text.replace("\n", "\r\n").encode(),
        text.encode("utf-16"),
        text.encode("utf-16-le"),
        text.encode("utf-8-sig"),
    ):
        path.write_bytes(data)
        assert read(path) == expected
    path.write_bytes(text.encode() + b"\xff\xfe caf\xe9\n")
    assert read(path).config == expected.config


def test_files_that_are_no_text_are_refused_in_a_line_with_what_to_give(tmp_path: Path) -> None:
    (tmp_path / "train.log.gz").write_bytes(gzip.compress(ARGUMENTS.encode()))
    assert_refusal(refusal(tmp_path / "train.log.gz"), "", problem="compressed", fix="`gunzip -k train.log.gz`")
    log(tmp_path, ARGUMENTS)
    assert_refusal(refusal(tmp_path), "", where=tmp_path, problem="folder", fix=str(tmp_path / "train.log"))
    (tmp_path / "events.out.tfevents.1700000000.host.12.0").write_bytes(b"\x18\x00\x00\x00\x00\x00\x00\x00")
    assert_refusal(refusal(tmp_path / "events.out.tfevents.1700000000.host.12.0"), "", problem="TensorBoard", fix="log")


@pytest.mark.parametrize(
    ("line", "tool", "fix"),
    [
        ("Training epoch 0, iteration 120/149 | lr: 3e-05 | train_step_timing in s: 0.03", "NeMo 2", "--command"),
        ("10/17/2025 16:31:56 [INFO|DP=0|PP=0|TP=0]: iteration: 3 / 9 | consumed_tokens: 85.8G", "nanotron", "--command"),
        ("[INFO] samples/sec: 13.6 | iteration 20/9 | elapsed | approx flops per GPU: 93.1TFLOPS", "GPT-NeoX", "--command"),
        ("09/04/2024 15:03:43 - INFO - llamafactory.data.loader - Loading dataset", "LLaMA-Factory", "YAML"),
        ("[2025-06-01 10:00:00,000] [INFO] [axolotl.cli.config.load_cfg:248] config:", "axolotl", "YAML"),
        ("INFO:torchtune.utils._logging:Running FullFinetuneRecipeDistributed with resolved config:", "torchtune", "--command"),
        ("\t Train throughput/device/tokens_per_sec: 9876.5", "Composer", "--command"),
        ("completed step: 10, seconds: 2.345, TFLOP/s/device: 400.1", "MaxText", "--command"),
        (" iteration       10/     100 | elapsed time per iteration (ms): 1234.5 |", "Megatron-LM", ("arguments", "script")),
        ("step: 10  loss:  8.12  memory: 40.12GiB(50.68%)  tps: 7,123", "torchtitan", ("TOML", "--job.print_config")),
        ("micro_step=10/global_step=10, CurrSamplesPerSec=12.5", "DeepSpeed", ("print_user_config", "JSON")),
        ("***** Running training *****", "transformers", ("TrainingArguments", "YAML", "script")),
        ("[INFO] [config.py:748:print] DeepSpeedEngine configuration:", "DeepSpeed", ("print_user_config", "JSON")),
    ],
)  # fmt: skip
def test_a_log_without_a_configuration_says_whose_it_is_and_what_to_give(
    tmp_path: Path, line: str, tool: str, fix: Facts
) -> None:
    error = refusal(log(tmp_path, f"some line\n{line}\n"))
    assert_refusal(error, "", where=tmp_path / "train.log", problem=("log", tool), fix=fix)


@pytest.mark.parametrize("line", ["Traceback (most recent call last):", OLD.strip(), NEW.strip()])
def test_a_log_that_has_an_error_alone_is_no_script(tmp_path: Path, line: str) -> None:
    error = refusal(log(tmp_path, f"W0304 17:01:26 torch/distributed/run.py:717]\n{line}\n  File 'train.py', line 1\n"))
    assert_refusal(error, "", where=tmp_path / "train.log", problem=("log", "configuration"), fix="start")


def test_what_forks_call_their_arguments_is_read_too(tmp_path: Path) -> None:
    text = (
        printed()
        .replace(" arguments -", " MindSpeed-LLM Arguments -")
        .replace("end of arguments", "end of MindSpeed-LLM Arguments")
    )
    text = text.replace("end of MindSpeed-LLM MindSpeed-LLM Arguments", "end of MindSpeed-LLM Arguments")
    assert read(log(tmp_path, text + steps([9.0] * 5))).pp == 2


STATE = """\
04/02/2022 08:00:01 - INFO - __main__ - Distributed environment: {}  Backend: nccl
Num processes: 16
{}
  Instantaneous batch size per device = 2
  Total train batch size (w. parallel, distributed & accumulation) = 128
  Gradient Accumulation steps = 4
"""


def test_accelerates_state_of_older_versions_is_read(tmp_path: Path) -> None:
    for kind, precision, dtype, master in (
        ("DistributedType.MULTI_GPU", "Mixed precision type: fp16", "float16", "float32"),
        ("DistributedType.MULTI_GPU", "Use FP16 precision: True", "float16", "float32"),
        ("MULTI_GPU", "Use FP16 precision: False", "float32", None),
    ):
        configuration = read(log(tmp_path, STATE.format(kind, precision)))
        assert (configuration.devices, configuration.micro_samples, configuration.dtype) == (16, 2, dtype)
        assert configuration.precision.master == master
        assert any("--recompute full changes it" in note for note in configuration.notes)


def test_a_table_of_deepspeed_among_training_arguments_is_its_file(tmp_path: Path) -> None:
    table = "{'zero_optimization': {'stage': 3}, 'bf16': {'enabled': 'auto'}, 'train_micro_batch_size_per_gpu': 'auto'}"
    configuration = read(
        log(tmp_path, arguments().replace("deepspeed=None", f"deepspeed={table}")), user=UserSettings(model="llama3-8b")
    )
    assert (configuration.runtime, configuration.zero, configuration.dtype, configuration.micro_samples) == (
        "deepspeed",
        3,
        "bfloat16",
        4,
    )


def test_a_record_of_weights_and_biases_says_what_its_log_does(tmp_path: Path) -> None:
    """Both are of the same run: Megatron-LM hands over the arguments that it prints."""
    log(tmp_path, ARGUMENTS + " > padded vocab (size: 128256) with 256 dummy tokens (new size: 128512)\n")
    expected = read(tmp_path / "train.log")
    rows = [re.match(r"  (\w+) \.* ?(.*)$", line) for line in ARGUMENTS.splitlines()]
    values = {row[1]: {"desc": None, "value": value_of(row[2])} for row in rows if row} | {
        "padded_vocab_size": {"value": 128512}
    }
    kept = {key: {"value": row["value"] if isinstance(row["value"], int | float | str | bool | None) else str(row["value"])}
            for key, row in values.items() if row["value"] != []}  # fmt: skip
    (tmp_path / "config.yaml").write_text(
        yaml.safe_dump({"wandb_version": 1, "_wandb": {"value": {"cli_version": "0.16"}}, **kept})
    )
    configuration = read(tmp_path / "config.yaml")
    for name in (
        "tp",
        "pp",
        "chunks",
        "zero",
        "samples",
        "micro_samples",
        "devices",
        "config",
        "precision",
        "recomputed",
        "sequence",
    ):
        assert getattr(configuration, name) == getattr(expected, name), name
    source = next(setting.source for setting in configuration.taken if setting.key == "--num-layers")
    line = (tmp_path / "config.yaml").read_text().splitlines()[int(source.rpartition(":")[2]) - 1]
    assert line == "  value: 32"


def test_a_record_of_another_tool_and_hydras_own_files_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("wandb_version: 1\nlr:\n  desc: null\n  value: 0.1\n")
    assert_refusal(refusal(tmp_path / "config.yaml"), "", problem=("Weights & Biases", "lr"), fix="log")
    tables = {
        "training": {"local_batch_size": 2, "seq_len": 8192},
        "model": {"name": "llama3", "flavor": "8B"},
        "parallelism": {},
    }
    (tmp_path / "config.yaml").write_text(
        yaml.safe_dump({"_wandb": {"value": {}}, **{key: {"value": table} for key, table in tables.items()}})
    )
    assert read(tmp_path / "config.yaml").runtime == "torchtitan"
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "overrides.yaml").write_text("- trainer.devices=8\n")
    error = refusal(tmp_path / ".hydra" / "overrides.yaml")
    assert_refusal(error, "", problem="Hydra", fix=str(tmp_path / ".hydra" / "config.yaml"))


CONTAINER = """\
_target_: megatron.bridge.training.config.ConfigContainer
dataset:
  sequence_length: 8192
ddp:
  grad_reduce_in_fp32: true
  use_distributed_optimizer: true
mixed_precision: bf16_mixed
model:
  activation_func: torch.nn.functional.silu
  add_bias_linear: false
  attention_dropout: 0.0
  ffn_hidden_size: 14336
  gated_linear_unit: true
  hidden_dropout: 0.0
  hidden_size: 4096
  normalization: RMSNorm
  num_attention_heads: 32
  num_layers: 32
  num_query_groups: 8
  position_embedding_type: rope
  rotary_base: 500000
  seq_length: 8192
  share_embeddings_and_output_weights: false
  tensor_model_parallel_size: 2
  vocab_size: 128256
optimizer:
  bf16: true
  use_distributed_optimizer: true
train:
  global_batch_size: 128
  micro_batch_size: 1
"""
NEMO = """\
[NeMo I 2024-03-05 08:15:59 megatron_gpt_pretraining:34]

    ************** Experiment configuration ***********
[NeMo I 2024-03-05 08:15:59 megatron_gpt_pretraining:35]
    trainer:
      devices: 8
      num_nodes: 2
      precision: bf16-mixed
    model:
      micro_batch_size: 1
      global_batch_size: 128
      tensor_model_parallel_size: 2
      encoder_seq_length: 4096
      num_layers: 32
      hidden_size: 4096
      num_attention_heads: 32
      megatron_amp_O2: true
"""


@pytest.mark.parametrize("front", ["", "0: ", " 12: ", "[default0]:", "[rank0]: ", "2024-03-05T08:15:03.123Z "])
@pytest.mark.parametrize("text", [CONTAINER, NEMO])
def test_configurations_in_yaml_are_read_after_prefixes_and_to_their_end(tmp_path: Path, text: str, front: str) -> None:
    after = "[NeMo I 2024-03-05 08:16:14 base:264] Padded vocab_size: 32256, original vocab_size: 32000\n"
    whole = text + (after if text is NEMO else "") + steps([9.0] * 5)
    configuration = read(log(tmp_path, "".join(f"{front}{line}\n" for line in whole.splitlines())))
    assert (configuration.tp, configuration.samples, configuration.micro_samples) == (2, 128, 1)
    assert configuration.log is not None and configuration.log.step_s == (9.0,) * 5
    for end in (len(text), text.index("  seq_length") if text is CONTAINER else text.index("      num_layers")):
        half = "".join(f"{front}{line}\n" for line in text[:end].splitlines())
        where = f"{tmp_path / 'train.log'}:{1 if text is CONTAINER else 5}"
        assert_refusal(refusal(log(tmp_path, half)), "", where=where, problem="configuration", fix=("whole log", "file"))
