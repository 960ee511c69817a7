"""What a training tool prints of its own configuration, read from the log of a run: the truest source, since it comes after all
scripts, defaults and overrides.

Megatron-LM prints its arguments between two lines (`megatron/training/arguments.py`, `_print_args`), DeepSpeed its engine's
configuration and the file that it was given (`deepspeed/runtime/config.py`, `print_user_config`), torchtitan the configuration
of its job (where `job.print_args` or `job.print_config` is set), Megatron-Bridge its ConfigContainer as YAML, transformers'
Trainer its TrainingArguments, Accelerate its state (`accelerator.state`). The log of another tool is refused by name.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from trainplan.configurations import deepspeed, megatron, megatron_bridge, torchtitan
from trainplan.configurations.configuration import Configuration, Recomputed, Said, Taken
from trainplan.profiling.base.errors import InputError, shown
from trainplan.profiling.models.families.fields import names
from trainplan.profiling.models.precision import MASTERS, PLAIN

MOST_BYTES = 2**28
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# What launchers and loggers put in front of a line: a rank, a time, a level.
PREFIX = re.compile(
    r"^(?:>\s+)?(?:\[?(?:default|rank)?\s?\d+\]?:\s?)?(?:\[[^\]]*\]\s?)*(?:\[?\d{4}-\d\d-\d\d[ T][\d:.,]+\]?\s*)?"
    r"(?:-?\s*[\w.]+\s+-\s+)*(?:\[?(?:INFO|I)\]?\s*(?:\|[^|]*\|)?)?"
)
ARGUMENT = re.compile(r"(?:^|\s)(\w+) \.{2,} ?(.*)$|^\s*(\w{40,})  ?([^\s.].*)$")
OPENED, CLOSED = re.compile(r"-{3,} ?arguments ?-{3,}"), re.compile(r"-{3,} ?end of arguments ?-{3,}")
PADDED = re.compile(r"padded vocab \(size: (\d+)\).*\(new size: (\d+)\)")
ENGINE = re.compile(r"config\.py:\d+:print\]\s+(\w+)\s*\.*\s+(\S.*)$")
USER_FILE = re.compile(r"config\.py:\d+:print_user_config\]\s+json = (\{.*)$")
TITAN = re.compile(r"Running with (?:args|configs?): ?(\{.*)$")
BRIDGE = "_target_: megatron.bridge.training.config.ConfigContainer"
TRAINER = re.compile(r"TrainingArguments\($")
MODEL = re.compile(r"Model config \w+ (\{.*)$")
STATE = re.compile(
    r"Distributed environment: (\w+)"
)  # of Accelerate, whose lines after it say processes, precision and DeepSpeed's file
OTHERS = {"NeMo": re.compile(r"\[NeMo I "), "nanotron": re.compile(r"nanotron\.config|\[config\]|Config\(general=GeneralArgs")}
# Names of Megatron-LM's arguments that its log has under another name.
RENAMED = {
    "fp8": "--fp8-format",
    "fp4": "--fp4-format",
    "fp8_param": "--fp8-param-gather",
    "layernorm_epsilon": "--norm-epsilon",
    "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
}
NEGATED = {"add_bias_linear": "--disable-bias-linear"}  # printed as what they say, given as what they deny
DTYPES = {"torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16"}
# Arguments that bear on nothing while what they belong to is off, by the start of their names: printed all the same.
SWITCHED = {
    "num_experts": ("moe_", "expert_", "num_moe_", "inference_moe_"),
    "multi_latent_attention": (
        "q_lora_",
        "kv_lora_",
        "qk_head_dim",
        "qk_pos_emb_",
        "v_head_dim",
        "rotary_scaling_",
        "mscale",
        "mla_",
    ),
    "use_megatron_fsdp": ("megatron_fsdp_", "fsdp_", "data_parallel_sharding_", "outer_dp_sharding_", "init_model_with_meta_"),
    "use_torch_fsdp2": ("torch_fsdp2_",),
    "optimizer_cpu_offload": ("optimizer_offload_", "use_torch_optimizer_for_cpu_", "overlap_cpu_optimizer_", "pin_cpu_"),
    "cpu_offloading": ("cpu_offloading_",),
    "fine_grained_activation_offloading": ("offload_modules", "activation_offload_", "delta_offload_", "min_offloaded_"),
    "mtp_num_layers": ("mtp_",),
    "enable_cuda_graph": ("cuda_graph_",),
    "first_last_layers_bf16": ("num_layers_at_",),
    "retro_add_retriever": ("retro_",),
    "enable_mhc_connections": ("mhc_",),
    "use_mup": ("mup_",),
    "use_rope_scaling": ("rope_scaling_",),
    "use_precision_aware_optimizer": ("main_grads_dtype", "main_params_dtype", "exp_avg_"),
}
# Of models that are no decoders of text, of checkpoints, of what is printed, of inference: of no bearing on a training step.
ELSEWHERE = tuple(
    names(
        """
        bert_ biencoder_ block_data_ data_sharding adlr_ async_ckpt_ async_strategy data_per_class_ dist_ckpt_
        enable_one_logger error_injection_ exit_ ft_ head_lr_mult lion_ mlp_chunks_ null_tokenizer_ short_seq_prob
        strict_fsdp_ use_gloo_ wgrad_deferral_ ckpt_ classes_fraction dataloader_ dino_ dsa_ eval_ encoder_seq_length
        fault_ fim_ gdp_ grpo_ gtp_ ict_ img_ indexer_ inference_ inprocess_ kitchen_ langrl_ linear_ log_ logits_ lr_
        mamba_ mask_ muon_ non_persistent_ patch_dim perform_rl_ qk_clip_ relative_attention_ retriever_ rl_ save_
        straggler_ swin_ tensorboard_ tokenizer_ use_checkpoint_ use_tokenizer_ vision_ wandb_ yarn_ one_logger_
        flight_recorder_ data_parallel_random_ data_parallel_size transformer_pipeline_model_parallel_size num_channels
        num_classes query_in_block_ params_dtype use_contiguous_ scatter_gather_ bias_ masked_softmax_
        gradient_accumulation_fusion gradient_reduce_div_ async_tensor_ barrier_ align_ overlap_p2p_ tp_comm_bulk_
        tp_comm_split_ tp_comm_overlap_ag tp_comm_overlap_rs tp_comm_bootstrap_ apply_rope_fusion create_attention_mask_
        fp8_wgrad consumed_ skipped_ padded_vocab_size pad_vocab_size add_position_embedding exp_avg_ main_params_dtype
        standalone_embedding_ _is_ tensor_parallel_num_weight_shards local_rank world_size rank use_layer_wise_
        max_seqlen_per_ use_cpu_initialization use_mamba_ batch_invariant_ app_tag_ attention_output_gate
        vocab_extra_ids microbatch_group_size_ glu_linear_ softmax_type sft_ decrease_batch_ num_speculative_ DDP_impl
        hybrid_attention_ratio hybrid_mlp_ratio offset_sampling_ sample_rate replication_ refit_ result_ profile_
        use_dist_ckpt
        """
    )
)


def is_log(path: Path) -> bool:
    """Whether a file is the log of a run: it has lines that a tool prints of its configuration. Raises InputError."""
    lines = _lines(path)
    if any(_first(pattern, lines) is not None for pattern in (USER_FILE, TITAN, TRAINER, STATE)):
        return True
    return _printed_at(lines) is not None or _bridge_at(lines) is not None or _other(lines) is not None


def read(path: Path, said: Said) -> Configuration:
    """The configuration that a log says a run has. Raises InputError naming what the log leaves open."""
    lines, where = _lines(path), str(path)
    readers: tuple[Callable[[Sequence[str], str, Said], Configuration | None], ...] = (
        _megatron, _bridge, _torchtitan, _deepspeed, _trainer, _accelerate,
    )  # fmt: skip
    for reader in readers:
        if (made := reader(lines, where, said)) is not None:
            return made
    if (tool := _other(lines)) is not None:
        fix = (
            "give a log of Megatron-LM, Megatron-Bridge, torchtitan, DeepSpeed or transformers, or the files that start the run"
        )
        raise InputError(where, "", f"is a log of {tool}, whose configuration is not read", fix)
    fix = "give one that has the lines from the start of the run, or the files that start it"
    raise InputError(where, "", "is a log without the tool's configuration", fix)


def _lines(path: Path) -> list[str]:
    """Raises InputError."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(str(path), "", f"is larger than {MOST_BYTES >> 20} MiB", "give the log of one rank")
        return [COLOURS.sub("", line) for line in path.read_text(errors="replace").splitlines()]
    except OSError as error:
        raise InputError(str(path), "", f"cannot be read ({error.strerror})", "name a readable log") from None


