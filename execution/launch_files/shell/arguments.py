"""Words of a command as arguments by name, and which of them are undecided."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from trainplan.execution.launch_files.shell.marks import MARK, Marks, Unknown
from trainplan.profiling.models.families.fields import names

# Arguments of Megatron-LM that take several words, and some that take none: an undecided word after them may be an argument.
SEVERAL = names(
    """
    --data-path --train-data-path --valid-data-path --test-data-path --rampup-batch-size --cp-comm-type
    --recompute-modules --profile-ranks --blend --data-args --vision-pattern --load
    --encoder-tensor-model-parallel-size --train-weighted-split-paths --valid-weighted-split-paths
    --test-weighted-split-paths --moe-layer-freq --window-size --attention-types
    """
)
ALONE = names(
    """
    --bf16 --fp16 --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
    --swiglu --disable-bias-linear --untie-embeddings-and-output-weights --group-query-attention
    --use-flash-attn --use-mcore-models --no-masked-softmax-fusion --no-bias-gelu-fusion
    --no-bias-dropout-fusion --no-gradient-accumulation-fusion --no-load-optim --no-load-rng --no-save-optim
    --no-save-rng --exit-on-missing-checkpoint --deepspeed --recompute-activations --checkpoint-activations
    --deepspeed-activation-checkpointing --mock-data --no-rope-fusion --use-rotary-position-embeddings
    --log-throughput --log-params-norm --tp-comm-overlap --manual-gc --add-qkv-bias --qk-layernorm
    --squared-relu --use-cpu-initialization --no-query-key-layer-scaling --attention-softmax-in-fp32
    --accumulate-allreduce-grads-in-fp32 --no-pipeline-parallel --no-async-tensor-model-parallel-allreduce
    --use-torch-fsdp2 --fp8-param-gather --override-opt_param-scheduler --finetune
    """
)
DOTTED = re.compile(r"\+{0,2}[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")  # names of fields, as Hydra has them
HOLDS = re.compile(r"(?:ARG|OPT|FLAG|EXTRA|PARAM|CMD|COMMAND|CONFIG|SETTINGS|@)", re.IGNORECASE)


def values_of(words: Sequence[str]) -> dict[str, Any]:
    """The values of a command's arguments by name, and of fields set as in Hydra: `model.seq_length=4096 --bf16 --lr 1e-4
    --layers 2 3` -> {"model.seq_length": "4096", "--bf16": True, "--lr": "1e-4", "--layers": "2 3"}. words: the words after
    the program. Underscores in names of arguments become hyphens."""
    values: dict[str, Any] = {}
    index = 0
    while index < len(words):
        name, sign, joined = words[index].partition("=")
        index += 1
        if not name.startswith("--"):  # fields that are set before all arguments
            after_file = any(
                word.endswith((".yaml", ".yml", ".json")) for word in words[: index - 1]
            )  # the file that it overrides
            if sign and (DOTTED.fullmatch(name) or (after_file and name.isidentifier())):
                values[name.lstrip("+")] = joined
            continue
        given = [joined] if sign else []
        while index < len(words) and not words[index].startswith("--"):
            given.append(words[index])
            index += 1
        values["--" + name[2:].replace("_", "-")] = " ".join(given) if given else True
    return values


def undecided_argument(words: Sequence[str], marks: Marks) -> Unknown | None:
    """The cause of the first word of a command that is not known and may be an argument or several arguments, and not just
    the value of one; None if there is no such word. words: the words after the program. marks: the table of values that
    nobody has given, which the words refer to."""
    key, taken = "", 0
    for word in words:
        mark = MARK.match(word)
        if word.startswith("--"):
            name, sign, _ = word.partition("=")
            key, taken = "--" + name[2:].replace("_", "-"), int(bool(sign))
            if MARK.search(name):
                return marks.cause(name)
            continue
        if mark is not None:
            entry = marks.entry(mark[0])
            name = entry.name if isinstance(entry, Unknown) else ""
            value = bool(key) and key not in ALONE and (taken == 0 or key in SEVERAL)
            if not value or (
                len(word) == 1
                and ord(word) % 2 == 1
                and HOLDS.search(name)
                and not key.endswith(("-path", "-config", "_config"))
            ):
                return marks.cause(word)
        taken += 1
    return None
