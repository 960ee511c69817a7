"""Files of measured runs: a list of rows, each with a model's sizes, a configuration, and measurements."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import resources
from math import isfinite
from typing import Annotated, Any

from pydantic import Field, PrivateAttr, ValidationError

from trainplan.profiling.base.display import in_one_line
from trainplan.profiling.base.errors import InputError, caution, shown
from trainplan.profiling.base.files import as_input_error, read_data
from trainplan.validation.measures import MEASURES, OPEN, folded, measure_named, measured_number
from trainplan.validation.mixture_fields import MIXTURE_TEXTS, MIXTURE_WHOLE, MixtureFields

Count = Annotated[int, Field(ge=1, le=2**40)]
Measure = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=10_000)]
Truth = Annotated[bool, Field(strict=False)]  # also yes, no, on, off, and "true" in quotes
# The published steps to which the shipped efficiencies are fitted, each with its source.
SHIPPED_RUNS = str(resources.files("trainplan.data") / "measured" / "steps.json")


@in_one_line
class Run(MixtureFields):
    """A measured training run, a row of a table of published or own runs; a field that is null or missing is not stated.
    Fields on mixtures of experts are those of `MixtureFields`.

    Attributes:
        id: the run's own name; source: the publication that it is from; file: the place in the publication.
        model: name of a shipped configuration or of a family; the sizes below override its fields.
        params: number of parameters.
        layers, hidden, heads, kv_heads, head_dim, ffn, vocab: sizes of the model; head_dim is that of one head.
        gpu: the device, in words of its data sheet's name; gpus: the number of devices.
        seq: tokens per sample; gbs: samples per step; mbs: samples per micro-batch on one rank.
        tp, pp, cp, ep, dp: degrees of parallelism; vpp: the number of pipeline stages per device.
        fsdp: how states are sharded, in words; zero: the ZeRO stage.
        asym_embed, asym_loss: whether the embedding, and head and loss, count as a layer each where pipeline stages are cut.
        megatron_fsdp: whether Megatron-Core's own FSDP runs: without `zero` and `fsdp` it shares parameters, too.
        overlap_grad_reduce, overlap_param_gather: whether gradients are reduced alongside backward passes, and updated
            parameters gathered alongside forward passes.
        recompute, precision, task: recomputation, precision and kind of training (such as LoRA), in words.
        offload_layers: of how many layers of a stage the activations are in the host's memory.
        cuda_graph: what CUDA graphs capture, in words: `full_iteration` hides the host's launches.
        step_s, tokens_s, samples_s: measured on all devices together.
        tokens_s_gpu, tflops_gpu, mem_gib: measured per device.
        mem_rank: the pipeline rank whose peak mem_gib is: `last`, `first`, or `fullest`, which is assumed.
        mfu, hfu: shares, or percent if above 1.5.
        oom: whether the run was out of memory.
        note: free text: words and flags of the source.
        facts: those words of the note that were known before the run; where they are given, they stand for the note.
        date, framework: determine the framework's defaults.
    """

    id: Text
    source: Text = ""
    model: Text
    params: Measure | None = None
    layers: Count | None = None
    hidden: Count | None = None
    heads: Count | None = None
    kv_heads: Count | None = None
    head_dim: Count | None = None
    ffn: Count | None = None
    vocab: Count | None = None
    gpu: Text
    gpus: Count
    seq: Count | None = None
    gbs: Count | None = None
    mbs: Count | None = None
    tp: Count | None = None
    pp: Count | None = None
    vpp: Count | None = None
    cp: Count | None = None
    ep: Count | None = None
    dp: Count | None = None
    asym_embed: Truth | None = None
    asym_loss: Truth | None = None
    fsdp: Text | None = None
    megatron_fsdp: Truth | None = None
    overlap_grad_reduce: Truth | None = None
    overlap_param_gather: Truth | None = None
    recompute: Text | None = None
    offload_layers: Count | None = None
    cuda_graph: Text | None = None
    precision: Text | None = None
    tokens_s_gpu: Measure | None = None
    tokens_s: Measure | None = None
    samples_s: Measure | None = None
    tflops_gpu: Measure | None = None
    mfu: Measure | None = None
    hfu: Measure | None = None
    step_s: Measure | None = None
    mem_gib: Measure | None = None
    mem_rank: Text | None = None
    oom: bool | None = None
    note: Text | None = None
    facts: Text | None = None
    task: Text | None = None
    date: Text | None = None
    framework: Text | None = None
    zero: Annotated[int, Field(ge=0, le=3)] | None = None
    file: Text | None = None

    _unread: InputError | None = PrivateAttr(default=None)
    _found_in: str = PrivateAttr(default="")

    @property
    def found_in(self) -> str:
        """The file that the run was read from and its index there, such as "runs.json: [2]"; empty if it is from no file."""
        return self._found_in

    @property
    def unread(self) -> InputError | None:
        """The reason why the run could not be read from its file (it then has little more than its id); None if it could."""
        return self._unread


# Fields that change no prediction, and why.
NAMES = "names the row"
MEASURED = "is measured: predictions are compared with it"
UNMOVED = {
    **dict.fromkeys(("id", "source", "file"), NAMES),
    **dict.fromkeys((*MEASURES, "oom"), MEASURED),
    "mem_rank": "decides which pipeline rank's peak is predicted: the same without pipelines",
    "params": "decides only what sizes leave open: none where they are all said",
}


# Other tools' names for fields of a run, as `_bare` returns them, each with the field that it means or that takes its text.
MEANT = {
    **dict.fromkeys(("batch", "global_batch", "train_batch", "batch_per_step", "bs", "gbsz", "accumulation_steps"), "gbs"),
    **dict.fromkeys(("gradient_accumulation_steps", "grad_accum", "gradient_accumulation", "ga", "gas"), "gbs"),
    **dict.fromkeys(("micro_batch", "local_batch", "device_batch", "per_device_train_batch", "micro_bs", "microbatch"), "mbs"),
    **dict.fromkeys(("sequence", "seq_len", "seqlen", "seq_length", "sequence_length", "context_length", "max_seq_len"), "seq"),
    **dict.fromkeys(("zero_stage", "stage"), "zero"),
    **dict.fromkeys(("dtype", "mixed_precision", "compute_dtype", "torch_dtype", "recipe"), "precision"),
    **dict.fromkeys(("devices", "gpus", "world", "n_gpus", "ngpus", "gpu_count", "nodes", "nnodes", "chips"), "gpus"),
    **dict.fromkeys(("device_type", "hardware", "accelerator", "gpu_type", "gpu_name"), "gpu"),
    **dict.fromkeys(("tensor_parallel", "tensor", "tp_degree", "model_parallel"), "tp"),
    **dict.fromkeys(("pipeline_parallel", "pipeline", "pp_degree", "pipeline_stages", "stages"), "pp"),
    **dict.fromkeys(("virtual_pipeline_parallel", "virtual_stages", "vp", "interleaved_stages", "virtual_pipeline"), "vpp"),
    **dict.fromkeys(("context_parallel", "context"), "cp"),
    **dict.fromkeys(("data_parallel", "dp_degree"), "dp"),
    **dict.fromkeys(("expert_parallel", "expert"), "ep"),
    **dict.fromkeys(("hidden_layers", "n_layers", "n_layer"), "layers"),
    **dict.fromkeys(("d_model", "n_embd", "embedding_dim"), "hidden"),
    **dict.fromkeys(("attention_heads", "n_heads", "n_head"), "heads"),
    **dict.fromkeys(("key_value_heads", "query_groups", "n_kv_heads"), "kv_heads"),
    **dict.fromkeys(("intermediate", "ffn_hidden", "n_inner", "d_ff"), "ffn"),
    **dict.fromkeys(("vocabulary", "padded_vocab"), "vocab"),
    **dict.fromkeys(("local_experts", "n_experts"), "experts"),
    **dict.fromkeys(("sharding", "sharding_strategy", "fsdp_strategy", "distributed_type"), "fsdp"),
    **dict.fromkeys(("activation_checkpointing", "gradient_checkpointing", "recomputation", "checkpointing"), "recompute"),
    **dict.fromkeys(("recompute_granularity", "ac", "ac_mode", "activation_recompute", "remat"), "recompute"),
    **dict.fromkeys(("optimizer", "offload", "cpu_offload", "optimizer_offload", "attention", "attn_implementation"), "note"),
    **dict.fromkeys(("schedule", "pipeline_schedule", "sequence_parallel", "loss", "lora", "lora_rank", "network"), "note"),
    **dict.fromkeys(("software", "trainer", "library", "runtime"), "framework"),
    **dict.fromkeys(("kv_channels", "head_width"), "head_dim"),
    **dict.fromkeys(("cpu_offloading_layers", "offloaded_layers"), "offload_layers"),
    **dict.fromkeys(("enable_cuda_graph", "cuda_graph_scope", "cuda_graph_impl", "cuda_graphs"), "cuda_graph"),
    **dict.fromkeys(("use_megatron_fsdp",), "megatron_fsdp"),
    **dict.fromkeys(("account_for_embedding_in_pipeline_split",), "asym_embed"),
    **dict.fromkeys(("account_for_loss_in_pipeline_split",), "asym_loss"),
    **dict.fromkeys(("overlap_reduce", "overlap_grad"), "overlap_grad_reduce"),
    **dict.fromkeys(("overlap_gather", "overlap_param"), "overlap_param_gather"),
}  # fmt: skip
SHORT = 4  # letters of names that are like others by chance
DROPPED = frozenset(("num", "number", "of", "size", "total", "degree", "model"))  # words that do not change a name's meaning
NOTHING = (None, "", False, "none", "no", "off", "false", "adam", "adamw")  # values that change nothing


def _nothing(value: Any) -> bool:
    """Whether a value of a field that is unknown here makes no difference to a measured run, such as none, off, or the usual
    optimizer.
    """
    return (value.strip().lower() if isinstance(value, str) else value) in NOTHING


def _bare(name: str) -> str:
    """Shorten a field's name by words that do not change its meaning: `tensor_model_parallel_size` -> `tensor_parallel`."""
    words = folded(name).replace("parallelism", "parallel").split("_")
    return "_".join(word for word in words if word not in DROPPED) or folded(name)