def _first(pattern: re.Pattern[str], lines: Sequence[str]) -> int | None:
    return next((number for number, line in enumerate(lines) if pattern.search(line)), None)


def _printed_at(lines: Sequence[str]) -> tuple[int, int] | None:
    """The numbers of the lines around Megatron-LM's arguments, of the last time that they were printed."""
    ends = [number for number, line in enumerate(lines) if CLOSED.search(line)]
    begins = [number for number, line in enumerate(lines) if OPENED.search(line) and not CLOSED.search(line)]
    if not ends or not begins or begins[0] > ends[-1]:
        return None
    return max(number for number in begins if number < ends[-1]), ends[-1]


def _other(lines: Sequence[str]) -> str | None:
    return next((tool for tool, pattern in OTHERS.items() if _first(pattern, lines) is not None), None)


def _bare(line: str) -> str:
    """A line without what launchers and loggers put in front of it."""
    return PREFIX.sub("", line, count=1)


def _value(text: str) -> Any:
    """What Python's print made of a value."""
    text = text.strip()
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _megatron(lines: Sequence[str], where: str, said: Said) -> Configuration | None:
    """Megatron-LM's resolved arguments, of the last time that they were printed."""
    if (around := _printed_at(lines)) is None:
        return None
    begin, end = around
    printed: dict[str, tuple[Any, str]] = {}
    for number in range(begin + 1, end):
        match = ARGUMENT.search(_bare(lines[number])) or ARGUMENT.search(lines[number])
        if match:
            printed[match[1] or match[3]] = (_value(match[2] if match[1] else match[4]), f"{where}:{number + 1}")
    padded = next(((match, number) for number, line in enumerate(lines[end:], end) if (match := PADDED.search(line))), None)
    values, sources = _arguments(printed)
    if padded is not None:
        match, number = padded
        values |= {"--vocab-size": match[2], "--make-vocab-size-divisible-by": "1"}
        values.pop("--tokenizer-type", None)
        sources["--vocab-size"] = sources["--make-vocab-size-divisible-by"] = f"{where}:{number + 1}"
    world = printed.get("world_size", (None, ""))[0]
    return megatron.of_values(values, where, said, world if isinstance(world, int) else None, sources)


