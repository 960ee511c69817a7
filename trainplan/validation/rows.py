"""Files of measured runs: a list of rows, each with a model's sizes, a layout, and what was measured."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Annotated, Any

from pydantic import Field, PrivateAttr, ValidationError

from trainplan.profiling.base.errors import InputError, caution, shown
from trainplan.profiling.base.files import Record, as_input_error, read_data

Count = Annotated[int, Field(ge=1, le=2**40)]
Measure = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=10_000)]


class Run(Record):
    """A measured run; what is null or left out is not said.

    model: its name, of a shipped configuration or a family's, whose fields the row's sizes override. params: parameters,
    layers to vocab: sizes; experts, topk: of a mixture of experts. gpu: of a data sheet, by words of its name; gpus: how many.
    seq: tokens of a sample; gbs: samples of a step, mbs: of a micro-batch on one rank. tp to dp: degrees, vpp the stages of
    each device. fsdp: how parameters are sharded, zero: the ZeRO stage. recompute, precision: in words. step_s to oom: what was
    measured. note: words and flags of the source; date and framework say what the framework did by default.

    unread: why a row could not be read, which is then nothing but its id.
    """

    id: Text
    source: Text = ""
    model: Text
    params: Measure | None = None
    layers: Count | None = None
    hidden: Count | None = None
    heads: Count | None = None
    kv_heads: Count | None = None
    ffn: Count | None = None
    vocab: Count | None = None
    experts: Count | None = None
    topk: Count | None = None
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
    fsdp: Text | None = None
    recompute: Text | None = None
    precision: Text | None = None
    tokens_s_gpu: Measure | None = None
    tflops_gpu: Measure | None = None
    mfu: Measure | None = None
    step_s: Measure | None = None
    mem_gib: Measure | None = None
    oom: bool | None = None
    note: Text | None = None
    task: Text | None = None
    date: Text | None = None
    framework: Text | None = None
    zero: Annotated[int, Field(ge=0, le=3)] | None = None
    file: Text | None = None

    _unread: InputError | None = PrivateAttr(default=None)

    @property
    def unread(self) -> InputError | None:
        """Why the row could not be read; None where it was."""
        return self._unread


# Fields that change no prediction, and why.
NAMES = "names the row"
MEASURED = "is measured: predictions are held against it"
UNMOVED = {
    **dict.fromkeys(("id", "source", "file"), NAMES),
    **dict.fromkeys(("tokens_s_gpu", "tflops_gpu", "mfu", "step_s", "mem_gib", "oom"), MEASURED),
    "params": "decides only what sizes leave open: none where they are all said",
}


# What other tools call fields that bear on a run.
MEANT = {
    "batch": "gbs", "batch_size": "gbs", "global_batch": "gbs", "global_batch_size": "gbs", "train_batch_size": "gbs",
    "micro_batch": "mbs", "micro_batch_size": "mbs", "local_batch_size": "mbs", "sequence": "seq", "seq_len": "seq",
    "seq_length": "seq", "sequence_length": "seq", "zero_stage": "zero", "dtype": "precision", "devices": "gpus",
    "world_size": "gpus", "tensor_parallel": "tp", "pipeline_parallel": "pp", "context_parallel": "cp",
}  # fmt: skip


def load_runs(source: str | os.PathLike[str] | Sequence[Mapping[str, Any]]) -> list[Run]:
    """The rows of a JSON file, or of a list. Unknown fields are warned of once; a row that cannot be read says why (`unread`),
    and does not keep others from being read. Raises InputError for what is no list of rows."""
    listed = isinstance(source, Sequence) and not isinstance(source, str)
    where = "runs" if listed else os.fspath(source)  # type: ignore[arg-type]
    values: Any = source if listed else read_data(where)
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise InputError(where, "", f"holds {shown(values)}", "give a list of runs [...]")
    if not values:
        raise InputError(where, "", "holds no run", "give a list of at least one run")
    runs: list[Run] = []
    warned: set[str] = set()
    ids: dict[str, int] = {}
    for place, value in enumerate(values):
        if not isinstance(value, Mapping):
            raise InputError(where, f"[{place}]", f"is {shown(value)}", "give an object with id, model, gpu and gpus")
        for name in sorted(set(value) - set(Run.model_fields) - warned):
            warned.add(name)
            caution(where, f"[{place}].{name}", "is a field that runs do not have", "it is left out")
        run = _run(value, where, place)
        if run.id in ids:
            caution(where, f"[{place}].id", f"is {run.id!r}, as of [{ids[run.id]}]", "give each run an id of its own")
        ids.setdefault(run.id, place)
        runs.append(run)
    return runs


def _run(value: Mapping[str, Any], where: str, place: int) -> Run:
    """One row, with numbers and words as tables of other tools have them: 4.0 and "4" for 4, 0, NaN and "n/a" for what is not
    said, words for yes and no."""
    fields = {name: _plain(name, each) for name, each in value.items() if name in Run.model_fields}
    fields = {name: each for name, each in fields.items() if each is not None}
    other = next((name for name in value if name in MEANT and MEANT[name] not in fields and value[name] is not None), None)
    try:
        if other is not None:  # a row without it would be of another run
            raise InputError(where, other, f"is called {MEANT[other]} in files of runs", f"write {MEANT[other]}")
        return Run.model_validate(fields)
    except (ValidationError, InputError) as error:
        wrong = error if isinstance(error, InputError) else as_input_error(error, where)
        run = Run(id=str(fields.get("id", f"[{place}]")), model=str(fields.get("model", "")), gpu="", gpus=1)
        run._unread = InputError(where, wrong.field, wrong.problem, wrong.fix)
        return run


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, float) and not isfinite(value):
        return None
    if name not in TEXTS and isinstance(value, str):
        value = _number(name, value)
    if name in TEXTS and isinstance(value, bool | int | float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if name in WHOLE and isinstance(value, bool | float) and value == int(value):
        value = int(value)
    return None if name in WHOLE and name != "zero" and value == 0 else value


def _number(name: str, text: str) -> Any:
    """A number that a table has as a text, with commas or, of tokens, in binary thousands; the text if it is none."""
    words = text.strip().lower().replace(",", "")
    if words in UNSAID:
        return None
    if name == "oom":
        return {"true": True, "yes": True, "oom": True, "1": True, "false": False, "no": False, "0": False}.get(words, text)
    if name == "seq" and words.endswith("k") and words[:-1].isdigit():
        return int(words[:-1]) * 1024
    try:
        number = float(words)
    except ValueError:
        return text
    if not isfinite(number):
        return None
    return int(number) if name in WHOLE and number == int(number) else number


UNSAID = ("", "-", "--", "n/a", "na", "none", "null", "nan", "?")
TEXTS = frozenset(
    ("id", "source", "model", "gpu", "fsdp", "recompute", "precision", "note", "task", "date", "framework", "file")
)
SIZES = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts", "topk", "seq")
WHOLE = frozenset((*SIZES, "gpus", "gbs", "mbs", "tp", "pp", "vpp", "cp", "ep", "dp", "zero"))