def meant_by(name: str) -> str | None:
    """Translate another tool's name into the field of measured runs with the same meaning: "tensor_model_parallel_size" ->
    "tp"; None if no field has it.
    """
    return MEANT.get(folded(name)) or MEANT.get(_bare(name)) or (_bare(name) if _bare(name) in Run.model_fields else None)


def load_runs(source: str | os.PathLike[str] | Sequence[Mapping[str, Any]]) -> list[Run]:
    """Read measured training runs from a JSON file (source is its path), or from a list of dicts.

    All unknown fields together cause one warning, however many runs have them; without a value they cause none. A run that
    cannot be read, such as a number, has the reason in `unread`, and does not stop the others. Raises InputError if the source
    is not a list of runs.
    """
    listed = isinstance(source, Sequence) and not isinstance(source, str)
    where = "runs" if listed else os.fspath(source)  # type: ignore[arg-type]
    values: Any = source if listed else read_data(where)
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise InputError(where, "", f"holds {shown(values)}", "give a list of runs [...]")
    if not values:
        raise InputError(where, "", "holds no run", "give a list of at least one run")
    runs: list[Run] = []
    warned: set[str] = set()
    left_out: list[str] = []
    ids: dict[str, int] = {}
    for index, value in enumerate(values):
        if not isinstance(value, Mapping):
            wrong = InputError(where, "row", f"is {shown(value)}", "give an object with id, model, gpu and gpus")
            runs.append(_unread(wrong, index, {}))
            continue
        for name in sorted(str(name) for name in set(value) - set(Run.model_fields) - warned if value[name] is not None):
            warned.add(name)
            if folded(name) in OPEN:
                caution(
                    where, f"[{index}].{name}", "does not say its unit, or of how many devices", f"write {OPEN[folded(name)]}"
                )
            elif measure_named(name, value) is None and ((meant := meant_by(name)) is None or value.get(meant) is not None):
                left_out.append(f"[{index}].{name}{_like(name) if meant is None else ''}")
        run = _run(value, where, index)
        if run.id in ids:
            caution(where, f"[{index}].id", f"is {run.id!r}, as of [{ids[run.id]}]", "give each run an id of its own")
        ids.setdefault(run.id, index)
        runs.append(run)
    if left_out:
        several = len(left_out) > 1
        problem = "are fields that runs do not have" if several else "is a field that runs do not have"
        caution(where, ", ".join(left_out), problem, f"{'they are' if several else 'it is'} left out")
    return runs