def _arguments(printed: Mapping[str, tuple[Any, str]]) -> tuple[dict[str, Any], dict[str, str]]:
    """Values of arguments by the names that a command gives them, without those that are off; and their sources."""
    off = tuple(
        start
        for switch, starts in SWITCHED.items()
        if printed.get(switch, (None, ""))[0] in (None, False, "none")
        for start in starts
    )
    values, sources = dict[str, Any](), dict[str, str]()
    layers = printed.get("num_layers", (None, ""))[0]
    if printed.get("num_layers_per_virtual_pipeline_stage", (None, ""))[0] is not None:
        off = (*off, "virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank")
    for name, (value, source) in printed.items():
        if name in NEGATED:
            key, value = NEGATED[name], not value
        elif name != "tokenizer_type" and (
            name.startswith((*off, *ELSEWHERE)) or (name == "encoder_num_layers" and value == layers)
        ):
            continue
        else:
            key = RENAMED.get(name, "--" + name.replace("_", "-"))
        if value is None or value is False or value in ("", [], ()):
            continue
        sources[key] = source
        if isinstance(value, list):
            values[key] = " ".join(map(str, value))
        elif isinstance(value, tuple):
            values[key] = ",".join(map(str, value))
        else:
            text = str(value).rpartition("AttnBackend.")[2]
            values[key] = True if value is True else DTYPES.get(text, text)
    return values, sources