def _like(name: str) -> str:
    """A question for users whether an unknown field is one with nearly the same name, such as " (recompute?)"; empty if there
    is none.
    """
    near = get_close_matches(folded(name), [*Run.model_fields, *MEANT], 1, cutoff=0.8) if len(name) > SHORT else []
    return f" ({MEANT.get(near[0], near[0])}?)" if near else ""


def _run(row: Mapping[str, Any], where: str, index: int) -> Run:
    """Build a measured run from a row of a table, which may use any tool's names and spellings: 4.0 and "4" are read as 4; 0,
    NaN and "n/a" as not stated; yes and no as booleans. If the row cannot be read, the run has the reason in `unread`.

    where, index: the file's name and the row's index in it, for errors.
    """
    fields = {name: _plain(name, value) for name, value in row.items() if name in Run.model_fields}
    for name, value in row.items():
        if name not in Run.model_fields and (found := measure_named(str(name), row)) is not None:
            number = _plain(found[0], value)
            fields[found[0]] = number * found[1] if isinstance(number, int | float) else number
    if fields.get("facts") is not None:
        fields["note"] = fields["facts"]
    fields = {name: field for name, field in fields.items() if field is not None}
    others = {name: meant for name in row if name not in Run.model_fields and (meant := meant_by(str(name))) is not None}
    misnamed = [name for name, meant in others.items() if (meant == "note" or meant not in fields) and not _nothing(row[name])]
    other = next(iter(misnamed), None)
    try:
        if other is not None:  # a row without it would be of another run
            raise InputError(where, str(other), f"is called {others[other]} in files of runs", f"write {others[other]}")
        run = Run.model_validate(fields)
    except (ValidationError, InputError) as error:
        wrong = error if isinstance(error, InputError) else as_input_error(error, where)
        fix = f"give {NECESSARY[wrong.field]}" if wrong.field in NECESSARY else wrong.fix
        run = _unread(InputError(where, wrong.field, wrong.problem, fix), index, fields)
    run._found_in = f"{where}: [{index}]"
    return run