def _mapping(lines: Sequence[str], number: int, text: str, where: str) -> dict[str, Any] | None:
    """The mapping that begins with a text, the rest of a line, and may go on over lines; None where it never ends."""
    gathered = ""
    for line in (text, *lines[number + 1 : number + 20000]):
        gathered += line + "\n"
        if not line.rstrip().endswith("}"):
            continue
        for parse in (json.loads, ast.literal_eval):
            try:
                value = parse(gathered)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                continue
            if isinstance(value, dict):
                return value
    return None


def _torchtitan(lines: Sequence[str], where: str, said: Said) -> Configuration | None:
    if (number := _first(TITAN, lines)) is None:
        return None
    match = TITAN.search(lines[number])
    assert match is not None
    values = _mapping(lines, number, match[1], where)
    if values is None:
        raise InputError(f"{where}:{number + 1}", "", "has a configuration that does not end", "give the whole log")
    return torchtitan.of_tables(values, f"{where}:{number + 1}", said)


def _bridge_at(lines: Sequence[str]) -> int | None:
    return next((number for number, line in enumerate(lines) if line.strip().endswith(BRIDGE)), None)


def _bridge(lines: Sequence[str], where: str, said: Said) -> Configuration | None:
    """Megatron-Bridge's ConfigContainer, as `print_yaml` has it: sorted, so that its own name comes first."""
    if (number := _bridge_at(lines)) is None:
        return None
    front = lines[number].index("_target_")
    block = [line[front:] for line in lines[number:]]
    end = next((n for n, line in enumerate(block) if line and not re.match(r"\s|\w+:(\s|$)|- ", line)), len(block))
    try:
        data = yaml.safe_load("\n".join(block[:end]))
    except yaml.YAMLError:
        data = None
    if not isinstance(data, Mapping):
        raise InputError(f"{where}:{number + 1}", "", "has a configuration that is no YAML", "give the file of the run")
    return megatron_bridge.of_sections(data, f"{where}:{number + 1}", said)


def _deepspeed(lines: Sequence[str], where: str, said: Said) -> Configuration | None:
    """DeepSpeed's file as its engine was given it, with batch, devices and precision as the engine resolved them."""
    if (number := _first(USER_FILE, lines)) is None:
        return None
    match = USER_FILE.search(lines[number])
    assert match is not None
    values = _mapping(lines, number, match[1], where)
    if values is None:
        raise InputError(f"{where}:{number + 1}", "", "has a configuration that does not end", "give the whole log")
    engine = {m[1]: (_value(m[2]), n + 1) for n, line in enumerate(lines) if (m := ENGINE.search(line))}
    for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        if isinstance(engine.get(key, (None, 0))[0], int):
            values[key] = engine[key][0]
    for key, resolved in (("bf16", "bfloat16_enabled"), ("fp16", "fp16_enabled")):
        if isinstance(engine.get(resolved, (None, 0))[0], bool):
            given = values.get(key)
            values[key] = {**(given if isinstance(given, dict) else {}), "enabled": engine[resolved][0]}
    world = engine.get("world_size", (None, 0))[0]
    arguments, config, taken = _training_arguments(lines, where)
    again = said.recompute or (None if not CHECKPOINTING & set(arguments) else _again(arguments))
    made = deepspeed.of_values(values, f"{where}:{number + 1}", replace(said, recompute=again))
    return replace(
        made, where=where, devices=world if isinstance(world, int) else None, config=config or made.config,
        taken=(*made.taken, *taken),
    )  # fmt: skip


def _again(arguments: Mapping[str, Any]) -> str:
    return "full" if any(arguments.get(name) is True for name in CHECKPOINTING) else "none"


def _training_arguments(lines: Sequence[str], where: str) -> tuple[dict[str, Any], dict[str, Any] | None, tuple[Taken, ...]]:
    """TrainingArguments and the model's configuration, where transformers prints them; with their sources."""
    arguments, taken = dict[str, Any](), list[Taken]()
    if (number := _first(TRAINER, lines)) is not None:
        for n in range(number + 1, len(lines)):
            text = _bare(lines[n]).strip() if "=" not in lines[n].split(" ")[0] else lines[n].strip()
            if text == ")":
                break
            name, equals, value = text.rstrip(",").partition("=")
            if equals and name.isidentifier():
                arguments[name] = _value(value)
                if name in READ:
                    taken.append(Taken(name, arguments[name], f"{where}:{n + 1}"))
    config = None
    if (number := _first(MODEL, lines)) is not None:
        match = MODEL.search(lines[number])
        assert match is not None
        config = _mapping(lines, number, match[1], where)
    return arguments, config, tuple(taken)


CHECKPOINTING = {"gradient_checkpointing", "activation_checkpointing"}  # of transformers before 5.20 or so, and since
READ = ("per_device_train_batch_size", "gradient_accumulation_steps", "bf16", "fp16", *CHECKPOINTING, "fsdp")
DISTRIBUTED = re.compile(r"Total train batch size \(w\. parallel, distributed & accumulation\) = ([\d,]+)")
WHOLE = ("full_shard", "shard_grad_op", "no_shard")


def _trainer(lines: Sequence[str], where: str, said: Said) -> Configuration | None:
    """transformers' Trainer without DeepSpeed: data-parallel copies, or FSDP."""
    arguments, config, taken = _training_arguments(lines, where)
    if not arguments:
        return None
    begun = _first(TRAINER, lines)
    assert begun is not None
    error = lambda key, problem, fix: InputError(f"{where}:{begun + 1}", key, problem, fix)  # noqa: E731
    if arguments.get("deepspeed") not in (None, ""):
        fix = "give the log with its configuration (config.py, print_user_config), or the file itself"
        raise error("deepspeed", f"is {shown(arguments['deepspeed'])}, and what it holds is not in the log", fix)
    micro, accumulation = (arguments.get(name) for name in READ[:2])
    if not isinstance(micro, int) or not isinstance(accumulation, int) or micro < 1 or accumulation < 1:
        raise error("per_device_train_batch_size", "is missing", "give the log with all TrainingArguments")
    number = _first(DISTRIBUTED, lines)
    match = None if number is None else DISTRIBUTED.search(lines[number])
    samples = None if match is None else int(match[1].replace(",", ""))
    fsdp = str(arguments.get("fsdp") or "")
    strategy = next((word for word in WHOLE if word in fsdp), None)
    if fsdp not in ("", "[]") and strategy is None:
        raise error("fsdp", f"is {shown(fsdp)}", f"give a log with one of {', '.join(WHOLE)}")
    if "offload" in fsdp:
        raise error("fsdp", f"is {shown(fsdp)}", "leave offload out: states that FSDP keeps on the host are not read from logs")
    zero = {None: 0, "no_shard": 0, "shard_grad_op": 2, "full_shard": 3}[strategy]
    said_half = "bfloat16" if arguments.get("bf16") is True else "float16" if arguments.get("fp16") is True else "float32"
    half = said_half != "float32"
    again = _again(arguments) if said.recompute is None else said.recompute
    return Configuration(
        where=where, runtime="accelerate", software="PyTorch FSDP (Accelerate)" if strategy else "PyTorch DDP", dtype=said_half,
        precision=MASTERS if half else PLAIN, samples=samples, micro_samples=micro, accumulation=accumulation,
        devices=None if samples is None else samples // (micro * accumulation), zero=zero, config=config, cuts=(),
        recomputed=Recomputed("full" if again == "full" else "none"),
        keys={"micro_samples": "per_device_train_batch_size", "accumulation": "gradient_accumulation_steps"}, taken=taken,
    )  # fmt: skip