def _unread(reason: InputError, index: int, fields: Mapping[str, Any]) -> Run:
    """A run that could not be read from its file: it has the reason, and of its fields the id and the model. index: that of the
    row in the file, which stands for an id that is missing.
    """
    run = Run(id=str(fields.get("id", f"[{index}]"))[:100], model=str(fields.get("model", ""))[:100], gpu="", gpus=1)
    run._unread, run._found_in = reason, f"{reason.where}: [{index}]"
    return run


def _plain(name: str, value: Any) -> Any:
    """Convert a value to the type of the field `name` of measured runs: a text with a unit to a number, a text such as n/a to
    None; other values are returned unchanged.
    """
    if isinstance(value, float) and not isfinite(value):
        return None
    if name not in TEXTS and isinstance(value, str):
        value = _number(name, value)
        value = measured_number(name, value)
    if name in OPEN_WORDS and isinstance(value, str) and value.strip().lower() in UNKNOWN:
        return None
    if name in TEXTS and isinstance(value, Mapping | list):
        return json.dumps(value, default=str)
    if name in TEXTS and isinstance(value, bool | int | float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if name in WHOLE and isinstance(value, bool | float) and value == int(value):
        value = int(value)
    return None if name in WHOLE and name not in MAYBE_NONE and value == 0 else value


def _number(name: str, text: str) -> Any:
    """Convert a text to a number: commas are ignored, and 4k is 4096 if the field `name` of measured runs counts tokens. For
    fields that are true or false, such as `oom` (out of memory), the result is True or False. None for texts such as n/a; any
    other text is returned unchanged.
    """
    words = text.strip().lower().replace(",", "")
    if words in UNSAID:
        return None
    if name in BOOLEANS:
        answers = (("true", "yes", "y", "on", "oom", "1", "out of memory"), ("false", "no", "n", "off", "ok", "fits", "0"))
        return True if words in answers[0] else False if words in answers[1] else text
    if name == "seq" and words.endswith("k") and words[:-1].isdigit():
        return int(words[:-1]) * 1024
    try:
        number = float(words)
    except ValueError:
        return text
    if not isfinite(number):
        return None
    return int(number) if name in WHOLE and number == int(number) else number


UNKNOWN = ("?", "unknown", "tbd", "nan", "unsaid", "not said", "not reported", "unspecified")
OPEN_WORDS = ("precision", "fsdp", "recompute", "framework")
UNSAID = ("", "-", "--", "n/a", "na", "none", "null", "nan", "?")
BOOLEANS = ("oom", "asym_embed", "asym_loss", "megatron_fsdp", "overlap_grad_reduce", "overlap_param_gather")
TEXTS = frozenset((
    "id", "source", "model", "gpu", "fsdp", "recompute", "precision", "note", "facts", "task", "date", "framework", "file",
    "mem_rank", "cuda_graph", *MIXTURE_TEXTS,
))  # fmt: skip
SIZES = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "experts", "topk", "seq")
MAYBE_NONE = ("zero", "gpus", "shared_ffn", "shared_experts", "dense_first", "mtp")  # counts that may be 0
WHOLE = frozenset((*SIZES, "gpus", "gbs", "mbs", "tp", "pp", "vpp", "cp", "ep", "dp", "zero", "offload_layers", *MIXTURE_WHOLE))
# Values of the fields that every row has, for people whose row has none that can be read.
NECESSARY = {
    "id": 'a name of the row, such as "mine"',
    "model": 'a model, such as "llama3-8b"',
    "gpu": 'a device, such as "h100" (see `trainplan cluster kinds`)',
    "gpus": "the number of devices of the run, such as 8",
}