PROCESSES, MIXED = re.compile(r"Num processes: (\d+)"), re.compile(r"Mixed precision type: (\w+)")
OF_DEEPSPEED = re.compile(r"ds_config: (\{.*)$")
PER_DEVICE = re.compile(r"Instantaneous batch size per device = ([\d,]+)")
ACCUMULATED = re.compile(r"Gradient Accumulation steps = ([\d,]+)", re.IGNORECASE)
OF_STATE = {"no": "float32", "fp16": "float16", "bf16": "bfloat16"}


def _accelerate(lines: Sequence[str], where: str, said: Said) -> Configuration | None:
    """Accelerate's state, and the batch as the examples of its trainers print it. Raises InputError for FSDP, which the state
    says nothing of."""
    if (begun := _first(STATE, lines)) is None:
        return None
    found: dict[str, tuple[str, str]] = {}
    for name, pattern in (("kind", STATE), ("processes", PROCESSES), ("precision", MIXED), ("samples", DISTRIBUTED),
                          ("micro", PER_DEVICE), ("accumulation", ACCUMULATED)):  # fmt: skip
        number = next((n for n in range(begun, len(lines)) if pattern.search(lines[n])), None)
        if number is not None and (match := pattern.search(lines[number])):
            found[name] = match[1].replace(",", ""), f"{where}:{number + 1}"
    kind, at = found["kind"]
    if kind not in ("NO", "MULTI_GPU", "DEEPSPEED"):
        fix = "give the file of `accelerate config`: the log does not say how states are shared"
        raise InputError(at, "Distributed environment", f"is {kind}", fix)
    devices = int(found["processes"][0]) if "processes" in found else None
    counts: dict[str, Any] = {
        field: int(found[name][0])
        for field, name in (("samples", "samples"), ("micro_samples", "micro"), ("accumulation", "accumulation"))
        if name in found
    }
    taken = tuple(Taken(name, value, source) for name, (value, source) in found.items())
    if kind == "DEEPSPEED":
        number = next((n for n in range(begun, len(lines)) if OF_DEEPSPEED.search(lines[n])), None)
        match = None if number is None else OF_DEEPSPEED.search(lines[number])
        values = None if number is None or match is None else _mapping(lines, number, match[1], where)
        if values is None:
            raise InputError(at, "ds_config", "is missing", "give the whole log, or DeepSpeed's file")
        made = deepspeed.of_values(values, f"{where}:{(number or 0) + 1}", said)
        return replace(made, where=where, devices=devices, taken=(*taken, *made.taken), **counts)
    precision, source = found.get("precision", ("", at))
    if precision not in OF_STATE:
        raise InputError(source, "Mixed precision type", f"is {shown(precision)}", f"give one of {', '.join(OF_STATE)}")
    return Configuration(
        where=where, runtime="accelerate", software="PyTorch DDP", dtype=OF_STATE[precision],
        precision=PLAIN if precision == "no" else MASTERS, devices=devices, cuts=(),
        recomputed=Recomputed("full" if said.recompute == "full" else "none"), taken=taken, **counts,
    )  # fmt: skip
